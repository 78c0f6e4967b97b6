//! Bounds of this crate, each with its reason. Relations between them are asserted.
//!
//! A bound that an operator may change is the default of a setting. What several crates need is in
//! [`millrace_core::limits`].

use std::time::Duration;

use millrace_core::time::NS_PER_S;

// Numbers of items that an operator may set up.

/// Users: each is some 300 bytes in memory, and a change of the file reads them all again.
pub const MAX_USERS: usize = 10_000;
/// Longest name of a user: a mail address fits.
pub const MAX_USER_NAME_BYTES: usize = 64;
/// Shortest password: what NIST SP 800-63B section 5.1.1.1 asks for.
pub const MIN_PASSWORD_BYTES: usize = 8;
/// Longest password: sentences fit, and base64 of it stays within a header line.
pub const MAX_PASSWORD_BYTES: usize = 256;
/// Tokens of one user: one for each device and program.
pub const MAX_TOKENS_PER_USER: usize = 100;
/// Grants of one user, and patterns of one group: each is tried for each title that is listed.
pub const MAX_PATTERNS: usize = 256;
/// Longest pattern of titles: names of titles have at most 200 bytes.
pub const MAX_PATTERN_BYTES: usize = 200;

// Passwords.

/// Memory of argon2id in KiB, and its passes: the smaller of the two choices in OWASP's Password Storage Cheat Sheet, since one check at a time may run
/// beside engines that want the memory's bandwidth.
pub const ARGON2_KIB: u32 = 19 * 1024;
/// See [`ARGON2_KIB`].
pub const ARGON2_PASSES: u32 = 2;
/// Passwords that wait to be checked: at some 30 ms each the last one waits for 2 s.
pub const MAX_CHECKS_WAITING: usize = 64;
/// Passwords known to be right or wrong: as many as may watch at once and sign in with each
/// request. 64 bytes each.
pub const MAX_CHECKED: usize = 4096;
/// How long a right password is known to be right: players ask for a segment every few seconds.
pub const CHECKED_RIGHT_NS: u64 = 600 * NS_PER_S;
/// How long a wrong password is known to be wrong: for a player that retries again and again, not
/// for a user that mistyped it.
pub const CHECKED_WRONG_NS: u64 = 10 * NS_PER_S;

// Failures.

/// One more is allowed after this long: 600 guesses an hour.
pub const FAILURE_REST_NS: u64 = 6 * NS_PER_S;
/// Addresses with known failures. When there are more, each new one replaces a known one: a client
/// with this many addresses is held back by [`MAX_CHECKS_WAITING`] alone.
pub const MAX_FAILING: usize = 4096;

// Digest.

/// Nonces that have been used and can be used again: one for each connection that plays.
pub const MAX_NONCES: usize = 16 * 1024;
/// Numbers (`nc`) below the highest that may still come: requests of one client by several connections overtake each other.
pub const NONCE_WINDOW: u32 = 64;
/// Longest `Authorization`: a Digest with all parameters has 400 bytes, URL and name the longest of them.
pub const MAX_CREDENTIALS_BYTES: usize = 4096;

// The file.

/// How often the server checks whether the rights have changed: a user that was locked out is out
/// within this time.
pub const RIGHTS_LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a command waits for another that is writing to the file.
pub const RIGHTS_FILE_WAIT: Duration = Duration::from_secs(5);
/// Interval between attempts to lock the copies while another process changes them.
pub const RIGHTS_LOCK_LOOK_EVERY: Duration = Duration::from_millis(5);
/// The server retries a member that could not be brought up to date after this many looks.
pub const RIGHTS_RETRY_LOOKS: u32 = 30;
/// Longest rights file that is copied: all users with all their grants and tokens take less.
pub const MAX_RIGHTS_BYTES: u64 = 256 << 20;

// Questions to a program of the operator's (webhook).

/// Requests that wait for their answers: each question has some of the same viewer.
pub const MAX_ADVICE_WAITING: usize = 1024;
/// Requests from one address that wait for answers.
pub const MAX_ADVICE_WAITING_PER_ADDRESS: usize = MAX_ADVICE_WAITING / 8;
/// Answers that are kept: as many as may watch at once. Some 300 bytes each.
pub const MAX_ADVICE_KEPT: usize = 4096;
/// Cached answers for one address: a client that requests all titles of the server evicts its own
/// answers, not those of others.
pub const MAX_ADVICE_KEPT_PER_ADDRESS: usize = MAX_ADVICE_KEPT / 8;
/// How long a yes is valid: players request a segment every few seconds, and a viewer that was
/// locked out is out within this time.
pub const ADVICE_GIVEN_NS: u64 = 60 * NS_PER_S;
/// How long a no holds: a player that tries again and again.
pub const ADVICE_REFUSED_NS: u64 = 10 * NS_PER_S;
/// How long it is not asked again after it gave no answer.
pub const ADVICE_FAILED_NS: u64 = 5 * NS_PER_S;

const _: () = assert!(NONCE_WINDOW == u64::BITS);
