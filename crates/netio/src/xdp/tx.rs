//! The egress path by AF_XDP: one device, one queue, all its streams.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use millrace_core::ids::StreamId;
use millrace_core::limits::{MAX_BATCH_BURSTS, XDP_ASIDE_EXTENTS};
use millrace_core::packet::PacketMeta;
use millrace_core::pool::{ExtentArena, Lease};
use millrace_core::prefetch::prefetch;
use millrace_core::seam::{Dest, PacketTx, Payload, PayloadSource, SendOutcome, Transmit, TransmitBatch};
use millrace_core::shape::DatagramShape;
use millrace_core::wire::frame::Template;

use super::error::XdpError;
use super::memory::MemoryNic;
use super::output::{Ahead, Far, FrameJob, MemoryBell, Output, Port, XdpCounters};
use super::ring::Ring;
use super::row::{Limit, OwnLink, Rows};
use super::socket::{SocketConfig, XdpSocket};
use super::strategy::{Abilities, Strategy};
use super::umem::{CHUNK_BYTES, Frames, is_on_huge_pages};
use crate::errno::errno_of;
use crate::features::DeviceFeatures;
use crate::limits::{MAX_MULTICAST_SOCKETS, XDP_CHECK_TURNS, XDP_RING_DESCRIPTORS};
use crate::multicast::MulticastSettings;
use crate::route::HopTable;

/// Length of a staging frame where the MTU is an ordinary one; twice as long where it is not.
const FRAME_BYTES: usize = 2048;
/// The longest Ethernet header, with a VLAN tag.
const LINK_BYTES: usize = 18;
/// Ethernet address of rings in memory.
const MEMORY_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// MTU of Ethernet, where nothing else is known.
const USUAL_MTU: u32 = 1500;

/// The configuration of an [`XdpTx`].
#[derive(Clone)]
pub struct XdpConfig {
    /// The interface, in the calling thread's network namespace.
    pub interface: String,
    /// Its queue.
    pub queue: u32,
    /// The cache's memory; the kernel will lock all of it. The device sets aside up to
    /// [`XDP_ASIDE_EXTENTS`] of the arena's extents.
    pub arena: Arc<ExtentArena>,
    /// How datagrams are handed over; `None`: chosen by the driver's abilities.
    pub strategy: Option<Strategy>,
    /// Streams: their indices run from 0 to `streams - 1`.
    pub streams: usize,
    /// UDP source port of RTP.
    pub port: u16,
    /// UDP source port of RTCP.
    pub rtcp_port: u16,
    /// Datagrams after which the kernel is made to look, and that one call sends where the kernel lets one choose.
    pub tx_budget: u32,
}

/// Sends UDP datagrams as frames by one queue of one interface.
///
/// Allocates only in [`XdpTx::open`]. Does not send unsupported data: destinations behind other
/// interfaces or tunnels, TCP, datagrams longer than the MTU; ask [`XdpTx::can_send`] first and
/// leave these to the kernel.
pub struct XdpTx {
    out: Output,
    rows: Rows,
    interface: String,
    queue: u32,
    rtcp_port: u16,
    turns: u32,
    link: OwnLink,
    /// Sockets for multicast whose datagrams leave here too.
    multicast: [Option<MulticastSettings>; MAX_MULTICAST_SOCKETS],
    /// Streams with an entry of this batch that was not taken whole: nothing may overtake it.
    refused: Vec<StreamId>,
    failure: Option<XdpError>,
}

/// The facts known about the device before it is opened.
#[derive(Clone, Copy)]
struct Device {
    abilities: Abilities,
    link: OwnLink,
}

impl Device {
    /// Queries the kernel. An interface without any information is tried like any other: opening it
    /// reports the fault.
    fn of(config: &XdpConfig) -> Self {
        let features = DeviceFeatures::of(&config.interface).ok();
        let of = features.as_ref();
        let abilities = Abilities::of(of, is_on_huge_pages(&config.arena));
        let link = OwnLink { mac: of.and_then(|f| f.mac), mtu: of.map_or(USUAL_MTU, |f| f.mtu) };
        Self { abilities, link }
    }

    fn in_memory() -> Self {
        let link = OwnLink { mac: Some(MEMORY_MAC), mtu: USUAL_MTU };
        Self { abilities: Abilities::default(), link }
    }

    /// Length of a frame that holds the longest datagram, as far as one descriptor can.
    fn frame_bytes(self) -> usize {
        if self.link.mtu as usize + LINK_BYTES <= FRAME_BYTES { FRAME_BYTES } else { CHUNK_BYTES }
    }
}

/// The headers of an entry's datagrams.
enum EgressPath {
    /// The stream's row.
    Row(usize),
    /// RTCP: it has another port and is rare.
    Single(Template),
}

impl XdpTx {
    /// Opens a device. Without a strategy in `config`, those that suit the driver are tried, best first.
    ///
    /// # Errors
    /// Says which step failed and what to do about it.
    pub fn open(config: XdpConfig, hops: HopTable) -> Result<Self, XdpError> {
        let device = Device::of(&config);
        if let Some(strategy) = config.strategy {
            return Self::open_as(&config, strategy, device, hops);
        }
        let mut candidates = device.abilities.candidates().peekable();
        while let Some(strategy) = candidates.next() {
            match open_socket(&config, strategy) {
                Ok(port) => return Self::build(&config, strategy, device, port, hops),
                // The driver cannot; whatever else is wrong is wrong with the others too.
                Err(XdpError::Call { source, .. }) if candidates.peek().is_some() && cannot(&source) => {}
                Err(error) => return Err(error),
            }
        }
        Self::open_as(&config, Strategy::Staging, device, hops)
    }

    fn open_as(
        config: &XdpConfig,
        strategy: Strategy,
        device: Device,
        hops: HopTable,
    ) -> Result<Self, XdpError> {
        let port = open_socket(config, strategy)?;
        Self::build(config, strategy, device, port, hops)
    }

    /// The same over rings in memory: no privileges, no interface. `config.interface` may be a number, which is then the
    /// interface that hops must lead to; else all are taken. Without a strategy it stages.
    ///
    /// # Errors
    /// If the arena has too few extents aside.
    pub fn over_memory(config: XdpConfig, hops: HopTable) -> Result<(Self, MemoryNic), XdpError> {
        let (tx, nic_tx) = Ring::heap(XDP_RING_DESCRIPTORS);
        let (nic_completion, completion) = Ring::heap(XDP_RING_DESCRIPTORS);
        let bell = Arc::new(MemoryBell::default());
        let nic = MemoryNic::new(nic_tx, nic_completion, Arc::clone(&config.arena), Arc::clone(&bell));
        let port = Port { far: Far::Memory(bell), tx, completion };
        let strategy = config.strategy.unwrap_or(Strategy::Staging);
        Ok((Self::build(&config, strategy, Device::in_memory(), port, hops)?, nic))
    }

    fn build(
        config: &XdpConfig,
        strategy: Strategy,
        device: Device,
        port: Port,
        hops: HopTable,
    ) -> Result<Self, XdpError> {
        let (if_index, budget) = match &port.far {
            Far::Kernel(socket) if strategy.is_zero_copy() => (Some(socket.if_index()), config.tx_budget),
            Far::Kernel(socket) => (Some(socket.if_index()), socket.tx_budget()),
            Far::Memory(_) => (config.interface.parse().ok(), config.tx_budget),
        };
        let chained = strategy.is_chained();
        let frames = Frames::take_from(&config.arena, XDP_ASIDE_EXTENTS, chained, device.frame_bytes());
        let needed = if chained { 2 } else { 1 };
        if frames.extents() < needed {
            let (interface, found) = (config.interface.clone(), frames.extents());
            return Err(XdpError::NoFrames { interface, strategy, needed, found });
        }
        let cut_at_pages = strategy.is_zero_copy() && !device.abilities.huge_pages;
        Ok(Self {
            out: Output::new(port, frames, &config.arena, strategy, budget, cut_at_pages),
            rows: Rows::new(config.streams, hops, if_index, config.port),
            interface: config.interface.clone(),
            queue: config.queue,
            rtcp_port: config.rtcp_port,
            turns: 0,
            link: device.link,
            multicast: [None; MAX_MULTICAST_SOCKETS],
            refused: Vec::with_capacity(MAX_BATCH_BURSTS),
            failure: None,
        })
    }

    /// Sets the sockets for multicast, in the order of the kernel's path: datagrams to groups by
    /// this interface then leave here. The device keeps using the Ethernet address that it had when
    /// it was opened.
    pub fn set_multicast(&mut self, all: &[MulticastSettings]) {
        self.multicast = std::array::from_fn(|at| all.get(at).copied().filter(|one| self.rows.takes(one)));
    }

    /// Whether this device can send this now: UDP, the next hop known and behind this interface, every datagram within
    /// the path's MTU, the device alive.
    pub fn can_send(&mut self, transmit: &Transmit<'_>) -> bool {
        DatagramShape::of(transmit.payload).is_ok_and(|shape| self.can_send_shaped(transmit, &shape))
    }

    /// The same of a payload that has been checked.
    pub(crate) fn can_send_shaped(&mut self, transmit: &Transmit<'_>, shape: &DatagramShape<'_>) -> bool {
        self.rows.poll();
        self.failure.is_none() && self.way(transmit, shape).is_ok()
    }

    /// Asks for the memory that [`XdpTx::can_send`] and sending will need for this stream.
    pub fn expect(&self, stream: StreamId) {
        self.rows.prefetch(stream.index as usize);
    }

    /// Takes back everything the device has finished with, and checks that it is still there.
    /// Returns whether something is still in flight. For turns without anything to send: leases of
    /// the last batch would be held until the next.
    pub fn poll(&mut self) -> bool {
        if self.failure.is_none() {
            self.begin();
            // The descriptors that a full device did not take at the last batch.
            self.out.flush();
            self.note_death();
        }
        self.failure.is_none() && self.out.in_flight() > 0
    }

    /// Returns its counters.
    pub fn counters(&self) -> &XdpCounters {
        &self.out.counters
    }

    /// How it hands datagrams over.
    pub fn strategy(&self) -> Strategy {
        self.out.strategy()
    }

    /// The interface's name.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// Why it is dead: the interface is down or gone. All that it held has been given back; it sends nothing any more.
    pub fn failure(&self) -> Option<&XdpError> {
        self.failure.as_ref()
    }

    fn begin(&mut self) {
        self.rows.poll();
        self.out.collect();
        self.turns += 1;
        if self.turns >= XDP_CHECK_TURNS {
            self.turns = 0;
            self.out.check();
            self.note_death();
        }
    }

    fn note_death(&mut self) {
        if let (Some(errno), None) = (self.out.dead(), &self.failure) {
            self.out.give_back();
            let (interface, source) = (self.interface.clone(), io::Error::from_raw_os_error(errno));
            self.failure = Some(XdpError::Gone { interface, queue: self.queue, source });
        }
    }

    /// Returns how the datagrams of an entry go out, or the errno that explains why they cannot.
    fn way(&mut self, transmit: &Transmit<'_>, shape: &DatagramShape<'_>) -> Result<EgressPath, i32> {
        let is_rtcp = matches!(transmit.payload, Payload::Rtcp(_));
        let to = transmit.dest.address(is_rtcp).ok_or(libc::EOPNOTSUPP)?;
        if !transmit.dest.source().is_by_route() {
            // Prepared headers contain the address that the route gives.
            return Err(libc::EOPNOTSUPP);
        }
        if is_rtcp && matches!(transmit.dest, Dest::Multicast { .. }) {
            // It is rare, and has the socket's own port.
            return Err(libc::EOPNOTSUPP);
        }
        let (way, limit, header_bytes) = if is_rtcp {
            let (template, limit) = self.rows.single(self.rtcp_port, to).ok_or(libc::EHOSTUNREACH)?;
            let header_bytes = template.header_bytes();
            (EgressPath::Single(template), limit, header_bytes)
        } else {
            let index = transmit.stream.index as usize;
            let limit = self.refresh(index, transmit.dest, to).ok_or(libc::EHOSTUNREACH)?;
            (EgressPath::Row(index), limit, self.rows.get(index).map_or(0, Template::header_bytes))
        };
        let longest = if shape.datagrams() == 0 { 0 } else { shape.datagram_bytes(0) };
        // A payload that is not copied need not fit into a frame.
        let frame = if self.strategy().is_chained() { usize::MAX } else { self.out.frame_bytes() };
        if longest > limit.datagram_bytes || header_bytes + longest > frame {
            return Err(libc::EMSGSIZE);
        }
        Ok(way)
    }

    /// Brings a stream's row up to date for datagrams to `to`.
    fn refresh(&mut self, index: usize, dest: Dest, to: SocketAddr) -> Option<Limit> {
        let Dest::Multicast { via, .. } = dest else { return self.rows.refresh(index, to) };
        let settings = self.multicast.get(usize::from(via.0))?.as_ref()?;
        self.rows.refresh_multicast(index, to, (via.0, settings), self.link)
    }

    /// Prefetches the data that every entry will need: the stream's row, and the sums of its
    /// payloads.
    fn prefetch(&self, batch: &dyn TransmitBatch) {
        for index in 0..batch.len() {
            self.rows.prefetch(batch.get(index).stream.index as usize);
            if let Some((metas, _)) = batch.source(index).and_then(|source| known_sums(source, 1)) {
                prefetch(metas);
            }
        }
    }

    fn entry(&mut self, batch: &dyn TransmitBatch, index: usize, ahead: &mut Ahead<'_>) -> SendOutcome {
        let transmit = batch.get(index);
        if self.out.dead().is_some() {
            return SendOutcome::Unreachable { errno: libc::ENETDOWN };
        }
        if self.refused.contains(&transmit.stream) {
            return SendOutcome::Blocked { taken: 0 };
        }
        let outcome = self.entry_of(batch, index, &transmit, ahead);
        if outcome != SendOutcome::Sent && self.refused.len() < self.refused.capacity() {
            self.refused.push(transmit.stream);
        }
        outcome
    }

    fn entry_of<'b>(
        &mut self,
        batch: &'b dyn TransmitBatch,
        index: usize,
        transmit: &Transmit<'b>,
        ahead: &mut Ahead<'_>,
    ) -> SendOutcome {
        let found = batch.shape(index, transmit.payload).map_err(errno_of);
        let (shape, way) = match found.and_then(|shape| Ok((shape, self.way(transmit, &shape)?))) {
            Ok(found) => found,
            Err(errno) => return SendOutcome::Unreachable { errno },
        };
        let template = match &way {
            EgressPath::Row(index) => self.rows.get(*index),
            EgressPath::Single(template) => Some(template),
        };
        let Some(template) = template else {
            return SendOutcome::Unreachable { errno: libc::EHOSTUNREACH };
        };
        let source = batch.source(index).and_then(|source| known_sums(source, shape.datagrams()));
        let is_raw = source.is_some_and(|(_, lease)| lease.content().layout.is_raw());
        let is_rtp = !is_raw && !matches!(transmit.payload, Payload::Rtcp(_));
        self.out.put_all(&FrameJob { template, shape, is_rtp, source }, ahead)
    }
}

/// Returns the sums of an entry's payloads and their extent, if it has `count` packets.
fn known_sums(source: PayloadSource<'_>, count: usize) -> Option<(&[[u8; PacketMeta::BYTES]], &Lease)> {
    let (lease, count) = (source.lease, u32::try_from(count).ok()?);
    let end = source.place.checked_add(count)?;
    (end <= lease.content().packets).then(|| (lease.metas(source.place, count), lease))
}

fn open_socket(config: &XdpConfig, strategy: Strategy) -> Result<Port, XdpError> {
    let (socket, rings) = XdpSocket::open(&SocketConfig {
        interface: config.interface.clone(),
        queue: config.queue,
        arena: Arc::clone(&config.arena),
        zero_copy: strategy.is_zero_copy(),
        multi: strategy.is_chained(),
        tx_entries: XDP_RING_DESCRIPTORS,
        rx_entries: 0,
        tx_budget: config.tx_budget,
    })?;
    Ok(Port { far: Far::Kernel(Box::new(socket)), tx: rings.tx, completion: rings.completion })
}

/// Returns whether the kernel's error means that the driver does not support the request.
fn cannot(source: &io::Error) -> bool {
    matches!(source.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL))
}

impl PacketTx for XdpTx {
    fn send(&mut self, batch: &dyn TransmitBatch, outcomes: &mut [SendOutcome]) {
        let outcomes = &mut outcomes[..batch.len()];
        if batch.is_empty() {
            return;
        }
        self.out.counters.batches += 1;
        self.out.counters.entries += outcomes.len() as u64;
        if self.failure.is_none() {
            self.begin();
        }
        self.refused.clear();
        self.prefetch(batch);
        let mut ahead = Ahead::of(batch, self.strategy());
        for (index, outcome) in outcomes.iter_mut().enumerate() {
            *outcome = self.entry(batch, index, &mut ahead);
            self.out.counters.unreachable += u64::from(matches!(outcome, SendOutcome::Unreachable { .. }));
        }
        if self.failure.is_none() {
            self.out.flush();
            self.note_death();
        }
        (self.out.counters.rows_built, self.out.counters.rows_patched) =
            (self.rows.counts.built, self.rows.counts.patched);
    }
}

#[cfg(test)]
#[path = "tx_tests.rs"]
mod tests;
