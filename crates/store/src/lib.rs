//! From a film on disk to a lease in memory.
//!
//! | module | holds |
//! | --- | --- |
//! | [`mod@format`] | the bytes of every file in a store: frame, superblock, manifest, index, meta-data |
//! | [`index`] | [`index::TitleIndex`]: time to packet, random access points, clock pieces, PIDs |
//! | [`meta`] | [`meta::MetaFile`]: the stored sums and times, one file per packet size |
//! | [`sums`] | the range sum index: the sum of any range of bytes, for every packet size at once |
//! | [`packet_size`] | the packet sizes that have names |
//! | [`members`] | which directories a volume is made of, and which of them are believed |
//! | [`rows`] | where the units of a title's rows lie on the members of its volume |
//! | [`volume`] | [`volume::Volume`]: titles come in whole, are found, are removed; nothing is ever half visible |
//! | [`check`] | `fsck`: every promise of the format, one function each |
//! | [`repair`] | what is missing on a member is made anew from the others |
//! | [`scrub`] | every byte read, quiet corruption found and mended |
//! | [`inspect`] | every structure on disk as text and as JSON |
//! | [`ingest`] | a film as people have it becomes a title |
//! | [`disk`] | every operation that must survive a power cut, and readers that fail on order |
//! | [`errand`] | system calls on disks that may not answer, by threads that may be given up |
//! | [`bell`] | wakes a sleeping side: the cache's manager, an engine's loop, the control side |
//! | [`cache`] | the one copy in memory, read ahead, lent to many |
//!
//! A store is a directory. `docs/ref/store-format.md` describes it byte by byte.
#![deny(unsafe_code)]

pub mod bell;
pub mod cache;
pub mod check;
mod crcs;
pub mod disk;
pub mod errand;
pub mod error;
pub mod format;
pub mod index;
pub mod ingest;
pub mod inspect;
pub mod members;
pub mod meta;
pub mod packet_size;
pub mod repair;
pub mod rows;
pub mod scrub;
pub mod sums;
pub mod volume;

pub use error::StoreError;
