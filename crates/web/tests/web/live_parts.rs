//! Low-latency HLS of a live title: parts, and requests that wait for them.

use std::sync::Arc;
use std::thread::spawn;
use std::time::Duration;

use millrace_web::{LiveEdge, WebLimits};

use super::client::Client;
use super::site::{Film, MadeUp, Manner, serve};

const LIST: &str = "/live/film/parts.m3u8";

/// A site with a live title that has nine segments, and these parts of the next one.
fn grown_to(parts: usize) -> Arc<MadeUp> {
    let site = MadeUp::with(vec![Film::pattern("film", 100, Manner::Sends)]);
    site.live_edge.0.send_replace(LiveEdge { segment: 9, parts, parts_before: 4 });
    site
}

#[test]
fn playlist_of_parts_announces_them_and_the_next_one() {
    let (_web, address, _) = serve(&grown_to(1), WebLimits::default());
    let mut client = Client::to(address);
    let master = client.get("/live/film/low-latency.m3u8");
    assert!(master.text().ends_with("\nparts.m3u8\n"), "{}", master.text());
    let list = client.get(LIST);
    let text = list.text();
    let head = "#EXT-X-SERVER-CONTROL:CAN-BLOCK-RELOAD=YES,PART-HOLD-BACK=1.500\n\
                #EXT-X-PART-INF:PART-TARGET=0.500\n";
    assert!(text.contains(head), "{text}");
    // Three target durations are three segments of two seconds.
    let first = text.find("#EXT-X-PART:").unwrap();
    assert!(text[..first].ends_with("v/5.ts\n"), "{text}");
    let end = "#EXT-X-PART:DURATION=0.500,URI=\"v/8/0.ts\",INDEPENDENT=YES\n\
               #EXT-X-PART:DURATION=0.500,URI=\"v/8/1.ts\"\n\
               #EXT-X-PART:DURATION=0.500,URI=\"v/8/2.ts\"\n\
               #EXT-X-PART:DURATION=0.500,URI=\"v/8/3.ts\"\n\
               #EXTINF:2.000,\nv/8.ts\n\
               #EXT-X-PART:DURATION=0.500,URI=\"v/9/0.ts\",INDEPENDENT=YES\n\
               #EXT-X-PRELOAD-HINT:TYPE=PART,URI=\"v/9/1.ts\"\n";
    assert!(text.ends_with(end), "{text}");
    assert!(!client.get("/live/film/media.m3u8").text().contains("PART"), "other players see none of it");
}

#[test]
fn parts_of_a_segment_are_the_segment() {
    let (_web, address, _) = serve(&grown_to(0), WebLimits::default());
    let mut client = Client::to(address);
    let segment = client.get("/live/film/v/7.ts").body;
    let parts: Vec<u8> =
        (0..4).flat_map(|part| client.get(&format!("/live/film/v/7/{part}.ts")).body).collect();
    assert_eq!(parts, segment);
    for gone in ["/live/film/v/7/4.ts", "/live/film/w/7/0.ts", "/live/none/v/7/0.ts", "/live/film/v/12/0.ts"]
    {
        assert_eq!(client.get(gone).status, 404, "{gone}");
    }
}

#[test]
fn playlist_and_part_are_waited_for() {
    let site = grown_to(0);
    let (_web, address, _) = serve(&site, WebLimits::default());
    let paths = [format!("{LIST}?_HLS_msn=9&_HLS_part=1"), "/live/film/v/9/1.ts".to_owned()];
    let waiting = paths.map(|path| {
        let mut client = Client::to(address);
        client.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        (spawn(move || client.response(false)), path)
    });
    let none_is_answered =
        || assert!(waiting.iter().all(|(waits, path)| !waits.is_finished() || panic!("{path} was answered")));
    while site.live_edge.0.receiver_count() < 2 {
        none_is_answered();
        std::thread::sleep(Duration::from_millis(1));
    }
    site.live_edge.0.send_replace(LiveEdge { segment: 9, parts: 1, parts_before: 4 });
    none_is_answered();
    site.live_edge.0.send_replace(LiveEdge { segment: 9, parts: 2, parts_before: 4 });
    let [list, part] = waiting.map(|(waits, _)| waits.join().unwrap());
    assert!(
        list.text().contains("v/9/1.ts\"\n#EXT-X-PRELOAD-HINT:TYPE=PART,URI=\"v/9/2.ts\""),
        "{}",
        list.text()
    );
    assert_eq!((part.status, part.body.len()), (200, 376));
}

#[test]
fn part_behind_the_last_one_of_its_segment_is_the_first_of_the_next() {
    let site = grown_to(0);
    let (_web, address, _) = serve(&site, WebLimits::default());
    let mut client = Client::to(address);
    client.send(format!("GET {LIST}?_HLS_msn=8&_HLS_part=4 HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    let waits = spawn(move || client.response(false));
    while site.live_edge.0.receiver_count() < 1 {
        assert!(!waits.is_finished(), "it was answered");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(Client::to(address).get("/live/film/v/8/4.ts").status, 404, "the segment gets no more parts");
    assert!(!waits.is_finished(), "it was answered");
    site.live_edge.0.send_replace(LiveEdge { segment: 9, parts: 1, parts_before: 4 });
    let list = waits.join().unwrap().text().to_owned();
    assert!(list.ends_with("#EXT-X-PRELOAD-HINT:TYPE=PART,URI=\"v/9/1.ts\"\n"), "{list}");
}

#[test]
fn part_that_is_there_or_too_far_ahead_is_not_waited_for() {
    let (_web, address, _) = serve(&grown_to(2), WebLimits::default());
    let mut client = Client::to(address);
    for (query, status) in [
        ("_HLS_msn=8", 200),
        ("_HLS_msn=8&_HLS_part=100", 200),
        ("_HLS_msn=9&_HLS_part=1", 200),
        ("_HLS_msn=9&_HLS_part=9", 400),
        ("_HLS_msn=11", 400),
        ("_HLS_msn=10&_HLS_part=9", 400),
        ("_HLS_msn=4294967295", 400),
        ("_HLS_msn=-1", 400),
        ("_HLS_msn=x", 400),
        ("_HLS_part=1", 400),
    ] {
        assert_eq!(client.get(&format!("{LIST}?{query}")).status, status, "{query}");
    }
}
