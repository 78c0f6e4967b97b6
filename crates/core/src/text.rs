//! Text from outside, made fit for a terminal or a log: file names, `User-Agent`, a server's reason phrase, SDP.
//!
//! The author of such a text may put in a terminal command (an escape sequence that clears the
//! screen or sets its title), an end of line (which begins a forged one) or a character that
//! reverses the order of others (U+202E). All of these are written as `\u{1b}`, `\n`, `\u{202e}`.

use std::fmt::{self, Display, Write};

/// Whether a character shows itself and nothing else: no control, no line or paragraph separator, no invisible one that changes how
/// others are shown.
pub fn is_printable(c: char) -> bool {
    !c.is_control()
        && !matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{feff}' // soft hyphen, Arabic letter mark, vowel separator, byte order mark
            | '\u{200b}'..='\u{200f}' // zero width, left-to-right and right-to-left marks
            | '\u{2028}'..='\u{202e}' // line and paragraph separator, embeddings and overrides
            | '\u{2060}'..='\u{206f}' // isolates, invisible operators
            | '\u{fff9}'..='\u{fffb}' // annotations
            | '\u{e0000}'..='\u{e0fff}') // tags, variation selectors
}

/// A text on one line, with everything that is not printable escaped.
#[derive(Clone, Copy, Debug)]
pub struct Printable<T>(pub T);

impl<T: Display> Display for Printable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaper { to: f, keeps_lines: false }, "{}", self.0)
    }
}

/// The same for a text of several lines: line ends and tabs stay.
#[derive(Clone, Copy, Debug)]
pub struct PrintableLines<T>(pub T);

impl<T: Display> Display for PrintableLines<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaper { to: f, keeps_lines: true }, "{}", self.0)
    }
}

/// The beginning of a text from outside, for an error or a report: at most `most` characters as they are shown.
pub fn excerpt(text: &str, most: usize) -> String {
    let mut left = most;
    let is_too_much = |&(_, c): &(usize, char)| {
        let shown = if is_printable(c) { 1 } else { c.escape_default().len() };
        left.checked_sub(shown).map(|rest| left = rest).is_none()
    };
    let end = text.char_indices().find(is_too_much).map_or(text.len(), |(end, _)| end);
    Printable(&text[..end]).to_string()
}

/// Escapes the text that passes through it.
struct Escaper<'a, 'b> {
    to: &'a mut fmt::Formatter<'b>,
    keeps_lines: bool,
}

impl Write for Escaper<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        let stays = |c: char| is_printable(c) || self.keeps_lines && matches!(c, '\n' | '\t');
        while let Some((at, c)) = rest.char_indices().find(|&(_, c)| !stays(c)) {
            self.to.write_str(&rest[..at])?;
            write!(self.to, "{}", c.escape_default())?;
            rest = &rest[at + c.len_utf8()..];
        }
        self.to.write_str(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printable_escapes_terminal_control_characters() {
        for (text, shown) in [
            ("plain film, ünïcödé, 映画, \\u{1b}", "plain film, ünïcödé, 映画, \\u{1b}"),
            ("\u{1b}[2J\u{1b}]0;title\u{7}", "\\u{1b}[2J\\u{1b}]0;title\\u{7}"),
            ("VLC\u{202e}gpj.exe", "VLC\\u{202e}gpj.exe"),
            ("a\r\nWARN forged", "a\\r\\nWARN forged"),
            ("\u{9b}31m\u{2066}\u{feff}\u{2028}\u{0}", "\\u{9b}31m\\u{2066}\\u{feff}\\u{2028}\\u{0}"),
        ] {
            assert_eq!(Printable(text).to_string(), shown);
            assert!(Printable(text).to_string().chars().all(is_printable));
        }
        assert_eq!(PrintableLines("a\tb\nc\u{1b}").to_string(), "a\tb\nc\\u{1b}");
    }

    #[test]
    fn excerpts_count_characters_not_bytes() {
        assert_eq!(excerpt("äöü\u{1b}x", 9), "äöü\\u{1b}");
        assert_eq!(excerpt("äöü\u{1b}x", 8), "äöü");
        assert_eq!(excerpt("äöü", 10), "äöü");
        assert_eq!(excerpt("", 0), "");
    }

    /// Every character by itself: it stays as it is, or becomes ASCII.
    #[test]
    fn printable_of_any_character_is_unchanged_or_escaped() {
        for c in '\0'..=char::MAX {
            let shown = Printable(c).to_string();
            assert!(shown.chars().all(is_printable), "{c:?}");
            assert_eq!(is_printable(c), shown == c.to_string(), "{c:?}");
        }
    }
}
