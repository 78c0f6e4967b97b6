//! The catalogue's data on each title: its properties, the members it lies on, and which of those
//! are lost.

use std::fmt;
use std::path::PathBuf;
use std::time::{Instant, SystemTime};

use millrace_core::ids::TitleId;

use crate::error::StoreError;
use crate::format::manifest::Placement;
use crate::format::title_info::TitleInfo;

/// The number of members that a title lies on: the first ones of its volume, because new members
/// are only ever added behind the existing ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedOn {
    /// Members that it lies on.
    pub members: usize,
    /// How many of them may be lost.
    pub may: usize,
}

impl PlacedOn {
    pub(crate) fn of(placement: &Placement) -> Self {
        Self { members: placement.members.len(), may: usize::from(placement.geometry().tolerance()) }
    }
}

/// A title that the volume has, whether it can be played now or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedTitle {
    /// Its properties.
    pub info: TitleInfo,
    /// Where it lies.
    pub placed: PlacedOn,
    /// Members that were there when the volume was looked at, and did not have it although they should.
    pub lacking: Vec<usize>,
    /// Members that are present but stale, and have it all the same: their stored sums verify the
    /// contents. Only looked for where too few others have it.
    pub behind: Vec<usize>,
}

impl ListedTitle {
    /// Returns the members lost to it, if these are more than it tolerates; `is_usable` returns
    /// whether a member can be read now.
    pub fn lost(&self, is_usable: impl Fn(usize) -> bool) -> Option<LostMembers> {
        let PlacedOn { members: of, may } = self.placed;
        let is_lost = |slot: &usize| self.lacking.contains(slot) || !is_usable(*slot);
        let slots: Vec<usize> = (0..of).filter(|slot| is_lost(slot) && !self.behind.contains(slot)).collect();
        (slots.len() > may).then_some(LostMembers { slots, of, may })
    }
}

/// The members that a title misses: more than its parity makes up for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostMembers {
    /// Which.
    pub slots: Vec<usize>,
    /// Of how many.
    pub of: usize,
    /// How many may be lost.
    pub may: usize,
}

impl fmt::Display for LostMembers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { slots, of, may } = self;
        if *of == 1 {
            return write!(f, "the only member that holds the title is lost ({})", slots[0]);
        }
        let names: Vec<String> = slots.iter().map(usize::to_string).collect();
        let names = names.join(", ");
        let verb = if slots.len() == 1 { "is" } else { "are" };
        write!(
            f,
            "{} of the title's {of} members {verb} lost ({names}); it tolerates the loss of {may}",
            slots.len()
        )
    }
}

/// A directory below `titles` that holds no readable title.
#[derive(Debug)]
pub struct UnreadableTitle {
    /// The title.
    pub id: TitleId,
    /// Why it cannot be read.
    pub error: StoreError,
}

/// All that a volume has.
#[derive(Debug)]
pub struct Listing {
    /// Titles, by name.
    pub titles: Vec<ListedTitle>,
    /// Titles among them that cannot be read although their members are present.
    pub unreadable: Vec<UnreadableTitle>,
    /// For [`Volume::listing_since`](super::Volume::listing_since); `None` if a change may go unnoticed from here.
    pub as_of: Option<ListedAt>,
}

/// The basis of a listing.
#[derive(Clone, Debug)]
pub struct ListedAt {
    /// The directories `titles` and their modification times.
    pub(super) modified: Vec<(PathBuf, SystemTime)>,
    /// Of each member, whether it can be read and whether it is there.
    pub(super) members: Vec<(bool, bool)>,
    pub(super) at: Instant,
}

#[cfg(test)]
mod tests {
    use super::LostMembers;

    #[test]
    fn lost_members_display_names_members_and_tolerance() {
        let lost = |slots: &[usize], of, may| LostMembers { slots: slots.to_vec(), of, may }.to_string();
        assert_eq!(
            lost(&[1, 2], 3, 1),
            "2 of the title's 3 members are lost (1, 2); it tolerates the loss of 1"
        );
        assert_eq!(lost(&[1], 2, 0), "1 of the title's 2 members is lost (1); it tolerates the loss of 0");
        assert_eq!(lost(&[0], 1, 0), "the only member that holds the title is lost (0)");
    }
}
