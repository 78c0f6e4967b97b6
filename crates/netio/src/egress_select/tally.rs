//! Counts by egress path: written by the loop, read by any thread.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use super::plan::EgressPath;
use crate::limits::MAX_DEVICES;

/// Counts that one thread writes.
#[derive(Debug, Default)]
pub struct Tally {
    datagrams: [AtomicU64; EgressPath::COUNT],
    by_device: [AtomicU64; MAX_DEVICES],
    fallen: AtomicU64,
    switches: AtomicU64,
    devices_lost: AtomicU64,
    devices_gained: AtomicU64,
}

/// Adds to a count that only the calling thread writes: no locked instruction is needed.
fn add(count: &AtomicU64, more: u64) {
    if more > 0 {
        count.store(count.load(Ordering::Relaxed) + more, Ordering::Relaxed);
    }
}

impl Tally {
    pub(super) fn sent(&self, way: EgressPath, datagrams: u64) {
        add(&self.datagrams[way as usize], datagrams);
    }
    pub(super) fn sent_by_device(&self, slot: usize, datagrams: u64) {
        add(&self.datagrams[EgressPath::Xdp as usize], datagrams);
        add(&self.by_device[slot], datagrams);
    }
    pub(super) fn fell(&self, entries: u64) {
        add(&self.fallen, entries);
    }
    pub(super) fn switched(&self) {
        add(&self.switches, 1);
    }
    pub(super) fn lost_device(&self) {
        add(&self.devices_lost, 1);
    }
    pub(super) fn gained_device(&self) {
        add(&self.devices_gained, 1);
    }

    /// The counts now.
    pub fn read(&self) -> WayCounts {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        WayCounts {
            datagrams: self.datagrams.each_ref().map(get),
            by_device: self.by_device.each_ref().map(get),
            fallen: get(&self.fallen),
            switches: get(&self.switches),
            devices_lost: get(&self.devices_lost),
            devices_gained: get(&self.devices_gained),
        }
    }
}

/// Counts by egress path until now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WayCounts {
    /// UDP and TCP packets taken by each way, in the order of [`EgressPath::ALL`].
    pub datagrams: [u64; EgressPath::COUNT],
    /// Those of AF_XDP, device by device.
    pub by_device: [u64; MAX_DEVICES],
    /// Bursts that an AF_XDP device did not take, or not whole, and that went by the kernel at once instead.
    pub fallen: u64,
    /// Times a stream changed its way for a better one.
    pub switches: u64,
    /// AF_XDP devices that failed.
    pub devices_lost: u64,
    /// AF_XDP devices that were opened or opened again.
    pub devices_gained: u64,
}

millrace_core::counters! {
    /// Counts of one path.
    pub struct PathCounters {
        /// UDP and TCP packets taken.
        sum datagrams,
    }
}

millrace_core::counters! {
    /// Results of the choice between paths.
    pub struct ChoiceCounters {
        /// Bursts that an AF_XDP device did not take, or not whole, and that went by the kernel at once instead.
        sum fallen,
        /// Times a stream changed its path for a better one.
        sum switches,
        /// AF_XDP devices that failed.
        sum devices_lost,
        /// AF_XDP devices that were opened or opened again.
        sum devices_gained,
    }
}

impl WayCounts {
    /// Returns the results of the choice.
    pub fn choice(&self) -> ChoiceCounters {
        let &Self { fallen, switches, devices_lost, devices_gained, .. } = self;
        ChoiceCounters { fallen, switches, devices_lost, devices_gained }
    }

    /// Packets by one way.
    pub fn by(&self, way: EgressPath) -> u64 {
        self.datagrams[way as usize]
    }
}

impl fmt::Display for WayCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [kernel, zero_copy, xdp] = self.datagrams;
        write!(f, "{kernel} packets by the kernel, {zero_copy} without its copy, {xdp} by AF_XDP")?;
        if self.devices_gained > 0 {
            write!(
                f,
                "; {} bursts fell back to the kernel, {} path changes, devices: {} opened, {} lost",
                self.fallen, self.switches, self.devices_gained, self.devices_lost
            )?;
        }
        Ok(())
    }
}
