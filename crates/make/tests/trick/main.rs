//! Titles derived from others: for fast forward and rewind, and ladders of renditions.

mod ladder;
mod ladder_support;
#[path = "../../../store/tests/support/members_support.rs"]
mod members_support;
#[path = "../../../store/tests/support/repair_support.rs"]
mod repair_support;
mod trick;
mod trick_support;
mod trick_volume;
