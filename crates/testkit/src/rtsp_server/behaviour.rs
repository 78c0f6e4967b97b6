//! The film that the server sends, and what it does with it.

use std::time::Duration;

use super::fec::FecSending;

pub const TS: usize = 188;
pub const PAYLOAD: usize = 7 * TS;
pub const SSRC: u32 = 0xfeed_0001;

/// A transport stream of one PID with counters that go up and noise that never repeats.
pub fn film(payloads: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(payloads * PAYLOAD);
    let mut state = 0x2545_f491_4f6c_dd1du64;
    for number in 0..payloads * 7 {
        bytes.extend([0x47, 0x01, 0x00, 0x10 | (number % 16) as u8]);
        for _ in 4..TS {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            bytes.push(state as u8);
        }
    }
    bytes
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RtpInfo {
    Exact,
    /// Sequence number too high by this, timestamp too high by 1000 times this.
    Off(u16),
    Absent,
}

#[derive(Clone, Debug)]
pub struct Behaviour {
    pub film: Vec<u8>,
    /// Time from one packet to the next, on the wire and in the film.
    pub interval: Duration,
    /// Sequence number of the film's first packet; the others follow it.
    pub first_sequence: u16,
    pub first_timestamp: u32,
    pub rtp_info: RtpInfo,
    /// From the PLAY reply to the first packet.
    pub first_delay: Duration,
    /// Packets that the network loses: the sender counts them.
    pub drop: Vec<u32>,
    /// Packets that are not there to be sent; the sender does not count them.
    pub holes: Vec<u32>,
    pub fec: Option<FecSending>,
    /// Packets that the network doubles: the sender counts them once.
    pub double: Vec<u32>,
    /// `(a, b)`: packet a is sent right behind packet b.
    pub delay: Vec<(u32, u32)>,
    /// `(n, time)`: before packet n, nothing for this time; the late packets then come at once.
    pub stall: Option<(u32, Duration)>,
    /// `(packet, offset)`: this byte of its payload is flipped.
    pub flip: Option<(u32, usize)>,
    /// BYE this long after the last packet.
    pub bye: Option<Duration>,
    /// Ends, with or without BYE, before this packet.
    pub stop_before: Option<u32>,
    /// Closes the RTSP connection before this packet.
    pub close_before: Option<u32>,
    pub refuse_udp: bool,
    /// Sends nothing over UDP, as behind a firewall.
    pub mute_udp: bool,
    /// Every TCP write is cut into pieces of this many bytes.
    pub split: Option<usize>,
    pub session_timeout_s: u64,
    /// Answer to DESCRIBE instead of the description.
    pub describe_status: Option<&'static str>,
    /// Answers to everything with these bytes.
    pub garbage: Option<&'static [u8]>,
    /// Sender reports count this many packets too many.
    pub sr_error: u32,
    /// A sender report before every this many packets.
    pub sr_every: u32,
    /// Never answers TEARDOWN.
    pub ignore_teardown: bool,
}

impl Behaviour {
    pub fn new(payloads: usize) -> Self {
        Self {
            film: film(payloads),
            interval: Duration::from_millis(2),
            first_sequence: 0,
            first_timestamp: 1000,
            rtp_info: RtpInfo::Exact,
            first_delay: Duration::from_millis(50),
            drop: Vec::new(),
            holes: Vec::new(),
            fec: None,
            double: Vec::new(),
            delay: Vec::new(),
            stall: None,
            flip: None,
            bye: Some(Duration::from_millis(100)),
            stop_before: None,
            close_before: None,
            refuse_udp: false,
            mute_udp: false,
            split: None,
            session_timeout_s: 60,
            describe_status: None,
            garbage: None,
            sr_error: 0,
            sr_every: 100,
            ignore_teardown: false,
        }
    }

    pub fn packets(&self) -> u32 {
        self.film.len().div_ceil(PAYLOAD) as u32
    }

    pub(super) fn ticks(&self, packet: u32) -> u32 {
        (self.interval.as_micros() * u128::from(packet) * 9 / 100) as u32
    }

    pub fn timestamp(&self, packet: u32) -> u32 {
        self.first_timestamp.wrapping_add(self.ticks(packet))
    }

    pub fn payload(&self, packet: u32) -> &[u8] {
        let from = packet as usize * PAYLOAD;
        &self.film[from..(from + PAYLOAD).min(self.film.len())]
    }

    pub(super) fn rtp(&self, packet: u32) -> Vec<u8> {
        let mut bytes = vec![0x80, 33];
        bytes.extend(self.first_sequence.wrapping_add(packet as u16).to_be_bytes());
        bytes.extend(self.timestamp(packet).to_be_bytes());
        bytes.extend(SSRC.to_be_bytes());
        bytes.extend(self.payload(packet));
        if let Some((flipped, offset)) = self.flip
            && flipped == packet
        {
            bytes[12 + offset] ^= 1;
        }
        bytes
    }
}
