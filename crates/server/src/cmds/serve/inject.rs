//! Faults of disks on order: tests write them to a file while the server runs.

use std::path::{Path, PathBuf};

use millrace_store::disk::{FaultList, ReadFaults};

use crate::limits::control::MAX_FAULTS_FILE_BYTES;

/// Keeps the faults of members in step with a file.
pub(super) struct Injector {
    file: Option<PathBuf>,
    faults: ReadFaults,
    last: String,
}

impl Injector {
    /// Without a file there are no faults and none can come.
    pub(super) fn new(file: Option<&Path>) -> Self {
        let faults = if file.is_some() { ReadFaults::settable() } else { ReadFaults::default() };
        let mut injector = Self { file: file.map(Path::to_path_buf), faults, last: String::new() };
        injector.look();
        injector
    }

    /// For the cache.
    pub(super) fn faults(&self) -> ReadFaults {
        self.faults.clone()
    }

    /// Reads the file again. A missing file means no faults; an invalid file changes nothing and is
    /// reported once.
    pub(super) fn look(&mut self) {
        let Some(file) = &self.file else { return };
        let text = match std::fs::metadata(file) {
            Ok(meta) if meta.len() <= MAX_FAULTS_FILE_BYTES => {
                std::fs::read_to_string(file).unwrap_or_default()
            }
            _ => String::new(),
        };
        if text == self.last {
            return;
        }
        match text.parse::<FaultList>() {
            Ok(FaultList(faults)) => {
                self.faults.set_all(&faults);
                tracing::warn!("fault injection: {faults:?}");
            }
            Err(error) => tracing::warn!("{}: {error}", file.display()),
        }
        self.last = text;
    }
}

#[cfg(test)]
mod tests {
    use millrace_store::disk::ReadFault;

    use super::*;

    #[test]
    fn faults_follow_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("faults");
        let mut injector = Injector::new(Some(&file));
        let faults = injector.faults();
        assert_eq!(faults.of(1), ReadFault::None);
        std::fs::write(&file, "member 1 eio\nmember 2 hang\n").unwrap();
        injector.look();
        assert_eq!((faults.of(1), faults.of(2)), (ReadFault::Eio, ReadFault::Hang));
        std::fs::write(&file, "member one eio\n").unwrap();
        injector.look();
        assert_eq!(faults.of(1), ReadFault::Eio, "a bad file changes nothing");
        std::fs::remove_file(&file).unwrap();
        injector.look();
        assert_eq!((faults.of(1), faults.of(2)), (ReadFault::None, ReadFault::None));
        assert!(!Injector::new(None).faults().is_settable());
    }
}
