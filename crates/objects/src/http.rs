//! The HTTP client below the S3 client: plain or over TLS, with kept connections and a limit in time for every step. It trusts whom
//! the other commands trust.

use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hyper::Uri;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::rt::ReadBufCursor;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use millrace_tls::Trust;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse,
    HttpResponseBody, HttpService,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep, timeout};
use tower_service::Service;

use crate::error::ObjectError;
use crate::limits::{CONNECT_TIME, IDLE_CONNECTIONS, IDLE_TIME, RESPONSE_TIME};

/// Makes clients for the S3 client.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    trust: Option<Arc<Trust>>,
    body_time: Duration,
}

impl Connector {
    /// A client that trusts the authorities in a file, or else the system's. A system without authorities can use http:// all the same.
    ///
    /// # Errors
    /// If there are none in the file.
    pub(crate) fn new(ca: Option<&Path>, body_time: Duration) -> Result<Self, ObjectError> {
        let trust = match (Trust::read(ca, "--endpoint-ca"), ca) {
            (Ok(trust), _) => Some(Arc::new(trust)),
            (Err(error), Some(_)) => return Err(ObjectError::Authorities(error)),
            (Err(_), None) => None,
        };
        Ok(Self { trust, body_time })
    }
}

impl HttpConnector for Connector {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE_TIME)
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .build(self.clone());
        Ok(HttpClient::new(TimedClient { client, body_time: self.body_time }))
    }
}

/// A client whose steps have limits in time.
#[derive(Debug)]
struct TimedClient {
    client: Client<Connector, HttpRequestBody>,
    body_time: Duration,
}

#[async_trait]
impl HttpService for TimedClient {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let response =
            timeout(RESPONSE_TIME, self.client.request(request)).await.map_err(|_| late(RESPONSE_TIME))?;
        let response = response.map_err(|error| {
            let kind = if error.is_connect() { HttpErrorKind::Connect } else { kind_of(&error) };
            HttpError::new(kind, error)
        })?;
        Ok(response.map(|body| HttpResponseBody::new(TimedBody::new(body, self.body_time))))
    }
}

fn late(limit: Duration) -> HttpError {
    let error = io::Error::new(io::ErrorKind::TimedOut, format!("no data within {} s", limit.as_secs()));
    HttpError::new(HttpErrorKind::Timeout, error)
}

/// Whether a request may be made again after this error.
fn kind_of(error: &(dyn std::error::Error + 'static)) -> HttpErrorKind {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<hyper::Error>()
            && (error.is_closed() || error.is_incomplete_message() || error.is_body_write_aborted())
        {
            return HttpErrorKind::Interrupted;
        }
        if error.is::<io::Error>() {
            return HttpErrorKind::Interrupted;
        }
        next = error.source();
    }
    HttpErrorKind::Unknown
}

/// A body whose next bytes must come within a limit.
struct TimedBody {
    body: Incoming,
    late: Pin<Box<Sleep>>,
    limit: Duration,
}

impl TimedBody {
    fn new(body: Incoming, limit: Duration) -> Self {
        Self { body, late: Box::pin(sleep(limit)), limit }
    }
}

impl Body for TimedBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(frame) => {
                let next = sleep(self.limit);
                self.late.as_mut().set(next);
                Poll::Ready(frame.map(|frame| frame.map_err(|e| HttpError::new(kind_of(&e), e))))
            }
            Poll::Pending => {
                let limit = self.limit;
                self.late.as_mut().poll(cx).map(|()| Some(Err(late(limit))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Service<Uri> for Connector {
    type Response = Stream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let trust = self.trust.clone();
        Box::pin(async move {
            let connected = timeout(CONNECT_TIME, connect(&uri, trust)).await;
            connected.unwrap_or_else(|_| {
                let what = format!("no connection within {} s", CONNECT_TIME.as_secs());
                Err(io::Error::new(io::ErrorKind::TimedOut, what))
            })
        })
    }
}

async fn connect(uri: &Uri, trust: Option<Arc<Trust>>) -> io::Result<Stream> {
    let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what.to_owned());
    let is_tls = uri.scheme_str() == Some("https");
    let host = uri.host().ok_or_else(|| wrong("the address has no host"))?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let stream = TcpStream::connect((bare, uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 }))).await?;
    stream.set_nodelay(true)?;
    let io: Box<dyn ReadWrite> = match (is_tls, trust) {
        (false, _) => Box::new(stream),
        (true, Some(trust)) => {
            let stream = trust.connect_async(bare, stream).await;
            Box::new(stream.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?)
        }
        (true, None) => {
            return Err(wrong(
                "this system has no list of authorities for https://; install ca-certificates",
            ));
        }
    };
    Ok(Stream(TokioIo::new(io)))
}

trait ReadWrite: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ReadWrite for T {}

/// A connection, plain or over TLS.
pub(crate) struct Stream(TokioIo<Box<dyn ReadWrite>>);

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl hyper::rt::Read for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl hyper::rt::Write for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
