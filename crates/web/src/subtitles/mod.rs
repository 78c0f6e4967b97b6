//! Subtitles as WebVTT, listed by HLS (RFC 8216 section 3.5): text stored with a title, and pages
//! of teletext, which are converted when a player requests them.
//!
//! Teletext is not stored as text. One pass over the bytes of a segment finds its pages, which are
//! cached. A subtitle segment has the cues of its time; the segments around it supply the page that
//! was shown before, and the end of its last cue. Cuts are those of the transport stream's
//! segments, and of CMAF's.
//!
//! ```text
//!   TS packets ─► demux        ─► teletext (crate ts) ─► shown ─► kept ─► cues ─► vtt ─► answer
//!                                                        pages of one     of the segments
//!                                                        segment          around
//! ```
//!
//! | file | is about |
//! | --- | --- |
//! | `title` | which pages a title has, when its segments begin, what their times are among time stamps |
//! | `shown` | the content of the pages that come in a segment |
//! | `text` | tracks stored as WebVTT |
//! | `vtt` | writes WebVTT |
//! | `cache` | all of it in memory |
//!
//! Requests are answered by `handlers/subtitles`.

mod cache;
pub(crate) mod shown;
pub(crate) mod text;
pub(crate) mod title;
pub(crate) mod vtt;

pub(crate) use cache::{ShownPages, SubtitleCache};
