//! The control side's end of an engine: start it, talk to it, stop it.

use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::thread::JoinHandle;

use millrace_core::limits::RING_RECORDS;
use millrace_core::seam::Clock;
use millrace_engine::Engine;
pub use millrace_engine::EngineConfig;
use millrace_store::cache::CacheHandle;

use crate::adaptive_burst::AdaptiveBurst;
use crate::affinity;
use crate::bell::EventBell;
use crate::command::{Command, Event};
use crate::core_loop::CoreLoop;
use crate::idle::IdlePolicy;
use crate::load::{LoadMeter, LoopSheets};
use crate::loop_tx::LoopTx;
use crate::thread_priority;

/// How an engine's thread runs.
#[derive(Clone, Debug, Default)]
pub struct ThreadConfig {
    /// Its number, for its name.
    pub number: usize,
    /// Core to pin it to.
    pub cpu: Option<usize>,
    /// Its behavior when there is nothing to do.
    pub idle: IdlePolicy,
    /// Media time in a burst when the core is busy, in nanoseconds; [`EngineConfig::burst_ns`] is
    /// the length of a burst while there is time to spare. If this is not greater, bursts keep one
    /// length.
    pub busy_burst_ns: u64,
}

/// How a thread has shared its core with others, as sums since the thread started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreTime {
    /// Time in which the thread ran on the core.
    pub running_ns: u64,
    /// Time in which the thread was ready to run while others held the core.
    pub waited_ns: u64,
}

/// An engine that runs on its own thread.
pub struct EngineHandle {
    commands: rtrb::Producer<Command>,
    events: rtrb::Consumer<Event>,
    engine_bell: Arc<EventBell>,
    control_bell: Arc<EventBell>,
    sheets: LoopSheets,
    /// The scheduler statistics of its thread; read many times, opened once.
    schedstat: Option<File>,
    thread: Option<JoinHandle<()>>,
}

impl EngineHandle {
    /// Starts the thread. `bell` is the one that the cache's handle rings too.
    ///
    /// # Errors
    /// When the thread cannot be started, or not be pinned to `thread.cpu`.
    pub fn start<C, T>(
        thread: ThreadConfig,
        engine: EngineConfig,
        clock: C,
        handle: CacheHandle,
        tx: T,
        bell: Arc<EventBell>,
    ) -> std::io::Result<Self>
    where
        C: Clock + Send + 'static,
        T: LoopTx + 'static,
    {
        let (commands, command_end) = rtrb::RingBuffer::new(RING_RECORDS);
        let (event_end, events) = rtrb::RingBuffer::new(RING_RECORDS);
        let control_bell = Arc::new(EventBell::new()?);
        // The control side watches the bell's descriptor all the time, so it always counts as asleep for it.
        control_bell.announce_sleep();
        let sheets = LoopSheets::default();
        let meter = LoadMeter::new(sheets.clone(), clock.now());
        let adaptive_burst = AdaptiveBurst::new(engine.burst_ns, thread.busy_burst_ns, clock.now());
        let (loop_bell, answer_bell) = (Arc::clone(&bell), Arc::clone(&control_bell));
        let (ready, is_ready) = std::sync::mpsc::channel();
        let handle =
            std::thread::Builder::new().name(format!("engine-{}", thread.number)).spawn(move || {
                let pinned = thread.cpu.map_or(Ok(()), affinity::pin_to);
                let go = pinned.is_ok();
                thread_priority::wake_promptly();
                let tid = rustix::thread::gettid().as_raw_nonzero().get();
                if ready.send(pinned.map(|()| tid)).is_err() || !go {
                    return;
                }
                let engine = Engine::new(engine);
                let mut core = CoreLoop::new(
                    clock,
                    engine,
                    handle,
                    tx,
                    command_end,
                    event_end,
                    answer_bell,
                    loop_bell,
                    thread.idle,
                    meter,
                    adaptive_burst,
                );
                core.run();
            })?;
        let tid = is_ready.recv().map_err(std::io::Error::other)??;
        let schedstat = File::open(format!("/proc/self/task/{tid}/schedstat")).ok();
        let thread = Some(handle);
        Ok(Self { commands, events, engine_bell: bell, control_bell, sheets, schedstat, thread })
    }

    /// Hands over a command, and wakes the engine.
    ///
    /// # Errors
    /// As of [`EngineHandle::push`].
    #[allow(clippy::result_large_err)] // a command is one cache line by design
    pub fn send(&mut self, command: Command) -> Result<(), Command> {
        self.push(command)?;
        self.ring();
        Ok(())
    }

    /// Hands over a command. An engine that sleeps finds it when it wakes: [`EngineHandle::ring`] behind the last of several.
    ///
    /// # Errors
    /// Gives the command back when the ring is full or the engine's thread is gone: try again after its events.
    #[allow(clippy::result_large_err)] // a command is one cache line by design
    pub fn push(&mut self, command: Command) -> Result<(), Command> {
        if self.commands.is_abandoned() {
            return Err(command);
        }
        self.commands.push(command).map_err(|rtrb::PushError::Full(command)| command)
    }

    /// Wakes the engine, if it sleeps.
    pub fn ring(&self) {
        self.engine_bell.ring();
    }

    /// The next event, if any.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop().ok()
    }

    /// Readable when there may be events. Call [`EngineHandle::rearm`] before polling them to the end.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.control_bell.fd()
    }

    /// Makes [`EngineHandle::event_fd`] quiet until the next event; events polled after this call are not missed.
    pub fn rearm(&self) {
        self.control_bell.clear();
        self.control_bell.announce_sleep();
    }

    /// Returns the sheets where other threads can read the engine's activity.
    pub fn sheets(&self) -> LoopSheets {
        self.sheets.clone()
    }

    /// Returns the core time that the kernel has counted for the engine's thread; `None` if the
    /// kernel does not count it.
    pub fn core_time(&self) -> Option<CoreTime> {
        // Three numbers of 64 bits.
        let mut bytes = [0; 64];
        let len = self.schedstat.as_ref()?.read_at(&mut bytes, 0).ok()?;
        let text = std::str::from_utf8(&bytes[..len]).ok()?;
        // Time on the processor, time waiting for it, time slices (Documentation/scheduler/sched-stats.rst).
        let mut numbers = text.split(' ').map(|number| number.parse().ok());
        let (running_ns, waited_ns) = (numbers.next()??, numbers.next()??);
        (running_ns > 0).then_some(CoreTime { running_ns, waited_ns })
    }

    /// Whether the engine's thread has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Stops the loop after all commands before this one; waits for the thread.
    pub fn stop(mut self) {
        self.shut_down();
    }

    fn shut_down(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        let mut stop = Command::Stop;
        while let Err(back) = self.send(stop) {
            if thread.is_finished() {
                break;
            }
            // The loop may wait for room in the event ring before it takes a command.
            while self.events.pop().is_ok() {}
            std::thread::yield_now();
            stop = back;
        }
        while !thread.is_finished() {
            while self.events.pop().is_ok() {}
            std::thread::yield_now();
        }
        // A panic of the loop was already printed by its thread; there is nowhere left to report
        // it.
        let _ = thread.join();
    }
}

impl Drop for EngineHandle {
    fn drop(&mut self) {
        self.shut_down();
    }
}
