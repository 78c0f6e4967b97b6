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
use crate::hls::LookedAt;
use crate::limits::WebLimits;
use crate::memory::{Exhausted, Hold, ResponseMemory};
use crate::recent::Recent;
use crate::site::{Site, SiteError};
use crate::subtitles::SubtitleCache;
use crate::title_list::Lists;
use crate::totals::Totals;
use crate::uploads::Uploads;

/// Cached pictures. The key is whether it is the poster, and the hash of both pictures.
pub(crate) type PictureCache = Recent<(bool, String), Bytes>;

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
    numbers: AtomicU64,
}

impl ServerContext {
    pub(crate) fn new(
        site: Arc<dyn Site>,
        limits: WebLimits,
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
            numbers: AtomicU64::new(0),
        }
    }

    /// A number for a connection, for the log.
    pub(crate) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Lets a connection in; `None`, counted, if there are too many.
    pub(crate) fn admit(&self, peer: SocketAddr) -> Option<ConnectionSlot> {
        self.clients.admit(peer, self.limits.connections, self.limits.connections_per_address)
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
