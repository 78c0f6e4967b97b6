//! Segments of WebVTT (RFC 8216 section 3.5).

use std::fmt::Write;

use millrace_ts::teletext::Cue;

use crate::pictures::time;

/// The text. Cues are shown `later` than they say; at `local` milliseconds of their time the stream has the time stamp `stamp`.
pub(super) fn write(cues: &[Cue], later: i64, (local, stamp): (u64, u64)) -> String {
    // Writing into a string does not fail.
    let mut text = String::with_capacity(64 + cues.len() * 80);
    let _ = write!(text, "WEBVTT\nX-TIMESTAMP-MAP=LOCAL:{},MPEGTS:{stamp}\n\n", time(local));
    for Cue { start, end, lines } in cues {
        let ms = |ticks: i64| (ticks + later + 45).max(0).cast_unsigned() / 90;
        let (start, end) = (ms(*start), ms(*end).max(ms(*start) + 1));
        let _ = writeln!(text, "{} --> {}", time(start), time(end));
        for line in lines {
            line.chars().for_each(|letter| escape(letter, &mut text));
            text.push('\n');
        }
        // Behind the last one too: some players take all segments for one file.
        text.push('\n');
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
        let cue = |start, end, text: &str| Cue { start, end, lines: vec![text.to_owned(), "2".to_owned()] };
        let cues = [cue(90_000, 90_010, "a --> b"), cue(3_600 * 90_000, 3_601 * 90_000, "<i>&amp;")];
        let expected = "WEBVTT\nX-TIMESTAMP-MAP=LOCAL:00:00:01.500,MPEGTS:7\n\n\
            00:00:01.100 --> 00:00:01.101\na --&gt; b\n2\n\n\
            01:00:00.100 --> 01:00:01.100\n&lt;i&gt;&amp;amp;\n2\n\n";
        assert_eq!(write(&cues, 9_000, (1_500, 7)), expected);
        assert_eq!(write(&[], 0, (0, 0)), "WEBVTT\nX-TIMESTAMP-MAP=LOCAL:00:00:00.000,MPEGTS:0\n\n");
    }
}
