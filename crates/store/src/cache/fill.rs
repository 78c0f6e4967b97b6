//! From file bytes to an extent in wire layout: RTP header, payload, RTP header, payload ..., records at the end.
//!
//! Each payload byte is read from memory once: it is copied and summed in the same pass (NTT 1996, checksum on the fly), and
//! its CRC is computed while the packet is in the first-level cache. What does not have the sum and the CRC that were stored
//! at ingest never leaves this function as good. A packet whose record is damaged is good if its CRC proves it: the sum follows from
//! the bytes, the time from the index. What could not be read does not count as zeros, whatever their sum is.

use std::ops::Range;

use millrace_core::ids::TitleRef;
use millrace_core::packet::PacketMeta;
use millrace_core::pool::ExtentContent;
use millrace_core::time::MediaTicks;
use millrace_core::wire::checksum::copy_sum16;
use millrace_core::wire::rtp::Timeline;

use super::builder::{Builder, Joined};
use super::decode::records::make_up;
use super::handle::ReadFailure;
use super::order::{Built, Filled, LeftOut, Order, Role, SpanResult};
use super::source::{Geometry, OpenTitle, OrderResults, TitleSource};
use crate::member_set::MemberSet;
use crate::sums::congruent;

/// The data read differs from the data stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Damaged;

/// The result of reading a title on one member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Staged<'a> {
    /// Payload.
    data: &'a [u8],
    /// Of that, ranges of the data file that have not come.
    missing: &'a [Range<u64>],
    /// Blocks of records.
    meta: &'a [u8],
    /// Blocks of range sums.
    sums: &'a [u8],
    /// Blocks of CRCs, if they came.
    crcs: Option<&'a [u8]>,
}

impl Staged<'_> {
    /// Whether these bytes of the data file came.
    fn has(&self, bytes: &Range<u64>) -> bool {
        self.missing.iter().all(|missing| missing.end <= bytes.start || bytes.end <= missing.start)
    }
}

impl Joined {
    /// Returns the data of an order of a title without members, which is `read` of its file: as it
    /// came, if it was ordered as a whole, else joined. Also returns the `errno` of any data that
    /// has not come.
    fn of<'a>(
        &'a mut self,
        order: &Order,
        results: &[SpanResult<'a>],
        read: &Range<u64>,
    ) -> (Staged<'a>, Option<i32>) {
        let came = || order.spans.iter().zip(results).filter(|(span, _)| span.role.is_units());
        let mut whole = came();
        if let (Some((_, Ok(data))), None) = (whole.next(), whole.next()) {
            return (Staged { data, ..Staged::default() }, None);
        }
        self.bytes.clear();
        self.bytes.resize((read.end - read.start) as usize, 0);
        self.missing.clear();
        let mut error = None;
        for (span, result) in came() {
            let bytes = result.unwrap_or(&[]);
            let at = (span.bytes.start - read.start) as usize;
            self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
            let end = span.bytes.start + bytes.len() as u64;
            if end < span.bytes.end {
                self.missing.push(end..span.bytes.end);
            }
            // A read that was given up reveals less than the reason of a failure.
            error = result.err().filter(|_| error.is_none_or(|known| known == libc::ETIMEDOUT)).or(error);
        }
        (Staged { data: &self.bytes, missing: &self.missing, ..Staged::default() }, error)
    }
}

/// Writes a packet's RTP header into the bytes before its payload, unless its layout is a raw one, which has none there.
pub(super) fn write_header(room: &mut [u8], timeline: &Timeline, packet: u32, time: MediaTicks) {
    if !room.is_empty() {
        room.copy_from_slice(&timeline.header(packet, time).emit());
    }
}

impl Builder {
    /// Builds the extent of an order from the results of its spans.
    pub(super) fn assemble(&mut self, read: OrderResults<'_>, extent: &mut [u8]) -> Built {
        read.title.kind().assemble(self, read, extent)
    }

    /// The same of a title without members.
    pub(super) fn assemble_plain(&mut self, read: OrderResults<'_>, extent: &mut [u8]) -> Built {
        let OrderResults { title, order, spans, .. } = read;
        let Some(geometry) = title.geometry(order.extent) else {
            return Built::failed(ReadFailure::OutOfRange);
        };
        let mut joined = std::mem::take(&mut self.joined);
        let built = match joined.of(order, spans, &geometry.read) {
            // The next attempt reads it in blocks.
            (_, Some(errno)) if !order.in_blocks || !title.source().has_sums() => {
                Built::failed(ReadFailure::Io(errno))
            }
            staged => self.assemble_staged(read, &geometry, staged, extent),
        };
        self.joined = joined;
        built
    }

    /// The same from the data that came; `errno` is the reason why it is incomplete.
    fn assemble_staged<'a>(
        &mut self,
        OrderResults { reference, title, order, spans }: OrderResults<'a>,
        geometry: &Geometry,
        (mut staged, errno): (Staged<'a>, Option<i32>),
        extent: &mut [u8],
    ) -> Built {
        let mut thorough = order.thorough;
        for (span, result) in order.spans.iter().zip(spans) {
            match (span.role, result) {
                // Without them there are still the CRCs; another read of them would wait for the
                // same error.
                (Role::Meta | Role::Sums, Err(_)) => thorough = true,
                (Role::Meta, Ok(bytes)) => staged.meta = bytes,
                (Role::Sums, Ok(bytes)) => staged.sums = bytes,
                (Role::Crcs, Ok(bytes)) => staged.crcs = Some(bytes),
                // Without CRCs the sums are still there.
                _ => {}
            }
        }
        let known = self.crcs.load(&geometry.crc_packets, staged.crcs.into_iter());
        if !known && !order.thorough && staged.crcs.is_some() {
            return Built::More { wrong: MemberSet::EMPTY };
        }
        let sums_only = !known && title.source().has_crcs();
        let built = self.build((reference, title), geometry, (order.extent, thorough), staged, extent);
        let unrecorded =
            LeftOut::among(geometry.first_packet, self.recorded.iter().map(|recorded| !recorded));
        let wrong = MemberSet::EMPTY;
        let filled = |content| Filled { content, decoded_bytes: 0, sums_only, unrecorded, wrong };
        match built {
            Ok(content) => match LeftOut::of(content.first_packet, &self.metas) {
                None => Built::Done(filled(content)),
                Some(left_out) => {
                    let failure = errno.map_or(ReadFailure::Checksum, ReadFailure::Io);
                    Built::Damaged { filled: filled(content), left_out, failure }
                }
            },
            Err(Damaged) if order.thorough => Built::failed(ReadFailure::Checksum),
            Err(Damaged) => Built::More { wrong: MemberSet::EMPTY },
        }
    }

    /// Builds extent `number` of `title` in `extent` from the bytes of its files that `geometry`
    /// gives; its CRCs have been loaded, if they are known. If it is read again (`thorough`),
    /// packets that do not match their checksum, or have none, are marked as missing.
    ///
    /// # Errors
    /// If at the first try anything does not match its checksum, or there are too few bytes; `extent` is half written then.
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
        self.read_records(title, geometry, staged, thorough)?;
        let (timeline, has_sums) = (title.source().timeline(), title.source().has_sums());
        let payloads = data.chunks(layout.packet_bytes());
        let slots = extent.chunks_mut(layout.slot_bytes());
        let (mut walk, mut at) = (self.crcs.walk(), geometry.data.start);
        let (mut recorded, has_crcs) = (self.recorded.iter(), self.crcs.are_known());
        let mut spare = 0;
        for (((packet, meta), payload), slot) in (first..).zip(&mut self.metas).zip(payloads).zip(slots) {
            let (header, room) = slot.split_at_mut(layout.header_bytes());
            write_header(header, &timeline, packet, meta.time());
            let sum = copy_sum16(&mut room[..payload.len()], payload);
            let bytes = at..at + payload.len() as u64;
            at = bytes.end;
            let has_record = recorded.next().is_none_or(|recorded| *recorded);
            let has_sum = match has_record {
                true => !has_sums || congruent(sum, meta.sum()),
                false => has_crcs,
            };
            let came = |bytes: &Range<u64>| staged.data.get(within(bytes)).filter(|_| staged.has(bytes));
            if !has_sum || !staged.has(&bytes) || !walk.is_right(&bytes, came) {
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

    /// The records of an extent's packets. If it is read again (`thorough`), those that are damaged are made up: without a sum, with the
    /// time that the index gives.
    ///
    /// # Errors
    /// If one is damaged at the first try.
    fn read_records(
        &mut self,
        title: &OpenTitle,
        geometry: &Geometry,
        staged: Staged<'_>,
        thorough: bool,
    ) -> Result<(), Damaged> {
        let (source, first, count) = (title.source(), geometry.first_packet, geometry.packets as usize);
        let Self { metas, recorded, .. } = self;
        recorded.clear();
        metas.clear();
        metas.resize(count, PacketMeta::default());
        if source.records(staged.meta, staged.sums, first, metas).is_ok() {
            return Ok(());
        }
        if !thorough {
            return Err(Damaged);
        }
        read_each(source, geometry, (staged.meta, staged.sums), metas, recorded);
        Ok(())
    }
}

/// The record of each packet of an extent that can be read from these bytes of the files; the others are made up. `recorded`: which
/// those are.
pub(super) fn read_each(
    source: &dyn TitleSource,
    geometry: &Geometry,
    (meta, sums): (&[u8], &[u8]),
    metas: &mut [PacketMeta],
    recorded: &mut Vec<bool>,
) {
    let first = geometry.first_packet;
    recorded.clear();
    for (packet, record) in (first..).zip(&mut *metas) {
        let meta = part(meta, geometry.meta.start, &source.meta_range(packet, 1));
        let sums = part(sums, geometry.sums.start, &source.sums_range(packet, 1));
        recorded.push(source.records(meta, sums, packet, std::slice::from_mut(record)).is_ok());
    }
    make_up(|packet| source.media_time(packet), first, metas, recorded);
}

/// Returns these bytes of a file; only the bytes from `start` on came.
fn part<'a>(came: &'a [u8], start: u64, bytes: &Range<u64>) -> &'a [u8] {
    let within = |at: u64| at.saturating_sub(start) as usize;
    came.get(within(bytes.start)..within(bytes.end)).unwrap_or(&[])
}

#[cfg(test)]
#[path = "fill_tests.rs"]
mod tests;
