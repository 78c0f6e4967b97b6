//! Two engines, in virtual time: which one a stream goes to, when it goes over to the other, and whose an ICMP error is.

use std::collections::HashSet;

use crate::rtsp_support::{SECOND, packets_per_s};
use crate::service_support::*;
use millrace_core::limits::PLAY_DELAY_NS;
use millrace_core::time::MediaTicks;
use millrace_offload::command;
use millrace_server::admission::{AdmissionConfig, EngineFigures};
use millrace_server::limits::ADMISSION_LOOK_NS;
use millrace_server::service::{
    Begins, EndReason, Exhausted, FecMode, FecWish, Played, Refusal, RenditionWish, ServiceConfig,
    ServiceEvent, StreamKey, StreamPath,
};
use proptest::prelude::*;

/// The demand of a viewer of 4 Mb/s.
const VIEWER_PACKETS_PER_S: u64 = 380;

/// Two engines whose cores are looked at.
struct Site {
    desk: Desk,
    figures: [EngineFigures; 2],
}

/// The load of a core for a while.
#[derive(Clone, Copy)]
struct Core {
    busy_percent: u64,
    packets_per_s: u64,
    /// All of them late.
    is_late: bool,
}

/// Returns a core that is busy for this share of its time.
fn busy(busy_percent: u64) -> Core {
    Core { busy_percent, packets_per_s: 10_000, is_late: false }
}

impl Site {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut ServiceConfig)) -> Self {
        let desk = Desk::with(|config| {
            config.engines = 2;
            config.admission = AdmissionConfig { is_on: true, ..AdmissionConfig::off() };
            change(config);
        });
        Self { desk, figures: Default::default() }
    }

    /// Reports these loads of both cores for `looks` looks of a tenth of a second.
    fn look(&mut self, looks: u64, cores: [Core; 2]) {
        for _ in 0..looks {
            self.desk.wait(ADMISSION_LOOK_NS);
            for (engine, (core, figures)) in cores.iter().zip(&mut self.figures).enumerate() {
                figures.seen_ns += ADMISSION_LOOK_NS;
                let worked_ns = ADMISSION_LOOK_NS * core.busy_percent / 100;
                (figures.busy_ns, figures.cpu_ns) = (figures.busy_ns + worked_ns, figures.cpu_ns + worked_ns);
                figures.packets += core.packets_per_s / 10;
                figures.overdue += if core.is_late { core.packets_per_s / 10 } else { 0 };
                self.desk.service.look_at_load(self.desk.now, engine, *figures);
            }
            self.desk.settle();
        }
    }

    /// Streams in each engine.
    fn streams(&self) -> [usize; 2] {
        [self.desk.engine.streams.len(), self.desk.second.streams.len()]
    }

    /// Viewers of `title` by UDP, from this port on, who play.
    fn play(&mut self, title: &str, viewers: u16, first_port: u16) -> Vec<StreamKey> {
        let ports = (0..viewers).map(|number| first_port + 10 * number);
        let play = |port| {
            let key = self.desk.udp(title, port);
            self.desk.play(key, None).unwrap();
            key
        };
        ports.map(play).collect()
    }

    /// Viewers through a connection each, who play.
    fn play_by_tcp(&mut self, viewers: usize) -> Vec<StreamKey> {
        let play = |_| {
            let conn = self.desk.conn();
            let key = self.desk.try_tcp(conn).unwrap();
            self.desk.play(key, None).unwrap();
            key
        };
        (0..viewers).map(play).collect()
    }
}

/// Where the last run of the title began: its first packet and its number.
fn last_run(desk: &Desk) -> (u32, u16) {
    let streams = desk.engine.streams.values().chain(desk.second.streams.values());
    let runs = streams.filter(|stream| !stream.quiet).filter_map(|stream| stream.playing);
    let run = runs.max_by_key(|run| run.at).expect("something plays");
    (run.spec.from, run.sequence(run.spec.from))
}

#[test]
fn streams_go_where_the_least_is_to_be_done() {
    let mut site = Site::new();
    // Nothing is known yet: they go where fewest are.
    site.play("film", 4, 5000);
    assert_eq!(site.streams(), [2, 2]);
    // The second core has other work, or is slower.
    site.look(10, [busy(20), busy(60)]);
    site.play("film", 10, 6000);
    assert_eq!(site.streams(), [12, 2]);
    // Sessions that do not play yet count as if they did: they do not all go where there is a little less to do now.
    let mut site = Site::new();
    site.look(10, [10, 12].map(|busy_percent| Core { packets_per_s: 0, ..busy(busy_percent) }));
    for number in 0..20 {
        site.desk.udp("film", 7000 + 10 * number);
    }
    let [first, second] = site.streams();
    assert!(first > second && second > 0, "{first} {second}");
}

#[test]
fn play_on_full_engine_moves_stream_to_other_engine() {
    // With FEC, its media begins a moment later.
    for (title, paused_at) in [("film", 801), ("safe", 781)] {
        let mut site = Site::with(|config| config.pause_reservation_ns = SECOND);
        let conn = site.desk.conn();
        let mut request = site.desk.request(title, conn, udp(5000));
        request.fec = FecWish::Mode(FecMode::All);
        let key = site.desk.admit(request).unwrap().stream;
        let places = site.streams();
        assert_eq!((places[0] > 0, places[1]), (true, 0));
        site.desk.play(key, None).unwrap();
        site.desk.wait(2 * SECOND);
        site.desk.pause(key);
        // It has released its reservation, and others have taken the room.
        site.desk.wait(2 * SECOND);
        site.play("film", 3, 6000);
        site.look(10, [busy(95), busy(50)]);
        site.desk.take_commands();
        assert_eq!(site.desk.play(key, None), Ok(Played::Begun));
        let commands = site.desk.take_commands();
        let is_first = |command: &String| !command.starts_with("2: ");
        let (first, second): (Vec<_>, Vec<_>) = commands.iter().partition(|command| is_first(command));
        assert_eq!(first.len(), places[0], "{commands:?}");
        assert!(first.iter().all(|command| *command == "close"), "{commands:?}");
        assert_eq!(second.iter().filter(|command| command.contains("open")).count(), places[0]);
        assert_eq!(site.streams()[0], 1, "one of the others");
        // It goes on with the packet and the number where it stopped, and is counted where it is now.
        site.desk.wait(PLAY_DELAY_NS);
        assert_eq!(last_run(&site.desk), (paused_at, paused_at as u16 + 1), "{title}");
        assert_eq!(site.desk.service.stream(key).unwrap().fec_mode() == FecMode::All, title == "safe");
        assert_eq!(site.desk.service.reserved_streams(), 4);
        for stream in site.desk.service.streams().iter().map(|stream| stream.key()).collect::<Vec<_>>() {
            site.desk.close(stream);
        }
        site.desk.assert_empty();
    }
}

#[test]
fn play_with_both_engines_full_is_refused() {
    let mut site = Site::new();
    site.play("film", 2, 6000);
    let key = site.desk.udp("film", 5000);
    site.look(10, [busy(95), busy(95)]);
    site.desk.take_commands();
    assert!(matches!(site.desk.play(key, None), Err(Refusal::Exhausted(Exhausted::Full(_)))));
    assert_eq!(site.desk.take_commands(), [""; 0]);
}

/// With four viewers each, the first engine is late and sends half of the packets they need; the
/// other has time.
const CORES_WHEN_OVERLOADED: [Core; 2] = [
    Core { busy_percent: 100, packets_per_s: 2 * VIEWER_PACKETS_PER_S, is_late: true },
    Core { busy_percent: 10, packets_per_s: 4 * VIEWER_PACKETS_PER_S, is_late: false },
];

#[test]
fn overloaded_engine_hands_newest_streams_to_other_engine() {
    for (speed, ratio) in [(100, 1), (400, 4)] {
        let mut site = Site::new();
        let keys = site.play("film", 8, 5000);
        for key in &keys {
            site.desk.play_at(*key, speed, None).unwrap();
        }
        assert_eq!(site.streams(), [4, 4]);
        let position =
            |site: &Site, key| site.desk.service.stream(key).unwrap().position(site.desk.now).unwrap();
        let before: Vec<_> = keys.iter().map(|key| position(&site, *key)).collect();
        site.look(12, CORES_WHEN_OVERLOADED);
        let [first, second] = site.streams();
        assert!(first < 4 && first + second == 8, "{:?}", site.streams());
        assert_eq!((site.desk.ends(), site.desk.service.reserved_streams()), (vec![], 8));
        // All viewers play on without a jump: seconds have passed, and no position differs from the
        // expected one.
        for (key, before) in keys.iter().zip(before) {
            assert!(site.desk.service.stream(*key).unwrap().is_playing());
            let passed = position(&site, *key).0 - before.0;
            let expected = ratio * 12 * ADMISSION_LOOK_NS * 90 / 1_000_000;
            assert!(passed.abs_diff(expected) < ratio * 90 * 60, "{passed}");
            // Packets are numbered and stamped as if they came from one engine.
            let runs = site.desk.events.iter().filter_map(|event| match event {
                ServiceEvent::Playing(playing) if playing.stream == *key => Some(playing),
                _ => None,
            });
            let numbers: Vec<_> = runs.map(|run| (run.sequence, run.timestamp.unwrap())).collect();
            for pair in numbers.windows(2) {
                assert_eq!(pair[1].1 - pair[0].1, u32::from(pair[1].0 - pair[0].0) * 225, "{numbers:?}");
            }
        }
        let seeks = site
            .desk
            .events
            .iter()
            .filter(|event| matches!(event, ServiceEvent::Playing(playing) if playing.seek));
        assert_eq!(seeks.count(), 0);
        for key in keys {
            site.desk.close(key);
        }
        site.desk.assert_empty();
    }
}

/// A change of rendition that is queued when its stream goes over is made by the other engine.
#[test]
fn streams_that_are_about_to_change_their_rendition_do_so_in_the_other_engine() {
    let mut site = Site::new();
    let keys = site.play("ladder", 8, 5000);
    for key in &keys {
        let change =
            site.desk.service.set_rendition(site.desk.now, *key, &RenditionWish::parse("480p"), None);
        assert_eq!(change.unwrap().begins, Begins::At(MediaTicks(2 * 90_000)));
    }
    site.desk.settle();
    site.look(12, CORES_WHEN_OVERLOADED);
    let [first, second] = site.streams();
    assert!(first < 4 && first + second == 8, "{first} {second}");
    // Those that went over right before the access point change at the next one.
    site.desk.wait(4 * SECOND);
    assert_eq!(site.desk.counters.rendition_changes, 8);
    for key in keys {
        let stream = site.desk.service.stream(key).unwrap();
        assert!(stream.is_playing() && stream.rendition().unwrap().as_str() == "480p");
        site.desk.close(key);
    }
    site.desk.assert_empty();
    // Each run begins with the title, or with the number and at the time at which another one ended.
    let sent = site.desk.engine.sent.iter().chain(&site.desk.second.sent);
    let place = |run: &command::RunSpec, packet: u32| {
        let (command::Numbering::Sequence(first) | command::Numbering::Own(first)) = run.numbering else {
            panic!("{run:?}")
        };
        let ticks = 90_000 / packets_per_s(run.media.packets);
        (
            first + (packet - run.from) as u16,
            run.media.timeline.timestamp(MediaTicks(u64::from(packet) * ticks)),
        )
    };
    let ends: HashSet<_> = sent.clone().map(|(_, run, next)| place(run, *next)).collect();
    for (_, run, _) in sent {
        assert!(run.from == 0 || ends.contains(&place(run, run.from)), "{run:?}");
    }
}

/// The same, but the other has no time either.
const CORES_WHEN_NOBODY_HAS_ROOM: [Core; 2] =
    [CORES_WHEN_OVERLOADED[0], Core { busy_percent: 95, ..CORES_WHEN_OVERLOADED[1] }];

#[test]
fn streams_that_cannot_be_handed_over_end() {
    let mut site = Site::new();
    site.play_by_tcp(8);
    site.look(12, CORES_WHEN_NOBODY_HAS_ROOM);
    // BYE first.
    site.desk.wait(3 * SECOND);
    let ends = site.desk.ends();
    assert!(!ends.is_empty() && ends.iter().all(|end| *end == EndReason::Overloaded), "{ends:?}");
    assert_eq!(site.streams(), [4 - ends.len(), 4]);
}

/// No viewer is ended while there are viewers that can be sent less: those whose rendition the
/// server chooses, and has not just changed.
#[test]
fn overloaded_engine_lowers_renditions_before_ending_streams() {
    for (is_auto, is_recent) in [(true, false), (false, false), (true, true)] {
        let mut site = Site::with(|config| config.adapt = is_auto);
        let keys = site.play("ladder", 8, 5000);
        for key in keys.iter().filter(|_| is_recent) {
            for name in ["720p", "auto"] {
                let wish = RenditionWish::parse(name);
                site.desk.service.set_rendition(site.desk.now, *key, &wish, None).unwrap();
                site.desk.settle();
            }
        }
        site.desk.wait(u64::from(is_recent) * 3 * SECOND);
        site.look(12, CORES_WHEN_NOBODY_HAS_ROOM);
        site.desk.wait(3 * SECOND);
        let ended = site.desk.ends().len();
        if !is_auto || is_recent {
            assert!(ended > 0);
            assert_eq!(site.desk.counters.renditions_lowered, 0);
            continue;
        }
        assert_eq!((ended, site.streams()), (0, [4, 4]));
        let sent = |key: &StreamKey| site.desk.service.stream(*key).unwrap().rendition().unwrap().to_string();
        // The oldest of the first engine needs not go down.
        let sent: Vec<_> = keys.iter().step_by(2).map(sent).collect();
        assert_eq!(sent, ["1080p", "480p", "480p", "480p"]);
        assert_eq!(site.desk.counters.renditions_lowered, 3);
    }
}

#[test]
fn streams_in_connections_go_over_with_them() {
    let mut site = Site::new();
    let keys = site.play_by_tcp(8);
    site.desk.take_commands();
    site.look(12, CORES_WHEN_OVERLOADED);
    let [first, second] = site.streams();
    assert!(first < 4 && first + second == 8, "{first} {second}");
    assert_eq!((site.desk.engine.conns.len(), site.desk.second.conns.len()), (first, second));
    assert_eq!((site.desk.ends(), site.desk.service.reserved_streams()), (vec![], 8));
    assert!(keys.iter().all(|key| site.desk.service.stream(*key).unwrap().is_playing()));
    // The first engine lets go before the other is ordered to play, and the stream goes on where it
    // stopped.
    let commands = site.desk.take_commands();
    let of_one: Vec<_> = commands.iter().filter(|command| !command.contains("open")).collect();
    let stops = of_one.iter().position(|command| *command == "return conn").unwrap();
    let goes_on = of_one.iter().position(|command| command.starts_with("2: play")).unwrap();
    assert!(stops < goes_on, "{commands:?}");
    let (from, sequence) = last_run(&site.desk);
    assert!(from > 0 && sequence == from as u16 + 1, "{from} {sequence}");
}

#[test]
fn handover_of_connection_moves_all_its_streams() {
    for is_torn_down in [false, true] {
        let mut site = Site::new();
        let conn = site.desk.conn();
        let keys = [0, 2, 4].map(|channel| {
            let path = StreamPath::Interleaved { conn, rtp_channel: channel, rtcp_channel: channel + 1 };
            let request = site.desk.request("film", conn, path);
            site.desk.admit(request).unwrap().stream
        });
        // The third has never played.
        for key in &keys[..2] {
            site.desk.play(*key, None).unwrap();
        }
        let [late, idle] = CORES_WHEN_OVERLOADED;
        let cores = [Core { packets_per_s: VIEWER_PACKETS_PER_S, ..late }, idle];
        site.desk.engine.silent = true;
        site.look(12, cores);
        assert_eq!(site.desk.take_commands().iter().filter(|command| *command == "pause").count(), 2);
        // The engine answers for one of them; then the viewer does not want the other any more.
        if is_torn_down {
            let mut stopped = None;
            while stopped.is_none()
                && let Some(event) = site.desk.engine.events.pop_front()
            {
                if let command::Event::Stream(command::StreamEvent::RunEnded { stream, .. }) = event {
                    stopped = Some(stream.index as usize);
                }
                site.desk.service.engine_event(site.desk.now, 0, event);
            }
            assert_eq!(site.streams(), [3, 0]);
            site.desk.close(keys[1 - stopped.unwrap()]);
        }
        site.desk.engine.silent = false;
        site.desk.settle();
        assert_eq!(site.streams(), [0, 3 - usize::from(is_torn_down)], "torn down: {is_torn_down}");
        let plays = keys.iter().filter_map(|key| site.desk.service.stream(*key)).filter(|s| s.is_playing());
        assert_eq!(plays.count(), 2 - usize::from(is_torn_down));
        keys.iter().for_each(|key| site.desk.close(*key));
        site.desk.assert_empty();
    }
}

#[test]
fn while_nobody_writes_to_a_connection_everything_waits() {
    let mut site = Site::with(|config| config.pause_reservation_ns = SECOND);
    let keys = site.play_by_tcp(8);
    site.desk.engine.keeps_conns = true;
    site.look(12, CORES_WHEN_OVERLOADED);
    assert!(!site.desk.held.is_empty(), "viewers that read nothing have been told to go over");
    site.desk.take_commands();
    // Seconds later they still have read nothing. One is paused now, and later one seeks.
    site.desk.wait(SECOND);
    let held: Vec<_> = site.desk.held.iter().copied().collect();
    let through = |site: &Site, conn| *site.desk.service.streams_of(conn).first().expect("a stream");
    let paused = through(&site, held[0]);
    site.desk.pause(paused);
    // The other engine has become full, and the first one idle: a stream that waits for the one
    // does not go back before it has been there.
    site.desk.wait(2 * SECOND);
    site.look(20, [busy(10), Core { packets_per_s: 8 * VIEWER_PACKETS_PER_S, ..busy(97) }]);
    assert!(matches!(site.desk.play(paused, None), Err(Refusal::Exhausted(Exhausted::Full(_)))));
    let returns = site.desk.take_commands().into_iter().filter(|command| command.contains("return"));
    assert_eq!(returns.count(), 0);
    let sought = held.get(1).map(|conn| through(&site, *conn));
    if let Some(key) = sought {
        assert_eq!(site.desk.play(key, span(30, None)), Ok(Played::Waits));
    }
    assert_eq!(site.desk.take_commands(), [""; 0]);
    site.desk.engine.give_all_back();
    site.desk.settle();
    assert!(site.desk.held.is_empty());
    for key in keys {
        let stream = site.desk.service.stream(key).expect("nobody has ended");
        assert_eq!(stream.is_playing(), key != paused);
    }
    if let Some(key) = sought {
        let at = site.desk.service.stream(key).unwrap().position(site.desk.now).unwrap();
        assert!((29 * 90_000..=30 * 90_000).contains(&at.0), "{at:?}");
    }
}

#[test]
fn handover_of_connection_without_streams_is_not_redirected() {
    let mut site = Site::new();
    site.play_by_tcp(8);
    site.desk.engine.keeps_conns = true;
    site.look(12, CORES_WHEN_OVERLOADED);
    let conn = *site.desk.held.iter().next().expect("one goes over");
    let key = *site.desk.service.streams_of(conn).first().expect("its stream");
    site.desk.close(key);
    // Its viewer wants another title, but the other engine has become full, and the first one idle.
    site.look(120, [busy(10), Core { packets_per_s: 8 * VIEWER_PACKETS_PER_S, ..busy(97) }]);
    site.desk.take_commands();
    assert!(matches!(site.desk.try_tcp(conn), Err(Refusal::Exhausted(Exhausted::Full(_)))));
    assert_eq!(site.desk.take_commands(), [""; 0]);
    site.desk.engine.give_all_back();
    site.desk.settle();
    assert!(site.desk.held.is_empty());
}

#[test]
fn handover_of_lost_connection_ends_its_streams() {
    for thread_ends in [false, true] {
        let mut site = Site::new();
        site.play_by_tcp(8);
        site.desk.engine.keeps_conns = true;
        site.look(12, CORES_WHEN_OVERLOADED);
        let held: Vec<_> = site.desk.held.iter().copied().collect();
        assert!(!held.is_empty());
        if thread_ends {
            site.desk.service.engine_gone(site.desk.now, 0);
        } else {
            // It has broken, and the engine knows it no more.
            site.desk.engine.conns.clear();
            site.desk.engine.give_all_back();
        }
        site.desk.settle();
        assert!(held.iter().all(|conn| site.desk.service.streams_of(*conn).is_empty()));
        let lost = site.desk.events.iter().filter_map(|event| match event {
            ServiceEvent::ConnectionLost { conn } => Some(*conn),
            _ => None,
        });
        let lost: HashSet<_> = lost.collect();
        assert!(held.iter().all(|conn| lost.contains(conn)), "thread ends: {thread_ends}");
        assert_eq!(site.streams()[1], 4);
    }
}

#[test]
fn play_after_long_pause_on_full_engine_moves_connection() {
    let mut site = Site::with(|config| config.pause_reservation_ns = SECOND);
    let conn = site.desk.conn();
    let key = site.desk.try_tcp(conn).unwrap();
    site.desk.play(key, None).unwrap();
    site.desk.wait(2 * SECOND);
    site.desk.pause(key);
    site.desk.wait(2 * SECOND);
    site.play("film", 3, 6000);
    site.look(10, [busy(95), busy(50)]);
    site.desk.take_commands();
    assert_eq!(site.desk.play(key, None), Ok(Played::Waits));
    let commands = site.desk.take_commands();
    assert_eq!(commands[..3], ["close", "return conn", "2: open"], "{commands:?}");
    assert_eq!(last_run(&site.desk), (781, 782));
    // Its next stream on this connection comes from there too, and when that engine is full, from
    // the first again.
    site.desk.close(key);
    site.look(60, [busy(30), busy(95)]);
    let [first, second] = site.streams();
    site.desk.try_tcp(conn).unwrap();
    assert_eq!(site.streams(), [first + 1, second]);
    for stream in site.desk.service.streams().iter().map(|stream| stream.key()).collect::<Vec<_>>() {
        site.desk.close(stream);
    }
    site.desk.service.conn_closed(site.desk.now, conn);
    site.desk.settle();
    assert_eq!(site.desk.engine.conns.len() + site.desk.second.conns.len(), 0);
    site.desk.assert_empty();
}

#[test]
fn handover_without_free_connection_id_keeps_connection() {
    // None, or one for the two that should go over.
    for (names, moved) in [(4, 0), (5, 1)] {
        let mut site = Site::with(|config| config.conns_per_engine = names);
        let keys = site.play_by_tcp(8);
        site.desk.take_commands();
        site.look(12, CORES_WHEN_OVERLOADED);
        assert_eq!((site.streams()[1], site.desk.held.len()), (4 + moved, 0));
        let paused = site.desk.take_commands().iter().filter(|command| *command == "pause").count();
        assert_eq!(paused, if moved == 0 { 0 } else { 2 });
        // Streams that were stopped for it go on where they were.
        let stands_still = site.desk.engine.streams.values().filter(|stream| stream.playing.is_none());
        assert_eq!(stands_still.count(), 0);
        keys.iter().for_each(|key| site.desk.close(*key));
        site.desk.assert_empty();
    }
}

#[test]
fn seek_during_handover_waits_until_it_completes() {
    let mut site = Site::new();
    let keys = site.play_by_tcp(8);
    site.desk.engine.silent = true;
    site.look(12, CORES_WHEN_OVERLOADED);
    site.desk.take_commands();
    for key in &keys {
        assert!(site.desk.play(*key, span(30, None)).is_ok());
    }
    site.desk.engine.silent = false;
    site.desk.settle();
    assert!(site.desk.held.is_empty() && site.streams()[0] < 4);
    for key in keys {
        let at = site.desk.service.stream(key).unwrap().position(site.desk.now).unwrap();
        assert!((29 * 90_000..=30 * 90_000).contains(&at.0), "{at:?}");
    }
    let plays = site.desk.take_commands().into_iter().filter(|command| command.contains("play"));
    assert_eq!(plays.count(), 8, "one each");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

    /// Viewers perform arbitrary actions on three connections while engines are overloaded, answer
    /// nothing, or wait for viewers that read nothing. The desk verifies that two engines never
    /// write to one connection, and that nothing is played on a connection without a writer;
    /// nothing is left over.
    #[test]
    fn connections_go_to_and_fro(ops in proptest::collection::vec((0u8..10, 0usize..3), 1..60)) {
        let mut site = Site::with(|config| config.conns_per_engine = 4);
        let mut conns = [(); 3].map(|()| site.desk.conn());
        let mut keys: Vec<StreamKey> = Vec::new();
        for (what, which) in ops {
            let key = keys.get(which + keys.len().saturating_sub(3)).copied();
            match (what, key) {
                (0 | 1, _) => {
                    let channel = 2 * keys.len() as u8;
                    let conn = conns[which];
                    let path = StreamPath::Interleaved { conn, rtp_channel: channel, rtcp_channel: channel + 1 };
                    let request = site.desk.request("film", conn, path);
                    keys.extend(site.desk.admit(request).map(|admitted| admitted.stream));
                }
                (2 | 3, Some(key)) => drop(site.desk.play(key, None)),
                (4, Some(key)) => {
                    // It may have ended.
                    let _ = site.desk.service.pause(key);
                    site.desk.settle();
                }
                (5, Some(key)) => site.desk.close(key),
                (6, _) => {
                    let conn = std::mem::replace(&mut conns[which], site.desk.conn());
                    site.desk.hang_up(conn);
                }
                (7, _) => site.desk.engine.silent = which == 0,
                (8, _) if which == 0 => site.desk.engine.keeps_conns = true,
                (8, _) => site.desk.engine.give_all_back(),
                (_, _) => {
                    let [late, idle] = CORES_WHEN_OVERLOADED;
                    site.look(6, if which == 0 { [idle, late] } else { [late, idle] });
                }
            }
            site.desk.settle();
        }
        site.desk.engine.silent = false;
        site.desk.engine.give_all_back();
        site.desk.settle();
        prop_assert!(site.desk.held.is_empty());
        let open: Vec<_> = site.desk.service.streams().iter().map(|stream| stream.key()).collect();
        for key in open {
            prop_assert!(!site.desk.service.stream(key).unwrap().is_busy());
            site.desk.close(key);
        }
        site.desk.assert_empty();
        conns.into_iter().for_each(|conn| site.desk.hang_up(conn));
        prop_assert_eq!(site.desk.engine.conns.len() + site.desk.second.conns.len(), 0);
        // No name is lost: each engine can be given as many connections as before.
        site.look(60, [busy(10), busy(10)]);
        for _ in 0..8 {
            let conn = site.desk.conn();
            site.desk.try_tcp(conn).unwrap();
        }
        prop_assert_eq!(site.streams(), [4, 4]);
    }
}

#[test]
fn connection_bound_to_engine_is_admitted_there_and_never_moved() {
    let mut site = Site::with(|config| config.pause_reservation_ns = SECOND);
    // The other core has nothing to do, and gets everybody else.
    site.look(10, [busy(60), busy(10)]);
    let bound = |site: &mut Site| {
        let conn = site.desk.conn();
        site.desk.service.bind_conn(conn, 0);
        (conn, site.desk.try_tcp(conn))
    };
    let viewers: Vec<_> = (0..4).map(|_| bound(&mut site)).collect();
    let keys: Vec<_> = viewers.iter().map(|(_, key)| *key.as_ref().unwrap()).collect();
    for key in &keys {
        site.desk.play(*key, None).unwrap();
    }
    site.play_by_tcp(2);
    assert_eq!(site.streams(), [4, 2]);
    // Its core is full: one more is refused, although the other one has room, and one that has paused for long is not moved there.
    site.desk.pause(keys[0]);
    site.desk.wait(2 * SECOND);
    site.look(20, [Core { packets_per_s: 3 * VIEWER_PACKETS_PER_S, ..busy(95) }, busy(10)]);
    site.desk.take_commands();
    assert!(matches!(bound(&mut site).1, Err(Refusal::Exhausted(Exhausted::Full(_)))));
    assert!(matches!(site.desk.play(keys[0], None), Err(Refusal::Exhausted(Exhausted::Full(_)))));
    let second_on_it = site.desk.request(
        "film",
        viewers[0].0,
        StreamPath::Interleaved { conn: viewers[0].0, rtp_channel: 2, rtcp_channel: 3 },
    );
    assert!(matches!(site.desk.admit(second_on_it), Err(Refusal::Exhausted(Exhausted::Full(_)))));
    assert_eq!(site.desk.take_commands(), [""; 0]);
    let other = site.desk.conn();
    assert!(site.desk.try_tcp(other).is_ok());
    assert_eq!(site.streams(), [4, 3]);
    // Nor is anybody moved when it is behind.
    site.look(12, CORES_WHEN_OVERLOADED);
    let moves = site.desk.take_commands().into_iter().filter(|command| command.contains("return"));
    assert_eq!((moves.count(), site.streams()[1]), (0, 3));
    // An engine that is not there binds nothing.
    let conn = site.desk.conn();
    site.desk.service.bind_conn(conn, 2);
    assert_eq!(site.desk.service.bound_to(conn), None);
}

#[test]
fn pause_during_stream_move_leaves_stream_paused() {
    let mut site = Site::new();
    let keys = site.play("film", 8, 5000);
    site.desk.take_commands();
    site.desk.engine.silent = true;
    site.look(12, CORES_WHEN_OVERLOADED);
    // Two have been ordered to stop, and wait for the engine to report where.
    assert_eq!(site.desk.take_commands(), ["pause"; 2]);
    keys.iter().for_each(|key| site.desk.service.pause(*key).unwrap());
    site.desk.engine.silent = false;
    site.desk.settle();
    assert!(keys.iter().all(|key| !site.desk.service.stream(*key).unwrap().is_playing()));
}

#[test]
fn icmp_error_is_forwarded_to_engine_of_its_stream() {
    let mut site = Site::new();
    let (first, second) = (site.desk.udp("film", 5000), site.desk.udp("film", 6000));
    site.desk.take_commands();
    let tell = |site: &mut Site, dest: &str| {
        site.desk.service.unreachable(dest.parse().unwrap(), 111);
        site.desk.settle();
        site.desk.take_commands()
    };
    let ip = VIEWER.split(':').next().unwrap();
    assert_eq!(tell(&mut site, &format!("{ip}:5000")), [format!("unreachable {ip}:5000")]);
    assert_eq!(tell(&mut site, &format!("{ip}:6001")), [format!("2: unreachable {ip}:6001")]);
    // An address of no stream, and of a stream that is gone.
    assert_eq!(tell(&mut site, &format!("{ip}:7000")), [""; 0]);
    site.desk.close(first);
    site.desk.take_commands();
    assert_eq!(tell(&mut site, &format!("{ip}:5000")), [""; 0]);
    site.desk.close(second);
    site.desk.assert_empty();
}
