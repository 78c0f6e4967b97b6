//! Titles that are transformed when an extent is filled: the cache reads, verifies and decodes the
//! data of the title below, and changes the result before it leases it. The changed extents are
//! cached for all viewers of the transformed track; they are not those of the title.

use std::ops::Range;
use std::path::Path;

use millrace_core::ids::TitleId;
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::time::MediaTicks;
use millrace_core::wire::rtp::Timeline;

use super::builder::Builder;
use super::handle::ReadFailure;
use super::order::{Built, ExtentQuery, Order};
use super::source::{
    OpenTitle, OrderResults, OwnKind, SourceKind, TitleKind, TitleMembers, TitleSource, TrackId,
};
use crate::sums::DeriveError;
use crate::transform::{Derivation, timeline_of};

/// A transformed title: a kind around another.
pub struct DerivedTitle {
    parent: Box<dyn TitleKind>,
    derivation: Derivation,
}

impl DerivedTitle {
    /// Opens the files of `parent` that are read first.
    pub fn new(parent: Box<dyn TitleSource>, derivation: Derivation) -> Self {
        Self { parent: OpenTitle::kind_of(parent), derivation }
    }
}

/// The properties of the title below, except for its identity.
impl TitleSource for DerivedTitle {
    fn id(&self) -> TitleId {
        self.parent.source().id()
    }
    fn layout(&self) -> WireLayout {
        self.parent.source().layout()
    }
    fn timeline(&self) -> Timeline {
        timeline_of(self.parent.source().timeline(), self.derivation.number())
    }
    fn packets(&self) -> u32 {
        self.parent.source().packets()
    }
    fn packet_bytes_at(&self, packet: u32) -> usize {
        self.parent.source().packet_bytes_at(packet)
    }
    fn media_time(&self, packet: u32) -> MediaTicks {
        self.parent.source().media_time(packet)
    }
    fn track(&self) -> TrackId {
        TrackId::Derived(self.derivation.number())
    }
    fn kind(self: Box<Self>) -> SourceKind {
        SourceKind::Own(OwnKind::new(self))
    }
    fn meta_range(&self, first: u32, count: u32) -> Range<u64> {
        self.parent.source().meta_range(first, count)
    }
    fn sums_range(&self, first: u32, count: u32) -> Range<u64> {
        self.parent.source().sums_range(first, count)
    }
    fn has_sums(&self) -> bool {
        self.parent.source().has_sums()
    }
    fn has_crcs(&self) -> bool {
        self.parent.source().has_crcs()
    }
    fn records(
        &self,
        meta: &[u8],
        sums: &[u8],
        first: u32,
        out: &mut [PacketMeta],
    ) -> Result<(), DeriveError> {
        self.parent.source().records(meta, sums, first, out)
    }
}

impl TitleKind for DerivedTitle {
    fn source(&self) -> &dyn TitleSource {
        self
    }

    /// Stored parity repairs the stored packets: a viewer of these needs them whole.
    fn order(&self, title: &OpenTitle, query: ExtentQuery) -> Result<Order, ReadFailure> {
        self.parent.order(title, ExtentQuery { spare: 0, ..query })
    }

    fn assemble(&self, builder: &mut Builder, read: OrderResults<'_>, extent: &mut [u8]) -> Built {
        self.parent.assemble(builder, read, extent)
    }

    fn members(&self) -> Option<TitleMembers<'_>> {
        self.parent.members()
    }

    fn data_path(&self) -> Option<&Path> {
        self.parent.data_path()
    }

    fn is_missed(&self, order: &Order) -> bool {
        self.parent.is_missed(order)
    }

    fn holes_are_damage(&self) -> bool {
        self.parent.holes_are_damage()
    }

    fn derivation(&self) -> Option<&Derivation> {
        Some(&self.derivation)
    }
}
