//! Titles that lie on several members or have parity: which data to read for an extent of them, and
//! how to assemble it.
//!
//! ```text
//!                        whole, and nobody missing      some lost, the viewer repairs      some missing or wrong
//!   media                 data: what the extent has      the same, without the lost         all that survives of the stripes
//!                        copied, summed                 copied, summed, holes marked       decoded, copied, summed
//!   parity track         parity units of the stripes, behind headers made from the records; what is missing is marked
//! ```
//!
//! | file | holds |
//! | --- | --- |
//! | `kinds` | the two kinds, as the cache sees them |
//! | `needs` | which spans of them an extent needs |
//! | `spare` | the repair capacity that a viewer needs to make do with holes |
//! | `media` | an extent of media from the data received |
//! | `track` | an extent of ready FEC datagrams (SMPTE ST 2022-1) |
//!
//! Nothing leaves here that does not have its stored sum and, where there are CRCs, its CRC, whichever way it came. Where no copy of the
//! one can be read, the other is enough.

mod kinds;
mod media;
mod needs;
#[cfg(test)]
pub(crate) mod sample;
mod spare;
mod track;

pub(in crate::cache) use self::kinds::{ParityTrack, Striped};

#[cfg(test)]
mod given {
    //! The imports of the sample title, wherever it is used.
    pub(super) use crate::cache::member_files::{MemberFiles, TitleFile};
    pub(super) use crate::cache::sample::{encode, noise};
    pub(super) use crate::cache::{ParitySource, SourceKind, TitleSource, TrackId};
    pub(super) use crate::format::superblock::Geometry;
    pub(super) use crate::stripes::StripeLayout;
}

#[cfg(test)]
#[path = "stripes_tests.rs"]
mod tests;
