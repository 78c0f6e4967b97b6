//! `v2` and `v3`: the sum of a header template is known. `v2` also copies the template, `v3` fills the fields one by one, which
//! the paper found to be faster.

use super::connection::{Connection, Datagram};
use super::stack::{DatagramFrame, Headers, V4_UDP, V6_UDP, begin, ip_output_v4, ip_output_v6, quick_sum};
use super::traditional::fill_all;
use millrace_core::wire::frame::UDP_HEADER_BYTES;
use millrace_core::wire::frame::layout::{UDP_CHECK, UDP_LENGTH};
use millrace_core::wire::frame::udp_check;

/// Version 2: IP and UDP header copied from a template in one block, checksum from stored sums. Writes the headers to the beginning
/// of `out`; returns their length, or 0 when they do not fit or the datagram is too long.
pub fn v2(connection: &Connection, datagram: &Datagram<'_>, out: &mut [u8]) -> usize {
    let Some(frame) = begin(connection, &datagram.rtp, datagram.payload.len(), out) else { return 0 };
    let DatagramFrame { headers, bytes, udp_bytes } = frame;
    let check = udp_check(quick_sum(connection, datagram, udp_bytes)).to_ne_bytes();
    match headers {
        Headers::V4(headers) => {
            const BLOCK: usize = V4_UDP + UDP_HEADER_BYTES;
            headers[..BLOCK].copy_from_slice(&connection.block[..BLOCK]);
            headers[V4_UDP + UDP_LENGTH..V4_UDP + UDP_CHECK].copy_from_slice(&udp_bytes.to_be_bytes());
            headers[V4_UDP + UDP_CHECK..BLOCK].copy_from_slice(&check);
            ip_output_v4(headers, &connection.flow, udp_bytes, datagram.ip_id);
        }
        Headers::V6(headers) => {
            const BLOCK: usize = V6_UDP + UDP_HEADER_BYTES;
            headers[..BLOCK].copy_from_slice(&connection.block);
            headers[V6_UDP + UDP_LENGTH..V6_UDP + UDP_CHECK].copy_from_slice(&udp_bytes.to_be_bytes());
            headers[V6_UDP + UDP_CHECK..BLOCK].copy_from_slice(&check);
            ip_output_v6(headers, &connection.flow, udp_bytes);
        }
    }
    bytes
}

/// Version 3: checksum from stored sums as in [`v2`], headers filled field by field. Same result.
pub fn v3(connection: &Connection, datagram: &Datagram<'_>, out: &mut [u8]) -> usize {
    let Some(frame) = begin(connection, &datagram.rtp, datagram.payload.len(), out) else { return 0 };
    let DatagramFrame { headers, bytes, udp_bytes } = frame;
    let check = udp_check(quick_sum(connection, datagram, udp_bytes)).to_ne_bytes();
    fill_all(headers, connection, udp_bytes, check, datagram.ip_id);
    bytes
}
