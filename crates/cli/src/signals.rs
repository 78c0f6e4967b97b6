//! Signals that end a command, and signals that must not.
//!
//! A closing terminal sends SIGHUP; a service manager sends SIGTERM, SIGQUIT or the signal that its
//! unit names. By default each of these, as well as SIGUSR1 and SIGUSR2, would end the process at
//! once, without cleanup. The standard library ignores SIGPIPE.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::signal::unix::{SignalKind, signal};

/// SIGXFSZ: a write beyond `ulimit -f`. With a handler, the write fails with an error instead.
const FILE_TOO_LARGE: i32 = 25;

/// Returns a flag that SIGINT, SIGTERM, SIGQUIT or SIGHUP sets; a second signal ends the process at
/// once. If the command was started with SIGHUP ignored (`nohup`), SIGHUP stays ignored.
pub fn cancel_on_signals() -> anyhow::Result<Arc<AtomicBool>> {
    let mut signals = vec![SignalKind::interrupt(), SignalKind::terminate(), SignalKind::quit()];
    if !is_ignored(SignalKind::hangup()) {
        signals.push(SignalKind::hangup());
    }
    on_signals(&[SignalKind::from_raw(FILE_TOO_LARGE)], || {})?;
    cancel_on(&signals, || {})
}

/// The same for a server: SIGINT, SIGTERM and SIGQUIT set the flag. SIGHUP calls `on_hangup`, and
/// SIGUSR1 and SIGUSR2 are logged.
pub fn cancel_server_on_signals(
    on_hangup: impl Fn() + Clone + Send + 'static,
) -> anyhow::Result<Arc<AtomicBool>> {
    on_signals(&[SignalKind::hangup()], on_hangup)?;
    for (kind, name) in [(SignalKind::user_defined1(), "SIGUSR1"), (SignalKind::user_defined2(), "SIGUSR2")] {
        on_signals(&[kind], move || tracing::info!("{name}: has no meaning here, ignored"))?;
    }
    on_signals(&[SignalKind::from_raw(FILE_TOO_LARGE)], || {})?;
    cancel_on(&[SignalKind::interrupt(), SignalKind::terminate(), SignalKind::quit()], || {})
}

/// Returns a flag that these signals set. A second signal calls `at_once` and ends the process;
/// this happens on a separate thread because the others may hang.
pub fn cancel_on(signals: &[SignalKind], at_once: fn()) -> anyhow::Result<Arc<AtomicBool>> {
    let cancel = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&cancel);
    on_signals(signals, move || {
        if flag.swap(true, Ordering::SeqCst) {
            at_once();
            std::process::exit(130);
        }
    })?;
    Ok(cancel)
}

/// Starts a thread that calls `act` whenever one of these signals arrives.
pub fn on_signals(signals: &[SignalKind], act: impl Fn() + Clone + Send + 'static) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for &kind in signals {
        let _inside = runtime.enter();
        let (mut signal, act) = (signal(kind)?, act.clone());
        runtime.spawn(async move {
            while signal.recv().await.is_some() {
                act();
            }
        });
    }
    let wait = move || runtime.block_on(std::future::pending::<()>());
    std::thread::Builder::new().name("signals".into()).spawn(wait)?;
    Ok(())
}

/// Whether the process was started with a signal ignored.
fn is_ignored(kind: SignalKind) -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| is_ignored_in(&status, kind))
}

/// The same from the text of `/proc/self/status` (proc_pid_status(5)).
fn is_ignored_in(status: &str, kind: SignalKind) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (kind.as_raw_value() - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_ignored_in_status_reads_the_bit_of_the_signal() {
        let status = "Name:\tmillrace\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\t0\n";
        assert!(is_ignored_in(status, SignalKind::hangup()));
        assert!(is_ignored_in(status, SignalKind::pipe()));
        assert!(!is_ignored_in(status, SignalKind::interrupt()));
        assert!(
            !is_ignored_in("SigIgn:\tx\n", SignalKind::hangup()) && !is_ignored_in("", SignalKind::hangup())
        );
    }
}
