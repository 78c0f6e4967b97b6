//! Viewers that fetch segments made beside the engines, in virtual time: counted with streams, one viewer for all that it fetches, forgotten when it fetches no more.

mod rtsp_support;
mod service_support;

use millrace_core::limits::control::{FETCH_AHEAD_NS, FETCH_GRACE_NS};
use millrace_core::time::MediaTicks;
use millrace_core::units::BitRate;
use millrace_server::admission::{AdmissionConfig, Full};
use millrace_server::service::{Event, Fetch, Refusal};
use rtsp_support::SECOND;
use service_support::*;

const MBIT: u64 = 1_000_000;
/// Seconds of a segment.
const LENGTH: u64 = 6;

/// Segment `segment` of a title of 4 Mb/s, at most 5; renditions have half of that.
fn fetch(from: &str, conn: &str, title: &str, segment: u32) -> Fetch {
    let rate = if title.contains('@') { 2 * MBIT } else { 4 * MBIT };
    Fetch {
        viewer: from.parse().unwrap(),
        conn: conn.to_owned(),
        label: format!("{conn}.{segment}"),
        agent: Some("player".to_owned()),
        title: title.to_owned(),
        mean_rate: BitRate(rate),
        peak_rate: BitRate(rate + MBIT),
        segment,
        at: MediaTicks(u64::from(segment) * LENGTH * 90_000),
        length: MediaTicks(LENGTH * 90_000),
    }
}

fn ask(desk: &mut Desk, fetch: Fetch) -> Result<(), Refusal> {
    let may = desk.service.fetch(desk.now, fetch);
    desk.settle();
    may
}

fn reserved(desk: &Desk) -> (usize, u64) {
    (desk.service.reserved_streams(), desk.service.reserved_rate() / MBIT)
}

const ANNA: &str = "192.0.2.1:5000";
const BERT: &str = "192.0.2.2:5000";

#[test]
fn a_viewer_is_one_for_as_long_as_it_goes_on_whatever_it_fetches_by() {
    let mut desk = Desk::new();
    // Three segments at once to fill its buffer, two of them on another connection and port.
    for (segment, (from, conn)) in
        [(ANNA, "a"), ("192.0.2.1:5001", "b"), ("192.0.2.1:5001", "b")].iter().enumerate()
    {
        assert_eq!(ask(&mut desk, fetch(from, conn, "film", segment as u32)), Ok(()));
        assert_eq!(reserved(&desk), (1, 4), "segment {segment}");
    }
    // Then one whenever one is played.
    for segment in 3..20 {
        desk.wait(LENGTH * SECOND);
        assert_eq!(ask(&mut desk, fetch(ANNA, "a", "film", segment)), Ok(()));
        assert_eq!(reserved(&desk), (1, 4));
    }
    // It seeks, and fetches a segment twice.
    for segment in [90, 91, 91, 4] {
        assert_eq!(ask(&mut desk, fetch(ANNA, "a", "film", segment)), Ok(()));
        assert_eq!(reserved(&desk), (1, 4), "segment {segment}");
    }
    let began = desk.events.iter().filter(|event| matches!(event, Event::FetchBegan { .. })).count();
    assert_eq!((began, desk.counters.cmaf_viewers_started), (1, 1));
    assert_eq!(
        desk.service.fetchers().map(|one| (one.rate, one.at.0)).collect::<Vec<_>>(),
        [(4 * MBIT, 24 * 90_000)]
    );
    // However much it has fetched, it is soon forgotten.
    desk.wait(FETCH_AHEAD_NS + FETCH_GRACE_NS + SECOND);
    assert_eq!(reserved(&desk), (0, 0));
    let ended = desk
        .events
        .iter()
        .filter(|event| matches!(event, Event::FetchEnded { title, .. } if title == "film"));
    assert_eq!(ended.count(), 1);
    desk.assert_empty();
}

#[test]
fn one_segment_holds_room_for_its_length_and_a_moment() {
    let mut desk = Desk::new();
    ask(&mut desk, fetch(ANNA, "a", "film", 0)).unwrap();
    desk.wait(LENGTH * SECOND + FETCH_GRACE_NS - SECOND);
    assert_eq!(reserved(&desk), (1, 4));
    desk.wait(2 * SECOND);
    assert_eq!(reserved(&desk), (0, 0));
    let held = desk.service.fetchers().count();
    assert_eq!(held, 0);
}

#[test]
fn others_are_others() {
    let mut desk = Desk::new();
    ask(&mut desk, fetch(ANNA, "a", "film", 0)).unwrap();
    // Another address; another title on the same connection; the same title at another place from behind the same address.
    ask(&mut desk, fetch(BERT, "b", "film", 1)).unwrap();
    ask(&mut desk, fetch(ANNA, "a", "other", 1)).unwrap();
    ask(&mut desk, fetch(ANNA, "c", "film", 7)).unwrap();
    let other_program = Fetch { agent: None, ..fetch(ANNA, "d", "film", 1) };
    ask(&mut desk, other_program).unwrap();
    assert_eq!(reserved(&desk), (5, 20));
    // And each goes on as itself, in any order.
    for (from, conn, segment) in [(ANNA, "x", 8), (BERT, "y", 2), (ANNA, "z", 1)] {
        ask(&mut desk, fetch(from, conn, "film", segment)).unwrap();
    }
    assert_eq!(reserved(&desk), (5, 20));
    desk.service.shut_down(desk.now);
    desk.settle();
    desk.assert_empty();
    assert_eq!(ask(&mut desk, fetch(ANNA, "a", "film", 0)), Err(Refusal::ShuttingDown));
}

#[test]
fn they_and_streams_are_counted_together_and_who_has_a_place_keeps_it() {
    let mut desk = Desk::with(|config| config.max_streams = 2);
    ask(&mut desk, fetch(ANNA, "a", "film", 0)).unwrap();
    let stream = desk.udp("film", 5000);
    desk.play(stream, None).unwrap();
    assert_eq!(ask(&mut desk, fetch(BERT, "b", "film", 0)), Err(Refusal::Streams { max: 2 }));
    let told = desk.events.iter().filter(|event| matches!(event, Event::NoRoom { .. })).count();
    assert_eq!((told, desk.counters.refused_full), (1, 1));
    assert_eq!(ask(&mut desk, fetch(ANNA, "a", "film", 1)), Ok(()), "it has a place");
    // What it has reserved keeps a stream out as well.
    desk.close(stream);
    ask(&mut desk, fetch(BERT, "b", "film", 0)).unwrap();
    let conn = desk.conn();
    let request = desk.request("film", conn, udp(5002));
    assert_eq!(desk.admit(request).unwrap_err(), Refusal::Streams { max: 2 });
}

#[test]
fn bit_rates_count_and_a_higher_one_is_asked_for_again() {
    let mut desk = Desk::with(|config| config.max_rate = Some(BitRate(7 * MBIT)));
    ask(&mut desk, fetch(ANNA, "a", "film@360p", 0)).unwrap();
    assert_eq!(reserved(&desk), (1, 2));
    ask(&mut desk, fetch(ANNA, "a", "film", 1)).unwrap();
    assert_eq!(reserved(&desk), (1, 4), "the same viewer, at more");
    ask(&mut desk, fetch(BERT, "b", "film@360p", 0)).unwrap();
    let refused = ask(&mut desk, fetch(BERT, "b", "film", 1)).unwrap_err();
    assert_eq!(
        refused,
        Refusal::Rate { used: BitRate(4 * MBIT), max: BitRate(7 * MBIT), more: BitRate(4 * MBIT) }
    );
    assert_eq!(reserved(&desk), (2, 6), "it keeps what it has");
    ask(&mut desk, fetch(BERT, "b", "film@360p", 1)).unwrap();
    assert_eq!(reserved(&desk), (2, 6));
    // An address has its share.
    let mut desk = Desk::with(|config| (config.max_streams, config.address_share_percent) = (10, 20));
    ask(&mut desk, fetch(ANNA, "a", "film", 0)).unwrap();
    ask(&mut desk, fetch(ANNA, "b", "film", 50)).unwrap();
    assert_eq!(ask(&mut desk, fetch(ANNA, "c", "film", 90)), Err(Refusal::AddressStreams { max: 2 }));
    assert_eq!(ask(&mut desk, fetch(BERT, "d", "film", 90)), Ok(()));
    // And the links theirs.
    let mut desk = Desk::with(|config| {
        config.admission =
            AdmissionConfig { is_on: true, link_rate: Some(BitRate(5 * MBIT)), ..AdmissionConfig::off() };
    });
    ask(&mut desk, fetch(ANNA, "a", "film", 0)).unwrap();
    let full = Full::Link { used: BitRate(4 * MBIT), rate: BitRate(5 * MBIT) };
    assert_eq!(ask(&mut desk, fetch(BERT, "b", "film", 0)), Err(Refusal::Full(full)));
    let links =
        desk.service.in_use().into_iter().find(|one| one.what == "bits a second of the links").unwrap();
    assert_eq!((links.used, links.of), (4 * MBIT, 5 * MBIT));
}
