//! The two kinds of titles that lie on members: media in stripes, and the parity tracks of such media.

use super::{media, needs, track};
use crate::cache::builder::Builder;
use crate::cache::handle::ReadFailure;
use crate::cache::member_files::FileTable;
use crate::cache::order::{Built, ExtentQuery, Order};
use crate::cache::source::{
    OpenTitle, OrderResults, ParitySource, StripedSource, TitleKind, TitleMembers, TitleSource,
};
use crate::stripes::StripeLayout;

/// Media.
pub(in crate::cache) struct Striped {
    source: Box<dyn StripedSource>,
    stripes: StripeLayout,
    table: FileTable,
}

impl Striped {
    /// Opens the files that are read first.
    pub(in crate::cache) fn open(stripes: StripeLayout, source: Box<dyn StripedSource>) -> Self {
        let table = FileTable::default();
        table.open_first(source.id(), &stripes, &*source, false);
        Self { source, stripes, table }
    }

    fn title_members(&self) -> TitleMembers<'_> {
        TitleMembers { stripes: self.stripes, files: &*self.source, table: &self.table }
    }
}

impl TitleKind for Striped {
    fn source(&self) -> &dyn TitleSource {
        &*self.source
    }

    fn order(&self, title: &OpenTitle, query: ExtentQuery) -> Result<Order, ReadFailure> {
        needs::media(title, self.title_members(), query)
    }

    fn assemble(&self, builder: &mut Builder, read: OrderResults<'_>, extent: &mut [u8]) -> Built {
        media::assemble(builder, read, (self.stripes, &*self.source as _), extent)
    }

    fn members(&self) -> Option<TitleMembers<'_>> {
        Some(self.title_members())
    }
}

/// Parity, as ready FEC datagrams.
pub(in crate::cache) struct ParityTrack {
    source: Box<dyn ParitySource>,
    stripes: StripeLayout,
    number: u8,
    table: FileTable,
}

impl ParityTrack {
    /// Opens the files that are read first.
    pub(in crate::cache) fn open(stripes: StripeLayout, number: u8, source: Box<dyn ParitySource>) -> Self {
        let table = FileTable::default();
        table.open_first(source.id(), &stripes, &*source, true);
        Self { source, stripes, number, table }
    }

    fn title_members(&self) -> TitleMembers<'_> {
        TitleMembers { stripes: self.stripes, files: &*self.source, table: &self.table }
    }
}

impl TitleKind for ParityTrack {
    fn source(&self) -> &dyn TitleSource {
        &*self.source
    }

    fn order(&self, title: &OpenTitle, query: ExtentQuery) -> Result<Order, ReadFailure> {
        needs::track(title, self.title_members(), self.number, query)
    }

    fn assemble(&self, _builder: &mut Builder, read: OrderResults<'_>, extent: &mut [u8]) -> Built {
        track::assemble((&*self.source, self.stripes, self.number), read, extent)
    }

    fn members(&self) -> Option<TitleMembers<'_>> {
        Some(self.title_members())
    }

    /// Media may have left with holes that nothing else repairs.
    fn is_missed(&self, order: &Order) -> bool {
        order.left_out.len() > self.stripes.tolerance()
    }

    /// It is whole again when its members are.
    fn holes_are_damage(&self) -> bool {
        false
    }
}
