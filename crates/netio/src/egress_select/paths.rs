//! The egress paths to choose from, as traits.

use millrace_core::ids::StreamId;
use millrace_core::seam::{PacketTx, SendOutcome, Transmit, TransmitBatch};
use millrace_core::shape::DatagramShape;

/// A device that sends for one interface, and not for everybody.
///
/// Entries of one stream in one batch must not overtake each other: after an entry that was not
/// taken whole, the device takes nothing more of the same stream in this batch.
pub trait XdpDevice: PacketTx {
    /// Asks for the memory that [`XdpDevice::can_send`] will need for this stream.
    fn expect(&self, stream: StreamId) {
        let _ = stream;
    }
    /// Whether it can send this entry now: the viewer is behind its interface, every datagram fits.
    fn can_send(&mut self, transmit: &Transmit<'_>, shape: &DatagramShape<'_>) -> bool;
    /// Whether it will never send again: its interface is gone or down.
    fn has_failed(&self) -> bool;
    /// Why, if it has.
    fn failure(&self) -> Option<String>;
    /// Takes back everything that the kernel is done with, and processes news; returns whether
    /// something is still under way.
    fn tend(&mut self) -> bool;
}

/// The way that is always there.
pub trait KernelPath: PacketTx {
    /// Like [`PacketTx::send`], but the kernel may read the datagrams where they lie.
    fn send_zero_copy(&mut self, batch: &dyn TransmitBatch, outcomes: &mut [SendOutcome]);
    /// Takes back everything that the kernel has read; returns whether it still reads something.
    /// For use when nothing is being sent.
    fn reap(&mut self) -> bool {
        false
    }
}
