//! Helpers of the integration tests that no other crate's tests need.
#![allow(unreachable_pub)]

pub mod connections;
pub mod films;
pub mod xdp;

pub use millrace_testkit::hosts::*;
pub use millrace_testkit::packets::*;
