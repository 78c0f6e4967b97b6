use proptest::prelude::*;

use super::*;

const SECOND: u64 = 1_000_000_000;

fn at(ns: u64) -> Instant {
    Instant(ns)
}

/// Whether a member is asked like any other.
fn may(view: MemberView, member: u16) -> bool {
    !(view.lost | view.avoid).contains(member)
}

fn avoided(view: MemberView, member: u16) -> bool {
    !view.lost.contains(member) && view.avoid.contains(member)
}

#[test]
fn health_after_late_answer_suspends_until_good_probes() {
    let mut health = Health::default();
    assert!(may(health.view(at(0)), 1) && health.poll_at().is_none());
    assert!(health.note(at(0), 1, MemberFault::Late));
    assert!(!health.note(at(1), 1, MemberFault::Late), "it is suspended already");
    let view = health.view(at(1));
    assert!(!may(view, 1) && avoided(view, 1) && may(view, 0) && !avoided(view, 0));
    assert_eq!((health.of(1), health.of(0)), (MemberHealth::Slow, MemberHealth::Healthy));
    assert_eq!(health.poll_at(), Some(at(FIRST_PROBE_NS)));
    assert_eq!(health.next_probe(at(FIRST_PROBE_NS - 1)), None);
    let mut now = FIRST_PROBE_NS;
    for _ in 0..GOOD_PROBES {
        assert_eq!(health.next_probe(at(now)), Some(1));
        assert_eq!(health.next_probe(at(now)), None, "one probe at a time");
        assert!(!may(health.view(at(now)), 1));
        health.probed(at(now), 1, true);
        now += PROBE_GAP_NS;
    }
    assert!(may(health.view(at(now)), 1));
    assert_eq!((health.poll_at(), health.suspensions(1)), (None, 1));
}

#[test]
fn note_of_consecutive_errors_suspends_but_single_error_does_not() {
    let mut health = Health::default();
    for minute in 0..100 {
        assert!(!health.note(at(minute * 60 * SECOND), 3, MemberFault::Error(libc::EIO)));
    }
    let now = 6000 * SECOND;
    assert!(!health.note(at(now), 3, MemberFault::Error(libc::EIO)));
    assert!(!health.note(at(now), 3, MemberFault::Error(libc::ENODATA)));
    assert!(health.note(at(now), 3, MemberFault::Error(libc::EIO)));
    assert_eq!(health.of(3), MemberHealth::Failing);
    // A device that is gone needs no second error.
    assert!(health.note(at(now), 4, MemberFault::Error(libc::ENODEV)));
    // Wrong sums count less.
    for n in 1..=6 {
        assert_eq!(health.note(at(now), 5, MemberFault::Wrong), n == 6);
    }
}

#[test]
fn next_probe_of_member_with_owed_answers_returns_none() {
    let mut health = Health::default();
    health.note(at(0), 0, MemberFault::Late);
    health.stuck(0, at(0));
    health.stuck(0, at(5));
    assert!(avoided(health.view(at(HUNG_NS - 1)), 0));
    assert!(!avoided(health.view(at(HUNG_NS)), 0));
    assert_eq!((health.poll_at(), health.next_probe(at(1000 * SECOND)), health.owed(0)), (None, None, 2));
    health.unstuck(at(HUNG_NS), 0, 0);
    assert_eq!(health.next_probe(at(1000 * SECOND)), None);
    health.unstuck(at(HUNG_NS), 0, 0);
    assert!(avoided(health.view(at(1000 * SECOND)), 0));
    assert_eq!(health.next_probe(at(1000 * SECOND)), Some(0));
}

#[test]
fn has_other_files_clears_failing_member_and_probes_slow_one() {
    let mut health = Health::default();
    assert!((0..6).any(|_| health.note(at(0), 0, MemberFault::Wrong)));
    health.note(at(0), 1, MemberFault::Late);
    health.probed(at(0), 1, false);
    assert_eq!((health.of(0), health.of(1)), (MemberHealth::Failing, MemberHealth::Slow));
    (0..2).for_each(|member| health.has_other_files(at(5), member));
    assert!(may(health.view(at(5)), 0) && !health.note(at(5), 0, MemberFault::Wrong), "all is forgotten");
    assert_eq!((health.of(1), health.next_probe(at(5))), (MemberHealth::Slow, Some(1)));
    // It owes an answer: that is no matter of files.
    health.note(at(6), 2, MemberFault::Error(libc::ENODEV));
    health.stuck(2, at(6));
    health.has_other_files(at(7), 2);
    assert_eq!(health.of(2), MemberHealth::Failing);
    health.has_other_files(at(7), 99);
}

#[test]
fn view_separates_lost_stale_hung_and_avoided_members() {
    let mut health = Health::default();
    health.stand(at(0), 0, Standing::Missing, 0);
    health.stand(at(0), 1, Standing::Stale, 0);
    health.note(at(0), 2, MemberFault::Late);
    health.stuck(2, at(0));
    health.note(at(0), 3, MemberFault::Late);
    let view = health.view(at(HUNG_NS));
    let sets = (view.lost, view.stale, view.hung, view.avoid);
    assert_eq!(sets, ([0, 1, 2].into(), [1].into(), [2].into(), [3].into()));
}

/// Each answer comes late, and there is always one that has not come: slow, but it does not hang.
#[test]
fn view_of_member_with_late_answers_is_avoided_not_hung() {
    let mut health = Health::default();
    health.note(at(0), 0, MemberFault::Late);
    let read_ns = HUNG_NS / 4;
    for number in 0..40 {
        health.stuck(0, at(number * read_ns));
        if number > 0 {
            health.unstuck(at((number + 1) * read_ns), 0, 0);
        }
        assert!(avoided(health.view(at((number + 1) * read_ns)), 0), "read {number}");
        assert_eq!(health.owed(0), 1);
    }
    // From now on it does.
    assert!(avoided(health.view(at(40 * read_ns + HUNG_NS - 1)), 0));
    assert!(!avoided(health.view(at(40 * read_ns + HUNG_NS)), 0));
}

#[test]
fn stuck_read_of_replaced_disk_is_not_counted() {
    let mut health = Health::default();
    assert_eq!(health.stuck(0, at(5)), Some(0));
    health.stand(at(10), 0, Standing::Active, 1);
    assert_eq!((health.stuck(0, at(9)), health.owed(0)), (None, 0), "begun before");
    assert_eq!((health.stuck(0, at(10)), health.owed(0)), (Some(1), 1));
    health.unstuck(at(20), 0, 0);
    assert_eq!(health.owed(0), 1, "that was the old one's");
    health.unstuck(at(20), 0, 1);
    assert_eq!(health.owed(0), 0);
}

#[test]
fn standing_missing_or_stale_overrides_measured_health() {
    let mut health = Health::default();
    for standing in [Standing::Missing, Standing::Stale] {
        health.stand(at(0), 2, standing, 0);
        let view = health.view(at(0));
        assert!(!may(view, 2) && !avoided(view, 2));
        health.note(at(0), 2, MemberFault::Late);
        assert_eq!(health.next_probe(at(1000 * SECOND)), None);
    }
    assert_eq!(health.of(2), MemberHealth::Stale);
    // The disk comes back as it was: its suspension goes on.
    health.stand(at(0), 2, Standing::Active, 0);
    assert_eq!(health.of(2), MemberHealth::Slow);
    // Another disk in its place is not blamed for the old one.
    health.stuck(2, at(0));
    health.stand(at(0), 2, Standing::Active, 1);
    assert_eq!((health.of(2), health.owed(2)), (MemberHealth::Healthy, 0));
    health.unstuck(at(0), 2, 0);
    assert_eq!(health.owed(2), 0);
    // Numbers without a member harm no other one.
    health.stand(at(0), 99, Standing::Missing, 1);
    health.stuck(99, at(0));
    health.unstuck(at(0), 99, 0);
    health.probed(at(0), 99, true);
    assert!(!health.note(at(0), 99, MemberFault::Late));
    assert_eq!(health.of(99), MemberHealth::Missing);
}

#[test]
fn probe_delay_after_repeated_failures_doubles_to_maximum() {
    let mut health = Health::default();
    let (mut now, mut waits) = (0, Vec::new());
    for _ in 0..9 {
        health.note(at(now), 0, MemberFault::Late);
        let probe = health.poll_at().unwrap().0;
        waits.push((probe - now) / SECOND);
        now = probe;
        for _ in 0..GOOD_PROBES {
            assert_eq!(health.next_probe(at(now)), Some(0));
            health.probed(at(now), 0, true);
            now += PROBE_GAP_NS;
        }
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
    now += PAROLE_NS;
    health.note(at(now), 0, MemberFault::Late);
    assert_eq!(health.poll_at(), Some(at(now + FIRST_PROBE_NS)));
}

/// The events of one member.
#[derive(Clone, Copy, Debug)]
enum HealthEvent {
    Wait(u64),
    Read(u8),
    Probe(bool),
    Stuck,
    Unstuck,
}

fn event() -> impl Strategy<Value = HealthEvent> {
    prop_oneof![
        (0..5 * SECOND).prop_map(HealthEvent::Wait),
        (1u8..4).prop_map(HealthEvent::Read),
        any::<bool>().prop_map(HealthEvent::Probe),
        Just(HealthEvent::Stuck),
        Just(HealthEvent::Unstuck),
    ]
}

fn outcome(kind: u8) -> MemberFault {
    match kind {
        1 => MemberFault::Error(libc::EIO),
        2 => MemberFault::Late,
        _ => MemberFault::Wrong,
    }
}

proptest! {
    /// Whatever happens: a suspended member comes back only after that many good probes in a row,
    /// is probed one at a time, not while it owes answers, and no sooner than it should be; other
    /// members notice nothing.
    #[test]
    fn suspended_member_recovers_only_by_good_probes(events in proptest::collection::vec(event(), 1..300)) {
        let mut health = Health::default();
        let (mut now, mut good_in_a_row, mut owed) = (0u64, 0, 0u32);
        let (mut suspended, mut last_bad) = (false, 0);
        for event in events {
            match event {
                HealthEvent::Wait(ns) => now += ns,
                HealthEvent::Read(kind) => {
                    let suspends = health.note(at(now), 0, outcome(kind));
                    prop_assert!(!(suspends && suspended));
                    if suspended && kind == 2 {
                        good_in_a_row = 0;
                    }
                    if suspends {
                        (suspended, good_in_a_row, last_bad) = (true, 0, now);
                    }
                }
                HealthEvent::Probe(good) => {
                    let Some(member) = health.next_probe(at(now)) else { continue };
                    prop_assert!(member == 0 && suspended && owed == 0);
                    prop_assert!(now >= last_bad + PROBE_GAP_NS);
                    prop_assert_eq!(health.next_probe(at(now)), None);
                    health.probed(at(now), 0, good);
                    good_in_a_row = if good { good_in_a_row + 1 } else { 0 };
                    last_bad = now;
                }
                HealthEvent::Stuck => {
                    health.stuck(0, at(now));
                    owed += 1;
                }
                HealthEvent::Unstuck => {
                    health.unstuck(at(now), 0, 0);
                    owed = owed.saturating_sub(1);
                }
            }
            let view = health.view(at(now));
            let back = suspended && health.of(0) == MemberHealth::Healthy;
            if back {
                prop_assert!(good_in_a_row >= GOOD_PROBES);
                suspended = false;
            }
            prop_assert_eq!(may(view, 0), !suspended);
                        prop_assert!(may(view, 1) && health.of(1) == MemberHealth::Healthy);
            prop_assert_eq!(health.owed(0), owed);
        }
    }

    /// A member that is always bad is probed ever more rarely, at most once in [`MAX_PROBE_NS`] in the end.
    #[test]
    fn next_probe_of_dead_member_backs_off_to_max_interval(hours in 1u64..24) {
        let mut health = Health::default();
        health.note(at(0), 7, MemberFault::Late);
        let (end, mut probes) = (hours * 3600 * SECOND, 0);
        while let Some(next) = health.poll_at().filter(|next| next.0 <= end) {
            prop_assert_eq!(health.next_probe(next), Some(7));
            health.probed(next, 7, false);
            probes += 1;
        }
        prop_assert!(probes <= 7 + end / MAX_PROBE_NS && probes + 2 >= end / MAX_PROBE_NS, "{probes} probes");
    }
}
