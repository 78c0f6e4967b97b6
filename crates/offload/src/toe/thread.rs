//! The engine's thread, and the handle that starts it, hands out queue pairs and stops it. An engine may also have no thread of its own: then a loop
//! turns it beside its other work ([`EngineTx`](super::EngineTx)).

use std::io;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use millrace_core::counters::Sheet;
use millrace_core::limits::toe::{MAX_PAIRS, MAX_SLEEP_NS};
use millrace_core::seam::Clock;
use millrace_core::time::Instant;
use millrace_tcp::conn::TcpCounters;

use super::capture::Captured;
use super::device::Device;
use super::engine::Core;
use super::host::{Host, HostState};
use super::pair::pair;
use super::{EngineSettings, ToeCounters};
use crate::affinity;
use crate::bell::EventBell;
use crate::clock::{MonotonicClock, wall_offset_ns};

/// What hosts and the handle share; the engine's thread never looks at the list.
pub(super) struct Home {
    pub(super) bell: Arc<EventBell>,
    free: Mutex<Vec<HostState>>,
    stop: AtomicBool,
    /// Why an engine without a thread of its own has ended.
    end: OnceLock<String>,
}

impl Home {
    pub(super) fn new(bell: Arc<EventBell>, free: Vec<HostState>) -> Self {
        Self { bell, free: Mutex::new(free), stop: AtomicBool::new(false), end: OnceLock::new() }
    }

    /// Whether its handle has stopped it.
    pub(super) fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Its handle wants no more of it.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.bell.ring();
    }

    /// Why it has ended that had no thread.
    pub(super) fn end(&self) -> Option<&str> {
        self.end.get().map(String::as_str)
    }

    /// Whoever turned it has given it up.
    pub(super) fn ended(&self, why: String) {
        let _ = self.end.set(why);
    }

    /// A host's thread has no more use for its pair. What it has closed may still be on its way.
    pub(super) fn take_back(&self, state: HostState) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(state);
    }
}

/// A running engine. It ends when this is dropped; threads that wait for it are told.
pub struct Engine {
    home: Arc<Home>,
    sheet: Arc<Sheet<ToeCounters>>,
    thread: Option<JoinHandle<io::Result<Stopped>>>,
}

/// What an engine has done that was stopped.
#[derive(Clone, Copy, Debug)]
pub struct Stopped {
    /// The engine itself.
    pub engine: ToeCounters,
    /// Its stack.
    pub stack: TcpCounters,
}

impl Engine {
    /// Starts the thread. Everything that the engine will ever need is allocated before this returns.
    ///
    /// # Errors
    /// A setting that cannot be; no thread, or no descriptors for the bells.
    pub fn start(settings: &EngineSettings, device: Box<dyn Device>) -> io::Result<Self> {
        let (mut engine, mut turning) = Self::in_loop(settings, device, Arc::new(EventBell::new()?))?;
        let cpu = settings.cpu;
        let thread = std::thread::Builder::new().name("toe".into()).spawn(move || {
            cpu.map_or(Ok(()), affinity::pin_to)?;
            turning.run()
        })?;
        engine.thread = Some(thread);
        Ok(engine)
    }

    /// An engine without a thread, for a loop that turns it ([`EngineTx`](super::EngineTx)) and sleeps at this bell.
    ///
    /// # Errors
    /// A setting that cannot be, or no descriptors for the bells.
    pub fn in_loop(
        settings: &EngineSettings,
        device: Box<dyn Device>,
        bell: Arc<EventBell>,
    ) -> io::Result<(Self, Turning)> {
        if !(1..=MAX_PAIRS).contains(&settings.pairs) || settings.interface.addresses.is_empty() {
            let text = format!(
                "{} queue pairs and {} addresses: choose 1 to {MAX_PAIRS} pairs, and an address",
                settings.pairs,
                settings.interface.addresses.len()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let device: Box<dyn Device> = match &settings.capture {
            Some(to) => {
                let link = settings.interface.link;
                Box::new(Captured::open(device, to, link, MonotonicClock, wall_offset_ns())?)
            }
            None => device,
        };
        let (mut ends, mut free) = (Vec::new(), Vec::new());
        for number in 0..settings.pairs as u16 {
            let (engine_end, host_end) = pair(&settings.pair)?;
            ends.push(engine_end);
            free.push(HostState::new(number, host_end, Arc::clone(&bell), &settings.pair));
        }
        let home = Arc::new(Home::new(bell, free));
        let sheet = Arc::new(Sheet::default());
        let turning = Turning {
            core: Core::new(settings, ends, MonotonicClock.now())?,
            device,
            home: Arc::clone(&home),
            sheet: Arc::clone(&sheet),
            poll_ns: settings.poll_ns,
        };
        Ok((Self { home, sheet, thread: None }, turning))
    }

    /// A queue pair for this thread.
    ///
    /// # Errors
    /// All are taken.
    pub fn attach(&self) -> io::Result<Host> {
        let state = self.home.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let none = || {
            let text =
                "every queue pair of the offload engine is taken: drop a host, or start it with more pairs";
            io::Error::new(io::ErrorKind::ResourceBusy, text)
        };
        state.map(|state| Host::new(state, Arc::clone(&self.home))).ok_or_else(none)
    }

    /// What it has done so far, as it was at most a turn ago.
    pub fn counters(&self) -> ToeCounters {
        self.sheet.read()
    }

    /// Whether it has ended: it was its device, or it was stopped.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().map_or(self.home.end().is_some(), JoinHandle::is_finished)
    }

    /// Why an engine has ended that a loop turned; `None`: it has not.
    pub fn end(&self) -> Option<&str> {
        self.home.end()
    }

    /// Ends the thread. Connections are not closed: their peers find out when they send.
    ///
    /// # Errors
    /// Why it had ended before: the device's error.
    pub fn stop(mut self) -> io::Result<Stopped> {
        self.finish().unwrap_or_else(|| Err(io::Error::other("the engine was stopped before")))
    }

    fn finish(&mut self) -> Option<io::Result<Stopped>> {
        self.home.stop();
        let thread = self.thread.take()?;
        Some(thread.join().unwrap_or_else(|_| Err(io::Error::other("the engine's thread has panicked"))))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Why it ended can be asked by stopping it.
        let _ = self.finish();
    }
}

/// An engine for whoever turns it: its thread, or a loop. Dropped, it tells all hosts that there is no engine any more.
pub struct Turning {
    pub(super) core: Core,
    pub(super) device: Box<dyn Device>,
    pub(super) home: Arc<Home>,
    pub(super) sheet: Arc<Sheet<ToeCounters>>,
    pub(super) poll_ns: u64,
}

impl Drop for Turning {
    fn drop(&mut self) {
        // However it ends: nobody waits for an engine that is no more.
        self.core.stop();
    }
}

impl Turning {
    fn run(&mut self) -> io::Result<Stopped> {
        // The kernel may else put off every wake-up by 50 us.
        let _ = rustix::thread::set_current_timer_slack(Some(NonZeroU64::MIN));
        let mut active = MonotonicClock.now();
        let mut seen = 0;
        while !self.home.is_stopping() {
            let now = MonotonicClock.now();
            self.core.turn(&mut *self.device, now)?;
            let counters = &self.core.counters;
            let work =
                counters.packets_in + counters.packets_passed + counters.packets_out + counters.requests;
            self.sheet.publish(counters);
            if work != seen {
                (seen, active) = (work, now);
            } else if now.ns_since(active) < self.poll_ns {
                std::hint::spin_loop();
            } else {
                self.sleep(now);
            }
        }
        Ok(Stopped { engine: self.core.counters, stack: *self.core.stack().counters() })
    }

    /// Sleeps until a packet comes, a host rings or a timer is due.
    fn sleep(&mut self, now: Instant) {
        let due_ns = self.core.next_due(now).map_or(MAX_SLEEP_NS, |due| due.ns_since(now).min(MAX_SLEEP_NS));
        let Some(readable) = self.device.readable().filter(|_| due_ns > 0) else { return };
        let bell = &self.home.bell;
        bell.announce_sleep();
        if self.core.has_requests() || self.home.is_stopping() {
            return bell.awake();
        }
        self.core.counters.sleeps += 1;
        bell.sleep_beside([Some(readable), None], Some(Duration::from_nanos(due_ns)));
    }
}
