//! Connections that are over but whose segments may still be under way (RFC 9293 section 3.6.1).

use millrace_core::time::Instant;

use crate::keyed::HashKey;
use crate::limits::TIME_WAIT_MS;
use crate::seq::Seq;
use crate::table::FlowTable;
use crate::wire::{Flags, FlowKey, Segment};

/// State to keep of a connection that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedConnection {
    /// SND.NXT: the number behind our FIN.
    pub send_next: Seq,
    /// RCV.NXT: the number behind the peer's FIN.
    pub receive_next: Seq,
    /// TS.Recent, the last time stamp of the peer, if the connection had them.
    pub recent_stamp: Option<u32>,
}

/// Reaction to a segment for a connection in TIME_WAIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeWaitReply {
    /// There is no such connection here: others decide.
    Unknown,
    /// Nothing.
    Drop,
    /// An ACK with these numbers.
    Ack(EndedConnection),
    /// The SYN begins a new connection, the old one is gone. Its initial sequence number must be later than this.
    Reopen(Seq),
}

/// No record.
const NONE: u32 = u32::MAX;

/// One connection; beside its ends in the table. Records in use are in a list in order of expiry, free ones in another.
#[derive(Clone, Copy, Debug)]
struct Record {
    send_next: Seq,
    receive_next: Seq,
    stamp: u32,
    /// Half milliseconds of the clock; bit 0 indicates whether there are time stamps. Wraps after
    /// 24 days.
    expires: u32,
    previous: u32,
    next: u32,
}

const _: () = assert!(size_of::<Record>() + size_of::<FlowKey>() <= 64);

/// All connections in TIME_WAIT, as many as there is room for. Each stays for 2 MSL, so the order of expiry is the order in which they
/// came; the oldest makes room.
#[derive(Debug)]
pub struct TimeWaits {
    table: FlowTable,
    records: Box<[Record]>,
    oldest: u32,
    newest: u32,
    free: u32,
    pushed_out: u64,
}

/// Half milliseconds of the clock, even.
fn ticks(now: Instant) -> u32 {
    (now.0 / 1_000_000 * 2) as u32
}

impl TimeWaits {
    /// Room for `capacity` of them.
    pub fn new(key: HashKey, capacity: u32) -> Self {
        let table = FlowTable::new(key, capacity);
        let free = |number| Record {
            send_next: Seq(0),
            receive_next: Seq(0),
            stamp: 0,
            expires: 0,
            previous: NONE,
            next: if number + 1 < capacity { number + 1 } else { NONE },
        };
        let records: Box<[Record]> = (0..capacity).map(free).collect();
        let free = if capacity > 0 { 0 } else { NONE };
        Self { table, records, oldest: NONE, newest: NONE, free, pushed_out: 0 }
    }

    /// Returns the bytes of `capacity` records.
    pub fn bytes(capacity: u32) -> usize {
        capacity as usize * size_of::<Record>() + FlowTable::bytes(capacity)
    }

    /// How many there are.
    pub const fn len(&self) -> u32 {
        self.table.len()
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// How many had to make room before their time.
    pub const fn pushed_out(&self) -> u64 {
        self.pushed_out
    }

    /// Whether a connection between these ends waits.
    pub fn contains(&self, flow: &FlowKey) -> bool {
        self.table.find(flow).is_some()
    }

    /// Takes in a connection that enters TIME_WAIT; one between the same ends is replaced.
    pub fn insert(&mut self, flow: &FlowKey, ended: EndedConnection, now: Instant) {
        self.remove(flow);
        if self.free == NONE && self.oldest != NONE {
            self.release(self.oldest);
            self.pushed_out += 1;
        }
        let number = self.free;
        let Some(record) = self.records.get_mut(number as usize) else { return };
        let next_free = record.next;
        record.send_next = ended.send_next;
        record.receive_next = ended.receive_next;
        record.stamp = ended.recent_stamp.unwrap_or_default();
        record.expires = u32::from(ended.recent_stamp.is_some());
        if self.table.insert(flow, number) {
            self.free = next_free;
            self.append(number, now);
        }
    }

    /// Takes a connection out before its time: a new one has taken its place.
    pub fn remove(&mut self, flow: &FlowKey) -> Option<EndedConnection> {
        let number = self.table.find(flow)?;
        let ended = self.ended(number);
        self.release(number);
        Some(ended)
    }

    /// Returns the reaction to a segment that has come in. The caller must limit the rate of ACKs,
    /// as for all answers to unexpected segments (RFC 5961 section 7). After [`TimeWaitReply::Reopen`] the
    /// record stays until [`TimeWaits::remove`] is called, which belongs to the end of the new
    /// handshake: a SYN that was an old duplicate then leaves the connection in TIME_WAIT.
    pub fn arrived(&mut self, flow: &FlowKey, segment: &Segment<'_>, now: Instant) -> TimeWaitReply {
        let Some(number) = self.table.find(flow) else { return TimeWaitReply::Unknown };
        let ended = self.ended(number);
        // RFC 1337 section 3, fix F1: a RST is ignored here, or an old one would end the state before its time.
        //= RFC 9293 section 3.10.7.4
        //= type=exception
        //= reason=RFC 1337: an old duplicate must not end TIME-WAIT before its time
        //# If the RST bit is set, then enter the CLOSED state, delete
        //# the TCB, and return.
        if segment.flags.has(Flags::RST) {
            return TimeWaitReply::Drop;
        }
        if segment.flags.has(Flags::SYN) && !segment.flags.has(Flags::ACK) {
            return if reopens(&ended, segment) {
                TimeWaitReply::Reopen(ended.send_next)
            } else {
                TimeWaitReply::Drop
            };
        }
        if !segment.flags.has(Flags::ACK) {
            return TimeWaitReply::Drop;
        }
        let is_expected = segment.seq == ended.receive_next && segment.seq_len() == 0;
        if is_expected {
            return TimeWaitReply::Drop;
        }
        let is_old = is_older(&ended, segment);
        let is_fin = segment.flags.has(Flags::FIN) && segment.seq + segment.seq_len() == ended.receive_next;
        if is_fin && !is_old {
            //= RFC 9293 section 3.10.7.4
            //# The only thing that can arrive in this state is a
            //# retransmission of the remote FIN.  Acknowledge it, and
            //# restart the 2 MSL timeout.
            if let (Some(stamps), Some(record)) =
                (segment.options.stamps, self.records.get_mut(number as usize))
            {
                record.stamp = stamps.value;
            }
            self.unlink(number);
            self.append(number, now);
        }
        TimeWaitReply::Ack(self.ended(number))
    }

    /// When the next one expires.
    pub fn due(&self, now: Instant) -> Option<Instant> {
        let oldest = self.records.get(self.oldest as usize)?;
        let left = (oldest.expires & !1).wrapping_sub(ticks(now)) as i32;
        Some(now.plus_ns(u64::from(left.max(0).cast_unsigned()) * 500_000))
    }

    /// Lets go of those whose time is over, at most `most` of them; how many there were.
    //= RFC 9293 section 3.6.1
    //# When a connection is closed actively, it MUST linger in the TIME-WAIT
    //# state for a time 2xMSL (Maximum Segment Lifetime) (MUST-13).
    pub fn expire(&mut self, now: Instant, most: u32) -> u32 {
        let mut count = 0;
        while count < most && self.oldest != NONE && self.due(now).is_some_and(|due| due <= now) {
            self.release(self.oldest);
            count += 1;
        }
        count
    }

    fn ended(&self, number: u32) -> EndedConnection {
        let record = self.records[number as usize];
        let recent_stamp = (record.expires & 1 == 1).then_some(record.stamp);
        EndedConnection { send_next: record.send_next, receive_next: record.receive_next, recent_stamp }
    }

    /// To the end of the list, with all its time before it.
    fn append(&mut self, number: u32, now: Instant) {
        let newest = self.newest;
        let record = &mut self.records[number as usize];
        record.expires = ticks(now).wrapping_add(2 * TIME_WAIT_MS) | record.expires & 1;
        record.previous = newest;
        record.next = NONE;
        match self.records.get_mut(newest as usize) {
            Some(newest) => newest.next = number,
            None => self.oldest = number,
        }
        self.newest = number;
    }

    fn unlink(&mut self, number: u32) {
        let Record { previous, next, .. } = self.records[number as usize];
        match self.records.get_mut(previous as usize) {
            Some(previous) => previous.next = next,
            None => self.oldest = next,
        }
        match self.records.get_mut(next as usize) {
            Some(next) => next.previous = previous,
            None => self.newest = previous,
        }
    }

    fn release(&mut self, number: u32) {
        self.unlink(number);
        if let Some(flow) = self.table.flow(number).copied() {
            self.table.remove(&flow);
        }
        self.records[number as usize].next = self.free;
        self.free = number;
    }
}

/// Returns whether the segment is older by its time stamp than those already seen (RFC 7323 section
/// 5).
fn is_older(ended: &EndedConnection, segment: &Segment<'_>) -> bool {
    match (ended.recent_stamp, segment.options.stamps) {
        (Some(recent), Some(stamps)) => (stamps.value.wrapping_sub(recent) as i32) < 0,
        _ => false,
    }
}

/// Whether a SYN begins a new connection (RFC 6191 section 2). Time stamps are always answered by time stamps here.
fn reopens(ended: &EndedConnection, segment: &Segment<'_>) -> bool {
    let last_seq = ended.receive_next - 1;
    match (ended.recent_stamp, segment.options.stamps) {
        (Some(recent), Some(stamps)) => match stamps.value.wrapping_sub(recent) as i32 {
            //= RFC 6191 section 2
            //# If TCP Timestamps would be enabled for the new incarnation of
            //# the connection, and the timestamp contained in the incoming SYN
            //# segment is greater than the last timestamp seen on the previous
            //# incarnation of the connection (for that direction of the data
            //# transfer), honor the connection request
            1.. => true,
            0 => segment.seq.after(last_seq),
            _ => false,
        },
        //= RFC 6191 section 2
        //# If TCP Timestamps would be enabled for the new incarnation of
        //# the connection, honor the incoming connection request
        (None, Some(_)) => true,
        //= RFC 6191 section 2
        //# If TCP Timestamps would not be enabled for the new incarnation
        //# of the connection, but the Sequence Number of the incoming SYN
        //# segment is greater than the last sequence number seen on the
        //# previous incarnation of the connection
        (_, None) => segment.seq.after(last_seq),
    }
}

#[cfg(test)]
#[path = "time_wait_tests.rs"]
mod tests;
