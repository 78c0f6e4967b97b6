//! Low-latency HLS of a live source: parts come while their segment grows, and are the segment.

use std::net::TcpStream;

use crate::e2e_live::{Sender, Site, TIMEOUT};
use crate::support::http::get;

/// A player of parts on one connection.
struct Player {
    stream: TcpStream,
    /// Address of its playlist, with its session.
    list: String,
}

impl Player {
    /// `None`: there is no segment yet.
    fn join(site: &Site) -> Option<Self> {
        let mut stream = TcpStream::connect(site.server.page()).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let (head, body) = get(&mut stream, "/live/news/low-latency.m3u8", "");
        let text = String::from_utf8(body).unwrap();
        let list = format!("/live/news/{}", text.lines().last()?);
        head.starts_with("HTTP/1.1 200").then_some(Self { stream, list })
    }

    fn get(&mut self, path: &str) -> Vec<u8> {
        let (head, body) = get(&mut self.stream, path, "");
        assert!(head.starts_with("HTTP/1.1 200"), "{path}: {head}");
        body
    }

    fn playlist(&mut self, query: &str) -> String {
        let path = format!("{}{query}", self.list);
        String::from_utf8(self.get(&path)).unwrap()
    }
}

/// Segment and part of the address that a line names.
fn place(line: &str) -> (u32, u32) {
    let address = line.split_once("URI=\"").unwrap().1;
    let mut names = address.split(['/', '.']).skip(1).map(|name| name.parse().unwrap());
    (names.next().unwrap(), names.next().unwrap())
}

fn next_part(list: &str) -> (u32, u32) {
    let hint = list.lines().last().unwrap();
    assert!(hint.starts_with("#EXT-X-PRELOAD-HINT:TYPE=PART,"), "{list}");
    place(hint)
}

/// The addresses of a segment's parts, and of the segment if it is complete.
fn addresses(list: &str, segment: u32) -> (Vec<String>, Option<String>) {
    let parts = list.lines().filter(|line| line.starts_with("#EXT-X-PART:") && place(line).0 == segment);
    let parts = parts.map(|line| line.split('"').nth(1).unwrap());
    let whole = list.lines().find(|line| line.contains(&format!("/{segment}.ts")) && !line.starts_with('#'));
    let path = |name: &str| format!("/live/news/{name}");
    (parts.map(path).collect(), whole.map(path))
}

#[test]
fn parts_of_live_title_come_while_their_segment_grows_and_make_it_up() {
    let site = Site::start("udp");
    let film = site.film(60);
    let _sender = Sender::plain(&film, site.to);
    let mut player = None;
    site.until("a segment", |site| {
        player = Player::join(site);
        player.is_some()
    });
    let mut player = player.unwrap();
    let mut list = player.playlist("");
    // Asked for in advance, each part is there with the answer, or its segment has ended before it.
    let (first, _) = next_part(&list);
    let mut grown = 0;
    while next_part(&list).0 < first + 3 {
        let (segment, part) = next_part(&list);
        list = player.playlist(&format!("&_HLS_msn={segment}&_HLS_part={part}"));
        let (parts, whole) = addresses(&list, segment);
        assert!(parts.len() as u32 > part || whole.is_some(), "segment {segment}, part {part}: {list}");
        grown += u32::from(whole.is_none());
    }
    assert!(grown >= 6, "{grown} parts came before their segment was complete: {list}");
    // One that is announced and has not come is waited for, and comes.
    let (segment, part) = next_part(&list);
    let hint = list.lines().last().unwrap().split('"').nth(1).unwrap();
    let waited = player.get(&format!("/live/news/{hint}"));
    list = player.playlist(&format!("&_HLS_msn={segment}"));
    let (parts, whole) = addresses(&list, segment);
    let parts: Vec<Vec<u8>> = parts.iter().map(|path| player.get(path)).collect();
    assert_eq!(parts[part as usize], waited);
    assert_eq!(parts.concat(), player.get(&whole.unwrap()));
    // Tables begin the segment, and a picture each of its other parts.
    let pid = |ts: &[u8]| u16::from_be_bytes([ts[1], ts[2]]) & 0x1fff;
    assert_eq!(pid(&parts[0]), 0);
    let video = pid(&parts[1]);
    for part in &parts[1..] {
        assert_eq!((part[0], part[1] & 0x40, pid(part)), (0x47, 0x40, video));
        assert!(part[4..188].windows(4).any(|bytes| bytes[..3] == [0, 0, 1] && bytes[3] & 0xf0 == 0xe0));
    }
}
