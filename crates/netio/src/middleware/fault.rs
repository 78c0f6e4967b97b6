//! A bad network from a seed: the same seed and the same calls give the same faults.

use millrace_core::ids::StreamId;
use millrace_core::limits::{MAX_PACKET_BYTES, RTP_HEADER_BYTES};
use millrace_core::seam::{Dest, PacketTx, Payload, SendOutcome, Transmit, TransmitBatch};

use crate::null::SliceBatch;
use crate::shape::Shape;
use millrace_core::random::SplitMix;

/// Datagrams held back at once.
const HOLDERS: usize = 32;
/// Longest datagram that can be held back.
const HOLDER_BYTES: usize = RTP_HEADER_BYTES + MAX_PACKET_BYTES;

/// How bad the network is. Probabilities are in parts of a million, drawn for each datagram or each entry.
///
/// Datagrams are lost, doubled and reordered on UDP only: TCP mends that itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// A datagram disappears; it counts as taken, as on a lossy link.
    pub drop_ppm: u32,
    /// A datagram goes out twice.
    pub duplicate_ppm: u32,
    /// A datagram is held back until 1 to [`FaultPlan::reorder_distance`] later ones of its stream have passed.
    pub reorder_ppm: u32,
    /// Farthest that a datagram is carried back; 0 counts as 1.
    pub reorder_distance: u16,
    /// An entry is answered `Blocked` after a random number of its datagrams.
    pub block_ppm: u32,
    /// An entry is answered `Unreachable` (EHOSTUNREACH) and disappears.
    pub unreachable_ppm: u32,
}

/// What a [`FaultTx`] has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounters {
    /// Datagrams lost by plan.
    pub dropped: u64,
    /// Datagrams sent twice.
    pub duplicated: u64,
    /// Datagrams held back.
    pub reordered: u64,
    /// Held or doubled datagrams lost because the device inside would not take them.
    pub lost: u64,
    /// Entries blocked by plan.
    pub blocked: u64,
    /// Entries refused by plan.
    pub unreachable: u64,
}

/// A datagram that is held back.
struct Holder {
    stream: StreamId,
    dest: Dest,
    rtcp: bool,
    busy: bool,
    /// Datagrams of the stream that still have to pass.
    wait: u16,
    length: usize,
    bytes: Box<[u8]>,
}

/// Loses, doubles and reorders datagrams, blocks and refuses entries. Allocates in [`FaultTx::new`] only.
pub struct FaultTx<T> {
    inner: T,
    plan: FaultPlan,
    random: SplitMix,
    holders: Box<[Holder]>,
    counters: FaultCounters,
}

/// What happens to one datagram.
enum Fate {
    Pass,
    Drop,
    Duplicate,
    Hold(u16),
}

impl<T: PacketTx> FaultTx<T> {
    /// Around `inner`, with the faults of `plan` drawn from `seed`.
    pub fn new(inner: T, seed: u64, plan: FaultPlan) -> Self {
        let nobody = Dest::Udp { rtp: ([0, 0, 0, 0], 0).into(), rtcp: ([0, 0, 0, 0], 0).into() };
        let holder = || Holder {
            stream: StreamId { index: 0, generation: 0 },
            dest: nobody,
            rtcp: false,
            busy: false,
            wait: 0,
            length: 0,
            bytes: vec![0; HOLDER_BYTES].into(),
        };
        Self {
            inner,
            plan,
            random: SplitMix(seed),
            holders: (0..HOLDERS).map(|_| holder()).collect(),
            counters: FaultCounters::default(),
        }
    }

    /// What was done so far.
    pub fn counters(&self) -> FaultCounters {
        self.counters
    }

    /// Other faults from now on.
    pub fn set_plan(&mut self, plan: FaultPlan) {
        self.plan = plan;
    }

    /// Sends what is held back.
    pub fn release_all(&mut self) {
        for index in 0..self.holders.len() {
            if self.holders[index].busy {
                self.release(index);
            }
        }
    }

    /// The device inside.
    pub fn inner(&mut self) -> &mut T {
        &mut self.inner
    }

    /// The device inside, for good; what is held back is lost.
    pub fn into_inner(self) -> T {
        self.inner
    }

    fn one(&mut self, transmit: &Transmit<'_>) -> SendOutcome {
        let shape = match Shape::of(transmit.payload) {
            Ok(shape) => shape,
            Err(errno) => return SendOutcome::Unreachable { errno },
        };
        if self.random.hits(self.plan.unreachable_ppm) {
            self.counters.unreachable += 1;
            return SendOutcome::Unreachable { errno: libc::EHOSTUNREACH };
        }
        let all = shape.datagrams();
        let stop = if all > 0 && self.random.hits(self.plan.block_ppm) {
            self.counters.blocked += 1;
            self.random.below(all as u64) as usize
        } else {
            all
        };
        let outcome = match transmit.dest {
            Dest::Udp { .. } => self.pass_udp(transmit, &shape, stop),
            Dest::Tcp { .. } => self.pass(transmit, 0, stop),
        };
        match outcome {
            SendOutcome::Sent if stop < all => SendOutcome::Blocked { taken: stop as u16 },
            other => other,
        }
    }

    /// Sends datagrams `0..stop` with their faults. Those that simply pass go on in as few pieces as can be.
    fn pass_udp(&mut self, transmit: &Transmit<'_>, shape: &Shape<'_>, stop: usize) -> SendOutcome {
        let mut first = 0;
        for index in 0..stop {
            let fate = self.fate(shape.datagram_bytes(index));
            let due = self.count_past(transmit.stream);
            if matches!(fate, Fate::Pass) && !due {
                continue;
            }
            let passes = matches!(fate, Fate::Pass | Fate::Duplicate);
            match self.pass(transmit, first, index + usize::from(passes)) {
                SendOutcome::Sent => first = index + 1,
                other => return other,
            }
            match fate {
                Fate::Pass => {}
                Fate::Drop => self.counters.dropped += 1,
                Fate::Duplicate => {
                    self.counters.duplicated += 1;
                    let again = self.pass(transmit, index, index + 1);
                    self.counters.lost += u64::from(again != SendOutcome::Sent);
                }
                Fate::Hold(_) => {}
            }
            if due {
                self.release_due(transmit.stream);
            }
            if let Fate::Hold(wait) = fate {
                self.hold(transmit, shape, index, wait);
            }
        }
        self.pass(transmit, first, stop)
    }

    fn fate(&mut self, bytes: usize) -> Fate {
        if self.random.hits(self.plan.drop_ppm) {
            Fate::Drop
        } else if self.random.hits(self.plan.duplicate_ppm) {
            Fate::Duplicate
        } else if self.random.hits(self.plan.reorder_ppm) {
            let wait = 1 + self.random.below(u64::from(self.plan.reorder_distance.max(1))) as u16;
            let room = bytes <= HOLDER_BYTES && self.holders.iter().any(|h| !h.busy);
            if room { Fate::Hold(wait) } else { Fate::Pass }
        } else {
            Fate::Pass
        }
    }

    /// Hands datagrams `first..until` of an entry to the device inside; of a block, says how many of the whole entry
    /// were taken.
    fn pass(&mut self, transmit: &Transmit<'_>, first: usize, until: usize) -> SendOutcome {
        if first >= until {
            return SendOutcome::Sent;
        }
        let cut = |bytes: &'_ [u8], unit: usize| first * unit..(until * unit).min(bytes.len());
        let payload = match transmit.payload {
            Payload::Wire { bytes, segment } => Payload::Wire { bytes: &bytes[cut(bytes, segment)], segment },
            Payload::Patched { headers, bytes, segment } => Payload::Patched {
                headers: &headers[cut(headers, RTP_HEADER_BYTES)],
                bytes: &bytes[cut(bytes, segment)],
                segment,
            },
            Payload::Rtcp(bytes) => Payload::Rtcp(bytes),
        };
        match self.give(Transmit { payload, ..*transmit }) {
            SendOutcome::Blocked { taken } => SendOutcome::Blocked { taken: taken + first as u16 },
            other => other,
        }
    }

    fn give(&mut self, transmit: Transmit<'_>) -> SendOutcome {
        let mut outcome = [SendOutcome::Sent];
        self.inner.send(&SliceBatch(&[transmit]), &mut outcome);
        outcome[0]
    }

    fn hold(&mut self, transmit: &Transmit<'_>, shape: &Shape<'_>, index: usize, wait: u16) {
        let Some(holder) = self.holders.iter_mut().find(|h| !h.busy) else { return };
        holder.busy = true;
        holder.wait = wait;
        holder.stream = transmit.stream;
        holder.dest = transmit.dest;
        holder.rtcp = matches!(transmit.payload, Payload::Rtcp(_));
        holder.length = 0;
        for part in shape.parts(index, 1) {
            holder.bytes[holder.length..][..part.len()].copy_from_slice(part);
            holder.length += part.len();
        }
        self.counters.reordered += 1;
    }

    /// Counts one more datagram of the stream past those held back; whether one of them is due now.
    fn count_past(&mut self, stream: StreamId) -> bool {
        let mut due = false;
        for holder in self.holders.iter_mut().filter(|h| h.busy && h.stream == stream) {
            holder.wait = holder.wait.saturating_sub(1);
            due |= holder.wait == 0;
        }
        due
    }

    fn release_due(&mut self, stream: StreamId) {
        for index in 0..self.holders.len() {
            let holder = &self.holders[index];
            if holder.busy && holder.wait == 0 && holder.stream == stream {
                self.release(index);
            }
        }
    }

    fn release(&mut self, index: usize) {
        let holder = &mut self.holders[index];
        holder.busy = false;
        let bytes = &holder.bytes[..holder.length];
        let payload = if holder.rtcp {
            Payload::Rtcp(bytes)
        } else {
            Payload::Wire { bytes, segment: bytes.len().max(1) }
        };
        let transmit = Transmit { stream: holder.stream, dest: holder.dest, payload };
        let mut outcome = [SendOutcome::Sent];
        self.inner.send(&SliceBatch(&[transmit]), &mut outcome);
        self.counters.lost += u64::from(outcome[0] != SendOutcome::Sent);
    }
}

impl<T: PacketTx> PacketTx for FaultTx<T> {
    fn send(&mut self, batch: &dyn TransmitBatch, outcomes: &mut [SendOutcome]) {
        for (index, outcome) in outcomes[..batch.len()].iter_mut().enumerate() {
            *outcome = self.one(&batch.get(index));
        }
    }
}

#[cfg(test)]
#[path = "fault_tests.rs"]
mod tests;
