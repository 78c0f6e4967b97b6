//! The thread that receives live sources.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use millrace_core::seam::Clock;
use millrace_offload::clock::MonotonicClock;
use millrace_offload::{IngestAddress, KernelRx, NetError, UdpRxConfig, open_ingest};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::address::LiveSource;
use super::choice::SourceRank;
use super::pair::TitleSources;
use super::titles::{LiveTitles, OpenLiveError};
use crate::limits::live::{
    LIVE_BATCH_DATAGRAMS, LIVE_BATCHES_PER_TURN, LIVE_LOOK_EVERY, LIVE_RECEIVE_BUFFER_BYTES, LIVE_REST_EVERY,
};

/// Longest payload of a UDP datagram in IPv4 and IPv6 without jumbograms.
const DATAGRAM_BYTES: usize = 65_535;

/// Why a source cannot be received.
#[derive(Debug, thiserror::Error)]
pub enum StartLiveError {
    /// Its title.
    #[error("live source {name}: {cause}")]
    Title {
        /// Its name.
        name: String,
        /// The reason.
        cause: OpenLiveError,
    },
    /// Its socket.
    #[error("live source {name}: {cause}")]
    Socket {
        /// Its name.
        name: String,
        /// The reason.
        cause: NetError,
    },
    /// Its thread.
    #[error("live source {name}: cannot start its thread: {cause}; raise the limit of threads")]
    Thread {
        /// Its name.
        name: String,
        /// The system's error.
        cause: std::io::Error,
    },
}

/// The socket of a source.
pub struct LiveSocket {
    rx: KernelRx,
    /// The only sender whose datagrams are used.
    sender: Option<IpAddr>,
}

impl LiveSocket {
    /// Opens the socket of the source of this name.
    ///
    /// # Errors
    /// [`StartLiveError::Socket`].
    pub fn open(name: &str, address: &IngestAddress) -> Result<Self, StartLiveError> {
        let config = UdpRxConfig {
            batch: LIVE_BATCH_DATAGRAMS,
            datagram_bytes: DATAGRAM_BYTES,
            gro: false,
            receive_buffer: Some(LIVE_RECEIVE_BUFFER_BYTES),
        };
        let rx = open_ingest(address).and_then(|socket| KernelRx::new(socket, config));
        let rx = rx.map_err(|cause| StartLiveError::Socket { name: name.to_owned(), cause })?;
        Ok(Self { rx, sender: address.source })
    }
}

/// One source that comes in datagrams.
pub struct Receiver {
    source: LiveSource,
    rank: SourceRank,
    socket: LiveSocket,
    title: Arc<TitleSources>,
    is_gone: bool,
    /// The other end sees when the socket is closed.
    _open: mpsc::Sender<()>,
}

impl Receiver {
    /// Receives the source of this rank for its title. `open` is dropped with the socket.
    pub fn new(
        source: LiveSource,
        rank: SourceRank,
        socket: LiveSocket,
        title: &Arc<TitleSources>,
        open: mpsc::Sender<()>,
    ) -> Self {
        tracing::info!("live source {}: waiting for {}", source.name, source.url);
        Self { source, rank, socket, title: Arc::clone(title), is_gone: false, _open: open }
    }

    /// Takes the datagrams in the socket, and looks after the title.
    fn turn(&mut self) {
        let Self { source: LiveSource { name, url, .. }, rank, socket, title, is_gone, .. } = self;
        let LiveSocket { rx, sender } = socket;
        let now = MonotonicClock.now();
        let is_well = title.with(|title| {
            for _ in 0..LIVE_BATCHES_PER_TURN {
                let received = rx.receive(now, &mut |packet| {
                    if sender.is_none_or(|wanted| wanted == packet.source.ip()) {
                        title.datagram(*rank, packet.arrival, packet.bytes);
                    }
                });
                match received {
                    Ok(0) => break,
                    Ok(_) => {}
                    Err(error) => {
                        tracing::error!(
                            "live source {name}: cannot receive {url}: {error}; restart the server to try again"
                        );
                        return false;
                    }
                }
            }
            title.note_dropped(*rank, rx.counters().dropped);
            title.look(now)
        });
        *is_gone = is_well != Some(true);
    }
}

/// Receives until `stop` is set; sources may come at any time. One whose title has ended is closed.
pub fn run(new: &mpsc::Receiver<Receiver>, titles: &Arc<LiveTitles>, stop: &AtomicBool) {
    let mut receivers = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        receivers.extend(new.try_iter());
        let now = MonotonicClock.now();
        let deadlines = receivers
            .iter()
            .filter_map(|receiver: &Receiver| receiver.title.with(|title| title.deadline())?);
        let due = deadlines.min().map(|deadline| Duration::from_nanos(deadline.ns_since(now)));
        let rest = if receivers.is_empty() { LIVE_REST_EVERY } else { LIVE_LOOK_EVERY };
        wait(&receivers, due.unwrap_or(rest).min(rest));
        titles.look_parked(MonotonicClock.now());
        receivers.iter_mut().for_each(Receiver::turn);
        receivers.retain(|receiver| !receiver.is_gone);
    }
}

/// Returns when something may have come, or after `most`.
fn wait(receivers: &[Receiver], most: Duration) {
    let mut fds: Vec<_> =
        receivers.iter().map(|receiver| PollFd::new(&receiver.socket.rx, PollFlags::IN)).collect();
    let most = Timespec { tv_sec: 0, tv_nsec: i64::from(most.subsec_nanos()) };
    // A signal ends the wait early, which does no harm.
    let _ = poll(&mut fds, Some(&most));
}
