use millrace_core::time::Instant;

use super::*;
use crate::recv::{ClusterSize, Offered, Pages, ReceivedSegment, ReceiverSettings, SegmentRefusal};

/// A receiver, its pages, and segments whose place and length alone matter.
struct Peer {
    receiver: Receiver,
    pages: Pages,
    now: Instant,
}

impl Peer {
    fn new(next: u32) -> Self {
        let settings = ReceiverSettings {
            next: Seq(next),
            limit_bytes: 60_000,
            scale: 0,
            mss: 1460,
            is_sack_permitted: true,
        };
        let clusters = [
            ClusterSize { bytes: 1 << 18, page_bytes: 4096 },
            ClusterSize { bytes: 1 << 18, page_bytes: 2048 },
        ];
        Self { receiver: Receiver::new(&settings), pages: Pages::new(&clusters), now: Instant(0) }
    }

    fn offer(&mut self, from: u32, to: u32) -> Offered {
        self.offer_more(from, to, false, false)
    }

    fn offer_more(&mut self, from: u32, to: u32, is_fin: bool, is_marked: bool) -> Offered {
        let payload = vec![9; to.wrapping_sub(from) as usize];
        let arrival =
            ReceivedSegment { seq: Seq(from), payload: &payload, is_fin, is_marked, expected_sum: None };
        self.receiver.offer(&mut self.pages, self.now, &arrival)
    }

    /// Offers a segment, and returns the content of the ACK, which must be due at once.
    fn ack(&mut self, from: u32, to: u32) -> (u32, Vec<(u32, u32)>) {
        self.offer(from, to);
        assert_eq!(self.receiver.ack_due(), AckDue::Now);
        self.sent()
    }

    fn sent(&mut self) -> (u32, Vec<(u32, u32)>) {
        let sacks =
            self.receiver.sacks(&self.pages).blocks().iter().map(|(left, right)| (left.0, right.0)).collect();
        self.receiver.ack_sent(&mut self.pages);
        (self.receiver.next().0, sacks)
    }
}

//= RFC 9293 section 3.8.6.3
//= type=test
//# A TCP endpoint SHOULD implement a delayed ACK (SHLD-18), but an ACK
//# should not be excessively delayed; in particular, the delay MUST be
//# less than 0.5 seconds (MUST-40).
#[test]
fn delayed_ack_deadline_is_not_extended_by_second_segment() {
    const { assert!(DELAYED_ACK_NS < 500_000_000) };
    let mut peer = Peer::new(0);
    assert_eq!(peer.receiver.ack_due(), AckDue::Never);
    peer.offer(0, 100);
    let due = AckDue::At(Instant(DELAYED_ACK_NS));
    assert_eq!(peer.receiver.ack_due(), due);
    peer.now = Instant(DELAYED_ACK_NS / 2);
    peer.offer(100, 200);
    assert_eq!(peer.receiver.ack_due(), due);
    assert_eq!((peer.sent(), peer.receiver.last_ack_sent()), ((200, vec![]), Seq(200)));
    assert_eq!(peer.receiver.ack_due(), AckDue::Never);
}

//= RFC 9293 section 3.8.6.3
//= type=test
//# An ACK SHOULD be generated for at
//# least every second full-sized segment or 2*RMSS bytes of new data
#[test]
fn ack_is_sent_for_alternate_full_segments_of_any_mss() {
    for bytes in [536, 1000, 1448, 1460] {
        let mut peer = Peer::new(0);
        for i in 0..6 {
            peer.offer(2 * i * bytes, (2 * i + 1) * bytes);
            assert_ne!(peer.receiver.ack_due(), AckDue::Now, "{bytes}");
            assert_eq!(peer.ack((2 * i + 1) * bytes, (2 * i + 2) * bytes), ((2 * i + 2) * bytes, vec![]));
        }
    }
    // A segment longer than any that was announced counts as several.
    let mut peer = Peer::new(0);
    assert_eq!(peer.ack(0, 2920), (2920, vec![]));
    peer.offer(2920, 4380);
    assert_eq!(peer.ack(4380, 5840), (5840, vec![]));
}

//= RFC 5681 section 4.2
//= type=test
//# Out-of-order data segments SHOULD be acknowledged immediately, in
//# order to accelerate loss recovery.
//= RFC 5681 section 4.2
//= type=test
//# To
//# provide feedback to senders recovering from losses, the receiver
//# SHOULD send an immediate ACK when it receives a data segment that
//# fills in all or part of a gap in the sequence space.
#[test]
fn holes_fins_marks_and_segments_for_nothing_are_acknowledged_at_once() {
    let mut peer = Peer::new(0);
    assert_eq!(peer.ack(100, 200), (0, vec![(100, 200)]));
    assert_eq!(peer.ack(0, 50), (50, vec![(100, 200)]), "part of the gap");
    assert_eq!(peer.ack(50, 100), (200, vec![]), "all of it");
    peer.offer(200, 200);
    assert_eq!(peer.receiver.ack_due(), AckDue::Never, "nothing is in it");
    peer.offer_more(200, 210, false, true);
    assert_eq!(peer.receiver.ack_due(), AckDue::Now, "marked");
    peer.sent();
    assert_eq!(peer.offer(70_000, 70_001), Offered::Refused(SegmentRefusal::OutOfWindow));
    assert_eq!(peer.receiver.ack_due(), AckDue::Now, "outside the window");
    peer.sent();
    peer.offer_more(210, 220, true, false);
    assert_eq!(peer.receiver.ack_due(), AckDue::Now, "FIN");
    assert_eq!(peer.sent(), (221, vec![]));
    // A FIN that came early is reached by data in order.
    let mut peer = Peer::new(0);
    peer.offer_more(10, 10, true, false);
    peer.sent();
    assert_eq!(peer.ack(0, 10), (11, vec![]));
    peer.receiver.ack_now();
    assert_eq!(peer.receiver.ack_due(), AckDue::Now, "asked for");
}

//= RFC 2018 section 4
//= type=test
//# The first SACK block (i.e., the one immediately following the
//# kind and length fields in the option) MUST specify the contiguous
//# block of data containing the segment which triggered this ACK,
//# unless that segment advanced the Acknowledgment Number field in
//# the header.
#[test]
fn sack_blocks_start_with_latest_one() {
    let mut peer = Peer::new(0);
    assert_eq!(peer.ack(1000, 1100), (0, vec![(1000, 1100)]));
    assert_eq!(peer.ack(3000, 3100), (0, vec![(3000, 3100), (1000, 1100)]));
    assert_eq!(peer.ack(2000, 2100), (0, vec![(2000, 2100), (3000, 3100), (1000, 1100)]));
    // It grows by what touches it, at the end, in front and between.
    assert_eq!(peer.ack(3100, 3200), (0, vec![(3000, 3200), (2000, 2100), (1000, 1100)]));
    assert_eq!(peer.ack(900, 1000), (0, vec![(900, 1100), (3000, 3200), (2000, 2100)]));
    assert_eq!(peer.ack(2100, 3000), (0, vec![(2000, 3200), (900, 1100)]));
    // A fourth block pushes the oldest out, which is known again when it changes.
    assert_eq!(peer.ack(5000, 5100), (0, vec![(5000, 5100), (2000, 3200), (900, 1100)]));
    assert_eq!(peer.ack(6000, 6100), (0, vec![(6000, 6100), (5000, 5100), (2000, 3200)]));
    assert_eq!(peer.ack(1100, 1200), (0, vec![(900, 1200), (6000, 6100), (5000, 5100)]));
    // The acknowledgment number passes blocks.
    assert_eq!(peer.ack(0, 900), (1200, vec![(6000, 6100), (5000, 5100)]));
    assert_eq!(peer.ack(1200, 2000), (3200, vec![(6000, 6100), (5000, 5100)]));
}

//= RFC 2018 section 4
//= type=test
//# If the data receiver has not received a
//# SACK-Permitted option for a given connection, it MUST NOT send SACK
//# options on that connection.
#[test]
fn sack_without_permission_is_not_sent() {
    let mut peer = Peer::new(0);
    peer.receiver.state.is_sack_permitted = false;
    assert_eq!(peer.ack(1000, 1100), (0, vec![]));
    assert_eq!(peer.ack(1000, 1100), (0, vec![]));
}

//= RFC 2883 section 4
//= type=test
//# The left edge of the D-SACK block specifies the first sequence
//# number of the duplicate contiguous sequence, and the right edge of
//# the D-SACK block specifies the sequence number immediately following
//# the last sequence in the duplicate contiguous sequence.
#[test]
fn examples_1_to_3_whole_duplicates() {
    let mut peer = Peer::new(3000);
    peer.offer(3000, 3500);
    peer.offer(3500, 4000);
    peer.sent();
    assert_eq!(peer.ack(3000, 3500), (4000, vec![(3000, 3500)]));
    assert_eq!(peer.ack(4500, 5000), (4000, vec![(4500, 5000)]), "it is told once");
    assert_eq!(peer.ack(3000, 3500), (4000, vec![(3000, 3500), (4500, 5000)]));
    assert_eq!(peer.ack(5000, 5500), (4000, vec![(4500, 5500)]));
    assert_eq!(peer.ack(5000, 5500), (4000, vec![(5000, 5500), (4500, 5500)]));
}

//= RFC 2883 section 4.2
//= type=test
//# When the SACK option is used for reporting partial duplicate
//# segments, the first D-SACK block reports the first duplicate sub-
//# segment.
#[test]
fn examples_4_to_6_partial_duplicates() {
    let mut peer = Peer::new(1000);
    assert_eq!(peer.ack(2000, 2500), (1000, vec![(2000, 2500)]));
    assert_eq!(peer.ack(1000, 1500), (1500, vec![(2000, 2500)]));
    assert_eq!(peer.ack(1000, 2000), (2500, vec![(1000, 1500)]));

    let mut peer = Peer::new(1000);
    assert_eq!(peer.ack(3000, 3500), (1000, vec![(3000, 3500)]));
    assert_eq!(peer.ack(1000, 1500), (1500, vec![(3000, 3500)]));
    assert_eq!(peer.ack(2000, 2500), (1500, vec![(2000, 2500), (3000, 3500)]));
    assert_eq!(peer.ack(1000, 2500), (2500, vec![(1000, 1500), (3000, 3500)]));

    let mut peer = Peer::new(1000);
    assert_eq!(peer.ack(3500, 4000), (1000, vec![(3500, 4000)]));
    assert_eq!(peer.ack(1500, 2000), (1000, vec![(1500, 2000), (3500, 4000)]));
    assert_eq!(peer.ack(2500, 3000).1[0], (2500, 3000));
    assert_eq!(peer.ack(1500, 3000), (1000, vec![(1500, 2000), (1500, 3000), (3500, 4000)]));
}
