//! What kind of link an interface is: how many bytes stand before the IP header.

use std::io;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};

use super::error::ProbeError;
use millrace_netio::bpf::{BpfError, interface_index};

/// Ethernet header without tags.
const ETHERNET_HEADER_BYTES: u32 = millrace_core::wire::frame::ETHERNET_HEADER_BYTES as u32;
const ARPHRD_ETHER: u16 = 1;
const ARPHRD_LOOPBACK: u16 = 772;
/// No link header at all: tun.
const ARPHRD_NONE: u16 = 0xfffe;

/// Bytes before the IP header of packets of this interface.
pub(super) fn link_header_bytes(name: &str) -> Result<u32, ProbeError> {
    let index = interface_index(name)?;
    let fault = |source| BpfError::NoInterface { name: name.to_owned(), source };
    match link_type(index).map_err(fault)? {
        ARPHRD_ETHER | ARPHRD_LOOPBACK => Ok(ETHERNET_HEADER_BYTES),
        ARPHRD_NONE => Ok(0),
        link_type => Err(ProbeError::LinkType { name: name.to_owned(), link_type }),
    }
}

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const NLM_F_REQUEST: u16 = 1;
/// `nlmsghdr` and `ifinfomsg`, 16 bytes each.
const MESSAGE_BYTES: usize = 32;

/// Asks the kernel by rtnetlink, in the calling thread's network namespace.
fn link_type(index: u32) -> io::Result<u16> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    // Protocol 0 is NETLINK_ROUTE.
    let mut request = [0; MESSAGE_BYTES];
    request[0..4].copy_from_slice(&(MESSAGE_BYTES as u32).to_ne_bytes());
    request[4..6].copy_from_slice(&RTM_GETLINK.to_ne_bytes());
    request[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    request[20..24].copy_from_slice(&index.to_ne_bytes());
    send(&socket, &request, SendFlags::empty())?;
    // The attributes that follow are cut off.
    let mut reply = [0; MESSAGE_BYTES];
    let (length, _) = recv(&socket, &mut reply, RecvFlags::empty())?;
    parse_reply(&reply[..length.min(MESSAGE_BYTES)])
}

fn parse_reply(reply: &[u8]) -> io::Result<u16> {
    let bytes = |at: usize| reply.get(at..at + 2).map(|b| u16::from_ne_bytes([b[0], b[1]]));
    match (bytes(4), bytes(18)) {
        (Some(RTM_NEWLINK), Some(link_type)) => Ok(link_type),
        _ => Err(io::Error::other("rtnetlink does not know it")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_a_link_header() {
        assert_eq!(link_header_bytes("lo").unwrap(), ETHERNET_HEADER_BYTES);
    }

    #[test]
    fn link_header_bytes_of_missing_interface_returns_error() {
        let text = link_header_bytes("nosuch0").unwrap_err().to_string();
        assert!(text.contains("nosuch0") && text.contains("ip link"), "{text}");
        assert!(link_type(u32::MAX).is_err());
        assert!(parse_reply(&[0; 3]).is_err());
    }
}
