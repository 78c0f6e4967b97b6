//! `millrace fsck`: every promise of the store's format.

use std::process::ExitCode;

use clap::Args;
use millrace_store::check::{CheckProgress, Depth, Finding, Severity, check_members, check_store};

use super::StoreArgs;

/// Check the store and all members of its volume: structures, sizes and checksums; with --full, every byte of every title
#[derive(Args)]
#[command(
    after_help = "Examples:\n  millrace fsck\n  millrace fsck --full --json\n\nNothing is changed: millrace scrub \
                        repairs.\nThe exit code is 1 when something is wrong; each finding names its remedy."
)]
pub(super) struct FsckArgs {
    /// Also read all media data and verify each title's hash and each packet's checksum
    #[arg(long)]
    full: bool,
    /// The findings as a JSON array
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreArgs,
}

/// Checks and prints the findings.
pub(super) fn run(args: &FsckArgs) -> anyhow::Result<ExitCode> {
    let dir = args.store.dir()?;
    let depth = if args.full { Depth::Full } else { Depth::Quick };
    let bar = indicatif::ProgressBar::new(0);
    if args.json {
        bar.set_draw_target(indicatif::ProgressDrawTarget::hidden());
    }
    let tell = &mut |progress: &CheckProgress| show(&bar, progress);
    let result = match args.store.members()? {
        [] => check_store(&dir, depth, tell),
        members => check_members(members, depth, tell),
    };
    bar.finish_and_clear();
    let findings = result?;
    if args.json {
        let all: Vec<_> = findings.iter().map(as_json).collect();
        super::print_json(&all)?;
    } else {
        findings.iter().for_each(|finding| println!("{finding}"));
        let how = if args.full { "every byte was read" } else { "structures only; --full reads every byte" };
        match findings.len() {
            0 => println!("{}: no problem found ({how})", dir.display()),
            1 => println!("{}: 1 finding ({how})", dir.display()),
            count => println!("{}: {count} findings ({how})", dir.display()),
        }
    }
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn show(bar: &indicatif::ProgressBar, progress: &CheckProgress) {
    bar.set_length(progress.bytes_total.max(1));
    bar.set_position(progress.bytes_done);
    bar.set_message(format!(
        "{} ({} of {})",
        super::terminal::name(&progress.title),
        progress.titles_done + 1,
        progress.titles_total
    ));
}

fn as_json(finding: &Finding) -> serde_json::Value {
    serde_json::json!({
        "severity": if finding.severity == Severity::Error { "error" } else { "warning" },
        "promise": finding.promise,
        "path": finding.path.display().to_string(),
        "what": finding.what,
        "remedy": finding.remedy,
    })
}
