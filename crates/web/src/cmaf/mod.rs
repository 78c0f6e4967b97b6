//! Titles as CMAF (ISO/IEC 23000-19): fragmented MP4 made of the stored transport stream, pictures and each sound apart, listed by HLS.
//!
//! Browsers play H.265 in no other form, and choose among audio tracks only where these are
//! separate. Nothing is stored: a segment is made on request, all tracks of it in one pass over its
//! bytes, and kept in memory for the next request.
//!
//! ```text
//!   TS packets ─► demux ─► video, audio ─► make ─► boxes ─► cache ─► answer
//!                 PES      pictures,       samples of       for all who
//!                          frames          one segment      ask for it
//! ```
//!
//! | file | does |
//! | --- | --- |
//! | `plan` | a title's tracks and when its segments begin; which picture and which sound is in which |
//! | `tracks` | maps the streams of each part of a title to tracks |
//! | `join` | timing between the parts of a title |
//! | `make` | one segment of all tracks |
//! | `boxes` | writes the file format |
//! | `cache` | plans and segments in memory |
//!
//! Pictures and audio frames come from `elementary`. Requests are answered by `handlers/cmaf`.

pub(crate) mod boxes;
mod cache;
mod join;
pub(crate) mod make;
pub(crate) mod plan;
mod tracks;

pub(crate) use cache::{CachedPlan, CmafCache, CmafSegments};
pub(crate) use plan::{CmafPlan, CmafTrack, PlanError};
