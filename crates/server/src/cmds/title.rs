//! `millrace title`: the display name of a title.

use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use millrace_store::volume::{TitleEdit, TitleInfo};

use super::StoreArgs;
use super::remote::{Remote, RemoteArgs};
use super::title_names::is_name;

/// Show or change the display name of a title; its name in URLs stays
#[derive(Args)]
#[command(
    after_help = "Examples:\n  millrace title my-film\n  millrace title my-film 'War and Peace (1967)'\n  \
                        millrace title --server http://tv.example:8080/ my-film 'War and Peace (1967)'\n\n\
                        A running server shows a change made with --store within half a minute, one made with --server at once."
)]
pub(super) struct TitleArgs {
    /// Name or id as shown by `millrace ls`
    #[arg(value_name = "TITLE")]
    name: String,
    /// New display name; without it the present one is printed
    #[arg(value_name = "TEXT")]
    title: Option<String>,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    remote: RemoteArgs,
}

fn run_remote(args: &TitleArgs, remote: &Remote) -> anyhow::Result<ExitCode> {
    remote.sign_in()?;
    anyhow::ensure!(is_name(&args.name), "{}: no such title; see: millrace ls --server", args.name);
    let path = format!("api/v1/titles/{}", args.name);
    let title: serde_json::Value = match &args.title {
        Some(title) => remote.send("PATCH", &path, Some(&serde_json::json!({ "title": title })))?,
        None => remote.get(&path)?,
    };
    let text = title["title"].as_str().context("the server's answer has no title")?;
    println!("{}", super::terminal::name(text));
    Ok(ExitCode::SUCCESS)
}

/// Prints the display name, after changing it if a new one is given.
pub(super) fn run(args: &TitleArgs) -> anyhow::Result<ExitCode> {
    if let Some(remote) = args.remote.named_or_store(&args.store)? {
        return run_remote(args, &remote);
    }
    let volume = args.store.open()?;
    let find = || -> anyhow::Result<TitleInfo> {
        volume.find(&args.name)?.with_context(|| format!("{}: no such title; see: millrace ls", args.name))
    };
    let mut info = find()?;
    if let Some(title) = &args.title {
        volume.edit_title(info.id, TitleEdit::Title(title.clone()))?;
        info = find()?;
    }
    println!("{}", super::terminal::name(&info.display_name()));
    Ok(ExitCode::SUCCESS)
}
