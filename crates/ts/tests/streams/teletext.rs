//! Subtitles in teletext: the decoded text equals the encoded text, at its times, damaged or not;
//! ffmpeg's decoder (libzvbi) agrees.

use std::process::Command;

use crate::support;
use millrace_core::limits::subtitles::LONGEST_CUE_TICKS;
use millrace_testkit::teletext::*;
use millrace_ts::teletext::{Announced, Cue, Decoder, PageContent, PageNumber, Screen, announced, cues};

const PAGE: u16 = 888;

fn number() -> PageNumber {
    PageNumber::new(8, 0x88)
}

/// Returns the screens of the page sent in these payloads, each a second after the one before.
fn screens(payloads: &[Vec<Unit>]) -> Vec<Screen> {
    let mut decoder = Decoder::new([number()]);
    let mut found = Vec::new();
    for (second, units) in (0..).zip(payloads) {
        decoder.push(second * 90_000, &payload(units), &mut |screen| found.push(screen));
    }
    decoder.finish(&mut |screen| found.push(screen));
    found
}

fn lines(units: Vec<Unit>) -> Vec<String> {
    let mut found = screens(&[units]);
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0).lines
}

#[test]
fn lines_of_every_nation_come_out() {
    for (national, (nation, own)) in NATIONS.iter().enumerate() {
        let text = format!("{nation}: {own}");
        let found = lines(page(PAGE, national as u8, &[&text, "and a second line"]));
        assert_eq!(found, [text, "and a second line".to_owned()]);
    }
}

#[test]
fn teletext_page_shows_only_letters_in_boxes() {
    let of = subtitles(PAGE, 0);
    let show = |codes: &[u8]| lines(vec![header(of), row(8, 20, codes), filler(8)]);
    assert_eq!(show(b"outside \x0b\x0b in\x0a\x0a outside"), ["in"]);
    assert_eq!(show(b"outside").len(), 0);
    // Colours take places; mosaics are no letters, but capitals among them are.
    assert_eq!(show(b"\x0b\x0b\x03Yes?\x07 No.\x0a\x0a"), ["Yes? No."]);
    assert_eq!(show(b"\x0b\x0b\x11abcB,,\x01text\x0a\x0a"), ["B text"]);
    assert_eq!(show(b"\x0b\x0bseen\x18hidden\x01seen\x0a\x0a"), ["seen seen"]);
    // A row of double height covers the next one.
    let high = vec![
        header(of),
        row(8, 20, b"\x0d\x0b\x0bhigh"),
        row(8, 21, b"\x0b\x0bcovered"),
        row(8, 22, b"\x0b\x0bfree"),
    ];
    assert_eq!(lines(high), ["high", "free"]);
    // Without the flags of subtitles and news flashes a page has no boxes.
    let plain = Header { is_subtitle: false, ..of };
    assert_eq!(lines(vec![header(plain), row(8, 20, b"  all of it")]), ["all of it"]);
}

#[test]
fn headers_say_what_becomes_of_rows() {
    let of = subtitles(PAGE, 0);
    let on = Header { erases: false, ..of };
    let found = screens(&[
        // Nothing is known yet of a page that was not erased.
        vec![header(on), filler(8)],
        vec![header(of), boxed(8, 20, b"one"), boxed(8, 22, b"two"), filler(8)],
        // Rows stay until they are sent again or erased.
        vec![header(on), boxed(8, 22, b"three"), filler(8)],
        vec![header(Header { is_hidden: true, ..on }), filler(8)],
        vec![header(on), filler(8)],
        // Other pages, and rows of other magazines between.
        vec![header(subtitles(889, 0)), boxed(8, 20, b"other")],
        vec![header(of), boxed(1, 20, b"other"), header(subtitles(188, 0)), boxed(8, 20, b"mine")],
        vec![header(of), filler(8)],
    ]);
    let found: Vec<_> = found.iter().map(|screen| (screen.time / 90_000, screen.lines.join("|"))).collect();
    let expected = [(1, "one|two"), (2, "one|three"), (3, ""), (4, "one|three"), (6, "mine"), (7, "")];
    assert_eq!(found, expected.map(|(time, lines)| (time, lines.to_owned())));

    // Where magazines follow each other, any header ends a page.
    let serial = Header { is_serial: true, ..of };
    let other = Header { is_serial: true, ..subtitles(188, 0) };
    let late = vec![header(serial), boxed(8, 20, b"one"), header(other), boxed(8, 22, b"late")];
    assert_eq!(lines(late), ["one"]);
    // A page may come in several PES packets; its time is that of the header.
    let parts = screens(&[vec![header(of), boxed(8, 20, b"one")], vec![boxed(8, 22, b"two"), filler(8)]]);
    assert_eq!((parts.len(), parts[0].time, parts[0].lines.join("|")), (1, 0, "one|two".to_owned()));
}

#[test]
fn damage_is_repaired_or_left_out() {
    let of = subtitles(PAGE, 0);
    let whole = [header(of), boxed(8, 20, b"text"), filler(8)];
    let expected = lines(whole.to_vec());
    // One wrong bit anywhere in an address or the header's digits.
    for (which, bytes) in [(0, 4..14), (1, 4..6), (2, 4..14)] {
        for at in bytes {
            for bit in 0..8 {
                let mut units = whole;
                units[which][at] ^= 1 << bit;
                assert_eq!(lines(units.to_vec()), expected, "unit {which}, byte {at}, bit {bit}");
            }
        }
    }
    // A letter with a wrong bit is a space; with two wrong bits in the header's digits, the page
    // that the rows belong to is unknown.
    let mut units = whole;
    let letter = 6 + (36 - 4) / 2 + 3 + 1;
    units[1][letter] ^= 4;
    assert_eq!(lines(units.to_vec()), ["t xt"]);
    let mut units = whole;
    units[0][6] ^= 3;
    assert!(screens(&[units.to_vec()]).is_empty());
    // Lengths beyond the end, other identifiers, another framing code, other units.
    let mut decoder = Decoder::new([number()]);
    let good = payload(&whole);
    let with = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        bytes
    };
    for bytes in [with(0, 0x20), with(1, 0xc3), with(2, 255), with(4, 0xe5), Vec::new(), good[..20].to_vec()]
    {
        decoder.push(0, &bytes, &mut |screen| panic!("{screen:?}"));
    }
}

#[test]
fn cues_end_with_what_follows_or_after_a_while() {
    let mut shown = Vec::new();
    let mut add = |time, text: &str| {
        let lines = Some(text.to_owned()).filter(|text| !text.is_empty()).into_iter().collect();
        PageContent::add(&mut shown, Screen { page: number(), time, lines });
    };
    let longest = LONGEST_CUE_TICKS as i64;
    add(10, "one");
    add(20, "one"); // sent again
    add(30, "");
    add(40, "two");
    add(50, "three");
    add(50 + 2 * longest, "four");
    let cue = |start, end, text: &str| Cue { start, end, lines: vec![text.to_owned()] };
    let expected = [
        cue(10, 30, "one"),
        cue(40, 50, "two"),
        cue(50, 50 + longest, "three"),
        cue(50 + 2 * longest, 60 + 2 * longest, "four"),
    ];
    assert_eq!(cues(&shown, 60 + 2 * longest), expected);
    assert_eq!(cues(&shown, 45), [cue(10, 30, "one"), cue(40, 45, "two")]);
}

/// Content of the title given to ffmpeg: seconds from its first time stamp, and lines.
const FILM: [(f64, &[&str]); 9] = [
    (0.5, &["First line"]),
    (1.5, &[]),
    (2.0, &["Two lines:", "this is the second."]),
    (3.0, &["Follows without a pause"]),
    (3.48, &[]),
    (4.0, &["a < b & c > d, --> 50%"]),
    (4.6, &[]),
    (5.0, &["The last one"]),
    (5.4, &[]),
];
const PID: u16 = 0x150;

fn film(national: u8, all: &[(f64, Vec<String>)]) -> (Vec<u8>, Vec<(u64, Vec<String>)>) {
    let stream = support::make(7, support::VBR);
    // ffmpeg's first time stamp.
    let pts = |seconds: f64| 133_200 + (seconds * 90_000.0) as u64;
    let said: Vec<_> = all.iter().map(|(seconds, lines)| (pts(*seconds), lines.clone())).collect();
    let sent: Vec<_> = said
        .iter()
        .map(|(pts, lines)| {
            let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
            (*pts, page(PAGE, national, &lines))
        })
        .collect();
    let named = [("deu", SUBTITLES, PAGE), ("deu", 1, 100), ("eng", HEARING_IMPAIRED, 777)];
    (mux(&stream, support::PMT, PID, &named, &sent), said)
}

/// Payloads of PES packets on a PID, with their time stamps.
fn payloads(stream: &[u8], pid: u16) -> Vec<(i64, Vec<u8>)> {
    let mut all: Vec<(i64, Vec<u8>)> = Vec::new();
    for packet in stream.chunks_exact(188).filter(|packet| support::pid(packet) == pid) {
        if packet[1] & 0x40 == 0 {
            all.last_mut().unwrap().1.extend_from_slice(&packet[4..]);
            continue;
        }
        let stamp: Vec<i64> = packet[13..18].iter().map(|byte| i64::from(*byte)).collect();
        let pts = (stamp[0] & 0x0e) << 29
            | stamp[1] << 22
            | (stamp[2] & 0xfe) << 14
            | stamp[3] << 7
            | stamp[4] >> 1;
        all.push((pts, packet[4 + 45..].to_vec()));
    }
    all
}

fn found_in(stream: &[u8]) -> Vec<PageContent> {
    let mut decoder = Decoder::new([number()]);
    let mut shown = Vec::new();
    for (pts, payload) in payloads(stream, PID) {
        decoder.push(pts, &payload, &mut |screen| PageContent::add(&mut shown, screen));
    }
    decoder.finish(&mut |screen| PageContent::add(&mut shown, screen));
    shown
}

/// Whether this ffmpeg has a decoder of teletext.
fn has_libzvbi() -> bool {
    let output = Command::new("ffmpeg").args(["-hide_banner", "-decoders"]).output().expect("ffmpeg starts");
    let has = String::from_utf8_lossy(&output.stdout).contains("libzvbi_teletextdec");
    if !has {
        eprintln!("skipped: this ffmpeg was built without libzvbi");
    }
    has
}

/// Start and end in milliseconds, and lines, as ffmpeg finds them.
fn by_ffmpeg(stream: &[u8]) -> Vec<(u64, u64, Vec<String>)> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("film.ts");
    std::fs::write(&path, stream).unwrap();
    let output = Command::new("ffmpeg")
        .args(["-hide_banner", "-nostdin", "-v", "error", "-copyts", "-fix_sub_duration"])
        // Decoders without a configured region assume region 0 of the standard's table 32; libzvbi
        // assumes the region with Turkish in the place of Czech.
        .args(["-txt_format", "text", "-txt_default_region", "0", "-txt_page", "888", "-i"])
        .arg(&path)
        .args(["-map", "0:s:0", "-f", "srt", "-"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap().replace('\r', "");
    let cue = |block: &str| {
        let mut lines = block.lines().skip(1);
        let (start, end) = lines.next().unwrap().split_once(" --> ").unwrap();
        let ms = |time: &str| {
            let parts: Vec<u64> = time.split([':', ',']).map(|part| part.parse().unwrap()).collect();
            ((parts[0] * 60 + parts[1]) * 60 + parts[2]) * 1000 + parts[3]
        };
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        (ms(start), ms(end), lines.map(words).filter(|line| !line.is_empty()).collect())
    };
    text.split("\n\n").filter(|block| !block.trim().is_empty()).map(|block| cue(block.trim_start())).collect()
}

fn in_ms(ticks: i64) -> u64 {
    (ticks as u64 + 45) / 90
}

#[test]
fn ffmpeg_finds_the_same_cues_at_the_same_times() {
    let all: Vec<_> =
        FILM.map(|(seconds, lines)| (seconds, lines.iter().map(|line| (*line).to_owned()).collect())).into();
    let (stream, said) = film(0, &all);
    let shown = found_in(&stream);
    let found: Vec<_> = shown.iter().map(|shown| (shown.time as u64, shown.lines.clone())).collect();
    assert_eq!(found, said, "what was written comes out");
    let expected = [
        Announced { pid: PID, page: number(), language: Some("deu".into()), is_for_hearing_impaired: false },
        Announced {
            pid: PID,
            page: PageNumber::new(7, 0x77),
            language: Some("eng".into()),
            is_for_hearing_impaired: true,
        },
    ];
    assert_eq!(announced(&stream), expected);
    assert_eq!(expected.map(|one| one.page.number()), [Some(888), Some(777)]);
    if !has_libzvbi() {
        return;
    }
    let ours: Vec<_> =
        cues(&shown, i64::MAX).into_iter().map(|cue| (in_ms(cue.start), in_ms(cue.end), cue.lines)).collect();
    assert_eq!(by_ffmpeg(&stream), ours);
}

#[test]
fn ffmpeg_has_the_same_letters_of_every_nation() {
    if !has_libzvbi() {
        return;
    }
    for (national, (nation, own)) in NATIONS.iter().enumerate() {
        let all = [(1.0, vec![format!("{nation}: {own}")]), (2.0, Vec::new())];
        let (stream, _) = film(national as u8, &all);
        let theirs = by_ffmpeg(&stream);
        let ours = found_in(&stream);
        assert_eq!(theirs[0].2, ours[0].lines, "{nation}");
    }
}

/// For any input, the content of a page stays within the page.
fn try_all(bytes: &[u8]) {
    let mut decoder = Decoder::new([number(), PageNumber::new(1, 0)]);
    let mut shown = Vec::new();
    let mut take = |screen: Screen| {
        assert!(screen.lines.len() <= 23, "{screen:?}");
        assert!(screen.lines.iter().all(|line| !line.is_empty() && line.chars().count() <= 40), "{screen:?}");
        assert!(!screen.lines.iter().any(|line| line.contains(char::is_control)), "{screen:?}");
        PageContent::add(&mut shown, screen);
    };
    for (time, piece) in (0..).zip(bytes.chunks(1000)) {
        decoder.push(time, piece, &mut take);
    }
    // As packets, so that the bytes get as far as pages.
    for (time, piece) in (0..).zip(bytes.chunks(42)) {
        let mut payload = vec![0x10, 0x03, 44, 0xe7, 0xe4];
        payload.extend(piece);
        payload.resize(47, 0xff);
        decoder.push(time * 7_000 - 90_000, &payload, &mut take);
    }
    decoder.finish(&mut take);
    for cue in cues(&shown, i64::MAX) {
        assert!(cue.start < cue.end && !cue.lines.is_empty());
    }
    assert!(announced(bytes).len() <= millrace_ts::limits::MAX_SUBTITLE_PAGES);
}

#[test]
fn fuzz_teletext_bytes() {
    bolero::check!(name = "teletext_bytes").with_max_len(10_000).for_each(try_all);
}

/// Headers and rows of any kind, in any order, with some of their bits wrong.
#[test]
fn fuzz_teletext_packets() {
    type Packet = (u8, u8, [u8; 8], Vec<u8>, u16);
    let input = bolero::produce::<Vec<Packet>>();
    bolero::check!(name = "teletext_packets").with_generator(input).with_iterations(1500).for_each(
        |packets| {
            let mut bytes = Vec::new();
            for (magazine, number, flags, codes, damage) in packets.iter().take(200) {
                let [page, erases, is_subtitle, is_hidden, is_serial, national, ..] = *flags;
                let of = Header {
                    // Half of them are pages that are followed.
                    magazine: if page & 1 == 0 { 8 } else { magazine % 8 },
                    page: if page & 1 == 0 { 0x88 } else { page },
                    erases: erases & 1 != 0,
                    is_subtitle: is_subtitle & 3 != 0,
                    is_hidden: is_hidden & 7 == 0,
                    is_serial: is_serial & 3 == 0,
                    national: national & 7,
                };
                let codes: Vec<u8> = codes.iter().map(|code| code & 0x7f).collect();
                let mut unit =
                    if number & 3 == 0 { header(of) } else { row(of.magazine, number & 31, &codes) };
                if let Some(byte) = unit[4..].get_mut(usize::from(damage & 0xff)) {
                    *byte ^= (damage >> 8) as u8;
                }
                bytes.extend(&unit[4..]);
            }
            try_all(&bytes);
        },
    );
}

#[test]
fn seeds_are_in_the_tree_and_have_subtitles() {
    let corpus =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/streams/__fuzz__/teletext_bytes/corpus");
    let of = subtitles(PAGE, 4);
    let rows = [boxed(8, 20, &codes("Über §1", 4)), boxed(8, 22, b"\x03two\x07rows")];
    let units = [&[header(of)], &rows[..], &[header(Header { is_serial: true, ..of }), filler(8)]].concat();
    let seeds = [
        ("pes", payload(&units)),
        ("packets", units.iter().flat_map(|unit| unit[4..].to_vec()).collect()),
        ("tables", tables()),
    ];
    if std::env::var_os("MILLRACE_WRITE_SEEDS").is_some() {
        std::fs::create_dir_all(&corpus).unwrap();
        for (name, bytes) in &seeds {
            std::fs::write(corpus.join(name), bytes).unwrap();
        }
    }
    for (name, bytes) in &seeds {
        let seed = std::fs::read(corpus.join(name)).expect("MILLRACE_WRITE_SEEDS=1 writes the seeds");
        assert!(seed == *bytes, "{name}: MILLRACE_WRITE_SEEDS=1 writes it anew");
    }
    assert_eq!(announced(&seeds[2].1).len(), 1);
}

/// A PAT and a PMT that names a page.
fn tables() -> Vec<u8> {
    let section = |pid: u16, section: &[u8]| {
        let mut packet = vec![0x47, 0x40 | (pid >> 8) as u8, pid as u8, 0x10, 0];
        packet.extend(section);
        packet.extend(crc(section).to_be_bytes());
        packet.resize(188, 0xff);
        packet
    };
    let pat = section(0, &[0, 0xb0, 13, 0, 1, 0xc1, 0, 0, 0, 1, 0xe1, 0]);
    let fixed = [2, 0xb0, 18 + 7, 0, 1, 0xc1, 0, 0, 0xff, 0xff, 0xf0, 0];
    let stream = [6, 0xe1, 0x50, 0xf0, 7, 0x56, 5, b'd', b'e', b'u', 2 << 3, 0x88];
    [pat, section(0x100, &[&fixed[..], &stream].concat())].concat()
}
