//! Errors at the far end. Each message states the problem, its place and the remedy.

use std::io;
use std::path::PathBuf;

/// Why a reception could not be done, or not be finished.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The URL cannot be used.
    #[error("URL: got \"{given}\": {why}; write rtsp://host[:port]/path")]
    Url {
        /// The text given.
        given: String,
        /// The problem with it.
        why: &'static str,
    },
    /// A target cannot be watched or listened to.
    #[error(
        "target: got \"{given}\": {why}; write rtsp://host/film, http://host/film.ts or .m3u8, udp://:port or rtp://:port"
    )]
    Target {
        /// The text given.
        given: String,
        /// The problem with it.
        why: &'static str,
    },
    /// A script of pauses and seeks cannot be read.
    #[error(
        "script: got \"{given}\": {why}; write for example pause@5,play@8,seek@10=30 (seconds, in rising order)"
    )]
    Script {
        /// The part that is wrong.
        given: String,
        /// The problem with it.
        why: &'static str,
    },
    /// An option has a value that cannot be used.
    #[error("{option}: got {got}; allowed {allowed}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// Its value.
        got: String,
        /// The allowed values.
        allowed: &'static str,
    },
    /// A port cannot be listened at.
    #[error("{address}: port + {distance}: {why}; is another program using it? Choose another port")]
    Listen {
        /// The address that was given.
        address: String,
        /// Distance of the port that is meant from the one in the address.
        distance: u16,
        /// The cause.
        why: String,
    },
    /// The host name has no address.
    #[error("host {host}: no address: {source}; check the name, or write the address itself")]
    Resolve {
        /// The name.
        host: String,
        /// The resolver's error.
        source: io::Error,
    },
    /// No TCP connection to the server.
    #[error(
        "connection to {address}: {source}; check that the server runs and that its RTSP port can be reached"
    )]
    Connect {
        /// The server.
        address: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The RTSP dialogue failed.
    #[error("{url}: {failure}")]
    Rtsp {
        /// The title.
        url: String,
        /// What happened.
        failure: RtspFailure,
    },
    /// A socket, poll or epoll call failed on this side.
    #[error("{what}: {source}")]
    Socket {
        /// The operation attempted.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// The output cannot be written.
    #[error("output {}: {source} after {written} bytes; {advice}", path.display())]
    Output {
        /// The file, or `-`.
        path: PathBuf,
        /// Bytes that were written before.
        written: u64,
        /// The kernel's error.
        source: io::Error,
        /// What to do.
        advice: &'static str,
    },
    /// The reference file of the byte check cannot be read.
    #[error("reference {}: {source}; it must be the .ts file that the server sends", path.display())]
    Reference {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// Cancelled before there was anything to report.
    #[error("cancelled before playback began")]
    Cancelled,
}

/// Why an RTSP dialogue failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RtspFailure {
    /// The server refused.
    #[error("{method} refused: {status} {reason}{advice}")]
    Status {
        /// The request.
        method: &'static str,
        /// Its status code.
        status: u16,
        /// Its reason phrase.
        reason: String,
        /// What to do, with a leading separator, or empty.
        advice: &'static str,
    },
    /// No reply in time.
    #[error("{method}: no reply within {seconds} s")]
    NoReply {
        /// The request.
        method: &'static str,
        /// How long was waited.
        seconds: u64,
    },
    /// The server closed the connection while a reply was due.
    #[error("{method}: the server closed the connection instead of a reply")]
    Closed {
        /// The request, or the state if none was pending.
        method: &'static str,
    },
    /// The server's reply is not RTSP.
    #[error("{method}: the reply cannot be read: {what}")]
    Malformed {
        /// The request.
        method: &'static str,
        /// The problem.
        what: String,
    },
    /// The description has nothing that this receiver takes.
    #[error("DESCRIBE: {0}")]
    NoMedia(String),
}

impl ClientError {
    /// Whether another command line would avoid it.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Option { .. } | Self::Url { .. } | Self::Target { .. } | Self::Script { .. })
    }
}

impl RtspFailure {
    /// A short text without numbers that vary, to count failures of a kind.
    pub fn kind(&self) -> String {
        match self {
            Self::Status { method, status, .. } => format!("{method} refused: {status}"),
            Self::NoReply { method, .. } => format!("{method}: no reply"),
            Self::Closed { method } => format!("{method}: connection closed"),
            Self::Malformed { method, .. } => format!("{method}: malformed reply"),
            Self::NoMedia(_) => "DESCRIBE: no stream that can be taken".to_owned(),
        }
    }
}

/// What to do about a status code, as the end of a sentence.
pub(crate) fn advice_for(status: u16) -> &'static str {
    match status {
        301..=308 => "; the title has moved: use the address that the server names",
        401 => "; the server wants a password, which this receiver cannot give",
        403 => "; the server does not let this address in",
        404 => "; check the title's name in the URL",
        453 => "; try later, or raise the limit that the server names",
        454 => "; the server has forgotten the session: it expired or the server was started again",
        457 => "; the requested position is outside the title",
        459 | 460 => "; the server wants another URL for this request",
        461 => "; try the other transport (udp, tcp)",
        503 => "; try later",
        _ => "",
    }
}
