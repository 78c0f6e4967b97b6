//! When the server changes the media that a session receives, and how often
//! (`docs/design/0030-renditions.md`).

/// No stream's rendition is changed by the server sooner than this after it was changed last, by whomever.
pub const RENDITION_GAP_NS: u64 = 10_000_000_000;
/// An engine's report on a stream means nothing any more after this: it is requested once a second.
pub const RENDITION_STALE_NS: u64 = 2_000_000_000;
/// A viewer by TCP that has received this much less media than is due is a slow reader, if it is no
/// less behind a second later: longer than a retransmission lasts, and short enough that the media
/// still to be sent before the next access point keeps it below `MAX_TCP_BEHIND_NS`.
pub const SLOW_READER_NS: u64 = 1_000_000_000;
/// It reads well while it is not further behind than this: a round trip across a continent and a burst.
pub const GOOD_READER_NS: u64 = 300_000_000;
/// Loss that a receiver reports, in 1/256: 5 % cannot be concealed, and comes of a link that is too slow.
pub const LOSS_HIGH_256: u8 = 13;
/// Below 1 % there may be room for more.
pub const LOSS_LOW_256: u8 = 2;
/// This many reports in a row must show it: first reports of common players are nonsense.
pub const LOSS_REPORTS: u32 = 3;
/// And for this long: FFmpeg reports twice a second.
pub const LOSS_SUSTAINED_NS: u64 = 4_000_000_000;
/// Reports that are further apart than this say nothing together: players send one each 5 s.
pub const LOSS_STALE_NS: u64 = 20_000_000_000;
/// All must have been well for this long before more is tried.
pub const RENDITION_UP_NS: u64 = 20_000_000_000;
/// A try that failed doubles that, up to this.
pub const RENDITION_UP_MAX_NS: u64 = 320_000_000_000;
/// A try has failed if there is a reason to go down again this soon.
pub const RENDITION_PROVEN_NS: u64 = 60_000_000_000;
