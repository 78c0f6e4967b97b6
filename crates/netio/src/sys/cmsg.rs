//! Control messages: a header of length, level and type, then data, padded to eight bytes (cmsg(3)). Building and
//! reading are plain byte work here; no pointer walks.

use std::mem::size_of;
use std::net::IpAddr;

use super::socket::{RawAddr, field};

/// Bytes of a `cmsghdr`.
const HEADER: usize = 16;
/// Alignment of every control message.
const ALIGN: usize = 8;

const _: () = {
    assert!(size_of::<libc::cmsghdr>() == HEADER && size_of::<usize>() == ALIGN);
    assert!(std::mem::offset_of!(libc::cmsghdr, cmsg_len) == 0);
    assert!(std::mem::offset_of!(libc::cmsghdr, cmsg_level) == 8);
    assert!(std::mem::offset_of!(libc::cmsghdr, cmsg_type) == 12);
    assert!(size_of::<SendControl>() == SendControl::ROOM && align_of::<SendControl>() >= ALIGN);
    assert!(size_of::<libc::sock_extended_err>() == EXTENDED_ERROR);
    assert!(std::mem::offset_of!(libc::sock_extended_err, ee_origin) == 4);
    assert!(std::mem::offset_of!(libc::sock_extended_err, ee_code) == 6);
    assert!(std::mem::offset_of!(libc::sock_extended_err, ee_info) == 8);
    assert!(std::mem::offset_of!(libc::sock_extended_err, ee_data) == 12);
    assert!(size_of::<libc::timespec>() == 16);
    assert!(size_of::<libc::in_pktinfo>() == 12 && std::mem::offset_of!(libc::in_pktinfo, ipi_addr) == 8);
    assert!(std::mem::offset_of!(libc::in_pktinfo, ipi_spec_dst) == 4);
    assert!(size_of::<libc::in6_pktinfo>() == 20 && std::mem::offset_of!(libc::in6_pktinfo, ipi6_addr) == 0);
};

/// Room that a control message with `data` bytes takes (`CMSG_SPACE`).
pub(crate) const fn space(data: usize) -> usize {
    HEADER + data.next_multiple_of(ALIGN)
}

/// Control messages of one send call: `UDP_SEGMENT` gives the length of the datagrams that the
/// kernel cuts the bytes into, and `IP_PKTINFO` or `IPV6_PKTINFO` gives their source address.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct SendControl {
    bytes: [u8; Self::ROOM],
}

impl SendControl {
    const ROOM: usize = space(2) + space(20);
    /// No message.
    pub(crate) const EMPTY: Self = Self { bytes: [0; Self::ROOM] };

    /// Writes the messages that are needed, and returns their length in bytes.
    #[inline]
    pub(crate) fn write(&mut self, segment: Option<u16>, source: Option<IpAddr>) -> usize {
        let mut used = 0;
        if let Some(segment) = segment {
            used = self.put(used, (libc::SOL_UDP, libc::UDP_SEGMENT), &segment.to_ne_bytes());
        }
        match source {
            None => {}
            // in_pktinfo: interface, source address, and an address that only received messages use
            // (ip(7)).
            Some(IpAddr::V4(ip)) => {
                let mut info = [0; 12];
                info[4..8].copy_from_slice(&ip.octets());
                used = self.put(used, (libc::SOL_IP, libc::IP_PKTINFO), &info);
            }
            // in6_pktinfo: source address, interface (ipv6(7)).
            Some(IpAddr::V6(ip)) => {
                let mut info = [0; 20];
                info[..16].copy_from_slice(&ip.octets());
                used = self.put(used, (libc::SOL_IPV6, libc::IPV6_PKTINFO), &info);
            }
        }
        used
    }

    /// Writes a message of this level and type at `at`, and returns the offset of the next one.
    #[inline]
    fn put(&mut self, at: usize, (level, kind): (i32, i32), data: &[u8]) -> usize {
        let message = &mut self.bytes[at..at + space(data.len())];
        message[0..8].copy_from_slice(&(HEADER + data.len()).to_ne_bytes());
        message[8..12].copy_from_slice(&level.to_ne_bytes());
        message[12..16].copy_from_slice(&kind.to_ne_bytes());
        message[HEADER..][..data.len()].copy_from_slice(data);
        at + space(data.len())
    }
}

/// Returns the control messages that the kernel wrote: (level, type, data).
pub(crate) fn messages(mut control: &[u8]) -> impl Iterator<Item = (i32, i32, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from_ne_bytes(field(control, 0)?);
        let level = i32::from_ne_bytes(field(control, 8)?);
        let kind = i32::from_ne_bytes(field(control, 12)?);
        let data = control.get(HEADER..length)?;
        control = control.get(length.next_multiple_of(ALIGN)..).unwrap_or_default();
        Some((level, kind, data))
    })
}

/// Bytes of a `sock_extended_err`.
const EXTENDED_ERROR: usize = 16;

/// Who speaks of a send without copying that is complete (linux/errqueue.h; the libc crate does not have these).
pub(crate) const SO_EE_ORIGIN_ZEROCOPY: u8 = 5;
/// It was copied after all.
pub(crate) const SO_EE_CODE_ZEROCOPY_COPIED: u8 = 1;

/// The error queue's report about one message (ip(7), IP_RECVERR).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExtendedError {
    /// The error as an errno.
    pub(crate) errno: i32,
    /// What found it: `SO_EE_ORIGIN_ICMP`, `SO_EE_ORIGIN_ICMP6`, `SO_EE_ORIGIN_LOCAL`, `SO_EE_ORIGIN_ZEROCOPY` ...
    pub(crate) origin: u8,
    /// Of completions: `SO_EE_CODE_ZEROCOPY_COPIED` or nothing.
    pub(crate) code: u8,
    /// Of completions: the first send that is complete.
    pub(crate) info: u32,
    /// Of completions: the last.
    pub(crate) data: u32,
    /// Who sent the ICMP message (`SO_EE_OFFENDER`).
    pub(crate) offender: Option<IpAddr>,
}

/// What interests us among the control messages of one received message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Received {
    /// Arrival by the kernel's clock, nanoseconds since 1970 (`SO_TIMESTAMPNS`).
    pub(crate) arrival_unix_ns: Option<u64>,
    /// Datagrams the socket has dropped since it was opened, modulo 2^32 (`SO_RXQ_OVFL`).
    pub(crate) dropped: Option<u32>,
    /// Length of each datagram in a train but the last (`UDP_GRO`).
    pub(crate) segment: Option<usize>,
    /// An entry of the error queue (`IP_RECVERR`, `IPV6_RECVERR`).
    pub(crate) error: Option<ExtendedError>,
    /// Our address that the packet was sent to (`IP_PKTINFO`, `IPV6_PKTINFO`).
    pub(crate) local: Option<IpAddr>,
}

impl Received {
    /// Room for all of them at once.
    pub(crate) const SPACE: usize = space(16) + space(4) + space(4);
    /// Room for an entry of the error queue too: the error with the address of who reported it, and our own address.
    pub(crate) const ERROR_SPACE: usize = space(EXTENDED_ERROR + RawAddr::CAPACITY) + space(20) + Self::SPACE;

    /// Reads `control`; unknown messages are passed over.
    pub(crate) fn parse(control: &[u8]) -> Self {
        let mut out = Self::default();
        for (level, kind, data) in messages(control) {
            match (level, kind) {
                (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => out.arrival_unix_ns = timespec_ns(data),
                (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => out.dropped = field(data, 0).map(u32::from_ne_bytes),
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    out.segment =
                        field(data, 0).map(i32::from_ne_bytes).and_then(|n| usize::try_from(n).ok());
                }
                (libc::SOL_IP, libc::IP_RECVERR) | (libc::SOL_IPV6, libc::IPV6_RECVERR) => {
                    out.error = extended_error(data);
                }
                // in_pktinfo: interface, source address of a reply, destination address (ip(7)).
                (libc::SOL_IP, libc::IP_PKTINFO) => out.local = field::<4>(data, 8).map(IpAddr::from),
                (libc::SOL_IPV6, libc::IPV6_PKTINFO) => out.local = field::<16>(data, 0).map(IpAddr::from),
                _ => {}
            }
        }
        out
    }
}

fn timespec_ns(data: &[u8]) -> Option<u64> {
    let secs = u64::try_from(i64::from_ne_bytes(field(data, 0)?)).ok()?;
    let nanos = u64::try_from(i64::from_ne_bytes(field(data, 8)?)).ok()?;
    secs.checked_mul(1_000_000_000)?.checked_add(nanos)
}

fn extended_error(data: &[u8]) -> Option<ExtendedError> {
    let errno = u32::from_ne_bytes(field(data, 0)?);
    let offender = RawAddr::parse_bytes(data.get(EXTENDED_ERROR..)?).map(|addr| addr.ip());
    Some(ExtendedError {
        errno: i32::try_from(errno).ok()?,
        origin: *data.get(4)?,
        code: *data.get(6)?,
        info: u32::from_ne_bytes(field(data, 8)?),
        data: u32::from_ne_bytes(field(data, 12)?),
        offender,
    })
}

#[cfg(test)]
#[path = "cmsg_tests.rs"]
mod tests;
