//! Departure times, bursts, catching up.

use millrace_core::limits::{MAX_BURST_PACKETS, MAX_HOLE_NS, MAX_TCP_WRITE_BYTES};
use millrace_core::packet::WireLayout;
use millrace_core::time::Instant;
use millrace_core::wire::rtp::sequence_of;
use millrace_engine::EngineConfig;
use millrace_engine::limits::START_READ_NS;

use crate::world::{MS, PlaySpec, S, World, assert_bursts_fit_a_buffer, assert_rate_bound, tcp, udp};
use millrace_testkit::film::Film;

/// A title whose rate changes every second between 200 kb/s and 150 Mb/s.
fn variable(title: u32, packets: u32) -> Film {
    let rates: [u64; 7] = [2_000_000, 8_000_000, 200_000, 40_000_000, 150_000_000, 500_000, 5_000_000];
    let mut times = Vec::with_capacity(packets as usize);
    let mut ticks_1000 = 0;
    for _ in 0..packets {
        times.push(ticks_1000 / 1000);
        let second = ticks_1000 / 90_000_000;
        ticks_1000 += 1316 * 8 * 90_000_000 / rates[second as usize % rates.len()];
    }
    Film::new(title, packets, move |p| times[p as usize])
}

/// All of `film` on the shared timeline, as soon as possible.
fn whole(film: &Film) -> PlaySpec {
    PlaySpec { from: 0, until: film.packets, at: Instant(0), sequence: sequence_of(0), scale_permille: 1000 }
}

/// Each burst leaves exactly when its first packet departs, and holds what departs within its length.
fn assert_on_time(world: &World, burst_ns: u64) {
    assert_eq!(world.late_max_ns, 0);
    assert!(world.early_max_ns < burst_ns, "{} ns early", world.early_max_ns);
    assert!(world.sent.iter().all(|sent| sent.at == sent.departure));
    assert_eq!(world.engine.counters().late, 0);
}

#[test]
fn constant_rate_leaves_on_the_nanosecond() {
    let mut world = World::small();
    let film = Film::constant(0, 20_000, 8_000_000);
    let stream = world.open(&film, 0, udp(0));
    world.play_from(stream, 0);
    world.run_out();
    assert_on_time(&world, 10 * MS);
    assert_eq!(world.datagrams, 20_000);
    // 760 packets a second in bursts of 10 ms, some cut at the end of an extent.
    let full = world.sent.iter().filter(|sent| (7..=8).contains(&sent.count)).count();
    assert!(full * 100 > world.sent.len() * 90, "{full} of {}", world.sent.len());
}

#[test]
fn variable_rate_leaves_on_the_nanosecond() {
    let mut world = World::small();
    let film = variable(0, 60_000);
    let stream = world.open(&film, 0, udp(0));
    world.play_from(stream, 0);
    world.run_out();
    assert_eq!(world.datagrams, 60_000);
    assert_on_time(&world, 20 * MS);
    let largest = world.sent.iter().map(|sent| sent.count).max().unwrap();
    assert_eq!(largest, MAX_BURST_PACKETS as u32, "150 Mb/s would be 143 packets in 10 ms");
}

#[test]
fn set_burst_ns_during_run_changes_burst_length() {
    let mut world = World::small();
    let film = Film::constant(0, 20_000, 8_000_000);
    let stream = world.open(&film, 0, udp(0));
    world.engine.set_burst_ns(18 * MS);
    world.play_from(stream, 0);
    let half = world.now.plus_ns(12_000 * MS);
    world.run_until(half);
    let long = world.sent.iter().filter(|sent| (13..=14).contains(&sent.count)).count();
    assert!(long * 100 > world.sent.len() * 90, "{long} of {}", world.sent.len());
    let before = world.sent.len();
    world.engine.set_burst_ns(5 * MS);
    world.run_out();
    assert_eq!(world.datagrams, 20_000);
    assert!(world.sent[before..].iter().all(|sent| sent.count <= 4));
    assert_on_time(&world, 18 * MS);
}

#[test]
fn burst_of_slow_stream_has_up_to_four_packets() {
    let mut world = World::small();
    let film = Film::constant(0, 600, 2_500_000); // 4.2 ms a packet
    let stream = world.open(&film, 0, udp(0));
    world.play_from(stream, 0);
    world.run_out();
    assert_on_time(&world, 20 * MS);
    assert!(world.early_max_ns > 10 * MS);
    assert!(world.sent.iter().all(|sent| sent.count <= 4));
    let fours = world.sent.iter().filter(|sent| sent.count == 4).count();
    assert!(fours > 140, "{fours}");
}

#[test]
fn bursts_in_a_connection_grow_to_four_times_the_length() {
    let mut world = World::small();
    let film = Film::constant(0, 20_000, 8_000_000); // 1.316 ms a packet
    let stream = world.open(&film, 0, tcp(0));
    world.play_from(stream, 0);
    world.run_for(10 * S);
    let counts: Vec<_> = world.sent.iter().take(4).map(|sent| sent.count).collect();
    assert_eq!(counts, [8, 16, 23, 31], "10, 20, 30, 40 ms; the first leaves as soon as any other");
    assert_on_time(&world, 40 * MS);
    world.engine.set_burst_ns(18 * MS);
    let from = world.sent.len() + 2;
    world.run_for(3 * S);
    // 55 packets in 72 ms, or the rest of an extent.
    assert!(world.sent[from..].windows(4).all(|w| w.iter().filter(|sent| sent.count == 55).count() >= 3));
    let again = world.now.plus_ns(50 * MS);
    world.play(stream, PlaySpec { from: 41 * 196, at: again, ..whole(&film) }).unwrap();
    let from = world.sent.len();
    world.run_out();
    let counts: Vec<_> = world.sent[from..].iter().take(3).map(|sent| sent.count).collect();
    assert_eq!(counts, [14, 28, 42], "each run begins with a short one");
    assert_on_time(&world, 72 * MS);
}

#[test]
fn tcp_burst_fits_into_max_write() {
    for (packet_bytes, most) in [(1316, 92), (8084, 16), (188, 92)] {
        let mut world = World::small();
        let layout = WireLayout::new(packet_bytes).unwrap();
        let mut film = Film::new(0, 5_000, u64::from); // 90,000 packets a second
        (film.layout, film.last_bytes) = (layout, packet_bytes as u16);
        let stream = world.open(&film, 0, tcp(0));
        world.play_from(stream, 0);
        world.run_out();
        let largest = world.sent.iter().map(|sent| sent.count).max().unwrap();
        assert_eq!(largest, most);
        assert!(largest as usize * (layout.slot_bytes() + 4) <= MAX_TCP_WRITE_BYTES);
    }
}

#[test]
fn smooth_sends_single_packets_each_at_its_time() {
    let mut world = World::new(EngineConfig { streams: 2, smooth: true, ..EngineConfig::default() }, 8);
    let film = variable(0, 30_000);
    let stream = world.open(&film, 0, udp(0));
    world.play_from(stream, 0);
    world.run_out();
    assert_eq!((world.early_max_ns, world.late_max_ns, world.sent.len()), (0, 0, 30_000));
}

#[test]
fn speed_scales_departures_and_not_timestamps() {
    for scale_permille in [2000, 500, 1000, 16_000] {
        let mut world = World::small();
        let film = Film::constant(0, 16_001, 1316 * 8 * 800); // 800 packets a second for 20 s
        let stream = world.open(&film, 0, udp(0));
        let at = world.now.plus_ns(S);
        let spec = PlaySpec { from: 0, until: film.packets, at, sequence: 0, scale_permille };
        world.play(stream, spec).unwrap();
        world.run_out();
        assert_on_time(&world, 20 * MS);
        assert_eq!(world.departure(stream, 16_000).0 - at.0, 20 * S * 1000 / u64::from(scale_permille));
        assert_eq!(world.datagrams, 16_001);
    }
}

#[test]
fn catch_up_after_three_second_stall_keeps_five_quarters_rate() {
    let mut world = World::small();
    let film = variable(0, 150_000);
    let stream = world.open(&film, 0, udp(0));
    world.play_from(stream, 0);
    world.run_for(5 * S);
    world.hole(3 * S);
    let end = world.now;
    world.run_for(30 * S);
    let sent = world.sent_of(stream);
    assert_rate_bound(&sent);
    let recovered = sent.iter().find(|sent| sent.at > end && sent.at == sent.departure).expect("it recovers");
    let took = recovered.at.0 - end.0;
    // 3 s at a quarter of the rate: 12 s, and a little for bursts that end with an extent.
    assert!((11_850 * MS..12_500 * MS).contains(&took), "recovered after {took} ns");
    let on_time = sent.iter().filter(|sent| sent.at >= recovered.at).all(|sent| sent.at == sent.departure);
    assert!(on_time, "once on time, always on time");
    assert_eq!(world.engine.counters().catch_ups, 1);
    assert!(world.engine.counters().late > 0);
    assert_eq!(world.engine.counters().late_max_ns, world.late_max_ns);
    assert!(world.late_max_ns <= 3 * S);
}

#[test]
fn rate_with_constantly_late_wakeups_is_kept() {
    // By UDP, and in a connection with bursts of 55 packets.
    for (dest, rate, burst_ms, slack_ms) in [(udp(0), 2_000_000, 10, 60), (tcp(0), 8_000_000, 18, 200)] {
        let mut world = World::small();
        world.engine.set_burst_ns(burst_ms * MS);
        let film = Film::constant(0, 60_000, rate);
        let stream = world.open(&film, 0, dest);
        world.play_from(stream, 0);
        let began = world.now;
        for _ in 0..2000 {
            world.hole(25 * MS); // every wake-up comes when more than a burst of datagrams should have left
            world.run_for(MS);
        }
        let sent = world.sent_of(stream);
        let (first, last) = (sent.first().unwrap(), sent.last().unwrap());
        let film_ns = last.departure.0 - first.departure.0;
        let time_ns = world.now.0 - began.0;
        assert!(film_ns + slack_ms * MS >= time_ns, "{film_ns} ns of film in {time_ns} ns");
        assert_rate_bound(&sent);
    }
}

#[test]
fn catch_up_after_late_extent_keeps_rate_bound() {
    let mut world = World::small();
    let film = Film::constant(0, 30_000, 8_000_000);
    let stream = world.open(&film, 0, udp(0));
    world.disk.rule = Box::new(|want| (if want.extent == 20 { 2 * S } else { MS }, Ok(())));
    world.play_from(stream, 0);
    world.run_out();
    let sent = world.sent_of(stream);
    assert_rate_bound(&sent);
    assert_eq!(world.datagrams, 30_000);
    assert_eq!(world.engine.counters().starved, 1);
    assert!((1_700 * MS..2 * S).contains(&world.late_max_ns), "{}", world.late_max_ns);
    assert_eq!(sent.last().unwrap().at, sent.last().unwrap().departure, "on time again at the end");
}

#[test]
fn run_begins_when_first_extent_has_been_read() {
    // (start after the command, first read takes) in milliseconds; with FEC and without
    for (start, read, spare) in
        [(0, 0, 0), (0, 30, 0), (0, 500, 0), (50, 30, 0), (50, 500, 0), (50, 30, 2), (50, 500, 2)]
    {
        let mut world = World::small();
        world.spare = spare;
        let film = Film::constant(0, 10_000, 8_000_000);
        let stream = world.open(&film, 0, udp(0));
        world.disk.rule = Box::new(move |want| (if want.extent == 0 { read * MS } else { MS }, Ok(())));
        let asked = world.now;
        let at = asked.plus_ns(start * MS);
        world.play(stream, PlaySpec { at, ..whole(&film) }).unwrap();
        world.run_out();
        let begins = asked.plus_ns(start.max(read) * MS);
        assert_eq!(world.sent[0].at, begins, "{start} {read}");
        assert_eq!(world.began, [(stream, world.run_of(stream), begins)], "its FEC can follow it");
        assert_on_time(&world, 10 * MS);
        assert_eq!(world.datagrams, 10_000);
        // There was nothing to catch up, and viewers who are played to went first.
        let counters = world.engine.counters();
        assert_eq!((counters.starved, counters.catch_ups), (0, 0));
        assert_eq!(world.disk.wants[0].1.by, asked.plus_ns(START_READ_NS));
    }
}

#[test]
fn fec_keeps_the_schedule_of_its_media_however_late_its_first_extent_is() {
    let mut world = World::small();
    world.quiet = true;
    let film = Film::constant(0, 10_000, 8_000_000);
    let stream = world.open(&film, 0, udp(0));
    world.disk.rule = Box::new(|want| (if want.extent == 0 { 500 * MS } else { MS }, Ok(())));
    world.play_from(stream, 0);
    world.run_out();
    assert_rate_bound(&world.sent_of(stream));
    assert_eq!(world.sent[0].at.0 - world.sent[0].departure.0, 450 * MS);
    let last = world.sent.last().unwrap();
    assert_eq!(last.at, last.departure);
}

/// FEC gets its play command when its media has begun: this may be a little after its own first
/// packet was due.
#[test]
fn fec_that_is_told_late_keeps_the_schedule_too() {
    let mut world = World::small();
    world.quiet = true;
    let film = Film::constant(0, 10_000, 8_000_000);
    let stream = world.open(&film, 0, udp(0));
    let at = Instant(world.now.0 - 30 * MS);
    world.play(stream, PlaySpec { at, ..whole(&film) }).unwrap();
    world.run_out();
    assert_rate_bound(&world.sent_of(stream));
    assert_eq!(world.sent[0].departure, at);
    let last = world.sent.last().unwrap();
    assert_eq!(last.at, last.departure);
}

#[test]
fn seeks_with_instant_reads_do_not_flood_receiver() {
    let mut world = World::small();
    world.disk.rule = Box::new(|_| (0, Ok(())));
    let film = Film::constant(0, 60_000, 90_000_000); // 85 packets in 10 ms
    let stream = world.open(&film, 0, udp(0));
    world.play(stream, whole(&film)).unwrap();
    for jump in 1..20 {
        // A long burst has just left.
        while world.sent.last().is_none_or(|sent| sent.at != world.now || sent.count < 50) {
            world.turn();
            world.now = world.next().unwrap().max(world.now);
            world.turn();
        }
        let from = jump * 3_000;
        world.engine.pause(world.now, stream).unwrap();
        world.play(stream, PlaySpec { from, at: world.now, sequence: from as u16, ..whole(&film) }).unwrap();
        world.turn();
    }
    assert_bursts_fit_a_buffer(&world.sent);
}

#[test]
fn rate_bound_holds_with_random_loop_delays() {
    let mut state = 12345u64;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for round in 0..6 {
        let mut world =
            World::new(EngineConfig { streams: 2, smooth: round % 2 == 1, ..EngineConfig::default() }, 8);
        let film = variable(0, 40_000);
        let stream = world.open(&film, 0, udp(0));
        world.play_from(stream, 0);
        for _ in 0..3000 {
            world.turn();
            let late = match random(100) {
                0 => random(400 * MS),
                1..30 => random(30 * MS),
                _ => random(MS),
            };
            let next = world.next().unwrap_or(world.now);
            world.now = next.max(world.now).plus_ns(late);
        }
        assert_rate_bound(&world.sent_of(stream));
        assert!(world.datagrams > 2_000, "{}", world.datagrams);
    }
}

#[test]
fn timeline_after_stall_beyond_max_hole_is_moved() {
    let mut world = World::small();
    let film = Film::constant(0, 60_000, 8_000_000);
    let stream = world.open(&film, 0, udp(0));
    world.play_from(stream, 0);
    world.run_for(S);
    let due = world.next().unwrap();
    world.hole(40 * S);
    let moved = world.now.0 - due.0 - MAX_HOLE_NS;
    world.shift(stream, moved);
    world.late_max_ns = 0;
    world.run_for(25 * S);
    assert_eq!(world.late_max_ns, MAX_HOLE_NS);
    let last = world.sent.last().unwrap();
    assert_eq!(last.at, last.departure, "on time again on the timeline that was moved");
    assert_rate_bound(&world.sent[world.sent.len() - 1000..]);
}

/// Three hours of media with a loop that is called up to 2 ms late each time: no drift.
#[test]
fn hours_of_film_keep_their_rate() {
    let mut world = World::new(EngineConfig { streams: 1, ..EngineConfig::default() }, 4);
    let film = Film::constant(0, 3 * 3600 * 380, 4_000_000);
    let stream = world.open(&film, 0, udp(0));
    world.play_from(stream, 0);
    world.keep_sent = false;
    let start = world.departure(stream, 0);
    let mut lcg = 1u64;
    let mut checks = 0;
    while world.position(stream) + 1000 < film.packets {
        world.turn();
        lcg = lcg.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        world.now = world.next().unwrap().plus_ns((lcg >> 40) % (2 * MS));
        if world.now.ns_since(start) > (checks + 1) * 60 * S {
            checks += 1;
            world.turn();
            // Position against time: within a burst, after any number of hours.
            let departure = world.departure(stream, world.position(stream));
            assert!(departure.0 + 3 * MS > world.now.0 && departure.0 < world.now.0 + 21 * MS);
            let error = departure.0.abs_diff(world.now.0) as f64 / (world.now.0 - start.0) as f64;
            assert!(error < 0.001, "{error}");
        }
    }
    assert!(checks > 175, "{checks} minutes");
    assert!(world.late_max_ns < 2 * MS);
}

#[test]
fn title_without_timestamps_is_limited_to_max_rate() {
    let mut world = World::small();
    let film = Film::new(0, 50_000, |_| 0);
    let other = Film::constant(1, 1_000, 8_000_000);
    let (bad, good) = (world.open(&film, 0, udp(0)), world.open(&other, 1, udp(1)));
    world.disk.rule = Box::new(|_| (0, Ok(())));
    world.play_from(good, 0);
    world.play_from(bad, 0);
    world.run_out();
    let sent = world.sent_of(bad);
    let took = sent.last().unwrap().at.0 - sent[0].at.0;
    assert!(took >= 49_000 * 10_000, "50,000 packets in {took} ns");
    assert!(world.sent_of(good).iter().all(|sent| sent.at == sent.departure));
}

#[test]
fn play_with_start_time_in_the_past_begins_now() {
    let mut world = World::small();
    let film = Film::constant(0, 1_000, 8_000_000);
    let stream = world.open(&film, 0, udp(0));
    world.disk.rule = Box::new(|_| (0, Ok(())));
    let spec = PlaySpec { from: 0, until: 1_000, at: Instant(5), sequence: 0, scale_permille: 1000 };
    world.play(stream, spec).unwrap();
    let now = world.now;
    world.run_out();
    assert_eq!(world.sent[0].at, now);
    assert_on_time(&world, 10 * MS);
}
