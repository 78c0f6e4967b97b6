//! Files of sums that no member has any more: recomputed from media and parity. They are taken only if they have the BLAKE3
//! that the manifest promises, so they are those of the ingest, whatever they were computed from.

use std::path::Path;

use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_core::packet::PacketMeta;
use millrace_core::time::MediaTicks;
use millrace_core::wire::checksum::sum16;

use super::error::RepairError;
use super::reading::{Reading, StripeSums};
use super::set::TitleSet;
use super::shared::{Made, Target};
use super::work::Work;
use crate::disk::Disk;
use crate::error::StoreError;
use crate::format::manifest::{CRC_FILE, PARITY_CRC_FILE, PARITY_META_FILE, SUMS_FILE};
use crate::grid::Grid;
use crate::meta::{CrcWriter, Finished, MetaWriter, PacketCrc};
use crate::sums::{GRAIN_BYTES, SumsWriter};

/// Whether a file follows from media and parity.
pub(crate) fn follows(name: &str) -> bool {
    matches!(name, SUMS_FILE | PARITY_META_FILE | CRC_FILE | PARITY_CRC_FILE)
}

/// Makes the file, durable; otherwise leaves nothing there.
pub(crate) fn make(
    set: &TitleSet,
    Target { entry, disk, path }: Target<'_>,
    sums: StripeSums,
    work: &mut Work<'_>,
) -> Result<Made, RepairError> {
    let mut out = RecordsOutput::create(&entry.name, disk, path)?;
    let made = fill(set, &mut out, sums, work);
    let finished = match made {
        Ok(None) => {
            work.writes(entry.bytes)?;
            let done = out.finish(set)?;
            match done.bytes == entry.bytes && done.blake3.to_hex().as_str() == entry.blake3 {
                true => return Ok(Ok(())),
                false => Ok(Err(format!("{} recomputed has another BLAKE3 than the manifest", entry.name))),
            }
        }
        Ok(Some(stripe)) => {
            Ok(Err(format!("stripe {stripe} of the title, of which {} follows, is lost", entry.name)))
        }
        Err(error) => Err(error),
    };
    disk.remove_file(path).map_err(StoreError::io("remove", path))?;
    finished
}

/// One pass over all stripes; returns the first that cannot be restored.
fn fill(
    set: &TitleSet,
    out: &mut RecordsOutput,
    sums: StripeSums,
    work: &mut Work<'_>,
) -> Result<Option<u32>, RepairError> {
    let mut reading = Reading::open(set, sums, work)?;
    let mut next = 0;
    while next < set.stripes.stripes() {
        let stripes = next..set.stripes.stripes().min(next.saturating_add(Reading::stripes_at_once(set)));
        next = stripes.end;
        let times = reading.times(set, &stripes, work)?;
        let grid = reading.load(set, stripes.clone(), work)?;
        grid.solve(None);
        for (stripe, time) in stripes.zip(times) {
            if !out.take(set, grid, stripe, time)? {
                return Ok(Some(stripe));
            }
        }
    }
    Ok(None)
}

/// Writer of the file of sums or CRCs that is being rebuilt.
enum RecordsOutput {
    Sums(SumsWriter),
    ParityMeta(MetaWriter),
    Crcs(CrcWriter),
    ParityCrcs(CrcWriter),
}

impl RecordsOutput {
    fn create(name: &str, disk: &Disk, to: &Path) -> Result<Self, StoreError> {
        Ok(match name {
            SUMS_FILE => Self::Sums(SumsWriter::create(disk, to, GRAIN_BYTES)?),
            CRC_FILE => Self::Crcs(CrcWriter::create(disk, to)?),
            PARITY_CRC_FILE => Self::ParityCrcs(CrcWriter::create(disk, to)?),
            _ => Self::ParityMeta(MetaWriter::create(disk, to)?),
        })
    }

    /// Takes its part of a stripe; `false` if the part is not in the grid. `time` is the time of
    /// the stripe's first packet.
    fn take(
        &mut self,
        set: &TitleSet,
        grid: &Grid,
        stripe: u32,
        time: MediaTicks,
    ) -> Result<bool, StoreError> {
        let (k, m) = (set.stripes.k(), set.stripes.m());
        let units = match self {
            Self::Sums(_) | Self::Crcs(_) => 0..k,
            Self::ParityMeta(_) | Self::ParityCrcs(_) => k..k + m,
        };
        for unit in units {
            if !grid.is_whole(stripe, unit) {
                return Ok(false);
            }
            let bytes = &grid.unit(stripe, unit)[..set.stored_bytes(stripe, unit)];
            match self {
                Self::Sums(sums) => {
                    bytes.chunks(usize::from(GRAIN_BYTES)).try_for_each(|grain| sums.push(sum16(grain)))?;
                }
                Self::ParityMeta(meta) => {
                    let record = |packet: &[u8]| PacketMeta::new(sum16(packet), 0, time);
                    bytes.chunks(DEFAULT_PACKET_BYTES).try_for_each(|packet| meta.push(record(packet)))?;
                }
                Self::Crcs(crcs) | Self::ParityCrcs(crcs) => {
                    let mut packets = bytes.chunks(DEFAULT_PACKET_BYTES);
                    packets.try_for_each(|packet| crcs.push(PacketCrc::of(packet)))?;
                }
            }
        }
        Ok(true)
    }

    fn finish(self, set: &TitleSet) -> Result<Finished, StoreError> {
        let (id, size) = (set.id(), DEFAULT_PACKET_BYTES as u16);
        let (media, parity) = (set.stripes.media_bytes(), set.stripes.parity_packets() * u64::from(size));
        match self {
            Self::Sums(sums) => sums.finish(id, media),
            Self::ParityMeta(meta) => meta.finish(id, size, parity),
            Self::Crcs(crcs) => crcs.finish(id, size, media),
            Self::ParityCrcs(crcs) => crcs.finish(id, size, parity),
        }
    }
}
