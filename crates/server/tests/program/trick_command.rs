//! `millrace trick` and `add --trick`: speeds of a title by the command line.

use std::path::Path;
use std::process::Command;

use crate::support::{fails, ok, run};
use serde_json::Value;

/// A film; `codec` comes before the file's name.
fn film(path: &Path, codec: &[&str]) {
    let source = ["-nostdin", "-v", "error", "-f", "lavfi", "-i", "testsrc2=size=320x180:rate=25:duration=8"];
    let status = Command::new("ffmpeg").args(source).args(codec).arg(path).status();
    assert!(status.expect("these tests need ffmpeg: apt-get install ffmpeg").success());
}

const H264: &[&str] = &["-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", "-g", "5"];

fn names(args: &[&str]) -> Vec<String> {
    let titles: Value = serde_json::from_str(&ok(args)).unwrap();
    titles.as_array().unwrap().iter().map(|title| title["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn speeds_are_built_listed_and_removed_with_their_title() {
    let dir = tempfile::tempdir().unwrap();
    let (path, store) = (dir.path().join("film.ts"), dir.path().join("store"));
    film(&path, H264);
    let (file, at) = (path.to_str().unwrap(), ["--store", store.to_str().unwrap()]);
    let with = |args: &[&str]| ok(&[args, &at].concat());
    let said = with(&["add", "--trick", file]);
    for speed in ["4", "16", "-4", "-16"] {
        assert!(said.contains(&format!("built speed {speed} ")), "{said}");
    }
    let of_all = ["film", "film@-16", "film@-4", "film@16", "film@4"];
    assert_eq!(names(&["ls", "--json", at[0], at[1]]), ["film"]);
    assert_eq!(names(&["ls", "--json", "--all", at[0], at[1]]), of_all);
    assert!(!with(&["ls"]).contains('@') && !with(&["ls", "--urls", "rtsp://tv/"]).contains('@'));
    let shown: Value = serde_json::from_str(&with(&["inspect", "film@-16", "--json"])).unwrap();
    assert!(shown.to_string().contains("\"scale\":\"-16\""), "{shown}");
    let said = with(&["trick", "film", "--speeds", "-4,0.5"]);
    assert!(said.contains("speed -4 is there already") && said.contains("built speed 0.5 "), "{said}");
    assert!(with(&["fsck", "--full"]).contains("every byte was read"));
    with(&["trick", "film", "--remove", "--speeds=4,16"]);
    let fails_with = |args: &[&str]| fails(&[args, &at].concat());
    assert!(fails_with(&["trick", "film", "--remove", "--speeds=4"]).contains("film: has no speed 4"));
    assert!(fails_with(&["trick", "film@-4"]).contains("derived from another title"));
    assert!(fails_with(&["trick", "film", "--speeds=1"]).contains("speed 1 is the title itself"));
    assert_eq!(run(&["trick", "film", "--speeds=33"]).status.code(), Some(2));
    // The pattern means titles of their own: speeds are gone by then.
    with(&["rm", "*"]);
    assert_eq!(names(&["ls", "--json", "--all", at[0], at[1]]), Vec::<String>::new());
}

#[test]
fn add_with_trick_of_unsupported_codec_still_adds_title() {
    let dir = tempfile::tempdir().unwrap();
    let (path, store) = (dir.path().join("film.ts"), dir.path().join("store"));
    film(&path, &["-c:v", "mpeg4"]);
    let at = ["--store", store.to_str().unwrap()];
    let said = fails(&["add", "--trick=8", path.to_str().unwrap(), at[0], at[1]]);
    assert!(said.contains("film: no other speeds: its pictures are MPEG-4 video"), "{said}");
    assert_eq!(names(&["ls", "--json", "--all", at[0], at[1]]), ["film"]);
}
