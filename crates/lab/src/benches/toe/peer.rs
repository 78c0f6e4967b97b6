//! Threads of the peer: they work until they are told to stop.

use std::net::TcpStream as KernelStream;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, bail};
use rustix::event::{Timespec, epoll};
use rustix::net::RecvFlags;

use super::rig::{PEER, Rig, become_};

/// What is read at once.
const ROOM_BYTES: usize = 256 << 10;
/// Connections that are told of at once.
const EVENTS: usize = 256;

/// A thread in the peer's namespace, on its processor.
pub(in crate::benches) struct PeerThread {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

impl PeerThread {
    /// `work` looks at the flag often: it is to end when that is set.
    pub(in crate::benches) fn start(
        rig: &Rig,
        cpu: usize,
        work: impl FnOnce(&AtomicBool) -> anyhow::Result<()> + Send + 'static,
    ) -> anyhow::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&stop);
        let thread = rig.peer(move || {
            std::thread::spawn(move || {
                become_(PEER, cpu)?;
                work(&ends)
            })
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }

    pub(in crate::benches) fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Tells it to stop, and waits for it.
    pub(in crate::benches) fn end(&mut self) -> anyhow::Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            _ => bail!("the peer's thread has panicked"),
        }
    }
}

impl Drop for PeerThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Connections of the peer, all read by one thread, and what came.
pub(in crate::benches) struct Readers {
    bytes: Arc<AtomicU64>,
    ready: Arc<AtomicBool>,
    thread: PeerThread,
}

impl Readers {
    pub(in crate::benches) fn start(
        rig: &Rig,
        cpu: usize,
        open: impl FnOnce(&AtomicBool) -> anyhow::Result<Vec<KernelStream>> + Send + 'static,
    ) -> anyhow::Result<Self> {
        let (bytes, ready) = <(Arc<AtomicU64>, Arc<AtomicBool>)>::default();
        let (counted, is_ready) = (Arc::clone(&bytes), Arc::clone(&ready));
        let thread = PeerThread::start(rig, cpu, move |stop| {
            let all = open(stop)?;
            is_ready.store(true, Ordering::Release);
            drain(&all, &counted, stop)
        })?;
        Ok(Self { bytes, ready, thread })
    }

    /// Whether all are open.
    pub(in crate::benches) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    pub(in crate::benches) fn is_over(&self) -> bool {
        self.thread.is_over()
    }

    pub(in crate::benches) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(in crate::benches) fn end(&mut self) -> anyhow::Result<()> {
        self.thread.end()
    }
}

/// Reads from all that have something and throws it away, without a copy.
fn drain(all: &[KernelStream], bytes: &AtomicU64, stop: &AtomicBool) -> anyhow::Result<()> {
    let watch = epoll::create(epoll::CreateFlags::CLOEXEC).context("epoll")?;
    for (n, stream) in all.iter().enumerate() {
        stream.set_nonblocking(true)?;
        epoll::add(&watch, stream, epoll::EventData::new_u64(n as u64), epoll::EventFlags::IN)?;
    }
    let mut room = vec![0; ROOM_BYTES];
    let mut events = Vec::with_capacity(EVENTS);
    while !stop.load(Ordering::Relaxed) {
        wait(&watch, &mut events)?;
        for event in &events {
            match rustix::net::recv(&all[event.data.u64() as usize], &mut room[..], RecvFlags::TRUNC) {
                Ok((_, 0)) => return Ok(()),
                Ok((_, count)) => {
                    bytes.fetch_add(count as u64, Ordering::Relaxed);
                }
                Err(_) => {}
            }
        }
    }
    Ok(())
}

/// Waits for connections that have something to say, for a moment.
pub(in crate::benches) fn wait(watch: &OwnedFd, events: &mut Vec<epoll::Event>) -> anyhow::Result<()> {
    events.clear();
    let timeout = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    match epoll::wait(watch, rustix::buffer::spare_capacity(events), Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error).context("wait for connections"),
    }
}
