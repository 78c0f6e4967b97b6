use proptest::prelude::*;

use super::*;

fn point(byte: u64, ticks: u64) -> Point {
    Point { byte, ticks, jump: false }
}

fn all(packetizer: &mut Packetizer, limit: u64) -> Vec<CompletePacket> {
    std::iter::from_fn(|| packetizer.next_ready(limit)).collect()
}

/// RFC 1071, word by word.
fn reference(bytes: &[u8]) -> u16 {
    bytes.chunks(2).fold(0u32, |sum, w| {
        let sum = sum + u32::from(w[0]) * 256 + u32::from(*w.get(1).unwrap_or(&0));
        sum % 65_536 + sum / 65_536
    }) as u16
}

#[test]
fn next_ready_returns_packet_once_whole_timed_and_unmarkable() {
    let mut p = Packetizer::new(376, true);
    p.data(&[1; 188]);
    p.point(point(0, 0));
    p.point(point(188, 300));
    assert!(p.next_ready(u64::MAX).is_none(), "not whole");
    p.data(&[1; 188 * 3]);
    assert!(p.next_ready(375).is_none(), "may still be marked");
    let first = p.next_ready(376).unwrap();
    assert_eq!((first.number, first.ticks, first.meta.sum()), (0, 0, reference(&[1; 376])));
    assert!(p.next_ready(u64::MAX).is_none(), "time not known");
    p.point(point(752, 300 + 564 * 3));
    assert_eq!(p.next_ready(u64::MAX).unwrap().ticks, 300 + 188 * 3);
    assert!(p.next_ready(u64::MAX).is_none());
}

#[test]
fn marks_are_on_the_packet_that_holds_the_byte() {
    let mut p = Packetizer::new(376, false);
    p.data(&[7; 376 * 4]);
    p.mark_access(0);
    p.mark_access(376 * 2 + 188);
    p.point(Point { byte: 376 * 2, ticks: 600, jump: true });
    p.point(point(376 * 4, 1200));
    let flags: Vec<u8> = all(&mut p, u64::MAX).iter().map(|r| r.meta.flags()).collect();
    let (access, jump) = (PacketMeta::RANDOM_ACCESS, PacketMeta::DISCONTINUITY);
    assert_eq!(flags, [access, 0, access | jump, 0]);
}

#[test]
fn packetizer_last_packet_may_be_short() {
    let mut p = Packetizer::new(1316, true);
    p.data(&[3; 1316 + 376]);
    p.end();
    p.point(point(1316 + 376, 9000));
    let ready = all(&mut p, u64::MAX);
    assert_eq!(ready.iter().map(|r| r.bytes).collect::<Vec<_>>(), [1316, 376]);
    assert_eq!(ready[1].meta.sum(), reference(&[3; 376]));
}

proptest! {
    #[test]
    fn sums_and_counts_do_not_depend_on_the_runs(
        packets in proptest::collection::vec(proptest::array::uniform4(any::<u8>()), 1..60),
        cuts in proptest::collection::vec(1usize..9, 1..20),
        ts_per_packet in 1usize..9,
    ) {
        let data: Vec<u8> = packets.iter().flat_map(|p| p.iter().copied().cycle().take(188)).collect();
        let size = ts_per_packet * 188;
        let mut p = Packetizer::new(size as u16, true);
        let (mut rest, mut cuts) = (&data[..], cuts.iter().cycle());
        while !rest.is_empty() {
            let (now, later) = rest.split_at((cuts.next().unwrap() * 188).min(rest.len()));
            p.data(now);
            rest = later;
        }
        p.end();
        p.point(point(data.len() as u64, 1_000_000));
        let ready = all(&mut p, u64::MAX);
        prop_assert_eq!(ready.len(), data.len().div_ceil(size));
        for (r, bytes) in ready.iter().zip(data.chunks(size)) {
            prop_assert_eq!(r.meta.sum(), reference(bytes));
            prop_assert_eq!(r.bytes, bytes.len());
        }
    }
}

#[test]
fn peak_rate_is_rate_of_densest_second() {
    let mut peak = PeakRate::new();
    let second = millrace_media::ts_packet::SYSTEM_HZ;
    for i in 0..100 {
        peak.add(i * second / 10, 1000); // 10 kB/s for 10 s
    }
    assert_eq!(peak.bytes_per_s(), 10_000);
    for i in 0..50 {
        peak.add(10 * second + i * second / 100, 1000); // 50 kB within 0.5 s, half a second after 5 kB
    }
    assert_eq!(peak.bytes_per_s(), 55_000);
    peak.add(1_000_000 * second, 100);
    assert_eq!(peak.bytes_per_s(), 55_000);
}
