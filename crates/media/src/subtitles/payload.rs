//! The text of a cue, as it is built letter by letter: escaped, with italics, bold and underline as tags that always close.

use crate::limits::MAX_CUE_BYTES;

/// How text looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Face {
    Italic,
    Bold,
    Underline,
}

impl Face {
    pub(super) const ALL: [Self; 3] = [Self::Italic, Self::Bold, Self::Underline];

    /// The tag of WebVTT and SubRip.
    pub(super) fn tag(self) -> char {
        match self {
            Self::Italic => 'i',
            Self::Bold => 'b',
            Self::Underline => 'u',
        }
    }
}

/// Room for the tags that may have to close behind the last letter.
const CLOSING_BYTES: usize = 12;

/// A payload being built.
#[derive(Debug, Default)]
pub(super) struct Payload {
    text: String,
    wanted: [bool; 3],
    open: Vec<Face>,
    /// Where the line begins that is being written, and whether it has a letter.
    has_letter: bool,
    /// Line ends that are written before the next letter: none stands at an end, and no two stand together.
    is_line_due: bool,
    spaces: usize,
    is_cut: bool,
    /// Where the text stands: the numeric keypad's place of ASS.
    place: u8,
}

impl Payload {
    /// How text looks from now on.
    pub(super) fn set(&mut self, face: Face, is_on: bool) {
        self.wanted[face as usize] = is_on;
    }

    /// Where it stands, 1 to 9 as on a numeric keypad; other numbers are ignored.
    pub(super) fn place(&mut self, place: u8) {
        if (1..=9).contains(&place) {
            self.place = place;
        }
    }

    /// Adds a letter; those that control something are left out.
    pub(super) fn letter(&mut self, letter: char) {
        match letter {
            '\n' => self.line(),
            ' ' | '\t' => self.spaces += usize::from(self.has_letter && !self.is_line_due),
            letter if letter.is_control() => {}
            letter => self.visible(letter),
        }
    }

    fn line(&mut self) {
        self.spaces = 0;
        self.is_line_due = self.has_letter;
    }

    fn visible(&mut self, letter: char) {
        // The longest that one letter can add: three tags that close, three that open, a line end, its escape.
        if self.text.len() + self.spaces + 32 + CLOSING_BYTES > MAX_CUE_BYTES {
            self.is_cut = true;
            return;
        }
        self.close_unwanted();
        if std::mem::take(&mut self.is_line_due) {
            self.text.push('\n');
        }
        for _ in 0..std::mem::take(&mut self.spaces) {
            self.text.push(' ');
        }
        for face in Face::ALL {
            if self.wanted[face as usize] && !self.open.contains(&face) {
                self.text.extend(['<', face.tag(), '>']);
                self.open.push(face);
            }
        }
        match letter {
            '&' => self.text.push_str("&amp;"),
            '<' => self.text.push_str("&lt;"),
            '>' => self.text.push_str("&gt;"),
            other => self.text.push(other),
        }
        self.has_letter = true;
    }

    /// Closes tags until none is open that is not wanted.
    fn close_unwanted(&mut self) {
        while self.open.iter().any(|&face| !self.wanted[face as usize]) {
            self.close_last();
        }
    }

    fn close_last(&mut self) {
        if let Some(face) = self.open.pop() {
            self.text.extend(['<', '/', face.tag(), '>']);
        }
    }

    /// The payload, the settings that put it where it stands, and whether text was cut off.
    pub(super) fn finish(mut self) -> (String, String, bool) {
        while !self.open.is_empty() {
            self.close_last();
        }
        (self.text, settings(self.place), self.is_cut)
    }
}

/// Settings of WebVTT for a place on the numeric keypad; none for the usual one, below in the middle.
fn settings(place: u8) -> String {
    let Some(place) = place.checked_sub(1) else { return String::new() };
    let line = ["", "line:50%", "line:0"][usize::from(place / 3).min(2)];
    let side = ["position:0% align:left", "", "position:100% align:right"][usize::from(place % 3)];
    [line, side].iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>().join(" ")
}
