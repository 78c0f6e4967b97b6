//! Reading and writing. A call that may wait takes the lock for each attempt.

use std::io::{IoSlice, IoSliceMut};

use super::opening::lost;
use super::socket::SocketStage;
use super::{Process, with};
use crate::errno::{self, CallResult, Errno};
use crate::limits::FILE_CHUNK_BYTES;
use crate::real;
use crate::wait::{Until, wait_for};

/// Flags of `recv` and `send` that mean something here.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flags {
    pub(crate) dont_wait: bool,
    pub(crate) peeks: bool,
    pub(crate) waits_for_all: bool,
    pub(crate) no_signal: bool,
    pub(crate) expects_more: bool,
}

impl Flags {
    pub(crate) fn new(flags: i32) -> Self {
        let has = |flag| flags & flag != 0;
        Self {
            dont_wait: has(libc::MSG_DONTWAIT),
            peeks: has(libc::MSG_PEEK),
            waits_for_all: has(libc::MSG_WAITALL),
            no_signal: has(libc::MSG_NOSIGNAL),
            expects_more: has(libc::MSG_MORE),
        }
    }
}

impl Process {
    /// The number of a connection; `None`: it is being opened.
    fn connection(&mut self, index: u32, unconnected: Errno) -> CallResult<Option<u32>> {
        self.settle(index)?;
        let socket = self.sockets.get(index)?;
        match socket.stage {
            SocketStage::Connected { number, .. } => Ok(Some(number)),
            SocketStage::Connecting { .. } => Ok(None),
            SocketStage::Bound(_) => Err(socket.error.take().unwrap_or(unconnected)),
            SocketStage::Listening { .. } | SocketStage::Inherited { .. } | SocketStage::Reopening { .. } => {
                Err(unconnected)
            }
            SocketStage::Lost => Err(lost()),
        }
    }

    /// Ends a call on a connection that is over: the first caller gets the reason, as from the
    /// kernel.
    fn over(
        &mut self,
        index: u32,
        error: &std::io::Error,
        later: CallResult<usize>,
    ) -> CallResult<Option<usize>> {
        let errno = errno::of(error);
        if errno == Errno::PIPE {
            return Err(errno);
        }
        let is_told = std::mem::replace(&mut self.sockets.get(index)?.is_error_told, true);
        if is_told { later.map(Some) } else { Err(errno) }
    }

    /// Reads the received data that fits.
    fn read(&mut self, index: u32, parts: &mut [IoSliceMut<'_>], takes: bool) -> CallResult<Option<usize>> {
        let Some(number) = self.connection(index, Errno::NOTCONN)? else { return Ok(None) };
        let mut done = 0;
        for part in parts.iter_mut().filter(|part| !part.is_empty()) {
            match self.engine()?.read(number, part, takes) {
                Ok(Some(bytes)) => {
                    done += bytes;
                    // Peeked data would be returned again.
                    if bytes < part.len() || !takes {
                        return Ok(Some(done));
                    }
                }
                Ok(None) if done == 0 => return Ok(None),
                Err(error) if done == 0 => return self.over(index, &error, Ok(0)),
                _ => break,
            }
        }
        Ok(Some(done))
    }

    /// As much of `parts` as there is room for.
    fn write(&mut self, index: u32, parts: &[IoSlice<'_>]) -> CallResult<Option<usize>> {
        let Some(number) = self.connection(index, Errno::PIPE)? else { return Ok(None) };
        let engine = self.engine()?;
        match engine.write(number, parts) {
            Ok(Some(bytes)) => {
                if bytes < parts.iter().map(|part| part.len()).sum() {
                    // A nonblocking writer relies on being notified when there is space for the
                    // rest.
                    let _ = engine.room(number);
                }
                Ok(Some(bytes))
            }
            Ok(None) => Ok(None),
            Err(error) => self.over(index, &error, Err(Errno::PIPE)),
        }
    }

    /// Bytes that a write would take; `None`: none yet.
    fn room(&mut self, index: u32) -> CallResult<Option<usize>> {
        let Some(number) = self.connection(index, Errno::PIPE)? else { return Ok(None) };
        match self.engine()?.room(number) {
            Ok(0) => Ok(None),
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) => self.over(index, &error, Err(Errno::PIPE)),
        }
    }

    /// Records whether a call announced more data.
    fn expect(&mut self, index: u32, more: bool) -> CallResult<()> {
        self.cork(index, |socket| socket.expects_more = more)
    }

    fn until(&mut self, index: u32, writes: bool, dont_wait: bool) -> CallResult<Until> {
        let socket = self.sockets.get(index)?;
        Ok(if writes { socket.until_written(dont_wait) } else { socket.until_read(dont_wait) })
    }
}

/// Returns the rest of the parts after their first `skip` bytes.
fn behind<'a>(parts: &[IoSlice<'a>], mut skip: usize) -> Vec<IoSlice<'a>> {
    let mut rest = parts.to_vec();
    let mut all = &mut rest[..];
    skip = skip.min(all.iter().map(|part| part.len()).sum());
    IoSlice::advance_slices(&mut all, skip);
    all.to_vec()
}

/// Reads as `recv` does.
pub(crate) fn receive(index: u32, parts: &mut [IoSliceMut<'_>], flags: Flags) -> CallResult<usize> {
    let until = with(|process| process.until(index, false, flags.dont_wait))??;
    if !flags.waits_for_all || flags.peeks {
        return wait_for(index, until, |process| process.read(index, parts, !flags.peeks));
    }
    let mut done = 0;
    for part in parts {
        let mut filled = 0;
        while filled < part.len() {
            let mut rest = [IoSliceMut::new(&mut part[filled..])];
            match wait_for(index, until, |process| process.read(index, &mut rest, true)) {
                Ok(0) => return Ok(done),
                Ok(bytes) => (filled, done) = (filled + bytes, done + bytes),
                Err(_) if done > 0 => return Ok(done),
                Err(errno) => return Err(errno),
            }
        }
    }
    Ok(done)
}

/// Writes as `send` does: a call that waits ends when all is taken.
pub(crate) fn send(index: u32, parts: &[IoSlice<'_>], flags: Flags) -> CallResult<usize> {
    let all: usize = parts.iter().map(|part| part.len()).sum();
    let (until, was_held) = with(|process| {
        let was_held = process.sockets.get(index)?.expects_more;
        if flags.expects_more {
            process.expect(index, true)?;
        }
        Ok((process.until(index, true, flags.dont_wait)?, was_held))
    })??;
    let mut done = 0;
    let outcome = loop {
        let taken = if done == 0 {
            wait_for(index, until, |process| process.write(index, parts))
        } else {
            let rest = behind(parts, done);
            wait_for(index, until, |process| process.write(index, &rest))
        };
        match taken {
            Ok(bytes) => done += bytes,
            Err(_) if done > 0 => break Ok(done),
            Err(errno) => break Err(errno),
        }
        if done == all || matches!(until, Until::Now) {
            break Ok(done);
        }
    };
    if was_held && !flags.expects_more && outcome.is_ok() {
        // The data taken goes out together with the data held back before. It is taken, whatever
        // the result here.
        let _ = with(|process| process.expect(index, false));
    }
    if outcome == Err(Errno::PIPE) && !flags.no_signal {
        real::raise_pipe();
    }
    outcome
}

/// Implements `sendfile` to a socket of ours, by reading. The second result is the position reached
/// in the file, if an offset was given.
pub(crate) fn send_file(
    index: u32,
    file: i32,
    offset: Option<i64>,
    bytes: usize,
) -> (CallResult<usize>, i64) {
    let mut done = 0;
    let sent = send_chunks(index, file, offset, bytes, &mut done);
    let at = offset.unwrap_or(0) + done as i64;
    let told = with(|process| process.expect(index, false)).and_then(|told| told);
    match sent.and(told) {
        Err(errno) if done == 0 => {
            if errno == Errno::PIPE {
                real::raise_pipe();
            }
            (Err(errno), at)
        }
        _ => (Ok(done), at),
    }
}

fn send_chunks(index: u32, file: i32, offset: Option<i64>, bytes: usize, done: &mut usize) -> CallResult<()> {
    let mut chunk = [0; FILE_CHUNK_BYTES];
    let until = with(|process| process.until(index, true, false))??;
    while *done < bytes {
        // No byte is read that cannot be written: the file position is the program's.
        let room = wait_for(index, until, |process| process.room(index))?;
        let most = room.min(bytes - *done).min(chunk.len());
        let read = real::read_file(file, &mut chunk[..most], offset.map(|at| at + *done as i64))?;
        if read == 0 {
            break;
        }
        let mut written = 0;
        while written < read {
            let rest = [IoSlice::new(&chunk[written..read])];
            // Another thread may have taken the room; the bytes are out of the file, so they are waited for.
            let taken = wait_for(index, Until::Then(None), |process| process.write(index, &rest))?;
            (written, *done) = (written + taken, *done + taken);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_go_on_where_a_write_has_ended() {
        let parts = [&b"abc"[..], b"", b"defg"].map(IoSlice::new);
        let rest = |skip| behind(&parts, skip).iter().flat_map(|part| part.to_vec()).collect::<Vec<u8>>();
        assert_eq!(rest(0), b"abcdefg");
        assert_eq!(rest(2), b"cdefg");
        assert_eq!(rest(3), b"defg");
        assert_eq!(rest(5), b"fg");
        assert_eq!(rest(7), b"");
        assert_eq!(rest(9), b"");
    }

    #[test]
    fn flags_are_taken_apart() {
        let flags = Flags::new(libc::MSG_PEEK | libc::MSG_NOSIGNAL | libc::MSG_MORE);
        assert!(flags.peeks && flags.no_signal && flags.expects_more);
        assert!(!flags.dont_wait && !flags.waits_for_all);
        let flags = Flags::new(libc::MSG_DONTWAIT | libc::MSG_WAITALL);
        assert!(
            !flags.peeks && !flags.no_signal && !flags.expects_more && flags.dont_wait && flags.waits_for_all
        );
    }
}
