//! The title's file: opened safely and only once, identified, and read from front to back.
//!
//! All readers use this one descriptor; ffmpeg gets it as its standard input and opens that. If
//! another file is put at the path meanwhile, it is not read.

use std::fs::{File, FileType, Metadata};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::UNIX_EPOCH;

use rustix::fs::{CWD, Mode, OFlags, openat};

use millrace_store::volume::SourceIdentity;

use super::content;
use super::error::{IngestError, StreamError};
use super::framing::{self, Framing};
use super::pass::{ByteSource, PassProgress, SNIFF_BYTES, read_retrying};
use super::watch::ProgressReporter;

/// First bytes of containers in which a transport stream must not be looked for: (offset, bytes).
const CONTAINER_MARKS: &[(usize, &[u8])] = &[
    (4, b"ftyp"),
    (4, b"moov"),
    (4, b"mdat"),
    (0, b"\x1a\x45\xdf\xa3"),
    (0, b"RIFF"),
    (0, b"OggS"),
    (0, b"fLaC"),
    (0, b"FLV"),
    (0, b"ID3"),
    (0, b"\x30\x26\xb2\x75\x8e\x66\xcf\x11"),
    (0, b"\x00\x00\x01\xba"),
];

/// An open regular file that is not empty.
#[derive(Debug)]
pub struct SourceFile {
    file: File,
    path: PathBuf,
    identity: SourceIdentity,
    /// Whether files beside it belong to it.
    has_folder: bool,
}

/// Why reading the file ended early.
#[derive(Debug)]
pub(crate) enum FileStop {
    /// The caller asked to stop.
    Cancelled,
    /// The stream cannot be used, or cannot be read.
    Stream(StreamError),
}

impl From<StreamError> for FileStop {
    fn from(error: StreamError) -> Self {
        Self::Stream(error)
    }
}

impl SourceFile {
    /// Opens `path`, wherever symbolic links lead.
    ///
    /// # Errors
    /// If there is no readable regular file, or it is empty.
    pub fn open(path: &Path) -> Result<Self, IngestError> {
        let found = openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        Self::of(path, found.map_err(io::Error::from))
    }

    /// Opens `path` in the folder `root`. A symbolic link is followed if it leads to a file within the folder. Which file that is
    /// may change at any time, so it is resolved first, and then each directory of the result is opened without following links.
    ///
    /// # Errors
    /// As [`SourceFile::open`], and if the path leads out of the folder.
    pub fn open_beneath(root: &Path, path: &Path) -> Result<Self, IngestError> {
        let failed = |error| IngestError::Open { path: path.to_path_buf(), error };
        let root = root.canonicalize().map_err(failed)?;
        let target = path.canonicalize().map_err(failed)?;
        let Ok(within) = target.strip_prefix(&root) else {
            return Err(IngestError::OutsideFolder { path: path.to_path_buf() });
        };
        Self::of(path, open_without_links(&root, within))
    }

    /// A file that has no place in a folder: one that was uploaded as `name`.
    ///
    /// # Errors
    /// If its metadata cannot be read.
    pub(crate) fn unnamed(file: File, name: &str) -> io::Result<Self> {
        let identity = identity(PathBuf::from(format!("upload:{name}")), &file.metadata()?);
        // Programs that get it must not be able to write to it.
        let file = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        Ok(Self { file, path: super::as_alone(name), identity, has_folder: false })
    }

    /// Opens the file of a path descriptor (`O_PATH`). The file type is checked first, because
    /// opening a pipe would wait for a writer.
    fn of(path: &Path, found: io::Result<OwnedFd>) -> Result<Self, IngestError> {
        let failed = |error| IngestError::Open { path: path.to_path_buf(), error };
        let named = File::from(found.map_err(failed)?);
        let kind = named.metadata().map_err(failed)?.file_type();
        if !kind.is_file() {
            return Err(IngestError::NotAFile { path: path.to_path_buf(), what: kind_words(kind) });
        }
        let file = File::open(format!("/proc/self/fd/{}", named.as_raw_fd())).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if metadata.len() == 0 {
            return Err(IngestError::Empty { path: path.to_path_buf() });
        }
        let absolute = std::path::absolute(path).map_err(failed)?;
        let identity = identity(absolute, &metadata);
        Ok(Self { file, path: path.to_path_buf(), identity, has_folder: true })
    }

    /// Where it was found.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether files beside it, such as subtitles, belong to it.
    pub(crate) fn has_folder(&self) -> bool {
        self.has_folder
    }

    /// As the standard input of a program.
    pub(crate) fn as_input(&self) -> &File {
        &self.file
    }

    /// Another reader, from the beginning on.
    pub(crate) fn again(&self) -> io::Result<File> {
        File::open(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }

    /// Path, length and modification time when it was opened.
    pub(crate) fn identity(&self) -> &SourceIdentity {
        &self.identity
    }

    /// Whether it is a transport stream, by its content.
    pub(crate) fn framing(&self) -> Result<Option<Framing>, StreamError> {
        let mut head = vec![0; SNIFF_BYTES.min(usize::try_from(self.identity.bytes).unwrap_or(SNIFF_BYTES))];
        let mut filled = 0;
        while filled < head.len() {
            match self.file.read_at(&mut head[filled..], filled as u64) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(StreamError::Read { offset: filled as u64, error }),
            }
        }
        head.truncate(filled);
        Ok(framing_of(&head, filled as u64 == self.identity.bytes))
    }

    /// Returns an error if the file has changed since it was opened: another process is still
    /// writing it.
    pub(crate) fn check_unchanged(&self) -> Result<(), IngestError> {
        let path = || self.identity.path.clone();
        let metadata = self.file.metadata().map_err(|error| IngestError::Open { path: path(), error })?;
        let now = identity(path(), &metadata);
        if now == self.identity {
            return Ok(());
        }
        Err(IngestError::Changed { path: path(), before_bytes: self.identity.bytes, now_bytes: now.bytes })
    }

    /// Reads the whole file and returns the BLAKE3 of its content.
    pub(crate) fn blake3(&self, cancel: &AtomicBool) -> Result<String, IngestError> {
        let path = || self.identity.path.clone();
        content::blake3_of(&self.file, cancel).map_err(|error| match error.kind() {
            io::ErrorKind::Interrupted => IngestError::Cancelled { path: path() },
            _ => IngestError::Open { path: path(), error },
        })
    }

    /// Reads it from front to back.
    pub(crate) fn reader<'a, 'w>(&'a self, watch: &'a mut ProgressReporter<'w>) -> FileSource<'a, 'w> {
        FileSource { file: &self.file, watch }
    }
}

/// Returns the layout of packets in a source that begins with `head`; `None` if it is no transport
/// stream. `whole`: `head` is the entire source.
pub(crate) fn framing_of(head: &[u8], whole: bool) -> Option<Framing> {
    let is_container = CONTAINER_MARKS.iter().any(|&(at, mark)| head.get(at..at + mark.len()) == Some(mark));
    if is_container { None } else { framing::detect(head, whole).map(|(framing, _)| framing) }
}

/// A file as a source of the pass.
pub(crate) struct FileSource<'a, 'w> {
    file: &'a File,
    watch: &'a mut ProgressReporter<'w>,
}

impl ByteSource for FileSource<'_, '_> {
    type Error = FileStop;

    fn read(&mut self, room: &mut [u8], done: PassProgress) -> Result<usize, FileStop> {
        if self.watch.is_cancelled() {
            return Err(FileStop::Cancelled);
        }
        self.watch.done(done.source_bytes, done.media);
        read_retrying(&mut self.file, room)
            .map_err(|error| FileStop::Stream(StreamError::Read { offset: done.source_bytes, error }))
    }
}

/// Returns the properties that distinguish this file from others and from its earlier versions, to
/// ask a store whether it already has the title.
///
/// # Errors
/// When the file is not there or may not be looked at.
pub fn identify(path: &Path) -> io::Result<SourceIdentity> {
    Ok(identity(std::path::absolute(path)?, &std::fs::metadata(path)?))
}

fn identity(path: PathBuf, metadata: &Metadata) -> SourceIdentity {
    let modified = metadata.modified().ok().and_then(|t| t.duration_since(UNIX_EPOCH).ok());
    let modified_unix_ns = modified.and_then(|d| u64::try_from(d.as_nanos()).ok()).unwrap_or(0);
    SourceIdentity { path, bytes: metadata.len(), modified_unix_ns }
}

/// Opens the path `within` below `root` without following symbolic links. The caller has resolved
/// `within`, so it does not lead upwards.
fn open_without_links(root: &Path, within: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut at = openat(CWD, root, flags | OFlags::DIRECTORY, Mode::empty())?;
    let mut parts = within.components().peekable();
    while let Some(part) = parts.next() {
        let is_dir = parts.peek().is_some();
        let flags = if is_dir { flags | OFlags::DIRECTORY } else { flags };
        at = openat(&at, part.as_os_str(), flags, Mode::empty())?;
    }
    Ok(at)
}

fn kind_words(kind: FileType) -> &'static str {
    if kind.is_symlink() {
        "a symbolic link that was put in its place"
    } else if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

#[cfg(test)]
#[path = "source_tests.rs"]
mod tests;
