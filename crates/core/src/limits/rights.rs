//! Rights: users, passwords, tokens, links.

use crate::time::NS_PER_S;

// Failures.

/// Failures of an address before it has to wait: a viewer who looks for the right password in two or three players.
pub const FAILURES_AT_ONCE: u32 = 10;
/// Seconds after which an address with too many failures may try again.
pub const FAILURE_RETRY_S: u32 = 6;

// Digest.

/// How long a nonce can be used: longer than a film pauses, so that few players meet one that is stale.
pub const NONCE_NS: u64 = 3600 * NS_PER_S;

// Questions to a program of the operator's (webhook).

/// Questions at once, each a connection: with answers in 50 ms more than a thousand new viewers a second.
pub const MAX_ADVICE_ASKED: usize = 64;
/// Concurrent questions for viewers of one address (IPv6: one /64). It takes eight clients to use
/// up [`MAX_ADVICE_ASKED`], so one client cannot keep the program busy for all others.
pub const MAX_ADVICE_ASKED_PER_ADDRESS: usize = MAX_ADVICE_ASKED / 8;
