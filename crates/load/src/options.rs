//! The options of a load.

use std::net::IpAddr;
use std::time::Duration;

pub use crate::limits::MAX_STREAMS;
use crate::limits::{GATHER, LOAD_BUFFER_BYTES, MAX_THREADS, SPARE_DESCRIPTORS, STALL};
use millrace_client::limits::REPLY_TIMEOUT;
use millrace_core::time::MediaTicks;
use millrace_core::units::BitRate;

use crate::behaviour::Behaviour;
use crate::choice::{Arrivals, TitleChoice};
use crate::web::WebOptions;
use millrace_client::error::ClientError;
use millrace_client::fec::FecChoice;
use millrace_client::play::{TransportChoice, check_header_text};

/// Options of a load. [`LoadOptions::new`] has the defaults.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// What there is to watch: `rtsp://…`, `http://…` (HLS if it ends in `.m3u8`), `udp://…` and `rtp://…` (listen).
    pub targets: Vec<String>,
    /// Viewers, 1 to [`MAX_STREAMS`].
    pub streams: u32,
    /// RTSP over UDP or TCP; `Auto` is UDP, without a second try.
    pub transport: TransportChoice,
    /// Which viewer watches what.
    pub titles: TitleChoice,
    /// When viewers come.
    pub arrivals: Arrivals,
    /// What viewers do while they watch.
    pub behaviour: Behaviour,
    /// Everything that is drawn follows from this number and the viewer's own.
    pub seed: u64,
    /// How long all of them watch together, after the arrivals.
    pub duration: Duration,
    /// Time from one [`super::LoadSample`] to the next.
    pub interval: Duration,
    /// Rate of the title, for what carries no clock of its own.
    pub nominal_rate: Option<BitRate>,
    /// FEC that viewers over RTSP request; they repair lost packets, and only those still missing
    /// afterwards count as lost.
    pub fec: FecChoice,
    /// What viewers over HTTP are like.
    pub web: WebOptions,
    /// Interface at which RTP is counted and dropped instead of being read from sockets.
    pub probe: Option<String>,
    /// The probe lets packets through to the sockets, which count as well: to compare both.
    pub probe_passes: bool,
    /// What lateness of RTP is counted against.
    pub media_clock: MediaClock,
    /// Whether the first PLAY names a range. Without one a viewer begins where the server likes, and `start` means nothing.
    pub sends_range: bool,
    /// Whose transport streams are looked into.
    pub inspect: Inspect,
    /// Where in the title the first viewer begins.
    pub start: MediaTicks,
    /// The other viewers begin evenly spread over this much media behind it.
    pub start_spread: MediaTicks,
    /// Threads, 1 to 16. One carries some thousand viewers; a second one helps when the first is more than half busy.
    pub threads: usize,
    /// Addresses of this machine, taken in turn; if empty, those that the route gives.
    pub local: Vec<IpAddr>,
    /// Receive buffer of each RTP socket to ask for.
    pub receive_buffer_bytes: usize,
    /// One RTCP socket per viewer; otherwise all viewers of a thread share one, and the viewer that
    /// a BYE concerns is unknown.
    pub own_rtcp: bool,
    /// Time without a packet after which a viewer's picture would have stopped.
    pub stall: Duration,
    /// The loop lets packets gather for this long; the kernel's stamps do not depend on it.
    pub gather: Duration,
    /// How long connecting, and each reply, may take.
    pub reply_timeout: Duration,
    /// `User-Agent`.
    pub user_agent: String,
}

/// What lateness of RTP is counted against.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MediaClock {
    /// The timestamps of the packets.
    #[default]
    Rtp,
    /// The program clock references of the transport stream in them: for senders whose timestamps say when they sent, and so are never
    /// late. Only packets that carry one are judged.
    Pcr,
}

impl std::str::FromStr for MediaClock {
    type Err = ClientError;

    fn from_str(text: &str) -> Result<Self, ClientError> {
        match text {
            "rtp" => Ok(Self::Rtp),
            "pcr" => Ok(Self::Pcr),
            _ => Err(ClientError::Option {
                option: "media clock",
                got: format!("\"{text}\""),
                allowed: "rtp or pcr",
            }),
        }
    }
}

/// Whose transport streams are looked into: sync bytes, continuity counters, program clock. It costs processor time,
/// about as much again as counting the packets does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Inspect {
    /// All viewers', up to 500 viewers; above that 500 of them, evenly spread.
    #[default]
    Sample,
    /// All viewers'.
    All,
    /// No viewer's.
    None,
}

impl std::str::FromStr for Inspect {
    type Err = ClientError;

    fn from_str(text: &str) -> Result<Self, ClientError> {
        match text {
            "sample" => Ok(Self::Sample),
            "all" => Ok(Self::All),
            "none" => Ok(Self::None),
            _ => Err(ClientError::Option {
                option: "inspect",
                got: format!("\"{text}\""),
                allowed: "all, sample or none",
            }),
        }
    }
}

impl LoadOptions {
    /// Returns the defaults: UDP, ten seconds together after a ramp of one second per 100 viewers,
    /// viewers that only watch, one thread.
    pub fn new(targets: Vec<String>, streams: u32) -> Self {
        Self {
            targets,
            streams,
            transport: TransportChoice::Udp,
            titles: TitleChoice::InTurn,
            arrivals: Arrivals::Ramp(Duration::from_millis(u64::from(streams) * 10)),
            behaviour: Behaviour::default(),
            seed: 1,
            duration: Duration::from_secs(10),
            interval: Duration::from_secs(1),
            nominal_rate: None,
            fec: FecChoice::Off,
            web: WebOptions::default(),
            probe: None,
            probe_passes: false,
            media_clock: MediaClock::Rtp,
            sends_range: true,
            inspect: Inspect::Sample,
            start: MediaTicks(0),
            start_spread: MediaTicks(0),
            threads: 1,
            local: Vec::new(),
            receive_buffer_bytes: LOAD_BUFFER_BYTES,
            own_rtcp: true,
            stall: STALL,
            gather: GATHER,
            reply_timeout: REPLY_TIMEOUT,
            user_agent: concat!("millrace/", env!("CARGO_PKG_VERSION")).to_owned(),
        }
    }

    pub(super) fn check(&self) -> Result<(), ClientError> {
        let wrong = |option, got: String, allowed| Err(ClientError::Option { option, got, allowed });
        if self.targets.is_empty() {
            return wrong("URLs", "none".to_owned(), "at least one");
        }
        if !(1..=MAX_STREAMS).contains(&self.streams) {
            return wrong("streams", self.streams.to_string(), "1 to 20000");
        }
        if !(1..=MAX_THREADS).contains(&self.threads) {
            return wrong("threads", self.threads.to_string(), "1 to 16");
        }
        if self.reply_timeout.is_zero() || self.duration.is_zero() {
            return wrong("time", "0".to_owned(), "more than 0");
        }
        if !(Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&self.interval) {
            return wrong("interval", format!("{:?}", self.interval), "100 ms to an hour");
        }
        if self.gather > Duration::from_millis(100) {
            return wrong("gather", format!("{:?}", self.gather), "up to 100 ms");
        }
        if self.probe.is_some() && self.transport == TransportChoice::Tcp {
            return wrong("probe", "TCP".to_owned(), "UDP: over TCP packets cannot be dropped");
        }
        if self.probe.is_some() && self.media_clock == MediaClock::Pcr {
            return wrong(
                "media clock",
                "pcr".to_owned(),
                "rtp with a probe: it does not look into transport streams",
            );
        }
        if self.fec != FecChoice::Off && (self.probe.is_some() || self.transport == TransportChoice::Tcp) {
            let allowed =
                "UDP without a probe: repairing needs the packets themselves, and over TCP nothing is lost";
            return wrong("fec", self.fec.to_string(), allowed);
        }
        let is_rtsp = |target: &&String| target.trim().to_ascii_lowercase().starts_with("rtsp");
        if self.probe.is_some()
            && let Some(other) = self.targets.iter().find(|target| !is_rtsp(target))
        {
            return wrong("probe", other.clone(), "rtsp targets: others are counted at their sockets only");
        }
        self.web.check()?;
        check_header_text("user agent", &self.user_agent)
    }

    /// Descriptors that the viewers need.
    pub(super) fn descriptors(&self) -> u64 {
        let each = match (self.transport, self.own_rtcp) {
            (TransportChoice::Tcp, _) => 1,
            (_, false) => 2,
            (_, true) => 3,
        };
        let fec = match self.fec {
            FecChoice::Off => 0,
            FecChoice::Xor => 1,
            FecChoice::All => 2,
        };
        u64::from(self.streams) * (each + fec) + SPARE_DESCRIPTORS
    }
}
