//! A live title as its viewers see it: the point where they join, and the state of its source.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use millrace_core::counters::Sheet;
use millrace_core::ids::{TitleId, TitleRef};
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::scale::Scale;
use millrace_core::seam::Clock;
use millrace_core::time::{MediaTicks, NS_PER_S};
use millrace_core::units::BitRate;
use millrace_core::wire::rtp::Timeline;
use millrace_offload::clock::MonotonicClock;
use millrace_web::LiveEdge;
use tokio::sync::watch;

use super::choice::SourceRank;
use super::segments::{HeldSegments, Segmenter};
use super::state::SourceState;
use super::tap::RecordingTap;
use crate::cast::ChannelReport;
use crate::limits::live::{LIVE_RATE_UNKNOWN, MAX_LIVE_POINTS, MAX_LIVE_SEGMENTS};
use crate::service::{AccessPoint, AccessPoints, Presentation, TitleEntry};

/// Where the names of live titles begin, in addresses and rights: a stored title's name has no slash.
pub const LIVE_PREFIX: &str = "live/";

millrace_core::counters! {
    /// Data received from a live source, and its fate.
    pub struct LiveCounters {
        /// Datagrams that came, or pieces of an HTTP body.
        sum datagrams,
        /// Their bytes, without headers below RTP.
        sum bytes,
        /// Datagrams that were not MPEG-TS, or not RTP where that was expected.
        sum unusable,
        /// Datagrams that the kernel dropped because they were not fetched in time.
        sum dropped,
        /// RTP packets that never came.
        sum lost,
        /// RTP packets that came before one with a smaller number, and were put in order.
        sum reordered,
        /// RTP packets that came twice or too late.
        sum late,
        /// Jumps of the source's clock, and silences.
        sum discontinuities,
        /// Packets of the title that were made of it.
        sum packets,
        /// Packets that were lost because the cache had no memory for them.
        sum no_room,
        /// Bits a second over the last ten seconds.
        gauge bits_per_s,
        /// 1 while media comes.
        gauge running,
        /// Times that the backup took over, or the first source again.
        sum takeovers,
        /// 1 while the backup is on the air.
        gauge on_backup,
    }
}

/// State of a source, for the API.
#[derive(Clone, Debug)]
pub struct SourceReport {
    /// Its state.
    pub state: SourceState,
    /// The same in a sentence.
    pub message: String,
    /// Mean bit rate over the last seconds; 0: nothing is known.
    pub mean_rate: BitRate,
    /// Which source is on the air, if there are two.
    pub on_air: Option<SourceRank>,
}

/// The two sources of a title, beside the state of the one that is on the air.
#[derive(Clone, Debug)]
pub(super) struct PairReport {
    pub(super) on_air: SourceRank,
    /// State of the other one.
    pub(super) standby: SourceState,
    /// Why that one cannot be fetched.
    pub(super) failure: String,
}

/// A state in a sentence; `failure` stands for [`SourceState::Failed`].
fn sentence(state: SourceState, failure: &str) -> String {
    match state {
        SourceState::Failed => failure.to_owned(),
        SourceState::Silent(since) => {
            let silent_s = MonotonicClock.now().ns_since(since) / NS_PER_S;
            format!("silent for {silent_s} s; check the encoder and the network")
        }
        other => other.to_string(),
    }
}

impl PairReport {
    /// The sentence of the source that is on the air, with the other one.
    fn with_standby(&self, message: &str) -> String {
        let standby = sentence(self.standby, &self.failure);
        match self.on_air {
            SourceRank::First => format!("{message}; backup: {standby}"),
            SourceRank::Backup => format!("on the backup: {message}; first source: {standby}"),
        }
    }
}

/// Where decoders can start.
struct LivePoints {
    access: VecDeque<AccessPoint>,
    segments: Segmenter,
}

/// One live title.
pub struct LiveChannel {
    name: String,
    id: TitleId,
    title: TitleRef,
    timeline: Timeline,
    layout: WireLayout,
    /// Number of packets before the newest one that viewers can still get.
    window: u32,
    points: Mutex<LivePoints>,
    /// The end of its segments; requests for later ones wait on it.
    segments_edge: watch::Sender<LiveEdge>,
    /// Number of the next packet, and media time of the last one.
    edge: AtomicU32,
    newest: AtomicU64,
    mean_rate: AtomicU64,
    peak_rate: AtomicU64,
    state: Mutex<SourceState>,
    /// Why it cannot be fetched; empty: it can, or has never been tried.
    failure: Mutex<String>,
    /// Its two sources, if it has two.
    pair: Mutex<Option<PairReport>>,
    /// Its items, if its media comes from stored titles.
    channel: OnceLock<Arc<Mutex<ChannelReport>>>,
    sheet: Sheet<LiveCounters>,
    tap: RecordingTap,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is one assignment or one push: a panic elsewhere cannot leave it half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LiveChannel {
    pub(super) fn new(
        name: &str,
        title: TitleRef,
        id: TitleId,
        timeline: Timeline,
        layout: WireLayout,
        window: u32,
    ) -> Self {
        Self {
            name: name.to_owned(),
            id,
            title,
            timeline,
            layout,
            window,
            points: Mutex::new(LivePoints {
                access: VecDeque::with_capacity(MAX_LIVE_POINTS),
                segments: Segmenter::default(),
            }),
            segments_edge: watch::Sender::default(),
            edge: AtomicU32::new(0),
            newest: AtomicU64::new(0),
            mean_rate: AtomicU64::new(0),
            peak_rate: AtomicU64::new(0),
            state: Mutex::new(SourceState::Waiting),
            failure: Mutex::default(),
            pair: Mutex::default(),
            channel: OnceLock::new(),
            sheet: Sheet::default(),
            tap: RecordingTap::default(),
        }
    }

    /// Its name, without [`LIVE_PREFIX`].
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn id(&self) -> TitleId {
        self.id
    }

    /// Its name in the cache.
    pub(super) fn title(&self) -> TitleRef {
        self.title
    }

    /// The title as the service knows it. It has no end: its last packet is the last one that can be numbered.
    pub fn entry(self: &Arc<Self>) -> TitleEntry {
        let rate = |rate: &AtomicU64| match rate.load(Ordering::Relaxed) {
            0 => BitRate(LIVE_RATE_UNKNOWN),
            known => BitRate(known),
        };
        TitleEntry {
            id: self.id,
            name: format!("{LIVE_PREFIX}{}", self.name),
            title: self.name.clone(),
            is_made: false,
            scale: Scale::NORMAL,
            duration: MediaTicks(PacketMeta::MAX_TICKS),
            presentation: Presentation::default(),
            mean_rate: rate(&self.mean_rate),
            peak_rate: rate(&self.peak_rate),
            packets: u32::MAX,
            timeline: self.timeline,
            layout: self.layout,
            fec: None,
            access: Arc::clone(self) as Arc<dyn AccessPoints>,
            transform: None,
        }
    }

    /// Returns the state of its source.
    pub fn report(&self) -> SourceReport {
        let mean_rate = BitRate(self.mean_rate.load(Ordering::Relaxed));
        let state = *lock(&self.state);
        let message = sentence(state, &lock(&self.failure));
        let pair = lock(&self.pair).clone();
        let on_air = pair.as_ref().map(|pair| pair.on_air);
        let message = pair.map_or_else(|| message.clone(), |pair| pair.with_standby(&message));
        SourceReport { state, message, mean_rate, on_air }
    }

    /// Its media comes from stored titles, and `report` names them.
    pub(crate) fn set_channel(&self, report: &Arc<Mutex<ChannelReport>>) {
        // It is set once, when the title is opened.
        let _ = self.channel.set(Arc::clone(report));
    }

    /// Its items, if its media comes from stored titles.
    pub fn channel(&self) -> Option<ChannelReport> {
        self.channel.get().map(|report| lock(report).clone())
    }

    /// Where a recording gets its media.
    pub(super) fn tap(&self) -> &RecordingTap {
        &self.tap
    }

    /// Its counters.
    pub fn counters(&self) -> LiveCounters {
        self.sheet.read()
    }

    pub(super) fn publish_state(&self, state: SourceState) {
        *lock(&self.state) = state;
    }

    /// The sentence that stands for [`SourceState::Failed`]; returns the one before.
    pub(super) fn publish_failure(&self, why: String) -> String {
        std::mem::replace(&mut *lock(&self.failure), why)
    }

    pub(super) fn publish_pair(&self, pair: PairReport) {
        *lock(&self.pair) = Some(pair);
    }

    pub(super) fn publish_counters(&self, counters: &LiveCounters) {
        self.sheet.publish(counters);
    }

    pub(super) fn publish_rates(&self, mean: u64, peak: u64) {
        self.mean_rate.store(mean, Ordering::Relaxed);
        self.peak_rate.store(peak.max(mean), Ordering::Relaxed);
    }

    /// Adds a point where viewers can join.
    pub(super) fn add_point(&self, point: AccessPoint) {
        let LivePoints { access, segments } = &mut *lock(&self.points);
        let first = point.packet.saturating_sub(self.window);
        while access.len() >= MAX_LIVE_POINTS || access.front().is_some_and(|point| point.packet < first) {
            access.pop_front();
        }
        access.push_back(point);
        let ends_segment = segments.point(point.packet, point.time);
        segments.forget_before(first);
        if ends_segment {
            self.segments_edge.send_replace(segments.edge());
        }
    }

    /// A packet has come in which a picture begins with this TS packet, or none.
    pub(super) fn add_packet(&self, packet: u32, time: MediaTicks, begins_unit: Option<u8>, is_access: bool) {
        let segments = &mut lock(&self.points).segments;
        if segments.packet(packet, time, begins_unit, is_access) {
            self.segments_edge.send_replace(segments.edge());
        }
    }

    /// The end of its segments, as they grow.
    pub fn segments_edge(&self) -> watch::Receiver<LiveEdge> {
        self.segments_edge.subscribe()
    }

    /// The stream was interrupted before this packet; `time` is that of the packet before it.
    pub(super) fn add_break(&self, packet: u32, time: MediaTicks) {
        let segments = &mut lock(&self.points).segments;
        segments.break_before(packet, time);
        self.segments_edge.send_replace(segments.edge());
    }

    /// The segments that viewers can fetch, and how many of the newest may be listed. These are in the newer half of the window: one that is
    /// listed no longer can be fetched for as long as its playlist lasts (RFC 8216 section 6.2.2).
    pub fn segments(&self) -> (HeldSegments, usize) {
        let mut held = lock(&self.points).segments.held();
        let HeldSegments { segments, breaks_before, .. } = &mut held;
        let edge = self.edge.load(Ordering::Acquire);
        let first = edge.saturating_sub(self.window);
        let first_listed = edge.saturating_sub(self.window / 2);
        segments.retain(|segment| {
            let is_held = segment.packets.start >= first;
            *breaks_before += u32::from(!is_held && segment.is_discontinuous);
            is_held
        });
        let listed = segments.iter().filter(|segment| segment.packets.start >= first_listed).count();
        (held, listed.min(MAX_LIVE_SEGMENTS / 2))
    }

    /// Distinguishes this title from an earlier one of the same name.
    pub fn version(&self) -> String {
        format!("{:08x}", self.timeline.ssrc)
    }

    /// Size of its packets.
    pub fn packet_bytes(&self) -> u64 {
        self.layout.packet_bytes() as u64
    }

    /// Everything before this packet can be sent.
    pub(super) fn publish_edge(&self, next: u32, newest: MediaTicks) {
        self.newest.store(newest.0, Ordering::Relaxed);
        self.edge.store(next, Ordering::Release);
    }

    /// Returns the point where a viewer joins: the last access point if it is still held, else the next packet.
    fn join(&self) -> AccessPoint {
        let edge = self.edge.load(Ordering::Acquire);
        let last = lock(&self.points).access.back().copied();
        let held = last.filter(|point| edge.saturating_sub(point.packet) < self.window);
        let time = MediaTicks(self.newest.load(Ordering::Relaxed));
        held.unwrap_or(AccessPoint { packet: edge, time })
    }
}

/// Every time means now: viewers cannot seek.
impl AccessPoints for LiveChannel {
    fn access_at_or_before(&self, _time: MediaTicks) -> AccessPoint {
        self.join()
    }

    fn access_at_or_after(&self, _time: MediaTicks) -> Option<AccessPoint> {
        None
    }

    fn packet_at(&self, _time: MediaTicks) -> u32 {
        u32::MAX
    }

    /// Known of access points alone.
    fn time_of(&self, packet: u32) -> Option<MediaTicks> {
        let points = &lock(&self.points).access;
        let at = points.binary_search_by_key(&packet, |point| point.packet).ok()?;
        points.get(at).map(|point| point.time)
    }
}

#[cfg(test)]
mod tests {
    use millrace_core::time::MEDIA_HZ;

    use super::*;

    fn channel(window: u32) -> Arc<LiveChannel> {
        let timeline = Timeline { ssrc: 1, timestamp_base: 2 };
        let layout = WireLayout::new(1316).unwrap();
        Arc::new(LiveChannel::new("news", TitleRef(0), TitleId([7; 16]), timeline, layout, window))
    }

    fn point(packet: u32) -> AccessPoint {
        AccessPoint { packet, time: MediaTicks(u64::from(packet) * 10) }
    }

    #[test]
    fn break_before_a_segment_that_has_left_the_window_is_counted() {
        let channel = channel(100);
        let point = |packet, second| AccessPoint { packet, time: MediaTicks(second * MEDIA_HZ) };
        channel.add_point(point(0, 0));
        channel.add_point(point(20, 2));
        channel.add_break(30, MediaTicks(3 * MEDIA_HZ));
        channel.add_point(point(30, 10));
        channel.add_point(point(50, 12));
        let numbers =
            |held: &HeldSegments| held.segments.iter().map(|segment| segment.number).collect::<Vec<_>>();
        channel.publish_edge(130, MediaTicks(20 * MEDIA_HZ));
        let (held, _) = channel.segments();
        assert_eq!((numbers(&held), held.breaks_before), (vec![2], 0));
        channel.publish_edge(131, MediaTicks(20 * MEDIA_HZ));
        let (held, _) = channel.segments();
        assert_eq!((numbers(&held), held.breaks_before), (vec![], 1));
    }

    #[test]
    fn segments_in_the_newer_half_of_the_window_are_listed() {
        let channel = channel(100);
        for n in 0..10 {
            channel.add_point(AccessPoint { packet: 10 * n, time: MediaTicks(u64::from(n) * 2 * MEDIA_HZ) });
        }
        let listed = |edge| {
            channel.publish_edge(edge, MediaTicks(20 * MEDIA_HZ));
            let (held, listed) = channel.segments();
            (held.segments.len(), listed)
        };
        // The last point has begun a segment that is not there yet.
        assert_eq!(listed(50), (9, 9), "nothing is about to go");
        assert_eq!(listed(100), (9, 4));
        assert_eq!(listed(101), (8, 3), "one has gone, and one more will soon");
    }

    #[test]
    fn viewers_join_at_the_last_access_point_that_is_held() {
        let channel = channel(100);
        let join = || channel.entry().access.access_at_or_before(MediaTicks(0));
        assert_eq!(join().packet, 0, "with the first packet that comes");
        for packet in [10, 60] {
            channel.add_point(point(packet));
        }
        channel.publish_edge(70, MediaTicks(700));
        assert_eq!(join(), point(60));
        channel.publish_edge(161, MediaTicks(1_610));
        assert_eq!(join(), AccessPoint { packet: 161, time: MediaTicks(1_610) });
        assert_eq!(channel.time_of(60), Some(MediaTicks(600)));
        assert_eq!(channel.time_of(161), None);
    }

    #[test]
    fn points_behind_the_window_are_forgotten() {
        let channel = channel(100);
        for packet in (0..100_000).step_by(30) {
            channel.add_point(point(packet));
        }
        assert!(lock(&channel.points).access.len() <= 4);
    }

    #[test]
    fn entry_has_no_end_and_a_rate_from_the_start() {
        let channel = channel(100);
        let entry = channel.entry();
        assert!(entry.is_live() && entry.raw().is_none());
        assert_eq!((entry.name.as_str(), entry.mean_rate), ("live/news", BitRate(LIVE_RATE_UNKNOWN)));
        channel.publish_rates(4_000_000, 5_000_000);
        assert_eq!(channel.entry().peak_rate, BitRate(5_000_000));
    }
}
