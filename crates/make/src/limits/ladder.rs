//! Bounds of ladders: the renditions of one title, made so that a viewer can go from one to another.

use millrace_core::time::MEDIA_HZ;

use crate::limits::trick::TRICK_SLOT_TICKS;

/// Renditions of one title. Televisions and sites use four to eight.
pub const MAX_RUNGS: usize = 8;
/// Media time from one common access point to the next, about: viewers go over there, so this is how long they wait at most, and each costs a
/// key picture. HLS and DASH ladders have 2 to 6 s.
pub const GROUP_TICKS: u64 = 2 * MEDIA_HZ;
/// Pictures a second that a ladder is made for; more are thinned out to it.
pub const MAX_LADDER_HZ: u64 = 60;
/// Buffer that the encoder fills at the rate of the pictures. A longer buffer gives better key
/// pictures and a lower rate, because all pictures of a group leave before the next group: at 2 s
/// and 400 ms the encoder gets five sixths of the rate left for pictures.
pub const RUNG_BUFFER_TICKS: u64 = MEDIA_HZ * 2 / 5;
/// From when the first picture of a group is sent to when it is decoded, in slots: the buffer, emptied at a sixth more than the rate it was
/// filled for (333 ms), two slots because sending is counted in whole ones, and the rest for sound that comes in between.
pub const RUNG_DELAY_SLOTS: u64 = 12;
/// Audio is sent this long before it is heard, and a slot more: decoders hold 3,584 bytes (ISO/IEC
/// 13818-1 section 2.4.2.3), 190 ms of 150 kb/s.
pub const SOUND_LEAD_TICKS: u64 = TRICK_SLOT_TICKS * 3 / 2;
/// Sounds of a ladder: the program's table must fit one packet.
pub const MAX_LADDER_SOUNDS: usize = 8;
/// Bit rate of sound for each channel, and at most two channels of a sound are kept.
pub const SOUND_CHANNEL_BITS: u64 = 64_000;
/// Sampling rate of all sound: a frame of AAC is then a whole number of ticks.
pub const SOUND_HZ: u64 = 48_000;
/// Fewest bits a second for pictures that are tried: 160 x 90 of them are just to be seen.
pub const MIN_PICTURE_BITS: u64 = 40_000;
/// Bytes of one group of pictures; two groups are held: 4 s at 200 Mb/s.
pub const MAX_GROUP_BYTES: usize = 100 << 20;
/// Maximum difference between the durations of renditions: the last picture, and the time estimated
/// behind the last value of the clock.
pub const FIT_DURATION_TICKS: u64 = MEDIA_HZ / 5;
/// Longest list that is read.
pub const MAX_LADDER_LIST_BYTES: usize = 400;
