//! From a host's area to the stack: ranges wait for the stack to have room. It reads them when it
//! sends them, out of the area: a chunk is the host's again when it is acknowledged. Acknowledged
//! bytes are counted, and wake only a writer that has requested it. A socket that its host closes
//! is the host's again at once, with its chunks: the rest of its bytes is copied into pages of the
//! stack.

use millrace_core::time::Instant;

use super::{Core, NONE, Pair, SocketId, SocketUse};
use crate::limits::{EXTENTS_UNDER_WAY, RETRIED_PER_TURN, SEND_AHEAD_BYTES};
use crate::toe::pair::Extent;
use crate::toe::record::HostEvent;

/// Where bytes are.
enum SendSource {
    /// In the area, from there on.
    Area(u32),
    Extent(Extent),
}

/// Bytes that the stack has not taken yet.
struct Descriptor {
    source: SendSource,
    bytes: u32,
    next: u32,
}

/// All descriptors of a pair: a list for each line, and one of those that are free.
pub(super) struct Descriptors {
    all: Box<[Descriptor]>,
    free: u32,
}

impl Descriptors {
    /// A host that appends to a buffer names it more than once: twice as many as there are buffers, and a few; and one for each range of an extent.
    pub(super) fn new(buffers: u32) -> Self {
        let count = buffers * 2 + 64 + EXTENTS_UNDER_WAY;
        let next = |index| if index + 1 == count { NONE } else { index + 1 };
        let descriptor = |index| Descriptor { source: SendSource::Area(0), bytes: 0, next: next(index) };
        Self { all: (0..count).map(descriptor).collect(), free: 0 }
    }

    pub(super) fn put(&mut self, offset: u32, bytes: u32) -> Option<u32> {
        self.put_at(SendSource::Area(offset), bytes)
    }

    pub(super) fn put_extent(&mut self, extent: Extent) -> Option<u32> {
        let bytes = extent.1.bytes;
        self.put_at(SendSource::Extent(extent), bytes)
    }

    fn put_at(&mut self, source: SendSource, bytes: u32) -> Option<u32> {
        let index = self.free;
        let descriptor = self.all.get_mut(index as usize)?;
        self.free = descriptor.next;
        *descriptor = Descriptor { source, bytes, next: NONE };
        Some(index)
    }

    /// How many are in no list.
    #[cfg(test)]
    pub(super) fn unused(&self) -> usize {
        std::iter::successors(self.all.get(self.free as usize), |of| self.all.get(of.next as usize)).count()
    }

    /// How many there are.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    /// `next` follows `index`.
    pub(super) fn link(&mut self, index: u32, next: u32) {
        self.all[index as usize].next = next;
    }

    /// Frees one; the one behind it.
    fn free(&mut self, index: u32) -> u32 {
        let empty = Descriptor { source: SendSource::Area(0), bytes: 0, next: self.free };
        self.free = index;
        std::mem::replace(&mut self.all[index as usize], empty).next
    }

    /// Frees a list.
    pub(super) fn free_all(&mut self, mut first: u32) {
        while first != NONE {
            first = self.free(first);
        }
    }
}

impl Core {
    /// Gives the stack as many of a connection's bytes as it has room for.
    pub(super) fn move_bytes(&mut self, socket: SocketId, now: Instant) {
        self.move_ahead(socket, SEND_AHEAD_BYTES, now);
    }

    /// Does the same, while the connection has fewer than `most_ahead` unacknowledged bytes.
    pub(super) fn move_ahead(&mut self, (pair, socket): SocketId, most_ahead: u32, now: Instant) {
        let Self { stack, pairs, counters, short, .. } = self;
        let Pair { end, places, descriptors, .. } = &mut pairs[usize::from(pair)];
        let place = &mut places[socket as usize];
        let SocketUse::Line(line) = &mut place.what else { return };
        if line.closed.is_some() || line.closing == Some(true) {
            descriptors.free_all(line.first);
            (line.first, line.last) = (NONE, NONE);
            line.taken = line.given;
            return;
        }
        while let Some(Descriptor { source, bytes, .. }) = descriptors.all.get(line.first as usize) {
            let bytes = *bytes;
            let ahead = most_ahead.saturating_sub(stack.unacked_bytes(line.id));
            let most = bytes.min(ahead);
            if most == 0 {
                // Acknowledgments make room, and are reported.
                return;
            }
            let whole = |is_taken, bytes| (bytes, if is_taken { bytes } else { 0 });
            let (most, taken) = match source {
                // All of it or nothing, since it takes no memory of the stack.
                SendSource::Extent((lease, range)) => {
                    whole(stack.send_held(line.id, lease.clone(), *range, now).is_ok(), bytes)
                }
                SendSource::Area(offset) if line.closing.is_some() => {
                    let has_pages = stack.store().may_keep();
                    let mut copy = |at: usize, room: &mut [u8]| {
                        end.words.read(end.layout.send(*offset) + at, room);
                    };
                    let taken = if has_pages {
                        stack.write_from(line.id, most as usize, now, &mut copy)
                    } else {
                        Ok(0)
                    };
                    (most, taken.unwrap_or(0) as u32)
                }
                SendSource::Area(offset) => {
                    whole(stack.send_area(line.id, pair, *offset, most, now).is_ok(), most)
                }
            };
            line.taken += u64::from(taken);
            counters.sent_bytes += u64::from(taken);
            if taken == bytes {
                line.first = descriptors.free(line.first);
                if line.first == NONE {
                    line.last = NONE;
                }
                continue;
            }
            let descriptor = &mut descriptors.all[line.first as usize];
            descriptor.bytes = bytes - taken;
            if let SendSource::Area(offset) = &mut descriptor.source {
                *offset += taken;
            }
            if taken < most {
                // No descriptor or page is free, or the connection is about to end, which will be
                // reported.
                counters.short += 1;
                if !std::mem::replace(&mut place.is_short, true) {
                    short.push_back((pair, socket));
                }
                return;
            }
        }
    }

    /// Moves a connection's bytes in the stack to the stack's own pages: their chunks can be the
    /// host's again. False: there are too few pages for this now.
    pub(super) fn keep_bytes(&mut self, (pair, socket): SocketId, now: Instant) -> bool {
        let Self { stack, pairs, counters, short, .. } = self;
        let place = &mut pairs[usize::from(pair)].places[socket as usize];
        let SocketUse::Line(line) = &place.what else { return true };
        let is_kept = stack.keep_areas(line.id, now);
        if !is_kept {
            counters.short += 1;
            if !std::mem::replace(&mut place.is_short, true) {
                short.push_back((pair, socket));
            }
        }
        is_kept
    }

    /// The count of acknowledged bytes; and the event, if the host sleeps for one and it is due.
    pub(super) fn mirror(&mut self, (pair, socket): SocketId) {
        let Self { stack, pairs, counters, .. } = self;
        let of = &mut pairs[usize::from(pair)];
        let count = of.end.layout.count(socket);
        let Some(line) = of.line(socket) else { return };
        let acked = line.own_acked(stack);
        let is_due = line.wake_at.is_some_and(|at| acked >= at || line.closed.is_some());
        if is_due {
            line.wake_at = None;
        }
        of.end.words.store(count, acked);
        if is_due {
            counters.wakes += 1;
            of.tell(&HostEvent::Room { socket }, counters);
        }
    }

    /// Lines that had no page or descriptor try again, some of them.
    pub(super) fn retry_short(&mut self) {
        for _ in 0..RETRIED_PER_TURN {
            let Some((pair, socket)) = self.short.pop_front() else { break };
            self.pair(pair).places[socket as usize].is_short = false;
            self.make_dirty((pair, socket));
        }
    }
}
