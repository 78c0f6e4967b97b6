//! Subtitle files are untrusted: any bytes must be read without a panic, and the stored WebVTT must
//! be read back with the same cues.

use std::path::{Path, PathBuf};

use millrace_media::limits::{MAX_CUE_BYTES, MAX_CUES};
use millrace_media::subtitles::Subtitles;

/// Reads bytes, and then the WebVTT made from them.
fn try_bytes(bytes: &[u8]) -> bool {
    let Ok(read) = Subtitles::read(bytes, -1234) else { return false };
    assert!(!read.cues.is_empty() && read.cues.len() <= MAX_CUES);
    for cue in &read.cues {
        assert!(cue.start_ms < cue.end_ms && cue.payload.len() <= MAX_CUE_BYTES, "{cue:?}");
        assert!(
            !cue.payload.is_empty() && !cue.payload.contains("\n\n") && !cue.payload.contains("-->"),
            "{cue:?}"
        );
        let plain = ["<i>", "</i>", "<b>", "</b>", "<u>", "</u>"]
            .iter()
            .fold(cue.payload.clone(), |text, tag| text.replace(tag, ""));
        assert!(!plain.contains(['<', '>']), "{cue:?}");
    }
    let Ok(text) = read.to_webvtt() else { return true };
    let again = Subtitles::read(text.as_bytes(), 0).expect("what is kept can be read");
    assert_eq!(again.cues, read.cues, "{text}");
    true
}

#[test]
fn subtitles_bytes() {
    bolero::check!(name = "subtitles_bytes").for_each(|bytes| {
        try_bytes(bytes);
    });
}

/// Pieces that files are made of, in any order.
const PIECES: &[&str] = &[
    "WEBVTT\n\n",
    "[Script Info]\n",
    "[Events]\n",
    "[V4+ Styles]\n",
    "Format: Start, End, Style, Text\n",
    "Format: Name, Italic, Alignment\n",
    "Style: A,1,9\n",
    "Dialogue: 0:00:01.00,0:00:02.00,A,",
    "1\n",
    "00:00:01,000 --> 00:00:02,000\n",
    "00:03.000 --> 00:04.500 line:0 align:left\n",
    "-->",
    "\n",
    "\n\n",
    "<i>",
    "</i>",
    "<b>",
    "</b>",
    "<",
    ">",
    "&amp;",
    "&",
    "{\\an8}",
    "{\\i1}",
    "{\\p1}",
    "{",
    "}",
    "\\N",
    "\\h",
    "text",
    " ",
    "\u{e4}",
    "\u{0}",
    "\r",
    "99999999:00:00.000",
    "<00:00:01.000>",
    "NOTE\n",
    ",",
    ":",
    "\u{a0}",
    "\u{2028}",
    "42\n",
];

#[test]
fn subtitles_pieces() {
    bolero::check!(name = "subtitles_pieces").with_type::<Vec<u8>>().for_each(|order| {
        let text: String = order.iter().map(|&piece| PIECES[usize::from(piece) % PIECES.len()]).collect();
        try_bytes(text.as_bytes());
    });
}

/// Name and bytes of each seed of `subtitles_bytes`.
const SEEDS: [(&str, &[u8]); 4] = [
    ("srt", b"1\n00:00:02,000 --> 00:00:03,000\n<i>a</i> {\\an8}b & c\n\n2\n00:00:04,000 --> 00:00:05,000\nx\n"),
    ("vtt", b"WEBVTT\n\nNOTE n\n\n00:02.000 --> 00:03.000 line:0\n<v A>a &lt; b</v>\n"),
    ("ass", b"[Script Info]\n[V4+ Styles]\nFormat: Name, Italic, Alignment\nStyle: A,1,7\n[Events]\nFormat: Start, End, Style, Text\nDialogue: 0:00:02.00,0:00:03.00,A,{\\b1}x\\Ny{\\p1}m 0 0{\\p0}\n"),
    ("utf16", b"\xff\xfe1\x00\n\x000\x000\x00:\x000\x002\x00.\x000\x00-\x00-\x00>\x000\x000\x00:\x000\x003\x00.\x000\x00\n\x00x\x00\n\x00"),
];

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/__fuzz__/subtitles_bytes/corpus")
}

#[test]
fn seeds_are_in_the_tree_and_are_subtitles() {
    for (name, bytes) in SEEDS {
        let file = corpus().join(name);
        if std::env::var_os("MILLRACE_WRITE_SEEDS").is_some() {
            std::fs::create_dir_all(corpus()).unwrap();
            std::fs::write(&file, bytes).unwrap();
        }
        let bytes = std::fs::read(&file)
            .unwrap_or_else(|error| panic!("{name}: {error}; MILLRACE_WRITE_SEEDS=1 writes it"));
        assert!(try_bytes(&bytes), "{name}");
    }
}
