//! SubRip and WebVTT: both are lines with times and the text below them.

use super::RawCue;
use super::ass::{BlockEnd, overrides};
use super::payload::{Face, Payload};
use crate::limits::MAX_CUES;

/// Reads all cues that have times; what stands between them is skipped. A few more than may be kept are read, so that it is known that there are more.
pub(super) fn read(text: &str) -> Vec<RawCue> {
    // In WebVTT an empty line ends a cue; files of SubRip have empty lines within text.
    let is_webvtt = text.starts_with("WEBVTT");
    let mut cues = Vec::new();
    let mut now: Option<(Timing<'_>, Vec<&str>)> = None;
    for line in text.split('\n') {
        if let Some(timing) = Timing::read(line) {
            cues.extend(now.take().map(|cue| finish(cue, is_webvtt, true)));
            if cues.len() > 2 * MAX_CUES {
                return cues;
            }
            now = Some((timing, Vec::new()));
        } else if is_webvtt && line.bytes().all(|byte| matches!(byte, b' ' | b'\t')) {
            cues.extend(now.take().map(|cue| finish(cue, is_webvtt, false)));
        } else if let Some((_, lines)) = &mut now {
            lines.push(line);
        }
    }
    cues.extend(now.map(|cue| finish(cue, is_webvtt, false)));
    cues
}

/// `is_another`: the times of the next cue follow, so a number in front of those is the next cue's.
fn finish((timing, mut lines): (Timing<'_>, Vec<&str>), is_webvtt: bool, is_another: bool) -> RawCue {
    let is_number = |line: &str| {
        let line = line.trim();
        !line.is_empty() && line.bytes().all(|byte| byte.is_ascii_digit())
    };
    if is_another && lines.last().is_some_and(|line| is_number(line)) {
        lines.pop();
    }
    let mut payload = Payload::default();
    let mut faces = [0u8; 3];
    for (at, line) in lines.iter().enumerate() {
        if at > 0 {
            payload.letter('\n');
        }
        marked_up(line, is_webvtt, &mut faces, &mut payload);
    }
    let (text, placed, is_cut) = payload.finish();
    let settings = allowed_settings(timing.settings);
    let settings = if settings.is_empty() { placed } else { settings };
    let Timing { start_ms, end_ms, .. } = timing;
    RawCue { start_ms, end_ms, settings, payload: text, is_cut }
}

/// A line with times.
struct Timing<'a> {
    start_ms: u64,
    end_ms: u64,
    settings: &'a str,
}

impl<'a> Timing<'a> {
    fn read(line: &'a str) -> Option<Self> {
        let (start, rest) = line.split_once("-->")?;
        let rest = rest.trim_start();
        let (end, settings) = rest.split_once([' ', '\t']).unwrap_or((rest, ""));
        Some(Self { start_ms: time(start.trim())?, end_ms: time(end.trim())?, settings: settings.trim() })
    }
}

/// `[hours:]minutes:seconds`, with a fraction behind a point or a comma; in milliseconds.
pub(super) fn time(text: &str) -> Option<u64> {
    let number = |text: &str| {
        let is_number = (1..=6).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
        if is_number { text.parse::<u64>().ok() } else { None }
    };
    let (whole, fraction) = text.split_once(['.', ',']).unwrap_or((text, "0"));
    let mut parts = whole.rsplit(':');
    let (seconds, minutes) = (number(parts.next()?)?, number(parts.next()?)?);
    let hours = parts.next().map_or(Some(0), number)?;
    if parts.next().is_some() || minutes > 59 || seconds > 59 {
        return None;
    }
    let fraction = number(fraction)?.checked_mul(1000)? / 10u64.pow(fraction.len() as u32);
    Some(((hours * 60 + minutes) * 60 + seconds) * 1000 + fraction)
}

/// The settings of WebVTT that place text; regions and whatever is unknown are left out.
fn allowed_settings(settings: &str) -> String {
    let is_value = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'%' | b'.' | b',' | b'-');
    let is_allowed = |setting: &&str| {
        setting.split_once(':').is_some_and(|(name, value)| {
            matches!(name, "line" | "position" | "size" | "align" | "vertical")
                && (1..=24).contains(&value.len())
                && value.bytes().all(is_value)
        })
    };
    settings.split_ascii_whitespace().filter(is_allowed).take(5).collect::<Vec<_>>().join(" ")
}

/// Adds a line with tags (`<i>`), references (`&amp;`) and, in SubRip, its elements of ASS
/// (`{\an8}`).
fn marked_up(line: &str, is_webvtt: bool, faces: &mut [u8; 3], to: &mut Payload) {
    let (mut rest, last_end) = (line, BlockEnd::of(line));
    while let Some(letter) = rest.chars().next() {
        let step = match letter {
            '<' => tag(rest, faces, to),
            '&' => reference(rest, to),
            '{' if !is_webvtt => overrides(rest, last_end, to),
            _ => None,
        };
        let step = step.unwrap_or_else(|| {
            to.letter(letter);
            letter.len_utf8()
        });
        rest = &rest[step..];
    }
}

/// A tag at the beginning of `rest`: its length, if it is one. Those that are not kept lose only themselves, not their text.
fn tag(rest: &str, faces: &mut [u8; 3], to: &mut Payload) -> Option<usize> {
    let inside = &rest[1..];
    let end = inside.find(['<', '>', '\n'])?;
    if !inside[end..].starts_with('>') {
        return None;
    }
    let inside = &inside[..end];
    let (is_end, named) = inside.strip_prefix('/').map_or((false, inside), |named| (true, named));
    let first = named.chars().next();
    let is_tag = first.is_none_or(|first| first.is_ascii_alphabetic()) || !is_end && time(named).is_some();
    // `<>` is text, `</>` ends something in WebVTT.
    if !is_tag || inside.is_empty() {
        return None;
    }
    let name = named.split(['.', ' ', '\t']).next().unwrap_or_default();
    for face in Face::ALL {
        if name.len() == 1 && name.starts_with([face.tag(), face.tag().to_ascii_uppercase()]) {
            let depth = &mut faces[face as usize];
            *depth = if is_end { depth.saturating_sub(1) } else { depth.saturating_add(1) };
            to.set(face, *depth > 0);
        }
    }
    Some(end + 2)
}

/// A character reference at the beginning of `rest`.
fn reference(rest: &str, to: &mut Payload) -> Option<usize> {
    const KNOWN: [(&str, char); 9] = [
        ("&amp;", '&'),
        ("&lt;", '<'),
        ("&gt;", '>'),
        ("&nbsp;", '\u{a0}'),
        ("&lrm;", '\u{200e}'),
        ("&rlm;", '\u{200f}'),
        ("&quot;", '"'),
        ("&apos;", '\''),
        ("&#39;", '\''),
    ];
    let (name, letter) = KNOWN.iter().find(|(name, _)| rest.starts_with(name))?;
    to.letter(*letter);
    Some(name.len())
}
