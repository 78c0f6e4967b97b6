//! `millrace fetch`: titles from an object store.

use std::process::ExitCode;
use std::time::Instant as StdInstant;

use clap::Args;
use millrace_core::units::ByteLen;
use millrace_store::volume::TitleEdit;

use super::NewStoreArgs;
use super::objects::{ObjectArgs, TransferBar, ends_all, library_url, named, warn_unreadable};
use super::progress::describe;

/// Fetch titles from an object store where they were published (millrace publish)
///
/// Every packet is verified before it is written, and a title appears when it is whole. On a volume of several disks its parity is
/// computed on the way. Titles that are in the store are left alone. A title whose name is taken gets a number.
///
/// Credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, from ~/.aws/credentials (AWS_PROFILE), or from
/// the role of the machine.
#[derive(Args)]
#[command(after_help = "Examples:\n  millrace fetch my-film --from s3://films/hotel\n  \
                        millrace fetch --all --from s3://films --endpoint https://s3.example:9000\n  \
                        millrace fetch --all --from file:///mnt/nas/films\n  \
                        millrace ls --from s3://films/hotel\n\n\
                        Exit code: 0 all titles are here; 1 some are not, or the object store cannot be used; 2 the command line is invalid")]
pub(super) struct FetchArgs {
    /// Names, ids, or patterns of names: * stands for any characters, ? for one
    #[arg(value_name = "TITLE", required_unless_present = "all", conflicts_with = "all")]
    titles: Vec<String>,
    /// All titles of the library
    #[arg(long)]
    all: bool,
    /// Where from: s3://BUCKET/PREFIX or file:///DIR
    #[arg(long, value_name = "URL", required = true)]
    from: String,
    #[command(flatten)]
    objects: ObjectArgs,
    /// No progress bar, no summary
    #[arg(long, short)]
    quiet: bool,
    /// One JSON document per added title on standard output
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: NewStoreArgs,
}

/// Fetches every title; one that fails does not stop the others, unless they would fail too.
pub(super) fn run(args: &FetchArgs) -> anyhow::Result<ExitCode> {
    let from = library_url("--from", &args.from)?;
    let cancel = super::cancel_on_signals()?;
    let library = args.objects.open(&from, &cancel)?;
    let listing = library.list()?;
    warn_unreadable(&listing);
    let titles = named(&listing, &args.titles)?;
    // A store is made only if there is something for it.
    let volume = args.store.open_or_create()?;
    let mut failed = listing.unreadable.len();
    for manifest in titles {
        let start = StdInstant::now();
        let family: Vec<_> =
            std::iter::once(manifest).chain(listing.derived_from(manifest.title.id)).cloned().collect();
        let bar = TransferBar::new("fetching", &manifest.title.name, args.quiet || args.json);
        let result = library.fetch(&volume, &family, &mut |progress| bar.show(progress));
        bar.finish();
        let added = match result {
            Ok(added) => added,
            Err(error) if ends_all(&error) => return Err(error.into()),
            Err(error) => {
                failed += 1;
                super::complain(&anyhow::Error::new(error).context(manifest.title.name.clone()));
                continue;
            }
        };
        // A copy that a server fetched for its viewers is the operator's from now on.
        let mut is_kept = false;
        for id in family.iter().map(|manifest| manifest.title.id) {
            let copy = volume.find(&id.to_string())?.filter(|info| info.origin.cached.is_some());
            if copy.is_some() {
                volume.edit_title(id, TitleEdit::Keep)?;
                is_kept = true;
            }
        }
        if args.json {
            added.iter().try_for_each(super::print_json)?;
        } else if !args.quiet {
            if is_kept {
                println!("kept: {}", super::terminal::name(&manifest.title.name));
            } else if added.is_empty() {
                println!("already there: {}", super::terminal::name(&manifest.title.name));
            }
            let secs = start.elapsed().as_secs_f64();
            let bytes: u64 = added.iter().map(|title| title.bytes).sum();
            let rate = ByteLen((bytes as f64 / secs.max(1e-6)) as u64);
            for title in &added {
                println!("fetched {}  in {secs:.1}s ({rate}/s)", describe(title));
            }
        }
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
