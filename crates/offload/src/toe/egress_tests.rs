//! A loop's egress path, its engine, and a viewer behind a wire that may lose packets, on a clock of the test's own.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex};
use std::task::Waker;

use millrace_core::ids::TitleRef;
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::pool::{ExtentArena, ExtentContent, HeapRegion};
use millrace_core::random::SplitMix;
use millrace_core::time::MediaTicks;
use millrace_core::wire::checksum::sum16;

use super::*;
use crate::bell::EventBell;
use crate::limits::SEND_AHEAD_BYTES;
use crate::loop_tx::WithoutEngine;
use crate::toe::device::{Device, Inbound};
use crate::toe::engine::Core;
use crate::toe::host::{Home, HostState, Interest};
use crate::toe::pair::pair;
use crate::toe::{CounterSheets, EngineSettings};

const STEP_NS: u64 = 50_000;
const PACKETS: u32 = 40;
const CONN: ConnId = ConnId(3);
const CHANNELS: [u8; 2] = [4, 5];

/// A wire that the test operates.
#[derive(Default)]
struct LossyWire {
    queue: VecDeque<Vec<u8>>,
    /// Every packet of this number is lost; 0: none.
    loses: u64,
    count: u64,
    is_broken: bool,
}

struct End {
    out: Arc<Mutex<LossyWire>>,
    back: Arc<Mutex<LossyWire>>,
}

impl Device for End {
    fn receive(&mut self, take: &mut dyn FnMut(Inbound<'_>)) -> io::Result<bool> {
        let mut wire = self.back.lock().unwrap();
        if wire.is_broken {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        let packet = wire.queue.pop_front();
        Ok(packet.inspect(|packet| take(Inbound::new(packet))).is_some())
    }

    fn send(&mut self, packet: &[u8]) -> io::Result<bool> {
        let mut wire = self.out.lock().unwrap();
        wire.count += 1;
        if wire.loses == 0 || !wire.count.is_multiple_of(wire.loses) {
            wire.queue.push_back(packet.to_vec());
        }
        Ok(true)
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// The inner path: it records its sends.
#[derive(Default)]
struct RecordingPath {
    sent: Vec<Dest>,
}

impl PacketTx for RecordingPath {
    fn send(&mut self, batch: &dyn TransmitBatch, outcomes: &mut [SendOutcome]) {
        for (index, outcome) in outcomes.iter_mut().enumerate().take(batch.len()) {
            self.sent.push(batch.get(index).dest);
            *outcome = SendOutcome::Sent;
        }
    }
}

impl LoopConnections for RecordingPath {
    fn add_conn(&mut self, _: ConnId, _: ConnSocket) -> Result<(), i32> {
        Err(libc::EOPNOTSUPP)
    }
    fn write_control(&mut self, _: ConnId, _: &[u8]) -> Result<(), i32> {
        Err(libc::ENOTCONN)
    }
    fn return_conn(&mut self, _: ConnId) -> bool {
        false
    }
    fn poll_conn_returned(&mut self) -> Option<(ConnId, ConnSocket)> {
        None
    }
    fn remove_conn(&mut self, _: ConnId) -> Option<ConnSocket> {
        None
    }
    fn flush_conns(&mut self) -> bool {
        false
    }
    fn poll_conn_writable(&mut self) -> Option<ConnId> {
        None
    }
    fn full_conns_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn poll_conn_gone(&mut self) -> Option<(ConnId, i32)> {
        None
    }
    fn backlog_bytes(&self, _: ConnId) -> Option<u64> {
        None
    }
}

impl WithoutEngine for RecordingPath {}

impl LoopTx for RecordingPath {
    fn counters(&self) -> &TxCounters {
        const { &<TxCounters as millrace_core::counters::Group>::ZERO }
    }
    fn note_unreachable(&mut self, _: SocketAddr, _: i32) {}
    fn tend(&mut self, _: Instant) -> bool {
        false
    }
    fn is_zero_copy(&self, _: &Dest) -> bool {
        false
    }
    fn poll_done(&mut self) -> Option<(StreamId, u64)> {
        None
    }
}

/// An extent of a title, and its content.
struct TestExtent {
    arena: Arc<ExtentArena>,
    content: ExtentContent,
    missing: Vec<u32>,
}

impl TestExtent {
    fn new(layout: WireLayout, missing: &[u32]) -> Self {
        let arena = ExtentArena::new(Box::new(HeapRegion::new(1)));
        let mut fill = arena.fill(0).unwrap();
        let mut random = SplitMix(7);
        let (last, packets) = (700, layout.packets_per_extent().min(PACKETS));
        for place in 0..packets {
            let size = if place + 1 == packets { last } else { layout.packet_bytes() };
            let at = place as usize * layout.slot_bytes();
            let slot = &mut fill.bytes_mut()[at..at + layout.header_bytes() + size];
            slot.iter_mut().for_each(|byte| *byte = random.next() as u8);
            let sum = sum16(&slot[layout.header_bytes()..]);
            let flags = if missing.contains(&place) { PacketMeta::MISSING } else { 0 };
            let at = layout.meta_offset(place, packets);
            let meta = PacketMeta::new(sum, flags, MediaTicks(0));
            fill.bytes_mut()[at..at + 8].copy_from_slice(&meta.to_bytes());
        }
        fill.publish();
        let content = ExtentContent {
            title: TitleRef(1),
            number: 0,
            first_packet: 0,
            packets,
            last_packet_bytes: last as u16,
            layout,
            spare: if missing.is_empty() { 0 } else { 255 },
        };
        arena.open_title(content.title);
        Self { arena, content, missing: missing.to_vec() }
    }

    fn lease(&self) -> Lease {
        self.arena.lend(0, self.content).unwrap()
    }
}

/// One entry, with the lease that its packets lie in.
struct One<'a> {
    dest: Dest,
    payload: Payload<'a>,
    source: Option<PayloadSource<'a>>,
}

struct Batch<'a>(Vec<One<'a>>);

impl TransmitBatch for Batch<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn get(&self, index: usize) -> Transmit<'_> {
        let One { dest, payload, .. } = self.0[index];
        Transmit { stream: StreamId { index: 0, generation: 0 }, dest, payload }
    }
    fn source(&self, index: usize) -> Option<PayloadSource<'_>> {
        self.0[index].source
    }
}

const INTERLEAVED: Dest =
    Dest::Interleaved { conn: CONN, rtp_channel: CHANNELS[0], rtcp_channel: CHANNELS[1] };

/// Returns the bytes that a viewer gets for frames `place..place + count`, with these headers in
/// place of their own.
fn framed(lease: &Lease, place: u32, count: u32, headers: Option<&[u8]>) -> Vec<u8> {
    let mut all = Vec::new();
    for index in 0..count {
        let wire = lease.wire(place + index, 1);
        all.extend([b'$', CHANNELS[0]]);
        all.extend((wire.len() as u16).to_be_bytes());
        let at = index as usize * RTP_HEADER_BYTES;
        all.extend_from_slice(
            headers.map_or(&wire[..RTP_HEADER_BYTES], |all| &all[at..at + RTP_HEADER_BYTES]),
        );
        all.extend_from_slice(&wire[RTP_HEADER_BYTES..]);
    }
    all
}

struct EgressRig {
    tx: EngineTx<RecordingPath>,
    /// The engine and its device, if the loop is a host of it.
    apart: Option<(Core, End)>,
    near: HostState,
    far: HostState,
    peer: Core,
    peer_end: End,
    /// To the viewer, and back.
    wires: [Arc<Mutex<LossyWire>>; 2],
    home: Arc<Home>,
    now: Instant,
    listener: u32,
    name: EngineSocket,
    /// The connection's socket here and there.
    sockets: [u32; 2],
    /// The data that the viewer must get, and the data it has got.
    due: Vec<u8>,
    got: Vec<u8>,
}

fn settings(address: [u8; 4]) -> EngineSettings {
    let mut settings = EngineSettings::new(&[(address.into(), 24)]);
    settings.stack.connections = 16;
    settings.stack.records = 4096;
    settings.stack.host_pages = 256;
    settings.stack.descriptors = 4096;
    settings.stack.clusters = vec![millrace_tcp::recv::ClusterSize { bytes: 2 << 20, page_bytes: 2048 }; 2];
    settings.stack.secret = [1, 2];
    settings.pair.sockets = 8;
    settings.pair.receive_buffers = 64;
    settings.pair.send_buffers = 64;
    settings.hand_over_ns = 0;
    settings
}

fn core(settings: &EngineSettings) -> (Core, HostState) {
    let (end, host) = pair(&settings.pair).unwrap();
    let host = HostState::new(0, host, Arc::new(EventBell::new().unwrap()), &settings.pair);
    (Core::new(settings, vec![end], Instant(1)).unwrap(), host)
}

impl EgressRig {
    /// A viewer whose connection was accepted here, and is the loop's.
    fn new() -> Self {
        let mut rig = Self::accepted(|_| {});
        rig.tx.add_conn(CONN, rig.name.into()).unwrap();
        rig
    }

    /// Accepted, and still its host's.
    fn accepted(change: impl Fn(&mut EngineSettings)) -> Self {
        let wires = [(); 2].map(|()| Arc::<Mutex<LossyWire>>::default());
        let end = |out: usize| End { out: Arc::clone(&wires[out]), back: Arc::clone(&wires[1 - out]) };
        let mut near = settings([10, 0, 0, 1]);
        change(&mut near);
        let ((engine, near), (peer, far)) = (core(&near), core(&settings([10, 0, 0, 2])));
        let home = Arc::new(Home::new(Arc::new(EventBell::new().unwrap()), Vec::new(), Vec::new()));
        let turning = Turning {
            core: engine,
            device: Box::new(end(0)),
            home: Arc::clone(&home),
            remote: None,
            sheets: CounterSheets::default(),
            shown: 0,
            poll_ns: 0,
        };
        let mut rig = Self {
            tx: EngineTx::new(RecordingPath::default(), turning, 8),
            apart: None,
            near,
            far,
            peer,
            peer_end: end(1),
            home,
            now: Instant(1_000_000),
            listener: 0,
            name: EngineSocket { engine: 0, pair: 0, generation: 0, socket: 0 },
            sockets: [0; 2],
            due: Vec::new(),
            got: Vec::new(),
            wires,
        };
        rig.listener = rig.near.listen(SocketAddr::from(([10, 0, 0, 1], 554)), 8, false).unwrap();
        rig.turn();
        rig.connect();
        rig
    }

    fn connect(&mut self) {
        let any = SocketAddr::from(([0, 0, 0, 0], 0));
        let there = self.far.connect(any, SocketAddr::from(([10, 0, 0, 1], 554))).unwrap();
        self.near.ask_for_next(self.listener).unwrap();
        let listener = self.listener;
        let here = self.until(|rig| rig.near.take_next(listener).unwrap());
        self.until(|rig| rig.far.outcome(there).unwrap());
        (self.sockets, self.name) = ([here, there], self.near.name(here));
    }

    fn engine(&mut self) -> &mut Core {
        match (&mut self.apart, &mut self.tx.engine) {
            (Some((core, _)), _) => core,
            (None, Some(EngineAccess::Inline(engine))) => &mut engine.core,
            _ => panic!("the engine is gone"),
        }
    }

    /// Runs a turn of the loop without sending a batch.
    fn turn(&mut self) {
        self.now = self.now.plus_ns(STEP_NS);
        self.tx.tend(self.now);
        self.tx.flush_conns();
        self.tx.depart(self.now);
        self.turn_peer();
    }

    fn turn_peer(&mut self) {
        if let Some((engine, device)) = &mut self.apart {
            engine.turn(device, self.now).unwrap();
        }
        self.peer.turn(&mut self.peer_end, self.now).unwrap();
        for host in [&mut self.near, &mut self.far] {
            host.hear();
            host.give_back_all();
        }
    }

    fn until<R>(&mut self, mut attempt: impl FnMut(&mut Self) -> Option<R>) -> R {
        for _ in 0..400_000 {
            if let Some(result) = attempt(self) {
                return result;
            }
            self.turn();
        }
        panic!("nothing has come of it: {} of {} bytes", self.got.len(), self.due.len());
    }

    /// Sends one entry, which is answered this.
    fn send(&mut self, dest: Dest, payload: Payload<'_>, source: Option<PayloadSource<'_>>) -> SendOutcome {
        let mut outcomes = [SendOutcome::Sent];
        self.tx.send(&Batch(vec![One { dest, payload, source }]), &mut outcomes);
        outcomes[0]
    }

    /// Sends frames with headers of their own, from `skip` on; how many were taken.
    fn send_patched(&mut self, lease: &Lease, skip: u32, serial: u8) -> u32 {
        let headers = vec![serial; (PACKETS - skip) as usize * RTP_HEADER_BYTES];
        let bytes = lease.wire(skip, PACKETS - skip);
        let payload =
            Payload::Patched { headers: &headers, bytes, segment: lease.content().layout.slot_bytes() };
        let taken = match self.send(INTERLEAVED, payload, Some(PayloadSource { lease, place: skip })) {
            SendOutcome::Sent => PACKETS - skip,
            SendOutcome::Blocked { taken } => taken.into(),
            other => panic!("{other:?}"),
        };
        self.due.extend(framed(lease, skip, taken, Some(&headers)));
        taken
    }

    fn write_control(&mut self, bytes: &[u8]) {
        self.tx.write_control(CONN, bytes).unwrap();
        self.due.extend_from_slice(bytes);
    }

    /// Reads the data that has reached the viewer.
    fn read(&mut self) -> bool {
        let mut buffer = [0; 8192];
        let count = self.far.read(self.sockets[1], &mut buffer, true).unwrap();
        self.got.extend_from_slice(&buffer[..count.unwrap_or(0)]);
        count == Some(0)
    }

    /// Until the viewer has all that it is to get; and it was that.
    fn read_all(&mut self) {
        self.until(|rig| {
            rig.read();
            (rig.got.len() >= rig.due.len()).then_some(())
        });
        assert!(self.got == self.due, "other bytes came than were sent");
    }

    /// Fills the connection until it takes nothing more; extents given since.
    fn fill(&mut self, lease: &Lease) -> (u32, u32) {
        let (mut rounds, mut skip) = (0, 0);
        loop {
            let taken = self.send_patched(lease, skip, rounds as u8);
            if skip + taken < PACKETS {
                return (rounds, skip + taken);
            }
            (rounds, skip) = (rounds + 1, 0);
            assert!(rounds < 1000, "it never fills");
        }
    }

    fn leases(&mut self) -> u32 {
        self.engine().stack().store().leases()
    }
}

fn rtp() -> WireLayout {
    WireLayout::new(1316).unwrap()
}

#[test]
fn frames_replies_and_rtcp_arrive_whole_and_in_order_and_leases_go_back() {
    for (loses, is_apart) in [(0, false), (7, false), (0, true), (7, true)] {
        let film = TestExtent::new(rtp(), &[]);
        let lease = film.lease();
        let mut rig = if is_apart { EgressRig::apart() } else { EgressRig::new() };
        rig.wires[0].lock().unwrap().loses = loses;
        for round in 0..30 {
            assert_eq!(rig.send_patched(&lease, 0, round), PACKETS, "round {round}");
            rig.write_control(format!("RTSP/1.0 200 OK\r\nCSeq: {round}\r\n\r\n").as_bytes());
            let bytes = lease.wire(3, 5);
            let payload = Payload::Wire { bytes, segment: rtp().slot_bytes() };
            let source = Some(PayloadSource { lease: &lease, place: 3 });
            assert_eq!(rig.send(INTERLEAVED, payload, source), SendOutcome::Sent);
            rig.due.extend(framed(&lease, 3, 5, None));
            // From memory without a known source.
            let elsewhere = lease.wire(9, 2).to_vec();
            let payload = Payload::Wire { bytes: &elsewhere, segment: rtp().slot_bytes() };
            assert_eq!(rig.send(INTERLEAVED, payload, None), SendOutcome::Sent);
            rig.due.extend(framed(&lease, 9, 2, None));
            let report = [round; 60];
            assert_eq!(rig.send(INTERLEAVED, Payload::Rtcp(&report), None), SendOutcome::Sent);
            rig.due.extend([b'$', CHANNELS[1], 0, 60]);
            rig.due.extend(report);
            assert!(film.arena.leases(0) > 1, "nothing is copied but what has to be");
            rig.read_all();
        }
        rig.until(|rig| (rig.engine().stack().store().used() == 0).then_some(()));
        assert_eq!((rig.leases(), film.arena.leases(0)), (0, 1), "loses {loses}, is apart: {is_apart}");
        let counters = *rig.tx.counters();
        assert_eq!((counters.frames, counters.entries), (30 * (PACKETS as u64 + 8), 120));
        assert_eq!(rig.tx.backlog_bytes(CONN), Some(0));
        let resent = rig.engine().stack().counters().retransmitted > 0;
        assert_eq!(resent, loses > 0, "{:?}", rig.engine().stack().counters());
    }
}

#[test]
fn bytes_of_a_title_arrive_with_nothing_around_them() {
    let layouts = [rtp(), rtp().raw().unwrap(), WireLayout::new(8084).unwrap()];
    for (layout, is_apart) in layouts.into_iter().flat_map(|layout| [(layout, false), (layout, true)]) {
        let packets = layout.packets_per_extent().min(PACKETS);
        for missing in [&[][..], &[0, 7, 8, packets - 1]] {
            let film = TestExtent::new(layout, missing);
            let lease = film.lease();
            let mut rig = if is_apart { EgressRig::apart() } else { EgressRig::new() };
            for (place, count, head, tail) in
                [(0, packets, 0, 0), (6, 4, 100, 50), (packets - 2, 2, 1315, 699), (7, 1, 3, 3)]
            {
                let range = ByteRange { lease: &lease, place, count, head, tail };
                let outcome = rig.send(Dest::Bytes { conn: CONN }, Payload::Bytes(range), None);
                assert_eq!(outcome, SendOutcome::Sent, "{layout:?} {place}");
                (0..count).for_each(|index| rig.due.extend_from_slice(range.piece(index)));
                rig.read_all();
            }
            assert_eq!(film.missing.len(), missing.len());
            rig.until(|rig| (rig.leases() == 0).then_some(()));
        }
    }
}

/// The host's bytes go before and behind those of the loop, and its count is of its own.
#[test]
fn connection_moves_to_loop_and_back_with_bytes_in_order() {
    let film = TestExtent::new(rtp(), &[]);
    let lease = film.lease();
    let mut rig = EgressRig::accepted(|_| {});
    let here = rig.sockets[0];
    for round in 0..3 {
        // Nothing of this has reached the engine when the loop hears of the connection.
        let mine = vec![round; 20_000];
        assert_eq!(rig.near.write(here, &[IoSlice::new(&mine)]).unwrap(), Some(20_000));
        rig.due.extend_from_slice(&mine);
        rig.tx.add_conn(CONN, rig.name.into()).unwrap();
        rig.write_control(b"a reply in the same turn");
        assert_eq!(rig.tx.add_conn(ConnId(4), rig.name.into()), Err(libc::EBUSY));
        // Data that the host gives now is rejected.
        let before = rig.engine().counters.rejected;
        rig.near
            .inject(&crate::toe::record::HostRequest::Send { socket: here, offset: 0, bytes: 9 }.encode());
        rig.turn();
        assert_eq!(rig.engine().counters.rejected, before + 1);
        assert!(!rig.near.is_flushed(here).unwrap(), "what loops gave before counts for nothing");
        let mut skip = 0;
        while skip < PACKETS {
            skip += rig.send_patched(&lease, skip, round);
            rig.turn();
        }
        // Of the host all is acknowledged while the loop may still have something under way.
        rig.until(|rig| rig.near.is_flushed(here).unwrap().then_some(()));
        assert!(rig.tx.return_conn(CONN) && rig.tx.return_conn(CONN));
        let (conn, socket) = rig.tx.poll_conn_returned().unwrap();
        assert!(conn == CONN && matches!(socket, ConnSocket::Engine(name) if name == rig.name));
        assert!(rig.tx.poll_conn_returned().is_none() && !rig.tx.return_conn(CONN));
        assert_eq!(rig.send(INTERLEAVED, Payload::Rtcp(&[1]), None), SendOutcome::Sent);
        assert_eq!(rig.tx.inner.sent.len(), round as usize + 1, "it is the other path's");
        rig.near.write(here, &[IoSlice::new(b"teardown")]).unwrap();
        rig.due.extend_from_slice(b"teardown");
        rig.read_all();
    }
    rig.near.shut_write(here).unwrap();
    rig.until(|rig| rig.read().then_some(()));
    rig.near.close(here, false);
    rig.until(|rig| (rig.near.unused().1 == 64).then_some(()));
    assert_eq!(rig.leases(), 0);
}

/// The host has written more than the stack takes ahead of its acknowledgments: the loop's bytes
/// wait for it.
#[test]
fn host_bytes_beyond_send_ahead_precede_loop_bytes() {
    let film = TestExtent::new(rtp(), &[]);
    let lease = film.lease();
    let mut rig = EgressRig::accepted(|_| {});
    let here = rig.sockets[0];
    let mine = vec![7; 400_000];
    let given = rig.near.write(here, &[IoSlice::new(&mine)]).unwrap().unwrap();
    assert!(given > SEND_AHEAD_BYTES as usize, "{given} bytes are no more than the stack takes");
    rig.due.extend_from_slice(&mine[..given]);
    rig.tx.add_conn(CONN, rig.name.into()).unwrap();
    assert_eq!(rig.send_patched(&lease, 0, 1), 0);
    // A reply waits for nothing, but goes behind it.
    rig.write_control(b"HTTP/1.1 200 OK\r\n\r\n");
    let mut skip = 0;
    rig.until(|rig| {
        if skip < PACKETS {
            skip += rig.send_patched(&lease, skip, 1);
        }
        rig.read();
        (skip == PACKETS && rig.got.len() == rig.due.len()).then_some(())
    });
    assert!(rig.got == rig.due, "other bytes came than were sent");
}

/// A connection whose peer takes none of its long data leaves the others room for short data.
#[test]
fn send_reserve_keeps_chunks_for_connections_without_any() {
    let mut rig = EgressRig::accepted(|settings| settings.pair.send_reserve = 60);
    let first = rig.sockets;
    rig.connect();
    let [here, there] = rig.sockets;
    let (long, short) = (vec![1; 100_000], vec![2; 20_000]);
    assert_eq!(rig.near.write(first[0], &[IoSlice::new(&long)]).unwrap(), Some(4 * 8192));
    assert_eq!(rig.near.write(first[0], &[IoSlice::new(&long)]).unwrap(), None);
    // A chunk each, as long as there is one.
    assert_eq!(rig.near.write(here, &[IoSlice::new(&short)]).unwrap(), Some(8192));
    assert_eq!(rig.near.write(here, &[IoSlice::new(&short)]).unwrap(), None);
    // No task is woken for the remaining chunks: it would be refused again.
    rig.near.wake_later(first[0], Interest::Write, Waker::noop());
    rig.near.wake_for_chunks();
    assert_eq!(rig.near.take_woken(Vec::new()).len(), 0);
    // They go on when theirs come back.
    let (mut written, mut got) = (8192, 0);
    rig.until(|rig| {
        let rest = [IoSlice::new(&short[written..])];
        written += rig.near.write(here, &rest).unwrap().unwrap_or(0);
        got += rig.far.read(there, &mut [0; 8192], true).unwrap().unwrap_or(0);
        (got == short.len()).then_some(())
    });
    rig.until(|rig| rig.near.write(first[0], &[IoSlice::new(&long)]).unwrap());
}

/// Unreported news of a connection does not reach the next one with the same name.
#[test]
fn news_of_a_connection_do_not_reach_the_next_one() {
    let mut rig = EgressRig::new();
    let before = rig.sockets[0];
    rig.connect();
    rig.near.close(before, false);
    rig.now = rig.now.plus_ns(STEP_NS);
    rig.tx.tend(rig.now);
    rig.tx.remove_conn(CONN);
    rig.tx.add_conn(CONN, rig.name.into()).unwrap();
    rig.tx.flush_conns();
    assert_eq!(rig.tx.poll_conn_gone(), None);
    rig.write_control(b"hello");
    rig.read_all();
}

#[test]
fn slow_reader_holds_its_share_and_becomes_writable_once() {
    holds_its_share(EgressRig::new());
    holds_its_share(EgressRig::apart());
}

fn holds_its_share(mut rig: EgressRig) {
    let film = TestExtent::new(rtp(), &[]);
    let lease = film.lease();
    let mut most = 0;
    for _ in 0..3 {
        most = most.max(rig.fill_up(&lease));
        // Later entries of a batch do not overtake, however small they are.
        let wire = || Payload::Wire { bytes: lease.wire(0, 9), segment: rtp().slot_bytes() };
        let source = Some(PayloadSource { lease: &lease, place: 0 });
        let batch = Batch(vec![
            One { dest: INTERLEAVED, payload: wire(), source },
            One { dest: INTERLEAVED, payload: Payload::Rtcp(&[1]), source: None },
            One { dest: Dest::udp(([10, 0, 0, 9], 7).into(), None), payload: wire(), source },
        ]);
        let mut outcomes = [SendOutcome::Sent; 3];
        let before = rig.tx.inner.sent.len();
        rig.tx.send(&batch, &mut outcomes);
        let full = SendOutcome::Blocked { taken: 0 };
        assert_eq!(outcomes, [full, full, SendOutcome::Sent]);
        assert_eq!(rig.tx.inner.sent.len(), before + 1);
        // A reply goes all the same.
        rig.write_control(b"RTSP/1.0 200 OK\r\n\r\n");
        let mut told = 0;
        rig.until(|rig| {
            rig.read();
            told += u32::from(rig.tx.poll_conn_writable().is_some());
            (rig.got.len() == rig.due.len()).then_some(())
        });
        assert_eq!(told, 1);
        assert!(rig.got == rig.due, "other bytes came than were sent");
    }
    // Waiting data, the viewer's window, and a frame.
    assert!(most < (256 << 10) + (256 << 10) + 4096, "{most} bytes");
}

impl EgressRig {
    /// Fills the connection, and the viewer's window, until nothing gets on. The most that was under way.
    fn fill_up(&mut self, lease: &Lease) -> u64 {
        let (mut skip, mut most) = (0, 0);
        self.until(|rig| {
            let taken = rig.send_patched(lease, skip, 1);
            skip = (skip + taken) % PACKETS;
            most = most.max(rig.tx.backlog_bytes(CONN).unwrap());
            let is_quiet = rig.wires.iter().all(|wire| wire.lock().unwrap().queue.is_empty());
            (taken == 0 && rig.tx.poll_conn_writable().is_none() && is_quiet).then_some(())
        });
        most
    }
}

#[test]
fn viewer_disconnect_reports_conn_gone_and_releases_leases() {
    for is_reset in [true, false] {
        let film = TestExtent::new(rtp(), &[]);
        let lease = film.lease();
        let mut rig = EgressRig::new();
        rig.fill(&lease);
        rig.turn();
        let there = rig.sockets[1];
        rig.far.close(there, is_reset);
        let gone = rig.until(|rig| rig.tx.poll_conn_gone());
        // Its data finds no socket: it is answered by a reset too.
        assert_eq!(gone, (CONN, libc::ECONNRESET));
        assert_eq!(
            (rig.tx.poll_conn_gone(), rig.tx.write_control(CONN, b"x")),
            (None, Err(libc::ECONNRESET))
        );
        let closed = SendOutcome::Closed { errno: libc::ECONNRESET };
        assert_eq!(rig.send(INTERLEAVED, Payload::Rtcp(&[1]), None), closed);
        assert_eq!((rig.leases(), film.arena.leases(0)), (0, 1), "at once, whatever its host does");
        assert!(rig.tx.remove_conn(CONN).is_some() && rig.tx.remove_conn(CONN).is_none());
    }
}

/// If a host misbehaves, or closes too early, the connection is closed.
#[test]
fn host_close_ends_connection_for_loop() {
    for is_reset in [false, true] {
        let film = TestExtent::new(rtp(), &[]);
        let lease = film.lease();
        let mut rig = EgressRig::new();
        assert_eq!(rig.send_patched(&lease, 0, 9), PACKETS);
        let (here, name) = (rig.sockets[0], rig.name);
        rig.near.close(here, is_reset);
        let gone = rig.until(|rig| rig.tx.poll_conn_gone());
        assert_eq!(gone, (CONN, if is_reset { libc::ECONNABORTED } else { 0 }));
        if !is_reset {
            // The data taken is still sent, and the end after it.
            rig.until(|rig| rig.read().then_some(()));
            assert!(rig.got == rig.due, "other bytes came than were sent");
        }
        rig.until(|rig| (rig.leases() == 0).then_some(()));
        // The socket is another connection soon: neither the old name nor the old place reaches it.
        let there = rig.sockets[1];
        rig.far.close(there, true);
        rig.connect();
        assert_eq!((rig.sockets[0], rig.name.generation), (here, name.generation + 1));
        assert!(matches!(rig.send(INTERLEAVED, Payload::Rtcp(&[1]), None), SendOutcome::Closed { .. }));
        assert_eq!(rig.tx.add_conn(ConnId(4), name.into()), Err(libc::EBADF));
        // Nor does that of the same place in an engine before this one.
        let before = EngineSocket { engine: name.engine + 1, ..rig.name };
        assert_eq!(rig.tx.add_conn(ConnId(4), before.into()), Err(libc::EBADF));
        rig.tx.remove_conn(CONN);
        rig.tx.add_conn(CONN, rig.name.into()).unwrap();
        (rig.due, rig.got) = (Vec::new(), Vec::new());
        rig.write_control(b"hello");
        rig.read_all();
        assert_eq!(rig.tx.poll_conn_gone(), None, "what was the old one's");
    }
}

#[test]
fn stalled_viewer_releases_extents_and_resumes_after_supply() {
    for is_there in [true, false] {
        let film = TestExtent::new(rtp(), &[]);
        let lease = film.lease();
        let mut rig = EgressRig::new();
        rig.fill_up(&lease);
        assert!(rig.leases() > 100);
        let begun = rig.now;
        rig.until(|rig| (rig.leases() == 0).then_some(()));
        let waited = rig.now.ns_since(begun);
        assert!((1_500_000_000..2_500_000_000).contains(&waited), "{waited} ns");
        assert_eq!(film.arena.leases(0), 1);
        let mut supplied = 0;
        let gone = rig.until(|rig| {
            while let Some(wanted) = rig.tx.poll_wanted() {
                assert_eq!(wanted.content, film.content);
                supplied += 1;
                rig.tx.supply(rig.now, &wanted, is_there.then(|| film.lease()));
            }
            if rig.far.outcome(rig.sockets[1]).is_ok() && is_there {
                rig.read();
            } else {
                let _ = rig.far.read(rig.sockets[1], &mut [0; 8192], true);
            }
            let gone = rig.tx.poll_conn_gone();
            (gone.is_some() || rig.got.len() == rig.due.len()).then_some(gone)
        });
        assert!(supplied > 0);
        match is_there {
            true => assert!(gone.is_none() && rig.got == rig.due),
            false => assert_eq!(gone, Some((CONN, libc::ECONNABORTED))),
        }
        rig.until(|rig| (rig.leases() == 0).then_some(()));
        assert_eq!(film.arena.leases(0), 1);
    }
}

/// Extents given to a connection while its viewer stands still are returned too.
#[test]
fn leases_sent_to_stalled_viewer_are_released() {
    let film = TestExtent::new(rtp(), &[]);
    let lease = film.lease();
    let mut rig = EgressRig::new();
    // Somewhat more than its window, so that it stands still with room for more.
    for round in 0..6 {
        assert_eq!(rig.send_patched(&lease, 0, round), PACKETS);
        (0..400).for_each(|_| rig.turn());
    }
    rig.until(|rig| (rig.leases() == 0).then_some(()));
    for round in 6..8 {
        assert_eq!(rig.send_patched(&lease, 0, round), PACKETS);
        assert!(rig.leases() > 0);
        rig.until(|rig| (rig.leases() == 0).then_some(()));
    }
    rig.until(|rig| {
        while let Some(wanted) = rig.tx.poll_wanted() {
            rig.tx.supply(rig.now, &wanted, Some(film.lease()));
        }
        rig.read();
        (rig.got.len() == rig.due.len()).then_some(())
    });
    assert!(rig.got == rig.due, "other bytes came than were sent");
}

/// The title of a finished run is closed, and so is its connection: the rest of its data still
/// arrives.
#[test]
fn end_of_run_after_title_close_still_arrives() {
    for closed_before in [false, true] {
        let film = TestExtent::new(rtp(), &[]);
        let lease = film.lease();
        let mut rig = EgressRig::new();
        rig.fill_up(&lease);
        let begun = rig.now;
        if closed_before {
            assert!(film.arena.close_title(film.content.title), "nobody has to ask for it: it is here");
        }
        rig.until(|rig| (rig.now.ns_since(begun) > 3_000_000_000).then_some(()));
        assert_eq!(rig.leases() > 0, closed_before);
        // The cache does this with a title that stays open.
        assert_eq!(film.arena.close_title(film.content.title), closed_before);
        rig.tx.remove_conn(CONN);
        let here = rig.sockets[0];
        rig.near.close(here, false);
        rig.until(|rig| {
            while let Some(wanted) = rig.tx.poll_wanted() {
                rig.tx.supply(rig.now, &wanted, (!closed_before).then(|| film.lease()));
            }
            rig.read().then_some(())
        });
        assert!(rig.got == rig.due, "{} of {} bytes, or others", rig.got.len(), rig.due.len());
        assert!(film.arena.close_title(film.content.title));
    }
}

#[test]
fn replies_have_pages_when_media_has_taken_the_rest_and_are_bounded() {
    let film = TestExtent::new(rtp(), &[]);
    let lease = film.lease();
    let mut rig = EgressRig::accepted(|settings| settings.stack.host_pages = 48);
    rig.tx.add_conn(CONN, rig.name.into()).unwrap();
    let elsewhere = lease.wire(0, 39).to_vec();
    let payload = Payload::Wire { bytes: &elsewhere, segment: rtp().slot_bytes() };
    let SendOutcome::Blocked { taken: first } = (0..10)
        .map(|_| rig.send(INTERLEAVED, payload, None))
        .find(|outcome| *outcome != SendOutcome::Sent)
        .unwrap()
    else {
        panic!("it is full")
    };
    assert!(first < 39);
    // What needs no page does not overtake what waits for one.
    let behind = Payload::Wire { bytes: lease.wire(0, 9), segment: rtp().slot_bytes() };
    let source = Some(PayloadSource { lease: &lease, place: 0 });
    let batch = Batch(vec![
        One { dest: INTERLEAVED, payload, source: None },
        One { dest: INTERLEAVED, payload: behind, source },
    ]);
    let mut outcomes = [SendOutcome::Sent; 2];
    rig.tx.send(&batch, &mut outcomes);
    assert_eq!(outcomes, [SendOutcome::Blocked { taken: 0 }; 2]);
    assert_eq!(rig.tx.write_control(CONN, &[b'x'; 2000]), Ok(()));
    assert_eq!(rig.tx.write_control(CONN, &[b'x'; 65_000]), Err(libc::ENOBUFS));
    // Another connection's pages are free again: this one is notified.
    rig.until(|rig| {
        rig.read();
        rig.tx.poll_conn_writable()
    });
}

#[test]
fn device_failure_ends_its_connections_only() {
    for at_stop in [false, true] {
        let film = TestExtent::new(rtp(), &[]);
        let lease = film.lease();
        let mut rig = EgressRig::new();
        rig.fill(&lease);
        let held = film.arena.leases(0);
        assert!(held > 100);
        match at_stop {
            false => rig.wires[1].lock().unwrap().is_broken = true,
            true => rig.home.stop(),
        }
        rig.now = rig.now.plus_ns(STEP_NS);
        rig.tx.tend(rig.now);
        assert_eq!((rig.tx.poll_conn_gone(), rig.tx.poll_conn_gone()), (Some((CONN, libc::ENETDOWN)), None));
        assert_eq!(film.arena.leases(0), 1, "of {held}");
        assert!(rig.near.is_stopped(), "its hosts hear of it");
        let why = rig.home.end().unwrap().to_owned();
        assert!(why.contains(if at_stop { "stopped" } else { "device failed" }), "{why}");
        let closed = SendOutcome::Closed { errno: libc::ENETDOWN };
        assert_eq!(rig.send(INTERLEAVED, Payload::Rtcp(&[1]), None), closed);
        let udp = Dest::udp(([10, 0, 0, 9], 7).into(), Some(8));
        assert_eq!(rig.send(udp, Payload::Rtcp(&[1]), None), SendOutcome::Sent);
        assert_eq!(rig.tx.inner.sent, [udp]);
        assert_eq!(rig.tx.add_conn(ConnId(1), rig.name.into()), Err(libc::ENETDOWN));
        assert!(rig.tx.remove_conn(CONN).is_some());
        assert_eq!((rig.tx.next_due(rig.now), rig.tx.depart(rig.now)), (None, 0));
    }
}

/// One engine after the other: the next waits until the one before has ended.
#[test]
fn engines_follow_one_another_in_the_seat_of_a_loop() {
    let wires = [(); 2].map(|()| Arc::<Mutex<LossyWire>>::default());
    let device = |number: usize| Box::new(End { out: Arc::default(), back: Arc::clone(&wires[number]) });
    let of = settings([10, 0, 0, 1]);
    let (mut tx, mut seat) =
        EngineTx::with_seat(RecordingPath::default(), 8, Arc::new(EventBell::new().unwrap()));
    let turn = |tx: &mut EngineTx<RecordingPath>, now: u64| {
        tx.tend(Instant(now * STEP_NS));
        tx.depart(Instant(now * STEP_NS))
    };
    assert_eq!((turn(&mut tx, 1), tx.is_asked()), (0, false));
    let unknown = || EngineSocket { engine: 1, pair: 0, generation: 1, socket: 0 }.into();
    assert_eq!(tx.add_conn(CONN, unknown()), Err(libc::ENETDOWN));
    let first = seat.start(&of, device(0)).unwrap();
    assert!(tx.is_asked(), "the loop must not sleep now");
    // Its connections may be handed over before the next turn.
    assert_ne!(tx.add_conn(CONN, unknown()), Err(libc::ENETDOWN));
    let of_first = first.attach().unwrap();
    assert!((0..3).all(|_| of_first.inject(&[0; 7])));
    assert_eq!(turn(&mut tx, 2), 3, "three requests");
    let second = seat.start(&of, device(1)).unwrap();
    let of_second = second.attach().unwrap();
    assert!(of_second.inject(&[0; 7]));
    assert_eq!((turn(&mut tx, 3), tx.is_asked()), (0, false), "it waits");
    let refused = seat.start(&of, device(1)).err().unwrap().to_string();
    assert!(refused.contains("waits for the loop"), "{refused}");
    wires[0].lock().unwrap().is_broken = true;
    turn(&mut tx, 4);
    assert!(of_first.is_stopped() && first.end().is_some_and(|why| why.contains("device failed")));
    assert!(tx.is_asked() && second.end().is_none());
    assert_eq!(turn(&mut tx, 5), 1, "one request of its own");
    assert!(!of_second.is_stopped());
    drop(tx);
    assert!(of_second.is_stopped());
    let refused = seat.start(&of, device(1)).err().unwrap().to_string();
    assert!(refused.contains("the loop that would turn"), "{refused}");
}

/// A loop that ends takes leave of connections, whether it writes to them or not: the end comes although nothing is turned any more.
#[test]
fn loop_end_closes_connections_of_its_engine() {
    for is_lent in [false, true] {
        let mut rig = EgressRig::accepted(|_| {});
        if is_lent {
            rig.tx.add_conn(CONN, rig.name.into()).unwrap();
            rig.write_control(b"the last reply");
        }
        rig.tx.shut_down(rig.now);
        let mut has_ended = false;
        for _ in 0..100 {
            rig.now = rig.now.plus_ns(STEP_NS);
            rig.turn_peer();
            has_ended |= rig.read();
        }
        assert!(has_ended && rig.got == rig.due, "lent: {is_lent}");
    }
}

/// An engine with a thread of its own, as its host's loop sees it.
#[path = "queue_pair_access_tests.rs"]
mod apart;
