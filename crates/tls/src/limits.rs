//! Bounds of this crate, each with its reason. Relations between them are asserted.
//!
//! A bound that an operator may change is the default of a setting. What several crates need is in
//! [`millrace_core::limits`].

use std::time::Duration;

/// Time from a connection to the end of its handshake: two round trips over a satellite and lost packets, as long as the head of a request has
/// (`HEAD_TIME`).
pub const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// Handshakes in progress at once, some 10 KiB each. When one more begins, the server gives up one
/// of the client with the most.
pub const MAX_HANDSHAKES: usize = 512;
/// A handshake without a whole ClientHello counts as this many others when the server determines
/// the client with the most. Clients send the ClientHello with their first packet after the
/// connection's own, however far away they are, while thousands of silent connections cost an
/// attacker next to nothing.
pub const SILENT_HANDSHAKE_WEIGHT: usize = 4;
/// Size of the largest TLS record (RFC 8446 section 5.1): the amount passed on to a viewer at once.
pub const TLS_RECORD_BYTES: usize = 16 * 1024;
/// Amount read from a viewer at once: one RTSP request. Each connection holds this buffer
/// permanently.
pub const RELAY_READ_BYTES: usize = 2 * 1024;
/// Connections whose handshakes are done and that the other side has not taken yet: it takes each within a turn.
pub const MAX_RELAYS_WAITING: usize = 64;
/// How long a viewer may take to close a connection that is over on this side.
pub const RELAY_LINGER: Duration = Duration::from_millis(500);
/// How long connections that are relayed have to end when the server does: it has closed its ends by then.
pub const RELAY_DROP_TIME: Duration = Duration::from_secs(1);
/// How often it is looked whether the certificate or its key has changed: a new one is used when it has stayed the same for one look, so that two files
/// that are replaced one after the other are read together.
pub const CERTIFICATE_LOOK_EVERY: Duration = Duration::from_secs(1);
/// Longest file of certificates and longest key file that is read: a chain has 4 certificates of 2 KiB, a system trusts some 150.
pub const MAX_PEM_BYTES: u64 = 1 << 20;
