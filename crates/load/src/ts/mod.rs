//! Transport streams, looked at lightly: a few hundred bytes of state for each of thousands of streams.
//!
//! | module | holds |
//! | --- | --- |
//! | `scan` | bytes cut anywhere: sync, counters, clock references |
//! | `packet` | the front of a packet, continuity counters |
//! | `light` | whole packets from datagrams with their arrival: whether the sender's stream is intact |

pub(crate) mod light;
mod packet;
pub(crate) mod scan;

pub use light::TsFindings;
