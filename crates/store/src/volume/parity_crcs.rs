//! The CRCs of a title's parity, made from its film: for titles that came before there were CRCs. What is stored as parity is
//! not asked, so it need not be trusted.

use std::path::Path;

use millrace_core::fec::Code;
use millrace_core::ids::TitleId;
use millrace_core::limits::DEFAULT_PACKET_BYTES;

use crate::disk::Disk;
use crate::error::StoreError;
use crate::meta::{CrcWriter, Finished, PacketCrc};
use crate::rows::Rows;

const PACKET: usize = DEFAULT_PACKET_BYTES;

/// Encodes the rows of a film that goes by.
pub(super) struct ParityCrcs {
    shape: Rows,
    code: Code,
    /// The row that is being filled, and how much of it is.
    row: Vec<u8>,
    filled: usize,
    parity: Vec<u8>,
    writer: CrcWriter,
}

impl ParityCrcs {
    /// Creates the file, which must not exist. `None`: there is no such code.
    pub(super) fn create(disk: &Disk, path: &Path, shape: Rows) -> Result<Option<Self>, StoreError> {
        let Some(code) = Code::new(shape.k(), shape.m()) else { return Ok(None) };
        let (row, parity) =
            (vec![0; shape.k() * shape.unit_bytes()], vec![0; shape.m() * shape.unit_bytes()]);
        let writer = CrcWriter::create(disk, path)?;
        Ok(Some(Self { shape, code, row, filled: 0, parity, writer }))
    }

    /// Takes the next bytes of the film.
    pub(super) fn take(&mut self, mut film: &[u8]) -> Result<(), StoreError> {
        while !film.is_empty() {
            let (now, later) = film.split_at(film.len().min(self.row.len() - self.filled));
            self.row[self.filled..self.filled + now.len()].copy_from_slice(now);
            self.filled += now.len();
            film = later;
            if self.filled == self.row.len() {
                self.close_row()?;
            }
        }
        Ok(())
    }

    /// Behind the film's end the row is zero.
    fn close_row(&mut self) -> Result<(), StoreError> {
        let unit_bytes = self.shape.unit_bytes();
        self.row[self.filled..].fill(0);
        self.filled = 0;
        let data: Vec<&[u8]> = self.row.chunks(unit_bytes).collect();
        let mut parity: Vec<&mut [u8]> = self.parity.chunks_mut(unit_bytes).collect();
        self.code.encode(&data, &mut parity);
        self.parity.chunks(PACKET).try_for_each(|packet| self.writer.push(PacketCrc::of(packet)))
    }

    /// Completes the file and makes it durable.
    pub(super) fn finish(mut self, title: TitleId) -> Result<Finished, StoreError> {
        if self.filled > 0 {
            self.close_row()?;
        }
        self.writer.finish(title, PACKET as u16, self.shape.parity_packets() * PACKET as u64)
    }
}
