//! Subtitles as WebVTT, listed by HLS (RFC 8216 section 3.5): text that is kept with a title, and pages of teletext, which become text when a player asks for them.
//!
//! Of teletext nothing is stored: what the pages show that come in a segment is found in one pass over its bytes and kept in memory. A segment of subtitles has the cues of its
//! time; what was shown before, and when its last cue ends, is found in the segments around it. Cuts are those of the transport stream's segments, and of CMAF's.
//!
//! ```text
//!   TS packets ─► demux (cmaf) ─► teletext (crate ts) ─► shown ─► kept ─► cues ─► vtt ─► answer
//!                                                        pages of one     of the segments
//!                                                        segment          around
//! ```
//!
//! | file | does |
//! | --- | --- |
//! | `title` | which pages a title has, when its segments begin, what their times are among time stamps |
//! | `shown` | what the pages show that come in a segment |
//! | `kept` | both in memory, each made once; the cues of a segment |
//! | `text` | tracks that are kept as WebVTT, and their cues |
//! | `vtt` | writes them |
//! | `answer` | answers requests for playlists and segments |
//! | `put` | tracks as whole files: read, uploaded, removed |

mod answer;
mod kept;
mod put;
mod shown;
mod text;
mod title;
mod vtt;

pub(crate) use answer::{answer, listed};
pub(crate) use kept::Kept;
pub(crate) use put::{address, put, remove, whole};
pub(crate) use text::{name_of, owner};
