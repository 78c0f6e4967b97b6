//! Whatever a server sends, nothing panics, nothing is read twice and nothing is kept without bound.
//!
//! Each target runs its seeds (`__fuzz__/<target>/corpus`) and random input under plain `cargo test`, and longer with
//! `cargo bolero test <target>`. Input is arbitrary bytes, and edits of what real servers send, which get deeper.

use bolero::check;
use millrace_client::rtsp::dialogue::{Dialogue, DialogueConfig, DialoguePhase};
use millrace_client::rtsp::framing::{Item, next_item};
use millrace_client::rtsp::headers::{NptRange, SessionHeader, parse_rtp_info};
use millrace_client::rtsp::transport::{TransportReply, TransportRequest};
use millrace_client::script::Script;
use millrace_client::sdp;
use millrace_client::url::RtspUrl;
use millrace_core::time::Instant;
use millrace_testkit::fuzz::edited;

const ITERATIONS: usize = 3000;

/// Files of a target's corpus.
fn seeds(target: &str) -> Vec<Vec<u8>> {
    millrace_testkit::fuzz::seeds(env!("CARGO_MANIFEST_DIR"), target)
}

/// Takes items until there is none, or an error ends the connection.
fn take_all(bytes: &[u8]) -> (Vec<String>, bool) {
    let (mut at, mut items) = (0, Vec::new());
    loop {
        match next_item(&bytes[at..]) {
            Ok(Some((item, len))) => {
                assert!(len > 0 && at + len <= bytes.len());
                items.push(match item {
                    Item::Frame { channel, bytes } => format!("{channel} {bytes:?}"),
                    Item::Message(message) => format!("{message:?}"),
                });
                at += len;
            }
            Ok(None) => return (items, true),
            Err(what) => {
                assert!(!what.is_empty() && what.len() < 300 && !what.contains(['\r', '\n']));
                return (items, false);
            }
        }
    }
}

#[test]
fn framing() {
    check!(name = "framing").with_iterations(ITERATIONS).for_each(|bytes: &[u8]| {
        take_all(bytes);
    });
}

#[test]
fn framing_edited() {
    let seeds = seeds("framing");
    check!(name = "framing_edited")
        .with_type::<(u8, Vec<(u8, u16, u8)>, u8)>()
        .with_iterations(ITERATIONS)
        .for_each(|(seed, edits, cut)| {
            let bytes = edited(&seeds[usize::from(*seed) % seeds.len()], edits);
            let (whole, is_whole_fine) = take_all(&bytes);
            // The same bytes in pieces give the same items.
            let (mut buffer, mut items, mut is_fine) = (Vec::new(), Vec::new(), true);
            for piece in bytes.chunks(usize::from(*cut).max(1)) {
                buffer.extend_from_slice(piece);
                while let Ok(Some((item, len))) = next_item(&buffer) {
                    items.push(match item {
                        Item::Frame { channel, bytes } => format!("{channel} {bytes:?}"),
                        Item::Message(message) => format!("{message:?}"),
                    });
                    buffer.drain(..len);
                }
                if next_item(&buffer).is_err() {
                    is_fine = false;
                    break;
                }
            }
            if is_fine && is_whole_fine {
                assert_eq!(items, whole);
            }
        });
}

#[test]
fn headers() {
    fn all(text: &str) {
        if let Some(session) = SessionHeader::parse(text) {
            assert!(!session.id.contains(['\r', '\n']) && session.timeout_ns > 0);
        }
        if let Some(range) = NptRange::parse(text) {
            let again = NptRange::parse(&range.to_string()).unwrap();
            assert_eq!(
                (again.start.is_some(), again.end.is_some()),
                (range.start.is_some(), range.end.is_some())
            );
        }
        assert!(parse_rtp_info(text).len() <= 16);
        for wanted in
            [TransportRequest::Udp { rtp: 5000, rtcp: 5001 }, TransportRequest::Tcp { rtp: 0, rtcp: 1 }]
        {
            if let Ok(reply) = TransportReply::parse(text, wanted) {
                let is_tcp = |wanted| matches!(wanted, TransportRequest::Tcp { .. });
                assert_eq!(is_tcp(reply.agreed), is_tcp(wanted));
            }
        }
        if let Ok(url) = RtspUrl::parse(text) {
            let printed = url.to_string();
            assert!(printed.bytes().all(|b| (0x21..=0x7e).contains(&b)), "{printed:?}");
            assert_eq!(RtspUrl::parse(&printed).unwrap().to_string(), printed);
        }
        if let Ok(script) = text.parse::<Script>() {
            assert!(script.0.is_sorted_by_key(|step| step.at_ns));
        }
    }
    check!(name = "headers")
        .with_iterations(ITERATIONS)
        .for_each(|bytes: &[u8]| all(&String::from_utf8_lossy(bytes)));
}

#[test]
fn headers_edited() {
    let seeds = seeds("headers");
    check!(name = "headers_edited")
        .with_type::<(u8, Vec<(u8, u16, u8)>)>()
        .with_iterations(ITERATIONS)
        .for_each(|(seed, edits)| {
            let text = edited(&seeds[usize::from(*seed) % seeds.len()], edits);
            let text = String::from_utf8_lossy(&text);
            SessionHeader::parse(&text);
            NptRange::parse(&text);
            parse_rtp_info(&text);
            let _ = TransportReply::parse(&text, TransportRequest::Udp { rtp: 1, rtcp: 2 });
            let _ = TransportReply::parse(&text, TransportRequest::Tcp { rtp: 1, rtcp: 2 });
            let _ = RtspUrl::parse(&text);
            let _ = text.parse::<Script>();
        });
}

#[test]
fn description() {
    check!(name = "description").with_iterations(ITERATIONS).for_each(|bytes: &[u8]| {
        if let Ok(found) = sdp::parse(bytes, sdp::Take::Any) {
            assert!(found.payload_type < 128);
        }
    });
}

#[test]
fn description_edited() {
    let seeds = seeds("description");
    check!(name = "description_edited")
        .with_type::<(u8, Vec<(u8, u16, u8)>)>()
        .with_iterations(ITERATIONS)
        .for_each(|(seed, edits)| {
            if let Ok(found) =
                sdp::parse(&edited(&seeds[usize::from(*seed) % seeds.len()], edits), sdp::Take::Any)
            {
                assert!(found.payload_type < 128);
            }
        });
}

/// A dialogue with a server that answers with edited replies, late, twice, or not at all.
#[test]
fn dialogue_edited() {
    let replies = seeds("framing");
    type Step = (u8, u8, Vec<(u8, u16, u8)>);
    check!(name = "dialogue_edited").with_type::<Vec<Step>>().with_iterations(ITERATIONS).for_each(|steps| {
        let config = DialogueConfig {
            user_agent: "fuzz".into(),
            reply_timeout_ns: 1000,
            take: Default::default(),
            fec: Default::default(),
        };
        let mut dialogue = Dialogue::new(config, &RtspUrl::parse("rtsp://h/film").unwrap());
        let (mut now, mut out, mut cseq) = (Instant(0), Vec::new(), 0);
        dialogue.start(now);
        for (what, which, edits) in steps {
            match what % 16 {
                0 => drop(dialogue.setup(now, TransportRequest::Udp { rtp: 5000, rtcp: 5001 })),
                1 => drop(dialogue.setup(now, TransportRequest::Tcp { rtp: 0, rtcp: 1 })),
                2 => drop(dialogue.play(now, None)),
                3 => drop(dialogue.pause(now)),
                4 => drop(dialogue.teardown(now)),
                5 => dialogue.handle_closed(),
                6 => dialogue.postpone(now),
                7 => {
                    now = now.plus_ns(u64::from(*which) * 10);
                    dialogue.handle_timeout(now);
                }
                _ => {
                    let reply = &replies[usize::from(*which) % replies.len()];
                    let text =
                        String::from_utf8_lossy(reply).replace("CSeq: 1\r\n", &format!("CSeq: {cseq}\r\n"));
                    match next_item(&edited(text.as_bytes(), edits)) {
                        Ok(Some((Item::Message(message), _))) => dialogue.handle_message(now, *message),
                        Ok(_) => {}
                        Err(what) => dialogue.handle_garbage(what),
                    }
                }
            }
            while dialogue.poll_event().is_some() {}
            out.clear();
            dialogue.take_output(&mut out);
            // Every request is one message, and no header of the server gets into it unseen.
            let text = String::from_utf8(out.clone()).unwrap();
            for message in text.split_inclusive("\r\n\r\n") {
                assert!(message.ends_with("\r\n\r\n"), "{text:?}");
                let line = message.lines().next().unwrap();
                assert!(line.ends_with(" RTSP/1.0") || line.starts_with("RTSP/1.0 "), "{text:?}");
            }
            let number = text.rsplit("CSeq: ").next().and_then(|rest| rest.split('\r').next()?.parse().ok());
            cseq = number.unwrap_or(cseq);
            assert!(!matches!(dialogue.phase(), DialoguePhase::Down) || dialogue.session().is_none());
        }
    });
}

#[test]
fn fuzz_seeds_cover_valid_and_invalid_inputs() {
    let framing = seeds("framing");
    assert!(framing.len() >= 8);
    for seed in &framing {
        let (items, is_fine) = take_all(seed);
        assert!(is_fine && !items.is_empty(), "{}", String::from_utf8_lossy(seed));
    }
    assert!(seeds("headers").len() >= 8);
    let found = seeds("description")
        .iter()
        .filter(|seed| sdp::parse(seed, sdp::Take::TransportStream).is_ok())
        .count();
    assert!(found >= 3 && found < seeds("description").len(), "some that are taken, and some that are not");
}
