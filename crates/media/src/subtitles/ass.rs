//! ASS and SSA, reduced to text: italics, bold, underline and places stay; drawings, colours, karaoke and movement go.

use std::collections::HashMap;

use super::RawCue;
use super::payload::{Face, Payload};
use super::read::time;
use crate::limits::MAX_CUES;

/// Whether a file is of this kind.
pub(super) fn is_ass(text: &str) -> bool {
    let first = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with(';'));
    first.is_some_and(|line| {
        ["[script info]", "[v4+ styles]", "[v4 styles]", "[events]"]
            .contains(&line.to_ascii_lowercase().as_str())
    })
}

/// How text of a style looks, and where it stands.
#[derive(Clone, Copy, Debug, Default)]
struct Style {
    faces: [bool; 3],
    place: u8,
}

impl Style {
    fn put_on(self, to: &mut Payload) {
        Face::ALL.into_iter().for_each(|face| to.set(face, self.faces[face as usize]));
    }
}

/// Reads all lines of dialogue.
pub(super) fn read(text: &str) -> Vec<RawCue> {
    let mut section = String::new();
    let mut is_old = false;
    let (mut styles, mut style_fields, mut fields) = (HashMap::new(), Vec::new(), default_fields());
    let mut cues = Vec::new();
    for line in text.lines() {
        let line = line.trim();
        if line.starts_with('[') {
            section = line.to_ascii_lowercase();
            is_old |= section == "[v4 styles]";
            continue;
        }
        let Some((key, value)) = line.split_once(':') else { continue };
        let value = value.trim_start();
        match (key, section.contains("styles")) {
            ("Format", true) => style_fields = names(value),
            ("Format", false) => fields = names(value),
            ("Style", true) => {
                let get = |name: &str| field(&style_fields, value, name);
                let is_on = |name| get(name).is_some_and(|value| value != "0");
                let place = get("alignment").and_then(|place| place.parse().ok()).unwrap_or(2);
                let place = if is_old { old_place(place) } else { place };
                let style = Style { faces: [is_on("italic"), is_on("bold"), is_on("underline")], place };
                if styles.len() < MAX_CUES {
                    styles.insert(get("name").unwrap_or_default().trim_start_matches('*'), style);
                }
            }
            ("Dialogue", false) => {
                let style = field(&fields, value, "style").unwrap_or_default().trim_start_matches('*');
                cues.extend(dialogue(&fields, value, styles.get(style).copied().unwrap_or_default()));
            }
            _ => {}
        }
        if cues.len() > 2 * MAX_CUES {
            break;
        }
    }
    cues
}

fn default_fields() -> Vec<String> {
    names("Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text")
}

fn names(list: &str) -> Vec<String> {
    list.split(',').take(64).map(|name| name.trim().to_ascii_lowercase()).collect()
}

/// A field of a line; the last one may have commas.
fn field<'a>(fields: &[String], line: &'a str, name: &str) -> Option<&'a str> {
    let at = fields.iter().position(|field| field == name)?;
    let value = line.splitn(fields.len(), ',').nth(at)?;
    Some(if at + 1 == fields.len() { value } else { value.trim() })
}

fn dialogue(fields: &[String], line: &str, style: Style) -> Option<RawCue> {
    let start_ms = time(field(fields, line, "start")?)?;
    let end_ms = time(field(fields, line, "end")?)?;
    let text = field(fields, line, "text")?;
    let mut to = Payload::default();
    to.place(style.place);
    style.put_on(&mut to);
    let mut is_drawing = false;
    let (mut rest, last_end) = (text, BlockEnd::of(text));
    while let Some(letter) = rest.chars().next() {
        if let Some(length) = last_end.block(rest) {
            apply(&rest[1..length - 1], style, &mut is_drawing, &mut to);
            rest = &rest[length..];
            continue;
        }
        let special = if letter == '\\' { rest[1..].chars().next() } else { None };
        let (seen, length) = match special {
            Some('N' | 'n') => ('\n', 2),
            Some('h') => ('\u{a0}', 2),
            _ => (letter, letter.len_utf8()),
        };
        if !is_drawing {
            to.letter(seen);
        }
        rest = &rest[length..];
    }
    let (payload, settings, is_cut) = to.finish();
    Some(RawCue { start_ms, end_ms, settings, payload, is_cut })
}

/// End of the last block of a text, counted from the end of the text. No later search for an end is
/// needed, so a text is read in one pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockEnd(Option<usize>);

impl BlockEnd {
    pub(super) fn of(text: &str) -> Self {
        Self(text.rfind('}').map(|at| text.len() - at))
    }

    /// The length of a block in braces at the beginning of `rest`.
    fn block(self, rest: &str) -> Option<usize> {
        let has_end = self.0.is_some_and(|behind| rest.len() > behind);
        if has_end && rest.starts_with('{') { rest.find('}').map(|end| end + 1) } else { None }
    }
}

/// A block of overrides at the beginning of `rest`, as SubRip files have them too: its length. Other braces are text there.
pub(super) fn overrides(rest: &str, last_end: BlockEnd, to: &mut Payload) -> Option<usize> {
    if !rest.starts_with("{\\") {
        return None;
    }
    let length = last_end.block(rest)?;
    apply(&rest[1..length - 1], Style::default(), &mut false, to);
    Some(length)
}

/// Applies the commands of a block.
fn apply(block: &str, style: Style, is_drawing: &mut bool, to: &mut Payload) {
    for command in block.split('\\').skip(1) {
        let command = command.trim();
        let number = |name: &str| command.strip_prefix(name)?.parse::<u32>().ok();
        if let Some(place) = number("an") {
            to.place(u8::try_from(place).unwrap_or(0));
        } else if let Some(place) = number("a") {
            to.place(old_place(u8::try_from(place).unwrap_or(0)));
        } else if let Some(scale) = number("p") {
            *is_drawing = scale > 0;
        } else if let Some(weight) = number("b") {
            to.set(Face::Bold, weight == 1 || weight >= 600);
        } else if let Some(is_on) = number("i") {
            to.set(Face::Italic, is_on > 0);
        } else if let Some(is_on) = number("u") {
            to.set(Face::Underline, is_on > 0);
        } else if command.starts_with('r') {
            style.put_on(to);
        }
    }
}

/// The place of SSA, which counts 1 to 3 below, 5 to 7 above, 9 to 11 in the middle, on the numeric keypad.
fn old_place(place: u8) -> u8 {
    match place {
        1..=3 => place,
        5..=7 => place + 2,
        9..=11 => place - 5,
        _ => 0,
    }
}
