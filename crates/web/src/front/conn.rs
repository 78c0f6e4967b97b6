//! One connection: requests one after the other, each answered here or by hyper, until it ends or turns out to be HTTP/2.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::{Buf, Bytes};
use millrace_core::limits::control::CONN_LINGER;
use millrace_core::limits::web::{MAX_BYTES_STALL_NS, MAX_REQUEST_HEAD_BYTES};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};

use super::head::{self, FrontRequest, OtherRequest, Parsed};
use super::reply::{self, Then};
use crate::answer::{Answer, Body};
use crate::clients::ConnectionSlot;
use crate::context::ServerContext;
use crate::delivery::MediaOrder;
use crate::dispatch;
use crate::failures::{crowded, refusal};
use crate::hyper_side::{self, RequestConnection};
use crate::limits::{
    HEAD_TIME, INSIDE_READ_BYTES, LEAST_REPLY_RATE, MAX_PIPELINED_BYTES, WEB_IDLE_TIME, WEB_READ_BYTES,
};
use crate::request::{RequestId, RequestSource};
use crate::site::{Delivery, DeliveryRefusal, OrderSocket, TunnelConn};
use crate::stream::WebStream;

/// A connection, with bytes read from it and not used yet.
struct FrontConnection {
    stream: WebStream,
    read: Vec<u8>,
    peer: SocketAddr,
    shared: Arc<ServerContext>,
    number: u64,
    requests: u64,
}

/// Outcome of a media order, with the connection if it is still usable.
enum MediaOutcome {
    Sent(FrontConnection),
    /// Nothing was sent; the refusal is still to be written.
    Refused(FrontConnection, DeliveryRefusal),
    /// A part was sent, or nothing, and the connection is gone.
    Over,
}

/// Serves a connection until it ends.
pub(super) async fn serve(
    stream: WebStream,
    peer: SocketAddr,
    shared: Arc<ServerContext>,
    place: ConnectionSlot,
) {
    let number = shared.next_number();
    let mut conn = FrontConnection { stream, read: Vec::new(), peer, shared, number, requests: 0 };
    loop {
        let next = match conn.next_head().await {
            Some(Parsed::Front(request, length)) => {
                conn.read.drain(..length);
                // Most connections are idle most of the time: they keep the small part only.
                Box::pin(conn.answer(*request)).await
            }
            Some(Parsed::Other(request)) => Box::pin(conn.pass_on(request)).await,
            // On a connection with earlier requests, the head could have been forged in a viewer's
            // name (request smuggling).
            Some(Parsed::Tunnel(fields)) if conn.requests == 0 => {
                conn.peer = conn.shared.proxies.client_of(conn.peer, &fields);
                Box::pin(conn.hand_over()).await;
                break;
            }
            Some(Parsed::Tunnel(_)) => {
                conn.refuse(400, "RTSP in HTTP begins a connection").await;
                break;
            }
            Some(Parsed::Http2) => {
                let FrontConnection { stream, read, peer, shared, number, .. } = conn;
                Box::pin(hyper_side::serve_http2(stream, read, peer, &shared, number)).await;
                break;
            }
            Some(Parsed::Bad(status, why)) => {
                conn.refuse(status, why).await;
                break;
            }
            Some(Parsed::More) | None => {
                conn.say_end().await;
                break;
            }
        };
        match next {
            Some(next) => conn = next,
            None => break,
        }
    }
    drop(place);
}

impl FrontConnection {
    /// Reads until a head is whole; `None`: no more requests come.
    async fn next_head(&mut self) -> Option<Parsed> {
        if self.read.is_empty() {
            self.read = Vec::new();
            let mut ends = self.shared.ends.clone();
            let came = tokio::select! {
                came = timeout(WEB_IDLE_TIME, self.first_bytes()) => came.unwrap_or(false),
                _ = ends.wait_for(|ends| *ends) => false,
            };
            if !came {
                return None;
            }
        }
        match timeout(HEAD_TIME, self.read_head()).await {
            Ok(parsed) => parsed,
            Err(_) => {
                self.shared.totals.add(|c| c.connections_too_slow += 1);
                Some(Parsed::Bad(408, "the request did not come whole in time"))
            }
        }
    }

    /// Waits for the beginning of a request; false: the connection has ended.
    async fn first_bytes(&mut self) -> bool {
        self.stream.read_behind(&mut self.read).await.is_ok_and(|count| count > 0)
    }

    async fn read_head(&mut self) -> Option<Parsed> {
        let mut seen = 0;
        loop {
            match head::parse(&self.read, seen) {
                Parsed::More => {}
                parsed => return Some(parsed),
            }
            seen = self.read.len();
            let room = MAX_REQUEST_HEAD_BYTES + WEB_READ_BYTES - seen.min(MAX_REQUEST_HEAD_BYTES);
            self.read.reserve(room.min(WEB_READ_BYTES));
            match self.stream.read_buf(&mut self.read).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    /// Answers a request; gives the connection back if it can be used further.
    async fn answer(mut self, request: FrontRequest) -> Option<Self> {
        self.requests += 1;
        let FrontRequest { request, keeps, is_old } = request;
        let mut then = match (keeps && !*self.shared.ends.borrow(), is_old) {
            (false, _) => Then::Close,
            (true, true) => Then::KeepOld,
            (true, false) => Then::Keep,
        };
        let shared = Arc::clone(&self.shared);
        let client = shared.client_of(self.source(), &request.fields);
        let mut answer = match client.is_admitted {
            true => dispatch::answer(&shared, &request, client.source).await,
            false => crowded(),
        };
        let conn = match std::mem::replace(&mut answer.body, Body::None) {
            Body::Media(mut media) => {
                // Without a length the body ends with the connection (RFC 9112 section 6.3).
                match media.length() {
                    Some(length) => answer.body = Body::Length(length),
                    None => then = Then::Close,
                }
                media.before = [reply::head(&answer, then), media.before].concat();
                let order = MediaOrder { media, source: client.source, agent: request.fields.agent() };
                Box::pin(self.send_media(order, answer.status, then)).await
            }
            body => {
                answer.body = body;
                let is_written = self.write(&answer, then, true).await.is_ok();
                is_written.then_some(self)
            }
        };
        match (conn, then) {
            (Some(mut conn), Then::Close) => {
                conn.linger().await;
                None
            }
            (conn, _) => conn,
        }
    }

    /// Has hyper answer a request; gives the connection back if it can be used further.
    async fn pass_on(mut self, request: OtherRequest) -> Option<Self> {
        self.requests += 1;
        let source = self.source();
        let OtherRequest { length, is_whole, keeps } = request;
        let Self { stream, mut read, peer, shared, number, requests } = self;
        // Heads that come behind this one are read here: hyper would take some that can be read in two ways.
        let rest = if is_whole { read.split_off(length) } else { Vec::new() };
        let lent = RequestConnection { stream, read, is_whole, keeps };
        let stream = hyper_side::serve_one(lent, source, &shared).await?;
        let mut conn = Self { stream, read: rest, peer, shared, number, requests };
        if !keeps {
            conn.linger().await;
            return None;
        }
        Some(conn)
    }

    /// Answers a malformed head with an error and closes the connection.
    async fn refuse(mut self, status: u16, why: &'static str) {
        self.shared.totals.add(|c| c.bad_messages += 1);
        let _ = self.write(&Answer::error(status, why), Then::Close, true).await;
        self.linger().await;
    }

    /// Hands the connection to the RTSP server. TLS connections and those of another TCP stack are
    /// relayed here until they end.
    async fn hand_over(self) {
        let Self { mut stream, read, peer, shared, .. } = self;
        let is_encrypted = stream.is_encrypted();
        if let WebStream::Plain(stream) = stream {
            let local = stream.local_addr().ok();
            let socket = OrderSocket::Viewer(stream.into_std());
            shared.site.take_tunnel(TunnelConn { socket, read, peer, local, is_encrypted });
            return;
        }
        let Ok((mut near, far)) = UnixStream::pair() else { return };
        let Ok(far) = far.into_std() else { return };
        let socket = OrderSocket::Inside(far);
        shared.site.take_tunnel(TunnelConn { socket, read, peer, local: None, is_encrypted });
        // If one end breaks, the other sees the end of the stream.
        let _ = tokio::io::copy_bidirectional(&mut stream, &mut near).await;
    }

    /// The peer, and the id of the request that is being answered.
    fn source(&self) -> RequestSource {
        let id = RequestId { conn: self.number, number: self.requests };
        RequestSource { peer: self.peer, is_encrypted: self.stream.is_encrypted(), id }
    }

    /// Asks an engine to send the requested media; returns the connection if it can be used
    /// further.
    async fn send_media(self, order: MediaOrder, status: u16, then: Then) -> Option<Self> {
        let outcome = match &self.stream {
            WebStream::Plain(_) => self.share(order, status, then).await?,
            WebStream::Carried(_) => self.lend(order, status).await?,
            WebStream::Tls(_) => self.relay(order, status).await?,
        };
        match outcome {
            MediaOutcome::Sent(conn) => Some(conn),
            MediaOutcome::Refused(mut conn, why) => {
                conn.write(&refusal(&why), then, true).await.ok()?;
                Some(conn)
            }
            MediaOutcome::Over => None,
        }
        // The bytes waiting here were sent ahead; no player sends this many.
        .filter(|conn| conn.read.len() <= MAX_PIPELINED_BYTES)
    }

    /// Has an engine write to the connection. `None`: the socket is unusable.
    async fn share(mut self, order: MediaOrder, status: u16, then: Then) -> Option<MediaOutcome> {
        let WebStream::Plain(stream) = &mut self.stream else { return None };
        let socket = OrderSocket::Viewer(stream.share().ok()?);
        let mut outcome = self.shared.order(socket, order, Some(status));
        let mut ends = self.shared.ends.clone();
        let delivery = match then {
            Then::Keep | Then::KeepOld if self.read.is_empty() => tokio::select! {
                // If all is sent, there is nothing to do here before the next request.
                delivery = outcome.fail() => Some(delivery),
                () = stream.readable() => None,
                _ = ends.wait_for(|ends| *ends) => None,
                () = sleep(WEB_IDLE_TIME) => None,
            },
            _ => None,
        };
        let delivery = match delivery {
            Some(delivery) => delivery,
            None => outcome.arrive().await,
        };
        Some(match delivery {
            Delivery::Sent => MediaOutcome::Sent(self),
            Delivery::Refused(why) => MediaOutcome::Refused(self, why),
            Delivery::Broken => MediaOutcome::Over,
        })
    }

    /// Has an engine write to a connection of another TCP. The connection stays here, and is read
    /// meanwhile.
    async fn lend(mut self, order: MediaOrder, status: u16) -> Option<MediaOutcome> {
        let WebStream::Carried(carried) = &self.stream else { return None };
        let socket = OrderSocket::Carried(carried.lend());
        let mut outcome = self.shared.order(socket, order, Some(status));
        let mut has_ended = false;
        let delivery = loop {
            tokio::select! {
                biased;
                delivery = outcome.arrive() => break delivery,
                // It is read although nothing is answered: what waits there takes room that all connections share.
                came = self.stream.read_behind(&mut self.read), if !has_ended => {
                    has_ended = !matches!(came, Ok(1..));
                    if self.read.len() > MAX_PIPELINED_BYTES {
                        // No player does that. The engine learns that the connection no longer
                        // exists.
                        drop(self.stream);
                        outcome.arrive().await;
                        return Some(MediaOutcome::Over);
                    }
                }
            }
        };
        if let (WebStream::Carried(carried), false) = (&self.stream, delivery == Delivery::Broken) {
            carried.take_back();
        }
        Some(match delivery {
            Delivery::Sent => MediaOutcome::Sent(self),
            Delivery::Refused(why) => MediaOutcome::Refused(self, why),
            Delivery::Broken => MediaOutcome::Over,
        })
    }

    /// Lets an engine write into a pair, and passes on its output: only this side can encrypt.
    async fn relay(mut self, order: MediaOrder, status: u16) -> Option<MediaOutcome> {
        let Some((near, far)) = hyper_side::pair() else {
            let why = DeliveryRefusal::Full("too many files are open".to_owned());
            return Some(MediaOutcome::Refused(self, why));
        };
        let length = order.media.length();
        let shared = Arc::clone(&self.shared);
        // The engine's end is closed when the order is done, which ends the reads below.
        let order = async {
            match shared.order(OrderSocket::Inside(far), order, Some(status)).arrive().await {
                Delivery::Sent => Ok(()),
                Delivery::Refused(why) => Err(Some(why)),
                Delivery::Broken => Err(None),
            }
        };
        let (outcome, passed) = tokio::join!(order, pass_on_all(near, &mut self.stream, length));
        Some(match (outcome, passed) {
            (Err(Some(why)), _) => MediaOutcome::Refused(self, why),
            (Err(None), _) => MediaOutcome::Over,
            (Ok(()), Ok(())) => MediaOutcome::Sent(self),
            (Ok(()), Err(error)) => {
                if error.kind() == io::ErrorKind::TimedOut {
                    shared.totals.add(|c| c.connections_too_slow += 1);
                }
                MediaOutcome::Over
            }
        })
    }

    /// Writes a response that is in memory.
    async fn write(&mut self, answer: &Answer, then: Then, is_counted: bool) -> io::Result<()> {
        let head = reply::head(answer, then);
        // Many slow readers of a playlist share its bytes.
        let body = match &answer.body {
            Body::Bytes(body) | Body::Kept(body) | Body::Segment(body, _) => body.clone(),
            _ => Bytes::new(),
        };
        if is_counted {
            self.shared.totals.replied(answer.status);
        }
        let stall = self.shared.limits.reply_stall;
        let limit = stall + Duration::from_secs(body.len() as u64 / LEAST_REPLY_RATE);
        let mut rest = Buf::chain(&head[..], body);
        let written = timeout(limit, self.write_all(&mut rest)).await;
        let written = written.unwrap_or_else(|_| {
            self.shared.totals.add(|c| c.connections_too_slow += 1);
            Err(io::ErrorKind::TimedOut.into())
        });
        if let Body::Segment(bytes, sending) = &answer.body {
            let left = rest.remaining().min(bytes.len());
            sending.takes((bytes.len() - left) as u64, written.is_ok());
        }
        written
    }

    async fn write_all(&mut self, rest: &mut impl Buf) -> io::Result<()> {
        let stall = self.shared.limits.reply_stall;
        while rest.has_remaining() {
            match timeout(stall, self.stream.write_buf(rest)).await {
                Ok(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return Err(error),
                Err(_) => return Err(self.too_slow()),
            }
        }
        // By TLS something may be left here.
        timeout(stall, self.stream.flush()).await.unwrap_or_else(|_| Err(self.too_slow()))
    }

    fn too_slow(&self) -> io::Error {
        self.shared.totals.add(|c| c.connections_too_slow += 1);
        io::ErrorKind::TimedOut.into()
    }

    /// Announces the end by TLS, so that it differs from a connection that was cut.
    async fn say_end(&mut self) {
        if let WebStream::Tls(_) = &self.stream {
            // A viewer that takes nothing is not waited for.
            let _ = timeout(CONN_LINGER, self.stream.shutdown()).await;
        }
    }

    /// Lets the viewer take the last response: closing with bytes unread would reset the connection, and the response would be lost with it
    /// (RFC 9112 section 9.6).
    async fn linger(&mut self) {
        if !timeout(CONN_LINGER, self.stream.shutdown()).await.is_ok_and(|shut| shut.is_ok()) {
            return;
        }
        let drain = async {
            let mut bytes = [0; 512];
            while self.stream.read(&mut bytes).await.is_ok_and(|count| count > 0) {}
        };
        let _ = timeout(CONN_LINGER, drain).await;
    }
}

/// Passes on the `length` bytes that an engine writes into the other end of a pair; fails if fewer
/// come, or if the viewer takes none for too long.
async fn pass_on_all(near: UnixStream, viewer: &mut WebStream, length: Option<u64>) -> io::Result<()> {
    let mut left = length.unwrap_or(u64::MAX);
    while left > 0 {
        near.readable().await?;
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(INSIDE_READ_BYTES);
        let mut bytes = vec![0; most];
        let count = match near.try_read(&mut bytes) {
            Ok(0) if length.is_none() => return Ok(()),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        };
        left -= count as u64;
        let written = async {
            viewer.write_all(&bytes[..count]).await?;
            viewer.flush().await
        };
        // As long as an engine waits for a viewer whose connection it has.
        timeout(Duration::from_nanos(MAX_BYTES_STALL_NS), written)
            .await
            .map_err(|_| io::ErrorKind::TimedOut)??;
    }
    Ok(())
}
