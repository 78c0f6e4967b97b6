//! The device over rings in memory, with a driver that does all that a driver may do and more.

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
