//! FEC counts at its actual rate: when it is granted, at PLAY, when it is switched while its stream
//! plays; and the rate is released.

use crate::rtsp_support::SECOND;
use crate::service_support::*;
use millrace_core::units::BitRate;
use millrace_server::admission::{AdmissionConfig, EngineFigures, Full};
use millrace_server::limits::ADMISSION_LOOK_NS;
use millrace_server::service::{Exhausted, FecMode, FecRefusal, FecWish, Refusal, ServiceEvent, StreamKey};

const MBIT: u64 = 1_000_000;

/// Admits a stream of `safe` (4 Mb/s, and 1 Mb/s for each of its two parities) with this FEC
/// request; returns it with the result.
fn comes(desk: &mut Desk, peer: &str, port: u16, mode: FecMode) -> (StreamKey, Result<(), FecRefusal>) {
    let conn = desk.conn_from(peer);
    let mut request = desk.request("safe", conn, udp(port));
    request.viewer = peer.parse().unwrap();
    request.fec = FecWish::Mode(mode);
    let admitted = desk.admit(request).expect("a title is never refused because of its FEC");
    (admitted.stream, admitted.fec.expect("a wish"))
}

fn set(desk: &mut Desk, key: StreamKey, mode: FecMode) -> Result<(), Refusal> {
    let set = desk.service.set_fec(desk.now, key, mode, None);
    desk.settle();
    // A switch during playback takes effect a moment later.
    desk.wait(SECOND);
    set
}

/// Mb/s that streams hold.
fn reserved(desk: &Desk) -> u64 {
    desk.service.reserved_rate() / MBIT
}

fn mode(desk: &Desk, key: StreamKey) -> FecMode {
    desk.service.stream(key).expect("it has not ended").fec_mode()
}

#[test]
fn fec_counts_for_the_links() {
    let rate: BitRate = "11Mb/s".parse().unwrap();
    let mut desk = Desk::with(|config| {
        config.admission = AdmissionConfig { is_on: true, link_rate: Some(rate), ..AdmissionConfig::off() };
    });
    let (a, granted) = comes(&mut desk, VIEWER, 5000, FecMode::All);
    assert_eq!(granted, Ok(()));
    desk.play(a, None).unwrap();
    let full = |used: u64| FecRefusal::Full(Full::Link { used: BitRate(used * MBIT), rate });
    let (b, refused) = comes(&mut desk, VIEWER, 6000, FecMode::All);
    assert_eq!((refused, reserved(&desk)), (Err(full(10)), 6), "its title counts before it plays");
    desk.play(b, None).unwrap();
    assert_eq!((reserved(&desk), mode(&desk, b)), (10, FecMode::Off));
    assert_eq!(set(&mut desk, b, FecMode::All), Err(Refusal::Fec(full(10))));
    assert_eq!((reserved(&desk), mode(&desk, b)), (10, FecMode::Off));
    // A rate that one stream releases is free for another; only an increase is requested.
    set(&mut desk, a, FecMode::Off).unwrap();
    assert_eq!(reserved(&desk), 8);
    set(&mut desk, b, FecMode::All).unwrap();
    set(&mut desk, a, FecMode::Xor).unwrap();
    assert_eq!(reserved(&desk), 11);
    assert_eq!(set(&mut desk, a, FecMode::All), Err(Refusal::Fec(full(11))));
    assert_eq!((mode(&desk, a), mode(&desk, b)), (FecMode::Xor, FecMode::All));
    // Less is never refused, and the end gives all of it back.
    set(&mut desk, b, FecMode::Xor).unwrap();
    assert_eq!(reserved(&desk), 10);
    desk.close(b);
    assert_eq!(reserved(&desk), 5);
    set(&mut desk, a, FecMode::All).unwrap();
    assert_eq!(reserved(&desk), 6);
    desk.close(a);
    desk.assert_empty();
}

/// Looks for ten seconds at an engine that sends 2,000 packets a second and is busy for 800 ms of it:
/// 0.4 ms a packet.
fn look(desk: &mut Desk) {
    let mut figures = EngineFigures::default();
    for _ in 0..102 {
        desk.wait(ADMISSION_LOOK_NS);
        figures.packets += 200;
        figures.busy_ns += ADMISSION_LOOK_NS * 8 / 10;
        figures.cpu_ns = figures.busy_ns;
        figures.seen_ns += ADMISSION_LOOK_NS;
        desk.service.look_at_load(desk.now, 0, figures);
        desk.settle();
    }
}

#[test]
fn fec_counts_for_the_core_at_play_and_after() {
    // 93 % are reached with 2,325 packets a second; a title has 380, its first parity 95.
    let mut desk = Desk::with(|config| {
        config.admission = AdmissionConfig { is_on: true, max_busy_permille: 930, ..AdmissionConfig::off() };
    });
    let five: Vec<_> = (0..5).map(|n| desk.udp("film", 5000 + 10 * n)).collect();
    for &key in &five[..4] {
        desk.play(key, None).unwrap();
    }
    look(&mut desk);
    let (key, granted) = comes(&mut desk, VIEWER, 6000, FecMode::Xor);
    assert_eq!(granted, Ok(()), "1,995 packets, its own title included");
    // Another viewer begins to play before it: there is room for the title only.
    desk.play(five[4], None).unwrap();
    desk.play(key, None).unwrap();
    let without = desk.events.iter().rev().find_map(|event| match event {
        ServiceEvent::Playing(playing) => Some(playing.without_fec.clone()),
        _ => None,
    });
    let text = "the core of engine 0 would be busy 95.0 % of the time; the limit is 93.0 % (--max-busy)";
    assert_eq!(without, Some(Some(text.to_owned())));
    assert_eq!((mode(&desk, key), reserved(&desk)), (FecMode::Off, 24));
    let full = Full::Processor { engine: 0, expected_permille: 950, max_permille: 930 };
    assert_eq!(
        desk.service.set_fec(desk.now, key, FecMode::Xor, None),
        Err(Refusal::Fec(FecRefusal::Full(full)))
    );
    desk.close(five[0]);
    assert_eq!(desk.service.set_fec(desk.now, key, FecMode::Xor, None), Ok(()));
    assert_eq!((mode(&desk, key), reserved(&desk)), (FecMode::Xor, 21));
    // 1,995 packets are promised, so a title of 380 more does not fit, which it did beside one without FEC.
    let conn = desk.conn();
    let late = desk.request("film", conn, udp(7000));
    assert_eq!(desk.admit(late).unwrap_err(), Refusal::Exhausted(Exhausted::Full(full)));
    assert_eq!(desk.service.set_fec(desk.now, key, FecMode::Off, None), Ok(()));
    desk.udp("film", 7000);
}

#[test]
fn fec_counts_for_the_share_of_its_address() {
    let mut desk = Desk::with(|config| {
        config.max_rate = Some("20Mb/s".parse().unwrap());
        config.address_share_percent = 50;
    });
    let (a, granted) = comes(&mut desk, VIEWER, 5000, FecMode::All);
    assert_eq!(granted, Ok(()));
    desk.play(a, None).unwrap();
    let over = |more: u64| {
        let (used, max, more) = (BitRate(10 * MBIT), BitRate(10 * MBIT), BitRate(more * MBIT));
        FecRefusal::AddressRate { used, max, more }
    };
    let (b, refused) = comes(&mut desk, VIEWER, 6000, FecMode::All);
    assert_eq!(refused, Err(over(2)));
    desk.play(b, None).unwrap();
    assert_eq!(set(&mut desk, b, FecMode::Xor), Err(Refusal::Fec(over(1))));
    set(&mut desk, a, FecMode::Off).unwrap();
    set(&mut desk, b, FecMode::All).unwrap();
    assert_eq!(set(&mut desk, a, FecMode::Xor), Err(Refusal::Fec(over(1))));
    assert_eq!((reserved(&desk), mode(&desk, a), mode(&desk, b)), (10, FecMode::Off, FecMode::All));
    // Another address has a share of its own, and the rate that a stream releases at its end is
    // free for its address again.
    let (other, granted) = comes(&mut desk, "198.51.100.9:40000", 5000, FecMode::All);
    assert_eq!(granted, Ok(()));
    desk.play(other, None).unwrap();
    assert_eq!(reserved(&desk), 16);
    desk.close(b);
    set(&mut desk, a, FecMode::All).unwrap();
    assert_eq!(reserved(&desk), 12);
    desk.close(a);
    desk.close(other);
    desk.assert_empty();
}

/// One title an address may always play, however small its share; FEC has to fit.
#[test]
fn address_share_too_small_for_fec_still_allows_stream() {
    let mut desk = Desk::with(|config| {
        config.max_rate = Some("20Mb/s".parse().unwrap());
        config.address_share_percent = 10;
    });
    let (key, refused) = comes(&mut desk, VIEWER, 5000, FecMode::Xor);
    let (used, max, more) = (BitRate(4 * MBIT), BitRate(2 * MBIT), BitRate(MBIT));
    assert_eq!(refused, Err(FecRefusal::AddressRate { used, max, more }));
    desk.play(key, None).unwrap();
    assert_eq!(reserved(&desk), 4);
    desk.close(key);
    desk.assert_empty();
}
