//! Updates waiting for one loop, in case its ring is full: only the last update per destination
//! counts.

use std::collections::{HashMap, VecDeque};

use rtrb::Producer;

use super::table::Update;

/// Words that wait for room. No more than the table has places.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    order: VecDeque<u32>,
    last: HashMap<u32, Update>,
}

impl Outbox {
    /// Says it now, or when there is room.
    pub(super) fn say(&mut self, ring: &mut Producer<Update>, update: Update) {
        let (Update::Hop { id, .. } | Update::IsUsed { id }) = update;
        if self.order.is_empty() && ring.push(update).is_ok() {
            return;
        }
        // A question can be put another time.
        if let Update::Hop { .. } = update
            && self.last.insert(id.slot, update).is_none()
        {
            self.order.push_back(id.slot);
        }
    }

    /// Says what waits, as far as there is room; returns whether that was all.
    pub(super) fn flush(&mut self, ring: &mut Producer<Update>) -> bool {
        while let Some(slot) = self.order.front() {
            if self.last.get(slot).is_some_and(|update| ring.push(*update).is_err()) {
                return false;
            }
            self.last.remove(slot);
            self.order.pop_front();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::hop::{Hop, HopId};

    fn update(slot: u32, mtu: u32) -> Update {
        Update::Hop { id: HopId { slot, tenancy: 0 }, hop: Hop { mtu, ..Hop::UNUSABLE } }
    }

    #[test]
    fn outbox_keeps_only_last_update_in_original_position() {
        let (mut ring, mut end) = rtrb::RingBuffer::new(2);
        let mut outbox = Outbox::default();
        for (slot, mtu) in [(1, 1), (2, 1), (3, 1), (4, 1), (3, 2)] {
            outbox.say(&mut ring, update(slot, mtu));
        }
        outbox.say(&mut ring, Update::IsUsed { id: HopId { slot: 9, tenancy: 0 } });
        assert!(!outbox.flush(&mut ring));
        let mut all = Vec::new();
        while let Ok(one) = end.pop() {
            all.push(one);
            outbox.flush(&mut ring);
        }
        assert_eq!(all, [update(1, 1), update(2, 1), update(3, 2), update(4, 1)]);
        assert!(outbox.flush(&mut ring) && outbox.last.is_empty());
    }
}
