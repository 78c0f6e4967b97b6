//! An engine at a device that is given payload where it lies: the pages of the payload are taken away from this process during every turn of the
//! engine, so that one read of them would end it.
//!
//! 194 packets fill an extent but for its last page, which holds only the sums that the checksums are made of.

use millrace_core::limits::EXTENT_BYTES;
use millrace_core::pool::ExtentArena;
use millrace_netio::xdp::testing::{Guard, GuardedRegion, PAGE_BYTES};
use millrace_netio::xdp::{MemoryNic, MemoryPacket, Strategy, XdpQueues, XdpRaw, XdpRawConfig};
use millrace_tcp::send::{ExtentRange, SlotPart};

use super::sending::filled;
use super::*;
use crate::toe::xdp::access;

const PACKETS: u32 = 194;
const ALL: ExtentRange = ExtentRange { place: 0, skip: 0, bytes: PACKETS * 1316, part: SlotPart::Payloads };

/// One end of the wire: out by AF_XDP over rings in memory.
struct ChainedEnd {
    queues: XdpQueues,
    back: FrameQueue,
}

impl Device for ChainedEnd {
    fn receive(&mut self, take: &mut dyn FnMut(Inbound<'_>)) -> io::Result<bool> {
        let packet = self.back.lock().unwrap().pop_front();
        Ok(packet.inspect(|packet| take(Inbound::new(packet))).is_some())
    }

    fn send(&mut self, packet: &[u8]) -> io::Result<bool> {
        self.queues.send(packet).map_err(io::Error::other)
    }

    fn gather(&mut self, head: &[u8], body: &[&[u8]], _: &mut [u8]) -> io::Result<bool> {
        self.queues.gather(head, body).map_err(io::Error::other)
    }

    fn flush(&mut self, now: Instant) -> io::Result<bool> {
        self.queues.flush(now).map_err(io::Error::other)
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn access(&self) -> DeviceAccess {
        access(&self.queues)
    }
}

/// Side 0 behind such a device.
struct ChainedRig {
    rig: EnginePairRig,
    end: ChainedEnd,
    nic: MemoryNic,
    guard: Guard,
    arena: Arc<ExtentArena>,
    /// Packets that have arrived and whose descriptors the device still has.
    out: Vec<MemoryPacket>,
    /// Every nth packet is lost.
    lost_of: Option<usize>,
    sent: usize,
}

impl ChainedRig {
    fn new(change: impl Fn(&mut EngineSettings)) -> Self {
        let config = XdpRawConfig { frames: 64, send_frames: 256, ..XdpRawConfig::new("memory") };
        let aside = config.aside_extents();
        let (region, guard) = GuardedRegion::new((1 + aside as usize) * EXTENT_BYTES).unwrap();
        let arena = ExtentArena::with_aside(Box::new(region), aside);
        let (strategy, media) = (Some(Strategy::Chained), Some(Arc::clone(&arena)));
        let (raw, nic, ..) = XdpRaw::over_memory(&XdpRawConfig { strategy, media, ..config }).unwrap();
        let rig = EnginePairRig::new(change);
        let end = ChainedEnd { queues: XdpQueues::one(raw), back: Arc::clone(&rig.ends[0].back) };
        Self { rig, end, nic, guard, arena, out: Vec::new(), lost_of: None, sent: 0 }
    }

    /// A turn of side 0 that can read no payload. Its packets arrive.
    fn turn_unread(&mut self) {
        let payload = 0..EXTENT_BYTES - PAGE_BYTES;
        self.rig.now = self.rig.now.plus_ns(STEP_NS);
        self.guard.set_locked(payload.clone(), true).unwrap();
        self.rig.cores[0].turn(&mut self.end, self.rig.now).unwrap();
        self.guard.set_locked(payload, false).unwrap();
        while let Some(packet) = self.nic.take() {
            self.sent += 1;
            if self.lost_of.is_none_or(|each| !self.sent.is_multiple_of(each)) {
                self.rig.ends[0].out.lock().unwrap().push_back(packet.frame.clone());
            }
            self.out.push(packet);
        }
        self.rig.hosts[0].iter_mut().for_each(HostState::hear);
    }

    /// The device gives everything back, the last first.
    fn complete(&mut self) {
        for packet in self.out.drain(..).rev() {
            self.nic.complete(&packet);
        }
    }

    /// A turn of the other side; the bytes that its host reads are added to `got`.
    fn turn_peer(&mut self, socket: u32, got: &mut Vec<u8>) {
        let rig = &mut self.rig;
        rig.cores[1].turn(&mut rig.ends[1], rig.now).unwrap();
        rig.hosts[1].iter_mut().for_each(HostState::hear);
        let mut buffer = [0; 8192];
        while let Some(count) = rig.hosts[1][0].read(socket, &mut buffer, true).unwrap() {
            got.extend_from_slice(&buffer[..count]);
        }
        rig.hosts[1].iter_mut().for_each(HostState::give_back_all);
    }
}

#[test]
fn extents_leave_engine_unread_and_are_held_until_acknowledged_and_completed() {
    let mut chained = ChainedRig::new(|_| {});
    let (lease, payload) = filled(&chained.arena, PACKETS);
    assert!(lease.content().layout.meta_offset(0, PACKETS) >= EXTENT_BYTES - PAGE_BYTES);
    let (here, there) = chained.rig.connect(0, 0, PORT);
    let give = |chained: &mut ChainedRig| {
        let host = &mut chained.rig.hosts[0][0];
        assert_eq!(host.write(here, &[IoSlice::new(b"head")]).unwrap(), Some(4));
        assert_eq!(host.write_extent(here, &lease, ALL).unwrap(), Some(()));
    };
    let leases = |chained: &ChainedRig| chained.arena.leases(0);

    // Completed and not acknowledged: TCP still has it.
    give(&mut chained);
    chained.turn_unread();
    assert_eq!((leases(&chained), chained.out.is_empty()), (3, false), "the test's, TCP's, the device's");
    chained.complete();
    chained.turn_unread();
    assert_eq!(leases(&chained), 2, "the device has nothing");

    // All of it, the device always some turns behind.
    let (mut got, mut turns) = (Vec::new(), 0);
    let is_acknowledged = |chained: &mut ChainedRig| chained.rig.hosts[0][0].unacknowledged(here) == 0;
    while !is_acknowledged(&mut chained) {
        turns += 1;
        assert!(turns < 100_000, "{:?}", chained.rig.cores[0].counters);
        chained.turn_peer(there, &mut got);
        if turns % 3 == 0 {
            chained.complete();
        }
        chained.turn_unread();
    }
    assert!(got == [b"head", &payload[..]].concat(), "other bytes came than were sent");
    chained.complete();
    chained.turn_unread();
    assert_eq!(leases(&chained), 1);

    // Acknowledged and not completed: the device still has it.
    got.clear();
    give(&mut chained);
    while !is_acknowledged(&mut chained) {
        turns += 1;
        assert!(turns < 200_000, "{:?}", chained.rig.cores[0].counters);
        chained.turn_unread();
        chained.turn_peer(there, &mut got);
        // All but the first.
        let first = chained.out.drain(..1.min(chained.out.len())).collect();
        chained.complete();
        chained.out = first;
    }
    assert!(got == [b"head", &payload[..]].concat(), "other bytes came than were sent");
    assert_eq!(leases(&chained), 2, "the device's");
    chained.complete();
    chained.turn_unread();
    assert_eq!(leases(&chained), 1);

    let counters = &chained.rig.cores[0].counters;
    assert!(counters.packets_chained >= u64::from(2 * PACKETS), "{counters:?}");
    assert_eq!((counters.zero_copy, counters.rejected), (0, 0), "the kernel would copy");
    assert_eq!(chained.rig.cores[1].stack().counters().bad_checksums, 0);
}

/// The window has room for four packets and a part of one. The peer answers late, so that there are loss probes.
#[test]
fn retransmissions_and_loss_probes_leave_engine_unread() {
    let mut chained = ChainedRig::new(|settings| settings.stack.config.receive_bytes = 6_000);
    let (lease, payload) = filled(&chained.arena, PACKETS);
    let (here, there) = chained.rig.connect(0, 0, PORT);
    assert_eq!(chained.rig.hosts[0][0].write_extent(here, &lease, ALL).unwrap(), Some(()));
    chained.lost_of = Some(29);
    let (mut got, mut turns) = (Vec::new(), 0);
    while got.len() < payload.len() {
        turns += 1;
        assert!(turns < 200_000, "{:?}", chained.rig.cores[0].stack().counters());
        chained.turn_unread();
        chained.complete();
        if turns % 100 < 20 {
            chained.turn_peer(there, &mut got);
        }
    }
    assert!(got == payload, "other bytes came than were sent");
    let counters = chained.rig.cores[0].stack().counters();
    assert!(counters.retransmitted > 0, "{counters:?}");
}
