//! A title and a stream for the tests of single modules.

use std::net::SocketAddr;
use std::sync::Arc;

use millrace_core::ids::{RunSerial, StreamId, TitleId, TitleRef};
use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_core::packet::WireLayout;
use millrace_core::scale::Scale;
use millrace_core::time::{Instant, MediaTicks};
use millrace_core::units::BitRate;
use millrace_core::wire::rtp::Timeline;

use super::keys::{StreamKey, StreamPath};
use super::ports::{AccessPoint, AccessPoints, TitleEntry};
use super::presentation::Presentation;
use super::rendition::Renditions;
use super::run::DeliveryState;
use super::speed::Speed;
use super::stream::PlaybackStream;

struct Nowhere;

impl AccessPoints for Nowhere {
    fn access_at_or_before(&self, _: MediaTicks) -> AccessPoint {
        AccessPoint { packet: 0, time: MediaTicks(0) }
    }
    fn access_at_or_after(&self, _: MediaTicks) -> Option<AccessPoint> {
        None
    }
    fn packet_at(&self, _: MediaTicks) -> u32 {
        0
    }
    fn time_of(&self, _: u32) -> Option<MediaTicks> {
        None
    }
}

/// Ten packets of a title, without times.
pub(super) fn entry() -> TitleEntry {
    TitleEntry {
        id: TitleId([1; 16]),
        name: "film".into(),
        title: "Film".into(),
        is_made: false,
        scale: Scale::NORMAL,
        duration: MediaTicks(90_000),
        presentation: Presentation::default(),
        mean_rate: BitRate(1),
        peak_rate: BitRate(1),
        packets: 10,
        timeline: Timeline { ssrc: 1, timestamp_base: 2 },
        layout: WireLayout::new(DEFAULT_PACKET_BYTES).unwrap(),
        fec: None,
        access: Arc::new(Nowhere),
        transform: None,
        began_unix_ms: None,
    }
}

/// A stream of the sample title by UDP, admitted at `since` and not played yet.
pub(super) fn stream(number: u64, since: Instant, viewer: SocketAddr) -> PlaybackStream {
    let entry = entry();
    PlaybackStream {
        key: StreamKey(number),
        label: "test".into(),
        timeline: entry.timeline,
        home: entry.timeline,
        entry,
        title: TitleRef(0),
        viewer,
        quota: None,
        fetcher: None,
        path: StreamPath::udp(viewer, viewer.port().checked_add(1)),
        owner: None,
        engine: 0,
        place: StreamId { index: number as u32, generation: 0 },
        last_run: RunSerial(0),
        rate: 1_000,
        is_reserved: false,
        idle_since: since,
        last_heard: since,
        media: DeliveryState::Fresh,
        scale: Scale::NORMAL,
        speed: Speed::NORMAL,
        has_own_timeline: false,
        made: Vec::new(),
        renditions: Renditions::default(),
        queued: None,
        speed_rate: 0,
        pending: None,
        moves_to: None,
        ending: None,
        fec: None,
        started: since,
        report: None,
        backlog_bytes: None,
        behind: None,
    }
}
