//! `millrace inspect`: every structure on disk.

use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use millrace_store::inspect::inspect;
use millrace_store::volume::TITLES_DIR;

use super::StoreArgs;

/// Print any structure of the store: superblock, manifest, index, packet metadata
#[derive(Args)]
#[command(
    after_help = "Examples:\n  millrace inspect                             the store: all manifests and the superblock\n  \
                        millrace inspect my-film                     all files of a title\n  \
                        millrace inspect my-film --packets 0..10     the first ten packets' sums and times\n  \
                        millrace inspect STORE/titles/ID/index.mri   one file, also of a damaged store"
)]
pub(super) struct InspectArgs {
    /// A title's name or id, or the path of a directory or file of a store [default: the store itself; in a volume, the
    /// named member]
    #[arg(value_name = "TITLE|PATH")]
    what: Option<String>,
    /// Only these packets (or index entries): FIRST..END, END excluded
    #[arg(long, value_name = "RANGE", value_parser = parse_range)]
    packets: Option<Range<u32>>,
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
    let path = find(args)?;
    let inspection = inspect(&path, args.packets.clone())?;
    if args.json {
        super::print_json(&inspection.json)?;
    } else {
        print!("{inspection}");
    }
    Ok(ExitCode::SUCCESS)
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
    let title =
        title.ok_or_else(|| anyhow::anyhow!("{what}: neither a path nor a title; see: millrace ls"))?;
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
