//! `full`: a traditional stack. `v1`: the same without looking at the payload.
//!
//! The pseudo header is laid where the IP header will be, so that one run of the checksum loop covers it and the headers behind
//! it: BSD's `udpiphdr`. Then IP fills its own fields over it.

use super::connection::{Connection, Datagram, V4_BYTES, V6_BYTES};
use super::stack::{DatagramFrame, Headers, V4_UDP, V6_UDP, begin, in_cksum, ip_output_v4, ip_output_v6};
use millrace_core::wire::checksum::{add, sum16};
use millrace_core::wire::frame::layout::{Addresses, UDP, UDP_CHECK, UDP_LENGTH};
use millrace_core::wire::frame::udp_check;
use millrace_core::wire::frame::{Flow, UDP_HEADER_BYTES};

/// As a traditional stack: headers filled field by field, checksum over pseudo header, headers and payload. Writes the headers
/// to the beginning of `out`; returns their length, or 0 when they do not fit or the datagram is too long.
pub fn full(connection: &Connection, datagram: &Datagram<'_>, out: &mut [u8]) -> usize {
    udp_output(connection, datagram, out, |headers| add(in_cksum(headers), in_cksum(datagram.payload)))
}

/// As [`full`], with the fastest sum that the processor can do: a traditional stack at its best.
pub fn full_fast(connection: &Connection, datagram: &Datagram<'_>, out: &mut [u8]) -> usize {
    udp_output(connection, datagram, out, |headers| add(sum16(headers), sum16(datagram.payload)))
}

/// Version 1: as [`full`], but the payload's sum is the stored one.
pub fn v1(connection: &Connection, datagram: &Datagram<'_>, out: &mut [u8]) -> usize {
    udp_output(connection, datagram, out, |headers| add(in_cksum(headers), datagram.payload_sum))
}

/// `sum` is given pseudo header, UDP and RTP header.
#[inline]
fn udp_output(
    connection: &Connection,
    datagram: &Datagram<'_>,
    out: &mut [u8],
    sum: impl FnOnce(&[u8]) -> u16,
) -> usize {
    let Some(mut frame) = begin(connection, &datagram.rtp, datagram.payload.len(), out) else { return 0 };
    overlay(&mut frame, connection);
    let DatagramFrame { headers, bytes, udp_bytes } = frame;
    match headers {
        Headers::V4(headers) => {
            let check = udp_check(sum(headers));
            headers[V4_UDP + UDP_CHECK..V4_UDP + UDP_CHECK + 2].copy_from_slice(&check.to_be_bytes());
            ip_output_v4(headers, &connection.flow, udp_bytes, datagram.ip_id);
        }
        Headers::V6(headers) => {
            let check = udp_check(sum(headers));
            headers[V6_UDP + UDP_CHECK..V6_UDP + UDP_CHECK + 2].copy_from_slice(&check.to_be_bytes());
            ip_output_v6(headers, &connection.flow, udp_bytes);
        }
    }
    bytes
}

/// Pseudo header and UDP header with checksum zero.
#[inline]
pub(super) fn overlay(frame: &mut DatagramFrame<'_>, connection: &Connection) {
    let (addresses, udp_bytes) = (connection.addresses, frame.udp_bytes);
    match &mut frame.headers {
        Headers::V4(headers) => {
            overlay_v4(headers, addresses, udp_bytes);
            fill_udp(&mut headers[V4_UDP..], &connection.flow, udp_bytes);
        }
        Headers::V6(headers) => {
            overlay_v6(headers, addresses, udp_bytes);
            fill_udp(&mut headers[V6_UDP..], &connection.flow, udp_bytes);
        }
    }
}

#[inline]
fn overlay_v4(headers: &mut [u8; V4_BYTES], addresses: Addresses, udp_bytes: u16) {
    headers[..9].fill(0);
    headers[9] = UDP;
    headers[10..12].copy_from_slice(&udp_bytes.to_be_bytes());
    put_addresses(&mut headers[12..], addresses);
}

/// The parts of RFC 8200's pseudo header in an order in which the addresses are in their final place.
#[inline]
fn overlay_v6(headers: &mut [u8; V6_BYTES], addresses: Addresses, udp_bytes: u16) {
    headers[..4].copy_from_slice(&u32::from(udp_bytes).to_be_bytes());
    headers[4..8].copy_from_slice(&[0, 0, 0, UDP]);
    put_addresses(&mut headers[8..], addresses);
}

#[inline]
pub(super) fn put_addresses(out: &mut [u8], addresses: Addresses) {
    match addresses {
        Addresses::V4(source, destination) => {
            out[..4].copy_from_slice(&source.octets());
            out[4..8].copy_from_slice(&destination.octets());
        }
        Addresses::V6(source, destination) => {
            out[..16].copy_from_slice(&source.octets());
            out[16..32].copy_from_slice(&destination.octets());
        }
    }
}

/// All headers field by field, with a checksum that is known (as it lies in the header).
#[inline]
pub(super) fn fill_all(
    headers: Headers<'_>,
    connection: &Connection,
    udp_bytes: u16,
    check: [u8; 2],
    ip_id: u16,
) {
    let flow = &connection.flow;
    match headers {
        Headers::V4(headers) => {
            put_addresses(&mut headers[12..], connection.addresses);
            fill_udp(&mut headers[V4_UDP..], flow, udp_bytes);
            headers[V4_UDP + UDP_CHECK..V4_UDP + UDP_HEADER_BYTES].copy_from_slice(&check);
            ip_output_v4(headers, flow, udp_bytes, ip_id);
        }
        Headers::V6(headers) => {
            put_addresses(&mut headers[8..], connection.addresses);
            fill_udp(&mut headers[V6_UDP..], flow, udp_bytes);
            headers[V6_UDP + UDP_CHECK..V6_UDP + UDP_HEADER_BYTES].copy_from_slice(&check);
            ip_output_v6(headers, flow, udp_bytes);
        }
    }
}

/// The UDP header with checksum zero.
#[inline]
pub(super) fn fill_udp(udp: &mut [u8], flow: &Flow, udp_bytes: u16) {
    udp[..2].copy_from_slice(&flow.source.port().to_be_bytes());
    udp[2..4].copy_from_slice(&flow.destination.port().to_be_bytes());
    udp[UDP_LENGTH..UDP_CHECK].copy_from_slice(&udp_bytes.to_be_bytes());
    udp[UDP_CHECK..UDP_CHECK + 2].fill(0);
}
