//! Bounds of this crate: they stand with all others.

pub use millrace_core::limits::tcp::*;
