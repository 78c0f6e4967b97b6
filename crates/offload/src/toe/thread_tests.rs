//! When an engine's thread wakes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use super::*;
use crate::toe::Inbound;

/// A device that receives nothing, and must be called every millisecond.
struct Restless {
    never: OwnedFd,
    flushes: Arc<AtomicU32>,
    now: Instant,
}

impl Device for Restless {
    fn receive(&mut self, _: &mut dyn FnMut(Inbound<'_>)) -> io::Result<bool> {
        Ok(false)
    }

    fn send(&mut self, _: &[u8]) -> io::Result<bool> {
        Ok(true)
    }

    fn flush(&mut self, now: Instant) -> io::Result<bool> {
        self.now = now;
        self.flushes.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        Some(self.never.as_fd())
    }

    fn due(&self) -> Option<Instant> {
        Some(self.now.plus_ns(1_000_000))
    }
}

#[test]
fn device_flush_is_called_when_due_with_and_without_capture() {
    // Without that an idle engine wakes once a second.
    const FLUSHES: u32 = 20;
    const LIMIT: Duration = Duration::from_secs(10);
    let dir = tempfile::tempdir().unwrap();
    for capture in [None, Some(super::super::Capture::to(dir.path().join("x.pcapng"), |_| ()))] {
        let flushes = Arc::new(AtomicU32::new(0));
        let never = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let device = Restless { never, flushes: Arc::clone(&flushes), now: Instant(0) };
        let mut settings = EngineSettings::new(&[("10.0.0.1".parse().unwrap(), 24)]);
        (settings.pairs, settings.capture) = (1, capture);
        let engine = Engine::start(&settings, Box::new(device)).unwrap();
        let begun = std::time::Instant::now();
        while flushes.load(Ordering::Relaxed) < FLUSHES {
            assert!(begun.elapsed() < LIMIT, "{} calls", flushes.load(Ordering::Relaxed));
            std::thread::sleep(Duration::from_millis(1));
        }
        engine.stop().unwrap();
    }
}
