//! Bytes in a connection, through real sockets: the data received equals the extents, however much
//! the connection takes at a time.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

use crate::support::connections::{Dice, add, connection, wait_writable};
use crate::support::*;
use millrace_core::ids::{ConnId, TitleRef};
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::pool::{ExtentArena, ExtentContent, HeapRegion, Lease};
use millrace_core::seam::{ByteRange, Dest, Payload, SendOutcome, Transmit};
use millrace_core::time::MediaTicks;
use millrace_netio::limits::BYTES_NOT_SENT;
use millrace_netio::{GsoMode, KernelTx};

const SIZE: usize = 1316;
/// A full extent.
const PACKETS: u32 = 196;
/// Bytes of the last packet.
const LAST: usize = 500;
/// Packets that are missing in the extent.
const MISSING: [u32; 3] = [7, 8, 195];

/// An extent, and the bytes that it stands for.
struct Title {
    _arena: Arc<ExtentArena>,
    lease: Lease,
    bytes: Vec<u8>,
}

impl Title {
    fn new(layout: WireLayout) -> Self {
        Self::with_missing(layout, &MISSING)
    }

    fn with_missing(layout: WireLayout, missing: &[u32]) -> Self {
        let arena = ExtentArena::new(Box::new(HeapRegion::new(1)));
        let mut bytes = pattern(9, (PACKETS as usize - 1) * SIZE + LAST);
        let mut fill = arena.fill(0).unwrap();
        for (place, payload) in (0..PACKETS).zip(bytes.chunks(SIZE)) {
            let at = place as usize * layout.slot_bytes() + layout.header_bytes();
            fill.bytes_mut()[at..at + payload.len()].copy_from_slice(payload);
            let flags = if missing.contains(&place) { PacketMeta::MISSING } else { 0 };
            let meta = PacketMeta::new(0, flags, MediaTicks(0)).to_bytes();
            let at = layout.meta_offset(place, PACKETS);
            fill.bytes_mut()[at..at + meta.len()].copy_from_slice(&meta);
        }
        fill.publish();
        // PID 0x1FFF, nothing else.
        let null = [[0x47, 0x1f, 0xff, 0x10].as_slice(), &[0xff; 184]].concat().repeat(7);
        for place in missing {
            let packet = bytes.chunks_mut(SIZE).nth(*place as usize).unwrap();
            packet.copy_from_slice(&null[..packet.len()]);
        }
        let content = ExtentContent {
            title: TitleRef(0),
            number: 0,
            first_packet: 0,
            packets: PACKETS,
            last_packet_bytes: LAST as u16,
            layout,
            spare: if missing.is_empty() { 0 } else { u8::MAX },
        };
        let lease = arena.lend(0, content).unwrap();
        Self { _arena: arena, lease, bytes }
    }

    /// The packets that bytes `from..to` lie in.
    fn range(&self, from: usize, to: usize) -> ByteRange<'_> {
        let (first, end) = (from / SIZE, to.div_ceil(SIZE));
        let tail = (end * SIZE).min(self.bytes.len()) - to;
        let (place, count) = (first as u32, (end - first) as u32);
        ByteRange { lease: &self.lease, place, count, head: (from % SIZE) as u16, tail: tail as u16 }
    }
}

fn entry(range: ByteRange<'_>) -> Transmit<'_> {
    let dest = Dest::Bytes { conn: ConnId(0) };
    Transmit { stream: stream(0), dest, payload: Payload::Bytes(range) }
}

/// Sends a range whole, in bursts as an engine would make them.
fn push(tx: &mut KernelTx, fd: &std::os::fd::OwnedFd, range: ByteRange<'_>) {
    let mut rest = range;
    while rest.count > 0 {
        let taken = match send(tx, &[entry(rest)])[0] {
            SendOutcome::Sent => rest.count,
            SendOutcome::Blocked { taken } => u32::from(taken),
            other => panic!("{other:?}"),
        };
        if taken < rest.count {
            wait_writable(fd);
        }
        let head = if taken == 0 { rest.head } else { 0 };
        rest = ByteRange { place: rest.place + taken, count: rest.count - taken, head, ..rest };
    }
}

fn layouts() -> [WireLayout; 2] {
    let rtp = WireLayout::new(SIZE).unwrap();
    [rtp, rtp.raw().unwrap()]
}

#[test]
fn byte_ranges_arrive_exact_despite_small_writes() {
    let [rtp, raw] = layouts();
    let titles = [(rtp, &MISSING[..]), (raw, &MISSING), (raw, &[])];
    for ((layout, missing), seed) in titles.into_iter().zip(1..) {
        let title = Title::with_missing(layout, missing);
        let mut tx = sender(GsoMode::Auto, 1);
        let (writer, mut reader) = connection(Some(1), Some(1));
        let fd = add(&mut tx, 0, &writer);
        let thread = std::thread::spawn(move || {
            let (mut dice, mut got, mut chunk) = (Dice(seed), Vec::new(), vec![0; 5000]);
            loop {
                let size = 1 + dice.below(chunk.len());
                match reader.read(&mut chunk[..size]).unwrap() {
                    0 => return got,
                    count => got.extend_from_slice(&chunk[..count]),
                }
            }
        });
        let (mut dice, mut wanted, mut bytes) = (Dice(seed + 9), Vec::new(), 0);
        for round in 0..60 {
            let from = dice.below(title.bytes.len());
            let to = from + 1 + dice.below(title.bytes.len() - from);
            let head = format!("HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\n\r\n", to - from);
            if round % 3 == 0 {
                tx.write_control(ConnId(0), head.as_bytes()).unwrap();
                wanted.extend_from_slice(head.as_bytes());
            }
            push(&mut tx, &fd, title.range(from, to));
            wanted.extend_from_slice(&title.bytes[from..to]);
            bytes += to - from;
            // The next head waits where this one's bytes may still wait.
            while tx.flush_conns() || tx.full_conns_fd().is_some() {
                wait_writable(&fd);
            }
        }
        let counters = *tx.counters();
        assert!(counters.split_frames > 20, "{counters:?}");
        assert_eq!((counters.frames, counters.bytes), (0, bytes as u64));
        drop((tx, fd, writer));
        assert!(thread.join().unwrap() == wanted, "{layout:?}, missing: {missing:?}");
    }
}

#[test]
fn extent_is_sent_with_one_system_call() {
    let title = Title::new(layouts()[0]);
    let mut tx = sender(GsoMode::Auto, 1);
    let (writer, mut reader) = connection(Some(1 << 20), None);
    add(&mut tx, 0, &writer);
    let (from, to) = (1, title.bytes.len() - 1);
    assert_eq!(send(&mut tx, &[entry(title.range(from, to))]), [SendOutcome::Sent]);
    assert_eq!(tx.counters().tcp_calls, 1);
    drop((tx, writer));
    let mut got = Vec::new();
    reader.read_to_end(&mut got).unwrap();
    assert!(got == title.bytes[from..to]);
}

/// A slow viewer's extent may be read again before it goes on, and then have gaps that it had not.
#[test]
fn extent_that_gets_gaps_in_mid_packet_arrives_exact() {
    let raw = layouts()[1];
    let last = PACKETS - 1;
    let titles = [Title::with_missing(raw, &[]), Title::with_missing(raw, &[last])];
    let mut tx = sender(GsoMode::Auto, 1);
    let (writer, mut reader) = connection(Some(1), Some(1));
    let fd = add(&mut tx, 0, &writer);
    let thread = std::thread::spawn(move || {
        let (mut got, mut chunk) = (Vec::new(), [0; 3000]);
        loop {
            match reader.read(&mut chunk).unwrap() {
                0 => return got,
                count => got.extend_from_slice(&chunk[..count]),
            }
        }
    });
    let to = last as usize * SIZE;
    for _ in 0..20 {
        let (mut place, mut turn) = (0, 0);
        while place < last {
            let rest = titles[turn % 2].range(place as usize * SIZE, to);
            place += match send(&mut tx, &[entry(rest)])[0] {
                SendOutcome::Sent => rest.count,
                SendOutcome::Blocked { taken } => u32::from(taken),
                other => panic!("{other:?}"),
            };
            wait_writable(&fd);
            turn += 1;
        }
    }
    while tx.flush_conns() || tx.full_conns_fd().is_some() {
        wait_writable(&fd);
    }
    assert!(tx.counters().split_frames > 20, "{:?}", tx.counters());
    drop((tx, fd, writer));
    assert!(thread.join().unwrap() == titles[0].bytes[..to].repeat(20));
}

/// Each time that it can be written again costs a wake-up: so it holds more than one that carries frames, and not without a bound.
#[test]
fn byte_connection_buffers_bounded_unsent_data() {
    let title = Title::new(layouts()[0]);
    let mut tx = sender(GsoMode::Auto, 1);
    let window = 64 * 1024;
    let (writer, _reader) = connection(None, Some(window));
    add(&mut tx, 0, &writer);
    let (mut taken, ends) = (0, Instant::now() + TIMEOUT);
    while send(&mut tx, &[entry(title.range(0, 10 * SIZE))]) == [SendOutcome::Sent] {
        taken += 10 * SIZE;
        assert!(Instant::now() < ends, "{taken} bytes and not blocked");
    }
    let held = BYTES_NOT_SENT as usize;
    assert!((held / 2..=held + 2 * window + 30 * SIZE).contains(&taken), "{taken} bytes");
}

/// What waits behind the title where nothing is taken any more: more than any buffer of such a connection holds.
fn rest() -> Vec<u8> {
    pattern(3, 60_000)
}

/// Sends the title again and again until nothing is taken, and something behind it; how many bytes of the title were taken.
fn fill(tx: &mut KernelTx, title: &Title) -> usize {
    let (mut bytes, mut place, mut tries) = (0, 0, 0);
    while tries < 100 {
        let range = title.range(place as usize * SIZE, title.bytes.len());
        let taken = match send(tx, &[entry(range)])[0] {
            SendOutcome::Sent => range.count,
            SendOutcome::Blocked { taken } => u32::from(taken),
            other => panic!("{other:?}"),
        };
        tries = if taken == 0 { tries + 1 } else { 0 };
        bytes += range.bytes_in(0, taken);
        place = (place + taken) % PACKETS;
    }
    tx.write_control(ConnId(0), &rest()).unwrap();
    bytes
}

#[test]
fn return_conn_waits_for_last_byte_and_keeps_connection_open() {
    let title = Title::new(layouts()[0]);
    let mut tx = sender(GsoMode::Auto, 1);
    let (writer, mut reader) = connection(Some(1), Some(1));
    let fd = add(&mut tx, 0, &writer);
    let bytes = fill(&mut tx, &title);
    assert!(tx.return_conn(ConnId(0)));
    tx.flush_conns();
    assert!(tx.poll_conn_returned().is_none(), "not while something waits");
    let thread = std::thread::spawn(move || {
        let mut got = Vec::new();
        reader.read_to_end(&mut got).unwrap();
        got
    });
    let ends = Instant::now() + TIMEOUT;
    let (conn, back) = loop {
        wait_writable(&fd);
        tx.flush_conns();
        if let Some(returned) = tx.poll_conn_returned() {
            break returned;
        }
        assert!(Instant::now() < ends, "never given back");
    };
    assert_eq!(conn, ConnId(0));
    assert!(tx.poll_conn_returned().is_none() && tx.poll_conn_gone().is_none());
    assert!(!tx.return_conn(ConnId(0)), "it is not there any more");
    TcpStream::from(back).write_all(b"and what its owner says").unwrap();
    drop((tx, fd, writer));
    let got = thread.join().unwrap();
    let whole = title.bytes.iter().cycle().copied().take(bytes);
    assert!(got == whole.chain(rest()).chain(*b"and what its owner says").collect::<Vec<_>>());
}

#[test]
fn unix_stream_is_written_like_tcp_connection() {
    let title = Title::new(layouts()[0]);
    let mut tx = sender(GsoMode::Auto, 1);
    let (writer, mut reader) = UnixStream::pair().unwrap();
    writer.set_nonblocking(true).unwrap();
    tx.add_conn(ConnId(0), writer.try_clone().unwrap().into()).unwrap();
    let bytes = fill(&mut tx, &title);
    assert!(tx.return_conn(ConnId(0)) && tx.poll_conn_returned().is_none(), "not while something waits");
    let thread = std::thread::spawn(move || {
        let mut got = Vec::new();
        reader.read_to_end(&mut got).unwrap();
        got
    });
    let ends = Instant::now() + TIMEOUT;
    while tx.poll_conn_returned().is_none() {
        assert!(Instant::now() < ends, "never given back");
        wait_writable(&writer);
        tx.flush_conns();
    }
    drop(writer);
    let whole = title.bytes.iter().cycle().copied().take(bytes);
    assert!(thread.join().unwrap() == whole.chain(rest()).collect::<Vec<_>>());
}

#[test]
fn return_conn_of_idle_connection_is_immediate_and_broken_one_is_gone() {
    let title = Title::new(layouts()[0]);
    let mut tx = sender(GsoMode::Auto, 1);
    let (writer, reader) = connection(Some(1), Some(1));
    add(&mut tx, 0, &writer);
    assert!(tx.return_conn(ConnId(0)) && tx.return_conn(ConnId(0)));
    assert!(tx.poll_conn_returned().is_some() && tx.poll_conn_returned().is_none());
    let fd = add(&mut tx, 0, &writer);
    fill(&mut tx, &title);
    assert!(tx.return_conn(ConnId(0)));
    drop(reader);
    let ends = Instant::now() + TIMEOUT;
    while tx.poll_conn_gone().is_none() {
        wait_writable(&fd);
        tx.flush_conns();
        assert!(Instant::now() < ends && tx.poll_conn_returned().is_none());
    }
    assert!(tx.remove_conn(ConnId(0)).is_some());
}

#[test]
fn bytes_are_no_datagrams_and_datagrams_no_bytes() {
    let title = Title::new(layouts()[0]);
    let mut tx = sender(GsoMode::Auto, 1);
    let (writer, _reader) = connection(None, None);
    add(&mut tx, 0, &writer);
    let bytes = entry(title.range(0, 10));
    let (_, addr) = receiver("127.0.0.1");
    let packets = Payload::Wire { bytes: &title.bytes, segment: SIZE };
    let batch = [
        Transmit { dest: udp(addr, addr), ..bytes },
        Transmit { dest: tcp(0), ..bytes },
        Transmit { payload: packets, ..bytes },
        rtcp(0, bytes.dest, b"report"),
    ];
    for (entry, errno) in
        batch.into_iter().zip([libc::EOPNOTSUPP, libc::EOPNOTSUPP, libc::EDESTADDRREQ, libc::EDESTADDRREQ])
    {
        assert_eq!(send(&mut tx, &[entry]), [SendOutcome::Unreachable { errno }], "{entry:?}");
    }
}
