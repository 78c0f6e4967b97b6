//! Caches the results for titles and segments, and makes the cues of a segment from the results for
//! it and for those around it.

use std::ops::Range;
use std::sync::Arc;

use millrace_core::ids::TitleId;
use millrace_core::limits::subtitles::LONGEST_CUE_TICKS;
use millrace_core::memory::scaled;
use millrace_media::subtitles::Cue as TextCue;
use millrace_store::volume::TitleInfo;
use millrace_ts::teletext::{Cue, PageContent, cues};
use tokio::sync::Semaphore;

use super::shown;
use super::title::{self, Subtitled};
use crate::cmaf::{NotMade, Recent, making};
use crate::limits::{
    LEAST_SUBTITLES_BYTES, MADE_READ_BYTES, MAX_SUBTITLE_UPLOADS, MAX_SUBTITLED_TITLES, SUBTITLES_CACHE_BYTES,
};
use crate::memory::Hold;
use crate::shared::ServerContext;
use crate::site::SiteError;

/// By track, the content shown and its start times.
type All = Arc<[Vec<PageContent>]>;

/// Caches for subtitles.
#[derive(Debug)]
pub(crate) struct SubtitleCache {
    titles: Recent<TitleId, Option<Arc<Subtitled>>>,
    shown: Recent<(TitleId, usize), All>,
    /// The cues of stored tracks, by title and file.
    pub(super) texts: Recent<(TitleId, String), Arc<[TextCue]>>,
    /// Limits concurrent uploads of subtitles, whose bytes are in memory.
    pub(super) uploads: Semaphore,
}

impl Default for SubtitleCache {
    fn default() -> Self {
        Self {
            titles: Recent::default(),
            shown: Recent::default(),
            texts: Recent::default(),
            uploads: Semaphore::new(MAX_SUBTITLE_UPLOADS),
        }
    }
}

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
        Ok(title::look(site, &title)?.map(Arc::new))
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
) -> Result<All, NotMade> {
    let kept = &shared.subtitles.shown;
    let cell = kept.cell((title.id, number));
    let (of, name) = (Arc::clone(of), title.name.clone());
    // It reads one piece at a time.
    let bytes = MADE_READ_BYTES as u64;
    let work = move |shared: &ServerContext, _room: Hold| {
        Ok(shown::shown(&of, &mut *shared.site.open(&name)?, number)?.into())
    };
    let found = cell.get_or_try_init(|| making(shared, bytes, work)).await.cloned();
    drop(cell);
    kept.trim(scaled(SUBTITLES_CACHE_BYTES), weight);
    found
}

fn weight(all: &All) -> usize {
    let of = |shown: &PageContent| 64 + shown.lines.iter().map(|line| 24 + line.len()).sum::<usize>();
    all.iter().flatten().map(of).sum::<usize>().max(LEAST_SUBTITLES_BYTES)
}

/// The cues of a track that are shown at some time of `period`, which is about that of a segment. They are the same whichever segment is asked for: players get one that
/// is in two segments twice, and know it by its times.
pub(super) async fn cues_of(
    shared: &Arc<ServerContext>,
    title: &TitleInfo,
    of: &Arc<Subtitled>,
    (track, number): (usize, usize),
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
