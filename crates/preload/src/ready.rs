//! Epoll sets: the engine's sockets in them, and which of those have something to say. The kernel keeps the rest of the set.
//!
//! As in the kernel there is a queue of sockets that something has happened to. One that is level-triggered goes back into it as long as it is
//! ready; one that is edge-triggered comes again when something happens again.

use std::collections::{BTreeMap, VecDeque};

use crate::errno::{CallResult, Errno};

pub(crate) const ONE_SHOT: u32 = libc::EPOLLONESHOT as u32;
pub(crate) const EDGE: u32 = libc::EPOLLET as u32;
/// Said without being asked for.
pub(crate) const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;

/// A socket in a set: the descriptor under which it was added, and the socket behind it.
pub(crate) type InterestKey = (i32, u32);

struct Item {
    events: u32,
    data: u64,
    is_queued: bool,
    /// It is one-shot and has reported its event.
    is_off: bool,
}

/// The engine's sockets in one epoll set.
#[derive(Default)]
pub(crate) struct Set {
    /// Descriptors of the set.
    pub(crate) refs: u32,
    items: BTreeMap<InterestKey, Item>,
    queue: VecDeque<InterestKey>,
    /// Counts waits of one event at most, in which engine and kernel take turns to be first.
    pub(crate) turn: u32,
}

impl Set {
    /// A set with one descriptor.
    pub(crate) fn new() -> Self {
        Self { refs: 1, ..Self::default() }
    }

    pub(crate) fn add(&mut self, key: InterestKey, events: u32, data: u64) -> CallResult<()> {
        if self.items.contains_key(&key) {
            return Err(Errno::EXIST);
        }
        self.items.insert(key, Item { events, data, is_queued: false, is_off: false });
        self.mark(key);
        Ok(())
    }

    pub(crate) fn modify(&mut self, key: InterestKey, events: u32, data: u64) -> CallResult<()> {
        let item = self.items.get_mut(&key).ok_or(Errno::NOENT)?;
        (item.events, item.data, item.is_off) = (events, data, false);
        self.mark(key);
        Ok(())
    }

    pub(crate) fn remove(&mut self, key: InterestKey) -> CallResult<()> {
        // What stands in the queue is passed over.
        self.items.remove(&key).map(|_| ()).ok_or(Errno::NOENT)
    }

    /// Something has happened to a socket.
    pub(crate) fn mark(&mut self, key: InterestKey) {
        let Some(item) = self.items.get_mut(&key) else { return };
        if !item.is_off && !std::mem::replace(&mut item.is_queued, true) {
            self.queue.push_back(key);
        }
    }

    /// Takes up to `most` sockets with their events; `ask` receives the socket and the events
    /// wanted.
    pub(crate) fn take(
        &mut self,
        most: usize,
        mut ask: impl FnMut(u32, u32) -> u32,
        mut found: impl FnMut(u32, u64),
    ) -> usize {
        let mut count = 0;
        for _ in 0..self.queue.len() {
            if count == most {
                break;
            }
            let Some(key) = self.queue.pop_front() else { break };
            let Some(item) = self.items.get_mut(&key) else { continue };
            item.is_queued = false;
            if item.is_off {
                continue;
            }
            let events = ask(key.1, item.events) & (item.events | ALWAYS) & !(EDGE | ONE_SHOT);
            if events == 0 {
                continue;
            }
            count += 1;
            found(events, item.data);
            item.is_off = item.events & ONE_SHOT != 0;
            if item.events & (EDGE | ONE_SHOT) == 0 {
                item.is_queued = true;
                self.queue.push_back(key);
            }
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IN: u32 = libc::EPOLLIN as u32;
    const OUT: u32 = libc::EPOLLOUT as u32;
    const HUP: u32 = libc::EPOLLHUP as u32;

    /// Takes the events that a set reports when sockets have the given readiness.
    fn take(set: &mut Set, most: usize, ready: &[(u32, u32)]) -> Vec<(u32, u64)> {
        let mut all = Vec::new();
        let ask = |socket, _| ready.iter().find(|of| of.0 == socket).map_or(0, |of| of.1);
        let count = set.take(most, ask, |events, data| all.push((events, data)));
        assert_eq!(count, all.len());
        all
    }

    #[test]
    fn level_triggered_event_repeats_while_ready() {
        let mut set = Set::default();
        set.add((5, 0), IN, 55).unwrap();
        assert_eq!(take(&mut set, 8, &[]), []);
        assert_eq!(take(&mut set, 8, &[(0, IN)]), [], "nothing has happened since");
        set.mark((5, 0));
        for _ in 0..3 {
            assert_eq!(take(&mut set, 8, &[(0, IN | OUT)]), [(IN, 55)]);
        }
        assert_eq!(take(&mut set, 8, &[]), []);
        assert!(set.queue.is_empty());
    }

    #[test]
    fn edge_triggered_event_is_reported_once_per_mark() {
        let mut set = Set::default();
        set.add((5, 0), IN | OUT | EDGE, 1).unwrap();
        assert_eq!(take(&mut set, 8, &[(0, OUT)]), [(OUT, 1)]);
        assert_eq!(take(&mut set, 8, &[(0, OUT)]), []);
        set.mark((5, 0));
        set.mark((5, 0));
        assert_eq!(take(&mut set, 8, &[(0, IN | OUT)]), [(IN | OUT, 1)]);
        assert_eq!(take(&mut set, 8, &[(0, IN | OUT)]), []);
        set.modify((5, 0), IN | EDGE, 2).unwrap();
        assert_eq!(take(&mut set, 8, &[(0, IN | OUT)]), [(IN, 2)], "a change looks again");
    }

    #[test]
    fn epoll_one_shot_event_is_disabled_until_modify() {
        let mut set = Set::default();
        set.add((5, 0), IN | ONE_SHOT, 1).unwrap();
        assert_eq!(take(&mut set, 8, &[(0, IN)]), [(IN, 1)]);
        set.mark((5, 0));
        assert_eq!(take(&mut set, 8, &[(0, IN | HUP)]), []);
        set.modify((5, 0), IN | ONE_SHOT, 2).unwrap();
        assert_eq!(take(&mut set, 8, &[(0, IN | HUP)]), [(IN | HUP, 2)], "a hang-up is said unasked");
    }

    #[test]
    fn ready_sockets_take_turns_when_limit_is_small() {
        let mut set = Set::default();
        let ready: Vec<(u32, u32)> = (0..5).map(|socket| (socket, IN)).collect();
        (0..5).for_each(|socket| set.add((socket as i32, socket), IN, u64::from(socket)).unwrap());
        let mut seen = Vec::new();
        for _ in 0..5 {
            seen.extend(take(&mut set, 2, &ready).into_iter().map(|(_, data)| data));
        }
        seen.sort_unstable();
        assert_eq!(seen, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]);
    }

    #[test]
    fn set_operations_on_duplicate_or_missing_entries_return_errno() {
        let mut set = Set::default();
        set.add((5, 0), IN, 1).unwrap();
        assert_eq!(set.add((5, 0), IN, 1), Err(Errno::EXIST));
        set.add((6, 0), IN, 2).unwrap();
        set.remove((5, 0)).unwrap();
        assert_eq!(set.remove((5, 0)), Err(Errno::NOENT));
        assert_eq!(set.modify((5, 0), IN, 1), Err(Errno::NOENT));
        assert_eq!(take(&mut set, 8, &[(0, IN)]), [(IN, 2)], "the other descriptor of it");
    }
}
