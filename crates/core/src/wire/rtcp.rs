//! RTCP (RFC 3550 section 6): the packets that the server writes (SR, SDES, BYE), those that the
//! client writes (RR), and a reader that walks a compound packet from anywhere without a panic.

pub use crate::limits::MAX_REPORT_BYTES;

/// Seconds from 1900 (NTP era 0) to 1970 (Unix).
pub const NTP_UNIX_OFFSET_S: u64 = 2_208_988_800;

/// Packet types.
const SR: u8 = 200;
const RR: u8 = 201;
const SDES: u8 = 202;
const BYE: u8 = 203;

/// A wall-clock moment as a 64-bit NTP timestamp (32.32 fixed point seconds since 1900), from Unix nanoseconds.
pub fn ntp_from_unix_ns(unix_ns: u64) -> u64 {
    let s = unix_ns / 1_000_000_000 + NTP_UNIX_OFFSET_S;
    let fraction = (u128::from(unix_ns % 1_000_000_000) << 32) / 1_000_000_000;
    s << 32 | fraction as u64
}

/// The content of a sender report (RFC 3550 section 6.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderReport {
    /// Sender.
    pub ssrc: u32,
    /// Wall clock as NTP timestamp.
    pub ntp: u64,
    /// The same moment on the RTP clock.
    pub rtp_timestamp: u32,
    /// Packets sent since the start.
    pub packets: u32,
    /// Payload bytes sent since the start.
    pub octets: u32,
}

/// The content of one report block (RFC 3550 section 6.4.1). Kept, never acted upon alone: players
/// send odd first values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportBlock {
    /// The source that is reported on.
    pub ssrc: u32,
    /// Lost since the last report, in 1/256.
    pub fraction_lost: u8,
    /// Lost since the start, signed 24 bits.
    pub cumulative_lost: i32,
    /// Extended highest sequence number.
    pub highest_sequence: u32,
    /// Interarrival jitter in RTP ticks.
    pub jitter: u32,
}

/// One packet of a compound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RtcpPacket {
    /// Sender report.
    SenderReport(SenderReport),
    /// Receiver report: the reporter, and its first block.
    ReceiverReport {
        /// The receiver.
        ssrc: u32,
        /// Its first block, if any.
        block: Option<ReportBlock>,
    },
    /// BYE of this source.
    Bye {
        /// The source; `None` if the list is empty.
        ssrc: Option<u32>,
    },
    /// Something else (SDES, APP, feedback): its packet type.
    Other(u8),
}

struct RtcpWriter<'a> {
    out: &'a mut [u8],
    len: usize,
}

impl RtcpWriter<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.out[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Common header with a length that [`RtcpWriter::close`] sets.
    fn open(&mut self, count: u8, packet_type: u8) -> usize {
        let start = self.len;
        self.put(&[0x80 | count, packet_type, 0, 0]);
        start
    }

    fn close(&mut self, start: usize) {
        while !(self.len - start).is_multiple_of(4) {
            self.put(&[0]);
        }
        let words = ((self.len - start) / 4 - 1) as u16;
        self.out[start + 2..start + 4].copy_from_slice(&words.to_be_bytes());
    }

    fn sdes(&mut self, ssrc: u32, cname: &str) {
        let cname = &cname.as_bytes()[..cname.len().min(48)];
        let start = self.open(1, SDES);
        self.put(&ssrc.to_be_bytes());
        self.put(&[1, cname.len() as u8]);
        self.put(cname);
        self.put(&[0]); // end of the chunk's items; close() pads
        self.close(start);
    }
}

/// Writes SR + SDES(CNAME), and BYE too if `bye`, into `out`; returns the length.
///
/// # Panics
/// If `out` is shorter than [`MAX_REPORT_BYTES`].
pub fn write_sender_report(out: &mut [u8], report: &SenderReport, cname: &str, bye: bool) -> usize {
    let mut w = RtcpWriter { out, len: 0 };
    let start = w.open(0, SR);
    w.put(&report.ssrc.to_be_bytes());
    w.put(&report.ntp.to_be_bytes());
    w.put(&report.rtp_timestamp.to_be_bytes());
    w.put(&report.packets.to_be_bytes());
    w.put(&report.octets.to_be_bytes());
    w.close(start);
    w.sdes(report.ssrc, cname);
    if bye {
        let start = w.open(1, BYE);
        w.put(&report.ssrc.to_be_bytes());
        w.close(start);
    }
    w.len
}

/// Writes RR with one block (or none) + SDES(CNAME), and BYE too if `bye`; returns the length.
///
/// # Panics
/// If `out` is shorter than [`MAX_REPORT_BYTES`].
pub fn write_receiver_report(
    out: &mut [u8],
    ssrc: u32,
    block: Option<&ReportBlock>,
    cname: &str,
    bye: bool,
) -> usize {
    let mut w = RtcpWriter { out, len: 0 };
    let start = w.open(u8::from(block.is_some()), RR);
    w.put(&ssrc.to_be_bytes());
    if let Some(b) = block {
        w.put(&b.ssrc.to_be_bytes());
        let lost = b.cumulative_lost.clamp(-0x80_0000, 0x7f_ffff) as u32 & 0xff_ffff;
        w.put(&(u32::from(b.fraction_lost) << 24 | lost).to_be_bytes());
        w.put(&b.highest_sequence.to_be_bytes());
        w.put(&b.jitter.to_be_bytes());
        w.put(&[0; 8]); // LSR, DLSR: no round trip is measured
    }
    w.close(start);
    w.sdes(ssrc, cname);
    if bye {
        let start = w.open(1, BYE);
        w.put(&ssrc.to_be_bytes());
        w.close(start);
    }
    w.len
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4).map(|b| u32::from_be_bytes(b.try_into().expect("four bytes")))
}

fn report_block(body: &[u8], at: usize) -> Option<ReportBlock> {
    let loss = u32_at(body, at + 4)?;
    Some(ReportBlock {
        ssrc: u32_at(body, at)?,
        fraction_lost: (loss >> 24) as u8,
        cumulative_lost: ((loss << 8) as i32) >> 8,
        highest_sequence: u32_at(body, at + 8)?,
        jitter: u32_at(body, at + 12)?,
    })
}

/// Walks a compound packet; stops at the first thing that is not RTCP version 2 or does not fit.
pub fn parse(mut datagram: &[u8]) -> impl Iterator<Item = RtcpPacket> + '_ {
    std::iter::from_fn(move || {
        let header = datagram.get(..4)?;
        if header[0] >> 6 != 2 || !(192..=223).contains(&header[1]) {
            return None;
        }
        let (count, packet_type) = (header[0] & 0x1f, header[1]);
        let len = 4 * (usize::from(u16::from_be_bytes([header[2], header[3]])) + 1);
        let body = datagram.get(4..len)?;
        datagram = &datagram[len..];
        Some(match packet_type {
            SR => RtcpPacket::SenderReport(SenderReport {
                ssrc: u32_at(body, 0)?,
                ntp: u64::from(u32_at(body, 4)?) << 32 | u64::from(u32_at(body, 8)?),
                rtp_timestamp: u32_at(body, 12)?,
                packets: u32_at(body, 16)?,
                octets: u32_at(body, 20)?,
            }),
            RR => RtcpPacket::ReceiverReport {
                ssrc: u32_at(body, 0)?,
                block: (count > 0).then(|| report_block(body, 4)).flatten(),
            },
            BYE => RtcpPacket::Bye { ssrc: (count > 0).then(|| u32_at(body, 0)).flatten() },
            other => RtcpPacket::Other(other),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sender_report_round_trip() {
        let report = SenderReport { ssrc: 7, ntp: 1 << 40 | 5, rtp_timestamp: 9, packets: 11, octets: 13 };
        let mut out = [0; MAX_REPORT_BYTES];
        let len = write_sender_report(&mut out, &report, "millrace@host", true);
        let packets: Vec<_> = parse(&out[..len]).collect();
        assert_eq!(
            packets,
            [RtcpPacket::SenderReport(report), RtcpPacket::Other(SDES), RtcpPacket::Bye { ssrc: Some(7) }]
        );
        assert!(len.is_multiple_of(4));
        let long = "x".repeat(300);
        assert!(write_sender_report(&mut out, &report, &long, true) <= MAX_REPORT_BYTES);
    }

    #[test]
    fn receiver_report_round_trip_with_negative_loss() {
        let block = ReportBlock {
            ssrc: 3,
            fraction_lost: 255,
            cumulative_lost: -1,
            highest_sequence: 65_540,
            jitter: 4,
        };
        let mut out = [0; MAX_REPORT_BYTES];
        let len = write_receiver_report(&mut out, 5, Some(&block), "c", true);
        let packets: Vec<_> = parse(&out[..len]).collect();
        assert_eq!(packets[0], RtcpPacket::ReceiverReport { ssrc: 5, block: Some(block) });
        assert_eq!(packets[2], RtcpPacket::Bye { ssrc: Some(5) });
    }

    #[test]
    fn ntp_of_the_unix_epoch() {
        assert_eq!(ntp_from_unix_ns(0) >> 32, NTP_UNIX_OFFSET_S);
        assert_eq!(ntp_from_unix_ns(500_000_000) & 0xffff_ffff, 1 << 31);
    }

    proptest! {
        #[test]
        fn parse_never_panics_and_ends(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(parse(&bytes).count() <= 75);
        }

        #[test]
        fn truncation_never_panics(cut in 0usize..100) {
            let report = SenderReport { ssrc: 7, ntp: 1, rtp_timestamp: 9, packets: 11, octets: 13 };
            let mut out = [0; MAX_REPORT_BYTES];
            let len = write_sender_report(&mut out, &report, "millrace", true);
            parse(&out[..cut.min(len)]).for_each(drop);
        }
    }
}
