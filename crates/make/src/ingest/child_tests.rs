use std::sync::Arc;
use std::time::Instant;

use millrace_core::units::ByteLen;

use super::super::bounds::FfmpegBounds;
use super::*;

fn bounds() -> ProcessBounds {
    FfmpegBounds::default().of_process(1000)
}

fn shell(script: &str) -> HelperProgram {
    bounded_shell(script, bounds())
}

fn bounded_shell(script: &str, bounds: ProcessBounds) -> HelperProgram {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]);
    HelperProgram::start(command, HelperFiles::default(), bounds).unwrap()
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
fn finish_of_failed_child_returns_status_and_stderr() {
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
fn finish_of_child_with_closed_output_can_be_cancelled() {
    let cancel = AtomicBool::new(false);
    let mut child = shell("exec >&- ; exec sleep 1000");
    assert_eq!(child.read(&mut [0; 10], &cancel, &mut || {}).unwrap(), 0);
    let stop = child.finish(&cancel, &mut || cancel.store(true, Ordering::Relaxed));
    assert!(matches!(stop, Err(ChildStop::Cancelled)), "{stop:?}");
}

#[test]
fn start_of_missing_program_returns_not_found() {
    let stop = HelperProgram::start(Command::new("/nonexistent/ffmpeg"), HelperFiles::default(), bounds());
    assert!(matches!(stop, Err(ChildStop::Start(error)) if error.kind() == io::ErrorKind::NotFound));
}

#[test]
fn process_bounds_limit_memory_and_disable_core_dumps() {
    let cancel = AtomicBool::new(false);
    let bounds = ProcessBounds { memory: ByteLen(80 << 20), ..bounds() };
    // The limits come when it runs already.
    let mut child =
        bounded_shell("until [ \"$(ulimit -d)\" = 81920 ]; do :; done; ulimit -c; ulimit -t", bounds);
    let text = String::from_utf8(read_all(&mut child, &cancel).unwrap()).unwrap();
    assert_eq!(text, "0\n1320\n");
    child.finish(&cancel, &mut || {}).unwrap();
}

#[test]
fn child_beyond_processor_time_limit_is_stopped() {
    let cancel = AtomicBool::new(false);
    let bounds = ProcessBounds { processor: Duration::from_secs(1), ..bounds() };
    let mut child = bounded_shell("trap '' XCPU; while :; do :; done", bounds);
    assert_eq!(read_all(&mut child, &cancel).unwrap(), b"");
    let stop = child.finish(&cancel, &mut || {});
    let Err(ChildStop::Exceeded(exceeded)) = stop else { panic!("{stop:?}") };
    assert_eq!(exceeded, Exceeded::Processor { most: HumanDuration(Duration::from_secs(1)) });
}

#[test]
fn child_killed_by_signal_returns_failed_not_exceeded() {
    let cancel = AtomicBool::new(false);
    let mut child = shell("kill -9 $$");
    assert_eq!(read_all(&mut child, &cancel).unwrap(), b"");
    let stop = child.finish(&cancel, &mut || {});
    assert!(matches!(&stop, Err(ChildStop::Failed { status, .. }) if status.contains("9")), "{stop:?}");
}

#[test]
fn child_silent_beyond_limit_is_stopped() {
    let cancel = AtomicBool::new(false);
    let silence = Duration::from_millis(300);
    // Silent with its output open, and closed; messages are no output, but a sign that it does something.
    for script in ["echo x; echo y >&2; exec sleep 1000", "echo x; exec >&-; exec sleep 1000"] {
        let mut child = bounded_shell(script, ProcessBounds { silence, ..bounds() });
        let mut looks = 0;
        let stop = loop {
            let got = child.read(&mut [0; 1], &cancel, &mut || looks += 1);
            match got {
                Ok(0) => break child.finish(&cancel, &mut || looks += 1).unwrap_err(),
                Ok(_) => {}
                Err(stop) => break stop,
            }
        };
        let ChildStop::Exceeded(exceeded) = stop else { panic!("{stop:?}") };
        assert_eq!(exceeded, Exceeded::Silence { most: HumanDuration(silence) });
        assert!(looks >= 5, "{looks}");
    }
}

#[test]
fn child_drop_kills_its_descendants() {
    let cancel = AtomicBool::new(false);
    let mut child = shell("sleep 1000 & echo $!; wait");
    let mut line = [0; 20];
    let n = child.read(&mut line, &cancel, &mut || {}).unwrap();
    let pid: u32 = std::str::from_utf8(&line[..n]).unwrap().trim().parse().unwrap();
    let stat = format!("/proc/{pid}/stat");
    assert!(Path::new(&stat).exists());
    drop(child);
    // Killed; whoever inherited it waits for it sooner or later.
    let ended = || std::fs::read_to_string(&stat).map_or(true, |text| text.contains(") Z "));
    let begun = Instant::now();
    while !ended() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{pid} still runs");
        std::thread::yield_now();
    }
}
