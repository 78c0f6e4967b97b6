//! The benchmarks.

mod ingest;
mod sessions;

use crate::frame::Bench;

/// All of them, in the order in which `bench list` shows them.
pub const ALL: &[Bench] = &[ingest::BENCH, sessions::BENCH];

/// The one of that name.
pub fn find(name: &str) -> Option<&'static Bench> {
    ALL.iter().find(|bench| bench.name == name)
}
