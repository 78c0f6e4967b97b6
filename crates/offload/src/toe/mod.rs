//! A TCP offload engine (TOAD 2004): one thread runs all of TCP in a polling loop; other threads have sockets and meet it only in queue pairs.
//!
//! ```text
//!   host thread              queue pair (one each)                 engine thread
//!   TcpStream  ─ requests ─► ring of 64-byte records ────────────► stack ─► device
//!   TcpListener ◄─ events ── ring of 64-byte records, eventfd ──── (crates/tcp)
//!              ─ bytes ────► area to send from; count of acknowledged bytes back
//!              ◄─ bytes ──── anonymous receive buffers, filled before they are handed over
//! ```
//!
//! A [`Host`] is a thread's queue pair; its sockets stay on that thread, so nothing on the way is locked. The two sides share atomic words and
//! nothing else (`millrace_core::shared`): no pointer crosses, and the engine believes no record (`docs/design/0035-offload-engine.md`).
//!
//! ```no_run
//! use std::io::{Read, Write};
//! use std::net::SocketAddr;
//!
//! use millrace_offload::toe::{Engine, EngineSettings, TcpListener, TunDevice};
//!
//! # fn main() -> std::io::Result<()> {
//! # let tun = millrace_netio::link::GsoTun::open("toe0").map_err(std::io::Error::other)?;
//! // A TUN device that is up; the kernel has 10.0.0.2 there, the engine is 10.0.0.1.
//! let settings = EngineSettings::new(&[("10.0.0.1".parse().unwrap(), 24)]);
//! let engine = Engine::start(&settings, Box::new(TunDevice::new(tun)))?;
//! // On each thread that wants sockets:
//! let host = engine.attach()?;
//! let listener = TcpListener::bind(&host, SocketAddr::from(([10, 0, 0, 1], 7)))?;
//! let (mut stream, _peer) = listener.accept()?;
//! let mut buffer = [0; 8192];
//! loop {
//!     match stream.read(&mut buffer)? {
//!         0 => break,
//!         bytes => stream.write_all(&buffer[..bytes])?,
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! | file | holds |
//! | --- | --- |
//! | `record` | what crosses, and how it is written |
//! | `pair` | a queue pair's memory and its two ends |
//! | `engine/` | the engine without its thread |
//! | `thread` | its thread; [`Engine`] |
//! | `egress` | [`EngineTx`]: media from the loop that turns an engine |
//! | `host/` | [`Host`], [`TcpStream`], [`TcpListener`]; the same for tokio (feature `tokio`) |
//! | `remote/` | the engine as a process of its own: [`Engine::serve`], [`connect`] |
//! | `status` | counters, and the displayed state of connections |
//! | `device` | packets from and to a device; a TUN device |
//! | `capture` | the packets that a device sends and receives, in a file |
//! | `xdp` | an Ethernet interface by AF_XDP |
//! | `steered/` | the same where the addresses are the kernel's, and the engine has TCP ports of them |

mod apart;
mod behind;
mod capture;
mod device;
mod egress;
mod engine;
mod host;
mod pair;
mod record;
mod remote;
mod status;
mod steered;
mod thread;
mod xdp;

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;

use millrace_tcp::conn::Config;
use millrace_tcp::ip;
use millrace_tcp::recv::ClusterSize;
pub use millrace_tcp::send::{ExtentRange, SlotPart};
use millrace_tcp::stack::Settings;

pub use self::capture::{Capture, Captured};
pub use self::device::{Device, Inbound, TunDevice};
pub use self::egress::{EngineTx, Seat};
#[cfg(feature = "tokio")]
pub use self::host::tokio;
pub use self::host::{Host, Incoming, Readiness, Received, Sockets, TcpListener, TcpStream};
pub use self::pair::PairSettings;
pub use self::record::Fault;
pub use self::remote::{Access, GateCounters, connect, connections, default_socket, status};
use crate::limits::HAND_OVER_NS;
pub use millrace_tcp::conn::{ConnectionState, TcpCounters};
pub use millrace_tcp::ip::IpCounters;
pub use millrace_tcp::ports::PortSet;

pub use self::status::{ConnectionFigures, ConnectionStatus, CounterSheets, EngineStatus, HostStatus, Owner};
pub use self::steered::{XdpPorts, ports_given_out};
pub use self::thread::{Engine, Stopped, Turning};
pub use self::xdp::XdpDevice;

/// A connection of an engine, named for the thread that turns it ([`TcpStream::engine_socket`]). The name of one that is over names nothing, in no
/// other engine of the program either.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EngineSocket {
    /// Which of the program's engines.
    engine: u32,
    pair: u16,
    /// Sockets are used again: which of the connections that it has been.
    generation: u16,
    socket: u32,
}

/// How an engine is made. Nothing grows after the start.
#[derive(Clone, Debug)]
pub struct EngineSettings {
    /// The stack.
    pub stack: Settings,
    /// Its link and its addresses.
    pub interface: ip::Settings,
    /// The addresses are the kernel's: of them the engine has the TCP ports `stack.ports`, and nothing else ([`on_ports`](Self::on_ports)).
    pub has_ports_only: bool,
    /// Listeners of the kernel at these ports may stay: they hear nothing while the engine runs,
    /// and clients that connect afterwards reach them.
    pub is_beside_listeners: bool,
    /// Queue pairs for threads of this program: host threads at once.
    pub pairs: usize,
    /// Queue pairs for threads of other programs ([`Engine::serve`]).
    pub remote_pairs: usize,
    /// The settings of each pair.
    pub pair: PairSettings,
    /// How long received bytes may wait for their buffer to be filled, in nanoseconds; 0: not at all.
    pub hand_over_ns: u64,
    /// How long the engine looks for work before it sleeps, in nanoseconds; `u64::MAX`: it never sleeps, and has a core for itself.
    pub poll_ns: u64,
    /// Whether peers of accepted connections are asked, after `stack.config.keep_alive_ns` of silence, whether they are still there.
    pub keeps_alive: bool,
    /// Core to pin its thread to.
    pub cpu: Option<usize>,
    /// File that everything which the device sends and receives is written to.
    pub capture: Option<Capture>,
}

impl EngineSettings {
    /// Room for a thousand connections, behind a TUN device, with these addresses and the lengths of their subnets' prefixes; [`on_ethernet`](Self::on_ethernet) is for the other one.
    pub fn new(addresses: &[(IpAddr, u8)]) -> Self {
        // The seeds of the standard library's hash tables come from the system's random numbers.
        let random = || RandomState::new().hash_one(0);
        let mut interface = ip::Settings::new(ip::LinkLayer::Ip, [random(), random()]);
        for &(address, prefix) in addresses {
            interface = interface.with(address, prefix);
        }
        let stack = Settings {
            config: Config { receive_bytes: 256 << 10, ..Config::default() },
            connections: 4096,
            requests: 1024,
            listeners: 128,
            time_waits: 4096,
            records: 65_536,
            descriptors: 16_384,
            host_pages: 16_384,
            clusters: vec![
                ClusterSize { bytes: 32 << 20, page_bytes: 2048 },
                ClusterSize { bytes: 16 << 20, page_bytes: 2048 },
            ],
            defers_acks: true,
            cookies: true,
            ports: (49_152..=65_535).into(),
            secret: [random(), random()],
        };
        Self {
            stack,
            interface,
            has_ports_only: false,
            is_beside_listeners: false,
            pairs: 8,
            remote_pairs: 0,
            pair: PairSettings::default(),
            hand_over_ns: HAND_OVER_NS,
            poll_ns: 0,
            keeps_alive: false,
            cpu: None,
            capture: None,
        }
    }
}

millrace_core::counters! {
    /// Counts of an engine's work.
    pub struct ToeCounters {
        /// Packets for the engine that came in.
        sum packets_in,
        /// Packets for another host, or without TCP.
        sum packets_passed,
        /// Packets sent.
        sum packets_out,
        /// Records that hosts have put into their rings.
        sum requests,
        /// Those among them that could not be: nothing was done.
        sum rejected,
        /// Events put into the rings of hosts.
        sum events,
        /// Events that found no room: the host does not read its ring.
        sum events_lost,
        /// Bytes of hosts that the stack has taken.
        sum sent_bytes,
        /// Times that the stack had no descriptor or page for bytes of a host.
        sum short,
        /// Writers that were notified of room.
        sum wakes,
        /// Receive buffers handed over.
        sum buffers,
        /// Times that a connection had to wait for a receive buffer of its host.
        sum starved,
        /// Times that the engine slept.
        sum sleeps,
        /// Connections of the stack, those that its hosts have closed and that still send among them.
        gauge connections,
        /// Requests for connections that wait for the last segment of their handshake.
        gauge handshakes,
        /// Connections in TIME-WAIT.
        gauge time_waits,
        /// Entries of its send queues.
        gauge descriptors,
        /// Pages with bytes of closed sockets, and of loops, that are not acknowledged.
        gauge host_pages,
        /// Pages with received bytes that no host has yet.
        gauge receive_pages,
        /// Queue pairs of other processes that were cleared because their host is gone.
        sum pairs_cleared,
        /// Connections and listeners that such hosts had left open: they were reset and closed.
        sum left_open,
    }
}
