//! An extent of media from the results of its members' spans: copied and summed, with holes marked
//! or decoded beforehand.

use std::ops::Range;

use millrace_core::ids::TitleRef;
use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_core::packet::PacketMeta;
use millrace_core::pool::ExtentContent;
use millrace_core::wire::checksum::{add, copy_sum16};

use super::spare::demanded;
use crate::cache::builder::Builder;
use crate::cache::crcs::{Crcs, Walk};
use crate::cache::decode::decoder::Decoded;
use crate::cache::decode::records::best_blocks;
use crate::cache::decode::results::Results;
use crate::cache::fill::{read_each, write_header};
use crate::cache::handle::ReadFailure;
use crate::cache::member_files::MemberFiles;
use crate::cache::order::{Built, Filled, LeftOut, Order, Role};
use crate::cache::source::{Geometry, OpenTitle, OrderResults};
use crate::member_set::{MemberSet, PositionSet};
use crate::meta::MetaBlocks;
use crate::stripes::StripeLayout;
use crate::sums::{SumsBlocks, congruent};

/// Media, as pieces that follow each other at borders of units; a piece that has not come is shorter or empty.
struct MediaPieces<'a> {
    /// First byte of the first piece.
    start: u64,
    /// End of the last piece.
    end: u64,
    unit_bytes: u64,
    pieces: Vec<&'a [u8]>,
}

impl<'a> MediaPieces<'a> {
    /// Copies what begins at byte `from` of the title; its sum, or `None` if some of it has not come. Packets and units have even
    /// lengths, so only the last piece of a title may be odd.
    fn copy(&self, to: &mut [u8], from: u64) -> Option<u16> {
        let (mut sum, mut done) = (0, 0);
        while done < to.len() {
            let at = from + done as u64;
            let unit = at / self.unit_bytes;
            let unit_start = (unit * self.unit_bytes).max(self.start);
            let piece = self.pieces.get((unit - self.start / self.unit_bytes) as usize)?;
            let length = (to.len() - done).min(((unit + 1) * self.unit_bytes - at) as usize);
            let skip = (at - unit_start) as usize;
            let bytes = piece.get(skip..skip + length)?;
            sum = add(sum, copy_sum16(&mut to[done..done + length], bytes));
            done += length;
        }
        Some(sum)
    }

    /// A default-size packet, which lies in one unit, if it has come. The last one of a title may be short.
    fn packet(&self, bytes: &Range<u64>) -> Option<&'a [u8]> {
        let unit = bytes.start / self.unit_bytes;
        let piece = self.pieces.get((unit - self.start / self.unit_bytes) as usize)?;
        let skip = (bytes.start - (unit * self.unit_bytes).max(self.start)) as usize;
        piece.get(skip..skip + (bytes.end.min(self.end) - bytes.start) as usize)
    }
}

/// The pieces that came of `bytes` of the title.
fn gather<'a>(stripes: &StripeLayout, bytes: &Range<u64>, results: Results<'a>) -> MediaPieces<'a> {
    let unit_bytes = stripes.unit_bytes() as u64;
    let mut cursors = results.data();
    let units = bytes.start / unit_bytes..bytes.end.div_ceil(unit_bytes);
    let k = stripes.k() as u64;
    let pieces = units.map(|unit| {
        let position = stripes.position_of((unit / k) as u32, (unit % k) as usize);
        let start = (unit * unit_bytes).max(bytes.start);
        cursors.take(position, (((unit + 1) * unit_bytes).min(bytes.end) - start) as usize)
    });
    MediaPieces { start: bytes.start, end: bytes.end, unit_bytes, pieces: pieces.collect() }
}

/// Builds an extent of media of a title with member files.
pub(super) fn assemble(
    Builder { metas, crcs, decoder, .. }: &mut Builder,
    OrderResults { reference, title, order, spans }: OrderResults<'_>,
    (stripes, files): (StripeLayout, &dyn MemberFiles),
    extent: &mut [u8],
) -> Built {
    let Some(geometry) = title.geometry(order.extent) else { return Built::failed(ReadFailure::OutOfRange) };
    let results = Results::new(order, spans);
    let (recorded, wrong, geometry) = (Vec::new(), MemberSet::EMPTY, &geometry);
    let mut maker = Maker { title, files, stripes, order, geometry, results, recorded, wrong };
    if !maker.records(metas) {
        return maker.more(maker.results.first_error());
    }
    let (mut spare, mut decoded_bytes) = (0, 0);
    let are_known;
    if order.thorough {
        let decoded = decoder.decode(&maker.stripes, &geometry.data, results);
        maker.blame(decoded.wrong_positions);
        (decoded_bytes, are_known) = (decoded.bytes, decoded.crcs_known);
        if maker.copy_decoded(&decoded, metas, extent) > 0 {
            let errno = results.first_error().filter(|_| decoded.wrong_positions.is_empty());
            let sums_only = title.source().has_crcs() && !are_known;
            return maker.damaged((reference, decoded_bytes, sums_only), errno, metas, extent);
        }
    } else {
        are_known = maker.crcs(crcs);
        if !are_known && results.has_ordered(Role::Crcs) {
            return maker.more(None);
        }
        let media = gather(&maker.stripes, &geometry.read, results);
        if maker.copy(&media, crcs.walk(), metas, extent) > 0 {
            match maker.spare(metas).filter(|spare| *spare <= order.spare) {
                Some(demand) => spare = demand,
                None => return maker.more(results.first_error()),
            }
        }
    }
    Built::Done(Filled {
        content: maker.seal(reference, metas, spare, extent),
        decoded_bytes,
        sums_only: title.source().has_crcs() && !are_known,
        unrecorded: maker.unrecorded(),
        wrong: maker.wrong,
    })
}

struct Maker<'a> {
    title: &'a OpenTitle,
    files: &'a dyn MemberFiles,
    stripes: StripeLayout,
    order: &'a Order,
    geometry: &'a Geometry,
    results: Results<'a>,
    /// Whether each packet has a readable record; empty: they all have.
    recorded: Vec<bool>,
    /// Members whose bytes did not have their stored sums.
    wrong: MemberSet,
}

impl Maker<'_> {
    fn blame(&mut self, positions: PositionSet) {
        self.wrong |= positions.iter().map(|position| self.files.slot(position.into())).collect();
    }

    /// Reads the records of the extent's packets from the first good copies, or assembles them from
    /// the good parts of the copies. If no more copies are available, records without a good copy
    /// are made up.
    fn records(&mut self, metas: &mut Vec<PacketMeta>) -> bool {
        metas.clear();
        metas.resize(self.geometry.packets as usize, PacketMeta::default());
        for (span, meta) in self.results.of(Role::Meta) {
            if self.geometry.sums.is_empty() {
                if self.title.source().records(meta, &[], self.geometry.first_packet, metas).is_ok() {
                    return true;
                }
                self.wrong |= span.member.into_iter().collect();
            }
            for (_, sums) in self.results.of(Role::Sums) {
                if self.title.source().records(meta, sums, self.geometry.first_packet, metas).is_ok() {
                    return true;
                }
            }
        }
        let (source, geometry) = (self.title.source(), self.geometry);
        let is_meta = |block: &[u8], number| MetaBlocks::open(block, number).is_ok();
        let meta = best_blocks(self.results, Role::Meta, &geometry.meta, is_meta);
        let is_sums = |block: &[u8], number| SumsBlocks::open(block, number).is_ok();
        let sums = best_blocks(self.results, Role::Sums, &geometry.sums, is_sums);
        if source.records(&meta, &sums, geometry.first_packet, metas).is_ok() {
            return true;
        }
        if self.order.all {
            read_each(source, geometry, (&meta, &sums), metas, &mut self.recorded);
        }
        self.order.all
    }

    /// The packets whose records are made up.
    fn unrecorded(&self) -> Option<LeftOut> {
        LeftOut::among(self.geometry.first_packet, self.recorded.iter().map(|recorded| !recorded))
    }

    /// Reads the CRCs of the data read from the first good copy. Returns whether there is one.
    fn crcs(&mut self, crcs: &mut Crcs) -> bool {
        crcs.forget();
        for (span, blocks) in self.results.of(Role::Crcs) {
            if crcs.load(&self.geometry.crc_packets, std::iter::once(blocks)) {
                return true;
            }
            self.wrong |= span.member.into_iter().collect();
        }
        false
    }

    /// Copies the packets behind their headers and marks those that are missing or wrong; how many these are.
    fn copy(
        &mut self,
        media: &MediaPieces<'_>,
        mut walk: Walk<'_>,
        metas: &mut [PacketMeta],
        extent: &mut [u8],
    ) -> u32 {
        let (layout, first) = (self.title.layout(), self.geometry.first_packet);
        let (timeline, size) = (self.title.source().timeline(), layout.packet_bytes());
        let (mut missing, mut wrong) = (0, PositionSet::EMPTY);
        let mut recorded = self.recorded.iter();
        for (slot, (packet, meta)) in extent.chunks_mut(layout.slot_bytes()).zip((first..).zip(metas)) {
            let from = u64::from(packet) * size as u64;
            let length = (self.geometry.data.end - from).min(size as u64) as usize;
            let (header, room) = slot.split_at_mut(layout.header_bytes());
            write_header(header, &timeline, packet, meta.time());
            let sum = media.copy(&mut room[..length], from);
            let bytes = from..from + length as u64;
            // Without a record it has been decoded, so all of it is proved already.
            let has_record = recorded.next().is_none_or(|recorded| *recorded);
            let good = sum.filter(|sum| !has_record || congruent(*sum, meta.sum()));
            let good = good.filter(|_| walk.is_right(&bytes, |packet| media.packet(packet)));
            if good.is_none() {
                missing += 1;
                room[..length].fill(0);
                wrong |= sum.and_then(|_| self.position_of(from, length)).into_iter().collect();
            }
            let flags = meta.flags() | if good.is_none() { PacketMeta::MISSING } else { 0 };
            // Of the two zeros, a derived sum may have the wrong one.
            *meta = PacketMeta::new(good.unwrap_or(0), flags, meta.time());
        }
        self.blame(wrong);
        missing
    }

    /// The position that bytes of the title come from; `None` if they come from several.
    fn position_of(&self, from: u64, length: usize) -> Option<u16> {
        let unit_bytes = self.stripes.unit_bytes() as u64;
        let (unit, last) = (from / unit_bytes, (from + length as u64 - 1) / unit_bytes);
        let k = self.stripes.k() as u64;
        let position = self.stripes.position_of((unit / k) as u32, (unit % k) as usize);
        (unit == last).then_some(position as u16)
    }

    /// The same from decoded stripes; copies only the correct packets.
    fn copy_decoded(&mut self, decoded: &Decoded<'_>, metas: &mut [PacketMeta], extent: &mut [u8]) -> u32 {
        let good = decoded.good_until(&self.geometry.data);
        let mut pieces = Vec::new();
        let unit_bytes = DEFAULT_PACKET_BYTES as u64;
        // Pieces of one default-size packet each: those that are not right are left empty.
        for (at, is_good) in good.iter().enumerate() {
            let start = at * DEFAULT_PACKET_BYTES;
            pieces.push(if *is_good { &decoded.media[start..start + DEFAULT_PACKET_BYTES] } else { &[] });
        }
        let media = MediaPieces { start: decoded.start, end: self.geometry.read.end, unit_bytes, pieces };
        // They have been compared with their CRCs.
        self.copy(&media, Crcs::default().walk(), metas, extent)
    }

    /// Returns the repair capacity that a viewer needs to make do with the packets not marked;
    /// `None`: they do not suffice, or other packets are missing than those of members that were
    /// left out.
    fn spare(&self, metas: &[PacketMeta]) -> Option<u8> {
        let (stripes, layout, left_out) = (&self.stripes, self.title.layout(), self.order.left_out);
        if layout.packet_bytes() != DEFAULT_PACKET_BYTES || self.order.spare == 0 {
            return None;
        }
        let mut missing = (self.geometry.first_packet..).zip(metas).filter(|(_, meta)| meta.is_missing());
        let is_left_out = |packet: u32| {
            let position = self.position_of(u64::from(packet) * DEFAULT_PACKET_BYTES as u64, 1);
            position.is_some_and(|position| left_out.contains(position))
        };
        let is_all = missing.all(|(packet, _)| is_left_out(packet));
        if is_all { demanded(stripes, &stripes.stripes_of(&self.geometry.data), left_out) } else { None }
    }

    /// Something is wrong or missing: once more, or not at all.
    fn more(&self, errno: Option<i32>) -> Built {
        if !self.order.thorough {
            return Built::More { wrong: self.wrong };
        }
        let silent = self.results.silent_positions(|position| self.files.slot(position));
        let gone = (self.order.left_out | silent).len();
        let may = self.stripes.tolerance();
        let failure = match errno {
            _ if gone > may && self.stripes.members() > 1 => {
                ReadFailure::MembersLost { lost: gone as u8, may: may as u8 }
            }
            Some(errno) => ReadFailure::Io(errno),
            None => ReadFailure::Checksum,
        };
        Built::Failed { failure, wrong: self.wrong }
    }

    /// Handles packets that are unavailable from any source. If others are available, returns
    /// those, with the missing packets marked.
    fn damaged(
        &self,
        (title, decoded_bytes, sums_only): (TitleRef, u64, bool),
        errno: Option<i32>,
        metas: &[PacketMeta],
        extent: &mut [u8],
    ) -> Built {
        let left_out = LeftOut::of(self.geometry.first_packet, metas);
        let nothing_came =
            errno.is_some() && left_out.is_some_and(|out| out.packets == self.geometry.packets);
        match (self.more(errno), left_out) {
            (
                Built::Failed { failure: failure @ (ReadFailure::Checksum | ReadFailure::Io(_)), wrong },
                Some(left_out),
            ) if !nothing_came => {
                let content = self.seal(title, metas, ExtentContent::DAMAGED, extent);
                let unrecorded = self.unrecorded();
                let filled = Filled { content, decoded_bytes, sums_only, unrecorded, wrong };
                Built::Damaged { filled, left_out, failure }
            }
            (built, _) => built,
        }
    }

    /// Writes the records behind the packets, and returns a description of the extent.
    fn seal(&self, title: TitleRef, metas: &[PacketMeta], spare: u8, extent: &mut [u8]) -> ExtentContent {
        let (layout, geometry) = (self.title.layout(), self.geometry);
        let records = &mut extent[layout.meta_offset(0, geometry.packets)..];
        for (record, meta) in records.chunks_exact_mut(PacketMeta::BYTES).zip(metas) {
            record.copy_from_slice(&meta.to_bytes());
        }
        ExtentContent {
            title,
            number: self.order.extent,
            first_packet: geometry.first_packet,
            packets: geometry.packets,
            last_packet_bytes: geometry.last_packet_bytes,
            layout,
            spare,
        }
    }
}

#[cfg(test)]
#[path = "media_tests.rs"]
mod tests;
