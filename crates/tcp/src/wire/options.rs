//! Options of a header: a tolerant parser and a writer that pads to words.

use super::{MAX_SACKS, OPTIONS_BYTES, Sacks, Stamps, TcpOptions, Unfit};
use crate::seq::Seq;

/// Kinds (RFC 9293 section 3.1, RFC 7323, RFC 2018, RFC 5482).
const END: u8 = 0;
const NO_OPERATION: u8 = 1;
const MSS: u8 = 2;
const SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const STAMPS: u8 = 8;
const USER_TIMEOUT: u8 = 28;

/// How nearly every segment of a connection with time stamps begins its options (RFC 7323 appendix A).
pub(super) const STAMPS_HEAD: [u8; 4] = [NO_OPERATION, NO_OPERATION, STAMPS, 10];
/// Bytes of options that are time stamps and nothing else.
pub(crate) const STAMPS_BYTES: usize = 12;

/// Time stamps, if nothing else is there, written as nearly every segment has them.
#[inline]
pub(super) fn stamps_alone(bytes: &[u8]) -> Option<Stamps> {
    let bytes = <&[u8; STAMPS_BYTES]>::try_from(bytes).ok()?;
    let (&STAMPS_HEAD, stamps) = bytes.split_first_chunk()? else { return None };
    read_stamps(stamps)
}

/// Reads options. Of an option that is there twice the first counts; one of a known kind but another length is passed over like an
/// unknown one.
///
/// # Errors
/// [`Unfit::Options`] for a length that cannot be.
pub fn parse(bytes: &[u8]) -> Result<TcpOptions, Unfit> {
    let (mut found, mut rest) = (TcpOptions::default(), bytes);
    //= RFC 9293 section 3.2
    //# There is
    //# no guarantee that senders will use this option, so receivers MUST
    //# be prepared to process options even if they do not begin on a word
    //# boundary (MUST-64).
    while let Some((&kind, behind)) = rest.split_first() {
        match kind {
            //= RFC 9293 section 3.2
            //# This option code indicates the end of the option list.
            END => break,
            NO_OPERATION => rest = behind,
            _ => {
                //= RFC 9293 section 3.1
                //# All TCP Options except End of Option List Option (EOL) and
                //# No-Operation (NOP) MUST have length fields, including all future
                //# options (MUST-68).
                //= RFC 9293 section 3.1
                //# TCP implementations MUST be prepared to handle
                //# an illegal option length (e.g., zero); a suggested procedure is to
                //# reset the connection and log the error cause (MUST-7).
                let length = usize::from(*behind.first().ok_or(Unfit::Options)?);
                let (option, behind) = rest.split_at_checked(length).ok_or(Unfit::Options)?;
                take(&mut found, kind, option.get(2..).ok_or(Unfit::Options)?);
                rest = behind;
            }
        }
    }
    Ok(found)
}

/// One option's data.
fn take(found: &mut TcpOptions, kind: u8, data: &[u8]) {
    let short = || data.try_into().ok().map(u16::from_be_bytes);
    match kind {
        //= RFC 9293 section 3.1
        //# the following options MUST be supported (MUST-4
        MSS => found.mss = found.mss.or_else(short),
        SCALE => {
            if let ([scale], None) = (data, found.scale) {
                found.scale = Some(*scale);
            }
        }
        SACK_PERMITTED => found.is_sack_permitted |= data.is_empty(),
        SACK if found.sacks.blocks().is_empty() && data.len().is_multiple_of(8) => {
            found.sacks = read_sacks(data);
        }
        STAMPS => found.stamps = found.stamps.or_else(|| read_stamps(data)),
        USER_TIMEOUT => found.user_timeout = found.user_timeout.or_else(short),
        //= RFC 9293 section 3.1
        //# A TCP implementation MUST (MUST-6) ignore without error any TCP
        //# Option it does not implement, assuming that the option has a length
        //# field.
        _ => {}
    }
}

#[inline]
fn read_stamps(data: &[u8]) -> Option<Stamps> {
    let (value, echo) = data.split_first_chunk::<4>()?;
    Some(Stamps { value: u32::from_be_bytes(*value), echo: u32::from_be_bytes(echo.try_into().ok()?) })
}

fn read_sacks(data: &[u8]) -> Sacks {
    let mut sacks = Sacks::default();
    for &[a, b, c, d, e, f, g, h] in data.as_chunks().0 {
        sacks.push(Seq(u32::from_be_bytes([a, b, c, d])), Seq(u32::from_be_bytes([e, f, g, h])));
    }
    sacks
}

/// Writes options to the beginning of `room` and returns how many bytes they have, a multiple of 4. SACK blocks come last and are as
/// many as there is room for: three beside time stamps.
///
/// What would be padding are no-operations before an option: nothing stands behind the last one.
//= RFC 9293 section 3.1
//# The content of the header beyond the End of
//# Option List Option MUST be header padding of zeros (MUST-69).
pub fn write(options: &TcpOptions, room: &mut [u8; OPTIONS_BYTES]) -> usize {
    let mut out = OptionWriter { room, used: 0 };
    if let Some(mss) = options.mss {
        let [high, low] = mss.to_be_bytes();
        out.put(&[MSS, 4, high, low]);
    }
    if let Some(scale) = options.scale {
        out.put(&[NO_OPERATION, SCALE, 3, scale]);
    }
    match (options.is_sack_permitted, options.stamps) {
        // In the two bytes that would be padding.
        (true, Some(stamps)) => out.put_stamps([SACK_PERMITTED, 2, STAMPS, 10], stamps),
        (false, Some(stamps)) => out.put_stamps(STAMPS_HEAD, stamps),
        (true, None) => out.put(&[NO_OPERATION, NO_OPERATION, SACK_PERMITTED, 2]),
        (false, None) => {}
    }
    if let Some(timeout) = options.user_timeout {
        let [high, low] = timeout.to_be_bytes();
        out.put(&[USER_TIMEOUT, 4, high, low]);
    }
    let blocks = options.sacks.blocks();
    let fitting = blocks.len().min((OPTIONS_BYTES - out.used).saturating_sub(4) / 8);
    if fitting > 0 {
        out.put(&[NO_OPERATION, NO_OPERATION, SACK, 2 + 8 * fitting as u8]);
        for (left, right) in &blocks[..fitting] {
            out.put(&left.0.to_be_bytes());
            out.put(&right.0.to_be_bytes());
        }
    }
    out.used
}

/// Fills the room from the front, whole words only. All that there may be without SACK blocks has room: 24 bytes.
struct OptionWriter<'a> {
    room: &'a mut [u8; OPTIONS_BYTES],
    used: usize,
}

impl OptionWriter<'_> {
    fn put(&mut self, word: &[u8; 4]) {
        if let Some(room) = self.room.get_mut(self.used..self.used + 4) {
            room.copy_from_slice(word);
            self.used += 4;
        }
    }

    fn put_stamps(&mut self, head: [u8; 4], stamps: Stamps) {
        self.put(&head);
        self.put(&stamps.value.to_be_bytes());
        self.put(&stamps.echo.to_be_bytes());
    }
}

const _: () = assert!(4 + 8 * MAX_SACKS <= OPTIONS_BYTES);

#[cfg(test)]
#[path = "options_tests.rs"]
mod tests;
