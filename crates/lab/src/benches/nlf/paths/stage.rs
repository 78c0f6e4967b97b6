//! Two hosts, a sink that drops, and the egress paths between them.

use std::io::IoSlice;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use millrace_core::limits::RTP_HEADER_BYTES;
use millrace_core::wire::frame::{Flow, LinkHeader};
use millrace_netio::xdp::umem::address_of;

use super::super::stream::{PacketStream, PayloadMemory};
use super::{Contender, SendPath};
use crate::benches::tx::{DropSink, NOWHERE};
use crate::framing::{Connection, Version};
use crate::netns::{CLIENT_IP, SERVER_IP, TwoHosts, ip};
use crate::raw_loops::XdpLoop;
use crate::raw_send::{RawGather, RawSender};

/// The sender's interface. Hosts are named from a receiver's point of view elsewhere: here the client host sends.
const INTERFACE: &str = "vc";
/// Room for the largest packets of the paper with all headers.
pub(super) const MTU_BYTES: usize = 9000;
/// Packets that are handed over in one call.
pub(super) const CALL_PACKETS: usize = 32;
/// Bytes that one call of UDP segmentation takes.
const MAX_TRAIN_BYTES: usize = 65_507;
/// The address that the sink of [`DropSink`] gives the receiving device.
const RECEIVER_MAC: [u8; 6] = [2, 0, 0, 0x77, 0, 1];
const SEND_BUFFER_BYTES: usize = 4 << 20;
/// Frames that are compared: a call's.
const CHECKED: usize = CALL_PACKETS;

/// The sending and the receiving host.
pub(super) struct PathTestbed {
    pub(super) hosts: TwoHosts,
    /// On the receiving host: where packets are compared.
    socket: UdpSocket,
}

impl PathTestbed {
    pub(super) fn build() -> anyhow::Result<Self> {
        let hosts = TwoHosts::new(false)?;
        for (namespace, device) in [(&hosts.server, "vs"), (&hosts.client, INTERFACE)] {
            ip(Some(namespace), &format!("link set {device} mtu {MTU_BYTES}"))?;
        }
        let socket = hosts.inside_server(|| UdpSocket::bind((SERVER_IP, 0)))??;
        rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 16 << 20)?;
        socket.set_read_timeout(Some(Duration::from_secs(2)))?;
        Ok(Self { hosts, socket })
    }

    /// Builds the sink that drops everything except packets to the socket, as soon as the receiving
    /// device has counted it.
    pub(super) fn sink(&self) -> anyhow::Result<DropSink<'_>> {
        DropSink::build(&self.hosts)
    }

    /// Sends the same few packets to the socket as the contender sends them; returns how many did
    /// not arrive as they should. The receiving kernel discards packets with a wrong checksum.
    pub(super) fn damaged(&self, egress: &mut Egress<'_>, contender: &Contender) -> anyhow::Result<usize> {
        let to = self.socket.local_addr()?;
        egress.send(contender, to, 0..CHECKED)?;
        let mut damaged = 0;
        let mut got = vec![0; MTU_BYTES];
        for number in 0..CHECKED {
            let Ok(length) = self.socket.recv(&mut got) else { return Ok(damaged + CHECKED - number) };
            let datagram = egress.stream.datagram(number);
            let is_same = got[..length] == *[&datagram.rtp[..], datagram.payload].concat();
            damaged += usize::from(!is_same);
        }
        Ok(damaged)
    }
}

/// Sets whether the sending device is asked to compute checksums. A veth pair reports that it does,
/// but nothing computes them.
pub(super) fn set_checksum_offload(is_on: bool) -> anyhow::Result<()> {
    let word = if is_on { "on" } else { "off" };
    let output = Command::new("ethtool")
        .args(["-K", INTERFACE, "tx", word, "tx-udp-segmentation", "off"])
        .output()
        .context("ethtool: cannot be started")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ethtool -K {INTERFACE} tx {word}: {}", errors.trim());
    Ok(())
}

/// Everything that packets of one size leave through. To be made on the sending host.
pub(super) struct Egress<'m> {
    memory: &'m PayloadMemory,
    stream: PacketStream<'m>,
    /// Of all packets, whoever sends them.
    port: u16,
    socket: RawSender,
    xdp: Result<XdpLoop, String>,
}

impl<'m> Egress<'m> {
    pub(super) fn open(memory: &'m PayloadMemory, stream: PacketStream<'m>) -> anyhow::Result<Self> {
        // Any port: a program that is just being started may still hold the socket of the size before.
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        let port = socket.local_addr()?.port();
        rustix::net::sockopt::set_socket_send_buffer_size_force(&socket, SEND_BUFFER_BYTES)?;
        let socket = RawSender::new(socket, CALL_PACKETS);
        // Twice the payload holds the headers too, and is a power of two.
        let xdp = XdpLoop::open_with_frames(INTERFACE, 0, &memory.arena, 0, 2 * stream.packet_bytes);
        Ok(Self { memory, stream, port, socket, xdp: xdp.map_err(|error| format!("{error:#}")) })
    }

    /// Returns why AF_XDP is not available, if it is not.
    pub(super) fn refusal(&self) -> Option<&str> {
        self.xdp.as_ref().err().map(String::as_str)
    }

    /// Sends the whole stream to where it is dropped; how many packets that is.
    pub(super) fn send_all(&mut self, contender: &Contender, stream_bytes: usize) -> anyhow::Result<usize> {
        let packets = (stream_bytes / self.stream.packet_bytes).max(1);
        let to = SocketAddr::new(NOWHERE.into(), 6000);
        self.send(contender, to, 0..packets)?;
        Ok(packets)
    }

    fn send(
        &mut self,
        contender: &Contender,
        to: SocketAddr,
        numbers: std::ops::Range<usize>,
    ) -> anyhow::Result<()> {
        match contender.path {
            SendPath::Socket { call_packets } => self.send_by_socket(to, numbers, call_packets, 1),
            SendPath::Trains => {
                let train =
                    (MAX_TRAIN_BYTES / (RTP_HEADER_BYTES + self.stream.packet_bytes)).min(CALL_PACKETS);
                self.send_by_socket(to, numbers, CALL_PACKETS / train * train, train)
            }
            SendPath::Frames { version, in_place } => self.send_frames(to, numbers, version, in_place),
        }
    }

    /// `train` packets in a message, `call_packets` in a call.
    fn send_by_socket(
        &mut self,
        to: SocketAddr,
        numbers: std::ops::Range<usize>,
        call_packets: usize,
        train: usize,
    ) -> anyhow::Result<()> {
        let segment_bytes = match train {
            1 => 0,
            _ => (RTP_HEADER_BYTES + self.stream.packet_bytes) as u16,
        };
        let numbers: Vec<usize> = numbers.collect();
        for numbers in numbers.chunks(call_packets) {
            let datagrams: Vec<_> =
                numbers.iter().map(|&number| self.stream.datagram_without_sum(number)).collect();
            let parts: Vec<IoSlice<'_>> =
                datagrams.iter().flat_map(|d| [IoSlice::new(&d.rtp), IoSlice::new(d.payload)]).collect();
            let messages: Vec<RawGather<'_>> =
                parts.chunks(2 * train).map(|parts| RawGather { to, parts, segment_bytes }).collect();
            let mut rest = &messages[..];
            while !rest.is_empty() {
                rest = &rest[self.socket.send_gather(rest)?..];
            }
        }
        Ok(())
    }

    /// Headers by `version`; the payload copied behind them, or sent from where it lies.
    fn send_frames(
        &mut self,
        to: SocketAddr,
        numbers: std::ops::Range<usize>,
        version: Version,
        in_place: bool,
    ) -> anyhow::Result<()> {
        let connection = connection_to(to, self.port)?;
        let xdp = self.xdp.as_mut().map_err(|why| anyhow::anyhow!("{why}"))?;
        for (sent, number) in numbers.enumerate() {
            let datagram = self.stream.datagram(number);
            let payload = datagram.payload;
            let (address, frame) = xdp.frame()?;
            let headers = version(&connection, &datagram, frame);
            ensure!(headers > 0, "a datagram of {} bytes does not fit", payload.len());
            if in_place {
                let place =
                    address_of(&self.memory.arena, payload).context("the payload lies in the arena")?;
                xdp.push_range(address, headers, true)?;
                xdp.push_range(place, payload.len(), false)?;
            } else {
                frame[headers..headers + payload.len()].copy_from_slice(payload);
                xdp.push_range(address, headers + payload.len(), false)?;
            }
            if (sent + 1) % CALL_PACKETS == 0 {
                xdp.flush()?;
            }
        }
        xdp.flush()
    }
}

fn connection_to(to: SocketAddr, port: u16) -> anyhow::Result<Connection> {
    let link = LinkHeader { destination: RECEIVER_MAC, source: [2, 0, 0, 0x77, 0, 2], vlan: None };
    let source = SocketAddr::new(CLIENT_IP.parse()?, port);
    let flow = Flow { source, destination: to, hop_limit: 64, traffic_class: 0 };
    Connection::new(&link, &flow).context("both addresses are IPv4")
}
