//! Makes titles: from files and uploads, and from other titles. Everything here writes to a store, and
//! whatever runs ffmpeg is here.
//!
//! | module | holds |
//! | --- | --- |
//! | [`channel`] | several titles become one stream without an end |
//! | [`confine`] | the server itself may do no more than its settings need |
//! | [`ingest`] | a title as people have it becomes a title |
//! | [`ladder`] | a title and its renditions from one film |
//! | [`trick`] | titles for fast forward, rewind and slow motion, made of another title |
//! | [`pictures`] | a poster and small pictures for seeking, drawn by ffmpeg |
//! | [`sidecar`] | files of subtitles beside a film |
//!
//! ## Where to read on
//!
//! | topic | read |
//! | --- | --- |
//! | the pass over a stream | `crates/make/src/ingest/mod.rs` |
//! | least privilege of the server | `docs/design/0054-least-privilege.md`, `crates/make/src/confine.rs` |
//! | making trick titles | `crates/make/src/trick/mod.rs`, `docs/design/0025-trick-titles.md` |
//! | ladders of renditions | `crates/make/src/ladder/mod.rs`, `docs/design/0029-ladders.md` |
//! | posters and pictures for seeking | `docs/design/0042-pictures.md`, `crates/make/src/pictures/mod.rs` |
//! | splicing titles for channels | `crates/make/src/channel/mod.rs`, `docs/design/0050-channels.md` |
//! | subtitles of a film | `crates/make/src/ingest/subtitles.rs`, `docs/design/0044-subtitles.md` |
#![forbid(unsafe_code)]

pub mod channel;
pub mod confine;
pub mod ingest;
pub mod ladder;
pub mod limits;
pub mod live;
pub mod pictures;
pub mod sidecar;
pub mod trick;
