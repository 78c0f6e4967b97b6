//! What ends a run, with the exact reason and number of blocks, and that nothing is lost between two runs.

use super::*;
use crate::outcome::RunOutcome;

/// Turns until the run that lasts has ended.
fn ended(world: &mut CallsWorld, key: ContextKey, stream: &mut StreamContext) -> RunOutcome {
    loop {
        world.turn(MS);
        if let Some(outcome) = world.told(key, stream) {
            return outcome;
        }
    }
}

#[test]
fn messages_while_a_circular_buffer_is_full_lose_nothing() {
    let mut world = CallsWorld::new(BOUNDS);
    let buffer = Buffer::circular(BitRate(50_000_000), 0, WhenFull::Wait).raw();
    let (source, mut writer) = world.buffer(buffer);
    let mut stream = datagrams(&source);
    let key = world.open(&mut stream);
    let (mut blocks, mut packets) = (0, 0);
    for ms in (1..60).cycle().take(300) {
        let run = world.begin(key, &mut stream);
        let until = world.clock.now().plus_ns(ms * MS);
        while world.clock.now() < until {
            world.turn(MS);
            // As much as there is room for.
            feed(&mut writer, u64::MAX);
        }
        world.calls.interrupt(key, run, Reason::Control);
        let outcome = ended(&mut world, key, &mut stream);
        assert_eq!(outcome.reason, Reason::Control);
        (blocks, packets) = (blocks + outcome.blocks, packets + outcome.packets);
    }
    let sink = &world.core.tx;
    assert_eq!((blocks, packets, sink.out_of_order), (sink.blocks, sink.packets, 0));
    assert!(packets > 20_000, "{packets}");
}

#[test]
fn run_on_broken_connection_reports_exactly_what_was_taken() {
    let mut world = CallsWorld::new(BOUNDS);
    world.core.tx.breaks_at = Some(123);
    let source = world.plain(&[7; 1_000_000], BlockPacing::at_rate(BitRate(8_000_000), 1000).unwrap());
    let mut stream = StreamContext::new(Transport::tcp(UnixStream::pair().unwrap().0), &source).unwrap();
    world.core.tx.keeps = true;
    let key = world.open(&mut stream);
    let outcome = world.run(key, &mut stream, None);
    let sink = &world.core.tx;
    assert_eq!(outcome.reason, Reason::PeerGone { errno: 32 });
    assert_eq!(
        (outcome.blocks, outcome.packets, outcome.bytes),
        (sink.blocks, sink.packets, sink.bytes.len() as u64)
    );
    assert!(outcome.packets >= 123 && outcome.next.packet == outcome.packets, "{outcome:?}");
    let plan = stream.plan().unwrap();
    let again = world.calls.start(key, &plan, vec![]).unwrap_err();
    assert!(matches!(again, RunError::ConnectionGone { errno: 32 }), "{again}");
}

#[test]
fn shutdown_ends_all_runs_and_keeps_their_outcomes() {
    let mut world = CallsWorld::new(BOUNDS);
    let source = world.plain(&[7; 1_000_000], BlockPacing::at_rate(BitRate(8_000_000), 1000).unwrap());
    world.core.tx.keeps = true;
    let mut streams = [datagrams(&source), datagrams(&source)];
    let keys = [0, 1].map(|index| world.open(&mut streams[index]));
    let runs = [0, 1].map(|index| world.begin(keys[index], &mut streams[index]));
    while world.core.tx.packets < 100 {
        world.turn(MS);
    }
    // One gets another reason first.
    world.calls.interrupt(keys[1], runs[1], Reason::Control);
    while world.calls.stop() {
        world.turn(MS);
    }
    let refused = world.calls.start(keys[1], &streams[1].plan().unwrap(), vec![]);
    assert!(matches!(refused, Err(RunError::ShutDown)));
    let _rings = world.calls.shut_down();
    let outcomes = [0, 1].map(|index| world.told(keys[index], &mut streams[index]).unwrap());
    assert_eq!(outcomes.map(|outcome| outcome.reason), [Reason::ShutDown, Reason::Control]);
    let sum = |of: fn(&RunOutcome) -> u32| outcomes.iter().map(of).sum::<u32>();
    let sink = &world.core.tx;
    assert_eq!((sum(|outcome| outcome.blocks), sum(|outcome| outcome.packets)), (sink.blocks, sink.packets));
    // No caller waits for events that can no longer arrive.
    world.calls.close(keys[0], true);
    assert!(matches!(world.calls.poll_closed(keys[0], Waker::noop()), Poll::Ready(None)));
    assert_eq!(world.calls.lines(), 1);
}

#[test]
fn linear_buffer_of_any_length_publishes_its_last_packet() {
    let world = CallsWorld::new(BOUNDS);
    for extents in 1..12 {
        let end = extents * 196 * PACKET as u64 + 188;
        let (source, mut writer) = world.buffer(Buffer::linear(BitRate(8_000_000), end));
        while writer.written() < end {
            let left = usize::try_from(end - writer.written()).unwrap();
            if let Err(error) = writer.try_write(&[0x47; 4 * PACKET][..left.min(4 * PACKET)]) {
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
            }
        }
        assert_eq!(u64::from(source.newest()), extents * 196 + 1);
    }
}

#[test]
fn places_that_no_source_has_are_refused() {
    let world = CallsWorld::new(BOUNDS);
    let (endless, _writer) = world.buffer(Buffer::circular(BitRate(8_000_000), 0, WhenFull::Wait));
    let (linear, _writer) = world.buffer(Buffer::linear(BitRate(8_000_000), 188 * 8));
    for (source, end) in [(endless, u64::from(u32::MAX)), (linear, 2)] {
        let pair = UnixStream::pair().unwrap();
        let mut stream = StreamContext::new(Transport::tcp(pair.0), &source).unwrap();
        let end = end * PACKET as u64;
        for (byte, is_there) in [(end - 1, true), (end, true), (end + 1, false), (u64::MAX, false)] {
            let place = SourcePosition::Byte(byte);
            assert_eq!(stream.stop_at(Some(place)).plan().is_ok(), is_there, "{place:?}");
            assert_eq!(source.byte_at(place).is_ok(), is_there, "{place:?}");
        }
    }
}

/// An engine that reports scripted events.
#[derive(Default)]
struct Script {
    orders: Vec<&'static str>,
    events: VecDeque<Event>,
}

impl EnginePort for Script {
    fn send(&mut self, command: Command) -> Result<(), Box<Command>> {
        self.orders.push(match command {
            Command::ConnReturn { .. } => "return",
            Command::ConnRemove { .. } => "remove",
            _ => "other",
        });
        Ok(())
    }
    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}

#[test]
fn connection_dropped_while_returning_frees_its_id_once() {
    let mut calls = Calls::new(vec![Script::default()], Bounds { streams: 9, conns: 1, max_rate: None });
    let open = |calls: &mut Calls<Script>| {
        let fd = OwnedFd::from(UnixStream::pair().unwrap().0).into();
        calls.open(0, Dest::Bytes { conn: () }, Some(fd))
    };
    let key = open(&mut calls).map_err(|(refused, _)| refused).unwrap();
    let (stream, conn) = (calls.lines[&key].place, ConnId(0));
    calls.close(key, true);
    // It is on its way back when its caller stops waiting for it; then it breaks besides.
    let socket = Some(ConnSocket::Kernel(UnixStream::pair().unwrap().0.into()));
    calls.ports[0].link.events.push_back(Event::ConnReturned { conn, socket });
    calls.close(key, false);
    calls.conn_gone(0, conn, 32);
    let orders: Vec<_> = calls.ports[0].link.orders.iter().filter(|order| **order != "other").collect();
    assert_eq!(orders, [&"return", &"remove"]);
    calls.pump(0);
    assert!(open(&mut calls).is_err(), "the engine still answers for it");
    let closed = StreamEvent::Closed { stream, packets: 0, bytes: 0, unreachable: 0, late: 0 };
    calls.ports[0].link.events.extend([Event::ConnRemoved { conn, socket: None }, Event::Stream(closed)]);
    calls.pump(0);
    assert_eq!(calls.lines(), 0);
    assert!(open(&mut calls).is_ok() && open(&mut calls).is_err(), "one place, one connection");
}
