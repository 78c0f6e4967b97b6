//! Channels: titles that follow each other in one transport stream. The splice itself has no I/O and no clock; its time is media time.
//!
//! ```text
//!   playlist ──► SpliceSource ──► Splicer: head, PIDs, tables, clock, counters ──► runs: packets with their times
//! ```
//!
//! | module | holds |
//! | --- | --- |
//! | [`playlist`] | M3U files |
//! | [`source`] | the packets of a title of a store, or of a file |
//! | `head` | the beginning of a title: program, clock, first time stamps |
//! | `program` | PIDs of the splice, and its tables |
//! | [`splicer`] | the splice |
//!
//! `docs/design/0050-channels.md`.

pub(crate) mod head;
pub mod playlist;
pub(crate) mod program;
pub mod source;
pub mod splicer;

pub use playlist::{PlaylistError, PlaylistItem, parse_playlist};
pub use source::{OpenItemError, SpliceSource};
pub use splicer::{SpliceError, SpliceRun, SplicedTitle, Splicer};
