//! The path from one source to the cache, without a socket; the time is an argument.

use std::collections::VecDeque;
use std::sync::Arc;

use millrace_core::packet::PacketMeta;
use millrace_core::time::{Instant, MediaTicks, NS_PER_S};
use millrace_make::live::{LivePacker, LivePacket, NotTs, RtpCounts, RtpReorder};
use millrace_store::cache::{FeedError, Feeder};

use super::address::LiveTransport;
use super::channel::{LiveChannel, LiveCounters};
use super::standby::Standby;
use super::state::{SourceState, SourceWatch};
use super::titles::{LiveTitles, OpenLiveError};
use crate::limits::live::LIVE_RATE_SECONDS;
use crate::service::AccessPoint;

/// The input of one live title.
pub struct LiveInput {
    reorder: Option<RtpReorder>,
    /// Counts of RTP before this source was on the air, less its own until then.
    counted: RtpCounts,
    media: MediaInput,
}

/// The part of the input behind RTP.
struct MediaInput {
    packer: LivePacker,
    output: LiveOutput,
    watch: SourceWatch,
    meter: RateMeter,
    hurries: u64,
    now: Instant,
}

/// The way into the cache.
struct LiveOutput {
    channel: Arc<LiveChannel>,
    feeder: Feeder,
    newest: MediaTicks,
    counters: LiveCounters,
    /// The title has as many packets, or as much time, as a title may have.
    is_full: bool,
}

impl LiveInput {
    /// Feeds `channel` from `origin` on. A piece of an HTTP body counts as a datagram of [`LiveTransport::Udp`].
    pub fn new(transport: LiveTransport, channel: Arc<LiveChannel>, feeder: Feeder, origin: Instant) -> Self {
        let (newest, counters) = (MediaTicks(0), LiveCounters::default());
        channel.begin_at(origin);
        Self {
            reorder: (transport == LiveTransport::Rtp).then(RtpReorder::default),
            counted: RtpCounts::default(),
            media: MediaInput {
                packer: LivePacker::new(origin),
                output: LiveOutput { channel, feeder, newest, counters, is_full: false },
                watch: SourceWatch::default(),
                meter: RateMeter::new(origin),
                hurries: 0,
                now: origin,
            },
        }
    }

    /// How far the source is ahead of time.
    pub fn ahead_ns(&self, now: Instant) -> u64 {
        self.media.packer.ahead_ns(now)
    }

    /// The title that it feeds.
    pub fn channel(&self) -> &Arc<LiveChannel> {
        &self.media.output.channel
    }

    /// Whether the title can take no more: another one has to be opened.
    pub fn is_full(&self) -> bool {
        self.media.output.is_full
    }

    /// Replaces a full title, which took months to fill, by the one that `open` opens. Its viewers reach its end. `false`:
    /// there is none, and the log names `source` and the cause.
    pub fn renew(
        &mut self,
        titles: &LiveTitles,
        source: &str,
        open: impl FnOnce() -> Result<Self, OpenLiveError>,
    ) -> bool {
        titles.close(self.channel());
        match open() {
            Ok(input) => std::mem::replace(self, input).finish(),
            Err(cause) => {
                tracing::error!("{source}: cannot begin its title anew: {cause}; restart the server");
                return false;
            }
        }
        true
    }

    /// Takes a datagram that came at `arrival`. Nothing of it can be seen before [`LiveInput::publish`].
    pub fn datagram(&mut self, arrival: Instant, bytes: &[u8]) {
        let Self { reorder, media, .. } = self;
        media.now = media.now.max(arrival);
        media.output.counters.datagrams += 1;
        media.output.counters.bytes += bytes.len() as u64;
        match reorder {
            Some(reorder) => {
                if !reorder.push(arrival, bytes, &mut |payload| media.take(arrival, payload)) {
                    media.refuse(arrival, NotTs::Garbage);
                }
            }
            None => media.take(arrival, bytes),
        }
    }

    /// Releases packets that were held for long enough. Returns the source's state if it has changed.
    pub fn look(&mut self, now: Instant, dropped: u64) -> Option<SourceState> {
        let Self { reorder, counted, media } = self;
        media.now = media.now.max(now);
        if let Some(reorder) = reorder {
            reorder.expire(now, &mut |payload| media.take(now, payload));
            let counts = reorder.counts();
            let counters = &mut media.output.counters;
            counters.lost = counted.lost.wrapping_add(counts.lost);
            counters.reordered = counted.reordered.wrapping_add(counts.reordered);
            counters.late = counted.late.wrapping_add(counts.late);
        }
        media.output.counters.dropped = dropped;
        media.look(now)
    }

    /// The source cannot be fetched, for this reason; returns whether it is another one than before.
    pub fn fail(&mut self, now: Instant, why: String) -> bool {
        let MediaInput { watch, output, .. } = &mut self.media;
        watch.failed();
        let has_failed = watch.state() == SourceState::Failed;
        let is_other = output.channel.publish_failure(why.clone()) != why;
        self.media.look(now);
        !has_failed || is_other
    }

    /// The state of the source that was reported last.
    pub fn state(&self) -> SourceState {
        self.media.watch.state()
    }

    /// Takes a packet of the source that is about to take over.
    pub(super) fn feed(&mut self, packet: LivePacket<'_>) {
        self.media.output.feed(packet);
    }

    /// Makes the standby the source of this title, and its source the standby.
    pub(super) fn change_over(&mut self, standby: &mut Standby) {
        let Self { reorder, counted, media } = self;
        std::mem::swap(reorder, &mut standby.reorder);
        std::mem::swap(&mut media.packer, &mut standby.packer);
        std::mem::swap(&mut media.watch, &mut standby.watch);
        std::mem::swap(&mut media.hurries, &mut standby.hurries);
        let LiveOutput { channel, counters, .. } = &mut media.output;
        standby.failure = channel.publish_failure(std::mem::take(&mut standby.failure));
        channel.publish_state(media.watch.state());
        let own = reorder.as_ref().map(RtpReorder::counts).unwrap_or_default();
        counted.lost = counters.lost.wrapping_sub(own.lost);
        counted.reordered = counters.reordered.wrapping_sub(own.reordered);
        counted.late = counters.late.wrapping_sub(own.late);
        counters.takeovers += 1;
        counters.on_backup ^= 1;
    }

    /// When [`LiveInput::look`] has to be called at the latest.
    pub fn deadline(&self) -> Option<Instant> {
        let reorder = self.reorder.as_ref().and_then(RtpReorder::deadline);
        [reorder, self.media.packer.deadline()].into_iter().flatten().min()
    }

    /// The source has ended: viewers get the rest.
    pub fn finish(self) {
        self.media.output.feeder.finish();
    }

    /// Viewers can have all that came.
    pub fn publish(&mut self) {
        let LiveOutput { channel, feeder, newest, .. } = &mut self.media.output;
        // The title is closed only when this is gone.
        let _ = feeder.publish();
        channel.publish_edge(feeder.next_packet(), *newest);
    }
}

impl MediaInput {
    fn take(&mut self, arrival: Instant, bytes: &[u8]) {
        let Self { packer, output, .. } = self;
        match packer.push(arrival, bytes, &mut |packet| output.feed(packet)) {
            Ok(()) => {
                self.meter.count(bytes.len());
                self.watch.media(arrival);
            }
            Err(what) => self.refuse(arrival, what),
        }
        if packer_hurries(&self.packer, &mut self.hurries) {
            self.watch.hurried(arrival);
        }
    }

    fn refuse(&mut self, arrival: Instant, what: NotTs) {
        self.output.counters.unusable += 1;
        self.watch.other(arrival, what);
    }

    fn look(&mut self, now: Instant) -> Option<SourceState> {
        let Self { packer, output, meter, watch, .. } = self;
        packer.flush(now, &mut |packet| output.feed(packet));
        if let Some((mean, peak)) = meter.look(now) {
            output.channel.publish_rates(mean, peak);
            output.counters.bits_per_s = mean;
        }
        let change = watch.look(now);
        if let Some(state) = change {
            output.channel.publish_state(state);
        }
        output.counters.running = u64::from(watch.state().is_media());
        output.channel.publish_counters(&output.counters);
        output.channel.tap().look(now);
        change
    }
}

/// Whether the source has become a second too fast since this was asked last.
fn packer_hurries(packer: &LivePacker, before: &mut u64) -> bool {
    let now = packer.hurries();
    std::mem::replace(before, now) != now
}

impl LiveOutput {
    fn feed(&mut self, packet: LivePacket<'_>) {
        let number = self.feeder.next_packet();
        self.channel.tap().take(&packet);
        let LivePacket { bytes, flags, time, begins_unit, stamp } = packet;
        // The clocks of two sources differ by a little.
        let time = time.max(self.newest);
        self.is_full |= time.0 >= PacketMeta::MAX_TICKS;
        match self.feeder.push(bytes, flags, time) {
            Ok(()) => {
                self.counters.packets += 1;
                if flags & PacketMeta::DISCONTINUITY != 0 {
                    self.counters.discontinuities += 1;
                    self.channel.add_break(number, self.newest);
                }
                self.newest = time;
                let is_access = flags & PacketMeta::RANDOM_ACCESS != 0;
                if is_access {
                    self.channel.add_point(AccessPoint { packet: number, time }, stamp);
                }
                self.channel.add_packet(number, time, begins_unit, is_access);
            }
            Err(FeedError::NoRoom | FeedError::Size(_)) => self.counters.no_room += 1,
            Err(FeedError::Closed | FeedError::TooLong) => self.is_full = true,
        }
    }
}

/// Bit rates over the last seconds.
#[derive(Debug)]
struct RateMeter {
    bytes: u64,
    since: Instant,
    seconds: VecDeque<u64>,
}

impl RateMeter {
    fn new(now: Instant) -> Self {
        Self { bytes: 0, since: now, seconds: VecDeque::with_capacity(LIVE_RATE_SECONDS) }
    }

    fn count(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// Mean and highest rate, once a second.
    fn look(&mut self, now: Instant) -> Option<(u64, u64)> {
        let ns = now.ns_since(self.since);
        if ns < NS_PER_S {
            return None;
        }
        let rate = u128::from(std::mem::take(&mut self.bytes)) * 8 * u128::from(NS_PER_S) / u128::from(ns);
        self.since = now;
        if self.seconds.len() == LIVE_RATE_SECONDS {
            self.seconds.pop_front();
        }
        self.seconds.push_back(u64::try_from(rate).unwrap_or(u64::MAX));
        // Silent seconds do not count: viewers need the rate of the media when it resumes.
        let known = || self.seconds.iter().filter(|&&rate| rate > 0);
        let mean = known().sum::<u64>() / (known().count() as u64).max(1);
        known().max().map(|&peak| (mean, peak))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_the_seconds_in_which_something_came() {
        let mut meter = RateMeter::new(Instant(0));
        let mut second = |n: u64, bytes| {
            meter.count(bytes);
            meter.look(Instant(n * NS_PER_S))
        };
        assert_eq!(second(0, 500_000), None);
        assert_eq!(second(1, 500_000), Some((8_000_000, 8_000_000)));
        assert_eq!(second(2, 500_000), Some((6_000_000, 8_000_000)));
        let silent: Vec<_> = (3..14).map(|n| second(n, 0)).collect();
        assert_eq!(silent[0], Some((6_000_000, 8_000_000)));
        assert_eq!(silent[10], None, "the rate before stays");
    }
}
