//! The packet that describes the plan to receivers, and the position of the cast in it. Numbers are big-endian.
//!
//! | bytes | content |
//! | --- | --- |
//! | 0..4 | `MRNV` |
//! | 4 | version, 1 |
//! | 5 | scheme: 0 staggered, 1 skyscraper, 2 pagoda, 3 fixed-delay |
//! | 6 | channels |
//! | 7 | bytes of the name |
//! | 8..12 | session: the SSRC of all packets |
//! | 12..14 | width of a skyscraper, else 0 |
//! | 14..16 | slots that a viewer waits |
//! | 16..20 | segments |
//! | 20..24 | packets of the title |
//! | 24..28 | packets of the largest segment |
//! | 28..36 | length of the title in nanoseconds |
//! | 36..44 | length of the title in bytes |
//! | 44..52 | time since the beginning of slot 0 in nanoseconds |
//! | 52.. | name of the title, UTF-8 |
//!
//! Both sides make the same plan of scheme, channels and length. Segments and waiting slots are there for the receiver to see that they did.

use millrace_core::limits::DEFAULT_PACKET_BYTES;

use crate::limits::{MAX_NAME_BYTES, MAX_RATE_BITS_PER_S};
use crate::plan::{Plan, PlanError, PlanRequest};
use crate::scheme::Scheme;

const MAGIC: &[u8; 4] = b"MRNV";
const VERSION: u8 = 1;
const FIXED_BYTES: usize = 52;

/// See the module's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// The plan of the cast.
    pub plan: Plan,
    /// SSRC of its packets.
    pub session: u32,
    /// Packets of the title.
    pub packets: u32,
    /// Packets of the largest segment.
    pub largest_segment: u32,
    /// Bytes of the title.
    pub bytes: u64,
    /// Time since the beginning of slot 0.
    pub position_ns: u64,
    /// Name of the title, cut to [`MAX_NAME_BYTES`].
    pub name: String,
}

/// Why a packet is no announcement that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnnouncementError {
    /// Something else.
    #[error("no announcement of near video on demand")]
    Foreign,
    /// Of a later program.
    #[error("announcement: version {0}, known is {VERSION}; use a newer program")]
    Version(u8),
    /// Its numbers do not agree.
    #[error("announcement: {0} is wrong; send the cast again")]
    Content(&'static str),
    /// There is no such plan.
    #[error("announcement: {0}")]
    Plan(#[from] PlanError),
}

impl Announcement {
    /// The packet.
    pub fn emit(&self) -> Vec<u8> {
        let PlanRequest { scheme, channels, film_ns } = self.plan.request();
        let (scheme, width) = match scheme {
            Scheme::Staggered => (0, 0),
            Scheme::Skyscraper { width } => (1, width),
            Scheme::Pagoda => (2, 0),
            Scheme::FixedDelay => (3, 0),
        };
        let mut end = self.name.len().min(MAX_NAME_BYTES);
        while !self.name.is_char_boundary(end) {
            end -= 1;
        }
        let name = &self.name[..end];
        let mut bytes = Vec::with_capacity(FIXED_BYTES + name.len());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&[VERSION, scheme, channels, name.len() as u8]);
        bytes.extend_from_slice(&self.session.to_be_bytes());
        bytes.extend_from_slice(&width.to_be_bytes());
        bytes.extend_from_slice(&(self.plan.wait_slots() as u16).to_be_bytes());
        bytes.extend_from_slice(&self.plan.segments().to_be_bytes());
        bytes.extend_from_slice(&self.packets.to_be_bytes());
        bytes.extend_from_slice(&self.largest_segment.to_be_bytes());
        bytes.extend_from_slice(&film_ns.to_be_bytes());
        bytes.extend_from_slice(&self.bytes.to_be_bytes());
        bytes.extend_from_slice(&self.position_ns.to_be_bytes());
        bytes.extend_from_slice(name.as_bytes());
        bytes
    }

    /// The session of a packet that may be an announcement; the rest is not looked at.
    pub fn session_in(datagram: &[u8]) -> Option<u32> {
        let (head, _) = datagram.split_first_chunk::<12>()?;
        head.starts_with(MAGIC).then(|| u32::from_be_bytes([head[8], head[9], head[10], head[11]]))
    }

    /// Reads a packet.
    ///
    /// # Errors
    /// [`AnnouncementError`].
    pub fn parse(datagram: &[u8]) -> Result<Self, AnnouncementError> {
        let wrong = |what| Err(AnnouncementError::Content(what));
        if !datagram.starts_with(MAGIC) {
            return Err(AnnouncementError::Foreign);
        }
        let version = *datagram.get(4).ok_or(AnnouncementError::Foreign)?;
        if version != VERSION {
            return Err(AnnouncementError::Version(version));
        }
        let Some((fixed, name)) = datagram.split_first_chunk::<FIXED_BYTES>() else {
            return wrong("the length");
        };
        let short = |at: usize| u16::from_be_bytes([fixed[at], fixed[at + 1]]);
        let word = |at: usize| u32::from(short(at)) << 16 | u32::from(short(at + 2));
        let long = |at: usize| u64::from(word(at)) << 32 | u64::from(word(at + 4));
        if name.len() != usize::from(fixed[7]) || name.len() > MAX_NAME_BYTES {
            return wrong("the length");
        }
        let Ok(name) = std::str::from_utf8(name) else { return wrong("the name") };
        let scheme = match fixed[5] {
            0 => Scheme::Staggered,
            1 => Scheme::Skyscraper { width: short(12) },
            2 => Scheme::Pagoda,
            3 => Scheme::FixedDelay,
            _ => return wrong("the scheme"),
        };
        let plan = Plan::new(PlanRequest { scheme, channels: fixed[6], film_ns: long(28) })?;
        if (u32::from(short(14)), word(16)) != (plan.wait_slots(), plan.segments()) {
            return wrong("the plan");
        }
        let (packets, largest_segment, bytes, position_ns) = (word(20), word(24), long(36), long(44));
        if bytes == 0 || bytes.div_ceil(DEFAULT_PACKET_BYTES as u64) != u64::from(packets) {
            return wrong("the number of packets");
        }
        let rate = u128::from(bytes) * 8 * 1_000_000_000 / u128::from(plan.request().film_ns.max(1));
        if rate > u128::from(MAX_RATE_BITS_PER_S) {
            return wrong("the rate");
        }
        if largest_segment > packets
            || u64::from(largest_segment) * u64::from(plan.segments()) < u64::from(packets)
        {
            return wrong("the largest segment");
        }
        // Some 146 years: sums with the length of a title do not overflow.
        if position_ns > u64::MAX / 4 {
            return wrong("the position");
        }
        let name = name.to_owned();
        Ok(Self { plan, session: word(8), packets, largest_segment, bytes, position_ns, name })
    }

    /// Payload bytes of a packet; 0 behind the last.
    pub fn payload_bytes(&self, number: u32) -> usize {
        let start = u64::from(number) * DEFAULT_PACKET_BYTES as u64;
        self.bytes.saturating_sub(start).min(DEFAULT_PACKET_BYTES as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announcement() -> Announcement {
        let scheme = Scheme::Skyscraper { width: 12 };
        let plan = Plan::new(PlanRequest { scheme, channels: 5, film_ns: 90_000_000_000 }).unwrap();
        let bytes = 999 * 1316 + 188;
        let name = "a film".to_owned();
        Announcement {
            plan,
            session: 7,
            packets: 1000,
            largest_segment: 80,
            bytes,
            position_ns: 1 << 40,
            name,
        }
    }

    #[test]
    fn announcement_emit_and_parse_are_inverse() {
        let mut given = announcement();
        assert_eq!(Announcement::parse(&given.emit()), Ok(given.clone()));
        assert_eq!([998, 999, 1000].map(|number| given.payload_bytes(number)), [1316, 188, 0]);
        given.name = "ä".repeat(150);
        assert_eq!(Announcement::parse(&given.emit()).unwrap().name, "ä".repeat(100));
    }

    #[test]
    fn announcement_with_a_wrong_number_is_refused() {
        let good = announcement().emit();
        for (at, value, reason) in [
            (0, b'X', "no announcement"),
            (4, 2, "version 2"),
            (5, 4, "the scheme"),
            (6, 0, "channels: got 0"),
            (6, 6, "the plan"),
            (7, 5, "the length"),
            (13, 13, "width 13"),
            (15, 2, "the plan"),
            (23, 9, "the number of packets"),
            (27, 1, "the largest segment"),
            (44, 0xff, "the position"),
            (52, 0xff, "the name"),
        ] {
            let mut bad = good.clone();
            bad[at] = value;
            let error = Announcement::parse(&bad).unwrap_err().to_string();
            assert!(error.contains(reason), "byte {at}: {error}");
        }
        assert!(Announcement::parse(&good[..51]).is_err());
    }

    #[test]
    fn announcement_of_any_bytes_is_refused_or_emits_itself() {
        let good = announcement().emit();
        bolero::check!().with_type::<Vec<(u8, u8)>>().with_iterations(2000).for_each(|changes| {
            let mut bytes = good.clone();
            for (at, value) in changes {
                match bytes.get_mut(usize::from(*at)) {
                    Some(byte) => *byte = *value,
                    None => bytes.truncate(usize::from(*value)),
                }
            }
            if let Ok(read) = Announcement::parse(&bytes) {
                assert_eq!(Announcement::parse(&read.emit()), Ok(read));
            }
        });
    }
}
