use super::super::watch::{Cast, FetchState, MemberStatus, Room};
use super::*;

fn session(number: u64) -> Session {
    Session {
        session: format!("s{number}"),
        title: format!("title-{}", 999 - number),
        peer: format!("192.0.2.{number}:5000"),
        transport: "UDP".to_owned(),
        is_playing: true,
        position_s: Some(number as f64 * 60.0),
        age_s: number * 100,
        bits_per_s: 1_000_000 * (number % 7),
        lost: (!number.is_multiple_of(3)).then_some(number as f64 / 100.0),
    }
}

fn now(sessions: u64, engines: usize) -> Update {
    let engine = |number: usize| Engine {
        engine: number.to_string(),
        streams: 70,
        bits_per_s: Some(560_000_000),
        busy: Some(0.341),
        late_packets: Some(3),
        late_max_s: 0.0015,
    };
    let figures = ServerFigures {
        streams: 140,
        bits_per_s: Some(1_120_000_000),
        packets_per_s: Some(106_000),
        late_packets: Some(6),
        late_max_s: 0.0015,
        limit: Some(Room { what: "streams".to_owned(), used: 140, of: 200 }),
        engines: (0..engines).map(engine).collect(),
    };
    let cast = |listeners: u64| Cast {
        title: "live/news".to_owned(),
        to: format!("239.192.0.{listeners}:20000"),
        listeners,
        is_sending: listeners != 3,
        trouble: (listeners == 3).then(|| "Network is down".to_owned()),
    };
    let status = Status {
        casts: (2..2 + 2 * engines as u64).map(cast).collect(),
        sessions: (0..sessions).map(session).collect(),
        sessions_left_out: 0,
        members: vec![
            MemberStatus { trouble: None },
            MemberStatus { trouble: Some("member 1 is gone".to_owned()) },
        ],
        library: None,
    };
    Update::Now(Box::new((figures, status)))
}

fn view(sessions: u64, engines: usize) -> View {
    let mut view = View::new("http://127.0.0.1:8080/".to_owned(), Sort::Rate);
    view.apply(now(sessions, engines));
    view
}

/// The first words of the table's lines.
fn listed(lines: &[String]) -> Vec<&str> {
    let table = lines.iter().skip_while(|line| !line.starts_with("SESSION")).skip(1);
    table.map(|line| line.split(' ').next().unwrap()).take_while(|word| word.starts_with('s')).collect()
}

#[test]
fn view_lines_never_exceed_terminal_size() {
    for (width, height) in [(80, 24), (40, 10), (200, 60), (80, 5), (1, 1), (80, 2)] {
        for (sessions, engines) in [(0, 0), (3, 1), (200, 2), (200, 40)] {
            let mut view = view(sessions, engines);
            for number in 0..20 {
                view.apply(Update::Happened(format!("{} happened {number}", "x".repeat(300))));
            }
            let lines = view.lines(width, height);
            assert!(lines.len() <= height, "{width}x{height}: {} lines", lines.len());
            assert!(lines.iter().all(|line| line.chars().count() <= width), "{lines:#?}");
        }
    }
}

#[test]
fn view_lines_at_80_columns_match_expected_layout() {
    let mut view = view(3, 1);
    view.apply(Update::Happened("refused: full".to_owned()));
    let lines = view.lines(80, 24);
    assert_eq!(lines.len(), 24);
    for (at, text) in [
        (1, "140 streams  1.12Gb/s  106000 packets/s  6 late, at most 1.5 ms since the start"),
        (2, "limit [##############......]  70 %  140 of 200 streams"),
        (3, "engine 0  70 streams  560Mb/s  busy 34 %  3 late, at most 1.5 ms"),
        (4, "cast live/news to 239.192.0.2:20000  2 listeners  sending"),
        (5, "cast live/news to 239.192.0.3:20000  3 listeners  cannot send: Network is down"),
        (6, "! member 1 is gone"),
        (7, "SESSION  TITLE             VIEWER                BY         AT       RATE   LOST"),
        (8, "s2       title-997         192.0.2.2:5000        UDP   0:02:00      2Mb/s  2.0 %"),
        (22, "refused: full"),
    ] {
        assert_eq!(lines[at], text, "line {at}");
    }
    assert!(lines[23].starts_with("q ends"));
    // Nothing is lost of what does not fit, where there is no terminal.
    assert_eq!(view.all().len(), 8 + 3);
}

#[test]
fn library_is_shown_with_its_fetches_and_troubles() {
    let fetch = |title: &str, percent, trouble: Option<&str>| FetchState {
        title: title.to_owned(),
        percent,
        trouble: trouble.map(str::to_owned),
    };
    let shown = library(&LibraryState {
        url: "s3://films".to_owned(),
        trouble: Some("it cannot be reached".to_owned()),
        titles: 12,
        cached_titles: 3,
        cached_bytes: 2 << 30,
        space_bytes: 8 << 30,
        fetches: vec![fetch("film", 40, None), fetch("other", 0, Some("it is wrong"))],
    });
    assert_eq!(
        shown,
        [
            "library s3://films  3 of 12 titles here  2GiB of 8GiB",
            "! it cannot be reached",
            "fetching film  40 %",
            "! other: it is wrong"
        ]
    );
}

#[test]
fn keys_sort_and_scroll() {
    let mut view = view(50, 0);
    let mut shown = |keys: &[KeyPress]| {
        keys.iter().for_each(|&key| assert!(!view.press(key)));
        let lines = view.lines(80, 24);
        listed(&lines).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let by_rate = shown(&[]);
    assert_eq!(&by_rate[..2], ["s13", "s20"]);
    assert_eq!(shown(&[KeyPress::Char('r')])[0], "s0", "the same key turns it round");
    assert_eq!(shown(&[KeyPress::Char('l')])[..2], ["s49", "s47"]);
    assert_eq!(shown(&[KeyPress::Char('a')])[0], "s49");
    assert_eq!(shown(&[KeyPress::Char('t')])[0], "s49");
    assert_eq!(shown(&[KeyPress::Down, KeyPress::Down])[0], "s47");
    let page = shown(&[KeyPress::Up, KeyPress::Up]).len();
    assert_eq!(shown(&[KeyPress::PageDown])[0], format!("s{}", 49 - page));
    // No further than the last one.
    let last = shown(&[
        KeyPress::PageDown,
        KeyPress::PageDown,
        KeyPress::PageDown,
        KeyPress::PageDown,
        KeyPress::PageDown,
    ]);
    assert_eq!((last.len(), &last[page - 1][..]), (page, "s0"));
    assert_eq!(shown(&[KeyPress::Up])[0], format!("s{page}"));
    assert!(view.press(KeyPress::Char('q')));
}

#[test]
fn view_after_lost_server_keeps_last_sessions_and_reports_retry() {
    let mut view = view(3, 1);
    view.apply(Update::Lost("connection refused\u{1b}[2J".to_owned()));
    let lines = view.lines(80, 24);
    assert_eq!(lines[23], "no response, retrying: connection refused\\u{1b}[2J");
    assert_eq!(listed(&lines).len(), 3);
    view.apply(now(1, 1));
    assert!(view.lines(80, 24)[23].starts_with("q ends"));
}
