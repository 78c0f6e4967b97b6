//! Streams in virtual time, without a protocol: admitted, played, sought, paused, resumed, ended; engines that refuse, fall silent or go.

use crate::rtsp_support::{MS, SECOND};
use crate::service_support::*;
use millrace_core::ids::ConnId;
use millrace_core::limits::{BYE_DELAY_NS, PLAY_DELAY_NS};
use millrace_core::time::MediaTicks;
use millrace_core::wire::rtcp::ReportBlock;
use millrace_offload::command::{self, FailReason, StreamEvent};
use millrace_server::limits::ENGINE_ANSWER_TIMEOUT_NS;
use millrace_server::service::{
    EndReason, FecMode, FecWish, PlayRequest, Played, Playing, ServiceEvent, StreamKey, StreamPath, Which,
};

fn as_playing(event: &ServiceEvent) -> Option<&Playing> {
    match event {
        ServiceEvent::Playing(playing) => Some(playing),
        _ => None,
    }
}

fn playing(desk: &Desk) -> Vec<&Playing> {
    desk.events.iter().filter_map(as_playing).collect()
}

/// From, until and sequence number of the last run.
fn last(desk: &Desk) -> (Option<f64>, f64, u16) {
    let run = *playing(desk).last().expect("it has played");
    let s = |time: MediaTicks| time.0 as f64 / 90_000.0;
    (run.from.map(s), s(run.until), run.sequence)
}

fn is_playing(desk: &Desk, key: StreamKey) -> bool {
    desk.service.stream(key).expect("it has not ended").is_playing()
}

#[test]
fn stream_plays_seeks_pauses_resumes_and_ends() {
    let mut desk = Desk::new();
    let key = desk.udp("film", 5000);
    assert!(desk.service.stream(key).unwrap().is_fresh());
    assert_eq!((desk.service.reserved_streams(), desk.service.place_count()), (0, 1));
    assert_eq!(desk.play(key, None), Ok(Played::Begun));
    assert_eq!((last(&desk), desk.service.reserved_rate()), ((Some(0.0), 60.0, 1), 4_000_000));
    assert_eq!(desk.play(key, None), Ok(Played::GoesOn));
    desk.wait(2 * SECOND);
    // The sequence goes on over a seek; it starts at an access point.
    assert_eq!(desk.play(key, span(31, Some(40))), Ok(Played::Waits));
    assert_eq!((last(&desk), is_playing(&desk, key)), ((Some(30.0), 40.0, 802), true));
    desk.wait(SECOND);
    desk.pause(key);
    desk.pause(key);
    assert!(!is_playing(&desk, key));
    let position = desk.service.stream(key).unwrap().position(desk.now);
    assert_eq!(position, Some(MediaTicks(12_401 * 225)));
    // Where it stopped, to where it was going.
    assert_eq!(desk.play(key, None), Ok(Played::Begun));
    assert_eq!(last(&desk), (Some(31.0025), 40.0, 1203));
    desk.wait(12 * SECOND);
    assert_eq!((is_playing(&desk, key), desk.counters.titles_finished, desk.counters.seeks), (false, 1, 1));
    // After the end it begins again.
    assert_eq!(desk.play(key, None), Ok(Played::Begun));
    assert_eq!(last(&desk).0, Some(0.0));
    assert_eq!(
        desk.take_commands(),
        [
            "open",
            "play 0..24000",
            "pause",
            "play 12000..16000",
            "pause",
            "play 12401..16000",
            "play 0..24000"
        ]
    );
    desk.close(key);
    assert_eq!((desk.take_commands(), desk.ends()), (vec!["close".to_owned()], vec![EndReason::TornDown]));
    desk.assert_empty();
}

/// Tests each command in each state: `fresh`, `running`, `pausing`, `paused`, `ended`.
#[test]
fn stream_commands_in_each_state_have_expected_effect() {
    let reach = |state: &str| {
        let mut desk = Desk::new();
        let key = desk.udp("film", 5000);
        if state != "fresh" {
            desk.play(key, span(0, Some(4))).unwrap();
            desk.wait(SECOND);
        }
        match state {
            "pausing" => {
                desk.engine.silent = true;
                desk.pause(key);
            }
            "paused" => desk.pause(key),
            "ended" => desk.wait(8 * SECOND),
            _ => {}
        }
        desk.take_commands();
        (desk, key)
    };
    let play = [
        ("fresh", Played::Begun, "play 0..24000"),
        ("running", Played::GoesOn, ""),
        ("pausing", Played::Waits, ""),
        ("paused", Played::Begun, "play 401..1600"),
        ("ended", Played::Begun, "play 0..24000"),
    ];
    for (state, expected, command) in play {
        let (mut desk, key) = reach(state);
        assert_eq!(
            (desk.play(key, None), desk.take_commands().join(" ")),
            (Ok(expected), command.to_owned())
        );
        desk.engine.silent = false;
        desk.settle();
        assert!(is_playing(&desk, key), "{state}");
    }
    for state in ["fresh", "running", "pausing", "paused", "ended"] {
        let (mut desk, key) = reach(state);
        let seek = desk.play(key, span(20, None)).unwrap();
        let at_once = matches!(state, "fresh" | "paused" | "ended");
        assert_eq!(seek, if at_once { Played::Begun } else { Played::Waits }, "{state}");
        desk.engine.silent = false;
        desk.settle();
        assert_eq!(
            (last(&desk).0, last(&desk).1, is_playing(&desk, key)),
            (Some(20.0), 60.0, true),
            "{state}"
        );
        let (mut desk, key) = reach(state);
        desk.pause(key);
        let commands = desk.take_commands().join(" ");
        assert_eq!(
            (commands.as_str(), is_playing(&desk, key)),
            (if state == "running" { "pause" } else { "" }, false)
        );
        let (mut desk, key) = reach(state);
        desk.close(key);
        desk.engine.silent = false;
        desk.settle();
        assert_eq!(desk.ends(), [EndReason::TornDown], "{state}");
        desk.assert_empty();
    }
}

#[test]
fn playing_event_precedes_play_command() {
    let mut desk = Desk::new();
    let conn = desk.conn();
    let key = desk.try_tcp(conn).unwrap();
    let wanted = PlayRequest { told_by: Some(conn), ..PlayRequest::default() };
    assert_eq!(desk.service.play(desk.now, key, &wanted), Ok(Played::Begun));
    let mut order = Vec::new();
    while let Some(output) = desk.service.poll_output() {
        order.push(match output {
            millrace_server::service::Output::Event(ServiceEvent::Playing(_)) => "told".to_owned(),
            millrace_server::service::Output::Command {
                command: command::Command::Play { at, .. }, ..
            } => {
                assert_eq!(
                    at,
                    desk.now.plus_ns(PLAY_DELAY_NS),
                    "a reader of frames loses what comes right behind"
                );
                "play".to_owned()
            }
            other => format!("{other:?}"),
        });
    }
    assert_eq!(order, ["told", "play"]);
}

#[test]
fn stream_moved_to_other_path_continues() {
    let mut desk = Desk::new();
    let key = desk.udp("film", 5000);
    desk.play(key, None).unwrap();
    desk.wait(SECOND);
    desk.pause(key);
    let conn = desk.conn();
    let mut request = desk.request("film", conn, tcp(conn));
    request.which = Which::Moved(key);
    desk.take_commands();
    assert_eq!(desk.admit(request).unwrap().stream, key);
    assert_eq!(desk.take_commands(), ["close", "open"]);
    assert_eq!(desk.service.streams_of(conn), [key]);
    assert!(matches!(desk.service.stream(key).unwrap().path(), StreamPath::Interleaved { .. }));
    assert!(desk.service.at_port("192.0.2.7".parse().unwrap(), 5000).is_empty());
    assert_eq!(desk.play(key, None), Ok(Played::Begun));
    assert_eq!(last(&desk), (Some(1.0025), 60.0, 402));
    desk.service.conn_closed(desk.now, conn);
    desk.settle();
    assert_eq!(desk.ends(), [EndReason::Disconnected]);
    desk.assert_empty();
}

#[test]
fn packets_by_udp_go_to_the_viewer_whatever_address_is_named() {
    let mut desk = Desk::new();
    let conn = desk.conn();
    let victim = StreamPath::udp("192.0.2.99:5000".parse().unwrap(), Some(5001));
    let request = desk.request("film", conn, victim);
    let key = desk.admit(request).unwrap().stream;
    let to: Vec<_> = desk
        .engine
        .streams
        .values()
        .map(|stream| [false, true].map(|rtcp| stream.dest.address(rtcp)))
        .collect();
    assert_eq!(to, [["192.0.2.7:5000", "192.0.2.7:5001"].map(|to| Some(to.parse().unwrap()))]);
    desk.close(key);
    desk.assert_empty();
}

#[test]
fn admission_on_port_of_stale_stream_replaces_it() {
    let mut desk = Desk::with(|config| config.max_streams = 1);
    let old = desk.udp("film", 5000);
    desk.play(old, None).unwrap();
    desk.wait(31 * SECOND);
    let new = desk.udp("other", 5000);
    assert_eq!((desk.ends(), desk.play(new, None)), (vec![EndReason::Replaced], Ok(Played::Begun)));
}

#[test]
fn engine_silence_times_out_request_but_keeps_stream() {
    let mut desk = Desk::new();
    let key = desk.udp("film", 5000);
    desk.play(key, None).unwrap();
    desk.wait(SECOND);
    desk.engine.silent = true;
    assert_eq!(desk.play(key, span(30, None)), Ok(Played::Waits));
    desk.wait(ENGINE_ANSWER_TIMEOUT_NS - 500 * MS);
    assert_eq!(desk.counters.engine_silent, 0);
    desk.wait(SECOND);
    assert!(matches!(desk.events.last(), Some(ServiceEvent::EngineSilent { stream, .. }) if *stream == key));
    assert_eq!((desk.counters.engine_silent, is_playing(&desk, key)), (1, false));
    // It can be asked again, and is answered when the engine is back.
    assert_eq!(desk.play(key, span(40, None)), Ok(Played::Waits));
    desk.engine.silent = false;
    desk.settle();
    assert_eq!((last(&desk).0, is_playing(&desk, key)), (Some(40.0), true));
}

#[test]
fn close_while_pausing_drops_pending_play() {
    let mut desk = Desk::new();
    let key = desk.udp("film", 5000);
    desk.play(key, None).unwrap();
    desk.wait(SECOND);
    desk.engine.silent = true;
    desk.pause(key);
    assert_eq!(desk.play(key, span(30, None)), Ok(Played::Waits));
    desk.close(key);
    // Its name is free, its place is not.
    assert_eq!((desk.service.streams().len(), desk.service.place_count()), (0, 1));
    assert_eq!((desk.service.reserved_rate(), desk.titles.open_count()), (0, 1));
    desk.engine.silent = false;
    desk.settle();
    assert_eq!(
        (desk.ends(), playing(&desk).len()),
        (vec![EndReason::TornDown], 1),
        "what was asked is not begun"
    );
    desk.assert_empty();
}

#[test]
fn engine_refusal_failure_or_loss_ends_streams_without_leaks() {
    let mut desk = Desk::new();
    desk.engine.max_streams = 0;
    desk.udp("film", 5000);
    assert!(matches!(desk.ends()[..], [EndReason::Refused(command::Refusal::TableFull)]));
    desk.assert_empty();
    desk.engine.max_streams = 2;
    let reasons = [
        (FailReason::SlowReader, EndReason::Failed(FailReason::SlowReader)),
        (FailReason::ConnectionClosed(104), EndReason::Disconnected),
    ];
    for (reason, end) in reasons {
        let key = desk.udp("film", 5000);
        desk.play(key, None).unwrap();
        let stream = *desk.engine.streams.keys().next().unwrap();
        desk.engine.tell(StreamEvent::Failed { stream, reason });
        desk.settle();
        assert_eq!(desk.ends().last(), Some(&end));
        desk.assert_empty();
    }
    let (left, closing) = (desk.udp("film", 5000), desk.udp("film", 6000));
    desk.play(left, None).unwrap();
    desk.engine.silent = true;
    desk.close(closing);
    desk.service.engine_gone(desk.now, 0);
    desk.settle();
    assert_eq!(
        (desk.service.streams().len(), desk.service.place_count(), desk.titles.open_count()),
        (0, 0, 0)
    );
    assert_eq!(desk.ends().last(), Some(&EndReason::Shutdown));
}

#[test]
fn connection_lost_ends_only_streams_through_it() {
    let mut desk = Desk::new();
    let conns = [desk.conn(), desk.conn(), desk.conn()];
    let keys = conns.map(|conn| desk.try_tcp(conn).unwrap());
    let by_udp = desk.request("film", conns[1], udp(5000));
    let by_udp = desk.admit(by_udp).unwrap().stream;
    // Places for connections are given in order.
    for _ in 0..2 {
        desk.service.engine_event(desk.now, 0, command::Event::ConnGone { conn: ConnId(1), errno: 104 });
        desk.settle();
    }
    assert_eq!(desk.ends(), [EndReason::Disconnected]);
    assert!(desk.service.stream(keys[1]).is_none());
    assert_eq!(desk.service.streams_of(conns[1]), [by_udp]);
    assert!(desk.events.iter().any(|event| *event == ServiceEvent::ConnectionLost { conn: conns[1] }));
    desk.service.conn_closed(desk.now, conns[1]);
    desk.settle();
    assert_eq!(desk.service.stream(by_udp).map(|stream| stream.owner()), Some(None), "it goes on");
    // A late report of the engine concerns no connection.
    let lost =
        |desk: &Desk| desk.events.iter().filter(|e| matches!(e, ServiceEvent::ConnectionLost { .. })).count();
    let before = lost(&desk);
    desk.service.engine_event(desk.now, 0, command::Event::ConnGone { conn: ConnId(1), errno: 104 });
    desk.settle();
    assert_eq!(lost(&desk), before);
    // The name is used again, for another connection.
    let again = desk.conn();
    let key = desk.try_tcp(again).unwrap();
    desk.service.engine_event(desk.now, 0, command::Event::ConnGone { conn: ConnId(1), errno: 104 });
    desk.settle();
    assert!(desk.service.stream(key).is_none() && desk.service.stream(keys[0]).is_some());
}

#[test]
fn end_newest_sends_bye_and_releases_capacity_at_once() {
    let mut desk = Desk::new();
    let keys = [5000, 5100, 5200, 5300, 5400].map(|port| desk.udp("film", port));
    keys[..4].iter().for_each(|&key| assert_eq!(desk.play(key, None), Ok(Played::Begun)));
    desk.wait(SECOND);
    desk.pause(keys[3]);
    desk.take_commands();
    // Neither a paused stream nor one that has never played counts.
    assert_eq!(desk.service.end_newest(desk.now, 0, 2), 2);
    assert_eq!(desk.service.end_newest(desk.now, 3, 2), 0, "there is no such engine");
    desk.settle();
    assert_eq!(desk.take_commands(), ["play 24000..24000", "play 24000..24000"], "nothing but BYE");
    assert_eq!((desk.service.reserved_streams(), desk.ends().len()), (2, 0));
    desk.wait(BYE_DELAY_NS + SECOND);
    assert_eq!(desk.ends(), [EndReason::Overloaded, EndReason::Overloaded]);
    let left = keys.map(|key| desk.service.stream(key).is_some());
    assert_eq!((left, is_playing(&desk, keys[0])), ([true, false, false, true, true], true));
    let line = desk.events.iter().find(|event| matches!(event, ServiceEvent::Closed { .. })).unwrap();
    assert!(line.is_warning() && line.to_string().contains("overloaded"), "{line}");
    assert_eq!((desk.counters.sessions_overload, desk.counters.titles_finished), (2, 0));
    // A player may be quicker than the engine that has sent BYE.
    assert_eq!(desk.service.end_newest(desk.now, 0, 1), 1);
    desk.close(keys[0]);
    desk.settle();
    assert_eq!((desk.ends().last(), desk.counters.sessions_overload), (Some(&EndReason::Overloaded), 3));
    assert_eq!(desk.service.end_newest(desk.now, 0, 1), 0, "nobody else plays");
    desk.wait(4 * SECOND);
    keys.into_iter().filter(|&key| key == keys[3] || key == keys[4]).for_each(|key| desk.close(key));
    desk.assert_empty();
}

#[test]
fn pause_beyond_reservation_time_releases_reservation() {
    let mut desk = Desk::with(|config| {
        config.max_streams = 1;
        config.pause_reservation_ns = 5 * SECOND;
    });
    let key = desk.udp("film", 5000);
    desk.play(key, None).unwrap();
    desk.wait(SECOND);
    desk.pause(key);
    desk.wait(4 * SECOND);
    assert_eq!(desk.service.reserved_streams(), 1);
    desk.wait(2 * SECOND);
    assert_eq!(desk.service.reserved_streams(), 0);
    let other = desk.udp("film", 6000);
    desk.play(other, None).unwrap();
    assert!(desk.play(key, None).is_err());
    desk.close(other);
    assert_eq!(desk.play(key, None), Ok(Played::Begun), "it is still there");
}

#[test]
fn shutdown_ends_all_streams() {
    let mut desk = Desk::new();
    let keys = [5000, 6000].map(|port| desk.udp("film", port));
    desk.play(keys[0], None).unwrap();
    assert_eq!(desk.service.begin_shutdown(), 1, "one viewer waits for BYE");
    desk.service.shut_down(desk.now);
    desk.settle();
    assert_eq!(desk.ends(), [EndReason::Shutdown; 2]);
    desk.assert_empty();
}

#[test]
fn reported_loss_and_backlog_are_logged_when_stream_ends() {
    let mut desk = Desk::new();
    let conn = desk.conn();
    let (tcp, udp) = (desk.try_tcp(conn).unwrap(), desk.udp("film", 5000));
    desk.play(tcp, None).unwrap();
    desk.wait(SECOND);
    let known = |desk: &Desk, key| {
        let stream = desk.service.stream(key).unwrap();
        (stream.reported_loss().map(|loss| (loss.packets, loss.fraction_256)), stream.backlog_bytes())
    };
    assert_eq!([tcp, udp].map(|key| known(&desk, key)), [(None, None); 2]);
    let report = ReportBlock { cumulative_lost: 12, fraction_lost: 3, ..ReportBlock::default() };
    desk.take_commands();
    for key in [tcp, udp] {
        desk.service.note_report(desk.now, key, report);
        desk.service.measure(key);
    }
    desk.settle();
    assert_eq!(desk.take_commands(), ["measure"], "there is a connection, and one without");
    assert_eq!(known(&desk, tcp), (Some((12, 3)), Some(4_096)));
    assert_eq!(known(&desk, udp), (Some((12, 3)), None));
    // The engine's final figures count.
    let place = *desk.engine.streams.iter().find(|(_, state)| state.dest.conn().is_some()).unwrap().0;
    desk.service.close(desk.now, tcp, EndReason::TornDown);
    let found = command::Event::Backlog { stream: place, backlog_bytes: 77, behind_ns: 0 };
    desk.service.engine_event(desk.now, 0, found);
    desk.close(udp);
    let ended: Vec<_> =
        desk.events.iter().filter(|event| matches!(event, ServiceEvent::Closed { .. })).collect();
    let lines: Vec<_> = ended.iter().map(|event| event.to_string()).collect();
    assert!(lines[0].ends_with(" late, 12 reported lost, 77 bytes not acknowledged"), "{lines:?}");
    assert!(lines[1].ends_with(" late, 12 reported lost"), "{lines:?}");
}

/// The sent part of a title is reported run by run: for one that pauses, one that ends before it
/// has begun, one whose stream is closed during the run; for FEC nothing.
#[test]
fn sent_event_reports_packets_of_each_run() {
    let mut desk = Desk::new();
    let conn = desk.conn();
    let mut request = desk.request("safe", conn, udp(5000));
    request.fec = FecWish::Mode(FecMode::All);
    let key = desk.admit(request).unwrap().stream;
    let sent = |desk: &mut Desk| {
        let told = std::mem::take(&mut desk.events).into_iter().filter_map(|event| match event {
            ServiceEvent::Sent { title, packets, bytes, missing } => Some((title, packets, bytes, missing)),
            _ => None,
        });
        told.collect::<Vec<_>>()
    };
    desk.play(key, None).unwrap();
    desk.wait(SECOND);
    assert_eq!(sent(&mut desk), [], "it lasts");
    desk.pause(key);
    // The first packet left 50 ms after PLAY: 950 ms of 400 packets a second, and the one at the beginning.
    assert_eq!(sent(&mut desk), [("safe".to_owned(), 381, 381 * 1328, 0)]);
    desk.play(key, None).unwrap();
    desk.pause(key);
    assert_eq!(sent(&mut desk), [], "nothing has left yet");
    desk.play(key, None).unwrap();
    desk.wait(SECOND / 2);
    desk.close(key);
    let closed = desk.events.iter().position(|event| matches!(event, ServiceEvent::Closed { .. })).unwrap();
    let last = desk.events.iter().position(|event| matches!(event, ServiceEvent::Sent { .. })).unwrap();
    assert!(last < closed, "before the last that is told of the stream");
    assert_eq!(sent(&mut desk), [("safe".to_owned(), 181, 181 * 1328, 0)]);
    // The engine's report of packets that it passed over is forwarded too.
    let key = desk.udp("film", 6000);
    desk.play(key, None).unwrap();
    let place = *desk.engine.streams.keys().next().unwrap();
    let run = desk.engine.streams[&place].playing.unwrap().spec.run;
    let (reason, next_due) = (command::StopReason::Failed(FailReason::SlowReader), desk.now);
    let counts = command::RunEnd {
        run,
        reason,
        next_packet: 9,
        next_sequence: 10,
        bursts: 1,
        packets: 4,
        bytes: 40,
        missing: 5,
        next_due,
    };
    desk.engine.tell(StreamEvent::RunEnded { stream: place, end: counts });
    desk.settle();
    assert_eq!(sent(&mut desk), [("film".to_owned(), 4, 40, 5)]);
}
