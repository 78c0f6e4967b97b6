//! Subtitles as WebVTT, listed by HLS (RFC 8216 section 3.5): pages of teletext become text when a player asks for them.
//!
//! Nothing is stored: what the pages show that come in a segment is found in one pass over its bytes and kept in memory. A segment of subtitles has the cues of its
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
//! | `vtt` | writes them |
//! | `answer` | answers requests |

mod answer;
mod kept;
mod shown;
mod title;
mod vtt;

pub(crate) use answer::{answer, listed};
pub(crate) use kept::Kept;
