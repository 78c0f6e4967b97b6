//! Recordings, and what their viewers learn of the end.

use std::io::{self, Cursor, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millrace_core::seam::Clock;
use millrace_core::time::{Instant, NS_PER_S};
use millrace_make::ingest::{IngestError, IngestOptions, record};
use millrace_store::volume::{GrowingMedia, RecordingNote, TitleInfo, Volume};
use millrace_testkit::mux::usual_film;

/// How a source ends.
enum End {
    Regular,
    Error,
    Panic,
}

struct Source {
    film: Cursor<Vec<u8>>,
    end: End,
}

impl Read for Source {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match (self.film.read(out)?, &self.end) {
            (0, End::Panic) => panic!("a fault of the recording's thread"),
            (0, End::Error) => Err(io::Error::other("the source is broken")),
            (read, _) => Ok(read),
        }
    }
}

/// A second later whenever it is looked at.
#[derive(Default)]
struct Seconds(AtomicU64);

impl Clock for Seconds {
    fn now(&self) -> Instant {
        Instant(self.0.fetch_add(1, Ordering::Relaxed) * NS_PER_S)
    }
}

/// Records a film from a source that ends so; returns the result, `None` for a panic, and the media as its viewers have it.
fn recorded(end: End) -> (Option<Result<TitleInfo, IngestError>>, Arc<GrowingMedia>) {
    let dir = tempfile::tempdir().unwrap();
    let volume = Volume::open_or_create(&dir.path().join("store")).unwrap();
    let note = RecordingNote {
        name: "news".into(),
        title: "News".into(),
        source: "live:news".into(),
        began_unix_s: 5,
    };
    let mut source = Source { film: Cursor::new(usual_film().to_vec()), end };
    let mut seen = None;
    let mut grew = |media: &Arc<GrowingMedia>, _, _| {
        assert!(!media.is_over());
        seen = Some(Arc::clone(media));
    };
    let work =
        || record(&volume, &note, &IngestOptions::default(), &Seconds::default(), &mut source, &mut grew);
    let result = catch_unwind(AssertUnwindSafe(work)).ok();
    (result, seen.expect("the film is longer than what is shown first"))
}

#[test]
fn recording_that_ends_regularly_gives_its_viewers_the_whole_title() {
    let (result, media) = recorded(End::Regular);
    let title = result.unwrap().unwrap();
    assert!(media.is_over());
    assert_eq!(media.packets(), title.packets);
}

#[test]
fn recording_that_fails_or_panics_does_not_leave_its_viewers_waiting() {
    let (result, media) = recorded(End::Error);
    assert!(result.unwrap().is_err());
    assert!(media.is_over());
    let (result, media) = recorded(End::Panic);
    assert!(result.is_none());
    assert!(media.is_over());
}
