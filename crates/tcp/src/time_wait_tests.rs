use super::*;
use crate::wire::{Stamps, TcpOptions};

const MS: u64 = 1_000_000;

fn flow(port: u16) -> FlowKey {
    FlowKey::new("192.0.2.1:80".parse().unwrap(), format!("198.51.100.7:{port}").parse().unwrap()).unwrap()
}

fn segment(flags: Flags, seq: u32, stamp: Option<u32>, payload: &[u8]) -> Segment<'_> {
    let stamps = stamp.map(|value| Stamps { value, echo: 0 });
    Segment {
        source: 1,
        destination: 80,
        seq: Seq(seq),
        ack: Seq(500),
        flags,
        window: 0,
        urgent: 0,
        options: TcpOptions { stamps, ..TcpOptions::default() },
        payload,
    }
}

/// Room for four, with one that has sent up to 500 and received up to 1000, whose last stamp was 70.
fn with_one(recent_stamp: Option<u32>) -> (TimeWaits, EndedConnection) {
    let ended = EndedConnection { send_next: Seq(500), receive_next: Seq(1000), recent_stamp };
    let mut waits = TimeWaits::new(HashKey::new([1, 2]), 4);
    waits.insert(&flow(1), ended, Instant(0));
    (waits, ended)
}

fn answer(waits: &mut TimeWaits, segment: &Segment<'_>) -> TimeWaitReply {
    waits.arrived(&flow(1), segment, Instant(MS))
}

//= RFC 9293 section 3.6.1
//= type=test
//# When a connection is closed actively, it MUST linger in the TIME-WAIT
//# state for a time 2xMSL (Maximum Segment Lifetime) (MUST-13).
#[test]
fn records_stay_for_two_lifetimes_in_the_order_in_which_they_came() {
    let (mut waits, ended) = with_one(None);
    let lifetime = u64::from(TIME_WAIT_MS) * MS;
    waits.insert(&flow(2), ended, Instant(5 * MS));
    assert_eq!((waits.len(), waits.due(Instant(3 * MS))), (2, Some(Instant(lifetime))));
    assert!(!waits.is_empty());
    assert_eq!(waits.expire(Instant(lifetime - 1), 9), 0);
    assert_eq!(waits.expire(Instant(lifetime), 9), 1);
    assert_eq!(
        waits.arrived(&flow(1), &segment(Flags::ACK, 0, None, b""), Instant(lifetime)),
        TimeWaitReply::Unknown
    );
    assert_eq!(waits.due(Instant(lifetime)), Some(Instant(lifetime + 5 * MS)));
    assert_eq!(waits.due(Instant(2 * lifetime)), Some(Instant(2 * lifetime)), "overdue");
    assert_eq!((waits.expire(Instant(2 * lifetime), 0), waits.expire(Instant(2 * lifetime), 9)), (0, 1));
    assert_eq!((waits.due(Instant(0)), waits.is_empty()), (None, true));
    // The clock of the records goes round after 24 days.
    let late = Instant((1u64 << 31) * MS - 5 * MS);
    waits.insert(&flow(3), ended, late);
    assert_eq!(waits.due(late), Some(late.plus_ns(lifetime)));
    assert_eq!(
        (waits.expire(late.plus_ns(lifetime - MS), 9), waits.expire(late.plus_ns(lifetime), 9)),
        (0, 1)
    );
}

#[test]
fn insert_into_full_time_waits_evicts_oldest_record() {
    let (mut waits, ended) = with_one(None);
    for port in 2..=5 {
        waits.insert(
            &flow(port),
            EndedConnection { send_next: Seq(port.into()), ..ended },
            Instant(u64::from(port) * MS),
        );
    }
    assert_eq!((waits.len(), waits.pushed_out()), (4, 1));
    assert_eq!(waits.remove(&flow(1)), None);
    waits.insert(&flow(2), EndedConnection { send_next: Seq(77), ..ended }, Instant(9 * MS));
    assert_eq!((waits.len(), waits.pushed_out()), (4, 1));
    waits.insert(&flow(6), ended, Instant(9 * MS));
    assert_eq!(waits.remove(&flow(3)), None, "it is the oldest now");
    assert_eq!(waits.remove(&flow(2)).unwrap().send_next, Seq(77));
    assert_eq!(
        (waits.remove(&flow(4)), waits.len()),
        (Some(EndedConnection { send_next: Seq(4), ..ended }), 2)
    );
    let mut none = TimeWaits::new(HashKey::new([1, 2]), 0);
    none.insert(&flow(1), ended, Instant(0));
    assert!(none.is_empty());
    // A hundred thousand through four records.
    for i in 0..100_000u32 {
        waits.insert(&flow((i % 60_000) as u16 + 1), ended, Instant(10 * MS));
        assert!(waits.len() <= 4);
    }
}

//= RFC 9293 section 3.10.7.4
//= type=test
//# The only thing that can arrive in this state is a
//# retransmission of the remote FIN.  Acknowledge it, and
//# restart the 2 MSL timeout.
#[test]
fn fin_repeated_in_time_wait_is_acknowledged_and_restarts_timer() {
    let (mut waits, ended) = with_one(Some(70));
    waits.insert(&flow(2), ended, Instant(0));
    let fin = Flags::FIN.with(Flags::ACK);
    let at = Instant(40_000 * MS);
    let lifetime = u64::from(TIME_WAIT_MS) * MS;
    let newer = EndedConnection { recent_stamp: Some(75), ..ended };
    assert_eq!(waits.arrived(&flow(1), &segment(fin, 996, Some(75), b"abc"), at), TimeWaitReply::Ack(newer));
    assert_eq!(waits.expire(Instant(lifetime), 9), 1, "the other");
    assert_eq!(waits.due(at), Some(at.plus_ns(lifetime)));
    // An old duplicate is acknowledged too, but changes nothing; nor does a FIN at another place.
    let later = at.plus_ns(MS);
    assert_eq!(waits.arrived(&flow(1), &segment(fin, 999, Some(74), b""), later), TimeWaitReply::Ack(newer));
    assert_eq!(waits.arrived(&flow(1), &segment(fin, 1000, Some(76), b""), later), TimeWaitReply::Ack(newer));
    assert_eq!(waits.due(at), Some(at.plus_ns(lifetime)));
}

//= RFC 9293 section 3.10.7.4
//= type=exception
//= reason=RFC 1337: an old duplicate must not end TIME-WAIT before its time
//# If the RST bit is set, then enter the CLOSED state, delete
//# the TCB, and return.
#[test]
fn time_wait_is_not_ended_by_rst_or_old_segment() {
    let (mut waits, ended) = with_one(Some(70));
    for flags in [Flags::RST, Flags::RST.with(Flags::ACK), Flags::RST.with(Flags::SYN), Flags::FIN, Flags(0)]
    {
        assert_eq!(
            answer(&mut waits, &segment(flags, 1000, Some(99), b"")),
            TimeWaitReply::Drop,
            "{flags:?}"
        );
    }
    assert_eq!(answer(&mut waits, &segment(Flags::ACK, 1000, None, b"")), TimeWaitReply::Drop, "as expected");
    // An unacceptable segment is answered with the acceptable numbers.
    assert_eq!(answer(&mut waits, &segment(Flags::ACK, 999, None, b"")), TimeWaitReply::Ack(ended));
    assert_eq!(answer(&mut waits, &segment(Flags::ACK, 1000, None, b"x")), TimeWaitReply::Ack(ended));
    assert_eq!(
        answer(&mut waits, &segment(Flags::SYN.with(Flags::ACK), 1000, None, b"")),
        TimeWaitReply::Ack(ended)
    );
    assert_eq!(waits.len(), 1);
}

//= RFC 6191 section 2
//= type=test
//# If TCP Timestamps would be enabled for the new incarnation of
//# the connection, and the timestamp contained in the incoming SYN
//# segment is greater than the last timestamp seen on the previous
//# incarnation of the connection (for that direction of the data
//# transfer), honor the connection request
#[test]
fn syn_in_time_wait_reopens_if_stamp_or_sequence_is_newer() {
    // Number of the last byte, the FIN: 999.
    for (had, has, seq, reopens) in [
        (Some(70), Some(71), 5, true),
        (Some(70), Some(70), 1000, true),
        (Some(70), Some(70), 999, false),
        (Some(70), Some(69), 1000, false),
        (Some(70), None, 1000, true),
        (Some(70), None, 999, false),
        (None, Some(1), 5, true),
        (None, None, 1000, true),
        (None, None, 999, false),
        (Some(u32::MAX), Some(3), 5, true),
    ] {
        let (mut waits, ended) = with_one(had);
        let expected = if reopens { TimeWaitReply::Reopen(Seq(500)) } else { TimeWaitReply::Drop };
        assert_eq!(
            answer(&mut waits, &segment(Flags::SYN, seq, has, b"")),
            expected,
            "{had:?} {has:?} {seq}"
        );
        // The record stays: the SYN may turn out to be an old duplicate.
        assert_eq!((waits.len(), waits.remove(&flow(1))), (1, Some(ended)));
    }
}
