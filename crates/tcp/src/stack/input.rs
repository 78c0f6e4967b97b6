//! The first stage: a segment finds its connection, request or listener.

use millrace_core::time::Instant;

use super::{Arrived, Reply, Stack};
use crate::conn::arrive::{SegmentArrival, answer_closed};
use crate::limits::MAX_REPLIES;
use crate::time_wait::TimeWaitReply;
use crate::wire::{Flags, FlowKey, Head, Segment, is_right, parse, payload_sum};

impl Stack {
    /// Takes in a segment. Its bytes are not needed afterwards.
    pub fn input(&mut self, arrived: &Arrived<'_>, now: Instant) {
        let counters = &mut self.shared.counters;
        counters.segments_in += 1;
        // Parsed in place: a copy would have to wait for the bytes that it copies.
        let parsed = parse(arrived.bytes);
        let Ok(segment) = &parsed else {
            counters.malformed += 1;
            return;
        };
        let Some(ends) = FlowKey::new(arrived.destination, arrived.source) else {
            counters.malformed += 1;
            return;
        };
        let flow = ends.with_ports(segment.destination, segment.source);
        let has_right_sum = || arrived.is_checked || is_right(&flow, arrived.bytes);
        let is_plain_ack = segment.flags == Flags::ACK
            && segment.payload.is_empty()
            && segment.options.user_timeout.is_none()
            && self.defers_acks;
        if is_plain_ack && !arrived.is_marked {
            if !has_right_sum() {
                self.shared.counters.bad_checksums += 1;
                return;
            }
            if self.line_up(&flow, segment, arrived.at, now) {
                return;
            }
        }
        self.note_new(now);
        let number = self.table.find(&flow);
        // Data for a connection is summed while it is copied; all else at once.
        let expected_sum = match number {
            Some(_) if !segment.payload.is_empty() && !arrived.is_checked => {
                payload_sum(&flow, arrived.bytes).ok()
            }
            _ => None,
        };
        if expected_sum.is_none() && !has_right_sum() {
            self.shared.counters.bad_checksums += 1;
            return;
        }
        let arrival = SegmentArrival { at: arrived.at, is_marked: arrived.is_marked, expected_sum };
        match number {
            Some(number) => {
                self.process_note(number, now);
                self.arrive(number, &flow, segment, arrival, now);
            }
            None => self.arrive_elsewhere(&flow, segment, now),
        }
    }

    /// A segment for a connection that has a slot.
    pub(super) fn arrive(
        &mut self,
        number: u32,
        flow: &FlowKey,
        segment: &Segment<'_>,
        arrival: SegmentArrival,
        now: Instant,
    ) {
        let reset =
            self.with(number, now, |connection, env| connection.arrive(env, segment, arrival)).flatten();
        if let Some(head) = reset {
            self.reply(Reply { flow: *flow, head });
        }
        self.make_ready(number);
        self.settle(number, now, None);
    }

    pub(super) fn arrive_elsewhere(&mut self, flow: &FlowKey, segment: &Segment<'_>, now: Instant) {
        //= RFC 9293 section 3.9.2.3
        //# An incoming SYN with an invalid source address MUST be ignored
        //# |  either by TCP or by the IP layer [(MUST-63)] (see
        //# |  Section 3.2.1.3).
        //= RFC 9293 section 3.9.2.3
        //# A TCP implementation MUST silently discard an incoming SYN segment
        //# |  that is addressed to a broadcast or multicast address [(MUST-57)].
        if !flow.is_unicast() {
            self.shared.counters.malformed += 1;
            return;
        }
        if let Some(request) = self.requests.find(flow) {
            return self.arrive_for_request(request, flow, segment, now);
        }
        match self.time_waits.arrived(flow, segment, now) {
            TimeWaitReply::Unknown => {}
            TimeWaitReply::Drop => return,
            TimeWaitReply::Ack(ended) => {
                let head = self.time_wait_ack(flow, &ended, now);
                return self.reply(Reply { flow: *flow, head });
            }
            TimeWaitReply::Reopen(next) => {
                if self.arrive_for_listener(flow, segment, Some(next), now) {
                    self.time_waits.remove(flow);
                }
                return;
            }
        }
        if !self.arrive_for_listener(flow, segment, None, now)
            && let Some(head) = answer_closed(segment)
        {
            self.reply(Reply { flow: *flow, head });
        }
    }

    pub(super) fn time_wait_ack(
        &self,
        flow: &FlowKey,
        ended: &crate::time_wait::EndedConnection,
        now: Instant,
    ) -> Head {
        let mut head =
            Head { seq: ended.send_next, ack: ended.receive_next, flags: Flags::ACK, ..Head::default() };
        head.options.stamps = ended.recent_stamp.map(|echo| self.stamps(flow, echo, now));
        head
    }

    /// Time stamps of a segment that no connection sends.
    pub(super) fn stamps(&self, flow: &FlowKey, echo: u32, now: Instant) -> crate::wire::Stamps {
        let value = crate::rtt::stamp(now).wrapping_add(self.stamp_offset(flow));
        crate::wire::Stamps { value, echo }
    }

    pub(super) fn stamp_offset(&self, flow: &FlowKey) -> u32 {
        self.keys.stamps.strong(flow.words()) as u32
    }

    /// Sends a segment of no connection in the next output stage.
    pub(super) fn reply(&mut self, reply: Reply) {
        if self.replies.len() >= MAX_REPLIES {
            self.shared.counters.replies_dropped += 1;
            return;
        }
        self.shared.counters.resets_out += u64::from(reply.head.flags.has(Flags::RST));
        self.replies.push_back(reply);
    }
}
