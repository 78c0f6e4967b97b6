//! The life of one stream: its states as a table, and what is known of it.
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

use millrace_core::ids::{StreamId, TitleRef};
use millrace_core::limits::TS_PACKET_BYTES;
use millrace_core::packet::WireLayout;
use millrace_core::time::{Instant, MediaTicks};
use millrace_core::wire::rtp::{Timeline, sequence_of};

use crate::pace::{LastBurst, Pace};
use crate::types::{FailReason, Refusal, StreamSpec};

/// Where a stream is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
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

/// What can happen to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Input {
    /// Command.
    Open,
    /// Command.
    Play,
    /// Command.
    Pause,
    /// Command to all streams: say BYE now.
    Finish,
    /// Command.
    Close,
    /// The last packet was taken.
    LastPacket,
    /// The BYE was taken.
    ByeSent,
    /// Something is wrong for good.
    Fail,
    /// The control side has been told that the stream is closed.
    ClosedTold,
}

/// What follows from an input in a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The state after it.
    Go(State),
    /// Nothing changes and nobody is told: the input crossed an event on its way.
    Ignore,
    /// The command cannot be carried out.
    Refuse(Refusal),
}

pub(crate) const STATES: usize = 8;
pub(crate) const INPUTS: usize = 9;

/// `TRANSITIONS[state][input]`.
pub(crate) const TRANSITIONS: [[Next; INPUTS]; STATES] = {
    use Next::{Go, Ignore};
    use State::{Closing, Draining, Ended, Failed, Free, Paused, Playing, Ready};
    const WRONG: Next = Next::Refuse(Refusal::WrongState);
    const UNKNOWN: Next = Next::Refuse(Refusal::UnknownStream);
    // The columns are Open, Play, Pause, Finish, Close, LastPacket, ByeSent, Fail, ClosedTold.
    [
        /* Free     */ [Go(Ready), UNKNOWN, UNKNOWN, Ignore, UNKNOWN, Ignore, Ignore, Ignore, Ignore],
        /* Ready    */
        [WRONG, Go(Playing), WRONG, Ignore, Go(Closing), Ignore, Ignore, Go(Failed), Ignore],
        /* Playing  */
        [WRONG, WRONG, Go(Paused), Go(Draining), Go(Closing), Go(Draining), Ignore, Go(Failed), Ignore],
        /* Paused   */
        [WRONG, Go(Playing), Go(Paused), Go(Draining), Go(Closing), Ignore, Ignore, Go(Failed), Ignore],
        /* Draining */
        [WRONG, Go(Playing), Go(Paused), Go(Draining), Go(Closing), Ignore, Go(Ended), Go(Failed), Ignore],
        /* Ended    */
        [WRONG, Go(Playing), Ignore, Ignore, Go(Closing), Ignore, Ignore, Go(Failed), Ignore],
        /* Failed   */ [WRONG, WRONG, Ignore, Ignore, Go(Closing), Ignore, Ignore, Ignore, Ignore],
        /* Closing  */ [WRONG, UNKNOWN, UNKNOWN, Ignore, UNKNOWN, Ignore, Ignore, Ignore, Go(Free)],
    ]
};

impl State {
    /// What follows from `input`.
    pub(crate) fn next(self, input: Input) -> Next {
        TRANSITIONS[self as usize][input as usize]
    }
}

/// How far an extent that the stream needs has come. Slot `extent % 2` of a stream: it never needs more than the
/// extent it is sending from and the one behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Slot {
    /// Not needed yet.
    Idle,
    /// To be asked for.
    Wanted,
    /// Asked for.
    Asked,
    /// Lent.
    Held,
}

/// Bits of [`Stream::flags`].
pub(crate) mod flag {
    /// The anchor's media time is known.
    pub(crate) const ANCHORED: u8 = 1;
    /// The stream has a timeline of its own: headers are patched.
    pub(crate) const PATCHED: u8 = 2;
    /// Behind by more than a burst, and counted as such.
    pub(crate) const CATCHING_UP: u8 = 4;
    /// The last burst was refused by its destination; since when stands in [`super::Cold`].
    pub(crate) const UNREACHABLE: u8 = 8;
    /// The cache has been told of a playhead.
    pub(crate) const PLAYHEAD: u8 = 16;
    /// No reports, no BYE, for the whole life of the stream.
    pub(crate) const QUIET: u8 = 128;
    /// The read of slot 0 (and of slot 1: this bit shifted by one) has failed once.
    pub(crate) const RETRIED: u8 = 32;
}

/// Bits of [`Stream::events`], in the order in which the control side is told.
pub(crate) mod pending {
    pub(crate) const PAUSED: u8 = 1;
    pub(crate) const DRAINED: u8 = 2;
    pub(crate) const ENDED: u8 = 4;
    pub(crate) const FAILED: u8 = 8;
    pub(crate) const LEFT: u8 = 16;
    pub(crate) const CLOSED: u8 = 32;
}

/// A time that never comes.
pub(crate) const NEVER: Instant = Instant(u64::MAX);

/// [`Stream::spare`] of a stream of which whatever is missing is not sent.
const ANY_SPARE: u8 = u8::MAX;

/// What every burst needs: two cache lines, side by side.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(128))]
pub(crate) struct Stream {
    /// When the packet `next` leaves; [`NEVER`] unless playing with its extent at hand.
    pub(crate) due: Instant,
    /// When the next report (playing) or the BYE (draining) leaves.
    pub(crate) report_due: Instant,
    pub(crate) pace: Pace,
    pub(crate) generation: u32,
    /// The extent of the packet `next`: `next / per_extent`, kept because a division a burst is dear.
    pub(crate) extent: u32,
    pub(crate) last: LastBurst,
    /// First packet not sent.
    pub(crate) next: u32,
    pub(crate) until: u32,
    pub(crate) state: State,
    pub(crate) flags: u8,
    pub(crate) slots: [Slot; 2],
    pub(crate) per_extent: u32,
    pub(crate) total_packets: u32,
    pub(crate) timeline: Timeline,
    pub(crate) title: TitleRef,
    /// What is added to the shared timeline's sequence number; 0: the viewer is on the shared timeline.
    pub(crate) sequence_base: u16,
    pub(crate) layout: WireLayout,
    /// What the control side is to be told.
    pub(crate) events: u8,
    /// How many packets of one codeword its viewer can repair itself.
    pub(crate) spare: u8,
    /// Taken by the device, in the stream's whole life.
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
}

const _: () = assert!(size_of::<Stream>() == 128, "a stream's hot state is two cache lines");

impl Stream {
    /// A free place.
    pub(crate) fn free() -> Self {
        Self {
            due: NEVER,
            report_due: NEVER,
            pace: Pace { at: Instant(0), anchor: MediaTicks(0), scale_permille: 1000 },
            generation: 0,
            extent: 0,
            last: LastBurst::NONE,
            next: 0,
            until: 0,
            state: State::Free,
            flags: 0,
            slots: [Slot::Idle; 2],
            per_extent: 1,
            total_packets: 0,
            timeline: Timeline { ssrc: 0, timestamp_base: 0 },
            title: TitleRef(0),
            sequence_base: 0,
            layout: WireLayout::new(TS_PACKET_BYTES).expect("one TS packet is a valid payload"),
            events: 0,
            spare: 0,
            packets: 0,
            bytes: 0,
        }
    }

    /// How many packets of one codeword may be missing in an extent of a run that began at `from`. None where a run begins or ends
    /// within the extent: the codewords that it cuts through are not repaired. An end of the title cuts nothing.
    pub(crate) fn spare_of(&self, extent: u32, from: u32) -> u8 {
        let first = extent.saturating_mul(self.per_extent);
        let end = first.saturating_add(self.per_extent).min(self.total_packets);
        let is_cut = first < from || self.until < end;
        if is_cut && self.spare != ANY_SPARE { 0 } else { self.spare }
    }

    /// A stream that has just been opened, before its first transition.
    pub(crate) fn opened(spec: &StreamSpec) -> Self {
        Self {
            generation: spec.id.generation,
            per_extent: spec.layout.packets_per_extent(),
            total_packets: spec.packets,
            timeline: spec.timeline,
            title: spec.title,
            layout: spec.layout,
            spare: spec.spare,
            flags: if spec.quiet { flag::QUIET } else { 0 },
            ..Self::free()
        }
    }

    /// Its name.
    pub(crate) fn id(&self, index: u32) -> StreamId {
        StreamId { index, generation: self.generation }
    }

    pub(crate) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Sequence number of packet `packet`.
    pub(crate) fn sequence(&self, packet: u32) -> u16 {
        self.sequence_base.wrapping_add(sequence_of(packet))
    }

    /// Goes to packet `next`, anywhere in the title.
    pub(crate) fn seek(&mut self, next: u32) {
        self.next = next;
        self.extent = next / self.per_extent;
    }

    /// Goes on by `count` packets, at most to the end of the extent; `true` if it is behind that now.
    pub(crate) fn advance(&mut self, count: u32) -> bool {
        self.next += count;
        let behind = self.place() >= self.per_extent;
        self.extent += u32::from(behind);
        behind
    }

    /// Place of the packet `next` in its extent.
    pub(crate) fn place(&self) -> u32 {
        self.next - self.extent * self.per_extent
    }

    /// Whether this run has packets in `extent`, which is not before the one it is in.
    pub(crate) fn reaches(&self, extent: u32) -> bool {
        u64::from(extent) * u64::from(self.per_extent) < u64::from(self.until)
    }

    /// The slot of `extent`, if it is one of the two that the stream may need now.
    pub(crate) fn slot_of(&self, extent: u32) -> Option<usize> {
        let ahead = self.extent + 1;
        (extent == self.extent || extent == ahead && self.reaches(ahead)).then_some((extent % 2) as usize)
    }

    /// When the stream's timer is to fire.
    pub(crate) fn wakes(&self) -> Option<Instant> {
        let at = self.due.min(self.report_due);
        (at != NEVER).then_some(at)
    }
}

/// What is needed now and then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cold {
    /// Media packets that the destination refused.
    pub(crate) unreachable: u64,
    /// Media packets that left after their time.
    pub(crate) late: u64,
    /// Since when the destination refuses everything; valid with [`flag::UNREACHABLE`].
    pub(crate) unreachable_since: Instant,
    /// When BYE is due, if the way is free; valid while draining.
    pub(crate) bye_due: Instant,
    /// First packet of the run.
    pub(crate) run_from: u32,
    /// By when the slots' extents are needed.
    pub(crate) wanted_by: [Instant; 2],
    /// Answer to the last pause.
    pub(crate) paused_packet: u32,
    pub(crate) paused_sequence: u16,
    /// Valid in [`State::Failed`].
    pub(crate) reason: FailReason,
}

impl Cold {
    pub(crate) fn new() -> Self {
        Self {
            unreachable: 0,
            late: 0,
            unreachable_since: Instant(0),
            bye_due: Instant(0),
            run_from: 0,
            wanted_by: [Instant(0); 2],
            paused_packet: 0,
            paused_sequence: 0,
            reason: FailReason::SlowReader,
        }
    }
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
