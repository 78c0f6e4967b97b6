//! Many connections, listeners and the turn: three stages, one task for all (NTT 1996 section 4.2).
//!
//! ```text
//!   input(segment)*    takes segments in; a pure ACK is only noted
//!   protocol(now)      timers
//!   output(now, out)   segments go out; then the noted ACKs are processed
//! ```
//!
//! | file | holds |
//! | --- | --- |
//! | `input` | the first stage |
//! | `notes` | ACKs noted on arrival, and merged |
//! | `output` | the third stage, and a device's reports on its frames |
//! | `requests` | SYN-RECEIVED of listeners: small records |
//! | `listen` | listeners, their backlogs, SYN cookies |
//! | `calls` | the requests of the application |
//! | `icmp` | error messages of ICMP |
//! | `size` | how much memory all of it takes |
//! | `settle` | what follows from a changed state: events, timers, TIME-WAIT |

mod calls;
mod icmp;
mod input;
mod listen;
mod notes;
mod output;
mod requests;
mod settle;
mod size;

pub use self::calls::CallError;
pub use self::icmp::{IcmpError, IcmpKind, Undelivered};

use std::collections::VecDeque;
use std::net::SocketAddr;

use millrace_core::pool::ExtentContent;
use millrace_core::random::SplitMix;
use millrace_core::time::Instant;
use millrace_core::wheel::Wheel;

use crate::conn::{Config, Connection, Env, Happened, Reason, TcpCounters};
use crate::cookies::Cookies;
use crate::keyed::HashKey;
use crate::limits::MAX_LISTENERS;
use crate::ports::{PortSet, Ports};
use crate::recover::records::Records;
use crate::recv::{ClusterSize, Pages};
use crate::send::Store;
use crate::shares::Shares;
use crate::table::FlowTable;
use crate::time_wait::TimeWaits;
use crate::wire::{FlowKey, Head};

pub use self::output::{DeviceFrame, Ecn, FrameDisposal, OutgoingSegment};
pub use self::size::IDLE_CONNECTION_BYTES;

use self::listen::Listener;
use self::notes::Notes;
use self::requests::Requests;

/// A connection of this stack. Its number is used again, with another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionId {
    pub(crate) number: u32,
    pub(crate) generation: u32,
}

impl ConnectionId {
    /// A number below the stack's capacity, for tables beside the stack's.
    pub fn number(self) -> u32 {
        self.number
    }
}

/// A listener of this stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListenerId(pub(crate) u8);

/// How large a stack is. Nothing grows after it was made.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What connections are made like.
    pub config: Config,
    /// Connections at once.
    pub connections: u32,
    /// Requests for connections (SYN-RECEIVED) at once.
    pub requests: u32,
    /// Listeners at once, at most 255: each SYN looks at all of them.
    pub listeners: u8,
    /// Connections in TIME-WAIT at once; the oldest makes room.
    pub time_waits: u32,
    /// Segments in flight at once, of all connections.
    pub records: u32,
    /// Entries of all send queues.
    pub descriptors: u32,
    /// Pages for what applications write themselves.
    pub host_pages: u32,
    /// Clusters of pages for received data.
    pub clusters: Vec<ClusterSize>,
    /// Process noted ACKs after the output stage; off: each as it comes.
    pub defers_acks: bool,
    /// Answer SYNs with cookies when the backlog is full; off: drop them.
    pub cookies: bool,
    /// Ports for connections opened from here.
    pub ports: PortSet,
    /// Secret random numbers: sequence numbers, ports, cookies and hashes depend on them.
    pub secret: [u64; 2],
}

/// An event reported to an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionEvent {
    /// Of which connection.
    pub connection: ConnectionId,
    /// What.
    pub happened: Happened,
    /// Why it is closed, if it is.
    pub reason: Reason,
    /// The listener that it came from.
    pub listener: Option<ListenerId>,
}

/// An extent that a connection needs again ([`Stack::supply`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedExtent {
    /// Which connection.
    pub connection: ConnectionId,
    /// Content of the extent.
    pub content: ExtentContent,
}

//= RFC 9293 section 3.9.2
//= type=exception
//= reason=options of IP stay outside with the IP header
//# When received options are passed up to TCP from the IP layer, a TCP
//# implementation MUST ignore options that it does not understand (MUST-
//# 50).
//= RFC 9293 section 3.9.2.1
//= type=exception
//= reason=source routes are options of IP, which stay outside; routers drop them (RFC 7126)
//# An application MUST be able to specify a source route when it
//# actively opens a TCP connection (MUST-51), and this MUST take
//# precedence over a source route received in a datagram (MUST-52).
//= RFC 9293 section 3.9.2.1
//= type=exception
//= reason=as above
//# TCP
//# implementations MUST save the return route and use it for all
//# segments sent on this connection (MUST-53).
/// A segment that came in, from the IP header on down.
#[derive(Clone, Copy, Debug)]
pub struct Arrived<'a> {
    /// Who sent it.
    pub source: SocketAddr,
    /// To which address of this host.
    pub destination: SocketAddr,
    /// The ECN field of the IP header signals congestion experienced.
    pub is_marked: bool,
    /// Its checksum is not verified: the caller sets this if it has the segment from its sender's
    /// memory, or from a card that has verified it.
    pub is_checked: bool,
    /// The segment, header first.
    pub bytes: &'a [u8],
    /// When it came; not later than the `now` of the call.
    pub at: Instant,
}

/// A segment that belongs to no connection.
#[derive(Clone, Copy, Debug)]
struct Reply {
    flow: FlowKey,
    head: Head,
}

/// What connections share.
struct StackPools {
    records: Records,
    store: Store,
    pages: Pages,
    config: Config,
    counters: TcpCounters,
}

impl StackPools {
    fn env(&mut self, now: Instant) -> Env<'_> {
        let Self { records, store, pages, config, counters } = self;
        Env { now, records, store, pages, config, counters }
    }
}

/// A slot of the table of connections.
struct StackSlot {
    connection: Option<Connection>,
    generation: u32,
    /// Index of the note of its last ACK; without a connection: the next free slot.
    note: u32,
}

/// Keys of the keyed hashes, each for one use.
struct Keys {
    isn: HashKey,
    stamps: HashKey,
}

/// All connections of one loop.
pub struct Stack {
    shared: StackPools,
    slots: Box<[StackSlot]>,
    /// First of the slots without a connection, and how many they are.
    free: u32,
    free_count: u32,
    table: FlowTable,
    /// A timer for each connection.
    wheel: Wheel,
    /// Connections that may have something to send, each at most once.
    ready: VecDeque<u32>,
    /// Connections with something to tell, each at most once.
    told: VecDeque<u32>,
    wanted: VecDeque<WantedExtent>,
    replies: VecDeque<Reply>,
    notes: Notes,
    requests: Requests,
    time_waits: TimeWaits,
    listeners: Box<[Option<Listener>]>,
    /// Of its connections.
    shares: Shares,
    cookies: Option<Cookies>,
    ports: Ports,
    keys: Keys,
    defers_acks: bool,
}

impl Stack {
    /// A stack without connections or listeners. All its memory is taken here.
    pub fn new(settings: &Settings) -> Self {
        let mut random = SplitMix(settings.secret[0] ^ settings.secret[1].rotate_left(32));
        let mut key =
            || HashKey::new([random.next() ^ settings.secret[0], random.next() ^ settings.secret[1]]);
        // Two bits of a free slot's link say more than the next one's number.
        let connections = settings.connections.min(1 << 30);
        let slot = |number| StackSlot { connection: None, generation: 0, note: number + 1 };
        Self {
            table: FlowTable::new(key(), connections),
            requests: Requests::new(key(), settings.requests),
            time_waits: TimeWaits::new(key(), settings.time_waits),
            cookies: settings.cookies.then(|| Cookies::new(key())),
            ports: Ports::new(key(), settings.secret[0], settings.ports.clone()),
            keys: Keys { isn: key(), stamps: key() },
            shared: StackPools {
                records: Records::new(settings.records),
                store: Store::new(settings.descriptors, settings.host_pages),
                pages: Pages::new(&settings.clusters),
                config: settings.config,
                counters: TcpCounters::default(),
            },
            slots: (0..connections).map(slot).collect(),
            free: 0,
            free_count: connections,
            wheel: Wheel::new(connections as usize),
            ready: VecDeque::with_capacity(connections as usize),
            told: VecDeque::with_capacity(connections as usize),
            wanted: VecDeque::with_capacity(settings.descriptors as usize),
            replies: VecDeque::with_capacity(crate::limits::MAX_REPLIES),
            notes: Notes::new(),
            shares: Shares::default(),
            listeners: vec![None; usize::from(settings.listeners).min(MAX_LISTENERS)].into(),
            defers_acks: settings.defers_acks,
        }
    }

    /// Returns the counters of events until now.
    pub fn counters(&self) -> &TcpCounters {
        &self.shared.counters
    }

    /// The send queues' memory.
    pub fn store(&self) -> &Store {
        &self.shared.store
    }

    /// The receive buffers' memory.
    pub fn pages(&self) -> &Pages {
        &self.shared.pages
    }

    /// Divides connections, descriptors of areas and pages for received data among groups
    /// ([`Stack::set_group`]; area n is of group n + 1): half of them equally, and of the other
    /// half each takes as many as it needs. Areas do not get the last `descriptors`. Must be called
    /// before there is any connection.
    pub fn share_out(&mut self, groups: u8, descriptors: u32) {
        self.shares = Shares::new(self.slots.len() as u32, groups);
        self.shared.store.share_out(groups, descriptors);
        self.shared.pages.share_out(groups);
    }

    /// Whether a group may have another connection.
    pub fn has_share_for(&self, group: u8) -> bool {
        self.shares.has_room(group)
    }

    /// Connections of a group, those that were released and are not over yet among them.
    pub fn connections_of(&self, group: u8) -> u32 {
        self.shares.used(group)
    }

    /// Connections at the moment, those that are closed and not released among them.
    pub fn connections(&self) -> u32 {
        self.slots.len() as u32 - self.free_count
    }

    /// Connections that there can be.
    pub fn capacity(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Requests for connections that wait for the last segment of their handshake.
    pub fn requests(&self) -> u32 {
        self.requests.len()
    }

    /// Connections in TIME-WAIT.
    pub fn time_waits(&self) -> u32 {
        self.time_waits.len()
    }

    /// When the next turn has something to do even if nothing comes in; `Instant(0)`: at once.
    pub fn next_due(&self, now: Instant) -> Option<Instant> {
        if !self.ready.is_empty() || !self.replies.is_empty() || !self.notes.is_empty() {
            return Some(now);
        }
        let timers = [self.wheel.next_due(), self.requests.next_due(), self.time_waits.due(now)];
        timers.into_iter().flatten().min()
    }

    /// The second stage: everything that the time has brought.
    pub fn protocol(&mut self, now: Instant) {
        self.process_overdue_notes(now);
        while let Some(number) = self.wheel.pop_due(now) {
            self.with(number, now, Connection::fired);
            self.make_ready(number);
            self.settle(number, now, None);
        }
        self.fire_requests(now);
        self.time_waits.expire(now, u32::MAX);
    }

    /// Calls `call` with connection `number`, if there is one.
    fn with<R>(
        &mut self,
        number: u32,
        now: Instant,
        call: impl FnOnce(&mut Connection, &mut Env<'_>) -> R,
    ) -> Option<R> {
        let connection = self.slots.get_mut(number as usize)?.connection.as_mut()?;
        Some(call(connection, &mut self.shared.env(now)))
    }

    fn connection(&self, id: ConnectionId) -> Option<&Connection> {
        let slot = self.slots.get(id.number as usize)?;
        slot.connection.as_ref().filter(|_| slot.generation == id.generation)
    }

    fn id(&self, number: u32) -> ConnectionId {
        let generation = self.slots.get(number as usize).map_or(0, |slot| slot.generation);
        ConnectionId { number, generation }
    }
}
