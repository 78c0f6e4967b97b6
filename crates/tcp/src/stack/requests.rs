//! Connections in SYN-RECEIVED of listeners: a record of the contents of both SYNs, and a timer.
//! The connection itself is created when the handshake ends.

use millrace_core::time::Instant;
use millrace_core::wheel::Wheel;

use super::{ListenerId, Reply, Stack};
use crate::conn::arrive::{SegmentArrival, answer_listen};
use crate::conn::{Agreed, Connection, ConnectionState};
use crate::keyed::HashKey;
use crate::limits::{RTO_FIRST_NS, SYN_ACK_TRIES};
use crate::recv::window;
use crate::table::FlowTable;
use crate::wire::{Flags, FlowKey, Head, Segment};

/// A request for a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionRequest {
    pub(super) agreed: Agreed,
    pub(super) listener: ListenerId,
    tries: u8,
    /// When the first SYN,ACK was sent.
    since: Instant,
    /// It was acknowledged, and there was no room for the connection: for the peer there is one.
    is_acked: bool,
}

const _: () = assert!(size_of::<ConnectionRequest>() <= 64);

/// All requests.
pub(super) struct Requests {
    table: FlowTable,
    records: Box<[Option<ConnectionRequest>]>,
    free: Vec<u32>,
    wheel: Wheel,
}

impl Requests {
    pub(super) fn new(key: HashKey, capacity: u32) -> Self {
        Self {
            table: FlowTable::new(key, capacity),
            records: vec![None; capacity as usize].into(),
            free: (0..capacity).rev().collect(),
            wheel: Wheel::new(capacity as usize),
        }
    }

    /// Memory in bytes for `capacity` requests.
    pub(super) fn bytes(capacity: u32) -> usize {
        let each = size_of::<Option<ConnectionRequest>>() + size_of::<u32>();
        capacity as usize * each + FlowTable::bytes(capacity) + Wheel::bytes(capacity as usize)
    }

    pub(super) fn len(&self) -> u32 {
        self.table.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    pub(super) fn find(&self, flow: &FlowKey) -> Option<u32> {
        self.table.find(flow)
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.wheel.next_due()
    }

    /// Sequence number of the SYN,ACK.
    pub(super) fn iss(&self, number: u32) -> Option<crate::seq::Seq> {
        self.records.get(number as usize)?.as_ref().map(|request| request.agreed.iss)
    }

    /// False if there is no room.
    fn insert(&mut self, flow: &FlowKey, request: ConnectionRequest, now: Instant) -> bool {
        let Some(&number) = self.free.last() else { return false };
        if !self.table.insert(flow, number) {
            return false;
        }
        self.free.pop();
        self.records[number as usize] = Some(request);
        self.wheel.set(number, now.plus_ns(RTO_FIRST_NS), now);
        true
    }

    fn remove(&mut self, number: u32) -> Option<ConnectionRequest> {
        let flow = self.table.flow(number).copied()?;
        self.table.remove(&flow);
        self.wheel.cancel(number);
        self.free.push(number);
        self.records.get_mut(number as usize)?.take()
    }
}

impl Stack {
    /// A SYN was let in: it is remembered and answered. False if there is no room.
    pub(super) fn add_request(
        &mut self,
        flow: &FlowKey,
        listener: ListenerId,
        agreed: Agreed,
        now: Instant,
    ) -> bool {
        let request = ConnectionRequest { agreed, listener, tries: 0, since: now, is_acked: false };
        if !self.requests.insert(flow, request, now) {
            return false;
        }
        self.half_open(listener, 1);
        let head = self.syn_ack(flow, &agreed, now);
        self.reply(Reply { flow: *flow, head });
        true
    }

    /// A cookie came back, and there is no room for the connection. The peer considers itself
    /// connected; if it waits for us to send first, it would never learn otherwise. As a request,
    /// its SYN,ACK is repeated, and any answer or data from the peer is another attempt. Returns
    /// false if there is no room for the request either.
    pub(super) fn add_acked_request(
        &mut self,
        flow: &FlowKey,
        listener: ListenerId,
        agreed: Agreed,
        now: Instant,
    ) -> bool {
        let request = ConnectionRequest { agreed, listener, tries: 0, since: now, is_acked: true };
        let is_added = self.requests.insert(flow, request, now);
        self.half_open(listener, i32::from(is_added));
        is_added
    }

    //= RFC 9293 section 3.10.7.2
    //# ISS
    //# should be selected and a SYN segment sent of the form:
    //#
    //# <SEQ=ISS><ACK=RCV.NXT><CTL=SYN,ACK>
    pub(super) fn syn_ack(&self, flow: &FlowKey, agreed: &Agreed, now: Instant) -> Head {
        let stamps = self.stamps(flow, agreed.ts_recent.unwrap_or(0), now);
        let config = &self.shared.config;
        let flags = Flags::SYN.with(Flags::ACK);
        Head {
            seq: agreed.iss,
            ack: agreed.irs + 1,
            flags: if agreed.has_ecn { flags.with(Flags::ECE) } else { flags },
            window: window::of_syn(config.receive_bytes),
            urgent: 0,
            options: config.syn_options(flow.is_v4(), Some(agreed), stamps),
        }
    }

    /// SEGMENT ARRIVES in SYN-RECEIVED (RFC 9293 section 3.10.7.4), until the handshake ends.
    pub(super) fn arrive_for_request(
        &mut self,
        number: u32,
        flow: &FlowKey,
        segment: &Segment<'_>,
        now: Instant,
    ) {
        let Some(request) = self.requests.records.get(number as usize).copied().flatten() else { return };
        let agreed = request.agreed;
        let (next, window) = (agreed.irs + 1, u32::from(window::of_syn(self.shared.config.receive_bytes)));
        let is_syn = segment.flags.has(Flags::SYN);
        if is_syn && !segment.flags.has(Flags::ACK) && segment.seq == agreed.irs {
            // The SYN again: so is its answer.
            let head = self.syn_ack(flow, &agreed, now);
            self.repeat(number);
            return self.reply(Reply { flow: *flow, head });
        }
        let len = segment.seq_len();
        let is_acceptable = segment.seq.is_within(next, window)
            || len > 0 && (segment.seq + (len - 1)).is_within(next, window);
        if !is_acceptable {
            if !segment.flags.has(Flags::RST) {
                let head = self.request_ack(flow, &agreed, now);
                self.reply(Reply { flow: *flow, head });
            }
            return;
        }
        if segment.flags.has(Flags::RST) {
            match segment.seq == next {
                true => {
                    self.shared.counters.resets_in += 1;
                    self.drop_request(number);
                }
                false => {
                    let head = self.request_ack(flow, &agreed, now);
                    self.reply(Reply { flow: *flow, head });
                }
            }
            return;
        }
        if is_syn {
            //= RFC 9293 section 3.10.7.4
            //# If the connection was initiated with a passive OPEN, then
            //# return this connection to the LISTEN state and return.
            //# Otherwise, handle per the directions for synchronized states
            //# below.
            return self.drop_request(number);
        }
        if !segment.flags.has(Flags::ACK) {
            return;
        }
        if segment.ack != agreed.iss + 1 {
            if let Some(head) = answer_listen(segment) {
                self.reply(Reply { flow: *flow, head });
            }
            return;
        }
        if self.has_room_for(request.listener) {
            self.drop_request(number);
            // A repeated answer is no sample of the round-trip time.
            let since = (!request.is_acked).then_some(request.since);
            self.accept(flow, &request.agreed, request.listener, since, segment, now);
        } else if let Some(Some(request)) = self.requests.records.get_mut(number as usize) {
            self.shared.counters.overflows += u64::from(!request.is_acked);
            request.is_acked = true;
        }
    }

    /// The handshake is over: the connection begins, with the segment that ended it.
    pub(super) fn accept(
        &mut self,
        flow: &FlowKey,
        agreed: &Agreed,
        listener: ListenerId,
        since: Option<Instant>,
        segment: &Segment<'_>,
        now: Instant,
    ) {
        let mut env = self.shared.env(now);
        let mut connection = Connection::accept(flow, &mut env, agreed, since);
        connection.set_listener(listener);
        let Some(number) = self.occupy(flow, connection) else { return };
        self.unseen(listener);
        self.shared.counters.accepted += 1;
        let arrival = SegmentArrival { at: now, is_marked: false, expected_sum: None };
        self.arrive(number, flow, segment, arrival, now);
        if self.slots[number as usize]
            .connection
            .as_ref()
            .is_some_and(|c| c.state() == ConnectionState::SynReceived)
        {
            // What ended the handshake was not taken after all (an old time stamp, for instance).
            self.free(number);
        }
    }

    fn request_ack(&self, flow: &FlowKey, agreed: &Agreed, now: Instant) -> Head {
        let mut head =
            Head { seq: agreed.iss + 1, ack: agreed.irs + 1, flags: Flags::ACK, ..Head::default() };
        head.window = window::of_syn(self.shared.config.receive_bytes);
        head.options.stamps = agreed.ts_recent.map(|echo| self.stamps(flow, echo, now));
        head
    }

    fn repeat(&mut self, number: u32) {
        if let Some(Some(request)) = self.requests.records.get_mut(number as usize) {
            request.agreed.is_repeated = true;
        }
    }

    pub(super) fn drop_request(&mut self, number: u32) {
        if let Some(request) = self.requests.remove(number) {
            self.half_open(request.listener, -1);
        }
    }

    /// SYN,ACKs that were not answered go again, up to a limit.
    pub(super) fn fire_requests(&mut self, now: Instant) {
        while let Some(number) = self.requests.wheel.pop_due(now) {
            let Some(flow) = self.requests.table.flow(number).copied() else { continue };
            let Some(Some(request)) = self.requests.records.get_mut(number as usize) else { continue };
            if request.tries == SYN_ACK_TRIES {
                let (is_acked, seq) = (request.is_acked, request.agreed.iss + 1);
                self.drop_request(number);
                if is_acked {
                    // It believes that it is connected, and may wait for ever.
                    let head = Head { seq, flags: Flags::RST, ..Head::default() };
                    self.reply(Reply { flow, head });
                }
                continue;
            }
            request.tries += 1;
            request.agreed.is_repeated = true;
            let (agreed, tries) = (request.agreed, request.tries);
            self.requests.wheel.set(number, now.plus_ns(RTO_FIRST_NS << tries), now);
            let head = self.syn_ack(&flow, &agreed, now);
            self.reply(Reply { flow, head });
        }
    }
}
