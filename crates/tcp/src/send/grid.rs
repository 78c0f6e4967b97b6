//! Where segments end. A segment is as many whole stored packets as the segment size allows, so that its sum is made of stored sums; only
//! where a packet does not fit is it cut, always at the same places. A small piece of host bytes before a packet shares its segment if both fit.

use millrace_core::packet::PacketMeta;
use millrace_core::pool::{ExtentContent, Lease};
use millrace_core::wire::checksum::{add, sum16};

use crate::seq::Seq;
use millrace_core::limits::tcp::MAX_PIECES;

use super::{Descriptor, DescriptorSource, ExtentRange, HeldContent, NONE, Queue, SlotPart, Store};

/// How packets of an extent follow each other in the stream and in memory.
pub(super) struct Geometry {
    /// Bytes of a packet that are sent.
    unit: u32,
    /// From one to the next in memory.
    slot: u32,
    /// Bytes of a slot before the part that is sent.
    lead: u32,
    /// Bytes that are sent of a packet and are not in its stored sum.
    header: u32,
    packets: u32,
    last_unit: u32,
}

impl Geometry {
    pub(super) fn new(content: &ExtentContent, part: SlotPart) -> Self {
        let layout = content.layout;
        let (slot, header) = (layout.slot_bytes() as u32, layout.header_bytes() as u32);
        let (lead, header) = match part {
            SlotPart::Payloads => (header, 0),
            SlotPart::Frames => (0, header),
        };
        let last_unit = header + u32::from(content.last_packet_bytes);
        Self { unit: slot - lead, slot, lead, header, packets: content.packets, last_unit }
    }

    /// Bytes of packet `packet`.
    fn unit_of(&self, packet: u32) -> u32 {
        if packet + 1 == self.packets { self.last_unit } else { self.unit }
    }

    /// Whether the range is there, with no packet missing.
    pub(super) fn has(&self, lease: &Lease, range: &ExtentRange) -> bool {
        let Some(after) = self.packets.checked_sub(range.place + 1) else { return false };
        let all = u64::from(after) * u64::from(self.unit) + u64::from(self.last_unit);
        let wanted = u64::from(range.skip) + u64::from(range.bytes);
        if range.bytes == 0 || range.skip >= self.unit_of(range.place) || wanted > all {
            return false;
        }
        let packets = (range.skip + range.bytes).div_ceil(self.unit);
        let mut metas = lease.metas(range.place, packets).iter();
        !metas.any(|&meta| PacketMeta::from_bytes(meta).is_missing())
    }

    /// Where in the extent byte `position` from packet `place` on lies.
    fn address(&self, place: u32, position: u32) -> usize {
        let packet = place + position / self.unit;
        packet as usize * self.slot as usize + (self.lead + position % self.unit) as usize
    }

    /// How many bytes of a segment come from `position` on in one piece: `room` at most, `left` are there.
    /// With `is_first` nothing is in the segment yet.
    fn piece(&self, position: u32, left: u32, room: u32, is_first: bool) -> u32 {
        let within = position % self.unit;
        let rest = (self.unit - within).min(left);
        if rest <= room {
            if self.lead > 0 || rest == left {
                return rest;
            }
            // Whole packets that lie side by side.
            let more = (room - rest) / self.unit * self.unit;
            return if rest + more < left { rest + more } else { left.min(room) };
        }
        if !is_first {
            return 0;
        }
        // A packet longer than a segment is cut at multiples of the segment size from its begin.
        if self.unit > room { room - within % room } else { room }
    }

    /// Sum of `bytes` from `position` on, as from an even offset.
    fn sum(&self, lease: &Lease, place: u32, position: u32, bytes: u32) -> u16 {
        let (mut sum, mut done) = (0, 0);
        while done < bytes {
            let (packet, within) = (place + (position + done) / self.unit, (position + done) % self.unit);
            let unit = self.unit_of(packet);
            let take = (unit.max(within + 1) - within).min(bytes - done);
            let at = packet as usize * self.slot as usize + (self.lead + within) as usize;
            let piece = if within == 0 && take == unit {
                let header = &lease.bytes()[at..at + self.header as usize];
                add_at(sum16(header), lease.meta(packet).sum(), self.header)
            } else {
                sum16(&lease.bytes()[at..at + take as usize])
            };
            sum = add_at(sum, piece, done);
            done += take;
        }
        sum
    }
}

/// Adds the sum of a piece that begins `offset` bytes behind the begin of `sum`.
#[inline]
pub(crate) fn add_at(sum: u16, piece: u16, offset: u32) -> u16 {
    add(sum, if offset.is_multiple_of(2) { piece } else { piece.swap_bytes() })
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PayloadPiece {
    pub(super) descriptor: u32,
    pub(super) at: u32,
    pub(super) bytes: u32,
}

/// The payload of one segment, as places in descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentPayload {
    seq: Seq,
    bytes: u32,
    pieces: [PayloadPiece; MAX_PIECES],
    count: u8,
    descriptors: u8,
    /// No more fits, as the segment size and the grid have it: neither Nagle nor the silly window holds it back.
    is_full: bool,
    /// Some of it is read from an area when it is sent.
    is_staged: bool,
}

impl SegmentPayload {
    /// Its first byte's sequence number.
    pub fn seq(&self) -> Seq {
        self.seq
    }

    /// Its length.
    pub fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Whether nothing more fits it.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Whether some of it is of an area: then its payload lies where it stands only until the next one is asked for, and a device has to copy it.
    pub fn is_staged(&self) -> bool {
        self.is_staged
    }

    pub(super) fn first(&self) -> u32 {
        self.pieces[0].descriptor
    }

    pub(super) fn descriptors(&self) -> u8 {
        self.descriptors
    }
}

/// What becomes of an attempt to cut a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // looked at once, on the stack
pub enum Cutting {
    /// A segment.
    Cut(SegmentPayload),
    /// The extent of this descriptor has to come back first.
    Wanted(u32),
    /// Nothing is queued there.
    Empty,
}

/// The bytes of a segment, and their sum.
#[derive(Clone, Copy, Debug, Default)]
pub struct Payload<'a> {
    slices: [&'a [u8]; MAX_PIECES],
    count: u8,
    /// Uncomplemented one's-complement sum of all of it.
    pub sum: u16,
    /// Length in bytes.
    pub bytes: u32,
}

impl<'a> Payload<'a> {
    /// The bytes, in order.
    pub fn slices(&self) -> &[&'a [u8]] {
        &self.slices[..usize::from(self.count)]
    }

    /// These bytes, with their sum.
    #[cfg(test)]
    pub(crate) fn of(pieces: &[&'a [u8]]) -> Self {
        let mut slices = [&[][..]; MAX_PIECES];
        slices[..pieces.len()].copy_from_slice(pieces);
        let bytes = pieces.concat();
        let sum = millrace_core::wire::checksum::sum16(&bytes);
        Self { slices, count: pieces.len() as u8, sum, bytes: bytes.len() as u32 }
    }
}

impl Store {
    /// Returns the segment that begins at `seq`: at most `mss` bytes by the grid, and no more than
    /// `most` of these.
    pub fn cut(&self, queue: &mut Queue, seq: Seq, mss: u32, most: u32) -> Cutting {
        self.cut_by(queue, seq, mss, most, false)
    }

    /// A segment of `bytes` bytes, as far as they are queued and lie in few enough pieces, without regard to the grid.
    pub fn cut_exactly(&self, queue: &mut Queue, seq: Seq, bytes: u32) -> Cutting {
        self.cut_by(queue, seq, bytes, bytes, true)
    }

    fn cut_by(&self, queue: &mut Queue, seq: Seq, mss: u32, most: u32, is_exact: bool) -> Cutting {
        let Some((mut index, mut at)) = self.locate(queue, seq) else { return Cutting::Empty };
        let mut cut = SegmentPayload {
            seq,
            bytes: 0,
            pieces: Default::default(),
            count: 0,
            descriptors: 0,
            is_full: false,
            is_staged: false,
        };
        let mut natural = 0;
        let mut last = NONE;
        while let Some(descriptor) = self.descriptors.get(index as usize) {
            if at == descriptor.bytes {
                (index, at) = (descriptor.next, 0);
                continue;
            }
            let Some(piece) = piece_of(descriptor, at, mss - natural, natural == 0, is_exact) else {
                if natural == 0 {
                    return Cutting::Wanted(index);
                }
                cut.is_full = true;
                break;
            };
            if piece == 0
                || usize::from(cut.count) == MAX_PIECES
                || self.belongs_to_next(index, at, mss - natural) && natural > 0 && !is_exact
            {
                cut.is_full = true;
                break;
            }
            let bytes = piece.min(most - cut.bytes);
            if bytes > 0 {
                cut.pieces[usize::from(cut.count)] = PayloadPiece { descriptor: index, at, bytes };
                cut.count += 1;
                cut.bytes += bytes;
                cut.descriptors += u8::from(index != last);
                cut.is_staged |= matches!(descriptor.source, DescriptorSource::Area { .. });
                last = index;
            }
            natural += piece;
            at += piece;
            if natural == mss {
                cut.is_full = true;
                break;
            }
        }
        cut.is_full &= cut.bytes == natural;
        if cut.bytes == 0 { Cutting::Empty } else { Cutting::Cut(cut) }
    }

    /// Whether host bytes stand before a packet that finds no room of `room` bytes with them: they wait for it.
    fn belongs_to_next(&self, index: u32, at: u32, room: u32) -> bool {
        let Some(host) = self.descriptors.get(index as usize) else { return false };
        if !matches!(
            host.source,
            DescriptorSource::Host { .. } | DescriptorSource::Area { .. } | DescriptorSource::Head(_)
        ) {
            return false;
        }
        let left = room.saturating_sub(host.bytes - at);
        self.descriptors.get(host.next as usize).is_some_and(|next| {
            matches!(next.source, DescriptorSource::Extent { .. })
                && piece_of(next, 0, left, false, false) == Some(0)
        })
    }

    /// The descriptor with byte `seq`, and where in it. Remembers the furthest.
    fn locate(&self, queue: &mut Queue, seq: Seq) -> Option<(u32, u32)> {
        if seq.before(queue.first) || !seq.before(queue.end) {
            return None;
        }
        let from_hint = queue.hint != NONE && !seq.before(queue.hint_first);
        let (mut index, mut first) =
            if from_hint { (queue.hint, queue.hint_first) } else { (queue.head, queue.first) };
        while let Some(descriptor) = self.descriptors.get(index as usize) {
            if seq.before(first + descriptor.bytes) {
                if from_hint {
                    (queue.hint, queue.hint_first) = (index, first);
                }
                return Some((index, seq.since(first) as u32));
            }
            first += descriptor.bytes;
            index = descriptor.next;
        }
        None
    }

    /// What `cut` points at.
    pub fn payload(&mut self, cut: &SegmentPayload) -> Payload<'_> {
        let pieces = &cut.pieces[..usize::from(cut.count)];
        if cut.is_staged {
            self.stage(pieces);
        }
        let mut payload = Payload { bytes: cut.bytes, ..Payload::default() };
        let (mut offset, mut staged) = (0, 0);
        for piece in pieces {
            let Some((slice, sum)) = self.piece(piece, &mut staged) else { return Payload::default() };
            payload.slices[usize::from(payload.count)] = slice;
            payload.count += 1;
            payload.sum = add_at(payload.sum, sum, offset);
            offset += piece.bytes;
        }
        payload
    }

    /// Bytes of a piece and their sum; of the stage `staged` bytes are those of pieces before it.
    fn piece(&self, piece: &PayloadPiece, staged: &mut usize) -> Option<(&[u8], u16)> {
        let len = piece.bytes as usize;
        match &self.descriptors.get(piece.descriptor as usize)?.source {
            DescriptorSource::Extent { held: HeldContent::Lease(lease), place, skip, part } => {
                let geometry = Geometry::new(&lease.content(), *part);
                let position = skip + piece.at;
                let at = geometry.address(*place, position);
                let sum = geometry.sum(lease, *place, position, piece.bytes);
                Some((lease.bytes().get(at..at + len)?, sum))
            }
            DescriptorSource::Host { page, at } => {
                let bytes = self.host.read(*page, (at + piece.at) as usize, len);
                Some((bytes, sum16(bytes)))
            }
            DescriptorSource::Area { .. } => {
                let bytes = self.areas.staged(*staged, len)?;
                *staged += len;
                Some((bytes, sum16(bytes)))
            }
            DescriptorSource::Head(bytes) => {
                let bytes = bytes.get(piece.at as usize..piece.at as usize + len)?;
                Some((bytes, sum16(bytes)))
            }
            DescriptorSource::Extent { .. } | DescriptorSource::Free => None,
        }
    }
}

/// How many bytes from `at` on the segment takes in one piece; `None`: its extent is not there.
fn piece_of(descriptor: &Descriptor, at: u32, room: u32, is_first: bool, is_exact: bool) -> Option<u32> {
    let left = descriptor.bytes - at;
    match &descriptor.source {
        DescriptorSource::Extent { held: HeldContent::Lease(lease), skip, part, .. } => {
            let geometry = Geometry::new(&lease.content(), *part);
            let piece = geometry.piece(skip + at, left, room, is_first);
            // Where the grid would end the segment the rest comes from the packet all the same.
            Some(if is_exact && piece == 0 { left.min(room) } else { piece })
        }
        DescriptorSource::Host { .. } | DescriptorSource::Area { .. } | DescriptorSource::Head(_) => {
            Some(left.min(room))
        }
        DescriptorSource::Extent { .. } | DescriptorSource::Free => None,
    }
}
