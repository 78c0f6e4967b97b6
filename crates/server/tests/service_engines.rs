//! Two engines, in virtual time: which one a stream goes to, when it goes over to the other, and whose an ICMP error is.

mod rtsp_support;
mod service_support;

use millrace_core::limits::{ADMISSION_LOOK_NS, PLAY_DELAY_NS};
use millrace_server::admission::{AdmissionConfig, EngineFigures};
use millrace_server::service::{
    EndReason, Event, FecMode, FecWish, Played, Refusal, ServiceConfig, StreamKey,
};
use rtsp_support::SECOND;
use service_support::*;

/// What a viewer of 4 Mb/s needs.
const VIEWER_PACKETS_PER_S: u64 = 380;

/// Two engines whose cores are looked at.
struct Site {
    desk: Desk,
    figures: [EngineFigures; 2],
}

/// What a core does for a while.
#[derive(Clone, Copy)]
struct Core {
    busy_percent: u64,
    packets_per_s: u64,
    /// All of them late.
    is_late: bool,
}

/// A core that is busy so much of its time.
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

    /// For so many looks of a tenth of a second both cores are like this.
    fn look(&mut self, looks: u64, cores: [Core; 2]) {
        for _ in 0..looks {
            self.desk.wait(ADMISSION_LOOK_NS);
            for (engine, (core, figures)) in cores.iter().zip(&mut self.figures).enumerate() {
                figures.seen_ns += ADMISSION_LOOK_NS;
                figures.busy_ns += ADMISSION_LOOK_NS * core.busy_percent / 100;
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
fn a_stream_whose_engine_is_full_plays_from_the_other() {
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
        // It has given back what it had reserved, and others have taken it.
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
fn if_both_are_full_it_is_refused_and_stays() {
    let mut site = Site::new();
    site.play("film", 2, 6000);
    let key = site.desk.udp("film", 5000);
    site.look(10, [busy(95), busy(95)]);
    site.desk.take_commands();
    assert!(matches!(site.desk.play(key, None), Err(Refusal::Full(_))));
    assert_eq!(site.desk.take_commands(), [""; 0]);
}

/// With four viewers each, the first engine is late and sends half of what they need; the other has time.
const CORES_WHEN_OVERLOADED: [Core; 2] = [
    Core { busy_percent: 100, packets_per_s: 2 * VIEWER_PACKETS_PER_S, is_late: true },
    Core { busy_percent: 10, packets_per_s: 4 * VIEWER_PACKETS_PER_S, is_late: false },
];

#[test]
fn the_newest_streams_of_an_overloaded_engine_go_on_from_the_other() {
    let mut site = Site::new();
    let keys = site.play("film", 8, 5000);
    assert_eq!(site.streams(), [4, 4]);
    let position = |site: &Site, key| site.desk.service.stream(key).unwrap().position(site.desk.now).unwrap();
    let before: Vec<_> = keys.iter().map(|key| position(&site, *key)).collect();
    site.look(12, CORES_WHEN_OVERLOADED);
    let [first, second] = site.streams();
    assert!(first < 4 && first + second == 8, "{:?}", site.streams());
    assert_eq!((site.desk.ends(), site.desk.service.reserved_streams()), (vec![], 8));
    // Everybody plays on without a jump: seconds have passed, and nobody is elsewhere.
    for (key, before) in keys.iter().zip(before) {
        assert!(site.desk.service.stream(*key).unwrap().is_playing());
        let passed = position(&site, *key).0 - before.0;
        assert!(passed.abs_diff(12 * ADMISSION_LOOK_NS * 90 / 1_000_000) < 90 * 60, "{passed}");
    }
    let seeks =
        site.desk.events.iter().filter(|event| matches!(event, Event::Playing(playing) if playing.seek));
    assert_eq!(seeks.count(), 0);
}

#[test]
fn streams_that_cannot_be_handed_over_end() {
    let mut site = Site::new();
    for _ in 0..8 {
        let conn = site.desk.conn();
        let key = site.desk.try_tcp(conn).unwrap();
        site.desk.play(key, None).unwrap();
    }
    assert_eq!(site.streams(), [4, 4]);
    site.look(12, CORES_WHEN_OVERLOADED);
    // BYE first.
    site.desk.wait(3 * SECOND);
    let ends = site.desk.ends();
    assert!(!ends.is_empty() && ends.iter().all(|end| *end == EndReason::Overloaded), "{ends:?}");
    assert_eq!(site.streams(), [4 - ends.len(), 4]);
}

#[test]
fn a_pause_while_a_stream_is_being_moved_is_a_pause() {
    let mut site = Site::new();
    let keys = site.play("film", 8, 5000);
    site.desk.take_commands();
    site.desk.engine.silent = true;
    site.look(12, CORES_WHEN_OVERLOADED);
    // Two have been told to stop, and wait for the engine to say where.
    assert_eq!(site.desk.take_commands(), ["pause"; 2]);
    keys.iter().for_each(|key| site.desk.service.pause(*key).unwrap());
    site.desk.engine.silent = false;
    site.desk.settle();
    assert!(keys.iter().all(|key| !site.desk.service.stream(*key).unwrap().is_playing()));
}

#[test]
fn an_icmp_error_is_told_to_the_engine_that_sends_there() {
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
    // Of nobody, and of nobody any more.
    assert_eq!(tell(&mut site, &format!("{ip}:7000")), [""; 0]);
    site.desk.close(first);
    site.desk.take_commands();
    assert_eq!(tell(&mut site, &format!("{ip}:5000")), [""; 0]);
    site.desk.close(second);
    site.desk.assert_empty();
}
