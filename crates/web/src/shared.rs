//! State shared by all connections, and the choice of the part that answers a request.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hyper::body::Bytes;
use millrace_core::text::Printable;
use millrace_core::time::MediaTicks;
use millrace_core::units::BitRate;
use millrace_rights::Gate;
use millrace_store::volume::TitleInfo;
use tokio::sync::watch;

use crate::answer::{Answer, Body, MediaBody, Sending};
use crate::clients::{Clients, ConnectionSlot};
use crate::cmaf::TrackFile;
use crate::events::{self, Feed};
use crate::hls::{self, LookedAt, MasterForm};
use crate::limits::RETRY_AFTER_S;
use crate::memory::{Exhausted, Hold, ResponseMemory};
use crate::request::{Method, REQUESTS, Request, RequestId};
use crate::rights::{SeenBy, place};
use crate::route::{self, ResourceKind, Route, RouteMatch};
use crate::site::{Delivery, DeliveryRefusal, Fetch, Order, OrderSocket, OrderedSegment, Site, SiteError};
use crate::subtitles;
use crate::totals::Totals;
use crate::upload::{self, Uploads};
use crate::{WebLimits, api, cmaf, file, metrics, openapi, page, pictures, status};

/// State shared by all connections.
pub(crate) struct ServerContext {
    pub(crate) site: Arc<dyn Site>,
    pub(crate) limits: WebLimits,
    pub(crate) totals: Arc<Totals>,
    /// Becomes true when the server ends.
    pub(crate) ends: watch::Receiver<bool>,
    pub(crate) looked_at: LookedAt,
    pub(crate) made: cmaf::CmafCache,
    pub(crate) subtitles: subtitles::SubtitleCache,
    pub(crate) lists: api::Lists,
    pub(crate) pictures: pictures::PictureCache,
    pub(crate) memory: ResponseMemory,
    pub(crate) gate: Arc<Gate>,
    pub(crate) feed: Feed,
    pub(crate) uploads: Uploads,
    pub(crate) clients: Arc<Clients>,
    numbers: AtomicU64,
}

impl ServerContext {
    pub(crate) fn new(
        site: Arc<dyn Site>,
        limits: WebLimits,
        (gate, feed): (Arc<Gate>, Feed),
        totals: Arc<Totals>,
        ends: watch::Receiver<bool>,
    ) -> Self {
        let (memory, clients) = (ResponseMemory::new(limits.memory, &totals), Clients::new(&totals));
        Self {
            site,
            limits,
            totals,
            ends,
            looked_at: LookedAt::default(),
            made: cmaf::CmafCache::default(),
            subtitles: subtitles::SubtitleCache::default(),
            lists: api::Lists::default(),
            pictures: pictures::PictureCache::default(),
            memory,
            gate,
            feed,
            uploads: Uploads::new(limits.upload_rate),
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

    /// Answers a request, which log lines call by its id; for HEAD without the body.
    pub(crate) async fn answer(
        self: &Arc<Self>,
        request: &Request,
        peer: SocketAddr,
        id: RequestId,
    ) -> Answer {
        let turn = self.clients.turn(peer).await;
        // This future is large, so it lives in the heap and only during a turn: connections that wait for one, or write
        // to a client that does not read, do not hold it.
        let answer = turn.take(Box::pin(self.find_answer(request, peer, id)).as_mut()).await;
        let answer = self.counted(answer, peer);
        note(request, peer, id, answer.status);
        answer
    }

    /// Counts the bytes of a response while any of them are in memory. Replaces it by an error if
    /// memory is exhausted.
    fn counted(&self, mut answer: Answer, peer: SocketAddr) -> Answer {
        let counted = match std::mem::replace(&mut answer.body, Body::None) {
            Body::Bytes(bytes) => self.memory.sends(bytes, false, peer).map(Body::Bytes),
            Body::Kept(bytes) => self.memory.sends(bytes, true, peer).map(Body::Kept),
            Body::Segment(bytes, sending) => {
                self.memory.sends(bytes, true, peer).map(|bytes| Body::Segment(bytes, sending))
            }
            other => Ok(other),
        };
        match counted {
            Ok(body) => Answer { body, ..answer },
            Err(Exhausted) => exhausted(),
        }
    }

    /// Reserves memory for a cache entry. If memory is exhausted, empties the caches first.
    pub(crate) fn room(&self, bytes: usize) -> Result<Hold, Exhausted> {
        self.memory.take(bytes).or_else(|_| {
            self.made.forget_segments();
            self.pictures.forget_all();
            self.memory.take(bytes)
        })
    }

    async fn find_answer(self: &Arc<Self>, request: &Request, peer: SocketAddr, id: RequestId) -> Answer {
        let Some(found) = route::find(&request.path) else {
            return self.nowhere(request);
        };
        let answer = match request.method {
            Method::Get => self.answer_to(request, &found, (peer, id)).await,
            Method::Head => self.answer_to(request, &found, (peer, id)).await.without_body(),
            Method::Options => preflight(found.route),
            Method::Delete if found.route.methods().contains(&Method::Delete) => {
                match self.let_in(request, &found, peer).await {
                    Ok(_) if found.route.kind == ResourceKind::SubtitleFile => {
                        subtitles::remove(self, &found).await
                    }
                    Ok(_) => self.remove(found.name).await,
                    Err(refused) => refused,
                }
            }
            // Uploads and changes are handled elsewhere.
            Method::Put | Method::Delete | Method::Patch | Method::Other => {
                let allow = found.route.allow();
                Answer::error(405, &format!("possible here: {allow}")).with("Allow", allow)
            }
        };
        let answer = answer.with("X-Content-Type-Options", "nosniff");
        if found.route.is_shared { shared(answer) } else { answer }
    }

    /// The answer for a path without a route.
    fn nowhere(&self, request: &Request) -> Answer {
        match request.method {
            // Applies to the server as a whole (RFC 9110 section 9.3.7).
            Method::Options if request.path == "*" => {
                Answer::new(200, "text/plain", Bytes::new()).with("Allow", route::ALL_METHODS)
            }
            Method::Put => upload::no_address(&request.path),
            _ => Answer::error(404, "nothing has this address"),
        }
    }

    /// Answers clients that have access, and gives the reason to others.
    async fn answer_to(
        self: &Arc<Self>,
        request: &Request,
        found: &RouteMatch,
        from: (SocketAddr, RequestId),
    ) -> Answer {
        let peer = from.0;
        let visitor = match self.let_in(request, found, peer).await {
            Ok(visitor) => visitor,
            Err(refused) => return refused,
        };
        let place = place(&request.fields, peer);
        let seen = SeenBy { site: Arc::clone(&self.site), gate: Arc::clone(&self.gate), visitor, place };
        let mut answer = self.look_up(request, found, &seen, from).await;
        if let Body::Media(media) = &mut answer.body {
            media.quota = seen.quota().map(Box::new);
        }
        if self.gate.is_private() { private(answer) } else { answer }
    }

    async fn look_up(
        self: &Arc<Self>,
        request: &Request,
        found: &RouteMatch,
        seen: &SeenBy,
        from: (SocketAddr, RequestId),
    ) -> Answer {
        match found.route.kind {
            ResourceKind::Page => return page::html(),
            ResourceKind::Style => return page::style(),
            ResourceKind::Script => return page::script(),
            ResourceKind::Icon => return page::icon(),
            ResourceKind::Player => return page::player(request),
            ResourceKind::Playlist => return api::playlist(seen),
            ResourceKind::ApiTitles => return api::titles(self, request, seen).await,
            ResourceKind::ApiStatus => return self.status().await,
            ResourceKind::ApiEvents => return events::answer(self, request.method),
            ResourceKind::ApiUser => return api::user(seen),
            ResourceKind::ApiDescription => return openapi::answer(request),
            ResourceKind::ApiUploads => return upload::list(self),
            ResourceKind::Upload => return upload::state(self, &found.name),
            ResourceKind::Metrics => return metrics::answer(&*self.site),
            ResourceKind::Live => return state("ok\n"),
            ResourceKind::Ready if *self.ends.borrow() => return Answer::error(503, "the server is ending"),
            ResourceKind::Ready => return state("ready\n"),
            _ => {}
        }
        let Some(title) = self.site.title(&found.name) else { return no_title() };
        let link = &seen.link();
        match found.route.kind {
            ResourceKind::File => file::answer(request, &title),
            ResourceKind::Cmaf => hls::master_playlist(self, request, title, (MasterForm::Made, link)).await,
            ResourceKind::Master => hls::master_playlist(self, request, title, (MasterForm::Any, link)).await,
            ResourceKind::Media => hls::media_playlist(self, request, title, link).await,
            ResourceKind::CmafMedia => {
                cmaf::media_playlist(self, request, &title, (found, link), false).await
            }
            ResourceKind::CmafStills => {
                cmaf::media_playlist(self, request, &title, (found, link), true).await
            }
            ResourceKind::CmafInit => {
                cmaf::piece(self, request, &title, found, (TrackFile::Init, seen, from)).await
            }
            ResourceKind::CmafSegment => {
                cmaf::piece(self, request, &title, found, (TrackFile::Segment, seen, from)).await
            }
            ResourceKind::CmafStill => {
                cmaf::piece(self, request, &title, found, (TrackFile::Still, seen, from)).await
            }
            ResourceKind::Subtitles
            | ResourceKind::SubtitleSegment
            | ResourceKind::CmafSubtitles
            | ResourceKind::CmafSubtitleSegment => {
                subtitles::answer(self, request, &title, (found, link)).await
            }
            ResourceKind::SubtitleFile => subtitles::whole(self, request, &title, found).await,
            ResourceKind::Poster | ResourceKind::Sprites | ResourceKind::SpritesVtt => {
                pictures::answer(self, request, title, found.route.kind, link).await
            }
            ResourceKind::Segment => hls::segment(self, request, title, found, from.1).await,
            _ => api::title(seen, title),
        }
    }

    /// Removes a title.
    async fn remove(self: &Arc<Self>, name: String) -> Answer {
        match self.reading(move |shared| shared.site.remove(&name)).await {
            Ok(()) => Answer { status: 204, headers: Vec::new(), body: Body::None },
            Err(SiteError::NoTitle) => no_title(),
            // Users with the right to remove titles may learn the reason.
            Err(SiteError::Unreadable(why)) => {
                Answer::error(500, &format!("the title cannot be removed: {why}"))
            }
        }
    }

    async fn status(self: &Arc<Self>) -> Answer {
        match self.reading(|shared| shared.site.status()).await {
            Ok(status) => status::answer(&*self.site, status),
            Err(error) => Answer::error(503, &error.to_string()),
        }
    }

    /// Has something done that reads files, where waiting for them is allowed.
    pub(crate) async fn reading<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, SiteError> + Send + 'static,
    ) -> Result<T, SiteError> {
        let shared = Arc::clone(self);
        let done = tokio::task::spawn_blocking(move || work(&shared)).await;
        done.unwrap_or_else(|error| Err(SiteError::Unreadable(error.to_string())))
    }

    /// Asks whether a viewer may have a segment that is made, and counts it as a viewer if so. The
    /// return value reports the part of the segment taken.
    pub(crate) async fn may_fetch(
        &self,
        request: &Request,
        title: &TitleInfo,
        seen: &SeenBy,
        (peer, id): (SocketAddr, RequestId),
        (number, at, length): (u32, MediaTicks, MediaTicks),
        sound: Option<BitRate>,
    ) -> Result<Sending, DeliveryRefusal> {
        let (done, told) = tokio::sync::oneshot::channel();
        let (label, agent, title) = (id.to_string(), request.fields.agent(), title.clone());
        let (quota, segment) = (seen.quota(), OrderedSegment { conn: id.conn, number, at, length });
        let (sending, over) = tokio::sync::oneshot::channel();
        self.site.fetch(Fetch { peer, label, agent, title, quota, segment, sound, done, over });
        let may =
            told.await.unwrap_or_else(|_| Err(DeliveryRefusal::Full("the server is ending".to_owned())));
        may.map(|()| Sending::new(sending))
    }

    /// Hands it to an engine to send, and returns the outcome.
    pub(crate) async fn deliver(
        &self,
        socket: OrderSocket,
        peer: SocketAddr,
        media: MediaBody,
        before: Vec<u8>,
        (id, agent): (RequestId, Option<String>),
    ) -> Delivery {
        let (done, told) = tokio::sync::oneshot::channel();
        let MediaBody { title, bytes, ahead_ms, quota, segment, .. } = media;
        let (length, label) = (bytes.end - bytes.start, id.to_string());
        let (quota, segment) = (quota.map(|quota| *quota), segment.map(|segment| *segment));
        self.site.send(Order {
            socket,
            peer,
            title,
            bytes,
            before,
            ahead_ms,
            label,
            agent,
            quota,
            segment,
            done,
        });
        // Whoever drops an order without a word has lost its connection too.
        let delivery = told.await.unwrap_or(Delivery::Broken);
        self.totals.add(|c| {
            c.media_orders += 1;
            match &delivery {
                Delivery::Sent { .. } => c.media_bytes += length,
                Delivery::Refused { .. } => c.media_refused += 1,
                Delivery::Broken => c.media_broken += 1,
            }
        });
        delivery
    }
}

/// Logs one line per request, for users that enable it.
pub(crate) fn note(request: &Request, peer: SocketAddr, id: RequestId, status: u16) {
    let (method, path) = (request.method.name(), Printable(&request.path));
    tracing::debug!(target: REQUESTS, %id, "{id}: {method} {path} of {peer} answered with {status}");
}

/// What pages from elsewhere may ask.
const SHARED_METHODS: &str = "GET, HEAD, OPTIONS";

/// Header fields of responses that scripts from elsewhere may read, beside those that they always may.
const EXPOSED: &str =
    "Accept-Ranges, Content-Length, Content-Range, Content-Type, Date, ETag, Last-Modified, Retry-After";

/// Keeps it out of shared caches: they would give it to any client.
fn private(mut answer: Answer) -> Answer {
    for (name, value) in &mut answer.headers {
        if *name == "Cache-Control" {
            *value = value.replace("public", "private");
        }
    }
    answer
}

/// How the program is.
fn state(text: &'static str) -> Answer {
    Answer::new(200, "text/plain", text).with("Cache-Control", "no-store")
}

pub(crate) fn no_title() -> Answer {
    Answer::error(404, "no such title")
}

/// Returns the response to OPTIONS, for browsers that ask in advance (Fetch standard, CORS
/// preflight).
fn preflight(route: &Route) -> Answer {
    Answer { status: 204, headers: vec![("Allow", route.allow())], body: Body::None }
        .with("Access-Control-Allow-Methods", SHARED_METHODS)
        .with(
            "Access-Control-Allow-Headers",
            "Authorization, Range, If-Range, If-None-Match, If-Modified-Since",
        )
        .with("Access-Control-Max-Age", "86400")
}

/// Lets pages from elsewhere read it.
fn shared(answer: Answer) -> Answer {
    answer.with("Access-Control-Allow-Origin", "*").with("Access-Control-Expose-Headers", EXPOSED)
}

/// The answer if there is no memory for the response.
pub(crate) fn exhausted() -> Answer {
    not_sent(&DeliveryRefusal::Full("too many responses are waiting to be taken by their clients".to_owned()))
}

/// Returns the response to a viewer whose media was not sent.
pub(crate) fn refusal(why: &DeliveryRefusal) -> Answer {
    shared(not_sent(why)).with("X-Content-Type-Options", "nosniff")
}

/// Returns the same without the header fields added to every answer.
pub(crate) fn not_sent(why: &DeliveryRefusal) -> Answer {
    match why {
        DeliveryRefusal::Full(what) => {
            Answer::error(503, what).with("Retry-After", RETRY_AFTER_S.to_string())
        }
        DeliveryRefusal::Gone => no_title(),
        DeliveryRefusal::Broken(what) => Answer::error(500, what),
    }
}
