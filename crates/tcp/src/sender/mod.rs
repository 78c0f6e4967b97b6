//! The sending half of a connection, as far as the time and the choice of transmissions are
//! concerned: the data in flight, the data lost, the amount that may go.
//!
//! It knows sequence numbers and times only; contents, headers and the receiver's window belong to whoever uses it:
//!
//! 1. [`Sender::next`] returns the data that may go now; the caller that sends it reports this with
//!    [`Sender::sent`], and asks again.
//! 2. [`Sender::acked`] takes each acknowledgment, in the order of arrival.
//! 3. [`Sender::due`] is when [`Sender::fired`] wants to be called, if nothing happens before.
//! 4. [`Sender::device_done`] reports that the device has given a frame back. Bytes before
//!    [`Sender::free_until`] are not needed any more.

use millrace_core::time::Instant;

use crate::cc::validate::Validate;
use crate::cc::{Algorithm, CongestionControl, Controller};
use crate::limits::{MTU_PROBE_PAUSE_NS, RTO_MAX_NS};
use crate::mtu::Mtu;
use crate::pace::SegmentPacer;
use crate::recover::board::Board;
use crate::recover::frto::Frto;
use crate::recover::prr::Prr;
use crate::recover::rack::Rack;
use crate::recover::records::{Records, SACKED};
use crate::recover::tlp::Tlp;
use crate::recover::undo::Undo;
use crate::rtt::{Rtt, Tick, nanoseconds, ticks};
use crate::seq::Seq;
use crate::wire::{Sacks, Stamps};

mod ack;
mod output;
mod timers;

/// Settings of a sender: the outcome of the handshake.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The first byte to be sent (ISS + 1).
    pub first: Seq,
    /// Largest payload of a segment to begin with: the peer's limit, the path's MTU as far as it is
    /// known, less the options that every segment carries. In bytes. A FIN counts as a byte of it.
    pub mss: u16,
    /// Largest payload that probing may raise it to (the device's MTU, the peer's MSS); as `mss` where probing is off.
    pub mss_limit: u16,
    /// Both ends agreed upon SACK (RFC 2018 section 2).
    pub has_sack: bool,
    /// Both ends agreed upon ECN (RFC 3168 section 6.1.1).
    pub has_ecn: bool,
    /// The SYN or its answer had to be sent again (RFC 5681 section 3.1: one segment to begin with; RFC 6298 rule 5.7).
    pub was_syn_repeated: bool,
    /// Time from SYN to its answer, in nanoseconds, if only one was sent.
    pub handshake_ns: Option<u64>,
    /// Congestion control.
    pub algorithm: Algorithm,
    /// Whether departures are spread over the round trip.
    pub is_paced: bool,
}

/// An acknowledgment as it came in, checked by the connection (acceptable segment, PAWS).
#[derive(Clone, Copy, Debug)]
pub struct AckIn<'a> {
    /// SEG.ACK.
    pub ack: Seq,
    /// SEG.WND, scaled, in bytes.
    pub window: u32,
    /// SACK blocks in their order.
    pub sacks: &'a Sacks,
    /// Time stamps; `echo` in the units of [`crate::rtt::stamp`], the connection's random offset taken off already. None where
    /// the segment had none.
    pub stamps: Option<Stamps>,
    /// ECE is set (and the segment is no SYN).
    pub is_ece: bool,
    /// When it arrived; not later than `now`.
    pub arrived: Instant,
    /// It carries data, SYN or FIN: then it is no duplicate ACK (RFC 5681 section 2).
    pub has_data: bool,
}

/// Effects of an acknowledgment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acked {
    /// Bytes acknowledged cumulatively by it.
    pub bytes: u32,
    /// Bytes selectively acknowledged by it for the first time.
    pub sacked_bytes: u32,
    /// Bytes it found lost.
    pub lost_bytes: u32,
    /// It acknowledges something that was never sent: nothing of it was used (RFC 9293 section 3.10.7.4 wants an ACK in return).
    pub is_beyond: bool,
    /// A duplicate ACK (RFC 5681 section 2).
    pub is_duplicate: bool,
    /// It reports bytes that arrived twice (RFC 2883).
    pub is_dsack: bool,
    /// It showed that a reduction of the window was for nothing; it was taken back.
    pub is_undone: bool,
    /// It showed that the last retransmission time-out was spurious (RFC 5682, RFC 3522).
    pub is_spurious: bool,
    /// It reduced the window for a mark by the network (RFC 3168).
    pub is_ecn_reduced: bool,
}

/// Transmission that is permitted now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permit {
    /// Send these bytes again, in one segment.
    Retransmit {
        /// First byte.
        seq: Seq,
        /// Length in bytes, at most [`Sender::mss`]; a FIN that was sent counts as a byte.
        len: u16,
    },
    /// Send bytes from [`Sender::nxt`] on, in segments of at most [`Sender::mss`] each.
    New {
        /// Most bytes that may go now; not more than there are up to the limit asked with.
        bytes: u32,
    },
    /// Send new bytes in one segment of exactly this length, which finds out whether the path takes it (RFC 4821 section 7.3).
    MtuProbe {
        /// Length in bytes; more than [`Sender::mss`].
        len: u16,
    },
    /// A tail loss probe (RFC 8985 section 7.3): one segment, whatever the windows of congestion and pacing say.
    Probe {
        /// First byte: [`Sender::nxt`] if new.
        seq: Seq,
        /// Length in bytes; at most this many if new.
        len: u16,
        /// New bytes rather than the last segment again.
        is_new: bool,
    },
    /// Something may be sent, but not before this moment (pacing).
    Wait(Instant),
    /// Nothing until an acknowledgment, a timer, more to send or a wider window.
    Nothing,
}

/// What [`Sender::fired`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fired {
    /// It was not due.
    Nothing,
    /// Time for reordering has passed (RFC 8985 section 6.2 step 5).
    Reordering,
    /// A tail loss probe wants to be sent.
    Probe,
    /// A retransmission time-out.
    TimedOut {
        /// How often in a row, from 1: for R1 and R2 (RFC 9293 section 3.8.3).
        times: u8,
    },
}

/// There is no room in the slab of records: the segment must not be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Present task of the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecoveryPhase {
    /// Nothing is known to be lost.
    Open,
    /// The window shrinks because the network marked segments.
    Marked,
    /// Fast recovery.
    Fast,
    /// The effects of a retransmission time-out are repaired.
    TimedOut,
}

/// Purpose of the timer: the purposes exclude each other (RFC 8985 section 8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timer {
    Off,
    Retransmission,
    Reordering,
    Probe,
}

/// Measurements, or counts during a reduction: never both.
#[derive(Debug)]
enum Book {
    Open(Validate),
    Reducing(Prr),
}

/// Yes or no, one bit each.
#[derive(Clone, Copy, Debug, Default)]
struct Switches(u8);

/// Both ends agreed upon SACK.
const HAS_SACK: u8 = 1;
/// Both ends agreed upon ECN.
const HAS_ECN: u8 = 2;
/// Departures are spread.
const IS_PACED: u8 = 4;
/// The next new segment is to carry CWR.
const WANTS_CWR: u8 = 8;
/// The window was cut while it was not validated (RFC 7661 section 4.4.1).
const WAS_UNVALIDATED: u8 = 16;
/// The first segment goes again, whatever the windows say.
const IS_FORCED: u8 = 32;
/// The acknowledged edge has moved since the last time-out.
const HAS_PROGRESSED: u8 = 64;
/// The window was found full (RFC 7661 section 4.5.3), up to `full_until`.
const WAS_FULL: u8 = 128;

impl Switches {
    fn set(&mut self, switch: u8, is_on: bool) {
        self.0 = if is_on { self.0 | switch } else { self.0 & !switch };
    }
}

/// Congestion control, loss recovery, pacing and MTU of one connection.
#[derive(Debug)]
pub struct Sender {
    una: Seq,
    nxt: Seq,
    /// SND.NXT when the recovery began (RecoveryPoint); after it, when it ended.
    recovery_point: Seq,
    /// Up to here the window was found full.
    full_until: Seq,
    pub(crate) board: Board,
    rtt: Rtt,
    pub(crate) rack: Rack,
    pub(crate) tlp: Tlp,
    pub(crate) undo: Undo,
    controller: Controller,
    book: Book,
    pace: SegmentPacer,
    mtu: Mtu,
    /// When [`Sender::fired`] is due.
    due: Instant,
    /// When the retransmission time-out runs out; while nothing is in flight, since when.
    rto_at: Instant,
    /// SND.WND of the last acknowledgment, folded: to tell whether the next one's is the same.
    window: u16,
    timer: Timer,
    phase: RecoveryPhase,
    frto: Frto,
    /// Duplicate acknowledgments in a row, where there is no SACK.
    duplicates: u8,
    switches: Switches,
}

const _: () = assert!(size_of::<Sender>() <= 256);

impl Sender {
    /// A sender with nothing in flight.
    pub fn new(setup: &Setup, now: Instant) -> Self {
        let (first, tick) = (setup.first, Tick::at(now));
        let mss = setup.mss.max(1);
        let mut sender = Self {
            una: first,
            nxt: first,
            recovery_point: first,
            full_until: first,
            board: Board::new(),
            rtt: Rtt::new(setup.was_syn_repeated, now),
            rack: Rack::new(first),
            tlp: Tlp::new(),
            undo: Undo::default(),
            controller: Controller::new(setup.algorithm, u32::from(mss), setup.was_syn_repeated, first),
            book: Book::Open(Validate::new(first, tick)),
            pace: SegmentPacer::new(now),
            // The first data sent is waited for, and must not hang on a probe.
            mtu: Mtu::new(mss, setup.mss_limit, Tick::at(now.plus_ns(MTU_PROBE_PAUSE_NS))),
            due: now,
            rto_at: now,
            window: 0,
            timer: Timer::Off,
            phase: RecoveryPhase::Open,
            frto: Frto::Off,
            duplicates: 0,
            switches: Switches::default(),
        };
        sender.switches.set(HAS_SACK, setup.has_sack);
        sender.switches.set(HAS_ECN, setup.has_ecn);
        sender.switches.set(IS_PACED, setup.is_paced);
        //= RFC 6298 section 3
        //# RTT samples MUST NOT be made using segments that were
        //# retransmitted (and thus for which it is ambiguous whether the reply
        //# was for the first instance of the packet or a later instance).
        if let (Some(ns), false) = (setup.handshake_ns, setup.was_syn_repeated) {
            let measured = ticks(ns.min(RTO_MAX_NS));
            sender.rtt.sample(measured, 1);
            sender.rtt.sample_min(measured, tick);
        }
        sender.tlp.has_sample = true;
        sender
    }

    fn is(&self, switch: u8) -> bool {
        self.switches.0 & switch != 0
    }

    /// SND.UNA: the first byte that is not acknowledged.
    pub fn una(&self) -> Seq {
        self.una
    }

    /// SND.NXT: the first byte that was never sent.
    pub fn nxt(&self) -> Seq {
        self.nxt
    }

    /// The first byte that is still needed: not acknowledged, or in the hands of the device.
    pub fn free_until(&self, records: &Records) -> Seq {
        self.board.first_kept(records).map_or(self.una, |kept| kept.min(self.una))
    }

    /// Most payload of a segment now, in bytes; changes by probing and by reports from routers.
    pub fn mss(&self) -> u16 {
        self.mtu.mss()
    }

    /// Most that probing may raise [`Sender::mss`] to, in bytes.
    pub fn mss_limit(&self) -> u16 {
        self.mtu.limit()
    }

    /// Sets the limit that the peer has announced; before anything is sent.
    pub(crate) fn set_mss_limit(&mut self, limit: u16) {
        self.mtu.set_limit(limit);
    }

    /// Returns the congestion window, in bytes; during a recovery its value afterwards.
    pub fn cwnd(&self) -> u32 {
        self.controller.cwnd()
    }

    /// The slow-start threshold, in bytes.
    pub fn ssthresh(&self) -> u32 {
        self.controller.ssthresh()
    }

    /// Returns the bytes assumed to be in the network (RFC 6675 section 4: pipe).
    pub fn in_flight(&self) -> u32 {
        let extra = self.tlp.extra_bytes();
        // Without SACK each duplicate acknowledgment shows that one segment has left the network
        // (RFC 5681 section 3.2).
        let left = u32::from(self.duplicates) * u32::from(self.mss());
        (self.board.flying_bytes + extra).saturating_sub(left)
    }

    /// Bytes sent and not acknowledged cumulatively (RFC 5681 section 2: FlightSize).
    pub fn outstanding(&self) -> u32 {
        self.nxt.since(self.una) as u32
    }

    /// Smoothed round-trip time in nanoseconds, once there is one.
    pub fn srtt_ns(&self) -> Option<u64> {
        Some(nanoseconds(self.rtt.srtt())).filter(|&ns| ns > 0)
    }

    /// Mean deviation of the round-trip time in nanoseconds.
    pub fn rtt_deviation_ns(&self) -> u64 {
        self.rtt.deviation_ns()
    }

    /// Least round-trip time of the last one to two minutes in nanoseconds, once there is one.
    pub fn min_rtt_ns(&self) -> Option<u64> {
        Some(nanoseconds(self.rtt.min())).filter(|&ns| ns > 0)
    }

    /// The retransmission time-out now, with its back-off, in nanoseconds.
    pub fn rto_ns(&self) -> u64 {
        self.rtt.rto_ns()
    }

    /// How long the first segment that is not acknowledged has been under way since it was sent first, in nanoseconds (up to 73
    /// minutes); None if nothing is.
    pub fn waiting_ns(&self, records: &Records, now: Instant) -> Option<u64> {
        let first = self.board.first(records)?;
        Some(nanoseconds(Tick::at(now).since(first.first_sent)))
    }

    /// Segments sent again; at `u16::MAX` at least as many.
    pub fn retransmitted(&self) -> u16 {
        self.rtt.retransmitted
    }

    /// Whether losses are being repaired.
    pub fn is_recovering(&self) -> bool {
        matches!(self.phase, RecoveryPhase::Fast | RecoveryPhase::TimedOut)
    }

    /// Whether acknowledgments may be merged: no recovery runs in which each of them counts.
    pub fn may_merge_acks(&self) -> bool {
        self.phase == RecoveryPhase::Open && self.frto == Frto::Off
    }

    /// Whether the next segment with new data is to carry CWR (RFC 3168 section 6.1.2); [`Sender::sent`] of new data ends it.
    pub fn wants_cwr(&self) -> bool {
        self.is(WANTS_CWR)
    }

    /// Asks for the records that an acknowledgment reads first.
    #[inline]
    pub(crate) fn fetch(&self, records: &Records) {
        self.board.fetch(records);
    }

    /// The device has given back one frame with these bytes. Bytes that are not in flight are passed over.
    pub fn device_done(&mut self, records: &mut Records, seq: Seq, len: u16) {
        self.board.device_done(records, seq, len);
    }

    /// Length of the segment in flight that byte `seq` is in, in bytes; `None` if it is not, or the receiver has it.
    pub fn len_in_flight(&self, records: &Records, seq: Seq) -> Option<u16> {
        self.board.find(records, seq).filter(|record| !record.is(SACKED)).map(|record| record.len)
    }

    /// A router reported that segments with more payload than this do not pass (RFC 1191, RFC 8201); the caller has checked that
    /// the report quotes bytes that are in flight, and taken off the headers. False: that was known.
    pub fn too_big(&mut self, records: &mut Records, now: Instant, payload: u16) -> bool {
        let is_news = self.mtu.too_big(payload, Tick::at(now));
        if is_news {
            // Segments that were too large were dropped, but not by congestion: their data goes
            // again in smaller segments (RFC 8201 section 5.4).
            let largest = self.mtu.mss().max(payload);
            self.board.mark_lost(records, |record| Some(record.len > largest));
        }
        is_news
    }

    /// Sending ends for good: everything counts as acknowledged, so that only the device keeps records.
    pub fn abandon(&mut self, records: &mut Records) {
        self.board.advance(records, self.nxt, |_| {});
        self.una = self.nxt;
        self.timer = Timer::Off;
    }
}

#[cfg(test)]
mod link;
#[cfg(test)]
mod link_tests;
#[cfg(test)]
pub(crate) mod rig;
#[cfg(test)]
#[path = "sender_tests.rs"]
mod tests;
