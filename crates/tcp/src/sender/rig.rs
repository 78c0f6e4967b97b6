//! For tests: a sender driven by hand, in segments of 1,000 bytes and milliseconds.

use millrace_core::time::Instant;

use super::{AckIn, Acked, Fired, Permit, Sender, Setup};
use crate::cc::Algorithm;
use crate::recover::records::Records;
use crate::rtt::stamp;
use crate::seq::Seq;
use crate::wire::{Sacks, Stamps};

/// Payload of a segment.
pub(crate) const MSS: u16 = 1000;
/// The first sequence number: a window's worth before the wrap.
pub(crate) const FIRST: Seq = Seq(u32::MAX - 20_000);

pub(crate) fn setup() -> Setup {
    Setup {
        first: FIRST,
        mss: MSS,
        mss_limit: MSS,
        has_sack: true,
        has_ecn: true,
        was_syn_repeated: false,
        handshake_ns: Some(100_000_000),
        algorithm: Algorithm::Reno,
        is_paced: false,
    }
}

pub(crate) struct SenderRig {
    pub(crate) sender: Sender,
    pub(crate) records: Records,
    pub(crate) now: Instant,
    /// Segments available for sending.
    pub(crate) limit: u32,
    pub(crate) has_stamps: bool,
    /// What acknowledgments echo; the time a round trip ago where None.
    pub(crate) echo: Option<u32>,
}

/// The transmissions: segments' numbers, N for new and R for sent again.
pub(crate) type Sent = Vec<(char, u32)>;

impl SenderRig {
    pub(crate) fn new(setup: &Setup) -> Self {
        let now = Instant(5_000_000_000);
        Self {
            sender: Sender::new(setup, now),
            records: Records::new(64),
            now,
            limit: 0,
            has_stamps: false,
            echo: None,
        }
    }

    /// A sender with a window of `cwnd` segments that sent all of them at one moment.
    pub(crate) fn in_flight(setup: &Setup, cwnd: u32) -> Self {
        let mut rig = Self::new(setup);
        rig.set_cwnd(cwnd, cwnd);
        rig.limit = cwnd;
        assert_eq!(rig.pump().len() as u32, cwnd);
        rig
    }

    pub(crate) fn set_cwnd(&mut self, cwnd: u32, ssthresh: u32) {
        use crate::cc::CongestionControl;
        self.sender.controller.set(cwnd * u32::from(MSS), ssthresh.saturating_mul(u32::from(MSS)));
    }

    pub(crate) fn seq(&self, segment: u32) -> Seq {
        FIRST + segment * u32::from(MSS)
    }

    pub(crate) fn segment(&self, seq: Seq) -> u32 {
        seq.since(FIRST) as u32 / u32::from(MSS)
    }

    pub(crate) fn wait_ms(&mut self, ms: u64) {
        self.now = self.now.plus_ns(ms * 1_000_000);
    }

    pub(crate) fn next(&mut self) -> Permit {
        let limit = self.seq(self.limit);
        self.sender.next(&mut self.records, self.now, limit, false)
    }

    pub(crate) fn send(&mut self, seq: Seq, len: u16, is_again: bool) {
        self.sender.sent(&mut self.records, self.now, seq, len, is_again).expect("room for a record");
        self.sender.device_done(&mut self.records, seq, len);
        self.sender.board.verify(&self.records);
    }

    /// Sends whatever may be sent now.
    pub(crate) fn pump(&mut self) -> Sent {
        let mut sent = Sent::new();
        loop {
            let nxt = self.sender.nxt();
            match self.next() {
                Permit::Retransmit { seq, len } => {
                    sent.push(('R', self.segment(seq)));
                    self.send(seq, len, true);
                }
                Permit::New { bytes } => {
                    sent.push(('N', self.segment(nxt)));
                    self.send(nxt, bytes.min(u32::from(MSS)) as u16, false);
                }
                Permit::Probe { seq, len, is_new } => {
                    sent.push(('P', self.segment(seq)));
                    self.send(seq, len, !is_new);
                }
                Permit::MtuProbe { len } => {
                    sent.push(('M', self.segment(nxt)));
                    self.send(nxt, len, false);
                }
                Permit::Wait(_) | Permit::Nothing => return sent,
            }
        }
    }

    /// An acknowledgment of everything before segment `ack`, with SACK blocks `from..to` in segments.
    pub(crate) fn ack(&mut self, ack: u32, blocks: &[(u32, u32)]) -> Acked {
        self.ack_with(ack, blocks, |_| {})
    }

    pub(crate) fn ack_with(
        &mut self,
        ack: u32,
        blocks: &[(u32, u32)],
        change: impl FnOnce(&mut AckIn<'_>),
    ) -> Acked {
        let mut sacks = Sacks::default();
        for &(from, to) in blocks {
            assert!(sacks.push(self.seq(from), self.seq(to)));
        }
        let echo = self.echo.unwrap_or_else(|| stamp(Instant(self.now.0 - 100_000_000)));
        let mut ack = AckIn {
            ack: self.seq(ack),
            window: 1 << 20,
            sacks: &sacks,
            stamps: self.has_stamps.then_some(Stamps { value: 0, echo }),
            is_ece: false,
            arrived: self.now,
            has_data: false,
        };
        change(&mut ack);
        let acked = self.sender.acked(&mut self.records, self.now, &ack);
        self.sender.board.verify(&self.records);
        acked
    }

    /// Waits for the timer, and lets it fire; returns how long it took in milliseconds.
    pub(crate) fn fire(&mut self) -> (u64, Fired) {
        let due = self.sender.due().expect("a timer that runs");
        let waited = (due.ns_since(self.now) + 500_000) / 1_000_000;
        self.now = self.now.max(due);
        let fired = self.sender.fired(&mut self.records, self.now);
        self.sender.board.verify(&self.records);
        (waited, fired)
    }
}
