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

/// An errand that hangs until it is let go.
fn hanging() -> (Sender<()>, impl FnOnce() -> u32 + Send + 'static) {
    let (go, gate): (_, Receiver<()>) = channel();
    (go, move || {
        let _ = gate.recv();
        7
    })
}

#[test]
fn errands_bring_their_results_and_one_thread_is_kept() {
    let errands = Errands::default();
    let thread = || std::thread::current().id();
    let first = errands.send(Patience::Call, thread).unwrap();
    until("the thread is idle", || errands.shared.idle.lock().unwrap().is_some());
    assert_eq!(errands.send(Patience::Call, thread), Ok(first));
    assert_ne!(first, std::thread::current().id());
    until("all are back", || errands.shared.out.load(Ordering::SeqCst) == 0);
    assert!(!errands.hangs());
}

#[test]
fn who_is_given_up_keeps_others_away_until_it_comes_back() {
    let errands = Errands::default();
    let (go, work) = hanging();
    assert_eq!(errands.begin(Patience::Call, work).unwrap().take(Patience::Call), Err(NoAnswer));
    assert!(errands.hangs());
    // At once: none of the limits has to pass.
    assert_eq!(errands.send(Patience::Work, || 1), Err(NoAnswer));
    assert_eq!(errands.send(Patience::Brief, || 1), Err(NoAnswer));
    go.send(()).unwrap();
    until("it comes back", || !errands.hangs());
    assert_eq!(errands.send(Patience::Call, || 1), Ok(1));
}

#[test]
fn brief_patience_says_nothing_of_the_disk_but_is_asked_for_once() {
    let errands = Errands::default();
    let (go, work) = hanging();
    assert_eq!(errands.send(Patience::Brief, work), Err(NoAnswer));
    assert!(!errands.hangs());
    assert_eq!(errands.begin(Patience::Brief, || 1).err(), Some(NoAnswer));
    // Who has more time still asks.
    assert_eq!(errands.send(Patience::Call, || 2), Ok(2));
    go.send(()).unwrap();
    until("it comes back", || errands.shared.late.load(Ordering::SeqCst) == 0);
    assert_eq!(errands.send(Patience::Brief, || 3), Ok(3));
}

#[test]
fn who_has_a_result_may_send_the_next_at_once() {
    let errands = Errands::default();
    for n in 0..1000 {
        assert_eq!(errands.send(Patience::Call, move || n), Ok(n));
        assert_eq!(
            errands.shared.out.load(Ordering::SeqCst),
            0,
            "it counts as back before its result is there"
        );
    }
}

#[test]
fn no_more_than_so_many_threads_are_sent() {
    let errands = Errands::default();
    let (mut doors, mut pending) = (Vec::new(), Vec::new());
    for _ in 0..MAX_DISK_CALLS {
        let (go, work) = hanging();
        doors.push(go);
        pending.push(errands.begin(Patience::Call, work).unwrap());
    }
    assert_eq!(errands.begin(Patience::Call, || 1).err(), Some(NoAnswer));
    drop(doors);
    for errand in pending {
        assert_eq!(errand.wait(Patience::Work), Ok(7));
    }
    until("all are back", || errands.shared.out.load(Ordering::SeqCst) == 0);
    assert_eq!(errands.send(Patience::Call, || 1), Ok(1));
}

#[test]
fn who_only_looks_gives_nothing_up() {
    let errands = Errands::default();
    let (go, work) = hanging();
    let pending = errands.begin(Patience::Brief, work).unwrap();
    assert_eq!(pending.look(Patience::Brief), Ok(None));
    assert_eq!((errands.hangs(), errands.send(Patience::Brief, || 1)), (false, Ok(1)));
    go.send(()).unwrap();
    assert_eq!(pending.look(Patience::Work), Ok(Some(7)));
}

#[test]
fn one_that_panics_counts_as_back() {
    let errands = Errands::default();
    let silent = || -> u32 { std::panic::resume_unwind(Box::new("on purpose")) };
    assert_eq!(errands.send(Patience::Call, silent), Err(NoAnswer));
    until("it is counted", || errands.shared.out.load(Ordering::SeqCst) == 0);
    assert_eq!(errands.send(Patience::Call, || 1), Ok(1));
}

/// A thread that has had no processor yet has asked no disk.
#[test]
fn a_thread_that_has_not_begun_is_waited_for_longer() {
    let pending = |has_begun| {
        let (sender, result) = sync_channel(1);
        let fate = Arc::new(AtomicU8::new(AWAITED));
        let has_begun = Arc::new(AtomicBool::new(has_begun));
        (sender, Pending { shared: Arc::default(), fate, has_begun, result })
    };
    let limit = Duration::from_millis(500);
    let (sender, late) = pending(false);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(limit * 3 / 2);
            sender.send(7).unwrap();
        });
        assert_eq!(late.wait_for(Patience::Brief, limit), Ok(7));
    });
    for has_begun in [true, false] {
        let (sender, never) = pending(has_begun);
        assert_eq!(never.wait_for(Patience::Brief, Duration::from_millis(1)), Err(NoAnswer));
        drop::<SyncSender<i32>>(sender);
    }
}
