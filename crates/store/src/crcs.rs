//! The CRCs of a title's packets of the default size, made while its bytes go by.

use std::path::Path;

use millrace_core::ids::TitleId;
use millrace_core::limits::DEFAULT_PACKET_BYTES;

use crate::disk::Disk;
use crate::error::StoreError;
use crate::meta::{CrcWriter, Finished, PacketCrc};

const PACKET: usize = DEFAULT_PACKET_BYTES;

/// Cuts bytes that come in pieces of any length into packets of the default size. Packets that lie whole in a piece are
/// not copied.
#[derive(Debug, Default)]
pub(crate) struct PacketCutter {
    /// The packet that is not whole yet.
    rest: Vec<u8>,
}

impl PacketCutter {
    /// Hands every packet that the next bytes complete to `with`.
    ///
    /// # Errors
    /// That of `with`.
    pub(crate) fn take<E>(
        &mut self,
        mut bytes: &[u8],
        mut with: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(PACKET - self.rest.len()));
            bytes = later;
            if now.len() == PACKET {
                with(now)?;
                continue;
            }
            self.rest.extend_from_slice(now);
            if self.rest.len() == PACKET {
                self.end(&mut with)?;
            }
        }
        Ok(())
    }

    /// Ends the bytes: a packet that is not whole is the short last one.
    ///
    /// # Errors
    /// That of `with`.
    pub(crate) fn end<E>(&mut self, with: impl FnOnce(&[u8]) -> Result<(), E>) -> Result<(), E> {
        if self.rest.is_empty() {
            return Ok(());
        }
        let result = with(&self.rest);
        self.rest.clear();
        result
    }
}

/// Writes the CRCs of a title that goes by.
#[derive(Debug)]
pub(crate) struct CrcMaker {
    cutter: PacketCutter,
    writer: CrcWriter,
}

impl CrcMaker {
    /// Creates the file, which must not exist.
    pub(crate) fn create(disk: &Disk, path: &Path) -> Result<Self, StoreError> {
        Ok(Self { cutter: PacketCutter::default(), writer: CrcWriter::create(disk, path)? })
    }

    /// Takes the next bytes of the title.
    pub(crate) fn take(&mut self, media: &[u8]) -> Result<(), StoreError> {
        let writer = &mut self.writer;
        self.cutter.take(media, |packet| writer.push(PacketCrc::of(packet)))
    }

    /// Completes the file and makes it durable.
    pub(crate) fn finish(mut self, title: TitleId, data_bytes: u64) -> Result<Finished, StoreError> {
        let writer = &mut self.writer;
        self.cutter.end(|packet| writer.push(PacketCrc::of(packet)))?;
        self.writer.finish(title, PACKET as u16, data_bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pieces_of_any_length_make_the_same_packets(
            bytes in 0usize..8000,
            steps in proptest::collection::vec(1usize..3000, 1..9),
        ) {
            let media: Vec<u8> = (0..bytes).map(|i| ((i / 7) ^ i) as u8).collect();
            let (mut cutter, mut packets) = (PacketCutter::default(), Vec::new());
            let (mut rest, mut steps) = (&media[..], steps.iter().cycle());
            let mut take = |packet: &[u8]| { packets.push(packet.to_vec()); Ok::<_, Infallible>(()) };
            while !rest.is_empty() {
                let (now, later) = rest.split_at(rest.len().min(*steps.next().unwrap()));
                cutter.take(now, &mut take).unwrap();
                rest = later;
            }
            cutter.end(&mut take).unwrap();
            let expected: Vec<Vec<u8>> = media.chunks(PACKET).map(<[u8]>::to_vec).collect();
            prop_assert_eq!(packets, expected);
        }
    }

    #[test]
    fn words_that_change_places_have_another_crc_and_the_same_sum() {
        let packet: Vec<u8> = (0..PACKET).map(|i| (i * 7 % 251) as u8).collect();
        let mut swapped = packet.clone();
        swapped[100..104].rotate_left(2);
        assert_ne!(packet, swapped);
        assert_eq!(
            millrace_core::wire::checksum::sum16(&packet),
            millrace_core::wire::checksum::sum16(&swapped)
        );
        assert_ne!(PacketCrc::of(&packet), PacketCrc::of(&swapped));
    }
}
