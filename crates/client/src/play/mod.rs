//! One player: plays a title by RTSP, measures and checks the packets received, and writes them to
//! the chosen output.

mod connect;
mod listen;
mod media;
mod nvod;
mod progress;
mod session;
mod summary;

use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use millrace_core::scale::Scale;
use millrace_core::text::excerpt;
use millrace_core::time::MediaTicks;

use crate::error::ClientError;
use crate::fec::FecChoice;
use crate::limits::{
    FEC_WAIT_NS, REORDER_PACKETS, REORDER_WAIT, REPLY_TIMEOUT, RTP_BUFFER_BYTES, SILENCE, UDP_TIMEOUT,
};
use crate::listen::ListenUrl;
use crate::listen::address::Carriage;
use crate::report::ReceptionReport;
use crate::rtsp::headers::PlaybackPace;
use crate::script::Script;
use crate::sink::{Output, SinkWriter};
use crate::url::RtspUrl;

/// How RTP is to come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportChoice {
    /// UDP; TCP if the server refuses UDP (461) or no packet comes within [`PlayOptions::udp_timeout`].
    #[default]
    Auto,
    /// UDP only.
    Udp,
    /// Interleaved in the RTSP connection only.
    Tcp,
}

impl FromStr for TransportChoice {
    type Err = ClientError;

    fn from_str(text: &str) -> Result<Self, ClientError> {
        match text {
            "auto" => Ok(Self::Auto),
            "udp" => Ok(Self::Udp),
            "tcp" => Ok(Self::Tcp),
            _ => Err(ClientError::Option {
                option: "transport",
                got: text.to_owned(),
                allowed: "auto, udp, tcp",
            }),
        }
    }
}

/// What to play, and how. [`PlayOptions::new`] has the defaults.
#[derive(Clone, Debug)]
pub struct PlayOptions {
    /// The title: `rtsp://host[:port]/path`; or `rtp://address:port`, to listen to a stream sent
    /// there; or `nvod://group:port`, near video on demand.
    pub url: String,
    /// How RTP is to come.
    pub transport: TransportChoice,
    /// Where in the title to begin; `None`: `npt=0.000-` is asked for.
    pub start: Option<MediaTicks>,
    /// Where in the title to end.
    pub end: Option<MediaTicks>,
    /// Ends the reception this long after the reply to the first PLAY.
    pub duration: Option<Duration>,
    /// Ends the reception when no packet came for this long while playing.
    pub silence: Duration,
    /// With [`TransportChoice::Auto`]: how long to wait for the first packet over UDP.
    pub udp_timeout: Duration,
    /// Where the transport stream goes.
    pub output: Output,
    /// A transport stream to compare with, byte by byte.
    pub reference: Option<PathBuf>,
    /// Reports errors within the transport stream itself.
    pub analyse: bool,
    /// How fast to play.
    pub pace: PlaybackPace,
    /// Pauses, seeks and speeds.
    pub script: Script,
    /// Reordering window in packets.
    pub reorder_packets: usize,
    /// How long the window waits for a missing packet.
    pub reorder_wait: Duration,
    /// What FEC is asked for; of an `rtp://` address the XOR columns and rows of ST 2022-1 are taken.
    pub fec: FecChoice,
    /// With FEC a missing packet is waited for until no FEC can come for it any more, and no longer than nothing comes for this
    /// long. It takes the place of [`Self::reorder_packets`] and [`Self::reorder_wait`].
    pub fec_wait: Duration,
    /// Receive buffer of the RTP socket to ask for.
    pub receive_buffer_bytes: usize,
    /// Address of this machine to use.
    pub local: Option<IpAddr>,
    /// How long connecting, and each reply, may take.
    pub reply_timeout: Duration,
    /// `User-Agent`.
    pub user_agent: String,
    /// CNAME of receiver reports.
    pub cname: String,
}

impl PlayOptions {
    /// The defaults: automatic transport, from the start to the end, measured only.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            transport: TransportChoice::Auto,
            start: None,
            end: None,
            duration: None,
            silence: SILENCE,
            udp_timeout: UDP_TIMEOUT,
            output: Output::Null,
            reference: None,
            analyse: false,
            pace: PlaybackPace::default(),
            script: Script::default(),
            reorder_packets: REORDER_PACKETS,
            reorder_wait: REORDER_WAIT,
            fec: FecChoice::Off,
            fec_wait: Duration::from_nanos(FEC_WAIT_NS),
            receive_buffer_bytes: RTP_BUFFER_BYTES,
            local: None,
            reply_timeout: REPLY_TIMEOUT,
            user_agent: concat!("millrace/", env!("CARGO_PKG_VERSION")).to_owned(),
            cname: "millrace-play".to_owned(),
        }
    }

    fn check(&self) -> Result<(), ClientError> {
        let wrong = |option, got: String, allowed| Err(ClientError::Option { option, got, allowed });
        if self.reorder_packets == 0 || self.reorder_packets > 65_536 / 2 {
            return wrong("reordering window", self.reorder_packets.to_string(), "1 to 32768 packets");
        }
        if self.fec != FecChoice::Off && self.transport == TransportChoice::Tcp {
            return wrong("fec", format!("{} over TCP", self.fec), "UDP: over TCP nothing is lost");
        }
        if self.reply_timeout.is_zero() || self.silence.is_zero() {
            return wrong("time-out", "0".to_owned(), "more than 0");
        }
        let is_reverse = self.pace.scale.is_some_and(Scale::is_reverse);
        let start = self.start.unwrap_or_default();
        if self.end.is_some_and(|end| if is_reverse { end >= start } else { end <= start }) {
            return wrong("end", self.end.unwrap_or_default().to_string(), "later than the start");
        }
        check_header_text("user agent", &self.user_agent)
    }

    /// The address to listen at, if the title is not asked for.
    fn listen_url(&self) -> Option<Result<ListenUrl, ClientError>> {
        let wrong = |option, got: String, allowed| Err(ClientError::Option { option, got, allowed });
        let scheme = self.url.trim().split("://").next().unwrap_or_default();
        let is_nvod = scheme.eq_ignore_ascii_case("nvod");
        if !is_nvod && !scheme.eq_ignore_ascii_case("rtp") {
            return None;
        }
        if is_nvod && self.fec != FecChoice::Off {
            return Some(wrong("fec", self.fec.to_string(), "off: near video on demand has none"));
        }
        if self.fec == FecChoice::All {
            return Some(wrong(
                "fec",
                "all".to_owned(),
                "off, xor: other parities must be requested by RTSP",
            ));
        }
        if self.start.is_some() || self.end.is_some() || !self.script.0.is_empty() {
            let allowed = "an rtsp:// address: streams that are sent without a request cannot be controlled";
            return Some(wrong("start, end or script", self.url.clone(), allowed));
        }
        let url = ListenUrl::parse(&self.url);
        Some(url.map_err(|why| ClientError::Target { given: self.url.clone(), why }))
    }
}

/// A text that goes into a header line must not end that line.
pub fn check_header_text(option: &'static str, text: &str) -> Result<(), ClientError> {
    if text.len() <= 200 && text.bytes().all(|b| (0x20..=0x7e).contains(&b)) {
        return Ok(());
    }
    Err(ClientError::Option {
        option,
        got: excerpt(text, 80),
        allowed: "up to 200 printable ASCII characters",
    })
}

/// How far a reception is; given about four times a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlayProgress {
    /// Since the reply to the first PLAY.
    pub elapsed: Duration,
    /// Different packets received.
    pub packets: u64,
    /// Their payload.
    pub payload_bytes: u64,
    /// Packets lost.
    pub lost: u64,
    /// Payload rate since the last progress.
    pub rate_bits_per_s: u64,
    /// Media time since the start of the run.
    pub media: MediaTicks,
    /// Whether the title is paused.
    pub paused: bool,
}

/// Plays a title until it ends, the time is over, nothing comes any more or `cancel` becomes true; then ends the session
/// properly and reports. `progress` is called about four times a second.
///
/// # Errors
/// When there is nothing to report on: no connection, a refusal, an output that fails. Faults of
/// the stream itself are in the report.
pub fn play(
    options: &PlayOptions,
    cancel: &AtomicBool,
    progress: &mut dyn FnMut(&PlayProgress),
) -> Result<ReceptionReport, ClientError> {
    options.check()?;
    if let Some(url) = options.listen_url() {
        let url = url?;
        return match url.carriage {
            Carriage::Nvod => nvod::NvodPlayer::start(options, url, cancel, progress)?.run(),
            _ => listen::Listening::start(options, &url, cancel, progress)?.run(),
        };
    }
    let url = RtspUrl::parse(&options.url)?;
    let mut sink = SinkWriter::start(&options.output, options.reference.as_deref())?;
    let mut fallback = None;
    let mut choice = options.transport;
    loop {
        let way = session::TransportAttempt { choice, fallback: fallback.take() };
        match session::Session::connect(options, &url, way, sink, cancel, progress)?.run()? {
            session::SessionOutcome::Done(report) => return Ok(*report),
            session::SessionOutcome::NothingByUdp(unused) => {
                sink = unused;
                choice = TransportChoice::Tcp;
                fallback = Some(format!("no packet over UDP within {} s", options.udp_timeout.as_secs_f64()));
            }
        }
    }
}
