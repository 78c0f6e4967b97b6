//! HTTP Live Streaming (RFC 8216): titles as segments that are slices of their transport stream.
//!
//! Nothing is written: a segment is a range of the stored bytes, from one access point to a later one, sent by an engine as any other range, with
//! a PAT and a PMT in front (section 3.2). Where the cuts are follows from the title's index alone, so every start of the program cuts
//! alike, and all renditions of a title, whose access points are at the same times, are cut at the same times.
//!
//! | file | does |
//! | --- | --- |
//! | `segments` | where the cuts are |
//! | `playlist` | writes media playlists |
//! | `master` | writes master playlists |
//! | `tables` | finds PAT and PMT among TS packets |
//! | `audio` | audio renditions in groups, one for each level of decoder support |
//! | `language` | languages as tags and as names |
//! | `codecs` | `CODECS`, `RESOLUTION`, `FRAME-RATE`, `VIDEO-RANGE` from the first bytes of the streams |
//! | `first_pictures` | whether a segment can be decoded from its first picture, and which captions it has |
//! | `looked_at` | caches the information found about titles |
//! | `text` | the text of a playlist, as it is cached and sent |
//!
//! Requests are answered by `handlers/hls.rs` and `handlers/master.rs`.
//!
//! Left out: I-frame playlists, because the index records where pictures that stand alone begin,
//! not where they end; groups of audio, because a title's audio is in the same transport stream as
//! its pictures. `cmaf` has both.

pub(crate) mod audio;
pub(crate) mod codecs;
mod first_pictures;
pub(crate) mod language;
mod looked_at;
pub(crate) mod master;
pub(crate) mod playlist;
pub(crate) mod segments;
mod tables;
pub(crate) mod text;

pub(crate) use looked_at::{LookedAt, TitleAnalysis};

#[cfg(test)]
mod hls_tests;
