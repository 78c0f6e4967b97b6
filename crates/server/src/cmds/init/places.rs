//! Whether the places can be used: by the service, and by this command that makes them.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail, ensure};

use super::args::InitArgs;
use super::reader::{AccessNeed, can_create_in, nearest_existing};
use super::service::Service;
use super::words::shell_word;

impl Service {
    /// Checks that the service can start from these places. Without a unit, root starts the server by hand and can open all
    /// of them.
    pub(super) fn check_places(&self, args: &InitArgs, boot: bool) -> anyhow::Result<()> {
        let store = self.store.display();
        ensure!(
            self.store.is_dir() || !self.store.exists(),
            "{store}: a file, not a directory; choose another --store"
        );
        let is_by_systemd = self.uses_unit(args, boot);
        if self.is_system && !is_by_systemd {
            return Ok(());
        }
        if is_by_systemd && !self.has_packaged_unit(args) {
            self.check_program(&program()?)?;
        }
        self.check_config_dir()?;
        self.check_store(&args.user)
    }

    fn check_program(&self, program: &Path) -> anyhow::Result<()> {
        let shown = program.display();
        let closed = self.reader().find_closed(program, AccessNeed::Enter);
        let Some(closed) = closed.with_context(|| format!("{shown}: cannot be examined"))? else {
            return Ok(());
        };
        let source = shell_word(&shown.to_string());
        bail!(
            "{shown}: the service's user cannot run this program: {} is closed to that user; install it to /usr/local/bin (install {source} /usr/local/bin/) and run it from there",
            closed.display()
        )
    }

    fn check_config_dir(&self) -> anyhow::Result<()> {
        let shown = self.config.display();
        // New directories below it are made readable.
        let dir = nearest_existing(self.config.parent().unwrap_or(Path::new("/")));
        let closed = self.reader().find_closed(dir, AccessNeed::Enter);
        let Some(closed) = closed.with_context(|| format!("{shown}: cannot be examined"))? else {
            return Ok(());
        };
        bail!(
            "{shown}: the service's user cannot read it there: {} is closed to that user; allow it (chmod o+x {}, or a group of that user), or choose another --config",
            closed.display(),
            shell_word(&closed.display().to_string())
        )
    }

    fn check_store(&self, user: &str) -> anyhow::Result<()> {
        let shown = self.store.display();
        let exists = self.store.exists();
        // A new store belongs to the service's user.
        let need = if exists { AccessNeed::Change } else { AccessNeed::Enter };
        let closed = self.reader().find_closed(nearest_existing(&self.store), need);
        let Some(closed) = closed.with_context(|| format!("{shown}: cannot be examined"))? else {
            return Ok(());
        };
        let word = shell_word(&closed.display().to_string());
        let is_store = self.store.canonicalize().is_ok_and(|store| store == closed);
        let remedy = match exists && is_store {
            true if self.is_system => format!("give it to that user (chown -R {} {word})", shell_word(user)),
            true => "change its owner".to_owned(),
            false => format!("allow it (chmod o+x {word}, or a group of that user)"),
        };
        bail!(
            "{shown}: the service's user cannot write it: {} is closed to that user; {remedy}, or choose another --store",
            closed.display()
        )
    }
}

/// The program that the unit starts: this one.
pub(super) fn program() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("path of this program")
}

/// Checks that a file can be created or replaced, so that a dry run fails where the real one would.
pub(super) fn check_file_place(path: &Path) -> anyhow::Result<()> {
    let shown = path.display();
    // A link to a directory is replaced as any other link is.
    let is_dir = path.symlink_metadata().is_ok_and(|meta| meta.is_dir());
    ensure!(!is_dir, "{shown}: cannot be written: a directory; choose another name, or remove it");
    let dir = path.parent().with_context(|| format!("{shown}: not the name of a file"))?;
    check_creatable(dir, path)
}

/// Checks that a directory exists and can have new entries, or that it can be created. Errors name `target`, the path
/// that was given.
pub(super) fn check_creatable(dir: &Path, target: &Path) -> anyhow::Result<()> {
    let (shown, above) = (target.display(), nearest_existing(dir));
    ensure!(above.is_dir(), "{shown}: {} is a file; choose another place", above.display());
    if can_create_in(above) {
        return Ok(());
    }
    Err(anyhow!("{shown}: cannot be created in {}; run it as root, or choose another place", above.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn place_below_a_file_or_of_a_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("file"), "").unwrap();
        let error = |path: &Path| check_file_place(path).unwrap_err().to_string();
        assert!(error(&at("file/x/c.toml")).contains("is a file"));
        assert!(error(dir.path()).contains("a directory"));
        check_file_place(&at("new/c.toml")).unwrap();
        check_file_place(&at("file")).unwrap();
    }
}
