//! The questions, and whether an answer is one.

use std::io::{BufRead, IsTerminal, Read, stdin};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use clap::ValueEnum;

use super::args::{InitArgs, WatchChoice};
use super::reader::{can_create_in, nearest_existing};
use super::service::{Service, variable};
use super::words::typed_path;
use crate::cmds::usage;
use crate::limits::control::MAX_ANSWER_BYTES;

/// The three answers.
pub(super) struct Answers {
    pub(super) folder: PathBuf,
    pub(super) watch: WatchChoice,
    pub(super) boot: bool,
}

impl Answers {
    /// Takes those of the command line, and asks for the others.
    pub(super) fn get(args: &InitArgs, service: &Service) -> anyhow::Result<Self> {
        let boot = [(args.boot, true), (args.no_boot, false)]
            .into_iter()
            .find_map(|(given, boot)| given.then_some(boot));
        let is_complete = args.folder.is_some() && args.watch.is_some() && boot.is_some();
        if !is_complete && !args.yes && !stdin().is_terminal() {
            return Err(usage(anyhow!(
                "init: there is no terminal to ask at; give --folder, --watch and --boot or --no-boot, or --yes for the defaults"
            )));
        }
        let default = service.default_folder.display().to_string();
        let folder = match &args.folder {
            Some(folder) => check_folder(folder, service).map_err(|why| anyhow!(why))?,
            None => answer(args, None, "Folder of films", &default, |text| {
                check_folder(&typed_path(text, variable("HOME").as_deref())?, service)
            })?,
        };
        let watch =
            answer(args, args.watch, "Who may watch: anyone, this-machine or users", "anyone", |text| {
                WatchChoice::from_str(text, true)
                    .map_err(|_| format!("got \"{text}\"; answer anyone, this-machine or users"))
            })?;
        let default = if service.has_systemd() { "yes" } else { "no" };
        let boot =
            answer(args, boot, "Start the server now and at every boot: yes or no", default, yes_or_no)?;
        Ok(Self { folder, watch, boot })
    }
}

/// Takes the answer from the command line or the default, or asks until a typed answer is valid.
fn answer<T>(
    args: &InitArgs,
    given: Option<T>,
    question: &str,
    default: &str,
    check: impl Fn(&str) -> Result<T, String>,
) -> anyhow::Result<T> {
    if let Some(given) = given {
        return Ok(given);
    }
    if args.yes {
        return check(default).map_err(|why| anyhow!(why));
    }
    loop {
        eprint!("{question} [{default}]: ");
        let mut line = String::new();
        let read = stdin().lock().take(MAX_ANSWER_BYTES).read_line(&mut line);
        if read.context("terminal: cannot be read")? == 0 {
            eprintln!();
            bail!("init: no answer, nothing was written; run it again");
        }
        let typed = line.trim();
        match check(if typed.is_empty() { default } else { typed }) {
            Ok(answer) => return Ok(answer),
            Err(why) => eprintln!("  {why}"),
        }
    }
}

fn yes_or_no(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(true),
        "n" | "no" => Ok(false),
        _ => Err(format!("got \"{text}\"; answer yes or no")),
    }
}

/// The folder, which the server can read or which can be made.
fn check_folder(folder: &Path, service: &Service) -> Result<PathBuf, String> {
    let shown = folder.display();
    let folder = std::path::absolute(folder).map_err(|error| format!("{shown}: {error}; name a folder"))?;
    if folder.exists() && !folder.is_dir() {
        return Err(format!("{shown}: a file, not a folder; name the folder that it is in"));
    }
    // Of one that does not exist yet, this is true of the directories above it; it becomes the server's user's.
    let there = nearest_existing(&folder);
    if !there.is_dir() {
        return Err(format!("{shown}: {} is a file; name another folder", there.display()));
    }
    if there != folder && !can_create_in(there) {
        return Err(format!("{shown}: cannot be made in {}; make it, or name another one", there.display()));
    }
    service.reader().check(there, there == folder)?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yes_and_no_are_taken_in_each_form_and_nothing_else() {
        for (text, expected) in [("y", true), ("YES", true), ("n", false), ("No", false)] {
            assert_eq!(yes_or_no(text), Ok(expected), "{text}");
        }
        for text in ["", "maybe", "yesno"] {
            assert!(yes_or_no(text).unwrap_err().contains("answer yes or no"), "{text}");
        }
    }
}
