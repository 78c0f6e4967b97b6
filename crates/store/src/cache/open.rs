//! From a source to an open title of its kind.

use super::plain::Plain;
use super::source::{OpenTitle, SourceKind, TitleKind, TitleSource};
use super::stripes::{ParityTrack, Striped};

impl OpenTitle {
    /// Opens the files that are read first, if possible, so that a title removed later can still be
    /// read.
    pub(super) fn new(source: Box<dyn TitleSource>) -> Self {
        Self::of_kind(Self::kind_of(source))
    }

    /// The kind of a source, with its files open. The one place where its kind is looked at.
    pub(super) fn kind_of(source: Box<dyn TitleSource>) -> Box<dyn TitleKind> {
        match source.kind() {
            SourceKind::Plain(source) => Box::new(Plain::open(source)),
            SourceKind::Striped(stripes, source) => Box::new(Striped::open(stripes, source)),
            SourceKind::Parity(stripes, number, source) => {
                Box::new(ParityTrack::open(stripes, number, source))
            }
            SourceKind::Own(title) => title.into_kind(),
        }
    }
}
