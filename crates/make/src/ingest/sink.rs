//! The destination of the indexer's output.

use millrace_core::packet::PacketMeta;

use millrace_store::StoreError;
use millrace_store::volume::TitleWriter;

/// Takes the title's bytes and its packets' metadata. Both come in order; metadata comes after its packet's bytes.
pub trait IndexSink {
    /// Whether [`IndexSink::meta`] must carry sums; without, they are 0 and cost nothing.
    const SUMS: bool;

    /// Whole TS packets.
    fn data(&mut self, ts: &[u8]) -> Result<(), StoreError>;

    /// Metadata of the next packet of this size.
    fn meta(&mut self, packet_bytes: u16, meta: PacketMeta) -> Result<(), StoreError>;
}

impl IndexSink for TitleWriter {
    /// The writer sums the data it writes.
    const SUMS: bool = false;

    fn data(&mut self, ts: &[u8]) -> Result<(), StoreError> {
        self.write_data(ts)
    }

    fn meta(&mut self, packet_bytes: u16, meta: PacketMeta) -> Result<(), StoreError> {
        self.push_meta(packet_bytes, meta)
    }
}

/// Keeps nothing: to measure the indexer, or to look at a file.
#[derive(Clone, Copy, Debug, Default)]
pub struct NullSink;

impl IndexSink for NullSink {
    const SUMS: bool = true;

    fn data(&mut self, _ts: &[u8]) -> Result<(), StoreError> {
        Ok(())
    }

    fn meta(&mut self, _packet_bytes: u16, _meta: PacketMeta) -> Result<(), StoreError> {
        Ok(())
    }
}
