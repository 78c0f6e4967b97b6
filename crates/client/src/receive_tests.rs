use super::*;

fn feed(tracker: &mut SequenceTracker, numbers: impl IntoIterator<Item = u16>) -> Vec<SequenceVerdict> {
    numbers.into_iter().map(|number| tracker.observe(number)).collect()
}

fn counts(received: u64, lost: u64, reordered: u64, duplicates: u64) -> SequenceCounts {
    SequenceCounts { received, lost, reordered, duplicates, ..SequenceCounts::default() }
}

#[test]
fn loss_reorder_and_duplicates_are_told_apart() {
    let mut t = SequenceTracker::default();
    let verdicts = feed(&mut t, [10, 11, 14, 12, 12, 14, 15]);
    assert!(matches!(verdicts[0], SequenceVerdict::Next { gap: 0, starts_run: true, .. }));
    assert!(matches!(verdicts[2], SequenceVerdict::Next { gap: 2, starts_run: false, .. }));
    assert!(matches!(verdicts[3], SequenceVerdict::Reordered { .. }));
    assert_eq!(verdicts[4..6], [SequenceVerdict::Duplicate, SequenceVerdict::Duplicate]);
    assert_eq!(t.counts(), counts(5, 1, 1, 2));
}

#[test]
fn numbers_wrap_many_times_without_a_trace() {
    let mut t = SequenceTracker::default();
    for number in 0..300_000u64 {
        let verdict = t.observe((number + 65_530) as u16);
        assert!(matches!(verdict, SequenceVerdict::Next { gap: 0, .. }), "{number}: {verdict:?}");
    }
    assert_eq!(t.counts(), counts(300_000, 0, 0, 0));
    assert_eq!(t.highest_for_report(), 299_999 + 65_530);
}

#[test]
fn reorder_across_the_wrap_and_before_the_first() {
    let mut t = SequenceTracker::default();
    feed(&mut t, [65_534, 0, 65_535, 2, 1, 65_533]);
    assert_eq!(t.counts(), counts(6, 0, 3, 0));
}

#[test]
fn sequence_tracker_counts_long_outage_as_loss() {
    let mut t = SequenceTracker::default();
    feed(&mut t, 0..100);
    let verdicts = feed(&mut t, [20_000, 20_001, 20_002]);
    assert_eq!(verdicts[0], SequenceVerdict::Stray);
    assert!(matches!(verdicts[1], SequenceVerdict::Confirmed { gap: 19_900, starts_run: false, .. }));
    assert_eq!(t.counts(), counts(103, 19_900, 0, 0));
    // The window was emptied: a duplicate from before the outage cannot be recognized, one from
    // after it can.
    assert_eq!(t.observe(20_001), SequenceVerdict::Duplicate);
}

#[test]
fn steps_at_the_edge_of_belief() {
    let mut t = SequenceTracker::default();
    feed(&mut t, [0]);
    assert!(matches!(t.observe(MAX_STEP), SequenceVerdict::Next { gap: 2999, .. }));
    assert_eq!(t.observe(2 * MAX_STEP + 1), SequenceVerdict::Stray);
    assert!(matches!(t.observe(MAX_STEP + 1), SequenceVerdict::Next { gap: 0, .. }));
    assert_eq!(t.counts().strays, 1);
    // 4095 behind is inside the window, 4096 behind is not.
    feed(&mut t, (MAX_STEP + 2)..5001);
    assert!(matches!(t.observe(5000 - 4095), SequenceVerdict::Reordered { .. }));
    assert_eq!(t.observe(5000 - 4096), SequenceVerdict::Stray);
}

#[test]
fn sequence_tracker_counts_sender_restart_not_loss() {
    let mut t = SequenceTracker::default();
    feed(&mut t, 30_000..30_010);
    let verdicts = feed(&mut t, [5, 6, 7]);
    assert!(matches!(verdicts[1], SequenceVerdict::Confirmed { gap: 0, starts_run: true, .. }));
    assert_eq!(t.counts(), SequenceCounts { restarts: 1, ..counts(13, 0, 0, 0) });
}

#[test]
fn lone_strays_change_nothing() {
    let mut t = SequenceTracker::default();
    feed(&mut t, [100, 101, 50_000, 102, 60_000, 103]);
    assert_eq!(t.counts(), SequenceCounts { strays: 2, ..counts(4, 0, 0, 0) });
}

#[test]
fn sequence_tracker_announced_start_reveals_loss_before_first_packet() {
    let mut t = SequenceTracker::default();
    t.begin_run(Some(65_535));
    feed(&mut t, [2, 1, 3]);
    assert_eq!(t.counts(), SequenceCounts { lost_at_start: 2, ..counts(3, 0, 1, 0) });
    // One before the announced start is not of this run.
    assert_eq!(t.observe(65_534), SequenceVerdict::Stray);

    let mut late = SequenceTracker::default();
    feed(&mut late, [12, 13]);
    late.announce(10);
    assert_eq!(late.counts().lost_at_start, 2);
    assert_eq!(late.run_start(), Some(BASE + 10));
}

#[test]
fn sequence_tracker_with_wrong_announcement_keeps_run() {
    let mut t = SequenceTracker::default();
    t.begin_run(Some(40_000));
    feed(&mut t, [7, 8, 9]);
    assert_eq!(t.counts(), counts(3, 0, 0, 0));
    // In a later run two packets in a row are needed, because a left-over would look the same.
    t.begin_run(Some(40_000));
    let verdicts = feed(&mut t, [9, 20_000, 20_001, 20_002]);
    assert_eq!(verdicts[..2], [SequenceVerdict::Stray, SequenceVerdict::Stray]);
    assert!(matches!(verdicts[2], SequenceVerdict::Confirmed { starts_run: true, .. }));
    assert_eq!(t.counts(), SequenceCounts { strays: 1, ..counts(6, 0, 0, 0) });
}

#[test]
fn runs_follow_each_other_by_pause_and_by_seek() {
    let mut t = SequenceTracker::default();
    t.begin_run(Some(1000));
    feed(&mut t, 1000..1010);
    t.begin_run(Some(1010)); // resume
    feed(&mut t, [1009]); // a duplicate from before the pause
    feed(&mut t, 1010..1020);
    t.begin_run(Some(200)); // seek back
    feed(&mut t, [1020, 1021]); // left over
    feed(&mut t, 200..210);
    t.begin_run(None); // resume of a server without RTP-Info
    feed(&mut t, 210..220);
    let counts = t.counts();
    assert_eq!((counts.received, counts.lost, counts.lost_at_start, counts.restarts), (40, 0, 0, 0));
    assert_eq!(counts.strays, 3);
}

#[test]
fn fraction_lost_is_of_the_interval() {
    let mut t = SequenceTracker::default();
    feed(&mut t, (0..100).filter(|n| n % 4 != 1));
    assert_eq!(t.fraction_lost(), (25u64 * 256 / 100) as u8);
    feed(&mut t, 100..200);
    assert_eq!(t.fraction_lost(), 0);
    assert_eq!(t.fraction_lost(), 0);
}

/// Packets dropped, doubled and delayed at random, against a count by brute force.
#[test]
fn random_links_against_a_model() {
    bolero::check!().with_type::<(u16, Vec<(u8, u8)>)>().with_iterations(2000).for_each(|(first, fates)| {
        // (fate, delay): fate 0..32 drops, 32..64 doubles; delay moves the packet back by up to 15 places.
        let mut wire: Vec<(usize, u64)> = Vec::new();
        for (place, (fate, delay)) in fates.iter().enumerate() {
            let number = place as u64;
            let place = place * 4 + usize::from(delay % 16) * 4;
            match fate {
                _ if number == 0 => wire.push((0, 0)),
                0..32 => {}
                32..64 => wire.extend([(place + 1, number), (place + 2, number)]),
                _ => wire.push((place + 1, number)),
            }
        }
        wire.sort_unstable();
        let mut tracker = SequenceTracker::default();
        let (mut seen, mut highest, mut model) =
            (std::collections::BTreeSet::new(), None, counts(0, 0, 0, 0));
        for (_, number) in wire {
            tracker.observe(first.wrapping_add(number as u16));
            if !seen.insert(number) {
                model.duplicates += 1;
            } else if highest.is_some_and(|highest| number < highest) {
                model.reordered += 1;
            }
            highest = highest.max(Some(number));
        }
        model.received = seen.len() as u64;
        model.lost = highest.map_or(0, |highest| highest + 1 - model.received);
        assert_eq!(tracker.counts(), model);
    });
}

/// No order of calls and numbers makes it panic or miscount its input.
#[test]
fn sequence_tracker_accounts_for_any_input() {
    bolero::check!().with_type::<Vec<(u8, u16)>>().with_iterations(2000).for_each(|steps| {
        let mut tracker = SequenceTracker::default();
        let mut packets = 0;
        for (step, number) in steps {
            match step {
                0..8 => tracker.begin_run(Some(*number)),
                8..12 => tracker.begin_run(None),
                12..16 => tracker.announce(*number),
                _ => {
                    tracker.observe(*number);
                    packets += 1;
                }
            }
        }
        let counts = tracker.counts();
        assert_eq!(counts.received + counts.duplicates + counts.strays, packets);
        assert!(counts.reordered <= counts.received);
        tracker.fraction_lost();
    });
}
