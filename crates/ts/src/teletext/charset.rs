//! Text of a row (EN 300 706 sections 12.2 and 15): Latin letters, with thirteen places that differ
//! by nation, and the codes among them that are not letters.

use super::coding::seven;
use super::{ControlBits, RowBytes};

/// Places of the alphabet whose characters differ (section 15.6.1).
const PLACES: [u8; 13] = [0x23, 0x24, 0x40, 0x5b, 0x5c, 0x5d, 0x5e, 0x5f, 0x60, 0x7b, 0x7c, 0x7d, 0x7e];

/// Their characters, by C12 to C14, the first one lowest (tables 32 and 36). The last is reserved.
const SUBSETS: [[char; 13]; 8] = [
    // English
    ['£', '$', '@', '←', '½', '→', '↑', '#', '—', '¼', '‖', '¾', '÷'],
    // French
    ['é', 'ï', 'à', 'ë', 'ê', 'ù', 'î', '#', 'è', 'â', 'ô', 'û', 'ç'],
    // Swedish, Finnish, Hungarian
    ['#', '¤', 'É', 'Ä', 'Ö', 'Å', 'Ü', '_', 'é', 'ä', 'ö', 'å', 'ü'],
    // Czech, Slovak
    ['#', 'ů', 'č', 'ť', 'ž', 'ý', 'í', 'ř', 'é', 'á', 'ě', 'ú', 'š'],
    // German
    ['#', '$', '§', 'Ä', 'Ö', 'Ü', '^', '_', '°', 'ä', 'ö', 'ü', 'ß'],
    // Portuguese, Spanish
    ['ç', '$', '¡', 'á', 'é', 'í', 'ó', 'ú', '¿', 'ü', 'ñ', 'è', 'à'],
    // Italian
    ['£', '$', 'é', '°', 'ç', '→', '↑', '#', 'ù', 'à', 'ò', 'è', 'ì'],
    ['£', '$', '@', '←', '½', '→', '↑', '#', '—', '¼', '‖', '¾', '÷'],
];

/// A row as text.
pub(super) struct DecodedRow {
    /// Without what surrounds it; empty if nothing is shown.
    pub(super) text: String,
    /// Whether it has letters of double height.
    pub(super) is_high: bool,
}

/// Returns the text that a row shows.
pub(super) fn line(row: &RowBytes, control: ControlBits) -> DecodedRow {
    let (mut is_in_box, mut is_mosaic, mut is_concealed, mut is_high) = (false, false, false, false);
    let mut text = String::new();
    for &byte in row {
        // A character that is damaged is a space.
        let code = seven(byte).unwrap_or(b' ');
        let mut shown = ' ';
        match code {
            // Colours, of letters and of mosaics.
            0x00..=0x07 => (is_mosaic, is_concealed) = (false, false),
            0x10..=0x17 => (is_mosaic, is_concealed) = (true, false),
            0x0a => is_in_box = false,
            0x0b => is_in_box = true,
            0x0d | 0x0f => is_high = true,
            0x18 => is_concealed = true,
            // Sizes, flashing, backgrounds, how mosaics are drawn.
            0x08 | 0x09 | 0x0c | 0x0e | 0x19..=0x1f => {}
            _ if is_concealed || control.is_boxed && !is_in_box => {}
            // Capitals are letters among mosaics too.
            _ if is_mosaic && !(0x40..0x60).contains(&code) => {}
            _ => shown = letter(code, control.national),
        }
        // What stands between letters takes places; several are one space.
        if shown != ' ' || !(text.is_empty() || text.ends_with(' ')) {
            text.push(shown);
        }
    }
    text.truncate(text.trim_end().len());
    DecodedRow { text, is_high }
}

fn letter(code: u8, national: u8) -> char {
    match PLACES.iter().position(|place| *place == code) {
        Some(at) => SUBSETS[usize::from(national & 7)][at],
        None if code == 0x7f => '■',
        None => char::from(code),
    }
}
