//! Input of a frame: its addressee, its content, and its fate.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use millrace_core::time::Instant;
use millrace_core::wire::checksum::sum16;
use millrace_core::wire::frame::layout::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, TCP};

use super::addresses::key_of;
use super::icmp::{self, ICMP_V4, ICMP_V6, IcmpMessage, NoQuote, Quoted};
use super::link::{ETHERTYPE_ARP, LinkFrame, NoFrame};
use super::v4::{self, Unfit};
use super::{Incoming, Interface, v6};
use crate::stack::{Arrived, IcmpError, IcmpKind};

/// The ECN field: congestion experienced (RFC 3168 section 5).
const ECN: u8 = 3;

/// Why a frame is not taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameRejection {
    ForKernel,
    Fragment,
    Malformed,
    Checksum,
    Martian,
    Misdirected,
    Options,
    Discovery,
}

impl From<Unfit> for FrameRejection {
    fn from(unfit: Unfit) -> Self {
        match unfit {
            Unfit::Malformed => Self::Malformed,
            Unfit::Checksum => Self::Checksum,
            Unfit::Options => Self::Options,
        }
    }
}

impl Interface {
    /// Takes in a frame. Of a segment nothing but its place in the frame is looked at.
    #[inline]
    pub fn input<'f>(&mut self, frame: &'f [u8], now: Instant) -> Incoming<'f> {
        self.counters.frames_in += 1;
        match self.sort(frame, now) {
            Ok(incoming) => {
                self.counters.handled += u64::from(matches!(incoming, Incoming::Done));
                incoming
            }
            Err(fate) => self.refuse(fate),
        }
    }

    #[cold]
    fn refuse<'f>(&mut self, fate: FrameRejection) -> Incoming<'f> {
        let counters = &mut self.counters;
        let counter = match fate {
            FrameRejection::ForKernel | FrameRejection::Fragment => {
                counters.for_kernel += 1;
                counters.fragments += u64::from(fate == FrameRejection::Fragment);
                return Incoming::ForKernel;
            }
            FrameRejection::Malformed => &mut counters.malformed,
            FrameRejection::Checksum => &mut counters.bad_checksums,
            FrameRejection::Martian => &mut counters.martians,
            FrameRejection::Misdirected => &mut counters.misdirected,
            FrameRejection::Options => &mut counters.bad_options,
            FrameRejection::Discovery => &mut counters.bad_discovery,
        };
        *counter += 1;
        Incoming::Dropped
    }

    #[inline]
    fn sort<'f>(&mut self, frame: &'f [u8], now: Instant) -> Result<Incoming<'f>, FrameRejection> {
        let frame = self.link.parse(frame).map_err(|reason| match reason {
            NoFrame::Short => FrameRejection::Malformed,
            NoFrame::Elsewhere => FrameRejection::ForKernel,
        })?;
        match frame.ethertype {
            ETHERTYPE_IPV4 => self.take_v4(&frame, now),
            ETHERTYPE_IPV6 => self.take_v6(&frame, now),
            ETHERTYPE_ARP => self.take_arp(&frame, now),
            _ => Err(FrameRejection::ForKernel),
        }
    }

    #[inline]
    fn take_v4<'f>(&mut self, frame: &LinkFrame<'f>, now: Instant) -> Result<Incoming<'f>, FrameRejection> {
        let packet = v4::Ipv4Packet::new(frame.bytes)?;
        if !self.addresses.is_own(packet.destination_key()) {
            return Err(FrameRejection::ForKernel);
        }
        packet.verify()?;
        let source = Ipv4Addr::from(packet.source());
        if self.addresses.is_martian(packet.source_key(), IpAddr::V4(source)) {
            return Err(FrameRejection::Martian);
        }
        // A packet for one host that was broadcast on the link (RFC 1122 section 3.3.6), or that a device without a filter has let in.
        if !frame.is_to_us {
            return Err(FrameRejection::Misdirected);
        }
        if packet.is_fragment() {
            return Err(FrameRejection::Fragment);
        }
        match packet.protocol() {
            TCP => {
                self.counters.segments_in += 1;
                Ok(Incoming::Segment(Arrived {
                    source: SocketAddr::from((source, 0)),
                    destination: SocketAddr::from((Ipv4Addr::from(packet.destination()), 0)),
                    is_marked: packet.traffic_class() & ECN == ECN,
                    is_checked: false,
                    bytes: packet.payload,
                    at: now,
                }))
            }
            ICMP_V4 => self.take_icmp_v4(frame, &packet, now),
            _ => Err(FrameRejection::ForKernel),
        }
    }

    fn take_icmp_v4<'f>(
        &mut self,
        frame: &LinkFrame<'f>,
        packet: &v4::Ipv4Packet<'f>,
        now: Instant,
    ) -> Result<Incoming<'f>, FrameRejection> {
        let message = icmp::sort_v4(packet.payload).ok_or(FrameRejection::Malformed)?;
        if message == IcmpMessage::Other {
            return Err(FrameRejection::ForKernel);
        }
        if sum16(packet.payload) != 0xffff {
            return Err(FrameRejection::Checksum);
        }
        match message {
            IcmpMessage::Echo if self.answers_echo => {
                self.echo_v4(frame, packet, now);
                Ok(Incoming::Done)
            }
            IcmpMessage::Error(kind, quote) => self.take_error(kind, icmp::quoted_v4(quote)),
            _ => Err(FrameRejection::ForKernel),
        }
    }

    /// An error is for TCP if it quotes a segment that can have been sent from here.
    fn take_error<'f>(
        &mut self,
        kind: IcmpKind,
        quoted: Result<Quoted, NoQuote>,
    ) -> Result<Incoming<'f>, FrameRejection> {
        let (local, remote, seq) = quoted.map_err(|reason| match reason {
            NoQuote::Malformed => FrameRejection::Malformed,
            NoQuote::OtherProtocol => FrameRejection::ForKernel,
        })?;
        let is_own = self.addresses.is_own(key_of(local.ip()));
        if !is_own || self.addresses.is_martian(key_of(remote.ip()), remote.ip()) {
            return Err(FrameRejection::Martian);
        }
        self.counters.errors_in += 1;
        Ok(Incoming::Error(IcmpError { local, remote, seq, kind }))
    }

    #[inline]
    fn take_v6<'f>(&mut self, frame: &LinkFrame<'f>, now: Instant) -> Result<Incoming<'f>, FrameRejection> {
        let packet = v6::Ipv6Packet::new(frame.bytes)?;
        let is_own = self.addresses.is_own(packet.destination_key());
        if !is_own && packet.destination()[0] != 0xff {
            return Err(FrameRejection::ForKernel);
        }
        let upper = match packet.upper() {
            Err(_) if !is_own => return Err(FrameRejection::ForKernel),
            upper => upper?,
        };
        if upper.protocol == ICMP_V6
            && let Some(IcmpMessage::Discovery) = icmp::sort_v6(upper.bytes)
        {
            if !packet.is_right(&upper) {
                return Err(FrameRejection::Checksum);
            }
            return self.take_discovery(frame, &packet, &upper, now);
        }
        if !is_own {
            return Err(FrameRejection::ForKernel);
        }
        let source = Ipv6Addr::from(*packet.source());
        if self.addresses.is_martian(packet.source_key(), IpAddr::V6(source)) {
            return Err(FrameRejection::Martian);
        }
        if !frame.is_to_us {
            return Err(FrameRejection::Misdirected);
        }
        match upper.protocol {
            TCP => {
                self.counters.segments_in += 1;
                let [source, destination] =
                    [packet.source(), packet.destination()].map(|ip| icmp::end_v6(ip, 0, self.scope));
                let is_marked = packet.traffic_class() & ECN == ECN;
                Ok(Incoming::Segment(Arrived {
                    source,
                    destination,
                    is_marked,
                    is_checked: false,
                    bytes: upper.bytes,
                    at: now,
                }))
            }
            ICMP_V6 => self.take_icmp_v6(frame, &packet, &upper, now),
            v6::FRAGMENT => Err(FrameRejection::Fragment),
            _ => Err(FrameRejection::ForKernel),
        }
    }

    fn take_icmp_v6<'f>(
        &mut self,
        frame: &LinkFrame<'f>,
        packet: &v6::Ipv6Packet<'f>,
        upper: &v6::Upper<'f>,
        now: Instant,
    ) -> Result<Incoming<'f>, FrameRejection> {
        let message = icmp::sort_v6(upper.bytes).ok_or(FrameRejection::Malformed)?;
        if message == IcmpMessage::Other {
            return Err(FrameRejection::ForKernel);
        }
        if !packet.is_right(upper) {
            return Err(FrameRejection::Checksum);
        }
        match message {
            IcmpMessage::Echo if self.answers_echo => {
                self.echo_v6(frame, packet, upper.bytes, now);
                Ok(Incoming::Done)
            }
            IcmpMessage::Error(kind, quote) => self.take_error(kind, icmp::quoted_v6(quote, self.scope)),
            _ => Err(FrameRejection::ForKernel),
        }
    }
}

#[cfg(test)]
#[path = "input_tests.rs"]
mod tests;
