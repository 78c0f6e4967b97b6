//! `millrace repair`: rebuilds the missing parts of a member from the others. Also the code that it
//! shares with `scrub`.

mod watchdog;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::Args;
use indicatif::ProgressBar;
use millrace_cli::exit;
use millrace_core::limits::REPAIR_ANSWER_NS;
use millrace_core::seam::Clock;
use millrace_core::time::Instant;
use millrace_core::units::{ByteLen, Count};
use millrace_offload::clock::MonotonicClock;
use millrace_store::disk::{Disk, ReadFaults};
use millrace_store::repair::{
    RepairError, RepairOptions, RepairOutcome, RepairProgress, RepairReport, RepairVerdict, Setting,
    Timekeeper, repair,
};
use millrace_store::volume::Volume;

use self::watchdog::Pulse;
use super::StoreArgs;
use super::terminal::name;
use crate::limits::control::REPAIR_SILENCE;

/// Could not be done, or was stopped: apart from what repair and scrub have found.
const FAILED: u8 = 3;
/// A title, or a part that a volume needs to be opened, is lost. Not 2, which stands for a wrong
/// command line.
pub(super) const LOST: u8 = 4;

/// Rebuild the missing parts of a member of a volume from the others
///
/// Members that were missing or have been replaced are cleaned up and brought up to date title by title; then they are
/// active again. A server can keep serving the volume meanwhile. A repair that was stopped or killed resumes where it was.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  millrace repair --store /disk1/store\n  millrace repair --store /disk1/store --rate 50MB/s\n\n\
                  Exit code: 0 all members are complete and active; 1 no title is lost, but a member is missing or has\n\
                  damage that a scrub repairs; 3 it failed or was stopped; 4 a title is lost (it is named)."
)]
pub(super) struct RepairArgs {
    #[command(flatten)]
    work: WorkArgs,
}

/// The options of both repair and scrub.
#[derive(Args)]
pub(super) struct WorkArgs {
    /// Total read and write rate over all members: 200MB/s, 1GiB/s, or none for no limit
    #[arg(long, value_name = "RATE", default_value = "200MB/s", value_parser = parse_rate)]
    pub(super) rate: u64,
    /// Print the result as JSON
    #[arg(long)]
    pub(super) json: bool,
    /// No progress bar, no summary
    #[arg(long, short)]
    pub(super) quiet: bool,
    #[command(flatten)]
    pub(super) store: StoreArgs,
}

/// Repairs and reports the work done.
pub(super) fn run(args: &RepairArgs) -> anyhow::Result<ExitCode> {
    Ok(or_failed(attempt(&args.work)))
}

fn attempt(args: &WorkArgs) -> anyhow::Result<ExitCode> {
    let options = RepairOptions { rate_bytes_per_s: args.rate };
    let (volume, report) = with_bar(args, move |volume, setting| repair(volume, &options, setting))?;
    let code = match report.verdict() {
        RepairVerdict::Lost => LOST,
        _ if !report.absent.is_empty() || report.count(RepairOutcome::Repairable) > 0 => 1,
        _ => 0,
    };
    if args.json {
        print_report(&report, "repair")?;
    } else if !args.quiet {
        print_found(&volume, &report);
        for &slot in &report.activated {
            println!("{}: active again", volume.members().dir(usize::from(slot)).display());
        }
        println!(
            "{}, {} repaired, {} lost; {} read, {} written",
            Count(report.titles as u64, "title"),
            report.count(RepairOutcome::Repaired),
            report.count(RepairOutcome::Lost),
            ByteLen(report.bytes_read),
            ByteLen(report.bytes_written),
        );
    }
    Ok(ExitCode::from(code))
}

/// A rate as people write it; 0 is none.
fn parse_rate(text: &str) -> Result<u64, String> {
    if text == "none" {
        return Ok(0);
    }
    let wrong = || format!("\"{text}\" is no rate: write 200MB/s, 1GiB/s, or none");
    let bytes: ByteLen = text.strip_suffix("/s").ok_or_else(wrong)?.parse().map_err(|_| wrong())?;
    if bytes.0 == 0 { Err(wrong()) } else { Ok(bytes.0) }
}

/// Opens the volume and works with a progress bar, until done, until a signal, or until a disk hangs.
pub(super) fn with_bar(
    args: &WorkArgs,
    work: impl FnOnce(&Volume, Setting<'_>) -> Result<RepairReport, RepairError> + Send + 'static,
) -> anyhow::Result<(Volume, RepairReport)> {
    let quiet = args.json || args.quiet;
    let form = "{msg} [{bar:30}] {percent:>3} %  {binary_bytes_per_sec} of media  {eta} left";
    let bar = super::progress::bar(form, quiet);
    let stop: Arc<AtomicBool> = super::cancel_on_signals()?;
    let (store, pulse, drawn) = (args.store.clone(), Arc::new(Pulse::default()), bar.clone());
    let time = SystemTime(Arc::clone(&pulse));
    let run = move || {
        let volume = open(&store, Disk::watched(time.0.clone()))?;
        let mut tell = |progress: &RepairProgress| show(&drawn, progress);
        let (time, faults, answer_ns) = (&time, ReadFaults::default(), REPAIR_ANSWER_NS);
        let report = work(&volume, Setting { time, stop: &stop, tell: &mut tell, faults, answer_ns })?;
        Ok((volume, report))
    };
    let result = watchdog::wait(&pulse, REPAIR_SILENCE, run);
    bar.finish_and_clear();
    result
}

fn open(store: &StoreArgs, disk: Disk) -> anyhow::Result<Volume> {
    Ok(super::warned(match store.members()? {
        [] => Volume::open_on(&store.dir()?, disk)?,
        members => Volume::open_members_on(members, disk)?,
    }))
}

fn show(bar: &ProgressBar, progress: &RepairProgress) {
    bar.set_length(progress.bytes_total.max(1));
    bar.set_position(progress.bytes_done);
    let title = (progress.titles_done + 1).min(progress.titles_total);
    bar.set_message(format!("{} ({title} of {})", name(&progress.title), progress.titles_total));
}

/// Reports an error, which has an exit code of its own unless it is in the command line.
pub(super) fn or_failed(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        super::complain(&error);
        ExitCode::from(if exit::is_usage(&error) { exit::code_of(&error) } else { FAILED })
    })
}

/// One line for each thing that was missing or wrong, and for each member that was not there.
pub(super) fn print_found(volume: &Volume, report: &RepairReport) {
    for found in &report.found {
        let fate = match found.fate {
            RepairOutcome::Repaired => "repaired",
            RepairOutcome::Repairable => "can be repaired",
            RepairOutcome::Lost => "LOST",
        };
        println!("{fate}: {} ({}): {}", found.path.display(), found.name, found.what);
    }
    for slot in volume.members().report() {
        if report.absent.contains(&(slot.index as u16)) {
            let why = match report.silent.contains(&(slot.index as u16)) {
                true => "its disk hangs; see what the kernel says about it (dmesg), put another in its place if it does not come \
                         back (millrace volume replace), and start this again"
                    .to_owned(),
                false => slot.absent.unwrap_or_else(|| slot.state.to_string()),
            };
            println!("member {} at {} was left out: {why}", slot.index, slot.dir.display());
        }
    }
}

/// The whole report as JSON.
pub(super) fn print_report(report: &RepairReport, what: &str) -> anyhow::Result<()> {
    let mut value = serde_json::to_value(report)?;
    value["command"] = what.into();
    value["verdict"] = serde_json::to_value(report.verdict())?;
    super::print_json(&value)
}

/// The machine's monotonic clock. A thread that asks for the time is alive.
struct SystemTime(Arc<Pulse>);

impl Clock for SystemTime {
    fn now(&self) -> Instant {
        self.0.beat();
        MonotonicClock.now()
    }
}

impl Timekeeper for SystemTime {
    fn wait_ns(&self, ns: u64) {
        std::thread::sleep(Duration::from_nanos(ns));
    }
}

#[cfg(test)]
mod tests {
    use super::parse_rate;

    #[test]
    fn rates_have_a_unit() {
        assert_eq!(parse_rate("200MB/s"), Ok(200_000_000));
        assert_eq!(parse_rate("1GiB/s"), Ok(1 << 30));
        assert_eq!(parse_rate("none"), Ok(0));
        for bad in ["200", "200MB", "0B/s", "fast", "1Mb/s"] {
            assert!(parse_rate(bad).unwrap_err().contains("200MB/s"), "{bad}");
        }
    }
}
