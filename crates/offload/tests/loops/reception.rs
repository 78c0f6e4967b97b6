//! A device's packets reach its sink: a bounded number of packets per turn, and the end of the
//! device once.

use std::net::UdpSocket;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant as StdInstant};

use crate::support::{Stage, WithoutConns};
use millrace_core::limits::RX_BATCH_PACKETS;
use millrace_core::seam::{
    Clock, DeviceGone, PacketRx, PacketTx, Protocol, Received, RxCounters, SendOutcome, TransmitBatch,
};
use millrace_core::time::{Instant, MediaTicks};
use millrace_netio::KernelRx;
use millrace_netio::null::NullTx;
use millrace_netio::recv::UdpRxConfig;
use millrace_offload::command::Command;
use millrace_offload::limits::RX_BATCHES_PER_TURN;
use millrace_offload::load::{LoadMeter, LoopSheets};
use millrace_offload::reception::{LoopRx, Reception, RxSink};

/// A device with a fixed number of packets, which is gone when they run out.
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

/// The packets and faults that a sink received. Tests may lock.
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
fn reception_per_turn_is_bounded_and_device_end_reported_once() {
    const PER_TURN: usize = RX_BATCH_PACKETS * RX_BATCHES_PER_TURN;
    let mut stage = stage();
    let heard = Heard::default();
    let end = 2 * PER_TURN as u32 + 5;
    let device = Numbers { next: 0, end, counters: RxCounters::default() };
    stage.core.reception = Some(Reception::new(Box::new(device), Box::new(heard.clone())));
    for turns in 1..=2 {
        // However much else there is to do.
        let nowhere = ([127, 0, 0, 1], 1).into();
        stage.commands.push(Command::Unreachable { dest: nowhere, errno: 111 }).unwrap();
        let (_, work) = stage.core.turn();
        assert!(work > PER_TURN, "{work}");
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

/// The actions of a sink and a sender, in order.
#[derive(Clone, Default)]
struct Done(Arc<Mutex<Vec<&'static str>>>);

impl RxSink for Done {
    fn packet(&mut self, _: Instant, _: &Received<'_>) {
        self.0.lock().unwrap().push("received");
    }
    fn gone(&mut self, _: Instant, _: DeviceGone) {}
}

impl PacketTx for Done {
    fn send(&mut self, batch: &dyn TransmitBatch, outcomes: &mut [SendOutcome]) {
        outcomes[..batch.len()].fill(SendOutcome::Sent);
        self.0.lock().unwrap().push("sent");
    }
}

#[test]
fn reception_in_loop_turn_precedes_transmission() {
    let done = Done::default();
    let mut stage = Stage::new(10, MediaTicks(90_000), WithoutConns(done.clone()));
    let device = Numbers { next: 0, end: u32::MAX, counters: RxCounters::default() };
    stage.core.reception = Some(Reception::new(Box::new(device), Box::new(done.clone())));
    for command in [stage.open(0), stage.play(0, 0, 1, 1000)] {
        stage.commands.push(command).unwrap();
    }
    let begun = StdInstant::now();
    let mut turn = Vec::new();
    while !turn.contains(&"sent") && begun.elapsed() < TIMEOUT {
        done.0.lock().unwrap().clear();
        stage.core.turn();
        turn.clone_from(&done.0.lock().unwrap());
        turn.dedup();
    }
    assert_eq!(turn, ["received", "sent"]);
}

/// Datagrams one after the other. A loop that is woken by nothing but the limit of its sleep takes ten times [`TIMEOUT`] for them.
const ONE_BY_ONE: u16 = 3000;
const TIMEOUT: Duration = Duration::from_secs(30);

#[test]
fn sleeping_loop_wakes_for_received_packets_and_publishes_counters() {
    let mut stage = stage();
    let sheets = LoopSheets::default();
    stage.core.load = LoadMeter::new(sheets.clone(), stage.core.clock.now());
    let heard = Heard::default();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let at = socket.local_addr().unwrap();
    let device = KernelRx::new(socket, UdpRxConfig::default()).unwrap();
    stage.core.reception = Some(Reception::new(Box::new(device), Box::new(heard.clone())));
    let (bell, core) = (Arc::clone(&stage.core.bell), &mut stage.core);
    let begun = StdInstant::now();
    std::thread::scope(|scope| {
        scope.spawn(move || core.run());
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        for number in 0..ONE_BY_ONE {
            sender.send_to(&number.to_ne_bytes(), at).unwrap();
            while heard.0.lock().unwrap().0.len() <= usize::from(number) && begun.elapsed() < TIMEOUT {
                std::thread::yield_now();
            }
        }
        stage.commands.push(Command::Stop).unwrap();
        bell.ring();
    });
    let expected: Vec<_> = (0..ONE_BY_ONE).map(|number| number.to_ne_bytes().to_vec()).collect();
    assert!(heard.0.lock().unwrap().0 == expected);
    assert!(begun.elapsed() < TIMEOUT, "it sleeps although something waits");
    // The end of the loop has published the receive counters.
    let received = sheets.rx.read();
    assert_eq!((received.packets, received.bytes), (u64::from(ONE_BY_ONE), 2 * u64::from(ONE_BY_ONE)));
}
