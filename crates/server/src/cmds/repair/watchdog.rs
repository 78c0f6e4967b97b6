//! Work on disks that ends although one of them does not answer.
//!
//! Reads have a limit of their own in the store, and go on without the disk. Writes must not, so a
//! separate thread does the whole work and gives signs of life. If it gives none for too long, it
//! is abandoned and the command ends; the work done until then is as if the machine had stopped
//! there.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::anyhow;
use millrace_core::units::HumanDuration;
use millrace_store::disk::{DiskInterceptor, Op};

use crate::limits::control::WATCHDOG_LOOK_EVERY;

/// Signs of life.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    beats: AtomicU64,
    /// The current operation on a disk, and its path.
    doing: Mutex<Option<(&'static str, PathBuf)>>,
}

impl Pulse {
    /// Something was done.
    pub(super) fn beat(&self) {
        self.beats.fetch_add(1, Ordering::Relaxed);
    }

    fn set(&self, doing: Option<(&'static str, PathBuf)>) {
        *self.doing.lock().unwrap_or_else(PoisonError::into_inner) = doing;
        self.beat();
    }
}

impl DiskInterceptor for Pulse {
    fn run(&self, op: &Op<'_>, perform: &mut dyn FnMut(usize) -> io::Result<()>) -> io::Result<()> {
        let (name, path) = op.name();
        self.set(Some((name, path.to_path_buf())));
        let done = perform(usize::MAX);
        self.set(None);
        done
    }
}

/// Does `work` on another thread, as long as there is a sign of life every `limit`.
pub(super) fn wait<T: Send + 'static>(
    pulse: &Arc<Pulse>,
    limit: Duration,
    work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    let (done, result) = channel();
    // A result that comes too late has no receiver.
    let run = move || drop(done.send(work()));
    std::thread::Builder::new().name("disks".into()).spawn(run)?;
    let (mut seen, mut silent) = (0, Duration::ZERO);
    loop {
        match result.recv_timeout(WATCHDOG_LOOK_EVERY.min(limit)) {
            Ok(result) => return result,
            Err(RecvTimeoutError::Disconnected) => return Err(anyhow!("it ended without a result")),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let now = pulse.beats.load(Ordering::Relaxed);
        silent = if now == seen { silent + WATCHDOG_LOOK_EVERY.min(limit) } else { Duration::ZERO };
        seen = now;
        if silent >= limit {
            return Err(stuck(pulse, limit));
        }
    }
}

fn stuck(pulse: &Pulse, limit: Duration) -> anyhow::Error {
    let doing = pulse.doing.lock().unwrap_or_else(PoisonError::into_inner);
    let what = match &*doing {
        Some((name, path)) => format!("{}: {name}: the disk", path.display()),
        None => "a disk of the volume".to_owned(),
    };
    anyhow!(
        "{what} has not answered for {} and hangs; completed work is kept. Look for kernel messages about it (dmesg), replace it \
         if it does not recover (millrace volume replace), and start this again",
        HumanDuration(limit)
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use millrace_store::disk::Disk;

    use super::*;

    /// A disk that hangs until the other end is dropped.
    #[derive(Debug)]
    struct Hangs(Arc<Pulse>, Mutex<std::sync::mpsc::Receiver<()>>);

    impl DiskInterceptor for Hangs {
        fn run(&self, op: &Op<'_>, perform: &mut dyn FnMut(usize) -> io::Result<()>) -> io::Result<()> {
            self.0.run(op, &mut |most| {
                let _ = self.1.lock().unwrap().recv();
                perform(most)
            })
        }
    }

    #[test]
    fn wait_for_hanging_write_times_out_and_names_path() {
        let (hold, held) = channel();
        let pulse = Arc::new(Pulse::default());
        let disk = Disk::watched(Arc::new(Hangs(Arc::clone(&pulse), Mutex::new(held))));
        let work = move || Ok(disk.create_dir(Path::new("/nonexistent/disk1/new"))?);
        let error = wait(&pulse, Duration::from_millis(200), work).unwrap_err().to_string();
        assert!(error.starts_with("/nonexistent/disk1/new: create directory: the disk has not"), "{error}");
        assert!(error.contains("200ms"), "{error}");
        drop(hold);
    }

    #[test]
    fn work_that_lives_may_take_longer_than_the_limit() {
        let pulse = Arc::new(Pulse::default());
        let (limit, beating) = (Duration::from_millis(400), Arc::clone(&pulse));
        let work = move || {
            for _ in 0..40 {
                beating.beat();
                std::thread::sleep(Duration::from_millis(25));
            }
            Ok(7)
        };
        assert_eq!(wait(&pulse, limit, work).unwrap(), 7);
        let failing = || Err::<(), _>(anyhow!("no"));
        assert_eq!(wait(&pulse, limit, failing).unwrap_err().to_string(), "no");
    }
}
