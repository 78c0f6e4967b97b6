//! Viewers that fetch segments, from engines and made beside them, in virtual time: counted with streams, one viewer for all that it fetches, forgotten when it fetches no
//! more.

use crate::rtsp_support::SECOND;
use crate::service_support::*;
use millrace_core::time::MediaTicks;
use millrace_core::units::BitRate;
use millrace_rights::{Limits, Quota};
use millrace_server::admission::{AdmissionConfig, Full};
use millrace_server::limits::control::{FETCH_AHEAD_NS, FETCH_GRACE_NS, VIEWERS_OF_PLAYER};
use millrace_server::service::{
    EndReason, Exhausted, Fetch, FetchedSegment, Fetching, Refusal, ServiceEvent, StreamKey, StreamPath,
    Which,
};

const MBIT: u64 = 1_000_000;
const SOUND: u64 = 128_000;
/// Seconds of a segment.
const LENGTH: u64 = 6;
const SEGMENT_BYTES: u64 = LENGTH * 4 * MBIT / 8;

/// Segment `number` of a title of 4 Mb/s, at most 5; renditions have half this rate.
fn fetch<'a>(from: &str, conn: char, title: &'a str, number: u32) -> Fetch<'a> {
    let rate = if title.contains('@') { 2 * MBIT } else { 4 * MBIT };
    Fetch {
        viewer: from.parse().unwrap(),
        label: "http-1.1",
        agent: Some("player"),
        quota: None,
        title,
        mean_rate: BitRate(rate),
        peak_rate: BitRate(rate + MBIT),
        segment: segment(conn, number),
        is_sound: false,
    }
}

/// The same of a sound of 128 kb/s.
fn sound<'a>(from: &str, conn: char, title: &'a str, number: u32) -> Fetch<'a> {
    let (mean_rate, peak_rate) = (BitRate(SOUND), BitRate(SOUND));
    Fetch { mean_rate, peak_rate, is_sound: true, ..fetch(from, conn, title, number) }
}

fn segment(conn: char, number: u32) -> FetchedSegment {
    let at = MediaTicks(u64::from(number) * LENGTH * 90_000);
    FetchedSegment { conn: conn.into(), number, at, length: MediaTicks(LENGTH * 90_000), session: None }
}

/// It is sent at once.
fn ask(desk: &mut Desk, fetch: Fetch<'_>) -> Result<(), Refusal> {
    let may = begin(desk, fetch);
    may.map(|fetching| end(desk, fetching, SEGMENT_BYTES, true))
}

fn begin(desk: &mut Desk, fetch: Fetch<'_>) -> Result<Fetching, Refusal> {
    let may = desk.service.fetch(desk.now, &fetch);
    desk.settle();
    may
}

fn end(desk: &mut Desk, fetching: Fetching, bytes: u64, is_whole: bool) {
    desk.service.end_fetch(desk.now, fetching, bytes, is_whole);
    desk.settle();
}

fn reserved(desk: &Desk) -> (usize, u64) {
    (desk.service.reserved_streams(), desk.service.reserved_rate() / MBIT)
}

const ANNA: &str = "192.0.2.1:5000";
const BERT: &str = "192.0.2.2:5000";

#[test]
fn segment_viewer_on_many_connections_counts_as_one() {
    let mut desk = Desk::new();
    // Three segments at once to fill its buffer, two of them on another connection and port.
    for (segment, (from, conn)) in
        [(ANNA, 'a'), ("192.0.2.1:5001", 'b'), ("192.0.2.1:5001", 'b')].iter().enumerate()
    {
        assert_eq!(ask(&mut desk, fetch(from, *conn, "film", segment as u32)), Ok(()));
        assert_eq!(reserved(&desk), (1, 4), "segment {segment}");
    }
    // Then one whenever one is played.
    for segment in 3..20 {
        desk.wait(LENGTH * SECOND);
        assert_eq!(ask(&mut desk, fetch(ANNA, 'a', "film", segment)), Ok(()));
        assert_eq!(reserved(&desk), (1, 4));
    }
    // It seeks, and fetches a segment twice.
    for segment in [90, 91, 91, 4] {
        assert_eq!(ask(&mut desk, fetch(ANNA, 'a', "film", segment)), Ok(()));
        assert_eq!(reserved(&desk), (1, 4), "segment {segment}");
    }
    let began = desk.events.iter().filter(|event| matches!(event, ServiceEvent::FetchBegan { .. })).count();
    assert_eq!((began, desk.counters.segment_viewers_started), (1, 1));
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
        .filter(|event| matches!(event, ServiceEvent::FetchEnded { title, .. } if title == "film"));
    assert_eq!(ended.count(), 1);
    desk.assert_empty();
}

#[test]
fn segment_fetch_reserves_for_its_length_and_grace_period() {
    let mut desk = Desk::new();
    ask(&mut desk, fetch(ANNA, 'a', "film", 0)).unwrap();
    desk.wait(LENGTH * SECOND + FETCH_GRACE_NS - SECOND);
    assert_eq!(reserved(&desk), (1, 4));
    desk.wait(2 * SECOND);
    assert_eq!(reserved(&desk), (0, 0));
    let held = desk.service.fetchers().count();
    assert_eq!(held, 0);
}

#[test]
fn segment_viewer_far_ahead_reserves_for_its_buffer_at_most() {
    let mut desk = Desk::new();
    for segment in 0..20 {
        ask(&mut desk, fetch(ANNA, 'a', "film", segment)).unwrap();
    }
    desk.wait(FETCH_AHEAD_NS + FETCH_GRACE_NS - SECOND);
    assert_eq!(reserved(&desk), (1, 4));
    desk.wait(2 * SECOND);
    assert_eq!(reserved(&desk), (0, 0));
}

#[test]
fn segment_viewers_at_other_addresses_or_positions_count_separately() {
    let mut desk = Desk::new();
    ask(&mut desk, fetch(ANNA, 'a', "film", 0)).unwrap();
    // Another address; another title on the same connection; the same title at another place from behind the same address.
    ask(&mut desk, fetch(BERT, 'b', "film", 1)).unwrap();
    ask(&mut desk, fetch(ANNA, 'a', "other", 1)).unwrap();
    ask(&mut desk, fetch(ANNA, 'c', "film", 7)).unwrap();
    let other_program = Fetch { agent: None, ..fetch(ANNA, 'd', "film", 1) };
    ask(&mut desk, other_program).unwrap();
    assert_eq!(reserved(&desk), (5, 20));
    // And each goes on as itself, in any order.
    for (from, conn, segment) in [(ANNA, 'x', 8), (BERT, 'y', 2), (ANNA, 'z', 1)] {
        ask(&mut desk, fetch(from, conn, "film", segment)).unwrap();
    }
    assert_eq!(reserved(&desk), (5, 20));
    desk.service.shut_down(desk.now);
    desk.settle();
    desk.assert_empty();
    assert_eq!(ask(&mut desk, fetch(ANNA, 'a', "film", 0)), Err(Refusal::ShuttingDown));
}

#[test]
fn segment_viewers_and_streams_share_max_streams() {
    let mut desk = Desk::with(|config| config.max_streams = 2);
    ask(&mut desk, fetch(ANNA, 'a', "film", 0)).unwrap();
    let stream = desk.udp("film", 5000);
    desk.play(stream, None).unwrap();
    assert_eq!(
        ask(&mut desk, fetch(BERT, 'b', "film", 0)),
        Err(Refusal::Exhausted(Exhausted::Streams { max: 2 }))
    );
    let told = desk.events.iter().filter(|event| matches!(event, ServiceEvent::NoRoom { .. })).count();
    assert_eq!((told, desk.counters.refused_full), (1, 1));
    assert_eq!(ask(&mut desk, fetch(ANNA, 'a', "film", 1)), Ok(()), "it has a place");
    // Its reservation keeps a stream out as well.
    desk.close(stream);
    ask(&mut desk, fetch(BERT, 'b', "film", 0)).unwrap();
    let conn = desk.conn();
    let request = desk.request("film", conn, udp(5002));
    assert_eq!(desk.admit(request).unwrap_err(), Refusal::Exhausted(Exhausted::Streams { max: 2 }));
}

#[test]
fn bit_rates_count_and_a_higher_one_is_asked_for_again() {
    let mut desk = Desk::with(|config| config.max_rate = Some(BitRate(7 * MBIT)));
    ask(&mut desk, fetch(ANNA, 'a', "film@360p", 0)).unwrap();
    assert_eq!(reserved(&desk), (1, 2));
    ask(&mut desk, fetch(ANNA, 'a', "film", 1)).unwrap();
    assert_eq!(reserved(&desk), (1, 4), "the same viewer, at more");
    ask(&mut desk, fetch(BERT, 'b', "film@360p", 0)).unwrap();
    let refused = ask(&mut desk, fetch(BERT, 'b', "film", 1)).unwrap_err();
    assert_eq!(
        refused,
        Refusal::Exhausted(Exhausted::Rate {
            used: BitRate(4 * MBIT),
            max: BitRate(7 * MBIT),
            more: BitRate(4 * MBIT)
        })
    );
    assert_eq!(reserved(&desk), (2, 6), "it keeps what it has");
    ask(&mut desk, fetch(BERT, 'b', "film@360p", 1)).unwrap();
    assert_eq!(reserved(&desk), (2, 6));
    // An address has its share.
    let mut desk = Desk::with(|config| (config.max_streams, config.address_share_percent) = (10, 20));
    ask(&mut desk, fetch(ANNA, 'a', "film", 0)).unwrap();
    ask(&mut desk, fetch(ANNA, 'b', "film", 50)).unwrap();
    assert_eq!(
        ask(&mut desk, fetch(ANNA, 'c', "film", 90)),
        Err(Refusal::Exhausted(Exhausted::AddressStreams { max: 2 }))
    );
    assert_eq!(ask(&mut desk, fetch(BERT, 'd', "film", 90)), Ok(()));
    // And the links theirs.
    let mut desk = Desk::with(|config| {
        config.admission =
            AdmissionConfig { is_on: true, link_rate: Some(BitRate(5 * MBIT)), ..AdmissionConfig::off() };
    });
    ask(&mut desk, fetch(ANNA, 'a', "film", 0)).unwrap();
    let full = Full::Link { used: BitRate(4 * MBIT), rate: BitRate(5 * MBIT) };
    assert_eq!(ask(&mut desk, fetch(BERT, 'b', "film", 0)), Err(Refusal::Exhausted(Exhausted::Full(full))));
    let links =
        desk.service.in_use().into_iter().find(|one| one.what == "bits a second of the links").unwrap();
    assert_eq!((links.used, links.of), (4 * MBIT, 5 * MBIT));
}

/// Streams, and bits a second.
fn counted(desk: &Desk) -> (usize, u64) {
    (desk.service.reserved_streams(), desk.service.reserved_rate())
}

#[test]
fn audio_only_viewer_counts_with_audio_bit_rate() {
    let mut desk = Desk::with(|config| config.max_streams = 2);
    for segment in 0..4 {
        let conn = if segment % 2 == 0 { 'a' } else { 'b' };
        ask(&mut desk, sound(ANNA, conn, "film", segment)).unwrap();
        assert_eq!(counted(&desk), (1, SOUND), "segment {segment}");
        desk.wait(LENGTH * SECOND);
    }
    // Another of the same program from behind its address, at another place: two, and the server is full.
    ask(&mut desk, sound(ANNA, 'c', "film", 50)).unwrap();
    assert_eq!(counted(&desk), (2, 2 * SOUND));
    let full = Err(Refusal::Exhausted(Exhausted::Streams { max: 2 }));
    assert_eq!(ask(&mut desk, sound(BERT, 'd', "film", 0)), full);
    assert_eq!(ask(&mut desk, fetch(BERT, 'd', "film", 0)), full);
    assert_eq!(order(&mut desk, "other", 'e', 0, None).map(drop), full);
    let places = desk.service.fetchers().map(|one| (one.title.as_str(), one.at.0 / 90_000));
    assert_eq!(places.collect::<Vec<_>>(), [("film", 18), ("film", 300)]);
    assert_eq!(desk.counters.segment_viewers_started, 2);
    desk.wait(LENGTH * SECOND + FETCH_GRACE_NS);
    desk.assert_empty();
}

/// Players fetch both at a time, by several connections, and either may come first.
#[test]
fn audio_and_video_of_same_viewer_count_once_at_title_rate() {
    type Of = for<'a> fn(&str, char, &'a str, u32) -> Fetch<'a>;
    let (pictures, sounds): (Of, Of) = (fetch, sound);
    for [(first, its), (second, rest)] in
        [[(pictures, 'a'), (sounds, 'b')], [(sounds, 'b'), (pictures, 'a')], [(sounds, 'a'), (pictures, 'a')]]
    {
        let mut desk = Desk::with(|config| config.max_streams = 1);
        // Sounds run ahead of pictures: they are small.
        for segment in 0..8 {
            ask(&mut desk, first(ANNA, its, "film", segment)).unwrap();
            ask(&mut desk, second(ANNA, rest, "film", segment)).unwrap();
            ask(&mut desk, sounds(ANNA, 'c', "film", segment + 1)).unwrap();
            assert_eq!(counted(&desk), (1, 4 * MBIT), "segment {segment}");
            desk.wait(LENGTH * SECOND);
        }
        // It seeks, sounds first and by a new connection, and goes over to another bit rate, whose sounds are the title's.
        ask(&mut desk, sounds(ANNA, 'd', "film", 90)).unwrap();
        ask(&mut desk, fetch(ANNA, 'a', "film@360p", 90)).unwrap();
        ask(&mut desk, sounds(ANNA, 'd', "film", 91)).unwrap();
        assert_eq!(counted(&desk), (1, 2 * MBIT));
        let shown: Vec<_> = desk.service.fetchers().map(|one| one.title.clone()).collect();
        assert_eq!((shown, desk.counters.segment_viewers_started), (vec!["film@360p".to_owned()], 1));
        // One segment of each: the fetched part of either does not play twice as long.
        desk.wait(FETCH_AHEAD_NS + FETCH_GRACE_NS + SECOND);
        assert_eq!(counted(&desk), (0, 0));
        ask(&mut desk, pictures(ANNA, 'a', "film", 0)).unwrap();
        ask(&mut desk, sounds(ANNA, 'a', "film", 0)).unwrap();
        desk.wait(LENGTH * SECOND + FETCH_GRACE_NS);
        desk.assert_empty();
    }
}

#[test]
fn audio_viewer_adding_video_is_readmitted_and_keeps_audio() {
    let mut desk = Desk::with(|config| config.max_rate = Some(BitRate(5 * MBIT)));
    ask(&mut desk, fetch(BERT, 'b', "film@360p", 0)).unwrap();
    ask(&mut desk, sound(ANNA, 'a', "film", 0)).unwrap();
    let more = BitRate(4 * MBIT);
    let refused =
        Err(Refusal::Exhausted(Exhausted::Rate { used: BitRate(2 * MBIT), max: BitRate(5 * MBIT), more }));
    assert_eq!(ask(&mut desk, fetch(ANNA, 'a', "film", 1)), refused);
    assert_eq!(counted(&desk), (2, 2 * MBIT + SOUND));
    ask(&mut desk, sound(ANNA, 'a', "film", 1)).unwrap();
    ask(&mut desk, fetch(ANNA, 'a', "film@360p", 1)).unwrap();
    assert_eq!(counted(&desk), (2, 4 * MBIT));
    desk.wait(60 * SECOND);
    desk.assert_empty();
    // Its user's limits are those of any viewer.
    let limits = Limits { streams: Some(1), bits_per_s: None };
    let anna = Quota { user: "anna".into(), limits };
    let of_anna = |fetch| Fetch { quota: Some(&anna), ..fetch };
    let mut desk = Desk::with(|config| config.max_streams_per_title = Some(1));
    ask(&mut desk, of_anna(sound(ANNA, 'a', "film", 0))).unwrap();
    assert_eq!(
        ask(&mut desk, of_anna(sound(BERT, 'b', "other", 0))),
        Err(Refusal::Exhausted(Exhausted::UserStreams { max: 1 }))
    );
    assert_eq!(
        ask(&mut desk, sound(BERT, 'b', "film", 0)),
        Err(Refusal::Exhausted(Exhausted::TitleStreams { max: 1 }))
    );
}

/// The segment's bytes are ordered from an engine.
fn order(
    desk: &mut Desk,
    title: &str,
    conn: char,
    number: u32,
    quota: Option<Quota>,
) -> Result<StreamKey, Refusal> {
    let lent = desk.service.conn_lent(ANNA.parse().unwrap(), None).unwrap();
    let mut request = desk.request(title, lent, StreamPath::Bytes { conn: lent });
    request.viewer = ANNA.parse().unwrap();
    request.which = Which::New { label: "http-1.1".to_owned(), agent: Some("player".to_owned()) };
    (request.segment, request.quota) = (Some(segment(conn, number)), quota);
    let ordered = desk.admit(request).map(|admitted| admitted.stream);
    match ordered {
        Ok(key) => {
            desk.service.play_bytes(desk.now, key, &(0..1316 * 50), u16::MAX).unwrap();
            desk.settle();
        }
        Err(_) => desk.hang_up(lent),
    }
    ordered
}

/// All of it is sent.
fn sent(desk: &mut Desk, key: StreamKey) {
    let conn = desk.service.stream(key).unwrap().owner().unwrap();
    desk.service.close(desk.now, key, EndReason::Sent);
    desk.hang_up(conn);
}

#[test]
fn segment_order_viewer_keeps_reservation_between_segments() {
    let mut desk = Desk::with(|config| config.max_streams = 2);
    let key = order(&mut desk, "film", 'a', 0, None).unwrap();
    assert_eq!(reserved(&desk), (1, 4), "once while it is sent");
    sent(&mut desk, key);
    assert_eq!((reserved(&desk), desk.service.streams().len()), ((1, 4), 0), "and between segments");
    assert_eq!(desk.service.fetchers().map(|one| one.rate).collect::<Vec<_>>(), [4 * MBIT]);
    // Two segments at once, by another connection too.
    let keys =
        [('a', 1), ('b', 2)].map(|(conn, number)| order(&mut desk, "film", conn, number, None).unwrap());
    assert_eq!(reserved(&desk), (1, 4));
    // Others are counted beside it, whatever their segments are made of.
    ask(&mut desk, fetch(BERT, 'c', "film", 0)).unwrap();
    assert_eq!(
        order(&mut desk, "other", 'd', 0, None),
        Err(Refusal::Exhausted(Exhausted::Streams { max: 2 }))
    );
    let told = desk
        .events
        .iter()
        .filter(|event| matches!(event, ServiceEvent::NoRoom { title, .. } if title == "other"));
    assert_eq!((told.count(), desk.counters.refused_full), (1, 1));
    for key in keys {
        sent(&mut desk, key);
    }
    desk.wait((3 * LENGTH + 2) * SECOND);
    assert_eq!(reserved(&desk), (1, 4), "three segments play for so long");
    desk.wait(FETCH_GRACE_NS);
    assert_eq!((desk.counters.segment_viewers_started, desk.counters.sessions_started), (2, 0));
    desk.assert_empty();
}

/// Players hang up to fetch something else: the same segment at a lower bit rate, or another place in the title.
#[test]
fn segment_order_cut_off_continues_on_any_connection() {
    let mut desk = Desk::with(|config| config.max_streams = 1);
    let key = order(&mut desk, "film", 'a', 7, None).unwrap();
    desk.hang_up(desk.service.stream(key).unwrap().owner().unwrap());
    assert_eq!((reserved(&desk), desk.service.streams().len()), ((1, 4), 0));
    let full = Err(Refusal::Exhausted(Exhausted::Streams { max: 1 }));
    assert_eq!(order(&mut desk, "other", 'b', 7, None), full, "another title is another viewer");
    let key = order(&mut desk, "film", 'b', 7, None).unwrap();
    desk.hang_up(desk.service.stream(key).unwrap().owner().unwrap());
    let key = order(&mut desk, "film", 'c', 40, None).unwrap();
    assert_eq!(reserved(&desk), (1, 4));
    sent(&mut desk, key);
    // With its last segment whole, it is looked for at the next.
    assert_eq!(order(&mut desk, "film", 'd', 7, None), full);
    assert!(order(&mut desk, "film", 'd', 41, None).is_ok());
    desk.wait(60 * SECOND);
}

/// The same of segments that no engine sends, and the sent part of them is accounted for.
#[test]
fn made_segment_cut_off_continues_on_any_connection() {
    let mut desk = Desk::with(|config| config.max_streams = 1);
    let cut = begin(&mut desk, fetch(ANNA, 'a', "film", 7)).unwrap();
    let full = Err(Refusal::Exhausted(Exhausted::Streams { max: 1 }));
    assert_eq!(ask(&mut desk, fetch(ANNA, 'b', "film", 40)), full, "another viewer, while it is sent");
    desk.wait(SECOND);
    end(&mut desk, cut, 1000, false);
    assert_eq!((desk.counters.deliveries, desk.counters.deliveries_broken), (0, 1));
    ask(&mut desk, fetch(ANNA, 'b', "film", 40)).unwrap();
    assert_eq!((reserved(&desk), desk.counters.deliveries), ((1, 4), 1));
    // With its last segment whole, it is looked for at the next.
    assert_eq!(ask(&mut desk, fetch(ANNA, 'c', "film", 7)), full);
    let sent = desk.events.iter().filter_map(|event| match event {
        ServiceEvent::Sent { title, bytes, .. } => Some((title.as_str(), *bytes)),
        _ => None,
    });
    assert_eq!(sent.collect::<Vec<_>>(), [("film", 1000), ("film", SEGMENT_BYTES)]);
    let over = desk.events.iter().filter_map(|event| match event {
        ServiceEvent::Delivered { label, reason, lasted_ns, .. } => {
            Some((label.as_str(), *reason, *lasted_ns))
        }
        _ => None,
    });
    let expected = [("http-1.1", EndReason::Disconnected, SECOND), ("http-1.1", EndReason::Sent, 0)];
    assert_eq!(over.collect::<Vec<_>>(), expected);
    // A sound that is cut off, of one that only listens.
    let mut desk = Desk::with(|config| config.max_streams = 1);
    let cut = begin(&mut desk, sound(ANNA, 'a', "film", 7)).unwrap();
    end(&mut desk, cut, 0, false);
    ask(&mut desk, sound(ANNA, 'b', "film", 40)).unwrap();
    assert_eq!(counted(&desk), (1, SOUND));
    desk.wait(60 * SECOND);
    desk.assert_empty();
}

#[test]
fn made_segment_read_slowly_keeps_its_viewer() {
    let mut desk = Desk::new();
    let slow = begin(&mut desk, fetch(ANNA, 'a', "film", 0)).unwrap();
    desk.wait(10 * LENGTH * SECOND);
    assert_eq!(reserved(&desk), (1, 4));
    end(&mut desk, slow, SEGMENT_BYTES, true);
    desk.wait(FETCH_GRACE_NS - SECOND);
    assert_eq!(reserved(&desk), (1, 4));
    desk.wait(2 * SECOND);
    desk.assert_empty();
    // A segment still being sent when the server ends belongs to no viewer any more.
    let last = begin(&mut desk, fetch(ANNA, 'a', "film", 0)).unwrap();
    desk.service.shut_down(desk.now);
    end(&mut desk, last, 0, false);
    desk.assert_empty();
}

#[test]
fn segment_order_read_slowly_keeps_its_viewer() {
    let mut desk = Desk::new();
    desk.engine.reads_nothing = true;
    let key = order(&mut desk, "film", 'a', 0, None).unwrap();
    desk.wait(10 * LENGTH * SECOND);
    assert_eq!(reserved(&desk), (1, 4));
    sent(&mut desk, key);
    desk.wait(FETCH_GRACE_NS - SECOND);
    assert_eq!(reserved(&desk), (1, 4));
    let key = order(&mut desk, "film", 'b', 1, None).unwrap();
    assert_eq!((reserved(&desk), desk.counters.segment_viewers_started), ((1, 4), 1));
    sent(&mut desk, key);
    desk.wait(LENGTH * SECOND + FETCH_GRACE_NS);
    desk.assert_empty();
}

#[test]
fn segment_viewer_reserves_capacity_of_its_engine() {
    let mut desk = Desk::with(|config| {
        config.admission =
            AdmissionConfig { is_on: true, link_rate: Some(BitRate(9 * MBIT)), ..AdmissionConfig::off() };
    });
    let in_use = |desk: &Desk, what: &str| {
        desk.service.in_use().into_iter().find(|one| one.what == what).unwrap().used
    };
    let key = order(&mut desk, "film", 'a', 0, None).unwrap();
    sent(&mut desk, key);
    let (core, links) = ("thousandths of the core of engine 0", "bits a second of the links");
    assert!(in_use(&desk, core) > 0, "its packets are promised");
    assert_eq!(in_use(&desk, links), 4 * MBIT);
    // A segment that the web side makes for it next needs none.
    ask(&mut desk, fetch(ANNA, 'a', "film", 1)).unwrap();
    assert_eq!((in_use(&desk, core), in_use(&desk, links)), (0, 4 * MBIT));
    desk.wait(60 * SECOND);
    assert_eq!((in_use(&desk, core), in_use(&desk, links)), (0, 0));
    desk.assert_empty();
}

#[test]
fn segment_viewer_ended_by_overload_loses_its_reservation() {
    let mut desk = Desk::with(|config| config.max_streams = 2);
    let viewer = order(&mut desk, "film", 'a', 0, None).unwrap();
    sent(&mut desk, viewer);
    let stream = desk.udp("film", 5000);
    desk.play(stream, None).unwrap();
    // However late this segment, its viewer is older than the stream.
    let segment = order(&mut desk, "film", 'a', 1, None).unwrap();
    assert_eq!(desk.service.end_newest(desk.now, 0, 1), 1);
    desk.settle();
    assert!(desk.service.stream(segment).is_some() && desk.service.fetchers().count() == 1);
    assert_eq!(desk.service.end_newest(desk.now, 0, 2), 1);
    desk.settle();
    assert_eq!((desk.service.fetchers().count(), desk.service.stream(segment).is_some()), (0, false));
    // The operator sees the reason, and that it is a failure.
    let ended = desk.events.iter().find(|event| matches!(event, ServiceEvent::FetchEnded { .. })).unwrap();
    assert!(ended.is_warning() && ended.is_logged());
    let line = ended.to_string();
    let expected = "session http-1.1 ended: film for 192.0.2.1:5000, the server is overloaded and ends its newest streams, after ";
    assert!(line.starts_with(expected), "{line}");
    assert_eq!(desk.counters.sessions_overload, 1, "the stream counts when BYE has been said");
    // One that has gone by itself is none.
    ask(&mut desk, fetch(BERT, 'b', "film", 0)).unwrap();
    desk.wait(LENGTH * SECOND + FETCH_GRACE_NS);
    let last = desk.events.iter().rfind(|event| matches!(event, ServiceEvent::FetchEnded { .. })).unwrap();
    assert!(!last.is_warning() && last.to_string().contains(", no more segments fetched, after 10.0 s"));
}

#[test]
fn limits_of_users_and_titles_hold_for_players_whatever_they_fetch() {
    let limits = Limits { streams: Some(1), bits_per_s: None };
    let anna = Quota { user: "anna".into(), limits };
    let of_anna = |fetch| Fetch { quota: Some(&anna), ..fetch };
    let full = Err(Refusal::Exhausted(Exhausted::UserStreams { max: 1 }));
    let mut desk = Desk::new();
    ask(&mut desk, of_anna(fetch(ANNA, 'a', "film", 0))).unwrap();
    let phone = Fetch { agent: Some("phone"), ..of_anna(fetch(ANNA, 'b', "film", 0)) };
    assert_eq!(ask(&mut desk, phone), full);
    assert_eq!(ask(&mut desk, of_anna(fetch(BERT, 'c', "film", 0))), full);
    assert_eq!(desk.counters.refused_user, 2);
    // A seek by another connection, and another title, may be another viewer, but not for the user.
    ask(&mut desk, of_anna(fetch(ANNA, 'd', "film", 50))).unwrap();
    ask(&mut desk, of_anna(fetch(ANNA, 'd', "other", 0))).unwrap();
    assert_eq!(reserved(&desk), (3, 12));
    // By RTSP it is one more, and others are not concerned.
    let conn = desk.conn();
    let mut request = desk.request("film", conn, udp(5000));
    request.quota = Some(anna.clone());
    assert_eq!(desk.admit(request).unwrap_err(), Refusal::Exhausted(Exhausted::UserStreams { max: 1 }));
    ask(&mut desk, fetch(BERT, 'e', "film", 0)).unwrap();
    desk.wait(LENGTH * SECOND + FETCH_GRACE_NS);
    ask(&mut desk, phone).unwrap();
    assert_eq!(ask(&mut desk, of_anna(fetch(ANNA, 'a', "film", 1))), full);
    desk.wait(60 * SECOND);
    desk.assert_empty();
    // A title is counted with the titles made from it, and segments with streams.
    let mut desk = Desk::with(|config| config.max_streams_per_title = Some(2));
    ask(&mut desk, fetch(ANNA, 'a', "film@360p", 0)).unwrap();
    ask(&mut desk, fetch(ANNA, 'b', "film", 50)).unwrap();
    let stream = desk.udp("film", 5000);
    desk.play(stream, None).unwrap();
    let full = Err(Refusal::Exhausted(Exhausted::TitleStreams { max: 2 }));
    assert_eq!(ask(&mut desk, fetch(BERT, 'c', "film", 0)), full);
    ask(&mut desk, fetch(BERT, 'c', "other", 0)).unwrap();
    desk.close(stream);
    ask(&mut desk, fetch(BERT, 'd', "film", 0)).unwrap();
    let conn = desk.conn();
    let request = desk.request("film", conn, udp(5000));
    assert_eq!(desk.admit(request).unwrap_err(), Refusal::Exhausted(Exhausted::TitleStreams { max: 2 }));
    assert_eq!(desk.counters.refused_title, 2);
}

/// A program that always sends the same User-Agent does not count as one player, however many
/// segments it fetches at once.
#[test]
fn fetch_of_many_segments_at_once_counts_against_the_limit_of_a_user() {
    let quota = Quota { user: "anna".into(), limits: Limits { streams: Some(1), bits_per_s: None } };
    let mut desk = Desk::new();
    let conns: Vec<char> = ('a'..='t').collect();
    let of = |number: usize, title: &'static str| Fetch {
        quota: Some(&quota),
        ..fetch(ANNA, conns[number], title, number as u32 * 10)
    };
    let full = Refusal::Exhausted(Exhausted::UserStreams { max: 1 });
    // Other places in the title, and another title.
    let mut under_way = Vec::new();
    for number in 0..conns.len() {
        match begin(&mut desk, of(number, if number % 2 == 0 { "film" } else { "other" })) {
            Ok(fetching) => under_way.push(fetching),
            Err(refusal) => assert_eq!(refusal, full),
        }
    }
    assert_eq!(under_way.len(), VIEWERS_OF_PLAYER);
    for fetching in under_way {
        end(&mut desk, fetching, SEGMENT_BYTES, true);
    }
    // Segments fetched one after the other without pause count as the same number of places.
    assert_eq!(ask(&mut desk, of(19, "film")), Err(full.clone()));
    desk.wait(FETCH_AHEAD_NS + FETCH_GRACE_NS + SECOND);
    let asked = (0..conns.len()).filter(|&number| ask(&mut desk, of(number, "film")).is_ok()).count();
    assert_eq!(asked, VIEWERS_OF_PLAYER);
    desk.wait(FETCH_AHEAD_NS + FETCH_GRACE_NS + SECOND);
    // On one HTTP/2 connection the program is one viewer, but the segments sent at once are still
    // limited.
    let mut under_way = Vec::new();
    for number in 0..20 {
        let may = begin(&mut desk, Fetch { quota: Some(&quota), ..fetch(ANNA, 'x', "film", number) });
        under_way.extend(may.inspect_err(|refusal| assert_eq!(*refusal, full)));
    }
    assert_eq!(under_way.len(), VIEWERS_OF_PLAYER);
    for fetching in under_way {
        end(&mut desk, fetching, SEGMENT_BYTES, true);
    }
    assert_eq!(ask(&mut desk, Fetch { quota: Some(&quota), ..fetch(ANNA, 'x', "film", 20) }), Ok(()));
    desk.wait(FETCH_AHEAD_NS + FETCH_GRACE_NS + SECOND);
    desk.assert_empty();
}
