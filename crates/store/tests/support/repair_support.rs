//! Volumes of several members with titles, and a clock that only counts.
#![allow(dead_code)] // each test program uses its own part

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use millrace_core::limits::REPAIR_ANSWER_NS;
use millrace_core::seam::Clock;
use millrace_core::time::Instant;
use millrace_store::disk::ReadFaults;
use millrace_store::format::superblock::Geometry;
use millrace_store::repair::{
    RepairError, RepairOptions, RepairProgress, RepairReport, Setting, Timekeeper, repair,
};
use millrace_store::scrub::{ScrubOptions, scrub};
use millrace_store::volume::Volume;

/// Waits take no real time; after `stop_at_ns` of waiting, a stop is requested.
pub(crate) struct Counted {
    now: Cell<u64>,
    stop_at_ns: u64,
    stop: AtomicBool,
    pub(crate) answer_ns: u64,
}

impl Counted {
    pub(crate) fn new(stop_at_ns: u64) -> Self {
        Self { now: Cell::new(0), stop_at_ns, stop: AtomicBool::new(false), answer_ns: REPAIR_ANSWER_NS }
    }

    pub(crate) fn spent_ns(&self) -> u64 {
        self.now.get()
    }

    pub(crate) fn setting<'a>(
        &'a self,
        tell: &'a mut dyn FnMut(&RepairProgress),
        faults: &ReadFaults,
    ) -> Setting<'a> {
        Setting { time: self, stop: &self.stop, tell, faults: faults.clone(), answer_ns: self.answer_ns }
    }
}

impl Clock for Counted {
    fn now(&self) -> Instant {
        Instant(self.now.get())
    }
}

impl Timekeeper for Counted {
    fn wait_ns(&self, ns: u64) {
        self.now.set(self.now.get() + ns);
        if self.now.get() >= self.stop_at_ns {
            self.stop.store(true, Ordering::Relaxed);
        }
    }
}

/// A volume of `members` directories below a common one that tolerates the loss of `tolerance` of
/// them.
pub(crate) struct Members {
    pub(crate) root: tempfile::TempDir,
    pub(crate) dirs: Vec<PathBuf>,
}

impl Members {
    pub(crate) fn new(members: usize, tolerance: usize) -> (Self, Volume) {
        let root = tempfile::tempdir().unwrap();
        let dirs: Vec<PathBuf> = (0..members).map(|i| root.path().join(format!("disk{i}"))).collect();
        let geometry = Geometry::choose(members, tolerance, 0).unwrap();
        let volume = Volume::create(&dirs, geometry).unwrap();
        (Self { root, dirs }, volume)
    }

    /// Opens it by the first member that is there.
    pub(crate) fn open(&self) -> Volume {
        let dir = self.dirs.iter().find(|dir| dir.is_dir()).unwrap();
        Volume::open(dir).unwrap()
    }

    /// Takes a disk out.
    pub(crate) fn pull(&self, i: usize) {
        fs::rename(&self.dirs[i], self.root.path().join(format!("pulled{i}"))).unwrap();
    }

    /// And in again.
    pub(crate) fn put_back(&self, i: usize) {
        fs::rename(self.root.path().join(format!("pulled{i}")), &self.dirs[i]).unwrap();
    }
}

/// Every file below the titles and `tmp` of a member, with its bytes.
pub(crate) fn content(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for sub in ["titles", "tmp"] {
        for name in millrace_testkit::titles::tree(&dir.join(sub)) {
            let path = dir.join(sub).join(&name);
            found.push((format!("{sub}/{name}"), fs::read(path).unwrap_or_default()));
        }
    }
    found
}

pub(crate) fn run_repair(volume: &Volume) -> RepairReport {
    let (time, tell) = (Counted::new(u64::MAX), &mut |_: &RepairProgress| ());
    let options = RepairOptions { rate_bytes_per_s: 0 };
    repair(volume, &options, time.setting(tell, &ReadFaults::default())).unwrap()
}

/// Runs a repair until a stop is requested.
pub(crate) fn run_repair_until(
    volume: &Volume,
    rate: u64,
    stop_at_ns: u64,
) -> Result<RepairReport, RepairError> {
    let (time, tell) = (Counted::new(stop_at_ns), &mut |_: &RepairProgress| ());
    let options = RepairOptions { rate_bytes_per_s: rate };
    repair(volume, &options, time.setting(tell, &ReadFaults::default()))
}

pub(crate) fn run_scrub(volume: &Volume, mend: bool, faults: &ReadFaults) -> RepairReport {
    let (time, tell) = (Counted::new(u64::MAX), &mut |_: &RepairProgress| ());
    let options = ScrubOptions { rate_bytes_per_s: 0, mend };
    scrub(volume, &options, time.setting(tell, faults)).unwrap()
}

/// Flips a bit of a file.
pub(crate) fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 0x10;
    fs::write(path, bytes).unwrap();
}
