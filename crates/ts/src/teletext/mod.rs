//! Subtitles in EBU teletext (ETSI EN 300 706, carried in PES packets as in ETSI EN 300 472):
//! payloads of PES packets go in, the content of the pages comes out.
//!
//! ```text
//!  PES payload ─► data units ─► packets ─┬─ header (Y = 0) ─► which page is received in its magazine
//!                               coding   └─ rows (Y = 1..23) ─► its rows ─► lines of text     when the next header ends the page
//!                                                               charset
//! ```
//!
//! It is level 1 of the standard, which every subtitle has: Latin letters with the national subset that the page's header names. What levels 1.5 and above add is left
//! out: characters laid over others (packets X/26) and other alphabets (X/28, M/29).
//!
//! ```
//! use millrace_ts::teletext::{Decoder, PageNumber};
//!
//! let mut decoder = Decoder::new([PageNumber::new(8, 0x88)]);
//! decoder.push(0, b"no teletext", &mut |_| unreachable!());
//! ```

mod announced;
mod charset;
mod coding;
mod cues;

pub use announced::{Announced, announced};
pub use cues::{Cue, PageContent, cues};

use self::coding::{nibble, received};
use crate::limits::MAX_SUBTITLE_PAGES;

/// Characters of a row.
const COLUMNS: usize = 40;
/// Rows of a page with its header, which is row 0.
const ROWS: usize = 24;
/// Data units with teletext (EN 300 472 table 1); subtitles are found in either.
const UNIT_TELETEXT: u8 = 0x02;
const UNIT_SUBTITLES: u8 = 0x03;
/// Follows the byte that names its line in the picture; the bits of a byte are in transmission
/// order.
const FRAMING_CODE: u8 = 0xe4;
/// Line, framing code, two bytes of address, and the row.
const UNIT_BYTES: usize = 4 + COLUMNS;

/// The bytes of a row, as they are received.
type RowBytes = [u8; COLUMNS];

/// The number of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageNumber {
    /// 0 stands for 8.
    magazine: u8,
    /// Two hexadecimal digits.
    page: u8,
}

impl PageNumber {
    /// Creates the number of a page in a magazine. Only 3 bits of `magazine` count.
    pub fn new(magazine: u8, page: u8) -> Self {
        Self { magazine: magazine & 7, page }
    }

    /// The number as viewers know it, from 100 to 899; `None` if it is one that they cannot choose.
    pub fn number(self) -> Option<u16> {
        let (tens, units) = (u16::from(self.page >> 4), u16::from(self.page & 0x0f));
        let magazine = if self.magazine == 0 { 8 } else { u16::from(self.magazine) };
        (tens < 10 && units < 10).then_some(magazine * 100 + tens * 10 + units)
    }
}

/// Content of a page from some time on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Screen {
    /// Which page.
    pub page: PageNumber,
    /// The time that came with its header.
    pub time: i64,
    /// From top to bottom; empty if it shows nothing.
    pub lines: Vec<String>,
}

/// Control bits in a page's header (EN 300 706 table 2).
#[derive(Clone, Copy, Debug)]
struct ControlBits {
    /// C4: rows that were sent before do not count.
    erases: bool,
    /// C5 or C6, news flash or subtitle: only the content of boxes is shown.
    is_boxed: bool,
    /// C10: nothing is.
    is_hidden: bool,
    /// C11: a header ends the pages of all magazines, not of its own alone.
    is_serial: bool,
    /// C12, C13, C14, the first one lowest: which national subset.
    national: u8,
}

/// A page that is followed.
#[derive(Debug)]
struct Page {
    number: PageNumber,
    rows: [Option<RowBytes>; ROWS],
    /// Whether its content is known: it was erased or had rows since the beginning.
    is_known: bool,
}

/// A page whose header has come.
#[derive(Clone, Copy, Debug)]
struct Receiving {
    /// Its place among those that are followed.
    page: usize,
    time: i64,
    control: ControlBits,
    has_rows: bool,
}

/// Follows some pages of a stream.
#[derive(Debug)]
pub struct Decoder {
    pages: Vec<Page>,
    /// By magazine.
    receiving: [Option<Receiving>; 8],
}

impl Decoder {
    /// Follows these pages, [`MAX_SUBTITLE_PAGES`] at most.
    pub fn new(pages: impl IntoIterator<Item = PageNumber>) -> Self {
        let page = |number| Page { number, rows: [None; ROWS], is_known: false };
        Self { pages: pages.into_iter().take(MAX_SUBTITLE_PAGES).map(page).collect(), receiving: [None; 8] }
    }

    /// Takes the payload of a PES packet, which is shown at `time`. `out` is given the pages that are whole now.
    pub fn push(&mut self, time: i64, payload: &[u8], out: &mut impl FnMut(Screen)) {
        // Identifiers of EBU data (EN 300 472 table 1).
        let Some((0x10..=0x1f, mut units)) = payload.split_first() else { return };
        while let [id, length, rest @ ..] = units {
            let Some((unit, later)) = rest.split_at_checked(usize::from(*length)) else { return };
            if matches!(*id, UNIT_TELETEXT | UNIT_SUBTITLES)
                && let Ok(unit) = <&[u8; UNIT_BYTES]>::try_from(unit)
                && unit[1] == FRAMING_CODE
            {
                self.packet(time, unit, out);
            }
            units = later;
        }
    }

    /// Ends the input: incomplete pages are taken as they are.
    pub fn finish(&mut self, out: &mut impl FnMut(Screen)) {
        (0..self.receiving.len()).for_each(|magazine| self.end(magazine, out));
    }

    fn packet(&mut self, time: i64, unit: &[u8; UNIT_BYTES], out: &mut impl FnMut(Screen)) {
        let [_, _, low, high, data @ ..] = received(unit);
        let (Some(low), Some(high)) = (nibble(low), nibble(high)) else { return };
        let address = high << 4 | low;
        let magazine = usize::from(address & 7);
        match usize::from(address >> 3) {
            0 => self.header(time, magazine, &data, out),
            row @ 1..ROWS => {
                if let Some(receiving) = &mut self.receiving[magazine] {
                    receiving.has_rows = true;
                    self.pages[receiving.page].rows[row] = Some(data);
                }
            }
            _ => {}
        }
    }

    fn header(&mut self, time: i64, magazine: usize, data: &RowBytes, out: &mut impl FnMut(Screen)) {
        let mut digits = [0; 8];
        for (digit, &byte) in digits.iter_mut().zip(data) {
            let Some(value) = nibble(byte) else {
                // Of which page the rows are that follow is not known.
                return self.end(magazine, out);
            };
            *digit = value;
        }
        let [units, tens, _, erase, _, boxes, more, last] = digits;
        let control = ControlBits {
            erases: erase & 8 != 0,
            is_boxed: boxes & 0x0c != 0,
            is_hidden: more & 8 != 0,
            is_serial: last & 1 != 0,
            national: last >> 1,
        };
        match control.is_serial {
            true => self.finish(out),
            false => self.end(magazine, out),
        }
        let number = PageNumber::new(magazine as u8, tens << 4 | units);
        let Some(page) = self.pages.iter().position(|page| page.number == number) else { return };
        if control.erases {
            (self.pages[page].rows, self.pages[page].is_known) = ([None; ROWS], true);
        }
        self.receiving[magazine] = Some(Receiving { page, time, control, has_rows: false });
    }

    /// The page that is received in a magazine is whole.
    fn end(&mut self, magazine: usize, out: &mut impl FnMut(Screen)) {
        let Some(Receiving { page, time, control, has_rows }) = self.receiving[magazine].take() else {
            return;
        };
        let page = &mut self.pages[page];
        page.is_known |= has_rows;
        if page.is_known {
            let lines = if control.is_hidden { Vec::new() } else { page.lines(control) };
            out(Screen { page: page.number, time, lines });
        }
    }
}

impl Page {
    fn lines(&self, control: ControlBits) -> Vec<String> {
        let mut lines = Vec::new();
        let mut is_covered = false;
        for row in &self.rows[1..] {
            let Some(row) = row.as_ref().filter(|_| !is_covered) else {
                is_covered = false;
                continue;
            };
            let line = charset::line(row, control);
            // Letters of double height reach into the next row (EN 300 706 section 12.2).
            is_covered = line.is_high;
            lines.extend(Some(line.text).filter(|text| !text.is_empty()));
        }
        lines
    }
}
