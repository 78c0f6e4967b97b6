//! The clock arithmetic of a run: gaps, jitter, lateness, all in integers and without signed division.

use super::super::histogram::{BINS, LINEAR_BITS, UNIT_BITS, VALUE_BITS};
use super::super::layout::{LEARNED, TOTAL_WORDS, UNTIMED, Word};
use super::{Code, stack};
use millrace_netio::bpf::{Alu, Cond, Reg, Reg::*, Width};

const NS_PER_S: i32 = 1_000_000_000;
/// Bytes from the beginning of the totals to the histogram.
const HISTOGRAM_OFFSET: i16 = TOTAL_WORDS as i16 * 8;

impl Code {
    /// Takes one packet with timestamp `R2`; `R1` becomes its arrival, `R3` its offset.
    pub(super) fn clock(&mut self) {
        let (running, record, is_timed) = (self.a.label(), self.a.label(), self.a.label());
        self.a.place(self.timed);
        self.get_stack(R1, stack::ARRIVAL);
        self.get(R3, Word::Run);
        self.a.alu(Alu::And, R3, UNTIMED);
        self.a.jump_if(Cond::Eq, R3, 0, is_timed);
        self.set(Word::LastArrival, R1);
        self.set(Word::LastTimestamp, R2);
        self.note_first();
        self.a.jump(self.next);
        self.a.place(is_timed);
        self.get(R3, Word::ClockRuns);
        self.a.jump_if(Cond::Ne, R3, 0, running);
        self.start_clock();
        self.a.jump(record);
        self.a.place(running);
        self.gap();
        self.media_time();
        self.offset();
        self.jitter();
        self.extremes();
        self.a.place(record);
        self.record();
    }

    /// The first packet of a run is the reference of those that follow.
    fn start_clock(&mut self) {
        self.set(Word::ClockRuns, 1);
        self.set(Word::ClockFirstArrival, R1);
        self.set(Word::LastArrival, R1);
        self.set(Word::LastTimestamp, R2);
        for word in [
            Word::MediaNs,
            Word::MediaRest,
            Word::LastOffset,
            Word::JitterX16,
            Word::MinOffset,
            Word::MaxOffset,
            Word::RecordedFrom,
        ] {
            self.set(word, 0);
        }
        self.note_first();
        self.a.mov(R3, 0);
    }

    /// `R1` is when the first packet came, if none came before.
    fn note_first(&mut self) {
        let not_first = self.a.label();
        self.get(R3, Word::FirstArrival);
        self.a.jump_if(Cond::Ne, R3, 0, not_first);
        self.set(Word::FirstArrival, R1);
        self.a.place(not_first);
    }

    /// `dst` = time from the first packet of the run to the last.
    fn span(&mut self, dst: Reg, scratch: Reg) {
        self.get(dst, Word::LastArrival);
        self.get(scratch, Word::ClockFirstArrival);
        self.a.alu(Alu::Sub, dst, scratch);
    }

    /// `value` = the smaller of it and `bound`. Nothing is due before its run begins: lateness is at most the run's length.
    fn at_most(&mut self, value: Reg, bound: Reg) {
        let fits = self.a.label();
        self.a.jump_if(Cond::Le, value, bound, fits);
        self.a.mov(value, bound);
        self.a.place(fits);
    }

    /// Ends the run: its lateness becomes part of the lateness of all runs.
    pub(super) fn stop_clock(&mut self) {
        let (stopped, not_latest, learned) = (self.a.label(), self.a.label(), self.a.label());
        self.get(R1, Word::ClockRuns);
        self.a.jump_if(Cond::Eq, R1, 0, stopped);
        self.set(Word::ClockRuns, 0);
        self.get(R3, Word::MinOffset);
        self.get(R1, Word::MaxOffset);
        self.a.alu(Alu::Sub, R1, R3);
        self.span(R4, R5);
        self.at_most(R1, R4);
        self.get(R4, Word::LatenessMaxBefore);
        self.a.jump_if(Cond::Le, R1, R4, not_latest);
        self.set(Word::LatenessMaxBefore, R1);
        self.a.place(not_latest);
        self.get(R1, Word::LearningDone);
        self.a.jump_if(Cond::Ne, R1, 0, learned);
        self.set(Word::LearningDone, 1);
        self.set(Word::LearnedBase, R3);
        self.set(Word::RecordedFrom, R3);
        self.span(R4, R5);
        self.set(Word::LearnedSpan, R4);
        self.a.place(learned);
        self.get(R1, Word::RecordedFrom);
        self.a.alu(Alu::Sub, R1, R3);
        self.add(Word::UnderstatedBefore, R1, R3);
        self.a.place(stopped);
    }

    /// Longest time between two arrivals. Those of different processors may run back by microseconds.
    fn gap(&mut self) {
        let (back, shorter) = (self.a.label(), self.a.label());
        self.get(R3, Word::LastArrival);
        self.a.jump_if(Cond::Le, R1, R3, back);
        self.set(Word::LastArrival, R1);
        self.a.mov(R4, R1);
        self.a.alu(Alu::Sub, R4, R3);
        self.get(R3, Word::LongestGap);
        self.a.jump_if(Cond::Le, R4, R3, shorter);
        self.set(Word::LongestGap, R4);
        self.a.place(shorter);
        self.a.place(back);
    }

    /// Moves the media time by the step from the last timestamp to `R2`. The rest of the division is carried, so that
    /// no error adds up; the step is at most 2^31 ticks, so nothing overflows.
    fn media_time(&mut self) {
        let (back, done) = (self.a.label(), self.a.label());
        self.get(R3, Word::LastTimestamp);
        self.set(Word::LastTimestamp, R2);
        self.a.alu(Alu::Sub, R2, R3);
        self.a.alu(Alu::Lsh, R2, 32);
        self.a.alu(Alu::Arsh, R2, 32);
        self.a.jump_if(Cond::Eq, R2, 0, done);
        self.get(R0, Word::ClockHz);
        self.get(R5, Word::MediaRest);
        self.a.jump_if(Cond::SignedLt, R2, 0, back);
        self.a.alu(Alu::Mul, R2, NS_PER_S);
        self.a.alu(Alu::Add, R2, R5);
        self.a.mov(R3, R2);
        self.a.alu(Alu::Div, R3, R0);
        self.add(Word::MediaNs, R3, R4);
        self.a.alu(Alu::Mul, R3, R0);
        self.a.alu(Alu::Sub, R2, R3);
        self.set(Word::MediaRest, R2);
        self.a.jump(done);
        self.a.place(back);
        // Rounded away from zero, so that the rest stays between 0 and the divisor.
        self.a.alu(Alu::Neg, R2, 0);
        self.a.alu(Alu::Mul, R2, NS_PER_S);
        self.a.alu(Alu::Sub, R2, R5);
        self.a.mov(R3, R2);
        self.a.alu(Alu::Add, R3, R0);
        self.a.alu(Alu::Sub, R3, 1);
        self.a.alu(Alu::Div, R3, R0);
        self.get(R4, Word::MediaNs);
        self.a.alu(Alu::Sub, R4, R3);
        self.set(Word::MediaNs, R4);
        self.a.alu(Alu::Mul, R3, R0);
        self.a.alu(Alu::Sub, R3, R2);
        self.set(Word::MediaRest, R3);
        self.a.place(done);
    }

    /// `R3` = arrival (`R1`) minus media time, both since the first packet of the run.
    fn offset(&mut self) {
        self.a.mov(R3, R1);
        self.get(R4, Word::ClockFirstArrival);
        self.a.alu(Alu::Sub, R3, R4);
        self.get(R4, Word::MediaNs);
        self.a.alu(Alu::Sub, R3, R4);
    }

    /// RFC 3550 section 6.4.1 and appendix A.8: J += (|D| - J) / 16, kept sixteenfold, rounded.
    fn jitter(&mut self) {
        let positive = self.a.label();
        self.get(R4, Word::LastOffset);
        self.set(Word::LastOffset, R3);
        self.a.mov(R5, R3);
        self.a.alu(Alu::Sub, R5, R4);
        self.a.jump_if(Cond::SignedGe, R5, 0, positive);
        self.a.alu(Alu::Neg, R5, 0);
        self.a.place(positive);
        self.get(R4, Word::JitterX16);
        self.a.alu(Alu::Add, R5, R4);
        self.a.alu(Alu::Add, R4, 8);
        self.a.alu(Alu::Rsh, R4, 4);
        self.a.alu(Alu::Sub, R5, R4);
        self.set(Word::JitterX16, R5);
    }

    /// Smallest and largest offset of the run.
    fn extremes(&mut self) {
        let (not_min, not_max) = (self.a.label(), self.a.label());
        self.get(R4, Word::MinOffset);
        self.a.jump_if(Cond::SignedGe, R3, R4, not_min);
        self.set(Word::MinOffset, R3);
        self.a.place(not_min);
        self.get(R4, Word::MaxOffset);
        self.a.jump_if(Cond::SignedLe, R3, R4, not_max);
        self.set(Word::MaxOffset, R3);
        self.a.place(not_max);
    }

    /// Puts offset `R3` where lateness is counted: first packets are held back until the baseline is known.
    fn record(&mut self) {
        let direct = self.a.label();
        self.get(R4, Word::LearningDone);
        self.a.jump_if(Cond::Ne, R4, 0, direct);
        self.get(R4, Word::Learned);
        self.a.jump_if(Cond::Ge, R4, LEARNED, direct);
        self.a.mov(R5, R4);
        self.a.alu(Alu::Lsh, R5, 3);
        self.a.alu(Alu::Add, R5, R7);
        self.a.store(Width::Double, R5, Word::FirstLearned.offset(), R3);
        self.a.alu(Alu::Add, R4, 1);
        self.set(Word::Learned, R4);
        self.a.jump_if(Cond::Ne, R4, LEARNED, self.next);
        self.set(Word::LearningDone, 1);
        self.get(R4, Word::MinOffset);
        self.set(Word::LearnedBase, R4);
        self.set(Word::RecordedFrom, R4);
        self.span(R4, R5);
        self.set(Word::LearnedSpan, R4);
        self.a.jump(self.next);
        self.a.place(direct);
        self.get(R1, Word::MinOffset);
        self.a.alu(Alu::Sub, R3, R1);
        self.span(R4, R5);
        self.at_most(R3, R4);
        self.count_in_histogram();
    }

    /// Adds a lateness of `R3` nanoseconds to the histogram.
    fn count_in_histogram(&mut self) {
        let (fits, linear, in_range) = (self.a.label(), self.a.label(), self.a.label());
        self.a.alu(Alu::Rsh, R3, UNIT_BITS.cast_signed());
        self.a.jump_if(Cond::Lt, R3, 1 << VALUE_BITS, fits);
        self.a.mov(R3, (1 << VALUE_BITS) - 1);
        self.a.place(fits);
        self.a.jump_if(Cond::Lt, R3, 1 << LINEAR_BITS, linear);
        self.bit_length(R2, R3, R1);
        self.a.alu(Alu::Sub, R2, LINEAR_BITS.cast_signed() + 1);
        self.a.alu(Alu::Rsh, R3, R2);
        self.a.alu(Alu::Lsh, R2, LINEAR_BITS.cast_signed());
        self.a.alu(Alu::Add, R3, R2);
        self.a.place(linear);
        // Always so, but the verifier cannot know.
        self.a.jump_if(Cond::Lt, R3, BINS as i32, in_range);
        self.a.jump(self.next);
        self.a.place(in_range);
        self.a.alu(Alu::Lsh, R3, 3);
        self.get_stack(R1, stack::TOTALS);
        self.a.alu(Alu::Add, R1, R3);
        self.a.load(Width::Double, R2, R1, HISTOGRAM_OFFSET);
        self.a.alu(Alu::Add, R2, 1);
        self.a.store(Width::Double, R1, HISTOGRAM_OFFSET, R2);
    }

    /// Sets `dst` to the number of bits that the 32-bit number in `of` needs. Without jumps: each
    /// would double the paths that the verifier must follow. All bits below the highest are set,
    /// and then counted in pairs, fours and bytes.
    fn bit_length(&mut self, dst: Reg, of: Reg, scratch: Reg) {
        self.a.mov(dst, of);
        for shift in [1, 2, 4, 8, 16] {
            self.a.mov(scratch, dst);
            self.a.alu(Alu::Rsh, scratch, shift);
            self.a.alu(Alu::Or, dst, scratch);
        }
        self.a.mov(scratch, dst);
        self.a.alu(Alu::Rsh, scratch, 1);
        self.a.alu(Alu::And, scratch, 0x5555_5555);
        self.a.alu(Alu::Sub, dst, scratch);
        self.a.mov(scratch, dst);
        self.a.alu(Alu::Rsh, scratch, 2);
        self.a.alu(Alu::And, scratch, 0x3333_3333);
        self.a.alu(Alu::And, dst, 0x3333_3333);
        self.a.alu(Alu::Add, dst, scratch);
        self.a.mov(scratch, dst);
        self.a.alu(Alu::Rsh, scratch, 4);
        self.a.alu(Alu::Add, dst, scratch);
        self.a.alu(Alu::And, dst, 0x0f0f_0f0f);
        self.a.alu(Alu::Mul, dst, 0x0101_0101);
        self.a.alu(Alu::Rsh, dst, 24);
        self.a.alu(Alu::And, dst, 0xff);
    }
}
