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
//! # let tun = millrace_netio::tun::GsoTun::open("toe0").map_err(std::io::Error::other)?;
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
//! | `settings`, `counters` | how an engine is made, and counts of its work |
//! | `record` | what crosses, and how it is written |
//! | `pair` | a queue pair's memory and its two ends |
//! | `engine/` | the engine without its thread |
//! | `thread` | its thread; [`Engine`] |
//! | `egress` | [`EngineTx`]: media from the loop that turns an engine |
//! | `engine_access`, `queue_pair_access` | how `egress` reaches the engine: direct calls, or a queue pair |
//! | `host/` | [`Host`], [`TcpStream`], [`TcpListener`]; the same for tokio (feature `tokio`) |
//! | `remote/` | the engine as a process of its own: [`Engine::serve`], [`connect`] |
//! | `status` | counters, and the displayed state of connections |
//! | `device` | packets from and to a device; a TUN device |
//! | `capture` | the packets that a device sends and receives, in a file |
//! | `xdp` | an Ethernet interface by AF_XDP |
//! | `steered/` | the same where the addresses are the kernel's, and the engine has TCP ports of them |

mod capture;
mod counters;
mod device;
mod egress;
mod engine;
mod engine_access;
mod host;
mod pair;
mod queue_pair_access;
mod record;
mod remote;
mod settings;
mod status;
mod steered;
mod thread;
mod xdp;

pub use millrace_tcp::send::{ExtentRange, SlotPart};

pub use self::capture::{Capture, Captured};
pub use self::counters::{GateCounters, ToeCounters};
pub use self::device::{Device, DeviceAccess, Inbound, TunDevice};
pub use self::egress::{EngineTx, Seat};
#[cfg(feature = "tokio")]
pub use self::host::tokio;
pub use self::host::{Host, Incoming, Readiness, Received, Sockets, TcpListener, TcpStream};
pub use self::pair::PairSettings;
pub use self::record::{Fault, Sharing};
pub use self::remote::{Access, connect, connections, default_socket, status};
pub use millrace_tcp::conn::{ConnectionState, TcpCounters};
pub use millrace_tcp::ip::IpCounters;
pub use millrace_tcp::ports::PortSet;

pub use self::settings::EngineSettings;
pub use self::status::{ConnectionFigures, ConnectionStatus, CounterSheets, EngineStatus, HostStatus, Owner};
pub use self::steered::{XdpPorts, ports_given_out};
pub use self::thread::{Engine, Stopped, Turning};
pub use self::xdp::XdpDevice;
pub use crate::engine_socket::EngineSocket;
