use super::*;
use crate::limits::{ADMISSION_LOOK_NS, DEFAULT_MAX_BUSY_PERMILLE, FIRST_PACKET_COST_NS};

/// One viewer of 8 Mb/s.
const VIEWER: Demand = Demand { packets_per_s: 760, bits_per_s: 8_000_000 };
const S: u64 = 1_000_000_000;

/// A core that carries `carries` packets per second, with viewers of one rate. Time advances in
/// steps of one look.
struct Core {
    now: Instant,
    carries: u64,
    /// Extents come late: half of the packets, and a core that has time.
    is_starved: bool,
    viewers: u64,
    /// Packets that should have been sent and were not.
    backlog: u64,
    sums: EngineFigures,
    longest_behind_ns: u64,
}

impl Core {
    fn new(carries: u64) -> Self {
        Self {
            now: Instant(0),
            carries,
            is_starved: false,
            viewers: 0,
            backlog: 0,
            sums: EngineFigures::default(),
            longest_behind_ns: 0,
        }
    }

    fn promised(&self) -> Demand {
        Demand {
            packets_per_s: self.viewers * VIEWER.packets_per_s,
            bits_per_s: self.viewers * VIEWER.bits_per_s,
        }
    }

    fn behind_ns(&self) -> u64 {
        (self.backlog * S).checked_div(self.promised().packets_per_s).unwrap_or(0)
    }

    /// Runs one step: viewers that are behind catch up with 5/4 of the rate.
    fn step(&mut self) {
        self.now = self.now.plus_ns(ADMISSION_LOOK_NS);
        let of_step = |per_s: u64| per_s * ADMISSION_LOOK_NS / S;
        let due = of_step(self.promised().packets_per_s);
        let wanted = if self.backlog > 0 { (due * 5 / 4).min(due + self.backlog) } else { due };
        let possible = of_step(self.carries);
        let sent = wanted.min(if self.is_starved { due / 2 } else { possible });
        let was_overdue = self.behind_ns() > 50_000_000;
        self.backlog = self.backlog + due - sent;
        self.longest_behind_ns = self.longest_behind_ns.max(self.behind_ns());
        self.sums.packets += sent;
        self.sums.overdue += if was_overdue { sent } else { 0 };
        self.sums.seen_ns += ADMISSION_LOOK_NS;
        let worked_ns = (sent * ADMISSION_LOOK_NS).checked_div(possible).unwrap_or(0);
        self.sums.cpu_ns += worked_ns;
        self.sums.busy_ns += worked_ns;
    }

    /// One step while other threads hold the core whenever they can: the loop gets one turn, sends
    /// everything that is due, and waits for the next turn.
    fn step_among_others(&mut self, cost_ns: u64) {
        self.now = self.now.plus_ns(ADMISSION_LOOK_NS);
        let due = self.promised().packets_per_s * ADMISSION_LOOK_NS / S;
        let worked_ns = (due * cost_ns).min(ADMISSION_LOOK_NS);
        self.sums.packets += due;
        self.sums.overdue += due / 2;
        self.sums.seen_ns += ADMISSION_LOOK_NS;
        self.sums.cpu_ns += worked_ns;
        self.sums.waited_ns += ADMISSION_LOOK_NS - worked_ns;
        // Half of the waiting falls within turns.
        self.sums.busy_ns += worked_ns + (ADMISSION_LOOK_NS - worked_ns) / 2;
    }

    /// Runs steps for `ns`; admission ends the viewers that it chooses.
    fn run(&mut self, admission: &mut Admission, ns: u64) {
        for _ in 0..ns / ADMISSION_LOOK_NS {
            self.step();
            let mut excess = admission.look(self.now, 0, self.sums, self.promised());
            while excess > 0 && self.viewers > 0 {
                self.backlog -= self.backlog / self.viewers;
                self.viewers -= 1;
                admission.ended(self.now, 0, 1);
                excess = excess.saturating_sub(VIEWER.packets_per_s);
            }
        }
    }

    /// One more viewer asks.
    fn ask(&mut self, admission: &mut Admission) -> Result<(), Full> {
        let room = admission.room(0, self.promised(), self.promised().bits_per_s, VIEWER);
        match room {
            Ok(()) => self.viewers += 1,
            Err(full) => admission.refused(full),
        }
        room
    }

    /// As many as are let in, one every `every_ns`, for at most `ns`.
    fn fill(&mut self, admission: &mut Admission, every_ns: u64, ns: u64) {
        let end = self.now.plus_ns(ns);
        while self.now < end {
            for _ in 0..ADMISSION_LOOK_NS / every_ns {
                // A refused viewer goes away.
                let _ = self.ask(admission);
            }
            self.run(admission, ADMISSION_LOOK_NS);
        }
    }
}

fn admission_with(change: impl FnOnce(&mut AdmissionConfig)) -> Admission {
    let mut config = AdmissionConfig {
        is_on: true,
        max_busy_permille: DEFAULT_MAX_BUSY_PERMILLE,
        link_rate: None,
        overload: OverloadPolicy::EndNewest,
    };
    change(&mut config);
    Admission::new(config, 1)
}

fn news(admission: &mut Admission) -> Vec<AdmissionNotice> {
    std::iter::from_fn(|| admission.poll_news()).collect()
}

#[test]
fn admission_at_busy_limit_refuses_next_viewer() {
    for carries in [200_000, 600_000, 2_000_000] {
        let (mut core, mut admission) = (Core::new(carries), admission_with(|_| {}));
        core.fill(&mut admission, 2_000_000, 20 * S);
        let most = carries / VIEWER.packets_per_s;
        let allowed = carries * DEFAULT_MAX_BUSY_PERMILLE / 1000 / VIEWER.packets_per_s;
        assert!((allowed - 3..=allowed).contains(&core.viewers), "{} of {most}", core.viewers);
        assert_eq!(core.longest_behind_ns, 0);
        assert!(matches!(core.ask(&mut admission), Err(Full::Processor { engine: 0, .. })));
    }
}

#[test]
fn admission_of_initial_burst_is_limited_to_slow_core_capacity() {
    let (mut core, mut admission) = (Core::new(600_000), admission_with(|_| {}));
    let at_once = (0..5_000).filter(|_| core.ask(&mut admission).is_ok()).count() as u64;
    let slow_core = S / FIRST_PACKET_COST_NS * DEFAULT_MAX_BUSY_PERMILLE / 1000 / VIEWER.packets_per_s;
    assert!(at_once.abs_diff(slow_core) <= 1, "{at_once}, {slow_core}");
    // Two seconds later it is known how fast this one is.
    core.run(&mut admission, 2 * S);
    assert!(core.ask(&mut admission).is_ok());
}

#[test]
fn admission_on_very_slow_core_still_accepts_first_viewer() {
    let (mut core, mut admission) = (Core::new(100), admission_with(|_| {}));
    assert_eq!(core.ask(&mut admission), Ok(()));
    assert!(core.ask(&mut admission).is_ok(), "the second is within the first guess");
    core.run(&mut admission, 2 * S);
    assert!(core.ask(&mut admission).is_err());
}

#[test]
fn admission_with_paused_viewers_keeps_their_reservations() {
    let (mut core, mut admission) = (Core::new(600_000), admission_with(|_| {}));
    core.fill(&mut admission, 2_000_000, 20 * S);
    let (full, promised) = (core.viewers, core.promised());
    core.viewers = 10;
    core.run(&mut admission, 3 * S);
    // The ten play, the others have paused: their reservations are not given away.
    let room = admission.room(0, promised, promised.bits_per_s, VIEWER);
    assert!(matches!(room, Err(Full::Processor { .. })), "{room:?} with {full}");
}

#[test]
fn admission_on_slowed_core_sheds_newest_until_rest_are_on_time() {
    for (num, den, limit) in [(3, 4, 5 * S), (1, 2, 5 * S), (1, 4, 8 * S)] {
        let (mut core, mut admission) = (Core::new(600_000), admission_with(|_| {}));
        core.fill(&mut admission, 2_000_000, 20 * S);
        let before = core.viewers;
        assert_eq!(news(&mut admission).len(), 1, "only that it is full");
        core.carries = core.carries * num / den;
        core.run(&mut admission, limit);
        assert!(core.behind_ns() <= 100_000_000, "still {} ms behind", core.behind_ns() / 1_000_000);
        let carried = core.carries / VIEWER.packets_per_s;
        assert!(core.viewers * 100 >= carried * 70, "{} of {carried}", core.viewers);
        core.run(&mut admission, 3 * S);
        let news = news(&mut admission);
        let [
            AdmissionNotice::Shedding { engine: 0, .. },
            AdmissionNotice::Recovered { engine: 0, ended, .. },
        ] = news[..]
        else {
            panic!("{news:?}")
        };
        assert_eq!(ended, before - core.viewers);
        // Then there is room again for as many as it carries now.
        core.run(&mut admission, 3 * S);
        core.fill(&mut admission, 2_000_000, 10 * S);
        assert!(core.viewers * 100 >= carried * 85 && core.behind_ns() == 0, "{} of {carried}", core.viewers);
    }
}

#[test]
fn admission_on_slightly_slowed_core_ends_few_viewers() {
    let (mut core, mut admission) = (Core::new(600_000), admission_with(|_| {}));
    core.fill(&mut admission, 2_000_000, 20 * S);
    let before = core.viewers;
    // A few percent less than they need.
    core.carries = core.promised().packets_per_s * 97 / 100;
    core.run(&mut admission, 10 * S);
    assert!(core.viewers < before && core.viewers * 100 >= before * 93, "{} of {before}", core.viewers);
    assert_eq!(core.behind_ns(), 0);
}

#[test]
fn admission_on_core_with_slow_seconds_keeps_room_for_them() {
    let (mut core, mut admission) = (Core::new(600_000), admission_with(|_| {}));
    let speeds = [600_000, 640_000, 560_000, 620_000, 580_000];
    for second in 0..60 {
        core.carries = speeds[second % speeds.len()];
        core.fill(&mut admission, 20_000_000, S);
    }
    let before = core.viewers;
    let slowest = 560_000 / VIEWER.packets_per_s;
    assert!((slowest * 90 / 100..=slowest).contains(&before), "{before} of {slowest}");
    for second in 0..60 {
        core.carries = speeds[second % speeds.len()];
        core.run(&mut admission, S);
    }
    assert_eq!((core.viewers, core.longest_behind_ns), (before, 0));
}

#[test]
fn single_slow_second_does_not_keep_newcomers_out() {
    let (mut core, mut admission) = (Core::new(600_000), admission_with(|_| {}));
    core.viewers = 500;
    core.run(&mut admission, 20 * S);
    core.carries = 380_000;
    core.run(&mut admission, S);
    assert!(core.ask(&mut admission).is_err(), "this second carries no more than 500");
    core.carries = 600_000;
    core.run(&mut admission, 6 * S);
    assert_eq!(core.ask(&mut admission), Ok(()));
}

#[test]
fn packets_sent_ahead_are_no_demand() {
    let expected_permille = |is_ahead: bool| {
        let (mut core, mut admission) = (Core::new(600_000), admission_with(|_| {}));
        core.viewers = 300;
        for _ in 0..10 {
            core.run(&mut admission, S);
            // As many packets as the viewers play, at the same cost.
            core.sums.packets += 228_000;
            core.sums.ahead += if is_ahead { 228_000 } else { 0 };
            core.sums.cpu_ns += 380_000_000;
            core.sums.busy_ns += 380_000_000;
        }
        core.run(&mut admission, ADMISSION_LOOK_NS);
        admission.load(0, core.promised()).1
    };
    assert!((380..=390).contains(&expected_permille(true)), "{}", expected_permille(true));
    assert!(expected_permille(false) >= 760, "{}", expected_permille(false));
}

#[test]
fn work_beside_few_packets_counts_by_itself() {
    let (mut core, mut admission) = (Core::new(2_000_000), admission_with(|_| {}));
    core.viewers = 2;
    for _ in 0..20 {
        // A fifth of each look goes to seeks and other connections.
        core.sums.cpu_ns += ADMISSION_LOOK_NS / 5;
        core.sums.busy_ns += ADMISSION_LOOK_NS / 5;
        core.run(&mut admission, ADMISSION_LOOK_NS);
    }
    let expected_permille = admission.load(0, core.promised()).1;
    assert!((200..=210).contains(&expected_permille), "{expected_permille}");
    assert_eq!(core.ask(&mut admission), Ok(()), "a packet is not as dear as all this work");
}

#[test]
fn admission_after_short_stall_catches_up_without_ending_viewers() {
    let (mut core, mut admission) = (Core::new(600_000), admission_with(|_| {}));
    core.fill(&mut admission, 2_000_000, 20 * S);
    let (viewers, carries) = (core.viewers, core.carries);
    core.carries = 0;
    core.run(&mut admission, 400_000_000);
    core.carries = carries;
    core.run(&mut admission, 500_000_000);
    assert!(matches!(core.ask(&mut admission), Err(Full::Behind { engine: 0 })));
    core.run(&mut admission, 10 * S);
    assert_eq!((core.viewers, core.behind_ns()), (viewers, 0));
}

#[test]
fn late_extents_are_no_reason_to_end_streams() {
    let (mut core, mut admission) = (Core::new(600_000), admission_with(|_| {}));
    core.fill(&mut admission, 10_000_000, 4 * S);
    let viewers = core.viewers;
    core.is_starved = true;
    core.run(&mut admission, 3 * S);
    core.is_starved = false;
    core.run(&mut admission, 3 * S);
    assert_eq!(core.viewers, viewers);
    assert!(core.ask(&mut admission).is_err(), "but nobody new is let in while it catches up");
}

#[test]
fn room_of_an_idle_engine_that_waits_for_its_core_remains() {
    let (mut core, mut admission) = (Core::new(600_000), admission_with(|_| {}));
    for viewers in 1..=20 {
        core.viewers = viewers;
        for _ in 0..30 {
            core.step_among_others(3_000);
            assert_eq!(admission.look(core.now, 0, core.sums, core.promised()), 0, "{viewers} viewers");
        }
        let room = admission.room(0, core.promised(), core.promised().bits_per_s, VIEWER);
        assert_eq!(room, Ok(()), "{viewers} viewers");
        assert!(!admission.load(0, core.promised()).0);
    }
}

#[test]
fn room_of_an_engine_that_fills_what_others_leave_is_refused() {
    let (mut core, mut admission) = (Core::new(600_000), admission_with(|_| {}));
    core.viewers = 200;
    for _ in 0..30 {
        core.step_among_others(3_000); // 456 of 1000, and the rest is waiting
        admission.look(core.now, 0, core.sums, core.promised());
    }
    assert!(matches!(core.ask(&mut admission), Err(Full::Behind { engine: 0 })));
}

#[test]
fn look_at_loop_within_a_turn_counts_its_waiting_once() {
    let mut load = EngineLoad::default();
    let mut sums = EngineFigures::default();
    load.look(Instant(0), sums);
    // The loop publishes at the end of a 300 ms turn, in which it had the core for 10 ms.
    for look in 1..=3 {
        (sums.cpu_ns, sums.waited_ns) = (look * 10_000_000 / 3, look * 290_000_000 / 3);
        if look == 3 {
            (sums.busy_ns, sums.seen_ns) = (300_000_000, 300_000_000);
        }
        load.look(Instant(look * ADMISSION_LOOK_NS), sums);
    }
    let waited_as_long = 20_000_000;
    assert_eq!(load.latest(10).packet_cost_ns(), waited_as_long);
}

#[test]
fn overload_policy_share_keeps_all_viewers_while_late() {
    let mut admission = admission_with(|config| config.overload = OverloadPolicy::Share);
    let mut core = Core::new(600_000);
    core.fill(&mut admission, 2_000_000, 20 * S);
    let viewers = core.viewers;
    core.carries /= 2;
    core.run(&mut admission, 5 * S);
    assert_eq!(core.viewers, viewers);
    assert!(core.behind_ns() > S && core.ask(&mut admission).is_err());
}

#[test]
fn off_means_that_it_has_no_say() {
    let mut admission = admission_with(|config| config.is_on = false);
    let mut core = Core::new(1_000);
    core.fill(&mut admission, 1_000_000, 2 * S);
    core.run(&mut admission, 5 * S);
    assert_eq!(core.viewers, 2_000);
    assert_eq!(news(&mut admission), []);
}

#[test]
fn links_are_filled_up_to_their_rate() {
    let mut admission = admission_with(|config| config.link_rate = Some(BitRate(100_000_000)));
    let mut core = Core::new(600_000);
    core.fill(&mut admission, 10_000_000, 5 * S);
    assert_eq!(core.viewers, 12);
    let full = core.ask(&mut admission).unwrap_err();
    assert_eq!(full.to_string(), "96Mb/s of the 100Mb/s of the network links are in use (--link-rate)");
}

#[test]
fn slow_disks_and_a_full_cache_let_nobody_in() {
    let (mut core, mut admission) = (Core::new(600_000), admission_with(|_| {}));
    let mut figures = CacheFigures { positions_max: 10, ..CacheFigures::default() };
    let mut look = |admission: &mut Admission, now: Instant, grants, late, positions| {
        figures.grants += grants;
        figures.late_grants += late;
        figures.positions = positions;
        admission.look_at_cache(now, figures);
    };
    look(&mut admission, Instant(0), 0, 0, 0);
    look(&mut admission, Instant(S), 1_000, 5, 9);
    assert_eq!(core.ask(&mut admission), Ok(()), "five are a hiccup");
    look(&mut admission, Instant(2 * S), 1_000, 50, 9);
    assert_eq!(core.ask(&mut admission), Err(Full::Disk { late_permille: 50 }));
    look(&mut admission, Instant(3 * S), 1_000, 0, 10);
    assert_eq!(core.ask(&mut admission), Err(Full::Cache { positions: 10 }));
    look(&mut admission, Instant(3 * S + 1), 0, 0, 9);
    assert_eq!(core.ask(&mut admission), Ok(()));
}

#[test]
fn admission_news_of_full_resource_appears_once_per_minute() {
    let mut admission = admission_with(|config| config.link_rate = Some(BitRate(8_000_000)));
    let mut core = Core::new(600_000);
    assert_eq!(core.ask(&mut admission), Ok(()));
    let full = core.ask(&mut admission).unwrap_err();
    assert_eq!(news(&mut admission), [AdmissionNotice::Full { full, refused: 1 }]);
    for _ in 0..1_000 {
        assert!(core.ask(&mut admission).is_err());
    }
    assert_eq!(news(&mut admission), []);
    core.run(&mut admission, 60 * S);
    let told = news(&mut admission);
    assert_eq!(told, [AdmissionNotice::Full { full, refused: 1_000 }]);
    assert!(told[0].to_string().starts_with("1000 viewers were turned away: 8Mb/s of the 8Mb/s"));
}
