//! Bounds of near video on demand, each with its reason.

use millrace_core::time::NS_PER_S;

/// Channels of a cast at most: the delay falls by e with each, so that sixteen of the best scheme would begin a film of two hours within a millisecond.
pub const MAX_CHANNELS: u8 = 16;
/// Segments of a title at most: a receiver makes a schedule of all of them before it begins.
pub const MAX_SEGMENTS: u32 = 65_535;
/// Shortest slot: threads wake within a few milliseconds, and a packet of 1 Mb/s lasts ten.
pub const MIN_SLOT_NS: u64 = 10_000_000;
/// Longest title: its clock of 90 kHz in 32 bits wraps after 13 hours.
pub const MAX_FILM_NS: u64 = 12 * 3600 * NS_PER_S;
/// Slots that a viewer of the fixed-delay scheme waits at most. Longer waits with shorter slots bring the delay closer to the bound;
/// at 1024 it is within a twentieth for up to four channels. With more of them [`MAX_SEGMENTS`] is reached first.
pub const MAX_WAIT_SLOTS: u32 = 1024;
/// Rotations of one channel at most: about the square root of [`MAX_SEGMENTS`] is best, twice as many are never needed.
pub const MAX_ROTATIONS: u32 = 512;
/// Widths of skyscrapers: numbers of its series: two channels at a time are enough for every arrival. The tests try them
/// with every phase; beyond 52 the delay hardly falls and the buffer doubles.
pub const SKYSCRAPER_WIDTHS: [u16; 5] = [2, 5, 12, 25, 52];
/// Bytes of a title's name in an announcement at most: a datagram stays far below the smallest MTU.
pub const MAX_NAME_BYTES: usize = 200;
/// A receiver is ready this long before the first slot that it needs, and stays this long after the last: clocks, joins and senders
/// are that exact.
pub const GUARD_NS: u64 = 250_000_000;
/// Interval of announcements: a viewer waits for one, and 100 bytes five times a second are 4 kb/s.
pub const ANNOUNCE_NS: u64 = 200_000_000;
/// Highest mean rate of a title. A viewer holds a part of the title in a file, so that an
/// announcement must not ask for any amount: films have a tenth of it at most.
pub const MAX_RATE_BITS_PER_S: u64 = 1_000_000_000;
