//! The experiment of the Stream Engine paper (J. Lemon, Z. Wang, Z. Yang, P. Cao: Stream Engine, 2003): the same blocks at the same times by
//! senders that are built differently, and how many streams each carries with 90 % of a core.
//!
//! A block is the data that a stream sends at one moment: "the stream engine will always transmit
//! one data block per interval" (section 4.1). All senders put the same bytes on the wire: over UDP
//! RTP datagrams that lie complete in a file, so that no sender has to assemble anything, over TCP
//! the transport stream alone. Streams begin evenly spread over an interval and over the title.
//!
//! | kind | how |
//! | --- | --- |
//! | `process` | a process a stream: read, send, sleep until the next block is due |
//! | `sendfile` | the same with sendfile(2): no copy into the process and out of it |
//! | `events` | one thread, a heap of due times, pread into a buffer, one sendmmsg (by TCP one send a stream) for all that is due |
//! | `events-memory` | the same from a copy of the title in its memory: nothing is read |
//! | `events-sendfile` | the same with sendfile(2), by TCP only: one call would send to one UDP socket |
//! | `engine` | the engine of this program over its cache and sockets; its control side in the same process |
//! | `call` | the same behind the library call: a thread a stream that sleeps in it; its bursts are the usual ones, which by TCP join blocks of 20 ms |
//!
//! | module | holds |
//! | --- | --- |
//! | `media` | titles in the store, and beside it as the other senders read them |
//! | `process`, `events`, `engine`, `call` | the senders |
//! | `receive` | the readers of connections, and when blocks came |
//! | [`trial`] | a number of streams of one sender: the data that arrived and the cost |
//! | [`search`] | the search for 90 % of a core |
//! | [`routines`] | where a core's time goes, by perf |

mod call;
mod engine;
mod events;
mod media;
mod process;
mod receive;
pub mod routines;
pub mod search;
pub mod trial;

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, ensure};
use millrace_core::limits::{DEFAULT_PACKET_BYTES, RTP_HEADER_BYTES, TS_PACKET_BYTES};
use millrace_core::seam::Clock;
use millrace_core::time::{MediaTicks, NS_PER_S};
use millrace_core::units::BitRate;
use millrace_offload::clock::MonotonicClock;
use rustix::thread::clock_nanosleep_absolute;
use rustix::time::{ClockId, Timespec};

pub use media::TitleFolder;

/// The line that every sender prints when its streams are about to begin.
const READY: &str = "ready";
/// Streams to one address, a port each.
const PORTS_PER_ADDRESS: u32 = 20_000;
/// Most datagrams of a block: the largest UDP message is 65,507 bytes, however it is cut.
const MAX_DATAGRAMS: u64 = 48;

/// Viewers that may wait to be accepted: as many as the kernel allows by default.
const BACKLOG: i32 = 4096;

/// The ways to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SendMethod {
    /// A process a stream: read and send.
    Process,
    /// A process a stream: sendfile.
    Sendfile,
    /// One thread: pread, and one call for many.
    Events,
    /// One thread, from memory.
    EventsMemory,
    /// One thread, sendfile.
    EventsSendfile,
    /// Ours.
    Engine,
    /// Ours behind the library call.
    Call,
}

impl SendMethod {
    /// All of them; the first is the base of ratios.
    pub const ALL: [Self; 7] = [
        Self::Process,
        Self::Sendfile,
        Self::Events,
        Self::EventsMemory,
        Self::EventsSendfile,
        Self::Engine,
        Self::Call,
    ];

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Sendfile => "sendfile",
            Self::Events => "events",
            Self::EventsMemory => "events-memory",
            Self::EventsSendfile => "events-sendfile",
            Self::Engine => "engine",
            Self::Call => "call",
        }
    }

    /// Whether it has a process for each stream.
    pub fn is_process_each(self) -> bool {
        matches!(self, Self::Process | Self::Sendfile)
    }

    /// Whether it is an event loop that anybody could write.
    pub fn is_event_loop(self) -> bool {
        matches!(self, Self::Events | Self::EventsMemory | Self::EventsSendfile)
    }

    /// Whether it can send so.
    pub fn can(self, transport: Transport) -> bool {
        self != Self::EventsSendfile || transport == Transport::Tcp
    }
}

impl FromStr for SendMethod {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == text);
        let names: Vec<&str> = Self::ALL.iter().map(|kind| kind.name()).collect();
        found.ok_or_else(|| format!("got \"{text}\"; there are {}", names.join(", ")))
    }
}

/// What carries the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Transport {
    /// RTP datagrams.
    Udp,
    /// Bytes in a connection of each stream.
    Tcp,
}

impl Transport {
    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
        }
    }
}

impl FromStr for Transport {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "udp" => Ok(Self::Udp),
            "tcp" => Ok(Self::Tcp),
            _ => Err(format!("got \"{text}\", allowed udp and tcp")),
        }
    }
}

/// The blocks of a stream: all of one size, one an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Media in a datagram.
    pub datagram_bytes: u16,
    /// Datagrams of a block.
    pub datagrams: u16,
    /// Time from one block to the next.
    pub interval_ns: u64,
}

impl Blocks {
    /// Returns blocks of whole transport packets, seven at most in a datagram, about every
    /// `interval`: the interval is the time that the block lasts at `rate`.
    ///
    /// # Errors
    /// When such a block is more than one message can hold.
    pub fn of(rate: BitRate, interval: Duration) -> anyhow::Result<Self> {
        let grain = TS_PACKET_BYTES as u64;
        let wanted = (u128::from(rate.0) * interval.as_nanos() / (8 * u128::from(NS_PER_S))) as u64;
        let datagrams = rounded(wanted, DEFAULT_PACKET_BYTES as u64).max(1);
        ensure!(
            datagrams <= MAX_DATAGRAMS,
            "blocks of {interval:?} at {rate}: {datagrams} datagrams, a message holds {MAX_DATAGRAMS}; use a lower rate or a shorter interval"
        );
        let grains = rounded(wanted / datagrams, grain).clamp(1, DEFAULT_PACKET_BYTES as u64 / grain);
        Ok(Self::with(rate, (grains * grain) as u16, datagrams as u16))
    }

    /// Single datagrams of seven transport packets at the pace of `rate`.
    pub fn single(rate: BitRate) -> Self {
        Self::with(rate, DEFAULT_PACKET_BYTES as u16, 1)
    }

    fn with(rate: BitRate, datagram_bytes: u16, datagrams: u16) -> Self {
        let bits = u64::from(datagram_bytes) * u64::from(datagrams) * 8;
        Self { datagram_bytes, datagrams, interval_ns: bits * NS_PER_S / rate.0.max(1) }
    }

    /// Media in a block.
    pub fn bytes(&self) -> u64 {
        u64::from(self.datagram_bytes) * u64::from(self.datagrams)
    }

    /// Media rate.
    pub fn rate(&self) -> BitRate {
        BitRate(
            (u128::from(self.bytes()) * 8 * u128::from(NS_PER_S) / u128::from(self.interval_ns.max(1)))
                as u64,
        )
    }

    /// Media time of block `n`.
    fn time(&self, n: u64) -> MediaTicks {
        MediaTicks::from_ns(n * self.interval_ns)
    }

    /// Bytes of a datagram as it lies in the file that is sent by `transport`.
    fn unit_bytes(&self, transport: Transport) -> usize {
        let header = if transport == Transport::Udp { RTP_HEADER_BYTES } else { 0 };
        header + usize::from(self.datagram_bytes)
    }

    /// The same of a block.
    fn block_bytes(&self, transport: Transport) -> usize {
        self.unit_bytes(transport) * usize::from(self.datagrams)
    }
}

/// A quotient, rounded to the nearest.
fn rounded(value: u64, by: u64) -> u64 {
    (value + by / 2) / by
}

/// Streams to send, and their destinations.
#[derive(Clone, Debug)]
pub struct SendPlan {
    /// How.
    pub kind: SendMethod,
    /// The folder that [`TitleFolder::make`] filled.
    pub dir: PathBuf,
    /// Titles in it, taken in turn.
    pub titles: u32,
    /// By what.
    pub transport: Transport,
    /// The data sent at a time.
    pub blocks: Blocks,
    /// Streams.
    pub streams: u32,
    /// Receivers: `PORTS_PER_ADDRESS` streams to each.
    pub to: Vec<IpAddr>,
    /// Port of the first stream of each receiver.
    pub base_port: u16,
    /// Where viewers connect to (TCP).
    pub listen: Option<SocketAddr>,
    /// Streams begin evenly spread over this part of their title.
    pub spread: Duration,
    /// Bytes of each read from disk, past the kernel's cache; 0: blocks are read from the cache.
    pub read_bytes: usize,
    /// Memory of the engine's cache.
    pub cache_bytes: u64,
    /// The engine sends in its usual bursts instead of in blocks.
    pub is_usual: bool,
    /// This process is the one for stream `only`.
    pub only: Option<u32>,
}

impl SendPlan {
    /// Receiver of stream `index`.
    pub fn destination(&self, index: u32) -> anyhow::Result<SocketAddr> {
        destination(&self.to, self.base_port, index)
    }

    /// Returns the first block of stream `index`, whose title has `blocks` blocks.
    fn first_block(&self, index: u32, blocks: u64) -> anyhow::Result<u64> {
        let spread = self.spread.as_nanos() as u64 / self.blocks.interval_ns.max(1);
        let first = u64::from(index) * spread / u64::from(self.streams.max(1));
        ensure!(
            first < blocks,
            "stream {index} would begin behind the end of its title; use a smaller --spread"
        );
        Ok(first)
    }

    /// When stream `index` is first due from `now_ns` on: streams share a grid, so their phases are even whenever they begin.
    fn first_due_ns(&self, index: u32, now_ns: u64) -> u64 {
        let interval = self.blocks.interval_ns.max(1);
        let phase = (u128::from(interval) * u128::from(index) / u128::from(self.streams.max(1))) as u64;
        now_ns.saturating_sub(phase).div_ceil(interval) * interval + phase
    }

    fn listener(&self) -> anyhow::Result<TcpListener> {
        let address = self.listen.context("bench-stream: TCP needs --listen ADDRESS:PORT")?;
        let listener = TcpListener::bind(address).with_context(|| format!("listen on {address}"))?;
        // Viewers connect faster than a process is started; those that find no room try again after
        // a second.
        rustix::net::listen(&listener, BACKLOG).context("listen")?;
        Ok(listener)
    }
}

/// Receiver of stream `index`, of those who are at `to`.
///
/// # Errors
/// When there are too few receivers.
pub fn destination(to: &[IpAddr], base_port: u16, index: u32) -> anyhow::Result<SocketAddr> {
    let (receiver, port) = (index / PORTS_PER_ADDRESS, index % PORTS_PER_ADDRESS);
    let ip = to
        .get(receiver as usize)
        .with_context(|| format!("stream {index}: {} receivers are too few", to.len()))?;
    let port = u16::try_from(u32::from(base_port) + port)
        .context("the ports do not fit below 65536; begin lower")?;
    Ok(SocketAddr::new(*ip, port))
}

/// The file of the first title as it is sent by TCP.
pub(crate) fn title_path(media: &TitleFolder) -> PathBuf {
    media::path(&media.dir, Transport::Tcp, 0)
}

/// The volume that the first title is in, and its name there.
pub(crate) fn title_of(media: &TitleFolder) -> (PathBuf, String) {
    (media::store(&media.dir), media::name(0))
}

/// The monotonic clock.
pub(crate) fn now_ns() -> u64 {
    MonotonicClock.now().0
}

/// Sleeps until the monotonic clock reaches `due_ns`, by its absolute time: a late wake-up is not
/// added to the next.
pub(crate) fn sleep_until(due_ns: u64) {
    let at = Timespec { tv_sec: (due_ns / NS_PER_S) as i64, tv_nsec: (due_ns % NS_PER_S) as _ };
    while clock_nanosleep_absolute(ClockId::Monotonic, &at) == Err(rustix::io::Errno::INTR) {}
}

/// Tells who started this process that the streams are about to begin.
fn say_ready() {
    println!("{READY}");
}

/// Each stream by TCP is a descriptor, each process of a stream a few; the soft limit of a login shell is 1024. How many files may be open now.
pub(crate) fn raise_open_files() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // Whoever needs more than there is will say so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Sends until the titles are over.
///
/// # Errors
/// Files that cannot be read, sockets that cannot be made, a way that does not exist.
pub fn run(plan: &SendPlan) -> anyhow::Result<()> {
    ensure!(plan.titles > 0 && plan.streams > 0, "bench-stream: there is nothing to send");
    ensure!(
        plan.kind.can(plan.transport),
        "bench-stream {}: not by {}",
        plan.kind.name(),
        plan.transport.name()
    );
    // Children must not outlive whoever started them.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    raise_open_files();
    match (plan.kind, plan.only) {
        (SendMethod::Process | SendMethod::Sendfile, None) => process::start_all(plan),
        (SendMethod::Process | SendMethod::Sendfile, Some(index)) => process::one(plan, index),
        (SendMethod::Events | SendMethod::EventsMemory | SendMethod::EventsSendfile, _) => events::run(plan),
        (SendMethod::Engine, _) => engine::run(plan),
        (SendMethod::Call, _) => call::run(plan),
    }
}

#[cfg(test)]
#[path = "streams_tests.rs"]
mod tests;
