//! Bounds of titles that are made of other titles: fast forward, rewind, slow motion.

use millrace_core::time::MEDIA_HZ;

/// Time stamps that wait for their picture: there is one picture for each, a few behind at most.
pub const MAX_STAMPS: usize = 64;
/// Places where something is missing that are remembered until the picture there is over.
pub const MAX_LOSSES: usize = 64;
/// Different parameters of one title. Encoders repeat the same; joined recordings have a few.
pub const MAX_PARAMETERS: usize = 1024;
/// Pictures of one title that are remembered, of 56 bytes each: 19 hours of 60 a second.
pub const MAX_TRICK_PICTURES: usize = 4 << 20;
/// Largest picture. At 100 Mb/s and one key picture a second, key pictures have a few MB.
pub const MAX_PICTURE_BYTES: usize = 32 << 20;
/// The clock comes once in this time: ISO/IEC 13818-1 section 2.7.2 asks for 100 ms, DVB (ETSI TS 101 154 section 4.1.5) for 40.
pub const TRICK_SLOT_TICKS: u64 = MEDIA_HZ / 25;
/// The tables come once in this number of slots, so within the 100 ms of ETSI TS 101 154 section
/// 4.1.7.
pub const TRICK_TABLE_SLOTS: u64 = 2;
/// TS packets that a slot has at least, stuffing if need be: one media packet, so that none gathers more than a slot of the clock.
pub const MIN_SLOT_PACKETS: u64 = 7;
/// Fewest TS packets a slot must have room for: clock, tables, and something of a picture.
pub const MIN_SLOT_ROOM: u64 = 5;
/// Least time from a key picture to the next: viewers do not see more than 30 a second, and
/// decoders need not manage.
pub const MIN_PICTURE_TICKS: u64 = MEDIA_HZ / 30;
/// Longest time from a picture to the next, where the rate allows: ISO/IEC 13818-1 section 2.7.4. A key picture is repeated to keep it.
pub const MAX_PICTURE_TICKS: u64 = MEDIA_HZ * 7 / 10;
/// Longest time that sending a key picture may take. The parent's took 1 s at its peak rate, unless its buffer was larger.
pub const MAX_KEY_SLOTS: u64 = 38;
/// Longest delay of decoding after sending where all pictures are sent: a decoder's buffer is one
/// second's, and the parent's own delay is stretched with its pictures.
pub const MAX_DELAY_SLOTS: u64 = 75;
/// Bytes read of the parent at a time, in default-size packets.
pub const TRICK_READ_PACKETS: u64 = 200;
