//! The use of the server by each address.

/// What one address holds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    pub(super) connections: usize,
    /// Streams, playing or not.
    pub(super) sessions: usize,
    /// Those that have reserved room to play, and viewers that fetch segments.
    pub(super) streams: usize,
    /// Bits a second that they have reserved.
    pub(super) rate: u64,
}
