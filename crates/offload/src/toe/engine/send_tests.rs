//! Sending from a host's area: the bytes go from where they lie, the chunks come back, and a host
//! that writes there meanwhile harms no other.

use std::sync::atomic::AtomicBool;

use millrace_core::ids::TitleRef;
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::pool::{ExtentArena, ExtentContent, HeapRegion, Lease};
use millrace_core::time::MediaTicks;
use millrace_core::wire::checksum::sum16;
use millrace_tcp::send::{ExtentRange, SlotPart};

use super::*;
use crate::limits::EXTENTS_UNDER_WAY;

impl EnginePairRig {
    /// Turns of side 0 alone, as if the peer were far away.
    fn turn_alone(&mut self) {
        self.now = self.now.plus_ns(STEP_NS);
        self.cores[0].turn(&mut self.ends[0], self.now).unwrap();
        self.hosts[0].iter_mut().for_each(HostState::hear);
    }

    /// Overwrites all that host `host` of side 0 sends from.
    fn scribble(&self, host: usize, byte: u8) {
        let end = &self.cores[0].pairs[host].end;
        let bytes = vec![byte; end.layout.send_bytes as usize];
        assert!(end.words.write(end.layout.send(0), &bytes));
    }

    /// All bytes up to the end.
    fn read_all(&mut self, socket: u32) -> Vec<u8> {
        let (mut got, mut buffer) = (Vec::new(), [0; 8192]);
        self.until(|rig| {
            let count = rig.hosts[1][0].read(socket, &mut buffer, true).unwrap()?;
            got.extend_from_slice(&buffer[..count]);
            (count == 0).then_some(())
        });
        got
    }
}

/// Sets the flag when dropped, also by a panic: the thread that polls it ends, and so does any wait
/// for this thread.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn random_bytes(count: usize) -> Vec<u8> {
    let mut random = SplitMix(count as u64);
    (0..count).map(|_| random.next() as u8).collect()
}

/// Until it is closed a connection takes no page; then it needs no chunk, though nothing is acknowledged yet.
#[test]
fn close_with_free_host_pages_returns_chunks_at_once() {
    const BYTES: usize = 200_003;
    let mut rig = EnginePairRig::new(|_| {});
    let (here, there) = rig.connect(0, 0, PORT);
    let sent = random_bytes(BYTES);
    assert_eq!(rig.hosts[0][0].write(here, &[IoSlice::new(&sent)]).unwrap(), Some(BYTES));
    (0..3).for_each(|_| rig.turn_alone());
    let store = rig.cores[0].stack().store();
    assert_eq!((store.host_pages(), rig.cores[0].counters.sent_bytes), (0, BYTES as u64));
    assert!(store.used() > 0 && store.used() < 10, "{} descriptors", store.used());
    rig.hosts[0][0].close(here, false);
    (0..3).for_each(|_| rig.turn_alone());
    assert_eq!(rig.hosts[0][0].unused(), (16, 128), "sockets and chunks");
    assert!(rig.cores[0].stack().store().host_pages() >= 90, "nothing of it is acknowledged");
    rig.scribble(0, 0xff);
    assert!(rig.read_all(there) == sent, "other bytes came than were sent");
    rig.hosts[1][0].close(there, false);
    rig.until(|rig| rig.cores.iter().all(|core| core.stack().connections() == 0).then_some(()));
    assert_eq!(rig.cores[0].stack().store().used(), 0);
}

/// Without pages enough a closed socket stays until its bytes are acknowledged, and its chunks with it.
#[test]
fn close_without_host_pages_waits_for_acknowledgment() {
    const BYTES: usize = 200_003;
    let mut rig = EnginePairRig::new(|settings| settings.stack.host_pages = 32);
    let (here, there) = rig.connect(0, 0, PORT);
    let sent = random_bytes(BYTES);
    assert_eq!(rig.hosts[0][0].write(here, &[IoSlice::new(&sent)]).unwrap(), Some(BYTES));
    (0..3).for_each(|_| rig.turn_alone());
    rig.hosts[0][0].close(here, false);
    (0..100).for_each(|_| rig.turn_alone());
    assert_eq!(rig.hosts[0][0].unused().0, 15, "it is still there");
    assert_eq!(rig.cores[0].stack().store().free_host_pages(), 24, "the rest is for others");
    assert!(rig.cores[0].counters.short > 0);
    assert!(rig.read_all(there) == sent, "other bytes came than were sent");
    rig.hosts[1][0].close(there, false);
    rig.until(|rig| rig.cores.iter().all(|core| core.stack().connections() == 0).then_some(()));
    assert_eq!(rig.hosts[0][0].unused(), (16, 128), "sockets and chunks");
    assert_eq!(rig.cores[0].stack().store().used(), 0);
}

/// A host writes into its area without end, while segments are built and rebuilt because some are
/// lost: its peer gets as many bytes as were given, in segments with correct sums, and no other
/// host's bytes are changed.
#[test]
fn host_overwriting_its_send_area_corrupts_only_own_bytes() {
    const BYTES: usize = 400_000;
    let mut rig = EnginePairRig::new(|_| {});
    let (here, there) = rig.connect(0, 0, PORT);
    let (other, other_there) = rig.connect(1, 1, PORT + 1);
    let end = &rig.cores[0].pairs[0].end;
    let (words, first, count) = (end.words.clone(), end.layout.send(0), end.layout.send_bytes as usize);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut byte = 0_u8;
            while !is_over.load(Ordering::Relaxed) {
                byte = byte.wrapping_add(1);
                words.write(first, &vec![byte; count]);
            }
        });
        let _over = Over(&is_over);
        let (mut given, mut got, mut turns, mut lost) = (0, 0, 0, 0);
        rig.until(|rig| {
            turns += 1;
            if given < BYTES {
                given += rig.hosts[0][0].write(here, &[IoSlice::new(&[9; 5000])]).unwrap().unwrap_or(0);
            }
            if turns % 7 == 0 {
                rig.turn_alone();
                lost += usize::from(rig.ends[0].out.lock().unwrap().pop_front().is_some());
            }
            got += rig.hosts[1][0].read(there, &mut [0; 8192], true).unwrap().unwrap_or(0);
            (given >= BYTES && got == given).then_some(())
        });
        assert!(lost > 3, "{lost} packets were lost");
        rig.transfer((0, 1, other), (1, 1, other_there), BYTES);
    });
    let counters = rig.cores[1].stack().counters();
    assert_eq!((counters.bad_checksums, counters.malformed), (0, 0));
    assert!(rig.cores[0].stack().counters().retransmitted > 0, "nothing was sent again");
}

/// A host with much unacknowledged data takes no descriptor that another host needs.
#[test]
fn send_descriptors_of_one_host_leave_others_enough() {
    let mut rig = EnginePairRig::new(|settings| {
        settings.stack.descriptors = 256;
        settings.pair.receive_share = 1;
    });
    let greedy: Vec<u32> = (0..4).map(|port| rig.connect(0, 0, PORT + port).0).collect();
    let (other, there) = rig.connect(1, 1, PORT + 10);
    // Ranges that do not lie side by side: one descriptor each.
    for at in 0..4000_u32 {
        let (socket, offset) = (greedy[at as usize % 4], at * 64 % (128 * 8192));
        rig.hosts[0][0].inject(&HostRequest::Send { socket, offset, bytes: 40 }.encode());
        if at % 8 == 0 {
            rig.turn_alone();
        }
    }
    let store = rig.cores[0].stack().store();
    assert!(store.used() > 40 && store.free_descriptors() > 40, "{} used", store.used());
    assert!(rig.cores[0].counters.short > 0, "there was room for all of it");
    rig.transfer((0, 1, other), (1, 1, there), 300_000);
    rig.transfer((1, 1, there), (0, 1, other), 300_000);
}

/// The engine is asked once to say when there is room, however often a writer tries meanwhile; and so is it for all that was acknowledged.
#[test]
fn blocked_write_sends_single_request_for_space() {
    const SHARE: usize = 64 << 10;
    let mut rig = EnginePairRig::new(|settings| {
        settings.pair.send_share_bytes = SHARE as u32;
        settings.pair.wake_bytes = SHARE as u32 / 2;
    });
    let (here, there) = rig.connect(0, 0, PORT);
    assert_eq!(rig.hosts[0][0].write(here, &[IoSlice::new(&[1; SHARE])]).unwrap(), Some(SHARE));
    rig.turn_alone();
    let asked = rig.cores[0].counters.requests;
    for _ in 0..5 {
        assert_eq!(rig.hosts[0][0].write(here, &[IoSlice::new(b"more")]).unwrap(), None);
        assert_eq!(rig.hosts[0][0].room_for(here).unwrap(), 0);
        assert!(!rig.hosts[0][0].is_writable(here).unwrap() && !rig.hosts[0][0].is_flushed(here).unwrap());
        rig.turn_alone();
    }
    assert_eq!(rig.cores[0].counters.requests, asked + 1);
    // A wait for all acknowledgments does not wait for a peer that has reset the connection.
    rig.hosts[1][0].close(there, true);
    rig.until(|rig| rig.hosts[0][0].take_fault(here));
    assert!(rig.hosts[0][0].is_flushed(here).unwrap());
}

/// An arena with one extent of 20 packets; its bytes without the headers.
fn extent() -> (Arc<ExtentArena>, Lease, Vec<u8>) {
    let arena = ExtentArena::new(Box::new(HeapRegion::new(1)));
    let (lease, payload) = filled(&arena, 20);
    (arena, lease, payload)
}

/// The first extent of an arena with packets in it; their bytes without the headers.
pub(super) fn filled(arena: &Arc<ExtentArena>, packets: u32) -> (Lease, Vec<u8>) {
    let layout = WireLayout::new(1316).unwrap();
    let content = ExtentContent {
        title: TitleRef(3),
        number: 0,
        first_packet: 0,
        packets,
        last_packet_bytes: 1316,
        layout,
        spare: 0,
    };
    let (mut fill, mut payload) = (arena.fill(0).unwrap(), Vec::new());
    let (mut random, bytes) = (SplitMix(4), fill.bytes_mut());
    for packet in 0..packets {
        let at = packet as usize * layout.slot_bytes() + layout.header_bytes();
        let of_packet = &mut bytes[at..at + 1316];
        of_packet.iter_mut().for_each(|byte| *byte = random.next() as u8);
        payload.extend_from_slice(of_packet);
        let meta = PacketMeta::new(sum16(of_packet), 0, MediaTicks(0)).to_bytes();
        let record = layout.meta_offset(packet, packets);
        bytes[record..record + meta.len()].copy_from_slice(&meta);
    }
    fill.publish();
    (arena.lend(0, content).unwrap(), payload)
}

const ALL: ExtentRange = ExtentRange { place: 0, skip: 0, bytes: 20 * 1316, part: SlotPart::Payloads };

/// Between bytes that are written, more often than there may be ranges under way; the leases go back as they are acknowledged.
#[test]
fn extents_are_sent_from_where_they_lie() {
    let (arena, lease, payload) = extent();
    let mut rig = EnginePairRig::new(|_| {});
    let (here, there) = rig.connect(0, 0, PORT);
    let mut sent = Vec::new();
    rig.hosts[0][0].write(here, &[IoSlice::new(b"head")]).unwrap();
    assert_eq!(rig.hosts[0][0].write_extent(here, &lease, ALL).unwrap(), Some(()));
    rig.hosts[0][0].write(here, &[IoSlice::new(b"tail")]).unwrap();
    sent.extend([b"head", &payload[..], b"tail"].concat());
    (0..3).for_each(|_| rig.turn_alone());
    assert_eq!((rig.cores[0].stack().store().host_pages(), arena.leases(0)), (0, 2));
    let (mut got, mut buffer, mut count) = (Vec::new(), [0; 8192], 0);
    let all = EXTENTS_UNDER_WAY + 100;
    rig.until(|rig| {
        let range = ExtentRange { place: count % 20, skip: 5, bytes: 700, part: SlotPart::Payloads };
        if count < all && rig.hosts[0][0].write_extent(here, &lease, range).unwrap().is_some() {
            sent.extend_from_slice(&payload[(count % 20) as usize * 1316 + 5..][..700]);
            count += 1;
        }
        let came = rig.hosts[1][0].read(there, &mut buffer, true).unwrap().unwrap_or(0);
        got.extend_from_slice(&buffer[..came]);
        (count == all && got.len() == sent.len()).then_some(())
    });
    assert!(got == sent, "other bytes came than were sent");
    rig.until(|rig| (rig.hosts[0][0].unacknowledged(here) == 0).then_some(()));
    assert_eq!((arena.leases(0), rig.cores[0].counters.rejected), (1, 0));
    assert_eq!(rig.hosts[0][0].unused().1, 128, "chunks");
}

/// One range goes over the share, as the last byte of a write does not; then its writer waits until the peer has acknowledged enough.
#[test]
fn write_extent_over_send_share_blocks_until_acknowledged() {
    let (arena, lease, _) = extent();
    let mut rig = EnginePairRig::new(|settings| {
        (settings.pair.send_share_bytes, settings.pair.wake_bytes) = (40_000, 20_000)
    });
    let (here, there) = rig.connect(0, 0, PORT);
    for given in [Some(()), Some(()), None] {
        assert_eq!(rig.hosts[0][0].write_extent(here, &lease, ALL).unwrap(), given);
    }
    assert_eq!((arena.leases(0), rig.hosts[0][0].unacknowledged(here)), (3, 2 * u64::from(ALL.bytes)));
    rig.until(|rig| {
        let _ = rig.hosts[1][0].read(there, &mut [0; 8192], true).unwrap();
        rig.hosts[0][0].write_extent(here, &lease, ALL).unwrap()
    });
}

/// The host closes, aborts, or is aborted by its peer: the data given is sent or not, and no lease
/// is kept.
#[test]
fn leases_go_back_however_a_connection_ends() {
    for end in 0..3 {
        let (arena, lease, payload) = extent();
        let mut rig = EnginePairRig::new(|_| {});
        let (here, there) = rig.connect(0, 0, PORT);
        // More than the stack takes ahead.
        for _ in 0..15 {
            assert_eq!(rig.hosts[0][0].write_extent(here, &lease, ALL).unwrap(), Some(()));
        }
        (0..3).for_each(|_| rig.turn_alone());
        assert_eq!(arena.leases(0), 16);
        match end {
            0 => {
                rig.hosts[0][0].close(here, false);
                assert!(rig.read_all(there) == payload.repeat(15), "other bytes came than were sent");
                rig.hosts[1][0].close(there, false);
            }
            1 => rig.hosts[0][0].close(here, true),
            _ => {
                rig.hosts[1][0].close(there, true);
                rig.until(|rig| rig.hosts[0][0].take_fault(here));
            }
        }
        rig.until(|_| (arena.leases(0) == 1).then_some(()));
        rig.hosts[0][0].close(here, false);
        rig.until(|rig| (rig.hosts[0][0].unused().0 == 16).then_some(()));
    }
}

/// The extent cannot be supplied again: it stays although there is no progress, and sending
/// continues.
#[test]
fn write_extent_to_stalled_peer_keeps_lease_until_delivered() {
    let (arena, lease, payload) = extent();
    let mut rig = EnginePairRig::new(|_| {});
    let (here, there) = rig.connect(0, 0, PORT);
    assert_eq!(rig.hosts[0][0].write_extent(here, &lease, ALL).unwrap(), Some(()));
    // Longer than a lease stays if its extent can be supplied again.
    for _ in 0..25 {
        rig.now = rig.now.plus_ns(100_000_000);
        rig.turn_alone();
        rig.ends[0].out.lock().unwrap().clear();
    }
    assert_eq!(arena.leases(0), 2);
    rig.hosts[0][0].shut_write(here).unwrap();
    assert!(rig.read_all(there) == payload, "other bytes came than were sent");
    assert_eq!(arena.leases(0), 1);
    // A request without an extent is a wrong one.
    let before = rig.cores[0].counters.rejected;
    assert!(rig.hosts[0][0].inject(&HostRequest::SendExtent { socket: here }.encode()));
    rig.turn();
    assert_eq!(rig.cores[0].counters.rejected, before + 1);
}
