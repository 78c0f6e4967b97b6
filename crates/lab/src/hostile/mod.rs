//! Clients that want to be a burden to a server's HTTP, for tests and `bench hostile`: each is a round that is repeated, from an address of its own.
//!
//! A round fails if the server broke a rule: it answered a request that can be read in two ways, or
//! gave a file from elsewhere, or bytes to a bad token. If the server closes a connection, the
//! round has ended as well as any.

mod attacks;
mod client;
mod frames;
mod uploads;

pub use attacks::ATTACKS;
pub use client::{Attack, AttackResult, AttackTarget, Response, idle, rounds};
pub use uploads::{Bringer, UPLOADS};
