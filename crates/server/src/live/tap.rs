//! A recording's way to the media of a live title, beside the way to the cache.
//!
//! The source never waits for a disk: what a recording does not take in time is lost to it, and counted.

use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant as Monotonic;

use millrace_core::packet::PacketMeta;
use millrace_core::time::Instant;
use millrace_make::live::LivePacket;

use crate::limits::live::{RECORD_LOOK_EVERY, RECORD_PIECE_BYTES, RECORD_PIECE_NS, RECORD_PIECES};

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
}

/// What a recording has got, for whoever reports on it.
#[derive(Debug, Default)]
pub(super) struct RecordingProgress {
    bytes: AtomicU64,
    lost_bytes: AtomicU64,
    is_stopped: AtomicBool,
}

impl RecordingProgress {
    /// Bytes handed to the recording, and bytes that it did not take in time.
    pub(super) fn bytes(&self) -> (u64, u64) {
        (self.bytes.load(Ordering::Relaxed), self.lost_bytes.load(Ordering::Relaxed))
    }

    /// Whether it is to end.
    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    /// Ends the recording behind what has come.
    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }
}

impl RecordingTap {
    /// Opens it; `None`: another recording has it.
    pub(super) fn open(&self) -> Option<TapReader> {
        let mut outlet = self.outlet.lock().unwrap_or_else(PoisonError::into_inner);
        if outlet.as_ref().is_some_and(|outlet| !outlet.progress.is_stopped()) {
            return None;
        }
        let (to, pieces) = sync_channel(RECORD_PIECES);
        let progress = Arc::<RecordingProgress>::default();
        let piece = Vec::with_capacity(RECORD_PIECE_BYTES);
        *outlet =
            Some(Outlet { to, progress: Arc::clone(&progress), piece, has_begun: false, sent: Instant(0) });
        self.is_open.store(true, Ordering::Relaxed);
        Some(TapReader { pieces, progress, piece: Vec::new(), taken: 0, ends_at: None })
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
        let Some(outlet) = &mut *outlet else { return };
        outlet.has_begun |= packet.flags & PacketMeta::RANDOM_ACCESS != 0;
        if outlet.has_begun {
            outlet.piece.extend_from_slice(packet.bytes);
            if outlet.piece.len() >= RECORD_PIECE_BYTES {
                outlet.send();
            }
        }
    }

    /// Passes on what came, if that is not just now.
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
        if open.progress.is_stopped() {
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
            Err(TrySendError::Disconnected(_)) => return self.progress.stop(),
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
    ends_at: Option<Monotonic>,
}

impl TapReader {
    /// What has come by.
    pub(super) fn progress(&self) -> &Arc<RecordingProgress> {
        &self.progress
    }

    /// Ends the recording at this moment.
    pub(super) fn end_at(&mut self, at: Option<Monotonic>) {
        self.ends_at = at;
    }

    /// The next piece; `None`: it is over.
    fn next_piece(&mut self) -> Option<Vec<u8>> {
        loop {
            match self.pieces.recv_timeout(RECORD_LOOK_EVERY) {
                Ok(piece) => {
                    self.look_at_clock();
                    return Some(piece);
                }
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {
                    self.look_at_clock();
                    // With a source that is silent nobody else takes the outlet away.
                    if self.progress.is_stopped() {
                        return None;
                    }
                }
            }
        }
    }

    fn look_at_clock(&self) {
        if self.ends_at.is_some_and(|at| Monotonic::now() >= at) {
            self.progress.stop();
        }
    }
}

impl Read for TapReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.piece.len() {
            let Some(piece) = self.next_piece() else { return Ok(0) };
            (self.piece, self.taken) = (piece, 0);
        }
        let length = out.len().min(self.piece.len() - self.taken);
        out[..length].copy_from_slice(&self.piece[self.taken..][..length]);
        self.taken += length;
        Ok(length)
    }
}

impl Drop for TapReader {
    fn drop(&mut self) {
        self.progress.stop();
    }
}

#[cfg(test)]
mod tests {
    use millrace_core::time::MediaTicks;

    use super::*;

    fn packet(bytes: &[u8], flags: u8) -> LivePacket<'_> {
        LivePacket { bytes, flags, time: MediaTicks(0) }
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
    fn stopped_recording_gets_what_came_before_and_nothing_later() {
        let tap = RecordingTap::default();
        let reader = tap.open().unwrap();
        tap.take(&packet(b"taken", PacketMeta::RANDOM_ACCESS));
        reader.progress().stop();
        tap.look(Instant(RECORD_PIECE_NS));
        tap.take(&packet(b"later", 0));
        tap.look(Instant(2 * RECORD_PIECE_NS));
        assert_eq!(all_of(reader), b"taken");
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
