use super::*;

const MS: u64 = 1_000_000;

/// A datagram of this number whose payload is the number.
fn datagram(ssrc: u32, sequence: u16) -> Vec<u8> {
    let header = RtpHeader { marker: false, payload_type: 33, sequence, timestamp: 0, ssrc };
    [&header.emit()[..], &sequence.to_be_bytes()].concat()
}

fn number(payload: &[u8]) -> u16 {
    u16::from_be_bytes([payload[0], payload[1]])
}

/// Delivered numbers, where packet `n` comes at millisecond `n`.
fn delivered(reorder: &mut RtpReorder, sequences: &[u16]) -> Vec<u16> {
    let mut out = Vec::new();
    for (at, &sequence) in (1_000_u64..).zip(sequences) {
        assert!(reorder.push(Instant(at * MS), &datagram(1, sequence), &mut |p| out.push(number(p))));
    }
    out
}

#[test]
fn swapped_packets_come_in_order_across_the_wrap() {
    let mut reorder = RtpReorder::default();
    let out = delivered(&mut reorder, &[65_533, 65_535, 65_534, 1, 0, 2]);
    assert_eq!(out, [65_533, 65_534, 65_535, 0, 1, 2]);
    assert_eq!(reorder.counts(), RtpCounts { reordered: 2, ..RtpCounts::default() });
    assert_eq!(reorder.deadline(), None);
}

#[test]
fn duplicates_are_dropped_delivered_or_held() {
    let mut reorder = RtpReorder::default();
    assert_eq!(delivered(&mut reorder, &[7, 7, 9, 9, 8, 8, 9, 10]), [7, 8, 9, 10]);
    assert_eq!(reorder.counts().late, 4);
}

#[test]
fn missing_packet_is_given_up_after_its_time() {
    let mut reorder = RtpReorder::default();
    assert_eq!(delivered(&mut reorder, &[5, 7, 8]), [5]);
    assert_eq!(reorder.deadline(), Some(Instant(1_001 * MS + REORDER_NS)));
    let mut out = Vec::new();
    reorder.expire(Instant(1_050 * MS), &mut |p| out.push(number(p)));
    assert_eq!(out, [] as [u16; 0]);
    reorder.expire(Instant(1_051 * MS), &mut |p| out.push(number(p)));
    assert_eq!((out, reorder.counts().lost, reorder.deadline()), (vec![7, 8], 1, None));
}

#[test]
fn full_window_gives_up_the_oldest() {
    let mut reorder = RtpReorder::default();
    let count = REORDER_PACKETS as u16;
    let sequences: Vec<u16> = [0].into_iter().chain(2..count + 2).collect();
    assert_eq!(delivered(&mut reorder, &sequences), sequences);
    assert_eq!(reorder.counts().lost, 1);
}

#[test]
fn restart_jump_and_other_source_begin_anew() {
    let mut reorder = RtpReorder::default();
    assert_eq!(delivered(&mut reorder, &[5, 7, 30_000, 30_001]), [5, 7, 30_000, 30_001]);
    let mut out = Vec::new();
    reorder.push(Instant(2_000 * MS), &datagram(2, 29_999), &mut |p| out.push(number(p)));
    // The same source after a silence: a smaller number is not late.
    reorder.push(Instant(5_000 * MS), &datagram(2, 29_990), &mut |p| out.push(number(p)));
    assert_eq!((out, reorder.counts().restarts), (vec![29_999, 29_990], 3));
}

#[test]
fn what_is_no_rtp_is_refused() {
    let mut reorder = RtpReorder::default();
    for bytes in [&[][..], &[0x47; 188], &[0x80, 33]] {
        assert!(!reorder.push(Instant(0), bytes, &mut |_| panic!("delivered")));
    }
}
