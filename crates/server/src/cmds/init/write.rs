//! Both files, complete or not at all: they are written beside their places, checked, and renamed. An interrupt before the
//! renames leaves nothing, and a rename that fails undoes the one before.

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use anyhow::{Context, anyhow, ensure};
use clap::FromArgMatches;
use serde::Serialize;
use tempfile::NamedTempFile;

use super::args::{InitArgs, WatchChoice};
use super::changes::{NewDirs, Replacements, WrittenFile};
use super::places::{check_creatable, check_file_place};
use super::words::shell_line;
use crate::cmds::serve::ServeArgs;
use crate::cmds::serve::user::UserIdentity;
use crate::cmds::settings::{self, Faults};

/// All users may read the settings, which have no secrets.
const FILE_MODE: u32 = 0o644;

/// A file that is written.
pub(super) struct NewFile {
    pub(super) path: PathBuf,
    pub(super) text: String,
    /// The settings, and not the unit.
    pub(super) is_config: bool,
}

/// The outcome, and the commands that are left.
#[derive(Serialize)]
pub(super) struct Outcome {
    pub(super) files: Vec<WrittenFile>,
    pub(super) folder: PathBuf,
    pub(super) watch: WatchChoice,
    pub(super) boot: bool,
    pub(super) reachable: String,
    pub(super) access: String,
    /// The service was started.
    pub(super) started: bool,
    /// The words of the command that starts it.
    pub(super) next: Vec<String>,
    /// The words of each command besides.
    pub(super) then: Vec<Vec<String>>,
    pub(super) is_dry_run: bool,
}

impl Outcome {
    pub(super) fn print(&self) {
        let written = if self.is_dry_run { "would be written" } else { "written" };
        for WrittenFile { path, backup } in &self.files {
            let kept = backup.as_ref().map(|backup| format!(", the old one is {}", backup.display()));
            println!("{}: {written}{}", path.display(), kept.unwrap_or_default());
        }
        println!("{}\n{}", self.reachable, self.access);
        let next = shell_line(&self.next);
        match self.started {
            true => println!("started: {next}"),
            false => println!("next: {next}"),
        }
        self.then.iter().for_each(|then| println!("then: {}", shell_line(then)));
    }
}

/// Refuses a file that exists.
pub(super) fn refuse_existing(path: &Path, force: bool) -> anyhow::Result<()> {
    ensure!(
        force || path.symlink_metadata().is_err(),
        "{}: exists already; change it there, or give --force: it is kept as a backup then",
        path.display()
    );
    Ok(())
}

/// Makes the directories of the service, the folder and the store, for `user`, and writes the files. In a dry run, everything is
/// checked and nothing changed.
pub(super) fn write(
    files: &[NewFile],
    dirs: &[&PathBuf; 2],
    user: Option<&UserIdentity>,
    args: &InitArgs,
) -> anyhow::Result<Vec<WrittenFile>> {
    for file in files {
        // A unit that is the same already needs no backup.
        if !is_same(file) {
            refuse_existing(&file.path, args.force)?;
            check_file_place(&file.path)?;
        }
    }
    for dir in dirs.iter().filter(|dir| !dir.exists()) {
        check_creatable(dir, dir)?;
    }
    if args.dry_run {
        return Ok(files.iter().map(|file| WrittenFile { path: file.path.clone(), backup: None }).collect());
    }
    let cancel = crate::cmds::cancel_on_signals()?;
    let mut new = NewDirs::new(user, *dirs);
    for dir in dirs {
        new.make(dir)?;
    }
    let mut ready = Vec::new();
    for file in files.iter().filter(|file| file.is_config || !is_same(file)) {
        ready.push((file, prepare(file, &mut new)?));
    }
    ensure!(!cancel.load(Ordering::Relaxed), "init: interrupted, nothing was written");
    // All backups come first: they can fail for more reasons than the renames.
    let mut replacements = Replacements::default();
    for (file, _) in &ready {
        replacements.back_up(&file.path)?;
    }
    for (file, prepared) in ready {
        replacements.persist(&file.path, prepared)?;
    }
    new.keep();
    Ok(replacements.keep())
}

fn is_same(file: &NewFile) -> bool {
    fs::read_to_string(&file.path).is_ok_and(|text| text == file.text)
}

/// Writes a file beside its place, and checks it.
fn prepare(file: &NewFile, new: &mut NewDirs) -> anyhow::Result<NamedTempFile> {
    let shown = file.path.display();
    let dir = file.path.parent().with_context(|| format!("{shown}: not the name of a file"))?;
    new.make(dir)?;
    let failed = |error: std::io::Error| {
        anyhow!("{shown}: cannot be written: {error}; run it as root, or choose another place")
    };
    let mut prepared = tempfile::Builder::new().prefix(".millrace-init-").tempfile_in(dir).map_err(failed)?;
    prepared.write_all(file.text.as_bytes()).map_err(failed)?;
    prepared.as_file().set_permissions(Permissions::from_mode(FILE_MODE)).map_err(failed)?;
    prepared.as_file().sync_all().map_err(failed)?;
    if file.is_config {
        check(prepared.path()).with_context(|| format!("{shown}: these settings do not work together"))?;
    }
    Ok(prepared)
}

/// The settings are those of a server that starts.
fn check(path: &Path) -> anyhow::Result<()> {
    let layered = settings::of_file(path).map_err(|faults| match faults {
        Faults::Line(error) => anyhow!(error.to_string()),
        Faults::Below(faults) => anyhow!(faults.join("; ")),
    })?;
    let serve = layered.matches.subcommand_matches("serve").context("settings of another command")?;
    ServeArgs::from_arg_matches(serve)?.check()
}
