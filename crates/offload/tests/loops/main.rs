//! Loops with their engine, cache and devices: from a title on disk to the reader.

mod asleep;
mod engine_chained;
mod loop_plays;
mod raw_ts;
mod referred_pages;
#[path = "../support/mod.rs"]
mod support;
mod tcp_back_pressure;
mod tcp_bytes;
mod tcp_handover;
