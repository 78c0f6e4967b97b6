//! Segments in their wire format: contents, parsing and writing.
//!
//! | module | holds |
//! | --- | --- |
//! | [`flow`] | the two ends of a connection |
//! | [`header`] | parsing and checksums of segments that came in |
//! | [`options`] | options, both ways |
//! | [`template`] | headers of segments that go out, apart from their contents |

pub mod flow;
pub mod header;
pub mod options;
pub mod template;

pub use flow::FlowKey;
pub use header::{Unfit, is_right, parse, payload_sum};
pub use template::{Body, Head, Template};

use crate::seq::Seq;

/// Bytes of a header without options (RFC 9293 section 3.1).
pub const HEADER_BYTES: usize = 20;
/// Bytes that options have room in: what four bits of 32-bit words count, without the header.
pub const OPTIONS_BYTES: usize = 40;

/// The control bits of a header (RFC 9293 section 3.1; ECE and CWR: RFC 3168 section 6.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u8);

impl Flags {
    /// No more data from the sender.
    pub const FIN: Self = Self(0x01);
    /// Synchronise sequence numbers.
    pub const SYN: Self = Self(0x02);
    /// Reset the connection.
    pub const RST: Self = Self(0x04);
    /// Push.
    pub const PSH: Self = Self(0x08);
    /// The acknowledgment number is significant.
    pub const ACK: Self = Self(0x10);
    /// The urgent pointer is significant.
    pub const URG: Self = Self(0x20);
    /// ECN echo.
    pub const ECE: Self = Self(0x40);
    /// Congestion window reduced.
    pub const CWR: Self = Self(0x80);

    /// Whether all bits of `other` are set.
    #[inline]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// These without those of `other`.
    #[inline]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// These and those of `other`.
    #[inline]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The time stamps option (RFC 7323 section 3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamps {
    /// TSval: the sender's clock.
    pub value: u32,
    /// TSecr: the time stamp that the sender echoes.
    pub echo: u32,
}

/// Most blocks of a SACK option (RFC 2018 section 3).
pub const MAX_SACKS: usize = 4;

/// Blocks of a SACK option, `left..right` each, in their order (RFC 2018 section 3; the first may be a D-SACK: RFC 2883).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sacks {
    blocks: [(Seq, Seq); MAX_SACKS],
    count: u8,
}

impl Default for Sacks {
    #[inline]
    fn default() -> Self {
        Self::NONE
    }
}

impl Sacks {
    /// No blocks.
    pub const NONE: Self = Self { blocks: [(Seq(0), Seq(0)); MAX_SACKS], count: 0 };

    /// Adds a block; false if there is no room.
    pub fn push(&mut self, left: Seq, right: Seq) -> bool {
        let Some(room) = self.blocks.get_mut(usize::from(self.count)) else { return false };
        *room = (left, right);
        self.count += 1;
        true
    }

    /// The blocks.
    pub fn blocks(&self) -> &[(Seq, Seq)] {
        &self.blocks[..usize::from(self.count)]
    }
}

/// The options of a header; unknown options are skipped (RFC 9293 section 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpOptions {
    /// Maximum segment size (RFC 9293 section 3.7.1).
    pub mss: Option<u16>,
    /// Window scale, as it stands there (RFC 7323 section 2.2): whoever uses it limits it to 14.
    pub scale: Option<u8>,
    /// SACK permitted (RFC 2018 section 2).
    pub is_sack_permitted: bool,
    /// Time stamps.
    pub stamps: Option<Stamps>,
    /// SACK blocks.
    pub sacks: Sacks,
    /// User time-out, as it stands there: granularity and 15 bits (RFC 5482 section 3).
    pub user_timeout: Option<u16>,
}

impl Default for TcpOptions {
    #[inline]
    fn default() -> Self {
        Self::NONE
    }
}

impl TcpOptions {
    /// No options.
    pub const NONE: Self = Self::of_stamps(None);

    /// Time stamps and nothing else.
    #[inline]
    pub const fn of_stamps(stamps: Option<Stamps>) -> Self {
        Self {
            mss: None,
            scale: None,
            is_sack_permitted: false,
            stamps,
            sacks: Sacks::NONE,
            user_timeout: None,
        }
    }

    /// Whether there is none but time stamps.
    #[inline]
    pub const fn are_stamps_at_most(&self) -> bool {
        self.mss.is_none()
            && self.scale.is_none()
            && !self.is_sack_permitted
            && self.sacks.count == 0
            && self.user_timeout.is_none()
    }
}

/// A segment: its header's fields and its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment<'a> {
    /// Port of who sent it.
    pub source: u16,
    /// Destination port.
    pub destination: u16,
    /// Sequence number of the first byte, or of the SYN.
    pub seq: Seq,
    /// The next sequence number its sender expects; means something with [`Flags::ACK`] only.
    pub ack: Seq,
    /// Control bits.
    pub flags: Flags,
    /// Window as it stands there, not scaled.
    pub window: u16,
    /// Urgent pointer.
    pub urgent: u16,
    /// Options.
    pub options: TcpOptions,
    /// Bytes behind the header.
    pub payload: &'a [u8],
}

impl Segment<'_> {
    /// Length in sequence space: payload, SYN and FIN (RFC 9293 section 3.3.1, SEG.LEN).
    #[inline]
    pub fn seq_len(&self) -> u32 {
        let controls = u32::from(self.flags.has(Flags::SYN)) + u32::from(self.flags.has(Flags::FIN));
        self.payload.len() as u32 + controls
    }
}
