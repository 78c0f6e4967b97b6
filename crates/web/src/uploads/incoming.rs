//! The bytes of an upload, as ingest reads them: a queue of pieces between the connection's task and the upload's thread.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use hyper::body::{Buf, Bytes};
use millrace_core::limits::web::UPLOAD_BUFFER_BYTES;
use tokio::sync::Semaphore;

/// Items of the queue.
enum UploadChunk {
    Bytes(Bytes),
    /// All is there.
    End,
}

/// The end that bytes are put in. Dropped before [`UploadSender::end`] the upload is given up.
pub(super) struct UploadSender {
    pieces: Sender<UploadChunk>,
    /// Bytes that there is room for.
    room: Arc<Semaphore>,
}

/// The end that is read.
pub(super) struct Incoming {
    pieces: Receiver<UploadChunk>,
    room: Arc<Semaphore>,
    now: Bytes,
    is_ended: bool,
    /// How long the next piece is waited for.
    kept: Duration,
}

/// The reader is gone.
#[derive(Debug)]
pub(crate) struct Closed;

pub(super) fn line(kept: Duration) -> (UploadSender, Incoming) {
    let (sender, pieces) = channel();
    let room = Arc::new(Semaphore::new(UPLOAD_BUFFER_BYTES));
    let incoming = Incoming { pieces, room: Arc::clone(&room), now: Bytes::new(), is_ended: false, kept };
    (UploadSender { pieces: sender, room }, incoming)
}

impl UploadSender {
    /// Puts bytes in, at most [`UPLOAD_BUFFER_BYTES`] of them, as soon as there is room.
    pub(super) async fn put(&self, bytes: Bytes) -> Result<(), Closed> {
        let count = u32::try_from(bytes.len()).map_err(|_| Closed)?;
        let room = self.room.acquire_many(count).await.map_err(|_| Closed)?;
        // The reader gives it back.
        room.forget();
        self.pieces.send(UploadChunk::Bytes(bytes)).map_err(|_| Closed)
    }

    /// All is there.
    pub(super) fn end(&self) {
        // If the reader is gone, the outcome gives the reason.
        let _ = self.pieces.send(UploadChunk::End);
    }
}

impl Read for Incoming {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.now.is_empty() && !self.is_ended {
            match self.pieces.recv_timeout(self.kept) {
                Ok(UploadChunk::Bytes(bytes)) => self.now = bytes,
                Ok(UploadChunk::End) => self.is_ended = true,
                Err(_) => {
                    return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the rest has not come"));
                }
            }
        }
        let count = self.now.len().min(out.len());
        self.now.copy_to_slice(&mut out[..count]);
        self.room.add_permits(count);
        Ok(count)
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.room.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT: Duration = Duration::from_secs(60);

    #[test]
    fn incoming_reads_all_pieces_within_buffer_limit() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (line, mut incoming) = line(KEPT);
        let whole: Vec<u8> = (0..5 * UPLOAD_BUFFER_BYTES).map(|at| (at / 7) as u8).collect();
        let pieces: Vec<_> = whole.chunks(300_000).map(Bytes::copy_from_slice).collect();
        let room = Arc::clone(&line.room);
        let reader = std::thread::spawn(move || {
            let mut read = Vec::new();
            incoming.read_to_end(&mut read).map(|_| read)
        });
        runtime.block_on(async {
            for piece in pieces {
                line.put(piece).await.unwrap();
                assert!(room.available_permits() <= UPLOAD_BUFFER_BYTES);
            }
        });
        line.end();
        assert!(reader.join().unwrap().unwrap() == whole);
        assert!(runtime.block_on(line.put(Bytes::from_static(b"x"))).is_err(), "nobody reads any more");
    }

    #[test]
    fn incoming_without_end_returns_connection_aborted() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (line, mut incoming) = line(KEPT);
        runtime.block_on(line.put(Bytes::from_static(b"abc"))).unwrap();
        drop(line);
        let mut read = Vec::new();
        let error = incoming.read_to_end(&mut read).unwrap_err();
        assert_eq!((error.kind(), &read[..]), (io::ErrorKind::ConnectionAborted, &b"abc"[..]));
        // Nor is it if nothing comes for too long.
        let (_line, mut incoming) = super::line(Duration::from_millis(1));
        assert_eq!(incoming.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
    }
}
