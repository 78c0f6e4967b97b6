//! `millrace prepare`: more packet sizes for titles that are in the store, and range sums and CRCs for those of older versions.

use std::process::ExitCode;

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget};
use millrace_store::packet_size::PacketSize;
use millrace_store::volume::{TitleInfo, Volume};

use super::StoreArgs;

/// Prepare stored titles for more packet sizes
///
/// Adds range sums, which allow every packet size to be served, and CRCs, which detect damage that
/// 16-bit checksums miss, to titles added by older versions; those versions cannot read such titles
/// afterwards. --packet-sizes also builds a metadata file for each size. The media data are read
/// once and compared with the stored sums and with the hash recorded when the title was added: a
/// title that differs is left unchanged (run millrace scrub first).
#[derive(Args)]
#[command(
    after_help = "Examples:\n  millrace prepare --all\n  millrace prepare my-film --packet-sizes 8k\n  \
                        millrace prepare my-film --packet-sizes 940,1880"
)]
pub(super) struct PrepareArgs {
    /// Names or ids of titles
    #[arg(value_name = "TITLE", required_unless_present = "all", conflicts_with = "all")]
    titles: Vec<String>,
    /// All titles in the store
    #[arg(long)]
    all: bool,
    /// Packet sizes to build metadata for: bytes (multiples of 188), or 1k, 2k, 4k, 8k
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    packet_sizes: Vec<PacketSize>,
    /// No progress bar, no summary
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    store: StoreArgs,
}

/// Prepares every title; one that fails does not stop the others.
pub(super) fn run(args: &PrepareArgs) -> anyhow::Result<ExitCode> {
    let volume = args.store.open()?;
    let titles = if args.all { volume.titles()? } else { named(&volume, &args.titles)? };
    let sizes: Vec<usize> = args.packet_sizes.iter().map(|size| usize::from(size.0)).collect();
    let mut failed = 0;
    for title in titles {
        let target = if args.quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(Some(title.bytes), target);
        let result = volume.prepare(title.id, &sizes, &mut |bytes| bar.set_position(bytes));
        bar.finish_and_clear();
        match result {
            Err(error) => {
                failed += 1;
                super::complain(&error.into());
            }
            Ok(files) if !args.quiet => println!("{}: {}", title.name, summary(&files)),
            Ok(_) => {}
        }
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub(super) fn named(volume: &Volume, names: &[String]) -> anyhow::Result<Vec<TitleInfo>> {
    let find = |name: &String| {
        let title = volume.find(name)?;
        title.ok_or_else(|| anyhow::anyhow!("{name}: no such title; see: millrace ls"))
    };
    names.iter().map(find).collect()
}

fn summary(files: &[String]) -> String {
    if files.is_empty() { "nothing to do".to_owned() } else { format!("added {}", files.join(", ")) }
}
