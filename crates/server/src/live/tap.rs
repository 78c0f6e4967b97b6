//! A recording's way to the media of a live title, beside the way to the cache.
//!
//! The source never waits for a disk: media that a recording does not take in time is lost to it, and counted.

use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millrace_core::packet::PacketMeta;
use millrace_core::seam::Clock;
use millrace_core::time::Instant;
use millrace_make::live::LivePacket;
use millrace_offload::clock::MonotonicClock;

use crate::limits::live::{
    RECORD_BEGIN_WAIT, RECORD_LOOK_EVERY, RECORD_PIECE_BYTES, RECORD_PIECE_NS, RECORD_PIECES, RECORD_TAIL_NS,
};

/// The place for the recording of a live title.
#[derive(Default)]
pub(super) struct RecordingTap {
    is_open: AtomicBool,
    outlet: Mutex<Option<Outlet>>,
}

struct Outlet {
    to: SyncSender<Vec<u8>>,
    progress: Arc<RecordingProgress>,
    piece: Vec<u8>,
    /// An access point has come.
    has_begun: bool,
    sent: Instant,
    /// Since when it has been waiting for the place where it ends.
    ending: Option<Instant>,
}

/// Progress of a recording, for those who report on it.
#[derive(Debug, Default)]
pub(super) struct RecordingProgress {
    bytes: AtomicU64,
    lost_bytes: AtomicU64,
    /// One of the following.
    stage: AtomicU8,
}

/// It goes on.
const GOING: u8 = 0;
/// It ends where a decoder would begin next: so its last picture is whole.
const ENDING: u8 = 1;
/// It has ended, or has to at once.
const OVER: u8 = 2;
/// It has to end at once, without a title.
const UNWANTED: u8 = 3;

impl RecordingProgress {
    /// Bytes handed to the recording, and bytes that it did not take in time.
    pub(super) fn bytes(&self) -> (u64, u64) {
        (self.bytes.load(Ordering::Relaxed), self.lost_bytes.load(Ordering::Relaxed))
    }

    /// Whether it goes on until something ends it.
    pub(super) fn is_going(&self) -> bool {
        self.stage() == GOING
    }

    /// Ends the recording before the next access point, or within [`RECORD_TAIL_NS`].
    pub(super) fn stop(&self) {
        self.stage.fetch_max(ENDING, Ordering::Relaxed);
    }

    /// Ends it at once.
    pub(super) fn cut(&self) {
        self.stage.fetch_max(OVER, Ordering::Relaxed);
    }

    /// Ends it at once; no title is made of it.
    pub(super) fn abort(&self) {
        self.stage.store(UNWANTED, Ordering::Relaxed);
    }

    fn stage(&self) -> u8 {
        self.stage.load(Ordering::Relaxed)
    }
}

impl RecordingTap {
    /// Opens it; `None`: another recording has it.
    pub(super) fn open(&self) -> Option<TapReader> {
        let mut outlet = self.outlet.lock().unwrap_or_else(PoisonError::into_inner);
        if outlet.as_ref().is_some_and(|outlet| outlet.progress.is_going()) {
            return None;
        }
        let (to, pieces) = sync_channel(RECORD_PIECES);
        let progress = Arc::<RecordingProgress>::default();
        let piece = Vec::with_capacity(RECORD_PIECE_BYTES);
        let (of_reader, has_begun, sent, ending) = (Arc::clone(&progress), false, Instant(0), None);
        *outlet = Some(Outlet { to, progress, piece, has_begun, sent, ending });
        self.is_open.store(true, Ordering::Relaxed);
        let (piece, taken) = (Vec::new(), 0);
        Some(TapReader {
            pieces,
            progress: of_reader,
            piece,
            taken,
            length: None,
            ends_at: None,
            ending: None,
        })
    }

    /// The media has ended.
    pub(super) fn close(&self) {
        let mut outlet = self.outlet.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mut outlet) = outlet.take() {
            outlet.send();
        }
        self.is_open.store(false, Ordering::Relaxed);
    }

    /// A packet comes by. A recording begins at an access point.
    pub(super) fn take(&self, packet: &LivePacket<'_>) {
        if !self.is_open.load(Ordering::Relaxed) {
            return;
        }
        let mut outlet = self.outlet.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(open) = &mut *outlet else { return };
        let is_access = packet.flags & PacketMeta::RANDOM_ACCESS != 0;
        if is_access && !open.progress.is_going() {
            open.send();
            *outlet = None;
            return self.is_open.store(false, Ordering::Relaxed);
        }
        open.has_begun |= is_access;
        if open.has_begun {
            open.piece.extend_from_slice(packet.bytes);
            if open.piece.len() >= RECORD_PIECE_BYTES {
                open.send();
            }
        }
    }

    /// Passes on the media that waits, if the last piece went long enough ago; ends a recording that is stopped.
    pub(super) fn look(&self, now: Instant) {
        if !self.is_open.load(Ordering::Relaxed) {
            return;
        }
        let mut outlet = self.outlet.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(open) = &mut *outlet else { return };
        if now.ns_since(open.sent) >= RECORD_PIECE_NS {
            open.sent = now;
            open.send();
        }
        let is_over = match open.progress.stage() {
            GOING => false,
            ENDING => now.ns_since(*open.ending.get_or_insert(now)) >= RECORD_TAIL_NS || !open.has_begun,
            _ => true,
        };
        if is_over {
            open.send();
            *outlet = None;
            self.is_open.store(false, Ordering::Relaxed);
        }
    }
}

impl Outlet {
    fn send(&mut self) {
        if self.piece.is_empty() {
            return;
        }
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(RECORD_PIECE_BYTES));
        let length = piece.len() as u64;
        let counter = match self.to.try_send(piece) {
            Ok(()) => &self.progress.bytes,
            Err(TrySendError::Full(_)) => &self.progress.lost_bytes,
            Err(TrySendError::Disconnected(_)) => return self.progress.cut(),
        };
        counter.fetch_add(length, Ordering::Relaxed);
    }
}

/// The media that comes by, until it ends, the recording is stopped, or its time is over.
pub(super) struct TapReader {
    pieces: Receiver<Vec<u8>>,
    progress: Arc<RecordingProgress>,
    piece: Vec<u8>,
    taken: usize,
    length: Option<Duration>,
    /// When it has its length.
    ends_at: Option<Instant>,
    /// Since when it has been waiting for its end.
    ending: Option<Instant>,
}

impl TapReader {
    /// Its progress.
    pub(super) fn progress(&self) -> &Arc<RecordingProgress> {
        &self.progress
    }

    /// Ends the recording when it has this length; one that does not begin ends a minute later.
    pub(super) fn end_after(&mut self, length: Option<Duration>) {
        self.length = length;
        self.ends_at = length.map(|length| moment_after(length.saturating_add(RECORD_BEGIN_WAIT)));
    }

    /// The next piece; `None`: it is over.
    fn next_piece(&mut self) -> Option<Vec<u8>> {
        loop {
            match self.pieces.recv_timeout(RECORD_LOOK_EVERY) {
                Ok(piece) => {
                    if let Some(length) = self.length.take() {
                        self.ends_at = Some(moment_after(length));
                    }
                    self.look_at_clock();
                    return Some(piece);
                }
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {
                    self.look_at_clock();
                    // While the source is silent, the end of the media does not come.
                    let is_late = |since| MonotonicClock.now().ns_since(since) >= RECORD_TAIL_NS;
                    if self.progress.stage() >= OVER || self.ending.is_some_and(is_late) {
                        return None;
                    }
                }
            }
        }
    }

    fn look_at_clock(&mut self) {
        let now = MonotonicClock.now();
        if self.ends_at.is_some_and(|at| now >= at) {
            self.progress.stop();
        }
        if !self.progress.is_going() {
            self.ending.get_or_insert(now);
        }
    }
}

impl Read for TapReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.piece.len() {
            let piece = self.next_piece();
            if self.progress.stage() == UNWANTED {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            let Some(piece) = piece else { return Ok(0) };
            (self.piece, self.taken) = (piece, 0);
        }
        let length = out.len().min(self.piece.len() - self.taken);
        out[..length].copy_from_slice(&self.piece[self.taken..][..length]);
        self.taken += length;
        Ok(length)
    }
}

/// The moment when this time from now on is over.
fn moment_after(time: Duration) -> Instant {
    MonotonicClock.now().plus_ns(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 2).min(u64::MAX / 2))
}

impl Drop for TapReader {
    fn drop(&mut self) {
        self.progress.cut();
    }
}

#[cfg(test)]
mod tests {
    use millrace_core::time::MediaTicks;

    use super::*;

    fn packet(bytes: &[u8], flags: u8) -> LivePacket<'_> {
        LivePacket { bytes, flags, time: MediaTicks(0), begins_unit: None, stamp: None }
    }

    fn all_of(mut reader: TapReader) -> Vec<u8> {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn recording_of_stream_begins_at_access_point_and_ends_with_source() {
        let tap = RecordingTap::default();
        tap.take(&packet(b"not recorded", PacketMeta::RANDOM_ACCESS));
        let reader = tap.open().unwrap();
        assert!(tap.open().is_none(), "a second recording");
        tap.take(&packet(b"before", 0));
        tap.take(&packet(b"key ", PacketMeta::RANDOM_ACCESS));
        tap.look(Instant(RECORD_PIECE_NS));
        tap.take(&packet(b"next", 0));
        tap.close();
        assert_eq!(reader.progress().bytes(), (8, 0));
        assert_eq!(all_of(reader), b"key next");
        assert!(tap.open().is_some(), "the next one");
    }

    #[test]
    fn stopped_recording_ends_before_next_access_point() {
        let tap = RecordingTap::default();
        let reader = tap.open().unwrap();
        tap.take(&packet(b"key ", PacketMeta::RANDOM_ACCESS));
        reader.progress().stop();
        tap.look(Instant(1));
        tap.take(&packet(b"the rest of it", 0));
        tap.look(Instant(RECORD_TAIL_NS));
        tap.take(&packet(b"next", PacketMeta::RANDOM_ACCESS));
        tap.close();
        assert_eq!(all_of(reader), b"key the rest of it");
    }

    #[test]
    fn stopped_recording_ends_without_access_point_in_time_and_cut_one_at_once() {
        for (is_cut, expected) in [(false, &b"key more"[..]), (true, b"key ")] {
            let tap = RecordingTap::default();
            let reader = tap.open().unwrap();
            tap.take(&packet(b"key ", PacketMeta::RANDOM_ACCESS));
            reader.progress().stop();
            if is_cut {
                reader.progress().cut();
            }
            tap.look(Instant(1));
            tap.take(&packet(b"more", 0));
            tap.look(Instant(1 + RECORD_TAIL_NS));
            tap.take(&packet(b"too late", 0));
            tap.look(Instant(2 + 2 * RECORD_TAIL_NS));
            assert_eq!(all_of(reader), expected);
        }
    }

    #[test]
    fn recording_that_is_stuck_loses_media_and_source_goes_on() {
        let tap = RecordingTap::default();
        let reader = tap.open().unwrap();
        let packets = vec![7; RECORD_PIECE_BYTES];
        for _ in 0..RECORD_PIECES + 3 {
            tap.take(&packet(&packets, PacketMeta::RANDOM_ACCESS));
        }
        tap.close();
        let (taken, lost) = reader.progress().bytes();
        assert_eq!((taken, lost), ((RECORD_PIECES * packets.len()) as u64, 3 * packets.len() as u64));
        assert_eq!(all_of(reader).len() as u64, taken);
    }
}
