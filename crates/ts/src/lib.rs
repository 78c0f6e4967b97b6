//! Analyses MPEG transport streams: bytes go in, findings come out.
//!
//! It checks what ETSI TR 101 290 asks for in its priorities 1 and 2, and what of ISO/IEC 13818-1 a decoder depends on beyond that: the order of
//! time stamps, decoding after arrival, lengths of PES packets, versions of tables; on request how full the buffers of the decoder model are.
//! `docs/ref/ts-checks.md` lists every check with its threshold and its source.
//!
//! ```text
//!  bytes ──► framing ──► packet ──► analyser ──► section, pes, clock      at each packet
//!                                       │ events
//!                                       ▼
//!                                     timed ──► findings                  when the time of a packet is known
//!                                       └─► model                         on request
//! ```
//!
//! [`teletext`] is separate: it converts subtitles to text.
//!
//! The analyser shares no code with the parts that produce or store streams: it is the reference
//! for them. It has no I/O and no clock. Time is media time, taken from the clock references in the
//! stream (`docs/design/0024-ts-analyser.md`), so a file and an arriving stream give the same
//! findings, and the division of the input into pieces makes no difference.
//!
//! ```
//! use millrace_ts::{Analyser, AnalyserOptions, AnalysisVerdict};
//!
//! let mut analyser = Analyser::new(AnalyserOptions::default());
//! analyser.push(b"no transport stream");
//! assert_eq!(analyser.finish().verdict, AnalysisVerdict::NoStream);
//! ```
//!
//! ## Where to read on
//!
//! | topic | read |
//! | --- | --- |
//! | checks of a transport stream | `crates/ts/src/lib.rs`, `docs/ref/ts-checks.md`, `docs/design/0024-ts-analyser.md` |
#![forbid(unsafe_code)]

mod analyser;
mod check;
mod clock;
mod framing;
pub mod limits;
mod model;
mod packet;
mod pes;
mod psi;
mod report;
mod section;
mod start;
pub mod teletext;
mod timed;

pub use analyser::{Analyser, AnalyserOptions};
pub use check::{Check, Finding, FindingKind, Severity};
pub use report::{
    AnalysisReport, AnalysisVerdict, BufferSummary, CheckCount, PidSummary, ProgramSummary, Rate,
};
pub use section::ElementaryKind;
