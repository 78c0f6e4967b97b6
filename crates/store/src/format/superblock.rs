//! `volume.mrv`: which volume a store directory belongs to, which of its members it is, and how stripes are laid out.
//!
//! A stripe is `k` data units and `m` parity units; a unit is `unit_packets` media packets; each member has the same number
//! of units of every stripe. One member without parity has `k = 1`, `m = 0`: plain files, which older versions read too.

use super::bytes::{Fields, put};
use super::frame::{self, FRAME_BYTES, FileKind};
use super::{FormatError, Uuid};
use crate::limits::MAX_MEMBERS;
pub use crate::stripes::Geometry;
use millrace_core::limits::{MAX_DATA_UNITS, MAX_PARITY_UNITS, MAX_UNIT_PACKETS};

const RECORD: &str = "superblock";
const BODY_BYTES: usize = 64;
/// Length of the file.
pub const SUPERBLOCK_BYTES: usize = FRAME_BYTES + BODY_BYTES;

/// Offsets in the body.
mod at {
    pub(super) const VOLUME: usize = 0; // 16 bytes
    pub(super) const MEMBER: usize = 16; // 16 bytes
    pub(super) const MEMBER_INDEX: usize = 32; // u16
    pub(super) const MEMBERS: usize = 34; // u16
    pub(super) const K: usize = 36; // u16
    pub(super) const M: usize = 38; // u16
    pub(super) const UNIT_PACKETS: usize = 40; // u32
    pub(super) const RESERVED_1: usize = 44; // 4 zeros
    pub(super) const CREATED: usize = 48; // u64
    pub(super) const RESERVED_2: usize = 56; // 8 zeros
    pub(super) const END: usize = 64;
}

const _: () = assert!(at::END == BODY_BYTES && at::RESERVED_2 + 8 == at::END && SUPERBLOCK_BYTES == 128);

impl Geometry {
    /// Refuses values that contradict each other.
    pub fn validate(&self, record: &'static str) -> Result<(), FormatError> {
        if self.k == 0 {
            return Err(FormatError::value(record, "data units k", 0, "at least 1"));
        }
        if self.unit_packets == 0 || self.unit_packets > MAX_UNIT_PACKETS {
            let expected = format!("1 to {MAX_UNIT_PACKETS}");
            return Err(FormatError::value(record, "unit packets U", self.unit_packets, expected));
        }
        let units = u32::from(self.k) + u32::from(self.m);
        if self.members == 0 || !units.is_multiple_of(u32::from(self.members)) {
            let expected = format!("a divisor of the {units} units of a stripe, k + m");
            return Err(FormatError::value(record, "members", self.members, expected));
        }
        Ok(())
    }

    /// Refuses what this version cannot serve: longer stripes, more parity or more members than it has room for.
    pub fn check_supported(&self, record: &'static str) -> Result<(), FormatError> {
        let unsupported = |field, found: u16, supported| {
            Err(FormatError::Unsupported { record, field, found: found.into(), supported })
        };
        match self {
            Self { k, .. } if usize::from(*k) > MAX_DATA_UNITS => unsupported("data units k", *k, "up to 64"),
            Self { m, .. } if usize::from(*m) > MAX_PARITY_UNITS => {
                unsupported("parity units m", *m, "up to 8")
            }
            Self { members, .. } if usize::from(*members) > MAX_MEMBERS => {
                unsupported("members", *members, "up to 32")
            }
            Self { k, m: 0, members: 1, .. } if *k > 1 => unsupported("data units k", *k, "1 without parity"),
            _ => Ok(()),
        }
    }
}

/// The superblock of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The volume.
    pub volume: Uuid,
    /// This member.
    pub member: Uuid,
    /// Its place among the members, from 0.
    pub member_index: u16,
    /// Layout of the volume's stripes.
    pub geometry: Geometry,
    /// When the member was made, seconds since 1970 (UTC).
    pub created_unix_s: u64,
}

impl Superblock {
    /// The whole file.
    pub fn encode(&self) -> [u8; SUPERBLOCK_BYTES] {
        let mut body = [0; BODY_BYTES];
        put(&mut body, at::VOLUME, &self.volume.0);
        put(&mut body, at::MEMBER, &self.member.0);
        put(&mut body, at::MEMBER_INDEX, &self.member_index.to_le_bytes());
        put(&mut body, at::MEMBERS, &self.geometry.members.to_le_bytes());
        put(&mut body, at::K, &self.geometry.k.to_le_bytes());
        put(&mut body, at::M, &self.geometry.m.to_le_bytes());
        put(&mut body, at::UNIT_PACKETS, &self.geometry.unit_packets.to_le_bytes());
        put(&mut body, at::CREATED, &self.created_unix_s.to_le_bytes());
        let mut file = [0; SUPERBLOCK_BYTES];
        // What older programs can read is written so that they do; the rest they refuse by its version.
        let version = if self.geometry.is_single() { 1 } else { FileKind::Superblock.version() };
        put(&mut file, 0, &frame::seal_as(FileKind::Superblock, version, &body));
        put(&mut file, FRAME_BYTES, &body);
        file
    }

    /// From the whole file. A geometry this version cannot serve is decoded too: [`Geometry::check_supported`] decides.
    pub fn decode(file: &[u8]) -> Result<Self, FormatError> {
        let fields = Fields { record: RECORD, bytes: frame::open(FileKind::Superblock, file)? };
        if fields.bytes.len() != BODY_BYTES {
            return Err(FormatError::value(RECORD, "body length", fields.bytes.len(), BODY_BYTES));
        }
        fields.reserved(at::RESERVED_1, 4)?;
        fields.reserved(at::RESERVED_2, 8)?;
        let block = Self {
            volume: Uuid(fields.array(at::VOLUME, "volume uuid")?),
            member: Uuid(fields.array(at::MEMBER, "member uuid")?),
            member_index: fields.u16(at::MEMBER_INDEX, "member index")?,
            geometry: Geometry {
                k: fields.u16(at::K, "data units k")?,
                m: fields.u16(at::M, "parity units m")?,
                unit_packets: fields.u32(at::UNIT_PACKETS, "unit packets U")?,
                members: fields.u16(at::MEMBERS, "members")?,
            },
            created_unix_s: fields.u64(at::CREATED, "creation time")?,
        };
        block.geometry.validate(RECORD)?;
        if block.member_index >= block.geometry.members {
            let expected = format!("less than the {} members", block.geometry.members);
            return Err(FormatError::value(RECORD, "member index", block.member_index, expected));
        }
        Ok(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn block() -> Superblock {
        Superblock {
            volume: Uuid::from_random([7; 16]),
            member: Uuid::from_random([9; 16]),
            member_index: 0,
            geometry: Geometry::SINGLE,
            created_unix_s: 1_790_000_000,
        }
    }

    proptest! {
        #[test]
        fn round_trip(volume: [u8; 16], member: [u8; 16], k in 1u16..200, m in 0u16..20, unit in 1u32..=20, created: u64) {
            let geometry = Geometry { k, m, unit_packets: unit, members: k + m };
            let block = Superblock {
                volume: Uuid(volume), member: Uuid(member), member_index: k + m - 1, geometry, created_unix_s: created,
            };
            prop_assert_eq!(Superblock::decode(&block.encode()), Ok(block));
            let supported = k <= 64 && m <= 8 && k + m <= 32;
            prop_assert_eq!(geometry.check_supported("x").is_ok(), supported);
        }
    }

    #[test]
    fn older_programs_read_what_they_can_serve() {
        assert_eq!(frame::peek(&block().encode()).unwrap().version, 1);
        let parity = Geometry { k: 4, m: 1, ..Geometry::SINGLE };
        let file = Superblock { geometry: parity, ..block() }.encode();
        assert_eq!(frame::peek(&file).unwrap().version, 2);
    }

    #[test]
    fn superblock_decode_with_flipped_bit_fails() {
        let file = block().encode();
        for bit in 0..file.len() * 8 {
            let mut damaged = file;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Superblock::decode(&damaged).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn check_supported_of_too_large_geometry_names_field() {
        let refused = |k, m, members| {
            let geometry = Geometry { k, m, unit_packets: 20, members };
            assert_eq!(geometry.validate(RECORD), Ok(()));
            geometry.check_supported(RECORD).unwrap_err().to_string()
        };
        let error = refused(65, 1, 1);
        assert!(
            error.contains("superblock: data units k is 65") && error.contains("supports up to 64"),
            "{error}"
        );
        assert!(refused(20, 10, 5).contains("parity units m is 10"));
        assert!(refused(32, 1, 33).contains("members is 33"));
        assert!(refused(4, 0, 1).contains("data units k is 4"));
    }

    #[test]
    fn contradictions_are_refused() {
        for geometry in [
            Geometry { k: 0, ..Geometry::SINGLE },
            Geometry { unit_packets: 0, ..Geometry::SINGLE },
            Geometry { unit_packets: 21, ..Geometry::SINGLE },
            Geometry { members: 0, ..Geometry::SINGLE },
            Geometry { members: 2, ..Geometry::SINGLE },
            Geometry { k: 4, m: 1, members: 2, ..Geometry::SINGLE },
        ] {
            let file = Superblock { geometry, ..block() }.encode();
            assert!(Superblock::decode(&file).is_err(), "{geometry:?}");
        }
        let file = Superblock { member_index: 1, ..block() }.encode();
        assert!(Superblock::decode(&file).unwrap_err().to_string().contains("member index"));
    }

    #[test]
    fn rows_round_up() {
        assert_eq!(Geometry::SINGLE.stripes(0), 0);
        assert_eq!(Geometry::SINGLE.stripes(1), 1);
        assert_eq!(Geometry::SINGLE.stripes(41), 3);
    }
}
