//! A title's bytes: payloads of packets, one behind the other, as a connection carries them.

use crate::limits::{MAX_PACKET_BYTES, TS_PACKET_BYTES};
use crate::pool::Lease;

/// Payloads of `count` packets of an extent, without the first bytes of the first and the last of the last. Bytes that are missing
/// ([`crate::packet::PacketMeta::MISSING`]) become null packets of the same length, so that every byte behind them keeps its place.
#[derive(Clone, Copy, Debug)]
pub struct ByteRange<'a> {
    /// The extent, in any layout.
    pub lease: &'a Lease,
    /// First packet in it.
    pub place: u32,
    /// Packets; the extent holds them.
    pub count: u32,
    /// Bytes at the first packet's beginning that are not part of it.
    pub head: u16,
    /// Bytes at the last packet's end that are not part of it.
    pub tail: u16,
}

/// Null packets of a transport stream (ISO/IEC 13818-1 section 2.4.1: PID 0x1FFF), as many as the longest packet has.
static NULL_PACKETS: [u8; MAX_PACKET_BYTES] = {
    let mut bytes = [0xff; MAX_PACKET_BYTES];
    let mut at = 0;
    while at < MAX_PACKET_BYTES {
        // Sync byte, the PID, payload only.
        [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]] = [0x47, 0x1f, 0xff, 0x10];
        at += TS_PACKET_BYTES;
    }
    bytes
};

impl<'a> ByteRange<'a> {
    /// Returns the bytes sent of packet `index < count`.
    ///
    /// # Panics
    /// If the extent does not hold it.
    pub fn piece(&self, index: u32) -> &'a [u8] {
        let place = self.place + index;
        let content = self.lease.content();
        let stored = &self.lease.wire(place, 1)[content.layout.header_bytes()..];
        let is_missing = content.spare != 0 && self.lease.meta(place).is_missing();
        let payload = if is_missing { &NULL_PACKETS[..stored.len()] } else { stored };
        let head = if index == 0 { usize::from(self.head) } else { 0 };
        let tail = if index + 1 == self.count { usize::from(self.tail) } else { 0 };
        payload.get(head..payload.len().saturating_sub(tail)).unwrap_or_default()
    }

    /// All bytes of the range where they lie one behind the other: in an extent without headers, and with nothing missing.
    pub fn contiguous(&self) -> Option<&'a [u8]> {
        let content = self.lease.content();
        if !content.layout.is_raw() || content.spare != 0 || self.count == 0 {
            return None;
        }
        let stored = self.lease.wire(self.place, self.count);
        stored.get(usize::from(self.head)..stored.len().checked_sub(usize::from(self.tail))?)
    }

    /// Bytes of packets `first..first + count` of the range.
    pub fn bytes_in(&self, first: u32, count: u32) -> usize {
        if count == 0 {
            return 0;
        }
        let content = self.lease.content();
        let full = count as usize * content.layout.packet_bytes();
        let end = first + count;
        let short = match self.place + end == content.packets {
            true => content.layout.packet_bytes() - usize::from(content.last_packet_bytes),
            false => 0,
        };
        let head = if first == 0 { usize::from(self.head) } else { 0 };
        let tail = if end == self.count { usize::from(self.tail) } else { 0 };
        full.saturating_sub(short + head + tail)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::ids::TitleRef;
    use crate::packet::{PacketMeta, WireLayout};
    use crate::pool::{ExtentArena, ExtentContent, HeapRegion};
    use crate::time::MediaTicks;

    /// An extent of five packets whose second is missing and whose last has 400 bytes; and the
    /// title's bytes.
    fn film(layout: WireLayout) -> (Arc<ExtentArena>, Lease, Vec<u8>) {
        let arena = ExtentArena::new(Box::new(HeapRegion::new(1)));
        let mut fill = arena.fill(0).unwrap();
        let mut title = Vec::new();
        for place in 0..5 {
            let flags = if place == 1 { PacketMeta::MISSING } else { 0 };
            let at = layout.meta_offset(place, 5);
            fill.bytes_mut()[at..at + 8]
                .copy_from_slice(&PacketMeta::new(0, flags, MediaTicks(0)).to_bytes());
            let len = if place == 4 { 400 } else { layout.packet_bytes() };
            let slot =
                &mut fill.bytes_mut()[place as usize * layout.slot_bytes()..][..layout.header_bytes() + len];
            slot.iter_mut().zip(0..).for_each(|(byte, n)| *byte = (n % 251) as u8 ^ place as u8);
            match place {
                1 => title
                    .extend([[0x47, 0x1f, 0xff, 0x10].as_slice(), &[0xff; 184]].concat().repeat(len / 188)),
                _ => title.extend_from_slice(&slot[layout.header_bytes()..]),
            }
        }
        fill.publish();
        let (title_ref, last) = (TitleRef(0), 400);
        let content = ExtentContent {
            title: title_ref,
            number: 0,
            first_packet: 0,
            packets: 5,
            last_packet_bytes: last,
            layout,
            spare: 255,
        };
        let lease = arena.lend(0, content).unwrap();
        (arena, lease, title)
    }

    #[test]
    fn byte_range_pieces_equal_bytes_of_the_title() {
        let rtp = WireLayout::new(1316).unwrap();
        for layout in [rtp, rtp.raw().unwrap(), WireLayout::new(8084).unwrap()] {
            let (_arena, lease, title) = film(layout);
            let size = layout.packet_bytes();
            for (place, count, head, tail) in
                [(0, 5, 0, 0), (0, 5, 1, 1), (1, 1, 5, 7), (1, 2, 1000, 0), (2, 3, 3, 399), (4, 1, 9, 0)]
            {
                let range = ByteRange { lease: &lease, place, count, head, tail };
                let end = ((place + count) as usize * size).min(title.len()) - usize::from(tail);
                let wanted = &title[place as usize * size + usize::from(head)..end];
                let pieces: Vec<_> = (0..count).map(|index| range.piece(index)).collect();
                assert!(pieces.concat() == wanted, "{place} + {count}, {head}, {tail}");
                for (first, last) in
                    (0..=count).flat_map(|first| (first..=count).map(move |last| (first, last)))
                {
                    let bytes: usize =
                        pieces[first as usize..last as usize].iter().map(|piece| piece.len()).sum();
                    assert_eq!(
                        range.bytes_in(first, last - first),
                        bytes,
                        "{place} + {count}: {first}..{last}"
                    );
                }
            }
        }
    }

    #[test]
    fn trims_longer_than_the_packet_leave_nothing() {
        let (_arena, lease, _) = film(WireLayout::new(1316).unwrap());
        let range = ByteRange { lease: &lease, place: 4, count: 1, head: 300, tail: 300 };
        assert_eq!((range.piece(0).len(), range.bytes_in(0, 1)), (0, 0));
    }
}
