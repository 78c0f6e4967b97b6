//! How devices come and go while the loop runs: two rings between the loop and the thread that minds devices.
//!
//! Opening and closing a device waits for the kernel, so the loop does neither: it takes devices that are open and gives
//! back those that have failed.

use super::plan::EgressPlan;
use crate::limits::MAX_DEVICES;

/// A device for the loop.
#[derive(Debug)]
pub struct NewDevice<D> {
    /// Its place, below [`MAX_DEVICES`]; the one that was there before has been given back.
    pub slot: usize,
    /// When to use it.
    pub plan: EgressPlan,
    /// The device, open.
    pub device: D,
}

/// The loop's end.
pub struct LoopSide<D> {
    arrivals: rtrb::Consumer<NewDevice<D>>,
    departures: rtrb::Producer<(usize, D)>,
}

/// The supervisor's end.
pub struct DeviceSide<D> {
    arrivals: rtrb::Producer<NewDevice<D>>,
    departures: rtrb::Consumer<(usize, D)>,
}

/// Both ends. Each ring has room for all devices, so that neither side ever waits.
pub fn exchange<D>() -> (LoopSide<D>, DeviceSide<D>) {
    let (arriving, arrivals) = rtrb::RingBuffer::new(MAX_DEVICES);
    let (departures, departing) = rtrb::RingBuffer::new(MAX_DEVICES);
    (LoopSide { arrivals, departures }, DeviceSide { arrivals: arriving, departures: departing })
}

impl<D> LoopSide<D> {
    /// A device that has been opened.
    pub(super) fn arrival(&mut self) -> Option<NewDevice<D>> {
        self.arrivals.pop().ok()
    }

    /// Gives a failed device back.
    pub(super) fn depart(&mut self, slot: usize, device: D) -> Result<(), D> {
        let full = |error| {
            let rtrb::PushError::Full((_, device)) = error;
            device
        };
        self.departures.push((slot, device)).map_err(full)
    }
}

impl<D> DeviceSide<D> {
    /// Hands a device to the loop.
    ///
    /// # Errors
    /// Gives it back if the loop has not taken those before: then there are more than [`MAX_DEVICES`].
    pub fn hand_over(&mut self, arrival: NewDevice<D>) -> Result<(), NewDevice<D>> {
        self.arrivals.push(arrival).map_err(|rtrb::PushError::Full(arrival)| arrival)
    }

    /// A device that has failed, and its slot.
    pub fn departed(&mut self) -> Option<(usize, D)> {
        self.departures.pop().ok()
    }

    /// Whether the loop is gone.
    pub fn is_abandoned(&self) -> bool {
        self.departures.is_abandoned()
    }
}
