//! [`KernelTx`] and [`XdpTx`] as egress paths.

use millrace_core::ids::StreamId;
use millrace_core::seam::{SendOutcome, Transmit, TransmitBatch};
use millrace_core::shape::DatagramShape;

use super::paths::{KernelPath, XdpDevice};
use crate::kernel::KernelTx;
use crate::xdp::XdpTx;

impl KernelPath for KernelTx {
    fn send_zero_copy(&mut self, batch: &dyn TransmitBatch, outcomes: &mut [SendOutcome]) {
        KernelTx::send_zero_copy(self, batch, outcomes);
    }

    fn reap(&mut self) -> bool {
        KernelTx::reap(self) > 0
    }
}

impl XdpDevice for XdpTx {
    fn expect(&self, stream: StreamId) {
        XdpTx::expect(self, stream);
    }

    fn can_send(&mut self, transmit: &Transmit<'_>, shape: &DatagramShape<'_>) -> bool {
        self.can_send_shaped(transmit, shape)
    }

    fn has_failed(&self) -> bool {
        XdpTx::failure(self).is_some()
    }

    fn failure(&self) -> Option<String> {
        XdpTx::failure(self).map(ToString::to_string)
    }

    fn tend(&mut self) -> bool {
        self.poll();
        let counters = self.counters();
        // A staged datagram returns one descriptor; for a chained one the lease shows whether it is
        // under way.
        let is_staged_under_way = !self.strategy().is_chained() && counters.staged > counters.completions;
        !self.has_failed() && (counters.held_leases > 0 || is_staged_under_way)
    }
}
