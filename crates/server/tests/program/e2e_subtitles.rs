//! Subtitles of real films: from containers, from files beside them, uploaded and removed. The
//! tests check the playlists, with the times of the pictures, the API, and the files.

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::support::http;
use crate::support::{Server, add, fails, film, ok, run};
use serde_json::Value;

/// Longer than any step takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Start and end, in seconds, of the white picture and of its subtitle.
const WHITE: (f64, f64) = (3.0, 4.0);

const SRT: &str = "1\n00:00:03,000 --> 00:00:04,000\n<i>white</i> & <script>alert(1)</script>\n\n\
    2\n00:00:05,900 --> 00:00:06,500\nacross a cut\n";

const ASS: &str = "[Script Info]\nScriptType: v4.00+\n\n[V4+ Styles]\nFormat: Name, Fontname, Fontsize, Bold, Italic, Alignment\n\
    Style: Default,Arial,16,0,0,2\n\n[Events]\nFormat: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text\n\
    Dialogue: 0,0:00:03.00,0:00:04.00,Default,,0,0,0,,{\\an8}sign {\\b1}white{\\b0}\n";

fn ffmpeg(args: &[&str]) -> String {
    let done = Command::new("ffmpeg").args(["-nostdin", "-v", "error", "-y"]).args(args).output();
    let done = done.expect("ffmpeg can be started");
    assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// A Matroska film of 8 s with two subtitle tracks. The picture is black, except for one white
/// second.
fn mkv(dir: &Path, name: &str) -> PathBuf {
    let path = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    fs::write(path("in.srt.txt"), SRT).unwrap();
    fs::write(path("in.ass.txt"), ASS).unwrap();
    let white =
        format!("drawbox=c=white:t=fill:enable='gte(t,{})*lt(t,{})'", WHITE.0 - 0.001, WHITE.1 - 0.001);
    ffmpeg(&[
        "-f",
        "lavfi",
        "-i",
        "color=black:size=320x180:rate=25:duration=8",
        "-f",
        "lavfi",
        "-i",
        "sine=duration=8",
        "-f",
        "srt",
        "-i",
        &path("in.srt.txt"),
        "-f",
        "ass",
        "-i",
        &path("in.ass.txt"),
        "-map",
        "0",
        "-map",
        "1",
        "-map",
        "2",
        "-map",
        "3",
        "-vf",
        &white,
        "-c:v",
        "libx264",
        "-preset",
        "ultrafast",
        "-pix_fmt",
        "yuv420p",
        "-bf",
        "3",
        "-g",
        "25",
        "-c:a",
        "aac",
        "-c:s:0",
        "srt",
        "-c:s:1",
        "ass",
        "-metadata:s:s:0",
        "language=ger",
        "-metadata:s:s:1",
        "language=eng",
        "-metadata:s:s:1",
        "title=Signs \"and\" more",
        "-disposition:s:1",
        "forced",
        &path(name),
    ]);
    dir.join(name)
}

fn get(address: SocketAddr, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let (head, body) = http::get(&mut stream, path, "");
    (head.lines().next().unwrap_or_default().to_owned(), String::from_utf8_lossy(&body).into_owned())
}

fn text(address: SocketAddr, path: &str) -> String {
    let (status, body) = get(address, path);
    assert!(status.contains(" 200 "), "{path}: {status} {body}");
    body
}

/// Sends a PUT or DELETE; returns the status and the body of the response.
fn change(address: SocketAddr, method: &str, path: &str, body: &[u8]) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let length = body.len();
    // Ask before sending a long body, because unread bytes could make the response get lost.
    let expects = if length > 1 << 20 { "Expect: 100-continue\r\n" } else { "" };
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n{expects}\r\n"
    )
    .unwrap();
    if expects.is_empty() {
        stream.write_all(body).unwrap();
    }
    let (head, said) = http::answer(&mut stream);
    (head[9..12].parse().unwrap(), String::from_utf8_lossy(&said).into_owned())
}

/// The subtitles of a title as the API lists them.
fn listed(address: SocketAddr, title: &str) -> Vec<Value> {
    let title: Value = serde_json::from_str(&text(address, &format!("/api/v1/titles/{title}"))).unwrap();
    title["subtitles"].as_array().unwrap().clone()
}

fn labels(address: SocketAddr, title: &str) -> Vec<String> {
    listed(address, title).iter().map(|one| one["label"].as_str().unwrap().to_owned()).collect()
}

/// The lines for subtitles in a master playlist.
fn renditions(master: &str) -> Vec<String> {
    master.lines().filter(|line| line.contains("TYPE=SUBTITLES")).map(str::to_owned).collect()
}

fn uri(line: &str) -> &str {
    line.split("URI=\"").nth(1).unwrap().split('"').next().unwrap()
}

fn ms(text: &str) -> i64 {
    let parts: Vec<i64> = text.split([':', '.']).map(|part| part.parse().unwrap()).collect();
    ((parts[0] * 60 + parts[1]) * 60 + parts[2]) * 1000 + parts[3]
}

/// Time stamps of the start and end of the first cue with a text, from the segments of a playlist.
fn stamps(address: SocketAddr, playlist: &str, wanted: &str) -> (i64, i64) {
    let folder = playlist.rsplit_once('/').unwrap().0;
    for segment in text(address, playlist).lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let vtt = text(address, &format!("{folder}/{segment}"));
        let map = vtt.lines().nth(1).unwrap().strip_prefix("X-TIMESTAMP-MAP=LOCAL:").unwrap();
        let (local, stamp) = map.split_once(",MPEGTS:").unwrap();
        let (local, stamp): (i64, i64) = (ms(local), stamp.parse().unwrap());
        if let Some(block) = vtt.split("\n\n").find(|block| block.contains(wanted)) {
            let (start, rest) = block.lines().next().unwrap().split_once(" --> ").unwrap();
            let of = |time: &str| stamp + (ms(time) - local) * 90;
            return (of(start), of(rest.split(' ').next().unwrap()));
        }
    }
    panic!("{playlist}: no cue has {wanted:?}");
}

/// Time stamps of the first white picture and of the first black one after it.
fn white_pictures(file: &Path) -> (i64, i64) {
    let filter = "signalstats,metadata=print:key=lavfi.signalstats.YAVG:file=-";
    let said =
        ffmpeg(&["-copyts", "-i", file.to_str().unwrap(), "-map", "0:v", "-vf", filter, "-f", "null", "-"]);
    let mut pictures = Vec::new();
    for line in said.lines() {
        if let Some(time) = line.split("pts_time:").nth(1) {
            pictures.push(((time.trim().parse::<f64>().unwrap() * 90_000.0).round() as i64, 0.0));
        } else if let Some(luma) = line.strip_prefix("lavfi.signalstats.YAVG=") {
            pictures.last_mut().unwrap().1 = luma.trim().parse().unwrap();
        }
    }
    let first = pictures.iter().position(|(_, luma)| *luma > 128.0).expect("a white picture");
    let last =
        first + pictures[first..].iter().position(|(_, luma)| *luma < 128.0).expect("a black one behind it");
    (pictures[first].0, pictures[last].0)
}

/// Asserts that a text appears with the white pictures of a title, in both kinds of segments.
fn assert_in_step(address: SocketAddr, dir: &Path, title: &str, number: u16, wanted: &str) {
    let stream = dir.join("fetched.ts");
    let mut connection = TcpStream::connect(address).unwrap();
    connection.set_read_timeout(Some(LIMIT)).unwrap();
    fs::write(&stream, http::get(&mut connection, &format!("/titles/{title}.ts"), "").1).unwrap();
    let white = white_pictures(&stream);
    let cut = stamps(address, &format!("/titles/{title}/subtitles/{number}.m3u8"), wanted);
    // The tolerance is half a picture.
    let is_near = |a: i64, b: i64| a.abs_diff(b) <= 1800;
    assert!(
        is_near(cut.0, white.0) && is_near(cut.1, white.1),
        "{title}: shown at {cut:?}, white at {white:?}"
    );

    let list = format!("/titles/{title}/cmaf/256.m3u8");
    let media = text(address, &list);
    let folder = format!("/titles/{title}/cmaf");
    let init = media.lines().find(|line| line.starts_with("#EXT-X-MAP")).map(uri).unwrap();
    let segments = media.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let mut made = Vec::new();
    for piece in [init].into_iter().chain(segments) {
        let mut connection = TcpStream::connect(address).unwrap();
        connection.set_read_timeout(Some(LIMIT)).unwrap();
        made.extend(http::get(&mut connection, &format!("{folder}/{piece}"), "").1);
    }
    let file = dir.join("fetched.mp4");
    fs::write(&file, made).unwrap();
    let white = white_pictures(&file);
    let cut = stamps(address, &format!("/titles/{title}/cmaf/subtitles/{number}.m3u8"), wanted);
    assert!(is_near(cut.0, white.0) && is_near(cut.1, white.1), "{title}, CMAF: {cut:?}, white at {white:?}");
}

#[test]
fn subtitles_of_containers_are_listed_and_shown_with_their_pictures() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let source = mkv(dir.path(), "film.mkv");
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    ffmpeg(&["-i", &path("film.mkv"), "-map", "0", "-c", "copy", "-c:s", "mov_text", &path("edited.mp4")]);
    // Begins within a group of pictures: the file has the earlier pictures, and an edit list skips
    // them.
    ffmpeg(&[
        "-ss",
        "1.3",
        "-i",
        &path("film.mkv"),
        "-map",
        "0",
        "-c",
        "copy",
        "-c:s",
        "mov_text",
        &path("cut.mp4"),
    ]);
    // Begins at another time than 0.
    ffmpeg(&[
        "-itsoffset",
        "20",
        "-i",
        &path("film.mkv"),
        "-map",
        "0",
        "-c",
        "copy",
        "-copyts",
        &path("late.mkv"),
    ]);
    for name in ["film.mkv", "edited.mp4", "cut.mp4", "late.mkv"] {
        add(&dir.path().join(name), &store);
    }
    // A subtitle file beside a transport stream, which is stored unchanged.
    fs::create_dir(dir.path().join("ts")).unwrap();
    ffmpeg(&[
        "-i",
        source.to_str().unwrap(),
        // Without sound, which begins a little earlier: the times of a file beside a stream count from its first time stamp.
        "-map",
        "0:v",
        "-c",
        "copy",
        &path("ts/stream.ts"),
    ]);
    fs::write(path("ts/stream.de.srt"), SRT).unwrap();
    add(&dir.path().join("ts/stream.ts"), &store);

    let server = Server::start(&store, &[]);
    let page = server.page();
    for title in ["film", "edited", "cut", "late", "stream"] {
        assert_in_step(page, dir.path(), title, 1000, "white");
    }
    let found = listed(page, "film");
    assert_eq!(labels(page, "film"), ["de", "en.forced"]);
    assert_eq!((&found[0]["language"], &found[0]["is_forced"]), (&"de".into(), &false.into()));
    assert_eq!((&found[1]["name"], &found[1]["is_forced"]), (&"Signs and more, forced".into(), &true.into()));
    let whole = text(page, found[0]["file"].as_str().unwrap());
    // The audio begins a little before the video, and the title's times count from the audio.
    assert!(whole.starts_with("WEBVTT\n\n00:00:03.0"), "{whole}");
    assert!(whole.contains("\n<i>white</i> &amp; alert(1)\n\n00:00:05.9"), "{whole}");
    let signs = text(page, found[1]["file"].as_str().unwrap());
    assert!(signs.contains("line:0\nsign <b>white</b>\n"), "{signs}");
    for master in ["/titles/film/index.m3u8", "/titles/film/cmaf.m3u8"] {
        let list = text(page, master);
        let found = renditions(&list);
        assert_eq!(found.len(), 2, "{list}");
        assert!(found[0].contains("LANGUAGE=\"de\"") && !found[0].contains("FORCED"), "{list}");
        assert!(
            found[1].contains("NAME=\"Signs and more, forced\"") && found[1].contains("FORCED=YES"),
            "{list}"
        );
        assert!(list.contains("SUBTITLES=\"subtitles\""), "{list}");
        // ffmpeg reads the segments of a rendition as one file.
        let url = format!("http://{page}/titles/film/{}", uri(&found[0]));
        let read = ffmpeg(&["-i", &url, "-f", "webvtt", "-"]);
        assert!(read.contains("white") && read.contains("across a cut"), "{read}");
    }
}

#[test]
fn subtitles_are_uploaded_replaced_and_removed_by_http_and_by_commands() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    add(&film(dir.path(), "film.ts", 8), &store);
    // As in a store that has not changed for a long time, where the titles are not all read again.
    let hour_ago = std::time::SystemTime::now() - Duration::from_secs(3600);
    fs::File::open(store.join("titles")).unwrap().set_modified(hour_ago).unwrap();
    let server = Server::start(&store, &[]);
    let page = server.page();
    let at = |label: &str| format!("/titles/film/subtitles/{label}");
    assert_eq!(change(page, "PUT", &at("de.vtt"), b"WEBVTT\n\n00:01.000 --> 00:02.000\nhallo\n").0, 201);
    assert_eq!(labels(page, "film"), ["de"]);
    let list = text(page, "/titles/film/subtitles/1000.m3u8");
    assert_eq!(change(page, "PUT", &at("ger.srt"), SRT.as_bytes()).0, 204, "the same language");
    assert!(text(page, &at("de.vtt")).contains("across a cut"));
    assert_ne!(text(page, "/titles/film/subtitles/1000.m3u8"), list, "other text has other addresses");
    let old = list.lines().find(|line| line.ends_with(".vtt")).unwrap();
    assert!(get(page, &at(old)).0.contains(" 404 "));
    assert_eq!(change(page, "PUT", &at("pt-br.sdh.srt"), ASS.as_bytes()).0, 201);
    assert_eq!(labels(page, "film"), ["de", "pt-BR.sdh"]);
    let master = text(page, "/titles/film/index.m3u8");
    assert!(renditions(&master)[1].contains("public.accessibility.transcribes-spoken-dialog"), "{master}");

    let huge = vec![b'x'; (16 << 20) + 1];
    for (path, body, status, words) in [
        (at("de.vtt"), &b"no subtitles"[..], 400, "no cue found"),
        (at("de.vtt"), b"", 400, "no cue found"),
        (at("de.txt"), b"", 400, ".vtt or .srt"),
        (at("english.vtt"), b"", 400, "is not a track label"),
        ("/titles/gone/subtitles/de.vtt".to_owned(), SRT.as_bytes(), 404, "no such title"),
        (at("de.vtt"), &huge, 413, "16MiB"),
    ] {
        let (found, said) = change(page, "PUT", &path, body);
        assert!(found == status && said.contains(words), "{path}: {found} {said}");
    }
    assert!(text(page, &at("de.vtt")).contains("across a cut"), "what was refused has changed nothing");

    assert_eq!(change(page, "DELETE", &at("de.vtt"), b"").0, 204);
    assert_eq!(change(page, "DELETE", &at("de.vtt"), b"").0, 404);
    assert!(get(page, &at("de.vtt")).0.contains(" 404 "));

    let (signs, url) = (dir.path().join("film.en.forced.ass"), format!("http://{page}/"));
    fs::write(&signs, ASS).unwrap();
    let signs = signs.to_str().unwrap();
    let said = ok(&["add", "--subtitles", "film", signs, "--server", &url]);
    assert!(said.contains("added subtitles en.forced to film"), "{said}");
    ok(&["add", "--subtitles", "film", &format!("fr={signs}"), "--server", &url]);
    assert_eq!(labels(page, "film"), ["en.forced", "fr", "pt-BR.sdh"]);
    ok(&["rm", "film", "--subtitles", "fr", "--server", &url]);
    drop(server);

    let store = store.to_str().unwrap();
    ok(&["add", "--subtitles", "film", &format!("it={signs}"), "--store", store]);
    ok(&["rm", "film", "--subtitles", "pt-BR.sdh", "--store", store]);
    let said = fails(&["rm", "film", "--subtitles", "pt-BR.sdh", "--store", store]);
    assert!(said.contains("no subtitles pt-BR.sdh"), "{said}");
    let nameless = dir.path().join("film.srt");
    fs::write(&nameless, SRT).unwrap();
    let done = run(&["add", "--subtitles", "film", nameless.to_str().unwrap(), "--store", store]);
    assert_eq!(done.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&done.stderr).contains("write LANGUAGE="));
    let list: Value = serde_json::from_str(&ok(&["ls", "--json", "--store", store])).unwrap();
    let labels: Vec<_> =
        list[0]["subtitles"].as_array().unwrap().iter().map(|track| &track["label"]).collect();
    assert_eq!(labels, ["en.forced", "it"]);
    assert!(ok(&["fsck", "--full", "--store", store]).contains("no problem"));
}

#[test]
fn subtitles_beside_a_film_are_added_with_it_and_when_they_come_later() {
    let dir = tempfile::tempdir().unwrap();
    let (store, films) = (dir.path().join("store"), dir.path().join("films"));
    fs::create_dir(&films).unwrap();
    film(&films, "film.ts", 4);
    fs::write(films.join("film.en.srt"), SRT).unwrap();
    // Neither of these files prevents the film from being added.
    fs::write(films.join("film.fr.srt"), [0u8, 159, 146, 150].repeat(1000)).unwrap();
    fs::write(films.join("film.it.vtt"), vec![b'x'; (16 << 20) + 1]).unwrap();
    let mut server = Server::start(&store, &[films.to_str().unwrap()]);
    let page = server.page();
    server.wait_for("film: left out: film.it.vtt", LIMIT);
    assert!(!server.said("film.fr.srt: subtitles: no cue found").is_empty());
    // The title is listed a moment after this was logged.
    wait_for_label(page, "en");
    assert_eq!(labels(page, "film"), ["en"]);
    fs::write(films.join("film.de.forced.srt"), SRT).unwrap();
    server.wait_for("film.de.forced.srt added", LIMIT);
    wait_for_label(page, "de.forced");
    fs::write(films.join("film.en.srt"), SRT.replace("across", "along")).unwrap();
    server.wait_for("film.en.srt added", LIMIT);
    drop(server);
    let mut server = Server::start(&store, &[films.to_str().unwrap()]);
    let page = server.page();
    assert_eq!(labels(page, "film"), ["de.forced", "en"]);
    assert!(text(page, "/titles/film/subtitles/en.vtt").contains("along a cut"));
    assert!(server.said("srt added").is_empty(), "nothing is added twice");
}

/// Waits for a label, because the list of titles is updated a moment after the subtitles are
/// stored.
fn wait_for_label(page: SocketAddr, label: &str) {
    let end = std::time::Instant::now() + LIMIT;
    let is_listed = || {
        let is_there = get(page, "/api/v1/titles/film").0.contains(" 200 ");
        is_there && labels(page, "film").iter().any(|other| other == label)
    };
    while !is_listed() {
        assert!(std::time::Instant::now() < end, "never listed: {label}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
