//! Bounds of the pictures that are kept of titles.

/// Side by side on the sheet.
pub const SHEET_COLUMNS: u32 = 10;
/// Longest JPEG: a sheet of noise has 1 MB.
pub const MAX_JPEG_BYTES: usize = 4 << 20;
/// Longest line that describes them: a hundred times and some 300 bytes.
pub const MAX_ABOUT_BYTES: u64 = 16 << 10;
