//! `millrace live`: the live sources of a running server.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use millrace_core::text::excerpt;
use millrace_core::units::BitRate;
use serde::Deserialize;

use super::remote::RemoteArgs;
use crate::limits::live::MAX_LIVE_CELL;

/// List the live sources of a running server, with the state of each
#[derive(Args)]
#[command(after_help = "Examples:\n  millrace live\n  millrace live --server http://tv.example:8080/\n  \
                        millrace live --json | jq '.[] | select(.state != \"running\")'")]
pub(super) struct LiveArgs {
    #[command(flatten)]
    remote: RemoteArgs,
    /// Print the list of the API, as JSON
    #[arg(long)]
    json: bool,
}

/// A source as the API has it.
#[derive(Deserialize)]
struct RemoteSource {
    name: String,
    state: String,
    message: String,
    bits_per_s: u64,
    viewers: u64,
    recording: Option<RemoteRecording>,
}

/// The part of its recording that is shown.
#[derive(Deserialize)]
struct RemoteRecording {
    title: String,
}

pub(super) fn run(args: &LiveArgs) -> anyhow::Result<ExitCode> {
    let remote = args.remote.named_or_local()?;
    remote.sign_in()?;
    let listed: serde_json::Value = remote.get("api/v1/live")?;
    if args.json {
        super::print_json(&listed["live"])?;
        return Ok(ExitCode::SUCCESS);
    }
    let sources = Vec::<RemoteSource>::deserialize(&listed["live"])
        .with_context(|| format!("{}: cannot read the list of live sources", remote.place()))?;
    let mut out = super::terminal::stdout();
    if sources.is_empty() {
        writeln!(out, "no live sources; add one with: millrace serve --live NAME=URL")?;
        return Ok(ExitCode::SUCCESS);
    }
    let width =
        sources.iter().map(|source| source.name.chars().count()).max().unwrap_or(0).clamp(4, MAX_LIVE_CELL);
    writeln!(out, "{:width$}  {:8}  {:>10}  {:>7}  MESSAGE", "NAME", "STATE", "RATE", "VIEWERS")?;
    for RemoteSource { name, state, message, bits_per_s, viewers, recording } in sources {
        let (name, state) = (excerpt(&name, MAX_LIVE_CELL), excerpt(&state, MAX_LIVE_CELL));
        let message = match recording {
            Some(recording) => format!("{message}; recorded as \"{}\"", recording.title),
            None => message,
        };
        let (message, rate) = (excerpt(&message, MAX_LIVE_CELL), BitRate(bits_per_s).to_string());
        writeln!(out, "{name:width$}  {state:8}  {rate:>10}  {viewers:>7}  {message}")?;
    }
    Ok(ExitCode::SUCCESS)
}
