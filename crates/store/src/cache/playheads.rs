//! The positions of a title's viewers, and the next use of each extent derived from them.
//!
//! A playhead is the first extent that its stream has not got yet, with the *offset* of its clock: the moment at which
//! the title's media time zero would have been due. It reaches extent `e` at `offset + media time of e`. So the next
//! use of `e` is its media time plus the least offset of all playheads at or before it, and that least offset is a
//! step function of the place in the title, kept as a [`Horizon`].

use std::collections::BTreeSet;

use crate::limits::cache::SMOOTH_NS;

/// Nanoseconds on the monotonic clock, signed so that offsets can be before its zero.
pub(super) type Ns = i64;

/// One stream of one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct StreamKey {
    /// Which engine.
    pub(super) handle: u16,
    /// Place in its stream table.
    pub(super) index: u32,
}

/// When an extent will be read next. Sooner is less; `Never` is greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NextUse {
    /// At this time; in the past for a late viewer.
    At(Ns),
    /// No known playhead will reach it.
    Never,
}

/// Position of one playhead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PlayheadPosition {
    /// First extent that the stream has not got yet.
    pub(super) extent: u32,
    /// When media time zero would have been due.
    pub(super) offset: Ns,
}

/// Least offset of all playheads at or before a place: strictly ascending places, strictly descending offsets.
#[derive(Debug, Default)]
pub(super) struct Horizon {
    steps: Vec<PlayheadPosition>,
}

impl Horizon {
    /// From all playheads, in ascending order of their extents.
    pub(super) fn rebuild(&mut self, places: impl Iterator<Item = PlayheadPosition>) {
        self.steps.clear();
        for place in places {
            match self.steps.last_mut() {
                Some(last) if last.offset <= place.offset => {}
                Some(last) if last.extent == place.extent => last.offset = place.offset,
                _ => self.steps.push(place),
            }
        }
    }

    /// Next use of `extent`, whose media time is `start_ns`.
    pub(super) fn next_use(&self, extent: u32, start_ns: Ns) -> NextUse {
        let after = self.steps.partition_point(|step| step.extent <= extent);
        after
            .checked_sub(1)
            .map_or(NextUse::Never, |i| NextUse::At(self.steps[i].offset.saturating_add(start_ns)))
    }
}

/// All playheads of one title.
#[derive(Debug, Default)]
pub(super) struct Playheads {
    order: BTreeSet<(PlayheadPosition, StreamKey)>,
    horizon: Horizon,
    /// A playhead appeared or jumped since the horizon was built: an extent may be needed sooner
    /// than the horizon indicates.
    jumped: bool,
    /// Extents at which playheads are.
    places: usize,
}

impl Playheads {
    /// A stream is at `to`; it was at `from` in this title before.
    pub(super) fn place(&mut self, stream: StreamKey, from: Option<PlayheadPosition>, to: PlayheadPosition) {
        if let Some(from) = from {
            self.take_out(stream, from);
        }
        let smooth = from.is_some_and(|from| {
            (from.extent == to.extent || from.extent.checked_add(1) == Some(to.extent))
                && from.offset.abs_diff(to.offset) <= SMOOTH_NS
        });
        self.jumped |= !smooth;
        self.places += usize::from(!self.is_somebody_at(to.extent));
        self.order.insert((to, stream));
    }

    /// A stream is not in this title any more.
    pub(super) fn remove(&mut self, stream: StreamKey, from: PlayheadPosition) {
        self.take_out(stream, from);
    }

    fn take_out(&mut self, stream: StreamKey, from: PlayheadPosition) {
        if self.order.remove(&(from, stream)) {
            self.places -= usize::from(!self.is_somebody_at(from.extent));
        }
    }

    fn is_somebody_at(&self, extent: u32) -> bool {
        let nobody = StreamKey { handle: 0, index: 0 };
        let first = (PlayheadPosition { extent, offset: Ns::MIN }, nobody);
        self.order.range(first..).next().is_some_and(|(place, _)| place.extent == extent)
    }

    /// Returns the number of extents with playheads. Playheads at the same extent share the extents
    /// they hold.
    pub(super) fn places(&self) -> usize {
        self.places
    }

    /// Builds the horizon again. Without this, playheads that moved on smoothly still count as needing the few extents
    /// that they have just got: an error to the safe side. Returns how many there are.
    pub(super) fn freeze(&mut self) -> usize {
        self.horizon.rebuild(self.order.iter().map(|&(place, _)| place));
        self.jumped = false;
        self.order.len()
    }

    /// Next use of an extent, never later than it is; see [`Playheads::freeze`].
    pub(super) fn next_use(&mut self, extent: u32, start_ns: Ns) -> NextUse {
        if self.jumped {
            self.freeze();
        }
        self.horizon.next_use(extent, start_ns)
    }

    /// Returns whether a playhead reaches `extent` (whose media time is `start_ns`) by `until`.
    /// Looks at the nearest playheads only and returns `true` when in doubt.
    pub(super) fn reached_by(&self, extent: u32, start_ns: Ns, until: Ns) -> bool {
        const LOOKED_AT: usize = 64;
        let nearest =
            (PlayheadPosition { extent, offset: Ns::MAX }, StreamKey { handle: u16::MAX, index: u32::MAX });
        let mut behind = self.order.range(..=nearest).rev();
        let found = behind.by_ref().take(LOOKED_AT).any(|(p, _)| p.offset.saturating_add(start_ns) <= until);
        found || behind.next().is_some()
    }
}

#[cfg(test)]
#[path = "playheads_tests.rs"]
mod tests;
