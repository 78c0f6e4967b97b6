use super::*;

const ALL_STATES: [State; STATES] = [
    State::Free,
    State::Ready,
    State::Playing,
    State::Paused,
    State::Draining,
    State::Ended,
    State::Failed,
    State::Closing,
];
const ALL_INPUTS: [Input; INPUTS] = [
    Input::Open,
    Input::Play,
    Input::Pause,
    Input::Finish,
    Input::Close,
    Input::LastPacket,
    Input::ByeSent,
    Input::Fail,
    Input::ClosedTold,
];

/// Every state and every input, as a table to be read. `.` is ignored, `!` refused as a wrong state, `?` as unknown.
const EXPECTED: &str = "
            Open     Play     Pause    Finish   Close    LastPacket ByeSent Fail    ClosedTold
Free        Ready    ?        ?        .        ?        .        .        .        .
Ready       !        Playing  !        .        Closing  .        .        Failed   .
Playing     !        !        Paused   Draining Closing  Draining .        Failed   .
Paused      !        Playing  Paused   Draining Closing  .        .        Failed   .
Draining    !        Playing  Paused   Draining Closing  .        Ended    Failed   .
Ended       !        Playing  .        .        Closing  .        .        Failed   .
Failed      !        !        .        .        Closing  .        .        .        .
Closing     !        ?        ?        .        ?        .        .        .        Free
";

#[test]
fn every_transition_is_as_drawn() {
    let mut rows = EXPECTED.lines().filter(|line| !line.is_empty());
    let columns: Vec<_> = rows.next().unwrap().split_whitespace().map(str::to_owned).collect();
    assert_eq!(columns, ALL_INPUTS.map(|input| format!("{input:?}")));
    for (state, row) in ALL_STATES.into_iter().zip(rows) {
        let mut cells = row.split_whitespace();
        assert_eq!(cells.next(), Some(format!("{state:?}").as_str()));
        for input in ALL_INPUTS {
            let got = match state.next(input) {
                Next::Go(next) => format!("{next:?}"),
                Next::Ignore => ".".into(),
                Next::Refuse(Refusal::WrongState) => "!".into(),
                Next::Refuse(Refusal::UnknownStream) => "?".into(),
                Next::Refuse(other) => format!("{other:?}"),
            };
            assert_eq!(cells.next(), Some(got.as_str()), "{state:?} on {input:?}");
        }
    }
}

#[test]
fn close_leads_home_from_every_state_and_nothing_is_a_trap() {
    for state in ALL_STATES {
        if matches!(state, State::Free | State::Closing) {
            continue;
        }
        assert_eq!(state.next(Input::Close), Next::Go(State::Closing), "{state:?}");
    }
    assert_eq!(State::Closing.next(Input::ClosedTold), Next::Go(State::Free));
}

#[test]
fn a_stream_may_need_two_extents_and_no_more() {
    let layout = WireLayout::new(1316).unwrap();
    let spec = StreamSpec {
        id: StreamId { index: 3, generation: 9 },
        title: TitleRef(1),
        layout,
        packets: 196 * 3 + 5,
        timeline: Timeline { ssrc: 1, timestamp_base: 2 },
        dest: millrace_core::seam::Dest::Tcp {
            conn: millrace_core::ids::ConnId(0),
            rtp_channel: 0,
            rtcp_channel: 1,
        },
        quiet: false,
        spare: 0,
    };
    let mut stream = Stream::opened(&spec);
    stream.seek(196 + 7);
    stream.until = spec.packets;
    assert_eq!([0, 1, 2, 3].map(|e| stream.slot_of(e)), [None, Some(1), Some(0), None]);
    stream.seek(spec.packets - 1);
    assert_eq!([2, 3, 4].map(|e| stream.slot_of(e)), [None, Some(1), None], "nothing behind the end");
    stream.seek(196);
    stream.until = 2 * 196;
    assert_eq!([1, 2].map(|e| stream.slot_of(e)), [Some(1), None], "nothing behind `until`");
    assert!(!stream.advance(195) && stream.place() == 195);
    assert!(stream.advance(1) && stream.place() == 0);
    assert_eq!((stream.next, stream.extent), (2 * 196, 2));
    stream.sequence_base = 0xfff0;
    assert_eq!(stream.sequence(0x12), 3, "the first packet of a title has number 1");
    assert_eq!(stream.id(3), spec.id);

    // Whole extents may have holes, those that the run cuts may not, and what is always incomplete may always be.
    let spares = |stream: &Stream, from| [0, 1, 2, 3].map(|extent| stream.spare_of(extent, from));
    let total = spec.packets;
    for (spare, from, until, expected) in [
        (2, 0, total, [2, 2, 2, 2]),
        (2, 196, total, [0, 2, 2, 2]),
        (2, 197, total, [0, 0, 2, 2]),
        (2, 0, total - 1, [2, 2, 2, 0]),
        (2, 0, 3 * 196, [2, 2, 2, 0]),
        (1, 400, 500, [0, 0, 0, 0]),
        (0, 0, total, [0, 0, 0, 0]),
        (255, 400, 500, [255; 4]),
    ] {
        (stream.spare, stream.until) = (spare, until);
        assert_eq!(spares(&stream, from), expected, "{from}..{until}");
    }
}
