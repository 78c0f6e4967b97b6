//! Six ways to frame the same datagram, oldest first; they are compared by their work at send time.
//!
//! | function | UDP checksum | headers |
//! | --- | --- | --- |
//! | [`full`], [`full_fast`] | over pseudo header, headers and payload | filled field by field: a traditional stack |
//! | [`pre_output`], [`quick_output`] | stored with the unknown fields zero; those are added | stored, the unknown fields filled |
//! | [`v1`] | over pseudo header and headers; that of the payload is stored | filled field by field |
//! | [`v2`] | stored sums of payload and header template, and the lengths | IP and UDP: block copy of a template |
//! | [`v3`] | the same | filled field by field |
//! | [`v4`] | the same | Ethernet, IP and UDP: one block copy, IP sum included ([`millrace_core::wire::frame::Template`]) |
//!
//! All but the last leave IP and Ethernet to code of their own, as the layers of a stack do: it
//! fills those headers and sums the IPv4 header. The RTP header counts as a header: its twelve
//! bytes are part of the bytes that each of them writes and sums. All give the same bytes. Only
//! [`v4`] runs in the server; the others serve for measurement, and as a check on it.

mod block;
mod connection;
pub mod procedures;
mod split;
mod stack;
mod traditional;

pub use block::{v2, v3};
pub use connection::{Connection, Datagram};
pub use split::{Prebuilt, pre_output, quick_output};
pub use traditional::{full, full_fast, v1};

/// Version 4: [`millrace_core::wire::frame::Template::emit`]. Like the others it writes the headers to the beginning of `out` and returns their length, or
/// 0 when they do not fit or the datagram is too long.
#[inline]
pub fn v4(connection: &Connection, datagram: &Datagram<'_>, out: &mut [u8]) -> usize {
    let Datagram { rtp, payload, payload_sum, ip_id } = datagram;
    connection.template.emit(out, rtp, *payload_sum, payload.len(), *ip_id)
}

/// One of the versions.
pub type Version = fn(&Connection, &Datagram<'_>, &mut [u8]) -> usize;

/// The versions that need nothing prepared for each datagram but its payload's sum.
pub const VERSIONS: [(&str, Version); 5] = [("full", full), ("v1", v1), ("v2", v2), ("v3", v3), ("v4", v4)];

#[cfg(test)]
#[path = "framing_tests.rs"]
mod tests;
