//! Cuts an elementary stream at its start codes (00 00 01: ISO/IEC 13818-2 section 6.2.1, ITU-T H.264 and H.265 annex B).

use crate::limits::MAX_UNIT_HEAD_BYTES;

/// A unit between two start codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartCodeUnit<'a> {
    /// Offset of its start code in the elementary stream.
    pub start: u64,
    /// The bytes behind the start code, at most [`MAX_UNIT_HEAD_BYTES`] of them.
    pub head: &'a [u8],
}

/// Finds units in a stream that comes in pieces.
#[derive(Debug, Default)]
pub struct Units {
    zeros: u32,
    at: u64,
    start: Option<u64>,
    head: Vec<u8>,
}

impl Units {
    /// Offset behind the last byte taken.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Takes the next bytes. `starts` hears where a unit starts as soon as its start code is there, `ends` of each unit that is over.
    pub fn push(
        &mut self,
        bytes: &[u8],
        mut starts: impl FnMut(u64),
        mut ends: impl FnMut(StartCodeUnit<'_>),
    ) {
        for &byte in bytes {
            self.at += 1;
            if byte == 1 && self.zeros >= 2 {
                let start = self.at.saturating_sub(3);
                self.end_at(start, &mut ends);
                starts(start);
                self.start = Some(start);
            } else if self.start.is_some() && self.head.len() < MAX_UNIT_HEAD_BYTES {
                self.head.push(byte);
            }
            self.zeros = if byte == 0 { self.zeros + 1 } else { 0 };
        }
    }

    /// Ends the unit: no more bytes come, or the next bytes do not continue from here.
    pub fn end(&mut self, ends: impl FnOnce(StartCodeUnit<'_>)) {
        self.end_at(self.at, ends);
    }

    fn end_at(&mut self, end: u64, ends: impl FnOnce(StartCodeUnit<'_>)) {
        if let Some(start) = self.start.take() {
            // The two zeros of the next start code are not this unit's.
            self.head.truncate(usize::try_from(end.saturating_sub(start + 3)).unwrap_or(usize::MAX));
            ends(StartCodeUnit { start, head: &self.head });
        }
        self.head.clear();
    }
}

/// Returns a NAL unit without the zeros behind it; one of them may belong to the next start code,
/// and no unit ends with a zero.
pub fn trimmed(nal: &[u8]) -> &[u8] {
    let end = nal.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    &nal[..end]
}

/// The units of a piece of stream that is whole in memory, each without its start code.
pub fn split(stream: &[u8]) -> impl Iterator<Item = &[u8]> {
    let start_code = |from: usize| {
        let rest = stream.get(from..)?;
        rest.windows(3).position(|w| w == [0, 0, 1]).map(|at| from + at)
    };
    let mut next = start_code(0);
    std::iter::from_fn(move || {
        let from = next? + 3;
        next = start_code(from);
        Some(&stream[from..next.unwrap_or(stream.len())])
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn found(stream: &[u8], step: usize) -> Vec<(u64, Vec<u8>)> {
        let (mut units, mut found, mut starts) = (Units::default(), Vec::new(), Vec::new());
        for piece in stream.chunks(step) {
            units.push(
                piece,
                |start| starts.push(start),
                |unit| found.push((unit.start, unit.head.to_vec())),
            );
        }
        units.end(|unit| found.push((unit.start, unit.head.to_vec())));
        assert_eq!(starts, found.iter().map(|unit| unit.0).collect::<Vec<_>>());
        found
    }

    #[test]
    fn units_are_cut_at_start_codes() {
        let stream = [9, 0, 0, 1, 0xb3, 5, 0, 0, 0, 1, 0, 7, 0, 0, 0, 0, 1];
        let expected = vec![(1, vec![0xb3, 5, 0]), (7, vec![0, 7, 0, 0]), (14, vec![])];
        assert_eq!(found(&stream, 100), expected);
        assert_eq!(split(&stream).collect::<Vec<_>>(), [&[0xb3, 5, 0][..], &[0, 7, 0, 0], &[]]);
    }

    proptest! {
        #[test]
        fn pieces_make_no_difference(stream in proptest::collection::vec(0u8..3, 0..300), step in 1usize..20) {
            let whole = found(&stream, 1000);
            prop_assert_eq!(&found(&stream, step), &whole);
            let heads: Vec<Vec<u8>> = split(&stream).map(<[u8]>::to_vec).collect();
            prop_assert_eq!(heads, whole.into_iter().map(|unit| unit.1).collect::<Vec<_>>());
        }
    }
}
