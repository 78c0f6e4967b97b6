//! What connections have to report of data out of order: SACK blocks and duplicates. Few of many connections have any at a time, so these
//! lie in a pool rather than in each.

use crate::seq::Seq;

/// SACK blocks that are remembered: as many as fit beside time stamps.
pub(super) const REMEMBERED: usize = 3;

/// First and one behind the last byte of something; none if both are the same.
pub(super) type Range = (Seq, Seq);

/// Nothing.
const EMPTY: Range = (Seq(0), Seq(0));

pub(super) fn is_empty((from, to): Range) -> bool {
    from == to
}

/// What one connection has to report.
#[derive(Clone, Copy, Debug)]
pub(super) struct SackReport {
    /// A duplicate that has not been reported.
    pub(super) duplicate: Range,
    /// Blocks of early data, the latest first.
    pub(super) blocks: [Range; REMEMBERED],
}

impl SackReport {
    const NOTHING: Self = Self { duplicate: EMPTY, blocks: [EMPTY; REMEMBERED] };

    fn is_nothing(&self) -> bool {
        is_empty(self.duplicate) && self.blocks.into_iter().all(is_empty)
    }
}

/// Where a connection's report is.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReportId(u32);

impl ReportId {
    pub(super) const NONE: Self = Self(u32::MAX);

    #[inline]
    pub(super) const fn is_none(self) -> bool {
        self.0 == u32::MAX
    }
}

/// Reports of all connections. When all of them are in use, some connection reports nothing, and
/// its peer sends more again than it must.
#[derive(Debug)]
pub(super) struct Reports {
    reports: Box<[SackReport]>,
    free: Vec<u32>,
}

impl Reports {
    pub(super) const fn bytes(count: u32) -> usize {
        count as usize * (size_of::<SackReport>() + size_of::<u32>())
    }

    pub(super) fn new(count: u32) -> Self {
        Self { reports: vec![SackReport::NOTHING; count as usize].into(), free: (0..count).rev().collect() }
    }

    pub(super) fn get(&self, id: ReportId) -> Option<&SackReport> {
        self.reports.get(id.0 as usize)
    }

    /// Changes a report, or begins one; one in which nothing stands any more is given back.
    pub(super) fn change(&mut self, id: &mut ReportId, change: impl FnOnce(&mut SackReport)) {
        if id.is_none() {
            let Some(free) = self.free.pop() else { return };
            self.reports[free as usize] = SackReport::NOTHING;
            id.0 = free;
        }
        let Some(report) = self.reports.get_mut(id.0 as usize) else { return };
        change(report);
        if report.is_nothing() {
            self.give(id);
        }
    }

    /// There is nothing to report.
    pub(super) fn give(&mut self, id: &mut ReportId) {
        if (id.0 as usize) < self.reports.len() {
            self.free.push(id.0);
        }
        *id = ReportId::NONE;
    }

    #[cfg(test)]
    pub(super) fn used(&self) -> usize {
        self.reports.len() - self.free.len()
    }
}

impl SackReport {
    /// The latest segment is in this block of early data, which takes in those that it touches.
    pub(super) fn note_block(&mut self, block: Range) {
        let before = self.blocks;
        let others = before
            .into_iter()
            .filter(|&(from, to)| !is_empty((from, to)) && (to.before(block.0) || from.after(block.1)));
        self.blocks = [EMPTY; REMEMBERED];
        for (at, other) in self.blocks.iter_mut().zip(std::iter::once(block).chain(others)) {
            *at = other;
        }
    }

    /// Takes note that everything below `next` is acknowledged without blocks.
    pub(super) fn advance(&mut self, next: Seq) {
        let before = self.blocks;
        self.blocks = [EMPTY; REMEMBERED];
        let left = before.into_iter().filter(|block| !is_empty(*block) && block.1.after(next));
        for (at, block) in self.blocks.iter_mut().zip(left) {
            *at = block;
        }
    }

    /// The duplicate was reported.
    pub(super) fn told(&mut self) {
        self.duplicate = EMPTY;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Range = (Seq(10), Seq(20));
    const B: Range = (Seq(30), Seq(40));

    #[test]
    fn report_is_allocated_only_while_not_empty() {
        let (mut reports, mut id) = (Reports::new(2), ReportId::NONE);
        reports.change(&mut id, |report| report.duplicate = A);
        reports.change(&mut id, |report| report.note_block(B));
        assert_eq!((reports.used(), id.is_none()), (1, false));
        reports.change(&mut id, SackReport::told);
        assert_eq!(reports.get(id).map(|report| report.blocks[0]), Some(B));
        reports.change(&mut id, |report| report.advance(Seq(40)));
        assert_eq!((reports.used(), id.is_none()), (0, true));
        // The old content is not reported for another connection.
        reports.change(&mut id, |report| report.note_block(A));
        assert_eq!(
            reports.get(id).map(|report| (report.duplicate, report.blocks)),
            Some((EMPTY, [A, EMPTY, EMPTY]))
        );
        reports.give(&mut id);
        reports.give(&mut id);
        assert_eq!(reports.used(), 0);
    }

    #[test]
    fn change_without_free_report_records_nothing() {
        let (mut reports, mut first, mut second) = (Reports::new(1), ReportId::NONE, ReportId::NONE);
        reports.change(&mut first, |report| report.note_block(A));
        reports.change(&mut second, |report| report.note_block(B));
        assert!(second.is_none() && reports.get(second).is_none());
        assert_eq!(reports.get(first).map(|report| report.blocks[0]), Some(A));
    }
}
