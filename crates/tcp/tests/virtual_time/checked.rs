//! Segments from a device that delivers whole trains: longer than any MTU, and without a computed
//! checksum.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use millrace_core::time::Instant;
use millrace_tcp::conn::{Config, ConnectionState};
use millrace_tcp::recv::ClusterSize;
use millrace_tcp::stack::{Arrived, ConnectionId, FrameDisposal, Settings, Stack};

const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const CHECK: std::ops::Range<usize> = 16..18;
const SENT_BYTES: usize = 1_000_000;
/// The longest payload of a train.
const TRAIN_BYTES: usize = 60_000;

fn stack(secret: u64) -> Stack {
    let cluster = ClusterSize { bytes: 4 << 20, page_bytes: 2048 };
    Stack::new(&Settings {
        config: Config { paced: false, ..Config::default() },
        connections: 4,
        requests: 4,
        listeners: 4,
        time_waits: 4,
        records: 1024,
        descriptors: 1024,
        host_pages: 1024,
        clusters: vec![cluster, cluster],
        defers_acks: true,
        cookies: false,
        ports: (40_000..=40_010).into(),
        secret: [secret, 9],
    })
}

/// The segments that a stack has to send: consecutive segments are joined, and carry no checksum.
fn trains(stack: &mut Stack, now: Instant) -> Vec<Vec<u8>> {
    let mut all: Vec<(Vec<u8>, u32)> = Vec::new();
    stack.protocol(now);
    stack.output(now, &mut |out| {
        let payload = out.payload.slices().concat();
        let seq = u32::from_be_bytes(out.header[4..8].try_into().unwrap());
        match all.last_mut() {
            Some((train, next)) if *next == seq && !payload.is_empty() && train.len() < TRAIN_BYTES => {
                train.extend_from_slice(&payload);
                *next += payload.len() as u32;
            }
            _ => {
                let mut train = [out.header, &payload].concat();
                train[CHECK].fill(0);
                all.push((train, seq.wrapping_add(payload.len() as u32)));
            }
        }
        FrameDisposal::Copied
    });
    all.into_iter().map(|(train, _)| train).collect()
}

struct Pair {
    client: Stack,
    server: Stack,
    now: Instant,
    is_checked: bool,
    longest: usize,
}

impl Pair {
    fn give(&mut self, to_server: bool) -> usize {
        let (from, to) = if to_server {
            (&mut self.client, &mut self.server)
        } else {
            (&mut self.server, &mut self.client)
        };
        let ends = if to_server { [CLIENT, SERVER] } else { [SERVER, CLIENT] };
        let [source, destination] = ends.map(|ip| SocketAddr::new(IpAddr::V4(ip), 0));
        let trains = trains(from, self.now);
        for bytes in &trains {
            self.longest = self.longest.max(bytes.len());
            let (is_checked, at) = (self.is_checked, self.now);
            to.input(&Arrived { source, destination, is_marked: false, is_checked, bytes, at }, self.now);
        }
        trains.len()
    }

    fn talk(&mut self) {
        for _ in 0..100 {
            if self.give(true) + self.give(false) == 0 {
                return;
            }
        }
    }

    fn connected() -> (Self, ConnectionId, ConnectionId) {
        let (now, is_checked) = (Instant(1_000_000_000), true);
        let mut pair = Self { client: stack(1), server: stack(2), now, is_checked, longest: 0 };
        pair.server.listen((SERVER, 80).into(), 4).expect("a listener");
        let id = pair.client.open((CLIENT, 0).into(), (SERVER, 80).into(), now).expect("a connection");
        pair.talk();
        assert_eq!(pair.client.state(id), ConnectionState::Established);
        let accepted = pair.server.poll_event().expect("a connection").connection;
        (pair, id, accepted)
    }
}

fn byte(at: usize) -> u8 {
    ((at * 31) >> 3) as u8
}

#[test]
fn whole_trains_without_checksums_are_taken() {
    let (mut pair, id, accepted) = Pair::connected();
    let data: Vec<u8> = (0..SENT_BYTES).map(byte).collect();
    let (mut written, mut read) = (0, Vec::new());
    let mut room = [0; 65_536];
    while read.len() < SENT_BYTES {
        written += pair.client.write(id, &data[written..], pair.now).unwrap_or(0);
        pair.talk();
        while let Ok(bytes @ 1..) = pair.server.read(accepted, &mut room, pair.now) {
            read.extend_from_slice(&room[..bytes]);
        }
        pair.now = pair.now.plus_ns(1_000_000);
        assert!(pair.now < Instant(100_000_000_000), "{} of {SENT_BYTES} bytes came", read.len());
    }
    assert!(read == data);
    assert!(pair.longest > 10_000, "nothing longer than {} bytes was tried", pair.longest);
    let (client, server) = (pair.client.counters(), pair.server.counters());
    assert_eq!((client.bad_checksums, server.bad_checksums), (0, 0));
    assert_eq!(client.retransmitted, 0);
}

#[test]
fn segment_from_unchecked_device_needs_valid_checksum() {
    let (mut pair, id, accepted) = Pair::connected();
    pair.is_checked = false;
    assert_eq!(pair.client.write(id, b"hello", pair.now), Ok(5));
    pair.talk();
    assert_eq!(pair.server.counters().bad_checksums, 1);
    assert_eq!(pair.server.read(accepted, &mut [0; 10], pair.now).unwrap_or(0), 0);

    // An ACK, and a SYN.
    let (mut pair, id, _) = Pair::connected();
    assert_eq!(pair.client.write(id, &[1; 5000], pair.now), Ok(5000));
    assert!(pair.give(true) > 0);
    pair.is_checked = false;
    assert!(pair.give(false) > 0);
    assert_eq!(pair.client.counters().bad_checksums, 1);
    let other = pair.client.open((CLIENT, 0).into(), (SERVER, 80).into(), pair.now).expect("a connection");
    pair.give(true);
    assert_eq!((pair.server.counters().bad_checksums, pair.server.requests()), (1, 0));
    assert_eq!(pair.client.state(other), ConnectionState::SynSent);
}
