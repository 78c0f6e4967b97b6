//! The engine's thread, and the handle that starts it, hands out queue pairs and stops it. An engine may also have no thread of its own: then a loop
//! turns it beside its other work ([`EngineTx`](super::EngineTx)).

use std::io;
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use millrace_core::limits::toe::{MAX_PAIRS, MAX_SLEEP_NS};
use millrace_core::seam::Clock;
use millrace_core::time::{Instant, NS_PER_S};
use millrace_tcp::conn::TcpCounters;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::capture::Captured;
use super::counters::ToeCounters;
use super::device::Device;
use super::engine::Core;
use super::host::{Home, Host, HostState};
use super::pair::{EngineEnd, PairSettings, pair};
use super::remote::{self, Access, Gate, GateCommand, GatePort, GateSettings, RemotePort};
use super::settings::EngineSettings;
use super::status::CounterSheets;
use crate::affinity;
use crate::bell::EventBell;
use crate::clock::{MonotonicClock, wall_offset_ns};
use crate::thread_priority::wake_promptly;

/// Engines of this program until now: each has a number, so that a connection's name is not
/// mistaken for one of the next engine.
static ENGINES: AtomicU32 = AtomicU32::new(0);

/// A running engine. It ends when this is dropped; threads that wait for it are notified.
pub struct Engine {
    home: Arc<Home>,
    sheets: CounterSheets,
    thread: Option<JoinHandle<io::Result<Stopped>>>,
    /// For [`Engine::serve`], until it is called. Locked only so that threads can share the handle.
    port: Mutex<Option<GatePort>>,
    gate: Option<Gate>,
    pair: PairSettings,
}

/// The final counters of a stopped engine.
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
        let (mut engine, mut turning) = Self::assemble(settings, device, Arc::new(EventBell::new()?))?;
        let cpu = settings.cpu;
        let (begins, begun) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("toe".into()).spawn(move || {
            cpu.map_or(Ok(()), affinity::pin_to)?;
            wake_promptly();
            // Whoever starts it waits for this.
            let _ = begins.send(());
            turning.run()
        })?;
        engine.thread = Some(thread);
        if begun.recv().is_err() {
            engine.stop()?;
            return Err(io::Error::other("the engine's thread has not begun"));
        }
        Ok(engine)
    }

    /// An engine without a thread, for a loop that turns it ([`EngineTx`](super::EngineTx)) and sleeps at this bell.
    ///
    /// # Errors
    /// A setting that cannot be, pairs for other programs among them; no descriptors for the bells.
    pub fn in_loop(
        settings: &EngineSettings,
        device: Box<dyn Device>,
        bell: Arc<EventBell>,
    ) -> io::Result<(Self, Turning)> {
        if settings.remote_pairs > 0 {
            let text =
                "queue pairs for other programs: an engine that a loop turns has none, set remote_pairs to 0";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        Self::assemble(settings, device, bell)
    }

    fn assemble(
        settings: &EngineSettings,
        device: Box<dyn Device>,
        bell: Arc<EventBell>,
    ) -> io::Result<(Self, Turning)> {
        let pairs = settings.pairs.saturating_add(settings.remote_pairs);
        if !(1..=MAX_PAIRS).contains(&pairs) || settings.interface.addresses.is_empty() {
            let text = format!(
                "{pairs} queue pairs and {} addresses: choose 1 to {MAX_PAIRS} pairs, and an address",
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
        let serial = ENGINES.fetch_add(1, Ordering::Relaxed) + 1;
        for number in 0..settings.pairs as u16 {
            let (engine_end, host_end) = pair(&settings.pair)?;
            ends.push(engine_end);
            free.push(HostState::new(number, host_end, Arc::clone(&bell), &settings.pair).of_engine(serial));
        }
        for _ in 0..settings.remote_pairs {
            ends.push(EngineEnd::nobody(Arc::clone(&bell))?);
        }
        let (port, remote) = remote::ports(settings.pairs as u16, settings.remote_pairs as u16)?;
        let addresses = settings.interface.addresses.iter().map(|of| (of.ip, of.prefix)).collect();
        let home = Home::new(bell, addresses, free).with_ports(settings.own_ports().cloned());
        let home = Arc::new(home);
        let sheets = CounterSheets::default();
        let turning = Turning {
            core: Core::new(settings, ends, MonotonicClock.now())?.numbered(serial),
            device,
            home: Arc::clone(&home),
            remote: Some(remote),
            sheets: sheets.clone(),
            shown: 0,
            poll_ns: settings.poll_ns,
        };
        let (port, pair) = (Mutex::new(Some(port)), settings.pair.clone());
        let engine = Self { home, sheets, thread: None, port, gate: None, pair };
        Ok((engine, turning))
    }

    /// Lets other programs have queue pairs: those that connect to the Unix socket `path` ([`connect`](super::connect)), which this makes. Each thread
    /// of them takes one of the settings' `remote_pairs`. Without such pairs they can only ask for its [`status`](super::status).
    ///
    /// # Errors
    /// Another engine listens there, the socket cannot be made; it serves one already.
    pub fn serve(&mut self, path: &Path, access: Access) -> io::Result<()> {
        let Some(port) = self.port.get_mut().unwrap_or_else(PoisonError::into_inner).take() else {
            let text = "an engine serves one socket";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        };
        let (addresses, ports) = (self.home.addresses.clone(), self.home.ports.clone());
        let settings = GateSettings { pair: self.pair.clone(), addresses, ports, access };
        self.gate =
            Some(Gate::start(path, settings, port, Arc::clone(&self.home.bell), self.sheets.clone())?);
        Ok(())
    }

    /// A queue pair for this thread.
    ///
    /// # Errors
    /// All are taken.
    pub fn attach(&self) -> io::Result<Host> {
        let state = self.home.take_free();
        let none = || {
            let text =
                "every queue pair of the offload engine is taken: drop a host, or start it with more pairs";
            io::Error::new(io::ErrorKind::ResourceBusy, text)
        };
        state.map(|state| Host::new(state, Arc::clone(&self.home))).ok_or_else(none)
    }

    /// Returns the engine's counters, at most a turn old.
    pub fn counters(&self) -> ToeCounters {
        self.sheets.engine()
    }

    /// Returns the same, and the counters of its TCP, its IP layer and its socket; for monitoring.
    pub fn sheets(&self) -> &CounterSheets {
        &self.sheets
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
        // No program can connect any more.
        self.gate = None;
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

/// An engine for the code that turns it: its thread, or a loop. When dropped, it notifies all hosts
/// that there is no engine any more.
pub struct Turning {
    pub(super) core: Core,
    pub(super) device: Box<dyn Device>,
    pub(super) home: Arc<Home>,
    /// Pairs of other processes that come and go.
    pub(super) remote: Option<RemotePort>,
    pub(super) sheets: CounterSheets,
    /// The work that was shown last.
    pub(super) shown: u64,
    pub(super) poll_ns: u64,
}

impl Drop for Turning {
    fn drop(&mut self) {
        // However it ends: no thread waits for an engine that is gone.
        self.core.stop();
    }
}

impl Turning {
    fn run(&mut self) -> io::Result<Stopped> {
        // The kernel may else put off every wake-up by 50 us.
        let _ = rustix::thread::set_current_timer_slack(Some(NonZeroU64::MIN));
        let mut active = MonotonicClock.now();
        while !self.home.is_stopping() {
            let now = MonotonicClock.now();
            self.turn_gate(now);
            self.core.turn(&mut *self.device, now)?;
            if self.publish() > 0 {
                active = now;
            } else if now.ns_since(active) < self.poll_ns {
                std::hint::spin_loop();
            } else {
                self.sleep(now);
            }
        }
        Ok(Stopped { engine: self.core.counters, stack: *self.core.stack().counters() })
    }

    /// Shows the counters; how much has been done since the last time.
    pub(super) fn publish(&mut self) -> u64 {
        let Core { counters, .. } = &self.core;
        self.sheets.publish_engine(counters);
        let done = counters.packets_in + counters.packets_passed + counters.packets_out + counters.requests;
        let work = done - std::mem::replace(&mut self.shown, done);
        if work > 0 {
            self.sheets.publish_layers(self.core.stack().counters(), self.core.interface().counters());
        }
        work
    }

    /// Whether the gate wants something.
    pub(super) fn is_asked(&self) -> bool {
        self.remote.as_ref().is_some_and(RemotePort::has_commands)
    }

    /// Takes in hosts of other processes, and lets go of those that are gone.
    pub(super) fn turn_gate(&mut self, now: Instant) {
        let Some(remote) = &mut self.remote else { return };
        while let Some(command) = remote.next() {
            match command {
                GateCommand::Join(pair, end) => self.core.join_host(pair, end),
                GateCommand::Leave(pair, nobody) => self.core.leave_host(pair, nobody, now),
                GateCommand::Survey(mut survey) => {
                    self.core.survey(&mut survey, now);
                    remote.answer(survey);
                }
            }
        }
        while remote.has_room()
            && let Some((pair, end)) = self.core.take_departed()
        {
            remote.give_back(pair, end);
        }
    }

    /// When there is something to do even if nothing comes in.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        [self.core.next_due(now), self.device.due()].into_iter().flatten().min()
    }

    /// Sleeps until a packet comes, a host rings or a timer is due.
    fn sleep(&mut self, now: Instant) {
        let due_ns = self.next_due(now).map_or(MAX_SLEEP_NS, |due| due.ns_since(now).min(MAX_SLEEP_NS));
        if due_ns == 0 || self.device.readable().is_none() {
            return;
        }
        let bell = &self.home.bell;
        bell.announce_sleep();
        self.core.announce_sleep();
        if self.is_asked() || self.core.has_requests() || self.home.is_stopping() {
            bell.awake();
            return self.core.awake(&[]);
        }
        self.core.counters.sleeps += 1;
        self.wait(due_ns);
    }

    /// Waits for the engine's bell, its device, and the bells of hosts of other processes.
    fn wait(&mut self, limit_ns: u64) {
        let bell = &self.home.bell;
        let mut fds = [(); MAX_PAIRS + 2].map(|()| PollFd::from_borrowed_fd(bell.fd(), PollFlags::IN));
        let mut count = 1;
        for fd in self.device.readable().into_iter().chain(self.core.doorbells()) {
            fds[count] = PollFd::from_borrowed_fd(fd, PollFlags::IN);
            count += 1;
        }
        let limit = Timespec { tv_sec: (limit_ns / NS_PER_S) as i64, tv_nsec: (limit_ns % NS_PER_S) as i64 };
        // An interrupted poll is an early wake-up: the loop looks for work and comes back.
        let is_woken = poll(&mut fds[..count], Some(&limit)).is_ok_and(|count| count > 0);
        let is_ready = fds.each_ref().map(|fd| is_woken && !fd.revents().is_empty());
        bell.awake();
        if is_ready[0] {
            bell.clear();
        }
        self.core.awake(&is_ready[2..count]);
    }
}

#[cfg(test)]
#[path = "thread_tests.rs"]
mod tests;
