//! The best egress path for each burst: kernel sockets, kernel sockets without the copy, AF_XDP.
//!
//! | file | holds |
//! | --- | --- |
//! | `plan` | classes of bursts, egress paths, and the path of each class |
//! | `paths` | traits of the kernel's path and of a device |
//! | `streams` | a stream's way, and when it may change |
//! | `view` | a part of a batch that looks like a batch |
//! | `exchange` | devices that come and go while the loop runs |
//! | `supervisor` | the thread that opens and closes them |
//! | `device` | the real devices behind the names that are used here |
//! | `measure` | the cost of a datagram on each path, here and now |
//! | `tally` | counts |
//!
//! ```text
//!              +-- kernel ---------> KernelTx::send            everything else, and what the others did not take
//!   batch -----+-- zero copy ------> KernelTx::send_zero_copy
//!              +-- interface 0..3 -> one AF_XDP device each    only what it can send
//! ```
//!
//! No packet is lost by the choice: datagrams that a device does not take go through the kernel in
//! the same call, and when a device fails its streams go on through the kernel. The best path is
//! found by measurement, see `docs/design/0007-egress-path.md`.

mod device;
mod exchange;
pub mod measure;
mod paths;
mod plan;
mod streams;
mod supervisor;
mod tally;
mod view;

pub use crate::limits::MAX_DEVICES;
use millrace_core::limits::MAX_BATCH_BURSTS;
use millrace_core::seam::{PacketTx, Payload, SendOutcome, Transmit, TransmitBatch};
use millrace_core::shape::DatagramShape;

pub use self::exchange::{DeviceSide, LoopSide, NewDevice, exchange};
pub use self::paths::{KernelPath, XdpDevice};
pub use self::plan::{Class, DeviceClass, EgressPath, EgressPlan};
pub use self::streams::SWITCH_AFTER;
use self::streams::StreamRouteTable;
pub use self::supervisor::{DeviceEvent, DeviceIndex, DeviceSupervisor, Opener};
pub use self::tally::{ChoiceCounters, PathCounters, Tally, WayCounts};
use self::view::{View, bits};
use crate::null::taken;

/// A device and when to use it.
struct DeviceSlot<D> {
    plan: EgressPlan,
    device: Option<D>,
}

/// Where an entry goes: the kernel, the kernel without the copy, a device.
const KERNEL: usize = 0;
const ZERO_COPY: usize = 1;
const FIRST_DEVICE: usize = 2;
const ROUTES: usize = FIRST_DEVICE + MAX_DEVICES;
/// Stands for no earlier entry.
const NOBODY: u8 = u8::MAX;

/// Sends each burst by the way that is best for it. Allocates in [`BestTx::new`] and never after.
pub struct BestTx<K, D> {
    kernel: K,
    /// For viewers whom no device can reach.
    base: EgressPlan,
    slots: [DeviceSlot<D>; MAX_DEVICES],
    /// Whether any slot has a device, or `base` uses more than one way: if not, there is nothing to choose.
    chooses: bool,
    streams: StreamRouteTable,
    exchange: LoopSide<D>,
    tally: std::sync::Arc<Tally>,
    /// Number of the batch.
    stamp: u32,
    /// Something was sent since the last [`BestTx::tend`].
    has_sent: bool,
    /// The kernel may still read data that it was asked not to copy.
    is_read: bool,
}

/// What one batch is while it is taken apart.
struct BatchParts<'a> {
    batch: &'a dyn TransmitBatch,
    first: usize,
    /// The payloads, checked once for all layers; `None`: it is no datagrams.
    shapes: [Option<DatagramShape<'a>>; MAX_BATCH_BURSTS],
    /// One bit for each entry, by where it goes.
    masks: [u64; ROUTES],
    /// The entry of the same stream before it.
    befores: [u8; MAX_BATCH_BURSTS],
    /// Datagrams of an entry that have left already.
    skips: [u16; MAX_BATCH_BURSTS],
}

impl<K: KernelPath, D: XdpDevice> BestTx<K, D> {
    /// Sends everything through the kernel, as `base` specifies, until devices arrive through
    /// `exchange`. `streams` is the size of the engine's table.
    pub fn new(kernel: K, base: EgressPlan, streams: usize, exchange: LoopSide<D>) -> Self {
        let mut tx = Self {
            kernel,
            base,
            slots: std::array::from_fn(|_| DeviceSlot { plan: EgressPlan::default(), device: None }),
            chooses: false,
            streams: StreamRouteTable::new(streams),
            exchange,
            tally: std::sync::Arc::default(),
            stamp: 0,
            has_sent: false,
            is_read: false,
        };
        tx.look_for_devices();
        tx
    }

    /// Where the counts can be read.
    pub fn tally(&self) -> std::sync::Arc<Tally> {
        std::sync::Arc::clone(&self.tally)
    }

    /// The kernel's way, for its connections.
    pub fn kernel(&self) -> &K {
        &self.kernel
    }

    /// The same, to change it.
    pub fn kernel_mut(&mut self) -> &mut K {
        &mut self.kernel
    }

    /// Called once a turn: devices take back everything that the kernel is done with, dead ones go,
    /// new ones come. Returns whether something is still under way, so that it should be called
    /// again soon.
    pub fn tend(&mut self) -> bool {
        self.look_for_devices();
        if !self.chooses {
            return false;
        }
        let mut under_way = false;
        for device in self.slots.iter_mut().filter_map(|slot| slot.device.as_mut()) {
            under_way |= device.tend();
        }
        self.give_up_dead_devices();
        // Sending looks after this by itself.
        if !std::mem::take(&mut self.has_sent) && self.is_read {
            self.is_read = self.kernel.reap();
        }
        under_way || self.is_read
    }

    /// Takes the devices that the supervisor has opened.
    fn look_for_devices(&mut self) {
        while let Some(NewDevice { slot, plan, device }) = self.exchange.arrival() {
            let Some(place) = self.slots.get_mut(slot) else { continue };
            *place = DeviceSlot { plan, device: Some(device) };
            self.tally.gained_device();
            self.chooses = true;
        }
        self.chooses |= self.base.uses(EgressPath::KernelZeroCopy);
    }

    /// Hands failed devices to the supervisor, which may wait while it closes them.
    fn give_up_dead_devices(&mut self) {
        for (number, slot) in self.slots.iter_mut().enumerate() {
            if !slot.device.as_ref().is_some_and(D::has_failed) {
                continue;
            }
            if let Some(device) = slot.device.take() {
                match self.exchange.depart(number, device) {
                    Ok(()) => self.tally.lost_device(),
                    // The ring has room for all devices: it is full only if another party fills it.
                    // Try again.
                    Err(device) => slot.device = Some(device),
                }
            }
        }
    }

    /// Where an entry goes.
    fn route(
        &mut self,
        transmit: &Transmit<'_>,
        shape: Option<&DatagramShape<'_>>,
        entry: usize,
        before: &mut u8,
    ) -> usize {
        let Some(shape) = shape.filter(|shape| shape.datagrams() > 0) else { return KERNEL };
        let is_media_by_udp = transmit.dest.conn().is_none() && !matches!(transmit.payload, Payload::Rtcp(_));
        if !is_media_by_udp {
            return KERNEL;
        }
        let Some(row) = self.streams.row(transmit.stream) else { return KERNEL };
        let can = |slot: &mut DeviceSlot<D>| {
            slot.device
                .as_mut()
                .is_some_and(|device| !device.has_failed() && device.can_send(transmit, shape))
        };
        // What follows in the same batch goes the same way, if it can.
        if let Some((earlier, route)) = row.earlier(self.stamp) {
            *before = earlier as u8;
            let device = route.checked_sub(FIRST_DEVICE);
            let still_can = device.is_none_or(|device| can(&mut self.slots[device]));
            let route = if still_can { route } else { KERNEL };
            row.note(self.stamp, entry, route);
            return route;
        }
        let known = row.device().filter(|&device| can(&mut self.slots[device]));
        let device = match known {
            Some(device) => Some(device),
            None if row.device().is_some() || row.asks() => {
                let found = self.slots.iter_mut().position(can);
                row.reached_by(found);
                found
            }
            None => None,
        };
        let plan = device.map_or(&self.base, |device| &self.slots[device].plan);
        let (way, has_changed) = row.settle(plan.way(Class::of(shape.datagrams())), device.is_some());
        if has_changed {
            self.tally.switched();
        }
        let route = match (way, device) {
            (EgressPath::Xdp, Some(device)) => FIRST_DEVICE + device,
            (EgressPath::KernelZeroCopy, _) => ZERO_COPY,
            _ => KERNEL,
        };
        row.note(self.stamp, entry, route);
        route
    }

    /// Sends at most [`MAX_BATCH_BURSTS`] entries from `first` on.
    fn send_some(&mut self, batch: &dyn TransmitBatch, first: usize, outcomes: &mut [SendOutcome]) {
        self.stamp = self.stamp.wrapping_add(1);
        self.has_sent = true;
        let mut parts = BatchParts {
            batch,
            first,
            shapes: [None; MAX_BATCH_BURSTS],
            masks: [0; ROUTES],
            befores: [NOBODY; MAX_BATCH_BURSTS],
            skips: [0; MAX_BATCH_BURSTS],
        };
        for entry in 0..outcomes.len() {
            let stream = batch.get(first + entry).stream;
            self.streams.expect(stream);
            self.slots
                .iter()
                .filter_map(|slot| slot.device.as_ref())
                .for_each(|device| device.expect(stream));
        }
        for entry in 0..outcomes.len() {
            let transmit = batch.get(first + entry);
            parts.shapes[entry] = DatagramShape::of(transmit.payload).ok();
            let route = self.route(&transmit, parts.shapes[entry].as_ref(), entry, &mut parts.befores[entry]);
            parts.masks[route] |= 1 << entry;
        }
        for slot in 0..MAX_DEVICES {
            if parts.masks[FIRST_DEVICE + slot] != 0 {
                self.send_by_device(slot, &mut parts, outcomes);
            }
        }
        hold_back(&mut parts, outcomes);
        for (route, way) in [(ZERO_COPY, EgressPath::KernelZeroCopy), (KERNEL, EgressPath::Kernel)] {
            let mask = parts.masks[route];
            if mask != 0 {
                let kernel = &mut self.kernel;
                parts.send_by(mask, outcomes, |batch, outcomes| match way {
                    EgressPath::KernelZeroCopy => kernel.send_zero_copy(batch, outcomes),
                    _ => kernel.send(batch, outcomes),
                });
                self.is_read |= way == EgressPath::KernelZeroCopy;
                self.tally.sent(way, count_taken(&parts, mask, outcomes));
            }
        }
    }

    /// Sends the datagrams of one device; those that it does not take are left to the kernel.
    fn send_by_device(&mut self, number: usize, parts: &mut BatchParts<'_>, outcomes: &mut [SendOutcome]) {
        let mask = std::mem::take(&mut parts.masks[FIRST_DEVICE + number]);
        let Some(device) = self.slots[number].device.as_mut() else {
            parts.masks[KERNEL] |= mask;
            return;
        };
        parts.send_by(mask, outcomes, |batch, outcomes| device.send(batch, outcomes));
        let failed = device.has_failed();
        self.tally.sent_by_device(number, count_taken(parts, mask, outcomes));
        let mut fallen = 0u64;
        for entry in bits(mask) {
            match outcomes[entry] {
                SendOutcome::Sent => {}
                SendOutcome::Blocked { .. } if !failed => {}
                SendOutcome::Blocked { taken } => {
                    parts.skips[entry] = taken;
                    fallen |= 1 << entry;
                }
                SendOutcome::Unreachable { .. } | SendOutcome::Closed { .. } => fallen |= 1 << entry,
            }
        }
        self.tally.fell(u64::from(fallen.count_ones()));
        parts.masks[KERNEL] |= fallen;
    }
}

impl BatchParts<'_> {
    /// Returns the datagrams of an entry, or the packets whose bytes it sends; none if it makes no
    /// sense.
    fn datagrams(&self, entry: usize) -> usize {
        match &self.shapes[entry] {
            Some(shape) => shape.datagrams(),
            None => datagrams_of(&self.batch.get(self.first + entry)),
        }
    }

    /// Hands the entries of `mask` to `send` and writes what became of them to their places in `outcomes`.
    fn send_by(
        &self,
        mask: u64,
        outcomes: &mut [SendOutcome],
        send: impl FnOnce(&dyn TransmitBatch, &mut [SendOutcome]),
    ) {
        let view = View::new(self.batch, self.first, mask, &self.shapes, &self.skips);
        let mut answers = [SendOutcome::Sent; MAX_BATCH_BURSTS];
        send(&view, &mut answers[..view.len()]);
        view.scatter(&answers, outcomes);
    }
}

/// If a device did not take everything of a stream (it will, later), the kernel must not send later
/// entries of the stream.
fn hold_back(parts: &mut BatchParts<'_>, outcomes: &mut [SendOutcome]) {
    for entry in bits(parts.masks[KERNEL] | parts.masks[ZERO_COPY]) {
        let before = usize::from(parts.befores[entry]);
        let to_kernel = parts.masks[KERNEL] | parts.masks[ZERO_COPY];
        let waits = parts.befores[entry] != NOBODY
            && to_kernel & 1 << before == 0
            && matches!(outcomes[before], SendOutcome::Blocked { .. });
        if waits {
            outcomes[entry] = SendOutcome::Blocked { taken: parts.skips[entry] };
            parts.masks[KERNEL] &= !(1 << entry);
            parts.masks[ZERO_COPY] &= !(1 << entry);
        }
    }
}

/// Datagrams of the chosen entries that were taken now.
fn count_taken(parts: &BatchParts<'_>, mask: u64, outcomes: &[SendOutcome]) -> u64 {
    bits(mask)
        .map(|entry| {
            let count = taken(&outcomes[entry], parts.datagrams(entry));
            count.saturating_sub(usize::from(parts.skips[entry])) as u64
        })
        .sum()
}

/// Datagrams of one entry that were taken.
fn taken_of(batch: &dyn TransmitBatch, index: usize, outcome: &SendOutcome) -> usize {
    taken(outcome, datagrams_of(&batch.get(index)))
}

/// Returns the datagrams of an entry, or the packets whose bytes it sends; none if it makes no
/// sense.
fn datagrams_of(transmit: &Transmit<'_>) -> usize {
    match transmit.payload {
        Payload::Bytes(range) => range.count as usize,
        payload => DatagramShape::of(payload).map_or(0, |shape| shape.datagrams()),
    }
}

impl<K: KernelPath, D: XdpDevice> PacketTx for BestTx<K, D> {
    fn send(&mut self, batch: &dyn TransmitBatch, outcomes: &mut [SendOutcome]) {
        let length = batch.len();
        assert!(outcomes.len() >= length, "{length} entries, room for {} outcomes", outcomes.len());
        let outcomes = &mut outcomes[..length];
        if !self.chooses {
            self.kernel.send(batch, outcomes);
            let taken = outcomes.iter().enumerate().map(|(index, outcome)| taken_of(batch, index, outcome));
            let sum = taken.sum::<usize>() as u64;
            return self.tally.sent(EgressPath::Kernel, sum);
        }
        let mut blocked = false;
        for (chunk, outcomes) in outcomes.chunks_mut(MAX_BATCH_BURSTS).enumerate() {
            // Nothing may overtake an earlier entry of its stream that was held back.
            if blocked {
                outcomes.fill(SendOutcome::Blocked { taken: 0 });
                continue;
            }
            self.send_some(batch, chunk * MAX_BATCH_BURSTS, outcomes);
            blocked = outcomes.iter().any(|outcome| matches!(outcome, SendOutcome::Blocked { .. }));
        }
        self.give_up_dead_devices();
    }
}

#[cfg(test)]
#[path = "egress_select_tests.rs"]
mod tests;
