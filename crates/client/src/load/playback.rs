//! What a player that buffers would have shown: for viewers over HTTP.

/// One viewer's playback.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Playback {
    /// From the start to the first picture.
    pub(super) startup_us: u64,
    /// Times the buffer ran empty.
    pub(super) rebuffers: u64,
    /// How long the picture stood still, all in all.
    pub(super) rebuffering_us: u64,
    /// Requests made.
    pub(super) requests: u64,
    /// Requests that were refused or broke off.
    pub(super) requests_failed: u64,
}
