//! Every order in which threads can run, for what in this crate is shared without a lock: `cargo xtask loom`.
#![cfg(millrace_loom)]

use std::sync::Arc;

use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use millrace_core::ids::TitleRef;
use millrace_core::packet::WireLayout;
use millrace_core::pool::{ExtentArena, ExtentContent, HeapRegion, Lease};
use millrace_core::shared::{ENTRY_WORDS, RECORD_WORDS, RingConsumer, RingProducer, Words};
use millrace_core::sleep::SleepFlag;

fn arena() -> Arc<ExtentArena> {
    ExtentArena::new(Box::new(HeapRegion::new(1)))
}

fn content() -> ExtentContent {
    ExtentContent {
        title: TitleRef(1),
        number: 0,
        first_packet: 0,
        packets: 1,
        last_packet_bytes: 1316,
        layout: WireLayout::new(1316).unwrap(),
        spare: 0,
    }
}

fn fill(arena: &Arc<ExtentArena>, value: u8) -> bool {
    let Some(mut fill) = arena.fill(0) else { return false };
    fill.bytes_mut()[0] = value;
    fill.publish();
    true
}

fn read(lease: &Lease) -> u8 {
    lease.bytes()[0]
}

#[test]
fn lend_during_fill_returns_none_or_filled_data() {
    loom::model(|| {
        let arena = arena();
        let reader = Arc::clone(&arena);
        let reader = thread::spawn(move || reader.lend(0, content()).map(|lease| read(&lease)));
        assert!(fill(&arena, 7));
        assert!(matches!(reader.join().unwrap(), None | Some(7)));
    });
}

#[test]
fn reclaim_succeeds_only_after_last_lease_is_dropped() {
    loom::model(|| {
        let arena = arena();
        assert!(fill(&arena, 1));
        let lease = arena.lend(0, content()).unwrap();
        let second = lease.clone();
        let readers = [lease, second].map(|lease| {
            thread::spawn(move || {
                assert_eq!(read(&lease), 1);
                drop(lease);
            })
        });
        if arena.reclaim(0) {
            assert!(fill(&arena, 2), "nobody else fills");
            assert_eq!(arena.lend(0, content()).map(|lease| read(&lease)), Some(2));
        }
        for reader in readers {
            reader.join().unwrap();
        }
    });
}

#[test]
fn fill_from_two_threads_succeeds_once() {
    loom::model(|| {
        let arena = arena();
        let other = Arc::clone(&arena);
        let other = thread::spawn(move || fill(&other, 1));
        let own = fill(&arena, 2);
        assert!(own != other.join().unwrap());
        let found = arena.lend(0, content()).map(|lease| read(&lease));
        assert_eq!(found, Some(if own { 2 } else { 1 }));
    });
}

/// The readable part of an extent only grows, and is the data written. The model knows for each
/// packet which thread reads and which thread writes it.
#[test]
fn lease_of_growing_extent_exposes_only_written_packets() {
    loom::model(|| {
        let arena = arena();
        let layout = content().layout;
        let mut growing = arena.fill(0).unwrap().grow(layout);
        let reader = Arc::clone(&arena);
        let reader = thread::spawn(move || {
            let mut seen = 0;
            for _ in 0..2 {
                let Some(lease) = reader.lend(0, ExtentContent { packets: 196, ..content() }) else {
                    continue;
                };
                let packets = lease.content().packets;
                assert!(packets >= seen, "it has become less");
                seen = packets;
                for place in 0..packets {
                    assert_eq!(lease.wire(place, 1)[0], place as u8 + 1);
                    assert_eq!(lease.metas(place, 1)[0][0], place as u8 + 1);
                }
            }
        });
        for packet in 1..=2 {
            let (slots, records) = growing.room();
            (slots[0], records[0][0]) = (packet, packet);
            growing.advance(1);
        }
        drop(growing);
        reader.join().unwrap();
    });
}

#[test]
fn reclaim_of_growing_extent_succeeds_only_after_its_writer() {
    loom::model(|| {
        let arena = arena();
        let mut growing = arena.fill(0).unwrap().grow(content().layout);
        growing.advance(1);
        let writer = thread::spawn(move || {
            growing.room().0[0] = 1;
            growing.advance(1);
        });
        if arena.reclaim(0) {
            assert!(fill(&arena, 2), "nobody else fills");
            let lease = arena.lend(0, content()).unwrap();
            assert_eq!((lease.grows(), read(&lease)), (false, 2));
        }
        writer.join().unwrap();
    });
}

/// The counterpart of the real bell's descriptor.
#[derive(Default)]
struct Wake {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Wake {
    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.changed.notify_one();
    }

    fn sleep(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.changed.wait(rung).unwrap();
        }
        *rung = false;
    }
}

/// If a ring were lost, the sleeper would sleep for ever, which the model reports as a deadlock.
#[test]
fn sleep_flag_with_two_wakers_loses_no_wakeup() {
    loom::model(|| {
        let shared = Arc::new((SleepFlag::default(), AtomicU32::new(0), Wake::default()));
        let ringers = [1, 2].map(|_| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (flag, work, wake) = &*shared;
                work.fetch_add(1, Ordering::Relaxed);
                if flag.must_wake() {
                    wake.ring();
                }
            })
        });
        let (flag, work, wake) = &*shared;
        while work.load(Ordering::Relaxed) < 2 {
            let seen = work.load(Ordering::Relaxed);
            flag.announce();
            if work.load(Ordering::Relaxed) == seen && seen < 2 {
                wake.sleep();
            }
            flag.awake();
        }
        for ringer in ringers {
            ringer.join().unwrap();
        }
    });
}

/// Three records pass a ring of two entries: each comes whole, once and in order, and bytes that
/// were written before it are there. The consumer is the other thread, so that the model lets it
/// read old values where there is no order.
#[test]
fn ring_record_arrives_whole_after_earlier_writes() {
    loom::model(|| {
        const ENTRIES: usize = 2;
        const AREA: usize = ENTRIES * ENTRY_WORDS;
        let words = Words::new(AREA + 1);
        let mut producer = RingProducer::new(&words, 0, ENTRIES as u32).unwrap();
        let mut consumer = RingConsumer::new(&words, 0, ENTRIES as u32).unwrap();
        let theirs = words.clone();
        let check = move |consumer: &mut RingConsumer, got: u64| {
            let Some(record) = consumer.pop() else { return got };
            assert_eq!(record, [got + 1; RECORD_WORDS]);
            let mut byte = [0];
            assert!(theirs.read(AREA * 8 + 1, &mut byte));
            assert_eq!(byte, [7]);
            got + 1
        };
        let thread = thread::spawn(move || {
            let mut got = check(&mut consumer, 0);
            if got == 0 {
                thread::yield_now();
            }
            got = check(&mut consumer, got);
            (consumer, check, got)
        });
        assert!(words.write(AREA * 8 + 1, &[7]));
        let mut sent = 0;
        for _ in 0..3 {
            match producer.push(&[sent + 1; RECORD_WORDS]) {
                true => sent += 1,
                false => thread::yield_now(),
            }
        }
        let (mut consumer, check, mut got) = thread.join().unwrap();
        while got < sent {
            let before = got;
            got = check(&mut consumer, got);
            assert!(got > before, "a record is lost");
        }
        assert!(!consumer.is_ready() && sent >= 2);
    });
}
