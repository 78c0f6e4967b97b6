//! A network card in memory: takes descriptors as a driver does, shows the frames, and completes on
//! request.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use millrace_core::pool::ExtentArena;

use super::output::MemoryBell;
use super::ring::{Consumer, Desc, Producer};
use super::sys::read_memory;
use super::umem::CHUNK_BYTES;

/// Most descriptors of one packet that the kernel takes in copy mode.
const MAX_DESCRIPTORS: usize = 18;

/// A packet as a card has read it from the ring; its descriptors are out until it is given to [`MemoryNic::complete`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPacket {
    /// The frame, from the Ethernet header on.
    pub frame: Vec<u8>,
    /// Its descriptors.
    pub descriptors: Vec<Desc>,
}

/// The other end of an [`XdpTx`](super::XdpTx) over memory, or of the sending side of an
/// [`XdpRaw`](super::XdpRaw).
pub struct MemoryNic {
    tx: Consumer<Desc>,
    completion: Producer<u64>,
    arena: Arc<ExtentArena>,
    bell: Arc<MemoryBell>,
    invalid: u64,
}

impl MemoryNic {
    pub(super) fn new(
        tx: Consumer<Desc>,
        completion: Producer<u64>,
        arena: Arc<ExtentArena>,
        bell: Arc<MemoryBell>,
    ) -> Self {
        let nic = Self { tx, completion, arena, bell, invalid: 0 };
        nic.ask_for_wakeup(true);
        nic
    }

    /// Takes the next packet from the ring; its descriptors' places are free again. An invalid one is completed and
    /// counted, as the kernel does.
    pub fn take(&mut self) -> Option<MemoryPacket> {
        loop {
            let mut descriptors = Vec::new();
            loop {
                let desc = self.tx.pop()?;
                descriptors.push(desc);
                if !desc.more {
                    break;
                }
            }
            self.tx.release();
            let read = |d: &Desc| {
                let len = d.len as usize;
                (1..=CHUNK_BYTES).contains(&len).then(|| read_memory(&self.arena, d.address, len)).flatten()
            };
            let parts: Option<Vec<Vec<u8>>> = descriptors.iter().map(read).collect();
            match parts {
                Some(parts) if descriptors.len() <= MAX_DESCRIPTORS => {
                    return Some(MemoryPacket { frame: parts.concat(), descriptors });
                }
                _ => {
                    self.invalid += descriptors.len() as u64;
                    self.complete(&MemoryPacket { frame: Vec::new(), descriptors });
                }
            }
        }
    }

    /// Gives the descriptors of a packet back.
    ///
    /// # Panics
    /// If the completion ring is full: more was completed than was ever in the TX ring.
    pub fn complete(&mut self, packet: &MemoryPacket) {
        for desc in &packet.descriptors {
            assert!(self.completion.push(desc.address), "the completion ring is full");
        }
        self.completion.publish();
    }

    /// Completes an address that may not be outstanding at all, as a broken driver might do.
    pub fn complete_address(&mut self, address: u64) -> bool {
        let has_room = self.completion.push(address);
        self.completion.publish();
        has_room
    }

    /// Takes and completes everything that is in the ring; the frames in order.
    pub fn run(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        while let Some(packet) = self.take() {
            self.complete(&packet);
            frames.push(packet.frame);
        }
        frames
    }

    /// Whether the card wants a call when there is something in the ring (it does at first), or looks by itself.
    pub fn ask_for_wakeup(&self, wanted: bool) {
        self.tx.ask_for_wakeup(wanted);
    }

    /// Returns the number of calls.
    pub fn wakeups(&self) -> u64 {
        self.bell.rings.load(Ordering::SeqCst)
    }

    /// What calls answer from now on: an `errno`, or 0.
    pub fn answer(&self, errno: i32) {
        self.bell.errno.store(errno, Ordering::SeqCst);
    }

    /// Descriptors that were invalid.
    pub fn invalid_descriptors(&self) -> u64 {
        self.invalid
    }
}
