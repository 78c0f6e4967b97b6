//! `millrace rm`: a title out of the store.

use std::process::ExitCode;

use clap::Args;
use millrace_store::StoreError;

use super::StoreArgs;
use super::remote::{Remote, RemoteArgs};

/// Remove titles from the store; the source files are kept
#[derive(Args)]
#[command(
    after_help = "Examples:\n  millrace rm lobby-loop\n  millrace rm --server http://tv.example:8080/ lobby-loop\n\nA running server notices within seconds; viewers who are \
                        watching see the title to its end.\nA server of the folder that the source file lies in adds it again: move the source file away first."
)]
pub(super) struct RmArgs {
    /// Names or ids as shown by `millrace ls`
    #[arg(required = true, value_name = "TITLE")]
    titles: Vec<String>,
    /// Print nothing on success
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    remote: RemoteArgs,
}

/// Has a running server remove them.
fn run_remote(args: &RmArgs, remote: &Remote) -> anyhow::Result<ExitCode> {
    remote.sign_in()?;
    let mut missing = 0;
    for name in &args.titles {
        // Names of titles have no other characters; anything else would be another address.
        let is_name = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'@');
        let is_there = name.bytes().all(is_name) && remote.remove(&format!("api/v1/titles/{name}"))?;
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

/// Removes every title that there is; fails if one is not there.
pub(super) fn run(args: &RmArgs) -> anyhow::Result<ExitCode> {
    if let Some(remote) = args.remote.named_or_store(&args.store)? {
        return run_remote(args, &remote);
    }
    let volume = args.store.open()?;
    let mut missing = 0;
    for name in &args.titles {
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
