//! TLS in front of what speaks in the clear (`docs/design/0043-tls.md`). It understands no protocol: HTTP reads and writes the streams that come out of a
//! handshake, RTSP gets an end of a socket pair for each.
//!
//! ```text
//!   viewer ─► Acceptor: handshake, with its limits ─┬─► stream ─► HTTP
//!                 ▲                                 └─► Relay ─► socket pair ─► RTSP, engine
//!            Certificates ◄── files, SIGHUP
//! ```
//!
//! | module | is about |
//! | --- | --- |
//! | `certificates` | the certificate and its key, and following their files |
//! | `accept` | handshakes |
//! | `relay` | connections that end here and go on inside in the clear |
//! | `stall` | connections that take nothing |
//! | `client` | the other side: whom commands and the webhook believe |
//! | `totals` | counters |
//!
//! ## Where to read on
//!
//! | topic | read |
//! | --- | --- |
//! | TLS handshakes, certificates, and the socket for engines | `docs/design/0043-tls.md`, `crates/tls/src/lib.rs`, then `accept.rs`, `relay.rs`; settings: `crates/server/src/cmds/serve/tls.rs` |
#![forbid(unsafe_code)]

mod accept;
mod certificates;
mod client;
pub mod limits;
#[cfg(test)]
mod made;
mod relay;
mod stall;
mod totals;

pub use accept::Acceptor;
pub use certificates::{CertificateError, Certificates};
pub use client::{ClientStream, ConnectError, SYSTEM_FILES, Trust};
pub use relay::{Relay, Relayed};
pub use tokio_rustls::server::TlsStream;
pub use totals::{TlsCounters, Totals};
