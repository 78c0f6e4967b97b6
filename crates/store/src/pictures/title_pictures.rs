//! The pictures of one title, and their description.

use serde::{Deserialize, Serialize};

use crate::limits::pictures::SHEET_COLUMNS;

/// Width and height of a small picture: what fits beside a finger on a telephone.
pub const TILE: [u32; 2] = [160, 90];
/// Counted up whenever other pictures would be made of the same title.
pub const RULE: u32 = 2;

/// The description of a title's pictures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// [`RULE`] when they were made.
    pub rule: u32,
    /// When the title showed each of the small pictures, in milliseconds; ascending.
    pub times_ms: Vec<u64>,
    /// How long the title is.
    pub duration_ms: u64,
    /// Width and height of a small picture.
    pub tile: [u32; 2],
    /// Small pictures side by side.
    pub columns: u32,
    /// Length of the poster.
    pub poster_bytes: usize,
    /// Length of the sheet.
    pub sheet_bytes: usize,
    /// BLAKE3 of both, 64 hexadecimal digits.
    pub blake3: String,
}

/// A title's pictures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pictures {
    /// Their description.
    pub about: About,
    /// JPEG.
    pub poster: Vec<u8>,
    /// JPEG: the small pictures in rows.
    pub sheet: Vec<u8>,
}

impl Pictures {
    /// Puts them together.
    pub fn new(times_ms: Vec<u64>, duration_ms: u64, poster: Vec<u8>, sheet: Vec<u8>) -> Self {
        let about = About {
            rule: RULE,
            times_ms,
            duration_ms,
            tile: TILE,
            columns: SHEET_COLUMNS,
            poster_bytes: poster.len(),
            sheet_bytes: sheet.len(),
            blake3: hash(&poster, &sheet),
        };
        Self { about, poster, sheet }
    }
}

pub(super) fn hash(poster: &[u8], sheet: &[u8]) -> String {
    blake3::Hasher::new().update(poster).update(sheet).finalize().to_hex().to_string()
}
