//! Recordings that are still being made, as titles: their properties and indexes, which grow.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_core::scale::Scale;
use millrace_core::time::MediaTicks;
use millrace_store::index::TitleIndex;
use millrace_store::volume::{GrowingMedia, TitleInfo};

use crate::service::{AccessPoint, AccessPoints, TitleEntry};

/// A recording that is still being made.
pub struct GrowingTitle {
    media: Arc<GrowingMedia>,
    known: Mutex<(Arc<TitleInfo>, Arc<TitleIndex>)>,
}

impl GrowingTitle {
    /// One with these properties and this index.
    pub fn new(media: Arc<GrowingMedia>, info: TitleInfo, index: TitleIndex) -> Self {
        Self { media, known: Mutex::new((Arc::new(info), Arc::new(index))) }
    }

    fn lock(&self) -> MutexGuard<'_, (Arc<TitleInfo>, Arc<TitleIndex>)> {
        // Replaced as a whole.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It has grown.
    pub fn replace(&self, info: TitleInfo, index: TitleIndex) {
        let now = (Arc::new(info), Arc::new(index));
        drop(std::mem::replace(&mut *self.lock(), now));
    }

    /// Its media.
    pub fn media(&self) -> &Arc<GrowingMedia> {
        &self.media
    }

    /// Its properties up to now.
    pub fn info(&self) -> Arc<TitleInfo> {
        Arc::clone(&self.lock().0)
    }

    /// Its index up to now.
    pub fn index(&self) -> Arc<TitleIndex> {
        Arc::clone(&self.lock().1)
    }

    /// The title as the service knows it. It has no last packet yet.
    pub(super) fn entry(self: &Arc<Self>) -> TitleEntry {
        let (info, index) = (self.info(), self.index());
        TitleEntry {
            id: info.id,
            name: info.name.clone(),
            title: info.display_name(),
            is_made: false,
            scale: Scale::NORMAL,
            duration: info.duration,
            presentation: super::access::presentation(&index, 0),
            mean_rate: info.mean_rate,
            peak_rate: info.peak_rate,
            packets: u32::MAX,
            timeline: info.timeline,
            layout: self.media.layout(),
            fec: None,
            access: Arc::clone(self) as Arc<dyn AccessPoints>,
            transform: None,
            began_unix_ms: info.began_unix_ms,
        }
    }
}

impl AccessPoints for GrowingTitle {
    fn grown_to(&self) -> Option<MediaTicks> {
        Some(self.lock().0.duration)
    }

    fn access_at_or_before(&self, time: MediaTicks) -> AccessPoint {
        let point = self.index().access_at_or_before(time);
        AccessPoint { packet: point.packet, time: point.time }
    }

    fn access_at_or_after(&self, time: MediaTicks) -> Option<AccessPoint> {
        let index = self.index();
        let points = index.access_points();
        let point = points.get(points.partition_point(|point| point.time < time))?;
        Some(AccessPoint { packet: point.packet, time: point.time })
    }

    /// A time behind its end now may come.
    fn packet_at(&self, time: MediaTicks) -> u32 {
        let index = self.index();
        if time > index.duration() { u32::MAX } else { index.packet_at(time) }
    }

    fn time_of(&self, packet: u32) -> Option<MediaTicks> {
        let exact = self.media.record_briefly(packet).ok().map(|record| record.time());
        exact.or_else(|| self.time_near(packet))
    }

    fn time_near(&self, packet: u32) -> Option<MediaTicks> {
        Some(self.index().time_of(u64::from(packet) * DEFAULT_PACKET_BYTES as u64))
    }
}
