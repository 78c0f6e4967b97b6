//! A title cut into the segments of a plan. Segments are equally long in time, not in bytes: a channel has the title's own rate, and
//! each packet of a segment is sent at the distance from its slot's beginning at which it is played.

use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_core::packet::PacketMeta;
use millrace_core::time::MediaTicks;
use millrace_nvod::{Plan, PlanError, PlanRequest, Scheme};
use millrace_store::StoreError;
use millrace_store::volume::{MediaReader, TitleInfo, Volume};

use crate::limits::cast::NVOD_SCAN_PACKETS;

/// Why a title cannot be sent so.
#[derive(Debug, thiserror::Error)]
pub enum SegmentTitleError {
    /// Its length does not fit the scheme.
    #[error("near video on demand: {0}")]
    Plan(#[from] PlanError),
    /// It cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// See the module's text.
#[derive(Clone, Debug)]
pub struct SegmentedTitle {
    /// The title.
    pub info: TitleInfo,
    /// Its plan.
    pub plan: Plan,
    /// The first packet of each segment, and the number of all packets.
    starts: Vec<u32>,
}

/// The length of a title for a plan: each packet is before its end.
fn film_ns(info: &TitleInfo, last: MediaTicks) -> u64 {
    info.duration.to_ns().max(last.to_ns() + 1)
}

impl SegmentedTitle {
    /// Reads the times of all packets.
    ///
    /// # Errors
    /// [`SegmentTitleError`].
    pub fn new(
        volume: &Volume,
        info: TitleInfo,
        scheme: Scheme,
        channels: u8,
    ) -> Result<Self, SegmentTitleError> {
        let files = volume.open_title(info.id, DEFAULT_PACKET_BYTES)?;
        let packets = files.packets();
        let mut last = [PacketMeta::default()];
        files.read_metas(packets.saturating_sub(1), &mut last)?;
        let film_ns = film_ns(&info, last[0].time());
        let plan = Plan::new(PlanRequest { scheme, channels, film_ns })?;
        let mut starts = vec![0];
        let mut metas = vec![PacketMeta::default(); NVOD_SCAN_PACKETS];
        for first in (0..packets).step_by(NVOD_SCAN_PACKETS) {
            let count = (packets - first).min(NVOD_SCAN_PACKETS as u32) as usize;
            files.read_metas(first, &mut metas[..count])?;
            for (number, meta) in (first..).zip(&metas[..count]) {
                let segment = (meta.time().to_ns() / plan.slot_ns()).min(u64::from(plan.segments()) - 1);
                // Media time never runs back.
                starts.resize(starts.len().max(segment as usize + 1), number);
            }
        }
        starts.resize(plan.segments() as usize + 1, packets);
        Ok(Self { info, plan, starts })
    }

    /// The packets of a segment.
    pub fn packets_of(&self, segment: u32) -> std::ops::Range<u32> {
        self.starts[segment as usize]..self.starts[segment as usize + 1]
    }

    /// All packets.
    pub fn packets(&self) -> u32 {
        self.starts[self.plan.segments() as usize]
    }

    /// Packets of the largest segment.
    pub fn largest_segment(&self) -> u32 {
        self.starts.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
    }

    /// Opens its media.
    ///
    /// # Errors
    /// As [`MediaReader::open`].
    pub fn open(&self, volume: &Volume) -> Result<MediaReader, StoreError> {
        MediaReader::open(volume, self.info.id)
    }
}
