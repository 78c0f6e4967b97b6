//! The packets that a device has sent and received, in a file that tcpdump and Wireshark read: for
//! diagnosing network faults.
//!
//! ```text
//!   engine's thread                      ring of bytes                   thread of its own
//!   Captured: receive, send ── stamp, copy ──► 4 MiB ──────────────────► pcapng blocks ─► file
//!                              no room: counted
//! ```
//!
//! The engine never waits for the file. Packets that find no room in the ring are counted, and the
//! count stands at the end of the file. A file that has reached its size, or a disk that is full,
//! ends the capture and nothing else.

mod file;

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use millrace_core::seam::Clock;
use millrace_core::time::Instant;
use millrace_tcp::ip::LinkLayer;

use self::file::CaptureWriter;
use super::device::{Device, DeviceAccess, Inbound};
use crate::limits::{CAPTURE_FILE_BYTES, CAPTURE_LOOK_EVERY, CAPTURE_RING_BYTES, CAPTURE_SNAP_BYTES};

/// Where a capture goes, and how much of it.
#[derive(Clone, Debug)]
pub struct Capture {
    /// The file. An existing one is replaced; only its owner can read it.
    pub file: PathBuf,
    /// Bytes kept of each packet.
    pub snap_bytes: u32,
    /// Length of the file at which the capture ends.
    pub max_bytes: u64,
    /// Told once why a capture has ended before the engine.
    pub report: fn(&str),
}

impl Capture {
    /// Whole packets, up to 1 GiB of them.
    pub fn to(file: impl Into<PathBuf>, report: fn(&str)) -> Self {
        Self { file: file.into(), snap_bytes: CAPTURE_SNAP_BYTES, max_bytes: CAPTURE_FILE_BYTES, report }
    }
}

/// Direction of a captured packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PacketDirection {
    In = 1,
    Out = 2,
}

/// In front of each packet in the ring: when, which way and how long it was, and how many of its bytes follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    ns: u64,
    way: PacketDirection,
    length: u32,
    kept: u32,
}

impl Stamp {
    const BYTES: usize = 20;

    fn encode(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.ns.to_ne_bytes());
        bytes[8..12].copy_from_slice(&(self.way as u32).to_ne_bytes());
        bytes[12..16].copy_from_slice(&self.length.to_ne_bytes());
        bytes[16..].copy_from_slice(&self.kept.to_ne_bytes());
        bytes
    }

    fn decode(bytes: [u8; Self::BYTES]) -> Self {
        let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let [a, b, c, d, e, f, g, h, ..] = bytes;
        let way =
            if word(8) == PacketDirection::In as u32 { PacketDirection::In } else { PacketDirection::Out };
        Self { ns: u64::from_ne_bytes([a, b, c, d, e, f, g, h]), way, length: word(12), kept: word(16) }
    }
}

/// What both threads look at.
#[derive(Debug, Default)]
struct CaptureStatus {
    /// The device is gone: the rest must be written.
    stop: AtomicBool,
    /// The file takes no more.
    is_over: AtomicBool,
    /// Packets that the ring had no room for.
    lost: AtomicU64,
}

/// A device whose packets are captured.
pub struct Captured<D, C> {
    device: D,
    tap: Tap<C>,
}

/// The engine's end of the ring.
struct Tap<C> {
    clock: C,
    /// Wall-clock nanoseconds at the clock's zero.
    epoch_ns: u64,
    snap_bytes: usize,
    ring: rtrb::Producer<u8>,
    shared: Arc<CaptureStatus>,
    thread: Option<JoinHandle<()>>,
}

impl<D: Device, C: Clock + Send> Captured<D, C> {
    /// Makes the file, and the thread that writes it. Packets get the time of `clock` and `epoch_ns`, nanoseconds from the beginning of 1970 to
    /// its zero.
    ///
    /// # Errors
    /// The file cannot be made, or the thread.
    pub fn open(device: D, capture: &Capture, link: LinkLayer, clock: C, epoch_ns: u64) -> io::Result<Self> {
        let path = capture.file.display();
        let fault = |error: io::Error| {
            io::Error::new(
                error.kind(),
                format!("capture file {path}: {error}; choose a file that can be made"),
            )
        };
        let mut options = std::fs::OpenOptions::new();
        let file =
            options.write(true).create(true).truncate(true).mode(0o600).open(&capture.file).map_err(fault)?;
        let writer = CaptureWriter::new(file, capture, link).map_err(fault)?;
        let (ring, packets) = rtrb::RingBuffer::new(CAPTURE_RING_BYTES);
        let shared = Arc::new(CaptureStatus::default());
        let (theirs, report) = (Arc::clone(&shared), capture.report);
        let thread = std::thread::Builder::new()
            .name("toe-capture".into())
            .spawn(move || write(packets, writer, &theirs, report))?;
        let snap_bytes = capture.snap_bytes as usize;
        Ok(Self { device, tap: Tap { clock, epoch_ns, snap_bytes, ring, shared, thread: Some(thread) } })
    }
}

impl<C: Clock> Tap<C> {
    fn note(&mut self, way: PacketDirection, packet: &[u8]) {
        if self.shared.is_over.load(Ordering::Relaxed) {
            return;
        }
        let kept = &packet[..packet.len().min(self.snap_bytes)];
        if self.ring.slots() < Stamp::BYTES + kept.len() {
            // There is no other writer.
            self.shared.lost.store(self.shared.lost.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            return;
        }
        let ns = self.epoch_ns + self.clock.now().0;
        let stamp = Stamp { ns, way, length: packet.len() as u32, kept: kept.len() as u32 };
        // There is room for both, and the reader takes nothing before it is whole.
        let _ = self.ring.push_entire_slice(&stamp.encode());
        let _ = self.ring.push_entire_slice(kept);
    }
}

impl<C> Drop for Tap<C> {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

impl<D: Device, C: Clock + Send> Device for Captured<D, C> {
    fn receive(&mut self, take: &mut dyn FnMut(Inbound<'_>)) -> io::Result<bool> {
        let Self { device, tap } = self;
        device.receive(&mut |packet| {
            tap.note(PacketDirection::In, packet.bytes);
            take(packet);
        })
    }

    fn send(&mut self, packet: &[u8]) -> io::Result<bool> {
        let is_sent = self.device.send(packet)?;
        if is_sent {
            self.tap.note(PacketDirection::Out, packet);
        }
        Ok(is_sent)
    }

    fn flush(&mut self, now: Instant) -> io::Result<bool> {
        self.device.flush(now)
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        self.device.readable()
    }

    fn due(&self) -> Option<Instant> {
        self.device.due()
    }

    fn access(&self) -> DeviceAccess {
        self.device.access()
    }
}

/// The thread: from the ring to the file, until the device is gone or the file takes no more.
fn write(
    mut packets: rtrb::Consumer<u8>,
    mut writer: CaptureWriter,
    shared: &CaptureStatus,
    report: fn(&str),
) {
    loop {
        // In this order: packets put in before the stop are seen.
        let is_last = shared.stop.load(Ordering::Acquire);
        let written = take_all(&mut packets, &mut writer);
        let outcome = match written {
            Ok(()) if is_last => writer.end(shared.lost.load(Ordering::Relaxed), "the engine has ended"),
            Ok(()) => writer.flush(),
            Err(error) => Err(error),
        };
        match outcome {
            Err(error) => {
                shared.is_over.store(true, Ordering::Relaxed);
                report(&writer.give_up(&error, shared.lost.load(Ordering::Relaxed)));
                return;
            }
            Ok(()) if is_last => return,
            Ok(()) => std::thread::park_timeout(CAPTURE_LOOK_EVERY),
        }
    }
}

fn take_all(packets: &mut rtrb::Consumer<u8>, writer: &mut CaptureWriter) -> io::Result<()> {
    let mut bytes = Vec::new();
    while let Ok(chunk) = packets.read_chunk(Stamp::BYTES) {
        let mut head = [0; Stamp::BYTES];
        // The stamp stays where it is until its packet is there, too.
        copy_out(&chunk, &mut head);
        let stamp = Stamp::decode(head);
        let Ok(chunk) = packets.read_chunk(Stamp::BYTES + stamp.kept as usize) else { break };
        bytes.resize(chunk.len(), 0);
        copy_out(&chunk, &mut bytes);
        chunk.commit_all();
        writer.packet(&stamp, &bytes[Stamp::BYTES..])?;
    }
    Ok(())
}

fn copy_out(chunk: &rtrb::chunks::ReadChunk<'_, u8>, to: &mut [u8]) {
    let (first, second) = chunk.as_slices();
    to[..first.len()].copy_from_slice(first);
    to[first.len()..].copy_from_slice(second);
}

#[cfg(test)]
#[path = "capture_tests.rs"]
mod tests;
