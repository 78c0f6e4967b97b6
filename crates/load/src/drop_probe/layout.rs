//! What program and process share: the words of a slot and of the totals.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::error::ProbeError;
use super::histogram::bin_of;
use super::{ProbeAction, ProbeMedia};
use crate::limits::SLOT_READ_TRIES;

/// Packets behind the highest that are still distinguished as late or duplicate, as in our
/// receiver.
pub(super) const WINDOW: i32 = 4096;
/// A step forward of up to this many packets is accepted at once (RFC 3550 appendix A.1:
/// MAX_DROPOUT).
pub(super) const MAX_STEP: i32 = 3000;
/// Extended numbers begin here.
pub(super) const BASE: u64 = 1 << 32;
/// First packets of a slot whose lateness is held back until the baseline is known.
pub(super) const LEARNED: i32 = 64;
/// Blocks of 32 numbers that a slot remembers: the window, and room so that no block of it is overwritten.
pub(super) const BLOCKS: i32 = 256;

/// A 64-bit word of a slot. The words that every packet needs stand in the first three cache lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Word {
    /// Odd while the program writes.
    Version,
    /// Number of the run that the next packet belongs to, and [`UNTIMED`] and [`CONTINUES`]; the only word that the process
    /// writes after the start.
    WantedRun,
    /// What [`Word::WantedRun`] was when the last packet came.
    Run,
    /// Payload type, or [`RAW`].
    Media,
    /// Ticks (or bytes) in a second.
    ClockHz,
    Packets,
    PayloadBytes,
    Ssrc,

    /// Highest extended number; 0 before the first packet.
    Highest,
    /// Different packets of the run; 0 = there is no run.
    RunReceived,
    /// Number that would confirm the last stray, with bit 16 set; 0 = none.
    Confirms,
    /// Counts beginnings of runs: blocks of other runs are empty.
    Epoch,
    LastArrival,
    LongestGap,
    /// Whether the clock of the run has begun.
    ClockRuns,
    /// Whether [`Word::Learned`] is complete.
    LearningDone,

    ClockFirstArrival,
    LastTimestamp,
    /// Media time of the run in whole nanoseconds, and the rest in 1/clock_hz of one.
    MediaNs,
    MediaRest,
    LastOffset,
    JitterX16,
    MinOffset,
    MaxOffset,

    Malformed,
    Reordered,
    Duplicates,
    Strays,
    Restarts,
    /// Missing numbers of the runs that are over.
    LostBefore,
    /// Lowest extended number of the run, and its timestamp.
    Lowest,
    LowestTimestamp,
    FirstArrival,
    /// Largest lateness of the runs that are over.
    LatenessMaxBefore,
    /// Sum over the runs that are over.
    UnderstatedBefore,
    /// Baseline of this run when its packets began to go into the histogram directly.
    RecordedFrom,
    /// Baseline of the offsets held back, once they are complete.
    LearnedBase,
    /// Offsets held back.
    Learned,
    /// Time from the run's first packet to the last of those held back, once they are complete.
    LearnedSpan,
    /// The first of them; [`LEARNED`] words.
    FirstLearned = 40,
}

impl Word {
    pub(super) const fn index(self) -> usize {
        self as usize
    }

    /// Bytes from the beginning of the slot.
    pub(super) const fn offset(self) -> i16 {
        self as i16 * 8
    }
}

/// First word of the window: blocks of 32 numbers, each with its tag in the high half and a bit for each number.
pub(super) const WINDOW_WORD: usize = Word::FirstLearned.index() + LEARNED as usize;
/// Words of a slot.
pub(super) const SLOT_WORDS: u32 = WINDOW_WORD as u32 + BLOCKS as u32;
const _: () = assert!(SLOT_WORDS.is_multiple_of(8) && WINDOW_WORD.is_multiple_of(8), "whole cache lines");
/// Bit of [`Word::WantedRun`]: packets are counted, but their times are not.
pub(super) const UNTIMED: i32 = 1;
/// Bit of [`Word::WantedRun`]: the sequence numbers go on, only the clock begins again.
pub(super) const CONTINUES: i32 = 2;
/// Value of [`Word::WantedRun`] and its step from run to run: above the bits.
pub(super) const ONE_RUN: u64 = 4;
/// Value of [`Word::Media`] for datagrams without a header.
pub(super) const RAW: i32 = 0x100;

/// A word of the totals, per processor; the histogram follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Total {
    Seen,
    Watched,
    Malformed,
}

/// Words before the histogram.
pub(super) const TOTAL_WORDS: usize = 4;

/// Counts of the packets that went through the program since it was attached. A train of datagrams
/// that offload kept together is one packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeTotals {
    /// All packets that the interface received.
    pub seen: u64,
    /// Packets to watched addresses.
    pub watched: u64,
    /// Those of them that ended here: all, or none if the probe only counts.
    pub dropped: u64,
    /// Packets that went on.
    pub passed: u64,
    /// Datagrams to watched addresses that do not have the configured form.
    pub malformed: u64,
}

impl ProbeTotals {
    pub(super) fn of(sums: &[u64], action: ProbeAction) -> Self {
        let at = |total: Total| sums.get(total as usize).copied().unwrap_or(0);
        let (seen, watched) = (at(Total::Seen), at(Total::Watched));
        let dropped = if action == ProbeAction::Drop { watched } else { 0 };
        let passed = seen.saturating_sub(dropped);
        Self { seen, watched, dropped, passed, malformed: at(Total::Malformed) }
    }
}

/// Counts of one stream since the probe watches it. `datagrams` is the sum of `packets`,
/// `duplicates`, `strays` and `malformed`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeCounts {
    /// All datagrams to the address.
    pub datagrams: u64,
    /// Different packets.
    pub packets: u64,
    /// Bytes that they carried behind the 12 bytes of RTP header.
    pub payload_bytes: u64,
    /// Numbers missing between the first and the last packet of a run.
    pub lost: u64,
    /// Packets that came after one with a higher number.
    pub reordered: u64,
    /// Packets that came again.
    pub duplicates: u64,
    /// Packets that belong nowhere.
    pub strays: u64,
    /// Runs that began unasked: the sender jumped back or far away.
    pub restarts: u64,
    /// Datagrams that are not RTP of the payload type, or shorter than they say.
    pub malformed: u64,
    /// Number of the run's lowest packet.
    pub first_sequence: Option<u16>,
    /// Its timestamp.
    pub first_timestamp: Option<u32>,
    /// Highest extended number; the low 32 bits are what receiver reports want. 0 before the first packet.
    pub highest_sequence_ext: u64,
    /// Source of the last packet.
    pub ssrc: u32,
    /// Timestamp of the last packet; `None` before the first. Duplicates and strays do not count.
    pub last_timestamp: Option<u32>,
    /// When the first packet came, on the monotonic clock; 0 = none came.
    pub first_arrival_ns: u64,
    /// When the last packet came; duplicates and strays do not count.
    pub last_arrival_ns: u64,
    /// Longest time between two packets of a run.
    pub longest_gap_ns: u64,
    /// Interarrival jitter now (RFC 3550 section 6.4.1).
    pub jitter_ns: u64,
    /// Lateness of the latest packet. Nothing is due before its run begins, so it is at most the time from the run's first
    /// packet to its last.
    pub lateness_max_ns: u64,
    /// By how much the histogram may understate this stream: a packet that came before a lower baseline was found.
    pub understated_ns: u64,
}

/// How a slot is to judge.
pub(super) struct Setting {
    media: u64,
    clock_hz: u64,
}

impl Setting {
    pub(super) fn of(media: ProbeMedia) -> Result<Self, ProbeError> {
        let fault = |what: String, remedy| Err(ProbeError::Media { what, remedy });
        match media {
            ProbeMedia::Rtp { payload_type, .. } if payload_type > 127 => {
                fault(format!("payload type {payload_type}"), "RTP has 0 to 127")
            }
            ProbeMedia::Rtp { clock_hz, .. } if clock_hz == 0 || clock_hz > 1_000_000_000 => {
                fault(format!("RTP clock of {clock_hz} Hz"), "give 1 to 1000000000; video has 90000")
            }
            ProbeMedia::Raw { bytes_per_s } if bytes_per_s == 0 || bytes_per_s > 1 << 40 => {
                fault(format!("nominal rate of {bytes_per_s} bytes/s"), "give the rate of the stream")
            }
            ProbeMedia::Rtp { payload_type, clock_hz } => {
                Ok(Self { media: u64::from(payload_type), clock_hz: u64::from(clock_hz) })
            }
            ProbeMedia::Raw { bytes_per_s } => {
                Ok(Self { media: u64::from(RAW.unsigned_abs()), clock_hz: bytes_per_s })
            }
        }
    }
}

/// A slot as the process sees it.
pub(super) struct ProbeSlot<'a> {
    words: &'a [AtomicU64],
}

impl<'a> ProbeSlot<'a> {
    pub(super) fn new(words: &'a [AtomicU64]) -> Self {
        Self { words }
    }

    pub(super) fn word(&self, word: Word) -> &'a AtomicU64 {
        &self.words[word.index()]
    }

    /// Back to the beginning, with another setting.
    pub(super) fn reset(&self, setting: &Setting) {
        for word in self.words {
            word.store(0, Ordering::Relaxed);
        }
        self.word(Word::Media).store(setting.media, Ordering::Relaxed);
        self.word(Word::ClockHz).store(setting.clock_hz, Ordering::Relaxed);
        self.word(Word::WantedRun).store(ONE_RUN, Ordering::Release);
    }

    /// The next packet begins a run, with these bits.
    pub(super) fn next_run(&self, bits: i32) {
        // Only the process writes this word, one thread for each slot.
        let wanted = self.word(Word::WantedRun);
        let next = (wanted.load(Ordering::Relaxed) / ONE_RUN).wrapping_add(1).wrapping_mul(ONE_RUN);
        wanted.store(next | u64::from(bits.unsigned_abs()), Ordering::Release);
    }

    /// Returns all words but the window, as they were between two packets. Under a storm of packets
    /// they may be from within one: then counts may disagree by this packet.
    fn snapshot(&self) -> [u64; WINDOW_WORD] {
        let version = self.word(Word::Version);
        let mut words = [0; WINDOW_WORD];
        for _ in 0..SLOT_READ_TRIES {
            let before = version.load(Ordering::Acquire);
            for (to, from) in words.iter_mut().zip(self.words) {
                *to = from.load(Ordering::Relaxed);
            }
            fence(Ordering::Acquire);
            if before & 1 == 0 && before == version.load(Ordering::Relaxed) {
                break;
            }
            std::hint::spin_loop();
        }
        words
    }

    pub(super) fn counts(&self) -> ProbeCounts {
        let words = self.snapshot();
        let at = |word: Word| words[word.index()];
        let received = at(Word::RunReceived);
        let running = (at(Word::Highest).wrapping_sub(at(Word::Lowest)) + 1).saturating_sub(received);
        let lost = at(Word::LostBefore) + if received > 0 { running } else { 0 };
        let has_first = at(Word::Media) != u64::from(RAW.unsigned_abs()) && at(Word::Highest) != 0;
        let clock_runs = at(Word::ClockRuns) != 0;
        let (min, max) = (at(Word::MinOffset).cast_signed(), at(Word::MaxOffset).cast_signed());
        let span = at(Word::LastArrival).saturating_sub(at(Word::ClockFirstArrival));
        let late = if clock_runs { max.abs_diff(min).min(span) } else { 0 };
        let records = clock_runs && at(Word::LearningDone) != 0;
        let understated = if records { at(Word::RecordedFrom).cast_signed().abs_diff(min) } else { 0 };
        let judged = [Word::Packets, Word::Duplicates, Word::Strays, Word::Malformed];
        ProbeCounts {
            datagrams: judged.map(at).iter().sum(),
            packets: at(Word::Packets),
            payload_bytes: at(Word::PayloadBytes),
            lost,
            reordered: at(Word::Reordered),
            duplicates: at(Word::Duplicates),
            strays: at(Word::Strays),
            restarts: at(Word::Restarts),
            malformed: at(Word::Malformed),
            first_sequence: has_first.then_some(at(Word::Lowest) as u16),
            first_timestamp: has_first.then_some(at(Word::LowestTimestamp) as u32),
            highest_sequence_ext: at(Word::Highest),
            ssrc: at(Word::Ssrc) as u32,
            last_timestamp: has_first.then_some(at(Word::LastTimestamp) as u32),
            first_arrival_ns: at(Word::FirstArrival),
            last_arrival_ns: at(Word::LastArrival),
            longest_gap_ns: at(Word::LongestGap),
            jitter_ns: at(Word::JitterX16) / 16,
            lateness_max_ns: late.max(at(Word::LatenessMaxBefore)),
            understated_ns: understated + at(Word::UnderstatedBefore),
        }
    }

    /// Adds the lateness of the packets held back.
    pub(super) fn add_learned(&self, bins: &mut [u64]) {
        if self.word(Word::Learned).load(Ordering::Relaxed) == 0 {
            return;
        }
        let words = self.snapshot();
        let at = |word: Word| words[word.index()];
        let running = at(Word::LastArrival).saturating_sub(at(Word::ClockFirstArrival));
        let (base, span) = match at(Word::LearningDone) {
            0 => (at(Word::MinOffset), running),
            _ => (at(Word::LearnedBase), at(Word::LearnedSpan)),
        };
        let learned = &words[Word::FirstLearned.index()..];
        for offset in learned.iter().take(at(Word::Learned) as usize) {
            let lateness = offset.cast_signed().saturating_sub(base.cast_signed()).max(0);
            if let Some(bin) = bins.get_mut(bin_of(lateness.unsigned_abs().min(span))) {
                *bin += 1;
            }
        }
    }
}
