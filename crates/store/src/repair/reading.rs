//! Reads the units of a title from all members that have any, some stripes at a time.

use std::fs::File;
use std::sync::Arc;

use millrace_core::packet::PacketMeta;
use millrace_core::time::MediaTicks;
use millrace_core::units::Count;

use super::error::RepairError;
use super::set::{TitleSet, Units};
use super::work::Work;
use crate::error::StoreError;
use crate::grid::Grid;
use crate::limits::REPAIR_BATCH_BYTES;
use crate::meta::{PacketCrc, Record, RecordsFile};

/// The stored sums of a title's packets, media and parity, and the CRCs where there are any.
pub(crate) struct StripeSums {
    meta: Sums,
    parity: Option<Sums>,
    crcs: Option<Crcs>,
    parity_crcs: Option<Crcs>,
}

/// A file of records, and the slot of the member that has it.
pub(crate) type LocatedRecords<R> = (u16, Arc<RecordsFile<R>>);
/// One of sums.
pub(crate) type Sums = LocatedRecords<PacketMeta>;
/// One of CRCs.
type Crcs = LocatedRecords<PacketCrc>;

impl StripeSums {
    /// From files whose BLAKE3 has been found right.
    pub(crate) fn new(meta: Sums, parity: Option<Sums>) -> Self {
        Self { meta, parity, crcs: None, parity_crcs: None }
    }

    /// With CRCs from files whose BLAKE3 has been found right: those of the title, and of the parity.
    pub(crate) fn with_crcs(self, crcs: Option<Crcs>, parity_crcs: Option<Crcs>) -> Self {
        Self { crcs, parity_crcs, ..self }
    }

    /// Whether there are sums of the parity, if there is parity.
    pub(crate) fn know_parity(&self, set: &TitleSet) -> bool {
        self.parity.is_some() || set.stripes.m() == 0
    }

    /// Sums of the title's packets in these stripes, and of the parity's; none if they are not known.
    pub(crate) fn read(
        &self,
        set: &TitleSet,
        stripes: &std::ops::Range<u32>,
        work: &mut Work<'_>,
    ) -> Result<(Vec<u16>, Vec<u16>), RepairError> {
        let (media, parity) = records_of(set, stripes);
        let data = sums(&self.meta, media, work)?;
        let parity = self.parity.as_ref().map(|meta| sums(meta, parity, work)).transpose()?;
        Ok((data, parity.unwrap_or_default()))
    }

    /// CRCs of the same packets; none if they are not known.
    fn read_crcs(
        &self,
        set: &TitleSet,
        stripes: &std::ops::Range<u32>,
        work: &mut Work<'_>,
    ) -> Result<(Vec<PacketCrc>, Vec<PacketCrc>), RepairError> {
        let (media, parity) = records_of(set, stripes);
        let mut of = |file: &Option<Crcs>, packets| -> Result<_, RepairError> {
            Ok(file.as_ref().map(|file| records(file, packets, work)).transpose()?.unwrap_or_default())
        };
        Ok((of(&self.crcs, media)?, of(&self.parity_crcs, parity)?))
    }
}

/// The packets of media and of parity in these stripes.
fn records_of(
    set: &TitleSet,
    stripes: &std::ops::Range<u32>,
) -> (std::ops::Range<u32>, std::ops::Range<u32>) {
    let packets = set.stripes.packets();
    let media = |stripe: u32| {
        (u64::from(stripe) * u64::from(set.stripes.stripe_packets())).min(packets.into()) as u32
    };
    // A title's parity has fewer packets than a file of metadata can have records.
    let parity = |stripe| set.stripes.parity_record(stripe, 0, 0) as u32;
    (media(stripes.start)..media(stripes.end), parity(stripes.start)..parity(stripes.end))
}

/// Media times of the first packets of these stripes.
fn times(
    set: &TitleSet,
    (slot, meta): &Sums,
    stripes: std::ops::Range<u32>,
    work: &mut Work<'_>,
) -> Result<Vec<MediaTicks>, RepairError> {
    let (meta, stripe_packets) = (Arc::clone(meta), set.stripes.stripe_packets());
    let read = work.demand(*slot, move || {
        let time = |stripe: u32| {
            let mut first = [PacketMeta::default()];
            // A title has fewer packets than fit here.
            meta.read(stripe * stripe_packets, &mut first).map(|()| first[0].time())
        };
        stripes.map(time).collect::<Result<Vec<_>, _>>()
    })?;
    Ok(read?)
}

fn sums(meta: &Sums, packets: std::ops::Range<u32>, work: &mut Work<'_>) -> Result<Vec<u16>, RepairError> {
    Ok(records(meta, packets, work)?.iter().map(|record| record.sum()).collect())
}

fn records<R: Record + Send + Sync + 'static>(
    (slot, file): &LocatedRecords<R>,
    packets: std::ops::Range<u32>,
    work: &mut Work<'_>,
) -> Result<Vec<R>, RepairError> {
    let file = Arc::clone(file);
    let read = work.demand(*slot, move || {
        let mut read = vec![R::default(); packets.len()];
        file.read(packets.start, &mut read).map(|()| read)
    })?;
    Ok(read?)
}

/// A file of units that is read for a rebuild.
struct UnitSource {
    position: usize,
    units: Units,
    slot: u16,
    file: File,
    len: u64,
    hasher: blake3::Hasher,
    trouble: Trouble,
    /// It can be used only with its BLAKE3: there are no sums of its contents.
    by_hash: bool,
}

/// The faults of a file of units.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Trouble {
    /// Packets that have another sum or CRC than the stored one, and the byte where the first begins.
    pub(crate) wrong_packets: u64,
    pub(crate) first_byte: Option<u64>,
    /// The first error of the disk.
    pub(crate) error: Option<String>,
    /// Whether the whole file could be read and has another BLAKE3 than `expected`.
    pub(crate) wrong_hash: bool,
    /// What else is wrong with it.
    pub(crate) other: Option<String>,
}

impl Trouble {
    /// For people; `None` if nothing is wrong.
    pub(crate) fn describe(&self) -> Option<String> {
        let mut parts = Vec::new();
        parts.extend(self.error.as_ref().map(|error| format!("cannot be read: {error}")));
        if let Some(byte) = self.first_byte {
            let count = Count(self.wrong_packets, "packet");
            parts.push(format!("{count} with a wrong checksum, the first at byte {byte}"));
        }
        parts.extend(self.other.clone());
        if self.wrong_hash && parts.is_empty() {
            parts.push("its BLAKE3 differs, though all checksums match".to_owned());
        }
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

/// Reads stripes.
pub(crate) struct Reading {
    sums: StripeSums,
    sources: Vec<UnitSource>,
    grid: Grid,
    buffer: Vec<u8>,
}

impl Reading {
    /// Opens what there is in the title's directories. Files that cannot be opened are left out: the code makes up for them.
    pub(crate) fn open(set: &TitleSet, sums: StripeSums, work: &mut Work<'_>) -> Result<Self, RepairError> {
        let mut sources = Vec::new();
        for position in 0..set.homes.len() {
            let Some(dir) = set.dir(position) else { continue };
            for units in [Units::Data, Units::Parity] {
                let path = dir.join(set.name(units));
                let open =
                    move || File::open(path).and_then(|file| file.metadata().map(|meta| (file, meta.len())));
                if let Ok((file, len)) = work.ask(set.slot(position), open)? {
                    let (slot, hasher) = (set.slot(position), blake3::Hasher::new());
                    let by_hash = units == Units::Parity && !sums.know_parity(set);
                    let mut trouble = Trouble::default();
                    if let Some(entry) = set.entry(position, units).filter(|_| by_hash) {
                        let path = dir.join(set.name(units));
                        trouble.other = work.wrong_with(slot, &path, entry.bytes, &entry.blake3)?;
                    }
                    sources.push(UnitSource { position, units, slot, file, len, hasher, trouble, by_hash });
                }
            }
        }
        let grid = Grid::new(set.stripes).ok_or_else(|| StoreError::BadTitle {
            id: set.id(),
            what: "its stripe layout is not supported".to_owned(),
        })?;
        Ok(Self { sums, sources, grid, buffer: Vec::new() })
    }

    /// Media times of the first packets of these stripes.
    pub(crate) fn times(
        &self,
        set: &TitleSet,
        stripes: &std::ops::Range<u32>,
        work: &mut Work<'_>,
    ) -> Result<Vec<MediaTicks>, RepairError> {
        times(set, &self.sums.meta, stripes.clone(), work)
    }

    /// Stripes that are read at a time.
    pub(crate) fn stripes_at_once(set: &TitleSet) -> u32 {
        let stripe = (set.stripes.k() + set.stripes.m()) * set.stripes.unit_bytes();
        (REPAIR_BATCH_BYTES / stripe).max(1) as u32
    }

    /// Reads stripes into the grid, which is returned.
    pub(crate) fn load(
        &mut self,
        set: &TitleSet,
        stripes: std::ops::Range<u32>,
        work: &mut Work<'_>,
    ) -> Result<&mut Grid, RepairError> {
        let (data, parity) = self.sums.read(set, &stripes, work)?;
        self.grid.begin(stripes.start, stripes.end - stripes.start, &data, &parity);
        let (data, parity) = self.sums.read_crcs(set, &stripes, work)?;
        self.grid.know_crcs(&data, &parity);
        for source in &mut self.sources {
            source.load(set, stripes.clone(), &mut self.grid, &mut self.buffer, work)?;
        }
        Ok(&mut self.grid)
    }

    /// Returns the faults of a file of units, after all stripes have been loaded. `None` if it
    /// could not be opened.
    pub(crate) fn trouble(&self, position: usize, units: Units, blake3: &str) -> Option<Trouble> {
        let source = self.sources.iter().find(|s| (s.position, s.units) == (position, units))?;
        let mut trouble = source.trouble.clone();
        trouble.wrong_hash = !source.by_hash
            && trouble.error.is_none()
            && source.hasher.finalize().to_hex().as_str() != blake3;
        Some(trouble)
    }
}

impl UnitSource {
    fn load(
        &mut self,
        set: &TitleSet,
        stripes: std::ops::Range<u32>,
        grid: &mut Grid,
        buffer: &mut Vec<u8>,
        work: &mut Work<'_>,
    ) -> Result<(), RepairError> {
        if self.by_hash && self.trouble.other.is_some() {
            return Ok(());
        }
        let range = set.range(self.position, self.units, stripes.clone());
        buffer.clear();
        buffer.resize(range.end.min(self.len).saturating_sub(range.start) as usize, 0);
        if buffer.len() as u64 != range.end - range.start {
            self.trouble.error.get_or_insert_with(|| format!("is only {} bytes long", self.len));
        }
        let whole = work.read(self.slot, &self.file, buffer, range.start)?;
        let step = if whole.is_ok() { buffer.len().max(1) } else { set.stripes.unit_bytes() };
        let mut bad = Vec::new();
        if let Err(error) = whole {
            self.trouble.error.get_or_insert_with(|| error.to_string());
            // Unit by unit: a sector that cannot be read must cost no more than it holds.
            for (piece, at) in buffer.chunks_mut(step).zip((range.start..).step_by(step)) {
                if work.read(self.slot, &self.file, piece, at)?.is_err() {
                    bad.push(at);
                }
            }
        } else {
            self.hasher.update(buffer);
        }
        let mut at = range.start;
        for stripe in stripes {
            for unit in set.units_in(self.position, stripe, self.units) {
                let start = (at - range.start) as usize;
                let end = (start + set.stored_bytes(stripe, unit)).min(buffer.len());
                if start < end && !bad.contains(&at) {
                    let wrong = grid.put(stripe, unit, &buffer[start..end]);
                    if let Some(first) = wrong.first() {
                        self.trouble.wrong_packets += wrong.len() as u64;
                        let packet = *first as u64 * millrace_core::limits::DEFAULT_PACKET_BYTES as u64;
                        self.trouble.first_byte.get_or_insert(at + packet);
                    }
                }
                at += set.stored_bytes(stripe, unit) as u64;
            }
        }
        Ok(())
    }
}
