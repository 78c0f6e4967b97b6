//! Channels: stored titles in a loop as a live title, by RTSP, HTTP and HLS, and to multicast.

use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::e2e_cast::{Collector, faults};
use crate::support::http::get;
use crate::support::{Server, add, film};

const TIMEOUT: Duration = Duration::from_secs(30);

/// The channel in the API.
fn state(server: &Server) -> Value {
    let mut stream = TcpStream::connect(server.page()).unwrap();
    let (_, body) = get(&mut stream, "/api/v1/live", "");
    serde_json::from_slice::<Value>(&body).unwrap()["live"][0].clone()
}

fn until(server: &Server, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let end = Instant::now() + TIMEOUT;
    loop {
        let state = state(server);
        if is_so(&state) {
            return state;
        }
        assert!(Instant::now() < end, "{what}: {state}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Pictures of the first `frames` that ffmpeg decodes, and its complaints.
fn decoded(url: &str, input: &[&str], frames: usize) -> (usize, String) {
    let mut ffmpeg = Command::new("ffmpeg");
    ffmpeg.args(["-hide_banner", "-nostdin", "-v", "error"]).args(input).args(["-i", url]);
    ffmpeg.args(["-map", "0:v", "-frames:v", &frames.to_string(), "-f", "framemd5", "-"]);
    let output = ffmpeg.output().unwrap();
    let frames = String::from_utf8_lossy(&output.stdout);
    let count = frames.lines().filter(|line| !line.starts_with('#')).count();
    (count, String::from_utf8_lossy(&output.stderr).into_owned())
}

fn write_config(dir: &Path, items: &str, to: &str) -> String {
    let path = dir.join("millrace.toml");
    let text = format!("[[channel]]\nname = \"lobby\"\nitems = {items}\nto = [{to}]\n");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn channel_of_titles_is_served_by_every_protocol_and_to_multicast() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    for name in ["one.ts", "two.ts"] {
        add(&film(dir.path(), name, 2), &store);
        std::fs::remove_file(dir.path().join(name)).unwrap();
    }
    let collector = Collector::of_group();
    let to = format!("\"udp://{}?iface=127.0.0.1\"", collector.at);
    let config = write_config(dir.path(), r#"["one", "gone; lost", "two"]"#, &to);
    let mut server = Server::start(&store, &["--config", &config]);
    let skips = |state: &Value| state["channel"]["skipped"][0]["item"] == "gone; lost";
    until(&server, "skips the item that is missing", skips);
    // Seams lie in each of these: a title has 50 pictures.
    let http = format!("http://{}/live/lobby.ts", server.page());
    assert_eq!(decoded(&http, &[], 120), (120, String::new()));
    assert_eq!(decoded(&server.title("live/lobby"), &["-rtsp_transport", "tcp"], 120), (120, String::new()));
    let mut stream = TcpStream::connect(server.page()).unwrap();
    let (_, master) = get(&mut stream, "/live/lobby/index.m3u8", "");
    let master = String::from_utf8_lossy(&master).into_owned();
    let media = master.lines().last().unwrap_or_default();
    let (head, body) = get(&mut stream, &format!("/live/lobby/{media}"), "");
    let playlist = String::from_utf8_lossy(&body);
    assert!(head.contains(" 200 ") && playlist.matches("#EXTINF").count() >= 3, "{head}{playlist}");
    assert_eq!(server.said("channel lobby: skips gone; lost: no such title or file").len(), 1, "once");
    assert!(!playlist.contains("EXT-X-DISCONTINUITY\n"), "the clock goes on: {playlist}");
    let state = until(&server, "plays", |state| state["channel"]["item"].is_string());
    assert_eq!(state["channel"]["skipped"][0]["item"], "gone; lost", "{state}");
    assert_eq!(state["state"], "running", "{state}");
    let (_, body) = get(&mut stream, "/playlist.m3u", "");
    let listed = String::from_utf8_lossy(&body).into_owned();
    let first =
        "/guide.xml\"\n#EXTINF:-1 tvg-id=\"lobby.live\" group-title=\"Channels\",lobby\nlive/lobby.ts\n";
    assert!(listed.contains(first) && listed.contains("tvg-id=\"two\" group-title=\"Titles\""), "{listed}");
    let (_, body) = get(&mut stream, "/metrics", "");
    let metrics = String::from_utf8_lossy(&body).into_owned();
    let lost: Vec<&str> = metrics.lines().filter(|line| line.starts_with("millrace_live_no_room")).collect();
    assert!(lost.iter().all(|line| line.ends_with(" 0")) && !lost.is_empty(), "{lost:?}");
    assert!(server.interrupt());
    let datagrams = collector.finish();
    assert!(datagrams.len() > 300 && datagrams.iter().all(|datagram| datagram.len() == 1316));
    let stream = datagrams.concat();
    let about =
        ["continuity", "pcr_discontinuity", "pcr_repetition", "crc", "table_version", "timestamp_order"];
    let found: Vec<_> = faults(&stream).into_iter().filter(|(check, _)| about.contains(check)).collect();
    assert_eq!(found, []);
}

#[test]
fn show_begins_at_its_time_of_day_and_the_round_goes_on_behind_it() {
    const LENGTH_S: u64 = 30;
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    for (name, length_s) in [("long.ts", LENGTH_S), ("news.ts", 2), ("next.ts", LENGTH_S)] {
        add(&film(dir.path(), name, length_s), &store);
        std::fs::remove_file(dir.path().join(name)).unwrap();
    }
    let collector = Collector::of_group();
    let to = format!("\"udp://{}?iface=127.0.0.1\"", collector.at);
    let config = write_config(dir.path(), r#"["long", "next"]"#, &to);
    // Before the end of the first item, and so late that the channel has begun by then.
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + Duration::from_secs(10);
    let of_day_s = since_1970.as_secs() % 86_400;
    let (hour, minute, second) = (of_day_s / 3600, of_day_s / 60 % 60, of_day_s % 60);
    let show = format!(
        "zone = \"UTC\"\n[[channel.show]]\nat = \"{hour:02}:{minute:02}:{second:02}\"\nitems = [\"gone\", \"news\"]\n"
    );
    let text = std::fs::read_to_string(&config).unwrap() + &show;
    std::fs::write(&config, text).unwrap();
    let mut server = Server::start(&store, &["--config", &config]);
    until(&server, "plays the round", |state| state["channel"]["item"] == "long");
    let (_, guide) = get(&mut TcpStream::connect(server.page()).unwrap(), "/guide.xml", "");
    let guide = String::from_utf8_lossy(&guide).into_owned();
    let news = guide.find(">news<").expect("the show is in the guide");
    assert!(guide.find(">long<").unwrap() < news && news < guide.find(">next<").unwrap(), "{guide}");
    assert!(guide[..news].contains(&format!("{hour:02}{minute:02}{second:02} +0000")), "{guide}");
    until(&server, "plays the show", |state| state["channel"]["item"] == "news");
    until(&server, "plays the round again", |state| state["channel"]["item"] == "next");
    assert_eq!(server.said("channel lobby: skips gone: ").len(), 1);
    assert!(server.interrupt());
    let about =
        ["continuity", "pcr_discontinuity", "pcr_repetition", "crc", "table_version", "timestamp_order"];
    let found = faults(&collector.finish().concat());
    assert_eq!(found.into_iter().filter(|(check, _)| about.contains(check)).collect::<Vec<_>>(), []);
}

#[test]
fn channel_without_playable_item_waits_and_plays_when_one_comes() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let playlist = dir.path().join("lobby.m3u");
    std::fs::write(&playlist, "late\n").unwrap();
    let channel = format!("lobby={}", playlist.display());
    let mut server = Server::start(&store, &["--channel", &channel]);
    let waiting = until(&server, "waits", |state| state["channel"]["skipped"][0]["item"] == "late");
    assert_eq!(waiting["state"], "waiting", "{waiting}");
    assert!(waiting["message"].as_str().unwrap().contains("no item can be played"), "{waiting}");
    film(dir.path(), "late.ts", 2);
    // The playlist is read again: the entry is a file beside it now.
    std::fs::write(&playlist, "late.ts\n").unwrap();
    let playing = until(&server, "plays", |state| state["state"] == "running");
    assert_eq!(playing["message"], "plays late.ts", "{playing}");
    assert_eq!(server.said("channel lobby: skips late: ").len(), 1);
    assert_eq!(playing["channel"]["skipped"].as_array().unwrap().len(), 0, "{playing}");
    assert!(server.interrupt());
}

#[test]
fn channel_with_fault_in_the_file_is_refused_with_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let config = write_config(dir.path(), "[]", "");
    let store = dir.path().join("store");
    let errors = crate::support::fails(&["serve", "--store", store.to_str().unwrap(), "--config", &config]);
    assert!(errors.contains("millrace.toml:1") && errors.contains("channel lobby: give items"), "{errors}");
}

/// The programmes of a channel in the guide: start, stop and title.
fn programmes(server: &Server) -> Vec<[String; 3]> {
    let mut stream = TcpStream::connect(server.page()).unwrap();
    let (head, body) = get(&mut stream, "/guide.xml", "");
    assert!(head.contains(" 200 "), "{head}");
    let guide = String::from_utf8(body).unwrap();
    let part = |line: &str, before: &str, after: &str| {
        let rest = line.split_once(before).map_or("", |(_, rest)| rest);
        rest.split_once(after).map_or("", |(part, _)| part).to_owned()
    };
    let of = |line: &str| {
        assert!(line.contains("channel=\"lobby.live\""), "{line}");
        [part(line, "start=\"", "\""), part(line, "stop=\"", "\""), part(line, "<title>", "</title>")]
    };
    guide.lines().filter(|line| line.contains("<programme")).map(of).collect()
}

#[test]
fn guide_of_channel_follows_its_items_and_their_lengths() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    add(&film(dir.path(), "one.ts", 2), &store);
    std::fs::remove_file(dir.path().join("one.ts")).unwrap();
    film(dir.path(), "opening.ts", 2);
    let playlist = dir.path().join("lobby.m3u");
    std::fs::write(&playlist, "#EXTINF:-1,The <opening>\nopening.ts\none\ngone\n").unwrap();
    let mut server = Server::start(&store, &["--channel", &format!("lobby={}", playlist.display())]);
    let opening = "The &lt;opening&gt;";
    let until = |what: &str, is_so: &dyn Fn(&[[String; 3]]) -> bool| {
        let end = Instant::now() + TIMEOUT;
        loop {
            let found = programmes(&server);
            if is_so(&found) {
                return found;
            }
            assert!(Instant::now() < end, "{what}: {found:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    // The length of the file is not known before it has been played.
    let found = until("all lengths are known", &|found| found.len() > 100);
    let titles: Vec<&str> = found.iter().map(|[.., title]| title.as_str()).collect();
    assert!(titles.windows(2).all(|pair| matches!(pair, [a, b] if a != b)), "{titles:?}");
    assert!(titles.iter().all(|title| [opening, "one"].contains(title)), "{titles:?}");
    assert!(found.windows(2).all(|pair| pair[0][1] == pair[1][0]), "one begins where another ends");
    // An edit counts from the next round on.
    std::fs::write(&playlist, "#EXTINF:7200,Other\nopening.ts\n").unwrap();
    let found = until("the edit", &|found| found.iter().any(|[.., title]| title == "Other"));
    assert!(found.last().unwrap()[2] == "Other", "{found:?}");
    assert!(server.interrupt());
}
