//! Memory that the kernel still reads: the leases of zero-copy sends, held until the kernel reports
//! completion.
//!
//! The kernel numbers the `MSG_ZEROCOPY` sends of a socket and puts ranges of numbers into its
//! error queue when they are complete, in any order (Documentation/networking/msg_zerocopy.rst).
//! Each lease is kept under the number of its send, so no writer touches the extent before the
//! kernel has read it. Both sides count the numbers. A failed send may or may not have used one up,
//! and only the error queue shows which: until the queue has been read to its end, no further send
//! is zero-copy.

use millrace_core::pool::Lease;

use crate::limits::{
    COMPLETION_BATCHES, HELD_SENDS, JUDGED_SENDS, MAX_COPY_REFUSALS, ZERO_COPY_RETRY_BATCHES,
};

const _: () = assert!(HELD_SENDS.is_power_of_two(), "numbers wrap around at 2^32");

/// Whether sends without copying work for a socket, and if not, why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroCopy {
    /// They are used where they are asked for.
    Ready,
    /// The kernel does not offer them (`SO_ZEROCOPY`).
    NotOffered {
        /// The errno that the kernel returned.
        errno: i32,
    },
    /// The kernel copied most of the bytes after all: the receivers are on this host, or the device cannot gather and
    /// sum. It is tried again now and then.
    CopiedAnyway,
    /// The kernel took one send after the other only with copying.
    Refused {
        /// The errno that the kernel returned for the last one.
        errno: i32,
    },
    /// The kernel reported a send that we do not know of, so the meaning of a completion is
    /// uncertain. Outstanding extents are kept until the sender is dropped.
    Miscounted,
}

/// The leases of one socket.
pub(super) struct ZeroCopyLeases {
    /// By number modulo their count.
    leases: Box<[Option<Lease>]>,
    /// All before this one are complete.
    oldest: u32,
    /// The number of the next send.
    next: u32,
    /// Sends that may be outstanding.
    most: u32,
    /// A send failed and may have used up a number.
    unsure: bool,
    /// Batch at which completions are read again.
    read_at: u64,
    /// Sends complete since the last judgement, and those of them that were copied.
    complete: u32,
    copied: u32,
    refusals: u32,
    state: ZeroCopy,
    /// The batch that is being sent.
    now: u64,
    /// Batch at which it is tried again.
    retry_at: u64,
}

impl ZeroCopyLeases {
    /// Creates the state for a socket whose kernel offers zero-copy sends, or has returned the
    /// reason why not.
    pub(super) fn new(state: ZeroCopy) -> Self {
        Self {
            leases: (0..HELD_SENDS).map(|_| None).collect(),
            oldest: 0,
            next: 0,
            most: HELD_SENDS as u32,
            unsure: false,
            read_at: 0,
            complete: 0,
            copied: 0,
            refusals: 0,
            state,
            now: 0,
            retry_at: 0,
        }
    }

    pub(super) fn state(&self) -> ZeroCopy {
        self.state
    }

    /// Sends that are not known to be complete.
    pub(super) fn outstanding(&self) -> u32 {
        self.next.wrapping_sub(self.oldest)
    }

    /// Returns the number of sends that fit now.
    pub(super) fn room(&self) -> u32 {
        if self.state != ZeroCopy::Ready || self.unsure {
            return 0;
        }
        self.most.saturating_sub(self.outstanding())
    }

    /// Batch `now` begins; whether it is time to read completions.
    pub(super) fn begins(&mut self, now: u64) -> bool {
        self.now = now;
        if self.state == ZeroCopy::CopiedAnyway && now >= self.retry_at {
            self.state = ZeroCopy::Ready;
        }
        let outstanding = self.outstanding();
        outstanding > 0 && (outstanding > self.most / 4 || now >= self.read_at || self.unsure)
    }

    /// Keeps the lease of a send that the kernel took.
    pub(super) fn hold(&mut self, lease: Lease) {
        self.leases[slot(self.next)] = Some(lease);
        self.next = self.next.wrapping_add(1);
        self.refusals = 0;
    }

    /// A send failed: it may have used up a number.
    pub(super) fn doubt(&mut self) {
        self.unsure = true;
    }

    pub(super) fn is_unsure(&self) -> bool {
        self.unsure
    }

    /// The error queue was read to its end: it holds no more reports about failed sends.
    pub(super) fn read_to_end(&mut self) {
        self.unsure = false;
        self.read_at = self.now + COMPLETION_BATCHES;
    }

    /// The kernel is done with sends `first..=last`.
    pub(super) fn complete(&mut self, first: u32, last: u32, was_copied: bool) {
        if self.state == ZeroCopy::Miscounted {
            return;
        }
        match last.wrapping_sub(self.next).cast_signed() {
            ..0 => {}
            // The one that failed had used up a number, and was over at once.
            0 if self.unsure => self.next = self.next.wrapping_add(1),
            0.. => {
                self.state = ZeroCopy::Miscounted;
                return;
            }
        }
        let ahead = first.wrapping_sub(self.oldest).cast_signed().max(0).cast_unsigned();
        if ahead >= self.outstanding() {
            return;
        }
        let mut number = self.oldest.wrapping_add(ahead);
        while number != self.next && number.wrapping_sub(last).cast_signed() <= 0 {
            if self.leases[slot(number)].take().is_some() {
                self.complete += 1;
                self.copied += u32::from(was_copied);
            }
            number = number.wrapping_add(1);
        }
        while self.oldest != self.next && self.leases[slot(self.oldest)].is_none() {
            self.oldest = self.oldest.wrapping_add(1);
        }
        self.judge();
    }

    fn judge(&mut self) {
        if self.complete < JUDGED_SENDS {
            return;
        }
        if self.copied > self.complete / 2 && self.state == ZeroCopy::Ready {
            self.state = ZeroCopy::CopiedAnyway;
            self.retry_at = self.now + ZERO_COPY_RETRY_BATCHES;
        }
        // The memory that was short when the kernel refused may be available again.
        self.most = (2 * self.most).min(HELD_SENDS as u32);
        (self.complete, self.copied) = (0, 0);
    }

    /// A send that the kernel took only with copying.
    pub(super) fn refused(&mut self, errno: i32) {
        let outstanding = self.outstanding();
        // Option memory or locked memory is used up: that many are what fits.
        if matches!(errno, libc::ENOBUFS | libc::ENOMEM) && outstanding > 0 {
            self.most = outstanding;
            return;
        }
        self.refusals += 1;
        if self.refusals >= MAX_COPY_REFUSALS && self.state == ZeroCopy::Ready {
            self.state = ZeroCopy::Refused { errno };
        }
    }
}

fn slot(number: u32) -> usize {
    number as usize % HELD_SENDS
}

#[cfg(test)]
#[path = "held_tests.rs"]
mod tests;
