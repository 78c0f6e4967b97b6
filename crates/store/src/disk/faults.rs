//! Readers that fail on order: errors, hangs, slow or short answers, flipped bits, for each member of a volume.
//!
//! Tests and `serve --inject` set a member's fault while others read; readers of a member's files ask first. A
//! handle made by [`ReadFaults::default`] never has a fault and costs one test of a pointer.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::str::FromStr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millrace_core::time::NS_PER_S;

use crate::limits::MAX_MEMBERS;

/// Flips are decided for pieces of this many bytes of a file: a disk's sector.
const SECTOR_BYTES: u64 = 512;

/// `EIO` as reads return it.
const EIO: i32 = 5;

/// How reads from one member fail or are delayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadFault {
    /// Nothing.
    #[default]
    None,
    /// Every read fails with `EIO`.
    Eio,
    /// No read is answered until the fault changes.
    Hang,
    /// Every read is answered this much later, in nanoseconds.
    SlowNs(u64),
    /// Like a disk with one arm: reads are answered one after another, and each takes time for its
    /// seek and for its bytes. The cache's reads of records take no time: they are a percent of the
    /// stored data and lie in the kernel's memory.
    Arm {
        /// From one place to another, in nanoseconds.
        seek_ns: u64,
        /// How fast it reads; at least 1.
        bytes_per_s: u64,
    },
    /// Every read returns only half of the bytes requested.
    Short,
    /// In about one of `one_in` sectors of 512 bytes one bit is wrong: always the same ones for a seed.
    Flip {
        /// Chooses the sectors and bits.
        seed: u64,
        /// Mean distance of two damaged sectors, in sectors; at least 1.
        one_in: u64,
    },
    /// Reads that touch these bytes of a file fail with `EIO`: bad sectors.
    EioAt {
        /// The first of them.
        at: u64,
        /// How many.
        bytes: u64,
    },
    /// Reads that touch these bytes of a file are not answered until the fault changes.
    HangAt {
        /// The first of them.
        at: u64,
        /// How many.
        bytes: u64,
    },
}

impl ReadFault {
    /// Returns the effect on a read of these bytes of a file.
    pub(crate) fn on(self, read: &Range<u64>) -> Self {
        let touches = |at: u64, bytes: u64| at < read.end && read.start < at.saturating_add(bytes);
        match self {
            Self::EioAt { at, bytes } if touches(at, bytes) => Self::Eio,
            Self::HangAt { at, bytes } if touches(at, bytes) => Self::Hang,
            Self::EioAt { .. } | Self::HangAt { .. } => Self::None,
            fault => fault,
        }
    }

    /// Returns how much later a read of `bytes` bytes is answered, in nanoseconds, once its turn
    /// has come.
    pub(crate) fn delay_ns(self, bytes: usize) -> u64 {
        match self {
            Self::SlowNs(delay_ns) => delay_ns,
            Self::Arm { seek_ns, bytes_per_s } => {
                seek_ns.saturating_add(bytes as u64 * NS_PER_S / bytes_per_s.max(1))
            }
            _ => 0,
        }
    }
}

/// The faults of all members, shared by the code that sets them and the readers. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct ReadFaults {
    table: Option<Arc<FaultTable>>,
}

#[derive(Debug)]
struct FaultTable {
    state: Mutex<FaultState>,
    changed: Condvar,
}

#[derive(Debug)]
struct FaultState {
    members: [ReadFault; MAX_MEMBERS],
    /// Whether each member's arm is under way: for readers that block.
    arms: [bool; MAX_MEMBERS],
    /// Counts changes, so that a sleeper sees one that it slept through.
    changes: u64,
    /// Reads that wait now.
    waiting: usize,
}

impl FaultTable {
    fn lock(&self) -> MutexGuard<'_, FaultState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReadFaults {
    /// A handle on which faults can be set; none are yet.
    pub fn settable() -> Self {
        let (members, arms) = ([ReadFault::None; MAX_MEMBERS], [false; MAX_MEMBERS]);
        let state = FaultState { members, arms, changes: 0, waiting: 0 };
        Self { table: Some(Arc::new(FaultTable { state: Mutex::new(state), changed: Condvar::new() })) }
    }

    /// Whether faults can be set at all: if not, a reader need not ask.
    pub fn is_settable(&self) -> bool {
        self.table.is_some()
    }

    /// Sets the fault of one member; reads that hang or wait there go on. Nothing happens on a handle that is not
    /// settable, or beyond the last member that a volume can have.
    pub fn set(&self, member: u16, fault: ReadFault) {
        let Some(table) = &self.table else { return };
        let mut state = table.lock();
        if let Some(place) = state.members.get_mut(usize::from(member)) {
            *place = fault;
            state.changes += 1;
            table.changed.notify_all();
        }
    }

    /// Sets every member's fault at once: those not named in `faults` have none.
    pub fn set_all(&self, faults: &[(u16, ReadFault)]) {
        let Some(table) = &self.table else { return };
        let mut state = table.lock();
        let mut members = [ReadFault::None; MAX_MEMBERS];
        for &(member, fault) in faults {
            if let Some(place) = members.get_mut(usize::from(member)) {
                *place = fault;
            }
        }
        if members != state.members {
            state.members = members;
            state.changes += 1;
            table.changed.notify_all();
        }
    }

    /// Reads that hang or wait now, of all members: a test goes on when there are as many as it wants.
    pub fn waiting(&self) -> usize {
        self.table.as_ref().map_or(0, |table| table.lock().waiting)
    }

    /// Returns the current fault of `member`, for readers that do not block.
    pub fn of(&self, member: u16) -> ReadFault {
        let Some(table) = &self.table else { return ReadFault::None };
        table.lock().members.get(usize::from(member)).copied().unwrap_or_default()
    }

    /// Waits as the member's fault requires before a read of `bytes` bytes at `at`, however long
    /// that takes; for readers that block.
    ///
    /// # Errors
    /// `EIO` if the member's fault is that, now or after the wait.
    pub fn before_read(&self, member: u16, at: u64, bytes: usize) -> io::Result<()> {
        let Some(table) = &self.table else { return Ok(()) };
        let read = at..at.saturating_add(bytes as u64);
        let of = |state: &FaultState| {
            state.members.get(usize::from(member)).map_or(ReadFault::None, |fault| fault.on(&read))
        };
        let mut state = table.lock();
        loop {
            match of(&state) {
                ReadFault::Hang => {
                    state.waiting += 1;
                    state = table.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                    state.waiting -= 1;
                }
                ReadFault::Arm { .. } if state.arms[usize::from(member)] => {
                    state.waiting += 1;
                    state = table.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                    state.waiting -= 1;
                }
                fault @ (ReadFault::SlowNs(_) | ReadFault::Arm { .. }) => {
                    let (since, delay) = (state.changes, Duration::from_nanos(fault.delay_ns(bytes)));
                    let same = |state: &mut FaultState| state.changes == since;
                    state.waiting += 1;
                    state.arms[usize::from(member)] = true;
                    let waited = table.changed.wait_timeout_while(state, delay, same);
                    let (mut now, outcome) = waited.unwrap_or_else(PoisonError::into_inner);
                    now.waiting -= 1;
                    now.arms[usize::from(member)] = false;
                    table.changed.notify_all();
                    if outcome.timed_out() {
                        return Ok(());
                    }
                    state = now;
                }
                ReadFault::Eio => return Err(io::Error::from_raw_os_error(EIO)),
                _ => return Ok(()),
            }
        }
    }

    /// Damages the data read into `bytes` from offset `at` of a file of `member`, and returns how
    /// many of the bytes count as read.
    ///
    /// # Errors
    /// `EIO` if the member's fault is that.
    pub fn after_read(&self, member: u16, at: u64, bytes: &mut [u8]) -> io::Result<usize> {
        match self.of(member).on(&(at..at.saturating_add(bytes.len() as u64))) {
            ReadFault::Eio => return Err(io::Error::from_raw_os_error(EIO)),
            ReadFault::Short => return Ok(bytes.len() / 2),
            ReadFault::Flip { seed, one_in } => flip(mix(seed, u64::from(member)), one_in.max(1), at, bytes),
            _ => {}
        }
        Ok(bytes.len())
    }

    /// Reads the bytes at `at`, or fewer, as the member's fault requires; blocks if the fault
    /// requires it.
    ///
    /// # Errors
    /// Those of the file, and `EIO` on order.
    pub fn read_at(&self, member: u16, file: &File, bytes: &mut [u8], at: u64) -> io::Result<usize> {
        if self.table.is_none() {
            return file.read_at(bytes, at);
        }
        self.before_read(member, at, bytes.len())?;
        let got = file.read_at(bytes, at)?;
        self.after_read(member, at, &mut bytes[..got])
    }

    /// Fills `bytes` from `at` on.
    ///
    /// # Errors
    /// Those of the file, `EIO` on order, and [`io::ErrorKind::UnexpectedEof`] at the file's end or on a short read that
    /// was ordered.
    pub fn read_exact_at(&self, member: u16, file: &File, bytes: &mut [u8], at: u64) -> io::Result<()> {
        if self.table.is_none() {
            return file.read_exact_at(bytes, at);
        }
        self.before_read(member, at, bytes.len())?;
        file.read_exact_at(bytes, at)?;
        let wanted = bytes.len();
        match self.after_read(member, at, bytes)? {
            got if got == wanted => Ok(()),
            got => {
                let what = format!("only {got} of {wanted} bytes could be read");
                Err(io::Error::new(io::ErrorKind::UnexpectedEof, what))
            }
        }
    }
}

fn flip(seed: u64, one_in: u64, at: u64, bytes: &mut [u8]) {
    let end = at + bytes.len() as u64;
    for sector in at / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES) {
        let chance = mix(seed, sector);
        if !chance.is_multiple_of(one_in) {
            continue;
        }
        let place = mix(chance, 1) % (SECTOR_BYTES * 8);
        let byte = sector * SECTOR_BYTES + place / 8;
        if let Some(byte) = byte.checked_sub(at).and_then(|byte| bytes.get_mut(byte as usize)) {
            *byte ^= 1 << (place % 8);
        }
    }
}

/// Splitmix64's finish over two words: any two inputs give unrelated outputs.
fn mix(seed: u64, word: u64) -> u64 {
    let mut x = seed ^ word.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Why a line of faults cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "line {line}: \"{text}\" is no fault; write \"member N eio\", \"member N eio OFFSET BYTES\", \"member N hang\", \
     \"member N hang OFFSET BYTES\", \"member N slow MILLISECONDS\", \"member N arm SEEK_MILLISECONDS MB_PER_SECOND\", \
     \"member N short\", \"member N flip ONE_IN seed SEED\" or \"member N ok\""
)]
pub struct BadFault {
    line: usize,
    text: String,
}

/// A list of faults as text: one a line, empty lines and those after `#` do not count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultList(pub Vec<(u16, ReadFault)>);

impl FromStr for FaultList {
    type Err = BadFault;

    fn from_str(text: &str) -> Result<Self, BadFault> {
        let mut faults = Vec::new();
        for (line, text) in (1..).zip(text.lines()) {
            let words: Vec<&str> = text.split('#').next().unwrap_or("").split_whitespace().collect();
            if !words.is_empty() {
                let bad = || BadFault { line, text: text.chars().take(80).collect() };
                faults.push(parse(&words).ok_or_else(bad)?);
            }
        }
        Ok(Self(faults))
    }
}

fn parse(words: &[&str]) -> Option<(u16, ReadFault)> {
    let ["member", member, rest @ ..] = words else { return None };
    let member: u16 = member.parse().ok().filter(|&member| usize::from(member) < MAX_MEMBERS)?;
    let fault = match rest {
        ["ok"] => ReadFault::None,
        ["eio"] => ReadFault::Eio,
        ["eio", at, bytes] => ReadFault::EioAt { at: at.parse().ok()?, bytes: bytes.parse().ok()? },
        ["hang"] => ReadFault::Hang,
        ["hang", at, bytes] => ReadFault::HangAt { at: at.parse().ok()?, bytes: bytes.parse().ok()? },
        ["short"] => ReadFault::Short,
        ["slow", ms] => ReadFault::SlowNs(ms.parse::<u64>().ok()?.checked_mul(1_000_000)?),
        ["arm", seek_ms, mb_per_s] => ReadFault::Arm {
            seek_ns: seek_ms.parse::<u64>().ok()?.checked_mul(1_000_000)?,
            bytes_per_s: mb_per_s.parse::<u64>().ok()?.checked_mul(1_000_000).filter(|&rate| rate > 0)?,
        },
        ["flip", one_in, "seed", seed] => {
            let one_in = one_in.parse().ok().filter(|&one_in| one_in > 0)?;
            ReadFault::Flip { seed: seed.parse().ok()?, one_in }
        }
        _ => return None,
    };
    Some((member, fault))
}

#[cfg(test)]
#[path = "faults_tests.rs"]
mod tests;
