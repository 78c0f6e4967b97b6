//! Connections that get references to the pages of an extent instead of copies.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use millrace_core::ids::{ConnId, StreamId, TitleRef};
use millrace_core::limits::EXTENT_BYTES;
use millrace_core::packet::WireLayout;
use millrace_core::pool::{ExtentArena, ExtentContent, Lease};
use millrace_core::seam::{ByteRange, Dest, PacketTx, Payload, SendOutcome, Transmit};
use millrace_netio::null::SliceBatch;
use millrace_offload::hugepage::PageRegion;
use millrace_offload::{GsoMode, KernelTx, KernelTxConfig};

/// Fills an extent whose byte at `i` is `i` in steps of 251, plus `salt`; returns a lease on it.
fn lease(arena: &Arc<ExtentArena>, salt: u8) -> Lease {
    let mut fill = arena.fill(0).expect("it is free");
    fill.bytes_mut().iter_mut().zip(0..).for_each(|(byte, at)| *byte = ((at % 251) as u8).wrapping_add(salt));
    fill.publish();
    let layout = WireLayout::new(1316).and_then(WireLayout::raw).unwrap();
    let content = ExtentContent {
        title: TitleRef(0),
        number: 0,
        first_packet: 0,
        packets: layout.packets_per_extent(),
        last_packet_bytes: 1316,
        layout,
        spare: 0,
    };
    arena.lend(0, content).unwrap()
}

fn sender() -> (KernelTx, TcpStream) {
    let mut tx = KernelTx::new(KernelTxConfig { v4: None, v6: None, gso: GsoMode::Off, conns: 1 }).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let reader = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let writer = listener.accept().unwrap().0;
    writer.set_nonblocking(true).unwrap();
    tx.add_conn(ConnId(0), writer.into()).unwrap();
    (tx, reader)
}

/// Sends the extent's packets from `place` on, without the first `head` bytes; returns the number of packets accepted.
fn send(tx: &mut KernelTx, lease: &Lease, place: u32, head: u16) -> u32 {
    let count = lease.content().packets - place;
    let range = ByteRange { lease, place, count, head, tail: 0 };
    let entry = Transmit {
        stream: StreamId { index: 0, generation: 0 },
        dest: Dest::Bytes { conn: ConnId(0) },
        payload: Payload::Bytes(range),
    };
    let mut outcomes = [SendOutcome::Sent];
    tx.send(&SliceBatch(&[entry]), &mut outcomes);
    match outcomes[0] {
        SendOutcome::Sent => count,
        SendOutcome::Blocked { taken } => taken.into(),
        other => panic!("{other:?}"),
    }
}

/// The first byte of an extent that is filled again: 0 if it has new pages, else of the content before.
fn first_byte_of_next_fill(arena: &Arc<ExtentArena>, before: Lease) -> u8 {
    drop(before);
    assert!(arena.reclaim(0));
    arena.fill(0).unwrap().bytes_mut()[0]
}

#[test]
fn extent_gets_new_pages_only_after_they_were_referred_to() {
    let arena = ExtentArena::new(Box::new(PageRegion::new(EXTENT_BYTES as u64).unwrap()));
    let first = lease(&arena, 7);
    assert_eq!(first_byte_of_next_fill(&arena, first), 7);
    let second = lease(&arena, 8);
    if !second.refer() {
        return eprintln!("skipped: reserved huge pages are in use, which are always copied");
    }
    assert!(second.refer(), "as often as it is asked");
    assert_eq!(first_byte_of_next_fill(&arena, second), 0);
    let third = lease(&arena, 9);
    assert_eq!(first_byte_of_next_fill(&arena, third), 9, "the new pages were not referred to");
}

#[test]
fn pages_that_a_device_knows_are_not_replaced() {
    let arena = ExtentArena::new(Box::new(PageRegion::new(EXTENT_BYTES as u64).unwrap()));
    arena.registered();
    let lease = lease(&arena, 7);
    assert!(!lease.refer());
    assert_eq!(first_byte_of_next_fill(&arena, lease), 7);
}

#[test]
fn bytes_on_their_way_survive_the_next_content_of_their_extent() {
    let arena = ExtentArena::new(Box::new(PageRegion::new(EXTENT_BYTES as u64).unwrap()));
    let (mut tx, mut reader) = sender();
    let mut wanted = Vec::new();
    for salt in 0..4 {
        let lease = lease(&arena, salt);
        if !lease.refer() {
            return eprintln!("skipped: reserved huge pages are in use, which are always copied");
        }
        let taken = send(&mut tx, &lease, 0, 700) as usize;
        wanted.extend_from_slice(&lease.bytes()[700.min(taken * 1316)..taken * 1316]);
        drop(lease);
        assert!(arena.reclaim(0));
    }
    assert!(wanted.len() > EXTENT_BYTES, "{} bytes wait in the connection", wanted.len());
    let referred = tx.counters().referred_bytes as usize;
    assert!(wanted.len() - referred < 1316, "{referred} of {} bytes", wanted.len());
    assert!(arena.fill(0).unwrap().bytes_mut().iter().all(|&byte| byte == 0), "the extent is another now");
    let mut got = vec![0; wanted.len()];
    let reading = std::thread::spawn(move || {
        reader.read_exact(&mut got).unwrap();
        got
    });
    // The rest of a packet that was accepted in part still has to be flushed.
    while !reading.is_finished() {
        tx.flush_conns();
        std::thread::yield_now();
    }
    assert!(reading.join().unwrap() == wanted);
}

#[test]
fn bytes_of_a_connection_that_is_often_full_arrive_once_and_in_order() {
    let arena = ExtentArena::new(Box::new(PageRegion::new(EXTENT_BYTES as u64).unwrap()));
    let (mut tx, mut reader) = sender();
    let lease = lease(&arena, 0);
    let packets = lease.content().packets;
    let extent = lease.bytes()[..packets as usize * 1316].to_vec();
    let rounds = 100;
    let reading = std::thread::spawn(move || {
        let mut got = vec![0; extent.len()];
        (0..rounds).all(|_| reader.read_exact(&mut got).is_ok() && got == extent)
    });
    let mut full = 0;
    for _ in 0..rounds {
        let mut place = 0;
        while place < packets {
            let taken = send(&mut tx, &lease, place, 0);
            place += taken;
            if place < packets {
                full += 1;
                tx.flush_conns();
            }
            assert!(taken > 0 || !reading.is_finished(), "the reader has seen something else");
        }
    }
    while !reading.is_finished() {
        tx.flush_conns();
        std::thread::yield_now();
    }
    assert!(reading.join().unwrap());
    assert!(full > 0, "it was never full");
}
