//! Requests to read the settings again: by SIGHUP, and by callers of the API that expect the outcome.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_web::ReloadReport;
use tokio::sync::oneshot;

use crate::limits::control::MAX_WAITING_RELOADS;

/// Shared by the signal handler, the web side and the thread that reads the settings.
#[derive(Debug, Default)]
pub(super) struct ReloadRequests {
    by_signal: AtomicBool,
    callers: Mutex<Callers>,
}

#[derive(Debug, Default)]
struct Callers {
    waiting: Vec<oneshot::Sender<Arc<ReloadReport>>>,
    last: Arc<ReloadReport>,
}

/// Requests that one reload answers: all that came before it began.
#[derive(Debug)]
pub(super) struct TakenRequests {
    pub(super) by_signal: bool,
    pub(super) waiting: Vec<oneshot::Sender<Arc<ReloadReport>>>,
}

impl ReloadRequests {
    fn lock(&self) -> MutexGuard<'_, Callers> {
        // Each change is one call on a list or one assignment: a panic elsewhere cannot leave it half done.
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A signal has come.
    pub(super) fn signal(&self) {
        self.by_signal.store(true, Ordering::Relaxed);
    }

    /// Asks for the settings to be read again; the receiver gets the outcome. `None`: too many callers wait.
    pub(super) fn request(&self) -> Option<oneshot::Receiver<Arc<ReloadReport>>> {
        let mut callers = self.lock();
        // Callers that have gone make room.
        callers.waiting.retain(|waiting| !waiting.is_closed());
        if callers.waiting.len() >= MAX_WAITING_RELOADS {
            return None;
        }
        let (outcome, receiver) = oneshot::channel();
        callers.waiting.push(outcome);
        Some(receiver)
    }

    /// The outcome of the last reload.
    pub(super) fn last(&self) -> Arc<ReloadReport> {
        Arc::clone(&self.lock().last)
    }

    /// Takes the requests that have come; `None`: there are none.
    pub(super) fn take(&self) -> Option<TakenRequests> {
        let by_signal = self.by_signal.swap(false, Ordering::Relaxed);
        let waiting = std::mem::take(&mut self.lock().waiting);
        (by_signal || !waiting.is_empty()).then_some(TakenRequests { by_signal, waiting })
    }

    /// Gives the outcome to all whose requests it answers, and keeps it.
    pub(super) fn answer(&self, taken: TakenRequests, report: ReloadReport) {
        let report = Arc::new(report);
        self.lock().last = Arc::clone(&report);
        for caller in taken.waiting {
            // The caller may have gone.
            let _ = caller.send(Arc::clone(&report));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(at: u64) -> ReloadReport {
        ReloadReport { at_unix_s: Some(at), ..ReloadReport::default() }
    }

    #[test]
    fn answer_reaches_every_caller_that_came_before_the_reload() {
        let requests = ReloadRequests::default();
        assert!(requests.take().is_none());
        let mut before: Vec<_> = (0..3).map(|_| requests.request().unwrap()).collect();
        // One caller has gone.
        drop(before.pop());
        let taken = requests.take().unwrap();
        assert_eq!((taken.by_signal, taken.waiting.len()), (false, 3));
        let mut later = requests.request().unwrap();
        requests.answer(taken, report(1));
        for mut receiver in before {
            assert_eq!(*receiver.try_recv().unwrap(), report(1));
        }
        later.try_recv().unwrap_err();
        assert_eq!(*requests.last(), report(1));
        requests.signal();
        let taken = requests.take().unwrap();
        assert!(taken.by_signal);
        requests.answer(taken, report(2));
        assert_eq!(*later.try_recv().unwrap(), report(2));
        assert!(requests.take().is_none());
    }

    #[test]
    fn request_beyond_the_limit_is_refused_until_callers_go() {
        let requests = ReloadRequests::default();
        let mut waiting: Vec<_> = (0..MAX_WAITING_RELOADS).map(|_| requests.request().unwrap()).collect();
        assert!(requests.request().is_none());
        drop(waiting.pop());
        waiting.push(requests.request().unwrap());
        assert!(requests.request().is_none());
    }
}
