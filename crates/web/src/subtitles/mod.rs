//! Subtitles as WebVTT, listed by HLS (RFC 8216 section 3.5): text stored with a title, and pages
//! of teletext, which are converted when a player requests them.
//!
//! Teletext is not stored as text. One pass over the bytes of a segment finds its pages, which are
//! cached. A subtitle segment has the cues of its time; the segments around it supply the page that
//! was shown before, and the end of its last cue. Cuts are those of the transport stream's
//! segments, and of CMAF's.
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
//! | `shown` | the content of the pages that come in a segment |
//! | `kept` | both in memory, each made once; the cues of a segment |
//! | `text` | tracks stored as WebVTT, and their cues |
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
pub(crate) use kept::SubtitleCache;
pub(crate) use put::{address, put, remove, whole};
pub(crate) use text::{name_of, owner};
