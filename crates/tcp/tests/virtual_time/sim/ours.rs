//! An endpoint with this crate's stack: applications, a cache with extents, and a device that holds frames for a while.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use millrace_core::ids::TitleRef;
use millrace_core::limits::EXTENT_BYTES;
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::pool::{ExtentArena, ExtentContent, HeapRegion, Lease};
use millrace_core::random::SplitMix;
use millrace_core::time::{Instant, MediaTicks};
use millrace_core::wire::checksum::sum16;
use millrace_tcp::conn::{Config, ConnectionState, Happened, Reason, TcpCounters};
use millrace_tcp::limits::MAX_EARLY_PAGES;
use millrace_tcp::recv::ClusterSize;
use millrace_tcp::send::{ExtentRange, SlotPart};
use millrace_tcp::stack::{
    CallError, ConnectionId, DeviceFrame, FrameDisposal, IcmpError, IcmpKind, OutgoingSegment, Settings,
    Stack,
};
use millrace_tcp::wire::parse;

use super::app::{App, stream};
use super::scenario::Host;
use super::window::Windows;
use super::{Endpoint, MS, Packet, STUCK_NS, WELL_AT};

/// Packets of an extent here: small titles, many extents.
const PACKETS: u32 = 12;
const PACKET_BYTES: u64 = 1316;
const EXTENT_STREAM_BYTES: u64 = PACKETS as u64 * PACKET_BYTES;
const EXTENTS: u32 = 6;
/// The cluster of pages for data behind a hole.
const EARLY: usize = 1;

pub(crate) fn settings(config: Config, secret: u64) -> Settings {
    let cluster = ClusterSize { bytes: 1 << 18, page_bytes: 2048 };
    Settings {
        config,
        connections: 8,
        requests: 8,
        listeners: 16,
        time_waits: 8,
        records: 64,
        descriptors: 64,
        host_pages: 32,
        clusters: vec![cluster, cluster],
        defers_acks: true,
        cookies: true,
        ports: (40_000..=50_000).into(),
        secret: [secret, secret ^ 0x5555],
    }
}

/// A frame that the device has not read yet.
struct Held {
    until: Instant,
    frame: DeviceFrame,
    /// Addresses of its bytes, and their original content.
    slices: Vec<(usize, Vec<u8>)>,
}

/// One end of a conversation.
pub(crate) struct End {
    app: App,
    local: SocketAddr,
    remote: SocketAddr,
    /// `None`: it waits for the peer.
    opens_at: Option<Instant>,
    /// One of both applications aborts.
    may_fail: bool,
    id: Option<ConnectionId>,
    reason: Option<Reason>,
    is_over: bool,
    /// The progress when it last changed, and the time then.
    moved: (u64, Instant),
}

impl End {
    pub(crate) fn new(
        app: App,
        local: SocketAddr,
        remote: SocketAddr,
        opens_at: Option<Instant>,
        may_fail: bool,
    ) -> Self {
        let moved = (0, Instant(0));
        Self { app, local, remote, opens_at, may_fail, id: None, reason: None, is_over: false, moved }
    }

    fn is_live(&self) -> bool {
        self.id.is_some() && !self.is_over
    }

    fn aborts_now(&self) -> bool {
        self.reason.is_none()
            && self.app.side.aborts_at.is_some_and(|at| self.app.sent + self.app.received >= at)
    }
}

/// What all ends of a host share.
struct Shared {
    stack: Stack,
    random: SplitMix,
    arena: Arc<ExtentArena>,
    /// Where each extent of each title lies.
    cache: [Option<(u32, u32)>; EXTENTS as usize],
}

pub(crate) struct Ours {
    shared: Shared,
    ends: Vec<End>,
    /// Longest that the device holds a frame.
    device_ns: u64,
    device: VecDeque<Held>,
    wants: VecDeque<(Instant, ConnectionId, ExtentContent)>,
    windows: Windows,
    scales: bool,
}

impl Ours {
    pub(crate) fn new(host: &Host, address: IpAddr, ends: Vec<End>, mut random: SplitMix) -> Self {
        let scale = ends.len() as u32;
        let base = settings(host.config, random.next());
        let settings = Settings {
            connections: 2 + 2 * scale,
            requests: 8 + 4 * scale,
            records: base.records + 16 * scale * random.below(3) as u32,
            descriptors: base.descriptors + 16 * scale * random.below(3) as u32,
            defers_acks: host.defers_acks,
            ..base
        };
        let mut stack = Stack::new(&settings);
        stack.listen(SocketAddr::new(address, 80), settings.requests).expect("a listener");
        let arena = ExtentArena::new(Box::new(HeapRegion::new(EXTENTS as usize)));
        let shared = Shared { stack, random, arena, cache: [None; EXTENTS as usize] };
        Self {
            shared,
            ends,
            device_ns: host.device_ns,
            device: VecDeque::new(),
            wants: VecDeque::new(),
            windows: Windows::default(),
            scales: host.config.scaling,
        }
    }

    /// Applications open, write, read, close and abort.
    fn act(&mut self, now: Instant) {
        let Self { shared, ends, .. } = self;
        for (number, end) in ends.iter_mut().enumerate() {
            if end.id.is_none() && end.opens_at.is_some_and(|at| at <= now) {
                let id = shared.stack.open(end.local, end.remote, now).expect("a connection");
                end.id = Some(id);
                shared.stack.keep_alive(id, end.may_fail, now);
            }
            if end.is_live() {
                shared.act(number as u32, end, now);
            }
        }
    }

    fn hear(&mut self, now: Instant) {
        while let Some(event) = self.shared.stack.poll_event() {
            let stack = &mut self.shared.stack;
            let known = self.ends.iter_mut().position(|end| end.id == Some(event.connection));
            let end = match known {
                Some(number) => &mut self.ends[number],
                None => {
                    let ends = stack.ends(event.connection).expect("an event of a living connection");
                    let waits = |end: &&mut End| (end.local, end.remote) == ends && end.id.is_none();
                    let end = self.ends.iter_mut().find(waits).expect("a peer that somebody waits for");
                    end.id = Some(event.connection);
                    stack.keep_alive(event.connection, end.may_fail, now);
                    end
                }
            };
            if event.happened.has(Happened::CLOSED) {
                end.reason = Some(event.reason);
            }
        }
    }

    fn supply(&mut self, now: Instant) {
        let Self { shared, ends, wants, .. } = self;
        while let Some(wanted) = shared.stack.poll_wanted() {
            let at = now.plus_ns(shared.random.below(30) * MS);
            wants.push_back((at, wanted.connection, wanted.content));
        }
        for _ in 0..wants.len() {
            let Some((at, id, content)) = wants.pop_front() else { break };
            let Some(end) = ends.iter().find(|end| end.id == Some(id) && end.is_live()) else { continue };
            let lease = if at <= now {
                shared.lease(content.title.0, content.number, end.app.out_seed)
            } else {
                None
            };
            match lease {
                Some(lease) => {
                    shared.stack.supply(id, &lease, now);
                }
                None => wants.push_back((at.max(now.plus_ns(MS)), id, content)),
            }
        }
    }

    fn return_frames(&mut self, now: Instant) {
        while self.device.front().is_some_and(|held| held.until <= now) {
            let Some(held) = self.device.pop_front() else { break };
            self.shared.stack.device_done(held.frame);
        }
    }

    /// Ends that are over let go of their connections.
    fn finish(&mut self, now: Instant) {
        for end in &mut self.ends {
            let (Some(id), Some(reason)) = (end.id, end.reason) else { continue };
            let is_read = end.app.received == end.app.to_receive;
            if end.is_over || reason == Reason::Finished && !is_read {
                continue;
            }
            if reason == Reason::Finished {
                end.app.ended();
            }
            end.is_over = true;
            self.shared.stack.release(id, now);
        }
    }
}

impl Shared {
    fn content(title: u32, number: u32) -> ExtentContent {
        ExtentContent {
            title: TitleRef(title),
            number,
            first_packet: number * PACKETS,
            packets: PACKETS,
            last_packet_bytes: PACKET_BYTES as u16,
            layout: WireLayout::new(PACKET_BYTES as usize).expect("the default layout"),
            spare: 0,
        }
    }

    /// Leases extent `number` of the title, read into any extent without a lease; `None`: all are
    /// leased.
    fn lease(&mut self, title: u32, number: u32, seed: u64) -> Option<Lease> {
        let content = Self::content(title, number);
        self.arena.open_title(content.title);
        if let Some(at) = self.cache.iter().position(|&held| held == Some((title, number))) {
            return self.arena.lend(at as u32, content);
        }
        let first = self.random.below(u64::from(EXTENTS)) as u32;
        let at = (0..EXTENTS)
            .map(|step| (first + step) % EXTENTS)
            .find(|&at| self.cache[at as usize].is_none() || self.arena.reclaim(at))?;
        self.cache[at as usize] = Some((title, number));
        let mut fill = self.arena.fill(at).expect("a reclaimed extent");
        let bytes = fill.bytes_mut();
        for packet in 0..PACKETS {
            let start = u64::from(content.first_packet + packet) * PACKET_BYTES;
            let payload = stream(seed, start, PACKET_BYTES as usize);
            let at = packet as usize * content.layout.slot_bytes() + content.layout.header_bytes();
            bytes[at..at + payload.len()].copy_from_slice(&payload);
            let meta = PacketMeta::new(sum16(&payload), 0, MediaTicks(0)).to_bytes();
            let record = content.layout.meta_offset(packet, PACKETS);
            bytes[record..record + 8].copy_from_slice(&meta);
        }
        fill.publish();
        self.arena.lend(at, content)
    }

    /// The application of one end writes, reads and closes. Its title has its number.
    fn act(&mut self, title: u32, end: &mut End, now: Instant) {
        let Some(id) = end.id else { return };
        if end.aborts_now() {
            return self.stack.abort(id, now);
        }
        let mut to = Vec::new();
        while end.app.reads(now) {
            to.resize(end.app.side.gulp, 0);
            let Ok(bytes @ 1..) = self.stack.read(id, &mut to, now) else { break };
            end.app.took(&to[..bytes]);
            if end.app.side.pause_ns > 0 {
                end.app.next_read = now.plus_ns(end.app.side.pause_ns);
            }
        }
        let is_opening =
            matches!(self.stack.state(id), ConnectionState::SynSent | ConnectionState::SynReceived);
        if is_opening || end.reason.is_some_and(|reason| reason != Reason::Finished) {
            return;
        }
        while !end.app.has_sent() && self.write(title, &mut end.app, id, now) {}
        if end.app.has_sent() && !end.app.is_closed {
            end.app.is_closed = true;
            let closed = self.stack.close(id, now);
            assert!(closed.is_ok() || end.may_fail, "the first close: {closed:?}");
        }
    }

    /// False: there is no room now.
    fn write(&mut self, title: u32, app: &mut App, id: ConnectionId, now: Instant) -> bool {
        if app.side.uses_extents && self.random.below(4) > 0 {
            return self.write_extent(title, app, id, now);
        }
        let bytes = app.next();
        let written = self.stack.write(id, &bytes, now).unwrap_or(0);
        app.sent += written as u64;
        written == bytes.len()
    }

    /// From a packet's begin or from within it, to anywhere in the extent.
    fn write_extent(&mut self, title: u32, app: &mut App, id: ConnectionId, now: Instant) -> bool {
        let within = app.sent % EXTENT_STREAM_BYTES;
        let number = (app.sent / EXTENT_STREAM_BYTES) as u32;
        let most = (EXTENT_STREAM_BYTES - within).min(app.to_send - app.sent);
        let bytes = if self.random.below(3) == 0 { 1 + self.random.below(most) } else { most };
        if self.stack.unacked_bytes(id) > 60_000 {
            return false;
        }
        let Some(lease) = self.lease(title, number, app.out_seed) else { return false };
        let range = ExtentRange {
            place: (within / PACKET_BYTES) as u32,
            skip: (within % PACKET_BYTES) as u32,
            bytes: bytes as u32,
            part: SlotPart::Payloads,
        };
        match self.stack.send_extent(id, lease, range, now) {
            Ok(()) => app.sent += bytes,
            Err((CallError::NoRoom | CallError::NoConnection, _)) => return false,
            Err((error, _)) => panic!("{error}"),
        }
        true
    }
}

/// Returns the addresses and the content of a segment's payload.
fn slices_of(out: &OutgoingSegment<'_>) -> Vec<(usize, Vec<u8>)> {
    out.payload.slices().iter().map(|slice| (slice.as_ptr() as usize, slice.to_vec())).collect()
}

/// Panics if the memory of a frame in the device's hands has changed: it was given back too soon.
fn compare(device: &VecDeque<Held>, slices: &[(usize, Vec<u8>)]) {
    for (at, bytes) in device.iter().flat_map(|held| &held.slices) {
        for (other, others) in slices {
            let (from, to) = (*at.max(other), (at + bytes.len()).min(other + others.len()));
            if from < to {
                assert_eq!(
                    bytes[from - at..to - at],
                    others[from - other..to - other],
                    "memory was used again while the device reads it"
                );
            }
        }
    }
}

impl Endpoint for Ours {
    fn take(&mut self, now: Instant, packet: &Packet) {
        self.windows.hear(packet, self.scales);
        self.shared.stack.input(&packet.arrived(now), now);
        self.hear(now);
    }

    fn too_big(&mut self, now: Instant, packet: &Packet, mtu: usize) {
        let segment = parse(&packet.bytes).expect("what a stack sends");
        let error = IcmpError {
            local: SocketAddr::new(packet.source, segment.source),
            remote: SocketAddr::new(packet.destination, segment.destination),
            seq: segment.seq,
            kind: IcmpKind::TooBig { mtu: mtu as u32 },
        };
        self.shared.stack.icmp(&error, now);
    }

    fn turn(&mut self, now: Instant) -> Vec<Packet> {
        self.return_frames(now);
        self.hear(now);
        self.supply(now);
        self.act(now);
        self.shared.stack.protocol(now);
        let mut packets = Vec::new();
        let Self { shared: Shared { stack, random, .. }, device, device_ns, windows, .. } = self;
        stack.output(now, &mut |out| {
            if *device_ns > 0 && random.below(50) == 0 {
                return FrameDisposal::Full;
            }
            let packet = Packet::of(out);
            windows.check(&packet);
            packets.push(packet);
            match out.frame {
                Some(frame) if *device_ns > 0 => {
                    let slices = slices_of(out);
                    compare(device, &slices);
                    let last = device.back().map_or(now, |held| held.until);
                    let until = last.max(now).plus_ns(random.below(*device_ns));
                    device.push_back(Held { until, frame, slices });
                    FrameDisposal::Kept
                }
                _ => FrameDisposal::Copied,
            }
        });
        self.hear(now);
        self.act(now);
        self.finish(now);
        packets
    }

    fn due(&mut self, now: Instant) -> Option<Instant> {
        let soon = now.plus_ns(5 * MS);
        let of_end = |end: &End| {
            let opens = end.opens_at.filter(|_| end.id.is_none());
            let is_live = end.is_live();
            let reads = is_live && end.app.received < end.app.to_receive && end.app.next_read > now;
            // It may wait for a lease that it could not have.
            let is_starved = is_live && end.app.side.uses_extents && !end.app.has_sent();
            [opens, reads.then_some(end.app.next_read), is_starved.then_some(soon)]
                .into_iter()
                .flatten()
                .min()
        };
        let ends = self.ends.iter().filter_map(of_end).min();
        let wants = self.wants.front().map(|&(at, ..)| at.max(now.plus_ns(1)));
        let device = self.device.front().map(|held| held.until);
        let stack = if self.is_done() { None } else { self.shared.stack.next_due(now) };
        [ends, wants, device, stack].into_iter().flatten().min()
    }

    fn is_done(&self) -> bool {
        let is_over = |end: &End| end.is_over || end.opens_at.is_none() && end.id.is_none();
        self.ends.iter().all(is_over) && self.device.is_empty() && self.shared.stack.requests() == 0
    }

    fn counters(&self) -> TcpCounters {
        *self.shared.stack.counters()
    }

    fn progress(&self) -> String {
        let stack = &self.shared.stack;
        let of_end = |end: &End| {
            let App { sent, to_send, received, to_receive, .. } = end.app;
            let (state, unacked) =
                end.id.map_or((ConnectionState::Closed, 0), |id| (stack.state(id), stack.unacked_bytes(id)));
            format!(
                "{} {state:?} {:?}: {sent} of {to_send} out, {received} of {to_receive} in, {unacked} unacked",
                end.local, end.reason
            )
        };
        let ends: Vec<_> = self.ends.iter().filter(|end| !end.is_over).map(of_end).collect();
        format!("ours [{}], wants {}, {:?}", ends.join(", "), self.wants.len(), stack.counters())
    }

    fn check(&mut self, now: Instant) {
        let base = self.shared.arena.memory().0.as_ptr() as usize;
        let span = EXTENTS as usize * EXTENT_BYTES;
        for (at, _) in self.device.iter().flat_map(|held| &held.slices) {
            let place = at.wrapping_sub(base);
            let is_leased = place >= span || self.shared.arena.leases((place / EXTENT_BYTES) as u32) > 0;
            assert!(is_leased, "an extent was given back while the device reads it");
        }
        let stack = &self.shared.stack;
        let early = stack.connections() * u32::from(MAX_EARLY_PAGES);
        assert!(stack.pages().used(EARLY).0 <= early, "more early pages than connections may have");
        for number in 0..self.ends.len() {
            let end = &self.ends[number];
            let Some(id) = end.id.filter(|_| !end.is_over) else { continue };
            let failed = end.reason.filter(|&reason| reason != Reason::Finished);
            assert!(failed.is_none() || end.may_fail, "{}", self.progress());
            let acked = end.app.sent - u64::from(stack.unacked_bytes(id)).min(end.app.sent);
            let amount = acked + end.app.received + stack.state(id) as u64;
            if amount != end.moved.0 {
                self.ends[number].moved = (amount, now);
            } else {
                let still_ns = now.ns_since(end.moved.1.max(WELL_AT));
                assert!(still_ns < STUCK_NS, "no progress since {:?}: {}", end.moved.1, self.progress());
            }
        }
    }

    fn end(&mut self, _: Instant) {
        let done = |end: &End| end.is_over || end.may_fail;
        assert!(self.ends.iter().all(done), "a connection came to nothing: {}", self.progress());
        let stack = &self.shared.stack;
        let store = stack.store();
        assert_eq!(
            (store.used(), store.leases(), store.host_pages()),
            (0, 0, 0),
            "the send queue is not empty"
        );
        let leases = (0..EXTENTS).map(|extent| self.shared.arena.leases(extent)).sum::<u32>();
        assert_eq!(leases, 0, "a lease is left");
        assert_eq!([0, 1].map(|cluster| stack.pages().used(cluster).0), [0, 0], "pages are left");
        assert_eq!((stack.connections(), stack.requests()), (0, 0));
    }
}
