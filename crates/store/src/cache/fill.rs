//! From file bytes to an extent in wire layout: RTP header, payload, RTP header, payload ..., records at the end.
//!
//! Each payload byte is read from memory once: it is copied and summed in the same pass (NTT 1996, checksum on the fly), and
//! its CRC is computed while the packet is in the first-level cache. What does not have the sum and the CRC that were stored
//! at ingest never leaves this function as good.

use std::ops::Range;

use millrace_core::ids::TitleRef;
use millrace_core::limits::RTP_HEADER_BYTES;
use millrace_core::packet::PacketMeta;
use millrace_core::pool::ExtentContent;
use millrace_core::wire::checksum::copy_sum16;

use super::crcs::Crcs;
use super::handle::ReadFailure;
use super::order::{Built, Filled, LeftOut, Order, Role, SpanResult};
use super::source::{Geometry, OpenTitle};
use super::stripes::{self, Decoder};
use crate::sums::congruent;

/// What was read is not what was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Damaged;

/// What a read of a title on one member has brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Staged<'a> {
    /// Payload.
    data: &'a [u8],
    /// Blocks of records.
    meta: &'a [u8],
    /// Blocks of range sums.
    sums: &'a [u8],
    /// Blocks of CRCs, if they came.
    crcs: Option<&'a [u8]>,
}

/// Builds extents; keeps its scratch memory.
#[derive(Default)]
pub(super) struct Builder {
    metas: Vec<PacketMeta>,
    crcs: Crcs,
    decoder: Decoder,
}

impl Builder {
    /// Builds the extent of `order` from what became of its spans, one result for each.
    pub(super) fn assemble(
        &mut self,
        title: (TitleRef, &OpenTitle),
        order: &Order,
        results: &[SpanResult<'_>],
        extent: &mut [u8],
    ) -> Built {
        match title.1.source().members() {
            None => self.assemble_plain(title, order, results, extent),
            Some(files) if title.1.source().track() > 0 => {
                stripes::assemble_track((title.0, title.1, files), order, results, extent)
            }
            Some(files) => {
                let title = (title.0, title.1, files);
                let Self { metas, crcs, decoder } = self;
                stripes::assemble_media(decoder, (metas, crcs), title, order, results, extent)
            }
        }
    }

    fn assemble_plain(
        &mut self,
        title: (TitleRef, &OpenTitle),
        order: &Order,
        results: &[SpanResult<'_>],
        extent: &mut [u8],
    ) -> Built {
        let (mut staged, mut crcs_failed) = (Staged::default(), false);
        for (span, result) in order.spans.iter().zip(results) {
            match (span.role, result) {
                // Without them the sums are still there.
                (Role::Crcs, Err(_)) => crcs_failed = true,
                (_, Err(errno)) => return Built::failed(ReadFailure::Io(*errno)),
                (Role::Data { .. }, Ok(bytes)) => staged.data = bytes,
                (Role::Meta, Ok(bytes)) => staged.meta = bytes,
                (Role::Sums, Ok(bytes)) => staged.sums = bytes,
                (Role::Crcs, Ok(bytes)) => staged.crcs = Some(bytes),
                _ => {}
            }
        }
        let Some(geometry) = title.1.geometry(order.extent) else {
            return Built::failed(ReadFailure::OutOfRange);
        };
        let known = self.crcs.load(&geometry.crc_packets, staged.crcs.into_iter());
        if !known && !order.thorough && (crcs_failed || staged.crcs.is_some()) {
            return Built::More { wrong: 0 };
        }
        let sums_only = !known && title.1.source().has_crcs();
        let filled = |content| Filled { content, decoded_bytes: 0, sums_only, wrong: 0 };
        match self.build(title, &geometry, (order.extent, order.thorough), staged, extent) {
            Ok(content) => match LeftOut::of(content.first_packet, &self.metas) {
                None => Built::Done(filled(content)),
                Some(left_out) => {
                    Built::Damaged { filled: filled(content), left_out, failure: ReadFailure::Checksum }
                }
            },
            Err(Damaged) if order.thorough => Built::failed(ReadFailure::Checksum),
            Err(Damaged) => Built::More { wrong: 0 },
        }
    }

    /// Builds extent `number` of `title` in `extent` from the bytes of its files that `geometry` says; its CRCs have been
    /// loaded, if they are known. If it is read again (`thorough`), packets that do not match their checksum are marked as missing.
    ///
    /// # Errors
    /// If records, or at the first try anything, do not match their checksum; `extent` is half written then.
    fn build(
        &mut self,
        title: (TitleRef, &OpenTitle),
        geometry: &Geometry,
        (number, thorough): (u32, bool),
        staged: Staged<'_>,
        extent: &mut [u8],
    ) -> Result<ExtentContent, Damaged> {
        let (reference, title) = title;
        let layout = title.layout();
        let read = &geometry.read;
        if staged.data.len() as u64 != read.end - read.start {
            return Err(Damaged);
        }
        let within = |bytes: &Range<u64>| {
            (bytes.start - read.start) as usize..(bytes.end.min(read.end) - read.start) as usize
        };
        let data = &staged.data[within(&geometry.data)];
        let (first, count) = (geometry.first_packet, geometry.packets);
        self.metas.clear();
        self.metas.resize(count as usize, PacketMeta::default());
        let records = title.source().records(staged.meta, staged.sums, first, &mut self.metas);
        records.map_err(|_| Damaged)?;
        let timeline = title.source().timeline();
        let payloads = data.chunks(layout.packet_bytes());
        let slots = extent.chunks_mut(layout.slot_bytes());
        let (mut walk, mut at) = (self.crcs.walk(), geometry.data.start);
        let mut spare = 0;
        for (((packet, meta), payload), slot) in (first..).zip(&mut self.metas).zip(payloads).zip(slots) {
            let (header, room) = slot.split_at_mut(RTP_HEADER_BYTES);
            header.copy_from_slice(&timeline.header(packet, meta.time()).emit());
            let sum = copy_sum16(&mut room[..payload.len()], payload);
            let bytes = at..at + payload.len() as u64;
            at = bytes.end;
            if !congruent(sum, meta.sum()) || !walk.is_right(&bytes, |packet| staged.data.get(within(packet)))
            {
                if !thorough {
                    return Err(Damaged);
                }
                room[..payload.len()].fill(0);
                *meta = PacketMeta::new(0, meta.flags() | PacketMeta::MISSING, meta.time());
                spare = ExtentContent::DAMAGED;
                continue;
            }
            // Of the two zeros, a derived sum may have the wrong one.
            *meta = PacketMeta::new(sum, meta.flags(), meta.time());
        }
        let records = &mut extent[layout.meta_offset(0, count)..];
        for (record, meta) in records.chunks_exact_mut(PacketMeta::BYTES).zip(&self.metas) {
            record.copy_from_slice(&meta.to_bytes());
        }
        Ok(ExtentContent {
            title: reference,
            number,
            first_packet: first,
            packets: count,
            last_packet_bytes: geometry.last_packet_bytes,
            layout,
            spare,
        })
    }
}

#[cfg(test)]
#[path = "fill_tests.rs"]
mod tests;
