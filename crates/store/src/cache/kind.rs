//! The differences between the kinds of titles: the data to read for an extent, and how the extent
//! is assembled from it. All other code asks the title, which was given its kind when it was
//! opened; `docs/design/0015-sources.md`.

use std::path::Path;

use millrace_core::ids::TitleRef;

use super::fill::Builder;
use super::handle::ReadFailure;
use super::order::{Built, MemberView, Order, SpanResult};
use super::source::{OpenTitle, TitleSource};
use super::stripes::{FileTable, MemberFiles};
use crate::stripes::StripeLayout;
use crate::transform::Derivation;

/// The members that a title lies on.
#[derive(Clone, Copy)]
pub(super) struct TitleMembers<'a> {
    /// How its bytes lie on them.
    pub(super) stripes: StripeLayout,
    /// Where they are.
    pub(super) files: &'a dyn MemberFiles,
    /// Their files.
    pub(super) table: &'a FileTable,
}

/// How titles of one kind order the reads for an extent and assemble it.
pub(super) trait TitleKind: Send + Sync {
    /// Returns the properties that any title has.
    fn source(&self) -> &dyn TitleSource;

    /// Returns the order for an extent, for a viewer that can spare `spare` packets in a codeword.
    /// `thorough`: the previous read for it was not good enough.
    ///
    /// # Errors
    /// [`ReadFailure::OutOfRange`]; [`ReadFailure::MembersLost`] if too few members may be asked.
    fn order(
        &self,
        title: &OpenTitle,
        extent_and_spare: (u32, u8),
        members: MemberView,
        thorough: bool,
    ) -> Result<Order, ReadFailure>;

    /// Builds the extent of `order` in `extent` from what became of its spans, one result for each.
    fn assemble(
        &self,
        builder: &mut Builder,
        title: (TitleRef, &OpenTitle),
        order: &Order,
        results: &[SpanResult<'_>],
        extent: &mut [u8],
    ) -> Built;

    /// Its members; `None`: its files are all that there is of it.
    fn members(&self) -> Option<TitleMembers<'_>> {
        None
    }

    /// Its data file, for messages, if there is just one.
    fn data_path(&self) -> Option<&Path> {
        None
    }

    /// Whether its viewers miss what this order leaves out, though an extent can be made without.
    fn is_missed(&self, _order: &Order) -> bool {
        false
    }

    /// Returns the change made to an assembled extent before it is leased.
    fn derivation(&self) -> Option<&Derivation> {
        None
    }

    /// Whether packets that are marked as missing are lost for good: then they are reported and, some time later, read again.
    fn holes_are_damage(&self) -> bool {
        true
    }
}
