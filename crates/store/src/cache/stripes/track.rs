//! An extent of a parity track: ready FEC datagrams of SMPTE ST 2022-1. The parity comes from the disk; what stands before it is
//! made from the records of the title's packets, here and once for all viewers.
//!
//! ```text
//!   RTP header (payload type 96, SSRC 0) | FEC header, 16 bytes | parity of 1316 bytes
//! ```
//!
//! Track 1 holds the first parity, track 2 the others, all stripes in order.
//! [`millrace_core::fec::Spread`] defines which packet of a track is which parity in which column,
//! and alongside which packet of the title it is sent.

use millrace_core::fec::field::mul;
use millrace_core::fec::{Code, FecPlace, Spread};
use millrace_core::limits::{DEFAULT_PACKET_BYTES, FEC_HEADER_BYTES, RTP_HEADER_BYTES};
use millrace_core::packet::PacketMeta;
use millrace_core::pool::ExtentContent;
use millrace_core::time::MediaTicks;
use millrace_core::wire::checksum::{add, copy_sum16, sum16};
use millrace_core::wire::fec::{
    FecHeader, FecKind, PAYLOAD_TYPE_FEC, PROTECTED_FIELDS_BYTES, protected_fields,
};
use millrace_core::wire::rtp::{PAYLOAD_TYPE_MP2T, RtpHeader, Timeline, sequence_of};

use crate::cache::crcs::Crcs;
use crate::cache::decode::records::{Records, load_crcs};
use crate::cache::decode::results::Results;
use crate::cache::handle::ReadFailure;
use crate::cache::order::{Built, Filled, Order, Role};
use crate::cache::source::{OrderResults, ParitySource};
use crate::member_set::MemberSet;
use crate::stripes::StripeLayout;

/// Repair capacity for an extent of a track with holes: only for viewers to whom none of it is
/// indispensable.
const HOLES: u8 = u8::MAX;

/// The stripes of an extent of a parity track, and their records.
struct ParityExtent<'a> {
    stripes: StripeLayout,
    spread: Spread,
    code: Code,
    timeline: Timeline,
    duration: MediaTicks,
    /// First stripe of the records.
    first_stripe: u32,
    media: &'a Records,
    parity: &'a Records,
    crcs: &'a Crcs,
}

impl ParityExtent<'_> {
    fn media_packet(&self, stripe: u32, unit: usize, column: u32) -> u64 {
        let stripes = &self.stripes;
        u64::from(stripe) * u64::from(stripes.stripe_packets())
            + unit as u64 * u64::from(stripes.unit_packets())
            + u64::from(column)
    }

    fn media_meta(&self, packet: u64) -> Option<PacketMeta> {
        let first = u64::from(self.first_stripe) * u64::from(self.stripes.stripe_packets());
        self.media.get(usize::try_from(packet.checked_sub(first)?).ok()?)
    }

    /// When a slot leaves; behind the title's end: when that ends.
    fn departure(&self, slot: u32) -> MediaTicks {
        let packet = self.spread.departs_with(slot);
        self.media_meta(packet).map_or(self.duration, |meta| meta.time().min(self.duration))
    }

    /// The FEC header of a parity of a column; `None` if the column has no packets.
    fn header(&self, stripe: u32, column: u32, parity: usize) -> Option<FecHeader> {
        let mut recovery = [0; PROTECTED_FIELDS_BYTES];
        let mut count = 0;
        for unit in 0..self.stripes.k() {
            let packet = self.media_packet(stripe, unit, column);
            let Some(meta) = self.media_meta(packet).filter(|_| packet < u64::from(self.stripes.packets()))
            else {
                break;
            };
            let start = packet * DEFAULT_PACKET_BYTES as u64;
            let length = (self.stripes.media_bytes() - start).min(DEFAULT_PACKET_BYTES as u64) as u16;
            let fields = protected_fields(length, PAYLOAD_TYPE_MP2T, self.timeline.timestamp(meta.time()));
            let factor = self.code.coefficient(parity, unit);
            recovery.iter_mut().zip(fields).for_each(|(sum, field)| *sum ^= mul(factor, field));
            count += 1;
        }
        let kind = if parity == 0 { FecKind::Xor } else { FecKind::ReedSolomon };
        let header = FecHeader {
            sn_base: sequence_of(self.media_packet(stripe, 0, column) as u32),
            kind,
            index: parity as u8,
            row: false,
            offset: self.stripes.unit_packets() as u8,
            count,
            ..FecHeader::default()
        };
        (count > 0).then(|| header.with_recovery(recovery))
    }

    /// Returns whether bytes with this sum are parity packet `column` of a parity of a stripe;
    /// `None`: this cannot be verified.
    fn prove(&self, (stripe, column, parity): (u32, u32, usize), sum: u16, bytes: &[u8]) -> Option<bool> {
        let first = self.stripes.parity_record(self.first_stripe, 0, 0);
        let number = self.stripes.parity_record(stripe, parity, column);
        let at = usize::try_from(number.checked_sub(first)?).ok()?;
        // A title's parity has fewer packets than fit.
        self.parity.prove(at, self.crcs, number as u32, sum, bytes)
    }
}

/// Where a parity unit lies: the member's position, and the offset in its file.
fn unit_of(stripes: &StripeLayout, stripe: u32, parity: usize) -> (Role, u64) {
    let position = stripes.position_of(stripe, stripes.k() + parity) as u16;
    (Role::Parity { position }, stripes.offset_of(stripe, stripes.k() + parity))
}

/// No good copy of the records has come.
fn without_records(order: &Order, results: Results<'_>) -> Built {
    match (order.thorough, results.first_error()) {
        (false, _) => Built::More { wrong: MemberSet::EMPTY },
        (true, Some(errno)) => Built::failed(ReadFailure::Io(errno)),
        (true, None) => Built::failed(ReadFailure::Checksum),
    }
}

/// A parity track with its number.
type Numbered<'a> = (&'a dyn ParitySource, StripeLayout, u8);

/// Builds an extent of a parity track. Packets that are missing or do not match their sum are
/// marked, never computed.
pub(super) fn assemble(
    (source, stripes, track): Numbered<'_>,
    OrderResults { reference, title, order, spans }: OrderResults<'_>,
    extent: &mut [u8],
) -> Built {
    let (Some(packets), Some(code)) = (title.packets_of(order.extent), Code::new(stripes.k(), stripes.m()))
    else {
        return Built::failed(ReadFailure::OutOfRange);
    };
    let touched = stripes.track_stripes(track, &packets);
    let results = Results::new(order, spans);
    let (mut media, mut parity) = (Records::default(), Records::default());
    let of_media = stripes.media_records(&(touched.start..touched.end + 1));
    let mut is_whole = media.read(of_media, results, Role::StripeMeta);
    is_whole &= parity.read(stripes.parity_records(&touched), results, Role::ParityMeta);
    let came = [Role::StripeMeta, Role::ParityMeta].iter().all(|role| results.of(*role).next().is_some());
    if !(is_whole || order.all && came) {
        return without_records(order, results);
    }
    media.make_up(of_media.0, |packet| source.time_of_media(packet));
    let mut crcs = Crcs::default();
    let are_known = load_crcs(&mut crcs, stripes.parity_records(&touched), results, Role::ParityCrcs);
    if !are_known && !order.thorough && results.has_ordered(Role::ParityCrcs) {
        return Built::More { wrong: MemberSet::EMPTY };
    }
    let sums_only = source.has_crcs() && !are_known;
    let (timeline, duration) = (source.timeline(), source.duration());
    let first_stripe = touched.start;
    let spread = stripes.spread();
    let (media, parity, crcs) = (&media, &parity, &crcs);
    let known = ParityExtent { stripes, spread, code, timeline, duration, first_stripe, media, parity, crcs };
    let layout = title.layout();
    let count = packets.len();
    let (slots, records) = extent.split_at_mut(layout.meta_offset(0, count as u32));
    let (mut holes, mut wrong) = (false, MemberSet::EMPTY);
    // In track 1 all columns of a stripe come from one unit.
    let mut unit = (u32::MAX, unit_of(&stripes, first_stripe, 0));
    let places = packets.clone().zip(slots.chunks_mut(layout.slot_bytes()));
    for ((packet, slot), record) in places.zip(records.chunks_exact_mut(PacketMeta::BYTES)) {
        let place = spread.place(track, packet);
        let FecPlace { row: stripe, column, parity, .. } = place;
        if track != 1 || unit.0 != stripe {
            unit = (stripe, unit_of(&stripes, stripe, parity));
        }
        let (role, start) = unit.1;
        let from = start + u64::from(column) * DEFAULT_PACKET_BYTES as u64;
        let came = results.bytes_at(role, from, DEFAULT_PACKET_BYTES);
        let came = Some(came).filter(|came| came.len() == DEFAULT_PACKET_BYTES);
        let fill = known.fill(place, packet, came, slot);
        record.copy_from_slice(&fill.meta.to_bytes());
        holes |= fill.lost;
        if fill.wrong {
            let position = stripes.position_of(stripe, stripes.k() + parity);
            wrong.insert(source.slot(position));
        }
    }
    let content = ExtentContent {
        title: reference,
        number: order.extent,
        first_packet: packets.start,
        packets: count as u32,
        last_packet_bytes: layout.packet_bytes() as u16,
        layout,
        spare: if holes { HOLES } else { 0 },
    };
    Built::Done(Filled { content, decoded_bytes: 0, sums_only, unrecorded: None, wrong })
}

/// What became of one packet.
struct Fill {
    meta: PacketMeta,
    /// The parity of packets that there are is missing or wrong.
    lost: bool,
    /// It came, and is wrong.
    wrong: bool,
}

impl ParityExtent<'_> {
    /// Writes one datagram, or zeros if there is nothing to send.
    fn fill(&self, place: FecPlace, packet: u32, came: Option<&[u8]>, slot: &mut [u8]) -> Fill {
        let FecPlace { row: stripe, column, parity, .. } = place;
        let time = self.departure(place.slot);
        let rtp = RtpHeader {
            marker: false,
            payload_type: PAYLOAD_TYPE_FEC,
            sequence: sequence_of(packet),
            timestamp: self.timeline.timestamp(time),
            ssrc: 0,
        };
        let (head, rest) = slot.split_at_mut(RTP_HEADER_BYTES);
        head.copy_from_slice(&rtp.emit());
        let (fec, room) = rest.split_at_mut(FEC_HEADER_BYTES);
        let header = self.header(stripe, column, parity).map(|header| header.emit());
        let sum = came.map(|came| copy_sum16(&mut room[..DEFAULT_PACKET_BYTES], came));
        let is_right = came.zip(sum).and_then(|(came, sum)| self.prove((stripe, column, parity), sum, came));
        match (header, sum.filter(|_| is_right == Some(true))) {
            (Some(header), Some(sum)) => {
                fec.copy_from_slice(&header);
                let meta = PacketMeta::new(add(sum16(&header), sum), 0, time);
                Fill { meta, lost: false, wrong: false }
            }
            _ => {
                fec.fill(0);
                room.fill(0);
                let (meta, lost) = (PacketMeta::new(0, PacketMeta::MISSING, time), header.is_some());
                Fill { meta, lost, wrong: lost && is_right == Some(false) }
            }
        }
    }
}

#[cfg(test)]
#[path = "track_tests.rs"]
mod tests;
