//! The cues of a segment, made from the cached results for it and for the segments around it.

use std::ops::Range;
use std::sync::Arc;

use millrace_core::limits::subtitles::{LONGEST_CUE_TICKS, MAX_SUBTITLE_TRACK_BYTES};
use millrace_core::memory::scaled;
use millrace_media::subtitles::{Cue as TextCue, Subtitles};
use millrace_store::volume::{SubtitleTrack, TitleInfo};
use millrace_ts::teletext::{Cue, PageContent, cues};

use crate::context::ServerContext;
use crate::limits::{
    LEAST_SUBTITLES_BYTES, MADE_READ_BYTES, MAX_SUBTITLED_TITLES, SUBTITLE_TEXTS_BYTES, SUBTITLES_CACHE_BYTES,
};
use crate::making::{NotMade, making};
use crate::memory::Hold;
use crate::site::SiteError;
use crate::subtitles::ShownPages;
use crate::subtitles::shown::pages_in;
use crate::subtitles::title::{Subtitled, look};
use crate::subtitles::vtt::TimedText;

/// The store's name for such a stream.
const TELETEXT: &str = "teletext";

/// The teletext pages and times of a title, examined at first use. `None` if it has no subtitles or
/// its times are not known. `has_text`: text is stored with it.
pub(super) async fn subtitled(
    shared: &Arc<ServerContext>,
    title: &TitleInfo,
    has_text: bool,
) -> Result<Option<Arc<Subtitled>>, SiteError> {
    if !has_text && !title.streams.iter().any(|stream| stream.codec == TELETEXT) {
        return Ok(None);
    }
    let kept = &shared.subtitles.titles;
    let cell = kept.cell(title.id);
    let title = title.clone();
    let work = move |shared: &ServerContext| {
        let site = &*shared.site;
        let title = site.title(&title.name).filter(|now| now.id == title.id).ok_or(SiteError::NoTitle)?;
        Ok(look(site, &title)?.map(Arc::new))
    };
    let found = cell.get_or_try_init(|| shared.reading(work)).await.cloned();
    drop(cell);
    kept.trim(MAX_SUBTITLED_TITLES, |_| 1);
    found
}

/// Returns the content of the pages that come in a segment.
async fn shown(
    shared: &Arc<ServerContext>,
    title: &TitleInfo,
    of: &Arc<Subtitled>,
    number: usize,
) -> Result<ShownPages, NotMade> {
    let kept = &shared.subtitles.shown;
    let cell = kept.cell((title.id, number));
    let (of, name) = (Arc::clone(of), title.name.clone());
    // It reads one piece at a time.
    let bytes = MADE_READ_BYTES as u64;
    let work = move |shared: &ServerContext, _room: Hold| {
        Ok(pages_in(&of, &mut *shared.site.open(&name)?, number)?.into())
    };
    let found = cell.get_or_try_init(|| making(shared, bytes, work)).await.cloned();
    drop(cell);
    kept.trim(scaled(SUBTITLES_CACHE_BYTES), weight);
    found
}

fn weight(all: &ShownPages) -> usize {
    let of = |shown: &PageContent| 64 + shown.lines.iter().map(|line| 24 + line.len()).sum::<usize>();
    all.iter().flatten().map(of).sum::<usize>().max(LEAST_SUBTITLES_BYTES)
}

/// The cues of a track that are shown at some time of `period`, which is about that of a segment. They are the same whichever segment is asked for: players get one that
/// is in two segments twice, and know it by its times.
pub(super) async fn page_cues(
    shared: &Arc<ServerContext>,
    title: &TitleInfo,
    of: &Arc<Subtitled>,
    track: usize,
    number: usize,
    period: Range<i64>,
) -> Result<Vec<Cue>, NotMade> {
    let part = of.part(number);
    let mut list = shown(shared, title, of, number).await?[track].clone();
    // Pages come before or behind their time: by less than the segment next to it.
    for before in (part.start..number).rev() {
        let is_known = list.first().is_some_and(|first| first.time <= period.start);
        let is_over = of.time(before + 1) < period.start - LONGEST_CUE_TICKS.cast_signed();
        if before + 1 < number && (is_known || is_over) {
            break;
        }
        list.splice(0..0, shown(shared, title, of, before).await?[track].iter().cloned());
    }
    for after in number + 1..part.end {
        let open = list.last().filter(|last| !last.lines.is_empty() && last.time < period.end);
        if after > number + 1 && open.is_none_or(|last| last.gone() < of.time(after)) {
            break;
        }
        list.extend(shown(shared, title, of, after).await?[track].iter().cloned());
    }
    let mut found = cues(&list, of.time(part.end));
    found.retain(|cue| cue.start < period.end && cue.end > period.start);
    Ok(found)
}

/// The cues of a track that are visible during `period`, in ticks of the title.
pub(super) async fn text_cues(
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
    let cues: Arc<[TextCue]> =
        cell.get_or_try_init(|| making(shared, MAX_SUBTITLE_TRACK_BYTES as u64, work)).await?.clone();
    drop(cell);
    kept.trim(SUBTITLE_TEXTS_BYTES, |cues| {
        let of = |cue: &TextCue| 96 + cue.settings.len() + cue.payload.len();
        cues.iter().map(of).sum::<usize>().max(LEAST_SUBTITLES_BYTES)
    });
    let ticks = |ms: u64| i64::try_from(ms.saturating_mul(90)).unwrap_or(i64::MAX);
    let timed = cues.iter().map(|TextCue { start_ms, end_ms, settings, payload }| TimedText {
        start: ticks(*start_ms),
        end: ticks(*end_ms),
        settings: settings.clone(),
        payload: payload.clone(),
    });
    Ok(timed.filter(|cue| cue.start < period.end && cue.end > period.start).collect())
}
