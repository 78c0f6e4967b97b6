//! An endpoint with this crate's stack: an application, a cache with extents, and a device that holds frames for a while.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use millrace_core::ids::TitleRef;
use millrace_core::limits::EXTENT_BYTES;
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::pool::{ExtentArena, ExtentContent, HeapRegion, Lease};
use millrace_core::random::SplitMix;
use millrace_core::time::{Instant, MediaTicks};
use millrace_core::wire::checksum::sum16;
use millrace_tcp::conn::{Config, Happened, Reason, State};
use millrace_tcp::recv::ClusterSize;
use millrace_tcp::send::{ExtentRange, Part};
use millrace_tcp::stack::{CallError, ConnectionId, Frame, Settings, Stack, Taken};

use super::app::{App, stream};
use super::{Endpoint, MS, Packet};

/// Packets of an extent here: small titles, many extents.
const PACKETS: u32 = 12;
const PACKET_BYTES: u64 = 1316;
pub(crate) const EXTENT_STREAM_BYTES: u64 = PACKETS as u64 * PACKET_BYTES;
const EXTENTS: u32 = 6;

pub(crate) fn settings(config: Config, secret: u64) -> Settings {
    let cluster = ClusterSize { bytes: 1 << 18, page_bytes: 2048 };
    Settings {
        config,
        connections: 8,
        requests: 8,
        time_waits: 8,
        records: 64,
        descriptors: 64,
        host_pages: 32,
        clusters: vec![cluster, cluster],
        defers_acks: true,
        cookies: true,
        ports: 40_000..=50_000,
        secret: [secret, secret ^ 0x5555],
    }
}

/// A frame that the device has not read yet.
struct Held {
    until: Instant,
    frame: Frame,
    /// The extents that it points into.
    extents: Vec<u32>,
}

pub(crate) struct Ours {
    pub(crate) stack: Stack,
    pub(crate) app: App,
    pub(crate) connection: Option<ConnectionId>,
    pub(crate) random: SplitMix,
    /// What is sent comes from extents.
    pub(crate) uses_extents: bool,
    /// Longest that the device holds a frame.
    pub(crate) device_ns: u64,
    local: SocketAddr,
    arena: Arc<ExtentArena>,
    /// Which extent of the title lies where.
    cache: [Option<u32>; EXTENTS as usize],
    device: VecDeque<Held>,
    wants: VecDeque<(Instant, ExtentContent)>,
    next_read: Instant,
    is_over: bool,
    pub(crate) reason: Option<Reason>,
}

impl Ours {
    pub(crate) fn new(settings: &Settings, local: SocketAddr, app: App, random: SplitMix) -> Self {
        Self {
            stack: Stack::new(settings),
            app,
            connection: None,
            random,
            uses_extents: false,
            device_ns: 0,
            local,
            arena: ExtentArena::new(Box::new(HeapRegion::new(EXTENTS as usize))),
            cache: [None; EXTENTS as usize],
            device: VecDeque::new(),
            wants: VecDeque::new(),
            next_read: Instant(0),
            is_over: false,
            reason: None,
        }
    }

    pub(crate) fn listen(&mut self) {
        self.stack.listen(self.local, 4).expect("a listener");
    }

    pub(crate) fn open(&mut self, remote: SocketAddr) {
        let local = SocketAddr::new(self.local.ip(), 0);
        self.connection = Some(self.stack.open(local, remote, Instant(0)).expect("a connection"));
    }

    fn content(number: u32) -> ExtentContent {
        ExtentContent {
            title: TitleRef(1),
            number,
            first_packet: number * PACKETS,
            packets: PACKETS,
            last_packet_bytes: PACKET_BYTES as u16,
            layout: WireLayout::new(PACKET_BYTES as usize).expect("the default layout"),
            spare: 0,
        }
    }

    /// Extent `number` of the title, read into any extent that nobody has leased; `None`: all are.
    fn lease(&mut self, number: u32) -> Option<Lease> {
        if let Some(at) = self.cache.iter().position(|&held| held == Some(number)) {
            return self.arena.lend(at as u32, Self::content(number));
        }
        let first = self.random.below(u64::from(EXTENTS)) as u32;
        let at = (0..EXTENTS)
            .map(|step| (first + step) % EXTENTS)
            .find(|&at| self.cache[at as usize].is_none() || self.arena.reclaim(at))?;
        self.cache[at as usize] = Some(number);
        let content = Self::content(number);
        let mut fill = self.arena.fill(at).expect("a reclaimed extent");
        let bytes = fill.bytes_mut();
        for packet in 0..PACKETS {
            let start = u64::from(content.first_packet + packet) * PACKET_BYTES;
            let payload = stream(self.app.out_seed, start, PACKET_BYTES as usize);
            let at = packet as usize * content.layout.slot_bytes() + content.layout.header_bytes();
            bytes[at..at + payload.len()].copy_from_slice(&payload);
            let meta = PacketMeta::new(sum16(&payload), 0, MediaTicks(0)).to_bytes();
            let record = content.layout.meta_offset(packet, PACKETS);
            bytes[record..record + 8].copy_from_slice(&meta);
        }
        fill.publish();
        self.arena.lend(at, content)
    }

    /// The application writes, reads and closes.
    fn act(&mut self, now: Instant) {
        let Some(id) = self.connection else { return };
        if now >= self.next_read {
            let mut to = vec![0; self.app.gulp];
            while let Ok(bytes @ 1..) = self.stack.read(id, &mut to, now) {
                self.app.took(&to[..bytes]);
                if self.app.pause_ns > 0 {
                    self.next_read = now.plus_ns(self.app.pause_ns);
                    break;
                }
            }
        }
        if matches!(self.stack.state(id), State::SynSent | State::SynReceived) {
            return;
        }
        while !self.app.has_sent() && self.write(id, now) {}
        if self.app.has_sent() && !self.app.is_closed {
            self.app.is_closed = true;
            self.stack.close(id, now).expect("the first close");
        }
    }

    /// False: there is no room now.
    fn write(&mut self, id: ConnectionId, now: Instant) -> bool {
        let within = self.app.sent % EXTENT_STREAM_BYTES;
        if self.uses_extents && self.random.below(4) > 0 {
            // From a packet's begin or from within it, to anywhere in the extent.
            let number = (self.app.sent / EXTENT_STREAM_BYTES) as u32;
            let most = (EXTENT_STREAM_BYTES - within).min(self.app.to_send - self.app.sent);
            let bytes = if self.random.below(3) == 0 { 1 + self.random.below(most) } else { most };
            if self.stack.unacked_bytes(id) > 60_000 {
                return false;
            }
            let Some(lease) = self.lease(number) else { return false };
            let range = ExtentRange {
                place: (within / PACKET_BYTES) as u32,
                skip: (within % PACKET_BYTES) as u32,
                bytes: bytes as u32,
                part: Part::Payloads,
            };
            match self.stack.send_extent(id, lease, range, now) {
                Ok(()) => self.app.sent += bytes,
                Err((CallError::NoRoom, _)) => return false,
                Err((error, _)) => panic!("{error}"),
            }
            return true;
        }
        let bytes = self.app.next();
        let written = self.stack.write(id, &bytes, now).unwrap_or(0);
        self.app.sent += written as u64;
        written == bytes.len()
    }

    fn hear(&mut self) {
        while let Some(event) = self.stack.poll_event() {
            self.connection.get_or_insert(event.connection);
            assert_eq!(self.connection, Some(event.connection), "one connection only");
            if event.happened.has(Happened::CLOSED) {
                self.reason = Some(event.reason);
            }
        }
    }

    /// Whether the peer's FIN was seen and everything read.
    fn sees_end(&self) -> bool {
        let Some(id) = self.connection else { return false };
        matches!(
            self.stack.state(id),
            State::CloseWait | State::LastAck | State::Closing | State::TimeWait | State::Closed
        ) && self.app.received == self.app.to_receive
    }

    fn supply(&mut self, now: Instant) {
        while let Some(wanted) = self.stack.poll_wanted() {
            self.wants.push_back((now.plus_ns(self.random.below(30) * MS), wanted.content));
        }
        for _ in 0..self.wants.len() {
            let Some((at, content)) = self.wants.pop_front() else { break };
            let lease = if at <= now { self.lease(content.number) } else { None };
            match (lease, self.connection) {
                (Some(lease), Some(id)) => {
                    self.stack.supply(id, &lease, now);
                }
                _ => self.wants.push_back((at.max(now.plus_ns(MS)), content)),
            }
        }
    }

    fn return_frames(&mut self, now: Instant) {
        while self.device.front().is_some_and(|held| held.until <= now) {
            let Some(held) = self.device.pop_front() else { break };
            self.stack.device_done(held.frame);
        }
    }
}

impl Endpoint for Ours {
    fn take(&mut self, now: Instant, packet: &Packet) {
        self.stack.input(&packet.arrived(now), now);
    }

    fn turn(&mut self, now: Instant) -> Vec<Packet> {
        self.return_frames(now);
        self.hear();
        self.supply(now);
        self.act(now);
        self.stack.protocol(now);
        let mut packets = Vec::new();
        let base = self.arena.memory().0.as_ptr() as usize;
        let span = EXTENTS as usize * EXTENT_BYTES;
        let Self { stack, random, device, device_ns, .. } = self;
        stack.output(now, &mut |out| {
            if *device_ns > 0 && random.below(50) == 0 {
                return Taken::Full;
            }
            packets.push(Packet::of(out));
            match out.frame {
                Some(frame) if *device_ns > 0 => {
                    let places =
                        out.payload.slices().iter().map(|slice| (slice.as_ptr() as usize).wrapping_sub(base));
                    let extents =
                        places.filter(|&at| at < span).map(|at| (at / EXTENT_BYTES) as u32).collect();
                    let last = device.back().map_or(now, |held| held.until);
                    let until = last.max(now).plus_ns(random.below(*device_ns));
                    device.push_back(Held { until, frame, extents });
                    Taken::Kept
                }
                _ => Taken::Copied,
            }
        });
        self.hear();
        self.act(now);
        if self.sees_end() && self.app.is_closed && self.reason.is_some() {
            self.app.ended();
            self.is_over = true;
        }
        packets
    }

    fn due(&mut self, now: Instant) -> Option<Instant> {
        let reads =
            (self.app.received < self.app.to_receive && self.next_read > now).then_some(self.next_read);
        let wants = self.wants.front().map(|&(at, _)| at.max(now.plus_ns(1)));
        // Waits for a lease that it could not have.
        let starved = (self.uses_extents && !self.app.has_sent()).then(|| now.plus_ns(5 * MS));
        let device = self.device.front().map(|held| held.until);
        let stack = if self.is_over && self.stack.requests() == 0 { None } else { self.stack.next_due(now) };
        [reads, wants, starved, device, stack].into_iter().flatten().min()
    }

    fn is_done(&self) -> bool {
        self.is_over && self.device.is_empty()
    }

    fn progress(&self) -> String {
        let state = self.connection.map(|id| self.stack.state(id));
        let App { sent, to_send, received, to_receive, .. } = self.app;
        format!(
            "ours {state:?} {:?}: {sent} of {to_send} out, {received} of {to_receive} in, {} unacked, wants {}, {:?}",
            self.reason,
            self.connection.map_or(0, |id| self.stack.unacked_bytes(id)),
            self.wants.len(),
            self.stack.counters(),
        )
    }

    fn check(&self) {
        for held in &self.device {
            for &extent in &held.extents {
                assert!(self.arena.leases(extent) > 0, "an extent was given back while the device reads it");
            }
        }
        if let Some(reason) = self.reason {
            assert_eq!(reason, Reason::Finished, "{}", self.progress());
        }
    }

    fn end(&mut self, now: Instant) {
        if let Some(id) = self.connection {
            self.stack.release(id, now);
        }
        let store = self.stack.store();
        assert_eq!(
            (store.used(), store.leases(), store.host_pages()),
            (0, 0, 0),
            "the send queue is not empty"
        );
        assert_eq!((0..EXTENTS).map(|extent| self.arena.leases(extent)).sum::<u32>(), 0, "a lease is left");
        assert_eq!([0, 1].map(|cluster| self.stack.pages().used(cluster).0), [0, 0], "pages are left");
        assert_eq!((self.stack.connections(), self.stack.requests()), (0, 0));
    }
}
