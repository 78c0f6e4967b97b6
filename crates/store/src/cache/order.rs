//! The reads for one extent, and their results: the seam between the code that knows where a
//! title's bytes are ([`TitleKind`](super::source::TitleKind)) and the code that reads.
//!
//! ```text
//!   order(extent, spare, members, thorough) ──► Order { spans } ──► (read) ──► build(order, results) ──► Built
//!                    ▲                                                                                    │
//!                    └────────────────────── More: the same, thorough, without what failed ◄──────────────┘
//! ```
//!
//! Orders of consecutive extents may be begun together, so that adjacent data on a member is one
//! read ([`Order::join`]).
//!
//! A title whole in one file without parity has one data span, as many spans of records as it needs, and none that
//! could stand in for another.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

pub(super) use crate::limits::cache::MAX_SPANS;
use millrace_core::packet::PacketMeta;
use millrace_core::pool::ExtentContent;
use millrace_core::time::Instant;

use super::aligned::ALIGN;
use super::handle::ReadFailure;
use crate::member_set::{MemberSet, PositionSet};

/// The content of a span. A *position* is the place of a member among the members of its title.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Data units of the member at this position; the title itself, if it is on one member.
    Data {
        /// The position.
        position: u16,
    },
    /// Parity units of the member at this position.
    Parity {
        /// The position.
        position: u16,
    },
    /// Records of the packets of the extent, or the data they are derived from.
    Meta,
    /// Range sums that they are derived from.
    Sums,
    /// Records of all default-size packets of the stripes that the extent touches.
    StripeMeta,
    /// Records of the parity of those stripes.
    ParityMeta,
    /// CRCs of the default-size packets that are read: of the extent, or of the stripes that it touches.
    Crcs,
    /// CRCs of the parity of those stripes.
    ParityCrcs,
}

impl Role {
    /// Media or parity.
    pub(super) fn is_units(self) -> bool {
        matches!(self, Self::Data { .. } | Self::Parity { .. })
    }
}

/// The open file that a span is read from.
#[derive(Clone)]
pub(super) struct SpanFile {
    of: FileOf,
    may_wait: bool,
}

#[derive(Clone)]
enum FileOf {
    /// Shared by all spans of a member's file.
    Own(Arc<File>),
    /// One of those that a title without members holds open, and whether it is read directly.
    Plain(Arc<dyn RoleFiles>, Role, bool),
}

/// The open files of a title without members.
pub(super) trait RoleFiles: Send + Sync {
    /// Whether beginning to read may wait for their disk.
    fn may_wait(&self) -> bool;

    /// Returns the file to read a span with this role from. For data, this is the file that
    /// bypasses the page cache if `direct` is set and there is one.
    fn file(&self, role: Role, direct: bool) -> &File;
}

impl SpanFile {
    /// A file of a member. `may_wait`: beginning to read from it may already wait for its disk.
    pub(super) fn own(file: Arc<File>, may_wait: bool) -> Self {
        Self { of: FileOf::Own(file), may_wait }
    }

    /// The data, metadata, range sums or CRCs of a title without members.
    pub(super) fn of_plain(files: Arc<dyn RoleFiles>, role: Role, direct: bool) -> Self {
        let may_wait = files.may_wait();
        Self { of: FileOf::Plain(files, role, direct), may_wait }
    }

    /// Whether beginning to read from it may already wait for its disk.
    pub(super) fn may_wait(&self) -> bool {
        self.may_wait
    }

    /// Returns whether it is the same open file. A file opened again since counts as another: it
    /// may be another file as well.
    fn is_same(&self, other: &Self) -> bool {
        match (&self.of, &other.of) {
            (FileOf::Own(file), FileOf::Own(other)) => Arc::ptr_eq(file, other),
            (FileOf::Plain(files, role, direct), FileOf::Plain(other, of, through)) => {
                Arc::ptr_eq(files, other) && role == of && direct == through
            }
            _ => false,
        }
    }

    /// How many hold the files of a title without members.
    #[cfg(test)]
    pub(super) fn holders(&self) -> usize {
        match &self.of {
            FileOf::Own(file) => Arc::strong_count(file),
            FileOf::Plain(files, ..) => Arc::strong_count(files),
        }
    }

    /// The file. It stays open as long as the span is kept.
    pub(super) fn get(&self) -> &File {
        match &self.of {
            FileOf::Own(file) => file,
            FileOf::Plain(files, role, direct) => files.file(*role, *direct),
        }
    }
}

impl std::fmt::Debug for SpanFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.get())
    }
}

/// Bytes of one file to read as a whole.
#[derive(Clone, Debug)]
pub(super) struct SpanOrder {
    /// Its content.
    pub(super) role: Role,
    /// Slot of the member in its volume, if the title is on several or has parity: its health is kept by this.
    pub(super) member: Option<u16>,
    /// The file.
    pub(super) file: SpanFile,
    /// It is open for direct reads: memory, offset and length have to be aligned. If it does not take them after all
    /// (`EINVAL`): [`OpenTitle::refuse_direct`](super::source::OpenTitle::refuse_direct), and order again.
    pub(super) direct: bool,
    /// Bytes of the file, not aligned, never empty.
    pub(super) bytes: Range<u64>,
    /// Read together with the span before it in its file, which an order that is begun with this one has: [`Order::join`].
    pub(super) joined: bool,
}

impl SpanOrder {
    /// Whether it goes on in the same file where `before` ends, or within the block in which that ends, or before.
    pub(super) fn continues(&self, before: &Self) -> bool {
        let block_end = before.bytes.end.next_multiple_of(ALIGN as u64);
        (self.role, self.member, self.direct) == (before.role, before.member, before.direct)
            && self.file.is_same(&before.file)
            && (before.bytes.start..=block_end).contains(&self.bytes.start)
    }
}

/// What became of a span: all its bytes, or `errno` (`ENODATA`: the file ends too early; `ETIMEDOUT`: given up). Fewer
/// bytes than ordered are those at its beginning.
pub(super) type SpanResult<'a> = Result<&'a [u8], i32>;

/// An extent that is wanted, its reader, and the known state of its members.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExtentQuery {
    pub(super) extent: u32,
    /// Packets of a codeword that the viewer can do without.
    pub(super) spare: u8,
    pub(super) view: MemberView,
    /// The data read for it before was not good enough.
    pub(super) thorough: bool,
}

/// Everything to be read for one extent.
#[derive(Clone, Debug)]
pub(super) struct Order {
    /// The extent of its title.
    pub(super) extent: u32,
    /// Packets of one codeword that may be missing, as [`millrace_core::seam::Want::spare`].
    pub(super) spare: u8,
    /// Everything that survives of the stripes, data and parity, is read: missing members or a second try.
    pub(super) thorough: bool,
    /// All present members were asked for everything: anything still missing is unavailable.
    pub(super) all: bool,
    /// The data of a title without members is read block by block, each by itself: it may fail, or be given up, alone.
    pub(super) in_blocks: bool,
    /// What to read: at most [`MAX_SPANS`].
    pub(super) spans: Vec<SpanOrder>,
    /// Members whose files are not there or cannot be opened: they were not ordered.
    pub(super) absent: MemberSet,
    /// Positions that are not read although they hold something of the stripes.
    pub(super) left_out: PositionSet,
}

/// Which members may be asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MemberView {
    /// Not asked: gone, stale, hanging, or they have failed for this very extent.
    pub(super) lost: MemberSet,
    /// Of these, those that hang: the last to be asked.
    pub(super) hung: MemberSet,
    /// Of these, those that are there but behind: asked for data and parity, which their stored sums prove, when `all` are.
    pub(super) stale: MemberSet,
    /// Asked only if it does not work without them: those suspended for late answers, errors or wrong bytes.
    pub(super) avoid: MemberSet,
    /// A larger read of these has failed for this extent: when `all` are asked, each packet is read by itself. A title without
    /// members counts as member 0 and is read block by block.
    pub(super) pieces: MemberSet,
    /// These did not have the expected data: their files are opened again if they have been open
    /// for a while. They may have been repaired.
    pub(super) reopen: MemberSet,
    /// All members that are not lost are asked for everything: anything still missing is
    /// unavailable.
    pub(super) all: bool,
    /// When that is so: files that could not be opened are tried again after a while.
    pub(super) now: Instant,
}

/// The effort to get an extent: each step costs more than the one before, and the extent is
/// declared unavailable only after the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Effort {
    /// The extent's own data, from members that are well; around the other members, if that works.
    Usual,
    /// Data and parity of its stripes from members that are well and have not failed for it.
    Thorough,
    /// The same from all members that are present and respond, and every copy of the records. For a
    /// title without members, data that could not be read as a whole is read block by block.
    All,
    /// Also from those who have not answered others for long.
    Last,
}

impl Order {
    /// Nothing yet.
    pub(super) fn empty(extent: u32, spare: u8) -> Self {
        let (thorough, all, in_blocks) = (false, false, false);
        let (absent, left_out) = (MemberSet::EMPTY, PositionSet::EMPTY);
        Self { extent, spare, thorough, all, in_blocks, spans: Vec::new(), absent, left_out }
    }

    /// Marks the spans that can be read together with spans of the extents before this one in its
    /// run. A member may have nothing of some of them.
    pub(super) fn join<'a>(&mut self, run: impl Iterator<Item = &'a Self> + Clone) {
        for span in &mut self.spans {
            let mut before = run.clone().flat_map(|order| &order.spans);
            span.joined = before.any(|before| span.continues(before));
        }
    }
}

impl MemberView {
    /// Also without this member.
    #[cfg(test)]
    pub(super) fn without(self, member: u16) -> Self {
        Self { lost: self.lost | MemberSet::of(member), ..self }
    }
}

/// A built extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Filled {
    /// Its content.
    pub(super) content: ExtentContent,
    /// Bytes of media that were decoded for it.
    pub(super) decoded_bytes: u64,
    /// The title has CRCs, but those of this extent were unavailable: only the sums of 16 bits were
    /// compared.
    pub(super) sums_only: bool,
    /// Packets whose records are damaged, in every copy if there are several. Those that it holds all the same are proved by their CRCs.
    pub(super) unrecorded: Option<LeftOut>,
    /// Members whose bytes did not have their stored sums.
    pub(super) wrong: MemberSet,
}

/// Packets of an extent that are unavailable, or whose records are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeftOut {
    /// The first of them, counted from the title's start.
    pub(super) first: u32,
    /// The last of them.
    pub(super) last: u32,
    /// How many they are.
    pub(super) packets: u32,
}

impl LeftOut {
    /// Returns the packets marked as missing in the records of an extent that begins with packet
    /// `first`.
    pub(super) fn of(first: u32, metas: &[PacketMeta]) -> Option<Self> {
        Self::among(first, metas.iter().map(|meta| meta.is_missing()))
    }

    /// Returns the packets from `first` on that are selected by `is_one`.
    pub(super) fn among(first: u32, is_one: impl Iterator<Item = bool>) -> Option<Self> {
        let those = (first..).zip(is_one).filter(|(_, is_one)| *is_one);
        those.fold(None, |found: Option<Self>, (packet, _)| {
            let (first, packets) = found.map_or((packet, 0), |found| (found.first, found.packets));
            Some(Self { first, last: packet, packets: packets + 1 })
        })
    }
}

/// The result of building an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Built {
    /// It is there.
    Done(Filled),
    /// Something is wrong or missing: order it again, thorough and bypassing the kernel's cache.
    /// Never the answer to a thorough order. `wrong`: as in [`Filled`].
    More {
        /// Members whose bytes did not have their stored sums.
        wrong: MemberSet,
    },
    /// Some of its packets are unavailable; those are marked. Lease it only if nothing better can
    /// be read.
    Damaged {
        /// The available packets.
        filled: Filled,
        /// The unavailable packets.
        left_out: LeftOut,
        /// Why not.
        failure: ReadFailure,
    },
    /// It is unavailable. `wrong`: as in [`Filled`].
    Failed {
        /// Why.
        failure: ReadFailure,
        /// Members whose bytes did not have their stored sums.
        wrong: MemberSet,
    },
}

impl Built {
    /// Returns the failure of an extent that is unavailable without wrong bytes from any member.
    pub(super) fn failed(failure: ReadFailure) -> Self {
        Self::Failed { failure, wrong: MemberSet::EMPTY }
    }
}
