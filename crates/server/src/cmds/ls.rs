//! `millrace ls`: what is in the store.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use millrace_core::units::ByteLen;

use super::StoreArgs;

/// List the titles in the store
#[derive(Args)]
#[command(after_help = "Examples:\n  millrace ls\n  millrace ls --json | jq '.[].name'")]
pub(super) struct LsArgs {
    /// All that is known of every title, as one JSON array
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreArgs,
}

/// Prints a table.
pub(super) fn run(args: &LsArgs) -> anyhow::Result<ExitCode> {
    let titles = args.store.open()?.titles()?;
    if args.json {
        super::print_json(&titles)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut out = std::io::stdout().lock();
    if titles.is_empty() {
        writeln!(out, "no titles yet; add one with: millrace add FILE")?;
        return Ok(ExitCode::SUCCESS);
    }
    let width = titles.iter().map(|t| t.name.len()).max().unwrap_or(0).max(5);
    writeln!(
        out,
        "{:width$}  {:>11}  {:>10}  {:>10}  {:>9}  CODECS",
        "TITLE", "LENGTH", "MEAN", "PEAK", "SIZE"
    )?;
    for t in &titles {
        let codecs: Vec<&str> = t.streams.iter().map(|s| s.codec.as_str()).collect();
        let (length, mean, peak) = (t.duration.to_string(), t.mean_rate.to_string(), t.peak_rate.to_string());
        let size = ByteLen(t.bytes).to_string();
        writeln!(
            out,
            "{:width$}  {length:>11}  {mean:>10}  {peak:>10}  {size:>9}  {}",
            t.name,
            codecs.join(" + ")
        )?;
    }
    Ok(ExitCode::SUCCESS)
}
