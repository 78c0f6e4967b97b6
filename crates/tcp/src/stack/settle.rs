//! What follows from a changed state: events, timers, TIME-WAIT records, freed slots.

use millrace_core::time::Instant;

use super::{Reply, Stack, StackSlot};
use crate::conn::{Connection, ConnectionState, Marks, Reason};
use crate::time_wait::EndedConnection;

/// Of a free slot's link: its number is still in the queue of connections that may have something to send.
const LEFT_READY: u32 = 1 << 31;
/// The same of the queue of those with something to tell.
const LEFT_TOLD: u32 = 1 << 30;

impl StackSlot {
    /// Its number has come out of the queue of connections that may have something to send.
    pub(super) fn left_ready(&mut self) {
        match &mut self.connection {
            Some(connection) => connection.marks_mut().remove(Marks::IS_READY),
            None => self.note &= !LEFT_READY,
        }
    }

    /// The same of the queue of those with something to tell.
    pub(super) fn left_told(&mut self) {
        match &mut self.connection {
            Some(connection) => connection.marks_mut().remove(Marks::IS_TOLD),
            None => self.note &= !LEFT_TOLD,
        }
    }
}

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

    /// Evaluates the state of a connection after a call or a segment. `wait`: when it may send
    /// again, if it reported a time.
    pub(super) fn settle(&mut self, number: u32, now: Instant, wait: Option<Instant>) {
        let Some(connection) = self.slots.get_mut(number as usize).and_then(|slot| slot.connection.as_mut())
        else {
            return;
        };
        match connection.state() {
            ConnectionState::Closed if connection.reason() == Reason::Forgotten => return self.free(number),
            ConnectionState::Closed | ConnectionState::TimeWait => self.leave_table(number, now),
            _ => {}
        }
        let Some(connection) = self.slots[number as usize].connection.as_mut() else { return };
        let is_orphan = connection.marks().has(Marks::ORPHAN);
        if is_orphan && matches!(connection.state(), ConnectionState::Closed | ConnectionState::TimeWait) {
            return self.free(number);
        }
        if !is_orphan && !connection.happened().is_empty() && !connection.marks().has(Marks::IS_TOLD) {
            connection.marks_mut().insert(Marks::IS_TOLD);
            self.told.push_back(number);
        }
        let due = connection.due(&self.shared.env(now));
        let due = due.map_or(wait, |due| Some(wait.map_or(due, |wait| due.min(wait))));
        match due {
            Some(due) => {
                // Never in this moment again: the second stage would not end.
                let due = due.max(now.plus_ns(1));
                // Usually it is later each time; the timer is set again only after it has fired
                // once without need.
                if self.wheel.due(number).is_none_or(|set| set > due || set <= now) {
                    self.wheel.set(number, due, now);
                }
            }
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
        if connection.state() == ConnectionState::TimeWait {
            let ended = EndedConnection {
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
        let Some(mut connection) =
            self.slots.get_mut(number as usize).and_then(|slot| slot.connection.take())
        else {
            return;
        };
        self.shares.give(connection.group());
        self.drop_note(number);
        self.wheel.cancel(number);
        if let Some(listener) = connection.unseen_of() {
            self.seen(listener);
        }
        connection.dissolve(&mut self.shared.env(Instant(0)));
        let marks = connection.marks();
        let slot = &mut self.slots[number as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.note = self.free;
        // The number stays in the queues, in each at most once: it is passed over there, or stands for the next connection with it.
        slot.note |= if marks.has(Marks::IS_READY) { LEFT_READY } else { 0 };
        slot.note |= if marks.has(Marks::IS_TOLD) { LEFT_TOLD } else { 0 };
        (self.free, self.free_count) = (number, self.free_count + 1);
    }

    /// Puts a new connection into a slot.
    pub(super) fn occupy(&mut self, flow: &crate::wire::FlowKey, mut connection: Connection) -> Option<u32> {
        let number = self.free;
        if self.free_count == 0 || !self.table.insert(flow, number) {
            return None;
        }
        self.shares.take(connection.group());
        let slot = &mut self.slots[number as usize];
        connection.marks_mut().set(Marks::IS_READY, slot.note & LEFT_READY != 0);
        connection.marks_mut().set(Marks::IS_TOLD, slot.note & LEFT_TOLD != 0);
        (self.free, self.free_count) = (slot.note & !(LEFT_READY | LEFT_TOLD), self.free_count - 1);
        (slot.connection, slot.note) = (Some(connection), u32::MAX);
        Some(number)
    }
}
