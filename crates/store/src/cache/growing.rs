//! Titles that are read from their files while these grow: recordings. A viewer at their end waits, as with a live title; the
//! rest is read as of any title, from the beginning on.
//!
//! Neither parity nor CRCs are used: they are there when the title is complete. The sums of the packets are.

use std::ops::Range;
use std::sync::Arc;

use millrace_core::ids::TitleId;
use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::time::MediaTicks;
use millrace_core::wire::rtp::Timeline;

use super::builder::Builder;
use super::handle::ReadFailure;
use super::order::{Built, ExtentQuery, Order, Role, SpanFile, SpanOrder};
use super::source::{OpenTitle, OrderResults, OwnKind, SourceKind, TitleKind, TitleSource, TrackId};
use crate::sums::DeriveError;
use crate::volume::GrowingMedia;
use crate::volume::growing::Growth;

/// A recording, for the cache.
pub struct GrowingTitle(pub Arc<GrowingMedia>);

impl TitleSource for GrowingTitle {
    fn id(&self) -> TitleId {
        self.0.id()
    }
    fn layout(&self) -> WireLayout {
        self.0.layout()
    }
    fn timeline(&self) -> Timeline {
        self.0.timeline()
    }
    fn packets(&self) -> u32 {
        self.0.packets()
    }
    /// Live titles have whole packets only, and so do their recordings.
    fn packet_bytes_at(&self, _packet: u32) -> usize {
        DEFAULT_PACKET_BYTES
    }
    fn media_time(&self, packet: u32) -> MediaTicks {
        self.0.time_near(packet)
    }
    fn track(&self) -> TrackId {
        TrackId::Growing
    }
    fn kind(self: Box<Self>) -> SourceKind {
        SourceKind::Own(OwnKind::new(self))
    }
    fn meta_range(&self, first: u32, count: u32) -> Range<u64> {
        self.0.meta_range(first, count)
    }
    fn records(
        &self,
        meta: &[u8],
        _sums: &[u8],
        first: u32,
        out: &mut [PacketMeta],
    ) -> Result<(), DeriveError> {
        Ok(self.0.records(meta, first, out)?)
    }
}

impl TitleKind for GrowingTitle {
    fn source(&self) -> &dyn TitleSource {
        self
    }

    fn growth(&self) -> Option<&Growth> {
        Some(&self.0.growth)
    }

    fn order(&self, title: &OpenTitle, query: ExtentQuery) -> Result<Order, ReadFailure> {
        let ExtentQuery { extent, spare, thorough, .. } = query;
        let geometry = title.geometry(extent).ok_or(ReadFailure::OutOfRange)?;
        // A disk that hangs makes beginning to read wait.
        let span = |role, file: &Arc<_>, bytes| SpanOrder {
            role,
            member: None,
            file: SpanFile::own(Arc::clone(file), true),
            direct: false,
            bytes,
            joined: false,
        };
        let units = &self.0.units;
        let data = units.pieces(geometry.read).map(|(position, bytes)| {
            span(Role::Data { position: position as u16 }, units.file(position), bytes)
        });
        let meta = (!geometry.meta.is_empty()).then(|| span(Role::Meta, &self.0.meta, geometry.meta));
        Ok(Order { thorough, spans: data.chain(meta).collect(), ..Order::empty(extent, spare) })
    }

    fn assemble(&self, builder: &mut Builder, read: OrderResults<'_>, extent: &mut [u8]) -> Built {
        let OrderResults { reference, title, order, spans } = read;
        let Some(geometry) = title.geometry(order.extent) else {
            return Built::failed(ReadFailure::OutOfRange);
        };
        let units = || order.spans.iter().zip(spans).filter(|(span, _)| span.role.is_units());
        let Some((first, _)) = units().next() else { return Built::failed(ReadFailure::OutOfRange) };
        if let Some(errno) = units().find_map(|(_, result)| result.err()) {
            return Built::failed(ReadFailure::Io(errno));
        }
        // As if it had been read in one piece.
        let data: Vec<u8> = units().flat_map(|(_, result)| result.unwrap_or(&[])).copied().collect();
        let whole = SpanOrder { bytes: geometry.read, ..first.clone() };
        let others = || order.spans.iter().zip(spans).filter(|(span, _)| !span.role.is_units());
        let spans: Vec<_> =
            std::iter::once(Ok(&data[..])).chain(others().map(|(_, result)| *result)).collect();
        let orders = std::iter::once(whole).chain(others().map(|(span, _)| span.clone())).collect();
        let order = Order { spans: orders, ..order.clone() };
        builder.assemble_plain(OrderResults { reference, title, order: &order, spans: &spans }, extent)
    }
}
