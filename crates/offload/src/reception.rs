//! The receive side of a loop: a device, and the sink of its packets.

use std::os::fd::{AsFd, BorrowedFd};

use millrace_core::seam::{DeviceGone, PacketRx, Received, RxCounters};
use millrace_core::time::Instant;
use millrace_netio::KernelRx;
use millrace_netio::xdp::XdpRx;

use crate::limits::RX_BATCHES_PER_TURN;

/// The ingress path that a loop needs.
pub trait LoopRx: PacketRx + Send {
    /// Readable when something waits.
    fn fd(&self) -> Option<BorrowedFd<'_>>;
}

impl LoopRx for KernelRx {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }
}

impl LoopRx for XdpRx {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.socket_fd()
    }
}

/// The sink of received packets. It runs inside the loop, so the loop's rules apply to it: it does
/// not allocate, lock, log or wait.
pub trait RxSink: Send {
    /// A packet has come. Its bytes are lent until this returns.
    fn packet(&mut self, now: Instant, packet: &Received<'_>);
    /// The device is gone: this is the last call.
    fn gone(&mut self, now: Instant, fault: DeviceGone);
}

/// A device and its sink.
pub struct Reception {
    device: Box<dyn LoopRx>,
    sink: Box<dyn RxSink>,
    is_gone: bool,
}

impl Reception {
    /// Passes the packets of `device` to `sink`.
    pub fn new(device: Box<dyn LoopRx>, sink: Box<dyn RxSink>) -> Self {
        Self { device, sink, is_gone: false }
    }

    /// One turn of the loop: at most [`RX_BATCHES_PER_TURN`] batches. How many packets were taken.
    pub fn turn(&mut self, now: Instant) -> usize {
        if self.is_gone {
            return 0;
        }
        let mut packets = 0;
        for _ in 0..RX_BATCHES_PER_TURN {
            let sink = &mut self.sink;
            match self.device.receive(now, &mut |packet| sink.packet(now, packet)) {
                Ok(0) => break,
                Ok(taken) => packets += taken,
                Err(fault) => {
                    self.is_gone = true;
                    self.sink.gone(now, fault);
                    break;
                }
            }
        }
        packets
    }

    /// Readable when something waits; `None` when nothing will come any more.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        if self.is_gone { None } else { self.device.fd() }
    }

    /// Returns the device's counters.
    pub fn counters(&self) -> &RxCounters {
        self.device.counters()
    }
}
