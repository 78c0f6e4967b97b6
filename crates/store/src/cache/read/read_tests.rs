use std::fs::File;

use millrace_core::limits::SLOW_READ_NS;

use super::super::order::{MemberView, Role, SpanFile, SpanOrder};
use super::super::sample::SampleFiles;
use super::super::source::OpenTitle;
use super::part::Arrived;
use super::*;
use crate::disk::ReadFault;

const NOW: Instant = Instant(1);

/// A title in real files, open.
pub(super) struct SampleTitle {
    sample: SampleFiles,
    pub(super) open: Arc<OpenTitle>,
}

impl SampleTitle {
    /// How many hold its open files: itself, and spans of orders.
    pub(super) fn holders(&self) -> usize {
        let order = order(self, 0);
        order.spans[0].file.holders() - order.spans.len()
    }

    pub(super) fn new(extents: usize) -> Self {
        let sample = SampleFiles::of_extents(extents);
        let open = Arc::new(OpenTitle::new(Box::new(sample.open())));
        Self { sample, open }
    }

    pub(super) fn data(&self, extent: u32) -> &[u8] {
        self.sample.extent_data(extent)
    }
}

pub(super) fn order(title: &SampleTitle, extent: u32) -> Order {
    title.open.order(extent, 0, MemberView::default(), false).unwrap()
}

/// Every way of reading that this machine has.
fn readers_with(places: usize, faults: &ReadFaults) -> Vec<(Box<dyn ExtentReader>, Arc<EventBell>)> {
    let wake = || Arc::new(EventBell::new().unwrap());
    let with = |backend, wake: Arc<EventBell>| {
        start(backend, (places, places), &wake, faults).map(|reader| (reader, wake))
    };
    let threads = with(ReadBackend::Threads, wake()).unwrap();
    let uring = with(ReadBackend::Uring, wake());
    if let Err(error) = &uring {
        eprintln!("not tested here: {error}");
    }
    [Some(threads), uring.ok()].into_iter().flatten().collect()
}

fn readers(places: usize) -> Vec<(Box<dyn ExtentReader>, Arc<EventBell>)> {
    readers_with(places, &ReadFaults::default())
}

/// Waits until `what` gives something.
fn wait_for<T>(
    reader: &mut dyn ExtentReader,
    wake: &EventBell,
    what: impl Fn(&mut dyn ExtentReader) -> Option<T>,
) -> T {
    let begun = std::time::Instant::now();
    loop {
        if let Some(found) = what(reader) {
            return found;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{}: nothing comes", reader.name());
        wake.announce_sleep();
        if !reader.has_done() {
            reader.wait(NOW, Some(Duration::from_millis(5)));
        }
        wake.awake();
    }
}

fn wait_done(reader: &mut dyn ExtentReader, wake: &EventBell) -> usize {
    wait_for(reader, wake, |reader| reader.next_done())
}

/// The first error among the results, with its role.
fn failure(order: &Order, results: &[SpanResult<'_>]) -> Option<(Role, i32)> {
    order.spans.iter().zip(results).find_map(|(span, result)| Some((span.role, result.err()?)))
}

#[test]
fn forget_releases_files_of_the_read() {
    let title = SampleTitle::new(2);
    let held = title.holders();
    for (mut reader, wake) in readers(1) {
        reader.begin(NOW, 0, &order(&title, 0));
        wait_done(&mut *reader, &wake);
        assert!(title.holders() > held, "{}", reader.name());
        reader.forget(0);
        assert_eq!(title.holders(), held, "{}", reader.name());
    }
}

#[test]
fn reader_results_match_file_contents() {
    let title = SampleTitle::new(20);
    let meta = std::fs::read(title.sample.meta_path()).unwrap();
    for (mut reader, wake) in readers(4) {
        let mut next = 0;
        let mut at_place = [0; 4];
        while next < 4 {
            at_place[next] = next as u32;
            reader.begin(NOW, next, &order(&title, next as u32));
            next += 1;
        }
        for _ in 0..20 {
            let place = wait_done(&mut *reader, &wake);
            let extent = at_place[place];
            let range = order(&title, extent).spans[1].bytes.clone();
            let results = reader.results(place);
            assert_eq!(results.len(), 2);
            assert!(results[0] == Ok(title.data(extent)), "{}: extent {extent}", reader.name());
            assert!(results[1] == Ok(&meta[range.start as usize..range.end as usize]));
            if next < 20 {
                at_place[place] = next as u32;
                reader.begin(NOW, place, &order(&title, next as u32));
                next += 1;
            }
        }
        assert!(reader.next_done().is_none());
    }
}

#[test]
fn read_of_truncated_file_returns_enodata_and_reader_continues() {
    for (mut reader, wake) in readers(1) {
        let title = SampleTitle::new(3);
        let cut = order(&title, 1).spans[0].bytes.start + 100_000;
        File::options().write(true).open(title.sample.data_path()).unwrap().set_len(cut).unwrap();
        let too_early = Some((Role::Data { position: 0 }, libc::ENODATA));
        for (extent, result) in [(1, too_early), (2, too_early), (0, None)] {
            let order = order(&title, extent);
            reader.begin(NOW, 0, &order);
            wait_done(&mut *reader, &wake);
            assert_eq!(failure(&order, &reader.results(0)), result, "{}: extent {extent}", reader.name());
        }
        assert!(reader.results(0)[0] == Ok(title.data(0)));
        File::options().write(true).open(title.sample.meta_path()).unwrap().set_len(4096).unwrap();
        let order = order(&title, 0);
        reader.begin(NOW, 0, &order);
        wait_done(&mut *reader, &wake);
        assert_eq!(failure(&order, &reader.results(0)), Some((Role::Meta, libc::ENODATA)));
    }
}

#[test]
fn ring_wakes_waiting_reader() {
    for (mut reader, wake) in readers(1) {
        for _ in 0..100 {
            let ringer = Arc::clone(&wake);
            wake.announce_sleep();
            let thread = std::thread::spawn(move || ringer.ring());
            reader.wait(NOW, None); // would hang for ever if the ring were lost
            wake.awake();
            thread.join().unwrap();
        }
        reader.wait(NOW, Some(Duration::from_millis(1)));
    }
}

#[test]
fn dropping_a_reader_under_load_ends_its_reads_first() {
    let title = SampleTitle::new(8);
    for _ in 0..10 {
        for (mut reader, _) in readers(8) {
            (0..8).for_each(|place| reader.begin(NOW, place, &order(&title, place as u32)));
            drop(reader);
            assert_eq!(title.holders(), 1, "no read holds the title any more");
        }
    }
}

/// Files of noise, one for each of several members.
struct Disks {
    _dir: tempfile::TempDir,
    files: Vec<(Arc<File>, Vec<u8>)>,
}

impl Disks {
    fn new(members: u16) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = |member: u16| {
            let bytes = super::super::sample::noise(u64::from(member) + 1, 900_000);
            let path = dir.path().join(member.to_string());
            std::fs::write(&path, &bytes).unwrap();
            (Arc::new(File::open(path).unwrap()), bytes)
        };
        Self { files: (0..members).map(file).collect(), _dir: dir }
    }

    /// Two ranges of each member's file, which differ from number to number.
    fn order(&self, number: u64) -> Order {
        let mut spans = Vec::new();
        for (member, (file, _)) in (0u16..).zip(&self.files) {
            let start = number * 7919 + u64::from(member) * 13;
            for (role, bytes) in [
                (Role::Data { position: member }, start..start + 60_000 + number * 1316),
                (Role::Parity { position: member }, start + 400_000..start + 400_001 + number),
            ] {
                let file = SpanFile::own(Arc::clone(file), false);
                spans.push(SpanOrder {
                    role,
                    member: Some(member),
                    file,
                    direct: false,
                    bytes,
                    joined: false,
                });
            }
        }
        // The readers put what belongs together together, however it is ordered.
        spans.rotate_left(number as usize % self.files.len());
        Order { spans, ..Order::empty(0, 0) }
    }

    /// The results of an order are the bytes of the files, but for those members, who have failed.
    fn check(&self, order: &Order, results: &[SpanResult<'_>], failed: MemberSet, errno: i32) {
        assert_eq!(results.len(), order.spans.len());
        for (span, result) in order.spans.iter().zip(results) {
            let member = span.member.unwrap();
            if failed.contains(member) {
                assert_eq!(*result, Err(errno), "member {member}");
            } else {
                let (_, bytes) = &self.files[usize::from(member)];
                assert!(*result == Ok(&bytes[span.bytes.start as usize..span.bytes.end as usize]));
            }
        }
    }
}

#[test]
fn spans_of_many_files_are_read_together() {
    let disks = Disks::new(5);
    for (mut reader, wake) in readers(3) {
        let orders: Vec<_> = (0..40).map(|number| disks.order(number % 40)).collect();
        let mut at_place = [0, 1, 2];
        (0..3).for_each(|place| reader.begin(NOW, place, &orders[place]));
        for next in 3..43 {
            let place = wait_done(&mut *reader, &wake);
            disks.check(&orders[at_place[place]], &reader.results(place), MemberSet::EMPTY, 0);
            if next < 40 {
                at_place[place] = next;
                reader.begin(NOW, place, &orders[next]);
            }
        }
        assert_eq!((reader.next_done(), reader.aside_bytes()), (None, 0));
    }
}

#[test]
fn members_that_fail_on_order_fail_alone() {
    let disks = Disks::new(4);
    let faults = ReadFaults::settable();
    for (mut reader, wake) in readers_with(1, &faults) {
        let order = disks.order(4);
        faults.set(2, ReadFault::Eio);
        reader.begin(NOW, 0, &order);
        wait_done(&mut *reader, &wake);
        disks.check(&order, &reader.results(0), MemberSet::of(2), libc::EIO);
        // If every read returns half of the bytes requested, the result is that of a file that is
        // too short.
        faults.set(2, ReadFault::Short);
        reader.begin(NOW, 0, &order);
        wait_done(&mut *reader, &wake);
        assert_eq!(failure(&order, &reader.results(0)), Some((Role::Data { position: 2 }, libc::ENODATA)));
        faults.set(2, ReadFault::Flip { seed: 5, one_in: 1 });
        let order = disks.order(4);
        reader.begin(NOW, 0, &order);
        wait_done(&mut *reader, &wake);
        let wrong = |(span, result): (&SpanOrder, &SpanResult<'_>)| {
            let (_, bytes) = &disks.files[usize::from(span.member.unwrap())];
            result.unwrap() != &bytes[span.bytes.start as usize..span.bytes.end as usize]
        };
        let wrong: Vec<_> = order
            .spans
            .iter()
            .zip(&reader.results(0))
            .filter(|&pair| wrong(pair))
            .map(|(span, _)| span.member)
            .collect();
        assert!(!wrong.is_empty() && wrong.iter().all(|&member| member == Some(2)), "{wrong:?}");
        faults.set_all(&[]);
    }
}

/// What hangs is given up: the place reads on, the memory comes back when the disk answers.
#[test]
fn give_up_of_hung_read_sets_it_aside_until_completion() {
    let disks = Disks::new(3);
    let faults = ReadFaults::settable();
    for (mut reader, wake) in readers_with(2, &faults) {
        faults.set(1, ReadFault::Hang);
        let order = disks.order(1);
        reader.begin(NOW, 0, &order);
        // The others answer; of the threads, one is stuck and begun to be seen as such.
        let late = Instant(NOW.0 + SLOW_READ_NS);
        wait_for(&mut *reader, &wake, |reader| {
            let missing = reader.unanswered(NOW, 0);
            (missing.queued.is_empty() && missing.members == MemberSet::of(1)).then_some(())
        });
        assert!(reader.unanswered(Instant(late.0 - 1), 0).late.is_empty(), "{}", reader.name());
        assert_eq!(reader.unanswered(late, 0).late, MemberSet::of(1));
        assert!(reader.next_done().is_none() && reader.results(0).is_empty());
        let owed = reader.give_up(0);
        assert_eq!(owed.iter().map(|owed| owed.member).collect::<Vec<_>>(), [1]);
        disks.check(&order, &reader.results(0), MemberSet::of(1), libc::ETIMEDOUT);
        let aside = reader.aside_bytes();
        assert!((60_000..200_000).contains(&aside), "{aside} bytes");
        // The place is used again and again, without the member that hangs.
        for number in 0..20 {
            let mut order = disks.order(number);
            order.spans.retain(|span| span.member != Some(1));
            reader.begin(NOW, 0, &order);
            assert_eq!(wait_done(&mut *reader, &wake), 0);
            disks.check(&order, &reader.results(0), MemberSet::EMPTY, 0);
        }
        assert_eq!((reader.aside_bytes(), reader.next_late()), (aside, None));
        faults.set(1, ReadFault::None);
        assert_eq!(wait_for(&mut *reader, &wake, |reader| reader.next_late()), owed[0]);
        assert_eq!((reader.aside_bytes(), reader.next_done()), (0, None));
        reader.begin(NOW, 1, &order);
        assert_eq!(wait_done(&mut *reader, &wake), 1);
        disks.check(&order, &reader.results(1), MemberSet::EMPTY, 0);
    }
}

/// However many reads hang, the others go on, and dropping the reader does not wait for ever.
#[test]
fn give_up_of_many_hung_reads_does_not_block_others() {
    let disks = Disks::new(3);
    let faults = ReadFaults::settable();
    for (mut reader, wake) in readers_with(16, &faults) {
        faults.set(0, ReadFault::Hang);
        for round in 0..3 {
            let orders: Vec<_> = (0..16).map(|place| disks.order(place)).collect();
            (0..16).for_each(|place| reader.begin(NOW, place, &orders[place]));
            for (place, order) in orders.iter().enumerate() {
                wait_for(&mut *reader, &wake, |reader| {
                    (reader.unanswered(NOW, place).members == MemberSet::of(0)).then_some(())
                });
                reader.give_up(place);
                disks.check(order, &reader.results(place), MemberSet::of(0), libc::ETIMEDOUT);
            }
            assert!(reader.next_done().is_none(), "round {round}");
        }
        assert!(reader.aside_bytes() <= 48 * staging::HOME_BYTES);
        let begun = std::time::Instant::now();
        drop(reader);
        assert!(begun.elapsed() < Duration::from_secs(30));
        faults.set_all(&[]);
    }
}

#[test]
fn read_with_injected_delay_completes_after_that_delay() {
    let disks = Disks::new(2);
    let faults = ReadFaults::settable();
    for (mut reader, wake) in readers_with(1, &faults) {
        faults.set(0, ReadFault::SlowNs(2_000_000));
        let order = disks.order(1);
        reader.begin(NOW, 0, &order);
        let mut now = NOW;
        while reader.next_done().is_none() {
            now = now.plus_ns(1_000_000);
            reader.wait(now, Some(Duration::from_millis(1)));
        }
        assert!(reader.name() == "threads" || now.0 > NOW.0 + 2_000_000);
        disks.check(&order, &reader.results(0), MemberSet::EMPTY, 0);
        faults.set_all(&[]);
        wake.awake();
    }
}

/// Memory does not grow with the number of reads.
#[test]
fn memory_is_given_back() {
    let disks = Disks::new(5);
    let Ok(mut uring) = uring::Uring::new((2, 2), Arc::new(EventBell::new().unwrap()), ReadFaults::default())
    else {
        return eprintln!("no io_uring here: nothing to test");
    };
    let mut kept = Vec::new();
    for number in 0..=90 {
        uring.begin(NOW, 0, &disks.order(number % 30));
        while uring.next_done().is_none() {
            uring.wait(NOW, None);
        }
        if number % 30 == 0 {
            kept.push(uring.kept());
        }
    }
    assert!(kept[1] == kept[2] && kept[2] == kept[3], "{kept:?}");
    assert!(uring.kept().1 < 1 << 20);
}

/// The time counts from the start of a read, and its arrivals are news; time without a check does
/// not count.
#[test]
fn time_counts_from_when_a_read_is_under_way() {
    let disks = Disks::new(2);
    let mut parts = parts::ReadParts::new(1, staging::Staging::new(1).unwrap());
    let ids = parts.begin(&[(0, &disks.order(1))]);
    let ms = |ms: u64| Instant(ms * 1_000_000);
    let queued = parts.unanswered(ms(900), 0, |_| true);
    assert_eq!((queued.queued, queued.late, queued.news), (queued.members, MemberSet::EMPTY, None));
    ids.iter().for_each(|&id| parts.note_begun(id, ms(1000)));
    let missing = parts.unanswered(ms(1249), 0, |_| true);
    assert_eq!(
        (missing.queued, missing.late, missing.news),
        (MemberSet::EMPTY, MemberSet::EMPTY, Some(ms(1000)))
    );
    // One block of many: it is as late as it was, but it is not dead.
    assert_eq!(parts.part_mut(ids[0]).unwrap().arrived(1, 4096), Arrived::Again);
    let missing = parts.unanswered(ms(1250), 0, |_| true);
    assert_eq!((missing.late, missing.news), (missing.members, Some(ms(1250))));
    parts.forgive(ms(1300), 40_000_000);
    let missing = parts.unanswered(ms(1289), 0, |_| true);
    assert_eq!((missing.late, missing.news), (MemberSet::EMPTY, Some(ms(1290))));
    parts.forgive(ms(1300), 10_000_000_000);
    assert!(parts.unanswered(ms(1549), 0, |_| true).late.is_empty(), "not begun later than now");
    assert_eq!(parts.unanswered(ms(1550), 0, |_| true).late, missing.members);
}

impl Disks {
    /// Orders of extents that follow one another: 30,000 bytes of each member's file, and a record that two of them share.
    fn run(&self, from: u64, extents: u64) -> Vec<Order> {
        let order = |extent: u64| {
            let mut spans = Vec::new();
            for (member, (file, _)) in (0u16..).zip(&self.files) {
                let start = 5000 + (from + extent) * 30_000;
                let record = 800_000 + extent / 2 * 4096;
                for (role, bytes) in [
                    (Role::Data { position: member }, start..start + 30_000),
                    (Role::Meta, record..record + 4096),
                ] {
                    let file = SpanFile::own(Arc::clone(file), false);
                    spans.push(SpanOrder {
                        role,
                        member: Some(member),
                        file,
                        direct: false,
                        bytes,
                        joined: false,
                    });
                }
            }
            Order { spans, ..Order::empty(extent as u32, 0) }
        };
        let mut run: Vec<_> = (0..extents).map(order).collect();
        for next in 1..run.len() {
            let (before, rest) = run.split_at_mut(next);
            rest[0].join(before.iter());
        }
        run
    }
}

fn of_member(member: u16) -> part::Share {
    part::Share { member: Some(member), block: None }
}

fn begin_run(reader: &mut dyn ExtentReader, run: &[Order]) {
    let batch: Vec<_> = run.iter().enumerate().collect();
    reader.begin_run(NOW, &batch);
}

/// Extents that follow one another are one read of each file, and each place gets its own bytes.
#[test]
fn run_of_consecutive_extents_is_one_read_per_file() {
    let disks = Disks::new(3);
    let run = disks.run(0, 4);
    let joined = |order: &Order| order.spans.iter().filter(|span| span.joined).count();
    assert_eq!(run.iter().map(joined).collect::<Vec<_>>(), [0, 6, 6, 6]);
    let batch: Vec<_> = run.iter().enumerate().collect();
    let plan = part::PartPlan::new(&batch, of_member(1));
    assert_eq!((plan.reads(), plan.places()), (2, vec![0, 1, 2, 3]));
    for (mut reader, wake) in readers(4) {
        for round in 0..3 {
            let run = disks.run(round * 4, 4);
            begin_run(&mut *reader, &run);
            let mut done: Vec<_> = (0..4).map(|_| wait_done(&mut *reader, &wake)).collect();
            done.sort_unstable();
            assert_eq!(done, [0, 1, 2, 3]);
            (0..4).for_each(|place| disks.check(&run[place], &reader.results(place), MemberSet::EMPTY, 0));
            // One place continues by itself while the others keep their data.
            reader.begin(NOW, 2, &disks.order(round));
            assert_eq!(wait_done(&mut *reader, &wake), 2);
            disks.check(&disks.order(round), &reader.results(2), MemberSet::EMPTY, 0);
            disks.check(&run[3], &reader.results(3), MemberSet::EMPTY, 0);
        }
    }
}

/// A file that ends within the run: an order for the data present gets it.
#[test]
fn run_over_truncated_file_fails_only_missing_extents() {
    let disks = Disks::new(3);
    let path = disks._dir.path().join("1");
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(70_000).unwrap();
    for (mut reader, wake) in readers(4) {
        let mut run = disks.run(0, 4);
        for order in &mut run {
            order.spans.retain(|span| span.role != Role::Meta);
        }
        begin_run(&mut *reader, &run);
        for _ in 0..4 {
            wait_done(&mut *reader, &wake);
        }
        for (place, order) in run.iter().enumerate() {
            // 65,000 bytes are two of them.
            let failed = if place < 2 { MemberSet::EMPTY } else { MemberSet::of(1) };
            disks.check(order, &reader.results(place), failed, libc::ENODATA);
        }
    }
}

/// A place that gives up a read that others wait for has put nothing aside; the last one has.
#[test]
fn give_up_of_shared_read_sets_it_aside_at_the_last_place() {
    let disks = Disks::new(3);
    let faults = ReadFaults::settable();
    for (mut reader, wake) in readers_with(3, &faults) {
        faults.set(1, ReadFault::Hang);
        let run = disks.run(0, 3);
        begin_run(&mut *reader, &run);
        wait_for(&mut *reader, &wake, |reader| {
            let missing = reader.unanswered(NOW, 2);
            (missing.queued.is_empty() && missing.members == MemberSet::of(1)).then_some(())
        });
        assert_eq!((reader.give_up(0), reader.give_up(2)), (vec![], vec![]), "{}", reader.name());
        assert_eq!((reader.aside_bytes(), reader.unanswered(NOW, 1).members), (0, MemberSet::of(1)));
        for place in [0, 2] {
            disks.check(&run[place], &reader.results(place), MemberSet::of(1), libc::ETIMEDOUT);
        }
        // Data that was given up does not come back to the place.
        let again = disks.run(3, 1).remove(0);
        let mut again = Order { spans: again.spans, ..Order::empty(0, 0) };
        again.spans.retain(|span| span.member != Some(1));
        reader.begin(NOW, 0, &again);
        assert_eq!(wait_done(&mut *reader, &wake), 0);
        let owed = reader.give_up(1);
        assert_eq!(owed.iter().map(|owed| owed.member).collect::<Vec<_>>(), [1]);
        disks.check(&run[1], &reader.results(1), MemberSet::of(1), libc::ETIMEDOUT);
        assert!(reader.aside_bytes() > 0);
        faults.set(1, ReadFault::None);
        assert_eq!(wait_for(&mut *reader, &wake, |reader| reader.next_late()), owed[0]);
        assert_eq!((reader.aside_bytes(), reader.next_done()), (0, None));
        disks.check(&again, &reader.results(0), MemberSet::EMPTY, 0);
    }
}

/// If the last place takes the read as it has come, nothing is owed to those who did not wait.
#[test]
fn shared_read_given_up_by_one_place_completes_for_others() {
    let disks = Disks::new(2);
    let faults = ReadFaults::settable();
    for (mut reader, wake) in readers_with(2, &faults) {
        faults.set(1, ReadFault::Hang);
        let run = disks.run(0, 2);
        begin_run(&mut *reader, &run);
        reader.give_up(0);
        faults.set(1, ReadFault::None);
        assert_eq!(wait_done(&mut *reader, &wake), 1);
        disks.check(&run[1], &reader.results(1), MemberSet::EMPTY, 0);
        assert_eq!((reader.next_done(), reader.next_late(), reader.aside_bytes()), (None, None, 0));
    }
}

/// On a busy machine the last answer may come between the look that found something missing and the giving up.
#[test]
fn give_up_of_completed_read_reports_done_once() {
    let disks = Disks::new(2);
    for (mut reader, wake) in readers(1) {
        let order = disks.order(0);
        reader.begin(NOW, 0, &order);
        let all_here =
            |reader: &mut dyn ExtentReader| reader.unanswered(NOW, 0).members.is_empty().then_some(());
        wait_for(&mut *reader, &wake, all_here);
        assert_eq!(reader.give_up(0), vec![]);
        disks.check(&order, &reader.results(0), MemberSet::EMPTY, 0);
        // The place is taken at once, and only the end of the new order is reported.
        let order = disks.order(1);
        reader.begin(NOW, 0, &order);
        assert_eq!(wait_done(&mut *reader, &wake), 0);
        disks.check(&order, &reader.results(0), MemberSet::EMPTY, 0);
        assert_eq!(reader.next_done(), None, "{}", reader.name());
    }
}

/// A member that has nothing of an extent in the middle of a run has one read all the same.
#[test]
fn run_with_extent_absent_on_member_is_still_one_read() {
    let disks = Disks::new(2);
    let mut run = disks.run(0, 4);
    for order in &mut run {
        order.spans.retain(|span| span.role != Role::Meta);
    }
    // What follows lies where that would have been.
    run[1].spans.retain(|span| span.member != Some(1));
    for order in &mut run[2..] {
        for span in order.spans.iter_mut().filter(|span| span.member == Some(1)) {
            span.bytes = span.bytes.start - 30_000..span.bytes.end - 30_000;
        }
    }
    for next in 1..run.len() {
        let (before, rest) = run.split_at_mut(next);
        rest[0].join(before.iter());
    }
    let batch: Vec<_> = run.iter().enumerate().collect();
    assert_eq!([0, 1].map(|member| part::PartPlan::new(&batch, of_member(member)).reads()), [1, 1]);
    for (mut reader, wake) in readers(4) {
        begin_run(&mut *reader, &run);
        for _ in 0..4 {
            wait_done(&mut *reader, &wake);
        }
        (0..4).for_each(|place| disks.check(&run[place], &reader.results(place), MemberSet::EMPTY, 0));
    }
}
