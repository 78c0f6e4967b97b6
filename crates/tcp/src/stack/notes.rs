//! ACKs noted on arrival and processed after the output stage (NTT 1996 section 4.2 item 1).
//!
//! A note is the latest ACK of a connection. The next ACK is merged into it: its acknowledgment
//! number, window, time stamps and arrival time replace those of the first; its SACK blocks are
//! added. A run with notes therefore equals a run without notes in which the merged ACKs were lost
//! except for their SACK blocks, and later ACKs repeat those blocks too. Only plain ACKs are noted;
//! everything else is processed at once, after the note.
//!
//! Of thousands of connections none is in the cache when its ACK comes. So a plain ACK first stands in a short line while its connection is
//! fetched, and is looked at when more have come; nothing that comes behind it is processed before.

use millrace_core::prefetch::prefetch_all;
use millrace_core::time::Instant;

use super::Stack;
use crate::conn::arrive::SegmentArrival;
use crate::conn::{Connection, Marks};
use crate::limits::{ACK_DEFER_NS, MAX_NOTES, NEW_ACKS, NOTES_AHEAD};
use crate::seq::Seq;
use crate::wire::{Flags, FlowKey, Sacks, Segment, Stamps, TcpOptions};

const NONE: u32 = u32::MAX;

/// Contents of a plain ACK.
#[derive(Clone, Copy, Debug)]
struct Ack {
    seq: Seq,
    ack: Seq,
    window: u16,
    stamps: Option<Stamps>,
    sacks: Sacks,
    at: Instant,
}

impl Ack {
    fn of(segment: &Segment<'_>, at: Instant) -> Self {
        let TcpOptions { stamps, sacks, .. } = segment.options;
        Self { seq: segment.seq, ack: segment.ack, window: segment.window, stamps, sacks, at }
    }

    /// All that processing reads of it: the ports have found their connection.
    fn segment(&self) -> Segment<'static> {
        Segment {
            source: 0,
            destination: 0,
            seq: self.seq,
            ack: self.ack,
            flags: Flags::ACK,
            window: self.window,
            urgent: 0,
            options: TcpOptions { stamps: self.stamps, sacks: self.sacks, ..TcpOptions::default() },
            payload: &[],
        }
    }

    fn arrival(&self) -> SegmentArrival {
        SegmentArrival { at: self.at, is_marked: false, expected_sum: None }
    }
}

/// One that waits for its connection to come into the cache.
#[derive(Clone, Copy, Debug)]
struct New {
    flow: FlowKey,
    /// As a rule that of its connection.
    number: u32,
    ack: Ack,
}

#[derive(Clone, Copy, Debug)]
struct Note {
    number: u32,
    ack: Ack,
}

/// The notes of one turn.
pub(super) struct Notes {
    new: Vec<New>,
    notes: Vec<Note>,
}

impl Notes {
    pub(super) const BYTES: usize = NEW_ACKS * size_of::<New>() + MAX_NOTES * size_of::<Note>();

    pub(super) fn new() -> Self {
        Self { new: Vec::with_capacity(NEW_ACKS), notes: Vec::with_capacity(MAX_NOTES) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.new.is_empty() && self.notes.is_empty()
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
    /// Whether nothing about a plain ACK asks for being processed at once.
    fn may_defer(&self, ack: &Ack, now: Instant) -> bool {
        const PROMPT: Marks =
            Marks::PROBED.with(Marks::PERSISTS).with(Marks::UNPINNED).with(Marks::KEEP_ALIVE_NOW);
        ack.seq == self.rcv_nxt()
            && self.is_synchronized()
            && self.marks().has(Marks::HAS_SACK)
            && !self.marks().has_any(PROMPT)
            && !ack.ack.before(self.snd_una())
            && !ack.ack.after(self.snd_nxt())
            && !has_dsack(&ack.sacks, ack.ack)
            && self.is_current(ack.stamps, now)
            && self.sender().may_merge_acks()
    }
}

impl Stack {
    /// Puts a plain ACK with the right checksum into line, if there seems to be a connection that it is for. False: it has to be processed.
    pub(super) fn line_up(
        &mut self,
        flow: &FlowKey,
        segment: &Segment<'_>,
        at: Instant,
        now: Instant,
    ) -> bool {
        let Some(number) = self.table.likely(self.table.hash(flow)) else { return false };
        if let Some(slot) = self.slots.get(number as usize) {
            prefetch_all(slot);
        }
        self.notes.new.push(New { flow: *flow, number, ack: Ack::of(segment, at) });
        if self.notes.new.len() == NEW_ACKS {
            self.note_new(now);
        }
        true
    }

    /// Takes note of the ACKs that stand in line.
    pub(super) fn note_new(&mut self, now: Instant) {
        if self.notes.new.is_empty() {
            return;
        }
        let mut new = std::mem::take(&mut self.notes.new);
        for New { flow, number, ack } in &new {
            let number = if self.table.is(*number, flow) { Some(*number) } else { self.table.find(flow) };
            match number {
                Some(number) => {
                    if !self.note(number, ack, now) {
                        self.process_note(number, now);
                        self.arrive(number, flow, &ack.segment(), ack.arrival(), now);
                    }
                }
                None => self.arrive_elsewhere(flow, &ack.segment(), now),
            }
        }
        new.clear();
        self.notes.new = new;
    }

    /// Takes note of a plain ACK. False: it has to be processed at once.
    fn note(&mut self, number: u32, new: &Ack, now: Instant) -> bool {
        let Some(slot) = self.slots.get_mut(number as usize) else { return false };
        let Some(connection) = &slot.connection else { return false };
        if !connection.may_defer(new, now) {
            return false;
        }
        if let Some(Note { ack: old, .. }) = self.notes.notes.get_mut(slot.note as usize) {
            if new.ack.before(old.ack) {
                return false;
            }
            // Usually there are none, and no merge is needed.
            if old.sacks.blocks().is_empty() {
                *old = *new;
            } else {
                let Some(sacks) = join(&new.sacks, &old.sacks, new.ack) else { return false };
                *old = Ack { sacks, ..*new };
            }
            self.shared.counters.acks_merged += 1;
            return true;
        }
        if self.notes.notes.len() == MAX_NOTES {
            return false;
        }
        slot.note = self.notes.notes.len() as u32;
        self.notes.notes.push(Note { number, ack: *new });
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
        self.note_new(now);
        for note in self.notes.notes.iter().rev().take(NOTES_AHEAD) {
            self.fetch(note.number);
        }
        while let Some(note) = self.notes.notes.pop() {
            if let Some(at) = self.notes.notes.len().checked_sub(NOTES_AHEAD) {
                self.fetch(self.notes.notes[at].number);
            }
            self.slots[note.number as usize].note = NONE;
            self.process(&note, now);
        }
    }

    /// Asks for what processing an ACK reads beside the connection itself.
    fn fetch(&self, number: u32) {
        self.wheel.prefetch(number);
        if let Some(connection) = &self.slots[number as usize].connection {
            connection.fetch(&self.shared.records, &self.shared.store);
        }
    }

    /// Processes the notes that have waited for long enough: a turn that is late must not make round trips look longer.
    pub(super) fn process_overdue_notes(&mut self, now: Instant) {
        self.note_new(now);
        let mut at = 0;
        while let Some(&Note { number, ack }) = self.notes.notes.get(at) {
            let srtt = self.slots[number as usize].connection.as_ref().and_then(|c| c.sender().srtt_ns());
            let wait = srtt.map_or(ACK_DEFER_NS, |srtt| (srtt / 8).min(ACK_DEFER_NS));
            if ack.at.plus_ns(wait) <= now {
                self.process_note(number, now);
            } else {
                at += 1;
            }
        }
    }

    fn process(&mut self, note: &Note, now: Instant) {
        let segment = note.ack.segment();
        self.shared.counters.acks_deferred += 1;
        self.with(note.number, now, |connection, env| {
            connection.arrive_noted(env, &segment, note.ack.arrival());
        });
        self.make_ready(note.number);
        self.settle(note.number, now, None);
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
    fn has_dsack_detects_block_below_ack_or_inside_second_block() {
        assert!(has_dsack(&sacks(&[(10, 20)]), Seq(20)) && !has_dsack(&sacks(&[(10, 20)]), Seq(9)));
        assert!(has_dsack(&sacks(&[(32, 35), (30, 40)]), Seq(9)));
        assert!(!has_dsack(&sacks(&[(50, 60), (30, 40)]), Seq(9)) && !has_dsack(&sacks(&[]), Seq(9)));
    }
}
