//! Tells the caller how far it is, and hears from it that it should stop.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant as StdInstant;

use millrace_core::time::MediaTicks;

use crate::limits::ingest::REPORT_EVERY;

/// Progress of an ingest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IngestProgress {
    /// Bytes of transport stream done: read from the file, or received from ffmpeg.
    pub bytes_done: u64,
    /// Bytes there will be, if known: not while ffmpeg makes them.
    pub bytes_total: Option<u64>,
    /// Media time done.
    pub media_done: MediaTicks,
    /// Total media time, if the container gives it.
    pub media_total: Option<MediaTicks>,
    /// The current stage.
    pub stage: IngestStage,
}

/// The stages of an ingest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IngestStage {
    /// Finding out what kind of file it is.
    Probing,
    /// ffmpeg turns it into a transport stream, which is indexed and stored at the same time.
    Remuxing,
    /// A transport stream is indexed and stored.
    Indexing,
    /// Everything is read; making it durable and visible.
    Committing,
}

/// Reports progress to the caller and checks for cancellation.
pub(crate) struct ProgressReporter<'a> {
    report: &'a mut dyn FnMut(&IngestProgress),
    cancel: &'a AtomicBool,
    progress: IngestProgress,
    reported: Option<StdInstant>,
}

impl<'a> ProgressReporter<'a> {
    /// Reports to `report`, stops when `cancel` is set.
    pub(crate) fn new(report: &'a mut dyn FnMut(&IngestProgress), cancel: &'a AtomicBool) -> Self {
        let progress = IngestProgress {
            bytes_done: 0,
            bytes_total: None,
            media_done: MediaTicks(0),
            media_total: None,
            stage: IngestStage::Probing,
        };
        Self { report, cancel, progress, reported: None }
    }

    /// Whether the caller wants it to stop.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }

    /// The flag itself.
    pub(crate) fn cancel_flag(&self) -> &'a AtomicBool {
        self.cancel
    }

    /// A new stage; always reported.
    pub(crate) fn stage(&mut self, stage: IngestStage) {
        self.progress.stage = stage;
        self.reported = None;
        self.tick();
    }

    /// What there will be.
    pub(crate) fn totals(&mut self, bytes: Option<u64>, media: Option<MediaTicks>) {
        self.progress.bytes_total = bytes;
        self.progress.media_total = media;
    }

    /// How far it is; reported if it is time to.
    pub(crate) fn done(&mut self, bytes: u64, media: MediaTicks) {
        self.progress.bytes_done = bytes;
        self.progress.media_done = media;
        self.tick();
    }

    /// Reports if it is time to.
    pub(crate) fn tick(&mut self) {
        let now = StdInstant::now();
        if self.reported.is_none_or(|last| now - last >= REPORT_EVERY) {
            self.reported = Some(now);
            (self.report)(&self.progress);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_always_reported_and_the_rest_seldom() {
        let (mut seen, cancel) = (Vec::new(), AtomicBool::new(false));
        let mut report = |p: &IngestProgress| seen.push(*p);
        let mut watch = ProgressReporter::new(&mut report, &cancel);
        watch.stage(IngestStage::Probing);
        watch.totals(Some(100_000), None);
        watch.stage(IngestStage::Indexing);
        let begun = StdInstant::now();
        for n in 0..100_000 {
            watch.done(n, MediaTicks(n));
        }
        let most = begun.elapsed().as_millis() as usize / 50 + 1;
        watch.stage(IngestStage::Committing);
        assert!(seen.len() <= 3 + most, "{} reports", seen.len());
        let stages: Vec<IngestStage> = [0, 1, seen.len() - 1].map(|i| seen[i].stage).into();
        assert_eq!(stages, [IngestStage::Probing, IngestStage::Indexing, IngestStage::Committing]);
        assert_eq!((seen[seen.len() - 1].bytes_done, seen[1].bytes_total), (99_999, Some(100_000)));
    }
}
