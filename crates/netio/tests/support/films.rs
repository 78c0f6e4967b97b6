//! Extents full of packets, and batches that say where their bytes lie.

use std::sync::Arc;

use millrace_core::ids::TitleRef;
use millrace_core::packet::WireLayout;
use millrace_core::pool::{ExtentArena, ExtentContent, HeapRegion, Lease};
use millrace_core::seam::{Dest, PayloadSource, Transmit, TransmitBatch};

/// Packets in an extent.
pub const PACKETS: u32 = 196;
/// Bytes of a datagram.
pub const SLOT: usize = 1328;

/// Titles in an arena.
pub struct Films {
    pub arena: Arc<ExtentArena>,
}

impl Films {
    /// `extents` extents, each full of bytes of its own.
    pub fn new(extents: u32) -> Self {
        let arena = ExtentArena::new(Box::new(HeapRegion::new(extents as usize)));
        for extent in 0..extents {
            let mut fill = arena.fill(extent).expect("a new arena is free");
            let bytes = super::pattern(extent, SLOT * PACKETS as usize);
            fill.bytes_mut()[..bytes.len()].copy_from_slice(&bytes);
            fill.publish();
        }
        Self { arena }
    }

    pub fn lease(&self, extent: u32) -> Lease {
        let layout = WireLayout::new(1316).expect("seven cells");
        let content = ExtentContent {
            title: TitleRef(0),
            number: extent,
            first_packet: extent * PACKETS,
            packets: PACKETS,
            last_packet_bytes: 1316,
            layout,
            spare: 0,
        };
        self.arena.lend(extent, content).expect("a filled extent")
    }

    /// Leases that are out.
    pub fn out(&self) -> u32 {
        (0..self.arena.extents()).map(|extent| self.arena.leases(extent)).sum()
    }
}

/// One entry: packets of an extent.
pub struct Piece<'a> {
    pub index: u32,
    pub dest: Dest,
    pub lease: &'a Lease,
    pub place: u32,
    pub count: u32,
    /// Headers of its own.
    pub headers: Option<&'a [u8]>,
    /// Whether the batch states where the bytes lie.
    pub is_known: bool,
}

impl<'a> Piece<'a> {
    pub fn new(index: u32, dest: Dest, lease: &'a Lease, place: u32, count: u32) -> Self {
        Self { index, dest, lease, place, count, headers: None, is_known: true }
    }

    pub fn transmit(&self) -> Transmit<'a> {
        let bytes = self.lease.wire(self.place, self.count);
        match self.headers {
            None => super::wire(self.index, self.dest, bytes, SLOT),
            Some(headers) => super::patched(self.index, self.dest, headers, bytes, SLOT),
        }
    }

    pub fn datagrams(&self) -> Vec<Vec<u8>> {
        super::datagrams(self.transmit().payload)
    }
}

/// Pieces as a batch.
pub struct PieceBatch<'a>(pub &'a [Piece<'a>]);

impl TransmitBatch for PieceBatch<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, index: usize) -> Transmit<'_> {
        self.0[index].transmit()
    }

    fn source(&self, index: usize) -> Option<PayloadSource<'_>> {
        let piece = &self.0[index];
        piece.is_known.then_some(PayloadSource { lease: piece.lease, place: piece.place })
    }
}
