//! The promises of a volume's list of members: which they are, and whether they are there and up to date.

use std::path::{Path, PathBuf};

use super::report::{CheckReport, cause};
use crate::dirs::{Dirs, read_superblock};
use crate::format::members::MEMBERS_FILE;
use crate::format::superblock::Superblock;
use crate::members::{MemberState, Members, read_record};

/// A member that is present and trusted.
pub(super) struct PresentMember {
    pub(super) slot: u16,
    pub(super) dirs: Dirs,
    pub(super) superblock: Option<Superblock>,
}

/// The members of the volume that the store in `dir` belongs to, as far as they can be checked; those in the directories that
/// are `named`, if any are.
pub(super) fn members(
    dir: &Path,
    named: Option<&[PathBuf]>,
    report: &mut CheckReport<'_>,
) -> Vec<PresentMember> {
    let dirs = Dirs::new(dir);
    let superblock = superblock_is_readable(&dirs, report);
    if let Some(block) = &superblock {
        geometry_is_supported(&dirs, block, report);
    }
    let has_list = dir.join(MEMBERS_FILE).exists();
    let is_one_of_several = superblock.as_ref().is_some_and(|block| !block.geometry.is_single());
    if !has_list && !is_one_of_several || superblock.is_none() {
        return vec![PresentMember { slot: 0, dirs, superblock }];
    }
    let Some(members) = members_file_is_readable(dir, named, report) else {
        let slot = superblock.as_ref().map_or(0, |block| block.member_index);
        return vec![PresentMember { slot, dirs, superblock }];
    };
    every_member_is_there(&members, report);
    every_member_is_active(&members, report);
    members_agree(&members, report);
    let member = |slot: usize| {
        let dirs = Dirs::new(&members.dir(slot));
        let superblock = superblock_is_readable(&dirs, report);
        PresentMember { slot: slot as u16, dirs, superblock }
    };
    members.usable().into_iter().map(member).collect()
}

fn members_file_is_readable(
    dir: &Path,
    named: Option<&[PathBuf]>,
    report: &mut CheckReport<'_>,
) -> Option<Members> {
    match named.map_or_else(|| Members::find(dir), Members::among) {
        Ok(members) => Some(members),
        Err(error) => {
            let remedy = "open the volume by another of its members: that writes the list again; or restore members.mrm \
                          from another member, they all have the same";
            report.error("members_file_is_readable", &dir.join(MEMBERS_FILE), cause(&error), remedy);
            None
        }
    }
}

fn every_member_is_there(members: &Members, report: &mut CheckReport<'_>) {
    let gone: Vec<_> = members.report().into_iter().filter(|slot| slot.absent.is_some()).collect();
    let may = usize::from(members.geometry().tolerance());
    for slot in &gone {
        let why = slot.absent.as_deref().unwrap_or_default();
        let what = format!("member {} cannot be used: {why}", slot.index);
        let remedy =
            "put the disk back, or name another one with millrace volume replace; then run millrace repair";
        if gone.len() > may {
            report.error("every_member_is_there", &slot.dir, what, remedy);
        } else {
            report.warning("every_member_is_there", &slot.dir, what, remedy);
        }
    }
}

fn every_member_is_active(members: &Members, report: &mut CheckReport<'_>) {
    let there = members.report().into_iter().filter(|slot| slot.absent.is_none());
    for slot in there.filter(|slot| slot.state != MemberState::Active) {
        let what = format!("member {} is {}: nothing is read from it", slot.index, slot.state);
        report.warning("every_member_is_active", &slot.dir, what, "run millrace repair");
    }
}

/// Every member has the newest list.
fn members_agree(members: &Members, report: &mut CheckReport<'_>) {
    let Some(newest) = members.record() else { return };
    for slot in members.report().into_iter().filter(|slot| slot.absent.is_none()) {
        let what = match read_record(&slot.dir) {
            Some(Ok(record)) if record == newest => continue,
            Some(Ok(record)) => {
                format!("is of generation {}; the newest is {}", record.generation, newest.generation)
            }
            Some(Err(error)) => cause(&error),
            None => "is missing".to_owned(),
        };
        let remedy = "it is brought up to date when the volume is opened next";
        report.warning("members_agree", &slot.dir.join(MEMBERS_FILE), what, remedy);
    }
}

fn superblock_is_readable(dirs: &Dirs, report: &mut CheckReport<'_>) -> Option<Superblock> {
    match read_superblock(dirs) {
        Ok(block) => Some(block),
        Err(error) => {
            let remedy = "restore volume.mrv from a backup; the titles themselves are not affected";
            report.error("superblock_is_readable", &dirs.superblock(), cause(&error), remedy);
            None
        }
    }
}

fn geometry_is_supported(dirs: &Dirs, block: &Superblock, report: &mut CheckReport<'_>) {
    if let Err(error) = block.geometry.check_supported("superblock") {
        report.error(
            "geometry_is_supported",
            &dirs.superblock(),
            error,
            "use the version that made this volume",
        );
    }
}
