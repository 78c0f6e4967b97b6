//! The results of an order, unit by unit.

use crate::cache::order::{Order, Role, SpanOrder, SpanResult};
use crate::limits::MAX_MEMBERS;
use crate::member_set::PositionSet;

/// The spans of an order and what became of them.
#[derive(Clone, Copy)]
pub(in crate::cache) struct Results<'a> {
    order: &'a Order,
    results: &'a [SpanResult<'a>],
}

impl<'a> Results<'a> {
    pub(in crate::cache) fn new(order: &'a Order, results: &'a [SpanResult<'a>]) -> Self {
        Self { order, results }
    }

    fn all(self) -> impl Iterator<Item = (&'a SpanOrder, SpanResult<'a>)> {
        self.order.spans.iter().zip(self.results.iter().copied())
    }

    /// Returns the data received for a role, with the spans; several copies of records, or several
    /// spans of parity.
    pub(in crate::cache) fn of(self, role: Role) -> impl Iterator<Item = (&'a SpanOrder, &'a [u8])> {
        let came = self.all().filter_map(|(span, result)| Some((span, result.ok()?)));
        came.filter(move |(span, _)| span.role == role)
    }

    /// Whether anything was ordered for a role.
    pub(in crate::cache) fn has_ordered(self, role: Role) -> bool {
        self.order.spans.iter().any(|span| span.role == role)
    }

    /// Returns the bytes received of a member's file, beginning at `from`: missing bytes are
    /// missing at the end.
    pub(in crate::cache) fn bytes_at(self, role: Role, from: u64, bytes: usize) -> &'a [u8] {
        let holds = |span: &SpanOrder| span.role == role && span.bytes.contains(&from);
        let span = self.of(role).find(|(span, _)| holds(span));
        let rest = span.and_then(|(span, came)| came.get((from - span.bytes.start) as usize..));
        rest.map_or(&[], |rest| &rest[..bytes.min(rest.len())])
    }

    /// The first `errno`.
    pub(in crate::cache) fn first_error(self) -> Option<i32> {
        self.all().find_map(|(_, result)| result.err())
    }

    /// Positions that were asked for media or parity and gave nothing, not even records. One with bad sectors gives
    /// something; `slot`: that of a position in the volume.
    pub(in crate::cache) fn silent_positions(self, slot: impl Fn(usize) -> u16) -> PositionSet {
        let gives = |member: Option<u16>| {
            self.all()
                .any(|(span, result)| span.member == member && result.is_ok_and(|came| !came.is_empty()))
        };
        let mut silent = PositionSet::EMPTY;
        for span in &self.order.spans {
            if let Role::Data { position } | Role::Parity { position } = span.role
                && !silent.contains(position)
                && !gives(Some(slot(position.into())))
            {
                silent.insert(position);
            }
        }
        silent
    }

    /// The data of each position, to be taken unit by unit: only where each position has one span.
    pub(in crate::cache) fn data(self) -> Cursors<'a> {
        let mut rest = [&[][..]; MAX_MEMBERS];
        for (span, result) in self.all() {
            if let (Role::Data { position }, Ok(bytes)) = (span.role, result)
                && let Some(rest) = rest.get_mut(usize::from(position))
            {
                *rest = bytes;
            }
        }
        Cursors { rest }
    }
}

/// The remaining bytes of each position. In a file the units follow one another, in the order of
/// the title.
pub(in crate::cache) struct Cursors<'a> {
    rest: [&'a [u8]; MAX_MEMBERS],
}

impl<'a> Cursors<'a> {
    /// Returns the next `bytes` of a position; missing bytes are missing at the end.
    pub(in crate::cache) fn take(&mut self, position: usize, bytes: usize) -> &'a [u8] {
        let Some(rest) = self.rest.get_mut(position) else { return &[] };
        let (taken, left) = rest.split_at(bytes.min(rest.len()));
        *rest = left;
        taken
    }
}
