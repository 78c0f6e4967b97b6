//! Titles of a volume as the cache sees them: where the files of each member are, and the parity tracks.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use millrace_core::ids::TitleId;
use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::time::MediaTicks;
use millrace_core::wire::rtp::Timeline;

use super::member_files::{MemberFiles, TitleFile};
use super::source::{ParitySource, PlainSource, SourceKind, TitleSource, TrackId};
use crate::blocking::BlockingCalls;
use crate::dirs::Dirs;
use crate::format::manifest::{CRC_FILE, PARITY_CRC_FILE, PARITY_META_FILE, meta_file};
use crate::members::Members;
use crate::meta::{CrcFile, MetaFile};
use crate::stripes::StripeLayout;
use crate::sums::DeriveError;
use crate::volume::{ParityFiles, TitleFiles};

/// The title.
impl TitleSource for TitleFiles {
    fn kind(self: Box<Self>) -> SourceKind {
        match self.stripes {
            Some(stripes) => SourceKind::Striped(stripes, self),
            None => SourceKind::Plain(self),
        }
    }
    fn id(&self) -> TitleId {
        self.info.id
    }
    fn layout(&self) -> WireLayout {
        self.layout
    }
    fn timeline(&self) -> Timeline {
        TitleFiles::timeline(self)
    }
    fn packets(&self) -> u32 {
        TitleFiles::packets(self)
    }
    fn packet_bytes_at(&self, packet: u32) -> usize {
        TitleFiles::packet_bytes_at(self, packet)
    }
    fn media_time(&self, packet: u32) -> MediaTicks {
        self.time_by_index(packet)
    }
    fn meta_range(&self, first: u32, count: u32) -> Range<u64> {
        match &self.derived {
            Some(derived) => derived.rule.meta_range(first, count),
            None => MetaFile::block_range(first, count),
        }
    }
    fn has_crcs(&self) -> bool {
        self.has_crcs
    }
    fn sums_range(&self, first: u32, count: u32) -> Range<u64> {
        self.derived.as_ref().map_or(0..0, |derived| derived.rule.sums_range(first, count))
    }
    fn records(
        &self,
        meta: &[u8],
        sums: &[u8],
        first: u32,
        out: &mut [PacketMeta],
    ) -> Result<(), DeriveError> {
        match &self.derived {
            Some(derived) => derived.rule.derive(meta, sums, first, out),
            None => Ok(MetaFile::decode(meta, MetaFile::block_of(first), first, out)?),
        }
    }
}

impl PlainSource for TitleFiles {
    fn blocking(&self) -> BlockingCalls {
        self.members.blocking(self.home)
    }
    fn data(&self) -> &File {
        &self.data
    }
    fn data_path(&self) -> &Path {
        &self.data_path
    }
    fn meta(&self) -> &File {
        self.meta.file()
    }
    fn sums(&self) -> Option<&File> {
        self.derived.as_ref().map(|derived| derived.sums.file())
    }
    fn crcs(&self) -> Option<&File> {
        self.crcs.as_ref().map(CrcFile::file)
    }
}

/// Name of the records of default-size packets.
fn stripe_meta_file() -> String {
    meta_file(DEFAULT_PACKET_BYTES as u16)
}

/// A file in the title's directory on the member in a slot, as the volume knows it now.
fn in_slot(members: &Members, slot: Option<&u16>, id: TitleId, name: &str) -> Option<PathBuf> {
    Some(Dirs::new(&members.dir(usize::from(*slot?))).title(id).join(name))
}

fn name_of(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()
}

impl MemberFiles for TitleFiles {
    fn slot(&self, position: usize) -> u16 {
        self.slots.get(position).copied().unwrap_or(u16::MAX)
    }
    fn is_usable(&self, position: usize) -> bool {
        TitleFiles::slot(self, position).is_some_and(|slot| self.members.is_usable(slot))
    }
    fn is_present(&self, position: usize) -> bool {
        TitleFiles::slot(self, position).is_some_and(|slot| self.members.is_present(slot))
    }
    fn epoch(&self, position: usize) -> u32 {
        TitleFiles::slot(self, position).map_or(0, |slot| self.members.epoch(slot))
    }
    fn blocking(&self, position: usize) -> BlockingCalls {
        TitleFiles::slot(self, position).map(|slot| self.members.blocking(slot)).unwrap_or_default()
    }
    fn path(&self, position: usize, file: TitleFile) -> Option<PathBuf> {
        let there = |name: &str| in_slot(&self.members, self.slots.get(position), self.info.id, name);
        match file {
            TitleFile::Data => self.data_on(position),
            TitleFile::Parity => self.parity_on(position),
            TitleFile::Meta => there(name_of(self.meta.path())?),
            TitleFile::Sums => there(name_of(self.derived.as_ref()?.sums.path())?),
            TitleFile::StripeMeta => there(&stripe_meta_file()),
            TitleFile::ParityMeta => there(PARITY_META_FILE),
            TitleFile::Crcs => there(CRC_FILE).filter(|_| self.has_crcs),
            TitleFile::ParityCrcs => there(PARITY_CRC_FILE).filter(|_| self.has_crcs),
        }
    }
}

impl MemberFiles for ParityFiles {
    fn slot(&self, position: usize) -> u16 {
        self.slots.get(position).copied().unwrap_or(u16::MAX)
    }
    fn is_usable(&self, position: usize) -> bool {
        self.slots.get(position).is_some_and(|&slot| self.members.is_usable(usize::from(slot)))
    }
    fn is_present(&self, position: usize) -> bool {
        self.slots.get(position).is_some_and(|&slot| self.members.is_present(usize::from(slot)))
    }
    fn epoch(&self, position: usize) -> u32 {
        self.slots.get(position).map_or(0, |&slot| self.members.epoch(usize::from(slot)))
    }
    fn blocking(&self, position: usize) -> BlockingCalls {
        let slot = self.slots.get(position);
        slot.map(|&slot| self.members.blocking(usize::from(slot))).unwrap_or_default()
    }
    fn path(&self, position: usize, file: TitleFile) -> Option<PathBuf> {
        let there = |name: &str| in_slot(&self.members, self.slots.get(position), self.info.id, name);
        match file {
            TitleFile::Parity => self.parity_on(position),
            TitleFile::StripeMeta => there(&stripe_meta_file()),
            TitleFile::ParityMeta => there(PARITY_META_FILE),
            TitleFile::ParityCrcs => there(PARITY_CRC_FILE).filter(|_| self.has_crcs),
            TitleFile::Data | TitleFile::Meta | TitleFile::Sums | TitleFile::Crcs => None,
        }
    }
}

/// How the datagrams of a track lie in an extent: whole stripes, if they fit.
fn track_layout(stripes: &StripeLayout, parities: &Range<usize>) -> WireLayout {
    WireLayout::fec().with_row(stripes.unit_packets() * parities.len() as u32)
}

/// A parity track: its packets are ready FEC datagrams (SMPTE ST 2022-1 behind the RTP header).
impl TitleSource for ParityFiles {
    fn id(&self) -> TitleId {
        self.info.id
    }
    fn layout(&self) -> WireLayout {
        track_layout(&self.stripes, &self.parities())
    }
    /// That of the title: the datagrams' own timestamps are on it.
    fn timeline(&self) -> Timeline {
        self.info.timeline_of(DEFAULT_PACKET_BYTES)
    }
    fn packets(&self) -> u32 {
        let packets = u64::from(self.stripes.stripes())
            * u64::from(self.stripes.unit_packets())
            * self.parities().len() as u64;
        u32::try_from(packets).unwrap_or(u32::MAX)
    }
    fn packet_bytes_at(&self, packet: u32) -> usize {
        if packet < self.packets() { self.layout().packet_bytes() } else { 0 }
    }
    /// When it departs.
    fn media_time(&self, packet: u32) -> MediaTicks {
        let spread = self.stripes.spread();
        let with = spread.departs_with(spread.place(self.track, packet).slot);
        let byte = with.saturating_mul(DEFAULT_PACKET_BYTES as u64);
        self.index.time_of(byte.min(self.info.bytes))
    }
    fn track(&self) -> TrackId {
        TrackId::Parity(self.track)
    }
    fn kind(self: Box<Self>) -> SourceKind {
        SourceKind::Parity(self.stripes, self.track, self)
    }
    fn has_crcs(&self) -> bool {
        self.has_crcs
    }
}

impl ParitySource for ParityFiles {
    fn time_of_media(&self, packet: u32) -> MediaTicks {
        self.index.time_of(u64::from(packet) * DEFAULT_PACKET_BYTES as u64)
    }
    fn duration(&self) -> MediaTicks {
        self.info.duration
    }
}
