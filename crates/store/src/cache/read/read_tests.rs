use std::fs::File;

use proptest::prelude::*;

use super::super::sample::Sample;
use super::*;

/// A title in real files, open.
pub(super) struct SampleTitle {
    sample: Sample,
    pub(super) open: Arc<OpenTitle>,
}

impl SampleTitle {
    pub(super) fn new(extents: usize) -> Self {
        let sample = Sample::of_extents(extents);
        let open = Arc::new(OpenTitle::new(Box::new(sample.open())));
        Self { sample, open }
    }

    pub(super) fn data(&self, extent: u32) -> &[u8] {
        self.sample.extent_data(extent)
    }
}

pub(super) fn request(title: &SampleTitle, extent: u32) -> Request {
    Request::new(Arc::clone(&title.open), title.open.geometry(extent).unwrap())
}

/// Every way of reading that this machine has.
fn readers(places: usize) -> Vec<(Box<dyn Reader>, Arc<EventBell>)> {
    let wake = || Arc::new(EventBell::new().unwrap());
    let with = |backend, wake: Arc<EventBell>| start(backend, places, &wake).map(|reader| (reader, wake));
    let threads = with(ReadBackend::Threads, wake()).unwrap();
    let uring = with(ReadBackend::Uring, wake());
    if let Err(error) = &uring {
        eprintln!("not tested here: {error}");
    }
    [Some(threads), uring.ok()].into_iter().flatten().collect()
}

fn wait_done(reader: &mut dyn Reader, wake: &EventBell) -> Done {
    loop {
        if let Some(done) = reader.next_done() {
            return done;
        }
        wake.announce_sleep();
        if !reader.has_done() {
            reader.wait(None);
        }
        wake.awake();
    }
}

#[test]
fn what_is_read_is_what_is_in_the_files() {
    let title = SampleTitle::new(20);
    let meta = std::fs::read(title.sample.meta_path()).unwrap();
    for (mut reader, wake) in readers(4) {
        let mut next = 0;
        let mut at_place = [0; 4];
        while next < 4 {
            at_place[next] = next as u32;
            reader.begin(next, request(&title, next as u32));
            next += 1;
        }
        for _ in 0..20 {
            let done = wait_done(&mut *reader, &wake);
            assert_eq!(done.result, Ok(()));
            let extent = at_place[done.place];
            let Staged { data, meta: records, .. } = reader.staged(done.place);
            assert!(data == title.data(extent), "{}: extent {extent}", reader.name());
            let range = title.open.geometry(extent).unwrap().meta;
            assert!(records == &meta[range.start as usize..range.end as usize]);
            assert!(
                done.bytes[0] >= data.len() as u64 && done.bytes[0] <= data.len() as u64 + 2 * ALIGN as u64
            );
            if next < 20 {
                at_place[done.place] = next as u32;
                reader.begin(done.place, request(&title, next as u32));
                next += 1;
            }
        }
        assert!(reader.next_done().is_none());
    }
}

#[test]
fn a_file_that_ends_too_early_is_an_error_and_the_reader_goes_on() {
    for (mut reader, wake) in readers(1) {
        let title = SampleTitle::new(3);
        let cut = title.open.geometry(1).unwrap().data.start + 100_000;
        File::options().write(true).open(title.sample.data_path()).unwrap().set_len(cut).unwrap();
        for (extent, result) in
            [(1, Err((Piece::Data, libc::ENODATA))), (2, Err((Piece::Data, libc::ENODATA))), (0, Ok(()))]
        {
            reader.begin(0, request(&title, extent));
            let done = wait_done(&mut *reader, &wake);
            assert_eq!(done.result, result, "{}: extent {extent}", reader.name());
        }
        assert!(reader.staged(0).data == title.data(0));
        File::options().write(true).open(title.sample.meta_path()).unwrap().set_len(4096).unwrap();
        reader.begin(0, request(&title, 0));
        assert_eq!(wait_done(&mut *reader, &wake).result, Err((Piece::Meta, libc::ENODATA)));
    }
}

#[test]
fn a_ring_wakes_a_waiting_reader() {
    for (mut reader, wake) in readers(1) {
        for _ in 0..100 {
            let ringer = Arc::clone(&wake);
            wake.announce_sleep();
            let thread = std::thread::spawn(move || ringer.ring());
            reader.wait(None); // would hang for ever if the ring were lost
            wake.awake();
            thread.join().unwrap();
        }
        reader.wait(Some(Duration::from_millis(1)));
    }
}

#[test]
fn dropping_a_reader_under_load_ends_its_reads_first() {
    let title = SampleTitle::new(8);
    for _ in 0..10 {
        for (mut reader, _) in readers(8) {
            (0..8).for_each(|place| reader.begin(place, request(&title, place as u32)));
            drop(reader);
            assert_eq!(Arc::strong_count(&title.open), 1, "no read holds the title any more");
        }
    }
}

proptest! {
    /// Whatever lengths a file is read in, the bytes asked for are in order, complete, aligned, and asked for in
    /// finitely many calls.
    #[test]
    fn short_reads_are_continued(start in 0u64..20_000, len in 1u64..300_000,
                                 steps in proptest::collection::vec(1usize..100_000, 1..40)) {
        let bytes = start..start + len;
        let mut span = Span::covering(&bytes);
        prop_assert!(span.offset <= start && span.offset + (span.need as u64) == bytes.end);
        let mut known = 0;
        for step in steps.iter().cycle() {
            let (range, offset) = span.rest();
            prop_assert!(range.start <= known && offset.is_multiple_of(ALIGN as u64) && range.end.is_multiple_of(ALIGN));
            prop_assert_eq!(offset, span.offset + range.start as u64);
            let come = (known - range.start + step).min(range.len());
            known = range.start + come;
            match span.arrived(come as i32) {
                Step::Done => break,
                Step::Again => prop_assert!(known < span.need),
                Step::Failed(errno) => prop_assert!(false, "errno {}", errno),
            }
        }
        prop_assert!(known >= span.need);
    }
}

#[test]
fn interruptions_are_not_errors_unless_they_never_end() {
    let mut span = Span::covering(&(0..100));
    for _ in 1..MAX_INTERRUPTIONS {
        assert_eq!(span.arrived(-libc::EINTR), Step::Again);
    }
    assert_eq!(span.arrived(-libc::EAGAIN), Step::Failed(libc::EAGAIN));
    assert_eq!(Span::covering(&(0..100)).arrived(-libc::EIO), Step::Failed(libc::EIO));
    assert_eq!(Span::covering(&(0..100)).arrived(0), Step::Failed(libc::ENODATA));
    assert_eq!(Span::covering(&(0..100)).arrived(100), Step::Done);
}
