//! A capture file of what was taken, for Wireshark and tcpdump. Needs no privileges, and sees what a capture on the
//! network card cannot: bursts before the kernel cuts them, and interleaved frames before TCP.
//!
//! Format: pcap with nanoseconds, link type RAW (IP packets), <https://www.tcpdump.org/manpages/pcap-savefile.5.html>. UDP
//! packets are as on the wire, checksums included; a frame of an RTSP connection is written as one TCP segment from
//! port 554 to port 10000 + connection of 192.0.2.1 (RFC 5737), with running sequence numbers.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use millrace_core::ids::ConnId;
use millrace_core::seam::{Clock, PacketTx, Payload, SendOutcome, TransmitBatch};
use millrace_core::wire::checksum::{add, sum16};

use crate::error::NetError;
use crate::null::{Target, taken};
use crate::shape::Shape;

/// Nanosecond pcap, in the writer's byte order (here little-endian).
const MAGIC: u32 = 0xa1b2_3c4d;
/// LINKTYPE_RAW: records begin with an IPv4 or IPv6 header.
const LINK_RAW: u32 = 101;
/// Longest record: no packet is longer, so none is cut.
const SNAP_BYTES: u32 = 262_144;
const NS_PER_S: u64 = 1_000_000_000;
/// Stands for every viewer of an interleaved connection (TEST-NET-1, RFC 5737).
const TCP_VIEWER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const RTSP_PORT: u16 = 554;

/// Whose packets they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PcapSource {
    /// IPv4 address and port of RTP; RTCP comes from the next port.
    pub v4: SocketAddrV4,
    /// The same for IPv6.
    pub v6: SocketAddrV6,
    /// Nanoseconds since 1970 at zero of the clock.
    pub wall_offset_ns: u64,
}

/// Writes what the device inside takes to a capture file. For looking at things: it writes to `W` in [`PacketTx::send`],
/// so it waits for whatever `W` waits for.
pub struct PcapTx<T, W: Write, C> {
    inner: T,
    writer: W,
    clock: C,
    source: PcapSource,
    /// Next sequence number of each connection.
    streams: BTreeMap<ConnId, u32>,
    records: u64,
    failed: Option<io::Error>,
    packet: Vec<u8>,
}

impl<T: PacketTx, W: Write, C: Clock> PcapTx<T, W, C> {
    /// Around `inner`; writes the file's header.
    ///
    /// # Errors
    /// If the header cannot be written.
    pub fn new(inner: T, mut writer: W, clock: C, source: PcapSource) -> Result<Self, NetError> {
        let mut header = Vec::with_capacity(24);
        header.extend(MAGIC.to_le_bytes());
        header.extend(2u16.to_le_bytes());
        header.extend(4u16.to_le_bytes());
        header.extend([0; 8]);
        header.extend(SNAP_BYTES.to_le_bytes());
        header.extend(LINK_RAW.to_le_bytes());
        writer.write_all(&header).map_err(|source| NetError::Capture { record: 0, source })?;
        let packet = Vec::with_capacity(SNAP_BYTES as usize);
        Ok(Self { inner, writer, clock, source, streams: BTreeMap::new(), records: 0, failed: None, packet })
    }

    /// The device inside.
    pub fn inner(&mut self) -> &mut T {
        &mut self.inner
    }

    /// Ends the capture: the device inside, the writer, and the number of packets written.
    ///
    /// # Errors
    /// If a record could not be written. Nothing was written after it; the sending was not touched.
    pub fn finish(mut self) -> Result<(T, W, u64), NetError> {
        let result = match self.failed.take() {
            Some(error) => Err(error),
            None => self.writer.flush(),
        };
        result.map_err(|source| NetError::Capture { record: self.records, source })?;
        Ok((self.inner, self.writer, self.records))
    }

    fn record(&mut self, unix_ns: u64, to: Target, rtcp: bool, parts: &[&[u8]]) {
        if self.failed.is_some() {
            return;
        }
        self.packet.clear();
        match to {
            Target::Udp(dest) => udp_packet(&mut self.packet, &self.source, dest, rtcp, parts),
            Target::Tcp { conn, channel } => {
                let next = self.streams.entry(conn).or_insert(1);
                let source = SocketAddrV4::new(*self.source.v4.ip(), RTSP_PORT);
                *next = tcp_packet(&mut self.packet, source, conn, channel, *next, parts);
            }
        }
        let length = self.packet.len() as u32;
        let mut head = [0; 16];
        head[0..4].copy_from_slice(&((unix_ns / NS_PER_S) as u32).to_le_bytes());
        head[4..8].copy_from_slice(&((unix_ns % NS_PER_S) as u32).to_le_bytes());
        head[8..12].copy_from_slice(&length.to_le_bytes());
        head[12..16].copy_from_slice(&length.to_le_bytes());
        match self.writer.write_all(&head).and_then(|()| self.writer.write_all(&self.packet)) {
            Ok(()) => self.records += 1,
            Err(error) => self.failed = Some(error),
        }
    }
}

impl<T: PacketTx, W: Write, C: Clock> PacketTx for PcapTx<T, W, C> {
    fn send(&mut self, batch: &dyn TransmitBatch, outcomes: &mut [SendOutcome]) {
        self.inner.send(batch, outcomes);
        let unix_ns = self.source.wall_offset_ns.saturating_add(self.clock.now().0);
        for (index, outcome) in outcomes[..batch.len()].iter().enumerate() {
            let transmit = batch.get(index);
            let Ok(shape) = Shape::of(transmit.payload) else { continue };
            let rtcp = matches!(transmit.payload, Payload::Rtcp(_));
            for place in 0..taken(outcome, shape.datagrams()) {
                match shape.datagram(place) {
                    (None, bytes) => self.record(unix_ns, Target::of(&transmit), rtcp, &[bytes]),
                    (Some(header), rest) => {
                        self.record(unix_ns, Target::of(&transmit), rtcp, &[header, rest])
                    }
                }
            }
        }
    }
}

/// IP and UDP headers and the datagram.
fn udp_packet(out: &mut Vec<u8>, source: &PcapSource, dest: SocketAddr, rtcp: bool, parts: &[&[u8]]) {
    let length = 8 + parts.iter().map(|part| part.len()).sum::<usize>();
    let (source, pseudo) = match dest.ip() {
        IpAddr::V4(ip) => {
            let pseudo = ipv4_header(out, *source.v4.ip(), ip, 17, length);
            (source.v4.port(), pseudo)
        }
        IpAddr::V6(ip) => {
            // Version 6, no class, no flow label; UDP; 64 hops (RFC 8200 section 3).
            out.extend([0x60, 0, 0, 0]);
            out.extend((length as u16).to_be_bytes());
            out.extend([17, 64]);
            out.extend(source.v6.ip().octets());
            out.extend(ip.octets());
            let addresses = add(sum16(&source.v6.ip().octets()), sum16(&ip.octets()));
            (source.v6.port(), add(addresses, add(17, length as u16)))
        }
    };
    let start = out.len();
    out.extend((source + u16::from(rtcp)).to_be_bytes());
    out.extend(dest.port().to_be_bytes());
    out.extend((length as u16).to_be_bytes());
    out.extend([0; 2]);
    parts.iter().for_each(|part| out.extend(*part));
    // A sum of zero is sent as all ones, zero means "none" (RFC 768).
    let sum = match !add(pseudo, sum16(&out[start..])) {
        0 => 0xffff,
        sum => sum,
    };
    out[start + 6..start + 8].copy_from_slice(&sum.to_be_bytes());
}

/// IP and TCP headers and the frame; the next sequence number.
fn tcp_packet(
    out: &mut Vec<u8>,
    source: SocketAddrV4,
    conn: ConnId,
    channel: u8,
    sequence: u32,
    parts: &[&[u8]],
) -> u32 {
    let packet = parts.iter().map(|part| part.len()).sum::<usize>();
    let pseudo = ipv4_header(out, *source.ip(), TCP_VIEWER, 6, 20 + 4 + packet);
    let start = out.len();
    out.extend(source.port().to_be_bytes());
    out.extend((10_000 + conn.0 as u16).to_be_bytes());
    out.extend(sequence.to_be_bytes());
    out.extend(1u32.to_be_bytes());
    // Five words of header, PSH and ACK, a full window, no checksum yet, no urgent data (RFC 9293 section 3.1).
    out.extend([0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0]);
    out.extend([b'$', channel]);
    out.extend((packet as u16).to_be_bytes());
    parts.iter().for_each(|part| out.extend(*part));
    let sum = !add(pseudo, sum16(&out[start..]));
    out[start + 16..start + 18].copy_from_slice(&sum.to_be_bytes());
    sequence.wrapping_add(4 + packet as u32)
}

/// A 20-byte IPv4 header; returns the pseudo header's sum for the layer above.
fn ipv4_header(out: &mut Vec<u8>, source: Ipv4Addr, dest: Ipv4Addr, protocol: u8, length: usize) -> u16 {
    let start = out.len();
    // Version 4, five words; don't fragment; 64 hops (RFC 791 section 3.1).
    out.extend([0x45, 0]);
    out.extend(((20 + length) as u16).to_be_bytes());
    out.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
    out.extend(source.octets());
    out.extend(dest.octets());
    let sum = !sum16(&out[start..]);
    out[start + 10..start + 12].copy_from_slice(&sum.to_be_bytes());
    let addresses = add(sum16(&source.octets()), sum16(&dest.octets()));
    add(addresses, add(u16::from(protocol), length as u16))
}

#[cfg(test)]
#[path = "pcap_tests.rs"]
mod tests;
