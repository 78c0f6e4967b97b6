//! Live sources that were added while the server ran: a file in the store's directory, on every member of a volume. The newest copy counts.
//!
//! The addresses hold passwords, so that only the server's user may read the file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::address::{LiveSource, LiveSourceError, SourcePair};
use crate::limits::live::MAX_KEPT_LIVE_BYTES;

/// Its name in the store's directory.
const KEPT_FILE: &str = "live.json";
/// Version of its format.
const VERSION: u32 = 1;

/// A source as it was added. There is no `Debug`: the addresses are secret.
#[derive(Clone, Deserialize, PartialEq, Eq, Serialize)]
pub struct KeptSource {
    /// The title's name.
    pub name: String,
    /// Where it comes from.
    pub url: String,
    /// Where its backup comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<String>,
}

impl KeptSource {
    /// Its addresses, checked.
    ///
    /// # Errors
    /// [`LiveSourceError`].
    pub fn pair(&self) -> Result<SourcePair, LiveSourceError> {
        let source = |url: &str| LiveSource::new(&self.name, url);
        Ok(SourcePair { first: source(&self.url)?, backup: self.backup.as_deref().map(source).transpose()? })
    }
}

/// The contents of the file.
#[derive(Clone, Default, Deserialize, Serialize)]
pub struct KeptSources {
    version: u32,
    generation: u64,
    sources: Vec<KeptSource>,
}

impl KeptSources {
    /// Reads the newest copy in these directories; the log names each that cannot be read, which is put aside.
    pub fn read(dirs: &[PathBuf]) -> Self {
        let copies = dirs.iter().filter_map(|dir| {
            let path = dir.join(KEPT_FILE);
            read(&path).unwrap_or_else(|error| {
                let aside = path.with_extension("json.damaged");
                let _ = fs::rename(&path, &aside);
                tracing::warn!(
                    "{}: cannot read the live sources that were added while the server ran: {error}; the file is now {}: add the sources again",
                    path.display(),
                    aside.display()
                );
                None
            })
        });
        copies.max_by_key(|copy| copy.generation).unwrap_or_default()
    }

    /// The sources, in the order in which they were added.
    pub fn sources(&self) -> &[KeptSource] {
        &self.sources
    }

    /// Whether there is one of this name.
    pub fn has(&self, name: &str) -> bool {
        self.sources.iter().any(|source| source.name == name)
    }

    /// The same without the source of this name.
    pub fn without(&self, name: &str) -> Self {
        let mut rest = self.clone();
        rest.sources.retain(|source| source.name != name);
        rest
    }

    /// The same with this source, in place of one of its name.
    pub fn with(&self, source: KeptSource) -> Self {
        let mut all = self.without(&source.name);
        all.sources.push(source);
        all
    }

    /// Writes a copy into each of these directories; each is replaced as a whole, and survives a power cut.
    ///
    /// # Errors
    /// Not one could be written.
    pub fn write(&mut self, dirs: &[PathBuf]) -> io::Result<()> {
        (self.version, self.generation) = (VERSION, self.generation + 1);
        let bytes = serde_json::to_vec_pretty(self)?;
        let mut result = Err(io::Error::other("no directory of the store is there"));
        for dir in dirs {
            let written = replace(&dir.join(KEPT_FILE), &bytes);
            result = result.or(written);
        }
        result
    }
}

/// `None`: there is none.
fn read(path: &Path) -> io::Result<Option<KeptSources>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut bytes = Vec::new();
    file.take(MAX_KEPT_LIVE_BYTES).read_to_end(&mut bytes)?;
    let read: KeptSources = serde_json::from_slice(&bytes)?;
    if read.version != VERSION {
        return Err(io::Error::other(format!("its version is {}, not {VERSION}", read.version)));
    }
    Ok(Some(read))
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let aside = path.with_extension(format!("json.{}", std::process::id()));
    // One of a process that ended early could have other permissions.
    let _ = fs::remove_file(&aside);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside)?;
    let written =
        file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&aside, path));
    written.inspect_err(|_| drop(fs::remove_file(&aside)))?;
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn source(name: &str, url: &str) -> KeptSource {
        KeptSource { name: name.to_owned(), url: url.to_owned(), backup: None }
    }

    fn names(kept: &KeptSources) -> Vec<&str> {
        kept.sources().iter().map(|source| source.name.as_str()).collect()
    }

    #[test]
    fn newest_copy_counts_and_only_its_user_may_read_it() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let both = [one.path().to_owned(), two.path().to_owned()];
        assert_eq!(names(&KeptSources::read(&both)), [""; 0]);
        let mut kept = KeptSources::default().with(source("a", "udp://127.0.0.1:1"));
        kept.write(&both).unwrap();
        let mut kept = KeptSources::read(&both).with(source("b", "udp://127.0.0.1:2"));
        kept.write(&both[..1]).unwrap();
        assert_eq!(names(&KeptSources::read(&both)), ["a", "b"]);
        assert_eq!(names(&KeptSources::read(&both[1..])), ["a"]);
        let replaced = kept.with(source("a", "udp://127.0.0.1:3")).without("b");
        assert_eq!(replaced.sources()[0].url, "udp://127.0.0.1:3");
        let files: Vec<_> = fs::read_dir(one.path()).unwrap().map(|entry| entry.unwrap()).collect();
        let [file] = &files[..] else { panic!("{files:?}") };
        assert_eq!(
            (file.file_name().to_str(), file.metadata().unwrap().permissions().mode() & 0o777),
            (Some(KEPT_FILE), 0o600)
        );
    }

    #[test]
    fn damaged_file_is_put_aside() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = [dir.path().to_owned()];
        for text in ["", "{", "[]", r#"{"version":2,"generation":1,"sources":[]}"#] {
            fs::write(dir.path().join(KEPT_FILE), text).unwrap();
            assert_eq!(names(&KeptSources::read(&dirs)), [""; 0], "{text}");
            assert_eq!(fs::read_to_string(dir.path().join("live.json.damaged")).unwrap(), text);
        }
        let gone = dir.path().join("gone");
        assert!(KeptSources::default().write(&[gone]).is_err());
    }
}
