//! Frames to feed to the program.

use std::net::{IpAddr, SocketAddr};

/// A frame with UDP in it; every part of the frame can be changed.
#[derive(Clone)]
pub(super) struct Frame {
    pub(super) to: SocketAddr,
    pub(super) payload: Vec<u8>,
    /// IPv4 options.
    pub(super) options: Vec<u8>,
    /// Flags and offset of IPv4 fragments.
    pub(super) fragment: u16,
    pub(super) protocol: u8,
    /// Tags before the EtherType.
    pub(super) tags: Vec<u8>,
    pub(super) mac: [u8; 6],
    /// Datagram length of the UDP header, if it is to lie.
    pub(super) udp_length: Option<u16>,
    /// Length in the IP header, if it must be wrong.
    pub(super) ip_length: Option<u16>,
    pub(super) version: Option<u8>,
    pub(super) gso_size: u16,
    /// Bytes to cut off at the end, or to add as padding.
    pub(super) cut: usize,
    pub(super) padding: usize,
}

impl Frame {
    pub(super) fn new(to: &str, payload: Vec<u8>) -> Self {
        Self {
            to: to.parse().unwrap(),
            payload,
            options: Vec::new(),
            fragment: 0x4000,
            protocol: 17,
            tags: Vec::new(),
            mac: [0; 6],
            udp_length: None,
            ip_length: None,
            version: None,
            gso_size: 0,
            cut: 0,
            padding: 0,
        }
    }

    fn udp(&self) -> Vec<u8> {
        let mut udp = 4321u16.to_be_bytes().to_vec();
        udp.extend(self.to.port().to_be_bytes());
        udp.extend(self.udp_length.unwrap_or(8 + self.payload.len() as u16).to_be_bytes());
        udp.extend([0; 2]);
        udp.extend(&self.payload);
        udp
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let udp = self.udp();
        let mut bytes = self.mac.to_vec();
        bytes.extend([2, 0, 0, 0, 0, 1]);
        bytes.extend(&self.tags);
        match self.to.ip() {
            IpAddr::V4(ip) => {
                bytes.extend([0x08, 0x00]);
                let header = 20 + self.options.len();
                bytes.extend([self.version.unwrap_or(4) << 4 | (header / 4) as u8, 0]);
                let length = self.ip_length.unwrap_or((header + udp.len()) as u16);
                bytes.extend(length.to_be_bytes());
                bytes.extend([0, 7]);
                bytes.extend(self.fragment.to_be_bytes());
                bytes.extend([64, self.protocol, 0, 0, 10, 9, 9, 9]);
                bytes.extend(ip.octets());
                bytes.extend(&self.options);
            }
            IpAddr::V6(ip) => {
                bytes.extend([0x86, 0xdd, self.version.unwrap_or(6) << 4, 0, 0, 0]);
                bytes.extend(self.ip_length.unwrap_or(udp.len() as u16).to_be_bytes());
                bytes.extend([self.protocol, 64]);
                bytes.extend([0xfd; 16]);
                bytes.extend(ip.octets());
            }
        }
        bytes.extend(&udp);
        bytes.truncate(bytes.len() - self.cut);
        bytes.resize(bytes.len() + self.padding, 0);
        bytes
    }

    /// `struct __sk_buff` with arrival and segment size.
    pub(super) fn context(&self, arrival_ns: u64) -> Vec<u8> {
        let mut context = vec![0; 192];
        context[152..160].copy_from_slice(&arrival_ns.to_ne_bytes());
        context[176..180].copy_from_slice(&u32::from(self.gso_size).to_ne_bytes());
        context
    }
}
