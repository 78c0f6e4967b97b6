//! The thread of a stack and its IP layer over a wire, with this kernel somewhere at its other end.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use anyhow::Context;
use millrace_core::time::{Instant, NS_PER_S};
use millrace_tcp::conn::TcpCounters;
use millrace_tcp::ip::{self, Incoming, Interface, IpCounters, Outgoing};
use millrace_tcp::stack::{FrameDisposal, Settings, Stack};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A turn at least so often: the application may have something new to do.
const IDLE_NS: u64 = 5_000_000;
/// Frames taken from a device in one turn.
pub(crate) const READS_PER_TURN: usize = 256;

/// What uses a stack.
pub trait Application: Send {
    /// Called once a turn, between input and output.
    fn turn(&mut self, stack: &mut Stack, now: Instant);
}

/// The medium that carries a stack's frames.
pub(crate) trait FrameWire: Send + 'static {
    /// What becomes readable when something comes.
    fn fds(&self) -> Vec<BorrowedFd<'_>>;

    /// When it has something to do by itself.
    fn due(&self) -> Option<Instant> {
        None
    }

    /// Passes the frames that have arrived for the stack to `take`.
    fn receive(&mut self, now: Instant, take: &mut dyn FnMut(&[u8])) -> anyhow::Result<()>;

    /// Takes a frame of the stack. A full device drops, as any does.
    fn send(&mut self, now: Instant, frame: &[u8]);

    /// Called when the turn has handed over all its frames.
    fn flush(&mut self, _now: Instant) {}
}

/// Counters of a stopped stack, and its wire.
pub(crate) struct StoppedStack<W> {
    pub(crate) tcp: TcpCounters,
    pub(crate) ip: IpCounters,
    pub(crate) wire: W,
}

#[derive(Debug, Default)]
struct Orders {
    stop: AtomicBool,
    /// Nanoseconds that the stack's time is ahead.
    leap_ns: AtomicU64,
}

/// A running stack. Its thread ends when it is dropped.
pub(crate) struct RunningStack<W> {
    orders: Arc<Orders>,
    thread: Option<JoinHandle<anyhow::Result<StoppedStack<W>>>>,
}

impl<W: FrameWire> RunningStack<W> {
    pub(crate) fn start(
        settings: &Settings,
        addresses: &ip::Settings,
        wire: W,
        app: impl Application + 'static,
    ) -> anyhow::Result<Self> {
        let orders = Arc::new(Orders::default());
        let mut runner = Runner {
            stack: Stack::new(settings),
            interface: Interface::new(addresses, Instant(1)).context("the stack's interface")?,
            wire,
            app: Box::new(app),
            epoch: std::time::Instant::now(),
            orders: Arc::clone(&orders),
        };
        let thread = std::thread::Builder::new().name("stack".to_owned()).spawn(move || {
            runner.run()?;
            let Runner { stack, interface, wire, .. } = runner;
            Ok(StoppedStack { tcp: *stack.counters(), ip: *interface.counters(), wire })
        });
        Ok(Self { orders, thread: Some(thread.context("a thread")?) })
    }

    /// Lets `ns` nanoseconds pass for the stack at once.
    pub(crate) fn leap(&self, ns: u64) {
        self.orders.leap_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Ends the thread.
    pub(crate) fn stop(mut self) -> anyhow::Result<StoppedStack<W>> {
        self.end().expect("it is stopped once")
    }

    fn end(&mut self) -> Option<anyhow::Result<StoppedStack<W>>> {
        self.orders.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take()?;
        Some(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }
}

impl<W> Drop for RunningStack<W> {
    fn drop(&mut self) {
        // Do not wait for the thread while a panic unwinds.
        self.orders.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take().filter(|_| !std::thread::panicking()) {
            let _ = thread.join();
        }
    }
}

/// The thread.
struct Runner<W> {
    stack: Stack,
    interface: Interface,
    wire: W,
    app: Box<dyn Application>,
    epoch: std::time::Instant,
    orders: Arc<Orders>,
}

impl<W: FrameWire> Runner<W> {
    fn run(&mut self) -> anyhow::Result<()> {
        // The kernel may else put off every wake-up by 50 us.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        let mut frame = vec![0; self.interface.frame_bytes()];
        // It listens before anybody can call.
        let now = self.now();
        self.app.turn(&mut self.stack, now);
        while !self.orders.stop.load(Ordering::Relaxed) {
            self.wait()?;
            let now = self.now();
            self.receive(now)?;
            self.stack.protocol(now);
            self.interface.protocol(now);
            self.app.turn(&mut self.stack, now);
            self.send(now, &mut frame);
            self.wire.flush(self.now());
        }
        Ok(())
    }

    /// Never 0, which is no moment of a stack.
    fn now(&self) -> Instant {
        let passed = u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX / 2);
        Instant(1 + passed + self.orders.leap_ns.load(Ordering::Relaxed))
    }

    fn wait(&self) -> anyhow::Result<()> {
        let now = self.now();
        let next = [self.stack.next_due(now), self.interface.next_due(now), self.wire.due()];
        let wait_ns =
            next.into_iter().flatten().map(|at| at.ns_since(now)).min().unwrap_or(IDLE_NS).min(IDLE_NS);
        let timeout = Timespec {
            tv_sec: (wait_ns / NS_PER_S).cast_signed(),
            tv_nsec: (wait_ns % NS_PER_S).cast_signed(),
        };
        let mut fds: Vec<_> =
            self.wire.fds().into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno).context("wait for frames"),
        }
    }

    fn receive(&mut self, now: Instant) -> anyhow::Result<()> {
        let Self { stack, interface, wire, .. } = self;
        wire.receive(now, &mut |frame| match interface.input(frame, now) {
            Incoming::Segment(arrived) => stack.input(&arrived, now),
            Incoming::Error(error) => stack.icmp(&error, now),
            // No kernel has these addresses, and the interface counts the packets it drops.
            Incoming::Done | Incoming::Dropped | Incoming::ForKernel => {}
        })
    }

    fn send(&mut self, now: Instant, frame: &mut [u8]) {
        let Self { stack, interface, wire, .. } = self;
        stack.output(now, &mut |out| {
            if let Outgoing::Written(bytes) = interface.frame(out, now, frame) {
                wire.send(now, &frame[..bytes]);
            }
            FrameDisposal::Copied
        });
        interface.output(&mut |frame| {
            wire.send(now, frame);
            true
        });
    }
}
