//! Listeners: several at one address, ports that the engine chooses, and how many one host may have.

use super::requests::group;
use super::*;

impl EnginePairRig {
    fn listens(&mut self, host: usize, at: SocketAddr, backlog: u32, is_shared: bool) -> io::Result<u32> {
        let socket = self.hosts[1][host].listen(at, backlog, is_shared).unwrap();
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
