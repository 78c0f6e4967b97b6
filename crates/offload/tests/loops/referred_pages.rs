//! Bytes that connections are given as references to the pages of an extent.

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

/// Sends the extent from the middle of its first packet on; returns how many bytes of it were taken.
fn send(tx: &mut KernelTx, lease: &Lease) -> usize {
    let count = lease.content().packets;
    let range = ByteRange { lease, place: 0, count, head: 700, tail: 0 };
    let entry = Transmit {
        stream: StreamId { index: 0, generation: 0 },
        dest: Dest::Bytes { conn: ConnId(0) },
        payload: Payload::Bytes(range),
    };
    let mut outcomes = [SendOutcome::Sent];
    tx.send(&SliceBatch(&[entry]), &mut outcomes);
    match outcomes[0] {
        SendOutcome::Sent => range.bytes_in(0, count),
        SendOutcome::Blocked { taken } => range.bytes_in(0, taken.into()),
        other => panic!("{other:?}"),
    }
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
        let taken = send(&mut tx, &lease);
        wanted.extend_from_slice(&lease.bytes()[700..700 + taken]);
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
    // What a connection did not take of a packet waits for it.
    while !reading.is_finished() {
        tx.flush_conns();
        std::thread::yield_now();
    }
    assert!(reading.join().unwrap() == wanted);
}
