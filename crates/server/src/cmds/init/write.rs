//! Both files, complete or not at all: they are written beside their places, checked, and renamed. An interrupt before that leaves
//! nothing.

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use anyhow::{Context, anyhow, ensure};
use clap::FromArgMatches;
use serde::Serialize;
use tempfile::NamedTempFile;

use super::args::{InitArgs, WatchChoice};
use crate::cmds::serve::ServeArgs;
use crate::cmds::serve::user::UserIdentity;
use crate::cmds::settings::{self, Faults};
use crate::limits::control::MAX_BACKUPS;

/// All users may read the settings, which have no secrets.
const FILE_MODE: u32 = 0o644;

/// A file that is written.
pub(super) struct NewFile {
    pub(super) path: PathBuf,
    pub(super) text: String,
    /// The settings, and not the unit.
    pub(super) is_config: bool,
}

/// A file that was written.
#[derive(Serialize)]
pub(super) struct WrittenFile {
    path: PathBuf,
    /// The file that it has replaced, under its new name.
    backup: Option<PathBuf>,
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
    /// Commands besides.
    pub(super) then: Vec<String>,
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
        let next = self.next.join(" ");
        match self.started {
            true => println!("started: {next}"),
            false => println!("next: {next}"),
        }
        self.then.iter().for_each(|then| println!("then: {then}"));
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

/// Makes the directories, for `user`, and writes the files. In a dry run, everything is checked and nothing changed.
pub(super) fn write(
    files: &[NewFile],
    dirs: &[PathBuf],
    user: Option<&UserIdentity>,
    args: &InitArgs,
) -> anyhow::Result<Vec<WrittenFile>> {
    for file in files {
        // A unit that is the same already needs no backup.
        if !is_same(file) {
            refuse_existing(&file.path, args.force)?;
        }
    }
    if args.dry_run {
        return Ok(files.iter().map(|file| WrittenFile { path: file.path.clone(), backup: None }).collect());
    }
    let cancel = crate::cmds::cancel_on_signals()?;
    let mut new = NewDirs(Vec::new());
    for dir in dirs {
        new.make(dir, user)?;
    }
    let mut ready = Vec::new();
    for file in files.iter().filter(|file| file.is_config || !is_same(file)) {
        ready.push((file, prepare(file, &mut new)?));
    }
    ensure!(!cancel.load(Ordering::Relaxed), "init: interrupted, nothing was written");
    let mut written = Vec::new();
    for (file, prepared) in ready {
        let backup = back_up(&file.path)?;
        prepared
            .persist(&file.path)
            .map_err(|error| error.error)
            .with_context(|| file.path.display().to_string())?;
        written.push(WrittenFile { path: file.path.clone(), backup });
    }
    new.0.clear();
    Ok(written)
}

fn is_same(file: &NewFile) -> bool {
    fs::read_to_string(&file.path).is_ok_and(|text| text == file.text)
}

/// Writes a file beside its place, and checks it.
fn prepare(file: &NewFile, new: &mut NewDirs) -> anyhow::Result<NamedTempFile> {
    let shown = file.path.display();
    let dir = file.path.parent().with_context(|| format!("{shown}: not the name of a file"))?;
    new.make(dir, None)?;
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

/// Keeps the file that is replaced, under a name that is free.
fn back_up(path: &Path) -> anyhow::Result<Option<PathBuf>> {
    if path.symlink_metadata().is_err() {
        return Ok(None);
    }
    let name = |number: usize| {
        let ending = if number == 0 { "bak".to_owned() } else { format!("bak.{number}") };
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{ending}"));
        PathBuf::from(name)
    };
    for backup in (0..MAX_BACKUPS).map(name) {
        match fs::hard_link(path, &backup) {
            Ok(()) => return Ok(Some(backup)),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(anyhow!("{}: cannot be kept as {}: {error}", path.display(), backup.display()));
            }
        }
    }
    Err(anyhow!("{}: has {MAX_BACKUPS} backups; remove some", path.display()))
}

/// Directories that were made; removed again, if they are empty, unless all is done.
struct NewDirs(Vec<PathBuf>);

impl NewDirs {
    fn make(&mut self, dir: &Path, user: Option<&UserIdentity>) -> anyhow::Result<()> {
        let missing: Vec<_> = dir.ancestors().take_while(|dir| !dir.exists()).collect();
        for dir in missing.into_iter().rev() {
            let failed = |error: std::io::Error| {
                anyhow!("{}: cannot be made: {error}; make it, or choose another", dir.display())
            };
            fs::create_dir(dir).map_err(failed)?;
            self.0.push(dir.to_path_buf());
            if let Some(user) = user {
                chown(dir, Some(user.uid), Some(user.gid)).map_err(failed)?;
            }
        }
        Ok(())
    }
}

impl Drop for NewDirs {
    fn drop(&mut self) {
        for dir in self.0.iter().rev() {
            // Not empty any more: it is in use.
            let _ = fs::remove_dir(dir);
        }
    }
}
