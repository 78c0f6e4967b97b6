//! Buffers on a virtual clock, in milliseconds.

use super::*;

const MS: u64 = 1_000_000;

fn at(ms: u64) -> Instant {
    Instant(ms * MS)
}

/// 10 s ahead, starting with 2 s.
fn buffer() -> PlayBuffer {
    PlayBuffer::new(BufferPlan::new(10_000 * MS, 2_000 * MS), at(1000))
}

#[test]
fn play_buffer_with_timely_media_never_rebuffers() {
    let mut play = buffer();
    assert_eq!(play.received(at(1100), 1_000 * MS), 0);
    assert!(!play.has_started());
    assert_eq!(play.received(at(1300), 2_000 * MS), 0);
    assert!(play.has_started());
    for n in 1..=40 {
        assert_eq!(play.received(at(1300 + n * 100), (2_000 + n * 100) * MS), 0);
    }
    play.complete(at(5400));
    assert_eq!(play.ends_at(), Some(at(7300)));
    assert!(!play.has_ended(at(7299)) && play.has_ended(at(7300)));
    let expected =
        BufferCounts { startup_ns: Some(300 * MS), played_ns: 6_000 * MS, ..BufferCounts::default() };
    assert_eq!(play.counts(at(9000)), expected);
}

#[test]
fn play_buffer_rebuffers_from_underrun_until_refilled() {
    let mut play = buffer();
    play.received(at(1000), 3_000 * MS); // the picture starts, and runs out of media at 4000
    assert_eq!(play.counts(at(3999)).stalls, 0);
    let running = play.counts(at(4500));
    assert_eq!((running.stalls, running.stalled_ns, running.played_ns), (1, 500 * MS, 3_000 * MS));
    // The first piece was needed at 4000; the next would have been needed a second later.
    assert_eq!(play.received(at(5200), 4_000 * MS), 1200 * MS);
    assert_eq!(play.received(at(5300), 4_900 * MS), 300 * MS);
    assert_eq!(play.received(at(5400), 5_000 * MS), 0, "needed at 5900 if the picture had gone on");
    // Enough again: two seconds ahead of where the picture stood.
    let counts = play.counts(at(6400));
    assert_eq!((counts.stalls, counts.stalled_ns, counts.longest_stall_ns), (1, 1400 * MS, 1400 * MS));
    assert_eq!((counts.played_ns, counts.lateness_max_ns), (4_000 * MS, 1200 * MS));
    assert_eq!(play.buffered_ns(at(6400)), 1_000 * MS);
}

#[test]
fn play_buffer_when_full_reads_at_playback_rate() {
    let mut play = buffer();
    assert_eq!(play.reads_at(at(1000)), None);
    play.received(at(1000), 10_000 * MS);
    assert_eq!(play.reads_at(at(1000)), Some(at(1250)));
    assert_eq!(play.reads_at(at(1200)), None, "below the goal, whatever it was before");
    play.received(at(1250), 10_100 * MS);
    assert_eq!(play.reads_at(at(1250)), None);
    play.pause(at(1300));
    play.received(at(1300), 10_400 * MS);
    assert_eq!(play.reads_at(at(1300)), Some(Instant(u64::MAX)), "a picture that stands needs nothing");
    assert_eq!(play.reads_at(at(90_000)), Some(Instant(u64::MAX)));
    play.resume(at(100_000));
    assert_eq!(play.reads_at(at(100_000)), Some(at(100_350)));
    assert_eq!(play.counts(at(100_500)).played_ns, 800 * MS);
}

#[test]
fn seeks_begin_anew_and_are_timed_apart_from_the_start() {
    let mut play = buffer();
    play.received(at(1500), 2_000 * MS);
    play.seek(at(2500));
    assert_eq!((play.buffered_ns(at(2500)), play.reads_at(at(2500))), (0, None));
    play.received(at(2600), 1_900 * MS);
    play.received(at(2800), 2_000 * MS);
    let counts = play.counts(at(3000));
    assert_eq!((counts.startup_ns, counts.slowest_seek_ns), (Some(500 * MS), Some(300 * MS)));
    assert_eq!(counts.played_ns, 1_200 * MS);
    // A stall that a seek ends was one all the same.
    play.seek(at(5800));
    let counts = play.counts(at(5900));
    assert_eq!((counts.stalls, counts.stalled_ns), (1, 1_000 * MS));
    play.complete(at(6000));
    assert!(play.has_ended(at(6000)), "nothing came, so nothing is left to see");
}

#[test]
fn play_buffer_of_short_title_starts_when_complete() {
    let mut play = buffer();
    play.received(at(1100), 500 * MS);
    assert!(!play.has_started());
    play.complete(at(1200));
    assert_eq!((play.has_started(), play.ends_at()), (true, Some(at(1700))));
    assert_eq!(play.reads_at(at(1200)), None);
}

#[test]
fn pauses_of_every_state() {
    let mut play = buffer();
    play.pause(at(1000));
    assert_eq!(play.counts(at(1000)), BufferCounts::default());
    play.received(at(1000), 2_000 * MS);
    play.pause(at(3500)); // it had stood still since 3000
    let counts = play.counts(at(9000));
    assert_eq!((counts.stalls, counts.stalled_ns), (1, 500 * MS));
    play.resume(at(10_000));
    assert_eq!(play.counts(at(10_300)).stalled_ns, 800 * MS, "still nothing to see");
}

#[test]
fn play_buffer_counts_stay_consistent_for_any_events() {
    let steps = bolero::check!().with_type::<Vec<(u8, u16)>>().with_iterations(2000);
    steps.for_each(|steps| {
        let mut play = buffer();
        let (mut now, mut film) = (at(1000), 0u64);
        for (what, amount) in steps {
            let amount = u64::from(*amount);
            match what % 8 {
                0 => play.pause(now),
                1 => play.resume(now),
                2 => {
                    play.seek(now);
                    film = 0;
                }
                3 if what & 64 != 0 => play.complete(now),
                4 | 5 => {
                    film += amount * MS;
                    play.received(now, film);
                }
                _ => now = now.plus_ns(amount * MS),
            }
            let counts = play.counts(now);
            let since_ns = now.ns_since(at(1000));
            assert!(counts.played_ns + counts.stalled_ns + counts.startup_ns.unwrap_or(0) <= since_ns);
            assert!(counts.longest_stall_ns <= counts.stalled_ns);
            assert!(counts.stalls > 0 || counts.stalled_ns == 0);
            assert!(play.reads_at(now).is_none_or(|at| at > now));
            assert!(play.buffered_ns(now) <= film);
        }
    });
}
