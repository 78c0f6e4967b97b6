//! Every reason for the service to refuse a request: each occurs here, names the exhausted
//! resource, and leaves nothing behind.

use std::collections::BTreeSet;

use crate::rtsp_support::SECOND;
use crate::service_support::*;
use crate::service_viewers::playlist_of;
use millrace_core::ids::ViewerSession;
use millrace_rights::{Limits, Quota};
use millrace_server::admission::AdmissionConfig;
use millrace_server::limits::MAX_OPENINGS;
use millrace_server::limits::control::PENDING_SESSIONS_PER_ADDRESS;
use millrace_server::service::{
    ConnRefusal, EndReason, Exhausted, FecMode, FecRefusal, FecWish, GroupRange, MulticastGroups,
    MulticastRefusal, Refusal, RenditionWish, ServiceEvent, Span, StreamKey, Which,
};

/// A new variant does not compile until it stands here, and fails until it is met below.
fn name(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::ShuttingDown => "ShuttingDown",
        Refusal::Exhausted(Exhausted::ConnectionSessions) => "ConnectionSessions",
        Refusal::Exhausted(Exhausted::AddressSessions) => "AddressSessions",
        Refusal::Exhausted(Exhausted::AddressBeginnings { .. }) => "AddressBeginnings",
        Refusal::Exhausted(Exhausted::Sessions { .. }) => "Sessions",
        Refusal::Exhausted(Exhausted::Streams { .. }) => "Streams",
        Refusal::Exhausted(Exhausted::Rate { .. }) => "Rate",
        Refusal::Exhausted(Exhausted::AddressStreams { .. }) => "AddressStreams",
        Refusal::Exhausted(Exhausted::AddressStreamLimit { .. }) => "AddressStreamLimit",
        Refusal::Exhausted(Exhausted::AddressRate { .. }) => "AddressRate",
        Refusal::Exhausted(Exhausted::TitleStreams { .. }) => "TitleStreams",
        Refusal::Exhausted(Exhausted::UserStreams { .. }) => "UserStreams",
        Refusal::Exhausted(Exhausted::UserRate { .. }) => "UserRate",
        Refusal::Exhausted(Exhausted::Full(_)) => "Full",
        Refusal::PortInUse(_) => "PortInUse",
        Refusal::Exhausted(Exhausted::EngineStreams) => "EngineStreams",
        Refusal::Exhausted(Exhausted::EngineConnections) => "EngineConnections",
        Refusal::MembersLost(_) => "MembersLost",
        Refusal::Unfit(_) => "Unfit",
        Refusal::Coming(_) => "Coming",
        Refusal::Exhausted(Exhausted::OpenTitles) => "TooManyTitles",
        Refusal::Broken => "Broken",
        Refusal::Opening => "Opening",
        Refusal::Exhausted(Exhausted::Openings) => "TooManyOpenings",
        Refusal::TimedOut => "TimedOut",
        Refusal::Gone => "Gone",
        Refusal::Busy => "Busy",
        Refusal::Ending => "Ending",
        Refusal::EmptyRange => "EmptyRange",
        Refusal::OutsideRange => "OutsideRange",
        Refusal::NoClock => "NoClock",
        Refusal::EndReached => "EndReached",
        Refusal::BeginningReached => "BeginningReached",
        Refusal::NoReverse => "NoReverse",
        Refusal::NoRenditions => "NoRenditions",
        Refusal::NoRendition { .. } => "NoRendition",
        Refusal::RenditionHeld(_) => "RenditionHeld",
        Refusal::NothingLeft => "NothingLeft",
        Refusal::Fec(refusal) => match refusal {
            FecRefusal::NotUnderstood => "Fec NotUnderstood",
            FecRefusal::UdpOnly => "Fec UdpOnly",
            FecRefusal::RtpOnly => "Fec RtpOnly",
            FecRefusal::NoParity => "Fec NoParity",
            FecRefusal::Disabled => "Fec Disabled",
            FecRefusal::NoPorts => "Fec NoPorts",
            FecRefusal::PortInUse(_) => "Fec PortInUse",
            FecRefusal::Rate { .. } => "Fec Rate",
            FecRefusal::AddressRate { .. } => "Fec AddressRate",
            FecRefusal::UserRate { .. } => "Fec UserRate",
            FecRefusal::Full(_) => "Fec Full",
            FecRefusal::EngineStreams => "Fec EngineStreams",
            FecRefusal::Broken => "Fec Broken",
            FecRefusal::Rendition => "Fec Rendition",
            FecRefusal::NotAsked => "Fec NotAsked",
        },
        Refusal::Multicast(refusal) => match refusal {
            MulticastRefusal::Disabled => "Multicast Disabled",
            MulticastRefusal::Stored => "Multicast Stored",
            MulticastRefusal::Family(_) => "Multicast Family",
            MulticastRefusal::Used { .. } => "Multicast Used",
        },
    }
}

/// How many there are.
const REFUSALS: usize = 57;

/// Collects the refusals that occurred.
#[derive(Default)]
struct Met(BTreeSet<&'static str>);

impl Met {
    /// Records a refusal with this text and for lack of this resource; `None` if no resource is
    /// exhausted.
    fn see<T: std::fmt::Debug>(&mut self, refused: Result<T, Refusal>, text: &str, resource: Option<&str>) {
        let refusal = refused.expect_err("refused");
        assert_eq!((refusal.to_string().as_str(), refusal.resource()), (text, resource), "{refusal:?}");
        assert!(self.0.insert(name(&refusal)), "{refusal:?} is met twice");
    }

    fn see_fec(&mut self, refused: Option<Result<(), FecRefusal>>, text: &str) {
        self.see(refused.expect("a wish").map_err(Refusal::Fec), text, None);
    }
}

/// Returns the resource named by the last event too, for subscribers that count or warn.
fn told(desk: &Desk) -> Option<&'static str> {
    desk.events.iter().rev().find_map(|event| match event {
        ServiceEvent::NoRoom { refusal, .. } => refusal.resource(),
        _ => None,
    })
}

#[test]
fn refusals_of_every_kind_occur_and_leave_nothing_behind() {
    let mut met = Met::default();
    tables(&mut met);
    beginnings(&mut met);
    ceilings(&mut met);
    quotas(&mut met);
    engine(&mut met);
    titles(&mut met);
    openings(&mut met);
    commands(&mut met);
    fec(&mut met);
    fec_resources(&mut met);
    multicast(&mut met);
    assert_eq!(met.0.len(), REFUSALS, "{:?}", met.0);
}

fn multicast(met: &mut Met) {
    let mut group = |groups: Option<MulticastGroups>, titles: &[&str], text: &str| {
        let mut desk = Desk::with(|config| config.multicast = groups);
        let mut last = None;
        for title in titles {
            let entry = desk.service.find(title).unwrap();
            last = Some(desk.service.group_of(&entry, true));
        }
        met.see(last.unwrap().map_err(Refusal::Multicast), text, None);
    };
    let one = |first: &str, prefix| GroupRange::new(first.parse().unwrap(), prefix);
    let groups = MulticastGroups {
        v4: one("239.192.0.0", 32),
        v6: None,
        first_port: 20_000,
        last_port: 20_999,
        ttl: 1,
        interface: None,
        taken: Vec::new(),
    };
    let text = "this server sends to no multicast groups (--multicast); ask for unicast";
    group(None, &["live/news"], text);
    let text = "multicast is for channels and live titles; ask for unicast";
    group(Some(groups.clone()), &["film"], text);
    let text = "the 1 multicast groups of this server are in use (--multicast); ask for unicast";
    group(Some(groups.clone()), &["live/news", "live/sport"], text);
    let text = "this server has no IPv4 groups (--multicast); ask for unicast";
    group(Some(MulticastGroups { v4: None, v6: one("ff18::", 112), ..groups }), &["live/news"], text);
}

/// Viewers that ask for playlists alone.
fn beginnings(met: &mut Met) {
    let mut desk = Desk::new();
    let mut admit = |fresh| {
        let playlist = playlist_of("film");
        let admitted = desk.service.admit_viewer(desk.now, &playlist, true, ViewerSession(fresh));
        desk.settle();
        admitted
    };
    for fresh in 0..PENDING_SESSIONS_PER_ADDRESS as u64 {
        admit(fresh).unwrap();
    }
    let text = "all 128 viewers that one address may begin at a time have begun; fetch a segment, or try again later";
    met.see(admit(1000), text, Some("beginnings of the address"));
    assert_eq!(told(&desk), Some("beginnings of the address"));
}

fn tables(met: &mut Met) {
    let mut desk = Desk::with(|config| {
        config.max_sessions = 4;
        config.max_sessions_per_connection = 2;
        config.max_sessions_per_address = 3;
    });
    let (a, b) = (desk.conn(), desk.conn());
    let mine = [desk.try_tcp(a).unwrap(), desk.try_tcp(a).unwrap()];
    let text = "too many sessions on this connection; tear one down";
    met.see(desk.try_tcp(a), text, Some("sessions of the connection"));
    desk.try_tcp(b).unwrap();
    met.see(
        desk.try_tcp(b),
        "too many sessions from this address (--max-connections-per-address)",
        Some("sessions of the address"),
    );
    assert_eq!((told(&desk), desk.counters.refused_full), (Some("sessions of the address"), 0));
    // Who plays is not ended for a newcomer.
    for key in mine {
        desk.play(key, None).unwrap();
    }
    desk.wait(SECOND);
    let other = desk.conn_from("198.51.100.1:1");
    let ask = |desk: &mut Desk, peer: &str| {
        let mut request = desk.request("film", other, tcp(other));
        request.viewer = peer.parse().unwrap();
        desk.admit(request).map(|admitted| admitted.stream)
    };
    let more = [ask(&mut desk, "198.51.100.1:1").unwrap(), ask(&mut desk, "198.51.100.1:1").unwrap()];
    assert!(desk.ends().contains(&EndReason::TablesFull), "80 % of 4: an idle one ends first");
    more.iter().for_each(|&key| drop(desk.play(key, None)));
    let full = desk.service.streams().len();
    let third = desk.conn_from("198.51.100.2:1");
    let mut request = desk.request("film", third, tcp(third));
    request.viewer = "198.51.100.2:1".parse().unwrap();
    if full < 4 {
        let key = desk.admit(request).unwrap().stream;
        desk.play(key, None).unwrap();
        let fourth = desk.conn_from("198.51.100.3:1");
        request = desk.request("film", fourth, tcp(fourth));
        request.viewer = "198.51.100.3:1".parse().unwrap();
    }
    met.see(desk.admit(request), "all 4 sessions are in use (--max-streams)", Some("sessions"));
    desk.service.begin_shutdown();
    met.see(desk.try_tcp(b), "the server is shutting down", None);
    assert_eq!(desk.service.conn_opened(VIEWER.parse().unwrap()), Err(ConnRefusal::ShuttingDown));
    desk.service.shut_down(desk.now);
    desk.settle();
    desk.assert_empty();
}

fn ceilings(met: &mut Met) {
    let mut desk = Desk::new();
    desk.udp("film", 5000);
    let conn = desk.conn();
    let request = desk.request("film", conn, udp(5000));
    let in_use = "another session from this address uses UDP port 5000; choose other ports, or RTP/AVP/TCP interleaved";
    met.see(desk.admit(request), in_use, None);
    let one_plays = |change: &dyn Fn(&mut millrace_server::service::ServiceConfig)| {
        let mut desk = Desk::with(change);
        let conn = desk.conn();
        let (key, late) = (desk.try_tcp(conn).unwrap(), desk.try_tcp(conn).unwrap());
        desk.play(key, None).unwrap();
        (desk, conn, late)
    };
    // Refused when it asks for a stream and, admitted before, when it wants to play.
    let (mut desk, conn, late) = one_plays(&|config| config.max_streams = 1);
    let refused = desk.play(late, None);
    assert_eq!(refused, Err(Refusal::Exhausted(Exhausted::Streams { max: 1 })));
    met.see(desk.try_tcp(conn), "all 1 streams are in use (--max-streams)", Some("streams"));
    assert_eq!((told(&desk), desk.counters.refused_full), (Some("streams"), 2));
    desk.service.conn_closed(desk.now, conn);
    desk.settle();
    desk.assert_empty();
    let (mut desk, conn, _) = one_plays(&|config| config.max_rate = Some("6Mb/s".parse().unwrap()));
    met.see(desk.try_tcp(conn), "4Mb/s of 6Mb/s in use, 4Mb/s more asked (--max-rate)", Some("bit rate"));
    let (mut desk, conn, _) = one_plays(&|config| {
        let link_rate = Some("6Mb/s".parse().unwrap());
        config.admission = AdmissionConfig { is_on: true, link_rate, ..AdmissionConfig::off() };
    });
    let text = "4Mb/s of the 6Mb/s of the network links are in use (--link-rate)";
    met.see(desk.try_tcp(conn), text, Some("network links"));
    assert_eq!((desk.counters.refused_full, desk.counters.refused_measured), (1, 1));
    let (mut desk, conn, _) = one_plays(&|config| {
        config.max_streams = 2;
        config.address_share_percent = 50;
    });
    let text = "all 1 streams that one address may have are in use (--share-per-address)";
    met.see(desk.try_tcp(conn), text, Some("streams of the address"));
    // A number stands in place of the share of the streams, whether it is less or more.
    let (mut desk, conn, late) = one_plays(&|config| {
        (config.max_streams, config.address_share_percent) = (3, 10);
        config.max_streams_per_address = Some(2);
    });
    desk.play(late, None).unwrap();
    let text = "all 2 streams that one address may have are in use (--streams-per-address)";
    met.see(desk.try_tcp(conn), text, Some("streams of the address"));
    let (mut desk, conn, _) = one_plays(&|config| {
        config.max_rate = Some("12Mb/s".parse().unwrap());
        config.address_share_percent = 50;
    });
    let text = "4Mb/s of 6Mb/s that one address may have in use, 4Mb/s more asked (--share-per-address)";
    met.see(desk.try_tcp(conn), text, Some("bit rate of the address"));
    assert_eq!((told(&desk), desk.counters.refused_full), (Some("bit rate of the address"), 1));
    assert_eq!((desk.counters.refused_address, desk.counters.refused_title), (1, 0));
}

/// A user that may have this at once.
fn quota(user: &str, streams: Option<u32>, mbit_per_s: Option<u64>) -> Option<Quota> {
    let limits = Limits { streams, bits_per_s: mbit_per_s.map(|rate| rate * 1_000_000) };
    Some(Quota { user: user.into(), limits })
}

fn quotas(met: &mut Met) {
    let ask = |desk: &mut Desk, title: &str, peer: &str, quota: &Option<Quota>| {
        let conn = desk.conn_from(peer);
        let mut request = desk.request(title, conn, tcp(conn));
        (request.viewer, request.quota) = (peer.parse().unwrap(), quota.clone());
        desk.admit(request).map(|admitted| admitted.stream)
    };
    // Whatever address they come from, and refused when they ask or, admitted before, when they want to play.
    let peers = ["198.51.100.1:1", "198.51.100.2:1", "198.51.100.3:1"];
    let mut desk = Desk::new();
    let (anna, ben) = (quota("anna", Some(1), None), quota("ben", Some(1), None));
    let first = ask(&mut desk, "film", peers[0], &anna).unwrap();
    let late = ask(&mut desk, "other", peers[1], &anna).unwrap();
    desk.play(first, None).unwrap();
    assert_eq!(desk.play(late, None), Err(Refusal::Exhausted(Exhausted::UserStreams { max: 1 })));
    let text = "all 1 streams that this user may have are in use (millrace user limit)";
    met.see(ask(&mut desk, "other", peers[2], &anna), text, Some("streams of the user"));
    assert_eq!((told(&desk), desk.counters.refused_user), (Some("streams of the user"), 2));
    // Others are not concerned, and released room is available again.
    for quota in [&ben, &None] {
        let key = ask(&mut desk, "film", peers[1], quota).unwrap();
        desk.play(key, None).unwrap();
    }
    desk.close(first);
    desk.play(late, None).unwrap();
    assert!(desk.play(late, span(1, None)).is_ok(), "its own reservation is not counted against it");

    let mut desk = Desk::new();
    let anna = quota("anna", None, Some(6));
    let first = ask(&mut desk, "film", peers[0], &anna).unwrap();
    desk.play(first, None).unwrap();
    let text = "4Mb/s of 6Mb/s that this user may have in use, 4Mb/s more asked (millrace user limit)";
    met.see(ask(&mut desk, "other", peers[1], &anna), text, Some("bit rate of the user"));
    desk.close(first);
    ask(&mut desk, "other", peers[1], &anna).unwrap();
    // FEC beside a title counts too, until it is switched off.
    let mut desk = Desk::new();
    let (conn, anna) = (desk.conn(), quota("anna", None, Some(8)));
    let mut request = desk.request("safe", conn, udp(5000));
    (request.fec, request.quota) = (FecWish::Mode(FecMode::Xor), anna.clone());
    let first = desk.admit(request).unwrap().stream;
    desk.play(first, None).unwrap();
    let refused = ask(&mut desk, "other", peers[1], &anna).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "5Mb/s of 8Mb/s that this user may have in use, 4Mb/s more asked (millrace user limit)"
    );
    desk.service.set_fec(desk.now, first, FecMode::Off, None).unwrap();
    desk.settle();
    // It takes effect a moment later.
    desk.wait(SECOND);
    ask(&mut desk, "other", peers[1], &anna).unwrap();

    let mut desk = Desk::with(|config| config.max_streams_per_title = Some(1));
    let first = ask(&mut desk, "film", peers[0], &None).unwrap();
    desk.play(first, None).unwrap();
    let text = "all 1 streams that this title may have are in use (--max-streams-per-title)";
    met.see(ask(&mut desk, "film", peers[1], &None), text, Some("streams of the title"));
    assert_eq!((desk.counters.refused_full, desk.counters.refused_title), (1, 1));
    let other = ask(&mut desk, "other", peers[1], &None).unwrap();
    desk.play(other, None).unwrap();
    [first, other].into_iter().for_each(|key| desk.close(key));
    let again = ask(&mut desk, "film", peers[1], &None).unwrap();
    desk.play(again, None).unwrap();
    desk.close(again);
    // A viewer of a title made from another counts as a viewer of the original title.
    let conn = desk.conn();
    let mut request = desk.request("ladder", conn, udp(5700));
    request.rendition = Some(RenditionWish::parse("480p"));
    let small = desk.admit(request).unwrap().stream;
    assert_eq!(desk.service.stream(small).unwrap().rendition().unwrap().to_string(), "480p");
    desk.play(small, None).unwrap();
    assert_eq!(
        ask(&mut desk, "ladder", peers[1], &None).err(),
        Some(Refusal::Exhausted(Exhausted::TitleStreams { max: 1 }))
    );
    desk.close(small);
    desk.assert_empty();
}

fn engine(met: &mut Met) {
    let mut desk = Desk::with(|config| {
        config.streams_per_engine = 2;
        config.conns_per_engine = 1;
        config.max_sessions = 100;
    });
    let (first, second) = (desk.conn(), desk.conn());
    let key = desk.try_tcp(first).unwrap();
    desk.play(key, None).unwrap();
    let text = "all interleaved connections of the engine are in use (--engines)";
    met.see(desk.try_tcp(second), text, Some("connections of the engine"));
    assert_eq!(desk.counters.refused_full, 0);
    let other = desk.try_tcp(first).unwrap();
    desk.play(other, None).unwrap();
    met.see(
        desk.try_tcp(first),
        "the engine has no free stream (--max-streams)",
        Some("streams of the engine"),
    );
    desk.service.conn_closed(desk.now, first);
    desk.settle();
    desk.assert_empty();
}

fn titles(met: &mut Met) {
    let mut desk = Desk::new();
    let conn = desk.conn();
    let ask = |desk: &mut Desk, title: &str| {
        let request = desk.request(title, conn, tcp(conn));
        desk.admit(request)
    };
    met.see(ask(&mut desk, "broken"), "the title cannot be played now", None);
    met.see(ask(&mut desk, "crowded"), "the title cannot be played now", Some("open titles"));
    let broken = desk.events.iter().filter(|event| matches!(event, ServiceEvent::Broken { .. }));
    assert_eq!(broken.count(), 2, "the operator is told why");
    met.see(ask(&mut desk, "remote"), "it is being fetched, 40 % of it are here", None);
    met.see(ask(&mut desk, "torn"), "2 members lost (b, c), 1 may be", None);
    met.see(ask(&mut desk, "silent"), "the title's disks do not respond", None);
    let mut request = desk.request("film", conn, tcp(conn));
    request.entry =
        desk.service.transformed(&request.entry, "french").expect("a transformation of this name");
    met.see(desk.admit(request), "transformation french: the title has no audio in fra", None);
    desk.assert_empty();
}

fn openings(met: &mut Met) {
    let mut desk = Desk::new();
    desk.titles.0.lock().unwrap().on_disk = true;
    let conn = desk.conn();
    let request = desk.request("film", conn, tcp(conn));
    met.see(desk.admit(request), "the title is being opened", None);
    for n in 1..MAX_OPENINGS {
        let conn = desk.conn();
        desk.service.prepare(desk.now, conn, &format!("title-{n}")).unwrap_err();
    }
    let last = desk.conn();
    let refused = desk.service.prepare(desk.now, last, "one-more");
    met.see(refused, "too many titles are being opened now", Some("openings of titles"));
    assert!(!desk.service.is_opening(last) && desk.service.is_opening(conn));
    assert_eq!(desk.titles.0.lock().unwrap().begun.len(), MAX_OPENINGS);
    desk.assert_empty();
}

fn commands(met: &mut Met) {
    let mut desk = Desk::new();
    met.see(desk.play(StreamKey(77), None), "the stream has ended", None);
    assert_eq!(desk.service.pause(StreamKey(77)), Err(Refusal::Gone));
    assert_eq!(desk.service.set_fec(desk.now, StreamKey(77), FecMode::Xor, None), Err(Refusal::Gone));
    let key = desk.udp("film", 5000);
    met.see(desk.play(key, span(9, Some(9))), "the range must end after its start", None);
    let in_1970 = Some(Span { is_clock: true, ..span(9, None).unwrap() });
    met.see(desk.play(key, in_1970), "the title's time of day is not known; name the range in npt", None);
    let recorded = desk.udp("recorded", 5100);
    let text = "the title has nothing of that time of day; Media-Range has what there is";
    met.see(desk.play(recorded, in_1970), text, None);
    desk.close(recorded);
    desk.play(key, span(0, Some(4))).unwrap();
    desk.wait(2 * SECOND);
    desk.pause(key);
    met.see(desk.play(key, from_here(Some(1))), "there is nothing left to play", None);
    assert_eq!(desk.service.stream(key).map(|stream| stream.is_playing()), Some(false));
    desk.play(key, None).unwrap();
    desk.wait(5 * SECOND);
    met.see(desk.play(key, from_here(None)), "the end has been reached", None);
    met.see(desk.play_at(key, -400, span(0, None)), "the beginning has been reached", None);
    let other = desk.udp("other", 5100);
    met.see(desk.play_at(other, -400, None), "the title cannot be played backwards", None);
    desk.close(other);
    let set = |desk: &mut Desk, key, name: &str| {
        desk.service.set_rendition(desk.now, key, &RenditionWish::parse(name), None)
    };
    met.see(set(&mut desk, key, "480p"), "the title has no renditions", None);
    let ladder = desk.udp("ladder", 5200);
    let there = "the title has no such rendition; there are 1080p, 720p, 480p";
    met.see(set(&mut desk, ladder, "540p"), there, None);
    desk.play_at(ladder, 400, None).unwrap();
    let held = "the rendition cannot be changed now: it plays at another speed";
    met.see(set(&mut desk, ladder, "480p"), held, None);
    desk.close(ladder);
    assert_eq!(set(&mut desk, ladder, "480p"), Err(Refusal::Gone));
    desk.play(key, None).unwrap();
    desk.engine.silent = true;
    desk.play(key, span(10, None)).unwrap();
    met.see(desk.play(key, span(20, None)), "the stream is still processing an earlier request", None);
    let conn = desk.conn();
    let mut moved = desk.request("film", conn, udp(6000));
    moved.which = Which::Moved(key);
    assert_eq!(desk.admit(moved).unwrap_err(), Refusal::Busy);
    desk.engine.silent = false;
    desk.settle();
    assert_eq!(desk.service.end_newest(desk.now, 0, 5), 1);
    desk.settle();
    met.see(desk.play(key, None), "the server is overloaded, and ends this stream", None);
    desk.wait(3 * SECOND);
    desk.assert_empty();
}

/// Admits a stream of this title by UDP with this FEC request; returns it with the result.
fn wish(
    desk: &mut Desk,
    title: &str,
    port: u16,
    wish: FecWish,
) -> (StreamKey, Option<Result<(), FecRefusal>>) {
    let conn = desk.conn();
    let mut request = desk.request(title, conn, udp(port));
    request.fec = wish;
    let admitted = desk.admit(request).expect("a title is never refused because of its FEC");
    (admitted.stream, admitted.fec)
}

fn fec(met: &mut Met) {
    let (all, xor) = (FecWish::Mode(FecMode::All), FecWish::Mode(FecMode::Xor));
    let mut desk = Desk::new();
    let (key, silent) = wish(&mut desk, "safe", 5000, FecWish::Silent);
    assert_eq!(silent, None);
    met.see(
        desk.service.set_fec(desk.now, key, FecMode::Xor, None),
        "the session was set up without FEC",
        None,
    );
    met.see_fec(wish(&mut desk, "safe", 5100, FecWish::Unclear).1, "ask for xor, all or off");
    met.see_fec(wish(&mut desk, "film", 5200, all).1, "the title is stored without parity");
    met.see_fec(wish(&mut desk, "safe", 65_530, all).1, "its ports would be beyond 65535");
    met.see_fec(wish(&mut desk, "frail", 5300, all).1, "the title's parity cannot be read now");
    let conn = desk.conn();
    let mut request = desk.request("ladder", conn, udp(5700));
    (request.fec, request.entry.fec) = (xor, desk.service.find("safe").unwrap().fec);
    request.rendition = Some(RenditionWish::parse("480p"));
    met.see_fec(
        desk.admit(request).unwrap().fec,
        "FEC is available for the title itself, not for its other renditions",
    );
    let mut request = desk.request("safe", conn, tcp(conn));
    request.fec = xor;
    let by_tcp = desk.admit(request).unwrap();
    met.see_fec(by_tcp.fec, "FEC is available over UDP only");
    let mut request = desk.request("safe", conn, udp(5600));
    (request.fec, request.entry) = (xor, request.entry.raw().unwrap());
    let raw = desk.admit(request).unwrap();
    met.see_fec(raw.fec, "FEC is available over RTP only");
    // 5002 is where the FEC of 5000 would go.
    wish(&mut desk, "film", 5402, FecWish::Silent);
    met.see_fec(wish(&mut desk, "safe", 5400, xor).1, "port 5402 is in use by another stream");
    assert_eq!(desk.counters.sessions_with_fec, 0);
    assert_eq!(wish(&mut desk, "safe", 5500, xor).1, Some(Ok(())));
    assert_eq!(desk.counters.sessions_with_fec, 1);
    desk.service.shut_down(desk.now);
    desk.settle();
    desk.assert_empty();
    let mut desk = Desk::with(|config| config.fec = false);
    met.see_fec(wish(&mut desk, "safe", 5000, xor).1, "this server sends no FEC (--fec)");
}

fn fec_resources(met: &mut Met) {
    let xor = FecWish::Mode(FecMode::Xor);
    let mut desk = Desk::with(|config| config.streams_per_engine = 1);
    met.see_fec(wish(&mut desk, "safe", 5000, xor).1, "the engine has no free stream (--max-streams)");
    let mut desk = Desk::with(|config| config.max_rate = Some("4500kb/s".parse().unwrap()));
    met.see_fec(
        wish(&mut desk, "safe", 5000, xor).1,
        "4Mb/s of 4.5Mb/s in use, 1Mb/s more for FEC (--max-rate)",
    );
    let mut shared = Desk::with(|config| {
        config.max_rate = Some("9Mb/s".parse().unwrap());
        config.address_share_percent = 50;
    });
    let text = "4Mb/s of 4.5Mb/s that one address may have in use, 1Mb/s more for FEC (--share-per-address)";
    met.see_fec(wish(&mut shared, "safe", 5000, xor).1, text);
    let mut limited = Desk::new();
    let conn = limited.conn();
    let mut request = limited.request("safe", conn, udp(5000));
    request.fec = FecWish::Mode(FecMode::Xor);
    request.quota = quota("anna", None, Some(4));
    let text = "4Mb/s of 4Mb/s that this user may have in use, 1Mb/s more for FEC (millrace user limit)";
    met.see_fec(limited.admit(request).expect("the title plays without").fec, text);
    let mut measured = Desk::with(|config| {
        let link_rate = Some("4500kb/s".parse().unwrap());
        config.admission = AdmissionConfig { is_on: true, link_rate, ..AdmissionConfig::off() };
    });
    let text = "4Mb/s of the 4.5Mb/s of the network links are in use (--link-rate)";
    met.see_fec(wish(&mut measured, "safe", 5000, xor).1, text);
    // The title plays without.
    let key = desk.service.streams()[0].key();
    desk.play(key, None).unwrap();
    assert_eq!(desk.service.reserved_rate(), 4_000_000);
    desk.close(key);
    desk.assert_empty();
}
