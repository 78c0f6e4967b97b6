//! Streams that share wake-ups: seldom awake, none late, nothing earlier than in a burst.

use std::cell::RefCell;
use std::rc::Rc;

use millrace_core::limits::{DEFAULT_BURST_NS, MAX_BURST_NS, MAX_BURST_PACKETS, RETRY_NS, TCP_BURST_RATIO};
use millrace_core::random::SplitMix;
use millrace_core::seam::SendOutcome;
use millrace_core::time::Instant;
use millrace_core::wire::rtp::sequence_of;
use millrace_engine::EngineConfig;
use millrace_engine::limits::SHARED_WAKE_NS;

use crate::world::{MS, PlaySpec, S, World, assert_bursts_fit_a_buffer, assert_rate_bound, id, tcp, udp};
use millrace_testkit::film::Film;

fn sharing(streams: u32) -> World {
    let config = EngineConfig { streams: streams as usize, shares_wakes: true, ..EngineConfig::default() };
    let mut world = World::new(config, 400);
    // Otherwise each answer is a moment at which the engine is looked at.
    world.disk.rule = Box::new(|_| (0, Ok(())));
    world
}

/// `count` viewers from stream `first` on, who begin one after the other at times that have nothing to do with bursts.
fn play_all(world: &mut World, film: &Film, first: u32, count: u32) {
    for index in first..first + count {
        let dest = if index % 5 == 4 { tcp(index) } else { udp(index) };
        world.open(film, index, dest);
        world.play_from(id(index), index * 7 % 500);
        world.run_for(1_234_567);
    }
}

/// The moments at which something was sent since then.
fn moments(world: &World, since: Instant) -> Vec<Instant> {
    let mut moments: Vec<_> = world.sent.iter().map(|sent| sent.at).filter(|&at| at >= since).collect();
    moments.dedup();
    moments
}

#[test]
fn shared_wakeups_are_at_most_125_per_second() {
    for (viewers, rate) in
        [(1, 8_000_000), (10, 8_000_000), (10, 300_000), (900, 2_000_000), (300, 16_000_000)]
    {
        let mut world = sharing(viewers);
        let film = Film::constant(0, 60_000, rate);
        play_all(&mut world, &film, 0, viewers);
        let since = world.now;
        world.run_for(10 * S);
        let moments = moments(&world, since);
        assert!(moments.len() <= 1_251, "{} in 10 s for {viewers} viewers of {rate} b/s", moments.len());
        assert!(moments.windows(2).all(|two| two[1].ns_since(two[0]) >= SHARED_WAKE_NS));
        assert_eq!((world.late_max_ns, world.engine.counters().late), (0, 0));
        let reports: Vec<_> =
            world.reports.iter().map(|report| report.at).filter(|&at| at >= since).collect();
        assert!(reports.len() >= viewers as usize);
        assert!(rate < 2_000_000 || reports.iter().all(|at| moments.contains(at)), "reports wake nobody");
    }
}

/// A loop that never sleeps looks all the time: that is no reason to run ahead.
#[test]
fn shared_wakeups_with_busy_polling_do_not_send_more_often() {
    let mut world = sharing(50);
    let film = Film::constant(0, 60_000, 8_000_000);
    play_all(&mut world, &film, 0, 50);
    let since = world.now;
    for _ in 0..4_000 {
        world.now = world.now.plus_ns(MS / 4);
        world.turn();
    }
    let moments = moments(&world, since);
    assert!(moments.len() <= 126, "{}", moments.len());
    assert!(world.late_max_ns <= MS / 4);
}

#[test]
fn shared_wakeups_send_bursts_less_than_one_wakeup_early() {
    for rate in [40_000_000, 2_500_000] {
        let mut world = sharing(100);
        let film = Film::constant(0, 60_000, rate);
        for index in 0..100 {
            world.open(&film, index, udp(index));
            world.play_from(id(index), index * 31);
            world.run_for(777_777);
        }
        for burst_ns in [10 * MS, 18 * MS, 5 * MS] {
            world.engine.set_burst_ns(burst_ns);
            world.run_for(100 * MS);
            world.early_max_ns = 0;
            let since = world.now;
            world.run_for(2 * S);
            let lead_ns = SHARED_WAKE_NS.min(burst_ns);
            // Four packets of 2.5 Mb/s would take longer than 12 ms.
            let most_ns = lead_ns + burst_ns.max(MAX_BURST_NS - SHARED_WAKE_NS);
            assert!(world.early_max_ns <= most_ns, "{} of {burst_ns}", world.early_max_ns);
            let leads = world.sent.iter().filter(|sent| sent.at >= since);
            let leads: Vec<_> = leads.map(|sent| sent.departure.ns_since(sent.at)).collect();
            let most_ns = *leads.iter().max().unwrap();
            assert!(most_ns <= lead_ns && most_ns >= lead_ns * 3 / 4, "{most_ns} of {lead_ns}");
            assert!(moments(&world, since).len() as u64 <= 1 + 2 * S / lead_ns);
        }
        assert_eq!(world.late_max_ns, 0);
    }
}

/// Viewers seek, the loop is held up, bursts become longer and shorter, all at moments that have nothing to do with each
/// other: whatever is armed for a time that the wheel has passed must leave, or it fires for ever.
#[test]
fn shared_wakeups_with_seeks_at_any_moment_come_to_rest() {
    for seed in 0..40 {
        let mut random = SplitMix::numbered(seed, 0);
        let mut world = sharing(2);
        let film = Film::constant(0, 60_000, 1_000_000 << (seed % 5));
        play_all(&mut world, &film, 0, 2);
        for _ in 0..3_000 {
            match random.below(60) {
                0 => {
                    world.ahead_ms = [0, 500][random.below(2) as usize];
                    let from = random.below(50_000) as u32;
                    let at = world.now.plus_ns(random.below(20 * MS));
                    let spec = PlaySpec {
                        from,
                        until: film.packets,
                        at,
                        sequence: sequence_of(from),
                        scale_permille: 1000,
                    };
                    world.play(id(random.below(2) as u32), spec).unwrap();
                }
                1 => world.hole(random.below(30) * MS),
                2 => world.engine.set_burst_ns((5 + random.below(12)) * MS),
                _ => world.now = world.now.plus_ns(random.below(3 * MS)),
            }
            world.turn();
        }
        assert!(world.sent.len() > 100, "seed {seed}: {} bursts", world.sent.len());
    }
}

/// Packets of 150 Mb/s may follow each other only so fast: they need more moments than the others, and get them.
#[test]
fn shared_wakeups_with_fast_stream_keep_its_rate() {
    let mut world = sharing(51);
    let (slow, fast) = (Film::constant(0, 60_000, 2_000_000), Film::constant(1, 400_000, 150_000_000));
    play_all(&mut world, &slow, 0, 50);
    let stream = world.open(&fast, 50, udp(50));
    world.play_from(stream, 0);
    world.run_for(10 * S);
    assert_eq!(world.late_max_ns, 0);
    let sent = world.sent_of(stream);
    assert!(sent.iter().map(|sent| sent.count).max() == Some(MAX_BURST_PACKETS as u32));
    assert_bursts_fit_a_buffer(&sent);
    let most_ns = SHARED_WAKE_NS + u64::from(TCP_BURST_RATIO) * DEFAULT_BURST_NS;
    assert!(world.early_max_ns <= most_ns, "some have connections");
}

#[test]
fn shared_wakeups_after_stall_resume_once_caught_up() {
    let mut world = sharing(50);
    let film = Film::constant(0, 60_000, 8_000_000);
    play_all(&mut world, &film, 0, 50);
    world.run_for(2 * S);
    world.hole(3 * S);
    world.run_for(14 * S);
    for index in (0..50).filter(|index| index % 5 != 4) {
        assert_rate_bound(&world.sent_of(id(index)));
    }
    world.late_max_ns = 0;
    let since = world.now;
    world.run_for(2 * S);
    assert_eq!(world.late_max_ns, 0);
    assert!(moments(&world, since).len() <= 251);
}

/// A socket that is full is tried again after a while, not at once and over and over because others have their turn.
#[test]
fn blocked_socket_with_shared_wakeups_waits_retry_interval() {
    let mut world = sharing(20);
    let film = Film::constant(0, 60_000, 8_000_000);
    play_all(&mut world, &film, 0, 20);
    world.run_for(S);
    let tries: Rc<RefCell<Vec<Instant>>> = Rc::default();
    let noted = Rc::clone(&tries);
    world.device = Box::new(move |now, transmit| {
        if transmit.stream != id(3) {
            return SendOutcome::Sent;
        }
        noted.borrow_mut().push(now);
        SendOutcome::Blocked { taken: 0 }
    });
    world.run_for(S);
    let tries = tries.borrow();
    assert!(tries.len() > 100, "{} times", tries.len());
    assert!(tries.windows(2).all(|two| two[1].ns_since(two[0]) >= RETRY_NS));
}

/// Media that a run may send ahead leaves as fast as allowed, not a burst with each wake-up of the
/// others.
#[test]
fn lead_with_shared_wakeups_is_sent_at_once() {
    let mut world = sharing(11);
    let film = Film::constant(0, 60_000, 8_000_000);
    play_all(&mut world, &film, 0, 10);
    world.ahead_ms = 2_000;
    let stream = world.open(&film, 10, tcp(10));
    world.play_from(stream, 0);
    world.run_for(3 * S);
    let sent = world.sent_of(stream);
    let ahead = sent.iter().find(|sent| sent.departure.ns_since(sent.at) >= 1_900 * MS).expect("it is ahead");
    let took_ns = ahead.at.ns_since(sent[0].at);
    assert!((13 * MS..150 * MS).contains(&took_ns), "{took_ns} ns for 2 s");
}
