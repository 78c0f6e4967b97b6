use super::super::stripes::sample::{StripeSample, StripeSource, geometry};
use super::*;

const SECOND: u64 = 1_000_000_000;

fn sample() -> (StripeSample, StripeSource) {
    let sample = StripeSample::of_stripes(geometry(4, 2, 3, 5), 2);
    let source = sample.open(1316);
    (sample, source)
}

fn members(source: &StripeSource) -> (StripeLayout, &dyn MemberFiles) {
    (source.stripes, source)
}

/// Replaces a file by a link to itself: any process can list it, but none can open it.
fn spoil(path: &Path) {
    std::fs::remove_file(path).unwrap();
    std::os::unix::fs::symlink(path, path).unwrap();
}

#[test]
fn get_of_unopenable_file_retries_later_and_reports_member_once() {
    let (sample, source) = sample();
    let ((stripes, members), table) = (members(&source), FileTable::default());
    let path = sample.path(1, TitleFile::Data);
    spoil(&path);
    spoil(&sample.path(1, TitleFile::Parity));
    table.open_first(TitleId([0; 16]), &stripes, members, false);
    assert_eq!(table.take_refusals(), [(1, libc::ELOOP)], "one word for all its files");
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "good again").unwrap();
    let open = |at: u64| table.get(members, 1, (TitleFile::Data, true), Instant(at)).map(drop);
    assert_eq!(open(7 * SECOND), Err(Some(libc::ELOOP)));
    assert_eq!(open(7 * SECOND + FILE_RETRY_NS - 1), Err(Some(libc::ELOOP)));
    assert_eq!(open(7 * SECOND + FILE_RETRY_NS), Ok(()));
    assert_eq!(table.take_refusals(), []);
    assert_eq!(open(0), Ok(()), "it is open");
}

#[test]
fn get_of_missing_file_is_not_reported_and_retries_after_repair() {
    let (sample, source) = sample();
    let ((_, members), table) = (members(&source), FileTable::default());
    std::fs::remove_file(sample.path(2, TitleFile::Data)).unwrap();
    let open = || table.get(members, 2, (TitleFile::Data, true), Instant(0)).map(drop);
    assert_eq!((open(), table.take_refusals()), (Err(Some(libc::ENOENT)), vec![]));
    sample.replace(2);
    assert_eq!(open(), Ok(()));
    sample.take_away(&[2]);
    assert_eq!(open(), Err(None));
}

#[test]
fn limits_of_the_process_are_nobodys_fault() {
    assert!(is_exhaustion(libc::EMFILE) && is_exhaustion(libc::ENFILE));
    assert!(!is_exhaustion(libc::EIO) && !is_exhaustion(libc::ENOENT));
}
