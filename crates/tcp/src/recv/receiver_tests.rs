use proptest::prelude::*;

use super::*;
use crate::recv::ClusterSize;

const LIMIT: u32 = 6000;

fn pages() -> Pages {
    Pages::new(&[
        ClusterSize { bytes: 1 << 16, page_bytes: 2048 },
        ClusterSize { bytes: 1 << 18, page_bytes: 2048 },
    ])
}

fn receiver(next: Seq) -> Receiver {
    Receiver::new(&ReceiverSettings {
        next,
        limit_bytes: LIMIT,
        scale: 0,
        mss: 1000,
        is_sack_permitted: true,
    })
}

fn arrival(seq: u32, payload: &[u8], is_fin: bool) -> ReceivedSegment<'_> {
    ReceivedSegment { seq: Seq(seq), payload, is_fin, is_marked: false, expected_sum: Some(sum16(payload)) }
}

fn offer(receiver: &mut Receiver, pages: &mut Pages, seq: u32, payload: &[u8], is_fin: bool) -> Offered {
    receiver.offer(pages, Instant(0), &arrival(seq, payload, is_fin))
}

fn read(receiver: &mut Receiver, pages: &mut Pages) -> Vec<u8> {
    let mut out = vec![0; 100_000];
    let bytes = receiver.read(pages, &mut out);
    out.truncate(bytes);
    out
}

#[test]
fn data_is_read_in_order_however_it_came() {
    let (mut receiver, mut pages) = (receiver(Seq(100)), pages());
    let mut step = |seq, payload: &[u8], is_fin| offer(&mut receiver, &mut pages, seq, payload, is_fin);
    assert_eq!(step(100, b"abc", false), Offered::Ready { bytes: 3 });
    assert_eq!(step(106, b"gh", false), Offered::Early { bytes: 2 });
    assert_eq!(step(106, b"gh", false), Offered::Duplicate);
    assert_eq!(step(101, b"bc", false), Offered::Duplicate);
    assert_eq!(step(101, b"bcd", false), Offered::Ready { bytes: 1 });
    assert_eq!(step(8000, b"x", false), Offered::Refused(SegmentRefusal::OutOfWindow));
    assert_eq!(step(103, b"defghijk", false), Offered::Ready { bytes: 7 });
    assert_eq!((receiver.next(), receiver.unread_bytes(), receiver.has_early()), (Seq(111), 11, false));
    assert_eq!(receiver.peek(&pages), b"abcdef");
    assert_eq!((receiver.consume(&mut pages, 2), receiver.peek(&pages)), (2, &b"cdef"[..]));
    assert_eq!(read(&mut receiver, &mut pages), b"cdefghijk");
    assert_eq!((receiver.unread_bytes(), pages.used(READY).0, pages.used(EARLY).0), (0, 0, 0));
    assert_eq!((receiver.consume(&mut pages, 9), receiver.peek(&pages)), (0, &b""[..]));
}

//= RFC 9293 section 3.1
//= type=test
//# The sender MUST generate it
//# (MUST-2) and the receiver MUST check it (MUST-3).
#[test]
fn offer_with_wrong_checksum_changes_nothing() {
    let (mut receiver, mut pages) = (receiver(Seq(100)), pages());
    offer(&mut receiver, &mut pages, 100, b"ab", false);
    receiver.ack_sent(&mut pages);
    let mut wrong = |seq, payload: &[u8], is_fin| {
        let arrival =
            ReceivedSegment { expected_sum: Some(sum16(payload) ^ 0x100), ..arrival(seq, payload, is_fin) };
        assert_eq!(
            receiver.offer(&mut pages, Instant(0), &arrival),
            Offered::Refused(SegmentRefusal::WrongSum),
            "{seq}"
        );
        let state = (receiver.next(), receiver.is_finished(), receiver.has_early(), receiver.ack_due());
        assert_eq!(state, (Seq(102), false, false, crate::recv::AckDue::Never));
        assert_eq!((receiver.peek(&pages), receiver.sacks(&pages).blocks().len()), (&b"ab"[..], 0));
    };
    wrong(102, b"cde", false);
    wrong(102, &[1; 2048], false); // in a page of its own
    wrong(102, &[1; 3000], false); // in several
    wrong(101, b"bcd", false); // part of it is there
    wrong(101, b"b", false); // all of it is
    wrong(110, b"x", false); // behind a hole
    wrong(102, b"", true);
    wrong(102, b"", false);
    wrong(102, b"c", true);
    wrong(20_000, b"x", false);
    assert_eq!((pages.used(READY).0, pages.used(EARLY).0), (1, 0));
    // A sum of zero is right in both forms.
    let zeros = ReceivedSegment { expected_sum: Some(0xffff), ..arrival(102, &[0; 4], false) };
    assert_eq!(receiver.offer(&mut pages, Instant(0), &zeros), Offered::Ready { bytes: 4 });
    let none = ReceivedSegment { expected_sum: Some(0xffff), ..arrival(106, &[], false) };
    assert_eq!(receiver.offer(&mut pages, Instant(0), &none), Offered::Ready { bytes: 0 });
}

//= RFC 9293 section 3.10.7.4
//= type=test
//# If the FIN bit is set, signal the user "connection closing"
//# and return any pending RECEIVEs with same message, advance
//# RCV.NXT over the FIN, and send an acknowledgment for the FIN.
#[test]
fn fin_is_reached_after_all_preceding_data() {
    for steps in [
        &[(100u32, &b"abcd"[..], true)][..],
        &[(100, b"abcd", false), (104, b"", true)],
        &[(104, b"", true), (100, b"abcd", false)],
        &[(102, b"cd", true), (100, b"ab", false)],
        &[(102, b"cd", true), (102, b"cd", true), (100, b"abcd", true)],
        &[(102, b"cd", false), (100, b"abcd", true)],
        &[(101, b"b", false), (103, b"d", true), (100, b"abc", false)],
    ] {
        let (mut receiver, mut pages) = (receiver(Seq(100)), pages());
        for (i, &(seq, payload, is_fin)) in steps.iter().enumerate() {
            let is_last = i + 1 == steps.len();
            let offered = offer(&mut receiver, &mut pages, seq, payload, is_fin);
            assert_eq!(receiver.is_finished(), is_last, "{steps:?}");
            assert!(!is_last || matches!(offered, Offered::Ready { .. }), "{steps:?}");
        }
        assert_eq!((receiver.next(), receiver.unread_bytes()), (Seq(105), 4));
        // It comes again, and something behind it.
        assert_eq!(offer(&mut receiver, &mut pages, 104, b"", true), Offered::Duplicate);
        assert_eq!(offer(&mut receiver, &mut pages, 102, b"cd", true), Offered::Duplicate);
        assert_eq!(
            offer(&mut receiver, &mut pages, 105, b"x", false),
            Offered::Refused(SegmentRefusal::OutOfWindow)
        );
        assert_eq!(receiver.next(), Seq(105));
        assert_eq!(read(&mut receiver, &mut pages), b"abcd");
    }
}

#[test]
fn fin_contradicting_received_data_is_ignored() {
    let (mut receiver, mut pages) = (receiver(Seq(100)), pages());
    offer(&mut receiver, &mut pages, 100, b"ab", false);
    offer(&mut receiver, &mut pages, 110, b"x", false);
    // Before the data received, before the early data, outside the window.
    offer(&mut receiver, &mut pages, 101, b"", true);
    offer(&mut receiver, &mut pages, 105, b"", true);
    offer(&mut receiver, &mut pages, 100 + LIMIT + 1, b"", true);
    let cut = vec![1; LIMIT as usize];
    offer(&mut receiver, &mut pages, 102, &cut, true);
    assert_eq!((receiver.next(), receiver.is_finished()), (Seq(100 + LIMIT), false));
    read(&mut receiver, &mut pages);
    receiver.window();
    // The first that can be stays, and nothing is taken behind it.
    let next = receiver.next().0;
    assert_eq!(offer(&mut receiver, &mut pages, next + 5, b"", true), Offered::Early { bytes: 0 });
    assert_eq!(
        offer(&mut receiver, &mut pages, next + 3, b"", true),
        Offered::Refused(SegmentRefusal::OutOfWindow)
    );
    assert_eq!(offer(&mut receiver, &mut pages, next, b"abcdefgh", true), Offered::Ready { bytes: 5 });
    assert!(receiver.is_finished());
    assert_eq!(read(&mut receiver, &mut pages), b"abcde");
}

#[test]
fn offer_without_free_page_is_refused_and_can_be_repeated() {
    let mut pages = Pages::new(&[
        ClusterSize { bytes: 2048, page_bytes: 2048 },
        ClusterSize { bytes: 512, page_bytes: 512 },
    ]);
    let (mut one, mut other) = (receiver(Seq(0)), receiver(Seq(0)));
    assert_eq!(offer(&mut one, &mut pages, 0, &[1; 100], false), Offered::Ready { bytes: 100 });
    assert_eq!(offer(&mut other, &mut pages, 0, &[2; 100], false), Offered::Refused(SegmentRefusal::NoRoom));
    assert_eq!(offer(&mut other, &mut pages, 0, &[2; 100], true), Offered::Refused(SegmentRefusal::NoRoom));
    assert_eq!(offer(&mut one, &mut pages, 200, &[1; 100], false), Offered::Early { bytes: 100 });
    assert_eq!(
        offer(&mut other, &mut pages, 200, &[1; 100], false),
        Offered::Refused(SegmentRefusal::NoRoom)
    );
    assert_eq!((other.next(), other.is_finished(), other.unread_bytes()), (Seq(0), false, 0));
    // Longer than the room left: part of it is kept, and no FIN behind the part that is not.
    assert_eq!(offer(&mut one, &mut pages, 100, &[1; 3000], true), Offered::Ready { bytes: 612 });
    assert_eq!(offer(&mut one, &mut pages, 712, &[1; 2388], true), Offered::Refused(SegmentRefusal::NoRoom));
    assert!(!one.is_finished());
    one.clear(&mut pages);
    assert_eq!((pages.used(READY).0, pages.used(EARLY).0), (0, 0));
    assert_eq!(offer(&mut other, &mut pages, 0, &[2; 100], true), Offered::Ready { bytes: 100 });
}

#[derive(Clone, Debug)]
enum ReceiverStep {
    /// Distance from RCV.NXT, before or behind it; length; byte instead of the true ones; whether a
    /// FIN is behind it.
    Offer(i32, usize, Option<u8>, bool),
    Read(usize),
    Ack,
}

fn step() -> impl Strategy<Value = ReceiverStep> {
    let byte = prop_oneof![3 => Just(None), 1 => any::<u8>().prop_map(Some)];
    prop_oneof![
        6 => (-300i32..7000, 0usize..3000, byte.clone(), Just(false)).prop_map(|(at, length, byte, fin)| ReceiverStep::Offer(at, length, byte, fin)),
        3 => (Just(0i32), 1usize..1500, byte, any::<bool>()).prop_map(|(at, length, byte, fin)| ReceiverStep::Offer(at, length, byte, fin)),
        2 => (0usize..4000).prop_map(ReceiverStep::Read),
        1 => Just(ReceiverStep::Ack),
    ]
}

proptest! {
    /// Against a map of bytes in which the first that came stays. Hostile: other bytes for the same numbers, and FINs anywhere.
    #[test]
    fn read_returns_first_received_bytes_with_hostile_segments(start: u32, steps in prop::collection::vec(step(), 1..120)) {
        let (mut receiver, mut pages) = (receiver(Seq(start)), pages());
        let (mut came, mut done, mut had_fin) = (vec![None; 1 << 20], 0, false);
        let mut edge = receiver.next() + receiver.open_bytes();
        for step in steps {
            let next = receiver.next();
            match step {
                ReceiverStep::Offer(at, length, byte, is_fin) => {
                    let at = (next.since(Seq(start)) + at).max(0) as usize;
                    let payload: Vec<u8> = (at..at + length).map(|i| byte.unwrap_or(i as u8)).collect();
                    let seq = start.wrapping_add(at as u32);
                    had_fin |= is_fin;
                    let unread = receiver.unread_bytes();
                    let offered = offer(&mut receiver, &mut pages, seq, &payload, is_fin);
                    if !matches!(offered, Offered::Refused(_) | Offered::Duplicate) {
                        let is_free = |i: &usize| (Seq(start) + *i as u32).before(edge);
                        for i in (at..at + length).filter(is_free) {
                            came[i].get_or_insert(payload[i - at]);
                        }
                    }
                    let bytes = receiver.unread_bytes() - unread;
                    prop_assert!(bytes == 0 || offered == (Offered::Ready { bytes }), "{:?} {}", offered, bytes);
                    prop_assert_eq!(receiver.next().since(next) as u32 >= bytes, true);
                }
                ReceiverStep::Read(bytes) => {
                    let mut out = vec![0; bytes];
                    let bytes = receiver.read(&mut pages, &mut out);
                    for (i, &byte) in out[..bytes].iter().enumerate() {
                        prop_assert_eq!(came[done + i], Some(byte), "byte {}", done + i);
                    }
                    done += bytes;
                }
                ReceiverStep::Ack => {
                    let announced = receiver.next() + u32::from(receiver.window());
                    prop_assert!(receiver.is_finished() || edge.up_to(announced));
                    edge = edge.max(announced);
                    receiver.ack_sent(&mut pages);
                }
            }
            let received = done as u32 + receiver.unread_bytes() + u32::from(receiver.is_finished());
            prop_assert_eq!(receiver.next(), Seq(start) + received);
            prop_assert!(receiver.unread_bytes() <= LIMIT);
            // And none that could be read is held back.
            prop_assert!(had_fin || came[received as usize].is_none(), "byte {} has come", received);
            for (left, right) in receiver.sacks(&pages).blocks().iter().skip(1) {
                prop_assert!(left.before(*right) && right.up_to(edge));
            }
        }
        receiver.clear(&mut pages);
        prop_assert_eq!((pages.used(READY).0, pages.used(EARLY).0), (0, 0));
    }
}
