//! Formats of media: bytes in, meaning out, and back. No I/O, no clock.
//!
//! | module | holds |
//! | --- | --- |
//! | [`ts_packet`], [`psi`] | TS packets, PES headers, program tables of stored and ingested streams |
//! | [`codec`] | the codec and the audience of an elementary stream, from its descriptors |
//! | [`ts_write`] | packets of a transport stream, written |
//! | [`bits`], [`units`] | bits of headers, and units between start codes (annex B) |
//! | [`sps`], [`sei`], [`h264`] | parameter sets, supplemental information, slice headers of pictures |
//! | [`pce`] | program config elements of AAC |
//! | [`subtitles`] | subtitles that are text, kept as WebVTT |
//! | [`kinds`] | which files are media, by name and first bytes |
//!
//! `millrace-ts` has parsers of its own for packets, tables and time stamps. It judges the streams that
//! are made with these, so a shared parser would hide a fault in both.
//!
//! ## Where to read on
//!
//! | topic | read |
//! | --- | --- |
//! | subtitles as text | `docs/design/0044-subtitles.md`, `crates/media/src/subtitles/mod.rs` |
//! | pictures that can be decoded alone | `docs/design/0025-trick-titles.md`, `crates/media/src/h264.rs` |
#![forbid(unsafe_code)]

pub mod bits;
pub mod codec;
pub mod h264;
pub mod kinds;
pub mod limits;
pub mod pce;
pub mod psi;
pub mod sei;
pub mod sps;
pub mod subtitles;
pub mod ts_packet;
pub mod ts_write;
pub mod units;
