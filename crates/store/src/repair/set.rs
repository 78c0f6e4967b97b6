//! A title as all its members together have it.

use std::path::PathBuf;

use millrace_core::ids::TitleId;

use crate::dirs::Dirs;
use crate::format::manifest::{DATA_FILE, DATA_UNITS_FILE, FileEntry, Manifest, PARITY_UNITS_FILE};
use crate::stripes::StripeLayout;

/// A member's directory, where it is there.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    /// Its paths, and the way to its disk.
    pub(crate) dirs: Dirs,
    /// Whether the volume trusts its contents.
    pub(crate) active: bool,
}

/// The two kinds of files whose bytes follow from those of other members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Units {
    /// The member's part of the title.
    Data,
    /// Its part of the parity.
    Parity,
}

/// A title and where it is.
#[derive(Clone, Debug)]
pub(crate) struct TitleSet {
    /// Its intended state.
    pub(crate) manifest: Manifest,
    /// The manifest as it lies on the disks.
    pub(crate) manifest_bytes: Vec<u8>,
    /// Where its units lie.
    pub(crate) stripes: StripeLayout,
    /// By position: the members that it lies on and that are there.
    pub(crate) homes: Vec<Option<Home>>,
}

impl TitleSet {
    /// `None` if its placement is one that this version cannot work with.
    pub(crate) fn new(
        manifest: Manifest,
        manifest_bytes: Vec<u8>,
        home: impl Fn(u16) -> Option<Home>,
    ) -> Option<Self> {
        let stripes = StripeLayout::new(&manifest.placement.geometry(), manifest.title.bytes)?;
        let homes = manifest.placement.members.iter().map(|member| home(member.index)).collect();
        Some(Self { manifest, manifest_bytes, stripes, homes })
    }

    pub(crate) fn id(&self) -> TitleId {
        self.manifest.title.id
    }

    /// The title's directory at a position, if the member is there.
    pub(crate) fn dir(&self, position: usize) -> Option<PathBuf> {
        self.homes[position].as_ref().map(|home| home.dirs.title(self.id()))
    }

    /// The member at a position, which must be there.
    pub(crate) fn slot(&self, position: usize) -> u16 {
        self.manifest.placement.members[position].index
    }

    /// The name of a file of units.
    pub(crate) fn name(&self, units: Units) -> &'static str {
        match units {
            Units::Data if self.stripes.members() == 1 => DATA_FILE,
            Units::Data => DATA_UNITS_FILE,
            Units::Parity => PARITY_UNITS_FILE,
        }
    }

    /// The manifest's entry of a file of units; `None` if the member has no such file.
    pub(crate) fn entry(&self, position: usize, units: Units) -> Option<&FileEntry> {
        let name = self.name(units);
        self.manifest.files_on(position).into_iter().find(|entry| entry.name == name)
    }

    /// Which units a file has, if it has any.
    pub(crate) fn units_of(&self, name: &str) -> Option<Units> {
        [Units::Data, Units::Parity].into_iter().find(|&units| self.name(units) == name)
    }

    /// The units of a stripe on a position, ascending.
    pub(crate) fn units_in(
        &self,
        position: usize,
        stripe: u32,
        units: Units,
    ) -> impl Iterator<Item = usize> + use<> {
        let k = self.stripes.k();
        self.stripes.units_on(position, stripe).filter(move |&unit| (unit < k) == (units == Units::Data))
    }

    /// Bytes that the file of a unit has of it: less than a unit at the title's end.
    pub(crate) fn stored_bytes(&self, stripe: u32, unit: usize) -> usize {
        if unit < self.stripes.k() {
            self.stripes.media_in_unit(stripe, unit)
        } else {
            self.stripes.unit_bytes()
        }
    }

    /// Returns the range that some stripes take in a file of units.
    pub(crate) fn range(
        &self,
        position: usize,
        units: Units,
        stripes: std::ops::Range<u32>,
    ) -> std::ops::Range<u64> {
        match units {
            Units::Data => self.stripes.data_range(position, stripes),
            Units::Parity => self.stripes.parity_range(position, stripes),
        }
    }

    /// The symbols of a stripe that lie in a file of units.
    pub(crate) fn symbols(&self, position: usize, stripe: u32, units: Units) -> u128 {
        self.units_in(position, stripe, units).fold(0, |mask, unit| mask | 1 << unit)
    }
}
