use std::io::Write;
use std::sync::mpsc;

use super::*;

fn file(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

#[test]
fn read_faults_default_handle_reads_unchanged_bytes() {
    let (faults, file) = (ReadFaults::default(), file(b"abcdef"));
    faults.set(0, ReadFault::Eio);
    let mut bytes = [0; 4];
    faults.read_exact_at(0, &file, &mut bytes, 1).unwrap();
    assert_eq!((&bytes, faults.of(0), faults.is_settable()), (b"bcde", ReadFault::None, false));
}

#[test]
fn errors_and_short_reads_are_of_one_member_only() {
    let (faults, file) = (ReadFaults::settable(), file(b"abcdef"));
    faults.set(1, ReadFault::Eio);
    faults.set(2, ReadFault::Short);
    let mut bytes = [0; 4];
    assert_eq!(faults.read_at(0, &file, &mut bytes, 0).unwrap(), 4);
    assert_eq!(faults.read_at(1, &file, &mut bytes, 0).unwrap_err().raw_os_error(), Some(5));
    assert_eq!(faults.read_at(2, &file, &mut bytes, 0).unwrap(), 2);
    let short = faults.read_exact_at(2, &file, &mut bytes, 0).unwrap_err();
    assert_eq!(short.kind(), io::ErrorKind::UnexpectedEof);
    faults.set_all(&[]);
    assert_eq!(faults.read_at(2, &file, &mut bytes, 0).unwrap(), 4);
    faults.set(u16::MAX, ReadFault::Eio);
    assert_eq!(faults.of(u16::MAX), ReadFault::None);
}

fn wait_for_a_reader(faults: &ReadFaults) {
    while faults.waiting() == 0 {
        std::thread::yield_now();
    }
}

#[test]
fn hang_fault_completes_read_when_lifted() {
    let faults = ReadFaults::settable();
    faults.set(0, ReadFault::Hang);
    let (tell, told) = mpsc::channel();
    let reader = std::thread::spawn({
        let faults = faults.clone();
        move || {
            let mut bytes = [0; 2];
            let got = faults.read_at(0, &file(b"xy"), &mut bytes, 0);
            tell.send((got.unwrap(), bytes)).unwrap();
        }
    });
    wait_for_a_reader(&faults);
    assert_eq!(told.try_recv(), Err(mpsc::TryRecvError::Empty));
    faults.set(0, ReadFault::None);
    assert_eq!(told.recv().unwrap(), (2, *b"xy"));
    reader.join().unwrap();
}

#[test]
fn slow_fault_wait_ends_when_fault_changes() {
    let faults = ReadFaults::settable();
    faults.set(0, ReadFault::SlowNs(1));
    faults.before_read(0, 0, 1).unwrap();
    faults.set(0, ReadFault::SlowNs(u64::MAX));
    let reader = std::thread::spawn({
        let faults = faults.clone();
        move || faults.before_read(0, 0, 1)
    });
    wait_for_a_reader(&faults);
    faults.set(0, ReadFault::Eio);
    assert!(reader.join().unwrap().is_err());
}

#[test]
fn flipped_bits_are_the_same_however_the_file_is_read() {
    let zeros = file(&[0; 512 * 64]);
    let faults = ReadFaults::settable();
    faults.set(0, ReadFault::Flip { seed: 7, one_in: 4 });
    let mut whole = vec![0; 512 * 64];
    faults.read_exact_at(0, &zeros, &mut whole, 0).unwrap();
    let flipped: u32 = whole.iter().map(|byte| byte.count_ones()).sum();
    assert!((4..=40).contains(&flipped), "{flipped} of 64 sectors for one in 4");
    for (start, len) in [(0, 1), (511, 2), (1000, 5000), (512 * 63 + 100, 412)] {
        let mut part = vec![0; len];
        faults.read_exact_at(0, &zeros, &mut part, start as u64).unwrap();
        assert_eq!(part, whole[start..start + len], "{len} bytes from {start}");
    }
}

/// A bad place is that place and no other, however much is read with it.
#[test]
fn eio_at_fault_fails_only_overlapping_reads() {
    let (faults, file) = (ReadFaults::settable(), file(&[7; 1000]));
    faults.set(0, ReadFault::EioAt { at: 100, bytes: 10 });
    let mut bytes = [0; 1000];
    for (at, length, good) in
        [(0, 100, true), (0, 101, false), (109, 1, false), (110, 800, true), (0, 1000, false)]
    {
        let read = faults.read_exact_at(0, &file, &mut bytes[..length], at);
        assert_eq!(read.is_ok(), good, "{length} bytes from {at}");
        assert!(good || read.unwrap_err().raw_os_error() == Some(5));
    }
    faults.set(0, ReadFault::HangAt { at: 100, bytes: 10 });
    assert_eq!(faults.read_at(0, &file, &mut bytes[..100], 0).unwrap(), 100);
    let reader = std::thread::spawn({
        let faults = faults.clone();
        move || faults.before_read(0, 105, 1)
    });
    wait_for_a_reader(&faults);
    faults.set(0, ReadFault::None);
    reader.join().unwrap().unwrap();
}

#[test]
fn fault_list_parse_reads_all_kinds_and_reports_bad_line() {
    let text = "# faults\nmember 1 eio\n\n member 2 hang # for now\nmember 0 flip 1000 seed 7\nmember 3 slow 20\n\
                member 4 short\nmember 5 ok\nmember 6 arm 8 150\nmember 7 eio 8192 512\nmember 8 hang 0 1";
    let FaultList(faults) = text.parse().unwrap();
    assert_eq!(
        faults,
        [
            (1, ReadFault::Eio),
            (2, ReadFault::Hang),
            (0, ReadFault::Flip { seed: 7, one_in: 1000 }),
            (3, ReadFault::SlowNs(20_000_000)),
            (4, ReadFault::Short),
            (5, ReadFault::None),
            (6, ReadFault::Arm { seek_ns: 8_000_000, bytes_per_s: 150_000_000 }),
            (7, ReadFault::EioAt { at: 8192, bytes: 512 }),
            (8, ReadFault::HangAt { at: 0, bytes: 1 }),
        ]
    );
    for bad in [
        "member 32 eio",
        "member eio",
        "member 1 flip 0 seed 1",
        "member 1 slow x",
        "member 1 arm 8 0",
        "member 1 eio 8",
        "eio",
    ] {
        let error = format!("member 0 ok\n{bad}").parse::<FaultList>().unwrap_err();
        assert!(error.to_string().starts_with(&format!("line 2: \"{bad}\"")), "{error}");
    }
}

#[test]
fn fault_list_parse_of_arbitrary_text_does_not_panic() {
    bolero::check!().with_type::<String>().for_each(|text| {
        let _ = text.parse::<FaultList>();
        let _ = format!("member {text}").parse::<FaultList>();
    });
}

#[test]
fn arm_fault_serves_one_read_at_a_time() {
    let fault = ReadFault::Arm { seek_ns: 8_000_000, bytes_per_s: 1_000_000 };
    assert_eq!(
        (fault.delay_ns(0), fault.delay_ns(1000), ReadFault::Hang.delay_ns(1000)),
        (8_000_000, 9_000_000, 0)
    );
    let faults = ReadFaults::settable();
    // The delay is too long to wait for: the first read is in progress, and the others wait for it.
    faults.set(0, ReadFault::Arm { seek_ns: u64::MAX / 2, bytes_per_s: 1 });
    let readers: Vec<_> = (0..3)
        .map(|_| {
            let faults = faults.clone();
            std::thread::spawn(move || faults.before_read(0, 0, 0))
        })
        .collect();
    while faults.waiting() < 3 {
        std::thread::yield_now();
    }
    assert_eq!(faults.table.as_ref().unwrap().lock().arms.iter().filter(|&&busy| busy).count(), 1);
    faults.set(0, ReadFault::Arm { seek_ns: 1, bytes_per_s: u64::MAX });
    readers.into_iter().for_each(|reader| reader.join().unwrap().unwrap());
    assert!(!faults.table.as_ref().unwrap().lock().arms[0]);
}
