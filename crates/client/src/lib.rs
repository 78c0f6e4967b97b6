//! The far end: a receiver that measures and verifies. It shares no code with the server but the vocabulary of core
//! and the sockets of netio, so that a mistake of one is not a mistake of both.
//!
//! [`play()`] is one player: it plays a title by RTSP over UDP or TCP, measures and checks the
//! packets received, and writes them to the chosen output. Thousands of viewers at once, which only
//! measure, are in `millrace-load`.
//!
//! ```text
//!  RTSP ──► rtsp::framing ──► rtsp::dialogue (state machine)            report
//!                  │ frames         │ events                              ▲
//!                  ▼                ▼                                     │ what was found
//!  UDP ──► net ──► play::media ──► receive   lost, late, twice, astray ───┤
//!                  │               lateness  arrival against media time ──┤
//!                  │               sender    what RTCP says of it ────────┤
//!                  ▼ in order (reorder)                                   │
//!                sink (own thread) ──► analyser, verify, file ────────────┘
//! ```
//!
//! | module | holds |
//! | --- | --- |
//! | [`mod@play`] | options, the loop of one player |
//! | [`rtsp`] | the dialogue without I/O: state machine, framing, headers |
//! | [`sdp`], [`url`], [`script`] | descriptions, addresses, scripts of pauses and seeks |
//! | [`listen`], [`net`] | addresses and sockets of streams that are sent without a request; other sockets |
//! | [`fec`] | lost packets recovered from FEC: a window that repairs and orders, without I/O |
//! | [`nvod`] | a viewer of near video on demand: channels to hear, packets held; the file for them is its only I/O |
//! | [`receive`], [`reorder`] | sequence numbers counted, payloads put in order, both in bounded memory |
//! | [`reception`] | the figures of receiver reports |
//! | [`lateness`] | arrival against media time, jitter, gaps |
//! | [`sender`] | sender reports against reception |
//! | [`verify`] | comparison with the reference, byte by byte; `millrace-ts` checks the integrity of the transport stream |
//! | [`sink`] | where payloads go: checks and output on a thread of their own |
//! | [`report`] | the findings, as table and JSON |
//! | [`verdict`] | the overall result, for an exit code |
//!
//! Every loop here is bounded in time and every buffer in size; whatever the other side sends, nothing panics.
//!
//! ## Where to read on
//!
//! | topic | read |
//! | --- | --- |
//! | FEC at the viewer | `crates/client/src/fec/`, `docs/ref/rtsp.md` section FEC |
#![forbid(unsafe_code)]

pub mod clock;
pub mod error;
pub mod fec;
pub mod lateness;
pub mod limits;
pub mod listen;
pub mod net;
pub mod nvod;
pub mod play;
pub mod procfs;
pub mod receive;
pub mod reception;
pub mod reorder;
pub mod report;
pub mod rtsp;
pub mod script;
pub mod sdp;
pub mod sender;
pub mod sink;
pub mod url;
pub mod verdict;
pub mod verify;

pub use error::ClientError;
pub use fec::FecChoice;
pub use play::{PlayOptions, PlayProgress, TransportChoice, play};
pub use report::ReceptionReport;
pub use rtsp::headers::PlaybackPace;
pub use sink::Output;
pub use verdict::ReceptionVerdict;
