use super::*;

const ALL_STATES: [StreamState; STATES] = [
    StreamState::Free,
    StreamState::Ready,
    StreamState::Playing,
    StreamState::Paused,
    StreamState::Draining,
    StreamState::Ended,
    StreamState::Failed,
    StreamState::Closing,
];
const ALL_INPUTS: [Input; INPUTS] = [
    Input::Open,
    Input::Play,
    Input::Queue,
    Input::Pause,
    Input::Finish,
    Input::Close,
    Input::LastPacket,
    Input::Cut,
    Input::ByeSent,
    Input::Fail,
    Input::ClosedTold,
];

/// Every state and every input, as a table to be read. `.` is ignored, `!` refused as a wrong state, `?` as unknown.
const EXPECTED: &str = "
            Open     Play     Queue    Pause    Finish   Close    LastPacket Cut     ByeSent Fail    ClosedTold
Free        Ready    ?        ?        ?        .        ?        .        .        .        .        .
Ready       !        Playing  !        !        .        Closing  .        .        .        Failed   .
Playing     !        Playing  Playing  Paused   Draining Closing  Draining Playing  .        Failed   .
Paused      !        Playing  !        .        Draining Closing  .        .        .        Failed   .
Draining    !        Playing  !        Paused   Draining Closing  .        .        Ended    Failed   .
Ended       !        Playing  !        .        .        Closing  .        .        .        Failed   .
Failed      !        !        !        .        .        Closing  .        .        .        .        .
Closing     !        ?        ?        ?        .        ?        .        .        .        .        Free
";

#[test]
fn state_transitions_match_expected_table() {
    let mut rows = EXPECTED.lines().filter(|line| !line.is_empty());
    let columns: Vec<_> = rows.next().unwrap().split_whitespace().map(str::to_owned).collect();
    assert_eq!(columns, ALL_INPUTS.map(|input| format!("{input:?}")));
    for (state, row) in ALL_STATES.into_iter().zip(rows) {
        let mut cells = row.split_whitespace();
        assert_eq!(cells.next(), Some(format!("{state:?}").as_str()));
        for input in ALL_INPUTS {
            let got = match state.next(input) {
                Transition::Go(next) => format!("{next:?}"),
                Transition::Ignore => ".".into(),
                Transition::Refuse(Refusal::WrongState) => "!".into(),
                Transition::Refuse(Refusal::UnknownStream) => "?".into(),
                Transition::Refuse(other) => format!("{other:?}"),
            };
            assert_eq!(cells.next(), Some(got.as_str()), "{state:?} on {input:?}");
        }
    }
}

#[test]
fn close_leads_home_from_every_state_and_nothing_is_a_trap() {
    for state in ALL_STATES {
        if matches!(state, StreamState::Free | StreamState::Closing) {
            continue;
        }
        assert_eq!(state.next(Input::Close), Transition::Go(StreamState::Closing), "{state:?}");
    }
    assert_eq!(StreamState::Closing.next(Input::ClosedTold), Transition::Go(StreamState::Free));
}

const PACKETS: u32 = 196 * 3 + 5;

fn media(spare: u8) -> RunMedia {
    let layout = WireLayout::new(1316).unwrap();
    let timeline = Timeline { ssrc: 1, timestamp_base: 2 };
    RunMedia { title: TitleRef(1), packets: PACKETS, timeline, layout, spare }
}

fn opened() -> HotStream {
    let conn = millrace_core::ids::ConnId(0);
    let dest = millrace_core::seam::Dest::Interleaved { conn, rtp_channel: 0, rtcp_channel: 1 };
    let id = StreamId { index: 3, generation: 9 };
    HotStream {
        per_extent: 196,
        ..HotStream::opened(&StreamSpec { id, dest, quiet: false, lends: false, once: false })
    }
}

#[test]
fn stream_needs_at_most_two_extents_within_its_run() {
    let mut stream = opened();
    stream.seek(196 + 7);
    stream.until = PACKETS;
    assert_eq!([0, 1, 2, 3].map(|e| stream.slot_of(e)), [None, Some(1), Some(0), None]);
    stream.seek(PACKETS - 1);
    assert_eq!([2, 3, 4].map(|e| stream.slot_of(e)), [None, Some(1), None], "nothing behind the end");
    stream.seek(196);
    stream.until = 2 * 196;
    assert_eq!([1, 2].map(|e| stream.slot_of(e)), [Some(1), None], "nothing behind `until`");
    assert!(!stream.advance(195) && stream.place() == 195);
    assert!(stream.advance(1) && stream.place() == 0);
    assert_eq!((stream.next, stream.extent), (2 * 196, 2));
    stream.sequence_base = 0xfff0;
    assert_eq!(stream.sequence(0x12), 3, "the first packet of a title has number 1");
    assert_eq!(stream.id(3), StreamId { index: 3, generation: 9 });
}

/// Whole extents may have holes, those that the run cuts may not, and and those that are always
/// incomplete always may.
#[test]
fn spare_of_cut_extents_is_zero_unless_always_incomplete() {
    for (spare, from, until, expected) in [
        (2, 0, PACKETS, [2, 2, 2, 2]),
        (2, 196, PACKETS, [0, 2, 2, 2]),
        (2, 197, PACKETS, [0, 0, 2, 2]),
        (2, 0, PACKETS - 1, [2, 2, 2, 0]),
        (2, 0, 3 * 196, [2, 2, 2, 0]),
        (1, 400, 500, [0, 0, 0, 0]),
        (0, 0, PACKETS, [0, 0, 0, 0]),
        (255, 400, 500, [255; 4]),
    ] {
        let spares = [0, 1, 2, 3].map(|extent| spare_of(&media(spare), from, until, extent));
        assert_eq!(spares, expected, "{from}..{until}");
    }
}

/// Headers are written when the viewer's numbers differ from those in the extent, whichever field
/// differs.
#[test]
fn headers_are_patched_where_the_numbers_differ() {
    let (of, own) = (media(0), media(0).timeline);
    let raw = RunMedia { layout: of.layout.raw().unwrap(), ..of };
    let mut stream = opened();
    for (timeline, sequence_base, is_patched) in [
        (own, 0, false),
        (own, 1, true),
        (Timeline { ssrc: 7, ..own }, 0, true),
        (Timeline { timestamp_base: 3, ..own }, 0, true),
        (own, 0, false),
    ] {
        stream.number(timeline, sequence_base, &of);
        assert_eq!(stream.has(flag::PATCHED), is_patched, "{timeline:?} {sequence_base}");
        stream.number(timeline, sequence_base, &raw);
        assert!(!stream.has(flag::PATCHED), "there are no headers");
    }
}

#[test]
fn cold_begin_numbers_run_by_its_numbering() {
    let spec = |numbering| RunSpec {
        run: RunSerial(1),
        media: media(0),
        from: 10,
        until: 20,
        numbering,
        scale_permille: 1000,
        step: None,
    };
    let (own, stream, mut cold) = (media(0).timeline, opened(), Cold::new());
    assert_eq!(cold.begin(&spec(Numbering::Viewer), &stream), (own, 0), "there is nothing to go on from");
    assert_eq!(cold.begin(&spec(Numbering::Title), &stream), (own, 0));
    assert_eq!(cold.begin(&spec(Numbering::Sequence(11)), &stream), (own, 0), "the title's own");
    assert_eq!(cold.begin(&spec(Numbering::Sequence(5)), &stream), (own, 5u16.wrapping_sub(11)));
    assert_eq!(cold.first_timestamp, None);
    cold.numbers = Some(Numbers { ssrc: 9, sequence: 100, timestamp: 77 });
    assert_eq!(cold.begin(&spec(Numbering::Title), &stream), (own, 0));
    let (timeline, base) = cold.begin(&spec(Numbering::Viewer), &stream);
    assert_eq!((timeline.ssrc, base, cold.first_timestamp), (9, 89, Some(77)));
}

/// Also where its numbers are by chance those that lie in the extent.
#[test]
fn numbering_own_always_sets_patched_flag() {
    let (own, mut stream, mut cold) = (media(0).timeline, opened(), Cold::new());
    for (sequence, base) in [(11, 0), (5, 5u16.wrapping_sub(11))] {
        let spec = RunSpec {
            run: RunSerial(1),
            media: media(0),
            from: 10,
            until: 20,
            numbering: Numbering::Own(sequence),
            scale_permille: 1000,
            step: None,
        };
        assert_eq!(cold.begin(&spec, &stream), (own, base));
        stream.number(own, base, &cold.media);
        assert!(stream.has(flag::PATCHED), "{sequence}");
        assert_eq!((stream.timeline, stream.sequence(10), cold.first_timestamp), (own, sequence, None));
    }
}

#[test]
fn untold_ends_are_told_in_their_order_and_bounded() {
    let mut ends = Ends::new();
    let none = ends.list[0];
    assert!(ends.has_room(0) && ends.has_room(2) && !ends.has_room(3));
    for run in 1..=3 {
        assert!(ends.has_room(0));
        ends.push(RunEnd { run: RunSerial(run), ..none });
    }
    assert!(!ends.has_room(0));
    for run in 1..=3 {
        assert_eq!(ends.pop().map(|end| end.run), Some(RunSerial(run)));
    }
    assert!(ends.is_empty() && ends.pop().is_none());
}
