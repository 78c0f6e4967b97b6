//! The programme of each channel, with the titles that it plays.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use millrace_core::seam::Clock;
use millrace_core::time::{Instant, MEDIA_HZ};
use millrace_offload::clock::MonotonicClock;
use millrace_store::volume::TitleInfo;
use millrace_web::{ChannelGuide, GuideProgramme};

use crate::cast::schedule::ScheduledItem;
use crate::cast::{CastItem, ChannelReport};
use crate::day_time::unix_ms;
use crate::library::open_titles::OpenTitles;
use crate::limits::cast::GUIDE_KEPT_NS;
use crate::live::LiveTitles;

/// Makes the guide, and keeps it for a moment.
#[derive(Default)]
pub(super) struct GuideMaker {
    kept: Mutex<Option<KeptGuide>>,
    /// Held by the thread that makes a guide.
    making: Mutex<()>,
}

#[derive(Clone)]
struct KeptGuide {
    made: Instant,
    guide: Arc<[ChannelGuide]>,
}

impl GuideMaker {
    /// The programmes of all channels. Reads playlists.
    pub(super) fn guide(&self, live: &LiveTitles, titles: &OpenTitles) -> Arc<[ChannelGuide]> {
        let kept = self.kept();
        let _making = match (self.making.try_lock(), kept) {
            (Ok(making), _) => making,
            // Playlists may lie on a disk that hangs: only the first guide is waited for.
            (Err(_), Some(kept)) => return kept.guide,
            (Err(_), None) => self.making.lock().unwrap_or_else(PoisonError::into_inner),
        };
        let now = MonotonicClock.now();
        if let Some(kept) = self.kept().filter(|kept| now.ns_since(kept.made) < GUIDE_KEPT_NS) {
            return kept.guide;
        }
        let mut known = KnownItems { titles, items: HashMap::new(), by_source: None };
        let channels = live.all();
        let reports = channels.iter().filter_map(|channel| Some((channel.name(), channel.channel()?)));
        let guide: Arc<[_]> =
            reports.map(|(name, report)| channel_guide(name, &report, &mut known)).collect();
        let made = KeptGuide { made: now, guide: Arc::clone(&guide) };
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(made);
        guide
    }

    fn kept(&self) -> Option<KeptGuide> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn channel_guide(channel: &str, report: &ChannelReport, known: &mut KnownItems<'_>) -> ChannelGuide {
    let ChannelReport { schedule, skipped, .. } = report;
    let is_skipped = |item: &CastItem| skipped.iter().any(|(address, _)| *address == item.address);
    let upcoming = schedule.upcoming(&schedule.read(), unix_ms(), |item| {
        let known = known.find(item).filter(|_| !is_skipped(item))?;
        let length_ms = known.length_ms.or_else(|| schedule.length_ms(item));
        let length_ms = length_ms.or_else(|| item.length_s.map(|seconds| seconds * 1000));
        let display_name = item.display_name.clone().unwrap_or_else(|| known.display_name.clone());
        Some(((known.title.clone(), display_name), length_ms))
    });
    let programmes = upcoming.into_iter().map(|scheduled| {
        let ScheduledItem { item: (title, display_name), from_unix_ms, to_unix_ms } = scheduled;
        GuideProgramme { title, display_name, from_unix_ms, to_unix_ms }
    });
    ChannelGuide { channel: channel.to_owned(), programmes: programmes.collect() }
}

/// An item as far as it is known without opening it.
struct KnownItem {
    title: String,
    display_name: String,
    length_ms: Option<u64>,
}

/// Items that were looked up.
struct KnownItems<'a> {
    titles: &'a OpenTitles,
    items: HashMap<PathBuf, Option<Arc<KnownItem>>>,
    /// Titles by the paths of their source files.
    by_source: Option<HashMap<PathBuf, TitleInfo>>,
}

impl KnownItems<'_> {
    /// `None`: there is no such title or file.
    fn find(&mut self, item: &CastItem) -> Option<Arc<KnownItem>> {
        let path = item.folder.join(&item.address);
        if let Some(known) = self.items.get(&path) {
            return known.clone();
        }
        let known = self.look_up(item, &path).map(Arc::new);
        self.items.insert(path, known.clone());
        known
    }

    fn look_up(&mut self, item: &CastItem, path: &Path) -> Option<KnownItem> {
        let is_file = path.is_file();
        let of_file = if is_file { self.of_source(path) } else { None };
        let stem = path.file_stem().and_then(|stem| stem.to_str());
        let title = of_file.or_else(|| self.of_store(&item.address)).or_else(|| self.of_store(stem?));
        if let Some(title) = title {
            let (display_name, length_ms) =
                (title.display_name(), Some(title.duration.0 / (MEDIA_HZ / 1000)));
            return Some(KnownItem { title: title.name, display_name, length_ms });
        }
        let name = stem.filter(|_| is_file)?.to_owned();
        Some(KnownItem { display_name: name.clone(), title: name, length_ms: None })
    }

    /// A title by its name or id, as the channel finds it. It plays no title that is still being recorded.
    fn of_store(&self, name_or_id: &str) -> Option<TitleInfo> {
        let title = match name_or_id.parse() {
            Ok(id) => self.titles.info(id),
            Err(_) => self.titles.info_named(name_or_id),
        };
        title.filter(|title| !title.is_growing())
    }

    /// The title that was made of this file.
    fn of_source(&mut self, path: &Path) -> Option<TitleInfo> {
        let titles = self.titles;
        let by_source = self.by_source.get_or_insert_with(|| {
            titles.titles().into_iter().map(|title| (title.source.path.clone(), title)).collect()
        });
        let same = |path: std::io::Result<PathBuf>| by_source.get(&path.ok()?).cloned();
        same(std::path::absolute(path)).or_else(|| same(path.canonicalize()))
    }
}
