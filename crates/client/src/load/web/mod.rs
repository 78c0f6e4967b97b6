//! Viewers over HTTP: one file that is played while it comes, and HLS.
//!
//! ```text
//!  bytes ─► exchange (head, body) ─► media_clock (ts_scan) ─► buffer (play time, stalls)
//!                    └─► playlist ─► hls: what to fetch next ────┘
//! ```
//!
//! Everything but the connection (`link`) and the viewer around it is without I/O and on a clock that is passed in. Payload is looked at
//! where it lies in the thread's read buffer, and not kept.

pub mod address;
pub mod body;
pub mod buffer;
pub mod exchange;
mod figures;
pub mod head;
pub mod hls;
mod hosts;
mod link;
pub mod media_clock;
mod options;
pub mod playlist;
mod range;
pub mod ts_scan;
mod viewer;

pub use figures::WebReport;
pub(super) use figures::{WebFigures, WebSums};
pub(super) use hosts::Hosts;
pub use options::WebOptions;
pub use playlist::VariantChoice;
pub(super) use viewer::WebViewer;
