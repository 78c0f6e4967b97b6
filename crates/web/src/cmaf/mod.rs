//! Titles as CMAF (ISO/IEC 23000-19): fragmented MP4 made of the stored transport stream, pictures and each sound apart, listed by HLS.
//!
//! Browsers play H.265 in no other form, and choose among audio tracks only where these are
//! separate. Nothing is stored: a segment is made on request, all tracks of it in one pass over its
//! bytes, and kept in memory for the next request.
//!
//! ```text
//!   TS packets ─► demux ─► video, audio ─► make ─► boxes ─► kept ─► answer
//!                 PES      pictures,       samples of       for all who
//!                          frames          one segment      ask for it
//! ```
//!
//! | file | does |
//! | --- | --- |
//! | `plan` | a title's tracks and when its segments begin; which picture and which sound is in which |
//! | `tracks` | maps the streams of each part of a title to tracks |
//! | `join` | timing between the parts of a title |
//! | `timeline` | the title's time of time stamps |
//! | `demux` | elementary streams out of TS packets |
//! | `video`, `audio` | pictures and audio frames, and the configuration for decoders |
//! | `make` | one segment of all tracks |
//! | `boxes` | writes the file format |
//! | `kept` | plans and segments in memory, each made once |
//! | `answer` | answers requests |

mod answer;
mod audio;
mod boxes;
mod demux;
mod join;
mod kept;
mod make;
mod plan;
mod timeline;
mod tracks;
mod video;

pub(crate) use answer::{
    CmafMasterEntries, TrackFile, media_playlist, not_made, offered, piece, rules, usable,
};
pub(crate) use boxes::Config;
pub(crate) use demux::{Demux, Elementary};
pub(crate) use kept::{CmafCache, NotMade, Planned, Recent, making};
pub(crate) use millrace_media::sei::{REGISTERED_DATA, payloads as sei_payloads};
pub(crate) use millrace_media::sps::Pictures;
pub(crate) use plan::{CmafPlan, Unsuitable, can_have, config_of, read};
pub(crate) use timeline::Timeline;
pub(crate) use video::{Syntax, units};
