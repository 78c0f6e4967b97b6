//! Accounting of RTP sequence numbers in bounded memory: packets received, missing, duplicate or
//! late.
//!
//! A *run* is what one PLAY brings: numbers go up by one from its first packet. A PAUSE and PLAY, a seek or a sender
//! that starts again begins the next run, and nothing is counted as lost between two runs. Numbers are extended to 64
//! bits, unwrapped against the highest of the run (RFC 3550 appendix A.1, with a far larger window: this is a
//! measuring instrument, so a long outage is counted as loss rather than as a new sender).

use crate::reception::ReportInterval;

/// Packets behind the highest that are still distinguished as late or duplicate. 4096 packets of
/// 1316 bytes are 10 s at 4 Mb/s; the bits take 512 bytes per session.
pub const WINDOW: u64 = 4096;
/// A step forward of up to this many packets is accepted at once (RFC 3550 appendix A.1:
/// MAX_DROPOUT).
pub const MAX_STEP: u16 = 3000;
/// Packets that may still be on their way when PAUSE is answered, as far as telling them from a new run goes.
const LEFT_OVER: i64 = 64;
/// Extended numbers begin here, so that one from before the first packet needs no special case. The low 32 bits are
/// what receiver reports call the extended highest sequence number.
const BASE: u64 = 1 << 32;

/// How a packet relates to the sequence numbers before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceVerdict {
    /// The highest yet; `gap` numbers before it are missing for now.
    Next {
        /// Extended number.
        ext: u64,
        /// Missing numbers between the last highest and this.
        gap: u64,
        /// Whether a run begins with this packet.
        starts_run: bool,
    },
    /// Not the highest, seen for the first time (RFC 4737: reordered).
    Reordered {
        /// Extended number.
        ext: u64,
    },
    /// Seen before.
    Duplicate,
    /// Far from where the run is, or left over from the run before. If the next packet follows it, both are
    /// [`SequenceVerdict::Confirmed`].
    Stray,
    /// This packet and the stray before it are accepted: the stray has the number `ext - 1`.
    Confirmed {
        /// Extended number of this packet.
        ext: u64,
        /// Missing numbers before the stray; 0 if a run begins.
        gap: u64,
        /// Whether a run begins with the stray.
        starts_run: bool,
    },
}

/// Counts since the start, over all runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SequenceCounts {
    /// Different packets received.
    pub received: u64,
    /// Numbers missing between the first and the last packet of a run.
    pub lost: u64,
    /// Numbers missing between the one that PLAY announced and the first that came.
    pub lost_at_start: u64,
    /// Packets that came after one with a higher number.
    pub reordered: u64,
    /// Packets that came again.
    pub duplicates: u64,
    /// Packets that belong to no run: left over from an earlier run, or from another sender.
    pub strays: u64,
    /// Runs that began without a PLAY: the sender jumped back or far away.
    pub restarts: u64,
}

#[derive(Clone, Copy, Debug)]
struct SequenceRun {
    announced: Option<u64>,
    lowest: u64,
    highest: u64,
    received: u64,
}

impl SequenceRun {
    fn expected(&self) -> u64 {
        self.highest - self.lowest + 1
    }

    fn lost_at_start(&self) -> u64 {
        self.announced.map_or(0, |announced| self.lowest.saturating_sub(announced))
    }
}

/// Sequence accounting of one stream.
#[derive(Clone, Debug)]
pub struct SequenceTracker {
    seen: Box<[u64]>,
    run: Option<SequenceRun>,
    /// Announced first number of the run that is to begin.
    start: Option<u16>,
    /// Highest number of the run before.
    previous: Option<u64>,
    /// Number that would confirm the last stray.
    confirms: Option<u16>,
    closed: SequenceCounts,
    interval: ReportInterval,
}

impl Default for SequenceTracker {
    fn default() -> Self {
        Self {
            seen: vec![0; (WINDOW / 64) as usize].into_boxed_slice(),
            run: None,
            start: None,
            previous: None,
            confirms: None,
            closed: SequenceCounts::default(),
            interval: ReportInterval::default(),
        }
    }
}

/// Signed distance from `from` to `to` on the 16-bit circle.
fn distance(from: u16, to: u16) -> i64 {
    i64::from(to.wrapping_sub(from).cast_signed())
}

impl SequenceTracker {
    /// PLAY was answered: the next packets are a new run, which begins with `start` if the server announced it.
    pub fn begin_run(&mut self, start: Option<u16>) {
        self.close_run();
        self.start = start;
    }

    /// Takes a reply to PLAY that came after the first packets: according to the server, they began
    /// with `start`.
    pub fn announce(&mut self, start: u16) {
        match &mut self.run {
            Some(run) => {
                let announced = run.lowest.wrapping_add_signed(distance(run.lowest as u16, start));
                run.announced = (announced <= run.lowest).then_some(announced);
            }
            None => self.start = Some(start),
        }
    }

    /// Whether the current run has a packet.
    pub fn has_run(&self) -> bool {
        self.run.is_some()
    }

    /// Returns the first number of the run: the announced one, or the lowest received.
    pub fn run_start(&self) -> Option<u64> {
        self.run.map(|run| run.announced.unwrap_or(run.lowest))
    }

    /// Counts a packet of the run before that came after the reply to PLAY, where it would have been counted had it come in time.
    /// `false`, and nothing is counted, unless it can be one: the run has no packet yet, and this one stands between those of the
    /// run before and the one that was announced, near to both.
    pub fn left_over(&mut self, sequence: u16) -> bool {
        let Some(previous) = self.previous.filter(|_| self.run.is_none()) else { return false };
        let step = distance(previous as u16, sequence);
        let is_near = |step: i64| (1..=LEFT_OVER).contains(&step);
        if !is_near(step) || !self.start.is_some_and(|start| is_near(distance(sequence, start))) {
            return false;
        }
        self.closed.received += 1;
        self.closed.lost += step.unsigned_abs() - 1;
        self.previous = Some(previous.wrapping_add_signed(step));
        self.confirms = None;
        true
    }

    /// Judges and counts one packet.
    pub fn observe(&mut self, sequence: u16) -> SequenceVerdict {
        match self.run {
            None => self.observe_first(sequence),
            Some(run) => self.observe_in(run, sequence),
        }
    }

    fn observe_first(&mut self, sequence: u16) -> SequenceVerdict {
        let near = |from: u16| (0..i64::from(MAX_STEP)).contains(&distance(from, sequence));
        // After a short seek back, packets left over from the previous run have numbers that the
        // new run will use too.
        let follows_previous = |number: u16| {
            self.previous.is_some_and(|p| (1..=LEFT_OVER).contains(&distance(p as u16, number)))
        };
        let follows = follows_previous(sequence) && self.start.is_some_and(|start| !follows_previous(start));
        let announced = self.start.filter(|start| near(*start) && !follows);
        let fits = match (announced, self.previous) {
            (Some(_), _) | (None, None) => true,
            (None, Some(previous)) => self.start.is_none() && near((previous as u16).wrapping_add(1)),
        };
        if fits {
            self.start_run(sequence, announced);
            let ext = self.run.map_or(BASE, |run| run.highest);
            return SequenceVerdict::Next { ext, gap: 0, starts_run: true };
        }
        let left_over = self.previous.is_some_and(|previous| {
            (-(WINDOW.cast_signed())..=0).contains(&distance(previous as u16, sequence))
        });
        if left_over || follows { self.stray(None) } else { self.far(sequence, None) }
    }

    fn observe_in(&mut self, run: SequenceRun, sequence: u16) -> SequenceVerdict {
        let delta = distance(run.highest as u16, sequence);
        let ext = run.highest.wrapping_add_signed(delta);
        if (1..=i64::from(MAX_STEP)).contains(&delta) {
            self.confirms = None;
            self.advance(ext);
            self.accept(ext);
            return SequenceVerdict::Next { ext, gap: delta.unsigned_abs() - 1, starts_run: false };
        }
        if delta > 0 || delta <= -(WINDOW.cast_signed()) {
            return self.far(sequence, (delta > 0).then_some(ext));
        }
        if run.announced.is_some_and(|announced| ext < announced) {
            return self.stray(None);
        }
        self.confirms = None;
        if self.is_seen(ext) {
            self.closed.duplicates += 1;
            return SequenceVerdict::Duplicate;
        }
        self.closed.reordered += 1;
        self.accept(ext);
        SequenceVerdict::Reordered { ext }
    }

    /// A packet far away. `ahead` is its extended number if it is ahead of the run.
    fn far(&mut self, sequence: u16, ahead: Option<u64>) -> SequenceVerdict {
        if self.confirms != Some(sequence) {
            return self.stray(Some(sequence.wrapping_add(1)));
        }
        self.confirms = None;
        self.closed.strays -= 1;
        if let (Some(ext), Some(run)) = (ahead, self.run) {
            self.advance(ext);
            self.accept(ext - 1);
            self.accept(ext);
            return SequenceVerdict::Confirmed { ext, gap: ext - run.highest - 2, starts_run: false };
        }
        if self.run.is_some() {
            self.closed.restarts += 1;
        }
        self.close_run();
        self.start_run(sequence.wrapping_sub(1), None);
        let ext = self.run.map_or(BASE, |run| run.highest) + 1;
        self.advance(ext);
        self.accept(ext);
        SequenceVerdict::Confirmed { ext, gap: 0, starts_run: true }
    }

    fn stray(&mut self, confirms: Option<u16>) -> SequenceVerdict {
        self.closed.strays += 1;
        self.confirms = confirms;
        SequenceVerdict::Stray
    }

    fn start_run(&mut self, sequence: u16, announced: Option<u16>) {
        self.seen.fill(0);
        self.confirms = None;
        // The next cycle above everything there was, so that extended numbers never run back between runs.
        let cycle = self.previous.map_or(BASE, |previous| (previous | 0xffff) + 1);
        let ext = cycle + u64::from(sequence);
        let announced = announced.map(|start| ext.wrapping_add_signed(-distance(start, sequence)));
        self.run = Some(SequenceRun { announced, lowest: ext, highest: ext, received: 0 });
        self.accept(ext);
    }

    fn close_run(&mut self) {
        self.confirms = None;
        if let Some(run) = self.run.take() {
            self.closed.received += run.received;
            self.closed.lost += run.expected() - run.received;
            self.closed.lost_at_start += run.lost_at_start();
            self.previous = Some(run.highest);
        }
    }

    fn bit(ext: u64) -> (usize, u64) {
        ((ext % WINDOW / 64) as usize, 1 << (ext % 64))
    }

    fn is_seen(&self, ext: u64) -> bool {
        let (word, bit) = Self::bit(ext);
        self.seen[word] & bit != 0
    }

    /// Makes room in the window for the numbers up to `ext`.
    fn advance(&mut self, ext: u64) {
        let Some(run) = &mut self.run else { return };
        let steps = ext - run.highest;
        if steps >= WINDOW {
            self.seen.fill(0);
        } else {
            for number in run.highest + 1..=ext {
                let (word, bit) = Self::bit(number);
                self.seen[word] &= !bit;
            }
        }
        run.highest = ext;
    }

    fn accept(&mut self, ext: u64) {
        let (word, bit) = Self::bit(ext);
        self.seen[word] |= bit;
        if let Some(run) = &mut self.run {
            run.received += 1;
            run.lowest = run.lowest.min(ext);
        }
    }

    /// Returns all counts to date.
    pub fn counts(&self) -> SequenceCounts {
        let mut counts = self.closed;
        if let Some(run) = self.run {
            counts.received += run.received;
            counts.lost += run.expected() - run.received;
            counts.lost_at_start += run.lost_at_start();
        }
        counts
    }

    /// Highest extended number as receiver reports write it.
    pub fn highest_for_report(&self) -> u32 {
        self.run.map(|run| run.highest).or(self.previous).unwrap_or_default() as u32
    }

    /// Fraction of packets lost since the last call, in 1/256 (RFC 3550 appendix A.3).
    pub fn fraction_lost(&mut self) -> u8 {
        let counts = self.counts();
        self.interval.fraction_lost(counts.received + counts.lost, counts.received)
    }
}

#[cfg(test)]
#[path = "receive_tests.rs"]
mod tests;
