//! `millrace add --ladder`: renditions by the command line.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{fails, millrace, ok, run};
use serde_json::Value;

/// Makes a film of `secs` seconds with audio.
fn film(path: &Path, secs: u32) {
    let picture = format!("testsrc2=size=320x180:rate=25:duration={secs}");
    let tone = format!("sine=duration={secs}");
    let status = Command::new("ffmpeg")
        .args(["-nostdin", "-v", "error", "-f", "lavfi", "-i", &picture, "-f", "lavfi", "-i", &tone])
        .args(["-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", "-c:a", "aac"])
        .arg(path)
        .status();
    assert!(status.expect("these tests need ffmpeg: apt-get install ffmpeg").success());
}

/// Puts the renditions of one store together in another: each is an ordinary transport stream.
fn join(from: &Path, store: &Path, titles: &[Value]) {
    let at = ["--store", store.to_str().unwrap()];
    let file = |name: &str| {
        let title = titles.iter().find(|title| title["name"] == name).unwrap();
        from.join(format!("titles/{}/data.ts", title["id"].as_str().unwrap())).to_str().unwrap().to_owned()
    };
    ok(&["add", "--name", "film", &file("film"), at[0], at[1]]);
    let (good, bad) = (format!("90p={}", file("film@90p")), format!("90p={}", file("film@4")));
    let said = fails(&["add", "--join", "film=180p", &bad, at[0], at[1]]);
    assert!(
        said.contains("does not fit film") && said.contains("the title has H.264 on PID 256, AAC on PID 257"),
        "{said}"
    );
    assert!(fails(&["add", "--join", "film", &good, at[0], at[1]]).contains("--join film=LABEL"));
    let output = run(&["add", "--join", "film", &file("film@90p"), at[0], at[1]]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(ok(&["add", "--join", "film=180p", &good, at[0], at[1]]).contains("added film@90p"));
    assert!(ok(&["ls", at[0], at[1]]).contains("; as 180p, 90p"));
}

fn titles_of(args: &[&str]) -> Vec<Value> {
    let titles: Value = serde_json::from_str(&ok(args)).unwrap();
    titles.as_array().unwrap().clone()
}

fn names(args: &[&str]) -> Vec<String> {
    titles_of(args).iter().map(|title| title["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn renditions_are_added_listed_checked_and_removed_with_their_title() {
    let dir = tempfile::tempdir().unwrap();
    let (path, store) = (dir.path().join("film.mp4"), dir.path().join("store"));
    film(&path, 5);
    let (file, at) = (path.to_str().unwrap(), ["--store", store.to_str().unwrap()]);
    let with = |args: &[&str]| ok(&[args, &at].concat());
    let said = with(&["add", "--ladder", "180p:900k,90p:400k", "--trick=4", "--preset", "ultrafast", file]);
    assert!(said.contains("as 180p") && said.contains("as 90p") && said.contains("built speed 4"), "{said}");
    assert_eq!(names(&["ls", "--json", at[0], at[1]]), ["film"]);
    assert_eq!(names(&["ls", "--json", "--all", at[0], at[1]]), ["film", "film@4", "film@90p"]);
    assert!(with(&["ls"]).contains("; as 180p, 90p"));
    let titles: Value = serde_json::from_str(&with(&["ls", "--json"])).unwrap();
    assert_eq!(titles[0]["rendition"], "180p");
    assert_eq!(titles[0]["renditions"], serde_json::json!(["film", "film@90p"]));
    assert!(titles[0]["peak_bits_per_s"].as_u64().unwrap() <= 900_000, "{titles}");
    assert!(with(&["inspect", "film@90p"]).contains("rendition: 90p"));
    assert!(with(&["inspect", "--ts", "film@90p", "--quiet"]).contains("clean"));
    assert!(with(&["fsck", "--full"]).contains("every byte was read"));
    let other = dir.path().join("other");
    join(&store, &other, &titles_of(&["ls", "--json", "--all", at[0], at[1]]));
    with(&["rm", "film"]);
    assert_eq!(names(&["ls", "--json", "--all", at[0], at[1]]), Vec::<String>::new());
}

#[test]
fn ladder_killed_midway_resumes_with_finished_encodings() {
    let dir = tempfile::tempdir().unwrap();
    let (path, store) = (dir.path().join("film.mp4"), dir.path().join("store"));
    film(&path, 40);
    let at = ["--store", store.to_str().unwrap()];
    let add =
        ["add", "--ladder", "180p:900k,90p:400k", "--preset", "medium", path.to_str().unwrap(), at[0], at[1]];
    let mut child = millrace().args(add).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let tmp = store.join("tmp");
    let encoded = || {
        let works = fs::read_dir(&tmp).into_iter().flatten().flatten();
        let files = works.flat_map(|work| fs::read_dir(work.path()).into_iter().flatten().flatten());
        files.filter(|file| file.path().extension().is_some_and(|ext| ext == "ts")).count()
    };
    let begun = Instant::now();
    while encoded() == 0 {
        assert!(begun.elapsed() < Duration::from_secs(120), "the first rung does not come");
        std::thread::sleep(Duration::from_millis(2));
    }
    // As the kernel does it when memory is short: the program cannot clean up.
    child.kill().unwrap();
    assert!(!child.wait().unwrap().success(), "it was quicker than the test");
    let names = || names(&["ls", "--json", "--all", at[0], at[1]]);
    assert_eq!(names(), Vec::<String>::new());
    let said = ok(&add);
    assert!(said.contains("went on with 1 of 3 encodings"), "{said}");
    assert_eq!(names(), ["film", "film@90p"]);
    assert_eq!(fs::read_dir(&tmp).unwrap().count(), 0);
}

#[test]
fn wrong_lists_and_films_are_refused_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let (path, store) = (dir.path().join("film.mp4"), dir.path().join("store"));
    film(&path, 1);
    let (file, at) = (path.to_str().unwrap(), ["--store", store.to_str().unwrap()]);
    for (list, words) in [
        ("720:3M,480p:1M", "for example 720p:3M"),
        ("480p:1M,720p:3M", "write 720p:3M,480p:1M"),
        ("480p:1M,480p:900k", "480p is named twice"),
        (file, "a file stands before --ladder"),
    ] {
        let output = run(&["add", "--ladder", list, file, at[0], at[1]]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains(words), "{list}: {said}");
    }
    let refused = |args: &[&str], words: &str| {
        let said = fails(&[&["add", file][..], args, &at].concat());
        assert!(said.contains(words), "{said}");
    };
    refused(&["--ladder"], "320 x 180, too small for the usual list");
    refused(&["--ladder=720p:3M,480p:1M"], "720p is larger than the film");
    refused(&["--ladder=180p:900k,90p:400k", "--ffmpeg", "/nowhere/ffmpeg"], "cannot be started");
    assert_eq!(names(&["ls", "--json", "--all", at[0], at[1]]), Vec::<String>::new());
}
