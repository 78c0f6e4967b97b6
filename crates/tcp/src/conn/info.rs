//! STATUS in full (RFC 9293 section 3.9.1.6): everything about a connection that helps in the
//! search for a fault.

use millrace_core::time::Instant;

use super::{Connection, ConnectionState, Marks};

/// A connection at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// Where it is.
    pub state: ConnectionState,
    /// Smoothed round-trip time, once there is one.
    pub rtt_ns: Option<u64>,
    /// Its mean deviation.
    pub rtt_deviation_ns: u64,
    /// Least round-trip time of the last one to two minutes, once there is one.
    pub min_rtt_ns: Option<u64>,
    /// The retransmission time-out now.
    pub rto_ns: u64,
    /// Congestion window.
    pub cwnd_bytes: u32,
    /// Slow-start threshold, if the window was ever reduced.
    pub ssthresh_bytes: Option<u32>,
    /// Most payload of a segment.
    pub mss_bytes: u16,
    /// Believed to be in the network.
    pub in_flight_bytes: u32,
    /// Queued and not acknowledged.
    pub unacked_bytes: u32,
    /// Of those, never sent.
    pub unsent_bytes: u32,
    /// Received and not read.
    pub unread_bytes: u32,
    /// Bytes that may be sent to the peer at once.
    pub send_window_bytes: u32,
    /// Bytes that the peer may send at once.
    pub receive_window_bytes: u32,
    /// Segments sent again; at `u16::MAX` at least as many.
    pub retransmitted: u16,
    /// Since something acceptable came.
    pub silent_ns: u64,
    /// Losses are being repaired.
    pub is_recovering: bool,
    /// SACK, time stamps and ECN were agreed upon.
    pub has_sack: bool,
    /// See `has_sack`.
    pub has_stamps: bool,
    /// See `has_sack`.
    pub has_ecn: bool,
}

impl Connection {
    pub(crate) fn info(&self, now: Instant) -> Info {
        let sender = &self.sender;
        Info {
            state: self.state,
            rtt_ns: sender.srtt_ns(),
            rtt_deviation_ns: sender.rtt_deviation_ns(),
            min_rtt_ns: sender.min_rtt_ns(),
            rto_ns: if self.is_synchronized() { sender.rto_ns() } else { self.syn_wait_ns() },
            cwnd_bytes: sender.cwnd(),
            ssthresh_bytes: Some(sender.ssthresh()).filter(|&bytes| bytes != u32::MAX),
            mss_bytes: sender.mss(),
            in_flight_bytes: sender.in_flight(),
            unacked_bytes: self.unacked_bytes(),
            unsent_bytes: self.unsent_bytes(),
            unread_bytes: self.unread_bytes(),
            send_window_bytes: self.snd_wnd,
            receive_window_bytes: self.rcv_wnd(),
            retransmitted: sender.retransmitted(),
            silent_ns: u64::from(super::stamps::ms(now).wrapping_sub(self.heard_ms)) * 1_000_000,
            is_recovering: sender.is_recovering(),
            has_sack: self.marks.has(Marks::HAS_SACK),
            has_stamps: self.marks.has(Marks::HAS_STAMPS),
            has_ecn: self.marks.has(Marks::HAS_ECN),
        }
    }
}
