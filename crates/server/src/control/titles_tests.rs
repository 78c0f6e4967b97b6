//! Lines of titles: the events counted in each, the titles that get one and those that give theirs
//! up.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use millrace_core::limits::MAX_TITLE_NAME_BYTES;
use millrace_core::scale::Scale;
use millrace_core::time::MediaTicks;

use super::*;
use crate::service::{EndReason, Speed, StreamKey};

fn peer() -> SocketAddr {
    "192.0.2.7:40000".parse().unwrap()
}

fn comes(titles: &mut TitleTotals, title: &str) {
    let (session, transport) = (String::new(), String::new());
    titles.count(&ServiceEvent::Started {
        session,
        title: title.to_owned(),
        peer: peer(),
        transport,
        agent: None,
        conn: None,
        engine: 0,
    });
}

fn goes(titles: &mut TitleTotals, title: &str) {
    let (session, title, reason) = (String::new(), title.to_owned(), EndReason::TornDown);
    titles.count(&ServiceEvent::Closed {
        session,
        title,
        peer: peer(),
        reason,
        lasted_ns: 1,
        totals: None,
        reported_loss: None,
        backlog_bytes: None,
    });
}

fn sent(titles: &mut TitleTotals, title: &str, packets: u64) {
    titles.count(&ServiceEvent::Sent {
        title: title.to_owned(),
        packets,
        bytes: packets * 1328,
        missing: packets / 10,
    });
}

fn plays(titles: &mut TitleTotals, title: &str, seek: bool) {
    titles.count(&ServiceEvent::Playing(Playing {
        stream: StreamKey(1),
        session: String::new(),
        title: title.to_owned(),
        scale: Scale::NORMAL,
        speed: Speed::NORMAL,
        rendition: None,
        from: None,
        until: MediaTicks(1),
        sequence: 1,
        timestamp: None,
        seek,
        has_lost_place: false,
        without_fec: None,
        transform: None,
    }));
}

fn shown(titles: &mut TitleTotals, sheets: &TitleSheets) -> HashMap<String, TitleCounters> {
    titles.publish(sheets);
    sheets.read().into_iter().collect()
}

#[test]
fn titles_count_events_separately_per_title() {
    let (mut titles, sheets) = (TitleTotals::default(), TitleSheets::default());
    assert_eq!(sheets.read(), []);
    for title in ["film", "film", "other"] {
        comes(&mut titles, title);
        plays(&mut titles, title, false);
    }
    plays(&mut titles, "other", true);
    sent(&mut titles, "film", 100);
    sent(&mut titles, "film", 50);
    sent(&mut titles, "other", 7);
    let film =
        TitleCounters { viewers: 2, sessions: 2, packets: 150, bytes: 150 * 1328, missing: 15, seeks: 0 };
    let other = TitleCounters { viewers: 1, sessions: 1, packets: 7, bytes: 7 * 1328, missing: 0, seeks: 1 };
    let expected = HashMap::from([("film".to_owned(), film), ("other".to_owned(), other)]);
    assert_eq!(shown(&mut titles, &sheets), expected);
    goes(&mut titles, "film");
    let found = shown(&mut titles, &sheets);
    assert_eq!((found["film"].viewers, found["film"].sessions, found["other"]), (1, 2, other));
}

/// As many titles as there are lines, each with a viewer and packets by its number.
fn full() -> TitleTotals {
    let mut titles = TitleTotals::default();
    for number in 0..MAX_TITLE_SHEETS {
        let title = format!("title-{number}");
        comes(&mut titles, &title);
        sent(&mut titles, &title, number as u64 + 1);
    }
    titles
}

#[test]
fn titles_when_full_evict_title_idle_longest() {
    let (mut titles, sheets) = (full(), TitleSheets::default());
    for title in ["title-9", "title-4", "title-6"] {
        goes(&mut titles, title);
    }
    // It was left before the others, but a viewer came back.
    comes(&mut titles, "title-9");
    comes(&mut titles, "new");
    let found = shown(&mut titles, &sheets);
    assert_eq!(found.len(), MAX_TITLE_SHEETS + 1);
    assert!(!found.contains_key("title-4") && found.contains_key("title-6") && found.contains_key("title-9"));
    assert_eq!(found["new"], TitleCounters { viewers: 1, sessions: 1, ..TitleCounters::ZERO });
    let gone = TitleCounters { sessions: 1, packets: 5, bytes: 5 * 1328, ..TitleCounters::ZERO };
    assert_eq!(found[OTHERS], gone);
    // Later events of a title without a line count among the others.
    sent(&mut titles, "title-4", 20);
    let others = shown(&mut titles, &sheets)[OTHERS];
    assert_eq!((others.packets, others.missing, others.viewers), (25, 2, 0));
}

#[test]
fn titles_when_full_keep_lines_of_watched_titles() {
    let (mut titles, sheets) = (full(), TitleSheets::default());
    for _ in 0..2 {
        comes(&mut titles, "late");
    }
    let found = shown(&mut titles, &sheets);
    assert!(!found.contains_key("late"));
    assert_eq!((found[OTHERS].viewers, found[OTHERS].sessions), (2, 2));
    // When a line is free the next viewer brings it; all who have the title now stand there.
    goes(&mut titles, "title-0");
    comes(&mut titles, "late");
    let found = shown(&mut titles, &sheets);
    assert_eq!((found["late"].viewers, found["late"].sessions), (3, 1));
    assert_eq!((found[OTHERS].viewers, found[OTHERS].sessions), (0, 3));
    for _ in 0..3 {
        goes(&mut titles, "late");
    }
    let found = shown(&mut titles, &sheets);
    assert_eq!((found["late"].viewers, found[OTHERS].viewers), (0, 0));
    assert_eq!(titles.viewers.len(), MAX_TITLE_SHEETS - 1, "nothing is kept of titles that nobody has");
}

#[test]
fn title_sheets_read_concurrently_pairs_name_with_its_counters() {
    let (sheets, is_over) = (TitleSheets::default(), AtomicBool::new(false));
    let longest = "x".repeat(MAX_TITLE_NAME_BYTES);
    let mut titles = TitleTotals::default();
    comes(&mut titles, &longest);
    assert_eq!(shown(&mut titles, &sheets)[&longest].sessions, 1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // More titles than there are lines: they go from one to the next.
            for packets in 1..4 * MAX_TITLE_SHEETS as u64 {
                let title = packets.to_string();
                comes(&mut titles, &title);
                sent(&mut titles, &title, packets);
                titles.publish(&sheets);
                goes(&mut titles, &title);
            }
            is_over.store(true, Ordering::Release);
        });
        while !is_over.load(Ordering::Acquire) {
            for (name, counters) in sheets.read() {
                if name != OTHERS && name != longest {
                    assert_eq!(
                        (name, counters.bytes),
                        (counters.packets.to_string(), counters.packets * 1328)
                    );
                }
            }
        }
    });
}
