//! Sequence numbers: packets that arrived, that are missing, that came twice or late. The words
//! mean the same as in our own receiver: a far number is accepted when the next follows it, and
//! nothing is lost between two runs.

use super::super::layout::{BASE, BLOCKS, CONTINUES, MAX_STEP, RAW, WINDOW, WINDOW_WORD, Word};
use super::{Code, RTP_HEADER_BYTES, stack};
use millrace_netio::bpf::{Alu, Cond, Label, Reg, Reg::*, Width};

/// Set in [`Word::Confirms`] beside the number, so that number 0 is not "none".
const CONFIRMS: i32 = 0x1_0000;
/// Bytes from the beginning of a slot to its window.
const WINDOW_OFFSET: i16 = WINDOW_WORD as i16 * 8;

/// Places that the parts of the judgement jump to.
struct Places {
    first: Label,
    forward: Label,
    far_ahead: Label,
    far_behind: Label,
    duplicate: Label,
    stray: Label,
    accepted: Label,
}

impl Code {
    /// If the process asked for a new run, the one before is over, or its clock alone.
    pub(super) fn begin_wanted_run(&mut self) {
        let (same, continues) = (self.a.label(), self.a.label());
        self.get(R1, Word::WantedRun);
        self.get(R2, Word::Run);
        self.a.jump_if(Cond::Eq, R1, R2, same);
        self.set(Word::Run, R1);
        self.a.jump_if(Cond::Set, R1, CONTINUES, continues);
        self.close_numbers();
        self.a.place(continues);
        self.stop_clock();
        self.a.place(same);
    }

    /// Judges one RTP packet. Goes to `timed` with its timestamp in `R2` if it is new, else to `next`.
    pub(super) fn sequence(&mut self) {
        let mut label = || self.a.label();
        let p = Places {
            first: label(),
            forward: label(),
            far_ahead: label(),
            far_behind: label(),
            duplicate: label(),
            stray: label(),
            accepted: label(),
        };
        self.a.load(Width::Half, R2, R10, stack::HEADER + 2);
        self.a.big_endian(R2, 16);
        self.get(R1, Word::RunReceived);
        self.a.jump_if(Cond::Eq, R1, 0, p.first);
        self.get(R1, Word::Highest);
        self.distance(R3, R2, R1);
        self.a.mov(R4, R1);
        self.a.alu(Alu::Add, R4, R3);
        self.a.jump_if(Cond::SignedGt, R3, 0, p.forward);
        self.a.jump_if(Cond::SignedLe, R3, -WINDOW, p.far_behind);
        self.late(&p);
        self.forward(&p);
        self.far_ahead(&p);
        self.far_behind(&p);
        self.start_run();
        self.accepted(&p);
    }

    /// `dst` = signed distance on the 16-bit circle from the low bits of `from` to `number`.
    fn distance(&mut self, dst: Reg, number: Reg, from: Reg) {
        self.a.mov(dst, number);
        self.a.alu(Alu::Sub, dst, from);
        self.a.alu(Alu::Lsh, dst, 48);
        self.a.alu(Alu::Arsh, dst, 48);
    }

    /// Not the highest (`R4`): late, or come again.
    fn late(&mut self, p: &Places) {
        self.set(Word::Confirms, 0);
        self.mark(Some(p.duplicate));
        self.add(Word::Reordered, 1, R1);
        self.get(R1, Word::Lowest);
        self.a.jump_if(Cond::Ge, R4, R1, p.accepted);
        self.set_lowest();
        self.a.jump(p.accepted);
        self.a.place(p.duplicate);
        self.add(Word::Duplicates, 1, R1);
        self.a.jump(self.next);
    }

    /// Ahead (`R4`), by `R3`.
    fn forward(&mut self, p: &Places) {
        self.a.place(p.forward);
        self.a.jump_if(Cond::SignedGt, R3, MAX_STEP, p.far_ahead);
        self.set(Word::Confirms, 0);
        self.set(Word::Highest, R4);
        self.mark(None);
        self.a.jump(p.accepted);
    }

    /// Goes to `stray` unless `R2` is the number that confirms the last stray, which then is none.
    fn confirm(&mut self, stray: Label) {
        self.get(R1, Word::Confirms);
        self.a.mov(R3, R2);
        self.a.alu(Alu::Or, R3, CONFIRMS);
        self.a.jump_if(Cond::Ne, R1, R3, stray);
        self.set(Word::Confirms, 0);
        self.add(Word::Strays, -1, R1);
    }

    /// Far ahead (`R4`): a long outage, if the next packet follows.
    fn far_ahead(&mut self, p: &Places) {
        self.a.place(p.far_ahead);
        self.confirm(p.stray);
        self.set(Word::Highest, R4);
        self.a.alu(Alu::Sub, R4, 1);
        self.mark(None);
        self.count_one();
        self.a.alu(Alu::Add, R4, 1);
        self.mark(None);
        self.a.jump(p.accepted);
    }

    /// Far behind: the sender began again, if the next packet follows.
    fn far_behind(&mut self, p: &Places) {
        self.a.place(p.far_behind);
        self.confirm(p.stray);
        self.add(Word::Restarts, 1, R1);
        self.close_run();
        let begin = self.a.label();
        self.a.place(begin);
        // The stray was the first of the run, this is the second.
        self.a.alu(Alu::Sub, R2, 1);
        self.a.alu(Alu::And, R2, 0xffff);
        self.start_run();
        self.count_one();
        self.a.alu(Alu::Add, R4, 1);
        self.set(Word::Highest, R4);
        self.mark(None);
        self.a.jump(p.accepted);
        self.a.place(p.stray);
        self.a.alu(Alu::Add, R2, 1);
        self.a.alu(Alu::And, R2, 0xffff);
        self.a.alu(Alu::Or, R2, CONFIRMS);
        self.set(Word::Confirms, R2);
        self.add(Word::Strays, 1, R1);
        self.a.jump(self.next);
        self.no_run(begin, p);
    }

    /// No run, and a number far from the one before: it begins a run if the next packet follows.
    fn no_run(&mut self, begin: Label, p: &Places) {
        let (start, left_over, far) = (self.a.label(), self.a.label(), self.a.label());
        self.a.place(p.first);
        self.get(R1, Word::Highest);
        self.a.jump_if(Cond::Eq, R1, 0, start);
        self.distance(R3, R2, R1);
        self.a.jump_if(Cond::SignedGt, R3, MAX_STEP, far);
        self.a.jump_if(Cond::SignedGt, R3, 0, start);
        self.a.jump_if(Cond::SignedGe, R3, -WINDOW, left_over);
        self.a.place(far);
        self.confirm(p.stray);
        self.a.jump(begin);
        self.a.place(left_over);
        self.set(Word::Confirms, 0);
        self.add(Word::Strays, 1, R1);
        self.a.jump(self.next);
        self.a.place(start);
    }

    /// A new packet: counts it.
    fn accepted(&mut self, p: &Places) {
        self.a.place(p.accepted);
        self.count_one();
        self.a.load(Width::Word, R1, R10, stack::HEADER + 8);
        self.a.big_endian(R1, 32);
        self.set(Word::Ssrc, R1);
        self.timestamp(R2);
        self.a.jump(self.timed);
    }

    /// Begins a run with number `R2`; its extended number is in `R4`.
    fn start_run(&mut self) {
        let has_cycle = self.a.label();
        // The next cycle above everything there was, so that extended numbers never run back between runs.
        self.get(R4, Word::Highest);
        self.a.alu(Alu::Or, R4, 0xffff);
        self.a.alu(Alu::Add, R4, 1);
        self.a.jump_if(Cond::Gt, R4, 0x1_0000, has_cycle);
        self.a.load_imm64(R4, BASE);
        self.a.place(has_cycle);
        self.a.alu(Alu::Add, R4, R2);
        self.set(Word::Highest, R4);
        self.set(Word::Confirms, 0);
        self.add(Word::Epoch, 1, R1);
        self.set_lowest();
        self.mark(None);
    }

    /// The packet with number `R4` is the lowest of the run.
    fn set_lowest(&mut self) {
        self.set(Word::Lowest, R4);
        self.timestamp(R1);
        self.set(Word::LowestTimestamp, R1);
    }

    fn timestamp(&mut self, dst: Reg) {
        self.a.load(Width::Word, dst, R10, stack::HEADER + 4);
        self.a.big_endian(dst, 32);
    }

    /// One more different packet of the length of this one.
    fn count_one(&mut self) {
        self.add(Word::Packets, 1, R1);
        self.add(Word::RunReceived, 1, R1);
        self.get(R1, Word::PayloadBytes);
        self.a.alu(Alu::Add, R1, R9);
        self.a.alu(Alu::Sub, R1, i32::from(RTP_HEADER_BYTES));
        self.set(Word::PayloadBytes, R1);
    }

    /// The run is over: its numbers and its clock.
    fn close_run(&mut self) {
        self.close_numbers();
        self.stop_clock();
    }

    /// Counts the missing numbers of the run as lost.
    fn close_numbers(&mut self) {
        let none = self.a.label();
        self.set(Word::Confirms, 0);
        self.get(R1, Word::RunReceived);
        self.a.jump_if(Cond::Eq, R1, 0, none);
        self.get(R3, Word::Highest);
        self.get(R4, Word::Lowest);
        self.a.alu(Alu::Sub, R3, R4);
        self.a.alu(Alu::Add, R3, 1);
        self.a.alu(Alu::Sub, R3, R1);
        self.add(Word::LostBefore, R3, R1);
        self.set(Word::RunReceived, 0);
        self.a.place(none);
    }

    /// Remembers number `R4`, which is kept; goes to `seen` if it came before. The other registers up to `R5`, but for
    /// `R2`, are lost.
    ///
    /// Nothing is cleared when the window moves: a block that carries the tag of other numbers is empty.
    fn mark(&mut self, seen: Option<Label>) {
        let same = self.a.label();
        self.a.mov(R5, R4);
        self.a.alu(Alu::Rsh, R5, 5);
        self.a.mov(R0, R5);
        self.a.alu(Alu::And, R0, BLOCKS - 1);
        self.a.alu(Alu::Lsh, R0, 3);
        self.a.alu(Alu::Add, R0, R7);
        self.a.alu(Alu::And, R5, 0xff_ffff);
        self.get(R3, Word::Epoch);
        self.a.alu(Alu::And, R3, 0xff);
        self.a.alu(Alu::Lsh, R3, 24);
        self.a.alu(Alu::Or, R5, R3);
        self.a.load(Width::Double, R3, R0, WINDOW_OFFSET);
        self.a.mov(R1, R3);
        self.a.alu(Alu::Rsh, R1, 32);
        self.a.jump_if(Cond::Eq, R1, R5, same);
        self.a.mov(R3, R5);
        self.a.alu(Alu::Lsh, R3, 32);
        self.a.place(same);
        self.a.mov(R1, R4);
        self.a.alu(Alu::And, R1, 31);
        self.a.mov(R5, 1);
        self.a.alu(Alu::Lsh, R5, R1);
        if let Some(seen) = seen {
            self.a.jump_if(Cond::Set, R3, R5, seen);
        }
        self.a.alu(Alu::Or, R3, R5);
        self.a.store(Width::Double, R0, WINDOW_OFFSET, R3);
    }
}

const _: () = assert!(RAW > 127 && WINDOW + 31 <= 32 * BLOCKS);
