use std::sync::Arc;
use std::time::Instant;

use super::*;

fn shell(script: &str) -> HelperProgram {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]);
    HelperProgram::start(command).unwrap()
}

fn read_all(child: &mut HelperProgram, cancel: &AtomicBool) -> Result<Vec<u8>, ChildStop> {
    let (mut all, mut room) = (Vec::new(), [0; 1000]);
    loop {
        match child.read(&mut room, cancel, &mut || {})? {
            0 => return Ok(all),
            n => all.extend_from_slice(&room[..n]),
        }
    }
}

#[test]
fn output_and_messages_are_both_read() {
    let cancel = AtomicBool::new(false);
    // More of both than a pipe holds: neither may block the other.
    let mut child = shell(
        "i=0; while [ $i -lt 3000 ]; do echo out-line-$i-xxxxxxxxxxxxxxxxxxxxxxxxxxxxx; echo err-line-$i-xxxxxxxxxxxxxxxxxxxxxxxxxxxxx >&2; i=$((i+1)); done",
    );
    let all = read_all(&mut child, &cancel).unwrap();
    child.finish(&cancel, &mut || {}).unwrap();
    assert_eq!(all.iter().filter(|&&b| b == b'\n').count(), 3000);
    assert_eq!(child.said_lines(), 3000);
    assert_eq!(child.said(1), "err-line-2999-xxxxxxxxxxxxxxxxxxxxxxxxxxxxx");
}

#[test]
fn a_failure_carries_status_and_last_words() {
    let cancel = AtomicBool::new(false);
    let mut child = shell("echo one >&2; echo 'two: bad' >&2; exit 3");
    assert_eq!(read_all(&mut child, &cancel).unwrap(), b"");
    match child.finish(&cancel, &mut || {}) {
        Err(ChildStop::Failed { status, said }) => {
            assert!(status.contains('3'), "{status}");
            assert_eq!(said, "one; two: bad");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn cancelling_a_silent_program_kills_it_at_once() {
    let cancel = Arc::new(AtomicBool::new(false));
    let mut child = shell("exec sleep 1000");
    let pid = child.child.id();
    let setter = Arc::clone(&cancel);
    let mut looks = 0;
    let begun = Instant::now();
    let stop = child.read(&mut [0; 10], &cancel, &mut || {
        looks += 1;
        setter.store(looks == 3, Ordering::Relaxed);
    });
    assert!(matches!(stop, Err(ChildStop::Cancelled)), "{stop:?}");
    drop(child);
    assert!(begun.elapsed() < Duration::from_secs(5), "three looks of 50 ms took {:?}", begun.elapsed());
    assert!(!Path::new(&format!("/proc/{pid}")).exists(), "killed and waited for");
}

#[test]
fn a_program_that_closes_its_output_and_stays_can_be_cancelled() {
    let cancel = AtomicBool::new(false);
    let mut child = shell("exec >&- ; exec sleep 1000");
    assert_eq!(child.read(&mut [0; 10], &cancel, &mut || {}).unwrap(), 0);
    let stop = child.finish(&cancel, &mut || cancel.store(true, Ordering::Relaxed));
    assert!(matches!(stop, Err(ChildStop::Cancelled)), "{stop:?}");
}

#[test]
fn a_missing_program_is_told() {
    let stop = HelperProgram::start(Command::new("/nonexistent/ffmpeg"));
    assert!(matches!(stop, Err(ChildStop::Start(error)) if error.kind() == io::ErrorKind::NotFound));
}
