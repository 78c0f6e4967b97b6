//! Transport streams, looked at lightly: a few hundred bytes of state for each of thousands of streams.
//!
//! | module | holds |
//! | --- | --- |
//! | `scan` | bytes cut anywhere: sync, counters, clock references |
//! | `light` | whole packets from datagrams with their arrival: whether the sender's stream is intact |

pub(crate) mod light;
pub(crate) mod scan;

pub use light::TsFindings;
