//! Paces streams on a clock that is passed in.
#![forbid(unsafe_code)]

mod batch;
mod engine;
mod types;

pub use engine::Engine;
pub use types::{
    EngineConfig, EngineCounters, FailReason, LeaseFailure, PlaySpec, Refusal, StreamEvent, StreamSpec,
};

/// Fastest delivery: 16 times real time, the largest `Scale` that any player asks for.
pub const MAX_SCALE_PERMILLE: u32 = 16_000;
