//! Segments of WebVTT (RFC 8216 section 3.5).

use std::fmt::Write;

use millrace_ts::teletext::Cue;

/// What WebVTT is called (RFC 8216 section 3.5), and how it is written.
pub(crate) const VTT: &str = "text/vtt; charset=utf-8";

/// A time of a stream's cues, and the time stamp that the stream has then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StampOrigin {
    pub(crate) local_ms: u64,
    pub(crate) stamp: u64,
}

/// A cue with its WebVTT payload, in ticks of the title.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TimedText {
    pub(crate) start: i64,
    pub(crate) end: i64,
    pub(crate) settings: String,
    pub(crate) payload: String,
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

/// Writes the text. Cues are shown `later` than their times.
pub(crate) fn write(cues: &[TimedText], later: i64, origin: StampOrigin) -> String {
    let StampOrigin { local_ms, stamp } = origin;
    // Writing into a string does not fail.
    let mut text = String::with_capacity(64 + cues.len() * 80);
    let _ = write!(text, "WEBVTT\nX-TIMESTAMP-MAP=LOCAL:{},MPEGTS:{stamp}\n\n", time(local_ms));
    for TimedText { start, end, settings, payload } in cues {
        let ms = |ticks: i64| (ticks + later + 45).max(0).cast_unsigned() / 90;
        let (start, end) = (ms(*start), ms(*end).max(ms(*start) + 1));
        let space = if settings.is_empty() { "" } else { " " };
        // The last cue gets an empty line too, because some players concatenate all segments.
        let _ = writeln!(text, "{} --> {}{space}{settings}\n{payload}\n", time(start), time(end));
    }
    text
}

/// A time as WebVTT has it (section 3.5).
pub(crate) fn time(ms: u64) -> String {
    format!("{:02}:{:02}:{:02}.{:03}", ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60, ms % 1000)
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
        assert_eq!(write(&cues, 9_000, StampOrigin { local_ms: 1_500, stamp: 7 }), expected);
        assert_eq!(
            write(&[], 0, StampOrigin::default()),
            "WEBVTT\nX-TIMESTAMP-MAP=LOCAL:00:00:00.000,MPEGTS:0\n\n"
        );
    }
}
