//! A webhook: each question whether a client may watch is a POST to the operator's program, as
//! JSON. 200 to 299 mean yes, 401 and 403 mean no; everything else, and no reply in time, is no
//! answer. One connection per question, by HTTP or HTTPS, on a thread of its own.

use std::net::IpAddr;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use hyper::client::conn::http1;
use hyper::header::{ACCEPT, CONNECTION, CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use millrace_core::limits::rights::MAX_ADVICE_ASKED;
use millrace_rights::{Adviser, Answered, Question};
use millrace_tls::{CertificateError, Trust};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::answer::SERVER;
use crate::limits::MAX_ADVICE_HEAD_BYTES;

/// Why there is no webhook.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    /// Its address cannot be one.
    #[error("got \"{0}\"; write http://HOST:PORT/PATH or https://HOST:PORT/PATH, without a user's name")]
    Address(String),
    /// No authority is available to decide whether its certificate is trusted.
    #[error(transparent)]
    Trust(#[from] CertificateError),
    /// Its thread cannot be started.
    #[error("the thread of the webhook: {0}; raise the limit of threads")]
    Thread(#[from] std::io::Error),
}

/// Where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct WebhookUrl {
    is_tls: bool,
    host: String,
    port: u16,
    /// As `Host` has it.
    authority: String,
    path: String,
}

impl FromStr for WebhookUrl {
    type Err = WebhookError;

    fn from_str(text: &str) -> Result<Self, WebhookError> {
        let wrong = || WebhookError::Address(text.to_owned());
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'));
        let is_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong()),
        };
        let authority = authority.ok_or_else(wrong)?;
        let host = authority.host();
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if bare.is_empty() {
            return Err(wrong());
        }
        Ok(Self {
            is_tls,
            host: bare.to_owned(),
            port: authority.port_u16().unwrap_or(if is_tls { 443 } else { 80 }),
            authority: authority.to_string(),
            path: uri.path_and_query().map_or("/".to_owned(), ToString::to_string),
        })
    }
}

/// A question on its way.
type WebhookJob = (String, Answered);

/// The program, as it is asked.
#[derive(Debug)]
pub struct Webhook(mpsc::Sender<WebhookJob>);

impl Webhook {
    /// Starts the thread that asks; each question must be answered within `limit`. It ends when
    /// this is dropped. For `https://`, an authority in the file `ca` must have signed the
    /// program's certificate, or else one that the system trusts.
    ///
    /// # Errors
    /// The address is none, there are no authorities, or there is no thread.
    pub fn start(address: &str, limit: Duration, ca: Option<&Path>) -> Result<Self, WebhookError> {
        let target: WebhookUrl = address.parse()?;
        let trust = target.is_tls.then(|| Trust::read(ca, "--webhook-ca")).transpose()?;
        let (jobs, mut asked) = mpsc::channel::<WebhookJob>(MAX_ADVICE_ASKED);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(MAX_ADVICE_ASKED)
            .build()?;
        std::thread::Builder::new().name("webhook".to_owned()).spawn(move || {
            runtime.block_on(async {
                while let Some((body, answered)) = asked.recv().await {
                    let (target, trust) = (target.clone(), trust.clone());
                    tokio::spawn(async move {
                        let answer = timeout(limit, ask(&target, trust.as_ref(), body)).await;
                        answered(answer.unwrap_or_else(|_| Err(format!("nothing within {limit:?}"))));
                    });
                }
            });
            // A name that is being looked up is not waited for.
            runtime.shutdown_background();
        })?;
        Ok(Self(jobs))
    }

    /// Whether an address can be one.
    ///
    /// # Errors
    /// It cannot.
    pub fn check(address: &str) -> Result<(), WebhookError> {
        address.parse::<WebhookUrl>().map(drop)
    }
}

impl Adviser for Webhook {
    fn ask(&self, question: &Question, answered: Answered) {
        let sent = self.0.try_send((body(question), answered));
        if let Err(
            mpsc::error::TrySendError::Full((_, answered)) | mpsc::error::TrySendError::Closed((_, answered)),
        ) = sent
        {
            answered(Err("too many requests are waiting for it".to_owned()));
        }
    }
}

fn body(question: &Question) -> String {
    let Question { title, user, has_link, address } = question;
    let address: &IpAddr = address;
    json!({ "title": title, "user": user.as_deref(), "link": has_link, "address": address }).to_string()
}

/// Asks once.
async fn ask(target: &WebhookUrl, trust: Option<&Trust>, body: String) -> Result<bool, String> {
    let stream = TcpStream::connect((&*target.host, target.port)).await.map_err(|e| failed("connect")(&e))?;
    match trust {
        None => ask_over(stream, target, body).await,
        Some(trust) => {
            let stream =
                trust.connect_async(&target.host, stream).await.map_err(|e| failed("connect")(&e))?;
            ask_over(stream, target, body).await
        }
    }
}

fn failed(what: &'static str) -> impl Fn(&dyn std::fmt::Display) -> String {
    move |error| format!("{what}: {error}")
}

/// Asks over a connection.
async fn ask_over<S>(stream: S, target: &WebhookUrl, body: String) -> Result<bool, String>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (mut sender, conn) = http1::Builder::new()
        .max_buf_size(MAX_ADVICE_HEAD_BYTES)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|e| failed("connect")(&e))?;
    let request = Request::post(&target.path)
        .header(HOST, &target.authority)
        .header(USER_AGENT, SERVER)
        .header(ACCEPT, "*/*")
        .header(CONNECTION, "close")
        .header(CONTENT_TYPE, "application/json")
        .body(body)
        .map_err(|e| failed("ask")(&e))?;
    let response = sender.send_request(request);
    tokio::pin!(conn, response);
    let response = tokio::select! {
        biased;
        response = &mut response => response,
        ended = &mut conn => match ended {
            // Everything it received has been passed on by then.
            Ok(()) => response.await,
            Err(error) => Err(error),
        },
    };
    match response.map_err(|e| failed("answer")(&e))?.status().as_u16() {
        200..300 => Ok(true),
        401 | 403 => Ok(false),
        status => Err(format!("it answers {status}")),
    }
}

#[cfg(test)]
#[path = "webhook_tests.rs"]
mod tests;
