//! Reads bytes of a title a piece at a time.

use std::ops::Range;

use crate::limits::MADE_READ_BYTES;
use crate::site::{SiteError, TitleBytes};

/// Reads bytes of a title, whole packets, a piece at a time; `each` returns whether to go on.
pub(crate) fn read(
    bytes: &mut dyn TitleBytes,
    range: Range<u64>,
    mut each: impl FnMut(u64, &[u8]) -> bool,
) -> Result<(), SiteError> {
    let mut at = range.start;
    let mut piece = vec![0; MADE_READ_BYTES];
    while at < range.end {
        let length = usize::try_from(range.end - at).unwrap_or(usize::MAX).min(MADE_READ_BYTES);
        bytes.read(at, &mut piece[..length])?;
        if !each(at, &piece[..length]) {
            break;
        }
        at += length as u64;
    }
    Ok(())
}
