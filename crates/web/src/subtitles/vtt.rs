//! Segments of WebVTT (RFC 8216 section 3.5).

use std::fmt::Write;

use millrace_ts::teletext::Cue;

use crate::pictures::time;

/// A cue with its WebVTT payload, in ticks of the title.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TimedText {
    pub(super) start: i64,
    pub(super) end: i64,
    pub(super) settings: String,
    pub(super) payload: String,
}

impl From<Cue> for TimedText {
    fn from(Cue { start, end, lines }: Cue) -> Self {
        let mut payload = String::new();
        for (at, line) in lines.iter().enumerate() {
            payload.push_str(if at > 0 { "\n" } else { "" });
            line.chars().for_each(|letter| escape(letter, &mut payload));
        }
        Self { start, end, settings: String::new(), payload }
    }
}

/// The text. Cues are shown `later` than they say; at `local` milliseconds of their time the stream has the time stamp `stamp`.
pub(super) fn write(cues: &[TimedText], later: i64, (local, stamp): (u64, u64)) -> String {
    // Writing into a string does not fail.
    let mut text = String::with_capacity(64 + cues.len() * 80);
    let _ = write!(text, "WEBVTT\nX-TIMESTAMP-MAP=LOCAL:{},MPEGTS:{stamp}\n\n", time(local));
    for TimedText { start, end, settings, payload } in cues {
        let ms = |ticks: i64| (ticks + later + 45).max(0).cast_unsigned() / 90;
        let (start, end) = (ms(*start), ms(*end).max(ms(*start) + 1));
        let space = if settings.is_empty() { "" } else { " " };
        // The last cue gets an empty line too, because some players concatenate all segments.
        let _ = writeln!(text, "{} --> {}{space}{settings}\n{payload}\n", time(start), time(end));
    }
    text
}

/// What WebVTT would take for something else (section 4.2.2 of WebVTT).
fn escape(letter: char, text: &mut String) {
    match letter {
        '&' => text.push_str("&amp;"),
        '<' => text.push_str("&lt;"),
        '>' => text.push_str("&gt;"),
        other => text.push(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_means_nothing_but_itself() {
        let cue = |start, end, text: &str| {
            TimedText::from(Cue { start, end, lines: vec![text.to_owned(), "2".to_owned()] })
        };
        let cues = [cue(90_000, 90_010, "a --> b"), cue(3_600 * 90_000, 3_601 * 90_000, "<i>&amp;")];
        let expected = "WEBVTT\nX-TIMESTAMP-MAP=LOCAL:00:00:01.500,MPEGTS:7\n\n\
            00:00:01.100 --> 00:00:01.101\na --&gt; b\n2\n\n\
            01:00:00.100 --> 01:00:01.100\n&lt;i&gt;&amp;amp;\n2\n\n";
        assert_eq!(write(&cues, 9_000, (1_500, 7)), expected);
        assert_eq!(write(&[], 0, (0, 0)), "WEBVTT\nX-TIMESTAMP-MAP=LOCAL:00:00:00.000,MPEGTS:0\n\n");
    }
}
