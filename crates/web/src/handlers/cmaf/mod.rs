//! Fragmented MP4: playlists, init segments and media segments.

mod answer;
mod made;

pub(crate) use self::answer::{CmafMasterEntries, TrackFile, media_playlist, offered, piece, rules, usable};
