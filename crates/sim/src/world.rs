//! One simulation: the clock goes from event to event, and after each the invariants are checked.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

use millrace_core::time::Instant;
use millrace_rights::RightsSnapshot;
use millrace_server::service::ConnKey;
use millrace_store::disk::{ReadFault, ReadFaults};

use crate::host::{HeldResources, SimHost};
use crate::http_viewer::HttpViewer;
use crate::network::{SharedNetwork, SimClock};
use crate::reception::Excuses;
use crate::scenario::{FaultKind, Scenario, SignIn};
use crate::shares::Shares;
use crate::titles::{StoredTitle, StoredVolume, Stores};
use crate::users::ViewerAccess;
use crate::viewer::{SimViewer, ViewerEnd, ViewerWorld};

mod checks;

/// The clock begins here: at zero, earlier times would be hidden.
const BEGIN: Instant = Instant(100_000_000_000);
/// Viewers are looked at as often as this.
const LOOK_NS: u64 = 250_000_000;
/// The effects of a disk fault last this long: reads given up, members suspended and probed.
const AFTERMATH_NS: u64 = 12_000_000_000;
/// When the last viewer has left, the remaining sessions expire within this time.
const REST_NS: u64 = 60_000_000_000;
/// No simulation takes longer.
const LONGEST_NS: u64 = 300_000_000_000;

/// An invariant that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// When, since the beginning.
    pub at_ns: u64,
    /// The invariant, and the values that break it.
    pub what: String,
}

/// Counts of a simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Moments at which something happened.
    pub steps: u64,
    /// Media packets that viewers were sent.
    pub packets: u64,
    /// Sessions.
    pub sessions: u64,
    /// Sessions that the server ended because of a fault.
    pub failed: u64,
    /// Requests that were refused because everything was in use.
    pub refused: u64,
    /// Of these, because of the quota of a user.
    pub refused_users: u64,
    /// Requests that a user had no right to.
    pub denied: u64,
    /// FEC packets that were compared.
    pub fec_packets: u64,
    /// Leases that came for runs that were over.
    pub late_leases: u64,
    /// Bytes of titles in whole answers by HTTP.
    pub http_bytes: u64,
    /// Whole answers by HTTP that engines sent.
    pub http_answers: u64,
    /// Answers by HTTP that were cut off.
    pub http_cut: u64,
    /// A number that two runs of the same seed share.
    pub digest: u64,
}

/// A fault of a disk that lasts.
struct ActiveFault {
    member: u16,
    fault: ReadFault,
    until: Instant,
}

/// A viewer that is to come, by its place in the scenario.
#[derive(Clone, Copy)]
enum Arrival {
    Rtsp(usize),
    Http(usize),
}

struct SimWorld<'a> {
    scenario: &'a Scenario,
    stores: &'a Stores,
    stored: &'a StoredVolume,
    clock: SimClock,
    network: SharedNetwork,
    faults: ReadFaults,
    host: SimHost,
    now: Instant,
    viewers: Vec<SimViewer>,
    http: Vec<HttpViewer>,
    /// Plans whose viewer has not come yet.
    waiting: Vec<(Instant, Arrival)>,
    /// The counters of the service for the orders of each viewer by HTTP.
    delivered: BTreeMap<u32, u64>,
    next_number: u32,
    next_fault: usize,
    active: Vec<ActiveFault>,
    /// When each member was at fault last.
    at_fault: BTreeMap<u16, Instant>,
    next_look: Instant,
    starts: u64,
    shares: Shares,
    /// Viewers of the connections by RTSP.
    conns: HashMap<ConnKey, SocketAddr>,
    /// FEC was switched off or left out.
    has_less_fec: bool,
    /// Media packets of the runs that the service has reported.
    reported_packets: u64,
    summary: Summary,
    is_verbose: bool,
}

/// Runs a simulation to its end.
///
/// # Errors
/// The first invariant that does not hold.
pub fn simulate(stores: &Stores, scenario: &Scenario, is_verbose: bool) -> Result<Summary, Violation> {
    millrace_store::sim::enter(scenario.seed);
    let clock = SimClock::default();
    clock.set(BEGIN);
    let network = SharedNetwork::new(clock.clone(), scenario.seed, scenario.capacity_bytes);
    let stored = &stores.volumes[scenario.volume];
    let faults = ReadFaults::settable();
    let at = |what| Violation { at_ns: 0, what };
    let ends = (clock.clone(), network.clone());
    let known = known_users(stores, scenario);
    let host = SimHost::start(ends, &scenario.server, stored, (faults.clone(), scenario.seed), known);
    let host = host.map_err(at)?;
    let at_start = |start_ns, arrival| (BEGIN.plus_ns(start_ns), arrival);
    let by_rtsp = scenario.viewers.iter().enumerate();
    let by_rtsp = by_rtsp.map(|(index, plan)| at_start(plan.start_ns, Arrival::Rtsp(index)));
    let by_http = scenario.http.iter().enumerate();
    let by_http = by_http.map(|(index, plan)| at_start(plan.start_ns, Arrival::Http(index)));
    let mut world = SimWorld {
        waiting: by_rtsp.chain(by_http).collect(),
        http: Vec::new(),
        delivered: BTreeMap::new(),
        scenario,
        stores,
        stored,
        clock,
        network,
        faults,
        host,
        now: BEGIN,
        viewers: Vec::new(),
        next_number: 1,
        next_fault: 0,
        active: Vec::new(),
        at_fault: BTreeMap::new(),
        next_look: BEGIN,
        starts: 0,
        shares: Shares::default(),
        conns: HashMap::new(),
        has_less_fec: false,
        reported_packets: 0,
        summary: Summary::default(),
        is_verbose,
    };
    let outcome = world.run();
    let at_ns = world.now.ns_since(BEGIN);
    outcome.map_err(|what| Violation { at_ns, what }).map(|()| world.summary)
}

/// The users of the server; `None`: all viewers may watch.
fn known_users(stores: &Stores, scenario: &Scenario) -> Option<RightsSnapshot> {
    let titles = &stores.volumes[scenario.volume].titles;
    (!scenario.users.is_empty()).then(|| stores.users.known(&scenario.users, titles))
}

impl<'a> SimWorld<'a> {
    fn say(&self, what: impl FnOnce() -> String) {
        if self.is_verbose {
            let ms = self.now.ns_since(BEGIN) / 1_000;
            println!("{:>9}.{:03} ms  {}", ms / 1_000, ms % 1_000, what());
        }
    }

    fn run(&mut self) -> Result<(), String> {
        let mut rest_by = None;
        loop {
            self.step()?;
            let is_idle = self.waiting.is_empty()
                && self.viewers.iter().all(SimViewer::is_over)
                && self.http.iter().all(HttpViewer::is_over);
            if is_idle {
                let held = self.host.held();
                if held == HeldResources::default() && self.next_fault >= self.scenario.faults.len() {
                    return self.check_end();
                }
                let by = *rest_by.get_or_insert(self.now.plus_ns(REST_NS));
                if self.now >= by {
                    return Err(format!("no viewer is left, and the server holds {held:?}"));
                }
            } else {
                rest_by = None;
            }
            if self.now.ns_since(BEGIN) > LONGEST_NS {
                return Err("the viewers do not come to an end".to_owned());
            }
            let next = self.next_at();
            if next > self.now {
                self.now = next;
                self.clock.set(next);
            }
        }
    }

    /// Everything that happens at one moment.
    fn step(&mut self) -> Result<(), String> {
        self.summary.steps += 1;
        self.apply_faults()?;
        self.admit_viewers();
        self.deliver()?;
        self.host.run();
        self.take_events()?;
        self.run_viewers()?;
        let reports = std::mem::take(&mut self.network.lock().reports);
        reports.iter().for_each(|(from, bytes)| self.host.receive_report(*from, bytes));
        self.host.run();
        self.take_events()?;
        self.check_shares()?;
        if self.now >= self.next_look {
            self.next_look = self.now.plus_ns(LOOK_NS);
            for index in 0..self.viewers.len() {
                self.with_viewer(index, |viewer, world| viewer.look(world))?;
            }
            for index in 0..self.http.len() {
                self.with_http(index, |viewer, world| viewer.look(world))?;
            }
        }
        Ok(())
    }

    fn next_at(&self) -> Instant {
        let reads = |number| {
            self.viewers.iter().any(|viewer| viewer.number == number && viewer.reads())
                || self.http.iter().any(|viewer| viewer.number == number && viewer.reads())
        };
        let faults = self.scenario.faults.get(self.next_fault).map(|fault| BEGIN.plus_ns(fault.at_ns));
        let mut next = self.next_look.min(self.host.poll_at());
        let others = [self.network.lock().next_arrival(reads), faults];
        let active = self.active.iter().map(|fault| fault.until);
        let by_http = self.http.iter().filter_map(HttpViewer::poll_at);
        let viewers = self.viewers.iter().filter_map(SimViewer::poll_at).chain(by_http);
        let coming = self.waiting.iter().map(|(at, _)| *at);
        for at in others.into_iter().flatten().chain(active).chain(viewers).chain(coming) {
            next = next.min(at);
        }
        // Work that is due already and cannot be done now is tried again a little later.
        if next <= self.now { self.now.plus_ns(50_000) } else { next }
    }

    fn title_of(&self, plan_title: usize) -> &'a StoredTitle {
        &self.stored.titles[plan_title % self.stored.titles.len()]
    }

    fn excuses(&self) -> Excuses {
        let recent = self.at_fault.values().filter(|last| self.now.ns_since(**last) < AFTERMATH_NS).count();
        let is_lost = recent > self.stored.tolerance;
        let was_lost = self.at_fault.len() > self.stored.tolerance;
        let was_degraded = !self.at_fault.is_empty();
        let may_lack_fec = self.has_less_fec || was_degraded;
        Excuses { is_degraded: recent > 0 && !is_lost, is_lost, was_degraded, was_lost, may_lack_fec }
    }

    fn with_viewer(
        &mut self,
        index: usize,
        act: impl FnOnce(&mut SimViewer, &ViewerWorld<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        let world = ViewerWorld {
            now: self.now,
            network: &self.network,
            title: self.title_of(self.viewers[index].plan.title),
            row_packets: self.stored.row_packets,
            excuses: self.excuses(),
        };
        let viewer = &mut self.viewers[index];
        let was_over = viewer.is_over();
        let number = viewer.number;
        act(viewer, &world).map_err(|what| format!("viewer {number}: {what}"))?;
        if let Some(end) = viewer.end().filter(|_| !was_over).cloned() {
            self.say(|| format!("viewer {number} is over: {end:?}"));
            let has_status = |status| matches!(&end, ViewerEnd::Ended(why) if why.contains(status));
            self.summary.refused += u64::from(has_status("453"));
            self.summary.denied += u64::from(has_status(" 401 ") || has_status(" 403 "));
        }
        Ok(())
    }

    fn with_http(
        &mut self,
        index: usize,
        act: impl FnOnce(&mut HttpViewer, &ViewerWorld<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        let world = ViewerWorld {
            now: self.now,
            network: &self.network,
            title: self.title_of(self.http[index].plan.title),
            row_packets: self.stored.row_packets,
            excuses: self.excuses(),
        };
        let viewer = &mut self.http[index];
        let was_over = viewer.is_over();
        let number = viewer.number;
        act(viewer, &world).map_err(|what| format!("viewer {number} by HTTP: {what}"))?;
        if let Some(end) = viewer.end().filter(|_| !was_over).cloned() {
            let received = viewer.received;
            self.summary.refused += received.refused;
            self.summary.denied += received.denied;
            self.summary.http_bytes += received.media_bytes;
            self.summary.http_answers += received.media_answers;
            self.summary.http_cut += received.cut;
            self.say(|| format!("viewer {number} by HTTP is over: {end:?}, {received:?}"));
        }
        Ok(())
    }

    fn apply_faults(&mut self) -> Result<(), String> {
        let now = self.now;
        for fault in &self.active {
            self.at_fault.insert(fault.member, now);
        }
        let before = self.active.len();
        self.active.retain(|fault| fault.until > now);
        let mut changed = before != self.active.len();
        while let Some(fault) = self.scenario.faults.get(self.next_fault).copied()
            && BEGIN.plus_ns(fault.at_ns) <= now
        {
            self.next_fault += 1;
            self.say(|| format!("{:?}", fault.kind));
            match fault.kind {
                FaultKind::Disk { member, fault, for_ns } => {
                    self.active.push(ActiveFault { member, fault, until: now.plus_ns(for_ns) });
                    self.at_fault.insert(member, now);
                    changed = true;
                }
                FaultKind::WallClock { offset_ns } => self.host.step_wall_clock(offset_ns),
                FaultKind::Kill => self.kill()?,
            }
        }
        if changed {
            let table: Vec<_> = self.active.iter().map(|fault| (fault.member, fault.fault)).collect();
            self.faults.set_all(&table);
        }
        Ok(())
    }

    /// The server's process ends at this moment; another one is started on the same volume.
    fn kill(&mut self) -> Result<(), String> {
        self.network.lock().kill_server();
        for index in 0..self.viewers.len() {
            let viewer = &mut self.viewers[index];
            if viewer.is_over() {
                continue;
            }
            viewer.server_killed();
            if viewer.plan.comes_back {
                let plan =
                    self.scenario.viewers.iter().position(|plan| plan.start_ns == viewer.plan.start_ns);
                let at = self.now.plus_ns(500_000_000);
                self.waiting.extend(plan.map(|plan| (at, Arrival::Rtsp(plan))));
            }
        }
        self.http.iter_mut().filter(|viewer| !viewer.is_over()).for_each(HttpViewer::server_killed);
        self.starts += 1;
        self.shares.forget();
        let seed = self.scenario.seed.wrapping_add(self.starts << 32);
        let ends = (self.clock.clone(), self.network.clone());
        let plan = &self.scenario.server;
        let known = known_users(self.stores, self.scenario);
        let host = SimHost::start(ends, plan, self.stored, (self.faults.clone(), seed), known)?;
        let dead = std::mem::replace(&mut self.host, host);
        let arena = std::sync::Arc::clone(&dead.arena);
        drop(dead);
        let leased = (0..arena.extents()).filter(|&extent| arena.leases(extent) > 0).count();
        if leased > 0 {
            return Err(format!("a server that is gone has left {leased} extents leased"));
        }
        self.check_durable()
    }

    /// Whatever was durable is there.
    fn check_durable(&self) -> Result<(), String> {
        let names = self.host.library.names();
        let lost = self.stored.titles.iter().find(|title| !names.contains(&title.name));
        lost.map_or(Ok(()), |title| Err(format!("durable title {} is lost; there are {names:?}", title.name)))
    }

    /// The credentials of a viewer, and the answers that it must get.
    fn access(&self, sign_in: SignIn, plan_title: usize) -> ViewerAccess {
        let title = plan_title % self.stored.titles.len();
        self.stores.users.access(&self.scenario.users, sign_in, title)
    }

    fn admit_viewers(&mut self) {
        let (now, due) = (self.now, |at: &Instant| *at <= self.now);
        let coming: Vec<_> = self.waiting.iter().filter(|(at, _)| due(at)).map(|(_, plan)| *plan).collect();
        self.waiting.retain(|(at, _)| *at > now);
        for arrival in coming {
            let number = self.next_number;
            self.next_number += 1;
            let plan = match arrival {
                Arrival::Rtsp(plan) => self.scenario.viewers[plan].clone(),
                Arrival::Http(plan) => {
                    let plan = self.scenario.http[plan].clone();
                    let title = self.title_of(plan.title);
                    self.say(|| format!("viewer {number} comes by HTTP for {}: {plan:?}", title.name));
                    let access = self.access(plan.sign_in, plan.title);
                    let viewer = HttpViewer::new(plan, number, now, access);
                    self.shares.arrive(viewer.address, viewer.plan.sign_in);
                    self.host.accept_http(number, viewer.address);
                    self.http.push(viewer);
                    continue;
                }
            };
            let title = self.title_of(plan.title);
            self.say(|| format!("viewer {number} comes for {}: {plan:?}", title.name));
            let access = self.access(plan.sign_in, plan.title);
            let mut viewer = SimViewer::new(plan, number, title, access);
            self.network.lock().loss_ppm.insert(viewer.ip, viewer.plan.loss_ppm);
            let peer = viewer.peer();
            self.shares.arrive(peer, viewer.plan.sign_in);
            if self.host.accept(number, peer) {
                let (network, row_packets) = (&self.network, self.stored.row_packets);
                let world = ViewerWorld { now, network, title, row_packets, excuses: Excuses::default() };
                viewer.start(&world);
                self.viewers.push(viewer);
            }
        }
    }

    /// Datagrams arrive.
    fn deliver(&mut self) -> Result<(), String> {
        loop {
            let datagram = {
                let mut network = self.network.lock();
                match network.datagrams.front() {
                    Some(first) if first.at <= self.now => network.datagrams.pop_front(),
                    _ => None,
                }
            };
            let Some(datagram) = datagram else { return Ok(()) };
            let to = datagram.to;
            let viewer = self.viewers.iter().position(|viewer| viewer.ip == to.ip());
            let Some(index) = viewer else { return Err(format!("a datagram to {to}, where no viewer is")) };
            self.with_viewer(index, |viewer, world| {
                viewer.receive(world, (to.port(), &datagram.bytes, datagram.is_lost))
            })?;
        }
    }

    fn run_viewers(&mut self) -> Result<(), String> {
        for index in 0..self.viewers.len() {
            self.with_viewer(index, |viewer, world| viewer.run(world))?;
        }
        for index in 0..self.http.len() {
            self.with_http(index, |viewer, world| viewer.run(world))?;
        }
        Ok(())
    }
}
