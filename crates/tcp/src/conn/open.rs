//! OPEN (RFC 9293 section 3.10.1), and the agreement of the two SYNs.

use super::stamps::ms;
use super::{Config, Connection, ConnectionState, Env, Happened, Marks, NEVER, Reason};
use crate::limits::{
    DEFAULT_MSS_V4, DEFAULT_MSS_V6, MAX_WINDOW_SCALE, MIN_MSS, RTO_FIRST_NS, SEARCH_FROM_MTU,
};
use crate::recv::{Receiver, ReceiverSettings, window};
use crate::send::Queue;
use crate::sender::{Sender, Setup};
use crate::seq::Seq;
use crate::wire::options::STAMPS_BYTES;
use crate::wire::{Flags, FlowKey, Segment, Stamps, TcpOptions};

use millrace_core::time::Instant;

/// Bytes of an IPv4 and of a TCP header without options, and of an IPv6 one.
const HEADERS_V4: u16 = 40;
const HEADERS_V6: u16 = 60;

/// Bytes of an IP header and of a TCP header without options.
pub(super) const fn header_bytes(is_v4: bool) -> u16 {
    if is_v4 { HEADERS_V4 } else { HEADERS_V6 }
}

/// Information in a SYN that outlives it: all that must be remembered of a request for a
/// connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agreed {
    /// Our initial sequence number.
    pub iss: Seq,
    /// The peer's.
    pub irs: Seq,
    /// Largest segment that the peer takes, in bytes, as announced or assumed.
    pub peer_mss: u16,
    /// The peer's window scale; `None`: it scales nothing, and neither do we.
    pub snd_scale: Option<u8>,
    /// Ours.
    pub rcv_scale: u8,
    /// SACK may be used.
    pub has_sack: bool,
    /// ECN may be used.
    pub has_ecn: bool,
    /// Time stamps are used; the peer's last one.
    pub ts_recent: Option<u32>,
    /// Offset added to our clock.
    pub ts_offset: u32,
    /// The SYN,ACK was sent more than once.
    pub is_repeated: bool,
}

//= RFC 9293 section 3.7.1
//# If an MSS Option is not received at connection setup, TCP
//# implementations MUST assume a default send MSS of 536 (576 - 40) for
//# IPv4 or 1220 (1280 - 60) for IPv6 (MUST-15).
/// The segment size that a peer announced, or the one to assume.
pub(crate) fn peer_mss(is_v4: bool, options: &TcpOptions) -> u16 {
    let default = if is_v4 { DEFAULT_MSS_V4 } else { DEFAULT_MSS_V6 };
    options.mss.map_or(default, |mss| mss.max(MIN_MSS))
}

impl Config {
    //= RFC 9293 section 3.7.1
    //# The MSS value to be sent in an MSS Option should be equal to the
    //# effective MTU minus the fixed IP and TCP headers.
    //= RFC 9293 section 3.7.1
    //# The MSS value to be sent in an MSS Option must be less than or equal
    //# to:
    //#
    //# MMS_R - 20
    //#
    //# where MMS_R is the maximum size for a transport-layer message that
    //# can be received (and reassembled at the IP layer) (MUST-67).
    /// The segment size that is announced.
    pub(crate) fn mss(&self, is_v4: bool) -> u16 {
        self.mtu.saturating_sub(header_bytes(is_v4)).max(MIN_MSS)
    }

    /// Returns the smallest scale that can announce the receive buffer.
    pub(crate) fn scale(&self) -> u8 {
        window::scale_for(self.receive_bytes)
    }

    /// Returns the options that a SYN offers: ours if it is the first, otherwise those of ours that
    /// the peer's SYN offered.
    pub(crate) fn syn_options(&self, is_v4: bool, agreed: Option<&Agreed>, stamps: Stamps) -> TcpOptions {
        let (scales, sack, has_stamps) = match agreed {
            None => (self.scaling, self.sack, self.stamps),
            Some(agreed) => (agreed.snd_scale.is_some(), agreed.has_sack, agreed.ts_recent.is_some()),
        };
        TcpOptions {
            //= RFC 9293 section 3.7.1
            //# TCP endpoints MUST implement both sending and receiving the MSS
            //# Option (MUST-14).
            //= RFC 9293 section 3.2
            //# This field may be
            //# sent in the initial connection request (i.e., in segments with the
            //# SYN control bit set) and MUST NOT be sent in other segments (MUST-
            //# 65).
            mss: Some(self.mss(is_v4)),
            scale: scales.then(|| agreed.map_or(self.scale(), |agreed| agreed.rcv_scale)),
            is_sack_permitted: sack,
            stamps: has_stamps.then_some(stamps),
            ..TcpOptions::default()
        }
    }

    /// Combines a SYN and our settings into an agreement.
    pub(crate) fn agree(&self, is_v4: bool, syn: &Segment<'_>, iss: Seq, ts_offset: u32) -> Agreed {
        let scale = syn.options.scale.filter(|_| self.scaling);
        let asks_ecn = match syn.flags.has(Flags::ACK) {
            //= RFC 3168 section 6.1.1
            //# When Host B sends an ECN-setup SYN-ACK packet, it sets the ECE flag
            //# but not the CWR flag.
            true => syn.flags.has(Flags::ECE) && !syn.flags.has(Flags::CWR),
            false => syn.flags.has(Flags::ECE.with(Flags::CWR)),
        };
        Agreed {
            iss,
            irs: syn.seq,
            peer_mss: peer_mss(is_v4, &syn.options),
            snd_scale: scale.map(|scale| scale.min(MAX_WINDOW_SCALE)),
            rcv_scale: if scale.is_some() { self.scale() } else { 0 },
            has_sack: self.sack && syn.options.is_sack_permitted,
            has_ecn: self.ecn && asks_ecn,
            ts_recent: syn.options.stamps.filter(|_| self.stamps).map(|stamps| stamps.value),
            ts_offset,
            is_repeated: false,
        }
    }
}

/// Returns whole seconds; 16 bits are 18 hours.
fn seconds(ns: u64) -> u16 {
    ns.div_ceil(1_000_000_000).min(u64::from(u16::MAX)) as u16
}

impl Connection {
    pub(crate) fn set_user_timeout(&mut self, timeout_ns: u64) {
        self.user_timeout_s = seconds(timeout_ns);
    }

    fn new(key: &FlowKey, config: &Config, iss: Seq, now: Instant) -> Self {
        let mut marks = Marks::default();
        marks.set(Marks::NAGLE, config.nagle);
        marks.set(Marks::IS_V4, key.is_v4());
        let first = iss + 1;
        let setup = Setup {
            first,
            mss: MIN_MSS,
            mss_limit: MIN_MSS,
            has_sack: false,
            has_ecn: false,
            was_syn_repeated: false,
            handshake_ns: None,
            algorithm: config.algorithm,
            is_paced: config.paced,
        };
        let no_receiver =
            ReceiverSettings { next: Seq(0), limit_bytes: 0, scale: 0, mss: 0, is_sack_permitted: false };
        Self {
            sender: Sender::new(&setup, now),
            receiver: Receiver::new(&no_receiver),
            queue: Queue::new(first),
            timer: NEVER,
            progress: now,
            snd_wnd: 0,
            snd_wl1: Seq(0),
            snd_wl2: Seq(0),
            max_snd_wnd: 0,
            snd_up: first,
            rcv_up: Seq(0),
            ts_recent: 0,
            ts_recent_ms: 0,
            ts_offset: 0,
            heard_ms: ms(now),
            marks,
            user_timeout_s: seconds(config.user_timeout_ns),
            listener: super::calls::NO_LISTENER,
            challenge_s: 0,
            state: ConnectionState::Closed,
            reason: Reason::Finished,
            happened: Happened::default(),
            undelivered: None,
            snd_scale: 0,
            rcv_scale: 0,
            tries: 0,
            challenges: 0,
        }
    }

    //= RFC 9293 section 3.10.1
    //# A SYN segment of the form
    //# <SEQ=ISS><CTL=SYN> is sent.  Set SND.UNA to ISS, SND.NXT to ISS+1,
    //# enter SYN-SENT state, and return.
    /// Active OPEN.
    pub(crate) fn open(key: &FlowKey, env: &mut Env<'_>, iss: Seq, ts_offset: u32) -> Self {
        let mut this = Self::new(key, env.config, iss, env.now);
        (this.state, this.ts_offset) = (ConnectionState::SynSent, ts_offset);
        this.marks.insert(Marks::SYN_NOW);
        this.marks.set(Marks::ASKED_ECN, env.config.ecn);
        env.counters.opened += 1;
        this
    }

    /// What became of a listener's LISTEN: SYN-RECEIVED, with the SYN,ACK sent already. The segment that acknowledges it comes next.
    pub(crate) fn accept(key: &FlowKey, env: &mut Env<'_>, agreed: &Agreed, since: Option<Instant>) -> Self {
        let mut this = Self::new(key, env.config, agreed.iss, env.now);
        this.state = ConnectionState::SynReceived;
        //= RFC 9293 section 3.5
        //# Note that a TCP implementation MUST keep track of whether a
        //# connection has reached SYN-RECEIVED state as the result of a passive
        //# OPEN or an active OPEN (MUST-11).
        this.marks.insert(Marks::PASSIVE);
        match since {
            Some(since) => this.progress = since,
            // A cookie remembers no time.
            None => this.marks.insert(Marks::SYN_REPEATED),
        }
        this.take_agreed(env, agreed);
        this
    }

    /// The peer's SYN is here.
    pub(super) fn take_agreed(&mut self, env: &mut Env<'_>, agreed: &Agreed) {
        self.sender.set_mss_limit(agreed.peer_mss);
        (self.snd_scale, self.rcv_scale) = (agreed.snd_scale.unwrap_or(0), agreed.rcv_scale);
        self.marks.set(Marks::HAS_SCALE, agreed.snd_scale.is_some());
        self.marks.set(Marks::HAS_SACK, agreed.has_sack);
        self.marks.set(Marks::HAS_ECN, agreed.has_ecn);
        self.marks.set(Marks::HAS_STAMPS, agreed.ts_recent.is_some());
        if agreed.is_repeated {
            self.marks.insert(Marks::SYN_REPEATED);
        }
        self.ts_offset = agreed.ts_offset;
        if let Some(recent) = agreed.ts_recent {
            self.set_recent(recent, env.now);
        }
        let first = agreed.irs + 1;
        self.rcv_up = first;
        self.receiver = self.new_receiver(env, first);
    }

    /// Enters ESTABLISHED: everything that the sender has to know is known.
    pub(super) fn establish(&mut self, env: &mut Env<'_>, handshake_ns: Option<u64>) {
        let overhead = if self.marks.has(Marks::HAS_STAMPS) { STAMPS_BYTES as u16 } else { 0 };
        let own = env.config.mss(self.marks.has(Marks::IS_V4));
        //= RFC 9293 section 3.7.1
        //# The maximum size of a segment that a TCP endpoint really sends, the
        //# "effective send MSS", MUST be the smaller (MUST-16) of the send MSS
        //# (that reflects the available reassembly buffer size at the remote
        //# host, the EMTU_R [19]) and the largest transmission size permitted by
        //# the IP layer (EMTU_S [19]):
        let is_v4 = self.marks.has(Marks::IS_V4);
        let mss_limit =
            self.sender.mss_limit().min(own).saturating_sub(overhead).max(MIN_MSS - STAMPS_BYTES as u16);
        // More than an Ethernet's size is found by probing, however much both devices take (RFC 4821 section 7.2).
        let mss = mss_limit.min(SEARCH_FROM_MTU - header_bytes(is_v4) - overhead);
        let was_repeated = self.marks.has(Marks::SYN_REPEATED);
        self.sender = Sender::new(
            &Setup {
                first: self.sender.una(),
                mss,
                mss_limit,
                has_sack: self.marks.has(Marks::HAS_SACK),
                has_ecn: self.marks.has(Marks::HAS_ECN),
                was_syn_repeated: was_repeated,
                handshake_ns: handshake_ns.filter(|_| !was_repeated),
                algorithm: env.config.algorithm,
                is_paced: env.config.paced,
            },
            env.now,
        );
        (self.state, self.timer, self.tries) = (ConnectionState::Established, NEVER, 0);
        self.marks.remove(Marks::SYN_NOW);
        (self.heard_ms, self.progress) = (ms(env.now), env.now);
        self.marks.insert(Marks::MOVED);
        self.happened.insert(Happened::ESTABLISHED);
    }

    /// The window of a segment, in bytes.
    pub(super) fn window_of(&self, segment: &Segment<'_>) -> u32 {
        //= RFC 7323 section 2.2
        //# The window field in a segment where the SYN bit is set (i.e., a <SYN>
        //# or <SYN,ACK>) MUST NOT be scaled.
        let scale = if segment.flags.has(Flags::SYN) { 0 } else { self.snd_scale };
        u32::from(segment.window) << scale
    }

    /// SND.WND, and which segment it is from.
    pub(super) fn set_window(&mut self, segment: &Segment<'_>) {
        self.snd_wnd = self.window_of(segment);
        (self.snd_wl1, self.snd_wl2) = (segment.seq, segment.ack);
        self.max_snd_wnd = self.max_snd_wnd.max(self.snd_wnd);
    }

    /// Wait before the next try of the SYN.
    pub(super) fn syn_wait_ns(&self) -> u64 {
        (RTO_FIRST_NS << self.tries.min(16)).min(crate::limits::RTO_MAX_NS)
    }
}
