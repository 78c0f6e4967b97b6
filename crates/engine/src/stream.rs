//! The life of one stream: its states as a table, and its data. A run lasts until Playing and
//! Draining are left; `play` while one lasts ends it and begins the next, and so does the cut to a
//! queued run.
//!
//! ```text
//!            open           play                  last packet              BYE sent
//!   (Free) -------> Ready -------> Playing ------------------> Draining -------------> Ended
//!      ^                             |  ^  ^                     |  |                    |
//!      |                       pause |  |  +------- play --------+  |                    |
//!      |                             v  |                     pause |                    |
//!      |                            Paused <------------------------+                    |
//!      |                                ^                                                |
//!      |                                +- - - - (play goes to Playing from here too) - -+
//!      |  Closed told          close
//!      +-------------- Closing <------- any of them, Failed too
//!                                       Failed: from any of them, when the title cannot be read, the reader is too
//!                                       slow, the connection is gone, or nothing gets through
//!   finish: Playing, Paused, Draining -> Draining with BYE at once
//! ```
//!
//! [`TRANSITIONS`] is the same as data; its test looks at every state and every input.

pub(crate) use crate::limits::MAX_UNTOLD_ENDS;
use millrace_core::dest::Dest;
use millrace_core::ids::{RunSerial, StreamId, TitleRef};
use millrace_core::limits::TS_PACKET_BYTES;
use millrace_core::packet::WireLayout;
use millrace_core::time::{Instant, MediaTicks};
use millrace_core::wire::rtp::{Timeline, sequence_of};

use crate::pace::{LastBurst, RunPacing};
use crate::types::{
    FailReason, Numbering, Refusal, RunEnd, RunMedia, RunSpec, StepPattern, StopReason, StreamSpec,
};

/// Where a stream is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum StreamState {
    /// The place in the table is free.
    Free,
    /// Opened; has never played.
    Ready,
    /// Sending, or waiting for its time or for an extent.
    Playing,
    /// Stopped by the viewer.
    Paused,
    /// The last packet is sent, BYE waits.
    Draining,
    /// BYE is sent.
    Ended,
    /// Cannot go on.
    Failed,
    /// Forgotten, but the control side does not know yet.
    Closing,
}

/// The inputs of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Input {
    /// Command.
    Open,
    /// Command.
    Play,
    /// Command: the run that follows.
    Queue,
    /// Command.
    Pause,
    /// Command to all streams: say BYE now.
    Finish,
    /// Command.
    Close,
    /// The last packet was taken.
    LastPacket,
    /// The last packet was taken, and another run is queued.
    Cut,
    /// The BYE was taken.
    ByeSent,
    /// Something is wrong for good.
    Fail,
    /// The control side has been notified that the stream is closed.
    ClosedTold,
}

/// What follows from an input in a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transition {
    /// The state after it.
    Go(StreamState),
    /// Nothing changes and nothing is reported: the input crossed an event on its way.
    Ignore,
    /// The command cannot be carried out.
    Refuse(Refusal),
}

pub(crate) const STATES: usize = 8;
pub(crate) const INPUTS: usize = 11;

/// `TRANSITIONS[state][input]`.
pub(crate) const TRANSITIONS: [[Transition; INPUTS]; STATES] = {
    use StreamState::{Closing, Draining, Ended, Failed, Free, Paused, Playing, Ready};
    use Transition::{Go, Ignore};
    const WRONG: Transition = Transition::Refuse(Refusal::WrongState);
    const UNKNOWN: Transition = Transition::Refuse(Refusal::UnknownStream);
    // The columns are Open, Play, Queue, Pause, Finish, Close, LastPacket, Cut, ByeSent, Fail, ClosedTold.
    [
        /* Free     */
        [Go(Ready), UNKNOWN, UNKNOWN, UNKNOWN, Ignore, UNKNOWN, Ignore, Ignore, Ignore, Ignore, Ignore],
        /* Ready    */
        [WRONG, Go(Playing), WRONG, WRONG, Ignore, Go(Closing), Ignore, Ignore, Ignore, Go(Failed), Ignore],
        /* Playing  */
        [
            WRONG,
            Go(Playing),
            Go(Playing),
            Go(Paused),
            Go(Draining),
            Go(Closing),
            Go(Draining),
            Go(Playing),
            Ignore,
            Go(Failed),
            Ignore,
        ],
        /* Paused   */
        [
            WRONG,
            Go(Playing),
            WRONG,
            Ignore,
            Go(Draining),
            Go(Closing),
            Ignore,
            Ignore,
            Ignore,
            Go(Failed),
            Ignore,
        ],
        /* Draining */
        [
            WRONG,
            Go(Playing),
            WRONG,
            Go(Paused),
            Go(Draining),
            Go(Closing),
            Ignore,
            Ignore,
            Go(Ended),
            Go(Failed),
            Ignore,
        ],
        /* Ended    */
        [WRONG, Go(Playing), WRONG, Ignore, Ignore, Go(Closing), Ignore, Ignore, Ignore, Go(Failed), Ignore],
        /* Failed   */
        [WRONG, WRONG, WRONG, Ignore, Ignore, Go(Closing), Ignore, Ignore, Ignore, Ignore, Ignore],
        /* Closing  */
        [WRONG, UNKNOWN, UNKNOWN, UNKNOWN, Ignore, UNKNOWN, Ignore, Ignore, Ignore, Ignore, Go(Free)],
    ]
};

impl StreamState {
    /// What follows from `input`.
    pub(crate) fn next(self, input: Input) -> Transition {
        TRANSITIONS[self as usize][input as usize]
    }
}

/// How far an extent that the stream needs has come. Slot `extent % 2` of a stream: it never needs more than the
/// extent it is sending from and the one behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ExtentProgress {
    /// Not needed yet.
    Idle,
    /// To be asked for.
    Wanted,
    /// Asked for.
    Asked,
    /// Lent.
    Held,
}

/// Bits of [`HotStream::flags`].
pub(crate) mod flag {
    /// The anchor's media time is known.
    pub(crate) const ANCHORED: u16 = 1;
    /// The run's numbers are not the title's: headers are patched.
    pub(crate) const PATCHED: u16 = 2;
    /// Behind by more than a burst, and counted as such.
    pub(crate) const CATCHING_UP: u16 = 4;
    /// The last burst was refused by its destination; since when stands in [`super::Cold`].
    pub(crate) const UNREACHABLE: u16 = 8;
    /// The cache has been notified of a playhead.
    pub(crate) const PLAYHEAD: u16 = 16;
    /// No reports, no BYE, for the whole life of the stream.
    pub(crate) const QUIET: u16 = 128;
    /// The schedule is another stream's: it is kept, however late that is.
    pub(crate) const FOLLOWS: u16 = 2048;
    /// It has not yet sent as much ahead of its pace as it may.
    pub(crate) const AHEAD: u16 = 8192;
    /// The device reads the packets it has taken until it reports that it is done with them.
    pub(crate) const LENDS: u16 = 16384;
    /// Packets of the title are left out ([`crate::StepPattern`]).
    pub(crate) const STEPS: u16 = 32768;
    /// The run sends bytes in a connection.
    pub(crate) const BYTES: u16 = 4096;
    /// The read of slot 0 (and of slot 1: this bit shifted by one) has failed once.
    pub(crate) const RETRIED: u16 = 32;
    /// Its connection took nothing of the last data sent: the stream waits until the connection can
    /// be written again.
    pub(crate) const BLOCKED: u16 = 256;
    /// With [`BLOCKED`]: it has waited long enough to give its extents back.
    pub(crate) const PARKED: u16 = 512;
    /// It was parked, and waits for its extent: the hole until that comes is the viewer's, not ours.
    pub(crate) const RESUMED: u16 = 1024;
}

/// What [`HotStream::rushes`].
const RUSH: u16 = flag::BYTES | flag::AHEAD;

/// Bits of [`HotStream::events`], in the order in which they are reported to the control side.
pub(crate) mod pending {
    /// Ends of runs, in [`super::Ends`].
    pub(crate) const RUN_ENDED: u8 = 1;
    /// Of the run that lasts, as the next one.
    pub(crate) const RUN_BEGAN: u8 = 2;
    pub(crate) const DRAINED: u8 = 4;
    pub(crate) const FAILED: u8 = 8;
    pub(crate) const LEFT: u8 = 16;
    pub(crate) const CLOSED: u8 = 32;
}

/// A time that never comes.
pub(crate) const NEVER: Instant = Instant(u64::MAX);

/// [`RunMedia::spare`] of a run whose missing packets are simply not sent.
const ANY_SPARE: u8 = u8::MAX;

/// The state that every burst needs: two cache lines, side by side.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(128))]
pub(crate) struct HotStream {
    /// When the packet `next` leaves; [`NEVER`] unless playing with its extent at hand.
    pub(crate) due: Instant,
    /// When the next report (playing) or the BYE (draining) leaves.
    pub(crate) report_due: Instant,
    pub(crate) pace: RunPacing,
    pub(crate) generation: u32,
    /// The extent of the packet `next`: `next / per_extent`, kept because a division a burst is dear.
    pub(crate) extent: u32,
    pub(crate) last: LastBurst,
    /// First packet not sent.
    pub(crate) next: u32,
    /// Where sending ends: the end of the run, or of a block of it.
    pub(crate) until: u32,
    pub(crate) state: StreamState,
    /// Events to report to the control side.
    pub(crate) events: u8,
    pub(crate) slots: [ExtentProgress; 2],
    pub(crate) per_extent: u16,
    /// Place in the extent behind which the extent ahead is asked for.
    pub(crate) ask_at: u16,
    /// The run that lasts, or the last one.
    pub(crate) run: RunSerial,
    /// Bursts of the run taken by the device.
    pub(crate) bursts: u32,
    /// The timeline that the viewer sees: the title's, or that of a run before.
    pub(crate) timeline: Timeline,
    /// Offset added to the shared timeline's sequence number.
    pub(crate) sequence_base: u16,
    pub(crate) flags: u16,
    /// A run lasts: its end has yet to come.
    pub(crate) is_running: bool,
    /// `due` is the departure of the packet `next`, nothing puts it off: it may leave earlier, with others ([`crate::EngineConfig::shares_wakes`]).
    pub(crate) may_lead: bool,
    /// Taken by the device, in the stream's whole life.
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
}

const _: () = assert!(size_of::<HotStream>() == 128, "a stream's hot state is two cache lines");

const NO_TIMELINE: Timeline = Timeline { ssrc: 0, timestamp_base: 0 };

impl HotStream {
    /// A free place.
    pub(crate) fn free() -> Self {
        Self {
            due: NEVER,
            report_due: NEVER,
            pace: RunPacing { at: Instant(0), anchor: MediaTicks(0), scale_permille: 1000 },
            generation: 0,
            extent: 0,
            last: LastBurst::NONE,
            next: 0,
            until: 0,
            state: StreamState::Free,
            flags: 0,
            slots: [ExtentProgress::Idle; 2],
            per_extent: 1,
            ask_at: 0,
            run: RunSerial(0),
            bursts: 0,
            timeline: NO_TIMELINE,
            sequence_base: 0,
            events: 0,
            is_running: false,
            may_lead: false,
            packets: 0,
            bytes: 0,
        }
    }

    /// A stream that has just been opened, before its first transition.
    pub(crate) fn opened(spec: &StreamSpec) -> Self {
        let if_so = |is_so, flags| if is_so { flags } else { 0 };
        let flags = if_so(spec.quiet, flag::QUIET | flag::FOLLOWS)
            | if_so(!spec.dest.has_rtcp(), flag::QUIET)
            | if_so(spec.lends, flag::LENDS)
            | if_so(matches!(spec.dest, Dest::Bytes { .. }), flag::BYTES);
        Self { generation: spec.id.generation, flags, ..Self::free() }
    }

    /// Its name.
    pub(crate) fn id(&self, index: u32) -> StreamId {
        StreamId { index, generation: self.generation }
    }

    pub(crate) fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Bytes that are still sent ahead of their pace: nothing but their connection holds them back ([`crate::engine::rush`]).
    pub(crate) fn rushes(&self) -> bool {
        self.flags & RUSH == RUSH
    }

    /// Sequence number of packet `packet`.
    pub(crate) fn sequence(&self, packet: u32) -> u16 {
        self.sequence_base.wrapping_add(sequence_of(packet))
    }

    /// From now on packets of `media` are numbered so, if they have numbers.
    pub(crate) fn number(&mut self, timeline: Timeline, sequence_base: u16, media: &RunMedia) {
        (self.timeline, self.sequence_base) = (timeline, sequence_base);
        self.flags &= !flag::PATCHED;
        let has_numbers = !media.layout.is_raw() && !self.has(flag::BYTES);
        if media.layout.is_raw() {
            // RTCP reports on RTP packets, and this layout has none.
            self.flags |= flag::QUIET;
        }
        if has_numbers && (timeline != media.timeline || sequence_base != 0) {
            self.flags |= flag::PATCHED;
        }
    }

    /// Goes to packet `next`, anywhere in the title.
    pub(crate) fn seek(&mut self, next: u32) {
        self.next = next;
        self.extent = next / u32::from(self.per_extent);
    }

    /// Goes on by `count` packets, at most to the end of the extent; `true` if it is behind that now.
    pub(crate) fn advance(&mut self, count: u32) -> bool {
        self.next += count;
        let behind = self.place() >= u32::from(self.per_extent);
        self.extent += u32::from(behind);
        behind
    }

    /// First packet of an extent that is not behind the one ahead.
    pub(crate) fn first_of(&self, extent: u32) -> u32 {
        extent * u32::from(self.per_extent)
    }

    /// Place of the packet `next` in its extent.
    pub(crate) fn place(&self) -> u32 {
        self.next - self.first_of(self.extent)
    }

    /// Whether this run has packets in `extent`, which is not before the one it is in.
    pub(crate) fn reaches(&self, extent: u32) -> bool {
        u64::from(extent) * u64::from(self.per_extent) < u64::from(self.until)
    }

    /// The slot of `extent`, if it is one of the two that the run may need now.
    pub(crate) fn slot_of(&self, extent: u32) -> Option<usize> {
        let ahead = self.extent + 1;
        (extent == self.extent || extent == ahead && self.reaches(ahead)).then_some((extent % 2) as usize)
    }

    /// Returns when the stream's timer must fire, on a wheel that runs ahead by `lead_ns`: packets
    /// that must not leave earlier are set later by as much.
    pub(crate) fn wakes(&self, lead_ns: u64) -> Option<Instant> {
        let exact = |due: Instant| Instant(due.0.saturating_add(lead_ns));
        let due = if self.may_lead { self.due } else { exact(self.due) };
        let at = due.min(exact(self.report_due));
        (at != NEVER).then_some(at)
    }
}

/// How many packets of one codeword may be missing in an extent of a run from `from` to `until`. None where the run begins or ends
/// within the extent: the codewords that it cuts through are not repaired. An end of the title cuts nothing.
pub(crate) fn spare_of(media: &RunMedia, from: u32, until: u32, extent: u32) -> u8 {
    let per_extent = media.layout.packets_per_extent();
    let first = extent.saturating_mul(per_extent);
    let end = first.saturating_add(per_extent).min(media.packets);
    let is_cut = first < from || until < end;
    if is_cut && media.spare != ANY_SPARE { 0 } else { media.spare }
}

/// Where the viewer's numbers stand behind a run, for one that goes on from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numbers {
    pub(crate) ssrc: u32,
    pub(crate) sequence: u16,
    pub(crate) timestamp: u32,
}

/// State needed once an extent, once a run, or less.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cold {
    /// The media of the run.
    pub(crate) media: RunMedia,
    /// First packet of the run.
    pub(crate) run_from: u32,
    /// Where it ends if it is not cut.
    pub(crate) run_until: u32,
    /// Of bytes: those of the first packet before it, and of the last up to its end, or 0.
    pub(crate) trim: (u16, u16),
    /// The packets that the run leaves out, and where it ends now; valid with [`flag::STEPS`].
    pub(crate) step: Option<StepPattern>,
    pub(crate) step_until: u32,
    /// Media time behind the last packet, while it is not known how much is left out behind that.
    pub(crate) gap_behind: Option<MediaTicks>,
    /// What follows where the run ends.
    pub(crate) queued: Option<RunSpec>,
    /// The slot of its first extent, once that has been asked for: the one in which else the extent ahead lies.
    pub(crate) queued_slot: Option<u8>,
    /// The run was queued behind another one: it keeps the schedule that it took over.
    pub(crate) is_continued: bool,
    /// By when the slots' extents are needed.
    pub(crate) wanted_by: [Instant; 2],
    /// Media that the run may be ahead of its pace; [`flag::AHEAD`] shows whether it has yet to get
    /// there.
    pub(crate) ahead: MediaTicks,
    /// Media time behind the last packet that is gone; valid where its extent has been given back.
    pub(crate) time_behind: MediaTicks,
    /// [`HotStream::packets`] and [`HotStream::bytes`] as the run began.
    pub(crate) packets_before: u64,
    pub(crate) bytes_before: u64,
    /// Packets of the run that were missing in their extents.
    pub(crate) missing: u32,
    /// Behind the last run that has begun.
    pub(crate) numbers: Option<Numbers>,
    /// The timestamp that the run's first packet gets; `None`: its title's.
    pub(crate) first_timestamp: Option<u32>,
    /// Media packets that the destination refused.
    pub(crate) unreachable: u64,
    /// Media packets that left after their time.
    pub(crate) late: u64,
    /// Since when the destination refuses everything; valid with [`flag::UNREACHABLE`].
    pub(crate) unreachable_since: Instant,
    /// The last reason; valid with [`flag::UNREACHABLE`].
    pub(crate) unreachable_errno: i32,
    /// Since when the connection takes nothing; valid with [`flag::BLOCKED`].
    pub(crate) blocked_since: Instant,
    /// When BYE is due, if the way is free; valid while draining.
    pub(crate) bye_due: Instant,
    /// Valid in [`StreamState::Failed`].
    pub(crate) reason: FailReason,
    /// [`StreamSpec::once`].
    pub(crate) once: bool,
}

impl Cold {
    pub(crate) fn new() -> Self {
        Self {
            media: RunMedia {
                title: TitleRef(0),
                packets: 0,
                timeline: NO_TIMELINE,
                layout: WireLayout::new(TS_PACKET_BYTES).expect("one TS packet is a valid payload"),
                spare: 0,
            },
            run_from: 0,
            run_until: 0,
            trim: (0, 0),
            step: None,
            step_until: 0,
            gap_behind: None,
            queued: None,
            queued_slot: None,
            is_continued: false,
            wanted_by: [Instant(0); 2],
            ahead: MediaTicks(0),
            time_behind: MediaTicks(0),
            packets_before: 0,
            bytes_before: 0,
            missing: 0,
            numbers: None,
            first_timestamp: None,
            unreachable: 0,
            late: 0,
            unreachable_since: Instant(0),
            unreachable_errno: 0,
            blocked_since: Instant(0),
            bye_due: Instant(0),
            reason: FailReason::SlowReader,
            once: false,
        }
    }

    /// The sequence number of a run's first packet.
    pub(crate) fn first_sequence(&self, spec: &RunSpec) -> u16 {
        match (spec.numbering, self.numbers) {
            (Numbering::Sequence(sequence) | Numbering::Own(sequence), _) => sequence,
            (Numbering::Viewer, Some(numbers)) => numbers.sequence,
            (Numbering::Title | Numbering::Bytes { .. }, _) | (Numbering::Viewer, None) => {
                sequence_of(spec.from)
            }
        }
    }

    /// Takes note of a run that begins, and how its packets are numbered: as the viewer sees it, and the title itself.
    pub(crate) fn begin(&mut self, spec: &RunSpec, stream: &HotStream) -> (Timeline, u16) {
        let sequence = self.first_sequence(spec);
        let goes_on = self.numbers.filter(|_| spec.numbering == Numbering::Viewer);
        let own = spec.media.timeline;
        let timeline = goes_on.map_or(own, |numbers| Timeline { ssrc: numbers.ssrc, ..own });
        self.media = spec.media;
        if let Numbering::Own(_) = spec.numbering {
            // No header that lies in an extent is this run's, whatever its numbers are.
            self.media.timeline.ssrc = !own.ssrc;
        }
        (self.run_from, self.run_until) = (spec.from, spec.until);
        (self.step, self.gap_behind) = (spec.step, None);
        self.trim = match spec.numbering {
            Numbering::Bytes { head, last } => (head, last),
            Numbering::Title | Numbering::Sequence(_) | Numbering::Own(_) | Numbering::Viewer => (0, 0),
        };
        self.is_continued = false;
        (self.packets_before, self.bytes_before) = (stream.packets, stream.bytes);
        self.missing = 0;
        self.first_timestamp = goes_on.map(|numbers| numbers.timestamp);
        (timeline, sequence.wrapping_sub(sequence_of(spec.from)))
    }
}

/// Ends of runs that have not been reported to the control side yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    list: [RunEnd; MAX_UNTOLD_ENDS],
    len: u8,
}

impl Ends {
    pub(crate) fn new() -> Self {
        let none = RunEnd {
            run: RunSerial(0),
            reason: StopReason::Finished,
            next_packet: 0,
            next_sequence: 0,
            bursts: 0,
            packets: 0,
            bytes: 0,
            missing: 0,
            next_due: NEVER,
        };
        Self { list: [none; MAX_UNTOLD_ENDS], len: 0 }
    }

    /// Whether the end of one more run has a place beside those of `lasting` runs that last.
    pub(crate) fn has_room(&self, lasting: usize) -> bool {
        usize::from(self.len) + lasting < MAX_UNTOLD_ENDS
    }

    /// Adds one; the caller has checked with [`Ends::has_room`] that there is room.
    pub(crate) fn push(&mut self, end: RunEnd) {
        if let Some(place) = self.list.get_mut(usize::from(self.len)) {
            *place = end;
            self.len += 1;
        }
    }

    /// The oldest.
    pub(crate) fn pop(&mut self) -> Option<RunEnd> {
        self.len = self.len.checked_sub(1)?;
        let first = self.list[0];
        self.list.rotate_left(1);
        Some(first)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
