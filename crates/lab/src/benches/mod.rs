//! The benchmarks.

mod backends;
mod capacity;
mod degraded;
mod engine;
mod hostile;
mod http;
mod ingest;
mod nlf;
mod overload;
mod parity;
mod peers;
mod reads;
mod seeks;
mod sessions;
mod start;
mod steer;
mod stream_offload;
mod streams;
mod switches;
mod tcp;
mod tcp_sessions;
mod tcp_turns;
mod toe;
mod tx;

use crate::frame::Bench;

/// All of them, in the order in which `bench list` shows them.
pub const ALL: &[Bench] = &[
    ingest::BENCH,
    tcp::BENCH,
    tcp_turns::BENCH,
    toe::BENCH,
    tcp_sessions::BENCH,
    reads::BENCH,
    parity::BENCH,
    engine::BENCH,
    nlf::BENCH,
    nlf::paths::BENCH,
    tx::BENCH,
    steer::BENCH,
    backends::BENCH,
    sessions::BENCH,
    start::BENCH,
    degraded::BENCH,
    capacity::BENCH,
    overload::BENCH,
    seeks::BENCH,
    switches::BENCH,
    peers::BENCH,
    http::BENCH,
    hostile::BENCH,
    streams::BENCH,
    stream_offload::BENCH,
];

/// Returns the benchmark called `name`.
pub fn find(name: &str) -> Option<&'static Bench> {
    ALL.iter().find(|bench| bench.name == name)
}
