use super::super::framing::{Item, next_item};
use super::*;
use millrace_core::time::MediaTicks;

const SDP: &str = "v=0\r\ns=Film\r\na=range:npt=0-60\r\nm=video 0 RTP/AVP 33\r\na=control:track1\r\n";
const S: u64 = NS_PER_S;

fn dialogue() -> Dialogue {
    let config = DialogueConfig {
        user_agent: "test/1".into(),
        reply_timeout_ns: 10 * S,
        take: crate::sdp::Take::default(),
        fec: Default::default(),
    };
    Dialogue::new(config, &RtspUrl::parse("rtsp://h:8554/film").unwrap())
}

fn sent(dialogue: &mut Dialogue) -> String {
    let mut out = Vec::new();
    dialogue.take_output(&mut out);
    String::from_utf8(out).unwrap()
}

fn first_line(dialogue: &mut Dialogue) -> String {
    sent(dialogue).lines().next().unwrap_or_default().to_owned()
}

fn reply(dialogue: &mut Dialogue, now: Instant, text: &str) {
    let (item, len) = next_item(text.as_bytes()).unwrap().unwrap();
    assert_eq!(len, text.len());
    let Item::Message(message) = item else { panic!("{text}") };
    dialogue.handle_message(now, *message);
}

fn ok(dialogue: &mut Dialogue, now: Instant, extra: &str) {
    let cseq = dialogue.cseq;
    reply(dialogue, now, &format!("RTSP/1.0 200 OK\r\nCSeq: {cseq}\r\n{extra}\r\n"));
}

fn status(dialogue: &mut Dialogue, status: &str) {
    let cseq = dialogue.cseq;
    reply(dialogue, Instant(0), &format!("RTSP/1.0 {status}\r\nCSeq: {cseq}\r\n\r\n"));
}

fn describe_reply() -> String {
    format!("Content-Base: rtsp://h:8554/film/\r\nContent-Length: {}\r\n", SDP.len())
}

fn described() -> Dialogue {
    let mut d = dialogue();
    d.start(Instant(0));
    assert_eq!(first_line(&mut d), "OPTIONS rtsp://h:8554/film RTSP/1.0");
    ok(&mut d, Instant(0), "Public: OPTIONS, DESCRIBE, GET_PARAMETER\r\n");
    assert_eq!(first_line(&mut d), "DESCRIBE rtsp://h:8554/film RTSP/1.0");
    let cseq = d.cseq;
    let text = format!("RTSP/1.0 200 OK\r\nCSeq: {cseq}\r\n{}\r\n{SDP}", describe_reply());
    reply(&mut d, Instant(0), &text);
    assert!(matches!(d.poll_event(), Some(DialogueEvent::Described(film)) if film.name == "Film"));
    d
}

fn ready(wanted: TransportRequest, timeout: &str) -> Dialogue {
    let mut d = described();
    assert!(d.setup(Instant(0), wanted));
    let text = sent(&mut d);
    assert!(text.starts_with("SETUP rtsp://h:8554/film/track1 RTSP/1.0\r\n"), "{text}");
    assert!(text.contains(&format!("Transport: {wanted}\r\n")) && !text.contains("Session:"), "{text}");
    ok(&mut d, Instant(0), &format!("Session: abc{timeout}\r\nTransport: {wanted};ssrc=1\r\n"));
    assert!(matches!(d.poll_event(), Some(DialogueEvent::Ready(reply)) if reply.ssrc == Some(1)));
    d
}

const UDP: TransportRequest = TransportRequest::Udp { rtp: 5000, rtcp: 5001 };

#[test]
fn play_pause_seek_teardown() {
    let mut d = ready(UDP, "");
    let from = |s| Some(NptRange { start: MediaTicks::from_secs_f64(s), end: None });
    assert!(d.play(Instant(S), from(0.0)));
    let text = sent(&mut d);
    assert!(text.starts_with("PLAY rtsp://h:8554/film/ RTSP/1.0\r\n"), "{text}");
    assert!(text.contains("Range: npt=0.000-\r\n") && text.contains("Session: abc\r\n"), "{text}");
    let info = "Range: npt=0.000-60.000\r\nRTP-Info: url=rtsp://h/other;seq=1;rtptime=2,\
                url=rtsp://h:8554/film/track1;seq=3;rtptime=4\r\n";
    ok(&mut d, Instant(S), info);
    let Some(DialogueEvent::Playing(play)) = d.poll_event() else { panic!() };
    assert_eq!(play.rtp_info.unwrap().sequence, Some(3));
    assert_eq!(play.range.unwrap().end, MediaTicks::from_secs_f64(60.0));
    assert_eq!(d.phase(), DialoguePhase::Playing);

    // A seek is PAUSE and PLAY in one breath: the second waits for the reply to the first.
    assert!(d.pause(Instant(2 * S)) && d.play(Instant(2 * S), from(30.0)));
    assert_eq!(first_line(&mut d), "PAUSE rtsp://h:8554/film/ RTSP/1.0");
    ok(&mut d, Instant(2 * S), "");
    assert_eq!(d.poll_event(), Some(DialogueEvent::Paused));
    assert!(sent(&mut d).contains("Range: npt=30.000-\r\n"));
    ok(&mut d, Instant(2 * S), "RTP-Info: url=relative;seq=9\r\n");
    assert!(
        matches!(d.poll_event(), Some(DialogueEvent::Playing(PlayReply { rtp_info: Some(info), .. })) if info.sequence == Some(9))
    );

    assert!(d.teardown(Instant(3 * S)) && !d.teardown(Instant(3 * S)));
    assert_eq!(first_line(&mut d), "TEARDOWN rtsp://h:8554/film/ RTSP/1.0");
    ok(&mut d, Instant(3 * S), "");
    assert_eq!(
        (d.poll_event(), d.phase(), d.poll_at()),
        (Some(DialogueEvent::Down), DialoguePhase::Down, None)
    );
    assert!(!d.play(Instant(4 * S), None));
}

#[test]
fn keep_alive_at_half_the_timeout_by_get_parameter_then_options() {
    let mut d = ready(UDP, ";timeout=10");
    assert_eq!(d.poll_at(), Some(Instant(5 * S)));
    d.handle_timeout(Instant(5 * S - 1));
    assert_eq!(sent(&mut d), "");
    d.handle_timeout(Instant(5 * S));
    assert!(sent(&mut d).starts_with("GET_PARAMETER rtsp://h:8554/film/ RTSP/1.0\r\n"));
    status(&mut d, "501 Not Implemented");
    assert_eq!(d.poll_at(), Some(Instant(10 * S)));
    d.handle_timeout(Instant(10 * S));
    let text = sent(&mut d);
    assert!(text.starts_with("OPTIONS ") && text.contains("Session: abc"), "{text}");
    status(&mut d, "454 Session Not Found");
    assert!(matches!(d.poll_event(), Some(DialogueEvent::Failed(RtspFailure::Status { status: 454, .. }))));
    assert_eq!(d.poll_at(), None);
}

#[test]
fn setup_after_refused_transport_accepts_another() {
    let mut d = described();
    assert!(d.setup(Instant(0), UDP));
    status(&mut d, "461 Unsupported Transport");
    assert_eq!(d.poll_event(), Some(DialogueEvent::TransportRefused));
    let tcp = TransportRequest::Tcp { rtp: 0, rtcp: 1 };
    assert!(d.setup(Instant(0), tcp));
    assert!(sent(&mut d).contains("Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\n"));
    ok(&mut d, Instant(0), "Session: x\r\nTransport: RTP/AVP/TCP;interleaved=0-1\r\n");
    assert!(matches!(d.poll_event(), Some(DialogueEvent::Ready(reply)) if reply.agreed == tcp));
}

#[test]
fn rtsp_failure_events_describe_their_cause() {
    let mut d = dialogue();
    d.start(Instant(0));
    d.handle_timeout(Instant(10 * S));
    assert_eq!(
        d.poll_event(),
        Some(DialogueEvent::Failed(RtspFailure::NoReply { method: "OPTIONS", seconds: 10 }))
    );

    let mut d = dialogue();
    d.start(Instant(0));
    status(&mut d, "501 Not Implemented");
    sent(&mut d);
    status(&mut d, "404 Not Found");
    let Some(DialogueEvent::Failed(failure)) = d.poll_event() else { panic!() };
    assert_eq!(failure.to_string(), "DESCRIBE refused: 404 Not Found; check the title's name in the URL");
    assert_eq!(failure.kind(), "DESCRIBE refused: 404");

    let mut d = described();
    d.setup(Instant(0), UDP);
    d.handle_closed();
    assert_eq!(d.poll_event(), Some(DialogueEvent::Failed(RtspFailure::Closed { method: "SETUP" })));
    assert_eq!(d.poll_event(), None);

    let mut d = described();
    d.setup(Instant(0), UDP);
    ok(&mut d, Instant(0), "Transport: RTP/AVP;unicast\r\n");
    let Some(DialogueEvent::Failed(failure)) = d.poll_event() else { panic!() };
    assert!(failure.to_string().contains("no Session header"), "{failure}");

    let mut d = described();
    d.handle_garbage("it is HTML".to_owned());
    assert!(matches!(d.poll_event(), Some(DialogueEvent::Failed(RtspFailure::Malformed { .. }))));
}

#[test]
fn teardown_after_failed_play_is_still_sent() {
    let mut d = ready(UDP, "");
    d.play(Instant(0), None);
    sent(&mut d);
    status(&mut d, "457 Invalid Range");
    assert!(matches!(d.poll_event(), Some(DialogueEvent::Failed(_))));
    assert!(d.teardown(Instant(0)));
    assert!(first_line(&mut d).starts_with("TEARDOWN"));
    d.handle_closed();
    assert_eq!(d.poll_event(), Some(DialogueEvent::Down));
}

#[test]
fn late_and_provisional_replies_are_not_taken_for_the_one_that_is_due() {
    let mut d = ready(UDP, "");
    d.play(Instant(0), None);
    reply(&mut d, Instant(0), "RTSP/1.0 404 Late\r\nCSeq: 1\r\n\r\n");
    status(&mut d, "100 Continue");
    assert_eq!((d.poll_event(), d.is_busy()), (None, true));
    reply(&mut d, Instant(0), "RTSP/1.0 200 no number\r\n\r\n");
    assert_eq!(d.poll_event(), Some(DialogueEvent::Playing(PlayReply::default())));
    reply(&mut d, Instant(0), "RTSP/1.0 404 unasked\r\n\r\n");
    assert_eq!(d.poll_event(), None);
}

#[test]
fn requests_of_the_server_are_answered() {
    let mut d = ready(UDP, "");
    sent(&mut d);
    reply(&mut d, Instant(0), "OPTIONS rtsp://h/ RTSP/1.0\r\nCSeq: 77\r\n\r\n");
    assert_eq!(sent(&mut d), "RTSP/1.0 200 OK\r\nCSeq: 77\r\n\r\n");
    reply(&mut d, Instant(0), "ANNOUNCE rtsp://h/ RTSP/1.0\r\nCSeq: x\r\n\r\n");
    assert_eq!(sent(&mut d), "RTSP/1.0 501 Not Implemented\r\nCSeq: 0\r\n\r\n");
}
