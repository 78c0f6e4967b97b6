//! Whatever devices answer: every datagram leaves once, in order within its stream, and the outcomes say so.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;

use millrace_core::ids::{ConnId, StreamId};
use millrace_core::seam::Dest;
use proptest::prelude::*;

use super::*;
use crate::null::SliceBatch;

/// Bytes of a test datagram: an RTP header's room and its number.
const SEGMENT: usize = 14;

/// Log of datagrams: stream, number of the datagram, and its sender (0 kernel, 1 without copy, 2..
/// devices).
type Log = Rc<RefCell<Vec<(u32, u16, usize)>>>;

/// The answer of a device to an entry.
#[derive(Clone, Copy, Debug)]
enum DeviceAnswer {
    Take,
    /// Takes this number of datagrams, then is full until the batch ends.
    Full(u16),
    Refuse,
    /// Takes this number of datagrams, then is dead.
    Die(u16),
}

/// A device that gives the prescribed answers.
struct Fake {
    by: usize,
    log: Log,
    answers: VecDeque<DeviceAnswer>,
    /// Bit for each stream that it can reach.
    reach: u8,
    dead: bool,
}

impl Fake {
    fn keep(&self, transmit: &Transmit<'_>, count: usize) {
        let shape = DatagramShape::of(transmit.payload).unwrap();
        for place in 0..count.min(shape.datagrams()) {
            let (_, rest) = shape.datagram(place);
            let number = u16::from_be_bytes([rest[rest.len() - 2], rest[rest.len() - 1]]);
            self.log.borrow_mut().push((transmit.stream.index, number, self.by));
        }
    }

    fn answer(&mut self, batch: &dyn TransmitBatch, outcomes: &mut [SendOutcome]) {
        // Streams that are held back for the rest of the batch, and whether all are.
        let (mut held, mut full) = ([false; 8], false);
        for (index, outcome) in outcomes.iter_mut().enumerate() {
            let transmit = batch.get(index);
            let stream = transmit.stream.index as usize;
            let datagrams = transmit.datagrams();
            if self.dead || full || held[stream] {
                *outcome = SendOutcome::Blocked { taken: 0 };
                continue;
            }
            let (taken, answer) = match self.answers.pop_front().unwrap_or(DeviceAnswer::Take) {
                DeviceAnswer::Take => (datagrams, SendOutcome::Sent),
                DeviceAnswer::Full(taken) if usize::from(taken) < datagrams => {
                    full = true;
                    (usize::from(taken), SendOutcome::Blocked { taken })
                }
                DeviceAnswer::Die(taken) if usize::from(taken) < datagrams => {
                    self.dead = true;
                    (usize::from(taken), SendOutcome::Blocked { taken })
                }
                DeviceAnswer::Full(_) | DeviceAnswer::Die(_) => (datagrams, SendOutcome::Sent),
                DeviceAnswer::Refuse => {
                    held[stream] = true;
                    (0, SendOutcome::Unreachable { errno: libc::EHOSTUNREACH })
                }
            };
            self.keep(&transmit, taken);
            *outcome = answer;
        }
    }
}

impl PacketTx for Fake {
    fn send(&mut self, batch: &dyn TransmitBatch, outcomes: &mut [SendOutcome]) {
        self.answer(batch, outcomes);
    }
}

impl KernelPath for Fake {
    fn send_zero_copy(&mut self, batch: &dyn TransmitBatch, outcomes: &mut [SendOutcome]) {
        self.by = 1;
        self.answer(batch, outcomes);
        self.by = 0;
    }
}

impl XdpDevice for Fake {
    fn can_send(&mut self, transmit: &Transmit<'_>, _: &DatagramShape<'_>) -> bool {
        self.reach & 1 << transmit.stream.index != 0
    }
    fn has_failed(&self) -> bool {
        self.dead
    }
    fn failure(&self) -> Option<String> {
        self.dead.then(|| "dead".to_owned())
    }
    fn tend(&mut self) -> bool {
        false
    }
}

fn kernel(log: &Log, answers: Vec<DeviceAnswer>) -> Fake {
    Fake { by: 0, log: Rc::clone(log), answers: answers.into(), reach: 0, dead: false }
}

fn device(log: &Log, slot: usize, reach: u8, answers: Vec<DeviceAnswer>) -> Fake {
    Fake { by: 2 + slot, log: Rc::clone(log), answers: answers.into(), reach, dead: false }
}

fn udp() -> Dest {
    let addr: SocketAddr = "192.0.2.1:9".parse().unwrap();
    Dest::udp(addr, Some(addr.port()))
}

fn tcp() -> Dest {
    Dest::Interleaved { conn: ConnId(0), rtp_channel: 0, rtcp_channel: 1 }
}

fn id(index: u32) -> StreamId {
    StreamId { index, generation: 0 }
}

/// `count` datagrams numbered from `first` on.
fn train(first: u16, count: usize) -> Vec<u8> {
    (0..count as u16).flat_map(|n| [&[0; 12][..], &(first.wrapping_add(n)).to_be_bytes()].concat()).collect()
}

/// The data that a viewer's stream has in store: like the engine, it sends again all data that was
/// not taken.
#[derive(Clone, Default)]
struct ViewerQueue {
    next: u16,
    /// Datagrams that were reported as gone.
    lost: Vec<u16>,
}

/// One entry of a random batch.
#[derive(Clone, Copy, Debug)]
struct Want {
    stream: u32,
    datagrams: usize,
    patched: bool,
}

/// Sends one batch; the viewers note what became of it.
fn round(tx: &mut BestTx<Fake, Fake>, viewers: &mut [ViewerQueue], wants: &[Want]) {
    let mut nexts: Vec<u16> = viewers.iter().map(|viewer| viewer.next).collect();
    let headers = vec![0; 12 * 64];
    let trains: Vec<_> = wants
        .iter()
        .map(|want| {
            let next = &mut nexts[want.stream as usize];
            let first = *next;
            *next += want.datagrams as u16;
            (first, train(first, want.datagrams))
        })
        .collect();
    let entries: Vec<_> = wants
        .iter()
        .zip(&trains)
        .map(|(want, (_, bytes))| {
            let payload = if want.patched {
                Payload::Patched { headers: &headers, bytes, segment: SEGMENT }
            } else {
                Payload::Wire { bytes, segment: SEGMENT }
            };
            Transmit { stream: id(want.stream), dest: udp(), payload }
        })
        .collect();
    let mut outcomes = vec![SendOutcome::Closed { errno: 77 }; entries.len()];
    tx.send(&SliceBatch(&entries), &mut outcomes);
    let mut held = vec![false; viewers.len()];
    for ((want, (first, _)), outcome) in wants.iter().zip(&trains).zip(outcomes) {
        let viewer = &mut viewers[want.stream as usize];
        let is_held = &mut held[want.stream as usize];
        let all = want.datagrams as u16;
        let taken = match outcome {
            SendOutcome::Sent => all,
            SendOutcome::Blocked { taken } => taken,
            SendOutcome::Unreachable { errno } => {
                // Gone, as the kernel has reported; but the datagrams that a dying device had taken
                // before have left.
                assert_eq!(errno, libc::EHOSTUNREACH);
                viewer.lost.extend(*first..first + all);
                all
            }
            SendOutcome::Closed { .. } => panic!("an entry without an outcome"),
        };
        assert!(!*is_held || taken == 0, "nothing may overtake what was held back");
        *is_held |= matches!(outcome, SendOutcome::Blocked { .. });
        viewer.next += taken;
    }
}

/// Checks that every datagram reported as taken is in the log once and in order; those reported as
/// lost at most once.
fn check(log: &Log, viewers: &[ViewerQueue]) {
    for (stream, viewer) in viewers.iter().enumerate() {
        let sent: Vec<u16> =
            log.borrow().iter().filter(|(s, ..)| *s as usize == stream).map(|&(_, n, _)| n).collect();
        assert!(sent.windows(2).all(|pair| pair[0] < pair[1]), "stream {stream}: {sent:?}");
        let missing: Vec<u16> = (0..viewer.next).filter(|n| sent.binary_search(n).is_err()).collect();
        assert!(missing.iter().all(|n| viewer.lost.contains(n)), "stream {stream}: {missing:?} vanished");
        assert!(sent.iter().all(|n| *n < viewer.next), "stream {stream}: more left than was said");
    }
}

fn answers(is_device: bool) -> impl Strategy<Value = Vec<DeviceAnswer>> {
    let one = prop_oneof![
        8 => Just(DeviceAnswer::Take),
        2 => (0..20u16).prop_map(DeviceAnswer::Full),
        1 => Just(DeviceAnswer::Refuse),
        1 => (0..20u16).prop_map(move |n| if is_device { DeviceAnswer::Die(n) } else { DeviceAnswer::Take }),
    ];
    prop::collection::vec(one, 0..80)
}

fn plan() -> impl Strategy<Value = EgressPlan> {
    prop::array::uniform6(0..3usize).prop_map(|ways| EgressPlan(ways.map(|way| EgressPath::ALL[way])))
}

fn wants() -> impl Strategy<Value = Vec<Want>> {
    let want = (0..6u32, 1..24usize, any::<bool>());
    prop::collection::vec(
        want.prop_map(|(stream, datagrams, patched)| Want { stream, datagrams, patched }),
        0..40,
    )
}

proptest! {
    #[test]
    fn best_tx_sends_each_datagram_once_in_order(
        kernel_answers in answers(false),
        base in plan(),
        devices in prop::collection::vec((0..6usize, any::<u8>(), plan(), answers(true)), 0..8),
        rounds in prop::collection::vec(wants(), 1..12),
    ) {
        let log = Log::default();
        let (loop_side, mut supervisor) = exchange();
        let mut tx = BestTx::new(kernel(&log, kernel_answers), base, 5, loop_side);
        let mut viewers = vec![ViewerQueue::default(); 6];
        let mut devices = devices.into_iter();
        for (number, wants) in rounds.iter().enumerate() {
            if number % 2 == 0 && let Some((slot, reach, plan, answers)) = devices.next() {
                let device = device(&log, slot, reach, answers);
                let handed = supervisor.hand_over(NewDevice { slot, plan, device });
                prop_assert!(handed.is_ok());
            }
            tx.tend();
            round(&mut tx, &mut viewers, wants);
            while let Some((_, gone)) = supervisor.departed() {
                prop_assert!(gone.dead);
            }
        }
        check(&log, &viewers);
        let counted: u64 = tx.tally().read().datagrams.iter().sum();
        prop_assert_eq!(counted, log.borrow().len() as u64);
    }
}

/// Bursts of one length for one stream, one a batch; who sent them.
fn bursts(tx: &mut BestTx<Fake, Fake>, log: &Log, stream: u32, datagrams: usize, count: usize) -> Vec<usize> {
    log.borrow_mut().clear();
    let bytes = train(0, datagrams);
    let entry = Transmit {
        stream: id(stream),
        dest: udp(),
        payload: Payload::Wire { bytes: &bytes, segment: SEGMENT },
    };
    for _ in 0..count {
        let mut outcomes = [SendOutcome::Closed { errno: 0 }];
        tx.tend();
        tx.send(&SliceBatch(&[entry]), &mut outcomes);
        assert_eq!(outcomes, [SendOutcome::Sent]);
    }
    log.borrow().iter().step_by(datagrams).map(|&(_, _, by)| by).collect()
}

#[test]
fn best_tx_switches_path_after_sustained_burst_length() {
    let log = Log::default();
    let (loop_side, mut supervisor) = exchange();
    let mut tx = BestTx::new(kernel(&log, vec![]), EgressPlan::default(), 8, loop_side);
    assert_eq!(bursts(&mut tx, &log, 0, 1, 3), [0; 3], "no device yet");
    let plan = EgressPlan::default_for(DeviceClass::Copy);
    let arrival = NewDevice { slot: 1, plan, device: device(&log, 1, 0b11, vec![]) };
    assert!(supervisor.hand_over(arrival).is_ok());
    assert_eq!(bursts(&mut tx, &log, 1, 2, 3), [3; 3], "a new stream goes as is best");
    assert_eq!(bursts(&mut tx, &log, 1, 8, 7), [3; 7], "not yet");
    assert_eq!(bursts(&mut tx, &log, 1, 2, 1), [3]);
    assert_eq!(bursts(&mut tx, &log, 1, 8, 9), [3, 3, 3, 3, 3, 3, 3, 0, 0], "longer bursts by the kernel");
    assert_eq!(bursts(&mut tx, &log, 2, 1, 3), [0; 3], "a viewer whom the device does not reach");
    assert_eq!(tx.tally().read().switches, 1);
}

#[test]
fn reports_and_connections_always_go_by_the_kernel() {
    let log = Log::default();
    let (loop_side, mut supervisor) = exchange();
    let mut tx = BestTx::new(kernel(&log, vec![]), EgressPlan::default(), 8, loop_side);
    let arrival =
        NewDevice { slot: 0, plan: EgressPlan::all(EgressPath::Xdp), device: device(&log, 0, 0xff, vec![]) };
    assert!(supervisor.hand_over(arrival).is_ok());
    let bytes = train(0, 1);
    let entries = [
        Transmit { stream: id(0), dest: udp(), payload: Payload::Wire { bytes: &bytes, segment: SEGMENT } },
        Transmit { stream: id(0), dest: udp(), payload: Payload::Rtcp(&bytes) },
        Transmit { stream: id(1), dest: tcp(), payload: Payload::Wire { bytes: &bytes, segment: SEGMENT } },
    ];
    let mut outcomes = [SendOutcome::Closed { errno: 0 }; 3];
    tx.tend();
    tx.send(&SliceBatch(&entries), &mut outcomes);
    assert_eq!(outcomes, [SendOutcome::Sent; 3]);
    assert_eq!(*log.borrow(), [(0, 0, 2), (0, 0, 0), (1, 0, 0)]);
}

#[test]
fn best_tx_falls_back_to_kernel_when_device_dies_and_returns() {
    let log = Log::default();
    let (loop_side, mut supervisor) = exchange();
    let mut tx = BestTx::new(kernel(&log, vec![]), EgressPlan::default(), 8, loop_side);
    let plan = EgressPlan::all(EgressPath::Xdp);
    let answers = vec![DeviceAnswer::Take, DeviceAnswer::Die(2)];
    assert!(supervisor.hand_over(NewDevice { slot: 0, plan, device: device(&log, 0, 1, answers) }).is_ok());
    assert_eq!(bursts(&mut tx, &log, 0, 5, 1), [2]);
    bursts(&mut tx, &log, 0, 5, 1);
    let by: Vec<_> = log.borrow().iter().map(|&(_, number, by)| (number, by)).collect();
    assert_eq!(by, [(0, 2), (1, 2), (2, 0), (3, 0), (4, 0)], "the rest of the burst goes at once");
    assert!(supervisor.departed().is_some_and(|(slot, device)| slot == 0 && device.dead));
    assert_eq!(bursts(&mut tx, &log, 0, 5, 4), [0; 4]);
    assert!(supervisor.hand_over(NewDevice { slot: 0, plan, device: device(&log, 0, 1, vec![]) }).is_ok());
    let by = bursts(&mut tx, &log, 0, 5, 100);
    let back = by.iter().position(|&by| by == 2).expect("the stream comes back to the device");
    assert!(by[back..].iter().all(|&by| by == 2), "and stays there: {by:?}");
    let counts = tx.tally().read();
    assert_eq!((counts.fallen, counts.devices_gained, counts.devices_lost), (1, 2, 1));
}
