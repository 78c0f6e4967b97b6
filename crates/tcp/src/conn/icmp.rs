//! Error messages of ICMP about one connection (RFC 9293 section 3.9.2.2, RFC 5927).

use super::{Connection, ConnectionState, Env, Happened, Marks, Reason};
use crate::limits::{IPV6_MTU_MIN, MTU_PLATEAUS};
use crate::seq::Seq;
use crate::stack::{IcmpKind, Undelivered};
use crate::wire::options::STAMPS_BYTES;

impl Connection {
    /// Handles a message that quotes a segment of this connection. Returns false if it is not
    /// trusted.
    pub(crate) fn icmp(&mut self, env: &mut Env<'_>, seq: Seq, kind: IcmpKind) -> bool {
        if !self.is_in_flight(seq) {
            return false;
        }
        match kind {
            IcmpKind::TooBig { mtu } => self.too_big(env, seq, mtu),
            IcmpKind::Undelivered(why) => {
                //= RFC 9293 section 3.9.2.2
                //# These are hard error conditions, so TCP implementations SHOULD
                //# abort the connection (SHLD-26).  [35] notes that some
                //# implementations do not abort connections when an ICMP hard error is
                //# received for a connection that is in any of the synchronized
                //# states.
                if why.is_hard() && self.state == ConnectionState::SynSent {
                    self.undelivered = Some(why);
                    self.shut(env, Reason::Unreachable);
                    return true;
                }
                self.undelivered = Some(why);
                self.happened.insert(Happened::UNDELIVERED);
                true
            }
        }
    }

    /// RFC 5927 section 4.1: SND.UNA =< SEG.SEQ < SND.NXT. Of a SYN only its own number counts.
    fn is_in_flight(&self, seq: Seq) -> bool {
        match self.state {
            ConnectionState::Closed | ConnectionState::TimeWait => false,
            ConnectionState::SynSent | ConnectionState::SynReceived => {
                seq == self.iss() && self.timer != super::NEVER
            }
            _ => seq.is_within(self.snd_una(), self.sender.outstanding()),
        }
    }

    /// A router on the way takes no packet larger than `mtu` bytes.
    fn too_big(&mut self, env: &mut Env<'_>, seq: Seq, mtu: u32) -> bool {
        if !self.is_synchronized() {
            return false;
        }
        let Some(len) = self.sender.len_in_flight(env.records, seq) else { return false };
        let is_v4 = self.marks.has(Marks::IS_V4);
        let options = if self.marks.has(Marks::HAS_STAMPS) { STAMPS_BYTES as u32 } else { 0 };
        let headers = u32::from(super::open::header_bytes(is_v4)) + options;
        let packet = headers + u32::from(len);
        //= RFC 8201 section 4
        //# If a node receives a Packet Too Big message reporting a next-hop MTU
        //# that is less than the IPv6 minimum link MTU, it must discard it.
        if !is_v4 && mtu < IPV6_MTU_MIN {
            return false;
        }
        // A router that knows only RFC 792 reports no sizes (RFC 1191 section 5).
        let mtu = match mtu {
            0 => MTU_PLATEAUS.into_iter().find(|&plateau| plateau < packet).unwrap_or(0),
            mtu => mtu,
        };
        // By its own report, the packet that it did not take would have passed.
        if mtu >= packet {
            return false;
        }
        let payload = mtu.saturating_sub(headers) as u16;
        let is_used = self.sender.too_big(env.records, env.now, payload);
        env.counters.icmp_too_big += u64::from(is_used);
        is_used
    }

    pub(crate) fn undelivered(&self) -> Option<Undelivered> {
        self.undelivered
    }
}
