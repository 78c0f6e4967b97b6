//! Computes the CRCs of a title's parity from the title itself, for titles that predate CRCs. The
//! stored parity is not read, so it need not be trusted.

use std::path::Path;

use millrace_core::fec::Code;
use millrace_core::ids::TitleId;
use millrace_core::limits::DEFAULT_PACKET_BYTES;

use crate::disk::Disk;
use crate::error::StoreError;
use crate::meta::{CrcWriter, Finished, PacketCrc};
use crate::stripes::StripeLayout;

const PACKET: usize = DEFAULT_PACKET_BYTES;

/// Encodes the stripes of a title that goes by.
pub(super) struct ParityCrcs {
    shape: StripeLayout,
    code: Code,
    /// The stripe that is being filled, and how much of it is.
    stripe: Vec<u8>,
    filled: usize,
    parity: Vec<u8>,
    writer: CrcWriter,
}

impl ParityCrcs {
    /// Creates the file, which must not exist. `None`: there is no such code.
    pub(super) fn create(disk: &Disk, path: &Path, shape: StripeLayout) -> Result<Option<Self>, StoreError> {
        let Some(code) = Code::new(shape.k(), shape.m()) else { return Ok(None) };
        let (stripe, parity) =
            (vec![0; shape.k() * shape.unit_bytes()], vec![0; shape.m() * shape.unit_bytes()]);
        let writer = CrcWriter::create(disk, path)?;
        Ok(Some(Self { shape, code, stripe, filled: 0, parity, writer }))
    }

    /// Takes the next bytes of the title.
    pub(super) fn take(&mut self, mut media: &[u8]) -> Result<(), StoreError> {
        while !media.is_empty() {
            let (now, later) = media.split_at(media.len().min(self.stripe.len() - self.filled));
            self.stripe[self.filled..self.filled + now.len()].copy_from_slice(now);
            self.filled += now.len();
            media = later;
            if self.filled == self.stripe.len() {
                self.close_stripe()?;
            }
        }
        Ok(())
    }

    /// Behind the title's end the stripe is zero.
    fn close_stripe(&mut self) -> Result<(), StoreError> {
        let unit_bytes = self.shape.unit_bytes();
        self.stripe[self.filled..].fill(0);
        self.filled = 0;
        let data: Vec<&[u8]> = self.stripe.chunks(unit_bytes).collect();
        let mut parity: Vec<&mut [u8]> = self.parity.chunks_mut(unit_bytes).collect();
        self.code.encode(&data, &mut parity);
        self.parity.chunks(PACKET).try_for_each(|packet| self.writer.push(PacketCrc::of(packet)))
    }

    /// Completes the file and makes it durable.
    pub(super) fn finish(mut self, title: TitleId) -> Result<Finished, StoreError> {
        if self.filled > 0 {
            self.close_stripe()?;
        }
        self.writer.finish(title, PACKET as u16, self.shape.parity_packets() * PACKET as u64)
    }
}
