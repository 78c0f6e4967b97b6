//! Bytes that a connection is given as references to their pages instead of copies.
//!
//! ```text
//!   extent ── vmsplice ──► pipe ── splice ──► connection
//! ```
//!
//! The kernel reads the pages when they leave, when they leave again and, if the receiver is on this machine, when that
//! one reads them: long after the call, and after the lease. So an extent that was sent like this gets new pages before it
//! is written to again ([`Lease::refer`](millrace_core::pool::Lease::refer)).
//!
//! A write to a connection that the peer has closed raises SIGPIPE here, since `splice` has no flag against it. Programs in
//! Rust ignore that signal.

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
    /// Takes what a connection does not.
    waste: File,
}

impl PagePipe {
    /// # Errors
    /// The kernel's error; then everything is copied.
    pub(super) fn new() -> io::Result<Self> {
        let (out_of, into) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // Through a pipe of the usual size a long write goes in pieces.
        let _ = fcntl_setpipe_size(&into, PAGES_PIPE_BYTES);
        let waste = File::options().write(true).open("/dev/null")?;
        Ok(Self { into, out_of, waste })
    }

    /// Gives a connection as much of `bytes` as it takes now.
    fn write(&self, conn: &mut KernelConnection, bytes: &[u8], counters: &mut TxCounters) -> Write {
        let (mut taken, mut last) = (0, Ok(0));
        while taken < bytes.len() {
            last = refer(self.into.as_fd(), &bytes[taken..]);
            let Ok(put @ 1..) = last else { break };
            let mut left = put;
            while left > 0 {
                counters.tcp_calls += 1;
                last = splice(&self.out_of, None, &conn.socket, None, left, SpliceFlags::NONBLOCK);
                let Ok(count @ 1..) = last else { break };
                left -= count;
            }
            taken += put - left;
            if left > 0 {
                self.empty(left);
                break;
            }
        }
        counters.referred_bytes += taken as u64;
        match last {
            _ if taken > 0 => Write::Took(taken),
            Ok(_) | Err(Errno::AGAIN) => Write::Full,
            // If the connection is to blame, the copy says so; a system that forbids these calls may still take it.
            Err(_) => write(conn, &[IoSlice::new(bytes)], counters),
        }
    }

    /// Takes the references to the last `left` bytes back.
    fn empty(&self, mut left: usize) {
        while left > 0 {
            match splice(&self.out_of, None, &self.waste, None, left, SpliceFlags::NONBLOCK) {
                Ok(count) if count > 0 => left -= count,
                // Nobody else reads the pipe, and this device takes everything.
                _ => break,
            }
        }
    }
}

impl Conns {
    /// Sends bytes that lie one behind the other; returns how many packets are taken, the last of them perhaps with its
    /// rest waiting.
    pub(super) fn send_contiguous(
        &mut self,
        id: ConnId,
        range: &ByteRange<'_>,
        bytes: &[u8],
        counters: &mut TxCounters,
    ) -> Result<usize, i32> {
        let conn = self.conns[id.0 as usize].as_mut().expect("flush found the connection");
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
            return Ok(range.count as usize);
        }
        let packet_bytes = range.lease.content().layout.packet_bytes();
        let at = usize::from(range.head) + written;
        let (whole, part) = (at / packet_bytes, at % packet_bytes);
        if written == 0 || part == 0 {
            return Ok(whole);
        }
        let end = (at - part + packet_bytes - usize::from(range.head)).min(bytes.len());
        let rest = &bytes[written..end];
        self.rooms[id.0 as usize * ROOM..][..rest.len()].copy_from_slice(rest);
        counters.bytes += rest.len() as u64;
        counters.split_frames += 1;
        self.wait(id, rest.len(), 0, counters);
        Ok(whole + 1)
    }
}
