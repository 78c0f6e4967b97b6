//! What comes by a device reaches its sink: a bounded number of packets a turn, and the end of the device once.

mod support;

use std::net::UdpSocket;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant as StdInstant};

use millrace_core::limits::{RX_BATCH_PACKETS, RX_BATCHES_PER_TURN};
use millrace_core::seam::{Clock, DeviceGone, PacketRx, Protocol, Received, RxCounters};
use millrace_core::time::{Instant, MediaTicks};
use millrace_netio::KernelRx;
use millrace_netio::null::NullTx;
use millrace_netio::recv::UdpRxConfig;
use millrace_offload::command::Command;
use millrace_offload::load::{LoadMeter, LoopSheets};
use millrace_offload::reception::{LoopRx, Reception, RxSink};
use support::{Stage, WithoutConns};

/// A device with so many packets, which is gone when they are.
struct Numbers {
    next: u32,
    end: u32,
    counters: RxCounters,
}

impl PacketRx for Numbers {
    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(&Received<'_>)) -> Result<usize, DeviceGone> {
        if self.next == self.end {
            return Err(DeviceGone { errno: 100 });
        }
        let first = self.next;
        while self.next < self.end && ((self.next - first) as usize) < RX_BATCH_PACKETS {
            let nobody = ([127, 0, 0, 1], 1).into();
            let bytes = &self.next.to_ne_bytes()[..];
            let protocol = Protocol::Udp;
            sink(&Received {
                protocol,
                bytes,
                source: nobody,
                destination: nobody,
                arrival: now,
                train: None,
            });
            self.next += 1;
            self.counters.packets += 1;
        }
        Ok((self.next - first) as usize)
    }

    fn counters(&self) -> &RxCounters {
        &self.counters
    }
}

impl LoopRx for Numbers {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

type Log = (Vec<Vec<u8>>, Vec<DeviceGone>);

/// What a sink has heard. Tests may lock.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Log>>);

impl RxSink for Heard {
    fn packet(&mut self, now: Instant, packet: &Received<'_>) {
        assert!(packet.arrival <= now);
        self.0.lock().unwrap().0.push(packet.bytes.to_vec());
    }
    fn gone(&mut self, _: Instant, fault: DeviceGone) {
        self.0.lock().unwrap().1.push(fault);
    }
}

fn stage() -> Stage<WithoutConns<NullTx>> {
    Stage::new(10, MediaTicks(90_000), WithoutConns(NullTx::default()))
}

#[test]
fn a_turn_takes_a_bounded_number_and_the_end_is_told_once() {
    const PER_TURN: usize = RX_BATCH_PACKETS * RX_BATCHES_PER_TURN;
    let mut stage = stage();
    let heard = Heard::default();
    let end = 2 * PER_TURN as u32 + 5;
    let device = Numbers { next: 0, end, counters: RxCounters::default() };
    stage.core.reception = Some(Reception::new(Box::new(device), Box::new(heard.clone())));
    for turns in 1..=2 {
        let (_, work) = stage.core.turn();
        assert!(work >= PER_TURN, "{work}");
        assert_eq!(heard.0.lock().unwrap().0.len(), turns * PER_TURN);
    }
    for _ in 0..3 {
        stage.core.turn();
    }
    let heard = heard.0.lock().unwrap();
    let expected: Vec<_> = (0..end).map(|n| n.to_ne_bytes().to_vec()).collect();
    assert_eq!(heard.0, expected);
    assert_eq!(heard.1, [DeviceGone { errno: 100 }]);
    assert_eq!(stage.core.turn().1, 0, "a device that is gone is no work");
}

/// A kernel device that counts how often it was asked for its descriptor.
struct Watched(KernelRx, Arc<AtomicU32>);

impl PacketRx for Watched {
    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(&Received<'_>)) -> Result<usize, DeviceGone> {
        self.0.receive(now, sink)
    }

    fn counters(&self) -> &RxCounters {
        self.0.counters()
    }
}

impl LoopRx for Watched {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.1.fetch_add(1, Ordering::Relaxed);
        LoopRx::fd(&self.0)
    }
}

#[test]
fn a_loop_that_sleeps_watches_the_device_and_publishes_its_counters() {
    let mut stage = stage();
    let sheets = LoopSheets::default();
    stage.core.load = LoadMeter::new(sheets.clone(), stage.core.clock.now());
    let (heard, asked) = (Heard::default(), Arc::new(AtomicU32::new(0)));
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let at = socket.local_addr().unwrap();
    let device = Watched(KernelRx::new(socket, UdpRxConfig::default()).unwrap(), Arc::clone(&asked));
    stage.core.reception = Some(Reception::new(Box::new(device), Box::new(heard.clone())));
    let (bell, core) = (Arc::clone(&stage.core.bell), &mut stage.core);
    std::thread::scope(|scope| {
        scope.spawn(move || core.run());
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let begun = StdInstant::now();
        for number in 0..20u8 {
            sender.send_to(&[number], at).unwrap();
            while heard.0.lock().unwrap().0.len() <= usize::from(number) {
                assert!(begun.elapsed() < Duration::from_secs(30), "datagram {number} did not come");
                std::thread::yield_now();
            }
        }
        stage.commands.push(Command::Stop).unwrap();
        bell.ring();
    });
    assert_eq!(heard.0.lock().unwrap().0, (0..20).map(|n| vec![n]).collect::<Vec<_>>());
    assert!(asked.load(Ordering::Relaxed) > 0, "it never slept beside the device");
    // The end of the loop has published what was received.
    assert_eq!((sheets.rx.read().packets, sheets.rx.read().bytes), (20, 20));
}
