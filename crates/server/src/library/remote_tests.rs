use std::sync::atomic::AtomicBool;

use millrace_objects::{AccessOptions, ObjectLibrary};
use millrace_store::volume::Volume;
use millrace_testkit::titles::Film;

use super::*;
use crate::limits::control::RETRY_AT_FIRST;

/// Titles of a library in a directory: their names, one of them twice.
fn index_of(names: &[&str]) -> LibraryIndex {
    let dir = tempfile::tempdir().unwrap();
    let shared = dir.path().join("shared");
    std::fs::create_dir(&shared).unwrap();
    let url = format!("file://{}", shared.display()).parse().unwrap();
    let library =
        ObjectLibrary::open(&url, &AccessOptions::default(), &Arc::new(AtomicBool::new(false))).unwrap();
    for (number, name) in (1u64..).zip(names) {
        // A store each, so that names can be the same.
        let volume = Volume::open_or_create(&dir.path().join(number.to_string())).unwrap();
        let info = Film::new(2_000, number).add(&volume, name);
        library.publish(&volume, info.id, false, &mut |_| {}).unwrap();
    }
    library.relist(&LibraryIndex::default()).unwrap().0
}

fn remote_of(names: &[&str]) -> (RemoteTitles, Vec<(TitleId, String)>) {
    let remote = RemoteTitles::new(Arc::default());
    let left_out = remote.set_titles(&index_of(names));
    (remote, left_out)
}

fn state_of(remote: &RemoteTitles, title: &RemoteTitle) -> (&'static str, u8) {
    let copy = remote.copy_of(title.info()).unwrap();
    (copy.state, copy.percent)
}

#[test]
fn names_of_a_library_are_given_once() {
    let (remote, left_out) = remote_of(&["film", "other", "film"]);
    assert_eq!((left_out.len(), left_out[0].1.as_str()), (1, "film"));
    let names: Vec<_> = remote.titles_beside(&[]).into_iter().map(|info| info.name).collect();
    assert_eq!(names, ["film", "other"]);
    let film = remote.find("film").unwrap();
    let local = TitleInfo { id: TitleId([9; 16]), ..film.info().clone() };
    assert_eq!(remote.titles_beside(&[local]).len(), 1, "a local title has the name");
    assert!(remote.find("nothing").is_none());
}

#[test]
fn title_asked_for_by_many_is_fetched_once() {
    let (remote, _) = remote_of(&["film"]);
    let (film, now) = (remote.find("film").unwrap(), Instant(7));
    assert_eq!(state_of(&remote, &film), ("remote", 0));
    for _ in 0..3 {
        assert!(remote.request(&film, now).contains("will be fetched"));
    }
    assert_eq!(state_of(&remote, &film), ("waiting", 0));
    let next = remote.next_fetch(Duration::ZERO).unwrap();
    assert_eq!(next.info().id, film.info().id);
    assert!(remote.next_fetch(Duration::ZERO).is_none());
    let version = remote.version();
    let progress = |bytes_done| TransferProgress { bytes_done, bytes_total: 1000, ..<_>::default() };
    remote.progress(film.info().id, progress(404));
    remote.progress(film.info().id, progress(405));
    assert_eq!((state_of(&remote, &film), remote.version()), (("fetching", 40), version + 1));
    assert!(remote.request(&film, now).contains("40 %"));
    remote.fetched(film.info().id);
    assert_eq!((state_of(&remote, &film), remote.cold_hits()), (("remote", 0), 4));
}

#[test]
fn failed_fetch_is_repeated_later_and_later() {
    let (remote, _) = remote_of(&["film"]);
    let film = remote.find("film").unwrap();
    let (id, mut now) = (film.info().id, Instant(7));
    let fetch = |now| {
        remote.request(&film, now);
        remote.next_fetch(Duration::ZERO).is_some()
    };
    assert!(fetch(now));
    remote.failed(id, now, "it is wrong".to_owned(), false);
    assert!(!fetch(now) && state_of(&remote, &film).0 == "failed");
    assert_eq!(remote.fetches()[0].trouble.as_deref(), Some("it is wrong"));
    now = now + RETRY_AT_FIRST;
    remote.repeat_failed(now);
    assert!(remote.next_fetch(Duration::ZERO).is_none(), "without a viewer it is not tried again");
    assert!(fetch(now));
    remote.failed(id, now, "the library is away".to_owned(), true);
    now = now + RETRY_AT_FIRST;
    remote.repeat_failed(now);
    assert!(remote.next_fetch(Duration::ZERO).is_none(), "the second wait is longer");
    remote.expire_retries(now);
    remote.repeat_failed(now);
    assert!(remote.next_fetch(Duration::ZERO).is_some());
}

#[test]
fn queue_of_fetches_has_a_limit() {
    let names: Vec<String> = (0..=MAX_FETCHES_WAITING).map(|number| format!("film-{number:03}")).collect();
    let (remote, _) = remote_of(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let answers: Vec<_> =
        remote.all().iter().map(|title| remote.request(title, Instant(7)).contains("too many")).collect();
    assert_eq!(answers.iter().filter(|is_refused| **is_refused).count(), 1);
    assert_eq!(answers.last(), Some(&true));
    remote.set_titles(&LibraryIndex::default());
    assert!(remote.next_fetch(Duration::ZERO).is_none(), "what the library has no longer is not fetched");
}
