//! Counters of the cache: written by the manager, read by anybody.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use millrace_core::ids::TitleRef;
use millrace_core::time::Instant;

use super::door::ReadFailure;

/// At most one [`Trouble`] is reported in this time.
const TROUBLE_INTERVAL_NS: u64 = 1_000_000_000;

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// What the cache has done and holds, at one moment. Every want is either a hit, a join or a miss.
        #[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
        pub struct CacheStats {
            $($(#[doc = $doc])+ pub $name: u64,)+
            /// Extents that are lent out now.
            pub leased: u64,
        }

        /// The live counters.
        #[derive(Default)]
        pub(super) struct Counters {
            $(pub(super) $name: Counter,)+
            trouble: Mutex<Troubles>,
        }

        impl Counters {
            /// All counters but `leased`, which the arena knows.
            pub(super) fn snapshot(&self) -> CacheStats {
                CacheStats { $($name: self.$name.get(),)+ leased: 0 }
            }
        }
    };
}

counters! {
    /// Extents in the arena.
    extents,
    /// Extents that hold nothing.
    free,
    /// Extents that hold film.
    resident,
    /// Titles open.
    titles,
    /// Playheads known: streams that will need something.
    playheads,
    /// Reads begun.
    reads,
    /// Of these, reads ahead for which nobody waited yet when they began.
    reads_ahead,
    /// Reads that wait for their turn.
    queued,
    /// Reads in flight.
    reading,
    /// Bytes read from data files, with what alignment adds.
    bytes_read,
    /// Bytes read from meta-data files.
    meta_bytes_read,
    /// Wants for what was in memory.
    hits,
    /// Wants for what was about to be read for somebody else or ahead: they shared that read.
    joins,
    /// Wants that caused a read.
    misses,
    /// Extents that had to go for others.
    evictions,
    /// Reads with somebody waiting that found every extent lent out and had to wait for one to come back.
    waits_for_space,
    /// Grants after their deadline.
    late_grants,
    /// Extents whose bytes did not match their checksums even when read again.
    checksum_errors,
    /// Extents that could not be read.
    read_errors,
    /// Reads done again because the bytes did not match their checksums.
    retries,
    /// Wants given up because their stream had too many newer ones.
    displaced,
}

/// One counter. The manager alone writes it.
#[derive(Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, n: u64) {
        self.0.store(self.get().wrapping_add(n), Ordering::Relaxed);
    }

    pub(super) fn set(&self, n: usize) {
        self.0.store(n as u64, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// An extent that could not be served: for one line in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// The title.
    pub title: TitleRef,
    /// Its extent.
    pub extent: u32,
    /// What is wrong with it.
    pub failure: ReadFailure,
    /// The data file.
    pub path: std::path::PathBuf,
    /// Where the extent's bytes lie in it.
    pub bytes: std::ops::Range<u64>,
    /// Failures since the last report, this one included.
    pub failures: u64,
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (path, bytes) = (self.path.display(), &self.bytes);
        write!(f, "{path}: bytes {}..{}: {}", bytes.start, bytes.end, self.failure)?;
        if self.failures > 1 {
            write!(f, " ({} such failures since the last report)", self.failures)?;
        }
        f.write_str("; its viewers were told, all others go on; run fsck, then add the film again")
    }
}

#[derive(Default)]
struct Troubles {
    last: Option<Trouble>,
    reported: Option<Instant>,
}

impl Counters {
    /// Notes a failure.
    pub(super) fn note_trouble(&self, mut trouble: Trouble) {
        let mut troubles = self.trouble.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        trouble.failures += troubles.last.as_ref().map_or(0, |last| last.failures);
        troubles.last = Some(trouble);
    }

    /// The last failure that was not reported yet, at most one a second.
    pub(super) fn take_trouble(&self, now: Instant) -> Option<Trouble> {
        let mut troubles = self.trouble.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if troubles.reported.is_some_and(|at| now.ns_since(at) < TROUBLE_INTERVAL_NS) {
            return None;
        }
        let trouble = troubles.last.take()?;
        troubles.reported = Some(now);
        Some(trouble)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trouble(extent: u32) -> Trouble {
        let path = "/films/a.ts".into();
        let failure = ReadFailure::Checksum;
        Trouble { title: TitleRef(1), extent, failure, path, bytes: 0..1316, failures: 1 }
    }

    #[test]
    fn many_failures_make_one_report_a_second() {
        let counters = Counters::default();
        let second = Instant(5_000_000_000);
        assert_eq!(counters.take_trouble(second), None);
        (0..10).for_each(|extent| counters.note_trouble(trouble(extent)));
        let report = counters.take_trouble(second).unwrap();
        assert_eq!((report.extent, report.failures), (9, 10));
        assert!(
            report
                .to_string()
                .starts_with("/films/a.ts: bytes 0..1316: data and stored checksums do not match")
        );
        counters.note_trouble(trouble(3));
        assert_eq!(counters.take_trouble(second.plus_ns(TROUBLE_INTERVAL_NS - 1)), None);
        let report = counters.take_trouble(second.plus_ns(TROUBLE_INTERVAL_NS)).unwrap();
        assert_eq!((report.extent, report.failures), (3, 1));
    }
}
