//! Stripes of units at ingest: full stripes are encoded and go to their members, with a hash of each file on the way.
//!
//! A title on one member keeps its plain file; only its parity is written here.

use std::collections::VecDeque;
use std::path::Path;

use millrace_core::fec::Code;
use millrace_core::ids::TitleId;
use millrace_core::limits::{DEFAULT_PACKET_BYTES, MAX_TITLE_PACKETS};
use millrace_core::packet::PacketMeta;
use millrace_core::time::MediaTicks;
use millrace_core::wire::checksum::sum16;

use super::data::{WRITE_BYTES, create_or_overwrite, cut_off};
use crate::dirs::{Dirs, write_out};
use crate::disk::DiskFile;
use crate::error::StoreError;
use crate::format::manifest::{DATA_UNITS_FILE, PARITY_CRC_FILE, PARITY_META_FILE, PARITY_UNITS_FILE};
use crate::format::superblock::Geometry;
use crate::meta::{CrcWriter, Finished, MetaWriter, PacketCrc};
use crate::stripes::StripeLayout;

const PACKET: usize = DEFAULT_PACKET_BYTES;

/// The stripes of a title being written.
#[derive(Debug)]
pub(super) struct StripeWriter {
    /// Location of the units. The layout assumes the maximum title length, because the length of
    /// this title is not known yet.
    shape: StripeLayout,
    code: Code,
    /// The stripe that is being filled, and how much of it is.
    stripe: Vec<u8>,
    filled: usize,
    stripes: u32,
    parity: Vec<u8>,
    members: Vec<MemberWriter>,
    /// Hash and length of the title, if no file holds it whole.
    media: Option<blake3::Hasher>,
    media_bytes: u64,
    parity_meta: Option<ParityMeta>,
    parity_crcs: Option<CrcWriter>,
}

/// What one member gets.
#[derive(Debug)]
struct MemberWriter {
    data: Option<UnitsWriter>,
    parity: Option<UnitsWriter>,
}

/// Result after everything is written and durable.
pub(super) struct StripesDone {
    /// The title as a whole, if no file holds it whole.
    pub(super) media: Option<Finished>,
    /// File names and contents, per member.
    pub(super) members: Vec<Vec<(&'static str, Finished)>>,
    /// Of the parity's sums and times, which are the same for all members.
    pub(super) parity_meta: Option<Finished>,
    /// Of the parity's CRCs, likewise.
    pub(super) parity_crcs: Option<Finished>,
}

impl StripeWriter {
    /// Creates the files in a directory on each member; files that are the same for all are created
    /// in the first one only. `None` if the geometry is one plain file.
    pub(super) fn create(
        geometry: &Geometry,
        homes: &[Dirs],
        paths: &[&Path],
    ) -> Result<Option<Self>, StoreError> {
        if geometry.is_single() {
            return Ok(None);
        }
        let (k, m) = (usize::from(geometry.k), usize::from(geometry.m));
        let shape = StripeLayout::new(geometry, MAX_TITLE_PACKETS * PACKET as u64);
        let (Some(shape), Some(code)) = (shape, Code::new(k, m)) else {
            return Err(StoreError::BadVolume(format!("stripes of {k} + {m} units are not supported")));
        };
        let several = homes.len() > 1;
        let mut members = Vec::new();
        for (home, path) in homes.iter().zip(paths) {
            let units = |wanted: bool, name: &str| {
                wanted.then(|| UnitsWriter::create(home, &path.join(name))).transpose()
            };
            let (data, parity) = (units(several, DATA_UNITS_FILE)?, units(m > 0, PARITY_UNITS_FILE)?);
            members.push(MemberWriter { data, parity });
        }
        let (parity_meta, parity_crcs) = match (homes.first(), paths.first()) {
            (Some(home), Some(path)) if m > 0 => (
                Some(ParityMeta::create(home, &path.join(PARITY_META_FILE), &shape)?),
                Some(CrcWriter::create(&home.disk, &path.join(PARITY_CRC_FILE))?),
            ),
            _ => (None, None),
        };
        Ok(Some(Self {
            stripe: vec![0; k * shape.unit_bytes()],
            parity: vec![0; m * shape.unit_bytes()],
            media: several.then(blake3::Hasher::new),
            shape,
            code,
            filled: 0,
            stripes: 0,
            members,
            media_bytes: 0,
            parity_meta,
            parity_crcs,
        }))
    }

    /// Returns the bytes of media taken until now.
    pub(super) fn bytes(&self) -> u64 {
        self.media_bytes
    }

    /// Takes the next bytes of the title.
    pub(super) fn append(&mut self, mut media: &[u8]) -> Result<(), StoreError> {
        self.media_bytes += media.len() as u64;
        while !media.is_empty() {
            let (now, later) = media.split_at(media.len().min(self.stripe.len() - self.filled));
            self.stripe[self.filled..self.filled + now.len()].copy_from_slice(now);
            self.filled += now.len();
            if self.filled == self.stripe.len() {
                self.close_stripe()?;
            }
            media = later;
        }
        Ok(())
    }

    /// The media time of a default-size packet: that of a stripe's first one is the time of its parity.
    pub(super) fn push_time(&mut self, packet: u64, time: MediaTicks) {
        if let Some(meta) = &mut self.parity_meta
            && packet.is_multiple_of(u64::from(self.shape.stripe_packets()))
        {
            meta.times.push_back(time);
        }
    }

    /// Writes the parity records whose two halves have both arrived.
    pub(super) fn settle(&mut self) -> Result<(), StoreError> {
        self.parity_meta.as_mut().map_or(Ok(()), ParityMeta::settle)
    }

    /// Encodes the stripe and hands its units out. Behind the title's end it is zero.
    fn close_stripe(&mut self) -> Result<(), StoreError> {
        let (shape, unit_bytes) = (self.shape, self.shape.unit_bytes());
        if let Some(hasher) = &mut self.media {
            hasher.update(&self.stripe[..self.filled]);
        }
        self.stripe[self.filled..].fill(0);
        if shape.m() > 0 {
            let data: Vec<&[u8]> = self.stripe.chunks(unit_bytes).collect();
            let mut parity: Vec<&mut [u8]> = self.parity.chunks_mut(unit_bytes).collect();
            self.code.encode(&data, &mut parity);
        }
        let media = self.stripe[..self.filled].chunks(unit_bytes).enumerate();
        let parity = self.parity.chunks(unit_bytes).enumerate();
        for (unit, bytes) in media.chain(parity.map(|(p, bytes)| (shape.k() + p, bytes))) {
            let member = &mut self.members[shape.position_of(self.stripes, unit)];
            let file = if unit < shape.k() { &mut member.data } else { &mut member.parity };
            file.as_mut().map_or(Ok(()), |file| file.append(bytes))?;
        }
        if let Some(meta) = &mut self.parity_meta {
            meta.sums.extend(self.parity.chunks(PACKET).map(sum16));
        }
        if let Some(crcs) = &mut self.parity_crcs {
            self.parity.chunks(PACKET).try_for_each(|packet| crcs.push(PacketCrc::of(packet)))?;
        }
        self.stripes += 1;
        self.filled = 0;
        Ok(())
    }

    /// Makes the media of full stripes durable; returns how many bytes they have.
    pub(super) fn flush(&mut self) -> Result<u64, StoreError> {
        self.members.iter_mut().filter_map(|member| member.data.as_mut()).try_for_each(UnitsWriter::flush)?;
        Ok(u64::from(self.stripes) * self.shape.stripe_bytes())
    }

    /// Writes the rest and makes all of it durable.
    pub(super) fn finish(mut self, title: TitleId) -> Result<StripesDone, StoreError> {
        if self.filled > 0 {
            self.close_stripe()?;
        }
        self.settle()?;
        let mut members = Vec::new();
        for MemberWriter { data, parity } in self.members {
            let named = [(DATA_UNITS_FILE, data), (PARITY_UNITS_FILE, parity)];
            let mut done = Vec::new();
            for (name, units) in named.into_iter().filter_map(|(name, units)| Some((name, units?))) {
                done.push((name, units.finish()?));
            }
            members.push(done);
        }
        let media = self.media.map(|hasher| Finished { bytes: self.media_bytes, blake3: hasher.finalize() });
        let parity_meta = self.parity_meta.map(|meta| meta.finish(title, self.stripes)).transpose()?;
        let parity_bytes = u64::from(self.stripes) * self.parity.len() as u64;
        let crcs = self.parity_crcs.map(|crcs| crcs.finish(title, PACKET as u16, parity_bytes));
        Ok(StripesDone { media, members, parity_meta, parity_crcs: crcs.transpose()? })
    }
}

/// The sums of parity packets come with the data, their times from the ingest; whichever is first waits for the other.
#[derive(Debug)]
struct ParityMeta {
    writer: MetaWriter,
    /// Parity packets in a row.
    stripe_packets: usize,
    sums: VecDeque<u16>,
    times: VecDeque<MediaTicks>,
}

impl ParityMeta {
    fn create(home: &Dirs, path: &Path, shape: &StripeLayout) -> Result<Self, StoreError> {
        let writer = MetaWriter::create(&home.disk, path)?;
        let stripe_packets = shape.m() * shape.unit_packets() as usize;
        Ok(Self { writer, stripe_packets, sums: VecDeque::new(), times: VecDeque::new() })
    }

    fn settle(&mut self) -> Result<(), StoreError> {
        while self.sums.len() >= self.stripe_packets
            && let Some(time) = self.times.pop_front()
        {
            for sum in self.sums.drain(..self.stripe_packets) {
                self.writer.push(PacketMeta::new(sum, 0, time))?;
            }
        }
        Ok(())
    }

    fn finish(self, title: TitleId, stripes: u32) -> Result<Finished, StoreError> {
        let packets = u64::from(stripes) * self.stripe_packets as u64;
        if packets > MAX_TITLE_PACKETS {
            let what = format!("more than {MAX_TITLE_PACKETS} packets of parity");
            return Err(StoreError::BadTitle { id: title, what });
        }
        self.writer.finish(title, PACKET as u16, packets * PACKET as u64)
    }
}

/// A file of units, written in large pieces.
#[derive(Debug)]
struct UnitsWriter {
    file: DiskFile,
    buffer: Vec<u8>,
    written: u64,
    hasher: blake3::Hasher,
}

impl UnitsWriter {
    fn create(home: &Dirs, path: &Path) -> Result<Self, StoreError> {
        let file = create_or_overwrite(&home.disk, path)?;
        let buffer = Vec::with_capacity(WRITE_BYTES);
        Ok(Self { file, buffer, written: 0, hasher: blake3::Hasher::new() })
    }

    fn append(&mut self, mut bytes: &[u8]) -> Result<(), StoreError> {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(WRITE_BYTES - self.buffer.len()));
            self.buffer.extend_from_slice(now);
            if self.buffer.len() == WRITE_BYTES {
                self.write()?;
            }
            bytes = later;
        }
        Ok(())
    }

    fn write(&mut self) -> Result<(), StoreError> {
        self.hasher.update(&self.buffer);
        write_out(&mut self.file, &mut self.buffer, &mut self.written)
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        self.write()?;
        self.sync()
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.file
            .sync_all()
            .map_err(|e| StoreError::write("make durable", self.file.path(), self.written, 0, e))
    }

    fn finish(mut self) -> Result<Finished, StoreError> {
        self.write()?;
        cut_off(&self.file, self.written)?;
        self.sync()?;
        Ok(Finished { bytes: self.written, blake3: self.hasher.finalize() })
    }
}
