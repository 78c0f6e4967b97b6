//! A device of smoltcp that is two queues.

use std::collections::VecDeque;

use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};

/// Packets waiting to go in, and packets going out.
pub(crate) struct Wire {
    medium: Medium,
    max_bytes: usize,
    pub(crate) inward: VecDeque<Vec<u8>>,
    pub(crate) outward: Vec<Vec<u8>>,
}

impl Wire {
    /// Creates a wire for packets or frames of up to `max_bytes` bytes.
    pub(crate) fn new(medium: Medium, max_bytes: usize) -> Self {
        Self { medium, max_bytes, inward: VecDeque::new(), outward: Vec::new() }
    }
}

pub(crate) struct Rx(Vec<u8>);
pub(crate) struct Tx<'a>(&'a mut Vec<Vec<u8>>);

impl RxToken for Rx {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl TxToken for Tx<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut bytes = vec![0; len];
        let result = f(&mut bytes);
        self.0.push(bytes);
        result
    }
}

impl Device for Wire {
    type RxToken<'a> = Rx;
    type TxToken<'a> = Tx<'a>;

    fn receive(&mut self, _: smoltcp::time::Instant) -> Option<(Rx, Tx<'_>)> {
        let bytes = self.inward.pop_front()?;
        Some((Rx(bytes), Tx(&mut self.outward)))
    }

    fn transmit(&mut self, _: smoltcp::time::Instant) -> Option<Tx<'_>> {
        Some(Tx(&mut self.outward))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = self.medium;
        capabilities.max_transmission_unit = self.max_bytes;
        capabilities
    }
}
