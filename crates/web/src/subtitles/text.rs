//! Subtitles stored with a title as WebVTT: the list of tracks, and their cached cues.

use std::ops::Range;
use std::sync::Arc;

use millrace_core::limits::subtitles::MAX_SUBTITLE_TRACK_BYTES;
use millrace_media::subtitles::{Cue, Subtitles};
use millrace_store::volume::{SubtitleTrack, TitleInfo};

use super::vtt::TimedText;
use crate::cmaf::{NotMade, making};
use crate::limits::{LEAST_SUBTITLES_BYTES, SUBTITLE_TEXTS_BYTES};
use crate::memory::Hold;
use crate::shared::ServerContext;
use crate::site::{Site, SiteError};

/// First number of stored tracks in addresses; teletext pages use 100 to 899.
const FIRST_NUMBER: u16 = 1000;

/// The title that stores the subtitles of `title`: itself or, for a rendition, the title that it
/// was made from.
pub(crate) fn owner(site: &dyn Site, title: &TitleInfo) -> TitleInfo {
    let parent = title.derived.filter(|derived| derived.rendition().is_some());
    let found = parent.and_then(|derived| {
        let (name, _) = title.name.rsplit_once('@')?;
        site.title(name).filter(|found| found.id == derived.parent)
    });
    found.unwrap_or_else(|| title.clone())
}

/// The tracks of a title, each with its number.
pub(super) fn tracks(owner: &TitleInfo) -> impl Iterator<Item = (u16, &SubtitleTrack)> {
    (FIRST_NUMBER..).zip(&owner.subtitles)
}

/// Display name: the name from its source or else the language, and the kind.
pub(crate) fn name_of(track: &SubtitleTrack) -> String {
    let language = track.label.language().unwrap_or("subtitles");
    let mut name = track.name.clone().unwrap_or_else(|| language.to_owned());
    for (is_so, kind) in [(track.label.is_forced, ", forced"), (track.label.is_sdh, ", hearing impaired")] {
        name.push_str(if is_so { kind } else { "" });
    }
    name
}

/// The part of the file name that changes with the text.
pub(super) fn version_of(track: &SubtitleTrack) -> &str {
    let stem = track.file.strip_suffix(".vtt").unwrap_or(&track.file);
    stem.rsplit_once('-').map_or(stem, |(_, hash)| hash)
}

/// The cues of a track that are visible during `period`, in ticks of the title.
pub(super) async fn cues_of(
    shared: &Arc<ServerContext>,
    owner: &TitleInfo,
    track: &SubtitleTrack,
    period: Range<i64>,
) -> Result<Vec<TimedText>, NotMade> {
    let kept = &shared.subtitles.texts;
    let cell = kept.cell((owner.id, track.file.clone()));
    let (owner, file) = (owner.clone(), track.file.clone());
    let work = move |shared: &ServerContext, _room: Hold| {
        let text = shared.site.subtitles(&owner, &file)?;
        let read = Subtitles::read(text.as_bytes(), 0);
        Ok(read.map_err(|error| SiteError::Unreadable(format!("{file}: {error}")))?.cues.into())
    };
    let cues: Arc<[Cue]> =
        cell.get_or_try_init(|| making(shared, MAX_SUBTITLE_TRACK_BYTES as u64, work)).await?.clone();
    drop(cell);
    kept.trim(SUBTITLE_TEXTS_BYTES, |cues| {
        let of = |cue: &Cue| 96 + cue.settings.len() + cue.payload.len();
        cues.iter().map(of).sum::<usize>().max(LEAST_SUBTITLES_BYTES)
    });
    let ticks = |ms: u64| i64::try_from(ms.saturating_mul(90)).unwrap_or(i64::MAX);
    let timed = cues.iter().map(|Cue { start_ms, end_ms, settings, payload }| TimedText {
        start: ticks(*start_ms),
        end: ticks(*end_ms),
        settings: settings.clone(),
        payload: payload.clone(),
    });
    Ok(timed.filter(|cue| cue.start < period.end && cue.end > period.start).collect())
}
