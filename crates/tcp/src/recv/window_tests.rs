use proptest::prelude::*;

use super::*;
use crate::recv::{ClusterSize, Offered, Pages, ReceivedSegment, ReceiverSettings};
use millrace_core::time::Instant;

fn receiver(limit_bytes: u32, scale: u8) -> Receiver {
    Receiver::new(&ReceiverSettings {
        next: Seq(1000),
        limit_bytes,
        scale,
        mss: 1000,
        is_sack_permitted: true,
    })
}

fn pages() -> Pages {
    Pages::new(&[
        ClusterSize { bytes: 1 << 20, page_bytes: 4096 },
        ClusterSize { bytes: 1 << 20, page_bytes: 2048 },
    ])
}

fn take(receiver: &mut Receiver, pages: &mut Pages, bytes: usize) {
    let payload = vec![7; bytes];
    let seq = receiver.next();
    let arrival =
        ReceivedSegment { seq, payload: &payload, is_fin: false, is_marked: false, expected_sum: None };
    assert_eq!(receiver.offer(pages, Instant(0), &arrival), Offered::Ready { bytes: bytes as u32 });
}

//= RFC 9293 section 3.10.7.4
//= type=test
//# If the RCV.WND is zero, no segments will be acceptable, but
//# special allowance should be made to accept valid ACKs, URGs, and
//# RSTs.
#[test]
fn is_acceptable_covers_four_cases_of_rfc_9293() {
    let (mut receiver, mut pages) = (receiver(3000, 0), pages());
    receiver.window();
    let acceptable = |receiver: &Receiver, seq, bytes| receiver.is_acceptable(Seq(seq), bytes);
    for (seq, bytes, expected) in [
        (999, 0, false),
        (1000, 0, true),
        (3999, 0, true),
        (4000, 0, false),
        (999, 1, false),
        (999, 2, true),
        (1000, 1, true),
        (3999, 5, true),
        (4000, 1, false),
        (500, 500, false),
        (500, 501, true),
        (500, 3501, false), // neither its first nor its last byte is in the window
    ] {
        assert_eq!(acceptable(&receiver, seq, bytes), expected, "{seq} {bytes}");
    }
    take(&mut receiver, &mut pages, 3000);
    assert_eq!((receiver.window(), receiver.open_bytes()), (0, 0));
    for (seq, bytes, expected) in
        [(4000, 0, true), (4001, 0, false), (3999, 0, false), (4000, 1, false), (3999, 2, false)]
    {
        assert_eq!(acceptable(&receiver, seq, bytes), expected, "{seq} {bytes}, window 0");
    }
}

//= RFC 9293 section 3.8.6.2.2
//= type=test
//# A TCP implementation MUST include a SWS avoidance algorithm in the
//# receiver (MUST-39).
//= RFC 9293 section 3.8.6.2.2
//= type=test
//# The suggested SWS avoidance algorithm for the receiver is to keep
//# RCV.NXT+RCV.WND fixed until the reduction satisfies:
#[test]
fn window_opens_in_steps_of_segment_or_half_buffer() {
    for (limit, step) in [(4000, 1000), (600, 300)] {
        let (mut receiver, mut pages) = (receiver(limit, 0), pages());
        take(&mut receiver, &mut pages, limit as usize);
        assert_eq!(receiver.window(), 0);
        receiver.consume(&mut pages, step - 1);
        assert_eq!(receiver.window(), 0);
        receiver.ack_sent(&mut pages);
        assert_eq!(receiver.ack_due(), crate::recv::AckDue::Never);
        receiver.consume(&mut pages, 1);
        assert_eq!(receiver.ack_due(), crate::recv::AckDue::Now, "the window opens");
        assert_eq!(receiver.window(), step as u16);
        receiver.ack_sent(&mut pages);
        assert_eq!(receiver.ack_due(), crate::recv::AckDue::Never);
    }
}

#[test]
fn reading_at_arrival_rate_adds_no_window_updates() {
    let (mut receiver, mut pages) = (receiver(64_000, 0), pages());
    let mut acks = 0;
    for _ in 0..1000 {
        take(&mut receiver, &mut pages, 1000);
        receiver.consume(&mut pages, 1000);
        if receiver.ack_due() == crate::recv::AckDue::Now {
            receiver.window();
            receiver.ack_sent(&mut pages);
            acks += 1;
        }
    }
    assert_eq!(acks, 500);
}

//= RFC 7323 section 2.2
//= type=test
//# The window field in a segment where the SYN bit is set (i.e., a <SYN>
//# or <SYN,ACK>) MUST NOT be scaled.
#[test]
fn window_of_syn_is_not_scaled_and_next_one_is() {
    let mut receiver = receiver(1_000_000, 5);
    assert_eq!((of_syn(1_000_000), receiver.open_bytes()), (u16::MAX, 65_535));
    assert_eq!(receiver.window(), 31_250);
    assert_eq!(receiver.open_bytes(), 1_000_000);
    assert_eq!(of_syn(77), 77);
}

#[test]
fn scale_for_offers_scale_that_reaches_limit() {
    assert_eq!([1, 65_535, 65_536, 1 << 20, u32::MAX].map(scale_for), [0, 0, 1, 5, 14]);
    for bytes in [65_536u32, 100_000, 1 << 17, 120_000, 125_000, 1 << 22] {
        assert_eq!(limit(bytes, scale_for(bytes)), bytes);
    }
    assert_eq!((limit(100_000, 0), limit(0, 3), limit(u32::MAX, 14) > 1 << 29), (65_535, 8, true));
}

proptest! {
    //= RFC 9293 section 3.8.6
    //= type=test
    //# A TCP receiver SHOULD NOT shrink the window, i.e., move the right
    //# window edge to the left (SHLD-14).
    #[test]
    fn right_edge_with_scale_shrinks_less_than_one_unit_and_stays_bounded(
        scale in 0u8..8,
        limit in prop_oneof![1u32..3000, 3000u32..200_000],
        steps in prop::collection::vec((0u8..3, 1usize..3000), 1..200),
    ) {
        let (mut receiver, mut pages) = (receiver(limit, scale), pages());
        let limit = super::limit(limit, scale);
        let mut announced = receiver.next() + receiver.open_bytes();
        for (step, bytes) in steps {
            match step {
                0 | 1 => {
                    // Single bytes too: where rounding adds up.
                    let bytes = if step == 0 { bytes } else { 1 }.min(receiver.open_bytes() as usize);
                    if bytes > 0 {
                        take(&mut receiver, &mut pages, bytes);
                    }
                }
                _ => drop(receiver.consume(&mut pages, bytes)),
            }
            let edge = receiver.next() + (u32::from(receiver.window()) << scale);
            prop_assert!(announced.since(edge) < 1 << scale, "{:?} after {:?}", edge, announced);
            announced = announced.max(edge);
            let memory = announced.since(receiver.next()) as u32 + receiver.unread_bytes();
            prop_assert!(memory <= limit + (limit >> SLACK_SHIFT), "{} of {}", memory, limit);
            prop_assert_eq!(announced, receiver.next() + receiver.open_bytes());
            receiver.ack_sent(&mut pages);
            prop_assert_eq!(receiver.ack_due(), crate::recv::AckDue::Never, "what has been told is told");
        }
    }

    #[test]
    fn right_edge_without_scale_never_shrinks(steps in prop::collection::vec((any::<bool>(), 1usize..3000), 1..200)) {
        let (mut receiver, mut pages) = (receiver(20_000, 0), pages());
        let mut announced = Seq(1000);
        for (is_read, bytes) in steps {
            if is_read {
                receiver.consume(&mut pages, bytes);
            } else if receiver.open_bytes() > 0 {
                let bytes = bytes.min(receiver.open_bytes() as usize);
                take(&mut receiver, &mut pages, bytes);
            }
            let edge = receiver.next() + u32::from(receiver.window());
            prop_assert!(announced.up_to(edge));
            prop_assert!(edge.since(receiver.next()) as u32 + receiver.unread_bytes() <= 20_000);
            announced = edge;
        }
    }
}
