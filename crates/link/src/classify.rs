//! Recognizes RTP from the bytes of a packet, so that a link can count media apart from everything
//! else.

use millrace_core::limits::RTP_HEADER_BYTES;
use millrace_core::wire::frame::UDP_HEADER_BYTES;

/// The apparent type of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// RTP in UDP.
    Rtp,
    /// Everything else: RTCP, RTSP, acknowledgements.
    Other,
}

const UDP: u8 = 17;

/// Looks at an IP packet. UDP whose payload begins as RTP version 2 does and is no RTCP (RFC 5761 section 4: payload
/// types 72 to 76 are RTCP's) counts as RTP; a quarter of all random UDP payloads would too.
pub fn classify(packet: &[u8]) -> Traffic {
    match udp_payload(packet) {
        Some(payload)
            if payload.len() >= RTP_HEADER_BYTES
                && payload[0] >> 6 == 2
                && !(72..=76).contains(&(payload[1] & 0x7f)) =>
        {
            Traffic::Rtp
        }
        _ => Traffic::Other,
    }
}

/// Returns the payload of a UDP datagram, if the packet is one and not a later fragment.
fn udp_payload(packet: &[u8]) -> Option<&[u8]> {
    let first = *packet.first()?;
    let header_bytes = match first >> 4 {
        4 => {
            let fragment = u16::from_be_bytes([*packet.get(6)?, *packet.get(7)?]) & 0x1fff;
            if *packet.get(9)? != UDP || fragment != 0 {
                return None;
            }
            usize::from(first & 0xf) * 4
        }
        6 if *packet.get(6)? == UDP => 40,
        _ => return None,
    };
    packet.get(header_bytes + UDP_HEADER_BYTES..)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn v4(protocol: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 0, 0, 0, (fragment >> 8) as u8, fragment as u8, 64, protocol];
        packet.resize(20 + 8, 0);
        packet.extend(payload);
        packet
    }

    fn v6(next: u8, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0, 0, 0, next, 64];
        packet.resize(40 + 8, 0);
        packet.extend(payload);
        packet
    }

    #[test]
    fn rtp_is_told_from_everything_else() {
        let mut rtp = [0; 12];
        (rtp[0], rtp[1]) = (0x80, 33);
        assert_eq!(classify(&v4(UDP, 0, &rtp)), Traffic::Rtp);
        assert_eq!(classify(&v6(UDP, &rtp)), Traffic::Rtp);
        rtp[1] = 0x80 | 33;
        assert_eq!(classify(&v4(UDP, 0x4000, &rtp)), Traffic::Rtp, "the marker bit, may not be fragmented");
        assert_eq!(classify(&v4(6, 0, &rtp)), Traffic::Other, "TCP");
        assert_eq!(classify(&v4(UDP, 3, &rtp)), Traffic::Other, "a later fragment");
        assert_eq!(classify(&v6(58, &rtp)), Traffic::Other, "ICMPv6");
        assert_eq!(classify(&v4(UDP, 0, &rtp[..11])), Traffic::Other, "short");
        for report in 200..=204 {
            rtp[1] = report;
            assert_eq!(classify(&v4(UDP, 0, &rtp)), Traffic::Other, "RTCP {report}");
        }
        assert_eq!(classify(&v4(UDP, 0, &[0; 1316])), Traffic::Other, "no version 2");
    }

    proptest! {
        #[test]
        fn classify_of_any_packet_never_panics(packet in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = classify(&packet);
        }
    }
}
