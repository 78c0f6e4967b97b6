//! Whether a thread of the web side still takes up work: it is asked, and counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::runtime::Handle;

/// Shows the progress of a thread. It costs nothing while nothing asks.
#[derive(Debug)]
pub struct WebBeat {
    name: &'static str,
    runtime: Handle,
    asked: AtomicU64,
    answered: Arc<AtomicU64>,
}

impl WebBeat {
    pub(crate) fn new(name: &'static str, runtime: Handle) -> Self {
        Self { name, runtime, asked: AtomicU64::new(0), answered: Arc::default() }
    }

    /// The thread's name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// A number that is another one at each call, as long as the thread takes up work between two calls.
    pub fn count(&self) -> u64 {
        let answered = self.answered.load(Ordering::Relaxed);
        // One question at a time: a thread that is stuck must not have a queue of them.
        if self.asked.load(Ordering::Relaxed) == answered {
            self.asked.fetch_add(1, Ordering::Relaxed);
            let answered = Arc::clone(&self.answered);
            self.runtime.spawn(async move { answered.fetch_add(1, Ordering::Relaxed) });
        }
        answered
    }
}
