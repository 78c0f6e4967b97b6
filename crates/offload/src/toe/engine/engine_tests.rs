//! Two engines on one wire, on a clock of the test's own: what hosts get of each other, and what no host can do to another.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};

use millrace_core::random::SplitMix;

use super::*;
use crate::bell::EventBell;
use crate::limits::REQUESTS_PER_TURN;
use crate::toe::host::{HostState, Interest, Readiness};
use crate::toe::pair::pair;
use crate::toe::record::{Choice, Fault, HostRequest};

#[path = "chained_tests.rs"]
mod chained;
#[path = "listen_tests.rs"]
mod listening;
#[path = "send_tests.rs"]
mod sending;

type FrameQueue = Arc<Mutex<VecDeque<Vec<u8>>>>;

/// One end of the wire.
struct End {
    out: FrameQueue,
    back: FrameQueue,
}

impl Device for End {
    fn receive(&mut self, take: &mut dyn FnMut(Inbound<'_>)) -> io::Result<bool> {
        let packet = self.back.lock().unwrap().pop_front();
        Ok(packet.inspect(|packet| take(Inbound::new(packet))).is_some())
    }

    fn send(&mut self, packet: &[u8]) -> io::Result<bool> {
        self.out.lock().unwrap().push_back(packet.to_vec());
        Ok(true)
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

const PORT: u16 = 80;
/// A turn so often.
const STEP_NS: u64 = 20_000;

struct EnginePairRig {
    cores: [Core; 2],
    ends: [End; 2],
    hosts: [Vec<HostState>; 2],
    now: Instant,
    addresses: [SocketAddr; 2],
}

fn settings(address: &str) -> EngineSettings {
    let address: IpAddr = address.parse().unwrap();
    let mut settings = EngineSettings::new(&[(address, if address.is_ipv4() { 24 } else { 64 })]);
    settings.stack.connections = 64;
    settings.stack.records = 4096;
    settings.stack.host_pages = 1024;
    settings.stack.descriptors = 1024;
    settings.stack.clusters = vec![millrace_tcp::recv::ClusterSize { bytes: 4 << 20, page_bytes: 2048 }; 2];
    settings.stack.secret = [1, 2];
    settings.pairs = 2;
    settings.pair.sockets = 16;
    settings.pair.receive_buffers = 64;
    settings.pair.send_buffers = 128;
    settings
}

impl EnginePairRig {
    fn new(change: impl Fn(&mut EngineSettings)) -> Self {
        Self::between(["10.0.0.1", "10.0.0.2"], change)
    }

    fn between(addresses: [&str; 2], change: impl Fn(&mut EngineSettings)) -> Self {
        let (there, back) = (FrameQueue::default(), FrameQueue::default());
        let ends = [End { out: Arc::clone(&there), back: Arc::clone(&back) }, End { out: back, back: there }];
        let mut hosts = [Vec::new(), Vec::new()];
        let mut side = 0;
        let cores = addresses.map(|address| {
            let mut settings = settings(address);
            change(&mut settings);
            let mut engine_ends = Vec::new();
            for _ in 0..settings.pairs {
                let (engine, host) = pair(&settings.pair).unwrap();
                engine_ends.push(engine);
                let bell = Arc::new(EventBell::new().unwrap());
                hosts[side].push(HostState::new(hosts[side].len() as u16, host, bell, &settings.pair));
            }
            side += 1;
            Core::new(&settings, engine_ends, Instant(1)).unwrap()
        });
        let addresses = addresses.map(|address| SocketAddr::new(address.parse().unwrap(), PORT));
        Self { cores, ends, hosts, now: Instant(1_000_000), addresses }
    }

    fn turn(&mut self) {
        self.now = self.now.plus_ns(STEP_NS);
        for (core, end) in self.cores.iter_mut().zip(&mut self.ends) {
            core.turn(end, self.now).unwrap();
        }
        for host in self.hosts.iter_mut().flatten() {
            host.hear();
            host.give_back_all();
        }
        self.wake();
        self.check();
    }

    /// Wakes the tasks whose event has occurred, as a host does.
    fn wake(&mut self) {
        for host in self.hosts.iter_mut().flatten() {
            host.wake_for_chunks();
            host.take_woken(Vec::new()).into_iter().for_each(Waker::wake);
        }
    }

    /// Turns until `attempt` has a result.
    fn until<T>(&mut self, mut attempt: impl FnMut(&mut Self) -> Option<T>) -> T {
        for _ in 0..200_000 {
            if let Some(result) = attempt(self) {
                return result;
            }
            self.turn();
        }
        panic!("nothing has come of it: {:?}", self.cores.each_ref().map(|core| core.counters));
    }

    /// No buffer is lost or in two places.
    fn check(&self) {
        for pair in self.cores.iter().flat_map(|core| &core.pairs) {
            let filling = pair.places.iter().filter(|place| match &place.what {
                SocketUse::Line(line) => line.filling != NONE,
                _ => false,
            });
            let lent = pair.lent.iter().flatten().count();
            assert_eq!(pair.free.len() + lent + filling.count(), pair.lent.len(), "receive buffers");
        }
    }

    /// A connection from host `from` of side 0 to host `to` of side 1: the socket of each.
    fn connect(&mut self, from: usize, to: usize, port: u16) -> (u32, u32) {
        let mut remote = self.addresses[1];
        remote.set_port(port);
        let any = SocketAddr::new(self.addresses[0].ip(), 0);
        let listener = self.hosts[1][to].listen(remote, 8, false).unwrap();
        let socket = self.hosts[0][from].connect(any, remote).unwrap();
        self.hosts[1][to].ask_for_next(listener).unwrap();
        let accepted = self.until(|rig| rig.hosts[1][to].take_next(listener).unwrap());
        let ends = self.until(|rig| rig.hosts[0][from].outcome(socket).unwrap());
        assert_eq!(ends.1, remote);
        self.hosts[1][to].close(listener, false);
        (socket, accepted)
    }

    /// `bytes` pseudo-random bytes from side `from` to the other.
    fn transfer(&mut self, from: (usize, usize, u32), to: (usize, usize, u32), bytes: usize) {
        let mut random = SplitMix(bytes as u64);
        let sent: Vec<u8> = (0..bytes).map(|_| random.next() as u8).collect();
        let (mut got, mut done) = (Vec::new(), 0);
        let mut buffer = vec![0; 5000];
        self.until(|rig| {
            if done < bytes {
                let parts = [&sent[done..], &[]].map(IoSlice::new);
                done += rig.hosts[from.0][from.1].write(from.2, &parts).unwrap().unwrap_or(0);
            }
            while let Some(count) = rig.hosts[to.0][to.1].read(to.2, &mut buffer, true).unwrap() {
                assert!(count > 0, "the end");
                got.extend_from_slice(&buffer[..count]);
            }
            (got.len() >= bytes).then_some(())
        });
        assert!(got == sent, "other bytes came than were sent");
    }
}

#[test]
fn bytes_go_both_ways_by_both_families() {
    for addresses in [["10.0.0.1", "10.0.0.2"], ["2001:db8::1", "2001:db8::2"]] {
        let mut rig = EnginePairRig::between(addresses, |_| {});
        let (here, there) = rig.connect(0, 1, PORT);
        rig.transfer((0, 0, here), (1, 1, there), 1_000_000);
        rig.transfer((1, 1, there), (0, 0, here), 300_001);
        rig.hosts[0][0].shut_write(here).unwrap();
        rig.until(|rig| rig.hosts[1][1].read(there, &mut [0], true).unwrap().filter(|&count| count == 0));
        rig.transfer((1, 1, there), (0, 0, here), 10_000);
        rig.hosts[0][0].close(here, false);
        rig.hosts[1][1].close(there, false);
        rig.until(|rig| rig.cores.iter().all(|core| core.stack().connections() == 0).then_some(()));
        for core in &rig.cores {
            assert_eq!((core.counters.rejected, core.counters.events_lost), (0, 0), "{:?}", core.counters);
            assert_eq!(core.stack().store().host_pages(), 0);
            for pair in &core.pairs {
                assert_eq!(pair.free.len(), pair.lent.len(), "all buffers are back");
            }
        }
    }
}

#[test]
fn writer_over_send_share_is_woken_once_at_threshold() {
    let mut rig = EnginePairRig::new(|settings| {
        settings.pair.send_share_bytes = 256 << 10;
        settings.pair.wake_bytes = 128 << 10;
    });
    let (here, there) = rig.connect(0, 0, PORT);
    let block = [7; 8192];
    let mut given = 0;
    while let Some(count) = rig.hosts[0][0].write(here, &[IoSlice::new(&block)]).unwrap() {
        given += count as u64;
    }
    assert_eq!(given, 256 << 10, "the share");
    // The engine takes the bytes, but nothing that is not acknowledged is done with.
    let count = |rig: &EnginePairRig| {
        rig.cores[0].pairs[0].end.words.load(rig.cores[0].pairs[0].end.layout.count(here))
    };
    for _ in 0..3 {
        rig.now = rig.now.plus_ns(STEP_NS);
        rig.cores[0].turn(&mut rig.ends[0], rig.now).unwrap();
        rig.hosts[0][0].hear();
    }
    assert_eq!((rig.cores[0].counters.sent_bytes, count(&rig)), (given, 0));
    assert_eq!(rig.hosts[0][0].write(here, &[IoSlice::new(&block)]).unwrap(), None);
    assert_eq!(rig.hosts[0][0].unused().1, 128 - 32, "chunks");
    // The receiver takes a few bytes at a time: many acknowledgments, one event.
    let mut taken = 0;
    rig.until(|rig| {
        taken += rig.hosts[1][0].read(there, &mut [0; 4096], true).unwrap().unwrap_or(0);
        let count = count(rig);
        assert_eq!(rig.cores[0].counters.wakes, u64::from(count >= 128 << 10), "at {count}");
        (count == given).then_some(())
    });
    assert_eq!(rig.cores[0].counters.wakes, 1);
    assert!(rig.hosts[0][0].write(here, &[IoSlice::new(&block)]).unwrap().is_some(), "it writes again");
}

#[test]
fn receive_buffer_is_handed_over_when_full_or_after_timeout() {
    const BOUND_NS: u64 = 500_000_000;
    let mut rig = EnginePairRig::new(|settings| settings.hand_over_ns = BOUND_NS);
    let (here, there) = rig.connect(0, 0, PORT);
    let begun = rig.now;
    assert_eq!(rig.hosts[0][0].write(here, &[IoSlice::new(&[1; 20_000])]).unwrap(), Some(20_000));
    rig.until(|rig| (rig.cores[1].counters.buffers == 2).then_some(()));
    assert!(rig.now.ns_since(begun) < BOUND_NS / 2, "full buffers do not wait");
    rig.until(|rig| (rig.cores[1].counters.buffers == 3).then_some(()));
    assert!(rig.now.ns_since(begun) >= BOUND_NS, "after {} ns", rig.now.ns_since(begun));
    let mut all = [0; 30_000];
    assert_eq!(rig.hosts[1][0].read(there, &mut all, false).unwrap(), Some(20_000));
    // The end of the bytes waits for nothing.
    let begun = rig.now;
    rig.hosts[0][0].write(here, &[IoSlice::new(b"last")]).unwrap();
    rig.hosts[0][0].shut_write(here).unwrap();
    rig.until(|rig| (rig.cores[1].counters.buffers == 4).then_some(()));
    assert!(rig.now.ns_since(begun) < BOUND_NS / 2);
}

#[test]
fn host_that_keeps_buffers_does_not_block_other_hosts() {
    let mut rig = EnginePairRig::new(|settings| settings.pair.receive_buffers = 8);
    let (greedy, kept) = rig.connect(0, 0, PORT);
    let (other, there) = rig.connect(1, 1, PORT + 1);
    rig.hosts[1][0].keep_buffers();
    let block = [3; 8192];
    rig.until(|rig| {
        while rig.hosts[0][0].write(greedy, &[IoSlice::new(&block)]).unwrap().is_some() {}
        let _ = rig.hosts[1][0].read(kept, &mut [0; 8192], true).unwrap();
        (rig.cores[1].counters.starved > 0).then_some(())
    });
    assert_eq!(rig.cores[1].pairs[0].free.len(), 0);
    rig.transfer((0, 1, other), (1, 1, there), 500_000);
    rig.transfer((1, 1, there), (0, 1, other), 500_000);
}

/// Buffers that one connection has held are there for another that waits for them.
#[test]
fn starved_connection_resumes_with_buffers_freed_by_others() {
    let mut rig = EnginePairRig::new(|settings| settings.pair.receive_buffers = 8);
    let (here, full) = rig.connect(0, 0, PORT);
    let (other, starved) = rig.connect(0, 0, PORT + 1);
    assert_eq!(rig.hosts[0][0].write(here, &[IoSlice::new(&[1; 8 * 8192])]).unwrap(), Some(8 * 8192));
    rig.until(|rig| rig.cores[1].pairs[0].free.is_empty().then_some(()));
    rig.hosts[0][0].write(other, &[IoSlice::new(b"late")]).unwrap();
    rig.until(|rig| (rig.cores[1].counters.starved == 1).then_some(()));
    for _ in 0..1000 {
        rig.turn();
    }
    assert_eq!(rig.hosts[1][0].read(starved, &mut [0; 8], false).unwrap(), None);
    assert_eq!(rig.hosts[1][0].read(full, &mut [0; 8 * 8192], true).unwrap(), Some(8 * 8192));
    assert_eq!(rig.until(|rig| rig.hosts[1][0].read(starved, &mut [0; 8], true).unwrap()), 4);
}

#[test]
fn receive_share_limits_buffers_of_unread_connection() {
    let mut rig = EnginePairRig::new(|settings| settings.pair.receive_share = 4);
    let (unread, _there) = rig.connect(0, 0, PORT);
    let (other, there) = rig.connect(0, 0, PORT + 1);
    let block = [3; 8192];
    rig.until(|rig| {
        while rig.hosts[0][0].write(unread, &[IoSlice::new(&block)]).unwrap().is_some() {}
        (rig.cores[1].pairs[0].lent.iter().flatten().count() == 4).then_some(())
    });
    for _ in 0..1000 {
        rig.turn();
    }
    assert_eq!(rig.cores[1].pairs[0].lent.iter().flatten().count(), 4);
    assert_eq!(rig.cores[1].counters.starved, 0);
    rig.transfer((1, 0, there), (0, 0, other), 500_000);
}

/// The end is reported after the last byte, however long it must wait for buffers.
#[test]
fn end_of_stream_is_reported_after_last_byte() {
    const BYTES: usize = 100_000;
    let mut rig = EnginePairRig::new(|settings| settings.pair.receive_share = 1);
    let (here, there) = rig.connect(0, 0, PORT);
    assert_eq!(rig.hosts[0][0].write(here, &[IoSlice::new(&[5; BYTES])]).unwrap(), Some(BYTES));
    rig.hosts[0][0].shut_write(here).unwrap();
    let mut got = 0;
    rig.until(|rig| {
        // It reads all that there is, before more can come.
        while let Some(count) = rig.hosts[1][0].read(there, &mut [0; 4096], true).unwrap() {
            got += count;
            if count == 0 {
                return Some(());
            }
        }
        None
    });
    assert_eq!(got, BYTES);
}

/// Received bytes that will never be read are lost when their socket is closed, and the peer must
/// know: wherever they lie it sees a reset, and an end only where all was read.
#[test]
fn close_with_unread_bytes_resets_peer() {
    const LATER_NS: u64 = 500_000_000;
    /// Where the last bytes are when the socket is closed.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum At {
        Filling,
        Host,
        Stack,
        Nowhere,
    }
    for at in [At::Filling, At::Host, At::Stack, At::Nowhere] {
        let mut rig = EnginePairRig::new(|settings| {
            settings.hand_over_ns = if at == At::Filling { LATER_NS } else { 0 };
            settings.pair.receive_share = if at == At::Stack { 1 } else { 4 };
        });
        let (here, there) = rig.connect(0, 0, PORT);
        let bytes = if at == At::Stack { 20_000 } else { 100 };
        assert_eq!(rig.hosts[0][0].write(here, &[IoSlice::new(&vec![1; bytes])]).unwrap(), Some(bytes));
        if at == At::Stack {
            // The host reads its data and keeps the buffer, so it gets no other one.
            rig.hosts[1][0].keep_buffers();
        }
        rig.until(|rig| match at {
            At::Filling => {
                let filled = rig.cores[1].pair(0).line(there).map(|line| line.filled);
                (filled == Some(bytes as u32)).then_some(())
            }
            At::Host => rig.hosts[1][0].is_readable(there).then_some(()),
            At::Stack | At::Nowhere => rig.hosts[1][0].read(there, &mut [0; 8192], true).unwrap().map(drop),
        });
        assert_eq!(rig.hosts[1][0].is_readable(there), at == At::Host, "{at:?}");
        (0..3).for_each(|_| rig.turn());
        rig.hosts[1][0].close(there, false);
        let seen = rig.until(|rig| rig.hosts[0][0].read(here, &mut [0], true).transpose());
        let expected = if at == At::Nowhere { Ok(0) } else { Err(io::ErrorKind::ConnectionReset) };
        assert_eq!(seen.map_err(|error| error.kind()), expected, "{at:?}");
    }
}

#[test]
fn listener_accepts_no_more_connections_than_backlog() {
    // With cookies a caller is answered before it is known whether there is room.
    let mut rig = EnginePairRig::new(|settings| settings.stack.cookies = false);
    let remote = rig.addresses[1];
    let any = SocketAddr::new(rig.addresses[0].ip(), 0);
    let listener = rig.hosts[1][0].listen(remote, 2, false).unwrap();
    rig.turn();
    let calls: Vec<u32> = (0..5).map(|_| rig.hosts[0][0].connect(any, remote).unwrap()).collect();
    let connected = |rig: &mut EnginePairRig| {
        calls.iter().filter(|&&call| rig.hosts[0][0].outcome(call).unwrap().is_some()).count()
    };
    // Two seconds: those that are not answered have called twice.
    for _ in 0..100_000 {
        rig.turn();
    }
    assert_eq!(rig.cores[1].stack().connections(), 2);
    for _ in 0..5 {
        rig.hosts[1][0].ask_for_next(listener).unwrap();
        rig.until(|rig| rig.hosts[1][0].take_next(listener).unwrap());
    }
    rig.until(|rig| (connected(rig) == 5).then_some(()));
    // When closed, the listener turns away waiting connections, and the waiting socket comes back.
    let late = rig.hosts[0][1].connect(any, remote).unwrap();
    rig.until(|rig| rig.hosts[0][1].outcome(late).unwrap());
    rig.hosts[1][0].close(listener, false);
    rig.until(|rig| rig.hosts[0][1].read(late, &mut [0], true).err());
    let refused = rig.hosts[0][1].connect(any, remote).unwrap();
    let error = rig.until(|rig| rig.hosts[0][1].outcome(refused).err());
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
}

#[test]
fn listen_and_connect_at_invalid_address_return_error_kind() {
    let mut rig = EnginePairRig::new(|_| {});
    let own = rig.addresses[1];
    let host = |rig: &mut EnginePairRig, call: &dyn Fn(&mut HostState) -> u32| {
        let socket = call(&mut rig.hosts[1][0]);
        let error = rig.until(|rig| {
            rig.hosts[1][0]
                .outcome(socket)
                .map(|ends| ends.map(|_| None))
                .unwrap_or_else(|error| Some(Some(error.kind())))
        });
        rig.hosts[1][0].close(socket, false);
        error
    };
    assert_eq!(
        host(&mut rig, &|host| host.listen("10.9.9.9:80".parse().unwrap(), 1, false).unwrap()),
        Some(io::ErrorKind::AddrNotAvailable)
    );
    let first = rig.hosts[1][1].listen(own, 1, false).unwrap();
    rig.until(|rig| rig.hosts[1][1].outcome(first).unwrap());
    assert_eq!(host(&mut rig, &|host| host.listen(own, 1, false).unwrap()), Some(io::ErrorKind::AddrInUse));
    let v6 = "[2001:db8::1]:80".parse().unwrap();
    let any = SocketAddr::from(([0; 4], 0));
    assert_eq!(host(&mut rig, &|host| host.connect(any, v6).unwrap()), Some(io::ErrorKind::AddrNotAvailable));
    rig.turn();
    assert_eq!(rig.hosts[1][0].unused().0, 16, "a socket that was refused is free again");
    assert_eq!(rig.cores[1].counters.rejected, 0);
}

#[test]
fn close_after_write_still_delivers_all_bytes() {
    const BYTES: usize = 400_000;
    let mut rig = EnginePairRig::new(|_| {});
    let (here, there) = rig.connect(0, 0, PORT);
    let sent: Vec<u8> = (0..BYTES).map(|at| (at / 251) as u8).collect();
    assert_eq!(rig.hosts[0][0].write(here, &[IoSlice::new(&sent)]).unwrap(), Some(BYTES));
    rig.hosts[0][0].close(here, false);
    let (mut got, mut buffer) = (Vec::new(), [0; 8192]);
    rig.until(|rig| {
        let count = rig.hosts[1][0].read(there, &mut buffer, true).unwrap()?;
        got.extend_from_slice(&buffer[..count]);
        (count == 0).then_some(())
    });
    assert!(got == sent, "{} of {BYTES} bytes", got.len());
    rig.hosts[1][0].close(there, false);
    rig.until(|rig| rig.cores.iter().all(|core| core.stack().connections() == 0).then_some(()));
    assert_eq!(rig.hosts[0][0].unused(), (16, 128), "sockets and chunks");
}

/// A host of 16 sockets never runs out of them, whatever happens to the connections it opens.
#[test]
fn sockets_after_repeated_connections_are_all_free() {
    let mut rig = EnginePairRig::new(|_| {});
    let remote = rig.addresses[1];
    let any = SocketAddr::new(rig.addresses[0].ip(), 0);
    for round in 0..40 {
        if round % 2 == 0 {
            let (here, there) = rig.connect(0, 0, PORT);
            rig.hosts[0][0].set(here, Choice::NoDelay, true).unwrap();
            rig.until(|rig| rig.hosts[0][0].take_done(here).unwrap());
            rig.hosts[0][0].write(here, &[IoSlice::new(b"unread")]).unwrap();
            rig.hosts[0][0].close(here, round % 4 == 0);
            rig.hosts[1][0].close(there, false);
        } else {
            let socket = rig.hosts[0][0].connect(any, remote).unwrap();
            if round % 4 == 1 {
                rig.until(|rig| rig.hosts[0][0].outcome(socket).err());
            }
            rig.hosts[0][0].close(socket, false);
        }
    }
    rig.until(|rig| rig.cores.iter().all(|core| core.stack().connections() == 0).then_some(()));
    for host in [&rig.hosts[0][0], &rig.hosts[1][0]] {
        assert_eq!(host.unused(), (16, 128), "sockets and chunks");
    }
}

/// Records of any content, of a host that others share the engine with: nothing panics, no buffer is lost, and the others' bytes arrive.
#[test]
fn garbage_of_one_host_hurts_no_other() {
    let mut rejected = 0;
    bolero::check!().with_type::<Vec<(u8, u8, [u64; 7])>>().with_iterations(200).for_each(|records| {
        let mut rig = EnginePairRig::new(|_| {});
        let (here, there) = rig.connect(0, 0, PORT);
        for (kind, socket, record) in records {
            let mut record = *record;
            // Half of them are nearly right: a kind and a socket that there may be.
            if kind % 2 == 0 {
                record[0] = u64::from(kind / 2 % 10) | record[0] & 0xff00 | u64::from(socket % 20) << 32;
                record[1] &= if kind % 4 == 0 { 0x0000_3fff_0000_3fff } else { u64::MAX };
            }
            let _ = rig.hosts[1][1].inject(&record);
            rig.turn();
        }
        rig.transfer((0, 0, here), (1, 0, there), 20_000);
        rig.transfer((1, 0, there), (0, 0, here), 20_000);
    });
    // And by numbers that a seed repeats, so that some are rejected for certain.
    let mut rig = EnginePairRig::new(|_| {});
    let (here, there) = rig.connect(0, 0, PORT);
    let mut random = SplitMix(77);
    for _ in 0..5000 {
        let mut record = std::array::from_fn(|_| random.next());
        record[0] &= 0x000f_0000_ff0f;
        let _ = rig.hosts[1][1].inject(&record);
        rig.turn();
        rejected += 1;
    }
    rig.transfer((0, 0, here), (1, 0, there), 100_000);
    let counters = rig.cores[1].counters;
    assert!(counters.rejected > rejected / 2, "{counters:?}");
}

/// Ranges just inside and just outside the area.
#[test]
fn send_request_outside_area_is_rejected() {
    let mut rig = EnginePairRig::new(|_| {});
    let (here, _) = rig.connect(0, 0, PORT);
    let area = 128 * 8192;
    let send = |rig: &mut EnginePairRig, offset, bytes| {
        let before = rig.cores[0].counters.rejected;
        assert!(rig.hosts[0][0].inject(&HostRequest::Send { socket: here, offset, bytes }.encode()));
        rig.turn();
        rig.cores[0].counters.rejected > before
    };
    assert!(!send(&mut rig, area - 8, 8));
    for (offset, bytes) in [(area - 8, 9), (area, 1), (u32::MAX, 2), (1, u32::MAX), (0, 0)] {
        assert!(send(&mut rig, offset, bytes), "{bytes} at {offset}");
    }
    // Buffers that it does not hold.
    let before = rig.cores[0].counters.rejected;
    for buffer in [0, 63, 64, u32::MAX] {
        let give = HostRequest::Give { count: 1, buffers: [buffer; 12] };
        assert!(rig.hosts[0][0].inject(&give.encode()));
    }
    rig.turn();
    assert_eq!(rig.cores[0].counters.rejected - before, 4);
    // Bytes behind the last ones.
    assert!(rig.hosts[0][0].inject(&HostRequest::Shutdown { socket: here }.encode()));
    assert!(send(&mut rig, 0, 8));
}

/// A host that asks on and on and reads no answer loses answers, and no other does.
#[test]
fn host_that_reads_no_events_loses_only_its_own() {
    let mut rig = EnginePairRig::new(|settings| settings.pair.requests = 64);
    let (here, there) = rig.connect(0, 0, PORT);
    let (deaf, _) = rig.connect(1, 1, PORT + 1);
    let set = HostRequest::Set { socket: deaf, option: Choice::NoDelay, is_on: true }.encode();
    let (mut lost, mut turns) = (0, 0);
    while lost == 0 && turns < 10_000 {
        while rig.hosts[0][1].inject(&set) {}
        rig.now = rig.now.plus_ns(STEP_NS);
        let (core, end) = (&mut rig.cores[0], &mut rig.ends[0]);
        core.turn(end, rig.now).unwrap();
        (lost, turns) = (core.counters.events_lost, turns + 1);
    }
    assert!(lost > 0, "after {turns} turns");
    rig.transfer((0, 0, here), (1, 0, there), 100_000);
}

/// The name of a finished connection does not reach the next one of its socket.
#[test]
fn socket_name_after_reuse_is_different() {
    let mut rig = EnginePairRig::new(|_| {});
    let mut names = [(); 2].map(|()| std::collections::HashSet::new());
    for _ in 0..3 {
        let (here, there) = rig.connect(0, 1, PORT);
        assert_eq!(here, 0, "the same socket each time");
        let now = [rig.hosts[0][0].name(here), rig.hosts[1][1].name(there)];
        for (known, name) in names.iter_mut().zip(now) {
            assert!(known.insert(name), "{name:?} again");
        }
        rig.hosts[0][0].close(here, false);
        rig.hosts[1][1].close(there, false);
        rig.until(|rig| rig.cores.iter().all(|core| core.stack().connections() == 0).then_some(()));
        rig.turn();
    }
}

/// A task, as far as a socket knows it: it counts how often it is woken.
#[derive(Default)]
struct Task(AtomicU32);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Task {
    fn waits(self: &Arc<Self>, host: &mut HostState, socket: u32, interest: Interest) {
        host.wake_later(socket, interest, &Waker::from(Arc::clone(self)));
    }

    fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

#[test]
fn event_wakes_only_tasks_of_its_socket() {
    const COUNT: usize = 1000;
    let mut rig = EnginePairRig::new(|settings| {
        settings.pair.sockets = COUNT as u32 + 8;
        settings.stack.connections = 2048;
    });
    let remote = rig.addresses[1];
    let any = SocketAddr::new(rig.addresses[0].ip(), 0);
    let listener = rig.hosts[1][0].listen(remote, 8, false).unwrap();
    // A task that waits at the listener is woken for each connection.
    let accepts = Arc::new(Task::default());
    let mut sockets = Vec::new();
    for number in 1..=COUNT {
        let here = rig.hosts[0][0].connect(any, remote).unwrap();
        rig.hosts[1][0].ask_for_next(listener).unwrap();
        accepts.waits(&mut rig.hosts[1][0], listener, Interest::Read);
        rig.until(|rig| rig.hosts[0][0].outcome(here).unwrap());
        let there = rig.until(|rig| rig.hosts[1][0].take_next(listener).unwrap());
        assert_eq!(accepts.count(), number as u32);
        sockets.push((here, there));
    }
    let tasks: Vec<[Arc<Task>; 2]> = sockets.iter().map(|_| Default::default()).collect();
    for (&(here, there), [reads, writes]) in sockets.iter().zip(&tasks) {
        assert!(!rig.hosts[1][0].is_readable(there) && rig.hosts[1][0].is_writable(there).unwrap());
        // A task that asks twice is woken once.
        reads.waits(&mut rig.hosts[1][0], there, Interest::Read);
        reads.waits(&mut rig.hosts[1][0], there, Interest::Read);
        writes.waits(&mut rig.hosts[1][0], there, Interest::Write);
        writes.waits(&mut rig.hosts[0][0], here, Interest::Read);
    }
    let counts = |tasks: &[[Arc<Task>; 2]]| {
        let count = |side: usize| tasks.iter().map(|task| task[side].count()).sum::<u32>();
        (count(0), count(1))
    };
    (0..1000).for_each(|_| rig.turn());
    assert_eq!(counts(&tasks), (0, 0), "nothing has happened");
    // Bytes, the end, a reset: for reading, reading, both.
    rig.hosts[0][0].write(sockets[7].0, &[IoSlice::new(b"x")]).unwrap();
    rig.until(|_| (tasks[7][0].count() == 1).then_some(()));
    rig.hosts[0][0].shut_write(sockets[8].0).unwrap();
    rig.until(|_| (tasks[8][0].count() == 1).then_some(()));
    assert_eq!(counts(&tasks), (2, 0));
    rig.hosts[0][0].close(sockets[9].0, true);
    rig.until(|_| (tasks[9][0].count() == 1).then_some(()));
    // The closed socket's own task is woken too: it has nothing to wait for any more.
    assert_eq!((tasks[9][1].count(), counts(&tasks)), (2, (3, 2)));
    assert!([7, 8, 9].iter().all(|&index: &usize| rig.hosts[1][0].is_readable(sockets[index].1)));
    rig.hosts[1][0].wake_all();
    rig.wake();
    assert_eq!(counts(&tasks), (COUNT as u32, COUNT as u32 + 1));
}

#[test]
fn write_task_is_woken_once_when_share_or_chunks_are_free() {
    let mut rig = EnginePairRig::new(|settings| {
        settings.pair.send_buffers = 32;
        settings.pair.send_share_bytes = 256 << 10;
        settings.pair.wake_bytes = 128 << 10;
    });
    let (full, reads) = rig.connect(0, 0, PORT);
    let (other, _) = rig.connect(0, 0, PORT + 1);
    let block = [7; 8192];
    while rig.hosts[0][0].write(full, &[IoSlice::new(&block)]).unwrap().is_some() {}
    // One is over its share; the other has sent nothing, and there is no chunk for it.
    let [over, lacks] = [Arc::<Task>::default(), Arc::default()];
    for (socket, task) in [(full, &over), (other, &lacks)] {
        assert!(!rig.hosts[0][0].is_writable(socket).unwrap());
        task.waits(&mut rig.hosts[0][0], socket, Interest::Write);
    }
    let mut taken = 0;
    rig.until(|rig| {
        taken += rig.hosts[1][0].read(reads, &mut [0; 4096], true).unwrap().unwrap_or(0);
        (lacks.count() == 1).then_some(())
    });
    assert!(rig.hosts[0][0].is_writable(other).unwrap());
    rig.until(|rig| {
        taken += rig.hosts[1][0].read(reads, &mut [0; 4096], true).unwrap().unwrap_or(0);
        (taken == 256 << 10).then_some(())
    });
    (0..1000).for_each(|_| rig.turn());
    assert_eq!((over.count(), lacks.count()), (1, 1));
    assert!(rig.hosts[0][0].is_writable(full).unwrap());
}

/// A silent peer is asked whether it is still there; one that has vanished silently is detected.
#[test]
fn keep_alive_detects_vanished_peer_as_timed_out() {
    const SILENCE_NS: u64 = 60_000_000_000;
    for (keeps_alive, vanishes) in [(true, true), (true, false), (false, true)] {
        let mut rig = EnginePairRig::new(|settings| {
            settings.keeps_alive = keeps_alive;
            settings.stack.config.keep_alive_ns = SILENCE_NS;
        });
        let (_, accepted) = rig.connect(0, 0, PORT);
        let mut end = None;
        for _ in 0..3600 {
            rig.now = rig.now.plus_ns(1_000_000_000);
            let sides = if vanishes { 1..2 } else { 0..2 };
            for side in sides {
                rig.cores[side].turn(&mut rig.ends[side], rig.now).unwrap();
                rig.hosts[side][0].hear();
            }
            end = rig.hosts[1][0].read(accepted, &mut [0], true).err();
            if end.is_some() {
                break;
            }
        }
        let noticed = end.map(|error| error.kind());
        let expected = (keeps_alive && vanishes).then_some(std::io::ErrorKind::TimedOut);
        assert_eq!(noticed, expected, "keeps alive: {keeps_alive}, vanishes: {vanishes}");
    }
}

/// A thread that waits for many sockets at once learns which ones have news, and their readiness.
#[test]
fn news_are_of_sockets_that_something_has_happened_to() {
    const SHARE: usize = 64 << 10;
    let mut rig = EnginePairRig::new(|settings| {
        settings.pair.send_share_bytes = SHARE as u32;
        settings.pair.wake_bytes = SHARE as u32 / 2;
    });
    let (_quiet, _there) = rig.connect(0, 0, PORT + 1);
    rig.hosts[0][0].keep_news();
    rig.hosts[1][0].keep_news();
    let news = |side: usize, expected: u32| {
        move |rig: &mut EnginePairRig| {
            let socket = rig.hosts[side][0].next_news()?;
            assert_eq!(socket, expected);
            Some(rig.hosts[side][0].ready(socket))
        }
    };
    let (remote, any) = (rig.addresses[1], SocketAddr::new(rig.addresses[0].ip(), 0));
    let listener = rig.hosts[1][0].listen(remote, 8, false).unwrap();
    rig.hosts[1][0].ask_for_next(listener).unwrap();
    assert!(rig.hosts[1][0].ready(listener).is_opening);
    assert_eq!(rig.until(news(1, listener)), Readiness::default());
    let here = rig.hosts[0][0].connect(any, remote).unwrap();
    assert_eq!(rig.hosts[0][0].ready(here), Readiness { is_opening: true, ..Readiness::default() });
    assert_eq!(rig.hosts[0][0].room_for(here).unwrap(), 0);
    assert_eq!(rig.until(news(0, here)), Readiness::default());
    // The listener reports a connection that was not taken yet.
    assert!(rig.until(news(1, listener)).is_readable);
    let there = rig.hosts[1][0].take_next(listener).unwrap().unwrap();
    assert!(!rig.hosts[1][0].ready(listener).is_readable);
    // The share is the room; when it is used up there are news as soon as half of it is free.
    assert_eq!(rig.hosts[0][0].room_for(here).unwrap(), SHARE);
    assert_eq!(rig.hosts[0][0].write(here, &[IoSlice::new(&[1; SHARE])]).unwrap(), Some(SHARE));
    assert_eq!(rig.hosts[0][0].room_for(here).unwrap(), 0);
    assert!(rig.until(news(1, there)).unread > 0);
    rig.until(news(0, here));
    assert!(rig.hosts[0][0].room_for(here).unwrap() >= SHARE / 2);
    // The end is news without bytes, and so is a reset.
    rig.hosts[0][0].shut_write(here).unwrap();
    assert!(rig.hosts[0][0].room_for(here).is_err());
    rig.until(|rig| rig.hosts[1][0].next_news().filter(|_| rig.hosts[1][0].ready(there).has_ended));
    rig.hosts[1][0].close(there, true);
    let ready = rig.until(|rig| rig.hosts[0][0].next_news().map(|socket| rig.hosts[0][0].ready(socket)));
    assert_eq!((ready.fault, ready.is_readable), (Some(Fault::Reset), true));
    // Every socket is notified once that there is no engine any more.
    rig.cores[0].stop();
    let told: Vec<u32> = std::iter::from_fn(|| rig.hosts[0][0].next_news()).collect();
    assert!(told.len() == 2 && told.contains(&here), "{told:?}");
}

/// A writer that finds no chunk, since others hold them all, is notified when there are some again.
#[test]
fn news_are_of_writers_that_have_waited_for_chunks_of_others() {
    let mut rig = EnginePairRig::new(|settings| settings.pair.send_buffers = 8);
    let (here, there) = rig.connect(0, 0, PORT);
    let (other, _) = rig.connect(0, 0, PORT + 1);
    rig.hosts[0][0].keep_news();
    assert_eq!(rig.hosts[0][0].write(here, &[IoSlice::new(&[1; 8 * 8192])]).unwrap(), Some(8 * 8192));
    assert_eq!(rig.hosts[0][0].room_for(other).unwrap(), 0);
    let mut all = [0; 8192];
    rig.until(|rig| {
        let _ = rig.hosts[1][0].read(there, &mut all, true).unwrap();
        rig.hosts[0][0].next_news().filter(|&socket| socket == other)
    });
    assert!(rig.hosts[0][0].room_for(other).unwrap() > 0);
}

/// A host of another process is gone: its requests are carried out, even more than a single turn
/// takes; connections it had not closed are reset; anything it writes into its memory afterwards is
/// ignored, and the next host gets the pair as if there had been none before.
#[test]
fn leave_host_clears_pair_for_next_host() {
    const BYTES: usize = 20_000;
    let mut rig = EnginePairRig::new(|settings| settings.pair.requests = 1024);
    let (closed, closed_there) = rig.connect(0, 0, PORT);
    let (open, open_there) = rig.connect(0, 1, PORT + 1);
    // It holds buffers that it has not read.
    let bytes = [7; BYTES];
    assert_eq!(rig.hosts[1][1].write(open_there, &[IoSlice::new(&bytes)]).unwrap(), Some(BYTES));
    rig.until(|rig| (rig.cores[0].pairs[0].lent.iter().flatten().count() >= 2).then_some(()));
    let mut gone = rig.hosts[0].remove(0);
    for _ in 0..3 * REQUESTS_PER_TURN {
        assert!(gone.inject(&[u64::MAX; 7]));
    }
    assert_eq!(gone.write(closed, &[IoSlice::new(&bytes)]).unwrap(), Some(BYTES));
    gone.close(closed, false);
    let bell = Arc::new(EventBell::new().unwrap());
    let nobody = EngineEnd::nobody(Arc::clone(&bell)).unwrap();
    let now = rig.now;
    rig.cores[0].leave_host(0, nobody, now);
    let mut got = 0;
    rig.until(|rig| {
        let count = rig.hosts[1][0].read(closed_there, &mut [0; 5000], true).unwrap()?;
        got += count;
        // The next one would be heard in another's name.
        gone.inject(&[u64::MAX; 7]);
        (count == 0).then_some(())
    });
    assert_eq!(got, BYTES);
    let reset = rig.hosts[1][1].read(open_there, &mut [0], true).unwrap_err();
    assert_eq!(reset.kind(), io::ErrorKind::ConnectionReset);
    let (pair, end) = rig.until(|rig| rig.cores[0].take_departed());
    assert_eq!(pair, 0);
    let heard = rig.cores[0].counters.requests;
    assert!(gone.inject(&[u64::MAX; 7]));
    rig.turn();
    assert_eq!(rig.cores[0].counters.requests, heard, "it is still heard");
    drop((gone, end));
    let of = &rig.cores[0].pairs[0];
    assert_eq!((of.free.len(), of.descriptors.unused()), (of.lent.len(), of.descriptors.count()));
    let counters = rig.cores[0].counters;
    assert_eq!((counters.pairs_cleared, counters.left_open, counters.events_lost), (1, 1, 0));
    let settings = of.settings.clone();
    let (engine, host) = crate::toe::pair::pair(&settings).unwrap();
    rig.cores[0].join_host(0, engine);
    rig.hosts[0].push(HostState::new(0, host, bell, &settings));
    let (here, there) = rig.connect(1, 1, PORT + 2);
    assert_eq!(here, open.min(closed), "all sockets are free");
    rig.transfer((0, 1, here), (1, 1, there), 300_000);
    rig.transfer((1, 1, there), (0, 1, here), 300_000);
}
