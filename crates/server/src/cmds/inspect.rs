//! `millrace inspect`: every structure on disk, and with `--ts` whether a transport stream is one.

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use millrace_core::limits::volume::CHECK_READ_BYTES;
use millrace_store::inspect::inspect;
use millrace_store::volume::{MediaReader, TITLES_DIR};
use millrace_ts::{Analyser, AnalyserOptions, AnalysisVerdict};

use super::StoreArgs;

/// Print any structure of the store: superblock, manifest, index, packet metadata; or check a transport stream
#[derive(Args)]
#[command(
    after_help = "Examples:\n  millrace inspect                             the store: all manifests and the superblock\n  \
                        millrace inspect my-film                     all files of a title\n  \
                        millrace inspect my-film --packets 0..10     the first ten packets' sums and times\n  \
                        millrace inspect STORE/titles/ID/index.mri   one file, also of a damaged store\n  \
                        millrace inspect --ts film.ts                a transport stream against TR 101 290\n\n\
                        Exit code of --ts: 0 nothing is wrong with the stream; 1 it breaks rules, or there is no stream."
)]
pub(super) struct InspectArgs {
    /// A title's name or id, or the path of a directory or file of a store [default: the store itself; in a volume, the
    /// named member]
    #[arg(value_name = "TITLE|PATH")]
    what: Option<String>,
    /// Only these packets (or index entries): FIRST..END, END excluded
    #[arg(long, value_name = "RANGE", value_parser = parse_range, conflicts_with = "ts")]
    packets: Option<Range<u32>>,
    /// Check the transport stream in a title or file: sync, tables, continuity, clock references, time stamps (TR 101 290
    /// priorities 1 and 2, and more)
    #[arg(long)]
    ts: bool,
    /// With --ts: also report how full the buffers of the standard's decoder model get (T-STD)
    #[arg(long, requires = "ts")]
    buffers: bool,
    /// With --ts: no progress bar
    #[arg(long, short, requires = "ts")]
    quiet: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreArgs,
}

fn parse_range(text: &str) -> Result<Range<u32>, String> {
    let error = || format!("got \"{text}\"; write FIRST..LAST, for example 0..10");
    let (first, last) = text.split_once("..").ok_or_else(error)?;
    let (first, last) = (first.parse().map_err(|_| error())?, last.parse().map_err(|_| error())?);
    if first < last { Ok(first..last) } else { Err(error()) }
}

/// Prints it.
pub(super) fn run(args: &InspectArgs) -> anyhow::Result<ExitCode> {
    if args.ts {
        return analyse(args);
    }
    let path = find(args)?;
    let inspection = inspect(&path, args.packets.clone())?;
    if args.json {
        super::print_json(&inspection.json)?;
    } else {
        print!("{inspection}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Checks a transport stream and prints the findings.
fn analyse(args: &InspectArgs) -> anyhow::Result<ExitCode> {
    let Some(what) = &args.what else {
        return Err(super::usage(anyhow::anyhow!("--ts: name a title or a file to check")));
    };
    let mut analyser = Analyser::new(AnalyserOptions { buffers: args.buffers, ..AnalyserOptions::default() });
    let form = "checking [{bar:30}] {percent:>3} %  {binary_bytes_per_sec}  {eta} left";
    let bar = super::progress::bar(form, args.json || args.quiet);
    let path = PathBuf::from(what);
    let done = if path.is_dir() {
        Err(super::usage(anyhow::anyhow!("{what}: is a directory; name a title or a file to check")))
    } else if path.exists() {
        read_file(&path, &mut analyser, &bar)
    } else {
        read_title(args, what, &mut analyser, &bar)
    };
    bar.finish_and_clear();
    done?;
    let report = analyser.finish();
    if args.json {
        super::print_json(&report)?;
    } else {
        print!("{report}");
    }
    Ok(if report.verdict == AnalysisVerdict::Clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn read_file(path: &Path, analyser: &mut Analyser, bar: &indicatif::ProgressBar) -> anyhow::Result<()> {
    let context = || format!("read {}", path.display());
    let mut file = File::open(path).with_context(context)?;
    bar.set_length(file.metadata().with_context(context)?.len());
    let mut buffer = vec![0; CHECK_READ_BYTES];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(bytes) => {
                analyser.push(&buffer[..bytes]);
                bar.inc(bytes as u64);
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error).with_context(context),
        }
    }
}

/// A title of a volume, however many members it lies on.
fn read_title(
    args: &InspectArgs,
    name: &str,
    analyser: &mut Analyser,
    bar: &indicatif::ProgressBar,
) -> anyhow::Result<()> {
    let volume = args.store.open()?;
    let title = volume.find(name)?.ok_or_else(|| unknown(name))?;
    let mut reader = MediaReader::open(&volume, title.id)?;
    bar.set_length(title.bytes);
    let mut buffer = vec![0; CHECK_READ_BYTES];
    let mut at = 0;
    while at < title.bytes {
        let bytes = (title.bytes - at).min(CHECK_READ_BYTES as u64);
        let part = &mut buffer[..bytes as usize];
        reader.read_exact(at, part)?;
        analyser.push(part);
        at += bytes;
        bar.set_position(at);
    }
    Ok(())
}

fn unknown(what: &str) -> anyhow::Error {
    anyhow::anyhow!("{what}: neither a path nor a title; see: millrace ls")
}

/// A path if there is something at it, else a title's directory.
fn find(args: &InspectArgs) -> anyhow::Result<PathBuf> {
    let Some(what) = &args.what else { return args.store.dir() };
    let path = PathBuf::from(what);
    if path.exists() {
        return Ok(path);
    }
    let volume = args.store.open()?;
    let title = volume.find(what)?;
    let title = title.ok_or_else(|| unknown(what))?;
    // On the first member that has it: the small files are the same on all.
    let members = volume.members();
    let dirs = members
        .usable()
        .into_iter()
        .map(|slot| members.dir(slot).join(TITLES_DIR).join(title.id.to_string()));
    dirs.into_iter()
        .find(|dir| dir.is_dir())
        .ok_or_else(|| anyhow::anyhow!("{what}: none of the members present has it"))
}
