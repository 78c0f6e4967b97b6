//! Nothing is allocated once a sender or receiver runs: a counting allocator verifies it.

#[allow(dead_code)] // the other test program uses the rest of it
mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use millrace_core::ids::ConnId;
use millrace_core::pool::{ExtentArena, HeapRegion};
use millrace_core::seam::{PacketTx, Payload, SendOutcome, Transmit};
use millrace_core::wire::frame::LinkHeader;
use millrace_netio::egress_select::{BestTx, EgressPath, EgressPlan, NewDevice, exchange};
use millrace_netio::null::SliceBatch;
use millrace_netio::route::{Hop, HopTable};
use millrace_netio::xdp::{Strategy, XdpConfig, XdpTx};
use millrace_netio::{GsoMode, KernelTx};
use support::films::*;
use support::xdp;
use support::*;

struct Counting;

thread_local! {
    /// Allocations of this thread; other tests run on other threads.
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract of GlobalAlloc; the
// counter is a plain thread-local number without a destructor, so that using it allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`, and `pointer` came from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract of `realloc`, and `pointer` came from the system's allocator.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of this thread during `f`.
fn allocations(f: impl FnOnce()) -> u64 {
    let before = COUNT.with(Cell::get);
    f();
    COUNT.with(Cell::get) - before
}

#[test]
fn allocation_counter_counts_one_box() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1)))), 1);
    assert_eq!(allocations(|| ()), 0);
}

/// Sends a batch `rounds` times, without anything that allocates around it.
fn drive(tx: &mut impl PacketTx, batch: &[Transmit<'_>], rounds: usize) -> [SendOutcome; 8] {
    let mut outcomes = [UNSET; 8];
    for _ in 0..rounds {
        tx.send(&SliceBatch(batch), &mut outcomes[..batch.len()]);
    }
    outcomes
}

fn connection(tx: &mut KernelTx, conn: u32) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let reader = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    tx.add_conn(ConnId(conn), listener.accept().unwrap().0.into()).unwrap();
    reader
}

#[test]
fn sending_allocates_nothing() {
    for gso in [GsoMode::Auto, GsoMode::Off] {
        let mut tx = sender(gso, 4);
        let (rx4, v4) = receiver("127.0.0.1");
        let (rx6, v6) = receiver("::1");
        let (_closed, gone) = closed_port("127.0.0.1");
        let nowhere = "[2001:db8::1]:9".parse().unwrap();
        let readers = [connection(&mut tx, 0), connection(&mut tx, 1), connection(&mut tx, 2)];
        // One connection is broken; the others fill up, so that frames are torn and entries blocked.
        let [_first, _second, broken] = readers;
        drop(broken);
        let bytes = pattern(1, 1328 * 92 - 9);
        let headers = pattern(2, 12 * 92);
        let batch = [
            wire(0, udp(v4, v4), &bytes, 1328),
            patched(1, udp(v6, v6), &headers, &bytes, 1328),
            rtcp(2, udp(v6, v6), &bytes[..50]),
            wire(3, udp(gone, gone), &bytes[..2000], 1328),
            wire(4, udp(nowhere, nowhere), &bytes, 1328),
            wire(5, tcp(0), &bytes, 1328),
            patched(6, tcp(1), &headers, &bytes, 1328),
            wire(7, tcp(2), &bytes, 1328),
        ];
        let mut outcomes = [UNSET; 8];
        let count = allocations(|| {
            for _ in 0..300 {
                outcomes = drive(&mut tx, &batch, 1);
                let _ = tx.write_control(ConnId(0), &bytes[..300]);
                let _ = tx.write_control(ConnId(2), &bytes[..300]);
                tx.flush_conns();
                tx.poll_conn_writable();
                tx.poll_conn_gone();
                tx.poll_unreachable();
            }
        });
        assert_eq!(count, 0, "{gso:?}");
        assert_eq!(outcomes[..3], [SendOutcome::Sent; 3]);
        assert!(matches!(outcomes[5], SendOutcome::Blocked { .. }), "{outcomes:?}");
        assert!(matches!(outcomes[7], SendOutcome::Closed { .. }), "{outcomes:?}");
        let counters = tx.counters();
        assert!(
            counters.icmp_errors > 0 && counters.split_frames > 0 && counters.unreachable > 0,
            "{counters:?}"
        );
        drop((rx4, rx6));
    }
}

#[test]
fn sending_without_copying_allocates_nothing() {
    let films = Films::new(2);
    let leases = [films.lease(0), films.lease(1)];
    let mut tx = sender(GsoMode::Auto, 0);
    let (_rx, v4) = receiver("127.0.0.1");
    let (_closed, gone) = closed_port("127.0.0.1");
    let batch = [
        Piece::new(0, udp(v4, v4), &leases[0], 0, 44),
        Piece::new(1, udp(gone, gone), &leases[1], 3, 90),
        Piece::new(2, udp(v4, v4), &leases[1], 5, 9),
    ];
    let mut outcomes = [UNSET; 3];
    let count = allocations(|| {
        for _ in 0..20 {
            tx.send_zero_copy(&PieceBatch(&batch), &mut outcomes);
        }
        while tx.reap() > 0 {
            std::thread::yield_now();
        }
    });
    assert_eq!((count, films.out()), (0, 2));
    let counters = tx.counters();
    assert!(counters.zero_copy_sends > 20 && counters.icmp_errors > 0, "{counters:?}");
}

#[test]
fn receiving_allocates_nothing() {
    let (mut rx, addr) = receiver("127.0.0.1");
    let mut tx = sender(GsoMode::Auto, 0);
    let bytes = pattern(1, 1328 * 50);
    let mut got = 0;
    let count = allocations(|| {
        for _ in 0..20 {
            drive(&mut tx, &[wire(0, udp(addr, addr), &bytes, 1328)], 1);
            let mut burst = 0;
            while burst < 50 {
                burst += rx.recv(Some(TIMEOUT)).map_or(50, Iterator::count);
            }
            got += burst;
            let nothing = rx.recv(Some(Duration::ZERO)).map_or(0, Iterator::count);
            got += nothing;
        }
    });
    assert_eq!((count, got), (0, 1000));
}

#[test]
fn sending_by_af_xdp_allocates_nothing() {
    for strategy in Strategy::ALL {
        let (arena, leases) = xdp::film(Box::new(HeapRegion::new(10)), 2, 196);
        let hops = xdp::fixed_hops(7);
        let (mut tx, mut nic) = XdpTx::over_memory(xdp::config(&arena, Some(strategy)), hops).unwrap();
        let viewers = ["10.77.0.2:5004".parse().unwrap(), "[fd77::2]:5004".parse().unwrap()];
        let nowhere = "192.0.2.1:5004".parse().unwrap();
        let headers = pattern(3, 12 * 92);
        let loose = pattern(4, 1328 * 5 - 9);
        let lease = &leases[1];
        let own = Payload::Patched { headers: &headers, bytes: lease.wire(20, 92), segment: 1328 };
        let batch = xdp::Entries(vec![
            xdp::packets(0, viewers[0], &leases[0], 100, 90),
            (Transmit { payload: own, ..xdp::packets(1, viewers[1], lease, 20, 92).0 }, None),
            (wire(2, udp(viewers[0], viewers[0]), &loose, 1328), None),
            (rtcp(3, udp(viewers[1], viewers[1]), &loose[..60]), None),
            (wire(4, udp(nowhere, nowhere), &loose, 1328), None),
            (wire(5, tcp(0), &loose, 1328), None),
        ]);
        let mut outcomes = [UNSET; 6];
        let (mut count, mut frames, mut blocked) = (0, 0, 0);
        for round in 0..100 {
            count += allocations(|| {
                tx.send(&batch, &mut outcomes);
                tx.can_send(&batch.0[0].0);
                tx.poll();
            });
            blocked += outcomes.iter().filter(|o| matches!(o, SendOutcome::Blocked { .. })).count();
            // The card is slow, so that the ring fills up too.
            if round % 20 == 19 {
                frames += nic.run().len();
            }
        }
        assert_eq!(count, 0, "{strategy}");
        assert!(blocked > 0 && frames as u64 == tx.counters().datagrams, "{:?}", tx.counters());
        assert!(matches!(outcomes[4], SendOutcome::Unreachable { .. }));
    }
}

#[test]
fn choosing_a_way_allocates_nothing() {
    let (_viewer, v4) = receiver("127.0.0.1");
    let link = LinkHeader { destination: [2; 6], source: [4; 6], vlan: None };
    let hop =
        Hop { if_index: 1, link, source: v4.ip(), mtu: 1500, hop_limit: 64, usable: true, generation: 0 };
    let arena = ExtentArena::with_aside(Box::new(HeapRegion::new(8)), 8);
    let config = XdpConfig {
        interface: "memory".into(),
        queue: 0,
        arena,
        strategy: None,
        streams: 4,
        port: 6970,
        rtcp_port: 6971,
        tx_budget: 64,
    };
    let hops = HopTable::fixed(vec![(v4.ip(), hop)]);
    let (device, _nic) = XdpTx::over_memory(config, hops).expect("room aside");
    let (loop_side, mut supervisor) = exchange();
    let mut tx = BestTx::new(sender(GsoMode::Auto, 0), EgressPlan::default(), 4, loop_side);
    let handed = supervisor.hand_over(NewDevice { slot: 0, plan: EgressPlan::all(EgressPath::Xdp), device });
    assert!(handed.is_ok());
    let (_other, v6) = receiver("::1");
    let bytes = pattern(1, 1328 * 5);
    let headers = pattern(2, 12 * 5);
    let batch = [
        wire(0, udp(v4, v4), &bytes, 1328),
        patched(1, udp(v4, v4), &headers, &bytes, 1328),
        rtcp(0, udp(v4, v4), &bytes[..50]),
        wire(2, udp(v6, v6), &bytes, 1328),
    ];
    // Nothing empties the device's ring, so it is full in the end.
    let count = allocations(|| {
        for _ in 0..300 {
            tx.tend();
            drive(&mut tx, &batch, 1);
        }
    });
    assert_eq!(count, 0);
    let sent = tx.tally().read();
    assert!(sent.by(EgressPath::Xdp) > 100 && sent.by(EgressPath::Kernel) > 100, "{sent}");
}
