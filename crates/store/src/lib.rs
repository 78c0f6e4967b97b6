//! From a title on disk to a lease in memory.
//!
//! | module | holds |
//! | --- | --- |
//! | [`mod@format`] | the bytes of every file in a store: frame, superblock, manifest, index, metadata |
//! | [`index`] | [`index::TitleIndex`]: time to packet, random access points, clock pieces, PIDs |
//! | [`meta`] | [`meta::MetaFile`]: the stored sums and times, one file per packet size |
//! | [`sums`] | the range sum index: the sum of any range of bytes, for every packet size at once |
//! | [`packet_size`] | the packet sizes that have names |
//! | [`members`] | the directories of a volume's members, and which of them are trusted |
//! | [`subtitles`] | text that is shown with pictures: read, and kept as WebVTT |
//! | [`stripes`] | where the units of a title's stripes lie on the members of its volume |
//! | [`transform`] | a title's packets changed when an extent is filled |
//! | [`volume`] | [`volume::Volume`]: titles come in whole, are found, are removed; nothing is ever half visible |
//! | [`check`] | `fsck`: every promise of the format, one function each |
//! | [`repair`] | rebuilds missing data of a member from the others |
//! | [`scrub`] | every byte read, silent corruption found and repaired |
//! | [`inspect`] | every structure on disk as text and as JSON |
//! | [`ingest`] | a title as people have it becomes a title |
//! | [`trick`] | titles for fast forward, rewind and slow motion, made of another title |
//! | [`disk`] | every operation that must survive a power cut, and readers that fail on order |
//! | [`blocking`] | system calls on disks that may not answer, by threads that may be given up |
//! | [`bits`], [`sps`] | bits of pictures' headers, and what H.264's sequence parameter sets say first |
//! | [`bell`] | wakes a sleeping side: the cache's manager, an engine's loop, the control side |
//! | [`cache`] | the one copy in memory, read ahead, lent to many |
//!
//! A store is a directory. `docs/ref/store-format.md` describes it byte by byte.
#![deny(unsafe_code)]

pub mod bell;
pub mod bits;
pub mod blocking;
pub mod cache;
pub mod check;
mod crcs;
pub mod disk;
pub mod error;
pub mod format;
pub mod index;
pub mod ingest;
pub mod inspect;
pub mod limits;
pub mod members;
pub mod meta;
pub mod packet_size;
pub mod repair;
pub mod scrub;
pub mod sps;
pub mod stripes;
pub mod subtitles;
pub mod sums;
pub mod transform;
pub mod trick;
mod ts_write;
pub mod volume;

pub use error::StoreError;
