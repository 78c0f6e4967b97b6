//! The packet size of a session: chosen at SETUP by the path, kept through seeks, converted when the session moves.

use std::net::SocketAddr;

use crate::rtsp_support::{SECOND, World};

/// A viewer's port 5000 is behind an Ethernet of 9000 bytes, every other one behind 1500.
fn mtu(dest: SocketAddr) -> Option<u32> {
    assert_eq!(dest.ip().to_string(), "192.0.2.7");
    Some(if dest.port() == 5000 { 9000 } else { 1500 })
}

fn world() -> World {
    World::with(|config| {
        config.service.packet_sizes = "1316,2632".parse().unwrap();
        config.service.path_mtu = mtu;
    })
}

#[test]
fn setup_selects_largest_packet_size_of_path() {
    let mut w = world();
    let c = w.connect();
    for (transport, ssrc, play) in [
        ("RTP/AVP;unicast;client_port=5000-5001", "1234ABCE", "play 2000..12000 seq 2001 in 0ms"),
        ("RTP/AVP;unicast;client_port=6000-6001", "1234ABCD", "play 4000..24000 seq 4001 in 0ms"),
        ("RTP/AVP/TCP;unicast;interleaved=0-1", "1234ABCD", "play 4000..24000 seq 4001 in 50ms"),
    ] {
        let setup = format!("SETUP rtsp://192.0.2.1/film/track1 RTSP/1.0\nCSeq: 1\nTransport: {transport}");
        let answer = w.ask(c, &setup);
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(answer.get("transport").contains(&format!("ssrc={ssrc}")), "{answer:?}");
        w.take_log();
        let played = w.ask_session(c, "PLAY", &answer.session(), "Range: npt=10-");
        assert_eq!(w.take_log(), ["reply 200", play], "{transport}");
        let sequence = play.split("seq ").nth(1).unwrap().split(' ').next().unwrap();
        let info = format!("seq={sequence};rtptime=1900000");
        assert!(played.get("rtp-info").contains(&info), "{played:?}");
    }
}

#[test]
fn plain_datagrams_keep_their_size() {
    let mut w = world();
    let c = w.connect();
    let transport = "RAW/RAW/UDP;unicast;client_port=5000";
    let setup = format!("SETUP rtsp://192.0.2.1/film/track1 RTSP/1.0\nCSeq: 1\nTransport: {transport}");
    let id = w.ask(c, &setup).session();
    w.take_log();
    assert_eq!(w.ask_session(c, "PLAY", &id, "Range: npt=10-").status, 200);
    assert_eq!(w.take_log(), ["reply 200", "play 4000..24000 seq 4001 in 0ms"]);
}

#[test]
fn session_moved_to_other_packet_size_continues_at_next_byte() {
    let mut w = world();
    let c = w.connect();
    let id = w.setup_udp(c);
    assert_eq!(w.ask_session(c, "PLAY", &id, "Range: npt=10-20").status, 200);
    assert!(w.take_log().contains(&"play 2000..4000 seq 2001 in 0ms".to_owned()));
    w.wait(SECOND);
    assert_eq!(w.ask_session(c, "PAUSE", &id, "").status, 200);
    // 401 packets of 2632 bytes have left.
    assert_eq!(w.ask_session(c, "SETUP", &id, "Transport: RTP/AVP/TCP;interleaved=0-1").status, 200);
    w.take_log();
    let a = w.ask_session(c, "PLAY", &id, "");
    assert_eq!((a.status, a.get("range")), (200, "npt=12.005-20.000"));
    assert_eq!(w.take_log(), ["reply 200", "play 4802..8000 seq 2402 in 50ms"]);
    // And back, from the end of the range.
    w.wait(12 * SECOND);
    w.take_log();
    let setup = "Transport: RTP/AVP;unicast;client_port=5000-5001";
    assert_eq!(w.ask_session(c, "SETUP", &id, setup).status, 200);
    let a = w.ask_session(c, "PLAY", &id, "Range: npt=20-");
    assert_eq!(a.status, 200, "{a:?}");
    assert_eq!(w.take_log().last().unwrap(), "play 4000..12000 seq 5600 in 50ms");
}
