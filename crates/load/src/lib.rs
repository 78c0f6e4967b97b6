//! Many viewers in one process: a few threads, a few hundred bytes of state each, nothing written, everything counted.
//!
//! Its purpose is to prove the capacity of a server, so it must not become the subject of the
//! measurement: the kernel stamps arrivals, the loop lets packets gather and takes them in trains,
//! and it reports its own lateness. [`load()`] is up to 20,000 viewers at once, which only measure.
//!
//! No part of the product: benchmarks, `millrace load` (a command of `millrace-lab`) and tests use it. It shares the
//! dialogue, sockets and sequence numbers with the single player (`millrace-client`).
//!
//! ```text
//!  run (threads) ─► shard (epoll, timers, persons) ─► viewers: rtsp, web, listener
//!                                                        │ packets      │ outcome
//!                                                        ▼              ▼
//!                                             meter, raw_meter, ts     sums ─► report
//! ```
//!
//! | module | holds |
//! | --- | --- |
//! | `run`, `plan` | threads and progress; the settings that they share |
//! | `shard` | one thread: epoll, timers, viewers that come and go |
//! | `viewer`, `viewers` | the trait of a viewer; viewers over RTSP and HTTP, and listeners |
//! | `meter`, `raw_meter`, `between` | the counts of one RTP stream, and of one in plain datagrams |
//! | `ts`, `pcr_clock` | a light look at transport streams |
//! | [`web`] | HTTP and HLS without I/O |
//! | `behaviour`, `person`, `choice`, `rng` | actions, choice of titles and arrival times of viewers |
//! | `outcome`, `sums`, `series`, `streams`, `report` | from one session to the report of all |
//! | [`drop_probe`], `probe` | streams counted and dropped at an interface, in the kernel |
//! | [`limits`] | bounds |
//!
//! ## Where to read on
//!
//! | topic | read |
//! | --- | --- |
//! | many viewers in one process | `crates/load/src/viewer.rs`, then `shard.rs` |
//! | counting packets in the kernel | `crates/load/src/drop_probe/mod.rs`, `docs/design/0003-count-at-the-interface.md` |
#![forbid(unsafe_code)]

mod behaviour;
mod between;
mod choice;
pub mod drop_probe;
pub mod error;
pub mod limits;
mod meter;
mod options;
mod outcome;
mod pcr_clock;
mod person;
mod plan;
mod probe;
mod raw_meter;
mod report;
mod rng;
mod run;
mod series;
mod shard;
mod streams;
mod sums;
mod target;
mod ts;
mod viewer;
mod viewers;
pub mod web;

pub use behaviour::{Behaviour, Habit, Wait};
pub use choice::{Arrivals, TitleChoice};
pub use error::LoadError;
pub use options::{Inspect, LoadOptions, MAX_STREAMS, MediaClock};
pub use report::{LoadReceiver, LoadReport, ProbeReport, WorstSession};
pub use run::{LoadProgress, load};
pub use series::{LoadSample, write_series};
pub use streams::{StreamReport, write_per_stream};
pub use ts::TsFindings;
pub use web::{WebOptions, WebReport};
