//! The device over rings in memory, with a driver that does all that a driver may do and more.

use millrace_core::pool::HeapRegion;
use millrace_core::seam::Protocol;
use millrace_core::wire::checksum::sum16;
use millrace_core::wire::frame::{Flow, LinkHeader, Template};

use super::*;

const FRAMES: u32 = 64;
/// The bytes that the kernel leaves free before a packet.
const HEADROOM: usize = 256;

/// The driver's ends.
struct Driver {
    rx: Producer<Desc>,
    fill: Consumer<u64>,
}

fn device() -> (XdpRx, Driver) {
    let (rx, driver_rx, fill) = XdpRx::over_memory(&config(1)).unwrap();
    (rx, Driver { rx: driver_rx, fill })
}

fn config(aside: u32) -> XdpRxConfig {
    let arena = ExtentArena::with_aside(Box::new(HeapRegion::new(2)), aside);
    XdpRxConfig { interface: "memory".into(), queue: 0, arena, frames: FRAMES, zero_copy: false }
}

fn datagram(payload: &[u8]) -> Vec<u8> {
    let link = LinkHeader { destination: [2; 6], source: [4; 6], vlan: None };
    let flow = Flow {
        source: "10.0.0.1:1000".parse().unwrap(),
        destination: "10.0.0.2:2000".parse().unwrap(),
        hop_limit: 64,
        traffic_class: 0,
    };
    let template = Template::new(&link, &flow).unwrap();
    let mut frame = vec![0; template.header_bytes()];
    template.emit_raw(&mut frame, sum16(payload), payload.len(), 1);
    frame.extend(payload);
    frame
}

impl Driver {
    /// Receives a frame as the kernel would: into the next free frame, behind the headroom.
    fn deliver(&mut self, device: &mut XdpRx, bytes: &[u8]) -> bool {
        let Some(frame) = self.fill.pop() else { return false };
        self.fill.release();
        device.frames.bytes_mut(frame).unwrap()[HEADROOM..][..bytes.len()].copy_from_slice(bytes);
        let address = frame | (HEADROOM as u64) << OFFSET_SHIFT;
        self.publish(Desc { address, len: bytes.len() as u32, more: false })
    }

    fn publish(&mut self, desc: Desc) -> bool {
        let has_room = self.rx.push(desc);
        self.rx.publish();
        has_room
    }

    /// Takes all frames that it may receive into; how many they are.
    fn take_all(&mut self) -> u32 {
        std::iter::from_fn(|| self.fill.pop()).count() as u32
    }
}

fn payloads(device: &mut XdpRx) -> (usize, Vec<Vec<u8>>) {
    let mut got = Vec::new();
    let taken = device.receive(Instant(5), &mut |r| got.push(r.bytes.to_vec())).unwrap();
    (taken, got)
}

#[test]
fn packets_come_in_order_and_their_frames_go_back() {
    let (mut device, mut driver) = device();
    // More than three times around the rings.
    for round in 0..200u32 {
        let sent: Vec<Vec<u8>> = (0..round % 7).map(|n| vec![n as u8; (round + n) as usize]).collect();
        for payload in &sent {
            assert!(driver.deliver(&mut device, &datagram(payload)));
        }
        assert_eq!(payloads(&mut device), (sent.len(), sent));
    }
    assert_eq!(driver.take_all(), FRAMES);
    let counters = *device.counters();
    assert_eq!((counters.malformed, counters.bad_checksums, counters.dropped), (0, 0, 0));
    assert_eq!(counters.packets, (0..200u64).map(|round| round % 7).sum::<u64>());
}

#[test]
fn received_datagram_has_addresses_and_arrival_time() {
    let (mut device, mut driver) = device();
    assert!(driver.deliver(&mut device, &datagram(b"x")));
    let mut count = 0;
    let taken = device.receive(Instant(77), &mut |received| {
        count += 1;
        let expected = Received {
            protocol: Protocol::Udp,
            bytes: b"x",
            source: "10.0.0.1:1000".parse().unwrap(),
            destination: "10.0.0.2:2000".parse().unwrap(),
            arrival: Instant(77),
            train: None,
        };
        assert_eq!(*received, expected);
    });
    assert_eq!((taken, count), (Ok(1), 1));
}

#[test]
fn driver_without_free_frames_waits_undamaged() {
    let (mut device, mut driver) = device();
    let sent: Vec<Vec<u8>> = (0..FRAMES).map(|n| vec![n as u8; 1400]).collect();
    for payload in &sent {
        assert!(driver.deliver(&mut device, &datagram(payload)));
    }
    assert!(!driver.deliver(&mut device, &datagram(b"one too many")));
    assert_eq!(payloads(&mut device), (RX_BATCH_PACKETS, sent));
    assert!(driver.deliver(&mut device, &datagram(b"now")));
    assert_eq!(payloads(&mut device), (1, vec![b"now".to_vec()]));
}

#[test]
fn batch_without_room_leaves_rest_for_next() {
    let more = XdpRxConfig { frames: 2 * FRAMES, ..config(2) };
    let (mut device, rx, fill) = XdpRx::over_memory(&more).unwrap();
    let mut driver = Driver { rx, fill };
    let sent: Vec<Vec<u8>> = (0..100).map(|n| vec![n; 10]).collect();
    for payload in &sent {
        assert!(driver.deliver(&mut device, &datagram(payload)));
    }
    let (first, rest) = sent.split_at(RX_BATCH_PACKETS);
    assert_eq!(payloads(&mut device), (first.len(), first.to_vec()));
    assert_eq!(payloads(&mut device), (rest.len(), rest.to_vec()));
}

#[test]
fn invalid_frames_are_counted_and_returned() {
    let (mut device, mut driver) = device();
    let mut damaged = datagram(b"payload");
    *damaged.last_mut().unwrap() ^= 1;
    let cut = &datagram(b"payload")[..40];
    for frame in [&damaged[..], cut, &[]] {
        assert!(driver.deliver(&mut device, frame));
    }
    assert_eq!(payloads(&mut device), (3, vec![]));
    // Descriptors that no driver should give: outside of the frame, of no frame, beyond the memory, in pieces.
    let next = |driver: &mut Driver| {
        let frame = driver.fill.pop().unwrap();
        driver.fill.release();
        frame
    };
    let [a, b, c] = [next(&mut driver), next(&mut driver), next(&mut driver)];
    let good = datagram(b"piece");
    device.frames.bytes_mut(b).unwrap()[..good.len()].copy_from_slice(&good);
    device.frames.bytes_mut(c).unwrap()[..good.len()].copy_from_slice(&good);
    let len = good.len() as u32;
    for desc in [
        Desc { address: a | 4000 << OFFSET_SHIFT, len: 200, more: false },
        Desc { address: 1, len, more: false },
        Desc { address: u64::MAX, len: u32::MAX, more: false },
        Desc { address: b, len, more: true },
        Desc { address: c, len, more: false },
    ] {
        assert!(driver.publish(desc));
    }
    assert_eq!(payloads(&mut device), (5, vec![]));
    let counters = *device.counters();
    assert_eq!((counters.bad_checksums, counters.malformed, counters.packets), (1, 7, 0));
    assert_eq!(counters.batches, 0);
    // A whole packet after one in pieces is a packet again.
    assert!(driver.deliver(&mut device, &good));
    assert_eq!(payloads(&mut device), (1, vec![b"piece".to_vec()]));
    assert_eq!(driver.take_all(), FRAMES);
}

#[test]
fn frames_need_extents_aside() {
    let error = XdpRx::over_memory(&config(0)).err().unwrap().to_string();
    assert!(
        error.contains("memory") && error.contains("1 free extents") && error.contains("0 are free"),
        "{error}"
    );
    let few = XdpRxConfig { frames: 3, ..config(1) };
    assert_eq!(few.frames(), RX_BATCH_PACKETS as u32);
    assert_eq!(XdpRxConfig { frames: u32::MAX, ..few }.frames(), MAX_XDP_RX_FRAMES);
}
