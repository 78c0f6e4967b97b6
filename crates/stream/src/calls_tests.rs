//! The calls, an engine's loop and a cache on a clock that advances on command.

use std::io::Write;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant as StdInstant};

use millrace_core::counters::Group;
use millrace_core::limits::{BUSY_BURST_NS, DEFAULT_BURST_NS, EXTENT_BYTES, RING_RECORDS};
use millrace_core::pool::{ExtentArena, HeapRegion};
use millrace_core::seam::{Clock, Doorbell, PacketTx, Payload, SendOutcome, TransmitBatch};
use millrace_engine::{Engine, EngineConfig, LeaseFailure};
use millrace_offload::TxCounters;
use millrace_offload::adaptive_burst::AdaptiveBurst;
use millrace_offload::bell::EventBell;
use millrace_offload::core_loop::CoreLoop;
use millrace_offload::idle::IdlePolicy;
use millrace_offload::load::{LoadMeter, LoopSheets};
use millrace_offload::loop_tx::{LoopConnections, LoopTx, WithoutEngine};
use millrace_store::cache::{Cache, CacheConfig};
use proptest::prelude::*;

#[path = "calls_ends_tests.rs"]
mod ends;

use super::*;
use crate::buffer::{Buffer, BufferWriter, WhenFull};
use crate::context::{Assembly, StreamContext, Transport};
use crate::file::{BlockPacing, Opening};
use crate::outcome::RunOutcome;
use crate::source::{MediaSource, SourcePosition};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;
const PACKET: usize = 1316;

#[derive(Clone)]
struct StepClock(Arc<AtomicU64>);

impl Clock for StepClock {
    fn now(&self) -> Instant {
        Instant(self.0.load(Ordering::Relaxed))
    }
}

/// Counts the packets it receives, and keeps their bytes if `keeps` is set.
#[derive(Default)]
struct Sink {
    blocks: u32,
    packets: u32,
    keeps: bool,
    bytes: Vec<u8>,
    /// The number that the next packet should begin with; what begins with another is counted.
    next: u64,
    out_of_order: u64,
    /// The connection breaks when it has taken this number of packets.
    breaks_at: Option<u32>,
}

impl Sink {
    fn take(&mut self, packet: &[u8]) {
        if self.keeps {
            self.bytes.extend_from_slice(packet);
        } else {
            self.out_of_order += u64::from(packet[..8] != self.next.to_le_bytes());
            self.next += 1;
        }
    }
}

impl PacketTx for Sink {
    fn send(&mut self, batch: &dyn TransmitBatch, outcomes: &mut [SendOutcome]) {
        for (index, outcome) in outcomes[..batch.len()].iter_mut().enumerate() {
            let transmit = batch.get(index);
            if self.breaks_at.is_some_and(|most| self.packets >= most) {
                *outcome = SendOutcome::Closed { errno: 32 };
                continue;
            }
            match transmit.payload {
                Payload::Wire { bytes, segment } => {
                    bytes.chunks(segment).for_each(|packet| self.take(packet))
                }
                Payload::Bytes(range) => (0..range.count).for_each(|piece| self.take(range.piece(piece))),
                Payload::Patched { .. } | Payload::Rtcp(_) => panic!("nobody asked for that"),
            }
            self.blocks += 1;
            self.packets += transmit.datagrams() as u32;
            *outcome = SendOutcome::Sent;
        }
    }
}

impl LoopConnections for Sink {
    fn add_conn(&mut self, _: ConnId, _: ConnSocket) -> Result<(), i32> {
        Ok(())
    }
    fn write_control(&mut self, _: ConnId, bytes: &[u8]) -> Result<(), i32> {
        self.bytes.extend_from_slice(bytes);
        Ok(())
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

impl WithoutEngine for Sink {}

impl LoopTx for Sink {
    fn counters(&self) -> &TxCounters {
        &TxCounters::ZERO
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

/// The rings of a loop that is turned by hand.
struct Rings {
    commands: rtrb::Producer<Command>,
    events: rtrb::Consumer<Event>,
}

impl EnginePort for Rings {
    fn send(&mut self, command: Command) -> Result<(), Box<Command>> {
        self.commands.push(command).map_err(|rtrb::PushError::Full(command)| Box::new(command))
    }
    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop().ok()
    }
}

struct CallsWorld {
    clock: StepClock,
    cache: Arc<Cache>,
    core: CoreLoop<StepClock, Sink>,
    calls: Calls<Rings>,
    /// Wants of runs that have ended before they were answered: they never will be.
    unanswered: u64,
    gives_up: StdInstant,
}

impl CallsWorld {
    fn new(bounds: Bounds) -> Self {
        let clock = StepClock(Arc::new(AtomicU64::new(SECOND)));
        let bell = Arc::new(EventBell::new().unwrap());
        let arena = ExtentArena::new(Box::new(HeapRegion::new((32 << 20) / EXTENT_BYTES)));
        let bells = vec![Arc::clone(&bell) as Arc<dyn Doorbell>];
        let (cache, mut handles) =
            Cache::start(CacheConfig::default(), arena, Arc::new(clock.clone()), bells).unwrap();
        let (commands, command_end) = rtrb::RingBuffer::new(RING_RECORDS);
        let (event_end, events) = rtrb::RingBuffer::new(RING_RECORDS);
        let now = clock.now();
        let core = CoreLoop::new(
            clock.clone(),
            Engine::new(EngineConfig { streams: bounds.streams, ..EngineConfig::default() }),
            handles.remove(0),
            Sink::default(),
            command_end,
            event_end,
            Arc::new(EventBell::new().unwrap()),
            bell,
            IdlePolicy::Adaptive,
            LoadMeter::new(LoopSheets::default(), now),
            AdaptiveBurst::new(DEFAULT_BURST_NS, BUSY_BURST_NS, now),
        );
        let calls = Calls::new(vec![Rings { commands, events }], bounds);
        let gives_up = StdInstant::now() + Duration::from_secs(300);
        Self { clock, cache: Arc::new(cache), core, calls, unanswered: 0, gives_up }
    }

    fn plain(&self, bytes: &[u8], pace: BlockPacing) -> MediaSource {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        MediaSource::new(&self.cache, Opening::begin(file.path()).unwrap().plain(pace).unwrap(), vec![])
    }

    fn buffer(&self, buffer: Buffer) -> (MediaSource, BufferWriter) {
        buffer.open(&self.cache).unwrap()
    }

    fn open(&mut self, stream: &mut StreamContext) -> ContextKey {
        let transport = &mut stream.transport;
        self.calls.open(0, transport.dest, transport.socket.take()).map_err(|(refused, _)| refused).unwrap()
    }

    fn begin(&mut self, key: ContextKey, stream: &mut StreamContext) -> RunSerial {
        let plan = stream.plan().unwrap();
        let run = self.calls.start(key, &plan, std::mem::take(&mut stream.first)).unwrap();
        stream.began(&plan);
        run
    }

    /// Does one turn, and lets some time pass if no stream waits for the cache.
    fn turn(&mut self, ns: u64) {
        self.core.turn();
        self.calls.pump(0);
        if self.waiting() <= self.unanswered {
            self.clock.0.fetch_add(ns, Ordering::Relaxed);
        } else {
            std::thread::yield_now();
        }
        assert!(StdInstant::now() < self.gives_up, "it does not end");
    }

    fn waiting(&self) -> u64 {
        let counters = self.core.engine.counters();
        // An answer that is late because its run has ended serves no request, whether it comes
        // before the next run's request or after it.
        counters.wants + counters.leases_unwanted - counters.leases - counters.leases_failed
    }

    fn told(&mut self, key: ContextKey, stream: &mut StreamContext) -> Option<RunOutcome> {
        match self.calls.poll_told(key, Waker::noop()) {
            Poll::Pending => None,
            Poll::Ready(told) => {
                self.unanswered = self.waiting();
                Some(stream.ended(&told.expect("a run").expect("no refusal")))
            }
        }
    }

    /// Does a run to its end, or until it has been interrupted after `turns` turns of 1 ms.
    fn run(&mut self, key: ContextKey, stream: &mut StreamContext, turns: Option<u32>) -> RunOutcome {
        let run = self.begin(key, stream);
        let mut turned = 0;
        loop {
            if turns == Some(turned) {
                self.calls.interrupt(key, run, Reason::Control);
            }
            turned += 1;
            self.turn(MS);
            if let Some(outcome) = self.told(key, stream) {
                return outcome;
            }
        }
    }
}

const BOUNDS: Bounds = Bounds { streams: 16, conns: 16, max_rate: None };

fn numbered(packet: u64) -> [u8; PACKET] {
    let mut bytes = [packet as u8; PACKET];
    bytes[..8].copy_from_slice(&packet.to_le_bytes());
    bytes
}

/// Writes packets up to `end` until there is no room.
fn feed(writer: &mut BufferWriter, end: u64) {
    while writer.written() / (PACKET as u64) < end {
        let packet = numbered(writer.written() / PACKET as u64);
        match writer.try_write(&packet) {
            Ok(count) => assert_eq!(count, PACKET),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
    }
}

fn datagrams(source: &MediaSource) -> StreamContext {
    StreamContext::new(Transport::udp(([127, 0, 0, 1], 9).into()), source).unwrap()
}

#[test]
fn circular_buffer_plays_one_hour_without_loss() {
    let mut world = CallsWorld::new(BOUNDS);
    let rate = BitRate(1_000_000);
    let (source, writer) = world.buffer(Buffer::circular(rate, 2 << 20, WhenFull::Wait).raw());
    let packets = 3600 * rate.0 / 8 / PACKET as u64;
    let mut writer = Some(writer);
    let mut stream = datagrams(&source);
    let key = world.open(&mut stream);
    world.begin(key, &mut stream);
    let begun = world.clock.now();
    let outcome = loop {
        if let Some(open) = &mut writer {
            feed(open, packets);
            if open.written() == packets * PACKET as u64 {
                writer.take().unwrap().finish().unwrap();
            }
        }
        world.turn(10 * MS);
        if let Some(outcome) = world.told(key, &mut stream) {
            break outcome;
        }
    };
    let sink = &world.core.tx;
    assert_eq!((outcome.reason, u64::from(outcome.packets)), (Reason::Finished, packets));
    assert_eq!((outcome.blocks, sink.out_of_order, sink.next), (sink.blocks, 0, packets));
    let passed = world.clock.now().ns_since(begun);
    assert!((3_599 * SECOND..3_602 * SECOND).contains(&passed), "{passed} ns");
    assert_eq!(world.calls.used(), BitRate(0));
}

#[test]
fn circular_buffer_lapped_by_writer_ends_run_and_restarts_at_newest() {
    let mut world = CallsWorld::new(BOUNDS);
    let buffer = Buffer::circular(BitRate(8_000_000), 2 << 20, WhenFull::Overwrite).raw();
    let (source, mut writer) = world.buffer(buffer);
    let mut stream = datagrams(&source);
    let key = world.open(&mut stream);
    world.begin(key, &mut stream);
    feed(&mut writer, 400);
    while world.core.tx.packets < 100 {
        world.turn(MS);
        feed(&mut writer, 400);
    }
    // Four times as much as the buffer holds.
    while writer.written() < 8 << 20 {
        feed(&mut writer, (8 << 20) / PACKET as u64 + 1);
        std::thread::yield_now();
    }
    let outcome = loop {
        world.turn(MS);
        if let Some(outcome) = world.told(key, &mut stream) {
            break outcome;
        }
    };
    let sink = &world.core.tx;
    assert_eq!(
        (outcome.reason, outcome.blocks, outcome.packets),
        (Reason::Lapped, sink.blocks, sink.packets)
    );
    assert_eq!(
        (sink.out_of_order, outcome.next.packet),
        (0, outcome.packets),
        "what it had was sent, in order"
    );
    // It has failed, and plays again all the same.
    stream.start_at(SourcePosition::Newest);
    world.core.tx.next = u64::from(source.newest());
    world.begin(key, &mut stream);
    let end = u64::from(source.newest()) + 50;
    feed(&mut writer, end);
    while world.core.tx.next < end {
        world.turn(MS);
        feed(&mut writer, end);
    }
    drop(writer);
    let outcome = loop {
        world.turn(MS);
        if let Some(outcome) = world.told(key, &mut stream) {
            break outcome;
        }
    };
    assert_eq!((outcome.reason, outcome.packets, world.core.tx.out_of_order), (Reason::SourceLost, 50, 0));
}

#[test]
fn linear_buffer_run_finishes_at_end_position() {
    let mut world = CallsWorld::new(BOUNDS);
    let end = 200 * PACKET as u64 + 188;
    let (source, mut writer) = world.buffer(Buffer::linear(BitRate(8_000_000), end).raw());
    world.core.tx.keeps = true;
    let mut stream = datagrams(&source);
    let key = world.open(&mut stream);
    world.begin(key, &mut stream);
    let bytes: Vec<u8> = (0..201).flat_map(numbered).collect();
    let mut written = 0;
    while written < end as usize {
        match writer.try_write(&bytes[written..]) {
            Ok(count) => written += count,
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
        world.turn(MS);
    }
    let error = writer.write(&bytes).unwrap_err();
    assert_eq!((written as u64, error.kind()), (end, std::io::ErrorKind::StorageFull));
    let outcome = loop {
        world.turn(MS);
        if let Some(outcome) = world.told(key, &mut stream) {
            break outcome;
        }
    };
    assert_eq!(
        (outcome.reason, outcome.packets, outcome.blocks),
        (Reason::Finished, 201, world.core.tx.blocks),
        "though the writer is still there"
    );
    assert!(world.core.tx.bytes[..end as usize] == bytes[..end as usize]);
    let rest = &world.core.tx.bytes[end as usize..];
    assert!(rest.chunks(188).all(|null| null[..4] == [0x47, 0x1f, 0xff, 0x10]) && rest.len() == 6 * 188);
}

#[test]
fn assembly_step_sends_first_blocks_of_each_stride_without_gap() {
    let mut world = CallsWorld::new(BOUNDS);
    world.core.tx.keeps = true;
    let bytes: Vec<u8> = (0..1000).flat_map(|packet| [packet as u8; 1000]).collect();
    let source = world.plain(&bytes, BlockPacing::every(Duration::from_millis(1), 1000).unwrap());
    let mut stream = datagrams(&source);
    stream.assembly(Assembly::Step { block: 3, stride: 10 }).unwrap();
    let key = world.open(&mut stream);
    let begun = world.clock.now();
    let first = world.run(key, &mut stream, Some(120));
    let second = world.run(key, &mut stream, None);
    let wanted: Vec<u8> =
        (0..1000).filter(|packet| packet % 10 < 3).flat_map(|packet| [packet as u8; 1000]).collect();
    assert_eq!((first.reason, second.reason), (Reason::Control, Reason::Finished));
    assert_eq!(first.packets + second.packets, 300);
    assert!(world.core.tx.bytes == wanted);
    let passed = world.clock.now().ns_since(begun);
    assert!((280 * MS..400 * MS).contains(&passed), "{passed} ns of 300 intervals");
    stream.assembly(Assembly::Step { block: 3, stride: 3 }).unwrap();
    assert!(matches!(stream.plan(), Err(RunRefusal::Unsuitable(_))));
}

#[test]
fn runs_are_refused_beyond_the_rate_and_the_places_and_accepted_when_there_is_room_again() {
    let max_rate = Some(BitRate(10_000_000));
    let mut world = CallsWorld::new(Bounds { streams: 2, conns: 1, max_rate });
    let source = world.plain(&[1; 500_000], BlockPacing::at_rate(BitRate(6_000_000), 1000).unwrap());
    let (mut one, mut two) = (datagrams(&source), datagrams(&source));
    let keys = [world.open(&mut one), world.open(&mut two)];
    assert!(matches!(
        world.calls.open(0, one.transport.dest, None),
        Err((RunRefusal::Streams { most: 2 }, None))
    ));
    world.begin(keys[0], &mut one);
    let refused = world.calls.start(keys[1], &two.plan().unwrap(), vec![]).unwrap_err();
    let used = BitRate(6_000_000);
    let wanted = RunRefusal::Rate { asked: used, used, most: BitRate(10_000_000) };
    assert!(matches!(&refused, RunError::Refused(refused) if *refused == wanted), "{refused}");
    assert!(
        two.speed(500).plan().is_ok_and(|plan| world.calls.start(keys[1], &plan, vec![]).is_ok()),
        "half"
    );
    for key in keys {
        world.calls.close(key, false);
    }
    while world.calls.lines() > 0 {
        world.turn(MS);
    }
    assert_eq!(world.calls.used(), BitRate(0));
    world.open(&mut one);
    // Connections have places of their own.
    let pair = || ConnSocket::from(OwnedFd::from(UnixStream::pair().unwrap().0));
    let dest = Dest::Bytes { conn: () };
    world.calls.open(0, dest, Some(pair())).map_err(|(refused, _)| refused).unwrap();
    assert!(matches!(
        world.calls.open(0, dest, Some(pair())),
        Err((RunRefusal::Connections { most: 1 }, Some(_)))
    ));
}

#[test]
fn run_on_truncated_file_ends_with_read_error() {
    let mut world = CallsWorld::new(BOUNDS);
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&vec![5; 4 << 20]).unwrap();
    let pace = BlockPacing::at_rate(BitRate(8_000_000), 1000).unwrap();
    let source =
        MediaSource::new(&world.cache, Opening::begin(file.path()).unwrap().plain(pace).unwrap(), vec![]);
    file.as_file().set_len(0).unwrap();
    let mut stream = datagrams(&source);
    let key = world.open(&mut stream);
    let outcome = world.run(key, &mut stream, None);
    assert!(matches!(outcome.reason, Reason::Read(LeaseFailure::Io(_))), "{outcome:?}");
    assert_eq!((outcome.blocks, outcome.packets, outcome.next.byte), (0, 0, 0));
}

#[test]
fn places_are_found_by_packet_byte_and_time() {
    let world = CallsWorld::new(BOUNDS);
    let source = world.plain(&[1; 10_500], BlockPacing::every(Duration::from_millis(7), 1000).unwrap());
    let mut stream = datagrams(&source);
    for (place, packet) in [
        (SourcePosition::Packet(4), Some(4)),
        (SourcePosition::Byte(4000), Some(4)),
        (SourcePosition::Byte(4001), None),
        (SourcePosition::Time(Duration::from_millis(28)), Some(4)),
        (SourcePosition::Time(Duration::from_millis(29)), Some(5)),
        (SourcePosition::Access(Duration::from_millis(29)), Some(4)),
        (SourcePosition::Newest, Some(11)),
        (SourcePosition::Packet(12), None),
        (SourcePosition::Byte(10_501), None),
        (SourcePosition::Time(Duration::from_secs(9)), None),
    ] {
        assert_eq!(stream.start_at(place).plan().ok().map(|plan| plan.from), packet, "{place:?}");
    }
    assert!(
        stream.start_at(SourcePosition::Packet(5)).stop_at(Some(SourcePosition::Packet(4))).plan().is_err()
    );
    assert_eq!(source.time_of(4), Duration::from_millis(28));
    assert!(
        StreamContext::new(Transport::udp_rtp(([127, 0, 0, 1], 9).into(), None), &source).is_err(),
        "no RTP"
    );
    let pace = |bytes, ms| BlockPacing::every(Duration::from_millis(ms), bytes);
    assert_eq!([pace(199, 1), pace(9025, 1), pace(1000, 60_001), pace(1000, 0)], [None; 4]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever is stopped when: the data sent is the file's data between the first start and the
    /// last stop.
    #[test]
    fn runs_with_arbitrary_stops_send_exact_bytes_of_file(
        length in 1usize..900_000,
        block in 200usize..2000,
        begin in 0.0f64..1.0,
        stops in proptest::collection::vec((0u32..120, proptest::option::of(prop_oneof![Just(0.0), 0.0f64..1.0])), 0..6),
    ) {
        let mut world = CallsWorld::new(BOUNDS);
        world.core.tx.keeps = true;
        let bytes: Vec<u8> = (0..length as u64).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 11) as u8).collect();
        let source = world.plain(&bytes, BlockPacing::at_rate(BitRate(40_000_000), block).unwrap());
        let (near, _far) = UnixStream::pair().unwrap();
        let mut stream = StreamContext::new(Transport::tcp(near), &source).unwrap();
        let begin = (length as f64 * begin) as u64;
        stream.start_at(SourcePosition::Byte(begin));
        let key = world.open(&mut stream);
        let (mut at, mut sent, mut blocks) = (begin, 0, 0);
        for (turns, stop) in stops {
            // A stopping offset behind the data already sent.
            let stop = stop.map(|part| at + ((length as u64 - at) as f64 * part) as u64);
            stream.stop_at(stop.map(SourcePosition::Byte));
            let outcome = world.run(key, &mut stream, Some(turns));
            (sent, blocks) = (sent + outcome.bytes, blocks + outcome.blocks);
            at = outcome.next.byte;
            prop_assert_eq!(at, begin + sent);
            prop_assert!(stop.is_none_or(|stop| at <= stop));
            if outcome.reason == Reason::Finished {
                prop_assert_eq!(at, stop.unwrap_or(length as u64));
            }
        }
        let outcome = world.run(key, stream.stop_at(None), None);
        prop_assert_eq!((outcome.reason, outcome.next.byte), (Reason::Finished, length as u64));
        prop_assert!(world.core.tx.bytes == bytes[begin as usize..]);
        prop_assert_eq!(blocks + outcome.blocks, world.core.tx.blocks);
        prop_assert_eq!(world.core.tx.blocks > 0, begin < length as u64);
    }
}
