//! Which PID's clock is the title's: the program's PCR, or a substitute.
//!
//! In this order: the PCR of the PID that the program map announces; if none comes there, that of the PID where most
//! come; if there is none at all, the decoding time stamps of the pictures (or of the sound). Until one of them gives
//! a rate, all are remembered, so that nothing of the beginning is lost.
//!
//! If the PCR is missing for longer than a second while time stamps continue, the time is estimated
//! from them until the next PCR: audio is often longer than the video, and muxers that write the
//! clock with the video write none there.

use millrace_core::time::MEDIA_HZ;
use millrace_media::limits::MAX_PROGRAMS;
use millrace_media::ts_packet::PTS_MODULUS;
use millrace_media::ts_packet::{PCR_MODULUS, SYSTEM_TICKS_PER_MEDIA_TICK};

use crate::limits::ingest::MAX_EARLY_ANCHORS;

use super::clock::{Anchor, MediaClock, Point};

/// Time without a PCR, measured by the time stamps, after which they replace it. A PCR must come
/// every 100 ms (ISO/IEC 13818-1 section 2.7.2); ten times this limit tolerates muxers that are
/// slightly late.
const SILENT_TICKS: u64 = MEDIA_HZ;
/// Time stamps further apart than this belong to another time base, or to still pictures; neither
/// measures time.
const MAX_STEP_TICKS: u64 = MEDIA_HZ;

/// The source of a title's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockOrigin {
    /// PCRs on this PID, which the program map announces.
    Announced(u16),
    /// PCRs on this PID, which the program map does not announce.
    Unannounced(u16),
    /// Decoding time stamps on this PID.
    Stamps(u16),
}

impl ClockOrigin {
    fn pid(self) -> u16 {
        match self {
            Self::Announced(pid) | Self::Unannounced(pid) | Self::Stamps(pid) => pid,
        }
    }
}

/// A clock value as found in a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClockSample {
    /// PID of the packet.
    pub pid: u16,
    /// Offset of its first byte in the data.
    pub byte: u64,
    /// PCR in 27 MHz ticks, or a time stamp at 90 kHz.
    pub value: u64,
    /// A new time base was announced.
    pub new_base: bool,
    /// Number of places where packets are missing.
    pub losses: u64,
}

/// Time stamps of a PID since the last anchor.
#[derive(Clone, Copy, Debug)]
struct Stamped {
    pid: u16,
    last: u64,
    /// Their progress since the anchor, at 90 kHz.
    progress: u64,
    /// Number of the anchor.
    anchor: u64,
}

/// Chooses the clock and follows it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClockSource {
    trusted: bool,
    stamped: Vec<Stamped>,
    anchors: u64,
    clock: MediaClock,
    announced: Option<u16>,
    origin: Option<ClockOrigin>,
    switched: bool,
    last_losses: u64,
    early_pcrs: Vec<ClockSample>,
    early_stamps: Vec<ClockSample>,
}

impl ClockSource {
    /// Nothing chosen yet. `trusted`: see [`MediaClock`].
    pub(crate) fn new(trusted: bool) -> Self {
        Self { trusted, clock: MediaClock::new(trusted), ..Self::default() }
    }

    /// Returns the chosen origin, once there is a rate.
    pub(crate) fn origin(&self) -> Option<ClockOrigin> {
        self.origin
    }

    /// The clock.
    pub(crate) fn clock(&self) -> &MediaClock {
        &self.clock
    }

    /// PCRs remembered of all PIDs before the choice.
    pub(crate) fn early_pcrs(&self) -> usize {
        self.early_pcrs.len()
    }

    /// Whether PCRs of this PID matter now.
    pub(crate) fn wants_pcr(&self, pid: u16) -> bool {
        match self.origin {
            None => true,
            Some(ClockOrigin::Stamps(_)) => false,
            Some(origin) => origin.pid() == pid,
        }
    }

    /// Handles a program map that announces the clock on `pid`.
    pub(crate) fn announce(&mut self, pid: u16, out: &mut Vec<Point>) {
        if self.announced.replace(pid) == Some(pid) {
            return;
        }
        match self.origin {
            None => {
                self.restart();
                for found in self.early_pcrs.clone() {
                    self.follow_if(pid, found, 1, out);
                }
                self.settle(ClockOrigin::Announced(pid));
            }
            Some(ClockOrigin::Stamps(_)) => {}
            Some(_) => {
                self.origin = Some(ClockOrigin::Announced(pid));
                self.switched = true;
            }
        }
    }

    /// A PCR.
    pub(crate) fn pcr(&mut self, found: ClockSample, out: &mut Vec<Point>) {
        match self.origin {
            None => {
                if self.early_pcrs.len() < MAX_EARLY_ANCHORS {
                    self.early_pcrs.push(found);
                }
                if let Some(pid) = self.announced {
                    self.follow_if(pid, found, 1, out);
                    self.settle(ClockOrigin::Announced(pid));
                }
            }
            Some(ClockOrigin::Stamps(_)) => {}
            Some(origin) => self.follow_if(origin.pid(), found, 1, out),
        }
    }

    /// A decoding time stamp.
    pub(crate) fn stamp(&mut self, found: ClockSample, out: &mut Vec<Point>) {
        match self.origin {
            None if self.early_stamps.len() < MAX_EARLY_ANCHORS => self.early_stamps.push(found),
            None => {}
            Some(ClockOrigin::Stamps(pid)) => self.follow_if(pid, found, SYSTEM_TICKS_PER_MEDIA_TICK, out),
            Some(_) => self.measure(found, out),
        }
    }

    /// Measures the progress of time stamps since the last PCR. If they have passed
    /// [`SILENT_TICKS`], they replace it.
    fn measure(&mut self, found: ClockSample, out: &mut Vec<Point>) {
        let anchor = self.anchors;
        let Some(stamped) = self.stamped.iter_mut().find(|stamped| stamped.pid == found.pid) else {
            if self.stamped.len() < MAX_PROGRAMS {
                self.stamped.push(Stamped { pid: found.pid, last: found.value, progress: 0, anchor });
            }
            return;
        };
        let step = found.value.wrapping_sub(std::mem::replace(&mut stamped.last, found.value)) % PTS_MODULUS;
        if std::mem::replace(&mut stamped.anchor, anchor) != anchor {
            stamped.progress = 0;
        } else if step <= MAX_STEP_TICKS {
            stamped.progress += step;
        }
        if stamped.progress > SILENT_TICKS {
            self.clock.estimate(found.byte, stamped.progress * SYSTEM_TICKS_PER_MEDIA_TICK, out);
        }
    }

    /// Waiting is over: takes the best clock there is. `streams` are the PIDs whose stamps may serve, best first.
    /// Returns whether there is a clock.
    pub(crate) fn choose_now(&mut self, streams: &[u16], out: &mut Vec<Point>) -> bool {
        if self.origin.is_some() {
            return true;
        }
        let pcrs = std::mem::take(&mut self.early_pcrs);
        let count = |pid: u16| pcrs.iter().filter(|f| f.pid == pid).count();
        let mut pids: Vec<u16> = pcrs.iter().map(|f| f.pid).collect();
        pids.sort_unstable();
        pids.dedup();
        pids.sort_by_key(|&pid| std::cmp::Reverse(count(pid)));
        for pid in pids {
            if self.try_all(ClockOrigin::Unannounced(pid), &pcrs, 1, out) {
                return true;
            }
        }
        let stamps = std::mem::take(&mut self.early_stamps);
        let found = streams
            .iter()
            .any(|&pid| self.try_all(ClockOrigin::Stamps(pid), &stamps, SYSTEM_TICKS_PER_MEDIA_TICK, out));
        if !found {
            (self.early_pcrs, self.early_stamps) = (pcrs, stamps);
        }
        found
    }

    /// `byte` has been reached.
    pub(crate) fn reached(&mut self, byte: u64, out: &mut Vec<Point>) {
        self.clock.reached(byte, out);
    }

    /// The data ends at `byte`.
    pub(crate) fn finish(&mut self, byte: u64, out: &mut Vec<Point>) {
        self.clock.finish(byte, out);
    }

    fn try_all(
        &mut self,
        origin: ClockOrigin,
        all: &[ClockSample],
        scale: u64,
        out: &mut Vec<Point>,
    ) -> bool {
        self.restart();
        for &found in all {
            self.follow_if(origin.pid(), found, scale, out);
        }
        self.settle(origin);
        self.origin.is_some()
    }

    /// A clock without a rate has handed out no point, so it can be replaced.
    fn restart(&mut self) {
        self.clock = MediaClock::new(self.trusted);
        self.last_losses = 0;
    }

    /// Makes the choice as soon as the clock has a rate.
    fn settle(&mut self, origin: ClockOrigin) {
        if self.clock.has_rate() {
            self.origin = Some(origin);
            self.early_pcrs = Vec::new();
            self.early_stamps = Vec::new();
        }
    }

    fn follow_if(&mut self, pid: u16, found: ClockSample, scale: u64, out: &mut Vec<Point>) {
        if pid != found.pid {
            return;
        }
        let switched = std::mem::take(&mut self.switched);
        let anchor = Anchor {
            byte: found.byte,
            ticks: found.value * scale % PCR_MODULUS,
            new_base: found.new_base || switched,
            broken: found.losses > self.last_losses,
        };
        self.last_losses = found.losses;
        self.anchors += 1;
        self.clock.anchor(anchor, out);
    }
}

#[cfg(test)]
#[path = "clock_source_tests.rs"]
mod tests;
