use super::*;
use millrace_core::random::SplitMix;

/// An IPv4 header with a right sum, and `payload` behind it.
fn packet(ecn: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, ecn, 0, 0, 1, 2, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    let sum = !sum16(&packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend_from_slice(payload);
    packet
}

#[test]
fn flipped_bits_change_the_sum_of_what_they_lie_in_wherever_that_is() {
    let mut random = SplitMix(3);
    for payload in [&[][..], &[0], &[0xff; 2], &[0; 3], &[0xff; 1001]] {
        let sound = packet(0, payload);
        // A sum of all zero bits and one of all one bits are the same nothing.
        let sum = |bytes: &[u8]| sum16(bytes) % 0xffff;
        let mut was_hit = vec![false; sound.len()];
        for _ in 0..100_000 {
            let mut damaged = sound.clone();
            damaged.flip_bits(random.next());
            let (header, rest) = damaged.split_at(20);
            let differ = [sum(header) != sum(&sound[..20]), sum(rest) != sum(&sound[20..])];
            assert!(differ[0] ^ differ[1], "{damaged:?}");
            was_hit.iter_mut().zip(damaged.iter().zip(&sound)).for_each(|(hit, (a, b))| *hit |= a != b);
        }
        assert!(!was_hit[0] && !was_hit[1]);
        assert!(was_hit[2..].iter().all(|hit| *hit), "every byte is hit at times");
    }
    for len in 0..3 {
        let mut short = vec![0x45; len];
        short.flip_bits(random.next());
        assert_eq!(short.len(), len);
    }
}

#[test]
fn mark_sets_ce_only_on_ecn_capable_packets() {
    for (ecn, marked) in [(0, false), (1, true), (2, true), (3, true)] {
        let mut packet = packet(0xa0 | ecn, b"payload");
        assert_eq!(packet.mark(), marked, "{ecn}");
        assert_eq!(packet[1], 0xa0 | if marked { 3 } else { 0 });
        assert_eq!(sum16(&packet[..20]), 0xffff, "{ecn}");
        assert_eq!(&packet[20..], b"payload");
    }
    let mut six = vec![0x60, 0x2a, 0, 0];
    assert!(six.mark());
    assert_eq!(six, [0x60, 0x3a, 0, 0]);
    assert!(!vec![0x60, 0x0a, 0, 0].mark());
    for bad in [&[][..], &[0x45], &[0x60], &[0x4f, 3, 0, 0], &[0x43; 20], &[0x4f; 30], &[0; 40]] {
        assert!(!bad.to_vec().mark(), "{bad:?}");
    }
}
