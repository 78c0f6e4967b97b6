//! `millrace publish`: titles into an object store.

use std::process::ExitCode;
use std::time::Instant as StdInstant;

use clap::Args;
use millrace_core::units::ByteLen;
use millrace_objects::Published;
use millrace_store::volume::{TitleInfo, Volume};
use serde_json::json;

use super::StoreArgs;
use super::objects::{ObjectArgs, TransferBar, ends_all, library_url};
use super::prepare::named;
use super::title_names::expanded;

/// Publish titles in an object store: a bucket of S3 or of a server that speaks its protocol, or a shared directory
///
/// Other machines fetch them from there (millrace fetch). Each title is an ordinary .ts file with its metadata and checksums;
/// parity stays here. Titles for fast forward and renditions go along. Objects that are there are not sent again, and an interrupted
/// upload continues when the same command is given again.
///
/// Credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, from ~/.aws/credentials (AWS_PROFILE), or from
/// the role of the machine.
#[derive(Args)]
#[command(after_help = "Examples:\n  millrace publish my-film --to s3://films/hotel\n  \
                        millrace publish --all --to s3://films --endpoint https://s3.example:9000\n  \
                        millrace publish 'news-*' --to file:///mnt/nas/films\n\n\
                        Exit code: 0 all titles are there; 1 some are not, or the object store cannot be used; 2 the command line is invalid")]
pub(super) struct PublishArgs {
    /// Names, ids, or patterns of names: * stands for any characters, ? for one
    #[arg(value_name = "TITLE", required_unless_present = "all", conflicts_with = "all")]
    titles: Vec<String>,
    /// All titles in the store
    #[arg(long)]
    all: bool,
    /// Where to: s3://BUCKET/PREFIX or file:///DIR
    #[arg(long, value_name = "URL", required = true)]
    to: String,
    /// Send objects that are there already too: they may have been damaged there
    #[arg(long)]
    overwrite: bool,
    #[command(flatten)]
    objects: ObjectArgs,
    /// No progress bar, no summary
    #[arg(long, short)]
    quiet: bool,
    /// One JSON document per title on standard output
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreArgs,
}

/// Publishes every title; one that fails does not stop the others, unless they would fail too.
pub(super) fn run(args: &PublishArgs) -> anyhow::Result<ExitCode> {
    let to = library_url("--to", &args.to)?;
    let volume = args.store.open()?;
    let cancel = super::cancel_on_signals()?;
    let library = args.objects.open(&to, &cancel)?;
    let mut failed = 0;
    for title in chosen(args, &volume)? {
        let start = StdInstant::now();
        let bar = TransferBar::new("publishing", &title.name, args.quiet || args.json);
        let result = library.publish(&volume, title.id, args.overwrite, &mut |progress| bar.show(progress));
        bar.finish();
        let published = match result {
            Ok(published) => published,
            Err(error) if ends_all(&error) => return Err(error.into()),
            Err(error) => {
                failed += 1;
                super::complain(&anyhow::Error::new(error).context(title.name.clone()));
                continue;
            }
        };
        let sent = if let Published::Sent(bytes) = published { bytes } else { 0 };
        if args.json {
            let (name, id) = (&title.name, title.id.to_string());
            super::print_json(&json!({ "name": name, "id": id, "bytes": title.bytes, "sent_bytes": sent }))?;
        } else if !args.quiet {
            let name = super::terminal::name(&title.name);
            match published {
                Published::Already => println!("already there: {name}"),
                Published::Sent(bytes) => {
                    let secs = start.elapsed().as_secs_f64();
                    let rate = ByteLen((bytes as f64 / secs.max(1e-6)) as u64);
                    println!("published {name}  {}  in {secs:.1}s ({rate}/s)", ByteLen(bytes));
                }
            }
        }
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The titles, each behind those that are derived from it: a reader that finds a title then finds those too.
fn chosen(args: &PublishArgs, volume: &Volume) -> anyhow::Result<Vec<TitleInfo>> {
    let all = volume.titles()?;
    let own: Vec<TitleInfo> = match args.all {
        true => all.iter().filter(|title| title.derived.is_none()).cloned().collect(),
        false => {
            let is_own = |title: &&TitleInfo| title.derived.is_none();
            let names = || Ok(all.iter().filter(is_own).map(|title| title.name.clone()).collect());
            named(volume, &expanded(&args.titles, names)?)?
        }
    };
    let mut chosen: Vec<TitleInfo> = Vec::new();
    for title in own {
        // One that was made for a viewer is removed when its space is needed.
        let comes_along =
            |other: &&TitleInfo| other.derived.is_some_and(|d| d.parent == title.id && !d.on_use);
        chosen.extend(all.iter().filter(comes_along).cloned());
        chosen.push(title);
    }
    Ok(chosen)
}
