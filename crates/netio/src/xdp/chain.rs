//! Frames in pieces: headers and whatever else was written for one frame are copied into a small frame of our own, and payload is sent from
//! where it lies in the arena.
//!
//! ```text
//!   head, bytes elsewhere ─► copied ─► header frame ─┐
//!   bytes in the arena    ─► extent held ────────────┴─► one descriptor each, all but the last with XDP_PKT_CONTD
//! ```
//!
//! An extent is held from here until its last descriptor has come back, beside whatever lease the caller has: TCP may drop its own earlier.

use std::sync::Arc;

use millrace_core::limits::EXTENT_BYTES;
use millrace_core::pool::ExtentArena;

use super::output::Pieces;
use super::ring::Desc;
use super::umem::{FrameKind, Frames, HeldLeases, address_of};
use crate::limits::XDP_CHAIN_DESCRIPTORS;

/// Why a frame was not built in pieces. Nothing is held for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unchained {
    /// Nothing of it lies in the arena, or it does not suit the device in pieces: it has to be copied.
    Unfit,
    /// All header frames are in the device's hands.
    Full,
}

/// The descriptors of one frame.
#[derive(Debug, Default)]
pub(super) struct Chain {
    all: [Desc; XDP_CHAIN_DESCRIPTORS],
    count: usize,
}

impl Chain {
    /// The descriptors, in order.
    pub(super) fn descriptors(&self) -> &[Desc] {
        &self.all[..self.count]
    }

    fn push(&mut self, desc: Desc) {
        if let Some(last) = self.count.checked_sub(1).and_then(|last| self.all.get_mut(last)) {
            last.more = true;
        }
        self.all[self.count] = Desc { more: false, ..desc };
        self.count += 1;
    }
}

/// The arena whose memory is sent from, and its extents in the device's hands.
pub(super) struct Chains {
    arena: Arc<ExtentArena>,
    held: HeldLeases,
    /// Bytes of the arena that hold media; frames come behind.
    media_bytes: u64,
    cut_at_pages: bool,
    /// Descriptors of one frame that the device takes.
    most: usize,
}

impl Chains {
    pub(super) fn new(arena: &Arc<ExtentArena>, cut_at_pages: bool, most: usize) -> Self {
        Self {
            arena: Arc::clone(arena),
            held: HeldLeases::new(arena),
            media_bytes: u64::from(arena.extents()) * EXTENT_BYTES as u64,
            cut_at_pages,
            most: most.min(XDP_CHAIN_DESCRIPTORS),
        }
    }

    /// Builds a frame, all of it or nothing.
    pub(super) fn build(
        &mut self,
        frames: &mut Frames,
        head: &[u8],
        body: &[&[u8]],
    ) -> Result<Chain, Unchained> {
        if head.is_empty() || !body.iter().any(|piece| self.place_of(piece).is_some()) {
            return Err(Unchained::Unfit);
        }
        let mut chain = Chain::default();
        match self.fill(&mut chain, frames, head, body) {
            Ok(()) => Ok(chain),
            Err(why) => {
                self.undo(frames, &chain);
                Err(why)
            }
        }
    }

    fn fill(
        &mut self,
        chain: &mut Chain,
        frames: &mut Frames,
        head: &[u8],
        body: &[&[u8]],
    ) -> Result<(), Unchained> {
        self.copy(chain, frames, head, false)?;
        // Whether the last descriptor is a frame of ours, which takes the following bytes too.
        let mut is_open = true;
        for piece in body.iter().filter(|piece| !piece.is_empty()) {
            let Some(at) = self.place_of(piece) else {
                self.copy(chain, frames, piece, is_open)?;
                is_open = true;
                continue;
            };
            is_open = false;
            for desc in (Pieces { at, left: piece.len() as u64, cut_at_pages: self.cut_at_pages }) {
                if chain.count == self.most || !self.held.hold_at(&self.arena, desc.address) {
                    return Err(Unchained::Unfit);
                }
                chain.push(desc);
            }
        }
        Ok(())
    }

    fn copy(
        &self,
        chain: &mut Chain,
        frames: &mut Frames,
        bytes: &[u8],
        is_open: bool,
    ) -> Result<(), Unchained> {
        if !is_open {
            if chain.count == self.most {
                return Err(Unchained::Unfit);
            }
            let address = frames.take(FrameKind::Header).ok_or(Unchained::Full)?;
            chain.push(Desc { address, len: 0, more: false });
        }
        let last = &mut chain.all[chain.count - 1];
        let (begin, end) = (last.len as usize, last.len as usize + bytes.len());
        let frame = frames.bytes_mut(last.address).and_then(|frame| frame.get_mut(begin..end));
        frame.ok_or(Unchained::Unfit)?.copy_from_slice(bytes);
        last.len = end as u32;
        Ok(())
    }

    /// Where bytes lie among the media of the arena; `None` if they lie elsewhere.
    fn place_of(&self, bytes: &[u8]) -> Option<u64> {
        let at = address_of(&self.arena, bytes)?;
        (at + bytes.len() as u64 <= self.media_bytes && !bytes.is_empty()).then_some(at)
    }

    /// Gives back the leases of a frame that is not sent.
    pub(super) fn undo(&mut self, frames: &mut Frames, chain: &Chain) {
        for desc in chain.descriptors() {
            self.complete(frames, desc.address);
        }
    }

    /// The device is done with a descriptor; `false` if it had none at this address.
    pub(super) fn complete(&mut self, frames: &mut Frames, address: u64) -> bool {
        if address < self.media_bytes { self.held.complete(address) } else { frames.complete(address) }
    }

    /// Extents in the device's hands.
    pub(super) fn held(&self) -> u64 {
        self.held.now()
    }
}
