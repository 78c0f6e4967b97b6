//! Reading the pieces of an extent (payload, records, and range sums if records are derived from them) into staging
//! memory: many at once, in any order.
//!
//! Two ways with one interface: io_uring ([`uring`]) and a few threads that call `pread` ([`threads`]).

mod threads;
mod uring;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::aligned::AlignedBuf;
use super::source::{ALIGN, DATA_STAGING_BYTES, Geometry, META_STAGING_BYTES, OpenTitle, SUMS_STAGING_BYTES};
use super::{CacheError, ReadBackend};
use crate::bell::EventBell;

/// An interrupted or postponed read is tried so often before it counts as failed.
const MAX_INTERRUPTIONS: u32 = 100;

/// What became of a read after one system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Everything needed is there.
    Done,
    /// The rest is to be asked for.
    Again,
    /// Failed with this `errno`.
    Failed(i32),
}

/// One range of a file that has to come in full, read in as many calls as it takes.
#[derive(Clone, Debug)]
struct Span {
    /// Offset in the file, aligned.
    offset: u64,
    /// Bytes asked for, aligned; may reach beyond the file's end.
    ask: usize,
    /// Bytes from `offset` on that must come.
    need: usize,
    /// Bytes that have come.
    got: usize,
    interruptions: u32,
}

impl Span {
    /// The aligned range that covers `bytes`.
    fn covering(bytes: &Range<u64>) -> Self {
        let offset = bytes.start / ALIGN as u64 * ALIGN as u64;
        let need = (bytes.end.max(bytes.start) - offset) as usize;
        Self { offset, ask: need.next_multiple_of(ALIGN), need, got: 0, interruptions: 0 }
    }

    /// Where to go on: bytes of the staging memory, and their offset in the file. After a short read the last,
    /// partial block is read again, for direct reads begin at block borders only.
    fn rest(&self) -> (Range<usize>, u64) {
        let from = self.got / ALIGN * ALIGN;
        (from..self.ask, self.offset + from as u64)
    }

    /// Notes the result of reading [`Span::rest`]: bytes, or `-errno`.
    fn arrived(&mut self, result: i32) -> Step {
        let Ok(bytes) = usize::try_from(result) else {
            let errno = -result;
            self.interruptions += 1;
            let again = matches!(errno, libc::EINTR | libc::EAGAIN) && self.interruptions < MAX_INTERRUPTIONS;
            return if again { Step::Again } else { Step::Failed(errno) };
        };
        let got = self.got / ALIGN * ALIGN + bytes;
        if got <= self.got {
            return Step::Failed(libc::ENODATA); // the file ends before what it should hold
        }
        self.got = got;
        if got >= self.need { Step::Done } else { Step::Again }
    }
}

/// A piece of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// Payload.
    Data,
    /// Records.
    Meta,
    /// Range sums.
    Sums,
}

/// All pieces, by their numbers.
const PIECES: [Piece; 3] = [Piece::Data, Piece::Meta, Piece::Sums];

/// One extent to be read.
#[derive(Clone)]
pub(super) struct Request {
    title: Arc<OpenTitle>,
    spans: [Span; PIECES.len()],
    geometry: Geometry,
}

impl Request {
    pub(super) fn new(title: Arc<OpenTitle>, geometry: Geometry) -> Self {
        let spans = [&geometry.data, &geometry.meta, &geometry.sums].map(Span::covering);
        Self { title, spans, geometry }
    }

    /// The pieces that have to be read: not every extent has range sums.
    fn pieces(&self) -> impl Iterator<Item = Piece> + use<> {
        let wanted = self.spans.each_ref().map(|span| span.need > 0);
        PIECES.into_iter().filter(move |&piece| wanted[piece as usize])
    }

    fn file(&self, piece: Piece) -> &File {
        match piece {
            Piece::Data => self.title.data(),
            Piece::Meta => self.title.source().meta(),
            // A title without range sums has no such piece: OpenTitle::geometry() sees to that.
            Piece::Sums => self.title.source().sums().unwrap_or(self.title.source().meta()),
        }
    }
}

/// A read that has ended.
#[derive(Debug)]
pub(super) struct Done {
    /// The place it was begun in.
    pub(super) place: usize,
    /// Bytes of each piece that came.
    pub(super) bytes: [u64; PIECES.len()],
    /// Which piece failed, with which `errno`.
    pub(super) result: Result<(), (Piece, i32)>,
}

/// Staging memory of one read.
struct Staging {
    data: AlignedBuf,
    meta: AlignedBuf,
    sums: AlignedBuf,
}

/// What a read has brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Staged<'a> {
    /// Payload.
    pub(super) data: &'a [u8],
    /// Blocks of records.
    pub(super) meta: &'a [u8],
    /// Blocks of range sums.
    pub(super) sums: &'a [u8],
}

impl Staging {
    fn new() -> io::Result<Self> {
        Ok(Self {
            data: AlignedBuf::new(DATA_STAGING_BYTES)?,
            meta: AlignedBuf::new(META_STAGING_BYTES)?,
            sums: AlignedBuf::new(SUMS_STAGING_BYTES)?,
        })
    }

    fn of(&mut self, piece: Piece) -> &mut AlignedBuf {
        match piece {
            Piece::Data => &mut self.data,
            Piece::Meta => &mut self.meta,
            Piece::Sums => &mut self.sums,
        }
    }

    /// What `request` has brought.
    fn staged(&self, request: &Request) -> Staged<'_> {
        let cut = |bytes: &Range<u64>, span: &Span| (bytes.start - span.offset) as usize..span.need;
        let ([data, meta, sums], geometry) = (&request.spans, &request.geometry);
        Staged {
            data: &self.data[cut(&geometry.data, data)],
            meta: &self.meta[cut(&geometry.meta, meta)],
            sums: &self.sums[cut(&geometry.sums, sums)],
        }
    }
}

/// Reads extents into staging memory. A read is begun in a *place*, which is free again when its [`Done`] has come.
pub(super) trait Reader {
    /// "io_uring" or "threads".
    fn name(&self) -> &'static str;

    /// Begins a read in a place that is free.
    fn begin(&mut self, place: usize, request: Request);

    /// Sees what has come, and sleeps if there is nothing until something comes, until [`EventBell::ring`], or until
    /// `limit` has passed. With a limit of zero it never sleeps.
    fn wait(&mut self, limit: Option<Duration>);

    /// A read that has ended.
    fn next_done(&mut self) -> Option<Done>;

    /// Whether [`Reader::next_done`] has something without [`Reader::wait`].
    fn has_done(&self) -> bool;

    /// What the last read in a place has brought; empty while one is in flight there.
    fn staged(&self, place: usize) -> Staged<'_>;
}

/// The way of reading that was asked for, or the best there is.
///
/// # Errors
/// When the one asked for cannot be had here, or no memory or threads are left.
pub(super) fn start(
    backend: ReadBackend,
    places: usize,
    wake: &Arc<EventBell>,
) -> Result<Box<dyn Reader>, CacheError> {
    let uring = || uring::Uring::new(places, Arc::clone(wake));
    let threads = || threads::Threads::new(places, Arc::clone(wake)).map_err(CacheError::Resources);
    match backend {
        ReadBackend::Uring => Ok(Box::new(uring().map_err(CacheError::Uring)?)),
        ReadBackend::Threads => Ok(Box::new(threads()?)),
        ReadBackend::Auto => match uring() {
            Ok(uring) => Ok(Box::new(uring)),
            Err(_) => Ok(Box::new(threads()?)),
        },
    }
}

#[cfg(test)]
#[path = "read_tests.rs"]
mod tests;
