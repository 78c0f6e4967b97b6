//! Failures of a measurement.

use std::io;

/// An interface cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// No interface has this name.
    #[error("{interface}: no such interface in this network namespace; there are: {names}")]
    NoInterface {
        /// The name.
        interface: String,
        /// The names that there are.
        names: String,
    },
    /// The kernel needs a source address.
    #[error(
        "{interface}: no IPv4 address; give it one (ip address add ADDRESS/PREFIX dev {interface}), or choose an egress path with --backend"
    )]
    NoAddress {
        /// Its name.
        interface: String,
    },
    /// All networks for documentation are in use here.
    #[error(
        "{interface}: this host has addresses in all three networks that are reserved for documentation (RFC 5737), so no unused address is left"
    )]
    NoTarget {
        /// Its name.
        interface: String,
    },
    /// Something was refused.
    #[error("{interface}: cannot {what}: {source}; {remedy}")]
    Call {
        /// The interface.
        interface: String,
        /// The attempted operation.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
        /// What to do.
        remedy: &'static str,
    },
}
