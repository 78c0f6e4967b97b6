//! The elements of a run. Every part that can be left out is listed here, so that a failure can be
//! reduced.

use std::net::{IpAddr, SocketAddr};

use millrace_core::random::SplitMix;
use millrace_core::time::Instant;
use millrace_tcp::cc::Algorithm;
use millrace_tcp::conn::Config;

use super::app::{App, Side};
use super::link::{Link, Plan};
use super::ours::{End, Ours};
use super::smol::Smol;
use super::{Endpoint, MS, Node, Outcome, run};

/// Who talks to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Two of ours, one connection.
    Pair,
    /// smoltcp opens to us.
    SmolOpens,
    /// We open to smoltcp.
    SmolListens,
    /// Several of ours, many connections at once in all directions; some are aborted.
    Hub,
}

impl Kind {
    /// Connections of a scenario, on average.
    pub(crate) const fn connections(self) -> u64 {
        match self {
            Self::Hub => 8,
            _ => 1,
        }
    }
}

/// A host at the hub.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    /// The way to the hub.
    pub(crate) link: Plan,
    pub(crate) config: Config,
    pub(crate) defers_acks: bool,
    /// Longest that the device holds a frame.
    pub(crate) device_ns: u64,
    /// smoltcp, with buffers of this size.
    pub(crate) smoltcp: Option<usize>,
}

/// A conversation: what one connection is for.
#[derive(Clone, Debug)]
pub(crate) struct Talk {
    /// Numbers of two hosts; the first one opens.
    pub(crate) hosts: [usize; 2],
    pub(crate) sides: [Side; 2],
    pub(crate) opens_at_ns: u64,
    /// Both open.
    pub(crate) is_simultaneous: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) seed: u64,
    pub(crate) is_v6: bool,
    pub(crate) hosts: Vec<Host>,
    pub(crate) talks: Vec<Talk>,
}

fn config(random: &mut SplitMix, is_v6: bool) -> Config {
    let mut coin = || random.below(4) > 0;
    let (stamps, sack, scaling, ecn, paced, nagle) = (coin(), coin(), coin(), coin(), coin(), coin());
    let mtu = [1500, 1500, 1400, 1280, 576][random.below(5) as usize];
    Config {
        mtu: if is_v6 { mtu.max(1280) } else { mtu },
        receive_bytes: 2_000 + random.below(120_000) as u32,
        stamps,
        sack,
        scaling,
        ecn,
        paced,
        nagle,
        // An end that never learned of its peer's abort finds out soon.
        keep_alive_ns: 10_000 * MS,
        algorithm: if random.below(4) == 0 { Algorithm::Reno } else { Algorithm::Cubic },
        ..Config::default()
    }
}

fn side(random: &mut SplitMix, most: u64) -> Side {
    let bytes = match random.below(4) {
        0 => random.below(3),
        1 => random.below(2_000),
        _ => random.below(most),
    };
    let mut side = Side { chunk: 1 + random.below(6_000) as usize, ..Side::sending(bytes) };
    if random.below(4) == 0 {
        side.gulp = 500 + random.below(4_000) as usize;
        side.pause_ns = random.below(40) * MS;
    }
    side.uses_extents = random.below(2) == 0;
    if random.below(6) == 0 {
        // Long enough that windows close and are probed, and that extents go back.
        side.stalls_at = random.below(20_000);
        side.stall_ns = (1_000 + random.below(14_000)) * MS;
    }
    side
}

fn host(random: &mut SplitMix, is_v6: bool) -> Host {
    let mut link = Plan::random(random);
    if is_v6 {
        // No link of IPv6 passes less (RFC 8200 section 5).
        link.mtus.iter_mut().flatten().for_each(|change| change.mtu = change.mtu.max(1280));
    }
    Host {
        link,
        config: config(random, is_v6),
        defers_acks: random.below(3) > 0,
        device_ns: if random.below(2) == 0 { 0 } else { random.below(200) * MS },
        smoltcp: None,
    }
}

impl Talk {
    fn random(random: &mut SplitMix, hosts: usize) -> Self {
        let first = random.below(hosts as u64) as usize;
        let second = (first + 1 + random.below(hosts as u64 - 1) as usize) % hosts;
        let mut sides = [side(random, 30_000), side(random, 30_000)];
        let all = sides[0].bytes + sides[1].bytes;
        if random.below(5) == 0 {
            sides[random.below(2) as usize].aborts_at = Some(random.below(all + 1));
        }
        Self {
            hosts: [first, second],
            sides,
            opens_at_ns: random.below(3_000) * MS,
            is_simultaneous: random.below(6) == 0,
        }
    }
}

impl Scenario {
    pub(crate) fn of(kind: Kind, seed: u64) -> Self {
        let mut random = SplitMix::numbered(seed, kind as u64);
        let is_smol = matches!(kind, Kind::SmolOpens | Kind::SmolListens);
        let is_v6 = !is_smol && random.below(4) == 0;
        let count = if kind == Kind::Hub { 2 + random.below(4) as usize } else { 2 };
        let mut hosts: Vec<_> = (0..count).map(|_| host(&mut random, is_v6)).collect();
        let smol = match kind {
            Kind::SmolOpens => Some(0),
            Kind::SmolListens => Some(1),
            _ => None,
        };
        if let Some(host) = smol.and_then(|number: usize| hosts.get_mut(number)) {
            host.smoltcp = Some(2_000 + random.below(60_000) as usize);
            // It has no means against a black hole.
            host.link.mtus = [None; 2];
        }
        let talks = match kind {
            Kind::Hub => (0..2 + random.below(13)).map(|_| Talk::random(&mut random, count)).collect(),
            _ => {
                let mut sides = [side(&mut random, 80_000), side(&mut random, 80_000)];
                if let Some(number) = smol {
                    // Ten seconds into TIME-WAIT, it discards unread data.
                    sides[number].stall_ns = sides[number].stall_ns.min(8_000 * MS);
                    // After duplicate ACKs it sends beyond the window, and where the window is closed then, it probes behind that and
                    // never repeats it: it waits for ever, whatever the window becomes.
                    sides[1 - number].stall_ns = 0;
                }
                let is_simultaneous = kind == Kind::Pair && random.below(8) == 0;
                vec![Talk { hosts: [0, 1], sides, opens_at_ns: 0, is_simultaneous }]
            }
        };
        Self { seed, is_v6, hosts, talks }
    }

    fn address(&self, host: usize) -> IpAddr {
        let last = host as u8 + 1;
        match self.is_v6 {
            true => [0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last)].into(),
            false => [10, 0, 0, last].into(),
        }
    }

    /// The ends of conversation `number` as its side `side` sees them, its own first.
    fn ends(&self, number: usize, side: usize) -> (SocketAddr, SocketAddr) {
        let talk = &self.talks[number];
        let ports = [40_000 + number as u16, if talk.is_simultaneous { 41_000 + number as u16 } else { 80 }];
        let end = |side: usize| SocketAddr::new(self.address(talk.hosts[side]), ports[side]);
        (end(side), end(1 - side))
    }

    fn endpoint(&self, number: usize) -> Box<dyn Endpoint> {
        let host = &self.hosts[number];
        let mut random = SplitMix::numbered(self.seed, 100 + number as u64);
        let mut ends = Vec::new();
        for (talk_number, talk) in self.talks.iter().enumerate() {
            for side in 0..2 {
                if talk.hosts[side] == number {
                    let seed = self.seed ^ (talk_number as u64 + 1) << 40;
                    ends.push((App::new(&talk.sides, side, seed), talk, talk_number, side));
                }
            }
        }
        if let Some(buffer_bytes) = host.smoltcp {
            let (app, _, talk_number, side) = ends.swap_remove(0);
            let (local, remote) = self.ends(talk_number, side);
            let mut smol = Smol::new(local.ip(), app, buffer_bytes, random.next());
            match side {
                0 => smol.open(remote, local.port()),
                _ => smol.listen(local.port()),
            }
            return Box::new(smol);
        }
        let ends = ends.into_iter().map(|(app, talk, talk_number, side)| {
            let (local, remote) = self.ends(talk_number, side);
            let opens_at = (side == 0 || talk.is_simultaneous).then_some(Instant(talk.opens_at_ns));
            let may_fail = talk.sides.iter().any(|side| side.aborts_at.is_some());
            End::new(app, local, remote, opens_at, may_fail)
        });
        Box::new(Ours::new(host, self.address(number), ends.collect(), random))
    }

    pub(crate) fn run(&self) -> Outcome {
        let node = |(number, host): (usize, &Host)| Node {
            address: self.address(number),
            end: self.endpoint(number),
            link: Link::new(host.link, SplitMix::numbered(self.seed, 200 + number as u64)),
        };
        run(&mut self.hosts.iter().enumerate().map(node).collect::<Vec<_>>())
    }

    /// Scenarios with one thing less, and what that is.
    pub(crate) fn simpler(&self) -> Vec<(String, Self)> {
        let mut all = Vec::new();
        let before = format!("{self:?}");
        let mut without = |what: String, change: &dyn Fn(&mut Self)| {
            let mut scenario = self.clone();
            change(&mut scenario);
            if format!("{scenario:?}") != before {
                all.push((what, scenario));
            }
        };
        for number in (0..self.talks.len()).filter(|_| self.talks.len() > 1) {
            without(format!("talk{number}"), &|this| {
                this.talks.remove(number);
            });
        }
        for number in 0..self.hosts.len() {
            for (what, change) in HOST {
                without(format!("host{number}.{what}"), &|this| change(&mut this.hosts[number]));
            }
        }
        for number in 0..self.talks.len() {
            let is_smol = self.talks[number].hosts.iter().any(|&host| self.hosts[host].smoltcp.is_some());
            if !is_smol {
                without(format!("talk{number}.simultaneous"), &|this| {
                    this.talks[number].is_simultaneous = false;
                });
            }
            without(format!("talk{number}.later"), &|this| this.talks[number].opens_at_ns = 0);
            for side in 0..2 {
                for (what, change) in SIDE {
                    without(format!("talk{number}.side{side}.{what}"), &|this| {
                        change(&mut this.talks[number].sides[side]);
                    });
                }
            }
        }
        all
    }
}

/// The parts that can be left out, and how.
type Change<T> = (&'static str, fn(&mut T));

/// The parts of a host and its link that can be left out.
const HOST: [Change<Host>; 21] = [
    ("outage", |host| host.link.outage_ns = (0, 0)),
    ("burst", |host| host.link.burst = 0),
    ("loss", |host| host.link.loss = 0),
    ("reorder", |host| host.link.reorder = 0),
    ("duplicate", |host| host.link.duplicate = 0),
    ("corrupt", |host| host.link.corrupt = 0),
    ("mark", |host| host.link.mark = 0),
    ("mtu1", |host| host.link.mtus[1] = None),
    ("mtu0", |host| host.link.mtus[0] = None),
    ("queue", |host| host.link.queue_bytes = 1 << 30),
    ("rate", |host| host.link.bits_per_s = 1_000_000_000),
    ("delay", |host| host.link.delay_ns = 10 * MS),
    ("device", |host| host.device_ns = 0),
    ("defer", |host| host.defers_acks = false),
    ("stamps", |host| host.config.stamps = false),
    ("sack", |host| host.config.sack = false),
    ("ecn", |host| host.config.ecn = false),
    ("pace", |host| host.config.paced = false),
    ("nagle", |host| host.config.nagle = false),
    ("small_mtu", |host| host.config.mtu = 1500),
    ("small_window", |host| host.config.receive_bytes = 65_000),
];

/// The parts of an application that can be left out.
const SIDE: [Change<Side>; 7] = [
    ("abort", |side| side.aborts_at = None),
    ("extents", |side| side.uses_extents = false),
    ("stall", |side| side.stall_ns = 0),
    ("pause", |side| (side.gulp, side.pause_ns) = (1 << 16, 0)),
    ("chunk", |side| side.chunk = 4000),
    ("bytes", |side| side.bytes = 0),
    ("half", |side| side.bytes /= 2),
];
