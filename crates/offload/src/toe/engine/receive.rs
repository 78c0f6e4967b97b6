//! From the stack to anonymous buffers: one pool for all connections of a host. A buffer is handed over when it is full, when its time is over, or
//! when nothing more will come.

use millrace_core::time::Instant;

use super::{Core, NONE, Pair, SocketId, SocketUse};
use crate::toe::record::HostEvent;

impl Core {
    /// Fills buffers with the data received for a connection.
    pub(super) fn fill(&mut self, (pair, socket): SocketId, now: Instant) {
        let Self { stack, pairs, counters, timed, hand_over_ns, .. } = self;
        let Pair { end, settings, places, free, lent, starved, rings, .. } = &mut pairs[usize::from(pair)];
        let place = &mut places[socket as usize];
        let SocketUse::Line(line) = &mut place.what else { return };
        if line.closing.is_some() {
            return;
        }
        let mut hand_over = |line: &mut super::SocketConnection| {
            let event = HostEvent::Data { socket, buffer: line.filling, bytes: line.filled };
            lent[line.filling as usize] = Some((socket, line.id));
            line.held += 1;
            (line.filling, line.filled) = (NONE, 0);
            let is_told = end.events.push(&event.encode());
            *rings |= is_told;
            counters.buffers += 1;
            counters.events += u64::from(is_told);
            counters.events_lost += u64::from(!is_told);
        };
        while line.is_readable {
            if line.filling == NONE {
                if line.held >= settings.receive_share {
                    // Giving one back makes the line dirty.
                    break;
                }
                let Some(buffer) = free.pop_front() else {
                    if !std::mem::replace(&mut place.is_starved, true) {
                        starved.push_back(socket);
                        counters.starved += 1;
                    }
                    break;
                };
                (line.filling, line.filled, line.since) = (buffer, 0, now);
            }
            let most = (settings.receive_bytes - line.filled) as usize;
            let mut at = end.layout.receive(line.filling, settings.receive_bytes) + line.filled as usize;
            let mut copy = |bytes: &[u8]| {
                end.words.write(at, bytes);
                at += bytes.len();
            };
            let got = stack.read_to(line.id, most, now, &mut copy).unwrap_or(0);
            line.is_readable = got == most;
            line.filled += got as u32;
            if line.filled == settings.receive_bytes {
                hand_over(line);
            }
        }
        if line.filled == 0 && line.filling != NONE {
            free.push_back(std::mem::replace(&mut line.filling, NONE));
        }
        let is_last = (line.peer_closed || line.closed.is_some()) && !line.is_readable;
        if line.filled > 0 && (is_last || *hand_over_ns == 0 || now.ns_since(line.since) >= *hand_over_ns) {
            hand_over(line);
        } else if line.filled > 0 && !std::mem::replace(&mut place.is_timed, true) {
            timed.push_back((pair, socket));
        }
    }

    /// Buffers whose time is over are handed over as they are.
    pub(super) fn hand_over_due(&mut self, now: Instant) {
        for _ in 0..self.timed.len() {
            let Some(&(pair, socket)) = self.timed.front() else { break };
            let bound = self.hand_over_ns;
            let place = &mut self.pair(pair).places[socket as usize];
            let begun = match &place.what {
                SocketUse::Line(line) if line.filled > 0 => Some(line.since),
                _ => None,
            };
            if begun.is_some_and(|since| now.ns_since(since) < bound) {
                break;
            }
            place.is_timed = false;
            self.timed.pop_front();
            if begun.is_some() {
                self.fill((pair, socket), now);
            }
        }
    }
}
