//! `millrace ls`: what is in the store.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use millrace_core::units::ByteLen;
use millrace_store::volume::{ListedTitle, TitleInfo};
use serde::{Serialize, Serializer};

use super::StoreArgs;
use super::terminal::name;

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

/// A title as JSON: what is known of it, and whether it can be played.
#[derive(Serialize)]
struct JsonTitle<'a> {
    #[serde(flatten)]
    info: &'a TitleInfo,
    /// Whether enough of its members are there.
    playable: bool,
    /// If it cannot: why.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// And which members are missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing: Vec<MissingMember>,
}

#[derive(Serialize)]
struct MissingMember {
    member: usize,
    #[serde(serialize_with = "as_text")]
    dir: PathBuf,
}

/// A path that is not text is shown as well as it can be.
fn as_text<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&path.display())
}

/// Prints a table.
pub(super) fn run(args: &LsArgs) -> anyhow::Result<ExitCode> {
    let volume = args.store.open_any()?;
    let members = volume.members();
    let lost = |title: &ListedTitle| title.lost(|slot| members.is_usable(slot));
    let titles = volume.listing()?.titles;
    if args.json {
        let rows = titles.iter().map(|title| {
            let lost = lost(title);
            let reason = lost.as_ref().map(ToString::to_string);
            let member = |&member: &usize| MissingMember { member, dir: members.dir(member) };
            let missing = lost.iter().flat_map(|lost| &lost.slots).map(member).collect();
            JsonTitle { info: &title.info, playable: lost.is_none(), reason, missing }
        });
        super::print_json(&rows.collect::<Vec<_>>())?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut out = super::terminal::stdout();
    if titles.is_empty() {
        writeln!(out, "no titles yet; add one with: millrace add FILE")?;
        return Ok(ExitCode::SUCCESS);
    }
    let width = titles.iter().map(|t| name(&t.info.name).chars().count()).max().unwrap_or(0).max(5);
    writeln!(
        out,
        "{:width$}  {:>11}  {:>10}  {:>10}  {:>9}  CODECS",
        "TITLE", "LENGTH", "MEAN", "PEAK", "SIZE"
    )?;
    for ListedTitle { info: t, .. } in &titles {
        let codecs: Vec<&str> = t.streams.iter().map(|s| s.codec.as_str()).collect();
        let (length, mean, peak) = (t.duration.to_string(), t.mean_rate.to_string(), t.peak_rate.to_string());
        let size = ByteLen(t.bytes).to_string();
        writeln!(
            out,
            "{:width$}  {length:>11}  {mean:>10}  {peak:>10}  {size:>9}  {}",
            name(&t.name),
            codecs.join(" + ")
        )?;
    }
    for title in &titles {
        let Some(lost) = lost(title) else { continue };
        let dirs = lost.slots.iter().map(|&slot| members.dir(slot).display().to_string());
        let dirs = dirs.collect::<Vec<_>>().join(", ");
        writeln!(out, "{} cannot be played: {lost}; bring back {dirs}", name(&title.info.name))?;
    }
    Ok(ExitCode::SUCCESS)
}
