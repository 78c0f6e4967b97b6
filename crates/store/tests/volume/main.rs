//! Volumes on real directories: titles, members, fsck, repair, scrub.

#[path = "../support/crc_support.rs"]
mod crc_support;
mod members_changes;
mod members_lost;
mod members_stripes;
#[path = "../support/members_support.rs"]
mod members_support;
mod recordings;
mod renditions;
mod repair;
mod repair_check;
#[path = "../support/repair_support.rs"]
mod repair_support;
mod scrub;
mod store_crcs;
mod subtitles;
mod volume_check;
mod volume_full_disk;
mod volume_inspect;
mod volume_recovery;
mod volume_titles;
