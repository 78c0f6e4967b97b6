//! Two TUN devices joined by a thread, with a bad link in each direction.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use millrace_core::time::{Instant, NS_PER_S};
use millrace_netio::NetError;
use millrace_netio::tun::Tun;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::classify::{Traffic, classify};
use crate::counts::LinkStats;
use crate::limits::{LINK_READS_PER_TURN, MAX_DEVICE_PACKET_BYTES, SPARE_BUFFERS, SPARE_BYTES};
use crate::model::ImpairmentModel;
use crate::spec::LinkSpec;

/// A running link. When it is dropped, its thread ends and its devices are gone; packets still on their way are lost.
#[derive(Debug)]
pub struct TunLink {
    shared: Arc<LinkThreadReport>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// State that the thread reports.
#[derive(Debug)]
struct LinkThreadReport {
    /// The sending end in each direction: queried for the packets that the kernel dropped before
    /// it.
    ends: [Tun; 2],
    state: Mutex<LinkRunState>,
}

#[derive(Clone, Debug, Default)]
struct LinkRunState {
    stats: [LinkStats; 2],
    failure: Option<String>,
}

impl TunLink {
    /// Joins two devices: packets that arrive at `server` leave at `viewers` after the effects of
    /// `spec.there`, and `spec.back` applies to the other direction.
    ///
    /// # Errors
    /// If no descriptor or no thread is available.
    pub fn start(server: Tun, viewers: Tun, spec: &LinkSpec) -> Result<Self, NetError> {
        let refused = |what, remedy| {
            let socket = format!("link between {} and {}", server.name(), viewers.name());
            move |source| NetError::Socket { socket, what, source, remedy }
        };
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| refused("make an eventfd", "raise the limit of open files")(errno.into()))?;
        let failed = refused("start its thread", "raise the limit of threads");
        let models =
            [ImpairmentModel::with_stream(&spec.there, 0), ImpairmentModel::with_stream(&spec.back, 1)];
        let stop = Arc::new(stop);
        let shared = Arc::new(LinkThreadReport { ends: [server, viewers], state: Mutex::default() });
        let mut runner = Runner {
            shared: Arc::clone(&shared),
            stop: Arc::clone(&stop),
            epoch: std::time::Instant::now(),
            ways: models.map(|model| EgressPath { model, refused: 0 }),
            scratch: vec![0; MAX_DEVICE_PACKET_BYTES].into(),
            spare: Vec::with_capacity(SPARE_BUFFERS),
        };
        let thread = std::thread::Builder::new()
            .name("link".to_owned())
            .spawn(move || runner.run())
            .map_err(failed)?;
        Ok(Self { shared, stop, thread: Some(thread) })
    }

    /// Returns the statistics up to now, towards the viewers and back. A packet is counted within a
    /// turn of the thread.
    pub fn stats(&self) -> [LinkStats; 2] {
        let mut stats = self.shared.lock().stats;
        for (stats, end) in stats.iter_mut().zip(&self.shared.ends) {
            stats.missed = end.missed();
        }
        stats
    }

    /// Why the link stands still, if it does: a device of it was taken away.
    pub fn failure(&self) -> Option<String> {
        self.shared.lock().failure.clone()
    }
}

impl Drop for TunLink {
    fn drop(&mut self) {
        // Cannot fail: the counter of this event is far from full.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl LinkThreadReport {
    fn lock(&self) -> std::sync::MutexGuard<'_, LinkRunState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One direction.
struct EgressPath {
    model: ImpairmentModel<Vec<u8>>,
    refused: u64,
}

/// The thread.
struct Runner {
    shared: Arc<LinkThreadReport>,
    stop: Arc<OwnedFd>,
    epoch: std::time::Instant,
    ways: [EgressPath; 2],
    scratch: Box<[u8]>,
    spare: Vec<Vec<u8>>,
}

impl Runner {
    fn run(&mut self) {
        // The kernel may else put off every wake-up by 50 us. Without it the link works, a little later.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        if let Err(failure) = self.turns() {
            self.shared.lock().failure = Some(failure);
        }
    }

    fn now(&self) -> Instant {
        Instant(u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn turns(&mut self) -> Result<(), String> {
        let mut more = false;
        while self.wait(more)? {
            more = false;
            for way in 0..2 {
                more |= self.take_in(way)?;
                self.let_out(way);
            }
            let stats = self.ways.each_ref().map(|way| LinkStats {
                all: way.model.counts(),
                rtp: way.model.counts_of(Traffic::Rtp),
                missed: 0,
                refused: way.refused,
            });
            self.shared.lock().stats = stats;
        }
        Ok(())
    }

    /// Waits for a packet or until one is to leave; false when the link is to end. Does not wait if there is `more`.
    fn wait(&self, more: bool) -> Result<bool, String> {
        let now = self.now();
        let next = self.ways.iter().filter_map(|way| way.model.poll_at()).min();
        let wait_ns = if more { Some(0) } else { next.map(|at| at.ns_since(now)) };
        let timeout = wait_ns.map(|ns| Timespec {
            tv_sec: (ns / NS_PER_S).cast_signed(),
            tv_nsec: (ns % NS_PER_S).cast_signed(),
        });
        let [server, viewers] = &self.shared.ends;
        let mut fds = [
            PollFd::new(server, PollFlags::IN),
            PollFd::new(viewers, PollFlags::IN),
            PollFd::from_borrowed_fd(self.stop.as_fd(), PollFlags::IN),
        ];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(true),
            Err(errno) => return Err(format!("waiting for packets: {errno}")),
        }
        for (fd, end) in fds.iter().zip(&self.shared.ends) {
            if fd.revents().intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) {
                return Err(format!("TUN device {} is gone", end.name()));
            }
        }
        Ok(fds[2].revents().is_empty())
    }

    /// Reads the packets that have arrived for one direction; returns whether there may be more.
    fn take_in(&mut self, way: usize) -> Result<bool, String> {
        let end = &self.shared.ends[way];
        for _ in 0..LINK_READS_PER_TURN {
            let read = end.read(&mut self.scratch);
            let Some(bytes) = read.map_err(|error| format!("TUN device {}: read: {error}", end.name()))?
            else {
                return Ok(false);
            };
            let packet = &self.scratch[..bytes];
            let mut buffer = self.spare.pop().unwrap_or_default();
            buffer.extend_from_slice(packet);
            let now = self.now();
            let back = self.ways[way].model.handle_packet(now, bytes, classify(packet), buffer);
            if let Some(buffer) = back {
                keep(&mut self.spare, buffer);
            }
        }
        Ok(true)
    }

    /// Writes the packets that are due to the other side.
    fn let_out(&mut self, way: usize) {
        let now = self.now();
        let end = &self.shared.ends[1 - way];
        let way = &mut self.ways[way];
        while let Some(departure) = way.model.poll_output(now) {
            for _ in 0..departure.times {
                way.refused += u64::from(end.write(&departure.packet).is_err());
            }
            keep(&mut self.spare, departure.packet);
        }
    }
}

/// Puts a buffer away for the next packet.
fn keep(spare: &mut Vec<Vec<u8>>, mut buffer: Vec<u8>) {
    if spare.len() < SPARE_BUFFERS && buffer.capacity() <= SPARE_BYTES {
        buffer.clear();
        spare.push(buffer);
    }
}
