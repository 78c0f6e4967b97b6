//! First, check sequence number; before that the time stamp (RFC 7323 section 5.3).

use super::{ArrivalStep, Connection, ConnectionState, DONE, Env, NEXT};
use crate::conn::Marks;
use crate::conn::stamps::Age;
use crate::limits::CHALLENGES_PER_SECOND;
use crate::recv;
use crate::wire::{Flags, Segment};

impl Connection {
    pub(super) fn check_sequence(&mut self, env: &mut Env<'_>, segment: &mut Segment<'_>) -> ArrivalStep {
        // In a simultaneous open the peer's SYN comes a second time, with the ACK of ours. The part
        // that was processed is trimmed off.
        //= RFC 9293 section 3.10.7.4
        //# One could tailor actual segments to fit this
        //# assumption by trimming off any portions that lie outside the
        //# window (including SYN and FIN) and only processing further
        //# if the segment then begins at RCV.NXT.
        let is_first_syn = segment.flags.has(Flags::SYN) && segment.seq + 1 == self.rcv_nxt();
        if self.state == ConnectionState::SynReceived && is_first_syn && segment.flags.has(Flags::ACK) {
            segment.flags = segment.flags.without(Flags::SYN);
            segment.seq += 1;
        }
        let is_reset = segment.flags.has(Flags::RST);
        //= RFC 7323 section 5.3
        //# Send an acknowledgment in reply as specified in Section 3.9
        //# of [RFC0793], page 69, and drop the segment.
        match self.age(segment.options.stamps, env.now) {
            Age::Old if !is_reset => {
                env.counters.old_stamps += 1;
                self.challenge(env);
                return DONE;
            }
            Age::Missing if !is_reset => {
                env.counters.stampless += 1;
                return DONE;
            }
            _ => {}
        }
        if self.receiver.is_acceptable(segment.seq, segment.seq_len()) {
            self.note_stamp(segment, env.now);
            return NEXT;
        }
        env.counters.unacceptable += 1;
        if is_reset {
            //= RFC 9293 section 3.10.7.4
            //# 1)  If the RST bit is set and the sequence number is outside
            //# the current receive window, silently drop the segment.
            return DONE;
        }
        //= RFC 9293 section 3.10.7.4
        //# If an incoming segment is not acceptable, an acknowledgment
        //# should be sent in reply (unless the RST bit is set, if so
        //# drop the segment and return):
        if self.challenge(env) && self.may_receive() {
            self.report_duplicate(env, segment);
        }
        //= RFC 9293 section 3.10.7.4
        //# If the RCV.WND is zero, no segments will be acceptable, but
        //# special allowance should be made to accept valid ACKs, URGs,
        //# and RSTs.
        //= RFC 9293 section 3.4
        //# A TCP receiver MUST process the RST and URG
        //# fields of all incoming segments, even when the receive window is zero
        //# (MUST-66).
        if self.rcv_wnd() == 0 && segment.seq == self.rcv_nxt() && !segment.flags.has(Flags::SYN) {
            segment.payload = &[];
            segment.flags = segment.flags.without(Flags::FIN);
            return NEXT;
        }
        //= RFC 9293 section 3.10.7.4
        //# After sending the acknowledgment, drop the unacceptable
        //# segment and return.
        DONE
    }

    /// Sends an ACK in answer to a possible attack, but not more often than the limit allows.
    /// Returns whether it does.
    pub(super) fn challenge(&mut self, env: &mut Env<'_>) -> bool {
        let second = (env.now.0 / 1_000_000_000) as u8;
        if second != self.challenge_s {
            (self.challenge_s, self.challenges) = (second, 0);
        }
        //= RFC 5961 section 7
        //# An
        //# implementation SHOULD include an ACK throttling mechanism to be
        //# conservative.
        if self.challenges >= CHALLENGES_PER_SECOND {
            env.counters.challenges_spared += 1;
            return false;
        }
        self.challenges += 1;
        env.counters.challenges += 1;
        self.marks.insert(Marks::ACK_NOW);
        true
    }

    /// All of the segment came before: the ACK reports this (RFC 2883 section 4.1).
    fn report_duplicate(&mut self, env: &mut Env<'_>, segment: &Segment<'_>) {
        let end = segment.seq + segment.payload.len() as u32;
        if !segment.payload.is_empty() && end.up_to(self.rcv_nxt()) {
            let data = recv::ReceivedSegment {
                seq: segment.seq,
                payload: segment.payload,
                is_fin: false,
                is_marked: false,
                expected_sum: None,
            };
            self.receiver.offer(env.pages, env.now, &data);
        }
    }
}
