//! Listeners: several at one address, ports that the engine chooses, and how many one host may have.

use super::requests::group;
use super::*;
use crate::limits::OFFER_NS;

impl EnginePairRig {
    fn listens(&mut self, host: usize, at: SocketAddr, backlog: u32, is_shared: bool) -> io::Result<u32> {
        self.listens_with(host, at, backlog, Sharing { is_shared, key: 0 })
    }

    fn listens_with(
        &mut self,
        host: usize,
        at: SocketAddr,
        backlog: u32,
        sharing: Sharing,
    ) -> io::Result<u32> {
        let socket = self.hosts[1][host].listen_with(at, backlog, sharing).unwrap();
        self.until(|rig| {
            rig.hosts[1][host]
                .outcome(socket)
                .map(|ends| ends.map(Ok))
                .unwrap_or_else(|error| Some(Err(error)))
        })?;
        Ok(socket)
    }

    /// A connection from host 0 of side 0, as far as that one knows.
    fn calls(&mut self, to: SocketAddr) -> u32 {
        let socket = self.hosts[0][0].connect(SocketAddr::new(self.addresses[0].ip(), 0), to).unwrap();
        self.until(|rig| rig.hosts[0][0].outcome(socket).unwrap());
        socket
    }

    /// Accepts all waiting connections on a host of side 1.
    fn accepts(&mut self, host: usize, listener: u32) -> u32 {
        let mut count = 0;
        loop {
            self.hosts[1][host].ask_for_next(listener).unwrap();
            (0..5).for_each(|_| self.turn());
            if self.hosts[1][host].take_next(listener).unwrap().is_none() {
                return count;
            }
            count += 1;
        }
    }
}

#[test]
fn shared_listeners_accept_when_waiting_and_in_turn() {
    let mut rig = EnginePairRig::new(|_| {});
    let at = rig.addresses[1];
    let listeners = [0, 1].map(|host| rig.listens(host, at, 4, true).unwrap());
    // A listener that does not share gets no part, and gives none.
    assert_eq!(rig.listens(0, at, 4, false).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    let own = SocketAddr::new(at.ip(), PORT + 1);
    rig.listens(0, own, 4, false).unwrap();
    assert_eq!(rig.listens(1, own, 4, true).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    for _ in 0..3 {
        rig.hosts[1][1].ask_for_next(listeners[1]).unwrap();
        rig.turn();
        rig.calls(at);
        rig.until(|rig| rig.hosts[1][1].take_next(listeners[1]).unwrap());
    }
    let mut taken = [0; 2];
    for _ in 0..6 {
        for (host, listener) in rig.hosts[1].iter_mut().zip(listeners) {
            host.ask_for_next(listener).unwrap();
        }
        rig.turn();
        rig.calls(at);
        let host = rig.until(|rig| {
            (0..2).find(|&host| rig.hosts[1][host].take_next(listeners[host]).unwrap().is_some())
        });
        taken[host] += 1;
    }
    assert_eq!(taken, [3, 3]);
}

#[test]
fn connections_of_a_listener_that_closes_go_on_to_the_others_as_far_as_they_have_room() {
    let mut rig = EnginePairRig::new(|_| {});
    let at = rig.addresses[1];
    let listeners = [(0, 2), (1, 3)].map(|(host, backlog)| rig.listens(host, at, backlog, true).unwrap());
    // No host waits: two and two.
    let calls: Vec<u32> = (0..4).map(|_| rig.calls(at)).collect();
    rig.hosts[1][0].close(listeners[0], false);
    (0..20).for_each(|_| rig.turn());
    let reset = calls.iter().filter(|&&call| rig.hosts[0][0].read(call, &mut [0], true).is_err());
    assert_eq!(reset.count(), 1, "one finds no room");
    assert_eq!(rig.accepts(1, listeners[1]), 3);
    // There is a listener still, until the last one closes.
    let late = rig.calls(at);
    rig.hosts[1][1].close(listeners[1], false);
    rig.until(|rig| rig.hosts[0][0].read(late, &mut [0], true).err());
    let refused = rig.hosts[0][0].connect(SocketAddr::new(rig.addresses[0].ip(), 0), at).unwrap();
    assert_eq!(
        rig.until(|rig| rig.hosts[0][0].outcome(refused).err()).kind(),
        io::ErrorKind::ConnectionRefused
    );
    rig.listens(0, at, 4, false).unwrap();
    assert_eq!(rig.cores[1].counters.rejected, 0);
}

/// As with the kernel's: one caller may wait.
#[test]
fn listen_with_backlog_0_accepts_one_connection() {
    let mut rig = EnginePairRig::new(|settings| settings.stack.cookies = false);
    let at = rig.addresses[1];
    let listener = rig.listens(0, at, 0, false).unwrap();
    rig.calls(at);
    let second = rig.hosts[0][0].connect(SocketAddr::new(rig.addresses[0].ip(), 0), at).unwrap();
    (0..1000).for_each(|_| rig.turn());
    assert_eq!(rig.cores[1].stack().connections(), 1);
    assert_eq!(rig.accepts(0, listener), 1);
    rig.until(|rig| rig.hosts[0][0].outcome(second).unwrap());
    assert_eq!(rig.accepts(0, listener), 1);
}

/// The backlogs of listeners that share an address are one bound: no connection is let in if none
/// of them has room for it.
#[test]
fn listeners_that_share_have_room_for_the_sum_of_their_backlogs() {
    let mut rig = EnginePairRig::new(|settings| settings.stack.cookies = false);
    let at = rig.addresses[1];
    let listeners = [0, 1].map(|host| rig.listens(host, at, 2, true).unwrap());
    let any = SocketAddr::new(rig.addresses[0].ip(), 0);
    for _ in 0..7 {
        rig.hosts[0][0].connect(any, at).unwrap();
    }
    (0..1000).for_each(|_| rig.turn());
    assert_eq!(rig.cores[1].stack().connections(), 4);
    assert_eq!(rig.accepts(0, listeners[0]) + rig.accepts(1, listeners[1]), 4);
}

#[test]
fn listen_at_port_0_chooses_unused_ephemeral_port() {
    let mut rig = EnginePairRig::new(|_| {});
    let any = SocketAddr::new(rig.addresses[1].ip(), 0);
    let sockets = [0, 1].map(|host| rig.listens(host, any, 4, false).unwrap());
    let at = [0, 1].map(|host| rig.hosts[1][host].outcome(sockets[host]).unwrap().unwrap().0);
    assert!(at[0].port() != at[1].port() && at.iter().all(|at| at.port() >= 49_152), "{at:?}");
    for at in at {
        rig.calls(at);
    }
    assert_eq!([0, 1].map(|host| rig.accepts(host, sockets[host])), [1, 1]);
}

/// Where the addresses are the kernel's.
#[test]
fn has_ports_only_restricts_listen_and_connect_to_own_ports() {
    let mut rig = EnginePairRig::new(|settings| {
        (settings.has_ports_only, settings.stack.ports) = (true, "80,90-91".parse().unwrap());
    });
    let at = |side: usize, port| SocketAddr::new(rig.addresses[side].ip(), port);
    let (near, far) = ([0, 79, 80, 81, 92].map(|port| at(0, port)), [0, 80, 90, 92].map(|port| at(1, port)));
    let refusal = |text: io::Error| {
        assert_eq!(text.kind(), io::ErrorKind::AddrNotAvailable);
        text.to_string()
    };
    // To listen at.
    let error = refusal(rig.listens(0, far[3], 4, false).unwrap_err());
    assert!(error.contains("is the kernel's") && error.contains("--ports"), "{error}");
    let listener = rig.listens(0, far[1], 4, false).unwrap();
    let chosen = [0, 1].map(|_| {
        let socket = rig.listens(1, far[0], 4, false).unwrap();
        rig.hosts[1][1].outcome(socket).unwrap().unwrap().0.port()
    });
    assert_eq!(chosen, [90, 91]);
    // To call from.
    for local in [near[1], near[3], near[4]] {
        let socket = rig.hosts[0][0].connect(local, far[1]).unwrap();
        let error = refusal(rig.until(|rig| rig.hosts[0][0].outcome(socket).err()));
        assert!(error.contains("is the kernel's"), "{local}: {error}");
    }
    let own = rig.hosts[0][0].connect(near[2], far[2]).unwrap();
    assert_eq!(rig.until(|rig| rig.hosts[0][0].outcome(own).unwrap()).0, near[2]);
    let any = near[0];
    let called = |rig: &mut EnginePairRig| {
        let socket = rig.hosts[0][0].connect(any, far[1]).unwrap();
        rig.until(|rig| rig.hosts[0][0].outcome(socket).transpose()).map(|ends| ends.0.port())
    };
    let mut ports: Vec<u16> = (0..3).map(|_| called(&mut rig).unwrap()).collect();
    ports.sort_unstable();
    assert_eq!(ports, [80, 90, 91]);
    let error = refusal(called(&mut rig).unwrap_err());
    assert!(error.contains("no local port is left") && error.contains("--ports"), "{error}");
    assert_eq!(rig.accepts(0, listener), 3);
}

#[test]
fn listeners_limit_of_one_host_leaves_others_theirs() {
    let mut rig = EnginePairRig::new(|settings| settings.pair.listeners = 2);
    let at = |port: u16| SocketAddr::new(rig.addresses[1].ip(), port);
    let ports: Vec<SocketAddr> = (1..=6).map(at).collect();
    let first = rig.listens(0, ports[0], 1, false).unwrap();
    rig.listens(0, ports[1], 1, false).unwrap();
    assert_eq!(rig.listens(0, ports[2], 1, false).unwrap_err().kind(), io::ErrorKind::OutOfMemory);
    rig.listens(1, ports[3], 1, false).unwrap();
    rig.listens(1, ports[4], 1, false).unwrap();
    rig.hosts[1][0].close(first, false);
    rig.listens(0, ports[5], 1, false).unwrap();
}

/// A host has its share of the stack's connections, including closed ones that are not over, and no
/// more.
#[test]
fn connections_share_of_one_host_leaves_others_theirs() {
    // Of 12, each owner has two to itself: those of the other host, and of connections that no host
    // knows yet, are unavailable.
    const SHARE: usize = 8;
    let mut rig = EnginePairRig::new(|settings| settings.stack.connections = 12);
    let [first, second] = [PORT, PORT + 1].map(|port| SocketAddr::new(rig.addresses[1].ip(), port));
    let any = SocketAddr::new(rig.addresses[0].ip(), 0);
    let listeners = [(0, first), (1, second)].map(|(host, at)| rig.listens(host, at, 8, false).unwrap());
    let calls: Vec<u32> = (0..SHARE).map(|_| rig.calls(first)).collect();
    assert_eq!(rig.accepts(0, listeners[0]), SHARE as u32);
    // Neither side may have another, and the other hosts of both may.
    let more = rig.hosts[0][0].connect(any, second).unwrap();
    let error = rig.until(|rig| rig.hosts[0][0].outcome(more).err());
    assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
    let reset = rig.hosts[0][1].connect(any, first).unwrap();
    rig.until(|rig| rig.hosts[0][1].read(reset, &mut [0], true).err());
    let other = rig.hosts[0][1].connect(any, second).unwrap();
    rig.until(|rig| rig.hosts[0][1].outcome(other).unwrap());
    assert_eq!(rig.accepts(1, listeners[1]), 1);
    // Closed here, and not by the peer: they are still there.
    for call in calls {
        rig.hosts[0][0].close(call, false);
    }
    (0..100).for_each(|_| rig.turn());
    let more = rig.hosts[0][0].connect(any, second).unwrap();
    assert_eq!(rig.until(|rig| rig.hosts[0][0].outcome(more).err()).kind(), io::ErrorKind::OutOfMemory);
    // The host of the peers goes: all are over, and there is room on both sides.
    (0..16).for_each(|socket| rig.hosts[1][0].close(socket, true));
    rig.until(|rig| {
        let counts = [rig.cores[0].stack(), rig.cores[1].stack()].map(|stack| stack.connections_of(group(0)));
        (counts == [0, 0]).then_some(())
    });
    let again = rig.hosts[0][0].connect(any, second).unwrap();
    rig.until(|rig| rig.hosts[0][0].outcome(again).unwrap());
}

/// A host that does not read takes no page that another host needs, however much data comes for it.
#[test]
fn receive_pages_of_slow_host_leave_others_enough() {
    let mut rig = EnginePairRig::new(|settings| {
        // 256 pages: less than what four connections may have unread.
        settings.stack.clusters =
            vec![millrace_tcp::recv::ClusterSize { bytes: 512 << 10, page_bytes: 2048 }; 2];
        settings.pair.receive_share = 1;
    });
    let greedy: Vec<u32> = (0..4).map(|port| rig.connect(0, 0, PORT + port).0).collect();
    let (other, there) = rig.connect(1, 1, PORT + 10);
    for _ in 0..2000 {
        for &socket in &greedy {
            let _ = rig.hosts[0][0].write(socket, &[IoSlice::new(&[1; 8192])]).unwrap();
        }
        rig.turn();
    }
    let (used, all) = rig.cores[1].stack().pages().used(0);
    assert!(used > all / 2 && used < all, "{used} of {all}");
    assert!(rig.cores[1].stack().pages().refused() > 0, "there was room for all of it");
    rig.transfer((0, 1, other), (1, 1, there), 300_000);
    rig.transfer((1, 1, there), (0, 1, other), 300_000);
}

/// A key that was inherited opens the listener also for another user; a user without it is refused, also with other keys or `SO_REUSEPORT`.
#[test]
fn listen_at_port_of_another_user_is_refused_without_its_key() {
    const KEY: u64 = 0x1234_5678_9abc_def1;
    let mut rig = EnginePairRig::new(|settings| settings.pairs = 3);
    let at = rig.addresses[1];
    let any = SocketAddr::new([0; 4].into(), at.port());
    let owner = Sharing { is_shared: true, key: KEY };
    rig.listens_with(0, at, 4, owner).unwrap();
    rig.cores[1].pairs[1].end.user = u32::MAX - 1;
    let other_key = Sharing { key: KEY + 2, ..owner };
    for (local, sharing) in
        [(at, Sharing { key: 0, ..owner }), (at, other_key), (any, other_key), (at, Sharing::default())]
    {
        let error = rig.listens_with(1, local, 4, sharing).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{local} {sharing:?}");
    }
    // The worker has no right that its parent has not: it comes without SO_REUSEPORT, and the group stays shared.
    rig.listens_with(1, at, 4, Sharing { is_shared: false, key: KEY }).unwrap();
    rig.listens_with(2, at, 4, Sharing { key: 0, ..owner }).unwrap();
    // The first user's own, and only that one's.
    let own =
        rig.listens_with(2, SocketAddr::new(at.ip(), PORT + 1), 4, Sharing { is_shared: false, key: 3 });
    own.unwrap();
    let stranger = SocketAddr::new(at.ip(), PORT + 1);
    let error = rig.listens_with(1, stranger, 4, Sharing { is_shared: true, key: 5 }).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    assert_eq!(rig.cores[1].counters.rejected, 0);
}

/// The parent of workers never accepts: it gets connections only while the workers have no room, and a worker that accepts takes those too.
#[test]
fn listener_whose_host_never_accepts_keeps_no_connection() {
    let mut rig = EnginePairRig::new(|settings| settings.stack.cookies = false);
    let at = rig.addresses[1];
    let sharing = Sharing { is_shared: false, key: 9 };
    rig.listens_with(0, at, 2, sharing).unwrap();
    // Before there is a worker they wait at the parent's.
    let early = rig.calls(at);
    let worker = rig.listens_with(1, at, 2, sharing).unwrap();
    assert_eq!(rig.accepts(1, worker), 1);
    rig.hosts[0][0].close(early, true);
    // One goes to the socket that waits, two to the worker's queue, two to the parent's; the backlogs are full then.
    for _ in 0..7 {
        rig.hosts[0][0].connect(SocketAddr::new(rig.addresses[0].ip(), 0), at).unwrap();
    }
    let waiting =
        |rig: &EnginePairRig| [0, 1].map(|index| rig.cores[1].listeners[index].as_ref().unwrap().count);
    rig.until(|rig| (waiting(rig) == [2, 2]).then_some(()));
    (0..1000).for_each(|_| rig.turn());
    assert_eq!(waiting(&rig), [2, 2], "both backlogs are full");
    // All come in the end, to the worker alone.
    let mut count = 0;
    rig.until(|rig| {
        rig.hosts[1][1].ask_for_next(worker).unwrap();
        count += u32::from(rig.hosts[1][1].take_next(worker).unwrap().is_some());
        (count == 7).then_some(())
    });
    assert_eq!(waiting(&rig), [0, 0]);
    assert_eq!((rig.cores[1].counters.rejected, rig.cores[1].counters.events_lost), (0, 0));
}

/// A connection that a host was offered goes to another host with all its bytes, whether the first one closes its listener or is killed.
#[test]
fn connection_that_was_not_taken_goes_to_another_listener_with_its_bytes() {
    for is_killed in [false, true] {
        let mut rig = EnginePairRig::new(|_| {});
        let at = rig.addresses[1];
        let sharing = Sharing { is_shared: false, key: 9 };
        let [first, second] = [0, 1].map(|host| rig.listens_with(host, at, 4, sharing).unwrap());
        rig.hosts[1][0].ask_for_next(first).unwrap();
        rig.turn();
        let call = rig.calls(at);
        // A host that lies sends before it takes: refused, and nothing of it is left.
        let offered = (0..16).find(|&socket| rig.cores[1].pairs[0].line(socket).is_some()).unwrap();
        let lie = HostRequest::Send { socket: offered, offset: 0, bytes: 100 };
        assert!(rig.hosts[1][0].inject(&lie.encode()));
        let early = [7; 5000];
        assert_eq!(rig.hosts[0][0].write(call, &[IoSlice::new(&early)]).unwrap(), Some(early.len()));
        (0..100).for_each(|_| rig.turn());
        assert_eq!(rig.cores[1].counters.buffers, 0, "nothing is handed over before it is taken");
        if is_killed {
            let bell = Arc::new(EventBell::new().unwrap());
            let now = rig.now;
            rig.cores[1].leave_host(0, EngineEnd::nobody(bell).unwrap(), now);
            rig.until(|rig| rig.cores[1].take_departed());
        } else {
            rig.hosts[1][0].close(first, false);
        }
        (0..20).for_each(|_| rig.turn());
        rig.hosts[1][1].ask_for_next(second).unwrap();
        let there = rig.until(|rig| rig.hosts[1][1].take_next(second).unwrap());
        let (mut got, mut buffer) = (Vec::new(), [0; 8192]);
        rig.until(|rig| {
            if let Some(count) = rig.hosts[1][1].read(there, &mut buffer, true).unwrap() {
                got.extend_from_slice(&buffer[..count]);
            }
            (got.len() >= early.len()).then_some(())
        });
        assert!(got == early, "other bytes came than were sent");
        rig.transfer((1, 1, there), (0, 0, call), 100_000);
        rig.transfer((0, 0, call), (1, 1, there), 100_000);
        let counters = rig.cores[1].counters;
        assert_eq!((counters.rejected, counters.events_lost), (1, 0), "{counters:?}");
        let of = &rig.cores[1].pairs[0];
        assert_eq!(of.descriptors.unused(), of.descriptors.count());
    }
}

/// An end that came while the connection waited is reported to the one that takes it.
#[test]
fn end_of_connection_that_was_not_taken_is_reported_to_its_taker() {
    let mut rig = EnginePairRig::new(|_| {});
    let at = rig.addresses[1];
    let [first, second] = [0, 1].map(|host| rig.listens(host, at, 4, true).unwrap());
    rig.hosts[1][0].ask_for_next(first).unwrap();
    rig.turn();
    let calls = [(); 2].map(|()| rig.calls(at));
    assert_eq!(rig.hosts[0][0].write(calls[0], &[IoSlice::new(b"all")]).unwrap(), Some(3));
    rig.hosts[0][0].close(calls[0], false);
    (0..50).for_each(|_| rig.turn());
    rig.hosts[1][0].close(first, false);
    let mut ends = Vec::new();
    rig.until(|rig| {
        rig.hosts[1][1].ask_for_next(second).unwrap();
        ends.extend(rig.hosts[1][1].take_next(second).unwrap());
        (ends.len() == 2).then_some(())
    });
    let read = |rig: &mut EnginePairRig, socket: u32| {
        let mut buffer = [0; 8];
        rig.until(|rig| rig.hosts[1][1].read(socket, &mut buffer, true).unwrap()).min(8)
    };
    // It waited behind the other one, which was not given away.
    let closed = ends[1];
    assert_eq!([read(&mut rig, closed), read(&mut rig, closed)], [3, 0]);
    rig.hosts[0][0].close(calls[1], true);
    let open = ends[0];
    rig.until(|rig| rig.hosts[1][1].read(open, &mut [0], true).err());
}

/// A host that waits for a connection and does not take it keeps it only until another one waits.
#[test]
fn offer_that_is_not_taken_in_time_is_recalled_for_listener_that_waits() {
    let mut rig = EnginePairRig::new(|_| {});
    let at = rig.addresses[1];
    let [stopped, other] = [0, 1].map(|host| rig.listens(host, at, 4, true).unwrap());
    rig.hosts[1][0].ask_for_next(stopped).unwrap();
    rig.turn();
    let call = rig.calls(at);
    (0..20).for_each(|_| rig.turn());
    // Nothing happens to it while no other listener waits.
    rig.now = rig.now.plus_ns(10 * OFFER_NS);
    (0..20).for_each(|_| rig.turn());
    assert!(rig.hosts[1][0].ready(stopped).is_readable);
    rig.hosts[1][1].ask_for_next(other).unwrap();
    rig.until(|rig| rig.hosts[1][1].ready(other).is_readable.then_some(()));
    assert!(!rig.hosts[1][0].ready(stopped).is_readable);
    assert!(rig.hosts[1][0].take_next(stopped).unwrap().is_none());
    let there = rig.hosts[1][1].take_next(other).unwrap().unwrap();
    rig.transfer((0, 0, call), (1, 1, there), 10_000);
    // One that is taken in the moment in which it is recalled is over.
    rig.hosts[1][0].ask_for_next(stopped).unwrap();
    rig.turn();
    rig.calls(at);
    rig.until(|rig| rig.hosts[1][0].ready(stopped).is_readable.then_some(()));
    rig.hosts[1][1].ask_for_next(other).unwrap();
    rig.turn();
    rig.now = rig.now.plus_ns(2 * OFFER_NS);
    let end = &mut rig.ends[1];
    rig.cores[1].turn(end, rig.now).unwrap();
    let late = rig.hosts[1][0].take_next(stopped).unwrap().unwrap();
    let error = rig.until(|rig| rig.hosts[1][0].read(late, &mut [0], true).err());
    assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
    rig.hosts[1][0].close(late, false);
    rig.until(|rig| rig.hosts[1][1].take_next(other).unwrap());
    assert_eq!((rig.cores[1].counters.rejected, rig.cores[1].counters.events_lost), (0, 0));
    // The socket is free again, and the listener goes on. It ends with the socket for its next connection.
    rig.hosts[1][1].close(other, false);
    rig.calls(at);
    assert_eq!(rig.accepts(0, stopped), 1);
    let unused = rig.hosts[1][0].unused().0;
    rig.hosts[1][0].close(stopped, false);
    rig.until(|rig| (rig.hosts[1][0].unused().0 == unused + 2).then_some(()));
}
