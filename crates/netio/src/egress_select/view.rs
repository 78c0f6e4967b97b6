//! A part of a batch that looks like a batch: some of its entries, some of them without their first datagrams.

use millrace_core::limits::{MAX_BATCH_BURSTS, RTP_HEADER_BYTES};
use millrace_core::seam::{Payload, PayloadSource, SendOutcome, Transmit, TransmitBatch};
use millrace_core::shape::{DatagramShape, Misshapen};

/// The set bits of a word, lowest first.
pub(super) fn bits(mut mask: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        (mask != 0).then(|| {
            let index = mask.trailing_zeros() as usize;
            mask &= mask - 1;
            index
        })
    })
}

/// Entries of `batch`, from `first` on, whose bits were set.
pub(super) struct View<'a> {
    batch: &'a dyn TransmitBatch,
    first: usize,
    count: usize,
    places: [u8; MAX_BATCH_BURSTS],
    /// The payloads, checked.
    shapes: &'a [Option<DatagramShape<'a>>; MAX_BATCH_BURSTS],
    /// Datagrams at the front of each entry that have left already.
    skips: &'a [u16; MAX_BATCH_BURSTS],
}

impl<'a> View<'a> {
    pub(super) fn new(
        batch: &'a dyn TransmitBatch,
        first: usize,
        mask: u64,
        shapes: &'a [Option<DatagramShape<'a>>; MAX_BATCH_BURSTS],
        skips: &'a [u16; MAX_BATCH_BURSTS],
    ) -> Self {
        let mut view = Self { batch, first, count: 0, places: [0; MAX_BATCH_BURSTS], shapes, skips };
        for place in bits(mask) {
            view.places[view.count] = place as u8;
            view.count += 1;
        }
        view
    }

    /// Writes the outcomes of this part to their places in those of the whole; datagrams that had
    /// left before count as taken.
    pub(super) fn scatter(&self, part: &[SendOutcome], whole: &mut [SendOutcome]) {
        for (&place, &outcome) in self.places.iter().zip(&part[..self.count]) {
            whole[usize::from(place)] = match outcome {
                SendOutcome::Blocked { taken } => {
                    SendOutcome::Blocked { taken: taken.saturating_add(self.skips[usize::from(place)]) }
                }
                other => other,
            };
        }
    }
}

impl TransmitBatch for View<'_> {
    fn len(&self) -> usize {
        self.count
    }

    fn get(&self, index: usize) -> Transmit<'_> {
        let place = usize::from(self.places[index]);
        let transmit = self.batch.get(self.first + place);
        Transmit { payload: behind(transmit.payload, usize::from(self.skips[place])), ..transmit }
    }

    fn shape<'b>(&'b self, index: usize, payload: Payload<'b>) -> Result<DatagramShape<'b>, Misshapen> {
        let place = usize::from(self.places[index]);
        match self.shapes[place] {
            Some(shape) => Ok(shape.behind(usize::from(self.skips[place]))),
            None => DatagramShape::of(payload),
        }
    }

    fn source(&self, index: usize) -> Option<PayloadSource<'_>> {
        let place = usize::from(self.places[index]);
        let PayloadSource { lease, place: packet } = self.batch.source(self.first + place)?;
        Some(PayloadSource { lease, place: packet + u32::from(self.skips[place]) })
    }
}

/// The payload without its first `skip` datagrams.
fn behind(payload: Payload<'_>, skip: usize) -> Payload<'_> {
    let rest = |bytes: &'_ [u8], segment: usize| skip.saturating_mul(segment).min(bytes.len());
    match payload {
        Payload::Wire { bytes, segment } => Payload::Wire { bytes: &bytes[rest(bytes, segment)..], segment },
        Payload::Patched { headers, bytes, segment } => Payload::Patched {
            headers: &headers[rest(headers, RTP_HEADER_BYTES)..],
            bytes: &bytes[rest(bytes, segment)..],
            segment,
        },
        other @ (Payload::Rtcp(_) | Payload::Bytes(_)) => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::null::SliceBatch;
    use millrace_core::ids::{ConnId, StreamId, TitleRef};
    use millrace_core::packet::WireLayout;
    use millrace_core::pool::{ExtentArena, ExtentContent, HeapRegion, Lease};
    use millrace_core::seam::Dest;

    /// Entries that lie one behind the other in an extent, each with ten places.
    struct StoredBatch<'a>(SliceBatch<'a>, Lease);

    impl<'a> StoredBatch<'a> {
        fn new(entries: &'a [Transmit<'a>]) -> Self {
            let arena = ExtentArena::new(Box::new(HeapRegion::new(1)));
            arena.fill(0).unwrap().publish();
            let content = ExtentContent {
                title: TitleRef(0),
                number: 0,
                first_packet: 0,
                packets: 100,
                last_packet_bytes: 1316,
                layout: WireLayout::new(1316).unwrap(),
                spare: 0,
            };
            Self(SliceBatch(entries), arena.lend(0, content).unwrap())
        }
    }

    impl TransmitBatch for StoredBatch<'_> {
        fn len(&self) -> usize {
            self.0.len()
        }
        fn get(&self, index: usize) -> Transmit<'_> {
            self.0.get(index)
        }
        fn source(&self, index: usize) -> Option<PayloadSource<'_>> {
            Some(PayloadSource { lease: &self.1, place: 10 * index as u32 })
        }
    }

    #[test]
    fn bits_come_lowest_first() {
        assert_eq!(bits(0).count(), 0);
        assert_eq!(bits(1 << 63 | 0b101).collect::<Vec<_>>(), [0, 2, 63]);
        assert_eq!(bits(u64::MAX).count(), 64);
    }

    #[test]
    fn view_exposes_chosen_entries_without_sent_datagrams() {
        let bytes: Vec<u8> = (0..100).collect();
        let headers = [7; 36];
        let entry = |index, payload| Transmit {
            stream: StreamId { index, generation: 0 },
            dest: Dest::Interleaved { conn: ConnId(0), rtp_channel: 0, rtcp_channel: 1 },
            payload,
        };
        let entries = [
            entry(0, Payload::Wire { bytes: &bytes, segment: 30 }),
            entry(1, Payload::Rtcp(&bytes)),
            entry(2, Payload::Patched { headers: &headers, bytes: &bytes[..90], segment: 30 }),
        ];
        let batch = StoredBatch::new(&entries);
        let mut skips = [0; MAX_BATCH_BURSTS];
        (skips[0], skips[2]) = (3, 1);
        let shapes =
            std::array::from_fn(|at| entries.get(at).and_then(|entry| DatagramShape::of(entry.payload).ok()));
        let view = View::new(&batch, 0, 0b101, &shapes, &skips);
        assert_eq!(view.len(), 2);
        assert!(
            matches!(view.get(0).payload, Payload::Wire { bytes: b, .. } if b == &bytes[90..]),
            "the last, short datagram is left"
        );
        assert_eq!(view.get(1).stream.index, 2);
        assert!(matches!(view.get(1).payload, Payload::Patched { headers: h, bytes: b, .. }
            if h.len() == 24 && b == &bytes[30..90]));
        for index in 0..2 {
            let payload = view.get(index).payload;
            let (kept, fresh) = (view.shape(index, payload).unwrap(), DatagramShape::of(payload).unwrap());
            assert_eq!(kept.datagrams(), fresh.datagrams());
            assert!((0..kept.datagrams()).all(|at| kept.datagram(at) == fresh.datagram(at)));
        }
        let place = |index| view.source(index).unwrap().place;
        assert_eq!([place(0), place(1)], [3, 21], "sums are those of what is left");
        let mut whole = [SendOutcome::Sent; 3];
        view.scatter(&[SendOutcome::Blocked { taken: 0 }, SendOutcome::Unreachable { errno: 1 }], &mut whole);
        assert_eq!(
            whole,
            [SendOutcome::Blocked { taken: 3 }, SendOutcome::Sent, SendOutcome::Unreachable { errno: 1 }]
        );
    }
}
