//! ACKs noted on arrival and processed after the output stage (NTT 1996 section 4.2 item 1).
//!
//! A note is the latest ACK of a connection. Another one is merged into it: what it acknowledges, its window, its time stamps and its arrival
//! replace those of the first, its SACK blocks join them. So a run with notes equals one without in which the merged ACKs were lost but for
//! their SACK blocks, and those stand in later ACKs too. Only plain ACKs are noted; everything else is processed at once, behind the note.

use millrace_core::time::Instant;

use super::Stack;
use crate::conn::arrive::Arrival;
use crate::conn::{Connection, Marks};
use crate::limits::{ACK_DEFER_NS, MAX_NOTES};
use crate::seq::Seq;
use crate::wire::{Flags, Options, Sacks, Segment, Stamps};

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Note {
    number: u32,
    seq: Seq,
    ack: Seq,
    window: u16,
    stamps: Option<Stamps>,
    sacks: Sacks,
    at: Instant,
}

/// The notes of one turn.
pub(super) struct Notes {
    notes: Vec<Note>,
}

impl Notes {
    pub(super) fn new() -> Self {
        Self { notes: Vec::with_capacity(MAX_NOTES) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.notes.is_empty()
    }
}

/// The blocks of both, the newer ones first, without what `ack` covers; `None` if they do not fit an option.
fn join(newer: &Sacks, older: &Sacks, ack: Seq) -> Option<Sacks> {
    let mut joined = *newer;
    for &(left, right) in older.blocks() {
        let is_covered = right.up_to(ack)
            || newer.blocks().iter().any(|block| block.0.up_to(left) && right.up_to(block.1));
        if !is_covered && !joined.push(left, right) {
            return None;
        }
    }
    Some(joined)
}

/// Whether the first block reports a duplicate (RFC 2883 section 4).
fn has_dsack(sacks: &Sacks, ack: Seq) -> bool {
    match *sacks.blocks() {
        [first, second, ..] => first.1.up_to(ack) || second.0.up_to(first.0) && first.1.up_to(second.1),
        [first] => first.1.up_to(ack),
        [] => false,
    }
}

impl Connection {
    /// Whether nothing about an ACK asks for being processed at once.
    pub(crate) fn may_defer(&self, segment: &Segment<'_>, now: Instant) -> bool {
        let prompt = [Marks::PROBED, Marks::PERSISTS, Marks::UNPINNED, Marks::KEEP_ALIVE_NOW];
        segment.flags == Flags::ACK
            && segment.payload.is_empty()
            && segment.options.user_timeout.is_none()
            && segment.seq == self.rcv_nxt()
            && self.is_synchronized()
            && self.marks().has(Marks::HAS_SACK)
            && !prompt.into_iter().any(|mark| self.marks().has(mark))
            && !segment.ack.before(self.snd_una())
            && !segment.ack.after(self.snd_nxt())
            && !has_dsack(&segment.options.sacks, segment.ack)
            && self.is_current(segment, now)
            && self.sender().may_merge_acks()
    }
}

impl Stack {
    /// Takes note of a segment if it is a plain ACK. False: it has to be processed at once.
    pub(super) fn note(
        &mut self,
        number: u32,
        segment: &Segment<'_>,
        arrival: Arrival,
        now: Instant,
    ) -> bool {
        if !self.defers_acks {
            return false;
        }
        let Some(slot) = self.slots.get_mut(number as usize) else { return false };
        let Some(connection) = &slot.connection else { return false };
        if !connection.may_defer(segment, now) {
            return false;
        }
        let new = Note {
            number,
            seq: segment.seq,
            ack: segment.ack,
            window: segment.window,
            stamps: segment.options.stamps,
            sacks: segment.options.sacks,
            at: arrival.at,
        };
        if let Some(old) = self.notes.notes.get_mut(slot.note as usize) {
            if new.ack.before(old.ack) {
                return false;
            }
            let Some(sacks) = join(&new.sacks, &old.sacks, new.ack) else { return false };
            *old = Note { sacks, ..new };
            self.shared.counters.acks_merged += 1;
            return true;
        }
        if self.notes.notes.len() == MAX_NOTES {
            return false;
        }
        slot.note = self.notes.notes.len() as u32;
        self.notes.notes.push(new);
        true
    }

    /// Processes the note of one connection, if it has one.
    pub(super) fn process_note(&mut self, number: u32, now: Instant) {
        if let Some(note) = self.take_note(number) {
            self.process(&note, now);
        }
    }

    pub(super) fn drop_note(&mut self, number: u32) {
        self.take_note(number);
    }

    fn take_note(&mut self, number: u32) -> Option<Note> {
        let at = std::mem::replace(&mut self.slots.get_mut(number as usize)?.note, NONE) as usize;
        if at >= self.notes.notes.len() {
            return None;
        }
        let note = self.notes.notes.swap_remove(at);
        if let Some(moved) = self.notes.notes.get(at) {
            self.slots[moved.number as usize].note = at as u32;
        }
        Some(note)
    }

    /// Processes every note: the last thing in a turn.
    pub(super) fn process_notes(&mut self, now: Instant) {
        while let Some(note) = self.notes.notes.pop() {
            self.slots[note.number as usize].note = NONE;
            self.process(&note, now);
        }
    }

    /// Processes the notes that have waited for long enough: a turn that is late must not make round trips look longer.
    pub(super) fn process_overdue_notes(&mut self, now: Instant) {
        let mut at = 0;
        while let Some(note) = self.notes.notes.get(at).copied() {
            let srtt =
                self.slots[note.number as usize].connection.as_ref().and_then(|c| c.sender().srtt_ns());
            let wait = srtt.map_or(ACK_DEFER_NS, |srtt| (srtt / 8).min(ACK_DEFER_NS));
            if note.at.plus_ns(wait) <= now {
                self.process_note(note.number, now);
            } else {
                at += 1;
            }
        }
    }

    fn process(&mut self, note: &Note, now: Instant) {
        let Some(flow) = self.table.flow(note.number).copied() else { return };
        self.shared.counters.acks_deferred += 1;
        let options = Options { stamps: note.stamps, sacks: note.sacks, ..Options::default() };
        let segment = Segment {
            source: flow.remote_port(),
            destination: flow.local_port(),
            seq: note.seq,
            ack: note.ack,
            flags: Flags::ACK,
            window: note.window,
            urgent: 0,
            options,
            payload: &[],
        };
        let arrival = Arrival { at: note.at, is_marked: false, expected_sum: None };
        self.arrive(note.number, &flow, &segment, arrival, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sacks(blocks: &[(u32, u32)]) -> Sacks {
        let mut sacks = Sacks::default();
        for &(left, right) in blocks {
            assert!(sacks.push(Seq(left), Seq(right)));
        }
        sacks
    }

    #[test]
    fn blocks_join_without_what_is_acknowledged_or_said_already() {
        let older = sacks(&[(30, 40), (10, 20), (50, 55)]);
        let newer = sacks(&[(50, 60)]);
        assert_eq!(join(&newer, &older, Seq(25)), Some(sacks(&[(50, 60), (30, 40)])));
        let many = sacks(&[(70, 80), (90, 100), (110, 120)]);
        assert_eq!(
            join(&many, &sacks(&[(30, 40)]), Seq(0)),
            Some(sacks(&[(70, 80), (90, 100), (110, 120), (30, 40)]))
        );
        assert_eq!(join(&many, &older, Seq(0)), None, "two more do not fit");
    }

    #[test]
    fn a_duplicate_is_seen_below_the_ack_and_within_the_second_block() {
        assert!(has_dsack(&sacks(&[(10, 20)]), Seq(20)) && !has_dsack(&sacks(&[(10, 20)]), Seq(9)));
        assert!(has_dsack(&sacks(&[(32, 35), (30, 40)]), Seq(9)));
        assert!(!has_dsack(&sacks(&[(50, 60), (30, 40)]), Seq(9)) && !has_dsack(&sacks(&[]), Seq(9)));
    }
}
