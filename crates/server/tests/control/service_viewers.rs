//! Sessions of viewers that fetch segments, in virtual time: begun by a playlist, one reservation
//! for all that is fetched in them, and no refusal of a segment once they are admitted.

use crate::rtsp_support::SECOND;
use crate::service_support::*;
use millrace_core::ids::ViewerSession;
use millrace_core::time::MediaTicks;
use millrace_core::units::BitRate;
use millrace_rights::{Limits, Quota};
use millrace_server::limits::control::{
    FETCH_GRACE_NS, PENDING_SESSIONS_PER_ADDRESS, SESSION_BEGIN_NS, SESSION_IDLE_NS, SESSION_SEGMENTS,
};
use millrace_server::service::{
    EndReason, Exhausted, Fetch, FetchedSegment, Fetching, Refusal, StreamKey, StreamPath, Which,
};

const MBIT: u64 = 1_000_000;
/// Seconds of a segment.
const LENGTH: u64 = 6;
/// One address for all: a building behind a NAT.
const BUILDING: &str = "192.0.2.1:5000";

/// A television, which gives its program no name, fetches a segment of a title of 4 Mb/s.
fn segment(session: Option<ViewerSession>, title: &str, number: u32) -> Fetch<'_> {
    let rate = if title.contains('@') { 2 * MBIT } else { 4 * MBIT };
    let at = MediaTicks(u64::from(number) * LENGTH * 90_000);
    Fetch {
        viewer: BUILDING.parse().unwrap(),
        label: "http-1.1",
        agent: None,
        quota: None,
        title,
        mean_rate: BitRate(rate),
        peak_rate: BitRate(rate + MBIT),
        segment: FetchedSegment { conn: 7, number, at, length: MediaTicks(LENGTH * 90_000), session },
        is_sound: false,
    }
}

/// It asks for the playlist.
pub(crate) fn playlist_of(title: &str) -> Fetch<'_> {
    segment(None, title, 0)
}

fn admit(desk: &mut Desk, asked: &Fetch<'_>, fresh: u64) -> Result<ViewerSession, Refusal> {
    let admitted = desk.service.admit_viewer(desk.now, asked, true, ViewerSession(fresh));
    desk.settle();
    admitted
}

fn begin(desk: &mut Desk, asked: &Fetch<'_>) -> Result<Fetching, Refusal> {
    let may = desk.service.fetch(desk.now, asked);
    desk.settle();
    may
}

/// It is sent at once.
fn fetch(desk: &mut Desk, asked: &Fetch<'_>) -> Result<(), Refusal> {
    let fetching = begin(desk, asked)?;
    desk.service.end_fetch(desk.now, fetching, 3_000_000, true);
    desk.settle();
    Ok(())
}

/// An engine sends it.
fn order(desk: &mut Desk, session: ViewerSession, number: u32) -> Result<StreamKey, Refusal> {
    let peer = BUILDING.parse().unwrap();
    let lent = desk.service.conn_lent(peer, Some(session)).unwrap();
    let mut request = desk.request("film", lent, StreamPath::Bytes { conn: lent });
    request.viewer = peer;
    request.which = Which::New { label: "http-1.1".to_owned(), agent: None };
    request.segment = Some(segment(Some(session), "film", number).segment);
    let key = desk.admit(request)?.stream;
    desk.service.play_bytes(desk.now, key, &(0..1316 * 50), u16::MAX).unwrap();
    desk.settle();
    Ok(key)
}

fn sent(desk: &mut Desk, key: StreamKey) {
    let conn = desk.service.stream(key).unwrap().owner().unwrap();
    desk.service.close(desk.now, key, EndReason::Sent);
    desk.hang_up(conn);
}

fn reserved(desk: &Desk) -> (usize, u64) {
    (desk.service.reserved_streams(), desk.service.reserved_rate() / MBIT)
}

/// A desk for this many viewers, which may all be at one address.
fn desk(max_streams: usize) -> Desk {
    Desk::with(|config| (config.max_streams, config.address_share_percent) = (max_streams, 100))
}

#[test]
fn viewers_behind_one_address_each_have_reservation_and_get_all_segments() {
    const VIEWERS: usize = 40;
    let mut desk = desk(VIEWERS);
    let playlist = segment(None, "film", 0);
    let sessions: Vec<_> =
        (1..=VIEWERS as u64).map(|fresh| admit(&mut desk, &playlist, fresh).unwrap()).collect();
    assert_eq!(reserved(&desk), (VIEWERS, 4 * VIEWERS as u64));
    let full = Err(Refusal::Exhausted(Exhausted::Streams { max: VIEWERS }));
    assert_eq!(admit(&mut desk, &playlist, 99), full);
    // The same segments at the same time: place and program do not distinguish them.
    for number in [0, 1, 2, 90, 3] {
        for session in &sessions {
            assert_eq!(fetch(&mut desk, &segment(Some(*session), "film", number)), Ok(()));
        }
        assert_eq!(reserved(&desk), (VIEWERS, 4 * VIEWERS as u64));
        desk.wait(LENGTH * SECOND);
    }
    // One without a session is counted as before, and finds no room.
    assert_eq!(fetch(&mut desk, &segment(None, "film", 0)).map_err(Err), Err(full));
    desk.wait(60 * SECOND);
    desk.assert_empty();
}

#[test]
fn session_survives_playlists_seek_and_renditions_with_one_reservation() {
    let mut desk = desk(1);
    let session = admit(&mut desk, &segment(None, "film", 0), 5).unwrap();
    assert_eq!(session, ViewerSession(5));
    for (title, number) in [("film", 0), ("film@360p", 1), ("film@360p", 700), ("film", 3), ("film", 3)] {
        let again = admit(&mut desk, &segment(Some(session), title, 0), 6);
        assert_eq!(again, Ok(session), "{title}: its playlist again");
        assert_eq!(fetch(&mut desk, &segment(Some(session), title, number)), Ok(()), "{title} {number}");
        // Its reservation suffices for the best rendition whenever it goes back.
        assert_eq!(reserved(&desk), (1, 4), "{title} {number}");
    }
    let sound = Fetch { is_sound: true, ..segment(Some(session), "film", 4) };
    assert_eq!(fetch(&mut desk, &sound), Ok(()));
    assert_eq!(reserved(&desk), (1, 4));
    desk.wait(60 * SECOND);
    desk.assert_empty();
}

#[test]
fn session_ends_when_idle_and_another_may_begin() {
    let mut desk = desk(1);
    let playlist = segment(None, "film", 0);
    admit(&mut desk, &playlist, 1).unwrap();
    // It takes its time to the first segment.
    desk.wait(SESSION_BEGIN_NS - SECOND);
    assert_eq!(fetch(&mut desk, &segment(Some(ViewerSession(1)), "film", 0)), Ok(()));
    desk.wait(LENGTH * SECOND + SESSION_IDLE_NS - SECOND);
    assert_eq!(reserved(&desk), (1, 4));
    desk.wait(2 * SECOND);
    assert_eq!(reserved(&desk), (0, 0));
    // An expired session in a playlist's address begins a new one, in a segment's none.
    let expired = Some(ViewerSession(1));
    assert_eq!(admit(&mut desk, &segment(expired, "film", 0), 2), Ok(ViewerSession(2)));
    let full = Err(Refusal::Exhausted(Exhausted::Streams { max: 1 }));
    assert_eq!(fetch(&mut desk, &segment(expired, "film", 1)), full);
    desk.wait(SESSION_BEGIN_NS + SECOND);
    assert_eq!(fetch(&mut desk, &segment(expired, "film", 1)), Ok(()));
    desk.wait(LENGTH * SECOND + FETCH_GRACE_NS + SECOND);
    desk.assert_empty();
}

#[test]
fn session_of_other_title_or_user_is_not_used() {
    let mut desk = desk(2);
    let anna = Quota { user: "anna".into(), limits: Limits::default() };
    let session = Some(admit(&mut desk, &segment(None, "film", 0), 1).unwrap());
    assert_eq!(admit(&mut desk, &segment(session, "other", 0), 2), Ok(ViewerSession(2)));
    let full = Err(Refusal::Exhausted(Exhausted::Streams { max: 2 }));
    assert_eq!(fetch(&mut desk, &segment(session, "other", 0)), full);
    assert_eq!(fetch(&mut desk, &Fetch { quota: Some(&anna), ..segment(session, "film", 0) }), full);
    assert_eq!(fetch(&mut desk, &segment(session, "film@360p", 0)), Ok(()), "made of the title");
}

#[test]
fn session_covers_no_more_segments_at_once_than_one_player_needs() {
    let mut desk = desk(1);
    let session = Some(admit(&mut desk, &segment(None, "film", 0), 1).unwrap());
    let under_way: Vec<_> = (0..SESSION_SEGMENTS)
        .map(|number| begin(&mut desk, &segment(session, "film", number)).unwrap())
        .collect();
    let full = Err(Refusal::Exhausted(Exhausted::Streams { max: 1 }));
    assert_eq!(fetch(&mut desk, &segment(session, "film", 20)), full);
    for fetching in under_way {
        desk.service.end_fetch(desk.now, fetching, 1, true);
    }
    assert_eq!(fetch(&mut desk, &segment(session, "film", 20)), Ok(()));
}

#[test]
fn session_goes_with_its_viewer_to_engine_and_address() {
    let mut desk = desk(1);
    let session = admit(&mut desk, &segment(None, "film", 0), 1).unwrap();
    let key = order(&mut desk, session, 0).unwrap();
    assert_eq!((reserved(&desk), desk.service.streams().len()), ((1, 4), 1));
    sent(&mut desk, key);
    // Another network, and a segment that no engine sends.
    let moved = Fetch { viewer: "198.51.100.9:4000".parse().unwrap(), ..segment(Some(session), "film", 1) };
    assert_eq!(fetch(&mut desk, &moved), Ok(()));
    assert_eq!(reserved(&desk), (1, 4));
    let key = order(&mut desk, session, 2).unwrap();
    sent(&mut desk, key);
    desk.wait(60 * SECOND);
    desk.assert_empty();
}

#[test]
fn segments_of_sessions_are_not_refused_for_number_at_address() {
    let mut desk = Desk::with(|config| {
        config.address_share_percent = 100;
        (config.max_connections_per_address, config.max_sessions_per_address) = (1, 1);
    });
    let playlist = segment(None, "film", 0);
    let sessions: Vec<_> = (1..=3).map(|fresh| admit(&mut desk, &playlist, fresh).unwrap()).collect();
    let keys: Vec<_> = sessions.iter().map(|session| order(&mut desk, *session, 0)).collect();
    for key in keys {
        sent(&mut desk, key.unwrap());
    }
}

#[test]
fn viewers_that_fetch_no_segment_are_bounded_for_each_address() {
    let max = PENDING_SESSIONS_PER_ADDRESS;
    let mut desk = desk(10 * max);
    let playlist = segment(None, "film", 0);
    let sessions: Vec<_> =
        (1..=max as u64).map(|fresh| admit(&mut desk, &playlist, fresh).unwrap()).collect();
    let full = Err(Refusal::Exhausted(Exhausted::AddressBeginnings { max }));
    assert_eq!(admit(&mut desk, &playlist, 1000), full);
    let elsewhere = Fetch { viewer: "198.51.100.9:4000".parse().unwrap(), ..playlist };
    assert_eq!(admit(&mut desk, &elsewhere, 1001), Ok(ViewerSession(1001)));
    // One that plays makes room for another.
    assert_eq!(fetch(&mut desk, &segment(Some(sessions[0]), "film", 0)), Ok(()));
    assert_eq!(admit(&mut desk, &playlist, 1002), Ok(ViewerSession(1002)));
    assert_eq!(admit(&mut desk, &playlist, 1003), full);
    desk.wait(SESSION_BEGIN_NS + SECOND);
    assert_eq!(reserved(&desk), (1, 4));
    assert_eq!(admit(&mut desk, &playlist, 1004), Ok(ViewerSession(1004)));
}
