//! Headers of segments that go out, assembled apart from the contents (NTT 1996 section 4.1): the contents are known by length and sum.

use millrace_core::wire::checksum::{add, fold, sum16};

use super::options::{STAMPS_BYTES, STAMPS_HEAD};
use super::{Flags, FlowKey, HEADER_BYTES, OPTIONS_BYTES, TcpOptions, options};
use crate::seq::Seq;

/// Bytes of a header whose only option are time stamps.
const STAMPED_BYTES: usize = HEADER_BYTES + STAMPS_BYTES;

/// The payload of a segment as far as its header needs it: length and sum, accumulated from pieces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Body {
    bytes: u32,
    sum: u16,
}

impl Body {
    /// No payload.
    pub const EMPTY: Self = Self { bytes: 0, sum: 0 };

    /// One piece of `bytes` bytes whose uncomplemented sum is `sum` ([`sum16`]).
    #[inline]
    pub const fn new(sum: u16, bytes: u32) -> Self {
        Self { bytes, sum }
    }

    /// Appends a piece. `sum` is its sum as if it began at an even offset.
    #[inline]
    pub fn push(&mut self, sum: u16, bytes: u32) {
        // RFC 1071 section 2 (B): behind an odd number of bytes each byte has the other place in its word.
        let sum = if self.bytes.is_multiple_of(2) { sum } else { sum.swap_bytes() };
        self.sum = add(self.sum, sum);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// How long it is.
    #[inline]
    pub const fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Its uncomplemented sum.
    #[inline]
    pub const fn sum(&self) -> u16 {
        self.sum
    }
}

/// What differs from one header to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Sequence number.
    pub seq: Seq,
    /// Acknowledgment number; must be zero without [`Flags::ACK`], so that the header carries no
    /// unintended value.
    pub ack: Seq,
    /// Control bits.
    pub flags: Flags,
    /// Window as it stands there, not scaled.
    pub window: u16,
    /// Urgent pointer.
    pub urgent: u16,
    /// Options.
    pub options: TcpOptions,
}

/// What all headers of a connection have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Template {
    /// Local and remote port as the header begins with them.
    ports: u32,
    /// Sum of the pseudo-header without the length, and of the ports.
    sum: u32,
}

const _: () = assert!(size_of::<Template>() == 8);

impl Template {
    /// Of segments from the local to the remote end.
    pub fn new(flow: &FlowKey) -> Self {
        let (local, remote) = (flow.local_port(), flow.remote_port());
        let sum = u32::from(flow.pseudo_sum()) + u32::from(local) + u32::from(remote);
        Self { ports: u32::from(local) << 16 | u32::from(remote), sum }
    }

    /// Writes a header to the beginning of `out` and returns its length; 0 when `out` is shorter or the segment longer than IP can carry.
    #[inline]
    pub fn write(&self, head: &Head, body: Body, out: &mut [u8]) -> usize {
        // Nearly every segment of a connection.
        if head.urgent != 0 || !head.options.are_stamps_at_most() {
            return self.write_any(head, body, out);
        }
        match head.options.stamps {
            Some(stamps) => {
                let [stamps_head, value, echo] = [u32::from_be_bytes(STAMPS_HEAD), stamps.value, stamps.echo];
                self.put::<8, STAMPED_BYTES>(head, body, [stamps_head, value, echo], out)
            }
            None => self.put::<5, HEADER_BYTES>(head, body, [0; 3], out),
        }
    }

    /// Writes `WORDS` words. All lengths are known at compile time: no loop, no checks.
    #[inline]
    fn put<const WORDS: usize, const BYTES: usize>(
        &self,
        head: &Head,
        body: Body,
        options: [u32; 3],
        out: &mut [u8],
    ) -> usize {
        let Some(out) = out.first_chunk_mut::<BYTES>() else { return 0 };
        let Some(length) = length(BYTES, body) else { return 0 };
        let control = control(WORDS, head.flags, head.window);
        // The sum of 32-bit words folds to that of their halves.
        let sum = u64::from(self.sum)
            + u64::from(head.seq.0)
            + u64::from(head.ack.0)
            + u64::from(control)
            + options.iter().map(|&word| u64::from(word)).sum::<u64>()
            + u64::from(length)
            + u64::from(body.sum);
        let check = u32::from(!fold(sum)) << 16;
        let [a, b, c] = options;
        let words = [self.ports, head.seq.0, head.ack.0, control, check, a, b, c];
        for (to, word) in out.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *to = word.to_be_bytes();
        }
        BYTES
    }

    /// Any header.
    fn write_any(&self, head: &Head, body: Body, out: &mut [u8]) -> usize {
        let mut room = [0; OPTIONS_BYTES];
        let options_bytes = options::write(&head.options, &mut room);
        let options = &room[..options_bytes];
        let bytes = HEADER_BYTES + options.len();
        let (Some(length), Some(out)) = (length(bytes, body), out.get_mut(..bytes)) else { return 0 };
        let control = control(bytes / 4, head.flags, head.window);
        let words = [self.ports, head.seq.0, head.ack.0, control, u32::from(head.urgent)];
        let (fixed, behind) = out.split_at_mut(HEADER_BYTES);
        for (to, word) in fixed.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *to = word.to_be_bytes();
        }
        behind.copy_from_slice(options);
        let others = words[1..].iter().map(|&word| u64::from(word)).sum::<u64>();
        let sum = u64::from(self.sum) + others + u64::from(length) + u64::from(body.sum);
        //= RFC 9293 section 3.1
        //# The sender MUST generate it
        //# (MUST-2)
        let check = !add(fold(sum), sum16(options));
        fixed[16..18].copy_from_slice(&check.to_be_bytes());
        bytes
    }
}

/// Length of a segment as its pseudo-header has it.
#[inline]
fn length(header_bytes: usize, body: Body) -> Option<u16> {
    u16::try_from(body.bytes as u64 + header_bytes as u64).ok()
}

/// Data offset, control bits and window.
#[inline]
const fn control(words: usize, flags: Flags, window: u16) -> u32 {
    (words as u32) << 28 | (flags.0 as u32) << 16 | window as u32
}

#[cfg(test)]
#[path = "template_tests.rs"]
mod tests;
