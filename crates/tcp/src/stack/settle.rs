//! What follows from a changed state: events, timers, TIME-WAIT records, freed slots.

use millrace_core::time::Instant;

use super::{Reply, Stack};
use crate::conn::{Connection, Marks, Reason, State};
use crate::time_wait::Ended;

impl Stack {
    /// The connection may have something to send: it has its turn in the next output stage.
    pub(super) fn make_ready(&mut self, number: u32) {
        let Some(connection) = self.slots.get_mut(number as usize).and_then(|slot| slot.connection.as_mut())
        else {
            return;
        };
        if !connection.marks().has(Marks::IS_READY) {
            connection.marks_mut().insert(Marks::IS_READY);
            self.ready.push_back(number);
        }
    }

    /// Looks at what a call or a segment has made of a connection. `wait`: when it may send again, if it said so.
    pub(super) fn settle(&mut self, number: u32, now: Instant, wait: Option<Instant>) {
        let Some(connection) = self.slots.get_mut(number as usize).and_then(|slot| slot.connection.as_mut())
        else {
            return;
        };
        match connection.state() {
            State::Closed if connection.reason() == Reason::Forgotten => return self.free(number),
            State::Closed | State::TimeWait => self.leave_table(number, now),
            _ => {}
        }
        let Some(connection) = self.slots[number as usize].connection.as_mut() else { return };
        let is_orphan = connection.marks().has(Marks::ORPHAN);
        if is_orphan && matches!(connection.state(), State::Closed | State::TimeWait) {
            return self.free(number);
        }
        if !is_orphan && !connection.happened().is_empty() && !connection.marks().has(Marks::IS_TOLD) {
            connection.marks_mut().insert(Marks::IS_TOLD);
            self.told.push_back(number);
        }
        let due = connection.due(&self.shared.env(now));
        let due = [due, wait].into_iter().flatten().min();
        match due {
            // Never in this moment again: the second stage would not end.
            Some(due) => self.wheel.set(number, due.max(now.plus_ns(1)), now),
            None => self.wheel.cancel(number),
        }
    }

    /// The connection is over: segments for its ends go elsewhere from now on.
    fn leave_table(&mut self, number: u32, now: Instant) {
        let Some(flow) = self.table.flow(number).copied() else { return };
        self.table.remove(&flow);
        self.drop_note(number);
        let Some(connection) = self.slots.get_mut(number as usize).and_then(|slot| slot.connection.as_mut())
        else {
            return;
        };
        if connection.state() == State::TimeWait {
            let ended = Ended {
                send_next: connection.snd_nxt(),
                receive_next: connection.rcv_nxt(),
                recent_stamp: connection.recent_stamp(),
            };
            let owes_ack = connection.marks_mut().take(Marks::ACK_NOW);
            self.time_waits.insert(&flow, ended, now);
            if owes_ack {
                // The peer's FIN is acknowledged by the record from now on.
                let head = self.time_wait_ack(&flow, &ended, now);
                self.reply(Reply { flow, head });
            }
        }
    }

    /// Empties a slot.
    pub(super) fn free(&mut self, number: u32) {
        if let Some(flow) = self.table.flow(number).copied() {
            self.table.remove(&flow);
        }
        self.drop_note(number);
        self.wheel.cancel(number);
        let Some(slot) = self.slots.get_mut(number as usize) else { return };
        let Some(mut connection) = slot.connection.take() else { return };
        slot.generation = slot.generation.wrapping_add(1);
        if let Some(listener) = connection.unseen_of() {
            self.seen(listener);
        }
        connection.dissolve(&mut self.shared.env(Instant(0)));
        // A number is in each queue at most once: the next connection with it must not find it there.
        if connection.marks().has(Marks::IS_READY) {
            self.ready.retain(|&other| other != number);
        }
        if connection.marks().has(Marks::IS_TOLD) {
            self.told.retain(|&other| other != number);
        }
        self.free.push(number);
    }

    /// Puts a new connection into a slot.
    pub(super) fn occupy(&mut self, flow: &crate::wire::FlowKey, connection: Connection) -> Option<u32> {
        let number = *self.free.last()?;
        if !self.table.insert(flow, number) {
            return None;
        }
        self.free.pop();
        self.slots[number as usize].connection = Some(connection);
        Some(number)
    }
}
