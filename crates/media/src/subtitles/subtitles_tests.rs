use super::*;

fn cues(text: &str) -> Vec<(u64, u64, String, String)> {
    let read = Subtitles::read(text.as_bytes(), 0).unwrap();
    read.cues.into_iter().map(|cue| (cue.start_ms, cue.end_ms, cue.settings, cue.payload)).collect()
}

/// The payload of one cue with this text.
fn payload(line: &str) -> String {
    cues(&format!("1\n00:00:01,000 --> 00:00:02,000\n{line}\n")).remove(0).3
}

#[test]
fn subrip_with_usual_oddities_is_read() {
    let text = "\u{feff}1\r\n00:00:01,500 --> 00:00:02,000\r\nfirst\r\n\r\nafter an empty line\r\n\r\n2\r\n\
        0:00:03.5 --> 0:00:04.25 X1:10\r\n{\\an8}top\r\n3\r\n00:01:00,000 --> 01:00:00,000\r\n42\r\n";
    let cue = |start, end, settings: &str, text: &str| (start, end, settings.to_owned(), text.to_owned());
    let expected = [
        cue(1500, 2000, "", "first\nafter an empty line"),
        cue(3500, 4250, "line:0", "top"),
        cue(60_000, 3_600_000, "", "42"),
    ];
    assert_eq!(cues(text), expected);
}

#[test]
fn webvtt_keeps_places_and_loses_styles_notes_and_voices() {
    let text = "WEBVTT title\n\nSTYLE\n::cue { color: red }\n\nNOTE\nnot shown\n\nid 1\n\
        00:01.000 --> 00:02.000 line:0 position:20%,line-left align:left region:fred evil:<script>\n\
        <v.loud Mary><i.foreign>hello</i> &amp; <c.yellow>good</c>&nbsp;day\n\n\
        00:03.000 --> 00:04.000\nunclosed <b>bold\n";
    let cue = |start, end, settings: &str, text: &str| (start, end, settings.to_owned(), text.to_owned());
    let expected = [
        cue(1000, 2000, "line:0 position:20%,line-left align:left", "<i>hello</i> &amp; good\u{a0}day"),
        cue(3000, 4000, "", "unclosed <b>bold</b>"),
    ];
    assert_eq!(cues(text), expected);
}

#[test]
fn ass_keeps_faces_and_places_and_loses_drawings() {
    let text = "[Script Info]\nScriptType: v4.00+\n\n[V4+ Styles]\nFormat: Name, Fontsize, Bold, Italic, Underline, Alignment\n\
        Style: Default,16,0,0,0,2\nStyle: Sign,16,0,-1,0,7\n\n[Events]\n\
        Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text\n\
        Dialogue: 0,0:00:01.00,0:00:02.00,Default,,0,0,0,,Hello, {\\i1}world{\\i0}\\N{\\c&HFF&\\b700}x{\\r} 5 < 6\\hkm\n\
        Dialogue: 0,0:00:02.50,0:00:03.50,Default,,0,0,0,,{\\an8\\p1}m 0 0 l 100 0{\\p0}\n\
        Dialogue: 0,0:00:04.00,0:00:05.00,Sign,,0,0,0,,{a comment}sign\n\
        Comment: 0,0:00:04.00,0:00:05.00,Sign,,0,0,0,,not shown\n";
    let cue = |start, end, settings: &str, text: &str| (start, end, settings.to_owned(), text.to_owned());
    let expected = [
        cue(1000, 2000, "", "Hello, <i>world</i>\n<b>x</b> 5 &lt; 6\u{a0}km"),
        cue(4000, 5000, "line:0 position:0% align:left", "<i>sign</i>"),
    ];
    assert_eq!(cues(text), expected);
}

#[test]
fn payload_of_any_text_means_only_itself() {
    for (line, expected) in [
        ("5 < 6 > 4 --> x", "5 &lt; 6 &gt; 4 --&gt; x"),
        ("<script>alert(1)</script>", "alert(1)"),
        ("<img src=x onerror=alert(1)>", "-"),
        ("<I>one</I> <b><i>two</b></i>", "<i>one <b>two</b></i>"),
        ("a\u{0}b\u{7}c", "abc"),
        ("{\\an9}{not a command}", "{not a command}"),
        ("{\\{\\{\\ <<<<", "{\\{\\{\\ &lt;&lt;&lt;&lt;"),
        ("&lt;b&gt; &unknown;", "&lt;b&gt; &amp;unknown;"),
        ("<i></i>  text  ", "text"),
    ] {
        let with_mark = if expected == "-" { format!("-{line}") } else { line.to_owned() };
        assert_eq!(payload(&with_mark), expected, "{line}");
    }
}

#[test]
fn encodings_without_a_mark_are_guessed_and_noted() {
    let srt = "1\n00:00:01,000 --> 00:00:02,000\n\u{fc}ber \u{20ac}\n";
    let utf16 = |order: fn(u16) -> [u8; 2], mark: [u8; 2]| {
        mark.into_iter().chain(srt.encode_utf16().flat_map(order)).collect::<Vec<u8>>()
    };
    let plain = srt.as_bytes().to_vec();
    let marked = [b"\xef\xbb\xbf", srt.as_bytes()].concat();
    let (little, big) = (utf16(u16::to_le_bytes, [0xff, 0xfe]), utf16(u16::to_be_bytes, [0xfe, 0xff]));
    let latin = srt.replace('\u{fc}', "\u{1}").replace('\u{20ac}', "\u{2}");
    let latin: Vec<u8> = latin
        .bytes()
        .map(|byte| match byte {
            1 => 0xfc,
            2 => 0x80,
            other => other,
        })
        .collect();
    for (bytes, is_guessed) in [(plain, false), (marked, false), (little, false), (big, false), (latin, true)]
    {
        let read = Subtitles::read(&bytes, 0).unwrap();
        assert_eq!(read.cues[0].payload, "\u{fc}ber \u{20ac}");
        assert_eq!(
            read.notes.iter().any(|note| note.contains("Windows-1252")),
            is_guessed,
            "{:?}",
            read.notes
        );
    }
}

#[test]
fn times_that_make_no_sense_are_left_out_and_the_rest_is_moved() {
    let text = "00:00:03,000 --> 00:00:02,000\nbackwards\n\n00:00:00,100 --> 00:00:00,900\nbefore\n\n\
        00:00:00,500 --> 00:00:02,000\nacross\n\n99:99:00,000 --> 99:99:01,000\nno time\n";
    let read = Subtitles::read(text.as_bytes(), -1000).unwrap();
    let times: Vec<_> = read.cues.iter().map(|cue| (cue.start_ms, cue.end_ms)).collect();
    assert_eq!(times, [(0, 1000)]);
    assert!(read.notes[0].contains("before the beginning"), "{:?}", read.notes);
    assert_eq!(Subtitles::read(b"no subtitles at all", 0), Err(SubtitleError::NoCues));
    assert_eq!(Subtitles::read(b"", 0), Err(SubtitleError::NoCues));
}

#[test]
fn hostile_lengths_are_cut_or_refused() {
    let long = format!("1\n00:00:01,000 --> 00:00:02,000\n<i>{}\n", "\u{20ac}".repeat(3 << 20));
    let read = Subtitles::read(long.as_bytes(), 0).unwrap();
    assert!(read.cues[0].payload.len() <= 4096 && read.cues[0].payload.ends_with("</i>"));
    assert!(read.notes[0].contains("too long"), "{:?}", read.notes);
    let braces = format!("1\n00:00:01,000 --> 00:00:02,000\n{}\n", "{\\".repeat(4 << 20));
    assert!(Subtitles::read(braces.as_bytes(), 0).is_ok());
    let huge = vec![b'x'; MAX_SUBTITLE_SOURCE_BYTES + 1];
    assert!(matches!(Subtitles::read(&huge, 0), Err(SubtitleError::SourceTooLong { .. })));
    let many: String = (0..MAX_CUES as u64 + 5)
        .map(|at| format!("{} --> {}\nx\n\n", super::time(at * 100), super::time(at * 100 + 50)))
        .collect();
    let read = Subtitles::read(many.as_bytes(), 0).unwrap();
    assert_eq!(read.cues.len(), MAX_CUES);
    assert!(read.notes[0].contains("5 cues left out"), "{:?}", read.notes);
    let wide: String = (0..2_000u64)
        .map(|at| {
            format!("{} --> {}\n{}\n\n", super::time(at * 100), super::time(at * 100 + 50), "x".repeat(4000))
        })
        .collect();
    let wide = Subtitles::read(wide.as_bytes(), 0).unwrap();
    assert!(matches!(wide.to_webvtt(), Err(SubtitleError::TextTooLong { .. })));
}

#[test]
fn label_has_one_spelling() {
    for (text, expected, language) in [
        ("de", "de", Some("de")),
        ("ger.forced", "de.forced", Some("de")),
        ("pt_br.sdh", "pt-BR.sdh", Some("pt-BR")),
        ("ZH-hant-tw", "zh-Hant-TW", Some("zh-Hant-TW")),
        ("en.sdh.forced.3", "en.forced.sdh.3", Some("en")),
        ("und", "und", None),
    ] {
        let label: SubtitleLabel = text.parse().unwrap();
        assert_eq!((label.to_string().as_str(), label.language()), (expected, language), "{text}");
    }
    for wrong in [
        "",
        "d",
        "english",
        "de.",
        "de.x",
        "de.1",
        "de.65",
        "de.2.forced",
        "../de",
        "de/x",
        "de.forced.forced",
        "\u{fc}b",
    ] {
        let error = wrong.parse::<SubtitleLabel>().unwrap_err().to_string();
        assert!(error.contains("is not a track label") && error.contains("for example"), "{error}");
    }
    assert!(serde_json::from_str::<SubtitleLabel>("\"ger\"").is_err(), "one spelling in a manifest");
}

#[test]
fn name_for_people_has_nothing_that_playlists_would_take_for_something_else() {
    assert_eq!(clean_name(" Signs \"x\"\n#EXT \u{1b}[31m ").as_deref(), Some("Signs x #EXT [31m"));
    assert_eq!(clean_name("\"\n"), None);
    assert!(clean_name(&"\u{20ac}".repeat(100)).unwrap().len() <= MAX_SUBTITLE_NAME_BYTES);
}
