//! Bounds of this crate, each with its reason. Relations between them are asserted.
//!
//! A bound that an operator may change is the default of a setting. What several crates need is in
//! [`millrace_core::limits`].

/// Subtitle pages of a title: a channel with many languages has six or seven.
pub const MAX_SUBTITLE_PAGES: usize = 16;
/// Ticks a second of the system clock (ISO/IEC 13818-1 section 2.4.2.1).
const SYSTEM_HZ: i64 = 27_000_000;

// Limits for a stream, in ticks of 27 MHz, like clock references.

/// Longest time between two PATs, and between two PMTs of a programme: ETSI TR 101 290 checks 1.3.a and 1.5.a.
pub const PSI_INTERVAL_TICKS: i64 = SYSTEM_HZ / 2;
/// Longest time between two clock references of a programme: ISO/IEC 13818-1 section 2.7.2, TR 101 290 check 2.3.a.
pub const PCR_INTERVAL_TICKS: i64 = SYSTEM_HZ / 10;
/// The same as older versions of TR 101 290 and DVB (TS 101 154) have it: beyond it is a note.
pub const PCR_NOTE_INTERVAL_TICKS: i64 = SYSTEM_HZ / 25;
/// Most that a clock reference of a constant rate may be off: 500 ns (TR 101 290 check 2.4), and a tick that rounding takes.
pub const PCR_ACCURACY_NS: u64 = 500;
/// Longest distance of presentation times: ISO/IEC 13818-1 section 2.7.4, TR 101 290 check 2.5. In ticks of 90 kHz.
pub const PTS_INTERVAL_TICKS: i64 = 90_000 * 7 / 10;
/// A PID that a PMT names comes at least so often: TR 101 290 check 1.6 leaves it to the user and advises no more than 5 s.
pub const PID_INTERVAL_TICKS: i64 = 5 * SYSTEM_HZ;
/// Longest time that a byte of H.264 or H.265 stays in the decoder's buffers: ISO/IEC 13818-1
/// section 2.14.3.1. For others it is 1 s; the multiplexer of ffmpeg exceeds that with its
/// defaults, and no decoder minds.
pub const MAX_BUFFERED_TICKS: i64 = 10 * SYSTEM_HZ;
/// A clock that goes on by more than this without a sign is taken for another clock, however many packets lie between.
pub const MAX_PCR_GAP_TICKS: i64 = 10 * SYSTEM_HZ;
/// When the clock that time is taken from has been silent for this long, another clock of the
/// stream replaces it.
pub const CLOCK_SILENT_TICKS: i64 = SYSTEM_HZ;

// Framing (TR 101 290 checks 1.1 and 1.2).

/// Sync bytes in a row that make a beginning.
pub const SYNC_PACKETS: usize = 5;
/// Bytes taken into the framing buffer at a time: they stay in the cache, and a caller's block of any length is not copied as a whole.
pub const FRAMING_BYTES: usize = 64 * 1024;

// Bounds of stored data.

/// Findings kept per check; all are counted. A reader looks at the first few.
pub const MAX_FINDINGS_PER_CHECK: usize = 100;
/// Events that wait for the clock reference that gives them their time. At the longest interval that is allowed, 100 ms, and one event for
/// each packet that is a stream of 980 Mb/s; beyond it the rate of the interval before is taken.
pub const MAX_PENDING_EVENTS: usize = 65_536;
/// Programmes looked at; a transponder has some 20.
pub const MAX_PROGRAMS: usize = 256;
/// PIDs whose clock references are followed: one per programme.
pub const MAX_CLOCKS: usize = MAX_PROGRAMS;
/// Longest section: 12 bits of length (ISO/IEC 13818-1 section 2.4.4.10) and what stands before.
pub const MAX_SECTION_BYTES: usize = 3 + 4093;
/// The same of the tables that this standard defines (section 2.4.4.4).
pub const MAX_PSI_SECTION_BYTES: usize = 3 + 1021;
/// Clock references judged together by their distance in packets: 2.5 to 13 s, in which the frequency of a clock that keeps to
/// ISO/IEC 13818-1 (75 mHz/s) changes by less than a tick.
pub const ACCURACY_PCRS: usize = 128;
/// Fewer say nothing about a rate.
pub const MIN_ACCURACY_PCRS: usize = 24;
/// Share of the intervals, in per cent, that must fit one rate before it counts as constant, and of the batches before the stream does: a reference
/// that is off spoils two intervals.
pub const CONSTANT_RATE_PERCENT: usize = 90;
/// Intervals of a batch that may have another number of packets in the usual time without the rate
/// being variable: a single one may be the end of a displaced reference whose rest is in the next
/// batch.
pub const MAX_RATE_CHANGES: usize = 1;
/// Presentation times remembered to see the same twice: longer than any reordering of pictures (16 frames of H.264).
pub const RECENT_PTS: usize = 32;
/// Access units in a buffer of the decoder model: 10 s of 120 pictures a second. Beyond it the oldest are taken for decoded.
pub const MAX_BUFFERED_UNITS: usize = 1200;
/// Bytes of a PES packet that are searched for its first picture: the units before the picture take
/// a few hundred.
pub const MAX_START_BYTES: usize = 16 * 1024;
