//! Subtitles in memory.

use std::sync::Arc;

use millrace_core::ids::TitleId;
use millrace_media::subtitles::Cue;
use millrace_ts::teletext::PageContent;
use tokio::sync::Semaphore;

use super::title::Subtitled;
use crate::limits::MAX_SUBTITLE_UPLOADS;
use crate::recent::Recent;

/// By track, the content shown and its start times.
pub(crate) type ShownPages = Arc<[Vec<PageContent>]>;

/// Caches for subtitles.
#[derive(Debug)]
pub(crate) struct SubtitleCache {
    pub(crate) titles: Recent<TitleId, Option<Arc<Subtitled>>>,
    pub(crate) shown: Recent<(TitleId, usize), ShownPages>,
    /// The cues of stored tracks, by title and file.
    pub(crate) texts: Recent<(TitleId, String), Arc<[Cue]>>,
    /// Limits concurrent uploads of subtitles, whose bytes are in memory.
    pub(crate) uploads: Semaphore,
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
