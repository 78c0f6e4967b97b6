//! `millrace trick`: titles for fast forward, rewind and slow motion, made of titles that are in the store.

use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use clap::Args;
use millrace_core::scale::Scale;
use millrace_core::units::ByteLen;
use millrace_make::trick::{self, TrickError, TrickProgress};
use millrace_store::volume::{TitleInfo, Volume};

use super::StoreArgs;
use super::progress::bar;

/// The speeds that are made if none are named.
pub(super) const USUAL_SPEEDS: &str = "4,16,-4,-16";

/// Build fast forward, rewind and slow motion for stored titles, or remove them
///
/// Each speed becomes a title of its own beside the one it is made of, stored, checked and repaired like it and removed with it. It
/// has no sound. Backwards, and above twice the speed, it shows the pictures that can be decoded alone. Up to twice the speed it shows all
/// pictures that others refer to, if the rate allows; below normal speed it shows all. It never needs a higher rate than the title.
/// Speeds that are there already are left as they are.
#[derive(Args)]
#[command(after_help = "Examples:\n  millrace trick my-film\n  millrace trick --all --speeds 2,8,-8\n  \
                        millrace trick my-film --speeds=-2,0.5\n  millrace trick my-film --remove\n\n\
                        Exit code: 0 every speed of every title is there (or removed); 1 some are not; 2 the command line is invalid")]
pub(super) struct TrickArgs {
    /// Names or ids of titles
    #[arg(value_name = "TITLE", required_unless_present = "all", conflicts_with = "all")]
    titles: Vec<String>,
    /// All titles in the store
    #[arg(long)]
    all: bool,
    /// Speeds to build, or to remove [default: 4,16,-4,-16; with --remove: all there are]: numbers from 0.25 to 32, or their
    /// negatives for backwards
    #[arg(long, value_name = "LIST", value_delimiter = ',', allow_hyphen_values = true)]
    speeds: Vec<Scale>,
    /// Remove them
    #[arg(long)]
    remove: bool,
    /// No progress bar, no summary
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    store: StoreArgs,
}

/// Goes through every title; one that fails does not stop the others.
pub(super) fn run(args: &TrickArgs) -> anyhow::Result<ExitCode> {
    let volume = args.store.open()?;
    let mut titles = if args.all { volume.titles()? } else { super::prepare::named(&volume, &args.titles)? };
    if args.all {
        titles.retain(|title| title.derived.is_none());
    }
    let cancel = super::cancel_on_signals()?;
    let mut failed = 0;
    for title in &titles {
        failed += match args.remove {
            true => remove(&volume, title, args)?,
            false => build(&volume, title, &speeds(&args.speeds), &cancel, args.quiet),
        };
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Those that were named, or the usual ones.
fn speeds(named: &[Scale]) -> Vec<Scale> {
    match named {
        [] => USUAL_SPEEDS.split(',').filter_map(|speed| speed.parse().ok()).collect(),
        named => named.to_vec(),
    }
}

/// Builds speeds of a title and reports the result of each; returns how many are missing.
pub(super) fn build(
    volume: &Volume,
    title: &TitleInfo,
    speeds: &[Scale],
    cancel: &AtomicBool,
    quiet: bool,
) -> usize {
    let name = super::terminal::name(&title.name);
    let bar = bar("{msg} [{bar:30}] {percent:>3} %  {eta} left", quiet);
    bar.set_length(title.bytes.max(1));
    let made = trick::make(volume, title, speeds, cancel, &mut |progress| match progress {
        TrickProgress::Reading(bytes) => {
            bar.set_message(format!("reading {name}"));
            bar.set_position(bytes);
        }
        TrickProgress::Writing(speed, done, total) => {
            bar.set_message(format!("building {name} at speed {speed}"));
            bar.set_length(total.max(1));
            bar.set_position(done);
        }
    });
    bar.finish_and_clear();
    let complain = |error: TrickError, what: &str| {
        super::complain(&anyhow::anyhow!("{name}: {what}: {error}"));
        1
    };
    let made = match made {
        Ok(made) => made,
        Err(error) => return complain(error, "no other speeds"),
    };
    let mut failed = 0;
    for made in made {
        match made.result {
            Err(error) => failed += complain(error, &format!("speed {}", made.scale)),
            Ok(_) if quiet => {}
            Ok(None) => println!("{name}: speed {} is there already", made.scale),
            Ok(Some(built)) => {
                println!(
                    "{name}: built speed {}  {}  {}",
                    made.scale,
                    ByteLen(built.bytes),
                    built.notes.join("; ")
                );
            }
        }
    }
    failed
}

/// Removes speeds of a title; returns how many of those that were named were not there.
fn remove(volume: &Volume, title: &TitleInfo, args: &TrickArgs) -> anyhow::Result<usize> {
    let there = volume.speeds_of(title.id)?;
    let is_named = |scale: &Scale| args.speeds.is_empty() || args.speeds.contains(scale);
    for (scale, derived) in there.iter().filter(|(scale, _)| is_named(scale)) {
        volume.remove(derived.id)?;
        if !args.quiet {
            println!("{}: removed speed {scale}", super::terminal::name(&title.name));
        }
    }
    let is_missing = |scale: &&Scale| there.iter().all(|(other, _)| other != *scale);
    let missing: Vec<&Scale> = args.speeds.iter().filter(is_missing).collect();
    for scale in &missing {
        eprintln!("millrace: {}: has no speed {scale}", super::terminal::name(&title.name));
    }
    Ok(missing.len())
}
