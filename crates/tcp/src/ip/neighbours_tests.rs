use millrace_core::time::NS_PER_S;

use super::super::addresses::key_v4;
use super::super::rig::*;
use super::*;

const GATEWAY: AddressKey = [0, 77];

fn table(places: u32) -> Neighbours {
    Neighbours::new(HashKey::new([3, 4]), places, [GATEWAY, NO_KEY])
}

fn key(number: u32) -> AddressKey {
    key_v4((0x0a00_0000 + number).to_be_bytes())
}

impl Neighbours {
    /// Uses a neighbour for a connection that has not moved yet.
    fn use_silently(&mut self, index: u32, now: Instant) -> Use {
        self.use_at(index, now, u64::MAX)
    }
}

/// A neighbour that has answered at [`START`].
fn reachable(table: &mut Neighbours, number: u32) -> u32 {
    let (index, _) = table.insert(key(number), true, START).unwrap();
    assert_eq!(table.use_silently(index, START), Use::Ask);
    assert_eq!(table.heard(index, Some(THEIR_MAC), Claim::Answer, START), Heard::Found(THEIR_MAC));
    index
}

fn fired(table: &mut Neighbours, now: Instant) -> Vec<Fired> {
    std::iter::from_fn(|| table.pop_fired(now)).collect()
}

/// What fires, with the second it fires in, until nothing more is due.
fn history(table: &mut Neighbours, from: u64) -> Vec<(u64, Fired)> {
    (from..from + 100).flat_map(|s| fired(table, at_s(s)).into_iter().map(move |fired| (s, fired))).collect()
}

#[test]
fn neighbour_without_answer_is_unreachable_after_three_requests() {
    let mut table = table(8);
    let (index, _) = table.insert(key(1), true, START).unwrap();
    assert_eq!((table.use_silently(index, START), table.use_silently(index, START)), (Use::Ask, Use::Wait));
    let events = [(1, Fired::Ask(index)), (2, Fired::Ask(index)), (3, Fired::Failed(index))];
    for s in 1..=3 {
        assert_eq!(fired(&mut table, at_s(s)), [events[s as usize - 1].1]);
    }
    assert_eq!(table.use_silently(index, at_s(4)), Use::Unreachable);
    assert!(history(&mut table, 4).is_empty());
    assert_eq!((table.find(key(1)), table.state(index)), (Some(index), ReachabilityState::Empty));
    let gateway = table.gateway(true);
    assert_eq!(table.use_silently(gateway, START), Use::Ask);
    history(&mut table, 1);
    assert_eq!((table.find(GATEWAY), table.state(gateway)), (Some(gateway), ReachabilityState::Empty));
    assert_eq!(table.find(NO_KEY), None);
}

#[test]
fn neighbour_used_without_confirmation_is_probed_then_resolved() {
    let mut table = table(8);
    let index = reachable(&mut table, 1);
    assert_eq!(table.use_silently(index, at_s(29)), Use::Send(THEIR_MAC));
    assert!(history(&mut table, 0).is_empty(), "who is not used is not asked");
    let later = 200;
    assert_eq!(table.use_silently(index, at_s(later)), Use::Send(THEIR_MAC));
    assert_eq!(table.state(index), ReachabilityState::Delay);
    let expected = [
        (later + 5, Fired::Probe(index, THEIR_MAC)),
        (later + 6, Fired::Probe(index, THEIR_MAC)),
        (later + 7, Fired::Probe(index, THEIR_MAC)),
        (later + 8, Fired::Ask(index)),
        (later + 9, Fired::Ask(index)),
        (later + 10, Fired::Ask(index)),
        (later + 11, Fired::Failed(index)),
    ];
    assert_eq!(history(&mut table, later), expected);
}

#[test]
fn neighbour_is_confirmed_by_probe_answer_or_tcp_progress() {
    let mut table = table(8);
    let index = reachable(&mut table, 1);
    table.use_silently(index, at_s(40));
    fired(&mut table, at_s(45));
    assert_eq!(table.state(index), ReachabilityState::Probe);
    assert_eq!(table.heard(index, None, Claim::Told, at_s(45)), Heard::Nothing);
    assert_eq!(table.state(index), ReachabilityState::Probe, "nobody is confirmed by what is told");
    table.heard(index, None, Claim::Answer, at_s(45));
    assert_eq!(table.state(index), ReachabilityState::Reachable);
    assert!(history(&mut table, 46).is_empty());
    // TCP confirms as of when it moved, in each state that has an address.
    assert_eq!(table.use_at(index, at_s(300), 10 * NS_PER_S), Use::Send(THEIR_MAC));
    assert_eq!(table.state(index), ReachabilityState::Reachable);
    assert_eq!(table.use_silently(index, at_s(319)), Use::Send(THEIR_MAC));
    assert_eq!(table.state(index), ReachabilityState::Reachable);
    assert_eq!(table.use_at(index, at_s(320), 30 * NS_PER_S), Use::Send(THEIR_MAC));
    assert_eq!(table.state(index), ReachabilityState::Delay, "it moved too long ago");
    table.use_at(index, at_s(321), 0);
    assert!(history(&mut table, 321).is_empty());
    table.use_silently(index, at_s(400));
    fired(&mut table, at_s(405));
    assert_eq!(table.state(index), ReachabilityState::Probe);
    table.use_at(index, at_s(405), 0);
    assert!(history(&mut table, 405).is_empty());
    // Progress proves nothing about a neighbour whose address is not known.
    let (other, _) = table.insert(key(2), true, START).unwrap();
    assert_eq!(table.use_at(other, at_s(500), 0), Use::Ask);
    assert_eq!(table.use_at(other, at_s(500), 0), Use::Wait);
    assert_eq!(table.state(other), ReachabilityState::Incomplete);
}

#[test]
fn progress_does_not_refute_a_claim_of_another_address() {
    let mut table = table(8);
    let index = reachable(&mut table, 1);
    assert_eq!(table.heard(index, Some(OTHER_MAC), Claim::Told, at_s(10)), Heard::Contradicted);
    // The data acknowledged may have been sent before a gateway failed over.
    assert_eq!(table.use_at(index, at_s(10), 1), Use::Send(THEIR_MAC));
    assert_eq!(fired(&mut table, at_s(10)), [Fired::Probe(index, THEIR_MAC)]);
}

#[test]
fn neighbour_after_unsolicited_claim_is_stale() {
    let mut table = table(8);
    let (index, _) = table.insert(key(1), false, START).unwrap();
    // An answer without a request is no better than an announcement.
    assert_eq!(table.heard(index, Some(THEIR_MAC), Claim::Answer, START), Heard::Found(THEIR_MAC));
    assert_eq!(table.state(index), ReachabilityState::Stale);
    assert_eq!(table.heard(index, Some(THEIR_MAC), Claim::Answer, START), Heard::Nothing);
    assert_eq!(table.state(index), ReachabilityState::Stale);
    assert_eq!(table.use_silently(index, START), Use::Send(THEIR_MAC));
    assert_eq!(history(&mut table, 0)[0], (5, Fired::Probe(index, THEIR_MAC)));
    // A neighbour that is searched for may also be found by its own request.
    let (index, _) = table.insert(key(2), true, START).unwrap();
    table.use_silently(index, START);
    assert_eq!(table.heard(index, None, Claim::Answer, START), Heard::Nothing);
    assert_eq!(table.heard(index, Some(OTHER_MAC), Claim::Told, START), Heard::Found(OTHER_MAC));
    assert_eq!(table.state(index), ReachabilityState::Stale);
    assert!(history(&mut table, 0).is_empty());
}

#[test]
fn neighbour_that_answers_is_not_replaced_by_other_claim() {
    let mut table = table(8);
    let index = reachable(&mut table, 1);
    for claim in [Claim::Told, Claim::Answer] {
        assert_eq!(table.heard(index, Some(OTHER_MAC), claim, at_s(10)), Heard::Contradicted);
        assert_eq!(table.use_silently(index, at_s(10)), Use::Send(THEIR_MAC), "{claim:?}");
    }
    assert_eq!(fired(&mut table, at_s(10)), [Fired::Probe(index, THEIR_MAC)]);
    assert_eq!(table.heard(index, Some(OTHER_MAC), Claim::Answer, at_s(10)), Heard::Contradicted);
    table.heard(index, Some(THEIR_MAC), Claim::Answer, at_s(10));
    assert_eq!(
        (table.state(index), table.use_silently(index, at_s(11))),
        (ReachabilityState::Reachable, Use::Send(THEIR_MAC))
    );
    // A thousand such claims in a second cost one more probe.
    for ms in 0..1000 {
        table.heard(index, Some(OTHER_MAC), Claim::Told, at_s(10).plus_ns(ms * 1_000_000));
    }
    assert_eq!(fired(&mut table, at_s(11)), [Fired::Probe(index, THEIR_MAC)]);
}

#[test]
fn neighbour_that_moved_is_resolved_again_in_one_second() {
    let mut table = table(8);
    let index = reachable(&mut table, 1);
    table.heard(index, Some(OTHER_MAC), Claim::Told, at_s(10));
    assert_eq!(fired(&mut table, at_s(10)), [Fired::Probe(index, THEIR_MAC)]);
    assert_eq!(fired(&mut table, at_s(11)), [Fired::Ask(index)]);
    assert_eq!(table.use_silently(index, at_s(11)), Use::Wait);
    assert_eq!(table.heard(index, Some(OTHER_MAC), Claim::Answer, at_s(11)), Heard::Found(OTHER_MAC));
    assert_eq!(table.use_silently(index, at_s(11)), Use::Send(OTHER_MAC));
    // The next time it is as patient as at first.
    table.use_silently(index, at_s(100));
    assert_eq!(history(&mut table, 100).len(), 7);
}

#[test]
fn insert_of_many_strangers_evicts_no_neighbour_in_use() {
    let mut table = table(64);
    let live: Vec<u32> = (0..200)
        .filter(|&number| {
            let is_new = table.insert(key(number), true, START).is_some();
            if let Some(index) = table.find(key(number)).filter(|_| is_new) {
                table.use_silently(index, START);
                table.heard(index, Some(THEIR_MAC), Claim::Answer, START);
            }
            is_new
        })
        .collect();
    assert!(live.len() >= 50, "{} of 64", live.len());
    // 100,000 strangers ask for us.
    for number in 1000..101_000 {
        if let Some((index, _)) = table.insert(key(number), false, at_s(1)) {
            table.heard(index, Some(OTHER_MAC), Claim::Told, at_s(1));
        }
    }
    // And answers go to as many addresses that no host has.
    for number in 200_000..300_000 {
        if let Some((index, _)) = table.insert(key(number), true, at_s(2)) {
            table.use_silently(index, at_s(2));
        }
    }
    for &number in &live {
        let index = table.find(key(number)).expect("it is still there");
        assert_eq!(table.use_silently(index, at_s(3)), Use::Send(THEIR_MAC));
    }
}

#[test]
fn insert_into_full_table_evicts_least_important_neighbour() {
    let mut table = table(8);
    for number in 0..8 {
        let (index, _) = table.insert(key(number), number < 6, START).unwrap();
        match number {
            // In use since now or long ago; asked for.
            0..4 => {
                table.use_silently(index, at_s(u64::from(number)));
                table.heard(index, Some(THEIR_MAC), Claim::Answer, at_s(u64::from(number)));
            }
            4..6 => {
                table.use_silently(index, at_s(u64::from(number)));
            }
            // Heard of.
            _ => {
                table.heard(index, Some(THEIR_MAC), Claim::Told, START);
            }
        }
    }
    let now = Instant(at_s(1).0 + NEIGHBOUR_IDLE_NS);
    let gone = |table: &mut Neighbours, new: u32, is_wanted| {
        let before: Vec<u32> = (0..8).filter(|&number| table.find(key(number)).is_some()).collect();
        let is_in = table.insert(key(new), is_wanted, now).map(|(index, _)| {
            table.use_silently(index, now);
            table.heard(index, Some(THEIR_MAC), Claim::Answer, now);
        });
        is_in.map(|()| before.into_iter().find(|&number| table.find(key(number)).is_none()))
    };
    let order: Vec<_> = (100..107).map(|new| gone(&mut table, new, true)).collect();
    // Heard of (6, 7), asked for (4, 5), idle for two minutes (0, 1); 2 and 3 are in use.
    assert_eq!(order[..2].iter().flatten().flatten().count(), 2);
    assert_eq!(order[2..], [Some(Some(4)), Some(Some(5)), Some(Some(0)), Some(Some(1)), None]);
    assert_eq!(gone(&mut table, 200, false), None);
    assert!(table.find(key(2)).is_some() && table.find(key(3)).is_some());
}

#[test]
fn eviction_of_neighbour_removes_timer_and_waiting_segment() {
    let mut frames = super::super::frames::Frames::new(2, 10);
    let mut table = table(8);
    for number in 0..8 {
        let (index, _) = table.insert(key(number), true, START).unwrap();
        table.use_silently(index, START.plus_ns(u64::from(number)));
        *table.waiting(index) = if number == 0 { frames.take_waiting() } else { None };
    }
    let (index, waiting) = table.insert(key(8), true, START).unwrap();
    assert!(waiting.is_some() && table.find(key(0)).is_none());
    assert_eq!(fired(&mut table, START.plus_ns(NS_PER_S + 100)).len(), 7, "{index} has no timer yet");
}

#[test]
fn table_of_size_zero_holds_only_gateways() {
    let mut table = table(0);
    assert_eq!(table.insert(key(1), true, START), None);
    assert_eq!((table.find(key(1)), table.find(GATEWAY)), (None, Some(0)));
}
