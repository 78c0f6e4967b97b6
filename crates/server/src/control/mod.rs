//! Sockets and tasks that carry out what [`crate::session`] decides: one thread, one reactor, no locks.
//!
//! ```text
//!   accept ──► one task a connection ──► Framer ──► session::Server ──► outputs ──► replies, commands
//!   RTCP, punches ── one task a socket ──────────────────▲
//!   engine events ── one task an engine ─────────────────┤
//!   the library's answers ── one task ───────────────────┘
//! ```
//!
//! Connections come by the kernel's TCP, and by an offload engine's where there is one ([`Offload`]); from there on they are the same. Those of HTTP are the
//! web side's in both cases ([`http_by_offload`]).
//!
//! A connection is read only while nothing waits to be written to it, no answer of an engine or of
//! the library is pending and the engines' rings have space: a viewer that does not read its
//! replies, or sends faster than they can be made, holds up only itself. Once a connection carries
//! RTP, the engine is its only writer and replies go to it as commands.
//!
//! ```no_run
//! # use millrace_server::control::{ControlConfig, ControlPlane, EnginePort, Sockets};
//! # use millrace_offload::UdpPair;
//! # fn wire(library: Box<dyn millrace_server::service::Library>, engine: Box<dyn EnginePort>,
//! #         rtp: std::net::UdpSocket, rtcp: std::net::UdpSocket) -> Result<(), Box<dyn std::error::Error>> {
//! let sockets = Sockets {
//!     listeners: vec![std::net::TcpListener::bind("[::]:8554")?],
//!     secure: None,
//!     udp: vec![UdpPair { rtp, rtcp }], // on the ports that the engine sends from
//!     offload: None,
//!     orders: None,
//! };
//! let control = ControlPlane::start(ControlConfig::default(), library, vec![engine], sockets)?;
//! println!("{} sessions", control.snapshot().map_or(0, |snapshot| snapshot.sessions.len()));
//! control.shut_down(std::time::Duration::from_secs(5));
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod checks;
mod conn;
mod connection;
mod counters;
mod engine_port;
mod http;
mod hub;
mod log;
mod news;
mod offload;
mod orders;
mod refusals;
mod run;
#[cfg(feature = "sim")]
pub mod simulated;
mod stream;
mod titles;
mod tunnel;
mod udp;

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use millrace_core::counters::Sheet;
use millrace_core::seam::Clock;
use millrace_core::time::Instant;
use millrace_offload::UdpPair;
use millrace_offload::clock::MonotonicClock;
use tokio::sync::mpsc;

pub use counters::{ServerCounters, ServerGauges};
pub use engine_port::EnginePort;
pub use http::http_by_offload;
pub use offload::{Offload, OffloadSheets, OpenOffload};
pub use refusals::TurnedAway;
pub use titles::{TitleCounters, TitleSheets};

use crate::admission::InUse;
use crate::limits::RTSP_WRITE_TIMEOUT_NS;
use crate::limits::control::{DROP_LIMIT, SNAPSHOT_WAIT};
use crate::service::{CastStatus, Fetcher, Library, ServiceConfig};
use crate::session::{ServerConfig, SessionInfo, SystemEntropy};

/// The time, as the control plane reads it.
pub trait ControlClock: Clock {
    /// Unix time minus monotonic time.
    fn wall_offset_ns(&self) -> u64;
}

impl ControlClock for MonotonicClock {
    fn wall_offset_ns(&self) -> u64 {
        millrace_offload::clock::wall_offset_ns()
    }
}

/// Settings of the control plane. Engines, UDP ports and the wall clock in `session` are filled in by
/// [`ControlPlane::start`].
#[derive(Clone, Debug)]
pub struct ControlConfig {
    /// Sessions, admission, limits.
    pub session: ServerConfig,
    /// A connection that does not take its replies for this long is closed.
    pub write_timeout_ns: u64,
    /// Where events are reported to the web side's listeners.
    pub feed: millrace_web::Feed,
}

impl Default for ControlConfig {
    fn default() -> Self {
        let feed = millrace_web::Feed::default();
        Self { session: ServerConfig::default(), write_timeout_ns: RTSP_WRITE_TIMEOUT_NS, feed }
    }
}

/// The sockets that the control plane listens on. Made by the caller, which knows about privileges
/// and systemd.
#[derive(Debug)]
pub struct Sockets {
    /// RTSP.
    pub listeners: Vec<TcpListener>,
    /// RTSP that came by TLS, in the clear from here on.
    pub secure: Option<mpsc::Receiver<millrace_tls::Relayed>>,
    /// The sockets that receive on the engines' sending ports, at most one pair of each address
    /// family.
    pub udp: Vec<UdpPair>,
    /// The offload engine that carries connections beside the kernel, if there is one.
    pub offload: Option<Offload>,
    /// Where the web side's orders come from, if there is one.
    pub orders: Option<mpsc::UnboundedReceiver<millrace_web::Order>>,
}

/// Why the control plane did not start.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// No engine was given.
    #[error("control: no engine; give at least one")]
    NoEngine,
    /// A socket cannot be used.
    #[error("control: {what} of {address}: {source}; give a bound, open socket")]
    Socket {
        /// The attempted operation.
        what: &'static str,
        /// On which socket.
        address: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The system lacks something.
    #[error("control: {what}: {source}; {remedy}")]
    System {
        /// The attempted operation.
        what: &'static str,
        /// The system's error.
        source: std::io::Error,
        /// What to do.
        remedy: &'static str,
    },
}

/// How things stand.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Sums since the start.
    pub counters: ServerCounters,
    /// Sessions, the oldest first.
    pub sessions: Vec<SessionInfo>,
    /// Viewers that fetch segments, the oldest first.
    pub fetchers: Vec<Fetcher>,
    /// When that was.
    pub now: Instant,
    /// Open connections.
    pub connections: usize,
    /// Connections on which bytes of titles are sent.
    pub deliveries: usize,
    /// Streams that the engines know, closing ones included.
    pub streams: usize,
    /// Bits a second that admission has given away.
    pub reserved_rate: u64,
    /// How much viewers use of what there is.
    pub in_use: Vec<InUse>,
    /// Casts that viewers have started.
    pub casts: Vec<CastStatus>,
    /// Viewers turned away lately, the newest first.
    pub turned_away: Vec<TurnedAway>,
}

/// Asks the control plane how things stand, from any thread.
#[derive(Clone, Debug)]
pub struct Asker {
    asks: mpsc::UnboundedSender<Ask>,
    casts: Arc<CastSheet>,
}

impl Asker {
    /// How things stand now. Waits for the control thread, at most a second; `None` if it does not answer.
    pub fn snapshot(&self) -> Option<Snapshot> {
        let (answer, answered) = std::sync::mpsc::sync_channel(1);
        self.asks.send(Ask::Snapshot(answer)).ok()?;
        answered.recv_timeout(SNAPSHOT_WAIT).ok()
    }

    /// Asks whether a viewer may have a segment; returns at once, and the requester gets the
    /// answer.
    pub fn fetch(&self, fetch: millrace_web::Fetch) {
        // Without a control side there is no answer: the server ends.
        drop(self.asks.send(Ask::Fetch(Box::new(fetch))));
    }

    /// Admits a viewer that asks for a playlist; returns at once, and the requester gets the answer.
    pub fn admit_viewer(&self, admission: millrace_web::ViewerAdmission) {
        // Without a control side there is no answer: the server ends.
        drop(self.asks.send(Ask::Viewer(Box::new(admission))));
    }

    /// Serves RTSP on a connection that the web side accepted.
    pub fn take_tunnel(&self, tunnel: millrace_web::TunnelConn) {
        // If the control side has ended, the connection is dropped: the server is shutting down.
        drop(self.asks.send(Ask::Tunnel(Box::new(tunnel))));
    }

    /// Casts that viewers have started, as of half a second ago at most. Waits for nothing.
    pub fn casts(&self) -> Vec<CastStatus> {
        self.casts.read()
    }

    /// How much viewers use of what there is: that part of a snapshot alone.
    pub fn in_use(&self) -> Option<Vec<InUse>> {
        let (answer, answered) = std::sync::mpsc::sync_channel(1);
        self.asks.send(Ask::InUse(answer)).ok()?;
        answered.recv_timeout(SNAPSHOT_WAIT).ok()
    }
}

/// How the control plane ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Farewell {
    /// Streams that an engine had not closed within the limit.
    pub streams_left: usize,
    /// Connections that were cut off.
    pub connections_left: usize,
}

/// Where other threads can read the activity of the control plane, twice a second.
#[derive(Clone, Debug, Default)]
pub struct ControlSheets {
    /// Sums since the start.
    pub counters: Arc<Sheet<ServerCounters>>,
    /// What there is now.
    pub held: Arc<Sheet<ServerGauges>>,
    /// The same of each title.
    pub titles: Arc<TitleSheets>,
    /// Work of the offload engine, including those before it.
    pub offload: Arc<OffloadSheets>,
    /// Casts that viewers have started.
    pub casts: Arc<CastSheet>,
    /// How often that was published: a thread that is stuck counts no further.
    pub rounds: Arc<AtomicU64>,
}

/// The same list for all threads.
#[derive(Debug, Default)]
pub struct CastSheet(Mutex<Vec<CastStatus>>);

impl CastSheet {
    fn publish(&self, casts: Vec<CastStatus>) {
        *self.lock() = casts;
    }

    fn read(&self) -> Vec<CastStatus> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<CastStatus>> {
        // Each change is one assignment: a panic elsewhere cannot leave it half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// New limits for the service.
#[derive(Debug)]
struct LimitsRequest {
    new: Box<ServiceConfig>,
    /// Taken over, or given up.
    is_decided: Arc<AtomicBool>,
    answer: std::sync::mpsc::SyncSender<()>,
}

/// From the handle to the thread.
#[derive(Debug)]
enum Ask {
    Snapshot(std::sync::mpsc::SyncSender<Snapshot>),
    InUse(std::sync::mpsc::SyncSender<Vec<InUse>>),
    Fetch(Box<millrace_web::Fetch>),
    Viewer(Box<millrace_web::ViewerAdmission>),
    Tunnel(Box<millrace_web::TunnelConn>),
    Limits(LimitsRequest),
    ShutDown(Duration),
}

/// The control plane.
#[derive(Debug)]
pub struct ControlPlane;

impl ControlPlane {
    /// Starts the control thread and returns at once; connections are accepted from now on.
    ///
    /// # Errors
    /// [`ControlError`]; nothing is left behind then.
    pub fn start(
        config: ControlConfig,
        library: Box<dyn Library>,
        engines: Vec<Box<dyn EnginePort>>,
        sockets: Sockets,
    ) -> Result<ControlHandle, ControlError> {
        if engines.is_empty() {
            return Err(ControlError::NoEngine);
        }
        let mut config = config;
        config.session.service.engines = engines.len();
        config.session.wall_offset_ns = millrace_offload::clock::wall_offset_ns();
        let addresses = prepare(&mut config.session, &sockets)?;
        let entropy = SystemEntropy::open().map_err(|source| ControlError::System {
            what: "open /dev/urandom",
            source,
            remedy: "mount /dev",
        })?;
        let system = |what| {
            move |source| ControlError::System {
                what,
                source,
                remedy: "raise the limits of threads and open files",
            }
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(system("make a reactor"))?;
        let sheets = ControlSheets::default();
        let shown = sheets.clone();
        let (asks, asked) = mpsc::unbounded_channel();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("control".into())
            .spawn(move || {
                let parts = run::ControlInputs {
                    config,
                    library,
                    entropy: Box::new(entropy),
                    engines,
                    sockets,
                    sheets: shown,
                };
                tokio::task::LocalSet::new().block_on(&runtime, run::run(parts, asked, ready))
            })
            .map_err(system("start the control thread"))?;
        match is_ready.recv() {
            Ok(Ok(())) => Ok(ControlHandle { asks, thread: Some(thread), addresses, sheets }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(system("start the control thread")(std::io::Error::other("it ended at once"))),
        }
    }
}

/// Prepares the sockets: determines their addresses, and ensures that they do not block.
fn prepare(config: &mut ServerConfig, sockets: &Sockets) -> Result<Vec<SocketAddr>, ControlError> {
    let refused = |what| move |source| ControlError::Socket { what, address: "a socket".to_owned(), source };
    let mut addresses = Vec::new();
    for listener in &sockets.listeners {
        let address = listener.local_addr().map_err(refused("local address"))?;
        let blocked =
            |source| ControlError::Socket { what: "non-blocking mode", address: address.to_string(), source };
        listener.set_nonblocking(true).map_err(blocked)?;
        addresses.push(address);
    }
    for pair in &sockets.udp {
        let rtp = pair.rtp.local_addr().map_err(refused("local address"))?;
        let rtcp = pair.rtcp.local_addr().map_err(refused("local address"))?;
        for (socket, address) in [(&pair.rtp, rtp), (&pair.rtcp, rtcp)] {
            let blocked = |source| ControlError::Socket {
                what: "non-blocking mode",
                address: address.to_string(),
                source,
            };
            socket.set_nonblocking(true).map_err(blocked)?;
        }
        let ports = Some((rtp.port(), rtcp.port()));
        match rtp.ip() {
            IpAddr::V4(_) => config.ports_v4 = ports,
            IpAddr::V6(_) => config.ports_v6 = ports,
        }
    }
    Ok(addresses)
}

/// The running control plane. Dropping it shuts it down.
#[derive(Debug)]
pub struct ControlHandle {
    asks: mpsc::UnboundedSender<Ask>,
    thread: Option<JoinHandle<Farewell>>,
    addresses: Vec<SocketAddr>,
    sheets: ControlSheets,
}

impl ControlHandle {
    /// Returns its totals and its present state, for other threads.
    pub fn sheets(&self) -> ControlSheets {
        self.sheets.clone()
    }

    /// A count that grows twice a second, as long as the thread makes progress.
    pub fn rounds(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.sheets.rounds)
    }

    /// Where RTSP is listened for.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// How things stand now. Waits for the control thread, at most a second; `None` if it does not answer.
    pub fn snapshot(&self) -> Option<Snapshot> {
        self.asker().snapshot()
    }

    /// What asks for it from another thread.
    pub fn asker(&self) -> Asker {
        Asker { asks: self.asks.clone(), casts: Arc::clone(&self.sheets.casts) }
    }

    /// Takes those of the settings that may change while viewers are served. Waits for the control thread, at most a second;
    /// `false`: it has not taken them over by then, and will not.
    pub fn set_limits(&self, new: ServiceConfig) -> bool {
        let (answer, answered) = std::sync::mpsc::sync_channel(1);
        let is_decided = Arc::new(AtomicBool::new(false));
        let request = LimitsRequest { new: Box::new(new), is_decided: Arc::clone(&is_decided), answer };
        let is_sent = self.asks.send(Ask::Limits(request)).is_ok();
        // Who decides first has decided.
        is_sent && (answered.recv_timeout(SNAPSHOT_WAIT).is_ok() || is_decided.swap(true, Ordering::Relaxed))
    }

    /// Whether the control thread has ended without being asked: it has panicked.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Accepts no more, has the engines say BYE to their viewers, ends all sessions, closes all connections, waits
    /// for the engines at most `limit`. The engines' handles are dropped at the end.
    pub fn shut_down(mut self, limit: Duration) -> Option<Farewell> {
        self.end(limit)
    }

    fn end(&mut self, limit: Duration) -> Option<Farewell> {
        let thread = self.thread.take()?;
        // If there is no receiver any more, the thread has ended, and join() returns how.
        let _ = self.asks.send(Ask::ShutDown(limit));
        thread.join().ok()
    }
}

impl Drop for ControlHandle {
    fn drop(&mut self) {
        self.end(DROP_LIMIT);
    }
}
