//! Titles for fast forward, rewind and slow motion show the right pictures at the right times, in streams that every player takes, at no
//! higher rate than their parents'.

use std::path::Path;

use millrace_make::trick::TrickError;

use crate::trick_support;
use crate::trick_support::{FPS, Fixture, NUMBER, X264, headers, key_numbers, numbers};

/// Numbers of the pictures that begin a group of 25.
fn keys(secs: u64) -> Vec<u64> {
    (0..secs).map(|second| second * FPS).collect()
}

/// Rewinding begins at the end and ends with the first picture but one: that of time 0 would be shown when all is over.
fn backwards(secs: u64) -> Vec<u64> {
    (1..secs).rev().map(|second| second * FPS).collect()
}

/// Counts how often a sequence ends, which makes decoders that reorder show the pictures they hold:
/// a player would find each picture late.
fn ends(stream: &Path, code: &[u8]) -> usize {
    let (path, copy) = (stream.to_str().unwrap(), ["-map", "0:v", "-c", "copy", "-f", "rawvideo", "-"]);
    let bytes = trick_support::ffmpeg(&[&["-i", path], &copy[..]].concat());
    bytes.windows(code.len()).filter(|found| *found == code).count()
}

#[test]
fn fast_forward_and_rewind_show_key_pictures_in_their_order() {
    let film = Fixture::new(20, X264);
    assert_eq!(film.checked("4"), keys(20));
    // Two IDR pictures in a row must differ (H.264 section 7.4.3).
    let path = film.dir.path().join("film@4.ts");
    let ids = headers(&path, "idr_pic_id");
    assert_eq!(ends(&path, &[0, 0, 1, 10]), 20);
    assert!(ids.len() >= 20 && ids.windows(2).all(|pair| pair[0] != pair[1]), "{ids:?}");
    assert_eq!(film.checked("-4"), backwards(20));
    assert_eq!(film.checked("-0.5"), backwards(20));
}

#[test]
fn very_fast_leaves_out_what_comes_too_often() {
    // A key picture each 40 ms is more than 30 a second at 2 x and more.
    let film = Fixture::new(8, &["-c:v", "libx264", "-preset", "ultrafast", "-g", "1"]);
    let pictures = film.checked("32");
    let (_, info) = film.volume.speeds_of(film.parent.id).unwrap().remove(0);
    assert!(pictures.len() <= 8 && pictures.len() >= 2, "a quarter of a second: {pictures:?}");
    assert!(pictures.windows(2).all(|pair| pair[1] - pair[0] >= 26), "{pictures:?}");
    assert!(info.notes[0].contains("left out"), "{:?}", info.notes);
    let slow = film.checked("-1");
    assert!(slow.windows(2).all(|pair| pair[0] > pair[1]), "{slow:?}");
}

#[test]
fn key_pictures_of_open_groups_stand_alone() {
    let open = [X264, &["-x264-params", "open-gop=1:bframes=3"]].concat();
    assert_eq!(Fixture::new(10, &open).checked("4"), keys(10));
    let plain = ["-coder", "0", "-slices", "3", "-x264-params", "open-gop=1:bframes=3:keyint=25:scenecut=0"];
    assert_eq!(Fixture::new(10, &[X264, &plain].concat()).checked("-4"), backwards(10));
}

#[test]
fn interlaced_frames_stand_alone() {
    for order in ["tff=1", "bff=1"] {
        let params = format!("{order}:open-gop=1:keyint=25:scenecut=0");
        let film = Fixture::new(8, &[X264, &["-x264-params", &params]].concat());
        assert_eq!(film.checked("4"), keys(8), "{order}");
        assert_eq!(film.checked("-4"), backwards(8), "{order}");
    }
}

#[test]
fn h265_and_mpeg2_are_shown_as_h264_is() {
    let h265 = |params| ["-c:v", "libx265", "-preset", "ultrafast", "-crf", "10", "-x265-params", params];
    for params in [
        "keyint=25:min-keyint=25:scenecut=0:open-gop=0:log-level=none",
        "keyint=25:min-keyint=25:scenecut=0:log-level=none",
    ] {
        let film = Fixture::new(8, &h265(params));
        assert_eq!(film.checked("4"), keys(8), "{params}");
        assert_eq!(ends(&film.dir.path().join("film@4.ts"), &[0, 0, 1, 0x48, 1]), 8);
        assert_eq!(film.checked("-4"), backwards(8), "{params}");
    }
    for more in [&["-bf", "2"][..], &["-flags", "+ilme+ildct"]] {
        let args = ["-c:v", "mpeg2video", "-b:v", "2M", "-g", "25", "-sc_threshold", "1000000000"];
        let film = Fixture::new(8, &[&args[..], more].concat());
        let mut keys = key_numbers(&film.dir.path().join("film.ts"));
        assert!(keys.len() >= 8, "{keys:?}");
        // One that comes in the last slots would be sent behind the end.
        let in_time: Vec<u64> = keys.iter().copied().filter(|&key| key + 10 < 8 * FPS).collect();
        assert_eq!(film.checked("4"), in_time, "{more:?}");
        let path = film.dir.path().join("film@4.ts");
        let groups = headers(&path, "closed_gop");
        assert_eq!(ends(&path, &[0, 0, 1, 0xb7]), in_time.len());
        assert_eq!(groups, vec![1; in_time.len()], "each picture is a group of its own");
        keys.reverse();
        keys.pop();
        assert_eq!(film.checked("-4"), keys, "{more:?}");
    }
}

#[test]
fn twice_as_fast_shows_all_that_others_refer_to() {
    // One picture in four is a reference: I or P, then three B pictures that no other picture
    // refers to.
    let params = ["-x264-params", "b-pyramid=none:b-adapt=0:bframes=3:scenecut=0:keyint=24:min-keyint=24"];
    let film = Fixture::new(10, &[X264, &params].concat());
    let pictures = film.checked("2");
    let of_all = numbers(&film.dir.path().join("film.ts"));
    assert_eq!(of_all.len(), 250);
    assert!(pictures.len() >= 60 && pictures.len() < 125, "{}", pictures.len());
    assert!(pictures.windows(2).all(|pair| pair[0] < pair[1] && pair[1] - pair[0] <= 4), "{pictures:?}");
    // Where all pictures are referred to, only key pictures are left.
    let film = Fixture::new(10, &[X264, &["-bf", "0"]].concat());
    assert_eq!(film.checked("2"), keys(10));
}

#[test]
fn slow_motion_shows_all_pictures() {
    let film = Fixture::new(6, X264);
    let pictures = film.checked("0.5");
    // The last ones would be sent behind the end.
    assert!(pictures.len() >= 6 * 25 - 4, "{}", pictures.len());
    assert_eq!(pictures, (0..pictures.len() as u64).collect::<Vec<_>>());
}

#[test]
fn slow_motion_of_a_quiet_film_has_a_variable_rate_and_sound_clocks() {
    // One picture throughout, except for its number: nearly all slots have the minimum number of
    // packets, and only key pictures take more. Audio makes the parent's rate high enough to allow
    // this.
    let still = format!("noise=alls=90,loop=-1:1:0,{NUMBER}");
    for seconds in [2, 4] {
        let keys = (seconds * FPS).to_string();
        let quiet = ["-vf", &still, "-t", "16", "-bf", "0", "-qp", "10", "-g", &keys, "-keyint_min", &keys];
        let film = with_sound(16, &[X264, &quiet].concat(), &["-c:a", "mp2", "-b:a", "384k"]);
        let (info, path) = film.one("0.5");
        trick_support::check_stream(&film.volume, &film.parent, &info);
        let pictures = numbers(&path);
        assert_eq!(pictures, (0..pictures.len() as u64).collect::<Vec<_>>(), "{seconds}");
        assert!(pictures.len() >= 16 * 25 - 8, "{}", pictures.len());
    }
}

#[test]
fn h265_in_fields_is_shown_as_frames_are() {
    // Fields as large as the other tests' frames, each with a number; a key picture each second, which is 50 fields.
    let fields = format!("scale=320:192,separatefields,{NUMBER}");
    let params = "interlace=tff:keyint=50:min-keyint=50:scenecut=0:open-gop=0:bframes=2:log-level=none";
    let h265 = ["-vf", &fields, "-c:v", "libx265", "-preset", "ultrafast", "-x265-params", params];
    let film = Fixture::new(16, &h265);
    let fields = headers(&film.dir.path().join("film.ts"), "field_seq_flag");
    assert!(!fields.is_empty() && fields.iter().all(|flag| *flag == 1), "{fields:?}");
    for (speed, least) in [("4", 8), ("3", 14), ("16", 3), ("-4", 8), ("0.5", 775)] {
        let (info, path) = film.one(speed);
        trick_support::check_stream(&film.volume, &film.parent, &info);
        let mut pictures = numbers(&path);
        if speed.starts_with('-') {
            pictures.reverse();
        }
        pictures.dedup();
        assert!(pictures.len() >= least, "{speed}: {pictures:?}");
        assert!(pictures.windows(2).all(|pair| pair[0] < pair[1]), "{speed}: {pictures:?}");
        let are_keys = pictures.iter().all(|number| number % 50 == 0);
        assert!(are_keys || speed == "0.5", "{speed}: {pictures:?}");
    }
}

/// Noise that stays makes key pictures large and all others small: sending one takes almost a second.
fn with_large_key_pictures() -> Fixture {
    let noise = ["-vf", &format!("noise=alls=90,{NUMBER}"), "-qp", "36", "-x264-params", "ipratio=30"];
    Fixture::new(8, &[X264, &noise].concat())
}

#[test]
fn key_pictures_larger_than_the_peak_rate_allows_are_left_out_not_late() {
    let pictures = with_large_key_pictures().checked("3");
    assert!((2..=3).contains(&pictures.len()), "in 2.67 s: {pictures:?}");
    assert!(pictures.windows(2).all(|pair| pair[0] < pair[1]), "{pictures:?}");
}

#[test]
fn pictures_are_repeated_only_if_the_next_is_not_late() {
    let film = with_large_key_pictures();
    let (info, path) = film.one("-1");
    assert_eq!(numbers(&path), backwards(8), "there is no room within a second");
    assert!(info.notes[0].starts_with("7 key pictures"), "{:?}", info.notes);
    let (info, path) = film.one("-0.25");
    let mut slow = numbers(&path);
    assert!(slow.len() >= 2 * 7, "in four seconds there is room: {slow:?}");
    slow.dedup();
    assert_eq!(slow, backwards(8));
    assert!(info.notes[0].starts_with("7 key pictures"), "{:?}", info.notes);
}

/// Packets of the pictures' PID, by their places.
fn packets_of(bytes: &[u8], pid: u16) -> Vec<usize> {
    let is_of = |packet: &[u8]| u16::from(packet[1] & 0x1f) << 8 | u16::from(packet[2]) == pid;
    (0..bytes.len() / 188).filter(|&n| is_of(&bytes[n * 188..n * 188 + 188])).collect()
}

#[test]
fn trick_title_omits_damaged_key_picture_of_parent() {
    let film = Fixture::changed(10, X264, |bytes| {
        // Within the key picture of second 4: the packet behind its first.
        let packets = packets_of(bytes, 0x100);
        let starts = packets.iter().enumerate().filter(|&(_, &n)| bytes[n * 188 + 1] & 0x40 != 0);
        let keys: Vec<usize> =
            starts.filter(|&(_, &n)| bytes[n * 188 + 5] & 0x40 != 0).map(|(i, _)| i).collect();
        let lost = packets[keys[4] + 1] * 188;
        bytes.drain(lost..lost + 188);
    });
    let mut expected = keys(10);
    expected.remove(4);
    assert_eq!(film.checked("4"), expected);
}

#[test]
fn trick_title_of_multi_program_stream_shows_one_program() {
    let more = ["-map", "0:v", "-map", "0:v", "-program", "st=0", "-program", "st=1"];
    let film = Fixture::new(6, &[X264, &more].concat());
    assert_eq!(film.checked("4"), keys(6));
}

/// Makes a film with a tone, coded as `sound` specifies.
fn with_sound(secs: u64, pictures: &[&str], sound: &[&str]) -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let (silent, path) = (dir.path().join("silent.ts"), dir.path().join("film.ts"));
    trick_support::film(&silent, secs, pictures);
    let sine = format!("sine=frequency=440:duration={secs}");
    let from = ["-i", silent.to_str().unwrap(), "-f", "lavfi", "-i", &sine, "-c:v", "copy"];
    trick_support::ffmpeg(&[&from[..], sound, &["-y", path.to_str().unwrap()]].concat());
    Fixture::changed(1, X264, |bytes| *bytes = std::fs::read(&path).unwrap())
}

#[test]
fn sound_is_left_out() {
    let film = with_sound(6, X264, &["-c:a", "aac"]);
    assert_eq!(film.parent.streams.len(), 2);
    let (info, path) = film.one("4");
    assert_eq!((info.streams.len(), numbers(&path)), (1, keys(6)));
}

fn refusal(secs: u64, more: &[&str], change: impl FnOnce(&mut Vec<u8>)) -> TrickError {
    let film = Fixture::changed(secs, more, change);
    let refusal = match film.make("-4") {
        Err(error) => error,
        Ok(mut made) => made.remove(0).result.unwrap_err(),
    };
    assert!(film.volume.derived_of(film.parent.id).unwrap().is_empty());
    assert_eq!(film.volume.titles().unwrap(), [film.parent]);
    refusal
}

#[test]
fn trick_title_from_unsuitable_source_is_refused() {
    // Only the first picture can be decoded alone.
    let refresh = ["-x264-params", "intra-refresh=1:keyint=250:bframes=0"];
    let error = refusal(8, &[X264, &refresh].concat(), |_| ());
    assert!(matches!(error, TrickError::NoKeyPictures { pictures: 200, .. }), "{error}");
    let error = refusal(2, &["-c:v", "mpeg4"], |_| ());
    assert!(matches!(&error, TrickError::Codec { codec } if codec == "MPEG-4 video"), "{error}");
    let error = refusal(4, X264, |bytes| {
        packets_of(bytes, 0x100).into_iter().for_each(|n| bytes[n * 188 + 3] |= 0x80);
    });
    assert!(matches!(error, TrickError::Scrambled), "{error}");
    let dir = tempfile::tempdir().unwrap();
    let radio = dir.path().join("radio.ts");
    let tone = ["-f", "lavfi", "-i", "sine=frequency=440:duration=4", "-c:a", "aac"];
    trick_support::ffmpeg(&[&tone[..], &[radio.to_str().unwrap()]].concat());
    let error = refusal(1, X264, |bytes| *bytes = std::fs::read(&radio).unwrap());
    assert!(matches!(error, TrickError::NoPictures), "{error}");
    let low = ["-b:v", "40k", "-maxrate", "50k", "-bufsize", "50k"];
    let error = refusal(8, &[X264, &low].concat(), |_| ());
    assert!(matches!(error, TrickError::NoRoom { .. }), "{error}");
}
