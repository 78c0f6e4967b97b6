//! The third stage: sends everything that may be sent now, then processes the noted ACKs.

use millrace_core::time::Instant;

use super::{ConnectionId, Stack, WantedExtent};
use crate::conn::{Connection, Planned, SegmentPlan};
use crate::limits::TURN_SEGMENTS;
use crate::send::{Handed, Payload};
use crate::seq::Seq;
use crate::wire::{Body, FlowKey, HEADER_BYTES, OPTIONS_BYTES, Template};

/// The ECN field of the IP header (RFC 3168 section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ecn {
    /// Not ECN-capable.
    NotCapable,
    /// ECT(0).
    Capable,
}

//= RFC 9293 section 3.9.1.9
//= type=exception
//= reason=a segment goes out without an IP header; whoever writes that gives it what it is to have, and Out names the connection by its ends
//# The application layer MUST be able to specify the Differentiated
//# Services field for segments that are sent on a connection (MUST-48).
//= RFC 9293 section 3.9.2
//= type=exception
//= reason=as above: the header is written outside
//# The TTL value used to send TCP segments MUST be
//# configurable (MUST-49).
/// A segment that goes out: everything from the TCP header on.
#[derive(Debug)]
pub struct OutgoingSegment<'a> {
    /// Between which ends, the local one first.
    pub flow: &'a FlowKey,
    /// For the IP header.
    pub ecn: Ecn,
    /// The TCP header, its checksum too.
    pub header: &'a [u8],
    /// The payload, where it lies, and its sum.
    pub payload: Payload<'a>,
    /// Time in nanoseconds since the peer last acknowledged or sent something new: until then the
    /// path to it worked. [`OutgoingSegment::NEVER`]: neither has happened, or the peer has sent
    /// something else since.
    pub moved_ns: u64,
    /// What to hand back when the device has read the payload, if it did not copy it ([`Stack::device_done`]). `None`: it has to copy what there is of payload.
    pub frame: Option<DeviceFrame>,
}

impl OutgoingSegment<'_> {
    /// No progress yet, or no connection that could make any.
    pub const NEVER: u64 = u64::MAX;
}

/// Names a frame in the hands of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceFrame {
    connection: ConnectionId,
    seq: Seq,
    bytes: u16,
    handed: Handed,
}

/// How a device disposed of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameDisposal {
    /// It has copied it: nothing is lent any more.
    Copied,
    /// It will read the payload later and then hand the frame back.
    Kept,
    /// It has no room: nothing was sent, and nothing more is tried in this turn.
    Full,
}

/// What became of a connection's turn.
enum TurnResult {
    /// It has nothing more to send before this moment.
    Done(Option<Instant>),
    /// It has more to send, after others.
    More,
    /// The device is full.
    Full,
}

impl Stack {
    //= RFC 9293 section 3.10.7.4
    //# In general, the processing of received segments MUST be
    //# implemented to aggregate ACK segments whenever possible
    //# (MUST-58).  For example, if the TCP endpoint is processing a
    //# series of queued segments, it MUST process them all before
    //# sending any ACK segments (MUST-59).
    /// The third stage. `out` is shown each segment that goes; how many went.
    pub fn output(
        &mut self,
        now: Instant,
        out: &mut impl FnMut(&OutgoingSegment<'_>) -> FrameDisposal,
    ) -> usize {
        let mut count = 0;
        self.note_new(now);
        if self.send_replies(out, &mut count) {
            // Each connection that is ready now gets one turn; one with more to send is queued
            // again behind the others.
            let mut left = self.ready.len();
            while left > 0
                && let Some(number) = self.ready.pop_front()
            {
                left -= 1;
                self.slots[number as usize].left_ready();
                match self.send_burst(number, now, out, &mut count) {
                    TurnResult::Done(wait) => self.settle(number, now, wait),
                    TurnResult::More => {
                        self.settle(number, now, None);
                        self.make_ready(number);
                    }
                    TurnResult::Full => {
                        self.settle(number, now, None);
                        self.make_ready(number);
                        break;
                    }
                }
            }
        }
        self.process_notes(now);
        count
    }

    /// Segments that belong to no connection. False: the device is full.
    fn send_replies(
        &mut self,
        out: &mut impl FnMut(&OutgoingSegment<'_>) -> FrameDisposal,
        count: &mut usize,
    ) -> bool {
        while let Some(reply) = self.replies.front() {
            let mut header = [0; HEADER_BYTES + OPTIONS_BYTES];
            let bytes = Template::new(&reply.flow).write(&reply.head, Body::EMPTY, &mut header);
            let segment = OutgoingSegment {
                flow: &reply.flow,
                ecn: Ecn::NotCapable,
                header: &header[..bytes],
                payload: Payload::default(),
                moved_ns: OutgoingSegment::NEVER,
                frame: None,
            };
            if out(&segment) == FrameDisposal::Full {
                return false;
            }
            self.shared.counters.segments_out += 1;
            self.replies.pop_front();
            *count += 1;
        }
        true
    }

    fn send_burst(
        &mut self,
        number: u32,
        now: Instant,
        out: &mut impl FnMut(&OutgoingSegment<'_>) -> FrameDisposal,
        count: &mut usize,
    ) -> TurnResult {
        for _ in 0..TURN_SEGMENTS {
            let Some(planned) = self.with(number, now, Connection::plan) else {
                return TurnResult::Done(None);
            };
            match planned {
                Planned::Idle(wait) => return TurnResult::Done(wait),
                Planned::Wanted(content) => {
                    let connection = self.id(number);
                    self.wanted.push_back(WantedExtent { connection, content });
                }
                Planned::Segment(plan) => match self.send_segment(number, &plan, now, out) {
                    true => *count += 1,
                    false => return TurnResult::Full,
                },
            }
        }
        TurnResult::More
    }

    /// Shows a segment to the device. False: it has no room.
    fn send_segment(
        &mut self,
        number: u32,
        plan: &SegmentPlan,
        now: Instant,
        out: &mut impl FnMut(&OutgoingSegment<'_>) -> FrameDisposal,
    ) -> bool {
        let Some(flow) = self.table.flow(number).copied() else { return true };
        let connection_id = self.id(number);
        let Some(connection) = self.slots[number as usize].connection.as_mut() else { return true };
        // Staged data is only valid now.
        let lasting = plan.cut.filter(|cut| !cut.is_staged());
        let handed = lasting.map(|cut| self.shared.store.handed(&cut));
        let frame = handed.map(|handed| DeviceFrame {
            connection: connection_id,
            seq: plan.head.seq,
            bytes: plan.seq_len() as u16,
            handed,
        });
        let payload = plan.cut.map(|cut| self.shared.store.payload(&cut)).unwrap_or_default();
        let mut header = [0; HEADER_BYTES + OPTIONS_BYTES];
        let body = Body::new(payload.sum, payload.bytes);
        let bytes = Template::new(&flow).write(&plan.head, body, &mut header);
        let ecn = if plan.is_ect { Ecn::Capable } else { Ecn::NotCapable };
        let moved_ns = connection.moved_ns(now);
        let taken =
            out(&OutgoingSegment { flow: &flow, ecn, header: &header[..bytes], payload, moved_ns, frame });
        if taken != FrameDisposal::Full {
            connection.commit(&mut self.shared.env(now), plan);
        }
        // Nor has a FIN alone a frame that anybody could hand back.
        if frame.is_none() && plan.seq_len() > 0 && taken != FrameDisposal::Full {
            connection.sender_mut().device_done(
                &mut self.shared.records,
                plan.head.seq,
                plan.seq_len() as u16,
            );
        }
        match (taken, frame) {
            (FrameDisposal::Copied, Some(frame)) => self.device_done(frame),
            (FrameDisposal::Full, Some(frame)) => self.shared.store.returned(frame.handed),
            _ => {}
        }
        taken != FrameDisposal::Full
    }

    /// The device has given a frame back.
    pub fn device_done(&mut self, frame: DeviceFrame) {
        let DeviceFrame { connection: id, seq, bytes, handed } = frame;
        self.shared.store.returned(handed);
        let Some(slot) =
            self.slots.get_mut(id.number as usize).filter(|slot| slot.generation == id.generation)
        else {
            return;
        };
        if let Some(connection) = slot.connection.as_mut() {
            connection.sender_mut().device_done(&mut self.shared.records, seq, bytes);
        }
    }
}
