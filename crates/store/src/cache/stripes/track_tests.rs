use std::collections::HashMap;

use millrace_core::pool::ExtentContent;
use proptest::prelude::*;

use super::super::sample::{StripeSample, geometry, metas_of};
use super::super::tests::Bench;
use crate::cache::order::{Built, Filled, MemberView, Role};
use crate::member_set::MemberSet;

const PACKET: usize = 1316;
/// k, m, members, unit. The last stripes are short, and the second's columns are not all used.
const GEOMETRIES: [TrackShape; 7] =
    [(8, 1, 1, 12), (8, 3, 1, 20), (4, 4, 2, 20), (4, 2, 3, 16), (4, 1, 5, 16), (20, 8, 7, 5), (5, 8, 1, 20)];

type TrackShape = (u16, u16, u16, u32);

fn sample((k, m, members, unit): TrackShape) -> StripeSample {
    let packets = usize::from(k) * unit as usize;
    StripeSample::new(geometry(k, m, members, unit), (packets * 13 + unit as usize / 2) * PACKET - 188)
}

/// Product in GF(2^8) modulo 0x11d, bit by bit, and by search: nothing of the code under test.
fn mul(a: u8, b: u8) -> u8 {
    let mut product =
        (0..8).fold(0u32, |sum, bit| if b >> bit & 1 != 0 { sum ^ u32::from(a) << bit } else { sum });
    for bit in (8..16).rev() {
        product ^= if product >> bit & 1 != 0 { 0x11d << (bit - 8) } else { 0 };
    }
    product as u8
}

fn inverse(a: u8) -> u8 {
    (1..=255).find(|&b| mul(a, b) == 1).unwrap()
}

/// Cauchy, each column scaled so that parity 0 is XOR.
fn factor(k: usize, parity: usize, unit: usize) -> u8 {
    mul(inverse(((k + parity) ^ unit) as u8), (k ^ unit) as u8)
}

/// Returns the protected part of one datagram of the title.
fn protected(sample: &StripeSample, packet: usize) -> Option<Vec<u8>> {
    let payload = sample.data.chunks(PACKET).nth(packet)?;
    let time = metas_of(&sample.data, PACKET)[packet].time().0 as u32;
    let mut bytes = (payload.len() as u16).to_be_bytes().to_vec();
    bytes.push(33);
    bytes.extend(sample.timeline.timestamp_base.wrapping_add(time).to_be_bytes());
    bytes.extend(payload);
    bytes.resize(7 + PACKET, 0);
    Some(bytes)
}

/// A column of a stripe: the protected part of each of its packets.
struct Columns {
    symbols: HashMap<usize, Vec<u8>>,
    k: usize,
    unit: usize,
}

impl Columns {
    fn new(sample: &StripeSample) -> Self {
        let symbols = (0..sample.metas.len()).map(|packet| (packet, protected(sample, packet).unwrap()));
        Self {
            symbols: symbols.collect(),
            k: sample.stripes.k(),
            unit: sample.stripes.unit_packets() as usize,
        }
    }

    fn packet(&self, stripe: usize, unit: usize, column: usize) -> usize {
        (stripe * self.k + unit) * self.unit + column
    }

    fn of(&self, stripe: usize, column: usize) -> Vec<&Vec<u8>> {
        (0..self.k).filter_map(|unit| self.symbols.get(&self.packet(stripe, unit, column))).collect()
    }

    /// Parity of a column: fields and payload.
    fn parity(&self, stripe: usize, column: usize, parity: usize) -> Vec<u8> {
        let mut sum = vec![0; 7 + PACKET];
        for (unit, media) in self.of(stripe, column).into_iter().enumerate() {
            let factor = factor(self.k, parity, unit);
            // A table for each factor: the sum is long.
            let table: Vec<u8> = (0..=255).map(|byte| mul(factor, byte)).collect();
            sum.iter_mut().zip(media).for_each(|(sum, byte)| *sum ^= table[usize::from(*byte)]);
        }
        sum
    }
}

fn bench(shape: TrackShape, track: u8) -> Bench {
    let mut bench = Bench::new(sample(shape), PACKET);
    bench.title = Bench::title(bench.sample.open_track(track));
    bench
}

/// Stripe, column and parity of a packet of a track.
fn place(sample: &StripeSample, track: u8, packet: u32) -> (usize, usize, usize) {
    let (k, unit, m) = (sample.stripes.k(), sample.stripes.unit_packets() as usize, sample.stripes.m());
    let each = if track == 1 { 1 } else { m - 1 };
    let (slot, parity) = (packet as usize / each, usize::from(track) - 1 + packet as usize % each);
    // Each parity of a column is some slots earlier than the one before it.
    let units = k.max(m);
    let earlier = (parity * unit.max(units)).div_ceil(units);
    (slot / unit, (slot % unit + earlier) % unit, parity)
}

/// Datagram, record of a packet.
fn packet_of(bytes: &[u8], content: &ExtentContent, place: u32) -> (Vec<u8>, u64) {
    let slot = content.layout.slot_bytes();
    let at = content.layout.meta_offset(place, content.packets);
    let record = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    (bytes[place as usize * slot..][..slot].to_vec(), record)
}

fn ones_sum(bytes: &[u8]) -> u64 {
    bytes.chunks(2).map(|word| u64::from(word[0]) << 8 | u64::from(word[1])).sum::<u64>() % 0xffff
}

/// Checks every packet of an extent; calls `sent` with those that are there.
fn check(
    bench: &Bench,
    columns: &Columns,
    track: u8,
    filled: &Filled,
    mut sent: impl FnMut(u32, &[u8]),
) -> Vec<u32> {
    let (sample, content) = (&bench.sample, filled.content);
    let (k, unit) = (columns.k, columns.unit);
    let metas = metas_of(&sample.data, PACKET);
    let duration = sample.data.len() as u64 * 7 / 100;
    let mut missing = Vec::new();
    for number in 0..content.packets {
        let packet = content.first_packet + number;
        let (stripe, column, parity) = place(sample, track, packet);
        let (datagram, record) = packet_of(&bench.bytes, &content, number);
        let slot = packet as usize / if track == 1 { 1 } else { sample.stripes.m() - 1 };
        let departs = metas.get((unit + slot) * k).map_or(duration, |meta| meta.time().0);
        assert_eq!(record >> 24, departs, "departure of packet {packet}");
        let timestamp = sample.timeline.timestamp_base.wrapping_add(departs as u32).to_be_bytes();
        let mut rtp = vec![0x80, 96];
        rtp.extend(((packet + 1) as u16).to_be_bytes());
        rtp.extend(timestamp);
        rtp.extend([0; 4]);
        assert_eq!(datagram[..12], rtp);
        let symbols = columns.of(stripe, column);
        if record >> 16 & 0xff != 0 {
            assert_eq!(record >> 16 & 0xff, 0x80);
            assert!(datagram[12..].iter().all(|byte| *byte == 0));
            if !symbols.is_empty() {
                missing.push(packet);
            }
            continue;
        }
        let expected = columns.parity(stripe, column, parity);
        let mut header = ((columns.packet(stripe, 0, column) + 1) as u16).to_be_bytes().to_vec();
        header.extend(&expected[..2]);
        let eighth = if parity > 0 { expected[2] & 0x80 } else { 0 };
        header.extend([0x80 | expected[2], eighth, 0, 0]);
        header.extend(&expected[3..7]);
        let kind = if parity == 0 { 0 } else { 2 << 3 | parity as u8 };
        header.extend([kind, unit as u8, symbols.len() as u8, 0]);
        assert_eq!(datagram[12..28], header, "packet {packet} of track {track}");
        assert!(datagram[28..] == expected[7..], "parity of packet {packet}");
        assert_eq!(record % 0x10000 % 0xffff, ones_sum(&datagram[12..]), "sum of packet {packet}");
        sent(packet, &datagram);
    }
    assert_eq!(content.last_packet_bytes, 1332);
    missing
}

#[test]
fn fetch_of_parity_track_matches_parity_computed_from_media() {
    for shape in GEOMETRIES {
        let m = shape.1;
        for track in 1..=m.min(2) as u8 {
            let mut bench = bench(shape, track);
            let columns = Columns::new(&bench.sample);
            let mut packets = 0;
            for extent in 0..bench.title.extents() {
                let filled = bench.fetch(extent, 255, MemberView::default()).unwrap();
                assert_eq!(
                    (filled.content.spare, filled.decoded_bytes, filled.wrong),
                    (0, 0, MemberSet::EMPTY)
                );
                assert!(check(&bench, &columns, track, &filled, |_, _| packets += 1).is_empty());
            }
            let in_stripes = bench.sample.stripes.stripes() as usize - 1;
            let last = columns.unit.min(bench.sample.metas.len() - in_stripes * columns.k * columns.unit);
            let each = if track == 1 { 1 } else { usize::from(m) - 1 };
            assert_eq!(
                packets,
                (in_stripes * columns.unit + last) * each,
                "columns without packets have none"
            );
        }
    }
}

#[test]
fn fetch_of_parity_track_with_lost_member_misses_only_its_parity() {
    for shape in GEOMETRIES.into_iter().filter(|shape| shape.2 > 1) {
        for track in 1..=shape.1.min(2) as u8 {
            let mut bench = bench(shape, track);
            let columns = Columns::new(&bench.sample);
            for position in 0..shape.2 {
                for extent in 0..bench.title.extents() {
                    let view = MemberView::default().without(position);
                    let order = bench.order(extent, 255, view, false).unwrap();
                    assert!(order.spans.iter().all(|span| span.member != Some(position)));
                    let filled = bench.fetch(extent, 255, view).unwrap();
                    let missing = check(&bench, &columns, track, &filled, |_, _| ());
                    let content = filled.content;
                    let gone =
                        (content.first_packet..content.first_packet + content.packets).filter(|&packet| {
                            let (stripe, column, parity) = place(&bench.sample, track, packet);
                            let at = bench.sample.stripes.position_of(stripe as u32, columns.k + parity);
                            at == usize::from(position) && !columns.of(stripe, column).is_empty()
                        });
                    let gone: Vec<_> = gone.collect();
                    assert_eq!(content.spare, if gone.is_empty() { 0 } else { 255 });
                    assert_eq!((missing, filled.decoded_bytes), (gone, 0));
                }
            }
        }
    }
}

#[test]
fn wrong_and_short_parity_is_missing_and_its_member_is_named() {
    let mut bench = bench(GEOMETRIES[3], 1);
    let columns = Columns::new(&bench.sample);
    let order = bench.order(0, 255, MemberView::default(), false).unwrap();
    let good = Bench::read(&order);
    let place = order.spans.iter().position(|span| matches!(span.role, Role::Parity { .. })).unwrap();
    let member = order.spans[place].member.unwrap();
    let mut read = good.clone();
    read[place].as_mut().unwrap()[PACKET + 5] ^= 4;
    let Built::Done(filled) = bench.build(&order, &read) else { panic!("the others are there") };
    assert_eq!((filled.wrong, filled.content.spare), (MemberSet::of(member), 255));
    assert_eq!(check(&bench, &columns, 1, &filled, |_, _| ()).len(), 1);
    read[place].as_mut().unwrap().truncate(PACKET * 3 / 2);
    let Built::Done(filled) = bench.build(&order, &read) else { panic!("the others are there") };
    assert_eq!(filled.wrong, MemberSet::EMPTY);
    assert!(check(&bench, &columns, 1, &filled, |_, _| ()).len() > columns.unit);
    for role in [Role::StripeMeta, Role::ParityMeta] {
        let mut read = good.clone();
        let place = order.spans.iter().position(|span| span.role == role).unwrap();
        read[place].as_mut().unwrap()[10] ^= 4;
        assert_eq!(bench.build(&order, &read), Built::More { wrong: MemberSet::EMPTY });
        let order = bench.order(0, 255, MemberView::default(), true).unwrap();
        let mut read = Bench::read(&order);
        let place = order.spans.iter().position(|span| span.role == role).unwrap();
        read[place] = Err(libc::EIO);
        let Built::Done(filled) = bench.build(&order, &read) else { panic!("another has the same records") };
        assert!(check(&bench, &columns, 1, &filled, |_, _| ()).is_empty());
    }
}

/// Solves for lost packets of a column using only the data sent.
fn repair(
    columns: &Columns,
    stripe: usize,
    column: usize,
    lost: &[usize],
    parities: &[(usize, Vec<u8>)],
) -> Vec<Vec<u8>> {
    let n = lost.len();
    let mut system: Vec<(Vec<u8>, Vec<u8>)> = parities[..n]
        .iter()
        .map(|(parity, bytes)| {
            let mut rest = bytes.clone();
            for (unit, media) in
                columns.of(stripe, column).into_iter().enumerate().filter(|(unit, _)| !lost.contains(unit))
            {
                let factor = factor(columns.k, *parity, unit);
                rest.iter_mut().zip(media).for_each(|(rest, byte)| *rest ^= mul(factor, *byte));
            }
            (lost.iter().map(|&unit| factor(columns.k, *parity, unit)).collect(), rest)
        })
        .collect();
    for pivot in 0..n {
        let found = (pivot..n).find(|&stripe| system[stripe].0[pivot] != 0).unwrap();
        system.swap(pivot, found);
        let scale = inverse(system[pivot].0[pivot]);
        let scaled: Vec<u8> = system[pivot].0.iter().map(|x| mul(*x, scale)).collect();
        let bytes: Vec<u8> = system[pivot].1.iter().map(|x| mul(*x, scale)).collect();
        system[pivot] = (scaled.clone(), bytes.clone());
        for other in (0..n).filter(|&other| other != pivot) {
            let factor = system[other].0[pivot];
            system[other].0.iter_mut().zip(&scaled).for_each(|(a, b)| *a ^= mul(factor, *b));
            system[other].1.iter_mut().zip(&bytes).for_each(|(a, b)| *a ^= mul(factor, *b));
        }
    }
    system.into_iter().map(|(_, bytes)| bytes).collect()
}

proptest! {
    // A case makes a whole title: fewer of them, but still as many more as are asked for.
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.div_ceil(16)))]
    /// Up to m packets of any columns come back whole (length, payload type, timestamp, payload) from the FEC datagrams.
    #[test]
    fn fec_datagrams_recover_up_to_m_lost_packets(
        index in 0..GEOMETRIES.len(),
        picks in proptest::collection::vec((any::<prop::sample::Index>(), any::<u32>()), 1..12),
    ) {
        let (shape, m) = (GEOMETRIES[index], usize::from(GEOMETRIES[index].1));
        let mut sent = HashMap::new();
        let mut columns = None;
        for track in 1..=m.min(2) as u8 {
            let mut bench = bench(shape, track);
            let known = columns.get_or_insert_with(|| Columns::new(&bench.sample));
            for extent in 0..bench.title.extents() {
                let filled = bench.fetch(extent, 255, MemberView::default()).unwrap();
                let content = filled.content;
                for number in 0..content.packets {
                    let (datagram, record) = packet_of(&bench.bytes, &content, number);
                    if record >> 16 & 0x80 == 0 {
                        let key = place(&bench.sample, track, content.first_packet + number);
                        // Fields as they lie in the header: length, type, timestamp; and the parity.
                        let mut bytes = datagram[14..16].to_vec();
                        bytes.push(datagram[16] & 0x7f | if datagram[24] >> 3 & 7 == 2 { datagram[17] & 0x80 } else { 0 });
                        bytes.extend(&datagram[20..24]);
                        bytes.extend(&datagram[28..]);
                        sent.insert(key, bytes);
                    }
                }
            }
            let _ = known;
        }
        let columns = columns.unwrap();
        let all: Vec<(usize, usize)> = {
            let mut all: Vec<_> = sent.keys().map(|(stripe, column, _)| (*stripe, *column)).collect();
            all.sort_unstable();
            all.dedup();
            all
        };
        for (pick, mask) in picks {
            let (stripe, column) = all[pick.index(all.len())];
            let symbols = columns.of(stripe, column);
            let lost: Vec<usize> = (0..symbols.len()).filter(|unit| mask >> unit & 1 != 0).take(m).collect();
            let parities: Vec<_> =
                (0..m).rev().filter_map(|p| Some((p, sent.get(&(stripe, column, p))?.clone()))).collect();
            for (unit, media) in lost.iter().zip(repair(&columns, stripe, column, &lost, &parities)) {
                prop_assert!(&media == symbols[*unit], "unit {unit} of column {column} of stripe {stripe}");
            }
        }
    }
}
