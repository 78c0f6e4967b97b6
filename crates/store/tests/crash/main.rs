//! Power cuts and failing writes, on the simulated disk.

mod crash_import;
mod crash_ladder;
mod crash_members;
mod crash_recording;
mod crash_replace;
mod crash_single;
mod crash_subtitles;
mod crash_support;
#[path = "../support/crc_support.rs"]
mod crc_support;
mod disk_sim;
mod members_failures;
#[path = "../support/members_support.rs"]
mod members_support;
#[path = "../support/repair_support.rs"]
mod repair_support;
mod sim;
mod volume_adding;
