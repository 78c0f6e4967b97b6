//! Received bytes where the engine has put them: a receive buffer is lent to the application and given back when the guard is dropped. Nothing is
//! copied on this side.

use std::fmt;
use std::io;
use std::ops::Deref;
use std::sync::atomic::AtomicU64;
use std::task::{Context, Poll};

use millrace_core::shared::Words;

use super::handle::Host;
use super::state::{HostState, ReceivedPiece};
use super::stream::TcpStream;
use super::waiters::Interest;

/// Bytes that have come, in the buffer in which they came ([`TcpStream::read_lent`]). Dropped, it gives the buffer back: until then it counts as one of
/// those that the connection may have unread (`PairSettings::receive_share`), also when that is closed.
pub struct Received(Bytes);

enum Bytes {
    None,
    /// Of an engine in this program.
    Lent {
        host: Host,
        words: Words,
        buffer: u32,
        at: usize,
        bytes: usize,
    },
    /// Of one in another process: it might write there at any time.
    Copied(Vec<u8>),
}

impl Deref for Received {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Bytes::None => &[],
            Bytes::Copied(bytes) => bytes,
            Bytes::Lent { words, at, bytes, .. } => {
                words.own().map_or(&[], |words| slice(words, *at, *bytes))
            }
        }
    }
}

/// The bytes of a receive buffer that this host holds.
#[allow(unsafe_code)]
fn slice(words: &[AtomicU64], at: usize, bytes: usize) -> &[u8] {
    let end = at.checked_add(bytes).filter(|&end| end <= size_of_val(words));
    assert!(end.is_some(), "a receive buffer lies in its pair's memory");
    // SAFETY: the bytes lie in the words, which stay where they are while they are borrowed, and
    // any byte is a `u8`. Nothing writes to them meanwhile: the memory is this process's alone
    // (`Words::own`), and its engine writes to a receive buffer only while that is its own, between
    // `Give` and `Data`; this one is returned when the guard that borrows the words is dropped, and
    // only records of this host's own methods get into the ring (`Host::inject` puts none there
    // while a buffer is lent). The engine's writes happened before: its records are stored with
    // Release after the bytes, and were loaded with Acquire.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u8>().add(at), bytes) }
}

impl fmt::Debug for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Received").field(&self.len()).finish()
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        if let Bytes::Lent { host, buffer, .. } = &self.0 {
            host.with(|state| {
                state.lent -= 1;
                state.give_back(*buffer);
            });
        }
    }
}

impl HostState {
    /// Whether buffers may be lent: the engine is of this program, and was never asked for anything but by the methods of this.
    fn lends(&self) -> bool {
        self.end.words.own().is_some() && !self.has_injected
    }

    /// The oldest piece that has come. `None`: nothing has come yet; without a buffer: nothing will.
    fn take_piece(&mut self, socket: u32) -> io::Result<Option<Option<ReceivedPiece>>> {
        match self.socket(socket).pieces.pop_front() {
            Some(piece) => Ok(Some(Some(piece))),
            None => Ok(self.read(socket, &mut [0], false)?.map(|_| None)),
        }
    }

    /// Returns the next received bytes, or the end. `None`: nothing has come yet.
    fn lend_next(&mut self, socket: u32, host: &Host) -> io::Result<Option<Received>> {
        let piece = self.take_piece(socket)?;
        Ok(piece.map(|piece| self.received(piece, host)))
    }

    fn received(&mut self, piece: Option<ReceivedPiece>, host: &Host) -> Received {
        let Some(ReceivedPiece { buffer, from, to }) = piece else { return Received(Bytes::None) };
        let at = self.end.layout.receive(buffer, self.settings.receive_bytes) + from as usize;
        let bytes = (to - from) as usize;
        if self.lends() {
            self.lent += 1;
            return Received(Bytes::Lent {
                host: host.clone(),
                words: self.end.words.clone(),
                buffer,
                at,
                bytes,
            });
        }
        let mut copied = vec![0; bytes];
        self.end.words.read(at, &mut copied);
        self.give_back(buffer);
        Received(Bytes::Copied(copied))
    }
}

impl TcpStream {
    /// The next bytes that have come, where they lie: as many as the engine has handed over in one buffer, none at the end. They are the application's until
    /// it drops them. An engine of another process may write to that memory whatever it has promised: bytes from there are copied.
    ///
    /// # Errors
    /// As reading.
    pub fn read_lent(&self) -> io::Result<Received> {
        let until = self.until(&self.read_timeout);
        self.host.wait_for(until, |state| state.lend_next(self.socket, &self.host))
    }

    /// Does the same for a task, which is woken when something has come. The caller must ensure
    /// that [`Host::arm`] is called when [`Host::readiness`] is readable, as `toe::tokio` does.
    ///
    /// # Errors
    /// As reading.
    pub fn poll_read_lent(&self, context: &Context<'_>) -> Poll<io::Result<Received>> {
        let interest = (self.socket, Interest::Read);
        self.host.poll_for(context, interest, |state| state.lend_next(self.socket, &self.host))
    }
}

#[cfg(test)]
#[path = "received_tests.rs"]
mod tests;
