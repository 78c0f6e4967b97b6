//! The network between server and viewers: datagrams that may be lost, connections that may fill.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_core::random::SplitMix;
use millrace_core::seam::Clock;
use millrace_core::time::Instant;

/// From one end to the other.
const DELAY_NS: u64 = 3_000_000;

/// The time of the simulation.
#[derive(Clone, Default)]
pub struct SimClock(Arc<std::sync::atomic::AtomicU64>);

impl SimClock {
    /// It is this time now.
    pub fn set(&self, now: Instant) {
        self.0.store(now.0, std::sync::atomic::Ordering::Relaxed);
    }
}

impl Clock for SimClock {
    fn now(&self) -> Instant {
        Instant(self.0.load(std::sync::atomic::Ordering::Relaxed))
    }
}

/// A datagram on its way to a viewer.
pub struct Datagram {
    /// When it arrives.
    pub at: Instant,
    /// Where.
    pub to: SocketAddr,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// It does not arrive: only the account of the viewer's media sees it.
    pub is_lost: bool,
}

/// One connection: bytes on their way in both directions.
#[derive(Default)]
pub struct SimConnection {
    /// To the viewer.
    pub down: VecDeque<(Instant, Vec<u8>)>,
    down_bytes: usize,
    /// To the server.
    pub up: VecDeque<(Instant, Vec<u8>)>,
    /// The viewer has closed it.
    pub viewer_closed: bool,
    /// Its ends at the server that are open: the control side's and an engine's.
    pub server_ends: u32,
    /// Media packets that were given to it.
    pub packets: u64,
}

impl SimConnection {
    /// Whether the server has closed it, and the viewer has read everything before.
    pub fn is_over(&self) -> bool {
        self.server_ends == 0 && self.down.is_empty()
    }
}

/// Media packets and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SentAmount {
    /// Packets.
    pub packets: u64,
    /// Bytes, with RTP headers.
    pub bytes: u64,
}

/// Everything that is under way.
pub struct SimNetwork {
    clock: SimClock,
    random: SplitMix,
    /// Datagrams in the order in which they arrive.
    pub datagrams: VecDeque<Datagram>,
    /// Connections by number.
    pub conns: BTreeMap<u32, SimConnection>,
    /// Descriptors that stand for connections on their way to an engine.
    pub sockets: BTreeMap<i32, u32>,
    /// Datagrams of a million that are lost to an address.
    pub loss_ppm: BTreeMap<IpAddr, u32>,
    /// Datagrams of viewers to the RTCP port.
    pub reports: Vec<(SocketAddr, Vec<u8>)>,
    /// Media taken for each viewer's port, or for each connection and channel.
    pub sent: BTreeMap<MediaAddress, SentAmount>,
    /// How much a connection holds before the server sees that it is full.
    pub capacity_bytes: usize,
}

/// Where media goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MediaAddress {
    /// A port of a viewer.
    Udp(IpAddr, u16),
    /// A channel of a connection.
    Channel(u32, u8),
}

/// The network, shared by the ends.
#[derive(Clone)]
pub struct SharedNetwork(Arc<Mutex<SimNetwork>>);

impl SharedNetwork {
    /// An empty one.
    pub fn new(clock: SimClock, seed: u64, capacity_bytes: usize) -> Self {
        let network = SimNetwork {
            clock,
            random: SplitMix::numbered(seed, 1),
            datagrams: VecDeque::new(),
            conns: BTreeMap::new(),
            sockets: BTreeMap::new(),
            loss_ppm: BTreeMap::new(),
            reports: Vec::new(),
            sent: BTreeMap::new(),
            capacity_bytes,
        };
        Self(Arc::new(Mutex::new(network)))
    }

    /// The network, for as long as it takes to look or to send.
    pub fn lock(&self) -> MutexGuard<'_, SimNetwork> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SimNetwork {
    fn arrival(&self) -> Instant {
        self.clock.now().plus_ns(DELAY_NS)
    }

    /// Sends a datagram to a viewer.
    pub fn send_datagram(&mut self, to: SocketAddr, bytes: Vec<u8>) {
        let loss = self.loss_ppm.get(&to.ip()).copied().unwrap_or(0);
        let is_lost = self.random.hits(loss);
        let at = self.arrival();
        self.datagrams.push_back(Datagram { at, to, bytes, is_lost });
    }

    /// Whether a connection takes more from the server.
    pub fn has_room(&self, conn: u32) -> bool {
        self.conns.get(&conn).is_some_and(|conn| conn.down_bytes < self.capacity_bytes)
    }

    /// Whether a connection that was full should be written again.
    pub fn is_writable(&self, conn: u32) -> bool {
        self.conns.get(&conn).is_some_and(|conn| conn.down_bytes < self.capacity_bytes / 2)
    }

    /// Bytes that a viewer has not read.
    pub fn unread_bytes(&self, conn: u32) -> usize {
        self.conns.get(&conn).map_or(0, |conn| conn.down_bytes)
    }

    /// Sends bytes of a connection to its viewer.
    pub fn write_down(&mut self, conn: u32, bytes: Vec<u8>) {
        let at = self.arrival();
        if let Some(conn) = self.conns.get_mut(&conn).filter(|conn| !conn.viewer_closed) {
            conn.down_bytes += bytes.len();
            conn.down.push_back((at, bytes));
        }
    }

    /// Sends bytes of a connection to the server.
    pub fn write_up(&mut self, conn: u32, bytes: Vec<u8>) {
        let at = self.arrival();
        if let Some(conn) = self.conns.get_mut(&conn) {
            conn.up.push_back((at, bytes));
        }
    }

    /// The bytes that have arrived at the viewer and that it reads now.
    pub fn read_down(&mut self, conn: u32, into: &mut Vec<u8>) {
        let now = self.clock.now();
        let Some(conn) = self.conns.get_mut(&conn) else { return };
        while let Some(bytes) = take_due(&mut conn.down, now) {
            conn.down_bytes -= bytes.len();
            into.extend_from_slice(&bytes);
        }
    }

    /// The bytes that have arrived at the server.
    pub fn read_up(&mut self, conn: u32) -> Option<Vec<u8>> {
        let now = self.clock.now();
        let conn = self.conns.get_mut(&conn)?;
        take_due(&mut conn.up, now)
    }

    /// One end of a connection at the server is closed.
    pub fn close_server_end(&mut self, conn: u32) {
        if let Some(conn) = self.conns.get_mut(&conn) {
            conn.server_ends = conn.server_ends.saturating_sub(1);
        }
    }

    /// The viewer closes its end: bytes on their way to it are lost.
    pub fn close_viewer_end(&mut self, conn: u32) {
        if let Some(conn) = self.conns.get_mut(&conn) {
            conn.viewer_closed = true;
            conn.down.clear();
            conn.down_bytes = 0;
        }
    }

    /// The next arrival, except at viewers that do not read: `reads` names those that do.
    pub fn next_arrival(&self, reads: impl Fn(u32) -> bool) -> Option<Instant> {
        let conns = self.conns.iter().flat_map(|(&id, conn)| {
            let down = conn.down.front().filter(|_| reads(id));
            [down.map(|(at, _)| *at), conn.up.front().map(|(at, _)| *at)]
        });
        conns.flatten().chain(self.datagrams.front().map(|datagram| datagram.at)).min()
    }

    /// The server is dead: its ends of all connections are closed, and nothing of it arrives later.
    pub fn kill_server(&mut self) {
        self.sockets.clear();
        for conn in self.conns.values_mut() {
            conn.server_ends = 0;
            conn.up.clear();
        }
    }
}

/// The first of these, if it has arrived.
fn take_due(queue: &mut VecDeque<(Instant, Vec<u8>)>, now: Instant) -> Option<Vec<u8>> {
    queue.front().filter(|(at, _)| *at <= now)?;
    queue.pop_front().map(|(_, bytes)| bytes)
}

/// The path MTU towards any viewer.
pub fn path_mtu(_: SocketAddr) -> Option<u32> {
    Some(1500)
}

/// The server's address, whatever the route.
pub fn route_source(_: SocketAddr) -> Option<IpAddr> {
    Some(IpAddr::from([192, 0, 2, 1]))
}
