//! A running server, asked by HTTP: what `ls`, `rm`, `add` and `top` need of it.
//!
//! Requests are HTTP/1.0, one a connection: an answer ends where the connection does, whether its length was known or not.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use base64ct::{Base64, Encoding};
use clap::Args;
use millrace_core::limits::web::MAX_REQUEST_HEAD_BYTES;
use millrace_core::text::excerpt;
use serde::de::DeserializeOwned;
use url::Url;

use super::StoreArgs;
use super::connection::Connection;
use crate::limits::control::REMOTE_WAIT;
use crate::limits::web::{DEFAULT_HTTP_PORT, HTTP_PORTS, MAX_API_BYTES};
use crate::rtsp::target::decode;

/// The variable that can hold a token, so that no process list shows it.
const TOKEN: &str = "MILLRACE_TOKEN";

/// The server, and the credentials for it.
#[derive(Args, Clone, Debug)]
pub(super) struct RemoteArgs {
    /// Page of a running server: http://HOST:PORT/ or https://HOST:PORT/, with USER:PASSWORD@ before the host if the server asks for a user
    #[arg(long, value_name = "URL", value_parser = parse_url)]
    pub(super) server: Option<Url>,
    /// Token of a user, instead of name and password in the URL (millrace user token)
    #[arg(long, value_name = "TOKEN", env = TOKEN, hide_env_values = true)]
    token: Option<String>,
    /// PEM file with the certificates of authorities to trust for https://, or with the server's own [default: the system's]
    #[arg(long, value_name = "FILE", requires = "server")]
    ca: Option<PathBuf>,
}

fn parse_url(text: &str) -> Result<Url, String> {
    let wrong = |why: &str| {
        format!("got \"{}\": {why}; write http://HOST:PORT/ or https://HOST:PORT/", excerpt(text, 80))
    };
    let url = Url::parse(text).map_err(|error| wrong(&error.to_string()))?;
    match (url.scheme(), url.host_str()) {
        ("http" | "https", Some(_)) => Ok(url),
        _ => Err(wrong("that is no address of a page")),
    }
}

impl RemoteArgs {
    /// The server that was named; `None`: the store is meant. What then does nothing is an error.
    pub(super) fn named_or_store(&self, store: &StoreArgs) -> anyhow::Result<Option<Remote>> {
        let named = self.named()?;
        let wrong = match &named {
            Some(_) if store.is_typed() => {
                "--server: means a running server, and --store and --member a store on this machine; omit one of them"
            }
            None if self.token.is_some() && self.token != std::env::var(TOKEN).ok() => {
                "--token: is for a running server; say which with --server"
            }
            _ => return Ok(named),
        };
        Err(super::usage(anyhow!(wrong)))
    }

    /// The server that was named.
    fn named(&self) -> anyhow::Result<Option<Remote>> {
        let Some(url) = self.server.clone() else { return Ok(None) };
        if self.ca.is_some() && url.scheme() != "https" {
            return Err(super::usage(anyhow!(
                "--ca: has no effect with a server at http://; use an https:// address, or omit --ca"
            )));
        }
        Ok(Some(self.at(url)))
    }

    fn at(&self, url: Url) -> Remote {
        let authorization = match (&self.token, url.username()) {
            (Some(token), _) => Some(format!("Bearer {token}")),
            (None, "") => None,
            (None, name) => {
                let both = format!("{}:{}", decoded(name), decoded(url.password().unwrap_or_default()));
                Some(format!("Basic {}", Base64::encode_string(both.as_bytes())))
            }
        };
        Remote { url, authorization, ca: self.ca.clone() }
    }

    /// That, or the one on this machine.
    pub(super) fn named_or_local(&self) -> anyhow::Result<Remote> {
        if let Some(named) = self.named()? {
            return Ok(named);
        }
        let mut local = (DEFAULT_HTTP_PORT..DEFAULT_HTTP_PORT + HTTP_PORTS)
            .filter_map(|port| Url::parse(&format!("http://127.0.0.1:{port}/")).ok())
            .map(|url| self.at(url));
        let is_ours =
            |remote: &Remote| remote.ask("HEAD", "healthz").is_ok_and(|answer| answer.head.is_of_millrace);
        local.find(is_ours).with_context(|| {
            let last = DEFAULT_HTTP_PORT + HTTP_PORTS - 1;
            format!("no server on this machine at ports {DEFAULT_HTTP_PORT} to {last}; say where it is: --server http://HOST:PORT/")
        })
    }
}

/// Percent-encoding taken off; what would be no text then stays as it is.
fn decoded(text: &str) -> String {
    decode(text).unwrap_or_else(|| text.to_owned())
}

/// A server.
#[derive(Clone, Debug)]
pub(super) struct Remote {
    url: Url,
    authorization: Option<String>,
    ca: Option<PathBuf>,
}

/// An answer whose body has not been read.
pub(super) struct RemoteResponse {
    pub(super) head: AnswerHead,
    body: BufReader<Connection>,
}

/// The contents of a response head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AnswerHead {
    pub(super) status: u16,
    pub(super) is_of_millrace: bool,
    /// How much of an upload is there.
    pub(super) offset: Option<u64>,
    /// When to ask again.
    pub(super) retry_after: Option<Duration>,
    /// Where to ask instead.
    location: Option<String>,
}

impl Remote {
    /// The server with its page at this address, by plain HTTP, without credentials.
    pub(super) fn plain(url: &str) -> anyhow::Result<Self> {
        Ok(Self { url: parse_url(url).map_err(|why| anyhow!(why))?, authorization: None, ca: None })
    }

    /// Returns its location without confidential parts.
    pub(super) fn place(&self) -> String {
        let port = self.url.port().map(|port| format!(":{port}")).unwrap_or_default();
        format!(
            "{}://{}{port}{}/",
            self.url.scheme(),
            self.url.host_str().unwrap_or_default(),
            self.url.path().trim_end_matches('/')
        )
    }

    /// Returns the resource at this address below the page, as JSON.
    pub(super) fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        let text = self.ask("GET", path)?.text()?;
        serde_json::from_slice(&text).with_context(|| {
            format!(
                "{}{path}: the answer is not what was expected; is it a Millrace server of this version?",
                self.place()
            )
        })
    }

    /// Has name and password, or the token, looked at, if there are any: where none are needed, as for the list of an open server or on its own machine, wrong ones
    /// would go unnoticed.
    pub(super) fn sign_in(&self) -> anyhow::Result<()> {
        const PATH: &str = "api/v1/user";
        if self.authorization.is_none() {
            return Ok(());
        }
        let answer = self.try_ask("GET", PATH).with_context(|| format!("{}{PATH}", self.place()))?;
        match answer.head.status {
            401 | 429 | 503 => self.accepted(PATH, answer).map(drop),
            // A server that does not know this address, or something else: the next request shows
            // which.
            _ => Ok(()),
        }
    }

    /// Lines that come one after the other, until the server ends them or falls silent.
    pub(super) fn lines(&self, path: &str) -> anyhow::Result<impl Iterator<Item = std::io::Result<String>>> {
        let mut body = self.ask("GET", path)?.body;
        body.get_mut().set_open_ended(REMOTE_WAIT);
        Ok(std::iter::from_fn(move || {
            let mut line = String::new();
            match body.by_ref().take(MAX_API_BYTES).read_line(&mut line) {
                Ok(0) => None,
                Ok(_) => Some(Ok(line.trim_end_matches(['\r', '\n']).to_owned())),
                Err(error) => Some(Err(error)),
            }
        }))
    }

    /// Deletes the resource at this address; returns `false` if it does not exist. Only replies
    /// that a Millrace server gives are accepted.
    pub(super) fn remove(&self, path: &str) -> anyhow::Result<bool> {
        let answer = self.try_ask("DELETE", path).with_context(|| format!("{}{path}", self.place()))?;
        let head = answer.head.clone();
        match head.status {
            204 => return Ok(true),
            0..300 => {}
            status => {
                let text = answer.text().unwrap_or_default();
                let said: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
                if status != 404 {
                    return Err(self.refusal(path, &head, &text, ""));
                }
                if said["error"]["message"].is_string() {
                    return Ok(false);
                }
            }
        }
        Err(anyhow!(
            "{}{path}: the answer {} is not that of a Millrace server, and nothing is known to be removed; check --server",
            self.place(),
            head.status
        ))
    }

    /// Changes the resource at this address (PATCH), or adds one there (POST), and returns its new state.
    pub(super) fn send<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        change: Option<&serde_json::Value>,
    ) -> anyhow::Result<T> {
        let text = self.accepted(path, self.try_send(method, path, change)?)?.text()?;
        serde_json::from_slice(&text).with_context(|| format!("{}{path}", self.place()))
    }

    /// The same, whatever the answer.
    pub(super) fn try_send(
        &self,
        method: &str,
        path: &str,
        change: Option<&serde_json::Value>,
    ) -> anyhow::Result<RemoteResponse> {
        let body = change.map(ToString::to_string).unwrap_or_default();
        let head = self.head(method, path, "1.0");
        let request =
            format!("{head}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        self.exchange(&request).with_context(|| format!("{}{path}", self.place()))
    }

    /// Sends a request; a status of 300 or more is an error with the server's reason.
    pub(super) fn ask(&self, method: &str, path: &str) -> anyhow::Result<RemoteResponse> {
        let answer = self.try_ask(method, path).with_context(|| format!("{}{path}", self.place()))?;
        self.accepted(path, answer)
    }

    /// An answer of less than 300.
    fn accepted(&self, path: &str, answer: RemoteResponse) -> anyhow::Result<RemoteResponse> {
        if answer.head.status < 300 {
            return Ok(answer);
        }
        let head = answer.head.clone();
        Err(self.refusal(path, &head, &answer.text().unwrap_or_default(), ""))
    }

    /// Returns the error for any other answer, with a remedy; `hint` is used if nothing better is
    /// known.
    pub(super) fn refusal(&self, path: &str, head: &AnswerHead, text: &[u8], hint: &str) -> anyhow::Error {
        let status = head.status;
        if let (300..=399, Some(location)) = (status, &head.location) {
            let location = excerpt(location, 300);
            return anyhow!(
                "{}{path}: the server redirects to {location}; give --server the beginning of that address",
                self.place()
            );
        }
        let said: serde_json::Value = serde_json::from_slice(text).unwrap_or_default();
        let said = said["error"]["message"].as_str().unwrap_or("no reason");
        let hint = match status {
            401 if self.authorization.is_some() => "; the name, the password or the token is wrong",
            401 => "; put USER:PASSWORD@ before the host, or set MILLRACE_TOKEN",
            404 if self.url.path() != "/" => {
                "; the address of the page is http://HOST:PORT/ if no proxy says otherwise"
            }
            403 if hint.is_empty() => {
                "; only users who manage may do that, and programs on the server's machine"
            }
            _ => hint,
        };
        anyhow!("{}{path}: the server says {status}, {}{hint}", self.place(), excerpt(said, 300))
    }

    /// Has something done, whatever the answer.
    pub(super) fn try_ask(&self, method: &str, path: &str) -> anyhow::Result<RemoteResponse> {
        self.exchange(&format!("{}\r\n", self.head(method, path, "1.0")))
    }

    fn exchange(&self, request: &str) -> anyhow::Result<RemoteResponse> {
        let mut stream = self.connect()?;
        stream.write_all(request.as_bytes())?;
        stream.flush()?;
        let mut body = BufReader::new(stream);
        let head = read_head(&mut body)?;
        Ok(RemoteResponse { head, body })
    }

    /// The head of a request but for its last, empty line.
    pub(super) fn head(&self, method: &str, path: &str, version: &str) -> String {
        let host = self.url.host_str().unwrap_or_default();
        let port = self.url.port_or_known_default().unwrap_or(80);
        let mut head = format!(
            "{method} {}/{path} HTTP/{version}\r\nHost: {host}:{port}\r\n",
            self.url.path().trim_end_matches('/')
        );
        head += concat!("User-Agent: millrace/", env!("CARGO_PKG_VERSION"), "\r\n");
        if let Some(authorization) = &self.authorization {
            head += &format!("Authorization: {authorization}\r\n");
        }
        head
    }

    /// A connection to it.
    pub(super) fn connect(&self) -> anyhow::Result<Connection> {
        Connection::open(&self.url, self.ca.as_deref())
    }
}

impl RemoteResponse {
    /// Its body.
    pub(super) fn text(self) -> anyhow::Result<Vec<u8>> {
        let mut text = Vec::new();
        self.body.take(MAX_API_BYTES + 1).read_to_end(&mut text)?;
        ensure!(text.len() as u64 <= MAX_API_BYTES, "the answer is longer than {MAX_API_BYTES} bytes");
        Ok(text)
    }
}

/// Reads the head of an answer, and not a byte further.
pub(super) fn read_head(from: &mut impl BufRead) -> anyhow::Result<AnswerHead> {
    let mut head = from.take(MAX_REQUEST_HEAD_BYTES as u64);
    let mut line = String::new();
    head.read_line(&mut line)?;
    // A record of TLS with an alert in it (RFC 8446 section 5.1): what servers say to HTTP.
    ensure!(!line.starts_with('\x15'), "the server at this address speaks TLS; write https://");
    let status =
        line.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)).and_then(|code| code.parse().ok());
    let status = status.context("what answers there does not speak HTTP")?;
    let mut read = AnswerHead { status, ..AnswerHead::default() };
    loop {
        line.clear();
        ensure!(head.read_line(&mut line)? > 0, "the response head is cut off or too long");
        let line = line.trim_end();
        if line.is_empty() {
            return Ok(read);
        }
        let Some((field, value)) = line.split_once(':') else { continue };
        let value = value.trim();
        match field.to_ascii_lowercase().as_str() {
            "server" => read.is_of_millrace |= value.to_ascii_lowercase().starts_with("millrace/"),
            "upload-offset" => read.offset = value.parse().ok(),
            "location" => read.location = Some(value.to_owned()),
            "retry-after" => read.retry_after = value.parse().ok().map(Duration::from_secs),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_args_with_url_yield_address_and_authorization() {
        let of = |text: &str, token: Option<&str>| {
            let server = Some(parse_url(text).unwrap());
            RemoteArgs { server, token: token.map(str::to_owned), ca: None }.named().unwrap().unwrap()
        };
        let remote = of("http://anna:pass%20word@tv.example:81/tv/", None);
        assert_eq!(remote.place(), "http://tv.example:81/tv/");
        // printf 'anna:pass word' | base64
        assert_eq!(remote.authorization.as_deref(), Some("Basic YW5uYTpwYXNzIHdvcmQ="));
        assert_eq!(of("http://[::1]", None).place(), "http://[::1]/");
        assert_eq!(of("http://tv/films", None).place(), "http://tv/films/");
        assert_eq!(of("https://tv:8443/", None).place(), "https://tv:8443/");
        assert_eq!(of("http://anna@tv", Some("t")).authorization.as_deref(), Some("Bearer t"));
        for (text, why) in [
            ("tv.example", "write http://"),
            ("https://", "write http://HOST:PORT/ or https://HOST:PORT/"),
            ("rtsp://tv/", "no address of a page"),
        ] {
            assert!(parse_url(text).unwrap_err().contains(why), "{text}");
        }
        assert_eq!(decoded("a%2Fb%zz%"), "a/b%zz%");
    }

    #[test]
    fn heads_of_answers() {
        let read = |text: &str| read_head(&mut text.as_bytes()).map_err(|error| error.to_string());
        let ours = AnswerHead { status: 200, is_of_millrace: true, ..AnswerHead::default() };
        assert_eq!(read("HTTP/1.1 200 OK\r\nServer: millrace/1\r\n\r\nbody"), Ok(ours));
        let other = AnswerHead { status: 404, ..AnswerHead::default() };
        assert_eq!(read("HTTP/1.0 404 Not Found\r\nServer: nginx\r\n\r\n"), Ok(other));
        let (offset, retry_after) = (Some(7), Some(Duration::from_secs(5)));
        let busy = AnswerHead { status: 409, offset, retry_after, ..AnswerHead::default() };
        assert_eq!(read("HTTP/1.1 409 Conflict\r\nupload-offset: 7\r\nRetry-After: 5\r\n\r\n"), Ok(busy));
        assert!(read("SSH-2.0-OpenSSH\r\n").is_err());
        assert!(read("\x15\x03\x03\0\x02\x02\x32").unwrap_err().contains("write https://"));
        assert!(read("HTTP/1.1 200 OK\r\nServer: millrace/1\r\n").unwrap_err().contains("cut off"));
        let endless = format!("HTTP/1.1 200 OK\r\n{}", "a: b\r\n".repeat(10_000));
        assert!(read(&endless).unwrap_err().contains("too long"));
        bolero::check!().for_each(|bytes: &[u8]| drop(read_head(&mut &bytes[..])));
    }
}
