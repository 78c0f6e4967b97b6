use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use millrace_core::ids::TitleRef;

use super::super::sample_tests;
use super::*;

const CONN: ConnKey = ConnKey(1);

/// Calls that the library has received, and its answers to come.
#[derive(Default)]
struct FakeLibrary {
    /// Parts that are open already.
    there: Vec<NeededPart>,
    begun: Vec<NeededPart>,
    answers: VecDeque<(NeededPart, Result<(), OpenError>)>,
    /// The title of every name, and whether viewers have it in the cache with and without headers.
    entry: Option<TitleEntry>,
    cached: (bool, bool),
    /// How many titles can still be opened.
    room: u32,
    closed: Vec<TitleRef>,
}

struct SharedLibrary(Arc<Mutex<FakeLibrary>>);

impl Library for SharedLibrary {
    fn has(&mut self, need: &NeededPart) -> bool {
        self.0.lock().unwrap().there.contains(need)
    }
    fn begin(&mut self, need: &NeededPart) {
        self.0.lock().unwrap().begun.push(need.clone());
    }
    fn poll_answer(&mut self) -> Option<(NeededPart, Result<(), OpenError>)> {
        self.0.lock().unwrap().answers.pop_front()
    }
    fn find(&mut self, _: &str) -> Option<TitleEntry> {
        self.0.lock().unwrap().entry.clone()
    }
    fn is_cached(&self, entry: &TitleEntry) -> bool {
        let (with_headers, without) = self.0.lock().unwrap().cached;
        if entry.layout.is_raw() { without } else { with_headers }
    }
    fn open(&mut self, _: &TitleEntry) -> Result<TitleRef, OpenError> {
        let mut library = self.0.lock().unwrap();
        library.room = library.room.checked_sub(1).ok_or(OpenError::Full)?;
        Ok(TitleRef(library.room))
    }
    fn close(&mut self, title: TitleRef) {
        self.0.lock().unwrap().closed.push(title);
    }
}

fn catalogue() -> (TitleCatalogue, Arc<Mutex<FakeLibrary>>) {
    let library = Arc::new(Mutex::new(FakeLibrary::default()));
    (TitleCatalogue::new(Box::new(SharedLibrary(Arc::clone(&library)))), library)
}

#[test]
fn failed_opening_is_not_tried_again_for_its_request() {
    let (mut titles, library) = catalogue();
    let need = NeededPart::title("film");
    let missing = titles.missing(Some(CONN), [need.clone()]);
    assert_eq!(titles.begin_opening(Instant(1), Some(CONN), missing), Refusal::Opening);
    assert!(titles.openings.is_waiting(CONN));
    library.lock().unwrap().answers.push_back((need.clone(), Err(OpenError::Full)));
    let mut complete = Vec::new();
    let answer = titles.take_answer(&mut complete).unwrap();
    assert!(answer.unreported.is_none(), "the request is refused for it");
    assert_eq!(complete, [CONN]);
    assert!(titles.missing(Some(CONN), [need.clone()]).is_empty());
    titles.openings.forget(CONN);
    assert_eq!(titles.missing(Some(CONN), [need.clone()]), [need]);
}

#[test]
fn title_for_bytes_has_headers_only_beside_viewers_of_these() {
    let (mut titles, library) = catalogue();
    assert!(titles.find_for_bytes("film").is_none());
    library.lock().unwrap().entry = Some(sample_tests::entry());
    for (cached, is_raw) in
        [((false, false), true), ((true, false), false), ((false, true), true), ((true, true), true)]
    {
        library.lock().unwrap().cached = cached;
        let entry = titles.find_for_bytes("film").unwrap();
        assert_eq!(entry.layout.is_raw(), is_raw, "with headers, without: {cached:?}");
    }
    library.lock().unwrap().entry = Some(TitleEntry { packets: u32::MAX, ..sample_tests::entry() });
    assert!(!titles.find_for_bytes("film").unwrap().layout.is_raw(), "a live title has one form");
}

#[test]
fn open_parts_are_not_missing() {
    let (mut titles, library) = catalogue();
    let [open, closed] = ["film", "other"].map(NeededPart::title);
    library.lock().unwrap().there.push(open.clone());
    assert_eq!(titles.missing(Some(CONN), [open, closed.clone()]), [closed]);
}

#[test]
fn failure_that_no_request_waits_for_is_unreported() {
    let (mut titles, library) = catalogue();
    let need = NeededPart::title("film");
    let missing = titles.missing(None, [need.clone()]);
    assert_eq!(titles.begin_opening(Instant(1), None, missing), Refusal::Opening);
    library.lock().unwrap().answers.push_back((need, Err(OpenError::Full)));
    let answer = titles.take_answer(&mut Vec::new()).unwrap();
    assert_eq!(answer.unreported, Some(("film".to_owned(), OpenError::Full)));
    assert!(titles.take_answer(&mut Vec::new()).is_none());
}

#[test]
fn requests_with_same_need_share_one_opening() {
    let (mut titles, library) = catalogue();
    for conn in [CONN, ConnKey(2)] {
        let missing = titles.missing(Some(conn), [NeededPart::title("film")]);
        titles.begin_opening(Instant(1), Some(conn), missing);
    }
    assert_eq!(library.lock().unwrap().begun.len(), 1);
}

#[test]
fn made_titles_are_opened_all_or_none() {
    let (mut titles, library) = catalogue();
    library.lock().unwrap().room = 2;
    let entries = |count| (0..count).map(|_| sample_tests::entry());
    assert!(titles.open_made(entries(3)).is_none());
    assert_eq!(library.lock().unwrap().closed, [TitleRef(1), TitleRef(0)]);
    library.lock().unwrap().room = 2;
    assert_eq!(titles.open_made(entries(2)).map(|made| made.len()), Some(2));
}
