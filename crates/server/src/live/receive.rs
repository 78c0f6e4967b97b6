//! The thread that receives live sources.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millrace_core::seam::{Clock, PacketRx};
use millrace_core::time::Instant;
use millrace_offload::clock::MonotonicClock;
use millrace_offload::reception::LoopRx;
use millrace_offload::{IngestAddress, KernelRx, NetError, UdpRxConfig, open_ingest};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::address::{LiveSource, LiveTransport};
use super::input::LiveInput;
use super::state::SourceState;
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
}

/// One source with its socket.
pub struct Receiver {
    source: LiveSource,
    transport: LiveTransport,
    /// The only sender whose datagrams are used.
    sender: Option<IpAddr>,
    rx: KernelRx,
    input: LiveInput,
    is_gone: bool,
}

impl Receiver {
    /// Opens the source's socket and title.
    ///
    /// # Errors
    /// [`StartLiveError`].
    pub fn open(
        source: LiveSource,
        transport: LiveTransport,
        address: &IngestAddress,
        titles: &LiveTitles,
    ) -> Result<Self, StartLiveError> {
        let name = || source.name.clone();
        let config = UdpRxConfig {
            batch: LIVE_BATCH_DATAGRAMS,
            datagram_bytes: DATAGRAM_BYTES,
            gro: false,
            receive_buffer: Some(LIVE_RECEIVE_BUFFER_BYTES),
        };
        let socket = open_ingest(address);
        let rx = socket.and_then(|socket| KernelRx::new(socket, config));
        let rx = rx.map_err(|cause| StartLiveError::Socket { name: name(), cause })?;
        let input = input(&source.name, transport, titles)
            .map_err(|cause| StartLiveError::Title { name: name(), cause })?;
        Ok(Self { source, transport, sender: address.source, rx, input, is_gone: false })
    }

    /// Takes what waits in the socket.
    fn receive(&mut self, now: Instant) {
        let (input, wanted) = (&mut self.input, self.sender);
        for _ in 0..LIVE_BATCHES_PER_TURN {
            let received = self.rx.receive(now, &mut |packet| {
                if wanted.is_none_or(|wanted| wanted == packet.source.ip()) {
                    input.datagram(packet.arrival, packet.bytes);
                }
            });
            match received {
                Ok(0) => break,
                Ok(_) => {}
                Err(gone) => {
                    self.is_gone = true;
                    let error = std::io::Error::from_raw_os_error(gone.errno);
                    let Self { source: LiveSource { name, url, .. }, .. } = self;
                    tracing::error!(
                        "live source {name}: cannot receive {url}: {error}; restart the server to try again"
                    );
                    break;
                }
            }
        }
    }

    /// Periodic work, whether or not data arrived.
    fn look(&mut self, now: Instant, titles: &LiveTitles) {
        if let Some(state) = self.input.look(now, self.rx.counters().dropped) {
            report(&self.source.name, &self.source.url, state);
        }
        self.input.publish();
        if self.input.is_full() {
            let LiveSource { name, .. } = &self.source;
            let open = || input(name, self.transport, titles);
            self.is_gone = !self.input.renew(titles, &format!("live source {name}"), open);
        }
    }
}

/// Opens the title of this name.
pub(super) fn input(
    name: &str,
    transport: LiveTransport,
    titles: &LiveTitles,
) -> Result<LiveInput, OpenLiveError> {
    let (channel, feeder) = titles.open(name)?;
    Ok(LiveInput::new(transport, channel, feeder, MonotonicClock.now()))
}

/// Name of this transport in log lines.
pub(super) const BY_HTTP: &str = "HTTP";

/// One line for each change.
pub(super) fn report(name: &str, from: &str, state: SourceState) {
    if state.is_trouble() {
        tracing::warn!("live source {name} ({from}): {state}");
    } else {
        tracing::info!("live source {name} ({from}): {state}");
    }
}

/// Receives until `stop` is set.
pub fn run(mut receivers: Vec<Receiver>, titles: &Arc<LiveTitles>, stop: &AtomicBool) {
    for Receiver { source, .. } in &receivers {
        tracing::info!("live source {}: waiting for {}", source.name, source.url);
    }
    while !stop.load(Ordering::Relaxed) {
        let now = MonotonicClock.now();
        let deadlines = receivers.iter().filter_map(|receiver| receiver.input.deadline());
        let due = deadlines.min().map(|deadline| Duration::from_nanos(deadline.ns_since(now)));
        let rest = if receivers.is_empty() { LIVE_REST_EVERY } else { LIVE_LOOK_EVERY };
        wait(&receivers, due.unwrap_or(rest).min(rest));
        titles.look_parked(MonotonicClock.now());
        for receiver in receivers.iter_mut().filter(|receiver| !receiver.is_gone) {
            let now = MonotonicClock.now();
            receiver.receive(now);
            receiver.look(now, titles);
        }
    }
}

/// Returns when something may have come, or after `most`.
fn wait(receivers: &[Receiver], most: Duration) {
    let fds = receivers.iter().filter(|receiver| !receiver.is_gone).filter_map(|receiver| receiver.rx.fd());
    let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    let most = Timespec { tv_sec: 0, tv_nsec: i64::from(most.subsec_nanos()) };
    // A signal ends the wait early, which does no harm.
    let _ = poll(&mut fds, Some(&most));
}
