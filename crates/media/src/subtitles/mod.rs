//! Subtitles that are text: SubRip, ASS/SSA and WebVTT are read, and kept as WebVTT.
//!
//! The input is untrusted: every length is bounded and times are checked. Of the markup, only
//! italics, bold, underline and positions on the screen are kept. Text is escaped, so that players
//! do not interpret it as markup.
//!
//! ```text
//!   bytes ─► decode ─► read (SubRip, WebVTT) or ass ─► payload ─► Cue ─► WebVTT, canonical
//!            UTF-8      times, text                     escaped text
//! ```
//!
//! | file | does |
//! | --- | --- |
//! | `decode` | the characters of a file, whatever encoding it has |
//! | `read` | SubRip and WebVTT |
//! | `ass` | ASS and SSA |
//! | `payload` | the text of a cue with the markup that stays |
//! | `label` | labels of tracks: language, forced, for the hard of hearing |

mod ass;
mod decode;
mod label;
mod payload;
mod read;

use std::fmt::Write;

use millrace_core::limits::subtitles::{MAX_SUBTITLE_SOURCE_BYTES, MAX_SUBTITLE_TRACK_BYTES};
use millrace_core::units::Count;

pub use label::{NotALabel, SubtitleLabel, UNKNOWN_LANGUAGE};

use crate::limits::{MAX_CUES, MAX_SUBTITLE_NAME_BYTES};

/// Text that is shown for some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cue {
    /// From when on, in milliseconds of the title.
    pub start_ms: u64,
    /// Until when; later than the start.
    pub end_ms: u64,
    /// Cue settings of WebVTT: where it stands on the screen. Often empty.
    pub settings: String,
    /// The payload as WebVTT has it: escaped, without an empty line.
    pub payload: String,
}

/// Why a file gave no subtitles.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubtitleError {
    /// The file is too long to be read.
    #[error(
        "subtitles: the file has {bytes} bytes, allowed are {most}; remove embedded fonts and pictures from it"
    )]
    SourceTooLong {
        /// Its length.
        bytes: u64,
        /// The limit.
        most: usize,
    },
    /// The text is too long to be kept.
    #[error(
        "subtitles: the text has more than {most} bytes as WebVTT; split the file, or remove typesetting from it"
    )]
    TextTooLong {
        /// The limit.
        most: usize,
    },
    /// There is no cue in it.
    #[error("subtitles: no cue found; SubRip, ASS/SSA and WebVTT are read")]
    NoCues,
}

/// Cues of a track, in the order in which they begin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subtitles {
    /// At least one.
    pub cues: Vec<Cue>,
    /// Notes for the operator about cues left out and guesses.
    pub notes: Vec<String>,
}

/// A cue as a file has it: its times may make no sense.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct RawCue {
    start_ms: u64,
    end_ms: u64,
    settings: String,
    payload: String,
    is_cut: bool,
}

impl Subtitles {
    /// Reads a file; its content decides the format. Times are shifted by `shift_ms`, and cues that
    /// end before the beginning are left out.
    ///
    /// # Errors
    /// If there is no cue in it, or it is too long.
    pub fn read(bytes: &[u8], shift_ms: i64) -> Result<Self, SubtitleError> {
        if bytes.len() > MAX_SUBTITLE_SOURCE_BYTES {
            let (bytes, most) = (bytes.len() as u64, MAX_SUBTITLE_SOURCE_BYTES);
            return Err(SubtitleError::SourceTooLong { bytes, most });
        }
        let (text, note) = decode::text(bytes);
        let raw = if ass::is_ass(&text) { ass::read(&text) } else { read::read(&text) };
        let mut notes: Vec<String> = note.into_iter().map(str::to_owned).collect();
        Self::checked(raw, shift_ms, &mut notes).map(|cues| Self { cues, notes })
    }

    fn checked(raw: Vec<RawCue>, shift_ms: i64, notes: &mut Vec<String>) -> Result<Vec<Cue>, SubtitleError> {
        let (mut without_time, mut cut) = (0, 0);
        let mut cues = Vec::new();
        for RawCue { start_ms, end_ms, settings, payload, is_cut } in raw {
            if end_ms <= start_ms {
                without_time += 1;
                continue;
            }
            let moved = |ms: u64| ms.saturating_add_signed(shift_ms);
            let (start_ms, end_ms) = (moved(start_ms), moved(end_ms));
            if payload.is_empty() || end_ms <= start_ms {
                continue;
            }
            cut += u64::from(is_cut);
            cues.push(Cue { start_ms, end_ms, settings, payload });
        }
        cues.sort_by_key(|cue| (cue.start_ms, cue.end_ms));
        // Layers of typesetting often show the same text twice.
        cues.dedup();
        if cues.len() > MAX_CUES {
            notes.push(format!(
                "{} left out: a track has at most {MAX_CUES}",
                Count((cues.len() - MAX_CUES) as u64, "cue")
            ));
            cues.truncate(MAX_CUES);
        }
        if without_time > 0 {
            notes
                .push(format!("{} left out: the end comes before the beginning", Count(without_time, "cue")));
        }
        if cut > 0 {
            notes.push(format!("text cut in {}: too long", Count(cut, "cue")));
        }
        if cues.is_empty() {
            return Err(SubtitleError::NoCues);
        }
        Ok(cues)
    }

    /// The whole as a WebVTT file.
    ///
    /// # Errors
    /// If it would be too long to be kept.
    pub fn to_webvtt(&self) -> Result<String, SubtitleError> {
        let mut text = String::from("WEBVTT\n\n");
        for cue in &self.cues {
            write_cue(cue, &mut text);
            if text.len() > MAX_SUBTITLE_TRACK_BYTES {
                return Err(SubtitleError::TextTooLong { most: MAX_SUBTITLE_TRACK_BYTES });
            }
        }
        Ok(text)
    }
}

/// Writes a cue with the empty line behind it.
pub fn write_cue(cue: &Cue, text: &mut String) {
    let Cue { start_ms, end_ms, settings, payload } = cue;
    let space = if settings.is_empty() { "" } else { " " };
    // Writing into a string does not fail.
    let _ = writeln!(text, "{} --> {}{space}{settings}\n{payload}\n", time(*start_ms), time(*end_ms));
}

/// A time in milliseconds as WebVTT writes it.
fn time(ms: u64) -> String {
    format!("{:02}:{:02}:{:02}.{:03}", ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60, ms % 1000)
}

/// A name for people without what would mean something to playlists or terminals; `None` if nothing is left.
pub fn clean_name(name: &str) -> Option<String> {
    let mut clean: String =
        name.chars().map(|letter| if letter.is_control() || letter == '"' { ' ' } else { letter }).collect();
    while clean.len() > MAX_SUBTITLE_NAME_BYTES {
        clean.pop();
    }
    let clean = clean.split_whitespace().collect::<Vec<_>>().join(" ");
    (!clean.is_empty()).then_some(clean)
}

#[cfg(test)]
#[path = "subtitles_tests.rs"]
mod tests;
