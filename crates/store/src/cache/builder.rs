//! The scratch memory of building extents.

use std::ops::Range;

use millrace_core::packet::PacketMeta;

use super::crcs::Crcs;
use super::decode::decoder::Decoder;

/// Data that came block by block, joined.
#[derive(Default)]
pub(super) struct Joined {
    pub(super) bytes: Vec<u8>,
    pub(super) missing: Vec<Range<u64>>,
}

/// Builds extents of all kinds of titles; keeps the scratch memory for it.
#[derive(Default)]
pub(super) struct Builder {
    pub(super) metas: Vec<PacketMeta>,
    pub(super) crcs: Crcs,
    pub(super) decoder: Decoder,
    /// Whether each packet of a title without members has a readable record; empty: they all have.
    pub(super) recorded: Vec<bool>,
    pub(super) joined: Joined,
}
