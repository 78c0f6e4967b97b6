//! Titles that are whole in files of their own, without parity: their data is one span, there are as many spans of records as it needs, and none
//! that could stand in for another.

use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use super::aligned::ALIGN;
use super::builder::Builder;
use super::handle::ReadFailure;
use super::member_files::may_wait;
use super::order::{Built, ExtentQuery, Order, Role, RoleFiles, SpanFile, SpanOrder};
use super::source::{OpenTitle, OrderResults, PlainSource, TitleKind, TitleSource};
use crate::blocking::Timeout;

/// The open files of a title.
pub(super) struct PlainFiles {
    source: Box<dyn PlainSource>,
    /// The data file once more, for direct reads, where the file system has them.
    direct: Option<File>,
    /// Result of [`may_wait`] for these files.
    may_wait: bool,
}

impl RoleFiles for PlainFiles {
    fn may_wait(&self) -> bool {
        self.may_wait
    }

    fn file(&self, role: Role, direct: bool) -> &File {
        match (role, &self.direct) {
            (Role::Data { .. } | Role::Parity { .. }, Some(file)) if direct => file,
            (Role::Data { .. } | Role::Parity { .. }, _) => self.source.data(),
            (Role::Sums, _) => self.source.sums().unwrap_or(self.source.meta()),
            (Role::Crcs, _) => self.source.crcs().unwrap_or(self.source.meta()),
            (Role::Meta | Role::StripeMeta | Role::ParityMeta | Role::ParityCrcs, _) => self.source.meta(),
        }
    }
}

/// The kind.
pub(super) struct Plain {
    files: Arc<PlainFiles>,
}

impl Plain {
    /// Opens the data file a second time for direct reads, if possible.
    pub(super) fn open(source: Box<dyn PlainSource>) -> Self {
        let (direct, may_wait) = open_direct_of(&*source);
        Self { files: Arc::new(PlainFiles { source, direct, may_wait }) }
    }
}

impl TitleKind for Plain {
    fn source(&self) -> &dyn TitleSource {
        &*self.files.source
    }

    /// The data block by block if a larger read of it has failed.
    fn order(&self, title: &OpenTitle, query: ExtentQuery) -> Result<Order, ReadFailure> {
        let ExtentQuery { extent, spare, view, thorough } = query;
        let (files, source) = (&self.files, &self.files.source);
        let geometry = title.geometry(extent).ok_or(ReadFailure::OutOfRange)?;
        if !geometry.sums.is_empty() && source.sums().is_none() {
            return Err(ReadFailure::OutOfRange);
        }
        let in_blocks = !view.pieces.is_empty();
        let piece = if in_blocks { ALIGN as u64 } else { u64::MAX };
        let data = split_at_borders(geometry.read, piece);
        let direct = title.may_direct() && files.direct.is_some();
        let data = data.map(|bytes| (Role::Data { position: 0 }, bytes, direct));
        let records = [
            (Role::Meta, geometry.meta, false),
            (Role::Sums, geometry.sums, false),
            (Role::Crcs, if source.crcs().is_some() { geometry.crcs } else { 0..0 }, false),
        ];
        let spans = data.chain(records).filter(|(_, bytes, _)| !bytes.is_empty());
        let spans = spans.map(|(role, bytes, direct)| {
            let files: Arc<PlainFiles> = Arc::clone(files);
            let file = SpanFile::of_plain(files, role, direct);
            SpanOrder { role, member: None, file, direct, bytes, joined: false }
        });
        Ok(Order { thorough, in_blocks, spans: spans.collect(), ..Order::empty(extent, spare) })
    }

    fn assemble(&self, builder: &mut Builder, read: OrderResults<'_>, extent: &mut [u8]) -> Built {
        builder.assemble_plain(read, extent)
    }

    fn data_path(&self) -> Option<&Path> {
        Some(self.files.source.data_path())
    }
}

/// These bytes in pieces that end at multiples of `piece`.
fn split_at_borders(bytes: Range<u64>, piece: u64) -> impl Iterator<Item = Range<u64>> {
    let border = move |at: u64| at.saturating_mul(piece);
    (bytes.start / piece..bytes.end.div_ceil(piece))
        .map(move |number| border(number).max(bytes.start)..border(number + 1).min(bytes.end))
}

/// The data file for direct reads; none also if the disk does not answer. And whether beginning to read may wait for it.
fn open_direct_of(source: &dyn PlainSource) -> (Option<File>, bool) {
    let Ok(buffered) = source.data().try_clone() else { return (None, true) };
    let path = source.data_path().to_path_buf();
    let open = move || (open_direct(&path, &buffered), may_wait(&buffered));
    source.blocking().send(Timeout::Call, open).unwrap_or((None, true))
}

/// The same file once more for direct reads. `None` where the file system has none (some network and memory file
/// systems answer `EINVAL`), or if the path leads to another file by now.
fn open_direct(path: &Path, buffered: &File) -> Option<File> {
    let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).ok()?;
    let (a, b) = (direct.metadata().ok()?, buffered.metadata().ok()?);
    (a.dev() == b.dev() && a.ino() == b.ino()).then_some(direct)
}

#[cfg(test)]
#[path = "plain_tests.rs"]
mod tests;
