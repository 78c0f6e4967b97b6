use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};

use super::*;

/// Blocks of the file: every byte of block n is n.
const BLOCKS: u8 = 40;

struct SenderFixture {
    _dir: tempfile::TempDir,
    options: SenderOptions,
    receivers: Vec<UdpSocket>,
}

/// A media file, and receivers at `base`, `base + 2`, ...
fn stage(streams: u32, distance: Duration) -> SenderFixture {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("media.ts");
    let bytes: Vec<u8> = (0..BLOCKS).flat_map(|n| vec![n; BLOCK_BYTES]).collect();
    std::fs::write(&file, bytes).unwrap();
    let (base_port, receivers) = (1..100).find_map(|_| receivers(streams)).expect("free ports in a row");
    let options = SenderOptions {
        files: vec![file],
        // A block every 0.2 ms: a file of 8 ms.
        rate_bits_per_s: (BLOCK_BYTES * 8 * 5000) as u64,
        to: Ipv4Addr::LOCALHOST.into(),
        base_port,
        streams,
        distance,
        spread: Duration::ZERO,
        listen: None,
        only: None,
    };
    SenderFixture { _dir: dir, options, receivers }
}

fn receivers(streams: u32) -> Option<(u16, Vec<UdpSocket>)> {
    let first = UdpSocket::bind("127.0.0.1:0").unwrap();
    let base = first.local_addr().unwrap().port();
    let mut all = vec![first];
    for n in 1..streams {
        let port = u32::from(base) + 2 * n;
        all.push(UdpSocket::bind(("127.0.0.1", u16::try_from(port).ok()?)).ok()?);
    }
    for socket in &all {
        rustix::net::sockopt::set_socket_recv_buffer_size(socket, 1 << 20).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    }
    Some((base, all))
}

/// Takes `blocks` packets and checks that they are the file's last ones in order, with headers to match.
fn check_stream(socket: &UdpSocket, pace: BlockPace, blocks: u8) {
    let mut first_sequence = None;
    for n in 0..blocks {
        let block = BLOCKS - blocks + n;
        let mut datagram = [0; 2048];
        let length = socket.recv(&mut datagram).unwrap();
        assert_eq!(length, DATAGRAM_BYTES);
        assert_eq!(&datagram[..2], &[0x80, 33]);
        let sequence = u16::from_be_bytes([datagram[2], datagram[3]]);
        let first = *first_sequence.get_or_insert(sequence);
        assert_eq!(sequence, first.wrapping_add(u16::from(n)));
        let ticks = u32::from_be_bytes(datagram[4..8].try_into().unwrap());
        assert_eq!(ticks, pace.ticks(u64::from(block)));
        assert!(datagram[HEADER_BYTES..length].iter().all(|byte| *byte == block), "block {block}");
    }
}

#[test]
fn reference_senders_send_whole_file_to_all_receivers() {
    for distance in [Duration::ZERO, Duration::from_micros(1500)] {
        let s = stage(3, distance);
        for kind in [events::run, ring::run] {
            kind(&s.options).unwrap();
            s.receivers.iter().for_each(|socket| check_stream(socket, s.options.pace(), BLOCKS));
        }
        process::one(&s.options, 2).unwrap();
        check_stream(&s.receivers[2], s.options.pace(), BLOCKS);
    }
}

#[test]
fn streams_begin_spread_over_the_file() {
    let mut s = stage(2, Duration::ZERO);
    // 8 ms of media; stream 1 begins 4 ms = 20 blocks behind stream 0.
    s.options.spread = Duration::from_millis(8);
    for kind in [events::run, ring::run] {
        kind(&s.options).unwrap();
        check_stream(&s.receivers[0], s.options.pace(), 40);
        check_stream(&s.receivers[1], s.options.pace(), 20);
    }
    s.options.spread = Duration::from_millis(100);
    let error = ring::run(&s.options).unwrap_err().to_string();
    assert!(error.contains("smaller --spread"), "{error}");
}

#[test]
fn files_too_large_for_memory_play_from_disk() {
    let s = stage(1, Duration::ZERO);
    let file = media::MediaFile::open(&s.options.files[0]).unwrap();
    let mut block = vec![0; 2 * BLOCK_BYTES];
    file.read(7, &mut block).unwrap();
    assert_eq!((block[0], block[BLOCK_BYTES]), (7, 8));
    events::play(&s.options, &[media::ReferenceMedia::File(file)]).unwrap();
    check_stream(&s.receivers[0], s.options.pace(), BLOCKS);
    let media::ReferenceMedia::Memory(bytes) =
        &media::ReferenceMedia::open_all(s.options.files.iter()).unwrap()[0]
    else {
        panic!("a small file belongs into memory");
    };
    assert_eq!(bytes.len(), usize::from(BLOCKS) * BLOCK_BYTES);
}

#[test]
fn sendfile_answers_with_the_whole_file() {
    let s = stage(1, Duration::from_millis(2));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let client = std::thread::spawn(move || {
        let mut connection = TcpStream::connect(address).unwrap();
        connection.write_all(b"GET /media.ts HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        connection.read_to_end(&mut answer).unwrap();
        answer
    });
    http::serve(&s.options, 0, listener.accept().unwrap().0).unwrap();
    let answer = client.join().unwrap();
    let head_end = answer.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4;
    let head = String::from_utf8(answer[..head_end].to_vec()).unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}\r\n", usize::from(BLOCKS) * BLOCK_BYTES)), "{head}");
    let mut counts = HashMap::new();
    answer[head_end..].iter().for_each(|byte| *counts.entry(*byte).or_insert(0) += 1);
    assert!(counts.len() == usize::from(BLOCKS) && counts.values().all(|n| *n == BLOCK_BYTES));
}

#[test]
fn bad_options_are_named() {
    let s = stage(1, Duration::ZERO);
    let with = |change: fn(&mut SenderOptions)| {
        let mut options = s.options.clone();
        change(&mut options);
        options.check().unwrap_err().to_string()
    };
    assert!(with(|o| o.files.clear()).contains("no file"));
    assert!(with(|o| o.rate_bits_per_s = 0).contains("rate"));
    assert!(with(|o| o.streams = 0).contains("streams"));
    assert!(with(|o| (o.base_port, o.streams) = (60_000, 5_000)).contains("65536"));
    assert!("wheel".parse::<SenderKind>().unwrap_err().contains("events"));
    assert_eq!("ring".parse(), Ok(SenderKind::Ring));
}

#[test]
fn times_follow_the_rate() {
    let pace = BlockPace { rate_bits_per_s: 8_000_000 };
    assert_eq!(pace.at_ns(1), 1_316_000);
    assert_eq!(pace.ticks(1000), 118_440);
    let mut options = stage(4, Duration::from_millis(10)).options;
    options.rate_bits_per_s = 8_000_000;
    assert_eq!(options.burst_blocks(), 7);
    options.distance = Duration::from_secs(9);
    assert_eq!(options.burst_blocks(), 48);
}
