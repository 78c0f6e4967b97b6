//! Arbitrary and mutated input against everything that reads it. The seeds lie in `__fuzz__`; they are replayed with
//! every run, before the random ones.
//!
//! A seed of `server` is a script: RTSP bytes as they come over one of three connections, in between single bytes from
//! 0x80 on that let something else happen (see [`act`]). Session names are predictable here, so scripts can use them.

use crate::rtsp_support::{MS, SECOND, World, entry, receiver_report};
use millrace_core::limits::MAX_RTSP_MESSAGE_BYTES;
use millrace_core::time::MediaTicks;
use millrace_offload::command::{FailReason, StreamEvent};
use millrace_server::rtsp::{Framer, Incoming, range, speeds, transport};
use millrace_server::sdp;
use millrace_server::service::{ConnKey, From, OpenError, Span};
use millrace_server::session::UdpPort;

/// Everything that comes out of a framer, and the status of the error that ends it.
fn all(framer: &mut Framer, out: &mut Vec<Incoming>) -> Option<u16> {
    loop {
        match framer.next_incoming() {
            Ok(Some(incoming)) => out.push(incoming),
            Ok(None) => return None,
            Err(error) => return Some(error.status.into()),
        }
    }
}

/// The same bytes in pieces give the same, whatever the pieces, and memory stays bounded.
fn same_in_pieces(input: &[u8], seed: u8) {
    let mut whole = Framer::default();
    whole.push(input);
    let mut expected = Vec::new();
    let error = all(&mut whole, &mut expected);
    let mut pieces = Framer::default();
    let (mut got, mut got_error) = (Vec::new(), None);
    let mut rest = input;
    let mut step = usize::from(seed) % 97 + 1;
    while !rest.is_empty() && got_error.is_none() {
        let (now, later) = rest.split_at(step.min(rest.len()));
        pieces.push(now);
        got_error = all(&mut pieces, &mut got);
        assert!(pieces.buffered_bytes() <= MAX_RTSP_MESSAGE_BYTES);
        rest = later;
        step = step * 31 % 101 + 1;
    }
    assert_eq!((got, got_error), (expected, error));
}

#[test]
fn framer() {
    bolero::check!(name = "framer").with_iterations(2000).with_max_len(40_000).for_each(|input: &[u8]| {
        same_in_pieces(input, input.first().copied().unwrap_or_default());
    });
}

/// Performs the action of a script byte from 0x80 on.
fn act(w: &mut World, conns: &mut [ConnKey; 3], current: &mut usize, byte: u8) {
    match byte & 0x0f {
        0 => w.wait(100 * MS),
        1 => w.wait(70 * SECOND),
        2 => *current = (*current + 1) % 3,
        3 => {
            let gone = conns[*current];
            w.hang_up(gone);
            conns[*current] = w.connect();
        }
        4 => {
            w.engine.silent = !w.engine.silent;
            w.settle();
        }
        5 => {
            let stream = w.engine.streams.keys().copied().min_by_key(|stream| stream.index);
            if let Some(stream) = stream {
                w.engine.tell(StreamEvent::Failed { stream, reason: FailReason::SlowReader });
            }
            w.settle();
        }
        6 => {
            let report = receiver_report(0x1234_abcd, byte & 0x10 != 0);
            w.server.face(&mut w.service).handle_datagram(
                w.now,
                UdpPort::Rtcp,
                "192.0.2.7:5001".parse().unwrap(),
                &report,
            );
            w.settle();
        }
        7 => w.engine.max_streams = if w.engine.max_streams == 0 { usize::MAX } else { 0 },
        8 => w.wait(3 * SECOND),
        _ => w.settle(),
    }
}

/// Runs a script to its end and beyond, until nothing may be left.
fn run(script: &[u8]) {
    let mut w = World::with(|config| {
        config.service.max_streams = 8;
        config.service.max_sessions = 12;
    });
    // Every other script finds its titles on disks, which answer now and then.
    w.open_titles.0.lock().unwrap().on_disk = script.len() % 2 == 1;
    let mut conns = [w.connect(), w.connect(), w.connect()];
    let mut current = 0;
    for piece in script.chunk_by(|a, b| *a < 0x80 && *b < 0x80) {
        match piece {
            [byte] if *byte >= 0x80 => act(&mut w, &mut conns, &mut current, *byte),
            text => w.push(conns[current], text),
        }
        if piece.len() % 3 > 0 && w.open_titles.is_opening() {
            let broken = || Err(OpenError::Broken("meta-1316.mrp: checksum mismatch".into()));
            w.opened(if piece.len() % 7 == 1 { broken() } else { Ok(()) });
        }
        if w.closed.contains(&conns[current]) {
            let gone = conns[current];
            w.hang_up(gone);
            conns[current] = w.connect();
        }
    }
    w.engine.silent = false;
    w.settle();
    while w.open_titles.is_opening() {
        w.opened(Ok(()));
    }
    for conn in conns {
        let (asked, answered) = (w.requests.get(&conn).copied(), w.replies.get(&conn).copied());
        if !w.closed.contains(&conn) {
            assert_eq!(asked, answered, "one reply to each request");
        }
        assert!(!w.server.is_waiting(conn), "it would wait for ever");
        w.hang_up(conn);
    }
    assert!(w.replies.iter().all(|(conn, n)| *n <= w.requests.get(conn).copied().unwrap_or(0) + 1));
    w.wait(140 * SECOND); // a session may live on by UDP, and be set up again until its time-out
    w.assert_empty();
    assert_eq!(w.service.connection_count(), 0);
}

#[test]
fn server() {
    bolero::check!(name = "server").with_iterations(200).with_max_len(4000).for_each(run);
}

/// The seeds, as something to mutate.
const SCRIPTS: &[&[u8]] = &[
    include_bytes!("__fuzz__/server/corpus/ffmpeg"),
    include_bytes!("__fuzz__/server/corpus/satip"),
    include_bytes!("__fuzz__/server/corpus/interleaved"),
    include_bytes!("__fuzz__/server/corpus/seeks"),
    include_bytes!("__fuzz__/server/corpus/moves"),
    include_bytes!("__fuzz__/server/corpus/speeds"),
    include_bytes!("__fuzz__/server/corpus/time_shift"),
];

#[test]
fn mutated_dialogues() {
    let input = bolero::produce::<(u8, Vec<(u16, u8, u8)>)>();
    bolero::check!(name = "mutated").with_generator(input).with_iterations(600).for_each(
        |(which, changes)| {
            let mut script = SCRIPTS[usize::from(*which) % SCRIPTS.len()].to_vec();
            for &(place, kind, byte) in changes.iter().take(24) {
                let at = usize::from(place) % script.len();
                let lines = |script: &[u8]| {
                    script.split_inclusive(|b| *b == b'\n').map(<[u8]>::to_vec).collect::<Vec<_>>()
                };
                match kind % 7 {
                    0 => script[at] = byte,
                    1 => script.insert(at, byte | 0x80),
                    2 => drop(script.remove(at)),
                    3 => script.insert(at, b"\r\n $-=;,:/\"0%"[usize::from(byte) % 13]),
                    // Whole lines left out, repeated, or exchanged: valid messages in an unintended
                    // order.
                    4 => {
                        let mut lines = lines(&script);
                        drop(lines.remove(usize::from(place) % lines.len()));
                        script = lines.concat();
                    }
                    5 => {
                        let mut lines = lines(&script);
                        let line = lines[usize::from(place) % lines.len()].clone();
                        lines.insert(usize::from(byte) % lines.len(), line);
                        script = lines.concat();
                    }
                    _ => {
                        let mut lines = lines(&script);
                        let (a, b) = (usize::from(place) % lines.len(), usize::from(byte) % lines.len());
                        lines.swap(a, b);
                        script = lines.concat();
                    }
                }
                if script.is_empty() {
                    return;
                }
            }
            run(&script);
        },
    );
}

#[test]
fn descriptions_read_back() {
    let input = bolero::produce::<(String, u64, u64, u32, u128)>();
    bolero::check!(name = "describe").with_generator(input).with_iterations(1000).for_each(
        |(name, duration, rate, ssrc, address)| {
            let mut entry = entry(name, 60);
            entry.duration = MediaTicks(*duration);
            entry.peak_rate.0 = *rate;
            entry.timeline.ssrc = *ssrc;
            let address = match address % 2 {
                0 => std::net::Ipv4Addr::from((address >> 1) as u32).into(),
                _ => std::net::Ipv6Addr::from(*address).into(),
            };
            let text = sdp::describe(&entry, address, &[], &sdp::UrlOptions::default());
            let read = sdp_types::Session::parse(text.as_bytes()).unwrap_or_else(|e| panic!("{e}: {text:?}"));
            assert_eq!((read.medias.len(), read.medias[0].fmt.as_str()), (1, "33"));
            let control = read.medias[0].get_first_attribute_value("control").unwrap();
            assert_eq!(control, Some("track1"));
            let range = read.get_first_attribute_value("range").unwrap().unwrap();
            if *duration < 90_000 * 999_999_999 {
                assert_eq!(range::parse(range).unwrap().to, Some(MediaTicks(*duration)));
            }
            let mut again = Vec::new();
            read.write(&mut again).unwrap();
            assert_eq!(String::from_utf8(again).unwrap(), text);
        },
    );
}

#[test]
fn descriptions_of_others() {
    bolero::check!(name = "sdp").with_iterations(2000).for_each(|input: &[u8]| {
        let Ok(read) = sdp_types::Session::parse(input) else { return };
        let mut again = Vec::new();
        read.write(&mut again).unwrap();
        // The text is parsed again after writing, so that our own descriptions can be compared by
        // their meaning.
        assert!(sdp_types::Session::parse(&again).is_ok(), "{:?}", String::from_utf8_lossy(&again));
    });
}

#[test]
fn headers() {
    bolero::check!(name = "headers").with_type::<String>().with_iterations(3000).for_each(|text| {
        for offer in transport::parse(text) {
            assert!(offer.client_port.is_none_or(|(rtp, _)| rtp > 0));
        }
        transport::parse(&format!(
            "RTP/AVP/TCP;interleaved={text};mode=\"{text}\",RTP/AVP;client_port={text}"
        ));
        for value in [text.clone(), format!("npt={text}-"), format!("npt=0-{text}")] {
            if let Ok(Span { from: From::At(time), .. }) = range::parse(&value) {
                let sign = if time < 0 { "-" } else { "" };
                let size = range::npt(MediaTicks(time.unsigned_abs()));
                let again = range::parse(&format!("npt={sign}{size}-")).unwrap();
                assert_eq!(again.from, From::At(time));
            }
        }
        for value in [text.clone(), format!("-{text}"), format!("1{text}"), format!("0.5-{text}")] {
            if let Ok(scale) = speeds::parse_scale(&value) {
                assert_eq!(speeds::parse_scale(&speeds::format_scale(scale)), Ok(scale), "{value}");
            }
            if let Ok(speed) = speeds::parse_speed(&value) {
                assert_eq!(speeds::parse_speed(&speeds::format_speed(speed)), Ok(speed), "{value}");
            }
        }
    });
}

/// Digits and letters where a date has them, and dates that are.
#[test]
fn clock_ranges() {
    let parts = bolero::check!(name = "clock").with_type::<([u32; 4], String, u64)>().with_iterations(3000);
    parts.for_each(|([date, time, part, length], text, ms)| {
        let (date, time) = (date % 100_000_000, time % 1_000_000);
        let part = &part.to_string()[..(length % 3) as usize % 2];
        for value in [
            format!("clock={text}-{text}Z"),
            format!("clock={date:08}T{time:06}.{part}Z-"),
            format!("clock={date:08}T{time:06}Z-{text}"),
            format!("clock={}-{text}", range::clock(MediaTicks(*ms))),
        ] {
            let Ok(Span { from: From::At(time), is_clock, .. }) = range::parse(&value) else { continue };
            assert!(is_clock && time >= 0, "{value}");
            let written = range::clock(MediaTicks(time.cast_unsigned()));
            let From::At(again) = range::parse(&format!("clock={written}-")).unwrap().from else {
                panic!("{written}")
            };
            assert!((0..90).contains(&(again - time)) || time > 22_806_207_071_999_900, "{value}: {written}");
        }
    });
}
