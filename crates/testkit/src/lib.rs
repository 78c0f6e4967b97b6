//! What tests of several crates share. For dev-dependencies only: no program contains it.
//!
//! Unit tests of a crate may use only the parts that do not know that crate: `film` has the engine's types, `packets`
//! those of packet I/O and `titles` the store's, and these are others than the ones under test in a unit test.

#![deny(unsafe_code)]
#![allow(missing_docs)] // names that tests use, not an interface

pub mod counting;
#[cfg(feature = "film")]
pub mod film;
pub mod fuzz;
#[cfg(feature = "hosts")]
pub mod hosts;
pub mod mux;
#[cfg(feature = "packets")]
pub mod packets;
#[cfg(feature = "rtsp_server")]
pub mod rtsp_server;
pub mod steady;
pub mod teletext;
#[cfg(feature = "titles")]
pub mod titles;
