//! Bounds of titles that are made of other titles: fast forward, rewind, slow motion.

use std::time::Duration;

use crate::time::{MEDIA_HZ, NS_PER_S};

/// Most that is kept of a unit of video: parameter sets take a few hundred bytes, slice headers fewer.
pub const MAX_UNIT_HEAD_BYTES: usize = 1024;
/// Sequence parameter sets of an H.264 stream (ITU-T H.264 section 7.4.2.1.1).
pub const MAX_SPS: u32 = 32;
/// Picture parameter sets of an H.264 stream (section 7.4.2.2).
pub const MAX_PPS: u32 = 256;
/// Bytes of a slice that are looked through for its header: those of I slices take twenty.
pub const MAX_HEADER_BYTES: usize = 96;
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
/// The tables come once in so many slots, so within the 100 ms of ETSI TS 101 154 section 4.1.7.
pub const TRICK_TABLE_SLOTS: u64 = 2;
/// TS packets that a slot has at least, stuffing if need be: one media packet, so that none gathers more than a slot of the clock.
pub const MIN_SLOT_PACKETS: u64 = 7;
/// Fewest TS packets a slot must have room for: clock, tables, and something of a picture.
pub const MIN_SLOT_ROOM: u64 = 5;
/// Least time from a key picture to the next: more than 30 a second nobody sees, and decoders need not manage.
pub const MIN_PICTURE_TICKS: u64 = MEDIA_HZ / 30;
/// Longest time from a picture to the next, where the rate allows: ISO/IEC 13818-1 section 2.7.4. A key picture is repeated to keep it.
pub const MAX_PICTURE_TICKS: u64 = MEDIA_HZ * 7 / 10;
/// Longest time that sending a key picture may take. The parent's took 1 s at its peak rate, unless its buffer was larger.
pub const MAX_KEY_SLOTS: u64 = 38;
/// Longest time by which decoding may be behind sending where all pictures are sent: the buffer of a decoder is one second's, and the
/// parent's own delay is stretched with its pictures.
pub const MAX_DELAY_SLOTS: u64 = 75;
/// Bytes read of the parent at a time, in default-size packets.
pub const TRICK_READ_PACKETS: u64 = 200;

// Titles made on use.

/// Space that such titles may take together unless the operator says otherwise: four speeds of some six films of two hours at 5 Mb/s.
pub const DEFAULT_TRICK_SPACE_BYTES: u64 = 16 << 30;
/// Speeds of titles that wait to be made: more than are made in an hour, and few enough that whoever asks for everything crowds out others for
/// an hour at most.
pub const MAX_WISHES: usize = 64;
/// A wish that nobody has had again for this long is forgotten.
pub const WISH_KEPT_NS: u64 = 3600 * NS_PER_S;
/// What cannot be made is remembered, the last of so many: 40 bytes each.
pub const MAX_REFUSED_WISHES: usize = 4096;
/// What could not be read is tried again after this time: it may have been repaired.
pub const REFUSED_NS: u64 = 3600 * NS_PER_S;
/// Made titles that could not be read are remembered, the last of so many: as many as a disk that fails may have of those that are watched.
pub const MAX_UNREAD: usize = 64;
/// They are tried again after this time: they may have been repaired, and if not, it is one viewer in so long who finds out.
pub const UNREAD_NS: u64 = 600 * NS_PER_S;
/// What has no room now, or cannot be written now, is tried again after this time.
pub const LATER_NS: u64 = 60 * NS_PER_S;
/// Nothing is made while an engine is busy for this share of the time: a third of its core is left for what comes.
pub const MAKER_BUSY_PERMILLE: u64 = 650;
/// Nor for so long after it was, or after the cache was late: it would only become so again.
pub const MAKER_CALM_NS: u64 = 2 * NS_PER_S;
/// Time over which these are looked at.
pub const MAKER_PRESSURE_NS: u64 = NS_PER_S / 4;
/// While anybody watches, making rests for as long as it has worked, in turns of this length: half of what a disk can do is left, and a read of
/// the cache waits behind a few of its reads at most.
pub const MAKER_TURN_NS: u64 = NS_PER_S / 50;
/// Longest such rest, and time between two looks while it waits for others: a stop is seen at once.
pub const MAKER_REST: Duration = Duration::from_millis(100);
/// How often it is looked whether something is to be made, beyond being told, and whether the parent of what is being made is still there.
pub const MAKER_LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often is written down when titles were used last. After a crash their order is that old.
pub const NOTE_USES_NS: u64 = 60 * NS_PER_S;
/// When a server ends, it waits so long for making to be given up. What is left then is removed when the volume is opened next.
pub const MAKER_STOP: Duration = Duration::from_secs(1);
