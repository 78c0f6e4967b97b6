//! `millrace scrub`: every byte of every member read, silent corruption found and repaired.

use std::process::ExitCode;

use clap::Args;
use millrace_core::units::{ByteLen, Count};
use millrace_store::repair::{RepairOutcome, RepairVerdict};
use millrace_store::scrub::{ScrubOptions, scrub};

use super::repair::{WorkArgs, or_failed, print_found, print_report, with_bar};

/// Verify every byte on every member, and repair silent corruption
///
/// Each file is compared with the hash in its manifest, each packet of media and parity with its checksum, and the parity with
/// the media. Damaged files are rebuilt from the remaining data and replaced. Titles in which a server found damage come first. Run
/// it every few weeks while all disks are present: rebuilding a disk that fails later needs all data on the others.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  millrace scrub --store /disk1/store\n  millrace scrub --store /disk1/store --check --json\n\n\
                  Exit code: 0 nothing was wrong; 1 damage was repaired (with --check: can be), or a member is missing;\n\
                  3 it failed or was stopped; 4 a title is lost (it is named, and not touched)."
)]
pub(super) struct ScrubArgs {
    /// Report only, change nothing
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    work: WorkArgs,
}

/// Scrubs and reports the findings.
pub(super) fn run(args: &ScrubArgs) -> anyhow::Result<ExitCode> {
    Ok(or_failed(attempt(args)))
}

fn attempt(args: &ScrubArgs) -> anyhow::Result<ExitCode> {
    let WorkArgs { rate, json, quiet, .. } = args.work;
    let options = ScrubOptions { rate_bytes_per_s: rate, mend: !args.check };
    let (volume, report) = with_bar(&args.work, move |volume, setting| scrub(volume, &options, setting))?;
    if json {
        print_report(&report, "scrub")?;
    } else if !quiet {
        print_found(&volume, &report);
        let (count, word) = match args.check {
            true => (report.count(RepairOutcome::Repairable), "can be repaired"),
            false => (report.count(RepairOutcome::Repaired), "repaired"),
        };
        println!(
            "{}, {} read: {count} {word}, {} lost",
            Count(report.titles as u64, "title"),
            ByteLen(report.bytes_read),
            report.count(RepairOutcome::Lost)
        );
    }
    Ok(ExitCode::from(match report.verdict() {
        RepairVerdict::Healthy => 0,
        RepairVerdict::Repaired => 1,
        RepairVerdict::Lost => super::repair::LOST,
    }))
}
