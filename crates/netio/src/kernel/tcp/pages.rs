//! Bytes that a connection is given as references to their pages instead of copies.
//!
//! ```text
//!   extent ── vmsplice ──► pipe ── splice ──► connection
//! ```
//!
//! The kernel reads the pages during transmission, retransmission and, for a receiver on the same machine, delivery: long
//! after the call and the end of the lease. Therefore such an extent gets new pages before its next fill
//! ([`Lease::refer`](millrace_core::pool::Lease::refer)).
//!
//! `splice` raises SIGPIPE on a connection that the peer has closed, and has no flag against it. Rust programs ignore that
//! signal by default.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use millrace_core::seam::ByteRange;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

use super::*;
use crate::limits::{PAGES_MIN_BYTES, PAGES_PIPE_BYTES};
use crate::sys::pipe::refer;

/// A pipe, empty between calls.
pub(super) struct PagePipe {
    into: OwnedFd,
    out_of: OwnedFd,
    /// Discards the bytes that a connection has not accepted.
    waste: File,
}

impl PagePipe {
    /// # Errors
    /// The kernel's error; then everything is copied.
    pub(super) fn new() -> io::Result<Self> {
        let (out_of, into) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // If this fails, long writes are divided into pieces of the default pipe size.
        let _ = fcntl_setpipe_size(&into, PAGES_PIPE_BYTES);
        let waste = File::options().write(true).open("/dev/null")?;
        Ok(Self { into, out_of, waste })
    }

    /// Passes as much of `bytes` to the connection as it accepts now.
    fn write(&self, conn: &mut KernelConnection, bytes: &[u8], counters: &mut TxCounters) -> Write {
        let (mut taken, mut last) = (0, Ok(0));
        while taken < bytes.len() {
            last = refer(self.into.as_fd(), &bytes[taken..]);
            let Ok(put @ 1..) = last else { break };
            counters.tcp_calls += 1;
            last = splice(&self.out_of, None, &conn.socket, None, put, SpliceFlags::NONBLOCK);
            let count = last.unwrap_or(0);
            taken += count;
            // A connection that takes a part is full.
            if count < put {
                self.empty(put - count);
                break;
            }
        }
        counters.referred_bytes += taken as u64;
        match last {
            _ if taken > 0 => Write::Took(taken),
            Ok(_) | Err(Errno::AGAIN) => Write::Full,
            // A system that forbids these calls may still allow the copy; on a broken connection the copy fails as well.
            Err(_) => write(conn, &[IoSlice::new(bytes)], counters),
        }
    }

    /// Discards the last `left` bytes in the pipe, so that it is empty for the next connection.
    fn empty(&self, mut left: usize) {
        while left > 0 {
            match splice(&self.out_of, None, &self.waste, None, left, SpliceFlags::NONBLOCK) {
                Ok(count) if count > 0 => left -= count,
                // Cannot happen: this is the pipe's only reader, and the null device accepts everything.
                _ => break,
            }
        }
    }
}

impl Conns {
    /// Sends one contiguous run of bytes; returns the number of packets accepted. A packet that was accepted in part is not counted,
    /// and comes first again the next time: then its beginning is skipped.
    pub(super) fn send_contiguous(
        &mut self,
        id: ConnId,
        range: &ByteRange<'_>,
        bytes: &[u8],
        counters: &mut TxCounters,
    ) -> Result<usize, i32> {
        let conn = self.conns[id.0 as usize].as_mut().expect("flush found the connection");
        let skip = conn.skip;
        let bytes = &bytes[skip..];
        let is_worth = conn.takes_pages && bytes.len() >= PAGES_MIN_BYTES;
        let result = match &self.pages {
            Some(pages) if is_worth && range.lease.refer() => pages.write(conn, bytes, counters),
            _ => write(conn, &[IoSlice::new(bytes)], counters),
        };
        let written = match result {
            Write::Took(written) => written,
            Write::Full => 0,
            Write::Broken(errno) => return Err(self.breaks(id, errno)),
        };
        conn.is_ready &= written == 0;
        counters.bytes += written as u64;
        if written == bytes.len() {
            conn.skip = 0;
            return Ok(range.count as usize);
        }
        let packet_bytes = range.lease.content().layout.packet_bytes();
        let at = usize::from(range.head) + skip + written;
        let (whole, part) = (at / packet_bytes, at % packet_bytes);
        conn.skip = if whole == 0 { skip + written } else { part };
        counters.split_frames += u64::from(written > 0 && part > 0);
        Ok(whole)
    }
}
