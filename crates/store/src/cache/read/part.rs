//! One request to a member: its reads, the memory they fill, and the spans of the orders they
//! serve.
//!
//! Consecutive spans in a file are one read ([`SpanOrder::joined`]): a disk is slow to begin a
//! read, not to continue it. A failed read of several spans is repeated span by span, so that a bad
//! sector affects no other span. A title without members that is read
//! [block by block](Order::in_blocks) has a part for each block, which may be given up alone.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::super::order::{Order, SpanFile, SpanOrder, SpanResult};
use super::span::{Span, SpanProgress};
use super::staging::StagingBuffer;

/// Whose spans are one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// The member; none for a title whole on one.
    pub(super) member: Option<u16>,
    /// If it is one block only: the place of its order, and its number there.
    pub(super) block: Option<(usize, usize)>,
}

impl Share {
    /// That of span `number` of the order at `place`.
    pub(super) fn of((place, order): (usize, &Order), (number, span): (usize, &SpanOrder)) -> Self {
        let is_block = order.in_blocks && span.role.is_units();
        Self { member: span.member, block: is_block.then_some((place, number)) }
    }
}

/// The reads of one member for some orders.
pub(super) struct PartPlan<'a> {
    /// Spans, each with the number of its read.
    wanted: Vec<(usize, &'a SpanOrder)>,
    /// Ranges of files, each with the first span of it.
    reads: Vec<(&'a SpanOrder, Range<u64>)>,
    /// Of each of the spans: its place, and its number in the order there.
    pub(super) spans: Vec<(usize, usize)>,
}

impl<'a> PartPlan<'a> {
    /// What these orders want of `share`.
    pub(super) fn new(batch: &[(usize, &'a Order)], share: Share) -> Self {
        let mut plan = Self { wanted: Vec::new(), reads: Vec::new(), spans: Vec::new() };
        for &(place, order) in batch {
            let spans = order.spans.iter().enumerate();
            for (number, span) in spans.filter(|&span| Share::of((place, order), span) == share) {
                plan.spans.push((place, number));
                plan.add(span);
            }
        }
        plan
    }

    fn add(&mut self, span: &'a SpanOrder) {
        let before =
            if span.joined { self.wanted.iter().rfind(|(_, before)| span.continues(before)) } else { None };
        let read = match before {
            Some(&(read, _)) => {
                let bytes = &mut self.reads[read].1;
                bytes.end = bytes.end.max(span.bytes.end);
                read
            }
            None => {
                self.reads.push((span, span.bytes.clone()));
                self.reads.len() - 1
            }
        };
        self.wanted.push((read, span));
    }

    /// The places whose orders these are.
    pub(super) fn places(&self) -> Vec<usize> {
        let mut places: Vec<_> = self.spans.iter().map(|&(place, _)| place).collect();
        places.dedup();
        places
    }

    /// How many reads.
    #[cfg(test)]
    pub(super) fn reads(&self) -> usize {
        self.reads.len()
    }

    /// Memory that it takes.
    pub(super) fn bytes(&self) -> usize {
        self.reads.iter().map(|(_, bytes)| Span::covering(bytes).ask).sum()
    }
}

/// One range of a file.
pub(super) struct Read {
    pub(super) file: SpanFile,
    /// Of media or parity, not of records.
    pub(super) is_units: bool,
    span: Span,
    /// Where it lies in the part's memory.
    at: usize,
    result: Option<Result<(), i32>>,
}

impl Read {
    /// Returns the next read: bytes of the part's memory, and their offset in the file.
    fn rest(&self) -> (Range<usize>, u64) {
        let (range, offset) = self.span.rest();
        (self.at + range.start..self.at + range.end, offset)
    }
}

/// One span of an order.
struct WantedSpan {
    /// The read that brings it.
    read: usize,
    bytes: Range<u64>,
}

/// What became of a read after one system call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Arrived {
    /// The rest must be requested.
    Again,
    /// It has ended.
    Ended,
    /// It has failed, and these reads must be made instead.
    Split(Range<usize>),
}

/// The spans of some orders that one member answers.
pub(super) struct ReadPart {
    /// The member; none for a title whole on one.
    pub(super) member: Option<u16>,
    /// It is one block of a title whole on one.
    pub(super) is_block: bool,
    pub(super) reads: Vec<Read>,
    wanted: Vec<WantedSpan>,
    memory: Option<StagingBuffer>,
    left: usize,
    /// Counts completions, wherever the part is.
    arrivals: Arc<AtomicU32>,
}

impl ReadPart {
    /// Creates a part as planned. Without memory it has failed with the given `errno`.
    pub(super) fn new(share: Share, plan: PartPlan<'_>, memory: Result<StagingBuffer, Option<i32>>) -> Self {
        let (member, is_block) = (share.member, share.block.is_some());
        let (mut reads, mut at) = (Vec::with_capacity(plan.reads.len()), 0);
        for (first, bytes) in &plan.reads {
            let span = Span::covering(bytes);
            let ask = span.ask;
            let (file, is_units) = (first.file.clone(), first.role.is_units());
            reads.push(Read { file, is_units, span, at, result: None });
            at += ask;
        }
        let wanted = plan.wanted.iter().map(|&(read, span)| WantedSpan { read, bytes: span.bytes.clone() });
        let (left, error) = (reads.len(), memory.as_ref().err().copied());
        let (wanted, memory, arrivals) = (wanted.collect(), memory.ok(), Arc::default());
        let mut part = Self { member, is_block, reads, wanted, memory, left, arrivals };
        if let Some(errno) = error {
            part.fail(errno.unwrap_or(libc::ENOMEM));
        }
        part
    }

    /// Where read number `index` goes on: memory, its number among those that the kernel knows, offset in the file.
    pub(super) fn rest(&mut self, index: usize) -> (&mut [u8], Option<u16>, u64) {
        let (range, offset) = self.reads[index].rest();
        match &mut self.memory {
            Some(memory) => (&mut memory.buf[range], memory.registered, offset),
            None => (&mut [], None, offset),
        }
    }

    /// The same for the kernel, by address and length: the kernel may be writing to other reads of
    /// this part, so no slice may cover them.
    pub(super) fn target(&mut self, index: usize) -> (*mut u8, usize, Option<u16>, u64) {
        let (range, offset) = self.reads[index].rest();
        match &mut self.memory {
            Some(memory) => {
                (memory.buf.base().wrapping_add(range.start), range.len(), memory.registered, offset)
            }
            None => (std::ptr::dangling_mut(), 0, None, offset),
        }
    }

    /// Records the result of a call for [`ReadPart::rest`].
    pub(super) fn arrived(&mut self, index: usize, result: i32) -> Arrived {
        self.arrivals.fetch_add(1, Ordering::Relaxed);
        let read = &mut self.reads[index];
        let result = match read.span.arrived(result) {
            SpanProgress::Again => return Arrived::Again,
            SpanProgress::Done => Ok(()),
            SpanProgress::Failed(errno) => Err(errno),
        };
        let first = self.reads.len();
        if result.is_err() && self.split(index) {
            return Arrived::Split(first..self.reads.len());
        }
        if self.reads[index].result.replace(result).is_none() {
            self.left -= 1;
        }
        Arrived::Ended
    }

    /// Replaces a read of several spans by one of each, into the same memory. Those may share a page, which each of them fills with
    /// the same. `false`: it is a read of one.
    fn split(&mut self, index: usize) -> bool {
        let (at, offset) = (self.reads[index].at, self.reads[index].span.offset);
        if self.wanted.iter().filter(|wanted| wanted.read == index).count() < 2 {
            return false;
        }
        for number in 0..self.wanted.len() {
            if self.wanted[number].read == index {
                let span = Span::covering(&self.wanted[number].bytes);
                let at = at + (span.offset - offset) as usize;
                let Read { file, is_units, .. } = &self.reads[index];
                let (file, is_units) = (file.clone(), *is_units);
                self.wanted[number].read = self.reads.len();
                self.reads.push(Read { file, is_units, span, at, result: None });
                self.left += 1;
            }
        }
        self.left -= 1;
        true
    }

    /// The bytes of files that its reads ask for.
    #[cfg(feature = "sim")]
    pub(super) fn ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.reads.iter().map(|read| read.span.offset..read.span.offset + read.span.ask as u64)
    }

    /// Whether all its reads have ended.
    pub(super) fn has_ended(&self) -> bool {
        self.left == 0
    }

    /// All of it has failed.
    pub(super) fn fail(&mut self, errno: i32) {
        self.reads.iter_mut().for_each(|read| read.result = Some(Err(errno)));
        self.left = 0;
    }

    /// Returns the result of span number `index`.
    pub(super) fn result(&self, index: usize) -> SpanResult<'_> {
        let WantedSpan { read, bytes } = &self.wanted[index];
        let read = &self.reads[*read];
        match (read.result, &self.memory) {
            (Some(Ok(())), Some(memory)) => {
                let at = read.at + (bytes.start - read.span.offset) as usize;
                Ok(&memory.buf[at..at + (bytes.end - bytes.start) as usize])
            }
            (Some(Err(errno)), _) => Err(errno),
            _ => Err(libc::ETIMEDOUT),
        }
    }

    /// Its memory in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.memory.as_ref().map_or(0, |memory| memory.buf.len())
    }

    /// Returns the counter of its completions.
    pub(super) fn arrivals(&self) -> Arc<AtomicU32> {
        Arc::clone(&self.arrivals)
    }

    /// Its memory, when it is not needed any more.
    pub(super) fn into_memory(self) -> Option<StagingBuffer> {
        self.memory
    }
}
