//! `millrace live`: the live sources of a running server.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::{Args, Subcommand};
use millrace_core::text::excerpt;
use millrace_core::units::{BitRate, Count};
use serde::Deserialize;

use super::remote::RemoteArgs;
use crate::limits::live::MAX_LIVE_CELL;
use crate::live::address::{LiveSource, check_live_name};

/// List the live sources of a running server, with the state of each; add and remove some
#[derive(Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  millrace live\n  millrace live --server http://tv.example:8080/\n  \
                        millrace live --json | jq '.[] | select(.state != \"running\")'\n  \
                        millrace live add news udp://239.1.1.1:5000 --backup rtp://239.1.1.2:5000\n  \
                        millrace live remove news"
)]
pub(super) struct LiveArgs {
    #[command(subcommand)]
    command: Option<LiveCommand>,
    #[command(flatten)]
    remote: RemoteArgs,
    /// Print the list of the API, as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand)]
enum LiveCommand {
    Add(AddArgs),
    Remove(RemoveArgs),
}

/// Add a source to a running server, which keeps it for its next start
#[derive(Args)]
#[command(after_help = "Examples:\n  millrace live add news udp://239.1.1.1:5000\n  \
                        millrace live add yard 'rtsp://viewer:secret@camera.lan/stream1' --server http://boss@tv.example:8080/")]
struct AddArgs {
    /// Name of the live title
    #[arg(value_name = "NAME")]
    name: String,
    /// Where its media comes from, as for serve --live
    #[arg(value_name = "URL")]
    url: String,
    /// Source that stands in while the first one does not come
    #[arg(long, value_name = "URL")]
    backup: Option<String>,
    #[command(flatten)]
    remote: RemoteArgs,
}

/// Remove a source that was added to a running server; its viewers see the end of the title
#[derive(Args)]
#[command(after_help = "Examples:\n  millrace live remove news")]
struct RemoveArgs {
    /// Name of the live title
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    remote: RemoteArgs,
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
    #[serde(default)]
    multicast: Vec<RemoteCast>,
}

/// A group that viewers have it sent to.
#[derive(Deserialize)]
struct RemoteCast {
    to: String,
    listeners: u64,
    trouble: Option<String>,
}

/// The part of its recording that is shown.
#[derive(Deserialize)]
struct RemoteRecording {
    title: String,
}

pub(super) fn run(args: &LiveArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        None => list(args),
        Some(LiveCommand::Add(args)) => add(args),
        Some(LiveCommand::Remove(args)) => remove(args),
    }
}

fn add(AddArgs { name, url, backup, remote }: &AddArgs) -> anyhow::Result<ExitCode> {
    for url in [Some(url), backup.as_ref()].into_iter().flatten() {
        LiveSource::new(name, url).map_err(|error| super::usage(error.into()))?;
    }
    let remote = remote.named_or_local()?;
    remote.sign_in()?;
    let mut source = serde_json::json!({ "name": name, "url": url });
    if let Some(backup) = backup {
        source["backup"] = backup.as_str().into();
    }
    let _: serde_json::Value = remote.send("POST", "api/v1/live", Some(&source))?;
    writeln!(super::terminal::stdout(), "added {name}; see its state with: millrace live")?;
    Ok(ExitCode::SUCCESS)
}

fn remove(RemoveArgs { name, remote }: &RemoveArgs) -> anyhow::Result<ExitCode> {
    check_live_name(name).map_err(|error| super::usage(error.into()))?;
    let remote = remote.named_or_local()?;
    remote.sign_in()?;
    let is_removed = remote.remove(&format!("api/v1/live/{name}"))?;
    ensure!(is_removed, "{}: no live source {name}; list them with: millrace live", remote.place());
    writeln!(super::terminal::stdout(), "removed {name}")?;
    Ok(ExitCode::SUCCESS)
}

fn list(args: &LiveArgs) -> anyhow::Result<ExitCode> {
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
        writeln!(out, "no live sources; add one with: millrace live add NAME URL")?;
        return Ok(ExitCode::SUCCESS);
    }
    let width =
        sources.iter().map(|source| source.name.chars().count()).max().unwrap_or(0).clamp(4, MAX_LIVE_CELL);
    writeln!(out, "{:width$}  {:8}  {:>10}  {:>7}  MESSAGE", "NAME", "STATE", "RATE", "VIEWERS")?;
    for RemoteSource { name, state, message, bits_per_s, viewers, recording, multicast } in sources {
        let (name, state) = (excerpt(&name, MAX_LIVE_CELL), excerpt(&state, MAX_LIVE_CELL));
        let message = match recording {
            Some(recording) => format!("{message}; recorded as \"{}\"", recording.title),
            None => message,
        };
        let message = multicast.iter().fold(message, |message, cast| {
            let listeners = Count(cast.listeners, "listener");
            let trouble =
                cast.trouble.as_ref().map(|why| format!(", cannot send: {why}")).unwrap_or_default();
            format!("{message}; cast to {} for {listeners}{trouble}", cast.to)
        });
        let (message, rate) = (excerpt(&message, MAX_LIVE_CELL), BitRate(bits_per_s).to_string());
        writeln!(out, "{name:width$}  {state:8}  {rate:>10}  {viewers:>7}  {message}")?;
    }
    Ok(ExitCode::SUCCESS)
}
