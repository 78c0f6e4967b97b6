//! `millrace rm`: a title out of the store.

use std::process::ExitCode;

use clap::Args;

use super::StoreArgs;

/// Remove titles from the store; the files they were made from stay
#[derive(Args)]
#[command(
    after_help = "Example:\n  millrace rm lobby-loop\n\nA running server notices within seconds; who is watching sees the film \
                        to its end. A server that\nwas started on the folder of the source file would add it again: move the source file away first."
)]
pub(super) struct RmArgs {
    /// Names or ids, as `millrace ls` shows them
    #[arg(required = true, value_name = "TITLE")]
    titles: Vec<String>,
    /// Say nothing when all went well
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    store: StoreArgs,
}

/// Removes every title that there is; fails if one is not there.
pub(super) fn run(args: &RmArgs) -> anyhow::Result<ExitCode> {
    let volume = args.store.open()?;
    let mut missing = 0;
    for name in &args.titles {
        let Some(title) = volume.find(name)? else {
            eprintln!("millrace: {name}: no such title; see: millrace ls");
            missing += 1;
            continue;
        };
        volume.remove(title.id)?;
        if !args.quiet {
            println!("removed {} ({})", title.name, title.id);
        }
    }
    Ok(if missing == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
