//! Loops around the rings of an AF_XDP socket.

use std::net::Ipv4Addr;
use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use millrace_core::limits::EXTENT_BYTES;
use millrace_core::pool::{ExtentArena, Fill};
use millrace_core::wire::frame::{ETHERNET_HEADER_BYTES, IPV4_HEADER_BYTES, UDP_HEADER_BYTES};
use millrace_netio::xdp::ring::Desc;
use millrace_netio::xdp::socket::{Kick, SocketConfig, SocketRings, XdpSocket};
use millrace_netio::xdp::umem::CHUNK_BYTES;

use super::datagrams::ViewerDatagrams;

/// Ethernet, IPv4 and UDP header.
const HEADER_BYTES: usize = ETHERNET_HEADER_BYTES + IPV4_HEADER_BYTES + UDP_HEADER_BYTES;
/// A frame: two of them in a page of 4 KiB.
const FRAME_BYTES: usize = 2048;
/// Extents of frames that a loop writes: few, so that they stay in the cache.
const STAGING_EXTENTS: usize = 2;
const HOT_FRAMES: usize = (4 << 20) / FRAME_BYTES;
const RING_ENTRIES: u32 = 2048;
/// Calls without any progress after which a batch is given up.
const MAX_CALLS: u32 = 1_000_000;

/// How a datagram becomes descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpPath {
    /// One descriptor of a frame that was built before.
    Built,
    /// Copied into a frame.
    Staging,
    /// Header in a frame, packet where it lies.
    Chained,
}

/// What stands before each packet of a viewer.
#[derive(Clone, Copy, Debug)]
pub struct Headers([u8; HEADER_BYTES]);

impl Headers {
    /// For datagrams of `bytes` with no UDP checksum.
    pub fn new(macs: [[u8; 6]; 2], source: (Ipv4Addr, u16), dest: (Ipv4Addr, u16), bytes: usize) -> Self {
        let mut h = [0; HEADER_BYTES];
        let [from, to] = macs;
        h[..6].copy_from_slice(&to);
        h[6..12].copy_from_slice(&from);
        h[12..14].copy_from_slice(&[8, 0]);
        let udp_bytes = (8 + bytes) as u16;
        let ip = &mut h[14..34];
        ip[0] = 0x45;
        ip[2..4].copy_from_slice(&(20 + udp_bytes).to_be_bytes());
        // Don't fragment; 64 hops; UDP.
        ip[6] = 0x40;
        ip[8..10].copy_from_slice(&[64, 17]);
        ip[12..16].copy_from_slice(&source.0.octets());
        ip[16..20].copy_from_slice(&dest.0.octets());
        let sum = ip.chunks(2).fold(0u32, |sum, w| sum + u32::from(u16::from_be_bytes([w[0], w[1]])));
        let sum = (sum >> 16) + (sum & 0xffff);
        ip[10..12].copy_from_slice(&(!((sum >> 16) + sum) as u16).to_be_bytes());
        h[34..36].copy_from_slice(&source.1.to_be_bytes());
        h[36..38].copy_from_slice(&dest.1.to_be_bytes());
        h[38..40].copy_from_slice(&udp_bytes.to_be_bytes());
        Self(h)
    }
}

/// A socket, its rings and its frames.
pub struct XdpLoop {
    socket: XdpSocket,
    rings: SocketRings,
    /// Frames that were built before, by the extents that they lie in.
    built: Vec<Fill>,
    staging: Vec<Fill>,
    /// Numbers of staging frames that are free; the last that came back goes out first.
    free: Vec<u32>,
    /// Length of a built frame.
    built_bytes: u32,
    /// Room of each frame: divides an extent.
    frame_bytes: usize,
}

impl XdpLoop {
    /// Takes a queue of an interface, and `built_extents` and a few more of the extents that `arena` has aside.
    ///
    /// # Errors
    /// When the queue, the memory or the extents are not available.
    pub fn open(
        interface: &str,
        queue: u32,
        arena: &Arc<ExtentArena>,
        built_extents: usize,
    ) -> anyhow::Result<Self> {
        Self::open_with_frames(interface, queue, arena, built_extents, FRAME_BYTES)
    }

    /// The same with frames of another length, a power of two.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with_frames(
        interface: &str,
        queue: u32,
        arena: &Arc<ExtentArena>,
        built_extents: usize,
        frame_bytes: usize,
    ) -> anyhow::Result<Self> {
        ensure!(
            frame_bytes.is_power_of_two() && frame_bytes <= EXTENT_BYTES,
            "frames of {frame_bytes} bytes do not divide an extent"
        );
        let mut fills: Vec<Fill> = arena
            .aside()
            .filter_map(|extent| arena.fill(extent))
            .take(STAGING_EXTENTS + built_extents)
            .collect();
        ensure!(
            fills.len() == STAGING_EXTENTS + built_extents,
            "only {} extents are aside and free; {} are needed",
            fills.len(),
            STAGING_EXTENTS + built_extents
        );
        let staging = fills.drain(..STAGING_EXTENTS).collect();
        let (socket, rings) = XdpSocket::open(&SocketConfig {
            interface: interface.to_owned(),
            queue,
            arena: Arc::clone(arena),
            zero_copy: false,
            multi: true,
            tx_entries: RING_ENTRIES,
            rx_entries: 0,
            tx_budget: RING_ENTRIES,
        })?;
        let free = (0..(STAGING_EXTENTS * EXTENT_BYTES / frame_bytes) as u32).collect();
        Ok(Self { socket, rings, built: fills, staging, free, built_bytes: 0, frame_bytes })
    }

    fn frames_per_extent(&self) -> usize {
        EXTENT_BYTES / self.frame_bytes
    }

    /// Builds all frames: one datagram each of `packets`, for one viewer after the other.
    pub fn build<'a>(&mut self, headers: &[Headers], mut packets: impl Iterator<Item = &'a [u8]>) {
        let (per_extent, frame_bytes) = (self.frames_per_extent(), self.frame_bytes);
        for (frame, packet) in (0..self.built.len() * per_extent).zip(packets.by_ref()) {
            let at = frame % per_extent * frame_bytes;
            let header = &headers[frame % headers.len()];
            let bytes = &mut self.built[frame / per_extent].bytes_mut()[at..at + frame_bytes];
            self.built_bytes = write_frame(bytes, header, packet);
        }
    }

    /// Returns the number of prebuilt frames; every one may be sent any number of times.
    pub fn built_frames(&self) -> usize {
        self.built.len() * self.frames_per_extent()
    }

    /// Returns the number of these frames that are sent when media must be in the processor's
    /// cache: 4 MiB.
    pub fn hot_frames(&self) -> usize {
        HOT_FRAMES.min(self.built_frames())
    }

    /// Sends frames that were built.
    ///
    /// # Errors
    /// When the interface is gone or takes nothing.
    pub fn send_built(&mut self, frames: &[u32]) -> anyhow::Result<()> {
        let (per_extent, frame_bytes) = (self.frames_per_extent(), self.frame_bytes);
        for &frame in frames {
            let frame = frame as usize;
            let extent = self.built[frame / per_extent].extent() as usize;
            let address = extent * EXTENT_BYTES + frame % per_extent * frame_bytes;
            self.push(Desc { address: address as u64, len: self.built_bytes, more: false })?;
        }
        self.flush()
    }

    /// Sends the datagrams of `pieces`, of `segment_bytes` each.
    ///
    /// # Errors
    /// As [`Self::send_built`].
    pub fn send(
        &mut self,
        way: XdpPath,
        headers: &[Headers],
        pieces: &[ViewerDatagrams<'_>],
        segment_bytes: usize,
    ) -> anyhow::Result<()> {
        for piece in pieces {
            let header = &headers[piece.viewer];
            for (n, packet) in piece.bytes.chunks(segment_bytes).enumerate() {
                let (address, frame) = self.frame()?;
                if way == XdpPath::Chained {
                    frame[..HEADER_BYTES].copy_from_slice(&header.0);
                    self.push(Desc { address, len: HEADER_BYTES as u32, more: true })?;
                    let address = piece.address + (n * segment_bytes) as u64;
                    self.push(Desc { address, len: packet.len() as u32, more: false })?;
                } else {
                    let len = write_frame(frame, header, packet);
                    self.push(Desc { address, len, more: false })?;
                }
            }
        }
        self.flush()
    }

    /// A free frame and its address.
    pub(crate) fn frame(&mut self) -> anyhow::Result<(u64, &mut [u8])> {
        if self.free.is_empty() {
            self.flush()?;
        }
        let (per_extent, frame_bytes) = (self.frames_per_extent(), self.frame_bytes);
        let number = self.free.pop().context("no frame came back from the device")? as usize;
        let fill = &mut self.staging[number / per_extent];
        let at = number % per_extent * frame_bytes;
        let address = fill.extent() as usize * EXTENT_BYTES + at;
        Ok((address as u64, &mut fill.bytes_mut()[at..at + frame_bytes]))
    }

    /// Puts bytes of the registered memory into the ring, as many descriptors as it takes; `more` of the packet follows.
    pub(crate) fn push_range(&mut self, address: u64, bytes: usize, more: bool) -> anyhow::Result<()> {
        for at in (0..bytes).step_by(CHUNK_BYTES) {
            let len = (bytes - at).min(CHUNK_BYTES);
            let more = more || at + len < bytes;
            self.push(Desc { address: address + at as u64, len: len as u32, more })?;
        }
        Ok(())
    }

    fn push(&mut self, desc: Desc) -> anyhow::Result<()> {
        if !self.rings.tx.push(desc) {
            self.flush()?;
            ensure!(self.rings.tx.push(desc), "the ring is full after a flush");
        }
        Ok(())
    }

    /// Makes the kernel take everything and takes back all completed frames.
    ///
    /// # Errors
    /// When the interface is gone or takes nothing.
    pub(crate) fn flush(&mut self) -> anyhow::Result<()> {
        self.rings.tx.publish();
        let mut calls = 0;
        while self.rings.tx.pending() > 0 {
            if let Kick::Dead(errno) = self.socket.kick() {
                bail!("the interface is gone: errno {errno}");
            }
            self.reap();
            calls += 1;
            ensure!(calls < MAX_CALLS, "the interface takes nothing more");
        }
        self.reap();
        Ok(())
    }

    fn reap(&mut self) {
        while let Some(address) = self.rings.completion.pop() {
            let (extent, at) = (address as usize / EXTENT_BYTES, address as usize % EXTENT_BYTES);
            if !at.is_multiple_of(self.frame_bytes) {
                // A later descriptor of a frame that is longer than one: the kernel completes all of a packet at once.
                continue;
            }
            let place = self.staging.iter().position(|fill| fill.extent() as usize == extent);
            let per_extent = EXTENT_BYTES / self.frame_bytes;
            self.free.extend(place.map(|place| (place * per_extent + at / self.frame_bytes) as u32));
        }
        self.rings.completion.release();
    }

    /// Extents that it takes beside built frames.
    pub const EXTENTS: usize = STAGING_EXTENTS;
}

/// Writes a whole frame; its length.
fn write_frame(frame: &mut [u8], header: &Headers, packet: &[u8]) -> u32 {
    let Range { start, end } = HEADER_BYTES..HEADER_BYTES + packet.len();
    frame[..start].copy_from_slice(&header.0);
    frame[start..end].copy_from_slice(packet);
    end as u32
}
