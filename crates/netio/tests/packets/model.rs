//! Random batches through real sockets against the model: each receiver gets exactly the data that
//! `CollectTx` collects.

use std::collections::HashMap;
use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};

use crate::support::*;
use millrace_core::ids::ConnId;
use millrace_core::seam::{Dest, Payload, SendOutcome, Transmit};
use millrace_netio::null::CollectTx;
use millrace_netio::recv::UdpRx;
use millrace_netio::{GsoMode, KernelTx};
use proptest::prelude::*;

/// One entry: which viewer, what kind, segment, datagrams, bytes that the last lacks.
#[derive(Clone, Debug)]
struct Plan {
    viewer: usize,
    kind: u8,
    segment: usize,
    count: usize,
    lacks: usize,
}

fn plans() -> impl Strategy<Value = Vec<Plan>> {
    let segment = prop_oneof![13..400usize, Just(1328), 1000..9036usize];
    let entry = (0..8usize, 0..4u8, segment, 1..93usize, 0..9036usize).prop_map(
        |(viewer, kind, segment, count, lacks)| {
            // At most 300 KB an entry; a patched datagram has at least its header.
            let count = count.min(300_000 / segment).max(1);
            Plan { viewer, kind, segment, count, lacks: lacks % (segment - 12) }
        },
    );
    proptest::collection::vec(entry, 1..24)
}

/// Viewers 0..6 by UDP of both families (RTP and RTCP apart), 6 and 7 in TCP connections.
struct World {
    tx: KernelTx,
    receivers: Vec<(UdpRx, SocketAddr)>,
    readers: Vec<TcpStream>,
}

impl World {
    fn new(gso: GsoMode) -> Self {
        let mut tx = sender(gso, 2);
        let receivers = (0..12).map(|n| receiver(if n % 4 < 2 { "127.0.0.1" } else { "::1" })).collect();
        let readers = (0..2)
            .map(|conn| {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                let reader = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                tx.add_conn(ConnId(conn), listener.accept().unwrap().0.into()).unwrap();
                reader
            })
            .collect();
        Self { tx, receivers, readers }
    }

    fn dest(&self, viewer: usize) -> Dest {
        match viewer {
            0..6 => udp(self.receivers[2 * viewer].1, self.receivers[2 * viewer + 1].1),
            conn => tcp(conn as u32 - 6),
        }
    }
}

fn check(gso: GsoMode, plans: &[Plan]) -> Result<(), TestCaseError> {
    let mut world = World::new(gso);
    let material: Vec<_> = plans
        .iter()
        .enumerate()
        .map(|(n, p)| {
            (pattern(n as u32, p.segment * p.count - p.lacks), pattern(n as u32 + 99, 12 * p.count))
        })
        .collect();
    let batch: Vec<Transmit<'_>> = plans
        .iter()
        .zip(&material)
        .map(|(p, (bytes, headers))| {
            let payload = match p.kind {
                0 | 1 => Payload::Wire { bytes, segment: p.segment },
                2 => Payload::Patched { headers, bytes, segment: p.segment },
                _ => Payload::Rtcp(&bytes[..p.segment.min(bytes.len())]),
            };
            Transmit { stream: stream(p.viewer as u32), dest: world.dest(p.viewer), payload }
        })
        .collect();
    let mut model = CollectTx::default();
    send(&mut model, &batch);
    let mut wanted: HashMap<(Dest, bool), Vec<Vec<u8>>> = HashMap::new();
    for sent in model.sent {
        wanted.entry((sent.dest, sent.is_rtcp)).or_default().push(sent.bytes);
    }
    let readers = std::mem::take(&mut world.readers);
    let streams: Vec<_> = readers.into_iter().map(read_frames).collect();
    // TCP may block; the rest of a blocked entry goes first, as the engine does it.
    let mut rest = batch;
    while !rest.is_empty() {
        let outcomes = send(&mut world.tx, &rest);
        rest = still_to_send(&rest, &outcomes)?;
    }
    while world.tx.flush_conns() || world.tx.full_conns_fd().is_some() {
        std::thread::yield_now();
    }
    let dests: Vec<_> = (0..world.receivers.len()).map(|n| (world.dest(n / 2), n % 2 == 1)).collect();
    for ((rx, addr), dest) in world.receivers.iter_mut().zip(dests) {
        let wanted = wanted.remove(&dest).unwrap_or_default();
        let got = receive(rx, wanted.len());
        prop_assert!(got == wanted, "{gso:?} {addr}: {} of {}", got.len(), wanted.len());
        prop_assert!(receive_now(rx).is_empty());
    }
    drop(world);
    for (conn, stream) in streams.into_iter().enumerate() {
        let mut frames = stream.join().expect("reader");
        for channel in [0, 1] {
            let got: Vec<_> = frames.iter().filter(|f| f.0 == channel).map(|f| f.1.clone()).collect();
            frames.retain(|f| f.0 != channel);
            let to = (tcp(conn as u32), channel == 1);
            prop_assert!(got == wanted.remove(&to).unwrap_or_default(), "{gso:?} connection {conn}");
        }
        prop_assert!(frames.is_empty());
    }
    prop_assert!(wanted.is_empty());
    Ok(())
}

/// What blocked entries have left. Once a connection has blocked, its later entries are still whole.
fn still_to_send<'a>(
    batch: &[Transmit<'a>],
    outcomes: &[SendOutcome],
) -> Result<Vec<Transmit<'a>>, TestCaseError> {
    let mut rest: Vec<Transmit<'a>> = Vec::new();
    for (entry, outcome) in batch.iter().zip(outcomes) {
        let taken = match outcome {
            SendOutcome::Sent => continue,
            SendOutcome::Blocked { taken } => usize::from(*taken),
            other => return Err(TestCaseError::fail(format!("{other:?}"))),
        };
        let payload = match entry.payload {
            Payload::Wire { bytes, segment } => Payload::Wire { bytes: &bytes[taken * segment..], segment },
            Payload::Patched { headers, bytes, segment } => Payload::Patched {
                headers: &headers[taken * 12..],
                bytes: &bytes[taken * segment..],
                segment,
            },
            other @ (Payload::Rtcp(_) | Payload::Bytes(_)) => other,
        };
        rest.push(Transmit { payload, ..*entry });
    }
    Ok(rest)
}

/// Reads a connection to its end: (channel, packet) of each frame.
fn read_frames(mut reader: TcpStream) -> std::thread::JoinHandle<Vec<(u8, Vec<u8>)>> {
    std::thread::spawn(move || {
        let mut stream = Vec::new();
        reader.read_to_end(&mut stream).expect("read");
        let mut rest = stream.as_slice();
        let mut frames = Vec::new();
        while let [b'$', channel, high, low, after @ ..] = rest {
            let (packet, next) = after.split_at(usize::from(u16::from_be_bytes([*high, *low])));
            frames.push((*channel, packet.to_vec()));
            rest = next;
        }
        assert!(rest.is_empty(), "the stream is torn");
        frames
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn kernel_sockets_do_what_the_model_does(plans in plans(), off in any::<bool>()) {
        check(if off { GsoMode::Off } else { GsoMode::Auto }, &plans)?;
    }
}
