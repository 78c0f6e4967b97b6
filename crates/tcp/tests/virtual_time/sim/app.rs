//! An application: sends a stream generated from its seed, and compares the data it receives with
//! the peer's stream.

use millrace_core::random::mix;
use millrace_core::time::Instant;

/// Byte `at` of stream `seed`.
pub(crate) fn byte(seed: u64, at: u64) -> u8 {
    (mix(seed ^ (at / 8)) >> (8 * (at % 8))) as u8
}

/// `bytes` bytes from `at` on.
pub(crate) fn stream(seed: u64, at: u64, bytes: usize) -> Vec<u8> {
    (at..at + bytes as u64).map(|at| byte(seed, at)).collect()
}

/// How an application behaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Side {
    /// Bytes that it sends.
    pub(crate) bytes: u64,
    /// Bytes of one write.
    pub(crate) chunk: usize,
    /// Bytes of one read.
    pub(crate) gulp: usize,
    /// Nanoseconds between reads.
    pub(crate) pause_ns: u64,
    /// Once it has read this many bytes, it reads nothing for `stall_ns`.
    pub(crate) stalls_at: u64,
    pub(crate) stall_ns: u64,
    /// The data sent comes from extents.
    pub(crate) uses_extents: bool,
    /// It aborts when this many bytes have been sent and received.
    pub(crate) aborts_at: Option<u64>,
}

impl Side {
    pub(crate) const fn sending(bytes: u64) -> Self {
        Self {
            bytes,
            chunk: 4000,
            gulp: 1 << 16,
            pause_ns: 0,
            stalls_at: 0,
            stall_ns: 0,
            uses_extents: false,
            aborts_at: None,
        }
    }
}

/// How far both streams are.
#[derive(Clone, Debug)]
pub(crate) struct App {
    pub(crate) out_seed: u64,
    pub(crate) in_seed: u64,
    pub(crate) to_send: u64,
    pub(crate) to_receive: u64,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) side: Side,
    pub(crate) is_closed: bool,
    pub(crate) has_end: bool,
    /// Nothing is read before.
    pub(crate) next_read: Instant,
    has_stalled: bool,
}

impl App {
    /// Creates side `number` of a conversation, with its behaviour and the data it sends to the
    /// other side.
    pub(crate) fn new(sides: &[Side; 2], number: usize, seed: u64) -> Self {
        let (own, peer) = (sides[number], sides[1 - number]);
        Self {
            out_seed: mix(seed ^ number as u64),
            in_seed: mix(seed ^ (1 - number) as u64),
            to_send: own.bytes,
            to_receive: peer.bytes,
            sent: 0,
            received: 0,
            side: own,
            is_closed: false,
            has_end: false,
            next_read: Instant(0),
            has_stalled: false,
        }
    }

    /// Whether it reads now; the stall begins where it is due.
    pub(crate) fn reads(&mut self, now: Instant) -> bool {
        if !self.has_stalled && self.side.stall_ns > 0 && self.received >= self.side.stalls_at {
            self.has_stalled = true;
            self.next_read = now.plus_ns(self.side.stall_ns);
        }
        self.next_read <= now
    }

    /// What to write next.
    pub(crate) fn next(&self) -> Vec<u8> {
        let bytes = self.side.chunk.min((self.to_send - self.sent) as usize);
        stream(self.out_seed, self.sent, bytes)
    }

    /// Compares the data received.
    pub(crate) fn took(&mut self, bytes: &[u8]) {
        for (offset, &found) in bytes.iter().enumerate() {
            let at = self.received + offset as u64;
            assert!(at < self.to_receive, "byte {at} was never sent");
            assert_eq!(found, byte(self.in_seed, at), "byte {at} of {} is wrong", self.to_receive);
        }
        self.received += bytes.len() as u64;
    }

    /// The peer reports the end of its stream.
    pub(crate) fn ended(&mut self) {
        assert_eq!(self.received, self.to_receive, "the end came early");
        self.has_end = true;
    }

    pub(crate) fn has_sent(&self) -> bool {
        self.sent == self.to_send
    }
}
