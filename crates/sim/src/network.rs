//! The network between server and viewers: datagrams that may be lost, connections that may fill.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

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
    /// Its ends at the server that are open: that of the side that accepted it, and an engine's.
    pub server_ends: u32,
    /// The server writes no more.
    pub is_shut: bool,
    /// The side that accepted it has closed it: an engine cannot write to it either.
    pub is_dropped: bool,
    /// The server's tasks that wait until they can read it.
    pub readers: Vec<Waker>,
    /// Those that wait until they can write to it.
    pub writers: Vec<Waker>,
}

impl SimConnection {
    /// Whether the server has closed it, and the viewer has read everything before.
    pub fn is_over(&self) -> bool {
        (self.server_ends == 0 || self.is_shut) && self.down.is_empty()
    }

    fn forget_tasks(&mut self) {
        self.readers.clear();
        self.writers.clear();
    }

    /// Whether nothing that is written to it arrives.
    pub fn is_broken(&self) -> bool {
        self.viewer_closed || self.is_dropped
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
    /// Reads and writes of the server's tasks up to now.
    pub activity: u64,
}

/// Where media goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MediaAddress {
    /// A port of a viewer.
    Udp(IpAddr, u16),
    /// A connection of bytes.
    Bytes(u32),
    /// A channel of a connection.
    Channel(u32, u8),
}

/// The network, shared by the ends.
#[derive(Clone)]
pub struct SharedNetwork(Arc<Mutex<SimNetwork>>);

impl std::fmt::Debug for SharedNetwork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedNetwork").finish_non_exhaustive()
    }
}

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
            activity: 0,
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
        if let Some(conn) = self.conns.get_mut(&conn).filter(|conn| !conn.is_broken()) {
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

    /// Whether bytes or the end of the stream have arrived at the server.
    pub fn is_readable(&self, conn: u32) -> bool {
        let now = self.clock.now();
        self.conns.get(&conn).is_some_and(|conn| match conn.up.front() {
            Some((at, _)) => *at <= now,
            None => conn.viewer_closed,
        })
    }

    /// Reads bytes that have arrived at the server, and returns how many; `None`: there are none yet.
    pub fn read_up(&mut self, conn: u32, to: &mut [u8]) -> Option<usize> {
        if !self.is_readable(conn) {
            return None;
        }
        self.activity += 1;
        let up = &mut self.conns.get_mut(&conn)?.up;
        let Some((_, bytes)) = up.front_mut() else { return Some(0) };
        let len = bytes.len().min(to.len());
        to[..len].copy_from_slice(&bytes[..len]);
        bytes.drain(..len);
        if bytes.is_empty() {
            up.pop_front();
        }
        Some(len)
    }

    /// Writes bytes of the server's tasks as far as there is room, and returns how many; `None`: the
    /// viewer has gone.
    pub fn write_some(&mut self, number: u32, bytes: &[u8]) -> Option<usize> {
        let conn = self.conns.get(&number).filter(|conn| !conn.is_broken())?;
        let len = bytes.len().min(self.capacity_bytes.saturating_sub(conn.down_bytes));
        if len > 0 {
            self.activity += 1;
            self.write_down(number, bytes[..len].to_vec());
        }
        Some(len)
    }

    /// Wakes the server's tasks that wait for a connection that they can read or write now.
    pub fn wake_tasks(&mut self) {
        let now = self.clock.now();
        for conn in self.conns.values_mut() {
            let is_readable = match conn.up.front() {
                Some((at, _)) => *at <= now,
                None => conn.viewer_closed,
            };
            if is_readable {
                conn.readers.drain(..).for_each(Waker::wake);
            }
            if conn.is_broken() || conn.down_bytes < self.capacity_bytes {
                conn.writers.drain(..).for_each(Waker::wake);
            }
        }
    }

    /// One more end of a connection at the server is open.
    pub fn open_server_end(&mut self, conn: u32) {
        self.conns.entry(conn).or_default().server_ends += 1;
    }

    /// The server writes no more to a connection.
    pub fn shut_down(&mut self, conn: u32) {
        if let Some(conn) = self.conns.get_mut(&conn) {
            conn.is_shut = true;
        }
    }

    /// One end of a connection at the server is closed.
    pub fn close_server_end(&mut self, conn: u32) {
        if let Some(conn) = self.conns.get_mut(&conn) {
            conn.server_ends = conn.server_ends.saturating_sub(1);
        }
    }

    /// The side that accepted a connection closes it: an engine's writes fail from now on.
    pub fn drop_connection(&mut self, number: u32) {
        self.close_server_end(number);
        if let Some(conn) = self.conns.get_mut(&number) {
            conn.is_dropped = true;
            conn.forget_tasks();
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
        let now = self.clock.now();
        let conns = self.conns.iter().flat_map(|(&id, conn)| {
            let down = conn.down.front().filter(|_| reads(id));
            // The server may leave the bytes that have arrived unread.
            let up = conn.up.front().filter(|(at, _)| *at > now);
            [down.map(|(at, _)| *at), up.map(|(at, _)| *at)]
        });
        conns.flatten().chain(self.datagrams.front().map(|datagram| datagram.at)).min()
    }

    /// The server is dead: its ends of all connections are closed, and nothing of it arrives later.
    pub fn kill_server(&mut self) {
        self.sockets.clear();
        for conn in self.conns.values_mut() {
            conn.server_ends = 0;
            conn.is_dropped = true;
            conn.up.clear();
            conn.forget_tasks();
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
