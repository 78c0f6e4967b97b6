//! Posters and seek pictures of a running server: their contents, that they are kept and removed
//! with their title, and the messages without ffmpeg or with one that hangs.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::real_disks::until;
use crate::support::{Server, add, film, header, ok, read_head};
use serde_json::Value;

/// Longer than anything here takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);
/// Seconds that each colour is shown, and the colours.
const EACH_S: u64 = 4;
const COLOURS: [[u8; 3]; 3] = [[255, 0, 0], [0, 128, 0], [0, 0, 255]];

/// Red, green, blue, a key picture each second.
fn colours(dir: &Path, codec: &[&str]) -> PathBuf {
    let path = dir.join("colours.ts");
    let mut command = Command::new("ffmpeg");
    command.args(["-v", "error", "-nostdin", "-y"]);
    for colour in ["red", "green", "blue"] {
        command.args(["-f", "lavfi", "-i", &format!("color={colour}:s=320x180:r=25:d={EACH_S}")]);
    }
    command
        .args(["-filter_complex", "[0][1][2]concat=n=3", "-g", "25", "-pix_fmt", "yuv420p"])
        .args(codec)
        .arg(&path);
    assert!(command.status().expect("ffmpeg can be started").success());
    path
}

fn site(store: &Path, args: &[&str]) -> (Server, SocketAddr) {
    let server = Server::start(store, args);
    let page = server.page();
    (server, page)
}

fn get(address: SocketAddr, path: &str) -> (String, Vec<u8>) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let head = read_head(&mut stream);
    let bytes = header(&head, "Content-Length").map_or(0, |bytes| bytes.parse().expect("a number"));
    let mut body = vec![0; bytes];
    stream.read_exact(&mut body).expect("a whole body");
    (head, body)
}

fn title(address: SocketAddr, name: &str) -> Value {
    serde_json::from_slice(&get(address, &format!("/api/v1/titles/{name}")).1).unwrap()
}

/// Width, height and the pixels of a JPEG, three bytes each.
fn pixels(jpeg: &[u8], dir: &Path) -> (usize, usize, Vec<u8>) {
    let path = dir.join("picture.jpg");
    std::fs::write(&path, jpeg).unwrap();
    let probe = Command::new("ffprobe")
        .args(["-v", "error", "-show_entries", "stream=width,height", "-of", "csv=p=0"])
        .arg(&path)
        .output()
        .expect("ffprobe can be started");
    let size = String::from_utf8(probe.stdout).unwrap();
    let (width, height) = size.trim().split_once(',').unwrap_or_else(|| panic!("no JPEG: {size}"));
    let decoded = Command::new("ffmpeg")
        .args(["-v", "error", "-nostdin", "-i"])
        .arg(&path)
        .args(["-f", "rawvideo", "-pix_fmt", "rgb24", "pipe:1"])
        .stdin(Stdio::null())
        .output()
        .expect("ffmpeg can be started");
    (width.parse().unwrap(), height.parse().unwrap(), decoded.stdout)
}

/// Each small picture matches the title at its time.
fn show_what_is_there(codec: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    add(&colours(dir.path(), codec), &store);
    let (mut server, address) = site(&store, &[]);
    until("the pictures are made", LIMIT, || title(address, "colours")["pictures"] == "made");
    let found = title(address, "colours");
    let (head, list) = get(address, found["sprites"].as_str().unwrap());
    assert!(head.contains("immutable"), "{head}");
    let list = String::from_utf8(list).unwrap();
    let sheet = list.lines().find_map(|line| line.split_once("#xywh=")).unwrap().0.to_owned();
    let (width, height, pixels_of_sheet) =
        pixels(&get(address, &format!("/titles/colours/{sheet}")).1, dir.path());
    assert_eq!((width, height), (1600, 90));
    let cues: Vec<_> = list.split("\n\n").skip(1).collect();
    assert!((5..=7).contains(&cues.len()), "one each 2 s of 12: {list}");
    for cue in cues {
        let (times, place) = cue.split_once('\n').unwrap();
        let seconds: f64 = times.split(" --> ").next().unwrap().rsplit(':').next().unwrap().parse().unwrap();
        let place: Vec<usize> =
            place.trim().split_once("#xywh=").unwrap().1.split(',').map(|n| n.parse().unwrap()).collect();
        let at = ((place[1] + place[3] / 2) * width + place[0] + place[2] / 2) * 3;
        let wanted = COLOURS[(seconds + 0.1) as usize / EACH_S as usize];
        let shown = &pixels_of_sheet[at..at + 3];
        assert!(
            shown.iter().zip(wanted).all(|(a, b)| a.abs_diff(b) < 40),
            "{codec:?} at {seconds} s: {shown:?}, not {wanted:?}"
        );
    }
    let (width, height, _) = pixels(&get(address, found["poster"].as_str().unwrap()).1, dir.path());
    assert_eq!((width, height), (640, 360));
    assert!(server.interrupt());
}

#[test]
fn small_pictures_show_what_the_title_shows_then() {
    show_what_is_there(&["-c:v", "libx264", "-preset", "ultrafast"]);
}

#[test]
fn small_pictures_of_mpeg2_do_too() {
    show_what_is_there(&["-c:v", "mpeg2video", "-b:v", "2M"]);
}

#[test]
fn pictures_are_kept_and_go_with_their_title() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    add(&film(dir.path(), "film.ts", 6), &store);
    let (mut server, address) = site(&store, &[]);
    until("the pictures are made", LIMIT, || title(address, "film")["pictures"] == "made");
    let before = title(address, "film");
    let files = || std::fs::read_dir(store.join("pictures")).unwrap().count();
    assert_eq!(files(), 1, "and nothing of the work is left");
    assert!(server.interrupt());
    assert!(ok(&["fsck", "--store", store.to_str().unwrap()]).contains("no problem"));
    // Without ffmpeg, existing pictures are shown, others are not made, and the server reports it.
    add(&film(dir.path(), "other.ts", 6), &store);
    let (mut server, address) = site(&store, &["--ffmpeg", "/no/such/program"]);
    until("the pictures are found", LIMIT, || title(address, "film") == before);
    until("it is said why there are none", LIMIT, || {
        title(address, "other")["pictures"].as_str().unwrap().contains("ffmpeg, which cannot be started")
    });
    let (head, _) = get(address, "/titles/other/poster.jpg");
    assert!(head.starts_with("HTTP/1.1 404 "), "{head}");
    ok(&["rm", "film", "--store", store.to_str().unwrap()]);
    until("they go with their title", LIMIT, || files() == 0);
    assert!(server.interrupt());
}

/// Titles beyond the space for pictures get theirs when others are removed.
#[test]
fn title_without_space_for_pictures_gets_them_once_another_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    for (name, secs) in [("one", 6), ("two", 7)] {
        add(&film(dir.path(), &format!("{name}.ts"), secs), &store);
    }
    // The first pictures that are made are more than that.
    let (mut server, address) = site(&store, &["--picture-space", "1KiB"]);
    let state = |name: &str| title(address, name)["pictures"].as_str().unwrap_or_default().to_owned();
    let has_first =
        |made: &str, other: &str| state(made) == "made" && state(other).contains("--picture-space");
    until("one has pictures, the other no space", LIMIT, || {
        has_first("one", "two") || has_first("two", "one")
    });
    let (made, other) = if state("one") == "made" { ("one", "two") } else { ("two", "one") };
    ok(&["rm", made, "--store", store.to_str().unwrap()]);
    until("the other has pictures too", LIMIT, || state(other) == "made");
    assert!(server.interrupt());
}

/// What ffmpeg does with a hostile title is bounded; here it is one that hangs. The server ends all the same, and so does ffmpeg.
#[test]
fn ffmpeg_that_hangs_is_terminated_at_server_shutdown() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    add(&film(dir.path(), "film.ts", 6), &store);
    let (program, mark) = (dir.path().join("ffmpeg"), dir.path().join("pid"));
    std::fs::write(&program, format!("#!/bin/sh\necho $$ > {}\nexec sleep 600\n", mark.display())).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let (mut server, address) =
        site(&store, &["--ffmpeg", program.to_str().unwrap(), "--ffmpeg-sandbox", "off"]);
    until("it is begun", LIMIT, || std::fs::read_to_string(&mark).is_ok_and(|pid| !pid.is_empty()));
    assert_eq!(title(address, "film")["pictures"], "waiting");
    assert!(server.interrupt());
    let pid = std::fs::read_to_string(&mark).unwrap();
    until("ffmpeg has ended", LIMIT, || !Path::new("/proc").join(pid.trim()).exists());
    assert_eq!(std::fs::read_dir(store.join("pictures")).unwrap().count(), 0, "nothing is left");
    let (mut server, address) = site(&store, &["--picture-space", "0B"]);
    until("none are wanted", LIMIT, || {
        title(address, "film")["pictures"].as_str().unwrap().contains("--picture-space")
    });
    assert!(server.interrupt());
}
