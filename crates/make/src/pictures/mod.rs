//! Pictures of a title for people who look for something in it: a poster, and a sheet of small ones for seeking.
//!
//! ```text
//!   index: where a decoder can start ─► choose, one in so many seconds ─► the bytes of each picture ─► a stream of one picture a second ─► ffmpeg ─► two JPEGs
//! ```
//!
//! Only pictures that can be decoded alone are read of the title, a hundred at most. The result is
//! kept in a directory of its own (`millrace_store::pictures`).
//!
//! | file | does |
//! | --- | --- |
//! | `stills` | finds the pictures |
//! | `draw` | has ffmpeg make JPEGs of them |

mod draw;
mod stills;

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use millrace_store::StoreError;
use millrace_store::pictures::{PictureFiles, Pictures};
use millrace_store::volume::{MediaReader, TitleInfo, Volume};

use crate::ingest::Sandbox;
use crate::limits::pictures::{POSTER_FROM_PERMILLE, POSTER_TO_PERMILLE};

use self::stills::Still;

/// Why there are none.
#[derive(Debug, thiserror::Error)]
pub enum PicturesError {
    /// The title has none that can be decoded alone.
    #[error("the title has no pictures that a decoder can start with")]
    NoPictures,
    /// ffmpeg cannot be started.
    #[error("pictures need the program ffmpeg, which cannot be started: {0}")]
    NoFfmpeg(io::Error),
    /// ffmpeg has failed, or wanted more than it may have.
    #[error("ffmpeg cannot make its pictures: {0}")]
    Ffmpeg(String),
    /// The caller asked to stop.
    #[error("given up")]
    Cancelled,
    /// The title cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The directory of the pictures cannot be written to, for this title or any other.
    #[error(transparent)]
    NotKept(StoreError),
}

/// Makes the pictures of a title. Files that ffmpeg reads lie among `files` meanwhile. `rest` is called between two steps.
///
/// # Errors
/// Why there are none; nothing is left then.
pub fn make(
    volume: &Volume,
    title: &TitleInfo,
    ffmpeg: &Path,
    sandbox: Sandbox,
    files: &PictureFiles,
    cancel: &AtomicBool,
    rest: &mut dyn FnMut(),
) -> Result<Pictures, PicturesError> {
    let mut reader = MediaReader::open(volume, title.id)?;
    let index = std::sync::Arc::clone(&reader.files().index);
    let duration_ms = index.duration().0 / 90;
    let (mut times_ms, mut best) = (Vec::new(), None::<Still>);
    let artist = draw::Artist { ffmpeg, sandbox, files, id: title.id, cancel };
    let mut film = None;
    for point in stills::choose(&index) {
        rest();
        if cancel.load(Ordering::Relaxed) {
            return Err(PicturesError::Cancelled);
        }
        let Some(still) = stills::read(&mut reader, &index, point)? else { continue };
        let film = match &mut film {
            Some(film) => film,
            none => none.insert(artist.film(still.kind)?),
        };
        // Times of joined recordings are estimates at their seams.
        let is_later = times_ms.last().is_none_or(|last| *last < still.time_ms);
        if !is_later || still.kind != film.kind() {
            continue;
        }
        if !film.push(&still)? {
            break;
        }
        times_ms.push(still.time_ms);
        if best.as_ref().is_none_or(|best| worth(&still, duration_ms) > worth(best, duration_ms)) {
            best = Some(still);
        }
    }
    let (film, best) = film.zip(best).ok_or(PicturesError::NoPictures)?;
    let sheet = artist.sheet(film, times_ms.len())?;
    rest();
    let mut film = artist.film(best.kind)?;
    film.push(&best)?;
    let poster = artist.poster(film)?;
    Ok(Pictures::new(times_ms, duration_ms, poster, sheet))
}

/// How good a poster it is: one not far from the beginning, with much in it, is neither a title card nor black.
fn worth(still: &Still, duration_ms: u64) -> (bool, usize) {
    let permille = still.time_ms * 1000 / duration_ms.max(1);
    ((POSTER_FROM_PERMILLE..=POSTER_TO_PERMILLE).contains(&permille), still.bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worth_is_highest_for_fullest_still_near_start() {
        let still = |time_ms, bytes: usize| Still { time_ms, kind: 0x1b, bytes: vec![0; bytes] };
        let best = |stills: &[Still]| {
            stills.iter().max_by_key(|still| worth(still, 1000)).map(|still| still.time_ms)
        };
        assert_eq!(
            best(&[still(0, 900), still(100, 5), still(200, 50), still(300, 40), still(900, 700)]),
            Some(200)
        );
        assert_eq!(best(&[still(0, 1), still(999, 2)]), Some(999));
    }
}
