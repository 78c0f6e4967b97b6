//! The ingress path by AF_XDP: one queue of one interface.
//!
//! ```text
//!   fill ring   ──► addresses of free frames ──► driver ──► the steering program: ours? ── no ──► kernel
//!   RX ring     ◄── frames with a packet ◄─────────────────────────┘ yes
//!                     └─► parse ─► sink ─► fill ring
//! ```
//!
//! Every frame is either on its way to the driver and back or being shown, so the rings, which have
//! a place for each frame, never overflow: when all frames are full, the kernel has none to receive
//! into, drops the arriving packets and counts them.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use millrace_core::limits::{EXTENT_BYTES, RX_BATCH_PACKETS};
use millrace_core::pool::ExtentArena;
use millrace_core::seam::{DeviceGone, PacketRx, Received, RxCounters};
use millrace_core::time::Instant;
use millrace_core::wire::frame::{Unfit, parse};

use super::error::XdpError;
use super::ring::{Consumer, Desc, Producer, Ring};
use super::socket::{SocketConfig, XdpSocket};
use super::umem::{CHUNK_BYTES, FrameKind, Frames};
use crate::limits::{MAX_XDP_RX_FRAMES, RX_LOOK_NS};

/// With unaligned chunks the upper bits of an address say where in its frame the packet begins (`XSK_UNALIGNED_BUF_OFFSET_SHIFT`).
pub(super) const OFFSET_SHIFT: u32 = 48;
/// Frames in an extent.
const FRAMES_PER_EXTENT: u32 = (EXTENT_BYTES / CHUNK_BYTES) as u32;

/// The configuration of an [`XdpRx`].
#[derive(Clone)]
pub struct XdpRxConfig {
    /// The interface, in the calling thread's network namespace.
    pub interface: String,
    /// Its queue. There is one socket for each queue at most.
    pub queue: u32,
    /// Memory with extents aside for the frames; the kernel will lock all of it, so it should have no others.
    pub arena: Arc<ExtentArena>,
    /// Frames of 4 KiB to receive into: rounded up to a power of two, at least a batch and at most [`MAX_XDP_RX_FRAMES`].
    pub frames: u32,
    /// Whether the device is to write the memory itself; only some drivers can.
    pub zero_copy: bool,
}

impl XdpRxConfig {
    fn frames(&self) -> u32 {
        self.frames.clamp(RX_BATCH_PACKETS as u32, MAX_XDP_RX_FRAMES).next_power_of_two()
    }
}

/// Receives the packets of one queue that a [`Steering`](super::steer::Steering) program gives to its socket.
///
/// Lengths and checksums are verified here, because no kernel does; a wrong packet is counted and
/// skipped. A packet takes one frame, where the kernel takes 256 bytes: interfaces with an MTU
/// above 3,800 bytes are not supported.
///
/// A packet's arrival is the moment at which it was fetched.
///
/// Allocates in [`XdpRx::open`] and not after.
pub struct XdpRx {
    // In this order: the socket is closed before the memory is given back.
    /// None: the rings are in memory, for tests.
    socket: Option<XdpSocket>,
    rx: Consumer<Desc>,
    fill: Producer<u64>,
    frames: Frames,
    /// The interface, for link-local addresses.
    scope_id: u32,
    /// The last descriptor was a piece of a packet that goes on.
    goes_on: bool,
    looked: Instant,
    gone: Option<i32>,
    counters: RxCounters,
}

impl XdpRx {
    /// Opens a device. Nothing comes until a steering program knows its socket.
    ///
    /// # Errors
    /// Says which step failed and what to do about it.
    pub fn open(config: &XdpRxConfig) -> Result<Self, XdpError> {
        let frames = frames_of(config)?;
        let (socket, rings) = XdpSocket::open(&SocketConfig {
            interface: config.interface.clone(),
            queue: config.queue,
            arena: Arc::clone(&config.arena),
            zero_copy: config.zero_copy,
            multi: false,
            // The kernel wants a TX ring's place of a socket that never sends, too.
            tx_entries: 1,
            rx_entries: config.frames(),
            tx_budget: 1,
        })?;
        let Some(rx) = rings.rx else { unreachable!("the socket was made to receive") };
        Ok(Self::build(Some(socket), rx, rings.fill, frames))
    }

    /// The same over rings in memory: no privileges, no interface; the ends that a driver has.
    ///
    /// # Errors
    /// If the arena has too few extents aside.
    pub fn over_memory(config: &XdpRxConfig) -> Result<(Self, Producer<Desc>, Consumer<u64>), XdpError> {
        let frames = frames_of(config)?;
        let (driver_rx, rx) = Ring::heap(config.frames());
        let (fill, driver_fill) = Ring::heap(config.frames());
        Ok((Self::build(None, rx, fill, frames), driver_rx, driver_fill))
    }

    fn build(
        socket: Option<XdpSocket>,
        rx: Consumer<Desc>,
        mut fill: Producer<u64>,
        mut frames: Frames,
    ) -> Self {
        while fill.free(1) > 0
            && let Some(frame) = frames.take(FrameKind::Full)
        {
            fill.push(frame);
        }
        fill.publish();
        Self {
            scope_id: socket.as_ref().map_or(0, XdpSocket::if_index),
            socket,
            rx,
            fill,
            frames,
            goes_on: false,
            looked: Instant(0),
            gone: None,
            counters: RxCounters::default(),
        }
    }

    /// Shows the packet of a descriptor, if it is a good one, and gives its frame back.
    fn show(&mut self, desc: Desc, now: Instant, sink: &mut dyn FnMut(&Received<'_>)) {
        let is_piece = std::mem::replace(&mut self.goes_on, desc.more) || desc.more;
        let frame = desc.address & ((1 << OFFSET_SHIFT) - 1);
        let start = (desc.address >> OFFSET_SHIFT) as usize;
        let Some(bytes) = self.frames.bytes_mut(frame) else {
            // Not a frame of ours, so there is none to give back.
            self.counters.malformed += 1;
            return;
        };
        let packet = bytes.get(start..start.saturating_add(desc.len as usize)).filter(|_| !is_piece);
        match packet.ok_or(Unfit::Length).and_then(|packet| parse(packet, self.scope_id)) {
            Ok(packet) => {
                self.counters.packets += 1;
                self.counters.bytes += packet.bytes.len() as u64;
                sink(&Received {
                    protocol: packet.protocol,
                    bytes: packet.bytes,
                    source: packet.source,
                    destination: packet.destination,
                    arrival: now,
                    train: None,
                });
            }
            Err(Unfit::Checksum) => self.counters.bad_checksums += 1,
            Err(_) => self.counters.malformed += 1,
        }
        // There is a place for each frame.
        self.fill.push(frame);
    }

    /// Returns the frames of the packets shown to the driver.
    fn give_back(&mut self) {
        self.rx.release();
        self.fill.publish();
        // Only a driver that writes the frames itself ever waits for them.
        if let Some(socket) = self.socket.as_ref().filter(|socket| socket.is_zero_copy())
            && self.fill.needs_wakeup(true)
        {
            socket.wake_receiver();
        }
    }

    /// Asks the kernel for its drop count and whether the interface is still there.
    fn look(&mut self) {
        let Some(socket) = &self.socket else { return };
        if let Ok(statistics) = socket.statistics() {
            self.counters.dropped = statistics.rx_dropped + statistics.rx_ring_full.unwrap_or(0);
        }
        self.gone = socket.pending_error();
    }
}

/// Takes the frames of a device from its arena.
fn frames_of(config: &XdpRxConfig) -> Result<Frames, XdpError> {
    let needed = config.frames().div_ceil(FRAMES_PER_EXTENT);
    let frames = Frames::take_from(&config.arena, needed, false, CHUNK_BYTES);
    if frames.extents() < needed {
        let (interface, found) = (config.interface.clone(), frames.extents());
        return Err(XdpError::NoReceiveFrames { interface, needed, found });
    }
    Ok(frames)
}

impl PacketRx for XdpRx {
    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(&Received<'_>)) -> Result<usize, DeviceGone> {
        let shown_before = self.counters.packets;
        let mut taken = 0;
        while taken < RX_BATCH_PACKETS
            && let Some(desc) = self.rx.pop()
        {
            self.show(desc, now, sink);
            taken += 1;
        }
        if taken > 0 {
            self.counters.batches += u64::from(self.counters.packets > shown_before);
            self.give_back();
        }
        if self.gone.is_none() && now.ns_since(self.looked) >= RX_LOOK_NS {
            self.looked = now;
            self.look();
        }
        match self.gone {
            // The packets that arrived before the interface went have been shown.
            Some(errno) if taken == 0 => Err(DeviceGone { errno }),
            _ => Ok(taken),
        }
    }

    fn counters(&self) -> &RxCounters {
        &self.counters
    }
}

impl XdpRx {
    /// The socket, for [`Steering::set_socket`](super::steer::Steering::set_socket) and to wait at: readable when something waits.
    /// `None` over memory.
    pub fn socket_fd(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }
}

#[cfg(test)]
#[path = "rx_tests.rs"]
mod tests;
