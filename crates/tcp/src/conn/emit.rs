//! Selects the next segment. [`Connection::plan`] selects it without changing the record of sent
//! data; [`Connection::commit`] records that it went.

use millrace_core::pool::ExtentContent;
use millrace_core::time::Instant;

use super::{Agreed, Connection, ConnectionState, Env, Marks, NEVER};
use crate::limits::{MIN_PERSIST_NS, RTO_MAX_NS};
use crate::recv::{AckDue, window};
use crate::send::{Cutting, SegmentPayload};
use crate::sender::Permit;
use crate::seq::Seq;
use crate::wire::{Flags, Head, Sacks, Stamps, TcpOptions};

/// A segment that may go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentPlan {
    pub(crate) head: Head,
    /// Its payload, if any.
    pub(crate) cut: Option<SegmentPayload>,
    /// Marked as ECN-capable in the IP header (RFC 3168 section 6.1.2: new data only).
    pub(crate) is_ect: bool,
    kind: SegmentKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SegmentKind {
    Syn,
    Data { is_again: bool },
    WindowProbe,
    KeepAlive,
    Ack,
}

/// What there is to do about a connection.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::large_enum_variant)] // looked at once, on the stack
pub(crate) enum Planned {
    /// Send this.
    Segment(SegmentPlan),
    /// This extent has to come back before anything else can go.
    Wanted(ExtentContent),
    /// Nothing now; something at this moment, if there is one.
    Idle(Option<Instant>),
}

impl SegmentPlan {
    /// Bytes of sequence space, a SYN not counted.
    pub(crate) fn seq_len(&self) -> u32 {
        self.cut.map_or(0, |cut| cut.bytes()) + u32::from(self.head.flags.has(Flags::FIN))
    }
}

impl Connection {
    /// Returns the next action.
    pub(crate) fn plan(&mut self, env: &mut Env<'_>) -> Planned {
        match self.state {
            ConnectionState::Closed | ConnectionState::TimeWait => return Planned::Idle(None),
            ConnectionState::SynSent | ConnectionState::SynReceived => return self.plan_syn(env),
            _ => {}
        }
        let wait = match self.plan_data(env) {
            Planned::Segment(plan) => return Planned::Segment(plan),
            //= RFC 9293 section 3.8.6
            //# If this happens, the sender SHOULD NOT send new data (SHLD-15), but
            //# SHOULD retransmit normally the old unacknowledged data between
            //# SND.UNA and SND.UNA+SND.WND (SHLD-16).
            // It is asked for once: an ACK that is due goes with the next look.
            Planned::Wanted(content) => return Planned::Wanted(content),
            Planned::Idle(wait) => wait,
        };
        if self.marks.has(Marks::PROBE_NOW) {
            match self.plan_window_probe(env) {
                Planned::Idle(_) => {}
                plan => return plan,
            }
        }
        if self.marks.has(Marks::KEEP_ALIVE_NOW) {
            //= RFC 9293 section 3.8.4
            //# An implementation SHOULD send a keep-alive segment with no data
            //# (SHLD-12)
            let head = self.head(env, self.snd_nxt() - 1, Flags::ACK);
            return Planned::Segment(SegmentPlan {
                head,
                cut: None,
                is_ect: false,
                kind: SegmentKind::KeepAlive,
            });
        }
        if self.owes_ack(env.now) {
            let head = self.head(env, self.snd_nxt(), Flags::ACK);
            return Planned::Segment(SegmentPlan { head, cut: None, is_ect: false, kind: SegmentKind::Ack });
        }
        self.persist_if_held(env, wait);
        Planned::Idle(wait)
    }

    fn owes_ack(&self, now: Instant) -> bool {
        self.marks.has(Marks::ACK_NOW)
            || match self.receiver.ack_due() {
                AckDue::Now => true,
                AckDue::At(due) => due <= now,
                AckDue::Never => false,
            }
    }

    /// The SYN, or the SYN,ACK of a simultaneous open.
    fn plan_syn(&mut self, env: &mut Env<'_>) -> Planned {
        let is_asked = self.marks.has(Marks::SYN_NOW);
        if self.state == ConnectionState::SynReceived && !is_asked && self.marks.has(Marks::ACK_NOW) {
            let head = self.head(env, self.snd_nxt(), Flags::ACK);
            return Planned::Segment(SegmentPlan { head, cut: None, is_ect: false, kind: SegmentKind::Ack });
        }
        if !is_asked {
            return Planned::Idle(None);
        }
        let stamps =
            Stamps { value: crate::rtt::stamp(env.now).wrapping_add(self.ts_offset), echo: self.ts_recent };
        let agreed = (self.state == ConnectionState::SynReceived).then(|| Agreed {
            snd_scale: self.marks.has(Marks::HAS_SCALE).then_some(self.snd_scale),
            rcv_scale: self.rcv_scale,
            has_sack: self.marks.has(Marks::HAS_SACK),
            ts_recent: self.marks.has(Marks::HAS_STAMPS).then_some(self.ts_recent),
            ..Agreed::default()
        });
        let options = env.config.syn_options(self.marks.has(Marks::IS_V4), agreed.as_ref(), stamps);
        let (flags, ack) = match &agreed {
            None if self.marks.has(Marks::ASKED_ECN) => {
                (Flags::SYN.with(Flags::ECE).with(Flags::CWR), Seq(0))
            }
            None => (Flags::SYN, Seq(0)),
            Some(_) if self.marks.has(Marks::HAS_ECN) => {
                (Flags::SYN.with(Flags::ACK).with(Flags::ECE), self.rcv_nxt())
            }
            Some(_) => (Flags::SYN.with(Flags::ACK), self.rcv_nxt()),
        };
        let window = window::of_syn(env.config.receive_bytes);
        let head = Head { seq: self.iss(), ack, flags, window, urgent: 0, options };
        Planned::Segment(SegmentPlan { head, cut: None, is_ect: false, kind: SegmentKind::Syn })
    }

    /// Header fields of a segment of an established connection.
    fn head(&mut self, env: &Env<'_>, seq: Seq, flags: Flags) -> Head {
        let flags = if self.marks.has(Marks::ECHO_CE) { flags.with(Flags::ECE) } else { flags };
        let mut options = TcpOptions { stamps: self.stamps_out(env.now), ..TcpOptions::default() };
        if self.marks.has(Marks::HAS_SACK) {
            options.sacks = self.receiver.sacks(env.pages);
        }
        let mut head =
            Head { seq, ack: self.rcv_nxt(), flags, window: self.receiver.window(), urgent: 0, options };
        if self.marks.has(Marks::SENDS_URGENT) && self.snd_up.after(seq) {
            //= RFC 9293 section 3.10.2
            //# If the URGENT flag is set, then SND.UP <- SND.NXT and set the
            //# urgent pointer in the outgoing segments.
            head.flags = head.flags.with(Flags::URG);
            head.urgent = self.snd_up.since(seq).clamp(0, i32::from(u16::MAX)) as u16;
        }
        head
    }

    fn plan_data(&mut self, env: &mut Env<'_>) -> Planned {
        let (end, window) = (self.snd_end(), self.snd_una() + self.snd_wnd);
        let mss = u32::from(self.sender.mss());
        match self.sender.next(env.records, env.now, end.min(window), window.before(end)) {
            Permit::Retransmit { seq, len } => self.plan_range(env, seq, mss, u32::from(len), true),
            Permit::Probe { seq, len, is_new } => self.plan_range(env, seq, mss, u32::from(len), !is_new),
            Permit::MtuProbe { len } => self.plan_mtu_probe(env, u32::from(len)),
            Permit::New { bytes } => self.plan_new(env, mss, bytes),
            Permit::Wait(until) => Planned::Idle(Some(until)),
            Permit::Nothing => Planned::Idle(None),
        }
    }

    /// A segment of at most `most` bytes from `seq` on; with the FIN if it has room behind the data.
    fn plan_range(&mut self, env: &mut Env<'_>, seq: Seq, mss: u32, most: u32, is_again: bool) -> Planned {
        // A part of the data to send again may be acknowledged already.
        let done = self.snd_una().since(seq).max(0) as u32;
        if done >= most && is_again {
            // All of it is (a segment that was cut in two after its beginning was acknowledged):
            // this part counts as sent, and the unacknowledged data goes.
            let _ = self.sender.sent(env.records, env.now, seq, most as u16, true);
            self.sender.device_done(env.records, seq, most as u16);
            let left = self.sender.outstanding().min(mss);
            if left == 0 {
                return Planned::Idle(None);
            }
            return self.plan_range(env, self.snd_una(), mss, left, true);
        }
        let (seq, most) = (seq + done, most.saturating_sub(done));
        let data = (self.queue.end().since(seq).max(0) as u32).min(most);
        let cut = match data {
            0 => None,
            _ => match env.store.cut(&mut self.queue, seq, mss, data) {
                Cutting::Cut(cut) => Some(cut),
                Cutting::Wanted(index) => return self.want(env, index),
                Cutting::Empty => None,
            },
        };
        self.plan_cut(env, seq, cut, most, is_again)
    }

    /// Plans a segment of exactly `len` bytes, regardless of the grid.
    fn plan_mtu_probe(&mut self, env: &mut Env<'_>, len: u32) -> Planned {
        let seq = self.snd_nxt();
        match env.store.cut_exactly(&mut self.queue, seq, len) {
            Cutting::Cut(cut) => self.plan_cut(env, seq, Some(cut), cut.bytes(), false),
            Cutting::Wanted(index) => self.want(env, index),
            Cutting::Empty => Planned::Idle(None),
        }
    }

    fn want(&mut self, env: &mut Env<'_>, index: u32) -> Planned {
        self.marks.insert(Marks::STARVED);
        match env.store.want(index) {
            Some(content) => Planned::Wanted(content),
            None => Planned::Idle(None),
        }
    }

    fn plan_cut(
        &mut self,
        env: &Env<'_>,
        seq: Seq,
        cut: Option<SegmentPayload>,
        most: u32,
        is_again: bool,
    ) -> Planned {
        let bytes = cut.map_or(0, |cut| cut.bytes());
        let end = seq + bytes;
        let mut flags = Flags::ACK;
        // The sender counts the FIN as a byte of the segment.
        let has_room = bytes < most && bytes < u32::from(self.sender.mss());
        if end == self.queue.end() && self.marks.has(Marks::FIN_QUEUED) && has_room {
            flags = flags.with(Flags::FIN);
        } else if bytes == 0 {
            return Planned::Idle(None);
        }
        if bytes > 0 && end == self.queue.end() {
            //= RFC 9293 section 3.9.1.2
            //# If
            //# PUSH flags are not implemented, then the sending TCP peer: (1) MUST
            //# NOT buffer data indefinitely (MUST-60), and (2) MUST set the PSH bit
            //# in the last buffered segment (i.e., when there is no more queued data
            //# to be sent) (MUST-61).
            flags = flags.with(Flags::PSH);
        }
        if !is_again && bytes > 0 && self.sender.wants_cwr() {
            flags = flags.with(Flags::CWR);
        }
        let is_ect = !is_again && bytes > 0 && self.marks.has(Marks::HAS_ECN);
        let mut head = self.head(env, seq, flags);
        // SACK blocks go with data where they take no room from it.
        let blocks = head.options.sacks.blocks().len() as u32;
        if blocks > 0 && bytes + 4 + 8 * blocks > u32::from(self.sender.mss()) {
            head.options.sacks = Sacks::default();
        }
        Planned::Segment(SegmentPlan { head, cut, is_ect, kind: SegmentKind::Data { is_again } })
    }

    /// Plans new data, unless a cork, Nagle or silly-window avoidance hold it back (RFC 9293
    /// section 3.8.6.2.1). Data that a cork holds back goes at the latest when the persist timer
    /// runs out.
    fn plan_new(&mut self, env: &mut Env<'_>, mss: u32, most: u32) -> Planned {
        let nxt = self.snd_nxt();
        let data = self.queue.end().since(nxt).max(0) as u32;
        if data == 0 {
            return self.plan_cut(env, nxt, None, most, false);
        }
        let cut = match env.store.cut(&mut self.queue, nxt, mss, data.min(most)) {
            Cutting::Cut(cut) => cut,
            Cutting::Wanted(index) => return self.want(env, index),
            Cutting::Empty => return Planned::Idle(None),
        };
        let is_all = cut.bytes() == data;
        let is_idle = nxt == self.snd_una();
        let is_open = !self.marks.has(Marks::FIN_QUEUED);
        let nagle = self.marks.has(Marks::NAGLE) && is_open;
        let is_corked = self.marks.has(Marks::CORKED) && is_open;
        //= RFC 9293 section 3.8.6
        //# However, a sending TCP peer MUST
        //# be robust against window shrinking, which may cause the "usable
        //# window" (see Section 3.8.6.2.1) to become negative (MUST-34).
        let usable = (self.snd_una() + self.snd_wnd).since(nxt).max(0) as u32;
        // Clipped by the congestion window alone: more of it comes with the next ACK.
        let is_clipped = cut.bytes() < usable && !is_all && !cut.is_full();
        //= RFC 9293 section 3.8.6.2.1
        //# (1)  if a maximum-sized segment can be sent, i.e., if:
        //#
        //# min(D,U) >= Eff.snd.MSS;
        //= RFC 9293 section 3.8.6.2.1
        //# A TCP implementation MUST include a SWS avoidance algorithm in the
        //# sender (MUST-38).
        let goes = cut.is_full()
            //= RFC 9293 section 3.8.6.2.1
            //# (2)  or if the data is pushed and all queued data can be sent now,
            || is_all && !is_corked && (is_idle || !nagle)
            //= RFC 9293 section 3.8.6.2.1
            //# (3)  or if at least a fraction Fs of the maximum window can be sent,
            || !is_all && !is_clipped && cut.bytes() >= self.max_snd_wnd.div_ceil(2) && (is_idle || !nagle)
            || is_clipped && is_idle;
        if !goes {
            return Planned::Idle(None);
        }
        self.plan_cut(env, nxt, Some(cut), most, false)
    }

    /// Plans the data that the persist timer forces out: as much as the window has room for, or one
    /// byte if it has none.
    fn plan_window_probe(&mut self, env: &mut Env<'_>) -> Planned {
        let nxt = self.snd_nxt();
        let usable = (self.snd_una() + self.snd_wnd).since(nxt).max(0) as u32;
        let waits = self.snd_end().since(nxt).max(0) as u32;
        if waits == 0 {
            self.stop_persisting();
            return Planned::Idle(None);
        }
        //= RFC 9293 section 3.8.6.1
        //# The sending TCP peer must regularly transmit at least one octet of
        //# new data (if available), or retransmit to the receiving TCP peer even
        //# if the send window is zero, in order to "probe" the window.
        //= RFC 9293 section 3.8.6
        //# If the window shrinks to zero, the TCP
        //# implementation MUST probe it in the standard way (described below)
        //# (MUST-35).
        //= RFC 9293 section 3.8.6.1
        //# Probing of zero (offered) windows MUST be supported (MUST-36).
        let most = usable.clamp(1, u32::from(self.sender.mss()));
        match self.plan_range(env, nxt, most, most, false) {
            Planned::Segment(mut plan) if usable == 0 => {
                //= RFC 3168 section 6.1.6
                //# Therefore, the TCP data sender MUST NOT set either an ECT codepoint
                //# or the CWR bit on window probe packets.
                plan.head.flags = plan.head.flags.without(Flags::CWR);
                Planned::Segment(SegmentPlan { kind: SegmentKind::WindowProbe, is_ect: false, ..plan })
            }
            // Its extent may have gone back: then it is asked for, and the probe goes when it is there again.
            other => other,
        }
    }

    /// Nothing can go although data waits, and nothing is in flight whose acknowledgment would change that: the persist timer runs.
    fn persist_if_held(&mut self, env: &Env<'_>, wait: Option<Instant>) {
        let is_held = self.snd_nxt() == self.snd_una()
            && self.snd_end() != self.snd_nxt()
            && wait.is_none()
            && (!self.marks.has(Marks::STARVED) || self.marks.has(Marks::PERSISTS));
        if !is_held {
            return self.stop_persisting();
        }
        if !self.marks.has(Marks::PERSISTS) {
            self.marks.insert(Marks::PERSISTS);
            self.tries = 0;
            self.timer = env.now.plus_ns(self.persist_ns());
        }
    }

    pub(super) fn stop_persisting(&mut self) {
        if self.marks.take(Marks::PERSISTS) {
            self.timer = NEVER;
            self.tries = 0;
        }
        self.marks.remove(Marks::PROBE_NOW);
    }

    //= RFC 9293 section 3.8.6.1
    //# The transmitting host SHOULD send the first zero-window probe when a
    //# zero window has existed for the retransmission timeout period (SHLD-
    //# 29) (Section 3.8.1), and SHOULD increase exponentially the interval
    //# between successive probes (SHLD-30).
    pub(super) fn persist_ns(&self) -> u64 {
        (self.sender.rto_ns() << self.tries.min(16)).clamp(MIN_PERSIST_NS, RTO_MAX_NS)
    }

    /// The segment went. False: the sender had no room to remember it, and it has to be kept back.
    pub(crate) fn commit(&mut self, env: &mut Env<'_>, plan: &SegmentPlan) {
        match plan.kind {
            SegmentKind::Syn => self.syn_sent(env),
            SegmentKind::Data { is_again } => self.data_sent(env, plan, is_again),
            SegmentKind::WindowProbe => {
                self.marks.remove(Marks::PROBE_NOW);
                self.marks.insert(Marks::PROBED);
                env.counters.window_probes += 1;
            }
            SegmentKind::KeepAlive => {
                self.marks.remove(Marks::KEEP_ALIVE_NOW);
                env.counters.keep_alives += 1;
            }
            SegmentKind::Ack => {}
        }
        env.counters.segments_out += 1;
        if plan.head.flags.has(Flags::ACK) && plan.kind != SegmentKind::KeepAlive {
            self.marks.remove(Marks::ACK_NOW);
            self.receiver.ack_sent(env.pages);
        }
    }

    fn syn_sent(&mut self, env: &Env<'_>) {
        self.marks.remove(Marks::SYN_NOW);
        if self.tries == 0 && self.timer == NEVER {
            self.progress = env.now;
        }
        self.timer = env.now.plus_ns(self.syn_wait_ns());
    }

    fn data_sent(&mut self, env: &mut Env<'_>, plan: &SegmentPlan, is_again: bool) {
        let (seq, len) = (plan.head.seq, plan.seq_len() as u16);
        if self.snd_nxt() == self.snd_una() {
            // Data begins to wait now.
            self.progress = self.progress.max(env.now);
        }
        // What next() permitted has room in the records.
        let _ = self.sender.sent(env.records, env.now, seq, len, is_again);
        if is_again {
            env.counters.retransmitted += 1;
        } else {
            self.marks.remove(Marks::PROBED);
        }
        if plan.head.flags.has(Flags::FIN) {
            self.fin_sent();
        }
        self.stop_persisting();
    }

    /// The FIN went for the first time, or again.
    pub(super) fn fin_sent(&mut self) {
        self.marks.insert(Marks::FIN_SENT);
        if self.state == ConnectionState::CloseWait {
            //= RFC 9293 section 3.10.4
            //# segmentized; then send a FIN segment, enter LAST-ACK state.
            self.state = ConnectionState::LastAck;
        }
    }
}
