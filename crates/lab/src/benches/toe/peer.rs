//! Threads of the peer: they work until they are stopped.

use std::io::{self, ErrorKind};
use std::net::{TcpListener as KernelListener, TcpStream as KernelStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::event::{Timespec, epoll};
use rustix::net::{RecvFlags, sockopt};

use super::rig::{PEER, ToeRig, become_};

/// Bytes read at once.
const ROOM_BYTES: usize = 256 << 10;
/// How long a bench waits for a call of its peer before it looks whether there is still one.
pub(in crate::benches) const LOOK_UP: Duration = Duration::from_millis(200);
/// Connections reported at once.
const EVENTS: usize = 256;

/// A thread in the peer's namespace, on its processor.
pub(in crate::benches) struct PeerThread {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

impl PeerThread {
    /// `work` looks at the flag often: it is to end when that is set.
    pub(in crate::benches) fn start(
        rig: &ToeRig,
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

    /// The next connection of the peer. `accept` comes back now and then without one, as [`looks_up`] has it do.
    ///
    /// # Errors
    /// The peer's, if it has ended without a call.
    pub(in crate::benches) fn accept<S>(
        &mut self,
        accept: impl FnMut() -> io::Result<S>,
    ) -> anyhow::Result<S> {
        match accept_until(accept, || self.is_over())? {
            Some(stream) => Ok(stream),
            None => {
                self.end()?;
                bail!("the peer has ended before it has called")
            }
        }
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

/// Returns the next connection; `None`: no client connected before the end. `accept` returns now
/// and then without one.
///
/// # Errors
/// Those of `accept`.
pub(in crate::benches) fn accept_until<S>(
    mut accept: impl FnMut() -> io::Result<S>,
    is_over: impl Fn() -> bool,
) -> anyhow::Result<Option<S>> {
    loop {
        // In this order: a client that connected before the end is there.
        let was_over = is_over();
        match accept() {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                if was_over {
                    return Ok(None);
                }
            }
            accepted => return accepted.map(Some).context("accept"),
        }
    }
}

/// Makes `accept` of a listener of the kernel return after `limit`. Reads on accepted connections
/// do not last longer either.
pub(in crate::benches) fn looks_up(listener: &KernelListener, limit: Duration) -> anyhow::Result<()> {
    sockopt::set_socket_timeout(listener, sockopt::Timeout::Recv, Some(limit)).context("limit a listener")
}

impl Drop for PeerThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Connections of the peer, all read by one thread, and the bytes that arrived.
pub(in crate::benches) struct Readers {
    bytes: Arc<AtomicU64>,
    ready: Arc<AtomicBool>,
    thread: PeerThread,
}

impl Readers {
    pub(in crate::benches) fn start(
        rig: &ToeRig,
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

    /// As [`PeerThread::accept`].
    ///
    /// # Errors
    /// The peer's.
    pub(in crate::benches) fn accept<S>(
        &mut self,
        accept: impl FnMut() -> io::Result<S>,
    ) -> anyhow::Result<S> {
        self.thread.accept(accept)
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

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use anyhow::ensure;

    use super::super::rig::Places;
    use super::*;

    /// Nothing here takes as long on any machine; what waits without end does.
    const LIMIT: Duration = Duration::from_secs(30);

    fn listener() -> (KernelListener, std::net::SocketAddr) {
        let listener = KernelListener::bind("127.0.0.1:0").unwrap();
        looks_up(&listener, Duration::from_millis(20)).unwrap();
        let at = listener.local_addr().unwrap();
        (listener, at)
    }

    /// A thread that works like a peer's, here.
    fn peer(work: impl FnOnce(&AtomicBool) -> anyhow::Result<()> + Send + 'static) -> PeerThread {
        let stop = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&stop);
        PeerThread { stop, thread: Some(std::thread::spawn(move || work(&ends))) }
    }

    #[test]
    fn accept_from_failed_peer_returns_peer_error() {
        let begun = Instant::now();
        let (listener, at) = listener();
        let error = peer(|_| bail!("no way to there")).accept(|| listener.accept()).unwrap_err();
        assert_eq!(error.to_string(), "no way to there");
        let error = peer(|_| Ok(())).accept(|| listener.accept()).unwrap_err();
        assert!(error.to_string().contains("before it has called"), "{error}");
        // One that has called is heard, also if it has ended since.
        let mut early = peer(move |_| {
            KernelStream::connect(at)?;
            Ok(())
        });
        while !early.is_over() {
            ensure_time(begun);
        }
        early.accept(|| listener.accept()).unwrap();
        early.end().unwrap();
        ensure_time(begun);
    }

    fn ensure_time(begun: Instant) {
        assert!(begun.elapsed() < LIMIT, "it waits without end");
        std::thread::yield_now();
    }

    #[test]
    fn accept_until_stops_when_flag_is_set() {
        let begun = Instant::now();
        let (listener, _) = listener();
        let mut waits = peer(move |stop| {
            let called = accept_until(|| listener.accept(), || stop.load(Ordering::Relaxed))?;
            ensure!(called.is_none(), "nobody has called");
            Ok(())
        });
        waits.end().unwrap();
        ensure_time(begun);
    }

    /// The benches themselves, with a peer that does not find its way: it is in a network of its own, without a cable.
    #[test]
    fn bench_with_unreachable_peer_fails_with_reason() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: needs root");
            return;
        }
        let begun = Instant::now();
        let mut rig = match ToeRig::lay(1500) {
            Ok(rig) => rig,
            Err(error) => {
                eprintln!("skipped: {error:#}");
                return;
            }
        };
        rig.cut().unwrap();
        let places = Places::together();
        let job = super::super::work::SlotJob {
            way: super::super::work::TransferDirection::Send,
            places,
            length: Duration::from_millis(10),
        };
        let mut walk = super::super::work::Walk::new(1 << 20, 8192);
        let error = super::super::work::by_kernel(&mut rig, &job, &mut walk, None).unwrap_err();
        assert!(format!("{error:#}").contains("the peer connects"), "{error:#}");
        ensure_time(begun);
    }
}
