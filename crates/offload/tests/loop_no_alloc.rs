//! Once it runs, the loop neither allocates nor frees: counted on its thread, with a real cache beside it.

#[allow(dead_code)] // the other test program uses the rest of it
mod support;

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant as StdInstant};

use millrace_core::seam::{DeviceGone, PacketRx, Received, RxCounters};
use millrace_core::time::{Instant, MediaTicks};
use millrace_core::wire::rtp::sequence_of;
use millrace_netio::KernelRx;
use millrace_netio::null::NullTx;
use millrace_netio::recv::UdpRxConfig;
use millrace_offload::reception::{LoopRx, Reception, RxSink};
use millrace_testkit::counting::{Counting, calls};
use support::{Stage, WithoutConns};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A device that sends itself a datagram for each one that it receives.
struct Echo(KernelRx, UdpSocket, SocketAddr);

impl PacketRx for Echo {
    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(&Received<'_>)) -> Result<usize, DeviceGone> {
        let Self(rx, sender, at) = self;
        rx.receive(now, &mut |packet| {
            sink(packet);
            // A full buffer only means that fewer come.
            let _ = sender.send_to(packet.bytes, *at);
        })
    }

    fn counters(&self) -> &RxCounters {
        self.0.counters()
    }
}

impl LoopRx for Echo {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.fd()
    }
}

/// A sink that ignores everything.
struct Nobody;

impl RxSink for Nobody {
    fn packet(&mut self, _: Instant, _: &Received<'_>) {}
    fn gone(&mut self, _: Instant, _: DeviceGone) {}
}

/// A device with datagrams that go round and round.
fn datagrams() -> Reception {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let at = socket.local_addr().unwrap();
    let rx = KernelRx::new(socket, UdpRxConfig::default()).unwrap();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    for _ in 0..10 {
        sender.send_to(&[7; 1000], at).unwrap();
    }
    Reception::new(Box::new(Echo(rx, sender, at)), Box::new(Nobody))
}

#[test]
fn loop_turns_while_streaming_never_allocate() {
    const STREAMS: u32 = 200;
    const PACKETS: u32 = 6_000;
    let mut stage = Stage::new(PACKETS as usize, MediaTicks(8 * 90_000), WithoutConns(NullTx::default()));
    for index in 0..STREAMS {
        let open = stage.open(index);
        stage.commands.push(open).unwrap();
        let from = index % 100;
        let play = stage.play(index, from, if index % 3 == 0 { 9 } else { sequence_of(from) }, 8_000);
        stage.commands.push(play).unwrap();
    }
    stage.core.reception = Some(datagrams());
    stage.core.turn();
    let goal = u64::from(STREAMS * (PACKETS - 100));
    let end = StdInstant::now() + Duration::from_secs(60);
    let before = calls();
    while stage.core.engine.counters().packets < goal {
        stage.core.turn();
        // Events of streams are plain values: dropping one frees nothing.
        while stage.events.pop().is_ok() {}
        if StdInstant::now() > end {
            break;
        }
    }
    let calls = calls() - before;
    let received = stage.core.reception.as_ref().map(|reception| reception.counters().packets);
    assert!(received > Some(1000), "{received:?} datagrams received");
    let sent = stage.core.engine.counters().packets;
    assert!(sent >= goal, "only {sent} of {goal} packets within a minute");
    assert_eq!(calls, 0, "{calls} calls of the allocator for {sent} packets");
}
