//! The calls from the loop of a load's thread.

use millrace_core::time::Instant;

use super::{Course, PACKET_BYTES, WebViewer};
use crate::meter::ViewerMeasurements;
use crate::outcome::{Live, ViewerOutcome};
use crate::viewer::{LoadViewer, Status, ViewerCommand, ViewerContext, ViewerStage};

impl LoadViewer for WebViewer {
    fn handle_ready(&mut self, now: Instant, _kind: u8, lent: &mut ViewerContext<'_>) {
        if self.stage >= ViewerStage::Leaving {
            return;
        }
        let result = self.proceed(now).and_then(|()| self.read(now, lent));
        match result {
            Ok(()) => self.go_on(now, lent),
            Err(reason) => {
                self.now = now;
                self.fail(reason);
            }
        }
    }

    fn handle_timeout(&mut self, now: Instant, lent: &mut ViewerContext<'_>) {
        self.now = now;
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            let reason = match &self.asked {
                Some(asked) if self.link.is_connected() => format!("{}: no reply", asked.purpose.name()),
                _ => "connect: timed out".to_owned(),
            };
            self.figures.requests_failed += 1;
            return self.fail(reason);
        }
        self.go_on(now, lent);
    }

    fn command(&mut self, now: Instant, command: ViewerCommand, lent: &mut ViewerContext<'_>) -> bool {
        if self.stage != ViewerStage::Playing {
            return false;
        }
        let done = match command {
            ViewerCommand::Pause => {
                self.buffer.pause(now);
                true
            }
            ViewerCommand::Resume => {
                self.buffer.resume(now);
                self.rests_until = None;
                true
            }
            ViewerCommand::Seek(place) => self.seek(now, place, lent),
            // A server of files has no other speeds and no renditions.
            ViewerCommand::Scale(_) | ViewerCommand::Rendition(_) => false,
        };
        self.go_on(now, lent);
        done
    }

    fn drain(&mut self, _now: Instant, _lent: &mut ViewerContext<'_>) {
        // A viewer does not yet need the data it has not read.
    }

    fn leave(&mut self, now: Instant, _lent: &mut ViewerContext<'_>) {
        self.now = now;
        if self.stage == ViewerStage::Starting {
            self.failure.get_or_insert_with(|| "not playing when time was over".to_owned());
        }
        self.stage = ViewerStage::Done;
        self.link.close();
    }

    fn status(&self) -> Status {
        let times = [self.deadline, self.rests_until, self.buffer.ends_at()];
        let poll_at = times.into_iter().flatten().filter(|at| *at < Instant(u64::MAX)).min();
        Status { stage: self.stage, poll_at }
    }

    fn live(&self) -> Live {
        let bytes = self.figures.media_bytes;
        Live { packets: bytes / PACKET_BYTES, payload_bytes: bytes, ..Live::default() }
    }

    fn end(&mut self, _lent: &mut ViewerContext<'_>) -> ViewerOutcome {
        let figures = &mut self.figures;
        figures.buffer = self.buffer.counts(self.now);
        figures.receiving_us = self.first_media.map_or(0, |first| self.last_media.ns_since(first) / 1000);
        match &self.course {
            Course::File { clock, .. } => (figures.ts, figures.clock_jumps) = (clock.scan(), clock.jumps()),
            Course::Hls { way, scan, .. } => {
                (figures.ts, figures.segments_skipped) = (scan.counts(), way.skipped());
            }
        }
        let counts = millrace_client::receive::SequenceCounts {
            received: figures.media_bytes.div_ceil(PACKET_BYTES),
            ..Default::default()
        };
        let measured = ViewerMeasurements {
            counts,
            span_ns: figures.receiving_us * 1000,
            runs: 1,
            ts: figures.findings(),
            payload_bytes: figures.media_bytes,
            lateness_max_us: figures.buffer.lateness_max_ns / 1000,
            longest_gap_us: figures.buffer.longest_stall_ns / 1000,
            has_ended: self.has_ended,
            ..ViewerMeasurements::default()
        };
        ViewerOutcome {
            failure: self.failure.take(),
            setup_us: self.setup_us,
            measured: self.setup_us.is_some().then_some(measured),
            web: Some(*figures),
            ..ViewerOutcome::default()
        }
    }
}
