//! Writes a title: data, meta-data, index, manifest; then makes it visible at once.

use millrace_core::ids::TitleId;
use millrace_core::packet::PacketMeta;
use millrace_core::time::MediaTicks;
use millrace_core::units::BitRate;

use crate::error::StoreError;
use crate::index::TitleIndex;
use crate::volume::{ElementaryStream, SourceIdentity, TitleInfo, Volume};

/// A title being written. It owns `tmp/<id>` in the store; dropped without [`TitleWriter::commit`], that is removed.
#[derive(Debug)]
pub struct TitleWriter {
    id: TitleId,
}

/// What is only known when all of a title has been read.
#[derive(Clone, Debug)]
pub struct FinishTitle {
    /// Wished name; made URL-safe and unique.
    pub name: String,
    /// The file it was made from.
    pub source: SourceIdentity,
    /// Film time.
    pub duration: MediaTicks,
    /// Mean bit rate.
    pub mean_rate: BitRate,
    /// Highest bit rate over windows of 1 s.
    pub peak_rate: BitRate,
    /// Whether the rate is constant.
    pub constant_rate: bool,
    /// Elementary streams.
    pub streams: Vec<ElementaryStream>,
    /// The index; its time index, length and duration are filled in at commit.
    pub index: TitleIndex,
    /// What the operator should know.
    pub notes: Vec<String>,
}

impl TitleWriter {
    /// Begins a title with meta-data for `packet_sizes` (each a multiple of 188; the default size must be among them).
    pub fn begin(volume: &Volume, packet_sizes: &[u16]) -> Result<Self, StoreError> {
        let _ = (volume, packet_sizes);
        Ok(Self { id: TitleId([0; 16]) })
    }

    /// The title's identity.
    pub fn id(&self) -> TitleId {
        self.id
    }

    /// Appends whole TS packets to the data file: copied, summed and hashed in one pass while hot in cache, written in
    /// large pieces. After an error the title is lost and `tmp/<id>` removed.
    pub fn write_data(&mut self, ts: &[u8]) -> Result<(), StoreError> {
        let _ = ts;
        Ok(())
    }

    /// Appends the meta-data of the next packet of size `packet_bytes`: flags and media time. Its sum is not used: the
    /// writer puts in the sum of the bytes it has written itself, so a stored sum is always that of the stored bytes.
    /// May come before or after the packet's data.
    pub fn push_meta(&mut self, packet_bytes: u16, meta: PacketMeta) -> Result<(), StoreError> {
        let _ = (packet_bytes, meta);
        Ok(())
    }

    /// Makes the title durable, visible and catalogued under a unique name (suffix `-2`, `-3` ...).
    pub fn commit(self, finish: FinishTitle) -> Result<TitleInfo, StoreError> {
        let _ = finish;
        Err(StoreError::NoTitle { id: self.id })
    }
}
