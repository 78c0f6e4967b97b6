//! One connection, as fast as it goes, in chunks, through buffers that are walked from end to end;
//! and its cost.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener as KernelListener, TcpStream as KernelStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use millrace_offload::toe::{Engine, TcpListener, TcpStream};
use rustix::net::RecvFlags;

use super::lent::{Extents, ZeroCopyStream};
use super::peer::{LOOK_UP, PeerThread, looks_up};
use super::rig::{ClockReadings, HOST, Places, Side, ToeRig, become_};

/// Buffers that applications walk: more than any cache holds.
pub(super) const WALK_BYTES: usize = 64 << 20;
/// Bytes that a peer reads or writes at once.
const PEER_BYTES: usize = 256 << 10;
/// Before anything is counted: the first doublings, and buffers that were never touched.
const WARM_UP: Duration = Duration::from_millis(150);
/// A peer looks so often whether it is to end.
const PEER_TIMEOUT: Duration = Duration::from_millis(200);
/// Nothing here takes as long on any machine.
const LIMIT: Duration = Duration::from_secs(20);
const PORT: u16 = 7300;

/// Direction in which the measured host moves bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransferDirection {
    Send,
    Receive,
}

impl TransferDirection {
    pub(super) const BOTH: [Self; 2] = [Self::Send, Self::Receive];

    pub(super) fn name(self) -> &'static str {
        if self == Self::Send { "send" } else { "receive" }
    }
}

/// One slot of one contender.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotJob {
    pub(super) way: TransferDirection,
    pub(super) places: Places,
    pub(super) length: Duration,
}

/// An activity beside the work, with the threads that do the work; the work goes on until the
/// activity is over.
pub(super) type Beside<'a> = Option<&'a (dyn Fn([(Side, Option<u32>); 3]) + Sync)>;

/// The bytes moved, and their cost.
#[derive(Clone, Debug)]
pub(super) struct Moved {
    pub(super) bytes: u64,
    pub(super) wall_ns: u64,
    pub(super) used: ClockReadings,
}

impl Moved {
    pub(super) fn gbit_per_s(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.wall_ns.max(1) as f64
    }

    /// Converts nanoseconds to percents of a processor for each Gb/s: 1 ns a byte is an eighth of a
    /// processor.
    pub(super) fn percent(&self, ns: u64) -> f64 {
        ns as f64 / self.bytes.max(1) as f64 * 12.5
    }
}

/// An application's side of a connection.
pub(super) struct Walk {
    bytes: Vec<u8>,
    at: usize,
    chunk: usize,
    /// As many bytes in extents, for whoever copies nothing.
    extents: Option<Extents>,
}

impl Walk {
    pub(super) fn new(bytes: usize, chunk: usize) -> Self {
        Self { bytes: vec![0x47; bytes.max(chunk)], at: 0, chunk, extents: None }
    }

    fn next(&mut self) -> &mut [u8] {
        if self.at + self.chunk > self.bytes.len() {
            self.at = 0;
        }
        let from = self.at;
        self.at += self.chunk;
        &mut self.bytes[from..from + self.chunk]
    }
}

/// A socket that takes and gives chunks, the kernel's or the engine's.
pub(super) trait Chunks {
    fn give(&mut self, chunk: &[u8]) -> std::io::Result<()>;
    fn take(&mut self, chunk: &mut [u8]) -> std::io::Result<usize>;
}

impl Chunks for KernelStream {
    fn give(&mut self, chunk: &[u8]) -> std::io::Result<()> {
        self.write_all(chunk)
    }

    /// One call for a whole chunk.
    fn take(&mut self, chunk: &mut [u8]) -> std::io::Result<usize> {
        let (_, bytes) = rustix::net::recv(self.as_fd(), chunk, RecvFlags::WAITALL)?;
        Ok(bytes)
    }
}

impl Chunks for TcpStream {
    fn give(&mut self, chunk: &[u8]) -> std::io::Result<()> {
        self.write_all(chunk)
    }

    fn take(&mut self, chunk: &mut [u8]) -> std::io::Result<usize> {
        self.read(chunk)
    }
}

/// Moves chunks until the time is over.
fn carry(
    stream: &mut impl Chunks,
    rig: &ToeRig,
    job: &SlotJob,
    walk: &mut Walk,
    beside: Beside<'_>,
) -> anyhow::Result<Moved> {
    let mut bytes = 0;
    let mut until = |end: Instant| -> anyhow::Result<u64> {
        let before = bytes;
        // One at least: others may have had the processor until the end.
        loop {
            let chunk = walk.next();
            let moved = match job.way {
                TransferDirection::Send => stream.give(chunk).map(|()| chunk.len()),
                TransferDirection::Receive => stream.take(chunk),
            };
            let moved = moved.context("move a chunk")? as u64;
            ensure!(moved > 0, "the peer has ended the connection");
            bytes += moved;
            if Instant::now() >= end {
                return Ok(bytes - before);
            }
        }
    };
    until(Instant::now() + WARM_UP)?;
    let threads = rig.threads()?;
    std::thread::scope(|scope| {
        let watcher = beside.map(|beside| scope.spawn(move || beside(threads)));
        let (begun, before) = (Instant::now(), rig.look()?);
        let mut bytes = until(begun + job.length)?;
        while watcher.as_ref().is_some_and(|watcher| !watcher.is_finished()) {
            bytes += until(Instant::now() + job.length / 4)?;
        }
        let used = rig.look()?.since(&before);
        Ok(Moved { bytes, wall_ns: begun.elapsed().as_nanos() as u64, used })
    })
}

/// The peer connects, then reads or writes until it is stopped or the connection ends.
fn peer(rig: &ToeRig, to: SocketAddr, job: &SlotJob) -> anyhow::Result<PeerThread> {
    let way = job.way;
    PeerThread::start(rig, job.places.peer, move |stop| {
        let stream = KernelStream::connect_timeout(&to, LIMIT).context("the peer connects")?;
        stream.set_read_timeout(Some(PEER_TIMEOUT))?;
        stream.set_write_timeout(Some(PEER_TIMEOUT))?;
        match way {
            TransferDirection::Send => drain(&stream, stop),
            TransferDirection::Receive => pour(&stream, stop),
        }
        Ok(())
    })
}

/// Reads and throws away, without a copy: the peer is to cost little, and the same for everybody.
fn drain(stream: &KernelStream, stop: &AtomicBool) {
    let mut room = vec![0; PEER_BYTES];
    while !stop.load(Ordering::Relaxed) {
        match rustix::net::recv(stream, &mut room[..], RecvFlags::TRUNC) {
            Ok((_, 0)) => return,
            Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

fn pour(mut stream: &KernelStream, stop: &AtomicBool) {
    let bytes = vec![0x47; PEER_BYTES];
    while !stop.load(Ordering::Relaxed) {
        match stream.write(&bytes) {
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

/// The kernel's TCP, with socket buffers as it tunes them itself.
pub(super) fn by_kernel(
    rig: &mut ToeRig,
    job: &SlotJob,
    walk: &mut Walk,
    beside: Beside<'_>,
) -> anyhow::Result<Moved> {
    let to = SocketAddr::new(rig.ends(false)?.0, PORT);
    let rig = &*rig;
    rig.place(&job.places)?;
    rig.host(|| -> anyhow::Result<Moved> {
        become_(HOST, job.places.app)?;
        let listener = KernelListener::bind(to).context("listen")?;
        looks_up(&listener, LOOK_UP)?;
        let mut peer = peer(rig, to, job)?;
        let (mut stream, _) = peer.accept(|| listener.accept())?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        let moved = carry(&mut stream, rig, job, walk, beside);
        drop(stream);
        peer.end()?;
        moved
    })?
}

/// The engine's sockets; `lends`: without a copy on the host.
pub(super) fn by_engine(
    rig: &mut ToeRig,
    (engine, lends): (&Engine, bool),
    job: &SlotJob,
    walk: &mut Walk,
    beside: Beside<'_>,
) -> anyhow::Result<Moved> {
    let to = SocketAddr::new(rig.ends(true)?.0, PORT);
    let rig = &*rig;
    rig.place(&job.places)?;
    rig.host(|| -> anyhow::Result<Moved> {
        become_(HOST, job.places.app)?;
        let host = engine.attach()?;
        let listener = TcpListener::bind(&host, to)?;
        let mut peer = peer(rig, to, job)?;
        let (mut stream, _) = peer.accept(|| listener.accept_timeout(LOOK_UP))?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        let moved = if lends {
            let extents = match walk.extents.take() {
                Some(extents) => extents,
                None => Extents::new(walk.bytes.len(), walk.chunk)?,
            };
            let moved = carry(
                &mut ZeroCopyStream { stream: &stream, extents: &extents, at: 0 },
                rig,
                job,
                walk,
                beside,
            );
            walk.extents = Some(extents);
            moved
        } else {
            carry(&mut stream, rig, job, walk, beside)
        };
        stream.abort();
        peer.end()?;
        moved
    })?
}
