//! From a source file to an index and packets, and transformations of streams.

mod fuzz_channel;
mod fuzz_live;
mod fuzz_ts;
mod ingest_bounds;
mod ingest_containers;
mod ingest_failures;
mod ingest_films;
mod ingest_index;
mod ingest_presentation;
mod ingest_recordings;
mod ingest_subtitles;
mod ingest_support;
mod splice_films;
#[cfg(feature = "wasm")]
mod transform_example;
