//! The task that waits for a host's descriptor.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use ::tokio::io::Interest;
use ::tokio::io::unix::AsyncFd;
use ::tokio::task::{AbortHandle, spawn_local, yield_now};

use crate::toe::host::{Host, HostState};

/// Brings what happens to the sockets of a host to the tasks that wait for it. A clone is the same reactor; it ends when all of them and all sockets
/// made with them are dropped.
#[derive(Clone)]
pub struct Reactor(Rc<SharedHost>);

struct SharedHost {
    host: Host,
    task: AbortHandle,
}

impl fmt::Debug for Reactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reactor").finish_non_exhaustive()
    }
}

impl Drop for SharedHost {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Reactor {
    /// Begins to listen for the host's events, by a task of the `LocalSet` that this is called in.
    ///
    /// # Errors
    /// No descriptor is left.
    ///
    /// # Panics
    /// Outside of a `LocalSet`, and of a runtime with I/O.
    pub fn new(host: &Host) -> io::Result<Self> {
        // The new constructors are `unsafe`: the descriptor must stay open and the same. A
        // descriptor without any other owner does.
        let own = host.readiness().try_clone_to_owned()?;
        #[expect(deprecated)]
        let fd = AsyncFd::with_interest(own, Interest::READABLE)?;
        let task = spawn_local(run(host.clone(), fd)).abort_handle();
        Ok(Self(Rc::new(SharedHost { host: host.clone(), task })))
    }

    /// The host.
    pub fn host(&self) -> &Host {
        &self.0.host
    }
}

/// Takes in events, and sleeps when there are none. While tasks run the engine need not ring: their
/// calls take in events, and so does this once more before it sleeps.
async fn run(host: Host, fd: AsyncFd<OwnedFd>) {
    loop {
        if host.with(HostState::take_news) || host.arm() {
            if host.is_stopped() {
                return host.with(HostState::wake_all);
            }
            host.disarm();
            yield_now().await;
            continue;
        }
        match fd.readable().await {
            Ok(mut guard) => guard.clear_ready(),
            // The runtime ends.
            Err(_) => return,
        }
    }
}
