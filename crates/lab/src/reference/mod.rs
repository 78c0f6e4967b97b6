//! Reference senders, for comparison: the programs that a competent person would write without a
//! media server.
//!
//! Each is small and honest: no trick that its author would not know, none left out that everybody knows. They send RTP
//! (payload type 33) of constant rate, stream `n` to port `base + 2 n`, so that the same receivers measure them as they
//! measure everybody else. Each plays its part of the media once, to the end.
//!
//! | kind | how |
//! | --- | --- |
//! | `process` | a process a stream: read, send, sleep; `distance` 0: one packet a time, else this number of milliseconds |
//! | `sendfile` | a process a connection: the same with sendfile(2) into TCP, behind a minimal HTTP response. There is no such thing for RTP: splice(2) into UDP cannot put a header before each block |
//! | `events` | one thread, a heap of due times, one sendmmsg for all packets that are due |
//! | `ring` | one thread, streams in a fixed ring, bursts cut by the kernel (UDP_SEGMENT), packets complete in memory: the kernel's own cost of the work, and so a bound for every user of its sockets |

mod events;
mod http;
mod media;
mod process;
mod ring;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant as StdInstant};

use anyhow::bail;

pub use media::{BLOCK_BYTES, DATAGRAM_BYTES, HEADER_BYTES};

/// Most streams of one sender: two ports each.
pub const MAX_STREAMS: u32 = 20_000;

/// The ways to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SenderKind {
    /// A process a stream over UDP.
    Process,
    /// A process a connection over TCP.
    Sendfile,
    /// One thread with timers and sendmmsg.
    Events,
    /// One thread with a ring and segmentation offload.
    Ring,
}

impl SenderKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Process, Self::Sendfile, Self::Events, Self::Ring];

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Sendfile => "sendfile",
            Self::Events => "events",
            Self::Ring => "ring",
        }
    }
}

impl FromStr for SenderKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| format!("got \"{text}\"; there are process, sendfile, events and ring"))
    }
}

/// What to send where.
#[derive(Clone, Debug)]
pub struct SenderOptions {
    /// Media files of constant rate, taken in turn.
    pub files: Vec<PathBuf>,
    /// Rate of the files in bits per second.
    pub rate_bits_per_s: u64,
    /// Receiver.
    pub to: IpAddr,
    /// Port of stream 0; stream n goes to `base_port + 2 n`.
    pub base_port: u16,
    /// Streams.
    pub streams: u32,
    /// Media time between two bursts of a stream; zero: one packet a time.
    pub distance: Duration,
    /// Streams begin evenly spread over the first part of their file of this length.
    pub spread: Duration,
    /// Where `sendfile` listens.
    pub listen: Option<SocketAddr>,
    /// This process is the one for stream `only`: what `process` and `sendfile` start.
    pub only: Option<u32>,
}

impl SenderOptions {
    fn check(&self) -> anyhow::Result<()> {
        if self.files.is_empty() {
            bail!("bench-sender: no file is given; name at least one transport stream of constant rate");
        }
        if !(10_000..=1_000_000_000).contains(&self.rate_bits_per_s) {
            bail!(
                "bench-sender: rate: got {} bits per second, allowed 10k to 1G: the rate of the file",
                self.rate_bits_per_s
            );
        }
        if !(1..=MAX_STREAMS).contains(&self.streams) {
            bail!("bench-sender: streams: got {}, allowed 1 to {MAX_STREAMS}", self.streams);
        }
        if u32::from(self.base_port) + 2 * self.streams > 65_536 {
            bail!(
                "bench-sender: {} streams from port {} on do not fit below port 65536; begin lower",
                self.streams,
                self.base_port
            );
        }
        Ok(())
    }

    /// Where stream `index` goes.
    fn destination(&self, index: u32) -> SocketAddr {
        SocketAddr::new(self.to, self.base_port + (2 * index) as u16)
    }

    /// File of stream `index`.
    fn file_of(&self, index: u32) -> &PathBuf {
        &self.files[index as usize % self.files.len()]
    }

    fn pace(&self) -> BlockPace {
        BlockPace { rate_bits_per_s: self.rate_bits_per_s }
    }

    /// Blocks of one burst.
    fn burst_blocks(&self) -> u64 {
        let burst = self.distance.as_nanos() as u64 / self.pace().at_ns(1).max(1);
        burst.clamp(1, media::MAX_BURST_BLOCKS)
    }

    /// Returns the first block of stream `index`, whose file has `blocks` blocks.
    fn first_block(&self, index: u32, blocks: u64) -> anyhow::Result<u64> {
        let spread_ns = self.spread.as_nanos() as u64;
        let place_ns = u128::from(spread_ns) * u128::from(index) / u128::from(self.streams);
        let block = place_ns as u64 / self.pace().at_ns(1).max(1);
        if block >= blocks {
            bail!(
                "bench-sender: stream {index} would begin {:.1} s into {}, behind its end; use a smaller --spread",
                place_ns as f64 / 1e9,
                self.file_of(index).display()
            );
        }
        Ok(block)
    }
}

/// When the blocks of a file of constant rate are due.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockPace {
    rate_bits_per_s: u64,
}

impl BlockPace {
    /// Time from the first block to block `n`.
    pub(crate) fn at_ns(self, n: u64) -> u64 {
        let bits = u128::from(n) * (BLOCK_BYTES * 8) as u128;
        (bits * 1_000_000_000 / u128::from(self.rate_bits_per_s)) as u64
    }

    /// The same on the 90 kHz clock of RTP.
    pub(crate) fn ticks(self, n: u64) -> u32 {
        let bits = u128::from(n) * (BLOCK_BYTES * 8) as u128;
        (bits * 90_000 / u128::from(self.rate_bits_per_s)) as u32
    }
}

/// Waits until `due`.
fn sleep_until(due: StdInstant) {
    let left = due.saturating_duration_since(StdInstant::now());
    if !left.is_zero() {
        std::thread::sleep(left);
    }
}

/// Sends until all files are over.
///
/// # Errors
/// Options that make no sense, files that cannot be read, sockets that cannot be made.
pub fn run(kind: SenderKind, options: &SenderOptions) -> anyhow::Result<()> {
    options.check()?;
    // Children must not outlive whoever started them.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    match (kind, options.only) {
        (SenderKind::Process, None) => process::start_all(options),
        (SenderKind::Process, Some(index)) => process::one(options, index),
        (SenderKind::Sendfile, None) => http::listen(options),
        (SenderKind::Sendfile, Some(index)) => http::one(options, index),
        (SenderKind::Events, _) => events::run(options),
        (SenderKind::Ring, _) => ring::run(options),
    }
}

#[cfg(test)]
#[path = "reference_tests.rs"]
mod tests;
