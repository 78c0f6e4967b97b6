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
//! | `codecs` | `CODECS`, `RESOLUTION`, `FRAME-RATE` from the first bytes of the streams |
//! | `looked_at` | what has been found out of titles, kept |
//! | `answer` | answers requests |
//!
//! Left out: I-frame playlists, because the index says where pictures that stand alone begin, not where they end; groups of audio, because a
//! title's sounds are in the same transport stream as its pictures. `cmaf` has both.

pub(crate) mod answer;
mod codecs;
mod looked_at;
pub(crate) mod master;
pub(crate) mod playlist;
pub(crate) mod segments;
mod tables;

pub(crate) use answer::{master_playlist, media_playlist, segment};
pub(crate) use looked_at::LookedAt;

#[cfg(test)]
mod hls_tests;
