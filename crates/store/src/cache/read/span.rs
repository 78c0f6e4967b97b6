//! One range of a file that has to come in full, in as many reads as it takes.

use std::ops::Range;

use super::super::aligned::ALIGN;
use crate::limits::cache::MAX_INTERRUPTIONS;

/// Progress of a read after one system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpanProgress {
    /// Everything needed is there.
    Done,
    /// The rest must be requested.
    Again,
    /// Failed with this `errno`.
    Failed(i32),
}

/// One range of a file that has to come in full, read in as many calls as it takes.
#[derive(Clone, Debug)]
pub(super) struct Span {
    /// Offset in the file, aligned.
    pub(super) offset: u64,
    /// Bytes asked for, aligned; may reach beyond the file's end.
    pub(super) ask: usize,
    /// Bytes from `offset` on that must come.
    pub(super) need: usize,
    /// Bytes that have come.
    got: usize,
    interruptions: u32,
}

impl Span {
    /// The aligned range that covers `bytes`.
    pub(super) fn covering(bytes: &Range<u64>) -> Self {
        let offset = bytes.start / ALIGN as u64 * ALIGN as u64;
        let need = (bytes.end.max(bytes.start) - offset) as usize;
        Self { offset, ask: need.next_multiple_of(ALIGN), need, got: 0, interruptions: 0 }
    }

    /// Where to go on: bytes of the staging memory, and their offset in the file. After a short read the last,
    /// partial block is read again, for direct reads begin at block borders only.
    pub(super) fn rest(&self) -> (Range<usize>, u64) {
        let from = self.got / ALIGN * ALIGN;
        (from..self.ask, self.offset + from as u64)
    }

    /// Notes the result of reading [`Span::rest`]: bytes, or `-errno`.
    pub(super) fn arrived(&mut self, result: i32) -> SpanProgress {
        let Ok(bytes) = usize::try_from(result) else {
            let errno = -result;
            self.interruptions += 1;
            let again = matches!(errno, libc::EINTR | libc::EAGAIN) && self.interruptions < MAX_INTERRUPTIONS;
            return if again { SpanProgress::Again } else { SpanProgress::Failed(errno) };
        };
        let got = self.got / ALIGN * ALIGN + bytes;
        if got <= self.got {
            return SpanProgress::Failed(libc::ENODATA); // the file ends before what it should hold
        }
        self.got = got;
        if got >= self.need { SpanProgress::Done } else { SpanProgress::Again }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever lengths a file is read in, the bytes asked for are in order, complete, aligned, and asked for in
        /// finitely many calls.
        #[test]
        fn short_reads_are_continued(start in 0u64..20_000, len in 1u64..300_000,
                                     steps in proptest::collection::vec(1usize..100_000, 1..40)) {
            let bytes = start..start + len;
            let mut span = Span::covering(&bytes);
            prop_assert!(span.offset <= start && span.offset + (span.need as u64) == bytes.end);
            let mut known = 0;
            for step in steps.iter().cycle() {
                let (range, offset) = span.rest();
                prop_assert!(range.start <= known && offset.is_multiple_of(ALIGN as u64) && range.end.is_multiple_of(ALIGN));
                prop_assert_eq!(offset, span.offset + range.start as u64);
                let come = (known - range.start + step).min(range.len());
                known = range.start + come;
                match span.arrived(come as i32) {
                    SpanProgress::Done => break,
                    SpanProgress::Again => prop_assert!(known < span.need),
                    SpanProgress::Failed(errno) => prop_assert!(false, "errno {}", errno),
                }
            }
            prop_assert!(known >= span.need);
        }
    }

    #[test]
    fn interruptions_are_not_errors_unless_they_never_end() {
        let mut span = Span::covering(&(0..100));
        for _ in 1..MAX_INTERRUPTIONS {
            assert_eq!(span.arrived(-libc::EINTR), SpanProgress::Again);
        }
        assert_eq!(span.arrived(-libc::EAGAIN), SpanProgress::Failed(libc::EAGAIN));
        assert_eq!(Span::covering(&(0..100)).arrived(-libc::EIO), SpanProgress::Failed(libc::EIO));
        assert_eq!(Span::covering(&(0..100)).arrived(0), SpanProgress::Failed(libc::ENODATA));
        assert_eq!(Span::covering(&(0..100)).arrived(100), SpanProgress::Done);
    }
}
