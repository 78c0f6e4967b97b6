use std::net::SocketAddr;

use super::super::sample_tests;
use super::*;

const KEYS: [StreamKey; 3] = [StreamKey(1), StreamKey(2), StreamKey(3)];

fn viewer(port: u16) -> SocketAddr {
    ([192, 0, 2, 1], port).into()
}

/// Three idle streams: the second has not played for the longest time. Two go to the same port.
fn three_streams() -> PlaybackStreams {
    let mut streams = PlaybackStreams::default();
    for (number, since, port) in [(1, 20, 5000), (2, 10, 5000), (3, 30, 6000)] {
        let stream = sample_tests::stream(number, Instant(since), viewer(port));
        let (key, ip, place) = (stream.key, stream.viewer.ip(), stream.place);
        ports_of(stream.path).for_each(|port| streams.add_port(key, ip, port));
        streams.add_place(key, 0, place);
        streams.insert(stream);
    }
    streams
}

fn closing() -> Closing {
    Closing { title: TitleRef(0), made: Vec::new(), name: None, ended: None }
}

#[test]
fn reserved_streams_are_not_idle() {
    let mut streams = three_streams();
    assert_eq!(streams.longest_idle(), Some(KEYS[1]));
    assert!(streams.begin_reservation(KEYS[1]).is_some() && streams.begin_reservation(KEYS[1]).is_none());
    assert!(streams.is_reserved(KEYS[1]));
    assert_eq!(streams.longest_idle(), Some(KEYS[0]));
    assert!(streams.end_reservation(KEYS[1]).is_some() && streams.end_reservation(KEYS[1]).is_none());
    assert_eq!(streams.longest_idle(), Some(KEYS[1]));
    streams.remove(KEYS[1]);
    assert_eq!((streams.longest_idle(), streams.len()), (Some(KEYS[0]), 2));
}

#[test]
fn forgotten_pause_makes_stream_fresh_and_idle_from_now() {
    let mut streams = three_streams();
    streams.forget_unfinished_pause(Instant(90), KEYS[1]);
    assert_eq!(streams.longest_idle(), Some(KEYS[1]), "it was not about to pause");
    let run = run();
    streams.get_mut(&KEYS[1]).unwrap().media = DeliveryState::Pausing(run);
    streams.forget_unfinished_pause(Instant(90), KEYS[1]);
    assert!(streams.get(&KEYS[1]).unwrap().is_fresh());
    streams.remove(KEYS[0]);
    assert_eq!(streams.longest_idle(), Some(KEYS[2]));
    streams.remove(KEYS[2]);
    assert_eq!(streams.longest_idle(), Some(KEYS[1]));
}

fn run() -> crate::service::run::ActiveRun {
    crate::service::run::ActiveRun {
        serial: millrace_core::ids::RunSerial(1),
        from: 0,
        sequence: 0,
        from_time: None,
        at: Instant(0),
        due: Instant(0),
        stop: crate::service::run::Stop { packet: 10, time: millrace_core::time::MediaTicks(90_000) },
        speed: crate::service::speed::Speed::NORMAL,
        ahead_ms: 0,
    }
}

#[test]
fn ports_are_forgotten_with_their_last_stream() {
    let mut streams = three_streams();
    let ip = viewer(0).ip();
    assert_eq!(streams.at_port(ip, 5000), [KEYS[0], KEYS[1]]);
    assert_eq!(streams.at_port(ip, 6001), [KEYS[2]]);
    let path = StreamPath::udp(viewer(5000), None);
    assert_eq!(streams.with_media_port_of(path, Some(KEYS[0])), [KEYS[1]]);
    let rtcp = StreamPath::udp(viewer(6001), None);
    assert!(streams.with_media_port_of(rtcp, None).is_empty(), "only reports are sent there");
    streams.forget_port(KEYS[0], ip, 5000);
    assert_eq!(streams.at_port(ip, 5000), [KEYS[1]]);
    streams.forget_port(KEYS[1], ip, 5000);
    assert!(streams.at_port(ip, 5000).is_empty() && !streams.by_port.contains_key(&(ip, 5000)));
}

#[test]
fn port_is_in_use_by_streams_of_other_connections_only() {
    let mut streams = three_streams();
    let (now, path) = (Instant(40), StreamPath::udp(viewer(6000), None));
    let (own, other) = (Some(ConnKey(1)), Some(ConnKey(2)));
    streams.get_mut(&KEYS[2]).unwrap().owner = own;
    assert_eq!(streams.port_in_use(now, None, other, path), Some(6000));
    assert_eq!(streams.port_in_use(now, None, own, path), None);
    assert_eq!(streams.port_in_use(now, Some(KEYS[2]), other, path), None);
    streams.get_mut(&KEYS[2]).unwrap().owner = None;
    assert_eq!(streams.port_in_use(now, None, other, path), None, "its viewer is gone");
}

#[test]
fn stream_is_found_by_address_and_source_only_if_it_is_the_only_one() {
    let mut streams = three_streams();
    let ip = viewer(0).ip();
    assert_eq!(streams.only_stream_of(ip, 1), None);
    streams.remove(KEYS[0]);
    streams.remove(KEYS[1]);
    assert_eq!((streams.only_stream_of(ip, 1), streams.only_stream_of(ip, 2)), (Some(KEYS[2]), None));
    assert_eq!(streams.only_stream_of([192, 0, 2, 2].into(), 1), None);
}

#[test]
fn closed_place_counts_until_engine_has_cleared_it() {
    let mut streams = three_streams();
    let place = streams.get(&KEYS[0]).unwrap().place;
    assert_eq!(streams.key_at(0, place), Some(KEYS[0]));
    assert!(streams.key_at(1, place).is_none(), "that is another engine");
    streams.begin_closing(0, place, closing());
    assert_eq!((streams.open_places(), streams.place_count()), (2, 3));
    assert!(streams.at_place(0, place).is_none() && streams.closing(0, place).is_some());
    assert_eq!((streams.closing_in(0), streams.closing_in(1)), (vec![place], Vec::new()));
    assert!(streams.end_closing(0, place).is_some() && streams.end_closing(0, place).is_none());
    assert_eq!(streams.place_count(), 2);
}

#[test]
fn newest_are_playing_streams_with_segments_as_old_as_their_viewer() {
    let mut streams = three_streams();
    for key in &KEYS[..2] {
        streams.get_mut(key).unwrap().media = DeliveryState::Running(run());
    }
    let newest = |streams: &PlaybackStreams| -> Vec<_> {
        streams.newest(0).into_iter().map(|stream| stream.key).collect()
    };
    assert_eq!(newest(&streams), [KEYS[1], KEYS[0]]);
    assert_eq!((streams.newest_with(0, 1), streams.newest_with(0, 2)), (1, 2));
    streams.get_mut(&KEYS[0]).unwrap().fetcher = Some(7);
    assert_eq!(newest(&streams), [KEYS[0], KEYS[1]]);
    assert_eq!((streams.playing(1).count(), streams.unfinished_count()), (0, 2));
}
