//! The device over rings in memory, with a driver that does all that a driver may do and more.

use millrace_core::ids::TitleRef;
use millrace_core::packet::WireLayout;
use millrace_core::pool::{ExtentContent, Lease};

use super::super::sys::{Guard, GuardedRegion};
use super::*;

const FRAMES: u32 = 64;
/// The bytes that the kernel leaves free before a frame.
const HEADROOM: u64 = 256;

/// The driver's ends.
struct Driver {
    nic: MemoryNic,
    rx: Producer<Desc>,
    fill: Consumer<u64>,
}

fn device() -> (XdpRaw, Driver) {
    let config = XdpRawConfig { frames: FRAMES, send_frames: FRAMES, ..XdpRawConfig::new("memory") };
    let (raw, nic, rx, fill) = XdpRaw::over_memory(&config).unwrap();
    (raw, Driver { nic, rx, fill })
}

fn frame(number: usize) -> Vec<u8> {
    (0..14 + number * 7 % 1500).map(|at| (at + number) as u8).collect()
}

impl Driver {
    fn deliver(&mut self, device: &mut XdpRaw, bytes: &[u8]) -> bool {
        let Some(frame) = self.fill.pop() else { return false };
        self.fill.release();
        device.incoming.bytes_mut(frame).unwrap()[HEADROOM as usize..][..bytes.len()].copy_from_slice(bytes);
        self.publish(Desc { address: frame | HEADROOM << OFFSET_SHIFT, len: bytes.len() as u32, more: false })
    }

    fn publish(&mut self, desc: Desc) -> bool {
        let has_room = self.rx.push(desc);
        self.rx.publish();
        has_room
    }
}

fn next(device: &mut XdpRaw) -> Option<Vec<u8>> {
    let mut got = None;
    device.receive(&mut |frame| got = Some(frame.to_vec()));
    got
}

#[test]
fn frames_leave_in_order_as_they_were_given() {
    let (mut device, mut driver) = device();
    // More than three times around the rings.
    for round in 0..40 {
        let sent: Vec<_> = (0..round % 9).map(|number| frame(round * 10 + number)).collect();
        for (number, bytes) in sent.iter().enumerate() {
            // Whole, or in pieces.
            let (head, body) = bytes.split_at(bytes.len() / 3);
            let is_taken = match number % 2 {
                0 => device.send(bytes),
                _ => device.gather(head, &[&body[..5], &[], &body[5..]]),
            };
            assert!(is_taken.unwrap());
        }
        assert!(driver.nic.run().is_empty(), "nothing leaves before the end of a turn");
        // This driver takes nothing while it is called.
        assert_eq!(device.flush(Instant(1)).unwrap(), sent.is_empty());
        assert_eq!(driver.nic.run(), sent);
        assert!(device.flush(Instant(1)).unwrap());
    }
    assert_eq!((driver.nic.invalid_descriptors(), device.counters().stray_completions), (0, 0));
}

#[test]
fn send_on_full_ring_is_refused_until_completion() {
    let (mut device, mut driver) = device();
    for number in 0..FRAMES as usize {
        assert!(device.send(&frame(number)).unwrap());
    }
    assert!(!device.send(&frame(0)).unwrap());
    assert_eq!(device.counters().refused, 1);
    // Taken from the ring and not completed: the frame is still the device's.
    let packet = driver.nic.take().unwrap();
    assert!(!device.send(&frame(1)).unwrap());
    driver.nic.complete(&packet);
    assert!(device.send(&frame(77)).unwrap());
    let rest = driver.nic.run();
    assert_eq!(rest.len(), FRAMES as usize - 1);
    assert_eq!(rest[0], frame(1));
    device.flush(Instant(1)).unwrap();
    assert_eq!(driver.nic.run(), [frame(77)]);
    // An address that was never outstanding makes no room and does no harm, even that of a receive
    // frame.
    let incoming = driver.fill.pop().unwrap();
    for address in [0, u64::MAX, 1, incoming] {
        assert!(driver.nic.complete_address(address));
    }
    device.flush(Instant(1)).unwrap();
    assert_eq!(device.counters().stray_completions, 4);
    let sent = (0..2 * FRAMES as usize).filter(|&number| device.send(&frame(number)).unwrap()).count();
    assert_eq!(sent, FRAMES as usize);
}

#[test]
fn unfit_frame_is_counted_and_not_sent() {
    let (mut device, mut driver) = device();
    for unfit in [vec![], vec![1; XDP_RAW_FRAME_BYTES + 1]] {
        assert!(device.send(&unfit).unwrap());
    }
    let longest = vec![1; XDP_RAW_FRAME_BYTES];
    assert!(device.send(&longest).unwrap());
    device.flush(Instant(1)).unwrap();
    assert_eq!(driver.nic.run(), [longest]);
    assert_eq!((device.counters().unfit, device.counters().sent), (2, 1));
}

#[test]
fn frames_come_in_order_and_go_back() {
    let (mut device, mut driver) = device();
    for round in 0..40 {
        let came: Vec<_> = (0..round % 9).map(|number| frame(round * 10 + number)).collect();
        for bytes in &came {
            assert!(driver.deliver(&mut device, bytes));
        }
        assert_eq!(std::iter::from_fn(|| next(&mut device)).collect::<Vec<_>>(), came);
    }
    // All of them can be full at once.
    for number in 0..FRAMES as usize {
        assert!(driver.deliver(&mut device, &frame(number)));
    }
    assert!(!driver.deliver(&mut device, &frame(0)));
    assert_eq!(next(&mut device), Some(frame(0)));
    assert!(driver.deliver(&mut device, &frame(99)));
    assert_eq!(device.counters().malformed, 0);
}

#[test]
fn descriptors_are_not_believed() {
    let (mut device, mut driver) = device();
    let frames: Vec<u64> = (0..4)
        .map(|_| {
            let frame = driver.fill.pop().unwrap();
            driver.fill.release();
            frame
        })
        .collect();
    for desc in [
        Desc { address: frames[0] | 4000 << OFFSET_SHIFT, len: 200, more: false },
        Desc { address: 1, len: 60, more: false },
        Desc { address: u64::MAX, len: u32::MAX, more: false },
        Desc { address: frames[1], len: 60, more: true },
        Desc { address: frames[2], len: 60, more: false },
    ] {
        assert!(driver.publish(desc));
        assert_eq!(next(&mut device), None);
    }
    assert_eq!((device.counters().malformed, device.counters().received), (5, 0));
    // A whole one behind one in pieces is whole again; no frame is lost but the one kept here.
    assert!(driver.deliver(&mut device, &frame(5)));
    assert_eq!(next(&mut device), Some(frame(5)));
    assert_eq!(std::iter::from_fn(|| driver.fill.pop()).count(), FRAMES as usize - 1);
}

#[test]
fn vanished_interface_is_reported_by_name() {
    let (mut device, driver) = device();
    driver.nic.answer(libc::EAGAIN);
    assert!(device.send(&frame(1)).unwrap());
    assert!(!device.flush(Instant(1)).unwrap(), "try again");
    driver.nic.answer(libc::ENETDOWN);
    let text = device.flush(Instant(1)).unwrap_err().to_string();
    assert!(text.contains("memory") && text.contains("down or gone"), "{text}");
}

/// A device that sends from an arena with two extents of media, the second one filled, and a lease on that.
fn chained_device(strategy: Strategy) -> (XdpRaw, Driver, Lease, Guard) {
    let config = XdpRawConfig { frames: FRAMES, send_frames: FRAMES, ..XdpRawConfig::new("memory") };
    let aside = config.aside_extents();
    let (region, guard) = GuardedRegion::new((2 + aside as usize) * EXTENT_BYTES).unwrap();
    let media = ExtentArena::with_aside(Box::new(region), aside);
    let mut fill = media.fill(1).unwrap();
    fill.bytes_mut().iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 7 + at) as u8);
    fill.publish();
    let content = ExtentContent {
        title: TitleRef(3),
        number: 0,
        first_packet: 0,
        packets: 1,
        last_packet_bytes: 1316,
        layout: WireLayout::new(1316).unwrap(),
        spare: 0,
    };
    let lease = media.lend(1, content).unwrap();
    let config = XdpRawConfig { strategy: Some(strategy), media: Some(media), ..config };
    let (raw, nic, rx, fill) = XdpRaw::over_memory(&config).unwrap();
    (raw, Driver { nic, rx, fill }, lease, guard)
}

#[test]
fn payload_in_media_is_sent_unread_and_held_until_all_its_descriptors_are_back() {
    let (mut device, mut driver, lease, guard) = chained_device(Strategy::Chained);
    let arena = Arc::clone(lease.arena());
    let copy = lease.bytes().to_vec();
    let media = EXTENT_BYTES..2 * EXTENT_BYTES;
    let head = frame(9);
    assert_eq!(head.len(), 77);
    // One packet of TCP with one head; two packets with a head between them; a long one, of two pages.
    for (round, (begin, end)) in [(12, 1328), (1340, 2656), (100, 3700)].into_iter().enumerate() {
        let (first, second) = (&lease.bytes()[begin..end], &lease.bytes()[5..77]);
        guard.set_locked(media.clone(), true).unwrap();
        let body: &[&[u8]] = if round == 1 { &[&[1; 16], first, &[2; 16], second] } else { &[first, &[]] };
        assert!(device.gather(&head, body).unwrap());
        device.flush(Instant(round as u64)).unwrap();
        guard.set_locked(media.clone(), false).unwrap();
        assert_eq!((arena.leases(1), device.counters().held_extents), (2, 1), "ours and the device's");
        let packet = driver.nic.take().unwrap();
        let expected = match round {
            1 => [&head[..], &[1; 16], &copy[begin..end], &[2; 16], &copy[5..77]].concat(),
            _ => [&head[..], &copy[begin..end]].concat(),
        };
        assert!(packet.frame == expected, "{round}");
        assert_eq!(packet.descriptors.len(), if round == 1 { 4 } else { 2 });
        assert!(packet.descriptors[1].address >= EXTENT_BYTES as u64, "in the arena, where it lies");
        for desc in &packet.descriptors {
            assert_eq!(arena.leases(1), 2, "one of its descriptors is still out");
            assert!(driver.nic.complete_address(desc.address));
            device.flush(Instant(round as u64)).unwrap();
        }
        assert_eq!((arena.leases(1), device.counters().held_extents), (1, 0));
    }
    assert_eq!((device.counters().chained, device.counters().stray_completions), (3, 0));
    // The lease of the caller may go first: the extent stays as it is.
    assert!(device.gather(&head, &[&lease.bytes()[..900]]).unwrap());
    drop(lease);
    device.flush(Instant(9)).unwrap();
    assert!(!arena.reclaim(1), "the device has it");
    assert_eq!(driver.nic.run(), [[&head[..], &copy[..900]].concat()]);
    device.flush(Instant(9)).unwrap();
    assert!(arena.reclaim(1));
}

#[test]
fn frames_of_chained_device_without_media_or_with_too_much_head_are_copied() {
    let (mut device, mut driver, lease, _guard) = chained_device(Strategy::ZeroCopyChained);
    let payload = &lease.bytes()[..1000];
    let pieces: Vec<&[u8]> = lease.bytes().chunks(100).take(XDP_CHAIN_DESCRIPTORS).collect();
    let (long, short) = ([7; 129], [8; 60]);
    let sent: [(&[u8], &[&[u8]]); 5] =
        [(&short, &[]), (&short, &[&[3; 500]]), (&long, &[payload]), (&short, &pieces), (&[], &[payload])];
    for (head, body) in sent {
        assert!(device.gather(head, body).unwrap());
    }
    assert_eq!((device.counters().chained, lease.arena().leases(1)), (0, 1), "nothing is held for them");
    device.flush(Instant(1)).unwrap();
    assert_eq!(driver.nic.run(), sent.map(|(head, body)| [&[head], body].concat().concat()));
    // A device that cannot read across pages gets one descriptor more.
    assert!(device.gather(&short, &[&lease.bytes()[4000..5000]]).unwrap());
    device.flush(Instant(1)).unwrap();
    let packet = driver.nic.take().unwrap();
    assert_eq!(packet.descriptors.iter().map(|desc| desc.len).collect::<Vec<_>>(), [60, 96, 904]);
    driver.nic.complete(&packet);
    device.flush(Instant(1)).unwrap();
    assert_eq!((device.counters().sent, lease.arena().leases(1)), (6, 1));
}

#[test]
fn full_chained_device_refuses_and_holds_nothing_for_what_it_refused() {
    let (mut device, mut driver, lease, _guard) = chained_device(Strategy::Chained);
    let head = [9; 66];
    let mut sent = 0;
    while device.gather(&head, &[&lease.bytes()[sent * 1400..][..1400]]).unwrap() {
        sent += 1;
    }
    assert_eq!((sent, device.counters().refused), (FRAMES as usize, 1), "two descriptors for each");
    let packets = driver.nic.run();
    assert_eq!(packets.len(), FRAMES as usize);
    device.flush(Instant(1)).unwrap();
    assert_eq!((device.counters().held_extents, lease.arena().leases(1)), (0, 1), "all is back");
    assert_eq!(device.counters().stray_completions, 0);
}
