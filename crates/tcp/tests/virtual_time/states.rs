//! Every state that two ends can be in together: all orders of opening, sending, closing and aborting, with segments lost, late and repeated.
//!
//! Breadth first from two stacks at rest. A stack cannot be copied, so each state is reached again
//! from the start by the actions that led to it; states are distinguished by their externally
//! visible properties. Sequence numbers count from the initial ones, timers to the millisecond.
//!
//! From each state on, without further faults, both ends have to come to rest where only an application could go on; and to CLOSED, with all memory
//! given back, once the applications have closed. `MILLRACE_TCP_FAULTS=2` allows two faults on a way rather than one.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeSet, HashSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::net::SocketAddr;

use millrace_core::time::Instant;
use millrace_tcp::conn::{Config, ConnectionState, Happened, Reason};
use millrace_tcp::seq::Seq;
use millrace_tcp::stack::{ConnectionId, FrameDisposal, Settings, Stack};
use millrace_tcp::wire::{Flags, parse};

use crate::sim;
use crate::sim::{MS, Packet};

/// Duration of an action: sequence numbers of a new connection are later than those of the last
/// one.
const STEP_NS: u64 = 10_000;
/// Bytes of the one data segment of each side.
const DATA: &[u8] = b"data";
/// Actions without faults after which everything is at rest.
const MOST_STEPS: u32 = 300;

/// A state of RFC 9293 section 3.3.2. LISTEN is not one of [`ConnectionState`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum At {
    Closed,
    Listen,
    SynSent,
    SynReceived,
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Closing,
    LastAck,
    TimeWait,
}
use At::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Open(usize),
    Write(usize),
    Close(usize),
    Abort(usize),
    /// A segment under way arrives.
    Deliver(usize),
    /// A segment under way is lost.
    Lose(usize),
    /// A segment of the past comes once more.
    Again(usize),
    /// Nothing is under way: the next timer fires.
    Tick,
}

/// Who opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Setup {
    /// The second end listens, the first one may open.
    Passive,
    /// No end listens, both may open.
    Both,
}

/// An end and its application.
struct Side {
    stack: Stack,
    end: SocketAddr,
    listens: bool,
    id: Option<ConnectionId>,
    reason: Option<Reason>,
    has_opened: bool,
    has_written: bool,
    has_closed: bool,
    has_aborted: bool,
    received: Vec<u8>,
    /// The initial sequence number of its first SYN.
    first: Option<Seq>,
}

impl Side {
    fn at(&self) -> At {
        match self.state() {
            ConnectionState::SynSent => SynSent,
            ConnectionState::SynReceived => SynReceived,
            ConnectionState::Established => Established,
            ConnectionState::FinWait1 => FinWait1,
            ConnectionState::FinWait2 => FinWait2,
            ConnectionState::CloseWait => CloseWait,
            ConnectionState::Closing => Closing,
            ConnectionState::LastAck => LastAck,
            _ if self.stack.time_waits() > 0 => TimeWait,
            _ if self.stack.requests() > 0 => SynReceived,
            _ if self.listens && self.id.is_none() => Listen,
            _ => Closed,
        }
    }

    fn hear(&mut self, now: Instant) {
        while let Some(event) = self.stack.poll_event() {
            let id = *self.id.get_or_insert(event.connection);
            assert_eq!(id, event.connection, "a second connection");
            if event.happened.has(Happened::CLOSED) {
                self.reason = Some(event.reason);
            }
        }
        let mut to = [0; 16];
        while let Some(id) = self.id
            && let Ok(bytes @ 1..) = self.stack.read(id, &mut to, now)
        {
            self.received.extend_from_slice(&to[..bytes]);
        }
    }

    /// Of its connection, whatever a listener beside it is in.
    fn state(&self) -> ConnectionState {
        self.id.map_or(ConnectionState::Closed, |id| self.stack.state(id))
    }

    /// Its connection is over, and an old SYN has begun another.
    fn is_reopened(&self) -> bool {
        self.id.is_some() && self.stack.requests() > 0
    }

    fn may_send(&self) -> bool {
        use ConnectionState::{CloseWait, Established, SynReceived, SynSent};
        matches!(self.state(), SynSent | SynReceived | Established | CloseWait) && !self.has_closed
    }
}

/// A segment, and whom it is for.
#[derive(Clone)]
struct Flying {
    to: usize,
    packet: Packet,
}

struct World {
    sides: [Side; 2],
    setup: Setup,
    now: Instant,
    under_way: Vec<Flying>,
    past: Vec<Flying>,
    faults_left: u32,
}

/// The properties that distinguish segments: receiver, numbers counted from the initial ones,
/// flags, length.
type Look = (usize, i32, i32, u8, u32);

impl World {
    fn new(setup: Setup, faults: u32) -> Self {
        let side = |number: usize| {
            let config = Config { paced: false, nagle: false, receive_bytes: 4_000, ..Config::default() };
            let base = sim::ours::settings(config, 7 + number as u64);
            let mut stack = Stack::new(&Settings {
                connections: 2,
                requests: 2,
                listeners: 16,
                time_waits: 2,
                records: 15,
                descriptors: 4,
                host_pages: 2,
                clusters: vec![millrace_tcp::recv::ClusterSize { bytes: 8_192, page_bytes: 2_048 }; 2],
                // Both ways of taking ACKs in.
                defers_acks: number == 0,
                ..base
            });
            let end = SocketAddr::new([10, 0, 0, 1 + number as u8].into(), 4_000 + number as u16);
            let listens = setup == Setup::Passive && number == 1;
            if listens {
                stack.listen(end, 2).expect("a listener");
            }
            Side {
                stack,
                end,
                listens,
                id: None,
                reason: None,
                has_opened: false,
                has_written: false,
                has_closed: false,
                has_aborted: false,
                received: Vec::new(),
                first: None,
            }
        };
        Self {
            sides: [side(0), side(1)],
            setup,
            now: Instant(1_000_000 * MS),
            under_way: Vec::new(),
            past: Vec::new(),
            faults_left: faults,
        }
    }

    fn reached(setup: Setup, faults: u32, way: &[Action]) -> Self {
        let mut world = Self::new(setup, faults);
        way.iter().for_each(|&action| world.act(action));
        world
    }

    fn pair(&self) -> (At, At) {
        (self.sides[0].at(), self.sides[1].at())
    }

    fn look(&self, flying: &Flying) -> Look {
        let segment = parse(&flying.packet.bytes).expect("what a stack sends");
        let (to, from) = (flying.to, 1 - flying.to);
        let after = |seq: Seq, side: usize| match self.sides[side].first {
            // A reset for an unknown connection has numbers of its own.
            Some(first) if seq != Seq(0) => seq.since(first),
            _ => i32::MIN,
        };
        let ack = if segment.flags.has(Flags::ACK) { after(segment.ack, to) } else { 0 };
        (to, after(segment.seq, from), ack, segment.flags.0, segment.payload.len() as u32)
    }

    /// Whose application has data to send: one data segment is enough to be lost.
    fn writer(&self) -> usize {
        usize::from(self.setup == Setup::Passive)
    }

    /// Everything that can be done now.
    fn actions(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        for (number, side) in self.sides.iter().enumerate() {
            if !side.has_opened && !side.listens && (self.setup == Setup::Both || number == 0) {
                actions.push(Action::Open(number));
            }
            if side.may_send() {
                if !side.has_written && number == self.writer() {
                    actions.push(Action::Write(number));
                }
                actions.push(Action::Close(number));
            }
            let is_live = !matches!(side.state(), ConnectionState::Closed | ConnectionState::TimeWait);
            let is_first = !self.sides.iter().any(|side| side.has_aborted);
            if is_live && is_first {
                actions.push(Action::Abort(number));
            }
        }
        let mut seen = BTreeSet::new();
        for (number, flying) in self.under_way.iter().enumerate() {
            // In order, but for a fault.
            let is_first = !self.under_way[..number].iter().any(|other| other.to == flying.to);
            if (is_first || self.faults_left > 0) && seen.insert(self.look(flying)) {
                actions.push(Action::Deliver(number));
                if self.faults_left > 0 {
                    actions.push(Action::Lose(number));
                }
            }
        }
        if self.faults_left > 0 {
            actions.extend((0..self.past.len()).map(Action::Again));
        }
        if self.under_way.is_empty() && self.next_due().is_some() {
            actions.push(Action::Tick);
        }
        actions
    }

    fn next_due(&self) -> Option<Instant> {
        self.sides.iter().filter_map(|side| side.stack.next_due(self.now)).min()
    }

    fn act(&mut self, action: Action) {
        self.now = self.now.plus_ns(STEP_NS);
        let now = self.now;
        match action {
            Action::Open(number) => {
                let remote = self.sides[1 - number].end;
                let side = &mut self.sides[number];
                side.id = Some(side.stack.open(side.end, remote, now).expect("a connection"));
                side.has_opened = true;
            }
            Action::Write(number) => {
                let side = &mut self.sides[number];
                let written = side.stack.write(side.id.expect("open"), DATA, now);
                assert_eq!(written, Ok(DATA.len()));
                side.has_written = true;
            }
            Action::Close(number) => {
                let side = &mut self.sides[number];
                side.stack.close(side.id.expect("open"), now).expect("the first close");
                side.has_closed = true;
            }
            Action::Abort(number) => {
                let side = &mut self.sides[number];
                side.stack.abort(side.id.expect("open"), now);
                side.has_aborted = true;
            }
            Action::Deliver(place) => {
                let flying = self.under_way.remove(place);
                let overtakes = self.under_way[..place].iter().any(|other| other.to == flying.to);
                self.faults_left -= u32::from(overtakes);
                self.arrive(&flying);
            }
            Action::Lose(place) => {
                self.faults_left -= 1;
                self.under_way.remove(place);
            }
            Action::Again(place) => {
                self.faults_left -= 1;
                let flying = self.past[place].clone();
                self.arrive(&flying);
            }
            Action::Tick => self.now = now.max(self.next_due().expect("a timer")),
        }
        self.turn();
    }

    fn arrive(&mut self, flying: &Flying) {
        let now = self.now;
        self.sides[flying.to].stack.input(&flying.packet.arrived(now), now);
    }

    /// Both ends do what there is to do now.
    fn turn(&mut self) {
        let now = self.now;
        for number in 0..2 {
            for _ in 0..10 {
                let side = &mut self.sides[number];
                side.hear(now);
                side.stack.protocol(now);
                let mut packets = Vec::new();
                side.stack.output(now, &mut |out| {
                    packets.push(Packet::of(out));
                    FrameDisposal::Copied
                });
                side.hear(now);
                let is_idle = packets.is_empty();
                packets.into_iter().for_each(|packet| self.send(number, packet));
                if is_idle && self.sides[number].stack.next_due(now).is_none_or(|due| due > now) {
                    break;
                }
            }
        }
    }

    fn send(&mut self, from: usize, packet: Packet) {
        let segment = parse(&packet.bytes).expect("what a stack sends");
        if segment.flags.has(Flags::SYN) {
            self.sides[from].first.get_or_insert(segment.seq);
        }
        let flying = Flying { to: 1 - from, packet };
        let look = self.look(&flying);
        if !self.past.iter().any(|other| self.look(other) == look) {
            self.past.push(flying.clone());
        }
        self.under_way.push(flying);
    }

    fn print(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for side in &self.sides {
            let stack = &side.stack;
            // Delayed ACK, retransmission, time-outs of connections.
            let due = stack.next_due(self.now).map(|due| due.ns_since(self.now) / MS);
            let due = due.map(|due_ms| (due_ms > 50, due_ms > 10_000));
            side.at().hash(&mut hasher);
            (side.reason.map(|reason| reason as u8), due, side.received.len()).hash(&mut hasher);
            (side.has_opened, side.has_written, side.has_closed, side.has_aborted).hash(&mut hasher);
            (stack.connections(), stack.requests(), stack.time_waits()).hash(&mut hasher);
            side.id.map(|id| stack.unacked_bytes(id)).hash(&mut hasher);
        }
        let mut looks: Vec<_> = self.under_way.iter().map(|flying| self.look(flying)).collect();
        looks.sort_unstable();
        (looks, self.faults_left).hash(&mut hasher);
        if self.faults_left > 0 {
            let past: BTreeSet<_> = self.past.iter().map(|flying| self.look(flying)).collect();
            past.hash(&mut hasher);
        }
        hasher.finish()
    }

    /// Nothing more goes wrong, and no application does anything: until nothing is left to happen.
    fn rest(&mut self) {
        for _ in 0..MOST_STEPS {
            if !self.under_way.is_empty() {
                self.act(Action::Deliver(0));
            } else if self.next_due().is_some() {
                self.act(Action::Tick);
            } else {
                return;
            }
        }
        panic!("no rest: {:?}", self.pair());
    }

    /// Panics if this state leads nowhere.
    fn ends_well(mut self) {
        self.rest();
        for side in &self.sides {
            let waits_for_application = [Closed, Listen, Established, CloseWait, FinWait2];
            assert!(waits_for_application.contains(&side.at()), "stuck: {:?}", self.pair());
        }
        self.compare();
        for number in 0..2 {
            if self.sides[number].may_send() {
                self.act(Action::Close(number));
            }
        }
        self.rest();
        self.compare();
        let pair = self.pair();
        let was_aborted =
            self.sides.iter().any(|side| side.reason.is_some_and(|reason| reason != Reason::Finished));
        // If the network has lost an abort, a side that only waits never learns of it.
        let is_over = |at: At| matches!(at, Closed | Listen) || was_aborted && at == FinWait2;
        assert!(is_over(pair.0) && is_over(pair.1), "not closed: {pair:?}");
        for side in &mut self.sides {
            if let Some(id) = side.id {
                side.stack.release(id, self.now);
            }
        }
        self.turn();
        self.rest();
        for side in &self.sides {
            let (stack, pages) = (&side.stack, side.stack.pages());
            assert_eq!(
                (stack.connections(), stack.requests(), stack.time_waits()),
                (0, 0, 0),
                "from {pair:?}"
            );
            assert_eq!((stack.store().used(), stack.store().host_pages()), (0, 0), "from {pair:?}");
            assert_eq!((pages.used(0).0, pages.used(1).0), (0, 0), "from {pair:?}");
        }
    }

    /// At rest, everything sent has arrived, unless one side aborted; and no side has waited for an
    /// answer in vain.
    fn compare(&self) {
        for number in 0..2 {
            let reason = self.sides[number].reason;
            assert_ne!(reason, Some(Reason::TimedOut), "never answered: {:?}", self.pair());
            let (from, to) = (&self.sides[number], &self.sides[1 - number]);
            let has_failed = |side: &Side| side.reason.is_some_and(|reason| reason != Reason::Finished);
            assert!(DATA.starts_with(&to.received), "wrong bytes");
            if from.has_written && !has_failed(from) && !has_failed(to) && to.id.is_some() {
                assert_eq!(to.received, DATA, "lost bytes in {:?}", self.pair());
            }
        }
    }
}

/// States and transitions that a walk has met.
#[derive(Default)]
struct Met {
    states: usize,
    pairs: BTreeSet<(At, At)>,
    /// Pairs in which neither state is that of a listener reopened by an old SYN (RFC 9293 section
    /// 3.5, figure 8).
    of_one_connection: BTreeSet<(At, At)>,
    /// Changes of one end's state in one action.
    arcs: BTreeSet<(At, At)>,
}

fn walk(setup: Setup, faults: u32, met: &mut Met) {
    let mut seen = HashSet::new();
    let mut queue = VecDeque::from([Vec::new()]);
    while let Some(way) = queue.pop_front() {
        let world = World::reached(setup, faults, &way);
        let before = world.pair();
        for action in world.actions() {
            let mut world = World::reached(setup, faults, &way);
            world.act(action);
            let after = world.pair();
            for (from, to) in [(before.0, after.0), (before.1, after.1)] {
                if from != to {
                    met.arcs.insert((from, to));
                }
            }
            if !seen.insert(world.print()) {
                continue;
            }
            let pair = (after.0.min(after.1), after.0.max(after.1));
            met.pairs.insert(pair);
            if !world.sides.iter().any(Side::is_reopened) {
                met.of_one_connection.insert(pair);
            }
            let way: Vec<_> = way.iter().copied().chain([action]).collect();
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.ends_well()));
            assert!(outcome.is_ok(), "{setup:?}, after {way:?}: {after:?}");
            queue.push_back(way);
        }
    }
    met.states += seen.len();
}

/// The states that one end's state permits for the other, if neither was reset, aborted or reopened
/// by an old SYN (RFC 9293 section 3.3.2).
fn permits(state: At, peer: At) -> bool {
    match state {
        _ if matches!(peer, Closed | Listen) => true,
        // Of an end without a connection nothing follows: the other may not know yet (section 3.5.1, half-open).
        Closed | Listen => true,
        // Its SYN is unanswered. A peer that has it is in SYN-RECEIVED, and stays there until the
        // peer's own SYN is acknowledged.
        SynSent => matches!(peer, SynSent | SynReceived),
        // The peer has sent a SYN, and may have got ours: it may have closed after that. It cannot have got a FIN of ours, nor an ACK of its own.
        SynReceived => matches!(peer, SynSent | SynReceived | Established | FinWait1),
        // No FIN of the peer has come, and none of ours was sent.
        Established => matches!(peer, SynReceived | Established | FinWait1),
        // Our FIN is not acknowledged here: the peer may have it. Of the peer's none has come: it cannot be in TIME-WAIT or FIN-WAIT-2.
        FinWait1 => matches!(peer, SynReceived | Established | FinWait1 | CloseWait | Closing | LastAck),
        // The peer has our FIN, and we have none of its.
        FinWait2 => matches!(peer, CloseWait | Closing | LastAck),
        // We have the peer's FIN; it has none of ours.
        CloseWait => matches!(peer, FinWait1 | FinWait2),
        // Both have sent a FIN before they got one.
        Closing => matches!(peer, FinWait1 | FinWait2 | Closing | TimeWait),
        // We have the peer's FIN and acknowledged it in ours, which may have arrived.
        LastAck => matches!(peer, FinWait1 | FinWait2 | TimeWait),
        // Both FINs are acknowledged: the peer knows that its own is, or still waits to learn it.
        TimeWait => matches!(peer, Closing | LastAck | TimeWait),
    }
}

/// Pairs of states that were met, the lesser first.
const PAIRS: &[(At, At)] = &[
    (Closed, Closed),
    (Closed, Listen),
    (Closed, SynSent),
    (Closed, SynReceived),
    (Closed, Established),
    (Closed, FinWait1),
    (Closed, FinWait2),
    (Closed, CloseWait),
    (Closed, Closing),
    (Closed, LastAck),
    (Closed, TimeWait),
    (Listen, SynSent),
    (SynSent, SynSent),
    (SynSent, SynReceived),
    (SynReceived, SynReceived),
    (SynReceived, Established),
    (SynReceived, FinWait1),
    (SynReceived, FinWait2),
    (SynReceived, CloseWait),
    (SynReceived, Closing),
    (SynReceived, LastAck),
    (SynReceived, TimeWait),
    (Established, Established),
    (Established, FinWait1),
    (FinWait1, FinWait1),
    (FinWait1, CloseWait),
    (FinWait1, Closing),
    (FinWait1, LastAck),
    (FinWait2, CloseWait),
    (FinWait2, Closing),
    (FinWait2, LastAck),
    (Closing, Closing),
    (Closing, TimeWait),
    (LastAck, TimeWait),
    (TimeWait, TimeWait),
];

/// Changes of state in one action. Those of RFC 9293 figure 5; where one segment or call does two steps of it, both.
const ARCS: &[(At, At)] = &[
    (Closed, SynSent),
    (Closed, SynReceived),
    (Listen, SynReceived),
    (SynSent, Closed),
    (SynSent, SynReceived),
    (SynSent, Established),
    (SynReceived, Closed),
    (SynReceived, Listen),
    (SynReceived, Established),
    (SynReceived, FinWait1),
    (SynReceived, CloseWait),
    (SynReceived, Closing),
    (Established, Closed),
    (Established, FinWait1),
    (Established, CloseWait),
    (FinWait1, Closed),
    (FinWait1, FinWait2),
    (FinWait1, Closing),
    (FinWait1, TimeWait),
    (FinWait2, Closed),
    (FinWait2, TimeWait),
    (CloseWait, Closed),
    (CloseWait, LastAck),
    (Closing, Closed),
    (Closing, TimeWait),
    (LastAck, Closed),
    (TimeWait, Closed),
];

/// Panics with the entries that were added and removed.
fn assert_same(what: &str, met: &BTreeSet<(At, At)>, known: &[(At, At)]) {
    let known: BTreeSet<_> = known.iter().copied().collect();
    let (new, gone): (Vec<_>, Vec<_>) = (met.difference(&known).collect(), known.difference(met).collect());
    assert!(new.is_empty() && gone.is_empty(), "{what}: new are {new:?}, {gone:?} were not met");
}

#[test]
fn connection_states_of_two_ends_match_known_tables() {
    let faults = sim::shrink::number("MILLRACE_TCP_FAULTS").unwrap_or(1) as u32;
    let mut met = Met::default();
    for setup in [Setup::Passive, Setup::Both] {
        walk(setup, faults, &mut met);
        eprintln!("{setup:?}: {} states, {} pairs, {} arcs", met.states, met.pairs.len(), met.arcs.len());
    }
    for &(one, other) in &met.of_one_connection {
        assert!(permits(one, other) && permits(other, one), "{one:?} and {other:?}: RFC 9293 forbids it");
    }
    assert_same("pairs", &met.pairs, PAIRS);
    assert_same("changes", &met.arcs, ARCS);
}
