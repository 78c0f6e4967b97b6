//! Cost of a datagram on each egress path, measured here and now.
//!
//! | file | holds |
//! | --- | --- |
//! | `table` | the figures, and the plan that follows from them |
//! | `contest` | the measuring: ways in turn, in short slots, medians |
//! | `sample` | the bursts that are sent |
//! | `target` | the properties of an interface |
//! | `error` | failures of a measurement |
//! | `interface` | the real egress paths of one interface, and why no host is disturbed |
//!
//! The measured quantity is processor time of the sending thread, because this limits a server; a
//! slow link does not make a path look dear.

mod contest;
mod error;
mod interface;
mod sample;
mod table;
mod target;

pub use self::contest::{Contender, Effort, contest};
pub use self::error::MeasureError;
pub use self::interface::{EgressMeasurement, OpenXdp, measure};
pub use self::sample::{SampleBatch, SamplePackets};
pub use self::table::CostTable;
pub use self::target::TargetInterface;
