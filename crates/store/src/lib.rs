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
//! | `member_set` | sets of members, and of positions in a stripe |
//! | [`stripes`] | where the units of a title's stripes lie on the members of its volume |
//! | [`transform`] | a title's packets changed when an extent is filled |
//! | [`volume`] | [`volume::Volume`]: titles come in whole, are found, are removed; nothing is ever half visible |
//! | [`check`] | `fsck`: every promise of the format, one function each |
//! | `dirs`, `naming` | the names in a store directory, and the names of titles |
//! | `grid` | some stripes in memory, restored by the code where data is missing or wrong |
//! | [`repair`] | rebuilds missing data of a member from the others |
//! | [`scrub`] | every byte read, silent corruption found and repaired |
//! | [`inspect`] | every structure on disk as text and as JSON |
//! | [`pictures`] | posters and sheets of small pictures, kept beside the titles |
//! | [`disk`] | every operation that must survive a power cut, and readers that fail on order |
//! | [`blocking`] | system calls on disks that may not answer, by threads that may be given up |
//! | [`bell`] | wakes a sleeping side: the cache's manager, an engine's loop, the control side |
//! | [`cache`] | the one copy in memory, read ahead, lent to many |
//! | `sim` | with the feature of this name: replacements on the thread of a simulation |
//!
//! A store is a directory. `docs/ref/store-format.md` describes it byte by byte.
//!
//! ## Where to read on
//!
//! | topic | read |
//! | --- | --- |
//! | from disk to memory | `crates/store/src/cache/mod.rs` |
//! | kinds of titles, and the place for another | `docs/design/0015-sources.md`, `crates/store/src/cache/source.rs` |
//! | transformations | `docs/design/0028-transformations.md`, `crates/store/src/transform/mod.rs`, `crates/store/src/cache/derived.rs` |
//! | the place for a live source | `docs/design/0021-growing-extents.md`, `crates/store/src/cache/live.rs` |
//! | files on disk | `docs/ref/store-format.md`, `millrace inspect` |
//! | places of a stripe's units | `crates/store/src/stripes.rs` |
//! | loss of a disk | `docs/design/0010-members.md`, `crates/store/src/cache/stripes/`, `crates/store/src/cache/health.rs` |
//! | hanging disks | `crates/store/src/blocking.rs` |
//! | posters and pictures for seeking | `docs/design/0042-pictures.md`, `crates/store/src/pictures/mod.rs`, `crates/make/src/pictures/mod.rs`, `crates/server/src/cmds/serve/pictures.rs`, `crates/web/src/handlers/pictures.rs` |
//! | subtitles as text | `docs/design/0044-subtitles.md`, `crates/media/src/subtitles/mod.rs`, `crates/ts/src/teletext/mod.rs`, `crates/web/src/subtitles/mod.rs`; where they come from: `crates/make/src/ingest/subtitles.rs`, `crates/server/src/library/sidecars.rs` |
#![deny(unsafe_code)]

pub mod bell;
pub mod blocking;
pub mod cache;
pub mod check;
mod crcs;
mod dirs;
pub mod disk;
pub mod error;
pub mod format;
mod grid;
pub mod index;
pub mod inspect;
pub mod limits;
mod member_set;
pub mod members;
pub mod meta;
mod naming;
pub mod packet_size;
pub mod pictures;
pub mod repair;
pub mod scrub;
#[cfg(feature = "sim")]
pub mod sim;
pub mod stripes;
pub mod sums;
pub mod transform;
pub mod volume;

pub use error::StoreError;
