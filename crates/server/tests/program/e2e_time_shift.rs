//! Viewers by RTSP go back in a live title, pause it, and find places in recordings by the time of day.

use std::collections::{HashMap, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use millrace_core::wire::rtp::RtpHeader;
use serde_json::Value;

use crate::e2e_live::{Sender, Site, TIMEOUT, decoded, pids};
use crate::support::http::get;
use crate::support::{header, read_message};

/// A viewer by RTSP, interleaved, that keeps packets which come before replies.
struct Player {
    stream: BufReader<TcpStream>,
    url: String,
    session: String,
    packets: VecDeque<Vec<u8>>,
}

/// A packet of media.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Packet {
    sequence: u16,
    timestamp: u32,
    payload: Vec<u8>,
}

impl Packet {
    fn parse(bytes: &[u8]) -> Self {
        let (rtp, payload) = RtpHeader::parse(bytes).unwrap();
        Self { sequence: rtp.sequence, timestamp: rtp.timestamp, payload: payload.to_vec() }
    }

    /// Tables in front of a picture: 0x100 is the video of ffmpeg.
    fn begins_picture(&self) -> bool {
        pids(&self.payload)[..3] == [0, 0x1000, 0x100]
    }
}

impl Player {
    fn of(site: &Site, name: &str) -> Self {
        let stream = TcpStream::connect(site.server.addr).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let (url, session, packets) = (site.server.title(name), String::new(), VecDeque::new());
        let mut player = Self { stream: BufReader::new(stream), url, session, packets };
        let (head, _) = player.ask("SETUP", "Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\n");
        let session = header(&head, "Session").unwrap_or_else(|| panic!("{head}"));
        player.session = session.split(';').next().unwrap().to_owned();
        player
    }

    fn ask(&mut self, method: &str, headers: &str) -> (String, String) {
        let (url, session) = (&self.url, &self.session);
        let session = if session.is_empty() { String::new() } else { format!("Session: {session}\r\n") };
        let request = format!("{method} {url} RTSP/1.0\r\nCSeq: 1\r\n{session}{headers}\r\n");
        self.stream.get_mut().write_all(request.as_bytes()).unwrap();
        loop {
            let mut first = [0];
            self.stream.read_exact(&mut first).unwrap();
            if first[0] != b'$' {
                return read_message(&mut (&first[..]).chain(&mut self.stream));
            }
            let (channel, frame) = self.frame();
            self.packets.extend((channel == 0).then_some(frame));
        }
    }

    /// Plays; returns the reply.
    fn play(&mut self, range: &str) -> String {
        let range = if range.is_empty() { String::new() } else { format!("Range: {range}\r\n") };
        self.ask("PLAY", &range).0
    }

    /// Pauses; returns the packets that had come and were not taken yet.
    fn pause(&mut self) -> Vec<Packet> {
        assert!(self.ask("PAUSE", "").0.starts_with("RTSP/1.0 200"));
        // The engine has paused before the second reply.
        self.ask("OPTIONS", "");
        self.packets.drain(..).map(|packet| Packet::parse(&packet)).collect()
    }

    /// The rest of a frame behind its `$`.
    fn frame(&mut self) -> (u8, Vec<u8>) {
        let mut head = [0; 3];
        self.stream.read_exact(&mut head).unwrap();
        let mut packet = vec![0; usize::from(u16::from_be_bytes([head[1], head[2]]))];
        self.stream.read_exact(&mut packet).unwrap();
        (head[0], packet)
    }

    /// The next packet of media.
    fn packet(&mut self) -> Packet {
        let frame = self.packets.pop_front().unwrap_or_else(|| {
            loop {
                let mut first = [0];
                self.stream.read_exact(&mut first).unwrap();
                assert_eq!(first, *b"$", "a frame");
                let (channel, frame) = self.frame();
                if channel == 0 {
                    return frame;
                }
            }
        });
        Packet::parse(&frame)
    }
}

/// All packets of the live title from some point on, as a viewer gets them that joined then; ends with the title.
#[derive(Clone, Default)]
struct Witness {
    packets: Arc<Mutex<HashMap<u16, Packet>>>,
}

impl Witness {
    /// It joins now.
    fn start(site: &Site) -> Self {
        let witness = Self::default();
        let (packets, mut player) = (Arc::clone(&witness.packets), Player::of(site, "live/news"));
        assert!(player.play("npt=0.000-").starts_with("RTSP/1.0 200"));
        std::thread::spawn(move || {
            // The server ends with the test.
            while player.stream.fill_buf().is_ok_and(|bytes| !bytes.is_empty()) {
                let packet = player.packet();
                packets.lock().unwrap().insert(packet.sequence, packet);
            }
        });
        witness
    }

    fn count(&self) -> usize {
        self.packets.lock().unwrap().len()
    }

    /// The packet of this number.
    fn packet(&self, sequence: u16) -> Packet {
        let end = Instant::now() + TIMEOUT;
        loop {
            if let Some(packet) = self.packets.lock().unwrap().get(&sequence) {
                return packet.clone();
            }
            assert!(Instant::now() < end, "packet {sequence} of the live title");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The number of the packet with these bytes.
    fn number_of(&self, payload: &[u8]) -> Option<u16> {
        self.packets
            .lock()
            .unwrap()
            .values()
            .find(|packet| packet.payload == payload)
            .map(|found| found.sequence)
    }
}

/// A counter of the server.
fn server_counter(site: &Site, name: &str) -> u64 {
    let mut stream = TcpStream::connect(site.server.page()).unwrap();
    let text = String::from_utf8(get(&mut stream, "/metrics", "").1).unwrap();
    let is_it = |line: &&str| line.starts_with("millrace_") && line.contains(name);
    let line = text.lines().find(is_it).unwrap_or_else(|| panic!("no counter {name} in\n{text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// The start of a range `npt=START-...`, in seconds.
fn npt_of(head: &str, name: &str) -> f64 {
    let range = header(head, name).unwrap_or_else(|| panic!("{name} in {head}"));
    let start = range.strip_prefix("npt=").and_then(|range| range.split('-').next());
    start.unwrap_or_else(|| panic!("{range}")).parse().unwrap()
}

/// The absolute times in a header.
fn clock_of<'a>(head: &'a str, name: &str) -> (&'a str, &'a str) {
    let range = header(head, name).unwrap_or_else(|| panic!("{name} in {head}"));
    range.split_once("clock=").unwrap_or_else(|| panic!("{range}")).1.split_once('-').unwrap()
}

/// The packet that `RTP-Info` announces is the next one, and begins a picture.
fn assert_begins(player: &mut Player, head: &str) -> Packet {
    let info = header(head, "RTP-Info").unwrap_or_else(|| panic!("{head}")).to_owned();
    let packet = player.packet();
    assert!(
        info.ends_with(&format!("seq={};rtptime={}", packet.sequence, packet.timestamp)),
        "{info}: {packet:?}"
    );
    assert!(packet.begins_picture(), "{head}");
    packet
}

/// Waits for this many packets more of the title.
fn until_more(site: &Site, packets: u64) {
    let before = site.counter("packets");
    site.until("more packets", |site| site.counter("packets") >= before + packets);
}

#[test]
fn viewer_of_live_title_goes_back_pauses_and_gets_the_same_packets() {
    let mut site = Site::start("udp");
    let film = site.film(120);
    let _sender = Sender::plain(&film, site.to);
    site.server.wait_for("media comes", TIMEOUT);
    let witness = Witness::start(&site);
    // Some ten seconds, with five key pictures.
    site.until("five groups of pictures", |site| site.counter("packets") > 1_900);
    let mut player = Player::of(&site, "live/news");
    let edge = player.play("npt=now-");
    let (edge_s, oldest_s) = (npt_of(&edge, "Range"), npt_of(&edge, "Media-Range"));
    assert!(edge_s - oldest_s > 6.0, "{edge}");

    let asked_s = oldest_s + 5.0;
    let head = player.play(&format!("npt={asked_s:.3}-"));
    let begun_s = npt_of(&head, "Range");
    assert!(begun_s <= asked_s && begun_s > asked_s - 2.1 && head.contains("-\r\n"), "{asked_s}: {head}");
    // Some packets of before the jump may be on their way.
    let info = header(&head, "RTP-Info").unwrap().to_owned();
    let first = loop {
        let packet = player.packet();
        if info.ends_with(&format!("seq={};rtptime={}", packet.sequence, packet.timestamp)) {
            break packet;
        }
    };
    assert!(first.begins_picture());
    let number = witness.number_of(&first.payload).expect("the witness has it");
    let moved = number.wrapping_sub(first.sequence);
    let mut next = first;
    let same = |packet: &Packet| {
        let expected = witness.packet(packet.sequence.wrapping_add(moved));
        assert_eq!((packet.timestamp, &packet.payload), (expected.timestamp, &expected.payload));
    };
    for _ in 0..500 {
        same(&next);
        let packet = player.packet();
        assert_eq!(packet.sequence, next.sequence.wrapping_add(1));
        next = packet;
    }
    // A pause: the packets go on where they stopped.
    let rest = player.pause();
    let last = rest.last().unwrap_or(&next).clone();
    rest.iter().for_each(&same);
    until_more(&site, 400);
    let head = player.play("");
    let packet = player.packet();
    assert_eq!(packet.sequence, last.sequence.wrapping_add(1), "{head}");
    let info = header(&head, "RTP-Info").unwrap();
    assert!(info.ends_with(&format!("seq={};rtptime={}", packet.sequence, packet.timestamp)), "{info}");
    same(&packet);
    (0..400).for_each(|_| same(&player.packet()));
    assert_eq!(server_counter(&site, "pauses_outlasted"), 0);
}

#[test]
fn viewer_of_live_title_begins_at_time_of_day() {
    let mut site = Site::start("udp");
    let film = site.film(60);
    let _sender = Sender::plain(&film, site.to);
    site.server.wait_for("media comes", TIMEOUT);
    let witness = Witness::start(&site);
    site.until("five groups of pictures", |site| site.counter("packets") > 1_900);
    let before_ms = unix_ms();
    let mut player = Player::of(&site, "live/news");
    let (_, sdp) = player.ask("DESCRIBE", "");
    let edge = player.play("clock=now-");
    let (oldest, newest) = clock_of(&edge, "Media-Range");
    assert!(sdp.contains("a=range:npt=now-\r\n") && sdp.contains("a=range:clock="), "{sdp}");
    // The newest packet came just now.
    let newest_ms = ms_of(newest);
    assert!((before_ms - 5_000..unix_ms() + 2_000).contains(&newest_ms), "{newest}");
    let mut by_clock = Player::of(&site, "live/news");
    let head = by_clock.play(&format!("clock={oldest}-"));
    assert_eq!(clock_of(&head, "Range"), (oldest, ""));
    let first = assert_begins(&mut by_clock, &head);
    assert_eq!(witness.packet(first.sequence), first);
    // A time of day long ago is the oldest place as well.
    let mut long_ago = Player::of(&site, "live/news");
    let head = long_ago.play("clock=19970101T000000Z-");
    assert!(ms_of(clock_of(&head, "Range").0) >= ms_of(oldest), "{head}");
    let first = assert_begins(&mut long_ago, &head);
    assert_eq!(witness.packet(first.sequence), first);
}

#[test]
fn pause_longer_than_live_title_is_kept_ends_at_oldest_place() {
    // Eight extents: viewers can get four of them, which is four seconds.
    let mut site = Site::with("udp", &["--live-memory", "2MiB"]);
    let film = site.film(120);
    let _sender = Sender::plain(&film, site.to);
    site.server.wait_for("media comes", TIMEOUT);
    let witness = Witness::start(&site);
    site.until("a group of pictures", |site| site.counter("packets") > 500);
    let mut player = Player::of(&site, "live/news");
    let head = player.play("");
    let mut last = assert_begins(&mut player, &head);
    (0..100).for_each(|_| last = player.packet());
    last = player.pause().pop().unwrap_or(last);
    until_more(&site, 1_600);
    let head = player.play("");
    let (from_s, oldest_s) = (npt_of(&head, "Range"), npt_of(&head, "Media-Range"));
    assert!(from_s <= oldest_s + 2.1 && head.starts_with("RTSP/1.0 200"), "{head}");
    let first = assert_begins(&mut player, &head);
    assert_eq!(first.sequence, last.sequence.wrapping_add(1), "its sequence has no jump");
    let number = witness.number_of(&first.payload).expect("the witness has it");
    assert!(number.wrapping_sub(last.sequence) > 700, "{number} {last:?}");
    for n in 1..300u16 {
        let (packet, expected) = (player.packet(), witness.packet(number.wrapping_add(n)));
        assert_eq!((packet.timestamp, packet.payload), (expected.timestamp, expected.payload));
    }
    site.server.wait_for("the oldest place that is left", TIMEOUT);
    assert_eq!(server_counter(&site, "pauses_outlasted"), 1);
    // A place that is not held any more is the oldest one.
    let mut late = Player::of(&site, "live/news");
    let head = late.play("npt=0.5-");
    assert!(npt_of(&head, "Range") >= from_s, "{head}");
    assert_begins(&mut late, &head);
    assert!(witness.count() > 1_600);
}

#[test]
fn recording_is_played_from_time_of_day_while_it_grows_and_later() {
    let mut site = Site::start("udp");
    let film = site.film(60);
    let _sender = Sender::plain(&film, site.to);
    site.server.wait_for("media comes", TIMEOUT);
    let recording = |site: &Site, method: &str| {
        let mut stream = TcpStream::connect(site.server.page()).unwrap();
        let about = r#"{"title":"News"}"#;
        let body = if method == "PUT" { about } else { "" };
        let length = body.len();
        write!(stream, "{method} /live/news/recording HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}").unwrap();
        assert!(read_message(&mut stream).0.starts_with("HTTP/1.1 20"));
    };
    let title = |site: &Site| {
        let mut stream = TcpStream::connect(site.server.page()).unwrap();
        let list: Value = serde_json::from_slice(&get(&mut stream, "/api/v1/titles", "").1).unwrap();
        list["titles"].as_array().unwrap().iter().find(|title| title["name"] == "news").cloned()
    };
    recording(&site, "PUT");
    site.until("six seconds", |site| {
        title(site).is_some_and(|title| title["duration_s"].as_f64().unwrap() > 6.0)
    });
    let began_ms = title(&site).unwrap()["began_unix_ms"].as_u64().unwrap();
    let at = |ms: u64| millrace_server::date::clock_ms(began_ms + ms);
    let mut player = Player::of(&site, "news");
    let growing = player.play(&format!("clock={}-", at(4_500)));
    let begun = clock_of(&growing, "Range");
    assert!(begun.1.is_empty() && (at(2_400)..=at(4_500)).contains(&begun.0.to_owned()), "{growing}");
    let first = assert_begins(&mut player, &growing);
    let begun = begun.0.to_owned();
    recording(&site, "DELETE");
    site.until("it is stored", |site| title(site).is_some_and(|title| title["is_recording"] == false));
    let bytes = get(&mut TcpStream::connect(site.server.page()).unwrap(), "/titles/news.ts", "").1;
    let place = usize::from(first.sequence - 1) * 1316;
    assert_eq!(&bytes[place..][..1316], first.payload, "the same packet of the title");

    let mut player = Player::of(&site, "news");
    let stored = player.play(&format!("clock={}-", at(4_500)));
    assert_eq!(clock_of(&stored, "Range").0, begun);
    assert_eq!(assert_begins(&mut player, &stored), first);
    for (from, is_there) in [(0, true), (600_000, false)] {
        let head = Player::of(&site, "news").play(&format!("clock={}-", at(from)));
        assert_eq!(head.starts_with("RTSP/1.0 200"), is_there, "{head}");
        if !is_there {
            assert!(head.starts_with("RTSP/1.0 457"), "{head}");
            assert_eq!(clock_of(&head, "Media-Range").0, at(0));
        }
    }
    let sdp = player.ask("DESCRIBE", "").1;
    assert!(sdp.contains(&format!("a=range:clock={}-", at(0))), "{sdp}");
    // The end that ffmpeg knows from the description is not lost to it.
    let probe = std::process::Command::new("ffprobe")
        .args(["-v", "error", "-rtsp_transport", "tcp", "-show_entries", "format=duration", "-of", "csv=p=0"])
        .arg(site.server.title("news"))
        .output()
        .unwrap();
    let duration_s: f64 = String::from_utf8(probe.stdout).unwrap().trim().parse().unwrap();
    let listed_s = title(&site).unwrap()["duration_s"].as_f64().unwrap();
    assert!((listed_s..listed_s + 3.0).contains(&duration_s), "{duration_s} {listed_s}");
}

/// FFmpeg counts in time stamps, and asks for places that way.
#[test]
fn ffmpeg_goes_back_in_live_title() {
    let mut site = Site::start("udp");
    let film = site.film(120);
    let _sender = Sender::plain(&film, site.to);
    site.server.wait_for("media comes", TIMEOUT);
    site.until("five groups of pictures", |site| site.counter("packets") > 1_900);
    let url = site.server.title("live/news");
    // Its decoder has half a picture of where it was before.
    let (frames, _) = decoded(&url, &["-rtsp_transport", "tcp", "-ss", "-5", "-noaccurate_seek"], 100);
    assert_eq!(frames, 100);
    let went_back = site.server.wait_for("seeks: live/news from", TIMEOUT);
    let joined = site.server.said("plays: live/news from").pop().unwrap();
    let place_s = |line: &str| {
        let place = line.split("from ").nth(1).and_then(|rest| rest.split_whitespace().next());
        place.unwrap().split(':').fold(0.0, |sum, part| sum * 60.0 + part.parse::<f64>().unwrap())
    };
    let back_s = place_s(&joined) - place_s(&went_back);
    assert!((3.0..9.0).contains(&back_s), "{joined} {went_back}");
}

fn unix_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::try_from(since.as_millis()).unwrap()
}

/// Milliseconds since 1970 of an absolute time of this month.
fn ms_of(clock: &str) -> u64 {
    let number = |at: std::ops::Range<usize>| clock[at].parse::<u64>().unwrap();
    let days = millrace_server::date::days_to(number(0..4), number(4..6), number(6..8)).unwrap() as u64;
    let s = days * 86_400 + number(9..11) * 3600 + number(11..13) * 60 + number(13..15);
    s * 1000 + number(16..19)
}
