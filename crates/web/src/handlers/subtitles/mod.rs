//! Subtitles: their playlists and segments, and whole files.

mod answer;
mod cues;
mod files;

pub(crate) use self::answer::{answer, listed};
pub(crate) use self::files::{address, put, remove, whole};
