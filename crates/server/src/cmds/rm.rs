//! `millrace rm`: a title out of the store.

use std::process::ExitCode;

use clap::Args;
use millrace_media::subtitles::SubtitleLabel;
use millrace_store::StoreError;
use millrace_store::volume::Volume;

use super::StoreArgs;
use super::remote::{Remote, RemoteArgs};
use super::title_names::{expanded, is_name};

/// Remove titles from the store; the source files are kept
#[derive(Args)]
#[command(
    after_help = "Examples:\n  millrace rm lobby-loop\n  millrace rm 'news-*'\n  millrace rm film --subtitles de\n  millrace rm --server http://tv.example:8080/ lobby-loop\n\nA running server notices within seconds; viewers who are \
                        watching see the title to its end.\nA server of the folder that the source file lies in adds it again: move the source file away first."
)]
pub(super) struct RmArgs {
    /// Names or ids as shown by `millrace ls`, or patterns of names: * stands for any characters, ? for one
    #[arg(required = true, value_name = "TITLE")]
    titles: Vec<String>,
    /// Remove only these subtitles of the titles: de, en.forced, pt-BR.sdh
    #[arg(long, value_name = "LABEL")]
    subtitles: Option<SubtitleLabel>,
    /// Print nothing on success
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    remote: RemoteArgs,
}

/// What titles are removed from.
enum RemovalTarget {
    Server(Remote),
    Store(Volume),
}

impl RemovalTarget {
    /// The named titles.
    fn titles(&self, args: &RmArgs) -> anyhow::Result<Vec<String>> {
        match self {
            Self::Server(remote) => titles_on(args, remote),
            Self::Store(volume) => titles_in(args, volume),
        }
    }

    /// Removes the subtitles with this label from a title; returns `false` if it has none, or does
    /// not exist.
    fn remove_subtitles(&self, name: &str, label: &SubtitleLabel) -> anyhow::Result<bool> {
        match self {
            Self::Server(remote) => {
                Ok(is_name(name) && remote.remove(&format!("titles/{name}/subtitles/{label}.vtt"))?)
            }
            Self::Store(volume) => match volume.find(name)? {
                Some(title) => Ok(volume.remove_subtitles(title.id, label)?),
                None => Ok(false),
            },
        }
    }
}

/// Removes the subtitles with this label from every title; fails if a title has none.
fn remove_subtitles(args: &RmArgs, label: &SubtitleLabel, from: &RemovalTarget) -> anyhow::Result<ExitCode> {
    let mut missing = 0;
    for name in &from.titles(args)? {
        match from.remove_subtitles(name, label)? {
            false => {
                eprintln!(
                    "millrace: {name}: no such title, or it has no subtitles {label}; see: millrace ls --json"
                );
                missing += 1;
            }
            true if args.quiet => {}
            true => println!("removed subtitles {label} of {name}"),
        }
    }
    Ok(if missing == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Removes titles by way of a running server; fails if one is not there.
fn remove_from_server(args: &RmArgs, remote: &Remote) -> anyhow::Result<ExitCode> {
    let mut missing = 0;
    for name in &titles_on(args, remote)? {
        let is_there = is_name(name) && remote.remove(&format!("api/v1/titles/{name}"))?;
        match is_there {
            false => {
                eprintln!("millrace: {name}: no such title; see: millrace ls --server {}", remote.place());
                missing += 1;
            }
            true if args.quiet => {}
            true => println!("removed {name}"),
        }
    }
    Ok(if missing == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the named titles of a running server.
fn titles_on(args: &RmArgs, remote: &Remote) -> anyhow::Result<Vec<String>> {
    expanded(&args.titles, || {
        let listed: serde_json::Value = remote.get("api/v1/titles")?;
        let titles = listed["titles"].as_array().map(Vec::as_slice).unwrap_or_default();
        Ok(titles.iter().filter_map(|title| title["name"].as_str()).map(str::to_owned).collect())
    })
}

/// Returns the named titles of a store. Titles made from them go with them.
fn titles_in(args: &RmArgs, volume: &Volume) -> anyhow::Result<Vec<String>> {
    expanded(&args.titles, || {
        let own = volume.titles()?.into_iter().filter(|title| title.derived.is_none());
        Ok(own.map(|title| title.name).collect())
    })
}

/// Removes titles from a store; fails if one is not there.
fn remove_from_store(args: &RmArgs, volume: &Volume) -> anyhow::Result<ExitCode> {
    let mut missing = 0;
    for name in &titles_in(args, volume)? {
        let title = volume.find(name)?;
        // A title that cannot be read has no name; by its id it can be removed all the same.
        let id = title.as_ref().map(|title| title.id).or_else(|| name.parse().ok());
        match id.map(|id| volume.remove(id).map(|()| id)) {
            None | Some(Err(StoreError::NoTitle { .. })) => {
                eprintln!("millrace: {name}: no such title; see: millrace ls");
                missing += 1;
            }
            Some(removed) => {
                let (id, name) =
                    (removed?, title.map_or("a title that cannot be read".to_owned(), |t| t.name));
                if !args.quiet {
                    println!("removed {name} ({id})");
                }
            }
        }
    }
    Ok(if missing == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Removes every title that there is; fails if one is not there.
pub(super) fn run(args: &RmArgs) -> anyhow::Result<ExitCode> {
    let from = match args.remote.named_or_store(&args.store)? {
        Some(remote) => {
            remote.sign_in()?;
            RemovalTarget::Server(remote)
        }
        None => RemovalTarget::Store(args.store.open()?),
    };
    match (&args.subtitles, &from) {
        (Some(label), from) => remove_subtitles(args, label, from),
        (None, RemovalTarget::Server(remote)) => remove_from_server(args, remote),
        (None, RemovalTarget::Store(volume)) => remove_from_store(args, volume),
    }
}
