//! The parent's bytes, verified: wrong data on a disk never gets into a title with sums of its own.

use millrace_core::ids::TitleId;
use millrace_core::limits::{DEFAULT_PACKET_BYTES, TS_PACKET_BYTES};
use millrace_core::packet::PacketMeta;
use millrace_core::wire::checksum;
use millrace_media::ts_packet::{PesStart, TsPacket};
use millrace_store::StoreError;
use millrace_store::meta::PacketCrc;
use millrace_store::volume::{MediaReader, TitleFiles, Volume};

use super::pictures::{FoundPicture, Stamps};
use crate::limits::trick::TRICK_READ_PACKETS;

const PACKET: u64 = DEFAULT_PACKET_BYTES as u64;

/// A title's data, read in whole packets of the default size.
#[derive(Debug)]
pub(super) struct PacketSource {
    reader: MediaReader,
    /// Number of the first packet in `held`.
    first: u64,
    held: Vec<u8>,
}

impl PacketSource {
    pub(super) fn open(volume: &Volume, id: TitleId) -> Result<Self, StoreError> {
        Ok(Self { reader: MediaReader::open(volume, id)?, first: 0, held: Vec::new() })
    }

    pub(super) fn files(&self) -> &TitleFiles {
        self.reader.files()
    }

    /// Returns the data from `byte` on, at most as much as is read at a time; empty at the end.
    ///
    /// # Errors
    /// If it cannot be read, or is not as ingested and cannot be restored.
    pub(super) fn at(&mut self, byte: u64) -> Result<&[u8], StoreError> {
        let start = self.first * PACKET;
        if !(start..start + self.held.len() as u64).contains(&byte) {
            self.load(byte / PACKET)?;
        }
        let from = byte.saturating_sub(self.first * PACKET) as usize;
        Ok(self.held.get(from..).unwrap_or(&[]))
    }

    fn load(&mut self, first: u64) -> Result<(), StoreError> {
        let total = self.files().info.bytes;
        let bytes = total.saturating_sub(first * PACKET).min(TRICK_READ_PACKETS * PACKET);
        self.held.resize(bytes as usize, 0);
        self.first = first;
        let result = self.reader.read_exact(first * PACKET, &mut self.held);
        let result = result.and_then(|()| self.verify());
        if result.is_err() {
            self.held.clear();
        }
        result
    }

    /// Compares with the stored CRCs, or with the sums of titles that have none. In stripes the reader has done so.
    fn verify(&self) -> Result<(), StoreError> {
        let files = self.files();
        if files.stripes.is_some_and(|stripes| stripes.members() > 1) || self.held.is_empty() {
            return Ok(());
        }
        let packets = self.held.chunks(DEFAULT_PACKET_BYTES);
        let count = packets.len();
        let mut crcs = vec![PacketCrc::default(); count];
        let wrong = match &files.crcs {
            Some(file) => {
                file.read(self.first as u32, &mut crcs)?;
                packets.zip(crcs).position(|(packet, crc)| PacketCrc::of(packet) != crc)
            }
            None => {
                let mut metas = vec![PacketMeta::default(); count];
                files.read_metas(self.first as u32, &mut metas)?;
                packets.zip(metas).position(|(packet, meta)| checksum::sum16(packet) != meta.sum())
            }
        };
        let Some(wrong) = wrong else { return Ok(()) };
        let what =
            format!("packet {} is not what was ingested; run millrace scrub", self.first + wrong as u64);
        Err(StoreError::Damaged { path: files.data_path.clone(), what })
    }

    /// The bytes of a picture's elementary stream.
    ///
    /// # Errors
    /// As [`PacketSource::at`].
    pub(super) fn picture(&mut self, found: &FoundPicture, out: &mut Vec<u8>) -> Result<(), StoreError> {
        out.clear();
        let (mut byte, mut skip, mut last) = (found.place.packet, usize::from(found.place.skip), None);
        let length = found.bytes as usize;
        while out.len() < length {
            let held = self.at(byte)?;
            let (packets, _) = held.as_chunks::<TS_PACKET_BYTES>();
            if packets.is_empty() {
                let path = self.files().data_path.clone();
                return Err(StoreError::Damaged { path, what: "ends within a picture".to_owned() });
            }
            for packet in packets {
                if out.len() == length {
                    break;
                }
                let packet = TsPacket(packet);
                if packet.pid() != found.place.pid || is_repeated(packet, &mut last) {
                    continue;
                }
                let (payload, _) = stream_of(packet);
                let payload = payload.get(std::mem::take(&mut skip)..).unwrap_or(&[]);
                out.extend_from_slice(&payload[..payload.len().min(length - out.len())]);
            }
            byte += packets.len() as u64 * TS_PACKET_BYTES as u64;
        }
        Ok(())
    }
}

/// Whether a packet is the one before once more (ISO/IEC 13818-1 section 2.4.3.3), which is left out.
pub(super) fn is_repeated(packet: TsPacket<'_>, last: &mut Option<u8>) -> bool {
    packet.has_payload() && last.replace(packet.continuity()) == Some(packet.continuity())
}

/// What of a packet belongs to the elementary stream, and the stamps of a PES packet that begins in it.
pub(super) fn stream_of(packet: TsPacket<'_>) -> (&[u8], Option<Stamps>) {
    if packet.has_error() || packet.is_scrambled() {
        return (&[], None);
    }
    if !packet.starts_unit() {
        return (packet.payload(), None);
    }
    let Some(start) = PesStart::parse(packet.payload()) else { return (&[], None) };
    let stamps = start.presentation_stamp.zip(start.decode_stamp).map(|(pts, dts)| Stamps { pts, dts });
    (start.payload, stamps)
}
