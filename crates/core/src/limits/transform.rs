//! Bounds of transformations at fill time.

/// Bytes at the beginning of a title in which its tables are looked for: tables come twice a second, so this finds them up to 130 Mb/s.
pub const MAX_TABLE_LOOK_BYTES: usize = 8 << 20;
