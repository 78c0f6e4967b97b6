//! HTTP for browsers and operators: titles as files and as HLS, the page, the API, metrics.
//!
//! It knows the service and no engine: the trait [`Site`] defines all it needs from the server. Its
//! connections have a thread of their own, so client activity there costs RTSP nothing. A media
//! request leaves it: the connection goes with its [`Order`] to the service, an engine sends the
//! bytes from the extents that all viewers share, and the connection comes back.
//!
//! ```text
//!   accept ─► head of a request ─┬─ media ─► Order { connection, bytes a..b } ─► Site::send ─► service, engine
//!                 ▲              │                                                   │
//!                 └──────────────┼──────────────── Delivery { connection } ◄─────────┘
//!                                └─ everything else, HTTP/2 ─► hyper: page, API, metrics
//! ```
//!
//! | module | is about |
//! | --- | --- |
//! | `front` | connections, heads of requests, responses in HTTP/1.1 |
//! | `stream` | a connection, plain or by TLS |
//! | `hyper_side` | connections that hyper serves |
//! | `route` | every address, in one table |
//! | `context` | state shared by all connections |
//! | `access` | access control |
//! | `delivery` | orders for media |
//! | `dispatch` | calls the handler of each route |
//! | `handlers` | answer the requests of some routes each |
//! | `failures`, `cors` | responses to errors; access by pages of other sites |
//! | `request`, `answer`, `conditions`, `range`, `date` | a request and its response, whatever the protocol |
//! | `guide` | the programme of channels |
//! | `file` | a title as a file |
//! | `hls` | a title as segments and playlists |
//! | `cmaf` | the same with segments that are made: fragmented MP4 |
//! | `elementary` | elementary streams out of TS packets |
//! | `subtitles` | subtitles as WebVTT |
//! | `page`, `metrics`, `process` | the page, the counters, and figures about the process |
//! | `status` | the state of the server, as it reports it |
//! | `events` | events, for listeners |
//! | `openapi` | the description of all addresses |
//! | `clients` | open connections, and each client's share of the thread that answers |
//! | `memory` | the memory for responses, and each client's share of it |
//! | `recent`, `making`, `title_list` | results that are made once and cached |
//! | `uploads` | uploads in progress |
//! | `totals` | counters |
//! | `simulated` | the web side in a simulation of the whole server, behind the feature `sim` |
//! | `webhook` | a program of the operator that is asked for permission to watch |
//!
//! ## Where to read on
//!
//! | topic | read |
//! | --- | --- |
//! | HTTP, and connections lent to an engine | `docs/ref/http.md`, `docs/design/0038-web.md`, `crates/web/src/lib.rs` |
//! | the description of the API, and its events | `crates/web/src/openapi.rs`, `crates/web/src/events/mod.rs`; `millrace top`, which reads it: `crates/server/src/cmds/top/mod.rs`, `remote.rs` |
//! | the page, and the hls.js in it | `docs/guide/web.md`, `crates/web/src/page/mod.rs`, `crates/web/build.rs`, `scripts/npm.sh`; browsers on it: `scripts/interop/browser/check.mjs` |
//! | uploads | `docs/design/0041-uploads.md`, `crates/web/src/uploads/mod.rs`, `crates/web/src/handlers/upload.rs`; where it goes: `crates/server/src/cmds/serve/uploads.rs`; from where: `crates/server/src/cmds/add_remote.rs` |
//! | cutting a title into segments | `crates/web/src/hls/mod.rs` |
//! | segments of fragmented MP4 | `docs/design/0040-cmaf.md`, `crates/web/src/cmaf/mod.rs` |
#![forbid(unsafe_code)]

mod access;
mod answer;
mod beat;
mod clients;
mod cmaf;
mod conditions;
mod context;
mod cors;
mod date;
mod delivery;
mod dispatch;
mod elementary;
pub mod events;
mod failures;
mod file;
mod forwarded;
mod front;
mod guide;
mod handlers;
mod hls;
mod hyper_side;
pub mod limits;
mod live;
mod making;
mod memory;
mod metrics;
mod openapi;
mod outcome;
mod page;
mod plain;
mod process;
mod range;
mod recent;
mod reload;
mod request;
mod route;
mod session;
#[cfg(feature = "sim")]
pub mod simulated;
pub mod site;
pub mod status;
mod stream;
mod subtitles;
mod title_list;
mod totals;
mod uploads;
mod viewer;
mod webhook;

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use millrace_core::limits::web::WEB_READS_AT_ONCE;
use millrace_rights::Gate;
use millrace_tls::Acceptor;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::watch;
use tokio::task::{JoinHandle as Task, LocalSet, spawn_local};

pub use self::beat::WebBeat;
use self::context::ServerContext;
pub use self::events::{Feed, SiteEvent};
pub use self::forwarded::{Network, NetworkError, TrustedProxies};
pub use self::front::Arrivals;
pub use self::handlers::title::{TitleContext, TitleDescription, folders_of};
pub use self::limits::WebLimits;
pub use self::metrics::name as metric_name;
pub use self::outcome::{OrderDone, Outcome, order_outcome};
pub use self::page::HAS_HLS_JS;
pub use self::reload::{ChangeEffect, ReloadReport, SettingChange};
pub use self::site::{
    ALL_THAT_COMES, ChannelGuide, DeliveredAmount, Delivery, DeliveryRefusal, Fetch, GuideProgramme,
    LibraryCopy, LiveCast, LiveEdge, LiveFeed, LivePart, LivePiece, LiveRecording, LiveRefusal, LiveStatus,
    LiveWindow, NewLiveSource, NotTaken, Order, OrderSocket, OrderedMedia, OrderedSegment, PicturesState,
    PlayedChannel, RecordingRefusal, RecordingWish, Site, SiteError, SkippedItem, TitleBytes, TunnelConn,
    ViewerAdmission,
};
pub use self::status::{LibraryFetch, LibraryStatus, Status};
pub use self::stream::{Carried, CarriedStream, ReadWrite};
pub use self::totals::{Totals, WebCounters};
pub use self::webhook::{Webhook, WebhookError};
use crate::limits::{UPLOADS_STOP, WEB_DROP_TIME};

/// The paths of all routes. `{name}`, `{version}`, `{file}`, `{track}` and `{number}` stand for the
/// variable parts.
pub fn routes() -> impl Iterator<Item = &'static str> {
    route::ROUTES.iter().map(|route| route.path)
}

/// Those of them that everybody may ask for, whatever rights there are.
pub fn routes_without_rights() -> impl Iterator<Item = &'static str> {
    route::ROUTES.iter().filter(|route| route.needs == route::Needs::Nothing).map(|route| route.path)
}

/// Configuration of the web side.
#[derive(Debug)]
pub struct WebConfig {
    /// Where connections come in.
    pub listeners: Vec<TcpListener>,
    /// What brings those that another TCP than the kernel's carries.
    pub carrier: Option<Carrier>,
    /// Where they come in by TLS.
    pub secure: Option<Secure>,
    /// How many of them.
    pub limits: WebLimits,
    /// Proxies that name their clients.
    pub proxies: TrustedProxies,
    /// Access control.
    pub gate: Arc<Gate>,
    /// Where others tell what happens.
    pub feed: Feed,
    /// Counters of its work.
    pub totals: Arc<Totals>,
}

/// Brings connections that another TCP than the kernel's carries, for as long as the web side runs.
pub struct Carrier(Box<dyn FnOnce(Arrivals) -> Carrying + Send>);

/// On the web side's thread, in its `LocalSet`.
type Carrying = Pin<Box<dyn Future<Output = ()>>>;

impl Carrier {
    /// Creates a carrier. `carry` is called on the web side's thread, and the future it returns is
    /// a task there.
    pub fn new<F: Future<Output = ()> + 'static>(carry: impl FnOnce(Arrivals) -> F + Send + 'static) -> Self {
        Self(Box::new(|arrivals| Box::pin(carry(arrivals))))
    }
}

impl fmt::Debug for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Carrier").finish_non_exhaustive()
    }
}

/// HTTPS.
#[derive(Debug)]
pub struct Secure {
    /// Where connections come in.
    pub listeners: Vec<TcpListener>,
    /// What answers their handshakes; it should offer [`PROTOCOLS`].
    pub acceptor: Acceptor,
}

/// Protocols over TLS, for ALPN (RFC 7301), the preferred first.
pub const PROTOCOLS: [&str; 2] = ["h2", "http/1.1"];

/// The running web side. Dropping it stops it, with a short time limit.
#[derive(Debug)]
pub struct WebHandle {
    addresses: Vec<SocketAddr>,
    ends: watch::Sender<bool>,
    time_limit: watch::Sender<Option<Duration>>,
    threads: Vec<JoinHandle<()>>,
    runtimes: Vec<(&'static str, Handle)>,
}

/// Starts it, on a thread of its own. TLS has another: whatever handshakes and ciphers cost there, plain HTTP does not wait for it.
///
/// # Errors
/// If a thread or its runtime cannot be created, or a listener cannot be used.
pub fn start(config: WebConfig, site: Arc<dyn Site>) -> io::Result<WebHandle> {
    let WebConfig { listeners, carrier, secure, limits, proxies, gate, feed, totals } = config;
    let is_plain = !listeners.is_empty() || carrier.is_some();
    let plain = is_plain.then_some(("web", listeners, None, carrier));
    let secure = secure.map(|Secure { listeners, acceptor }| ("web-tls", listeners, Some(acceptor), None));
    let (ends, told) = watch::channel(false);
    let shared = Arc::new(ServerContext::new(site, limits, proxies, gate, feed, totals, told));
    let mut handle = WebHandle {
        addresses: Vec::new(),
        ends,
        time_limit: watch::Sender::new(None),
        threads: Vec::new(),
        runtimes: Vec::new(),
    };
    for (name, listeners, tls, carrier) in plain.into_iter().chain(secure) {
        let addresses = listeners.iter().map(TcpListener::local_addr).collect::<io::Result<Vec<_>>>()?;
        handle.addresses.extend(addresses);
        let runtime =
            Builder::new_current_thread().enable_all().max_blocking_threads(WEB_READS_AT_ONCE).build()?;
        let listeners = {
            let _entered = runtime.enter();
            let listener = |listener: TcpListener| {
                listener.set_nonblocking(true)?;
                tokio::net::TcpListener::from_std(listener)
            };
            listeners.into_iter().map(listener).collect::<io::Result<Vec<_>>>()?
        };
        handle.runtimes.push((name, runtime.handle().clone()));
        let (shared, stopped) = (Arc::clone(&shared), handle.time_limit.subscribe());
        let run = move || run(runtime, listeners, tls, carrier, &shared, stopped);
        handle.threads.push(std::thread::Builder::new().name(name.to_owned()).spawn(run)?);
    }
    Ok(handle)
}

/// Accepts connections until stopped, then waits for those with a response in progress.
fn run(
    runtime: Runtime,
    listeners: Vec<tokio::net::TcpListener>,
    tls: Option<Acceptor>,
    carrier: Option<Carrier>,
    shared: &Arc<ServerContext>,
    mut stopped: watch::Receiver<Option<Duration>>,
) {
    // Connections of another TCP stay on their thread.
    let tasks = LocalSet::new();
    tasks.block_on(&runtime, async {
        let accept = |listener| spawn_local(front::accept(listener, tls.clone(), Arc::clone(shared)));
        let carrying = carrier.map(|Carrier(carry)| spawn_local(carry(Arrivals::new(shared))));
        let accepting: Vec<_> = listeners.into_iter().map(accept).chain(carrying).collect();
        let limit = stopped.wait_for(Option::is_some).await.ok().and_then(|limit| *limit);
        accepting.iter().for_each(Task::abort);
        let _ = tokio::time::timeout(limit.unwrap_or(WEB_DROP_TIME), shared.clients.all_closed()).await;
    });
    drop(tasks);
    // A read of a file that hangs must not hold the end up.
    runtime.shutdown_background();
    shared.uploads.end(UPLOADS_STOP);
}

impl WebHandle {
    /// Where it listens.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The progress of each of its threads.
    pub fn beats(&self) -> Vec<WebBeat> {
        self.runtimes.iter().map(|&(name, ref runtime)| WebBeat::new(name, runtime.clone())).collect()
    }

    /// Stops: accepts no more connections, closes idle ones, and gives those with a response in
    /// progress up to `limit` to end.
    pub fn stop(mut self, limit: Duration) {
        self.end(limit);
    }

    fn end(&mut self, limit: Duration) {
        let _ = self.ends.send(true);
        let _ = self.time_limit.send(Some(limit));
        for thread in self.threads.drain(..) {
            // A panic there was reported by its own thread.
            let _ = thread.join();
        }
    }
}

impl Drop for WebHandle {
    fn drop(&mut self) {
        self.end(WEB_DROP_TIME);
    }
}
