//! Ten thousand viewers at once.

use millrace_core::ids::StreamId;
use millrace_core::limits::{DEFAULT_BURST_NS, TCP_BURST_RATIO};
use millrace_core::wire::rtp::sequence_of;
use millrace_engine::{EngineConfig, StreamEvent};

use crate::world::{MS, PlaySpec, S, World, id, tcp, udp};
use millrace_testkit::film::Film;

const VIEWERS: u32 = 10_000;

/// Five titles of different rates, viewers spread over their first minutes, every third by TCP, every fifth with a
/// timeline of its own, every seventh at double speed; some pause, some leave.
#[test]
fn ten_thousand_viewers_of_five_films() {
    let rates = [300, 1_500, 4_000, 8_000, 16_000];
    let films: Vec<_> =
        rates.iter().zip(0..).map(|(&rate, t)| Film::constant(t, 18_000, rate * 1000)).collect();
    let config = EngineConfig { streams: VIEWERS as usize, ..EngineConfig::default() };
    let mut world = World::new(config, 500);
    world.keep_sent = false;
    for index in 0..VIEWERS {
        let film = &films[index as usize % films.len()];
        let stream = world.open(film, index, if index % 3 == 0 { tcp(index) } else { udp(index) });
        let from = index * 37 % 5_000;
        let spec = PlaySpec {
            from,
            until: film.packets,
            at: world.now.plus_ns(50 * MS + u64::from(index) * 97_001),
            sequence: if index % 5 == 0 { 7 } else { sequence_of(from) },
            scale_permille: if index % 7 == 0 { 2000 } else { 1000 },
        };
        world.play(stream, spec).unwrap();
    }
    world.run_for(1_500 * MS);
    let paused: Vec<_> = (0..VIEWERS).filter(|i| i % 11 == 0).collect();
    for &index in &paused {
        world.engine.pause(world.now, id(index)).unwrap();
    }
    let gone: Vec<_> = (0..VIEWERS).filter(|i| i % 13 == 1).collect();
    for &index in &gone {
        world.engine.close(world.now, id(index)).unwrap();
    }
    let positions: Vec<_> = paused.iter().map(|&index| world.position(id(index))).collect();
    world.run_for(S);
    assert_eq!(world.late_max_ns, 0, "nobody is late");
    assert!(world.early_max_ns < u64::from(TCP_BURST_RATIO) * DEFAULT_BURST_NS);
    for (&index, &position) in paused.iter().zip(&positions) {
        assert_eq!(world.position(id(index)), position, "{index} is on pause");
    }
    // The others are where their rate has taken them.
    let still = |index: &u32| !index.is_multiple_of(11) && index % 13 != 1;
    for index in (0..VIEWERS).filter(still).step_by(17) {
        let departure = world.departure(id(index), world.position(id(index)));
        let most_ms = if index % 3 == 0 { 80 } else { 60 };
        assert!(departure > world.now && departure.0 - world.now.0 <= most_ms * MS, "{index}");
    }
    let closed = world.events.iter().filter(|(_, event)| matches!(event, StreamEvent::Closed { .. })).count();
    assert_eq!(closed, gone.len());
    let counters = world.engine.counters();
    assert_eq!(counters.open, u64::from(VIEWERS) - gone.len() as u64);
    assert_eq!(counters.packets, world.datagrams);
    assert!(counters.packets > 10_000_000, "{}", counters.packets);
    assert_eq!((counters.late, counters.starved, counters.failed), (0, 0, 0));
    for index in 0..VIEWERS {
        let _ = world.engine.close(world.now, StreamId { index, generation: 1 });
    }
    world.turn();
    assert_eq!((world.disk.leases(), world.engine.counters().open), (0, 0));
}

/// After a hole all are due at once: they are served in turn, and the credit for a late wake-up
/// comes when every stream has had the first burst.
#[test]
fn streams_late_after_stall_are_served_in_turn() {
    let film = Film::constant(0, 60_000, 8_000_000);
    let config = EngineConfig { streams: 1_000, ..EngineConfig::default() };
    let mut world = World::new(config, 320);
    for index in 0..1_000 {
        world.open(&film, index, udp(index));
        world.play_from(id(index), index * 50);
    }
    world.run_for(S);
    world.hole(2 * S);
    world.sent.clear();
    let now = world.now;
    world.turn();
    let mut first: Vec<_> = world.sent.iter().take(1_000).map(|sent| sent.stream.index).collect();
    first.sort_unstable();
    first.dedup();
    assert_eq!(first.len(), 1_000, "once each at {now:?}");
    for index in 0..1_000 {
        let packets: u32 =
            world.sent.iter().filter(|sent| sent.stream.index == index).map(|sent| sent.count).sum();
        assert!(packets <= 40, "{packets} packets for viewer {index} at once");
    }
    world.run_for(12 * S);
    world.late_max_ns = 0;
    world.run_for(S);
    assert_eq!(world.late_max_ns, 0, "all on time again");
}
