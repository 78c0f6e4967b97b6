//! Hosts of other processes come and go. When a host is gone, for whatever reason, its requests are
//! carried out first. Then its listeners are closed and its connections reset, except those that it
//! had closed itself: the data given to them is sent. Then another host can have the pair. Each
//! turn does a bounded amount of this work.

use std::os::fd::BorrowedFd;

use millrace_core::time::Instant;

use super::{Core, SocketId, SocketUse};
use crate::limits::{CLOSED_PER_TURN, HOST_LINGER_NS, REQUESTS_PER_TURN};
use crate::toe::pair::EngineEnd;

/// How far a pair is that is being cleared.
pub(super) struct Leaving {
    pair: u16,
    /// What takes the place of its end.
    nobody: EngineEnd,
    step: CleanupStep,
    /// Deadline for sending the remaining data.
    until: Instant,
}

#[derive(Clone, Copy)]
enum CleanupStep {
    /// Turns in which its last requests may still be taken: what fits into its ring.
    Requests(u32),
    /// First of the sockets that are not closed yet.
    Close(u32),
    /// First of the sockets that may not be free yet.
    Wait(u32),
}

impl Core {
    /// A host has this pair from now on.
    pub(in crate::toe) fn join_host(&mut self, pair: u16, end: EngineEnd) {
        if let Some(of) = self.pairs.get_mut(usize::from(pair)) {
            of.end = end;
            of.is_gone = false;
            self.stack.set_area(pair, of.end.area());
        }
    }

    /// Starts to clear the pair of a departed host; `nobody` takes the place of its end when the
    /// pair is cleared.
    pub(in crate::toe) fn leave_host(&mut self, pair: u16, nobody: EngineEnd, now: Instant) {
        let Some(of) = self.pairs.get_mut(usize::from(pair)) else { return };
        of.is_gone = true;
        let turns = of.settings.requests.div_ceil(REQUESTS_PER_TURN);
        let until = now.plus_ns(HOST_LINGER_NS);
        self.leaving.push(Leaving { pair, nobody, step: CleanupStep::Requests(turns), until });
    }

    /// A pair that is cleared, with the end of the host that is gone.
    pub(in crate::toe) fn take_departed(&mut self) -> Option<(u16, EngineEnd)> {
        self.departed.pop()
    }

    /// When there is something to clear.
    pub(super) fn clearing_due(&self, now: Instant) -> Option<Instant> {
        if !self.departed.is_empty() {
            return Some(now);
        }
        let due = |leaving: &Leaving| match leaving.step {
            CleanupStep::Wait(from) if !self.pairs[usize::from(leaving.pair)].has_free(from) => leaving.until,
            _ => now,
        };
        self.leaving.iter().map(due).min()
    }

    /// Clears pairs whose hosts are gone, a bit of each.
    pub(super) fn see_off(&mut self, now: Instant) {
        let mut index = 0;
        while index < self.leaving.len() {
            let Leaving { pair, step, until, .. } = self.leaving[index];
            match self.clear(pair, step, now, now >= until) {
                Some(next) => {
                    if matches!((step, next), (CleanupStep::Requests(_), CleanupStep::Close(_))) {
                        // Whoever still writes into that memory is not heard.
                        let of = &mut self.pairs[usize::from(pair)];
                        std::mem::swap(&mut of.end.requests, &mut self.leaving[index].nobody.requests);
                    }
                    self.leaving[index].step = next;
                    index += 1;
                }
                None => {
                    let Leaving { mut nobody, .. } = self.leaving.swap_remove(index);
                    let of = &mut self.pairs[usize::from(pair)];
                    std::mem::swap(&mut of.end.requests, &mut nobody.requests);
                    let end = std::mem::replace(&mut of.end, nobody);
                    of.empty();
                    self.stack.set_area(pair, None);
                    self.counters.pairs_cleared += 1;
                    self.departed.push((pair, end));
                }
            }
        }
    }

    /// One step; `None`: nothing is left.
    fn clear(&mut self, pair: u16, step: CleanupStep, now: Instant, is_late: bool) -> Option<CleanupStep> {
        let sockets = self.pair(pair).settings.sockets;
        match step {
            CleanupStep::Requests(turns) if turns > 0 && self.pair(pair).end.requests.is_ready() => {
                Some(CleanupStep::Requests(turns - 1))
            }
            CleanupStep::Requests(_) => {
                self.close_listeners(pair, now);
                Some(CleanupStep::Close(0))
            }
            CleanupStep::Close(from) => {
                let end = sockets.min(from + CLOSED_PER_TURN as u32);
                (from..end).for_each(|socket| self.close_left_open((pair, socket), false, now));
                Some(if end == sockets { CleanupStep::Wait(0) } else { CleanupStep::Close(end) })
            }
            CleanupStep::Wait(mut from) => {
                for _ in 0..CLOSED_PER_TURN {
                    if from < sockets && is_late {
                        self.close_left_open((pair, from), true, now);
                    }
                    if from == sockets || !self.pair(pair).has_free(from) {
                        break;
                    }
                    from += 1;
                }
                (from < sockets).then_some(CleanupStep::Wait(from))
            }
        }
    }

    fn close_listeners(&mut self, pair: u16, now: Instant) {
        for index in 0..self.listeners.len() {
            let socket = self.listeners[index].as_ref().map(|listening| listening.socket);
            if let Some((of, socket)) = socket.filter(|socket| socket.0 == pair) {
                self.unlisten(index as u16, now);
                self.pair(of).places[socket as usize].what = SocketUse::Free;
                self.counters.left_open += 1;
            }
        }
    }

    /// A connection that its host has not closed is reset; with `all` also one that it has. One that
    /// it has not taken goes to another listener.
    fn close_left_open(&mut self, (pair, socket): SocketId, all: bool, now: Instant) {
        let place = &mut self.pairs[usize::from(pair)].places[socket as usize];
        match &mut place.what {
            SocketUse::Line(line) if line.offered_by.is_some() => self.withdraw((pair, socket), now),
            SocketUse::Line(line) if line.closing.is_none() || (all && line.closing == Some(false)) => {
                self.counters.left_open += u64::from(line.closing.is_none());
                line.closing = Some(true);
                self.make_dirty((pair, socket));
            }
            SocketUse::Line(_) | SocketUse::Free => {}
            SocketUse::Failed | SocketUse::Waiting | SocketUse::Listener(_) => place.what = SocketUse::Free,
        }
    }

    /// The engine is about to sleep: hosts of other processes ring from now on.
    pub(in crate::toe) fn announce_sleep(&self) {
        self.pairs
            .iter()
            .filter_map(|pair| pair.end.doorbell.as_ref())
            .for_each(|bell| bell.announce_sleep());
    }

    /// Returns the descriptors that the hosts ring.
    pub(in crate::toe) fn doorbells(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let bells = self.pairs.iter().filter_map(|pair| pair.end.doorbell.as_ref());
        bells.filter(|bell| !bell.is_hung_up()).map(|bell| bell.fd())
    }

    /// It is awake; of [`doorbells`](Self::doorbells), in their order, whether they were rung.
    pub(in crate::toe) fn awake(&self, is_rung: &[bool]) {
        let mut is_rung = is_rung.iter();
        for bell in self.pairs.iter().filter_map(|pair| pair.end.doorbell.as_ref()) {
            bell.awake();
            if !bell.is_hung_up() && is_rung.next() == Some(&true) {
                bell.clear();
            }
        }
    }
}

impl super::Pair {
    /// As it was before its first host.
    fn empty(&mut self) {
        self.free.clear();
        self.free.extend(0..self.settings.receive_buffers);
        self.lent.fill(None);
        self.starved.clear();
        self.places.iter_mut().for_each(|place| place.is_starved = false);
        self.rings = false;
    }
}
