//! Everything that the front does not answer: HTTP/2 connections, and single requests of others.
//!
//! Bytes of a title take a way around here: an engine writes them into one end of a socket pair, and the response's body reads the other.
//!
//! | file | does |
//! | --- | --- |
//! | `io` | the connection, with bytes already read from it, and a bound on how long it may take nothing |
//! | `body` | bodies of responses |
//! | `progress` | the progress of one response |
//! | `streams` | runs the streams of an HTTP/2 connection, and resets stalled ones |
//! | `watch` | state that all streams of an HTTP/2 connection share |

mod body;
mod io;
mod progress;
mod streams;
mod watch;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hyper::body::Incoming;
use hyper::header::{HeaderName, HeaderValue};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request as HyperRequest, Response, StatusCode, Version};
use hyper_util::rt::{TokioIo, TokioTimer};
use millrace_core::limits::web::{MAX_H2_STREAMS, MAX_REQUEST_HEAD_BYTES, MAX_TARGET_BYTES};
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use self::body::{ResponseResources, WebBody};
use self::io::Rewound;
use self::progress::ResponseProgress;
use self::streams::StreamExecutor;
use self::watch::{Activity, UnderWay};
use crate::answer::{Answer, Body, SERVER};
use crate::context::{RoutedRequest, ServerContext};
use crate::delivery::MediaOrder;
use crate::dispatch;
use crate::failures::{crowded, exhausted, refusal};
use crate::handlers::{rename, upload};
use crate::limits::{
    H2_PING, H2_SEND_BUFFER_BYTES, H2_STREAM_BYTES, HEAD_TIME, INSIDE_READ_BYTES, MAX_H2_RESETS,
    MAX_REQUEST_HEADERS,
};
use crate::request::{Fields, Method, Request, RequestId, RequestSource};
use crate::route::RouteMatch;
use crate::site::{Delivery, DeliveryRefusal, OrderSocket};
use crate::stream::WebStream;

/// A connection for one request in HTTP/1.
pub(crate) struct RequestConnection {
    pub(crate) stream: WebStream,
    /// The request's head; behind it the beginning of a body.
    pub(crate) read: Vec<u8>,
    /// Whether nothing follows the head.
    pub(crate) is_whole: bool,
    /// Whether the connection will be used further.
    pub(crate) keeps: bool,
}

/// Answers one request in HTTP/1; `None`: the connection is broken.
pub(crate) async fn serve_one(
    lent: RequestConnection,
    source: RequestSource,
    shared: &Arc<ServerContext>,
) -> Option<WebStream> {
    let RequestConnection { stream, read, is_whole, keeps } = lent;
    let io = TokioIo::new(Rewound::lent(stream, read, is_whole, Arc::clone(&shared.totals)));
    let progress = ResponseProgress::new(None);
    let service = service_fn(|request: HyperRequest<Incoming>| {
        let (shared, progress) = (Arc::clone(shared), Arc::clone(&progress));
        let orders = Arc::new(Semaphore::new(1));
        let stall = shared.limits.reply_stall;
        async move {
            let response = respond(Came::of(request), &shared, source, &orders, &|| ()).await;
            Ok::<_, Infallible>(
                response.map(|body| body.watched(&progress, stall, ResponseResources::default())),
            )
        }
    });
    let mut conn = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_headers(MAX_REQUEST_HEADERS)
        .max_header_size(MAX_REQUEST_HEAD_BYTES)
        .keep_alive(keeps)
        // That no more comes is not the end of the viewer, and a client that has brought a whole body need not wait for its answer.
        .half_close(true)
        .serve_connection(io, service);
    let served = tokio::select! {
        biased;
        served = &mut conn => served,
        () = progress.stalled(shared.limits.reply_stall) => {
            shared.totals.add(|c| c.connections_too_slow += 1);
            return None;
        }
    };
    match served {
        Ok(()) => Some(conn.into_parts().io.into_inner().into_stream()),
        Err(error) => {
            tracing::debug!(peer = %source.peer, %error, "HTTP: a connection ended early");
            None
        }
    }
}

/// Serves an HTTP/2 connection until it ends; `read` has been read of it.
pub(crate) async fn serve_http2(
    stream: WebStream,
    read: Vec<u8>,
    peer: SocketAddr,
    shared: &Arc<ServerContext>,
    number: u64,
) {
    let is_encrypted = stream.is_encrypted();
    let io = TokioIo::new(Rewound::new(stream, read, Arc::clone(&shared.totals)));
    let (requests, activity) = (AtomicU64::new(0), Activity::new());
    let orders = Arc::new(Semaphore::new(MAX_H2_STREAMS as usize));
    let streams = StreamExecutor {
        activity: Arc::clone(&activity),
        totals: Arc::clone(&shared.totals),
        stall: shared.limits.reply_stall,
    };
    let service = service_fn(|request: HyperRequest<Incoming>| {
        let id = RequestId { conn: number, number: requests.fetch_add(1, Ordering::Relaxed) + 1 };
        let source = RequestSource { peer, is_encrypted, id };
        let (shared, activity, orders) = (Arc::clone(shared), Arc::clone(&activity), Arc::clone(&orders));
        let under_way = activity.begin();
        async move {
            Ok::<_, Infallible>(
                respond_in_turn(request, &shared, source, &orders, &activity, under_way).await,
            )
        }
    });
    let conn = http2::Builder::new(streams)
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_H2_STREAMS)
        .max_pending_accept_reset_streams(MAX_H2_RESETS)
        .max_header_list_size(MAX_REQUEST_HEAD_BYTES as u32)
        .max_send_buf_size(H2_SEND_BUFFER_BYTES)
        .keep_alive_interval(H2_PING)
        .keep_alive_timeout(H2_PING)
        .serve_connection(io, service);
    tokio::pin!(conn);
    let mut ends = shared.ends.clone();
    let ends = async move { ends.wait_for(|ends| *ends).await.map(drop) };
    let result = tokio::select! {
        result = conn.as_mut() => result,
        _ = ends => { conn.as_mut().graceful_shutdown(); conn.await }
        () = activity.broken() => {
            shared.totals.add(|c| c.connections_too_slow += 1);
            return;
        }
        () = activity.idle() => {
            conn.as_mut().graceful_shutdown();
            timeout(H2_PING, conn).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = result {
        tracing::debug!(%peer, %error, "HTTP: a connection ended early");
    }
}

/// Answers a request of an HTTP/2 connection, once it has a permit and memory.
async fn respond_in_turn(
    request: HyperRequest<Incoming>,
    shared: &Arc<ServerContext>,
    source: RequestSource,
    orders: &Arc<Semaphore>,
    activity: &Arc<Activity>,
    under_way: UnderWay,
) -> Response<WebBody> {
    let (progress, stall) = (StreamExecutor::progress(), shared.limits.reply_stall);
    let mut held = ResponseResources { _under_way: Some(under_way), ..ResponseResources::default() };
    let Ok(memory) = shared.memory.take_for(source.peer, head_bytes(&request) + H2_STREAM_BYTES) else {
        if activity.is_crowded() {
            // The error replies would accumulate for a client that reads none.
            activity.break_off();
        }
        let answer = finish(exhausted(), shared);
        return answer.map(|body| body.watched(&progress, stall, held));
    };
    held.memory = Some(memory);
    let came = Came::of(request);
    // An upload must not wait for a permit: the received part of its body is already in memory.
    if came.body.is_none() {
        match timeout(stall, activity.place()).await {
            Ok(place) => held.place = place,
            // The client has not read any response to its earlier requests.
            Err(_) => activity.break_off(),
        }
    }
    // The future is large and needed only while the request is answered; waiting streams and those
    // being sent do not hold it.
    let response = Box::pin(respond(came, shared, source, orders, &|| activity.took())).await;
    response.map(|body| body.watched(&progress, stall, held))
}

/// The parts of a request that are needed until it is answered. A body that is not read is dropped
/// at once, because HTTP/2 would buffer 1 MiB of it.
struct Came {
    request: Result<Request, Answer>,
    body: Option<WantedBody>,
    is_http2: bool,
}

/// A body that is read, and the route of its request.
enum WantedBody {
    Upload(RouteMatch, Incoming),
    /// A change to a title's description, a source for a live title, or a reload of the settings.
    Change(RouteMatch, Incoming),
}

impl Came {
    fn of(request: HyperRequest<Incoming>) -> Self {
        let is_http2 = request.version() == Version::HTTP_2;
        let read = read(&request);
        let upload = read.as_ref().ok().and_then(upload::asked_for);
        let change = read.as_ref().ok().and_then(rename::asked_for);
        let body = match (upload, change) {
            (Some(found), _) => Some(WantedBody::Upload(found, request.into_body())),
            (None, Some(found)) => Some(WantedBody::Change(found, request.into_body())),
            (None, None) => None,
        };
        Self { request: read, body, is_http2 }
    }
}

/// Size of the head of a request, in bytes.
fn head_bytes<B>(request: &HyperRequest<B>) -> usize {
    let fields = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len());
    let target = request.uri().path().len() + request.uri().query().map_or(0, str::len);
    fields.sum::<usize>() + target
}

/// Answers a request. `beat` is called whenever a wanted part of its body arrives.
async fn respond(
    came: Came,
    shared: &Arc<ServerContext>,
    source: RequestSource,
    orders: &Arc<Semaphore>,
    beat: &(dyn Fn() + Sync),
) -> Response<WebBody> {
    let request = match came.request {
        Ok(request) => request,
        Err(answer) => return finish(answer, shared),
    };
    let client = shared.client_of(source, &request.fields);
    if !client.is_admitted {
        return finish(crowded(), shared);
    }
    let source = client.source;
    let mut answer = match came.body {
        Some(WantedBody::Upload(found, mut body)) => {
            let routed = RoutedRequest { shared, request: &request, found: &found, source };
            let answer = dispatch::take_upload(routed, &mut body, beat).await;
            if came.is_http2 {
                upload::let_go(body);
            }
            answer
        }
        Some(WantedBody::Change(found, body)) => {
            let routed = RoutedRequest { shared, request: &request, found: &found, source };
            dispatch::take_change(routed, body).await
        }
        None => dispatch::answer(shared, &request, source).await,
    };
    match std::mem::replace(&mut answer.body, Body::None) {
        Body::Media(media) => {
            let agent = request.fields.agent();
            media_response(answer, MediaOrder { media, source, agent }, shared, orders).await
        }
        body => {
            answer.body = body;
            finish(answer, shared)
        }
    }
}

/// What of a request anything depends on.
fn read(request: &HyperRequest<Incoming>) -> Result<Request, Answer> {
    let hosts = request.headers().get_all("host").iter().count();
    if hosts > 1 || hosts == 0 && request.version() == Version::HTTP_11 {
        return Err(Answer::error(400, "one Host is needed"));
    }
    let path = request.uri().path();
    if path.len() > MAX_TARGET_BYTES {
        return Err(Answer::error(414, "the address is too long"));
    }
    let mut fields = Fields::default();
    for (name, value) in request.headers() {
        fields.note(name.as_str(), value.as_bytes());
    }
    if fields.host.is_none() {
        // In HTTP/2 it is a part of the address.
        fields.host = request.uri().authority().map(ToString::to_string);
    }
    let query = request.uri().query().map(str::to_owned);
    Ok(Request { method: Method::of(request.method().as_str()), path: path.to_owned(), query, fields })
}

/// A response with bytes of a title, once it is known whether they come.
async fn media_response(
    answer: Answer,
    order: MediaOrder,
    shared: &Arc<ServerContext>,
    orders: &Arc<Semaphore>,
) -> Response<WebBody> {
    // The semaphore is never closed.
    let place = Arc::clone(orders).acquire_owned().await.ok();
    let Some((near, far)) = pair() else {
        return finish(Answer::error(503, "too many files are open"), shared);
    };
    let length = order.media.length();
    let order = {
        let shared = Arc::clone(shared);
        // In a task of its own: the response ends before the order is reported as done.
        tokio::spawn(async move {
            let delivery = shared.order(OrderSocket::Inside(far), order, None).arrive().await;
            // A stream that is reset is over at once, the order that it was for only when an engine has noticed. Its place is held until then.
            drop(place);
            delivery
        })
    };
    tokio::pin!(order);
    let done = tokio::select! {
        // Most orders have sent something long before they are done.
        biased;
        first = first_bytes(&near) => match first.is_empty() {
            true => order.await,
            false => return response(answer, WebBody::media(near, first, length), shared),
        },
        done = &mut order => done,
    };
    if !matches!(done, Ok(Delivery::Refused(_))) {
        // A short order, or one that broke off: its bytes are in the pair, followed by the end.
        let first = first_bytes(&near).await;
        if !first.is_empty() {
            return response(answer, WebBody::media(near, first, length), shared);
        }
    }
    finish(refused(done), shared)
}

/// Waits for bytes in the pair; none: its other end is closed.
async fn first_bytes(near: &UnixStream) -> Vec<u8> {
    loop {
        if near.readable().await.is_err() {
            return Vec::new();
        }
        let mut first = vec![0; INSIDE_READ_BYTES];
        match near.try_read(&mut first) {
            Ok(count) => {
                first.truncate(count);
                return first;
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return Vec::new(),
        }
    }
}

/// Returns the response to a viewer if nothing comes.
fn refused(done: Result<Delivery, tokio::task::JoinError>) -> Answer {
    match done {
        Ok(Delivery::Refused(why)) => refusal(&why),
        Ok(Delivery::Sent | Delivery::Broken) | Err(_) => {
            refusal(&DeliveryRefusal::Broken("the title cannot be sent at the moment".to_owned()))
        }
    }
}

/// A socket pair, one end for an engine.
pub(crate) fn pair() -> Option<(UnixStream, std::os::unix::net::UnixStream)> {
    let (near, far) = std::os::unix::net::UnixStream::pair().ok()?;
    near.set_nonblocking(true).and_then(|()| far.set_nonblocking(true)).ok()?;
    Some((UnixStream::from_std(near).ok()?, far))
}

fn finish(mut answer: Answer, shared: &ServerContext) -> Response<WebBody> {
    let body = match std::mem::replace(&mut answer.body, Body::None) {
        Body::Bytes(bytes) | Body::Kept(bytes) => WebBody::whole(bytes, None),
        Body::Segment(bytes, sending) => WebBody::whole(bytes, Some(sending)),
        Body::Length(length) => WebBody::absent(length),
        Body::Events(listener) => WebBody::events(listener),
        Body::None | Body::Media(_) => WebBody::whole(hyper::body::Bytes::new(), None),
    };
    response(answer, body, shared)
}

fn response(answer: Answer, body: WebBody, shared: &ServerContext) -> Response<WebBody> {
    shared.totals.replied(answer.status);
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert("server", HeaderValue::from_static(SERVER));
    for (name, value) in answer.headers {
        // Names are constants of this program, values have no control characters: neither is ever refused.
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::try_from(value))
        {
            headers.append(name, value);
        }
    }
    response
}
