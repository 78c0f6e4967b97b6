//! Arbitrary and mutated bytes against everything in the store that reads them.

mod fuzz_format;
#[cfg(feature = "wasm")]
mod fuzz_wasm;
