use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant as RealInstant};

use millrace_core::pool::{ExtentArena, HeapRegion};
use millrace_make::ingest::{IngestOptions, ingest};
use millrace_offload::clock::MonotonicClock;
use millrace_store::cache::CacheConfig;
use millrace_testkit::mux;

use super::*;

/// A store with the title `film`, and the hand among its titles.
struct LibraryFixture {
    dir: tempfile::TempDir,
    volume: Arc<Volume>,
    open_titles: Arc<OpenTitles>,
    reader: TitleReader,
}

impl LibraryFixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let volume = Arc::new(Volume::open_or_create(&dir.path().join("store")).unwrap());
        let open_titles = Arc::new(OpenTitles::default());
        let arena = ExtentArena::new(Box::new(HeapRegion::new(4)));
        let (cache, _) =
            Cache::start(CacheConfig::default(), arena, Arc::new(MonotonicClock), Vec::new()).unwrap();
        let reader =
            TitleReader::new(Arc::clone(&open_titles), Arc::clone(&volume), Arc::new(cache)).unwrap();
        let site = Self { dir, volume, open_titles, reader };
        site.add();
        site
    }

    fn add(&self) {
        let film = self.dir.path().join("film.ts");
        fs::write(&film, mux::film(&mux::Film::default())).unwrap();
        ingest(&self.volume, &film, &IngestOptions::default(), &mut |_| {}).unwrap();
        self.open_titles.refresh(&self.volume).unwrap();
    }

    fn remove(&self) {
        self.volume.remove(self.open_titles.get("film").unwrap().id()).unwrap();
        self.open_titles.refresh(&self.volume).unwrap();
    }

    /// Returns an opener's result, which the reader has not received yet.
    fn opened(&mut self, need: &NeededPart) -> LibraryEvent {
        self.reader.begin(need);
        let begun = RealInstant::now();
        loop {
            if let Some(done) = self.reader.openers.poll() {
                return done;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "{need:?} is not answered");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Now it hears of it.
    fn hear(&mut self, done: LibraryEvent) -> Result<(), OpenError> {
        self.reader.openers.results().send(done);
        self.reader.poll_answer().expect("an answer").1
    }

    /// Files that are open and have no name any more.
    fn held(&self) -> Vec<PathBuf> {
        let open =
            fs::read_dir("/proc/self/fd").unwrap().filter_map(|fd| fs::read_link(fd.ok()?.path()).ok());
        open.filter(|path| path.starts_with(self.dir.path()) && path.to_string_lossy().ends_with("(deleted)"))
            .collect()
    }
}

/// Whether another one has got its name meanwhile or not.
#[test]
fn reader_of_title_removed_while_opening_keeps_nothing_open() {
    for is_replaced in [false, true] {
        let mut site = LibraryFixture::new();
        let times = site.opened(&NeededPart::title("film"));
        assert_eq!(site.hear(times), Ok(()));
        let need = NeededPart::media(&site.reader.find("film").unwrap());
        let opened = site.opened(&need);
        site.remove();
        if is_replaced {
            site.add();
        }
        assert_eq!(site.hear(opened), Err(removed()), "{is_replaced}");
        assert!(site.reader.open.is_empty() && site.reader.idle.is_empty(), "{is_replaced}");
        assert_eq!(site.held(), [""; 0].map(PathBuf::from), "{is_replaced}");
        // The title that has this name now is available.
        if is_replaced {
            let times = site.opened(&NeededPart::title("film"));
            let opened = site.opened(&need);
            assert_eq!((site.hear(times), site.hear(opened)), (Ok(()), Ok(())));
            assert_eq!(site.reader.open.len(), 1);
        }
    }
}

#[test]
fn members_that_went_unnoticed_are_a_reason_to_ask_again() {
    let gone = StoreError::MembersLost { what: "title".into(), lost: 2, may: 1, names: "/disk1".into() };
    let OpenError::MembersLost(said) = not_opened(gone) else { panic!("it is not broken") };
    assert_eq!(said, "2 of the title's members are lost; it tolerates the loss of 1");
    let silent = StoreError::TimedOut { path: "/disk1".into() };
    assert!(matches!(not_opened(silent), OpenError::TimedOut(said) if said.contains("/disk1")));
    let removed = StoreError::NoTitle { id: TitleId([7; 16]) };
    assert!(matches!(not_opened(removed), OpenError::Broken(said) if said.contains("not in this store")));
}
