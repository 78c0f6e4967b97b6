//! Counts RTP and raw UDP streams at an interface and drops them there: what thousands of receivers would cost is not
//! spent, so that one machine can load a server without being the bottleneck itself.
//!
//! A BPF program at tcx ingress looks at every packet that the interface received. A datagram to a watched address and
//! port is judged like our own receiver would (sequence, lateness, jitter: see the words of [`ProbeCounts`]) and then
//! dropped, or passed on if the probe only counts. Everything else passes untouched: other ports, fragments, IPv6
//! packets with extension headers, packets for other hosts.
//!
//! The probe costs the sender of a veth pair, in whose call it runs, some 50 ns a packet and half
//! as much for each datagram of a train
//! (`cargo test -p millrace-load --lib cost_of_a_packet -- --ignored --nocapture`), more when the
//! state of thousands of streams does not fit the cache.
//!
//! What to know:
//! * A train of datagrams that segmentation offload kept together is counted datagram by datagram; they share one
//!   arrival time.
//! * Times are of the monotonic clock, taken when the packet reaches the interface. On a veth pair that is inside the
//!   sender's own call.
//! * One VLAN tag, which the kernel has taken off by then, is not looked at; frames with further tags pass.
//! * Checksums are not verified.
//! * CSRC lists, header extensions and padding count as payload.
//! * A stream is counted without locks: it must reach the machine through one queue at a time, as a flow does.
//! * Several probes may be at one interface. They see packets in the order in which they were attached, and none sees
//!   what one before it dropped.

mod error;
mod histogram;
mod interface;
mod layout;
mod ports;
mod program;

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use error::ProbeError;
use histogram::BINS;
use layout::ProbeSlot;
pub use layout::{ProbeCounts, ProbeTotals};
use millrace_netio::bpf::{BpfProgram, InterfaceLink, MappedArray, PerCpuArray, ProgramType};
use ports::Ports;
use program::{ArrivalClock, Form, Maps};

/// What happens to datagrams that were counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeAction {
    /// They end at the interface.
    Drop,
    /// They go on to their sockets.
    Pass,
}

/// Configuration of a probe.
#[derive(Clone, Debug)]
pub struct ProbeConfig {
    /// The receiving interface, in the network namespace of the thread that attaches.
    pub interface: String,
    /// Slots; each takes 3 KB of kernel memory, and the probe 4 MB.
    pub max_streams: u32,
    /// The action on counted packets.
    pub action: ProbeAction,
}

/// Clock of RTP timestamps of video and of transport streams (RFC 3551 section 5).
pub const VIDEO_CLOCK_HZ: u32 = 90_000;

/// The form of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeMedia {
    /// RTP of this payload type; anything else that comes is malformed.
    Rtp {
        /// Payload type, 0..=127.
        payload_type: u8,
        /// Ticks of the timestamp in a second.
        clock_hz: u32,
    },
    /// Datagrams without a header. Lateness is counted against this rate: a datagram is due when
    /// the data before it has had its time.
    Raw {
        /// Nominal rate.
        bytes_per_s: u64,
    },
}

impl ProbeMedia {
    /// RTP with the clock of video.
    pub fn rtp(payload_type: u8) -> Self {
        Self::Rtp { payload_type, clock_hz: VIDEO_CLOCK_HZ }
    }
}

/// A probe at an interface. It is gone when this is dropped, and when the process dies however it does.
#[derive(Debug)]
pub struct DropProbe {
    /// Where it is; none while it is being made.
    link: Option<InterfaceLink>,
    program: BpfProgram,
    /// Which ports are watched.
    ports: Mutex<Ports>,
    slots: MappedArray,
    totals: PerCpuArray,
    max_streams: u32,
    action: ProbeAction,
    /// Lateness of first packets whose slots were given to other streams.
    folded: Mutex<Vec<u64>>,
}

impl DropProbe {
    /// Puts a probe at an interface of the calling thread's network namespace.
    ///
    /// # Errors
    /// When there is no such interface or it is of an unknown kind, when the privileges are missing, or the kernel is
    /// older than 6.6.
    pub fn attach(config: &ProbeConfig) -> Result<Self, ProbeError> {
        let header_bytes = interface::link_header_bytes(&config.interface)?;
        let form = Form { action: config.action, header_bytes, arrival: ArrivalClock::Clock };
        let mut probe = Self::load(config.max_streams, form)?;
        probe.link = Some(InterfaceLink::attach(&probe.program, &config.interface)?);
        Ok(probe)
    }

    /// Program and maps that are at no interface yet.
    fn load(max_streams: u32, form: Form) -> Result<Self, ProbeError> {
        if max_streams == 0 {
            return Err(ProbeError::NoSlot { slot: 0, slots: 0 });
        }
        let ports = Ports::new(max_streams)?;
        let slots = MappedArray::new("probe_slots", layout::SLOT_WORDS, max_streams)?;
        let totals = PerCpuArray::new("probe_totals", (layout::TOTAL_WORDS + BINS) as u32)?;
        let (table, streams) = ports.maps();
        let maps = Maps { ports: table, streams, slots: &slots, totals: &totals };
        let program = BpfProgram::load("drop_probe", ProgramType::TcxIngress, program::build(&maps, form))?;
        let (action, folded) = (form.action, Mutex::new(vec![0; BINS]));
        let ports = Mutex::new(ports);
        Ok(Self { link: None, program, ports, slots, totals, max_streams, action, folded })
    }

    fn ports(&self) -> MutexGuard<'_, Ports> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slot(&self, slot: u32) -> Result<ProbeSlot<'_>, ProbeError> {
        let words = self.slots.entry(slot).filter(|_| slot < self.max_streams);
        words.map(ProbeSlot::new).ok_or(ProbeError::NoSlot { slot, slots: self.max_streams })
    }

    /// Counts UDP datagrams to `local` in `slot`, from zero. The unspecified address of a family means any address of
    /// that family; a watched address goes before it. An address that is watched already moves to the new slot.
    ///
    /// # Errors
    /// When there is no such slot, the media makes no sense, or all slots are watched.
    pub fn watch(&self, local: SocketAddr, slot: u32, media: ProbeMedia) -> Result<(), ProbeError> {
        let setting = layout::Setting::of(media)?;
        let state = self.slot(slot)?;
        // Nothing of the stream that had this address before may reach the slot while it is set up.
        let mut ports = self.ports();
        ports.remove(local)?;
        self.fold(&state);
        state.reset(&setting);
        ports.insert(local, slot)
    }

    /// Counts datagrams to `local` no longer: they pass. The slot keeps its counts.
    ///
    /// # Errors
    /// When the kernel refuses. It is no error if the address was not watched.
    pub fn unwatch(&self, local: SocketAddr) -> Result<(), ProbeError> {
        self.ports().remove(local)
    }

    /// Returns the counts of `slot`. Takes no system call.
    ///
    /// # Errors
    /// When there is no such slot.
    pub fn read(&self, slot: u32) -> Result<ProbeCounts, ProbeError> {
        Ok(self.slot(slot)?.counts())
    }

    /// The next packet of `slot` begins a run, as after PLAY: nothing is lost between two runs, and lateness is counted
    /// from a new baseline.
    ///
    /// # Errors
    /// When there is no such slot.
    pub fn begin_run(&self, slot: u32) -> Result<(), ProbeError> {
        self.slot(slot)?.next_run(0);
        Ok(())
    }

    /// From the next packet of `slot` on it is unknown which run a packet belongs to, as between
    /// the replies to PAUSE and PLAY: the packet is counted, but neither its lateness nor the gap
    /// in front of it. Ends with [`Self::begin_run`] or [`Self::resume_clock`].
    ///
    /// # Errors
    /// When there is no such slot.
    pub fn suspend_clock(&self, slot: u32) -> Result<(), ProbeError> {
        self.slot(slot)?.next_run(layout::UNTIMED | layout::CONTINUES);
        Ok(())
    }

    /// The next packet of `slot` begins a run whose numbers follow those before it: numbers missing
    /// between them are lost, and lateness is counted from a new baseline.
    ///
    /// # Errors
    /// When there is no such slot.
    pub fn resume_clock(&self, slot: u32) -> Result<(), ProbeError> {
        self.slot(slot)?.next_run(layout::CONTINUES);
        Ok(())
    }

    /// Returns the lateness of the packets of all slots since the probe was attached: lower edge in
    /// microseconds and number of packets of each bin that is not empty, in order. Bins are at most
    /// 1.6 % or 1.024 us wide; packets more than a minute late are in the last.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn lateness(&self) -> Result<Vec<(u64, u64)>, ProbeError> {
        let mut bins = self.folded.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let sums = self.totals.sums()?;
        for (bin, sum) in bins.iter_mut().zip(&sums[layout::TOTAL_WORDS..]) {
            *bin += sum;
        }
        for slot in 0..self.max_streams {
            self.slot(slot)?.add_learned(&mut bins);
        }
        Ok(histogram::edges(&bins))
    }

    /// Adds the packets that a slot holds back to the histogram, before the slot is cleared.
    fn fold(&self, slot: &ProbeSlot<'_>) {
        let mut folded = self.folded.lock().unwrap_or_else(PoisonError::into_inner);
        slot.add_learned(&mut folded);
    }

    /// Returns the counts of the packets that went through the program.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn totals(&self) -> Result<ProbeTotals, ProbeError> {
        Ok(ProbeTotals::of(&self.totals.sums()?, self.action))
    }
}

#[cfg(test)]
mod tests;
