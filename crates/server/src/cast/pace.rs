//! Datagrams at their times: the clock of the splice, followed by our own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use hdrhistogram::Histogram;
use millrace_client::lateness::{LatenessSummary, histogram_us, summarize};
use millrace_core::limits::{DEFAULT_PACKET_BYTES, TS_PACKET_BYTES};
use millrace_core::seam::Clock;
use millrace_core::time::Instant;

use super::origin::{PaceOrigin, SharedOrigin, ns_of};
use super::playout::{PlayoutNews, PlayoutRun};
use crate::limits::cast::{CAST_LATE_NS, CAST_START_NS, CAST_STOP_LOOK};

/// Where datagrams go.
pub trait PacedSink {
    /// Takes a datagram of up to seven TS packets at its time. `time`: of the splice, 27 MHz.
    fn datagram(&mut self, due: Instant, time: u64, bytes: &[u8]);

    /// Everything that is due was given; also called at least every [`CAST_STOP_LOOK`].
    fn flush(&mut self, now: Instant);
}

/// Why a pacer returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PaceEnd {
    /// There is nothing more to send.
    Finished,
    /// The caller asked to stop.
    Stopped,
}

/// See the module's text.
pub struct Pacer<C> {
    clock: C,
    shared: SharedOrigin,
    origin: Option<PaceOrigin>,
    part: [u8; DEFAULT_PACKET_BYTES],
    filled: usize,
    part_time: u64,
    datagrams: u64,
    lateness_us: Histogram<u64>,
    moved: u64,
}

impl<C: Clock> Pacer<C> {
    /// Nothing is sent yet.
    pub fn new(clock: C, shared: SharedOrigin) -> Self {
        Self {
            clock,
            shared,
            origin: None,
            part: [0; DEFAULT_PACKET_BYTES],
            filled: 0,
            part_time: 0,
            datagrams: 0,
            lateness_us: histogram_us(),
            moved: 0,
        }
    }

    /// Datagrams given to the sink.
    pub fn datagrams(&self) -> u64 {
        self.datagrams
    }

    /// How late they were.
    pub fn lateness(&self) -> LatenessSummary {
        summarize(&self.lateness_us)
    }

    /// Times that the schedule was moved because everything was late.
    pub fn moved(&self) -> u64 {
        self.moved
    }

    /// Sends until the end of `news`. `each` receives all other events, after the media before them was sent.
    pub fn run(
        &mut self,
        news: &Receiver<PlayoutNews>,
        sink: &mut dyn PacedSink,
        stop: &AtomicBool,
        each: &mut dyn FnMut(&Self, PlayoutNews),
    ) -> PaceEnd {
        while !stop.load(Ordering::Relaxed) {
            match news.recv_timeout(CAST_STOP_LOOK) {
                Ok(PlayoutNews::Run(run)) => {
                    if !self.send_run(&run, sink, stop) {
                        return PaceEnd::Stopped;
                    }
                }
                Ok(other) => each(self, other),
                Err(RecvTimeoutError::Timeout) => sink.flush(self.clock.now()),
                Err(RecvTimeoutError::Disconnected) => {
                    self.emit(sink, stop);
                    sink.flush(self.clock.now());
                    return PaceEnd::Finished;
                }
            }
        }
        PaceEnd::Stopped
    }

    /// `false`: it was stopped.
    fn send_run(&mut self, run: &PlayoutRun, sink: &mut dyn PacedSink, stop: &AtomicBool) -> bool {
        let (packets, _) = run.bytes.as_chunks::<TS_PACKET_BYTES>();
        let ticks = u128::from(run.to.saturating_sub(run.from));
        for (number, packet) in (0u128..).zip(packets) {
            if self.filled == 0 {
                let after = ticks * number / packets.len() as u128;
                self.part_time = run.from + u64::try_from(after).unwrap_or(0);
            }
            self.part[self.filled..][..TS_PACKET_BYTES].copy_from_slice(packet);
            self.filled += TS_PACKET_BYTES;
            if self.filled == DEFAULT_PACKET_BYTES && !self.emit(sink, stop) {
                return false;
            }
        }
        true
    }

    /// Gives the datagram that was filled to the sink when it is due. `false`: it was stopped.
    fn emit(&mut self, sink: &mut dyn PacedSink, stop: &AtomicBool) -> bool {
        if self.filled == 0 {
            return true;
        }
        let mut now = self.clock.now();
        let first = PaceOrigin { at: now.plus_ns(CAST_START_NS), time: self.part_time };
        let origin = *self.origin.get_or_insert_with(|| {
            self.shared.set(first);
            first
        });
        let mut due = origin.at.plus_ns(ns_of(self.part_time.saturating_sub(origin.time)));
        if now < due {
            sink.flush(now);
        }
        while now < due {
            if stop.load(Ordering::Relaxed) {
                return false;
            }
            std::thread::sleep(Duration::from_nanos(due.ns_since(now)).min(CAST_STOP_LOOK));
            now = self.clock.now();
            if now < due {
                sink.flush(now);
            }
        }
        let late = now.ns_since(due);
        self.lateness_us.saturating_record(late / 1000);
        if late > CAST_LATE_NS {
            due = now;
            let moved = PaceOrigin { at: now, time: self.part_time };
            self.shared.set(moved);
            self.origin = Some(moved);
            self.moved += 1;
        }
        sink.datagram(due, self.part_time, &self.part[..self.filled]);
        self.datagrams += 1;
        self.filled = 0;
        true
    }
}
