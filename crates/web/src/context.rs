//! State shared by all connections: the port to the server, limits and counters, caches, and the
//! memory that bounds them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hyper::body::Bytes;
use millrace_rights::Gate;
use tokio::sync::watch;

use crate::clients::{Clients, ConnectionSlot};
use crate::cmaf::CmafCache;
use crate::events::Feed;
use crate::forwarded::TrustedProxies;
use crate::hls::LookedAt;
use crate::limits::WebLimits;
use crate::memory::{Exhausted, Hold, ResponseMemory};
use crate::recent::Recent;
use crate::request::{Fields, Request, RequestSource};
use crate::route::RouteMatch;
use crate::site::{Site, SiteError};
use crate::subtitles::SubtitleCache;
use crate::title_list::Lists;
use crate::totals::Totals;
use crate::uploads::Uploads;

/// Cached pictures. The key is whether it is the poster, and the hash of both pictures.
pub(crate) type PictureCache = Recent<(bool, String), Bytes>;

/// The client of a request, with its place among the open connections if a proxy has the connection.
pub(crate) struct RequestClient {
    pub(crate) source: RequestSource,
    /// Otherwise the client has as many requests under way as one address may have connections.
    pub(crate) is_admitted: bool,
    _place: Option<ConnectionSlot>,
}

/// A request that has a route.
#[derive(Clone, Copy)]
pub(crate) struct RoutedRequest<'a> {
    pub(crate) shared: &'a Arc<ServerContext>,
    pub(crate) request: &'a Request,
    pub(crate) found: &'a RouteMatch,
    pub(crate) source: RequestSource,
}

/// State shared by all connections.
pub(crate) struct ServerContext {
    pub(crate) site: Arc<dyn Site>,
    pub(crate) limits: WebLimits,
    pub(crate) totals: Arc<Totals>,
    /// Becomes true when the server ends.
    pub(crate) ends: watch::Receiver<bool>,
    pub(crate) looked_at: LookedAt,
    pub(crate) made: CmafCache,
    pub(crate) subtitles: SubtitleCache,
    pub(crate) lists: Lists,
    pub(crate) pictures: PictureCache,
    pub(crate) memory: ResponseMemory,
    pub(crate) gate: Arc<Gate>,
    pub(crate) feed: Feed,
    pub(crate) uploads: Arc<Uploads>,
    pub(crate) clients: Arc<Clients>,
    /// Proxies that name their clients.
    pub(crate) proxies: TrustedProxies,
    numbers: AtomicU64,
}

impl ServerContext {
    pub(crate) fn new(
        site: Arc<dyn Site>,
        limits: WebLimits,
        proxies: TrustedProxies,
        gate: Arc<Gate>,
        feed: Feed,
        totals: Arc<Totals>,
        ends: watch::Receiver<bool>,
    ) -> Self {
        let (memory, clients) = (ResponseMemory::new(limits.memory, &totals), Clients::new(&totals));
        Self {
            site,
            limits,
            uploads: Arc::new(Uploads::new(limits.upload_rate, limits.upload_kept, Arc::clone(&totals))),
            totals,
            ends,
            looked_at: LookedAt::default(),
            made: CmafCache::default(),
            subtitles: SubtitleCache::default(),
            lists: Lists::default(),
            pictures: PictureCache::default(),
            memory,
            gate,
            feed,
            clients,
            proxies,
            numbers: AtomicU64::new(0),
        }
    }

    /// A number for a connection, for the log.
    pub(crate) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Lets a connection in; `None`, counted, if there are too many. A trusted proxy has as many as its clients need.
    pub(crate) fn admit(&self, peer: SocketAddr) -> Option<ConnectionSlot> {
        let most_of_client = match self.proxies.trusts(peer.ip()) {
            true => usize::MAX,
            false => self.limits.connections_per_address,
        };
        self.clients.admit(peer, self.limits.connections, most_of_client)
    }

    /// The client of a request that came on a connection of `source`. One behind a trusted proxy has a place for its request, as it would have
    /// for a connection.
    pub(crate) fn client_of(&self, source: RequestSource, fields: &Fields) -> RequestClient {
        let peer = self.proxies.client_of(source.peer, fields);
        let is_behind_proxy = peer != source.peer;
        let most = self.limits.connections_per_address;
        let place = is_behind_proxy.then(|| self.clients.admit_behind_proxy(peer, most)).flatten();
        let is_admitted = !is_behind_proxy || place.is_some();
        RequestClient { source: RequestSource { peer, ..source }, is_admitted, _place: place }
    }

    /// Reserves memory for a cache entry. If memory is exhausted, empties the caches first.
    pub(crate) fn room(&self, bytes: usize) -> Result<Hold, Exhausted> {
        self.memory.take(bytes).or_else(|_| {
            self.made.forget_segments();
            self.pictures.forget_all();
            self.memory.take(bytes)
        })
    }

    /// Has something done that reads files, where waiting for them is allowed.
    pub(crate) async fn reading<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, SiteError> + Send + 'static,
    ) -> Result<T, SiteError> {
        #[cfg(feature = "sim")]
        if millrace_store::sim::is_entered() {
            return work(self);
        }
        let shared = Arc::clone(self);
        let done = tokio::task::spawn_blocking(move || work(&shared)).await;
        done.unwrap_or_else(|error| Err(SiteError::Unreadable(error.to_string())))
    }
}
