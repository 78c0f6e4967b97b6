//! HTTP as viewers need it: one file that is played while it comes, and HLS.
//!
//! ```text
//!  bytes ─► exchange (head, body) ─► media_clock (ts::scan) ─► buffer (play time, stalls)
//!                    └─► playlist ─► hls: what to fetch next ────┘
//! ```
//!
//! Everything but the connection (`link`) and the viewer around it is without I/O and on a clock that is passed in. Payload is looked at
//! where it lies in the thread's read buffer, and not kept.

pub mod address;
pub mod body;
pub mod buffer;
pub mod exchange;
pub(crate) mod figures;
pub mod head;
pub mod hls;
pub(crate) mod hosts;
pub mod media_clock;
pub(crate) mod options;
pub mod playlist;
pub(crate) mod range;

pub use figures::WebReport;
pub(crate) use figures::{WebFigures, WebSums};
pub(crate) use hosts::Hosts;
pub use options::WebOptions;
pub use playlist::VariantChoice;
