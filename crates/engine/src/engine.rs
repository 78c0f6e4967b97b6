//! The engine: its state, and the small steps that all its methods are made of.
//!
//! The methods stand in one file for each family: [`commands`], [`arrivals`], [`egress`]; those for
//! queued runs in [`cut`], for full connections in [`waiting`], for runs that begin with more than
//! their pace in [`ahead`], for bytes that go out as fast as they are taken in [`rush`], for
//! devices that read lent data for longer in [`holding`], for runs that leave packets out in
//! [`steps`].

mod ahead;
mod arrivals;
mod commands;
mod cut;
mod egress;
mod holding;
mod rush;
mod steps;
mod waiting;

use millrace_core::dest::Dest;
use millrace_core::ids::{ConnId, StreamId};
use millrace_core::limits::{MAX_BURST_NS, MAX_STREAMS_PER_ENGINE};
use millrace_core::pool::Lease;
use millrace_core::time::{Instant, MediaTicks};
use millrace_core::wheel::Wheel;
use millrace_core::wire::rtp::Timeline;

use self::ahead::regains_lead;
use self::rush::Rush;
use crate::batch::Batch;
use crate::conns::ConnLists;
use crate::frame::times;
use crate::held::HeldLeases;
use crate::limits::SHARED_WAKE_NS;
use crate::pace::BurstRules;
use crate::queue::IndexQueue;
use crate::stream::{
    Cold, Ends, ExtentProgress, HotStream, Input, NEVER, Numbers, StreamState, Transition, flag, pending,
};
use crate::types::{EngineConfig, EngineCounters, FailReason, Refusal, RunEnd, StopReason};

/// Paces streams on a clock that is passed in; the crate's documentation is the contract.
pub struct Engine {
    rules: BurstRules,
    shares_wakes: bool,
    /// How far the wheel is turned; bursts that depart until then leave with those due. It never goes
    /// back: a timer that is set behind it fires at once, whatever the time.
    horizon: Instant,
    /// How much earlier than it departs a burst may leave because others do. It stays as it is until
    /// the horizon is reached, so that the horizon is never farther off than this.
    lead_ns: u64,
    /// Up to then some stream needs its time exactly: it is behind, or as fast as packets may follow each other.
    exact_until: Instant,
    wall_offset_ns: u64,
    cname: String,
    streams: Box<[HotStream]>,
    cold: Box<[Cold]>,
    /// Ends of runs that have not been reported yet. Beside the cold state, because no other code
    /// looks there.
    ends: Box<[Ends]>,
    /// The data to send, with the leases and destinations of all streams.
    batch: Batch,
    wheel: Wheel,
    conns: ConnLists,
    /// What devices still read.
    held: HeldLeases,
    /// Bytes that may leave at any time.
    rush: Rush,
    /// Streams with a slot that is [`ExtentProgress::Wanted`].
    wants: IndexQueue,
    /// Streams with something to tell.
    told: IndexQueue,
    counters: EngineCounters,
}

impl Engine {
    /// Allocates everything that the engine will ever need. Values beyond their limits are taken as the limit:
    /// 1..=[`MAX_STREAMS_PER_ENGINE`] streams, bursts of 1 ns..=[`MAX_BURST_NS`].
    pub fn new(config: EngineConfig) -> Self {
        let streams = config.streams.clamp(1, MAX_STREAMS_PER_ENGINE);
        Self {
            rules: BurstRules {
                burst_ns: config.burst_ns.clamp(1, MAX_BURST_NS),
                gather_ns: if config.shares_wakes { MAX_BURST_NS - SHARED_WAKE_NS } else { MAX_BURST_NS },
                smooth: config.smooth,
            },
            shares_wakes: config.shares_wakes && !config.smooth,
            horizon: Instant(0),
            lead_ns: 0,
            exact_until: Instant(0),
            wall_offset_ns: config.wall_offset_ns,
            cname: config.cname,
            streams: vec![HotStream::free(); streams].into(),
            cold: vec![Cold::new(); streams].into(),
            ends: vec![Ends::new(); streams].into(),
            batch: Batch::new(streams),
            wheel: Wheel::new(streams),
            conns: ConnLists::new(streams),
            held: HeldLeases::new(streams),
            rush: Rush::new(streams),
            wants: IndexQueue::new(streams),
            told: IndexQueue::new(streams),
            counters: EngineCounters::default(),
        }
    }

    /// Sets how much media time leaves as one burst of datagrams from now on, in nanoseconds: 1..=[`MAX_BURST_NS`]. Bursts in TCP
    /// connections follow it ([`crate::pace`]).
    pub fn set_burst_ns(&mut self, burst_ns: u64) {
        self.rules.burst_ns = burst_ns.clamp(1, MAX_BURST_NS);
    }

    /// Getter: whether streams share wake-ups.
    pub fn shares_wakes(&self) -> bool {
        self.shares_wakes
    }

    /// Getter: size of the stream table.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// Getter: the connection that a stream goes through, while it is open.
    pub fn conn_of(&self, id: StreamId) -> Option<ConnId> {
        let index = self.find(id).ok()?;
        let is_open = !matches!(self.stream(index).state, StreamState::Free | StreamState::Closing);
        self.batch.rows[index as usize].dest.conn().filter(|_| is_open)
    }

    /// Getter: of a stream to a group, the errno of its last refused packets, 0 if they left; `None` for all other
    /// streams.
    pub fn group_errno(&self, id: StreamId) -> Option<i32> {
        let index = self.find(id).ok()?;
        let is_group = matches!(self.batch.rows[index as usize].dest, Dest::Multicast { .. });
        let is_refused = self.stream(index).has(flag::UNREACHABLE);
        is_group.then(|| if is_refused { self.cold[index as usize].unreachable_errno } else { 0 })
    }

    /// Getter: whether a stream sends bytes ([`Dest::Bytes`](millrace_core::dest::Dest::Bytes)).
    pub fn is_bytes(&self, id: StreamId) -> bool {
        self.find(id).is_ok_and(|index| self.stream(index).has(flag::BYTES))
    }

    /// Getter: for how long the next packet of a stream's run has been due; 0 if it is not yet, or
    /// nothing runs. Media that may be sent ahead ([`crate::Start`]) is due from the beginning.
    pub fn behind_ns(&self, now: Instant, id: StreamId) -> u64 {
        let running = self.find(id).ok().filter(|index| self.stream(*index).is_running);
        running.map_or(0, |index| now.ns_since(self.next_due(index).0))
    }

    /// Getter: the counts to date.
    pub fn counters(&self) -> &EngineCounters {
        &self.counters
    }

    fn stream(&self, index: u32) -> &HotStream {
        &self.streams[index as usize]
    }

    fn stream_mut(&mut self, index: u32) -> &mut HotStream {
        &mut self.streams[index as usize]
    }

    fn cold_mut(&mut self, index: u32) -> &mut Cold {
        &mut self.cold[index as usize]
    }

    /// The place of a stream that is (or was last) there.
    fn find(&self, id: StreamId) -> Result<u32, Refusal> {
        let there = self.streams.get(id.index as usize).filter(|s| s.generation == id.generation);
        there.map(|_| id.index).ok_or(Refusal::UnknownStream)
    }

    /// Takes the transition for `input`; `false` if the table ignores it.
    fn step(&mut self, index: u32, input: Input) -> Result<bool, Refusal> {
        let stream = self.stream_mut(index);
        let before = stream.state;
        match before.next(input) {
            Transition::Refuse(refusal) => Err(refusal),
            Transition::Ignore => Ok(false),
            Transition::Go(after) => {
                stream.state = after;
                self.counters.playing += u64::from(after == StreamState::Playing);
                self.counters.playing -= u64::from(before == StreamState::Playing);
                Ok(true)
            }
        }
    }

    /// Sets the stream's timer to its earliest event, or cancels the timer.
    fn arm(&mut self, index: u32, now: Instant) {
        if self.stream(index).rushes() && self.line_up(index, now) {
            return;
        }
        match self.stream(index).wakes(self.lead_ns) {
            Some(at) => self.wheel.set(index, at, now),
            None => self.wheel.cancel(index),
        }
    }

    /// Notes events for the control side.
    fn tell(&mut self, index: u32, events: u8) {
        self.stream_mut(index).events |= events;
        self.told.push_back(index);
    }

    /// Asks for `extent` into its slot.
    fn want(&mut self, index: u32, extent: u32, by: Instant) {
        let slot = (extent % 2) as usize;
        self.stream_mut(index).slots[slot] = ExtentProgress::Wanted;
        self.cold_mut(index).wanted_by[slot] = by;
        self.wants.push_back(index);
    }

    /// Gives the extent in `slot` back, or no longer waits for it.
    fn release(&mut self, index: u32, slot: usize) {
        let lease = self.batch.rows[index as usize].leases[slot].take();
        let stream = &mut self.streams[index as usize];
        if stream.has(flag::LENDS) {
            self.held.keep(index, slot, lease, stream.packets);
        }
        stream.slots[slot] = ExtentProgress::Idle;
        stream.flags &= !(flag::RETRIED << slot);
    }

    /// Ends the media: timers, wants and leases go, and the cache is notified that the playhead is
    /// gone.
    fn stop_sending(&mut self, index: u32) {
        self.release(index, 0);
        self.release(index, 1);
        self.wheel.cancel(index);
        self.held.stop_waiting(index);
        let stream = self.stream_mut(index);
        stream.due = NEVER;
        stream.report_due = NEVER;
        let waits = flag::BLOCKED | flag::PARKED | flag::RESUMED;
        stream.flags &= !(flag::UNREACHABLE | flag::CATCHING_UP | waits);
        if stream.has(flag::PLAYHEAD) {
            self.tell(index, pending::LEFT);
        }
    }

    /// Ends the run, if one lasts: its end will be reported. Must precede the return of its leases,
    /// which determine when its next packet is due.
    fn end_run(&mut self, index: u32, reason: StopReason) {
        if !self.stream(index).is_running {
            return;
        }
        let (next_due, time) = self.next_due(index);
        let (stream, cold) = (&mut self.streams[index as usize], &mut self.cold[index as usize]);
        let next_sequence = stream.sequence(stream.next);
        if let Some(time) = time {
            let timestamp = stream.timeline.timestamp(time);
            cold.numbers = Some(Numbers { ssrc: stream.timeline.ssrc, sequence: next_sequence, timestamp });
        }
        self.ends[index as usize].push(RunEnd {
            run: stream.run,
            reason,
            next_packet: stream.next,
            next_sequence,
            bursts: stream.bursts,
            packets: (stream.packets - cold.packets_before) as u32,
            bytes: stream.bytes - cold.bytes_before,
            missing: cold.missing,
            next_due,
        });
        stream.is_running = false;
        // Events about it that are not reported yet are not news any more.
        stream.events &= !(pending::RUN_BEGAN | pending::DRAINED);
        self.tell(index, pending::RUN_ENDED);
        self.drop_queued(index, reason);
    }

    /// When the packet `next` is due, and its media time; no time before the run's first extent is there.
    fn next_due(&self, index: u32) -> (Instant, Option<MediaTicks>) {
        let (stream, cold) = (self.stream(index), &self.cold[index as usize]);
        if !stream.has(flag::ANCHORED) {
            let due = cold.gap_behind.map_or(stream.pace.at, |behind| stream.pace.departure(behind));
            return (due, cold.gap_behind);
        }
        // Where an extent ends with the run, the content of the next one's slot belongs to a queued
        // run.
        let is_own = cold.queued_slot != Some((stream.extent % 2) as u8);
        let time = match self.batch.lease(index, stream.extent).filter(|_| is_own) {
            Some(held) if stream.place() < held.content().packets => time_of(held, stream.place()),
            Some(held) => time_behind(held),
            None => cold.time_behind,
        };
        (stream.pace.departure(time), Some(time))
    }

    fn fail(&mut self, index: u32, now: Instant, reason: FailReason) {
        // Its leases go: a batch that reads them must not be looked at any more.
        self.abandon_batch(now);
        self.give_up(index, reason);
    }

    /// The same for a stream that holds no lease, or is not in the batch.
    fn give_up(&mut self, index: u32, reason: FailReason) {
        if self.step(index, Input::Fail) == Ok(true) {
            self.end_run(index, StopReason::Failed(reason));
            self.stop_sending(index);
            self.cold_mut(index).reason = reason;
            self.counters.failed += 1;
            self.tell(index, pending::FAILED);
        }
    }

    /// Works out when the next packet leaves, if its extent is at hand. The first time, this fixes the anchor.
    #[inline]
    fn schedule(&mut self, index: u32, now: Instant) {
        let stream = &mut self.streams[index as usize];
        let Some(lease) = self.batch.lease(index, stream.extent) else {
            stream.due = NEVER;
            return;
        };
        let time = time_of(lease, stream.place());
        if !stream.has(flag::ANCHORED) {
            anchor(stream, &mut self.cold[index as usize], time);
        }
        let departure = stream.pace.departure(time);
        // Only the viewer holds back such a connection.
        let is_free = regains_lead(stream, &self.cold[index as usize]);
        if departure <= now && (is_free || stream.rushes()) {
            stream.flags |= flag::AHEAD;
            (stream.due, stream.may_lead) = (now, false);
            return;
        }
        stream.due = if is_free { departure } else { stream.last.next_leaves(departure) };
        stream.may_lead = stream.due == departure && (is_free || !stream.has(flag::AHEAD));
        if !stream.may_lead {
            self.exact_until = self.exact_until.max(stream.due);
        }
    }

    /// The engine has no report that the batch was sent, so everything in it is due again.
    fn abandon_batch(&mut self, now: Instant) {
        for at in 0..self.batch.clear() {
            self.arm(self.batch.entry(at).stream.index, now);
        }
    }
}

/// The media time of a run's first packet is known, or of the first behind a gap: departures, and timestamps that go on, follow from it.
#[cold]
fn anchor(stream: &mut HotStream, cold: &mut Cold, time: MediaTicks) {
    stream.flags |= flag::ANCHORED;
    if let Some(behind) = cold.gap_behind.take() {
        let gap = time.since(behind);
        stream.pace.anchor.0 += gap.0;
        let timestamp_base = stream.timeline.timestamp_base.wrapping_sub(gap.0 as u32);
        let timeline = Timeline { timestamp_base, ..stream.timeline };
        return stream.number(timeline, stream.sequence_base, &cold.media);
    }
    stream.pace.anchor = if stream.has(flag::AHEAD) { MediaTicks(time.0 + cold.ahead.0) } else { time };
    if let Some(timestamp) = cold.first_timestamp {
        let timestamp_base = timestamp.wrapping_sub(time.0 as u32);
        let timeline = Timeline { timestamp_base, ..stream.timeline };
        stream.number(timeline, stream.sequence_base, &cold.media);
    }
}

/// Media time of packet `place` of an extent that fits its run.
fn time_of(lease: &Lease, place: u32) -> MediaTicks {
    times(lease, place, 1).next().unwrap_or_default()
}

/// Media time behind the last packet of an extent that fits its run, if that packet is as long as the one before.
fn time_behind(lease: &Lease) -> MediaTicks {
    let last = lease.content().packets - 1;
    let (before, time) = (time_of(lease, last.saturating_sub(1)), time_of(lease, last));
    MediaTicks(time.0 + time.since(before).0)
}
