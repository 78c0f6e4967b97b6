//! The characters of a file: UTF-8, UTF-16 with a byte order mark, else Windows-1252.

/// The characters of the bytes 0x80 to 0x9f in Windows-1252; the five unassigned bytes keep their
/// values.
const WINDOWS_1252: [char; 32] = [
    '\u{20ac}', '\u{81}', '\u{201a}', '\u{192}', '\u{201e}', '\u{2026}', '\u{2020}', '\u{2021}', '\u{2c6}',
    '\u{2030}', '\u{160}', '\u{2039}', '\u{152}', '\u{8d}', '\u{17d}', '\u{8f}', '\u{90}', '\u{2018}',
    '\u{2019}', '\u{201c}', '\u{201d}', '\u{2022}', '\u{2013}', '\u{2014}', '\u{2dc}', '\u{2122}', '\u{161}',
    '\u{203a}', '\u{153}', '\u{9d}', '\u{17e}', '\u{178}',
];

/// Decodes the text, with line feeds as line endings, and returns a note for the operator if the
/// encoding was guessed.
pub(super) fn text(bytes: &[u8]) -> (String, Option<&'static str>) {
    let (text, note) = characters(bytes);
    (text.replace("\r\n", "\n").replace('\r', "\n"), note)
}

fn characters(bytes: &[u8]) -> (String, Option<&'static str>) {
    if let Some(rest) = bytes.strip_prefix(b"\xff\xfe") {
        return (utf16(rest, u16::from_le_bytes), None);
    }
    if let Some(rest) = bytes.strip_prefix(b"\xfe\xff") {
        return (utf16(rest, u16::from_be_bytes), None);
    }
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        return (text.to_owned(), None);
    }
    let letter = |&byte: &u8| match byte {
        0x80..=0x9f => WINDOWS_1252[usize::from(byte - 0x80)],
        other => char::from(other),
    };
    let note = "not UTF-8: read as Windows-1252; convert the file to UTF-8 if letters are wrong";
    (bytes.iter().map(letter).collect(), Some(note))
}

fn utf16(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> String {
    let (units, _) = bytes.as_chunks();
    char::decode_utf16(units.iter().map(|&bytes| unit(bytes)))
        .map(|letter| letter.unwrap_or(char::REPLACEMENT_CHARACTER))
        .collect()
}
