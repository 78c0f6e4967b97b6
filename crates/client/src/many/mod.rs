//! Many players in one process: a few threads, a few hundred bytes of state each, nothing written, everything counted.
//!
//! It is there to prove what a server can carry, so it must not become what is measured: arrivals are stamped by the
//! kernel, the loop lets packets gather and takes them in trains, and it reports how late it was itself.

mod meter;
mod one;
mod report;
mod shard;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use millrace_core::seam::Clock;
use millrace_core::time::{Instant, MediaTicks};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::clock::SystemClock;
use crate::error::ClientError;
use crate::net::resolve;
use crate::play::{TransportChoice, check_header_text};
use crate::procfs::UdpErrors;
use crate::rtsp::dialogue::DialogueConfig;
use crate::url::RtspUrl;

use report::Sums;
pub use report::{ManyReceiver, ManyReport, WorstSession};
use shard::{Shard, Tally};

/// Most sessions of one call.
pub const MAX_SESSIONS: u32 = 20_000;
/// Most threads.
const MAX_THREADS: usize = 16;
/// Descriptors that are not of sessions.
const SPARE_DESCRIPTORS: u64 = 256;

/// What many players do. [`ManyOptions::new`] has the defaults.
#[derive(Clone, Debug)]
pub struct ManyOptions {
    /// Films, taken in turn.
    pub urls: Vec<String>,
    /// Players, 1 to [`MAX_SESSIONS`].
    pub sessions: u32,
    /// UDP or TCP; `Auto` is UDP, without a second try.
    pub transport: TransportChoice,
    /// Players arrive evenly over this time.
    pub ramp: Duration,
    /// How long all of them play together, after the ramp.
    pub duration: Duration,
    /// Where in the film the first player begins.
    pub start: MediaTicks,
    /// The others begin evenly spread over so much film behind it.
    pub start_spread: MediaTicks,
    /// Threads, 1 to 16. One carries some thousand players; a second one helps when the first is more than half busy.
    pub threads: usize,
    /// Addresses of this machine, taken in turn; empty: what the route gives.
    pub local: Vec<IpAddr>,
    /// Receive buffer of each RTP socket to ask for.
    pub receive_buffer_bytes: usize,
    /// One RTCP socket for each player; otherwise all of a thread share one, and a BYE cannot be told whose it is.
    pub own_rtcp: bool,
    /// Time without a packet from which a player's picture would have stopped.
    pub stall: Duration,
    /// The loop lets packets gather for this long; the kernel's stamps do not depend on it.
    pub gather: Duration,
    /// How long connecting, and each reply, may take.
    pub reply_timeout: Duration,
    /// `User-Agent`.
    pub user_agent: String,
}

impl ManyOptions {
    /// The defaults: UDP, ten seconds together after a ramp of one second for each 100 players, one thread.
    pub fn new(urls: Vec<String>, sessions: u32) -> Self {
        Self {
            urls,
            sessions,
            transport: TransportChoice::Udp,
            ramp: Duration::from_millis(u64::from(sessions) * 10),
            duration: Duration::from_secs(10),
            start: MediaTicks(0),
            start_spread: MediaTicks(0),
            threads: 1,
            local: Vec::new(),
            receive_buffer_bytes: 512 * 1024,
            own_rtcp: true,
            stall: Duration::from_millis(500),
            gather: Duration::from_millis(2),
            reply_timeout: Duration::from_secs(10),
            user_agent: concat!("millrace/", env!("CARGO_PKG_VERSION")).to_owned(),
        }
    }

    fn check(&self) -> Result<(), ClientError> {
        let wrong = |option, got: String, allowed| Err(ClientError::Option { option, got, allowed });
        if self.urls.is_empty() {
            return wrong("URLs", "none".to_owned(), "at least one");
        }
        if !(1..=MAX_SESSIONS).contains(&self.sessions) {
            return wrong("sessions", self.sessions.to_string(), "1 to 20000");
        }
        if !(1..=MAX_THREADS).contains(&self.threads) {
            return wrong("threads", self.threads.to_string(), "1 to 16");
        }
        if self.reply_timeout.is_zero() || self.duration.is_zero() {
            return wrong("time", "0".to_owned(), "more than 0");
        }
        if self.gather > Duration::from_millis(100) {
            return wrong("gather", format!("{:?}", self.gather), "up to 100 ms");
        }
        check_header_text("user agent", &self.user_agent)
    }

    /// Descriptors that the players need.
    fn descriptors(&self) -> u64 {
        let each = match (self.transport, self.own_rtcp) {
            (TransportChoice::Tcp, _) => 1,
            (_, false) => 2,
            (_, true) => 3,
        };
        u64::from(self.sessions) * each + SPARE_DESCRIPTORS
    }
}

/// How far it is; given about four times a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ManyProgress {
    /// Since the first player began.
    pub elapsed: Duration,
    /// Players that have begun.
    pub started: u64,
    /// Players that play.
    pub playing: u64,
    /// Players that failed.
    pub failed: u64,
    /// Packets received.
    pub packets: u64,
    /// Packets lost, of players that have ended.
    pub lost: u64,
}

/// What all threads need to know.
struct Plan {
    options: ManyOptions,
    /// Each URL with an address of its host.
    films: Vec<(RtspUrl, SocketAddr)>,
    dialogue: DialogueConfig,
    began: Instant,
    /// When all players have begun.
    ramp_end: Instant,
    /// When they end.
    end: Instant,
}

impl Plan {
    /// When player `index` begins.
    fn start_of(&self, index: u32) -> Instant {
        let ramp_ns = self.options.ramp.as_nanos() as u64;
        let offset = u128::from(ramp_ns) * u128::from(index) / u128::from(self.options.sessions);
        self.began.plus_ns(offset as u64)
    }

    /// Address of this machine for player `index`.
    fn local_of(&self, index: u32) -> Option<IpAddr> {
        let local = &self.options.local;
        (!local.is_empty()).then(|| local[index as usize % local.len()])
    }

    /// Where in the film player `index` begins.
    fn place_of(&self, index: u32) -> MediaTicks {
        let spread =
            u128::from(self.options.start_spread.0) * u128::from(index) / u128::from(self.options.sessions);
        MediaTicks(self.options.start.0.saturating_add(spread as u64))
    }
}

/// Makes room for `needed` descriptors.
fn raise_descriptors(needed: u64) -> Result<(), ClientError> {
    let now = getrlimit(Resource::Nofile);
    if now.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    let maximum = now.maximum.map(|maximum| maximum.max(needed));
    let allowed = now.maximum.unwrap_or(u64::MAX);
    // The second is what an ordinary user may do: up to the hard limit.
    setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum })
        .or_else(|_| setrlimit(Resource::Nofile, Rlimit { current: Some(needed.min(allowed)), ..now }))
        .map_err(|error| ClientError::Socket { what: "limit of descriptors", source: error.into() })?;
    let reached = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    if reached < needed {
        return Err(ClientError::Limit {
            what: "file descriptors",
            wanted: needed,
            allowed: reached,
            advice: "ask for fewer sessions, share RTCP sockets, or raise the limit (ulimit -Hn)",
        });
    }
    Ok(())
}

fn plan(options: &ManyOptions) -> Result<Plan, ClientError> {
    options.check()?;
    let mut films = Vec::new();
    for text in &options.urls {
        let url = RtspUrl::parse(text)?;
        let addresses = resolve(url.host(), url.port(), options.local.first().copied())?;
        let address = addresses
            .first()
            .copied()
            .ok_or_else(|| ClientError::Url { given: text.clone(), why: "its host has no address" })?;
        films.push((url, address));
    }
    raise_descriptors(options.descriptors())?;
    let began = SystemClock.now();
    let ramp_end = began + options.ramp;
    let reply_timeout_ns = u64::try_from(options.reply_timeout.as_nanos()).unwrap_or(u64::MAX);
    Ok(Plan {
        films,
        dialogue: DialogueConfig { user_agent: options.user_agent.as_str().into(), reply_timeout_ns },
        began,
        ramp_end,
        end: ramp_end + options.duration,
        options: options.clone(),
    })
}

/// Runs many players until their time is over or `cancel` becomes true, ends their sessions properly and reports.
///
/// # Errors
/// Options that make no sense, a host without address, too few descriptors, a failing epoll. What happens to single
/// players is in the report.
pub fn many(
    options: &ManyOptions,
    cancel: &AtomicBool,
    progress: &mut dyn FnMut(&ManyProgress),
) -> Result<ManyReport, ClientError> {
    let plan = plan(options)?;
    let errors_before = UdpErrors::read();
    let tallies: Vec<Arc<Tally>> = (0..options.threads).map(|_| Arc::default()).collect();
    let (done, results) = channel();
    let mut parts = Vec::new();
    std::thread::scope(|scope| {
        for (number, tally) in tallies.iter().enumerate() {
            let (plan, done) = (&plan, done.clone());
            std::thread::Builder::new()
                .name(format!("many-{number}"))
                .spawn_scoped(scope, move || {
                    let result = Shard::new(plan, number, tally).and_then(|shard| shard.run(cancel));
                    // The other end waits for every thread.
                    let _ = done.send(result);
                })
                .map_err(|source| ClientError::Socket { what: "thread", source })?;
        }
        drop(done);
        loop {
            match results.recv_timeout(Duration::from_millis(250)) {
                Ok(result) => parts.push(result?),
                Err(RecvTimeoutError::Timeout) => progress(&sum_up(&plan, &tallies)),
                Err(RecvTimeoutError::Disconnected) => return Ok::<(), ClientError>(()),
            }
        }
    })?;
    progress(&sum_up(&plan, &tallies));
    let errors = UdpErrors::read().since(errors_before);
    Ok(Sums::merge(parts).report(&plan, errors))
}

fn sum_up(plan: &Plan, tallies: &[Arc<Tally>]) -> ManyProgress {
    let mut sum = ManyProgress { elapsed: SystemClock.now() - plan.began, ..ManyProgress::default() };
    for tally in tallies {
        sum.started += tally.started.load(Ordering::Relaxed);
        sum.playing += tally.playing.load(Ordering::Relaxed);
        sum.failed += tally.failed.load(Ordering::Relaxed);
        sum.packets += tally.packets.load(Ordering::Relaxed);
        sum.lost += tally.lost.load(Ordering::Relaxed);
    }
    sum
}
