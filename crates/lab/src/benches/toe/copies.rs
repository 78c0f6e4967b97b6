//! Cost of the application's copy alone: memcpy over the same walk, and the copy through the
//! engine's words with another processor at the other end, without sockets, requests or events: as
//! it is, and word by word.

use std::hint::{black_box, spin_loop};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use millrace_core::shared::{Region, WORD_BYTES, Words};

use super::rig::{Places, become_};
use super::work::TransferDirection;
use crate::frame::stats::median;
use crate::frame::ticks::clock;

/// Bytes of a chunk that the engine's side copies at once, as the engine does.
const PIECE: usize = 16 << 10;

/// Percents of a processor for each Gb/s, of a nanosecond a byte.
pub(super) const PERCENT_A_GBIT: f64 = 12.5;

/// Nanoseconds a byte.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copies {
    /// memcpy, by one processor alone.
    pub(super) bare: f64,
    /// Through words that the other processor writes or reads.
    pub(super) across: f64,
    /// The same, a word at a time.
    pub(super) word_by_word: f64,
}

/// How words are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Routine,
    WordByWord,
}

/// The shared memory.
struct Area(Vec<AtomicU64>);

impl Region for Area {
    fn words(&self) -> &[AtomicU64] {
        &self.0
    }
}

impl By {
    /// Copies to byte `at` of the area, which begins a word.
    fn write(self, words: &Words, area: &Area, at: usize, bytes: &[u8]) {
        if self == Self::Routine {
            words.write(at, bytes);
            return;
        }
        let words = &area.0[at / WORD_BYTES..];
        for (word, bytes) in words.iter().zip(bytes.as_chunks::<WORD_BYTES>().0) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
    }

    /// The same from there.
    fn read(self, words: &Words, area: &Area, at: usize, bytes: &mut [u8]) {
        if self == Self::Routine {
            words.read(at, bytes);
            return;
        }
        let words = &area.0[at / WORD_BYTES..];
        for (bytes, word) in bytes.as_chunks_mut::<WORD_BYTES>().0.iter_mut().zip(words) {
            *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        }
    }
}

/// Measures all over a walk of `walk` bytes, into or from an area of `area` bytes, which is used again and again.
pub(super) fn measure(
    way: TransferDirection,
    chunk: usize,
    walk: usize,
    area: usize,
    places: &Places,
    length: Duration,
) -> anyhow::Result<Copies> {
    let mut bytes = vec![0x47; walk.max(chunk)];
    let (app, other) = (places.app, places.engine);
    std::thread::scope(|scope| {
        let host = scope.spawn(|| -> anyhow::Result<Copies> {
            become_("bench-copy", app)?;
            let bare = bare(way, chunk, &mut bytes, area, length);
            let mut by = |by| across((way, by), chunk, &mut bytes, area, other, length);
            Ok(Copies { bare, across: by(By::Routine)?, word_by_word: by(By::WordByWord)? })
        });
        host.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// memcpy alone: percents of a processor for each Gb/s.
pub(super) fn memcpy(
    way: TransferDirection,
    chunk: usize,
    walk: usize,
    area: usize,
    places: &Places,
    length: Duration,
) -> anyhow::Result<f64> {
    let app = places.app;
    let host = std::thread::spawn(move || -> anyhow::Result<f64> {
        become_("bench-copy", app)?;
        Ok(bare(way, chunk, &mut vec![0x47; walk.max(chunk)], area, length) * PERCENT_A_GBIT)
    });
    host.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Median of the chunks: what interrupts a chunk is no copy.
fn bare(way: TransferDirection, chunk: usize, walk: &mut [u8], area: usize, length: Duration) -> f64 {
    let mut area = vec![1_u8; area.max(chunk)];
    let mut took = Vec::new();
    let end = Instant::now() + length;
    let slots = area.len() / chunk;
    for n in 0.. {
        if n % 16 == 0 && Instant::now() >= end && n > walk.len() / chunk {
            break;
        }
        let at = n % (walk.len() / chunk) * chunk;
        let (mine, shared) = (&mut walk[at..at + chunk], &mut area[n % slots * chunk..][..chunk]);
        let from = clock().now();
        match way {
            TransferDirection::Send => shared.copy_from_slice(mine),
            TransferDirection::Receive => mine.copy_from_slice(shared),
        }
        took.push(clock().ns(from, clock().now()));
        black_box((mine, shared));
    }
    median(&took) / chunk as f64
}

/// The other side takes or fills each chunk of the area on its processor before it is used again.
fn across(
    (way, by): (TransferDirection, By),
    chunk: usize,
    walk: &mut [u8],
    area: usize,
    other: usize,
    length: Duration,
) -> anyhow::Result<f64> {
    let slots = (area / chunk).max(2) as u64;
    let area = Arc::new(Area((0..slots as usize * chunk / WORD_BYTES).map(|_| AtomicU64::new(0)).collect()));
    let words = Words::over(Arc::clone(&area) as Arc<dyn Region>);
    let (put, taken, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let at = |n: u64| (n % slots) as usize * chunk;
    std::thread::scope(|scope| {
        let far = scope.spawn(|| -> anyhow::Result<()> {
            become_("bench-copy", other)?;
            let mut piece = vec![0x47; PIECE.min(chunk)];
            for n in 0.. {
                // When sending, it takes the data put there; when receiving, it puts data where
                // there is room.
                let is_there = || match way {
                    TransferDirection::Send => put.load(Ordering::Acquire) > n,
                    TransferDirection::Receive => n < taken.load(Ordering::Acquire) + slots,
                };
                while !is_there() {
                    if stop.load(Ordering::Relaxed) {
                        return Ok(());
                    }
                    spin_loop();
                }
                for skip in (0..chunk).step_by(piece.len()) {
                    match way {
                        TransferDirection::Send => by.read(&words, &area, at(n) + skip, &mut piece),
                        TransferDirection::Receive => by.write(&words, &area, at(n) + skip, &piece),
                    }
                }
                let mine = if way == TransferDirection::Send { &taken } else { &put };
                mine.store(n + 1, Ordering::Release);
            }
            Ok(())
        });
        let end = Instant::now() + length;
        let mut took = Vec::new();
        for n in 0.. {
            let is_there = || match way {
                TransferDirection::Send => n < taken.load(Ordering::Acquire) + slots,
                TransferDirection::Receive => put.load(Ordering::Acquire) > n,
            };
            while !is_there() && !far.is_finished() {
                spin_loop();
            }
            if far.is_finished() || Instant::now() >= end && n as usize > walk.len() / chunk {
                break;
            }
            let from_walk = n as usize % (walk.len() / chunk) * chunk;
            let mine = &mut walk[from_walk..from_walk + chunk];
            let from = clock().now();
            match way {
                TransferDirection::Send => by.write(&words, &area, at(n), mine),
                TransferDirection::Receive => by.read(&words, &area, at(n), mine),
            }
            took.push(clock().ns(from, clock().now()));
            let own = if way == TransferDirection::Send { &put } else { &taken };
            own.store(n + 1, Ordering::Release);
        }
        stop.store(true, Ordering::Relaxed);
        far.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok(median(&took) / chunk as f64)
    })
}
