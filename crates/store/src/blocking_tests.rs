use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;

/// Waits for a condition that another thread brings about.
fn until(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..10_000 {
        if condition() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("{what} does not happen");
}

/// A blocking call that hangs until it is let go.
fn hanging() -> (Sender<()>, impl FnOnce() -> u32 + Send + 'static) {
    let (go, gate): (_, Receiver<()>) = channel();
    (go, move || {
        let _ = gate.recv();
        7
    })
}

#[test]
fn calls_bring_their_results_and_one_thread_is_kept() {
    let blocking = BlockingCalls::default();
    let thread = || std::thread::current().id();
    let first = blocking.send(Timeout::Call, thread).unwrap();
    until("the thread is idle", || blocking.shared.idle.lock().unwrap().is_some());
    assert_eq!(blocking.send(Timeout::Call, thread), Ok(first));
    assert_ne!(first, std::thread::current().id());
    until("all are back", || blocking.shared.out.load(Ordering::SeqCst) == 0);
    assert!(!blocking.hangs());
}

#[test]
fn send_while_timed_out_call_hangs_returns_timeout() {
    let blocking = BlockingCalls::default();
    let (go, work) = hanging();
    assert_eq!(blocking.begin(Timeout::Call, work).unwrap().take(Timeout::Call), Err(TimedOut));
    assert!(blocking.hangs());
    // At once: none of the limits has to pass.
    assert_eq!(blocking.send(Timeout::Work, || 1), Err(TimedOut));
    assert_eq!(blocking.send(Timeout::Brief, || 1), Err(TimedOut));
    go.send(()).unwrap();
    until("it comes back", || !blocking.hangs());
    assert_eq!(blocking.send(Timeout::Call, || 1), Ok(1));
}

#[test]
fn brief_timeout_says_nothing_of_the_disk_but_is_asked_for_once() {
    let blocking = BlockingCalls::default();
    let (go, work) = hanging();
    assert_eq!(blocking.send(Timeout::Brief, work), Err(TimedOut));
    assert!(!blocking.hangs());
    assert_eq!(blocking.begin(Timeout::Brief, || 1).err(), Some(TimedOut));
    // A caller with a longer timeout still asks.
    assert_eq!(blocking.send(Timeout::Call, || 2), Ok(2));
    go.send(()).unwrap();
    until("it comes back", || blocking.shared.late.load(Ordering::SeqCst) == 0);
    assert_eq!(blocking.send(Timeout::Brief, || 3), Ok(3));
}

#[test]
fn send_right_after_result_succeeds() {
    let blocking = BlockingCalls::default();
    for n in 0..1000 {
        assert_eq!(blocking.send(Timeout::Call, move || n), Ok(n));
        assert_eq!(
            blocking.shared.out.load(Ordering::SeqCst),
            0,
            "it counts as back before its result is there"
        );
    }
}

#[test]
fn begin_beyond_max_disk_calls_returns_timeout() {
    let blocking = BlockingCalls::default();
    let (mut handles, mut pending) = (Vec::new(), Vec::new());
    for _ in 0..MAX_DISK_CALLS {
        let (go, work) = hanging();
        handles.push(go);
        pending.push(blocking.begin(Timeout::Call, work).unwrap());
    }
    assert_eq!(blocking.begin(Timeout::Call, || 1).err(), Some(TimedOut));
    drop(handles);
    for blocking in pending {
        assert_eq!(blocking.wait(Timeout::Work), Ok(7));
    }
    until("all are back", || blocking.shared.out.load(Ordering::SeqCst) == 0);
    assert_eq!(blocking.send(Timeout::Call, || 1), Ok(1));
}

#[test]
fn look_at_pending_call_does_not_abandon_it() {
    let blocking = BlockingCalls::default();
    let (go, work) = hanging();
    let pending = blocking.begin(Timeout::Brief, work).unwrap();
    assert_eq!(pending.look(Timeout::Brief), Ok(None));
    assert_eq!((blocking.hangs(), blocking.send(Timeout::Brief, || 1)), (false, Ok(1)));
    go.send(()).unwrap();
    assert_eq!(pending.look(Timeout::Work), Ok(Some(7)));
}

#[test]
fn send_of_panicking_call_returns_timeout_and_frees_its_slot() {
    let blocking = BlockingCalls::default();
    let silent = || -> u32 { std::panic::resume_unwind(Box::new("on purpose")) };
    assert_eq!(blocking.send(Timeout::Call, silent), Err(TimedOut));
    until("it is counted", || blocking.shared.out.load(Ordering::SeqCst) == 0);
    assert_eq!(blocking.send(Timeout::Call, || 1), Ok(1));
}

/// A thread that has had no processor yet has asked no disk.
#[test]
fn wait_for_thread_not_yet_started_extends_timeout() {
    let pending = |has_begun| {
        let (sender, result) = sync_channel(1);
        let fate = Arc::new(AtomicU8::new(AWAITED));
        let has_begun = Arc::new(AtomicBool::new(has_begun));
        (sender, PendingCall { shared: Arc::default(), fate, has_begun, result })
    };
    let limit = Duration::from_millis(500);
    let (sender, late) = pending(false);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(limit * 3 / 2);
            sender.send(7).unwrap();
        });
        assert_eq!(late.wait_for(Timeout::Brief, limit), Ok(7));
    });
    for has_begun in [true, false] {
        let (sender, never) = pending(has_begun);
        assert_eq!(never.wait_for(Timeout::Brief, Duration::from_millis(1)), Err(TimedOut));
        drop::<SyncSender<i32>>(sender);
    }
}
