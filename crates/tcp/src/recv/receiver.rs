//! One connection's receiver.

use millrace_core::time::Instant;
use millrace_core::wire::checksum::sum16;

use super::acks::Acks;
use super::pages::Pages;
use super::reassembly::{Appended, EARLY, Queue, READY};
use super::window;
use crate::seq::Seq;
use crate::wire::header::is_same_sum;

/// Settings of a receiver, once both SYNs are known.
#[derive(Clone, Copy, Debug)]
pub struct ReceiverSettings {
    /// The sequence number of the first byte: the peer's initial one and 1.
    pub next: Seq,
    /// Received and not read, and the window, in all at most.
    pub limit_bytes: u32,
    /// The scale that our SYN offered ([`window::scale_for`]), if the peer scales too; else 0.
    pub scale: u8,
    /// The segment size that our SYN announced.
    pub mss: u16,
    /// Whether the peer's SYN permitted SACK.
    pub is_sack_permitted: bool,
}

/// A segment with data or a FIN.
#[derive(Clone, Copy, Debug)]
pub struct ReceivedSegment<'a> {
    /// Sequence number of the first byte.
    pub seq: Seq,
    /// The data.
    pub payload: &'a [u8],
    /// Whether a FIN follows it.
    pub is_fin: bool,
    /// Whether a router has marked it (ECN).
    pub is_marked: bool,
    /// Sum that the payload must have ([`crate::wire::payload_sum`]); `None` when the checksum has
    /// been checked already.
    pub expected_sum: Option<u16>,
}

/// What became of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offered {
    /// More bytes are ready to be read; 0 if only the FIN was new.
    Ready {
        /// Number of bytes, including those that had come early and are no longer behind a hole.
        bytes: u32,
    },
    /// Something in it is kept behind a hole.
    Early {
        /// New bytes.
        bytes: u32,
    },
    /// All of it was there already.
    Duplicate,
    /// Nothing of it is kept.
    Refused(SegmentRefusal),
}

/// Why nothing is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentRefusal {
    /// The checksum is wrong: as if it had never come.
    WrongSum,
    /// It lies outside the window, or behind the FIN.
    OutOfWindow,
    /// There is no page for it: it has to come again.
    NoRoom,
}

/// Received data of a connection and its receive window: 64 bytes, and pages while there is unread
/// data.
#[derive(Debug)]
pub struct Receiver {
    /// RCV.NXT.
    pub(super) next: Seq,
    /// RCV.NXT + RCV.WND, as it has been announced: never goes back.
    pub(super) edge: Seq,
    pub(super) state: ReceiverState,
    pub(super) acks: Acks,
    queue: Queue,
}

const _: () = assert!(size_of::<Receiver>() <= 64);

/// State other than sequence numbers, pages and ACKs.
#[derive(Debug)]
pub(super) struct ReceiverState {
    pub(super) limit_bytes: u32,
    /// Bytes that are ready and have not been read.
    pub(super) unread_bytes: u32,
    /// Where the FIN is, if one has come.
    fin: Seq,
    pub(super) mss: u16,
    pub(super) scale: u8,
    pub(super) is_sack_permitted: bool,
    has_fin: bool,
    pub(super) is_finished: bool,
}

impl Receiver {
    /// Nothing has been received.
    pub fn new(settings: &ReceiverSettings) -> Self {
        let limit_bytes = window::limit(settings.limit_bytes, settings.scale);
        let state = ReceiverState {
            limit_bytes,
            unread_bytes: 0,
            fin: Seq(0),
            mss: settings.mss.max(1),
            scale: settings.scale.min(crate::limits::MAX_WINDOW_SCALE),
            is_sack_permitted: settings.is_sack_permitted,
            has_fin: false,
            is_finished: false,
        };
        let edge = settings.next + u32::from(window::of_syn(limit_bytes));
        Self { next: settings.next, edge, state, acks: Acks::new(settings.next), queue: Queue::new() }
    }

    /// Whose the pages are that it takes.
    pub fn group(&self) -> u8 {
        self.queue.group
    }

    /// They are this group's from now on.
    pub fn set_group(&mut self, group: u8) {
        self.queue.group = group;
    }

    /// RCV.NXT: the next sequence number expected, behind the FIN if that has been reached.
    #[inline]
    pub const fn next(&self) -> Seq {
        self.next
    }

    /// Whether everything has been received, the FIN too.
    #[inline]
    pub const fn is_finished(&self) -> bool {
        self.state.is_finished
    }

    /// Bytes that are ready and have not been read.
    #[inline]
    pub const fn unread_bytes(&self) -> u32 {
        self.state.unread_bytes
    }

    /// Returns whether data has come that is behind a hole.
    #[inline]
    pub fn has_early(&self) -> bool {
        self.queue.has_early()
    }

    /// Takes in a segment; one without data or a FIN has its checksum verified and changes nothing.
    /// Data in order is summed while it is copied, and kept only if the sum is right; no other part
    /// of a segment may be trusted until this has returned something other than
    /// [`SegmentRefusal::WrongSum`].
    #[inline]
    pub fn offer(&mut self, pages: &mut Pages, now: Instant, arrival: &ReceivedSegment<'_>) -> Offered {
        if arrival.payload.is_empty() && !arrival.is_fin {
            return if arrival.expected_sum.is_none_or(|expected| is_same_sum(0, expected)) {
                Offered::Ready { bytes: 0 }
            } else {
                Offered::Refused(SegmentRefusal::WrongSum)
            };
        }
        let had_early = self.queue.has_early();
        let offered = self.take_in(pages, arrival);
        match offered {
            Offered::Refused(SegmentRefusal::WrongSum) => {}
            Offered::Ready { .. } if !had_early && !arrival.is_marked && !self.state.is_finished => {
                self.acks.took(now, self.next, arrival.payload.len(), self.state.mss);
            }
            // RFC 5681 section 4.2: at once for data out of order and for data that fills a hole.
            _ => self.acks.want_now(),
        }
        offered
    }

    #[inline]
    fn take_in(&mut self, pages: &mut Pages, arrival: &ReceivedSegment<'_>) -> Offered {
        let &ReceivedSegment { seq, payload, expected_sum, .. } = arrival;
        let length = payload.len() as i32;
        let limit = if self.state.has_fin { self.edge.min(self.state.fin) } else { self.edge };
        //= RFC 9293 section 3.10.7.4
        //# If a segment's
        //# contents straddle the boundary between old and new, only the
        //# new parts are processed.
        let from = self.next.since(seq).clamp(0, length);
        let to = limit.since(seq).clamp(from, length);
        let data = &payload[from as usize..to as usize];
        let is_whole = to == length;
        if from > 0 || self.next == seq {
            // It begins with the data expected next, or with data that is there already.
            if !data.is_empty() && is_whole {
                let before = (if from > 0 { sum16(&payload[..from as usize]) } else { 0 }, from as usize);
                match self.queue.append(pages, self.next, data, before, expected_sum) {
                    Appended::Kept => return self.appended(pages, arrival, from as u32, data.len() as u32),
                    Appended::WrongSum => return Offered::Refused(SegmentRefusal::WrongSum),
                    Appended::NoPage => return Offered::Refused(SegmentRefusal::NoRoom),
                    Appended::NotPlain => {}
                }
            }
        }
        if expected_sum.is_some_and(|expected| !is_same_sum(sum16(payload), expected)) {
            return Offered::Refused(SegmentRefusal::WrongSum);
        }
        self.put(pages, arrival, from as u32, data, is_whole)
    }

    /// Data in order was kept.
    #[inline]
    fn appended(
        &mut self,
        pages: &mut Pages,
        arrival: &ReceivedSegment<'_>,
        from: u32,
        bytes: u32,
    ) -> Offered {
        self.next += bytes;
        self.state.unread_bytes += bytes;
        if from > 0 {
            self.acks.note_duplicate(pages.reports(), arrival.seq, arrival.seq + from);
        }
        if arrival.is_fin {
            self.take_fin(pages, arrival);
        }
        self.reach_fin();
        Offered::Ready { bytes }
    }

    /// All that is not plain: `data` begins `from` bytes behind the segment's beginning. The sum is right.
    fn put(
        &mut self,
        pages: &mut Pages,
        arrival: &ReceivedSegment<'_>,
        from: u32,
        data: &[u8],
        is_whole: bool,
    ) -> Offered {
        let begin = arrival.seq + from;
        let cluster = if begin == self.next { READY } else { EARLY };
        let inserted = self.queue.insert(pages, begin, data, cluster);
        let duplicate = if from > 0 { Some((arrival.seq, begin)) } else { inserted.duplicate };
        if let Some((left, right)) = duplicate {
            self.acks.note_duplicate(pages.reports(), left, right);
        }
        let next = self.queue.advance(pages, self.next);
        let ready_bytes =
            if self.state.is_finished { 0 } else { next.since(self.next).max(0).cast_unsigned() };
        self.next += ready_bytes;
        self.state.unread_bytes += ready_bytes;
        let is_new_fin = arrival.is_fin && is_whole && self.take_fin(pages, arrival);
        let reaches_fin = ready_bytes > 0 && self.reach_fin();
        if ready_bytes > 0 {
            self.acks.advance(pages.reports(), self.next);
        }
        if ready_bytes > 0 || reaches_fin || is_new_fin && self.state.is_finished {
            return Offered::Ready { bytes: ready_bytes };
        }
        self.note_early(pages, begin, begin + data.len() as u32);
        if inserted.bytes > 0 || is_new_fin {
            Offered::Early { bytes: inserted.bytes }
        } else if inserted.is_cut {
            Offered::Refused(SegmentRefusal::NoRoom)
        } else if duplicate.is_some() || arrival.is_fin && self.is_known_fin(arrival) {
            Offered::Duplicate
        } else {
            Offered::Refused(SegmentRefusal::OutOfWindow)
        }
    }

    /// Remembers the block of early data that the segment is in: the first to report.
    fn note_early(&mut self, pages: &mut Pages, from: Seq, to: Seq) {
        if from == to || !self.queue.has_early() {
            return;
        }
        // As a rule it continues the latest block, and nothing is behind it.
        match self.acks.latest_block(pages.reports()) {
            Some((left, right)) if right == from && self.queue.end(pages) == Some(to) => {
                self.acks.note_block(pages.reports(), (left, to))
            }
            _ => {
                if let Some(block) = self.queue.run_around(pages, from) {
                    self.acks.note_block(pages.reports(), block);
                }
            }
        }
    }

    /// Whether the segment's FIN is the one that is known.
    fn is_known_fin(&self, arrival: &ReceivedSegment<'_>) -> bool {
        self.state.has_fin && arrival.seq + arrival.payload.len() as u32 == self.state.fin
    }

    /// Takes note of a FIN, unless there is one already or data behind it. Whether it is new.
    fn take_fin(&mut self, pages: &Pages, arrival: &ReceivedSegment<'_>) -> bool {
        let fin = arrival.seq + arrival.payload.len() as u32;
        let has_data_behind = self.queue.end(pages).is_some_and(|end| end.after(fin));
        if self.state.has_fin || fin.before(self.next) || fin.after(self.edge) || has_data_behind {
            return false;
        }
        self.state.has_fin = true;
        self.state.fin = fin;
        self.reach_fin();
        true
    }

    /// Steps over the FIN when everything before it is there. Whether that has just happened.
    fn reach_fin(&mut self) -> bool {
        let reaches = self.state.has_fin && !self.state.is_finished && self.next == self.state.fin;
        if reaches {
            //= RFC 9293 section 3.10.7.4
            //# If the FIN bit is set, signal the user "connection closing"
            //# and return any pending RECEIVEs with same message, advance
            //# RCV.NXT over the FIN, and send an acknowledgment for the FIN.
            self.state.is_finished = true;
            self.next += 1;
        }
        reaches
    }

    /// Returns the data to read next, as far as it is contiguous: empty only if nothing is ready.
    #[inline]
    pub fn peek<'a>(&self, pages: &'a Pages) -> &'a [u8] {
        self.queue.ready(pages)
    }

    /// The first `bytes` bytes have been read: their pages are free. How many there were.
    #[inline]
    pub fn consume(&mut self, pages: &mut Pages, bytes: usize) -> usize {
        let consumed = self.queue.consume(pages, bytes);
        self.state.unread_bytes -= consumed as u32;
        consumed
    }

    /// Copies ready data to `to`, as much as fits, and releases it.
    pub fn read(&mut self, pages: &mut Pages, to: &mut [u8]) -> usize {
        let mut at = 0;
        self.read_to(pages, to.len(), &mut |bytes| {
            to[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        })
    }

    /// Passes ready data to `take`, up to `most` bytes, piece by piece, and releases it. Returns
    /// the number of bytes.
    pub fn read_to(&mut self, pages: &mut Pages, most: usize, take: &mut dyn FnMut(&[u8])) -> usize {
        let mut done = 0;
        while done < most {
            let ready = self.queue.ready(pages);
            let bytes = ready.len().min(most - done);
            if bytes == 0 {
                break;
            }
            take(&ready[..bytes]);
            done += self.consume(pages, bytes);
        }
        done
    }

    /// Gives all pages back: the connection ends, or is not read any more. Later data is not kept
    /// either if it is not offered.
    pub fn clear(&mut self, pages: &mut Pages) {
        self.queue.clear(pages);
        self.acks.forget(pages.reports());
        self.queue = Queue::new();
        self.state.unread_bytes = 0;
    }
}

#[cfg(test)]
#[path = "receiver_tests.rs"]
mod tests;
