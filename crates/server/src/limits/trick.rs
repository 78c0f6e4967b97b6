//! Bounds of titles that are made of other titles: fast forward, rewind, slow motion.

use std::time::Duration;

use millrace_core::time::NS_PER_S;

// Titles made on use.

/// Default space for such titles together: four speeds of some six films of two hours at 5 Mb/s.
pub const DEFAULT_TRICK_SPACE_BYTES: u64 = 16 << 30;
/// Speeds of titles that wait to be made: more than are made in an hour, and few enough that a
/// client that requests everything crowds out others for an hour at most.
pub const MAX_WISHES: usize = 64;
/// A wish that no viewer repeats for this long is forgotten.
pub const WISH_KEPT_NS: u64 = 3600 * NS_PER_S;
/// Wishes that cannot be fulfilled are remembered, the last of them up to this number: 40 bytes
/// each.
pub const MAX_REFUSED_WISHES: usize = 4096;
/// What could not be read is tried again after this time: it may have been repaired.
pub const REFUSED_NS: u64 = 3600 * NS_PER_S;
/// Made titles that could not be read are remembered, the last of them up to this number: as many
/// as a failing disk may have of those that are watched.
pub const MAX_UNREAD: usize = 64;
/// They are tried again after this time: they may have been repaired, and if not, only one viewer
/// in this time notices.
pub const UNREAD_NS: u64 = 600 * NS_PER_S;
/// A title without room now, or that cannot be written now, is tried again after this time.
pub const LATER_NS: u64 = 60 * NS_PER_S;
/// Nothing is made while an engine is busy for this share of the time: a third of its core is left
/// for new load.
pub const MAKER_BUSY_PERMILLE: u64 = 650;
/// Nor for this long after it was, or after the cache was late: it would only become so again.
pub const MAKER_CALM_NS: u64 = 2 * NS_PER_S;
/// Time over which these are looked at.
pub const MAKER_PRESSURE_NS: u64 = NS_PER_S / 4;
/// While a title is being watched, making rests for as long as it has worked, in turns of this
/// length: half of a disk's capacity is left, and a read of the cache waits behind a few of its
/// reads at most.
pub const MAKER_TURN_NS: u64 = NS_PER_S / 50;
/// Longest such rest, and time between two looks while it waits for others: a stop is seen at once.
pub const MAKER_REST: Duration = Duration::from_millis(100);
/// How often the thread checks whether there is something to make, in addition to notifications,
/// and whether the parent of the title being made is still there.
pub const MAKER_LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often is written down when titles were used last. After a crash their order is that old.
pub const NOTE_USES_NS: u64 = 60 * NS_PER_S;
/// When a server ends, it waits this long for making to be given up. The remains are then removed
/// when the volume is opened next.
pub const MAKER_STOP: Duration = Duration::from_secs(1);
