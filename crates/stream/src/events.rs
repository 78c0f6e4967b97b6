//! The one thread beside the engines: it receives their events, watches the control descriptors of
//! all runs, and reads the UDP ports.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use millrace_core::ids::RunSerial;
use millrace_core::seam::Clock;
use millrace_offload::clock::MonotonicClock;
use millrace_offload::{IcmpReader, UdpPair};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use crate::calls::ContextKey;
use crate::engine::SharedEngine;
use crate::limits::{COMMAND_RETRY, DROPPED_PER_TURN, READY_PER_CALL, SHUT_DOWN_WAIT};
use crate::outcome::Reason;

/// Bits of the data stored with a watched descriptor: its kind, a part of the run's number, the
/// rest.
const KIND_SHIFT: u32 = 56;
const RUN_SHIFT: u32 = 32;
const RUN_MASK: u32 = (1 << (KIND_SHIFT - RUN_SHIFT)) - 1;

/// Kind of a watched descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WatchedDescriptor {
    /// This engine has something to say.
    Engine(usize),
    /// The control descriptor of a run, with the lower bits of its number.
    Control(ContextKey, u32),
    /// One of the UDP sockets.
    Udp(usize),
    /// Another thread wants this thread to look.
    Wake,
}

impl WatchedDescriptor {
    fn data(self) -> EventData {
        let (kind, run, rest) = match self {
            Self::Engine(engine) => (0, 0, engine as u64),
            Self::Control(key, run) => (1, run, u64::from(key)),
            Self::Udp(socket) => (2, 0, socket as u64),
            Self::Wake => (3, 0, 0),
        };
        let run = u64::from(run & RUN_MASK);
        EventData::new_u64(kind << KIND_SHIFT | run << RUN_SHIFT | rest)
    }

    fn of(data: EventData) -> Self {
        let (data, rest) = (data.u64(), data.u64() as u32);
        let run = (data >> RUN_SHIFT) as u32 & RUN_MASK;
        match data >> KIND_SHIFT {
            0 => Self::Engine(rest as usize),
            1 => Self::Control(rest, run),
            2 => Self::Udp(rest as usize),
            _ => Self::Wake,
        }
    }
}

/// The descriptors that are watched.
pub(crate) struct DescriptorWatch(OwnedFd);

impl DescriptorWatch {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self(epoll::create(CreateFlags::CLOEXEC)?))
    }

    fn add(&self, fd: BorrowedFd<'_>, what: WatchedDescriptor, flags: EventFlags) -> std::io::Result<()> {
        Ok(epoll::add(&self.0, fd, what.data(), flags)?)
    }

    pub(crate) fn engine(&self, number: usize, fd: BorrowedFd<'_>) -> std::io::Result<()> {
        self.add(fd, WatchedDescriptor::Engine(number), EventFlags::IN)
    }

    pub(crate) fn wake(&self, fd: BorrowedFd<'_>) -> std::io::Result<()> {
        self.add(fd, WatchedDescriptor::Wake, EventFlags::IN)
    }

    /// Adds a control descriptor, if it can be watched. Input that is present now is reported when
    /// it is armed.
    pub(crate) fn prepare(&self, fd: &OwnedFd) -> std::io::Result<()> {
        self.add(fd.as_fd(), WatchedDescriptor::Wake, EventFlags::ONESHOT)
    }

    /// Arms a control descriptor: input that is present or arrives is reported once.
    pub(crate) fn arm(&self, fd: &OwnedFd, key: ContextKey, run: RunSerial) -> std::io::Result<()> {
        let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ONESHOT;
        Ok(epoll::modify(&self.0, fd, WatchedDescriptor::Control(key, run.0).data(), flags)?)
    }

    pub(crate) fn forget(&self, fd: &OwnedFd) {
        // It is there: it was prepared.
        let _ = epoll::delete(&self.0, fd);
    }
}

/// Input of the UDP ports: reports of players, which are not read, and ICMP errors for them, which
/// go to the engines.
pub(crate) struct Receivers {
    sockets: Vec<UdpSocket>,
}

impl Receivers {
    pub(crate) fn new(pairs: Vec<UdpPair>) -> Self {
        Self { sockets: pairs.into_iter().flat_map(|pair| [pair.rtp, pair.rtcp]).collect() }
    }

    pub(crate) fn watch(&self, watch: &DescriptorWatch) -> std::io::Result<()> {
        let add = |(number, socket): (usize, &UdpSocket)| {
            watch.add(socket.as_fd(), WatchedDescriptor::Udp(number), EventFlags::IN)
        };
        self.sockets.iter().enumerate().try_for_each(add)
    }

    fn take(&self, shared: &SharedEngine, icmp: &mut IcmpReader, number: usize) {
        let Some(socket) = self.sockets.get(number) else { return };
        let mut unreachable = Vec::new();
        icmp.read(socket, |dest, errno| unreachable.push((dest, errno)));
        unreachable.sort_unstable();
        unreachable.dedup_by_key(|(dest, _)| *dest);
        if !unreachable.is_empty() {
            shared.locked(|calls| {
                unreachable.iter().for_each(|&(dest, errno)| calls.unreachable(dest, errno));
            });
        }
        // Only the length of a datagram could be of interest, and it is not either.
        let mut byte = [0];
        for _ in 0..DROPPED_PER_TURN {
            // An ICMP error comes up once more as an error of the whole socket; reading it has cleared it.
            if socket.recv(&mut byte).is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {
                break;
            }
        }
    }
}

/// Runs until the engine is shut down, and all runs have ended as a result.
pub(crate) fn run(shared: &SharedEngine, receivers: &Receivers) {
    let mut icmp = IcmpReader::default();
    let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; READY_PER_CALL];
    let retry = Timespec { tv_sec: 0, tv_nsec: COMMAND_RETRY.subsec_nanos().into() };
    let mut gives_up = None;
    loop {
        let is_stopping = shared.is_stopping.load(Ordering::Acquire);
        let (lasts, has_queued) = shared.locked(|calls| {
            (0..calls.engines()).for_each(|engine| calls.flush(engine));
            (is_stopping && calls.stop(), calls.has_queued())
        });
        let now = MonotonicClock.now();
        if is_stopping && (!lasts || now >= *gives_up.get_or_insert(now + SHUT_DOWN_WAIT)) {
            return;
        }
        // A call that a signal has interrupted is an early look.
        let count = epoll::wait(&shared.watch.0, &mut events, (has_queued || is_stopping).then_some(&retry));
        let count = count.unwrap_or(0);
        for event in &events[..count] {
            match WatchedDescriptor::of(event.data) {
                WatchedDescriptor::Engine(engine) => shared.locked(|calls| calls.pump(engine)),
                WatchedDescriptor::Control(key, run) => shared.locked(|calls| {
                    // A number that was reported late belongs to another run.
                    if let Some(serial) = calls.run_of(key).filter(|serial| serial.0 & RUN_MASK == run) {
                        calls.interrupt(key, serial, Reason::Control);
                    }
                }),
                WatchedDescriptor::Udp(socket) => receivers.take(shared, &mut icmp, socket),
                WatchedDescriptor::Wake => {
                    shared.wake.clear();
                    shared.wake.announce_sleep();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_round_trips_through_event_data() {
        for what in [
            WatchedDescriptor::Engine(63),
            WatchedDescriptor::Control(u32::MAX, 0xff_ffff),
            WatchedDescriptor::Udp(3),
            WatchedDescriptor::Wake,
        ] {
            assert_eq!(WatchedDescriptor::of(what.data()), what);
        }
        assert_eq!(
            WatchedDescriptor::of(WatchedDescriptor::Control(7, 0x1200_0001).data()),
            WatchedDescriptor::Control(7, 1),
            "the lower bits"
        );
    }
}
