use super::*;
use crate::null::{CollectTx, Target};
use proptest::prelude::*;

const SEGMENT: usize = 20;

fn stream(index: u32) -> StreamId {
    StreamId { index, generation: 0 }
}

fn udp() -> Dest {
    Dest::Udp { rtp: ([192, 0, 2, 1], 6000).into(), rtcp: ([192, 0, 2, 1], 6001).into() }
}

/// `count` datagrams whose first two bytes number them from `first`.
fn numbered(first: u16, count: u16) -> Vec<u8> {
    let mut bytes = Vec::new();
    for n in first..first + count {
        bytes.extend(n.to_be_bytes());
        bytes.resize(bytes.len() + SEGMENT - 2, 0x55);
    }
    bytes
}

fn number(bytes: &[u8]) -> u16 {
    u16::from_be_bytes([bytes[0], bytes[1]])
}

/// Sends `bursts` bursts of `each` numbered datagrams; the numbers that come out, and the outcomes.
fn run(
    seed: u64,
    plan: FaultPlan,
    dest: Dest,
    bursts: u16,
    each: u16,
) -> (Vec<u16>, Vec<SendOutcome>, FaultCounters) {
    let mut tx = FaultTx::new(CollectTx::default(), seed, plan);
    let mut outcomes = Vec::new();
    for burst in 0..bursts {
        let bytes = numbered(burst * each, each);
        let payload = Payload::Wire { bytes: &bytes, segment: SEGMENT };
        let mut outcome = [SendOutcome::Closed { errno: 0 }];
        tx.send(&SliceBatch(&[Transmit { stream: stream(1), dest, payload }]), &mut outcome);
        outcomes.extend(outcome);
    }
    tx.release_all();
    let counters = tx.counters();
    (tx.into_inner().sent.iter().map(|s| number(&s.bytes)).collect(), outcomes, counters)
}

#[test]
fn without_faults_nothing_changes_and_bursts_stay_whole() {
    let bytes = numbered(0, 10);
    let mut tx = FaultTx::new(crate::null::NullTx::default(), 1, FaultPlan::default());
    let payload = Payload::Wire { bytes: &bytes, segment: SEGMENT };
    let mut outcome = [SendOutcome::Closed { errno: 0 }];
    tx.send(&SliceBatch(&[Transmit { stream: stream(1), dest: udp(), payload }]), &mut outcome);
    assert_eq!(outcome, [SendOutcome::Sent]);
    assert_eq!((tx.inner().entries, tx.inner().datagrams), (1, 10));
    assert_eq!(tx.counters(), FaultCounters::default());
}

#[test]
fn losses_come_at_the_planned_rate_and_count_as_taken() {
    let plan = FaultPlan { drop_ppm: 100_000, ..FaultPlan::default() };
    let (out, outcomes, counters) = run(7, plan, udp(), 1000, 10);
    assert!(outcomes.iter().all(|o| *o == SendOutcome::Sent));
    assert!(out.is_sorted());
    assert_eq!(out.len() as u64 + counters.dropped, 10_000);
    // 10 % of 10,000: three standard deviations are 90.
    assert!((910..=1090).contains(&counters.dropped), "{counters:?}");
}

#[test]
fn doubles_follow_their_original() {
    let plan = FaultPlan { duplicate_ppm: 200_000, ..FaultPlan::default() };
    let (out, _, counters) = run(7, plan, udp(), 100, 10);
    assert_eq!(out.len() as u64, 1000 + counters.duplicated);
    assert!((140..=260).contains(&counters.duplicated), "{counters:?}");
    assert!(out.is_sorted());
    let mut unique = out.clone();
    unique.dedup();
    assert_eq!(unique, (0..1000).collect::<Vec<_>>());
}

#[test]
fn reordered_datagrams_come_back_within_the_distance() {
    let plan = FaultPlan { reorder_ppm: 100_000, reorder_distance: 5, ..FaultPlan::default() };
    let (out, _, counters) = run(3, plan, udp(), 1000, 3);
    assert!(counters.reordered > 200 && counters.lost == 0, "{counters:?}");
    let mut sorted = out.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (0..3000).collect::<Vec<_>>(), "nothing lost, nothing doubled");
    let moved = out.iter().enumerate().filter(|(place, n)| place.abs_diff(usize::from(**n)) > 0).count();
    assert!(moved > 200);
    // A datagram that is carried back past five sees at most those five and others held with it.
    assert!(out.iter().enumerate().all(|(place, n)| place.abs_diff(usize::from(*n)) <= 10));
}

#[test]
fn one_seed_gives_one_sequence() {
    let plan = FaultPlan {
        drop_ppm: 50_000,
        duplicate_ppm: 50_000,
        reorder_ppm: 50_000,
        reorder_distance: 3,
        block_ppm: 50_000,
        unreachable_ppm: 50_000,
    };
    let first = run(11, plan, udp(), 200, 8);
    assert_eq!(first, run(11, plan, udp(), 200, 8));
    assert_ne!(first.0, run(12, plan, udp(), 200, 8).0);
}

#[test]
fn tcp_loses_nothing_but_can_block() {
    let dest = Dest::Tcp { conn: millrace_core::ids::ConnId(0), rtp_channel: 0, rtcp_channel: 1 };
    let plan = FaultPlan { drop_ppm: 1_000_000, block_ppm: 300_000, ..FaultPlan::default() };
    let (out, outcomes, counters) = run(5, plan, dest, 100, 4);
    let mut wanted = Vec::new();
    for (burst, outcome) in outcomes.iter().enumerate() {
        let taken = match outcome {
            SendOutcome::Sent => 4,
            SendOutcome::Blocked { taken } => *taken,
            other => panic!("{other:?}"),
        };
        wanted.extend((0..taken).map(|n| burst as u16 * 4 + n));
    }
    assert_eq!(out, wanted);
    assert!(counters.blocked > 10 && counters.dropped == 0);
}

#[test]
fn a_held_datagram_keeps_its_own_header_address_and_kind() {
    let plan = FaultPlan { reorder_ppm: 1_000_000, reorder_distance: 1, ..FaultPlan::default() };
    let mut tx = FaultTx::new(CollectTx::default(), 1, plan);
    let bytes = numbered(0, 1);
    let headers = [0xee; 12];
    let mut outcome = [SendOutcome::Sent];
    let patched = Payload::Patched { headers: &headers, bytes: &bytes, segment: SEGMENT };
    tx.send(&SliceBatch(&[Transmit { stream: stream(1), dest: udp(), payload: patched }]), &mut outcome);
    tx.send(
        &SliceBatch(&[Transmit { stream: stream(2), dest: udp(), payload: Payload::Rtcp(&bytes) }]),
        &mut outcome,
    );
    assert!(tx.inner().sent.is_empty());
    tx.release_all();
    let sent = &tx.inner().sent;
    assert_eq!(sent[0].bytes, [&headers[..], &bytes[12..]].concat());
    assert_eq!((sent[0].stream, sent[0].to), (stream(1), Target::Udp(([192, 0, 2, 1], 6000).into())));
    assert_eq!((sent[1].stream, sent[1].to), (stream(2), Target::Udp(([192, 0, 2, 1], 6001).into())));
}

proptest! {
    /// Whatever the device inside answers: `taken` says how many datagrams are dealt with, so that a caller who sends
    /// the rest again loses and doubles nothing that the plan did not lose or double.
    #[test]
    fn blocks_of_the_inner_device_are_translated(
        seed in any::<u64>(), answers in proptest::collection::vec(0u16..6, 0..40), drop in 0u32..500_000
    ) {
        let plan = FaultPlan { drop_ppm: drop, block_ppm: 100_000, ..FaultPlan::default() };
        let mut tx = FaultTx::new(CollectTx::default(), seed, plan);
        tx.inner().answers.extend(answers.iter().map(|a| match a {
            5 => SendOutcome::Sent,
            taken => SendOutcome::Blocked { taken: *taken },
        }));
        let bytes = numbered(0, 30);
        let mut done = 0;
        for _ in 0..2000 {
            let rest = &bytes[done * SEGMENT..];
            if rest.is_empty() {
                break;
            }
            let payload = Payload::Wire { bytes: rest, segment: SEGMENT };
            let mut outcome = [SendOutcome::Sent];
            tx.send(&SliceBatch(&[Transmit { stream: stream(1), dest: udp(), payload }]), &mut outcome);
            match outcome[0] {
                SendOutcome::Sent => done = 30,
                SendOutcome::Blocked { taken } => done += usize::from(taken),
                other => prop_assert!(false, "{:?}", other),
            }
        }
        prop_assert_eq!(done, 30);
        let dropped = tx.counters().dropped;
        let out: Vec<u16> = tx.into_inner().sent.iter().map(|s| number(&s.bytes)).collect();
        prop_assert!(out.windows(2).all(|w| w[0] < w[1]), "{:?}", out);
        prop_assert_eq!(out.len() as u64 + dropped, 30);
    }
}
