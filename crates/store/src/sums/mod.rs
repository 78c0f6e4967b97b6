//! The range sum index: the one's-complement sum of any range of a title's bytes from two stored numbers.
//!
//! One file (`sums.mrr`) serves every packet size, every segment of a TCP stream and every byte
//! range of a request: the sum of `a..b` is the prefix sum at `b` less that at `a`. The ends of a
//! range that lie inside a grain are computed from the bytes there ([`GrainSplit`]), less than a grain at
//! either end.
//!
//! **Zero.** One's-complement arithmetic has two zeros: 0x0000, the sum of nothing but zeros, and 0xffff, that of anything
//! else which adds up to a multiple of 0xffff. A difference of prefix sums cannot tell them apart. The rule here: a
//! difference is 0x0000 if the range is empty or everything up to its end is zero, and 0xffff in every other case of
//! zero. So a sum from this index is always *congruent* to the true one ([`congruent`]) and differs from it in one case
//! only: zeros behind something else, 0xffff instead of 0x0000. In a checksum of TCP, UDP or IP that changes nothing,
//! since other words of the sum (protocol, length) are not zero, and 0xffff added to these is what 0x0000 added is.

mod derive;
mod file;
mod ranges;

pub(crate) use self::derive::Rule;
pub use self::derive::{DERIVED_SUMS_BYTES, DeriveError, Derived};
pub use self::file::SumsFile;
pub(crate) use self::file::SumsWriter;
pub use self::ranges::{GRAIN_BYTES, GrainSplit, SumsBlocks, congruent, difference, join};
pub use crate::format::sums::{SUMS_BLOCK_BYTES, SUMS_PER_BLOCK, SumsBlock, SumsError, SumsHeader};
