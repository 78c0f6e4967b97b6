//! FEC beside the title.

mod matrix;

pub use matrix::{FecMatrix, FecMode, TRACK_RS, TRACK_XOR, port_offset};
