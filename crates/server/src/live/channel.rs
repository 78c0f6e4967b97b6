//! A live title as its viewers see it: the point where they join, and the state of its source.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use millrace_core::counters::Sheet;
use millrace_core::ids::{TitleId, TitleRef};
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::scale::Scale;
use millrace_core::seam::Clock;
use millrace_core::time::{Instant, MediaTicks, NS_PER_S};
use millrace_core::units::BitRate;
use millrace_core::wire::rtp::Timeline;
use millrace_offload::clock::MonotonicClock;
use millrace_store::volume::unix_ms;
use millrace_web::LiveEdge;
use tokio::sync::watch;

use super::choice::SourceRank;
use super::segments::{HeldSegments, Segmenter};
use super::state::SourceState;
use super::tap::RecordingTap;
use crate::cast::ChannelReport;
use crate::limits::live::{
    LEAST_CLOCK_STEP_MS, LIVE_RATE_UNKNOWN, LIVE_RESERVE_SHARE, MAX_LIVE_POINTS, MAX_LIVE_SEGMENTS,
};
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

/// Where decoders can start, and when packets are due.
struct LivePoints {
    access: VecDeque<LivePoint>,
    times: PacketTimes,
    segments: Segmenter,
}

/// An access point, and the presentation time stamp there.
#[derive(Clone, Copy, Debug)]
struct LivePoint {
    at: AccessPoint,
    stamp: Option<u64>,
}

/// Media times of the newest packets: as many as viewers can get, eight bytes for each of 1316.
#[derive(Debug, Default)]
struct PacketTimes {
    first: u32,
    times: VecDeque<MediaTicks>,
}

impl PacketTimes {
    fn add(&mut self, packet: u32, time: MediaTicks, most: u32) {
        if self.times.is_empty() {
            self.first = packet;
        }
        self.times.push_back(time);
        while self.times.len() > most as usize {
            self.times.pop_front();
            self.first += 1;
        }
    }

    fn of(&self, packet: u32) -> Option<MediaTicks> {
        self.times.get(packet.checked_sub(self.first)? as usize).copied()
    }
}

/// One live title.
pub struct LiveChannel {
    name: String,
    id: TitleId,
    title: TitleRef,
    timeline: Timeline,
    layout: WireLayout,
    /// When its media time 0 was.
    origin: OnceLock<Instant>,
    /// The beginning by the host's clock that was answered last.
    answered_began_unix_ms: AtomicU64,
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
            origin: OnceLock::new(),
            answered_began_unix_ms: AtomicU64::new(0),
            window,
            points: Mutex::new(LivePoints {
                access: VecDeque::with_capacity(MAX_LIVE_POINTS),
                times: PacketTimes::default(),
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
            began_unix_ms: self.began_unix_ms(),
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

    /// Its media time counts from `origin`: all its sources have the same one.
    pub(super) fn begin_at(&self, origin: Instant) {
        let _ = self.origin.set(origin);
    }

    /// When its media time 0 was by the clock as it is set now. A clock that was wrong when the title began does not stay wrong for it.
    fn began_unix_ms(&self) -> Option<u64> {
        let lasted_ms = MonotonicClock.now().ns_since(*self.origin.get()?) / (NS_PER_S / 1_000);
        let began = unix_ms().checked_sub(lasted_ms)?;
        // Both clocks are read in turn: a difference that small is none, and a place has the same time of day in each answer.
        let answered = self.answered_began_unix_ms.load(Ordering::Relaxed);
        if began.abs_diff(answered) < LEAST_CLOCK_STEP_MS {
            return Some(answered);
        }
        self.answered_began_unix_ms.store(began, Ordering::Relaxed);
        Some(began)
    }

    /// Adds a point where viewers can join, and the presentation time stamp there.
    pub(super) fn add_point(&self, point: AccessPoint, stamp: Option<u64>) {
        let LivePoints { access, segments, .. } = &mut *lock(&self.points);
        let first = point.packet.saturating_sub(self.window);
        while access.len() >= MAX_LIVE_POINTS || access.front().is_some_and(|point| point.at.packet < first) {
            access.pop_front();
        }
        access.push_back(LivePoint { at: point, stamp });
        let ends_segment = segments.point(point.packet, point.time);
        segments.forget_before(first);
        if ends_segment {
            self.segments_edge.send_replace(segments.edge());
        }
    }

    /// Adds a packet in which a picture begins with this TS packet, or none.
    pub(super) fn add_packet(&self, packet: u32, time: MediaTicks, begins_unit: Option<u8>, is_access: bool) {
        let LivePoints { times, segments, .. } = &mut *lock(&self.points);
        times.add(packet, time, self.window);
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

    /// Returns whether viewers can get a packet, as the title is now.
    fn holds(&self, packet: u32, edge: u32) -> bool {
        edge.saturating_sub(packet) < self.window
    }

    /// Returns the access points where viewers can begin, by their places in the list: those in the window less its reserve, and the last one in any
    /// case.
    fn begin_places(&self, access: &VecDeque<LivePoint>, edge: u32) -> Range<usize> {
        let first = edge.saturating_sub(self.window - self.window / LIVE_RESERVE_SHARE);
        let begin = access.partition_point(|point| point.at.packet < first);
        begin.min(access.len().saturating_sub(1))..access.len()
    }
}

/// Where viewers can begin within the window.
impl AccessPoints for LiveChannel {
    fn window(&self) -> Option<Range<MediaTicks>> {
        let newest = MediaTicks(self.newest.load(Ordering::Relaxed));
        let oldest = self.access_at_or_before(MediaTicks(0)).time;
        Some(oldest.min(newest)..newest)
    }

    fn is_held(&self, packet: u32) -> bool {
        self.holds(packet, self.edge.load(Ordering::Acquire))
    }

    fn join(&self) -> AccessPoint {
        self.access_at_or_before(MediaTicks(PacketMeta::MAX_TICKS))
    }

    /// Without an access point that is held, the next packet.
    fn access_at_or_before(&self, time: MediaTicks) -> AccessPoint {
        let edge = self.edge.load(Ordering::Acquire);
        let access = &lock(&self.points).access;
        let places = self.begin_places(access, edge);
        let at = access.partition_point(|point| point.at.time <= time).saturating_sub(1).max(places.start);
        let held = access.get(at).map(|point| point.at).filter(|point| self.holds(point.packet, edge));
        let next = || AccessPoint { packet: edge, time: MediaTicks(self.newest.load(Ordering::Relaxed)) };
        held.unwrap_or_else(next)
    }

    fn access_at_or_after(&self, time: MediaTicks) -> Option<AccessPoint> {
        let access = &lock(&self.points).access;
        access.get(access.partition_point(|point| point.at.time < time)).map(|point| point.at)
    }

    fn packet_at(&self, _time: MediaTicks) -> u32 {
        u32::MAX
    }

    /// Known of the packets that are held.
    fn time_of(&self, packet: u32) -> Option<MediaTicks> {
        lock(&self.points).times.of(packet)
    }

    /// Counted from the newest access point with a stamp that is not later: the source's clock may have jumped between them.
    fn time_of_stamp(&self, stamp: i64) -> Option<i64> {
        let access = &lock(&self.points).access;
        let mut from_newest = None;
        for LivePoint { at, stamp: known } in access.iter().rev() {
            let Some(known) = known else { continue };
            let behind = (stamp - known.cast_signed() + STAMP_MODULUS / 2).rem_euclid(STAMP_MODULUS);
            let time = at.time.0.cast_signed() + behind - STAMP_MODULUS / 2;
            if time >= at.time.0.cast_signed() {
                return Some(time);
            }
            from_newest.get_or_insert(time);
        }
        from_newest
    }
}

/// Values of a presentation time stamp: 33 bits at 90 kHz.
const STAMP_MODULUS: i64 = 1 << 33;

#[cfg(test)]
#[path = "channel_tests.rs"]
mod tests;
