//! A socket of the engine: its stage and its readiness. Several descriptors may refer to it.

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::time::Duration;

use millrace_offload::toe::Sharing;

use super::{Process, Slab};
use crate::address::Family;
use crate::errno::{self, CallResult, Errno};
use crate::ready::Set;
use crate::real;
use crate::wait::Until;

/// How far a socket is. Numbers are those of the queue pair.
#[derive(Debug)]
pub(super) enum SocketStage {
    /// It has an address, which may be unspecified, and nothing else.
    Bound(SocketAddr),
    Connecting {
        number: u32,
        local: SocketAddr,
    },
    Connected {
        number: u32,
        ends: (SocketAddr, SocketAddr),
    },
    /// One listener for each family that it serves.
    Listening {
        numbers: Vec<u32>,
        local: SocketAddr,
    },
    /// A listener of the parent's, before a fork. Its first use opens it in this process; or why that has failed.
    Inherited {
        local: SocketAddr,
        failed: Option<Errno>,
    },
    /// Such a listener while the engine opens it for this process.
    Reopening {
        numbers: Vec<u32>,
        local: SocketAddr,
    },
    /// It was a parent's, before a fork.
    Lost,
}

/// A socket.
#[derive(Debug)]
pub(crate) struct Socket {
    /// Descriptors of it.
    pub(super) refs: u32,
    pub(super) family: Family,
    pub(super) stage: SocketStage,
    pub(super) is_nonblocking: bool,
    pub(super) is_v6_only: bool,
    /// Of a listener: the others that may share its address, and how many connections may wait.
    pub(super) sharing: Sharing,
    pub(super) backlog: u32,
    pub(super) has_nodelay: bool,
    pub(super) has_keepalive: bool,
    /// By its option.
    pub(super) has_cork: bool,
    /// Set by its last call, which announced more data.
    pub(super) expects_more: bool,
    /// A close is a reset.
    pub(super) resets: bool,
    pub(super) read_timeout: Option<Duration>,
    pub(super) write_timeout: Option<Duration>,
    pub(super) is_write_shut: bool,
    /// Why a connection failed, until this is reported.
    pub(super) error: Option<Errno>,
    /// The reason for the end was reported: reads return the end from then on.
    pub(super) is_error_told: bool,
    /// Sets that contain it, and the descriptor under which each does.
    pub(super) watchers: Vec<(u32, i32)>,
}

impl Socket {
    /// The engine's, in the place of a socket of the kernel's whose options it takes over.
    pub(super) fn in_place_of(fd: i32, family: Family, local: SocketAddr) -> Self {
        let is_on = |level, name| real::option(fd, level, name).is_ok_and(|value| value != 0);
        Self {
            refs: 1,
            family,
            stage: SocketStage::Bound(local),
            is_nonblocking: real::is_nonblocking(fd).unwrap_or(false),
            is_v6_only: family == Family::V6 && is_on(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY),
            sharing: Sharing {
                is_shared: is_on(libc::SOL_SOCKET, libc::SO_REUSEPORT),
                // Seeds of the standard library's hash tables come from the system's random numbers. Never 0.
                key: RandomState::new().hash_one(0) | 1,
            },
            backlog: 0,
            has_nodelay: is_on(libc::IPPROTO_TCP, libc::TCP_NODELAY),
            has_keepalive: is_on(libc::SOL_SOCKET, libc::SO_KEEPALIVE),
            has_cork: is_on(libc::IPPROTO_TCP, libc::TCP_CORK),
            expects_more: false,
            resets: real::lingers_for_nothing(fd),
            read_timeout: real::time_option(fd, libc::SO_RCVTIMEO),
            write_timeout: real::time_option(fd, libc::SO_SNDTIMEO),
            is_write_shut: false,
            error: None,
            is_error_told: false,
            watchers: Vec::new(),
        }
    }

    /// A connection of this listener.
    pub(super) fn accepted(&self, number: u32, ends: (SocketAddr, SocketAddr), is_nonblocking: bool) -> Self {
        Self {
            refs: 1,
            stage: SocketStage::Connected { number, ends },
            is_nonblocking,
            error: None,
            is_error_told: false,
            is_write_shut: false,
            watchers: Vec::new(),
            ..*self
        }
    }

    pub(super) fn is_listener(&self) -> bool {
        matches!(
            self.stage,
            SocketStage::Listening { .. } | SocketStage::Inherited { .. } | SocketStage::Reopening { .. }
        )
    }

    /// Whether it is reset when it is closed, and its numbers, which are the caller's now.
    pub(super) fn take_numbers(&mut self) -> (bool, Vec<u32>) {
        let numbers = match &mut self.stage {
            SocketStage::Connecting { number, .. } | SocketStage::Connected { number, .. } => vec![*number],
            SocketStage::Listening { numbers, .. } | SocketStage::Reopening { numbers, .. } => {
                std::mem::take(numbers)
            }
            SocketStage::Bound(_) | SocketStage::Inherited { .. } | SocketStage::Lost => Vec::new(),
        };
        self.stage = SocketStage::Lost;
        (self.resets, numbers)
    }

    /// Whether a short segment waits for more.
    fn is_corked(&self) -> bool {
        self.has_cork || self.expects_more
    }

    /// Something has happened to it: sets that contain it ask for it.
    pub(super) fn mark_in(&self, sets: &mut Slab<Set>, index: u32) {
        for &(set, fd) in &self.watchers {
            if let Ok(set) = sets.get(set) {
                set.mark((fd, index));
            }
        }
    }

    /// In a child: what remains of a socket of its parent's. Whether it is a listener.
    pub(super) fn inherit(&mut self) -> bool {
        self.stage = match self.stage {
            SocketStage::Bound(local) => SocketStage::Bound(local),
            SocketStage::Listening { local, .. }
            | SocketStage::Reopening { local, .. }
            | SocketStage::Inherited { local, .. } => SocketStage::Inherited { local, failed: None },
            _ => SocketStage::Lost,
        };
        matches!(self.stage, SocketStage::Inherited { .. })
    }

    pub(super) fn until_read(&self, is_nonblocking: bool) -> Until {
        if is_nonblocking || self.is_nonblocking { Until::Now } else { Until::within(self.read_timeout) }
    }

    pub(super) fn until_written(&self, is_nonblocking: bool) -> Until {
        if is_nonblocking || self.is_nonblocking { Until::Now } else { Until::within(self.write_timeout) }
    }
}

const IN: u32 = (libc::POLLIN | libc::POLLRDNORM) as u32;
const OUT: u32 = (libc::POLLOUT | libc::POLLWRNORM) as u32;
const END: u32 = libc::POLLRDHUP as u32;
const HUP: u32 = libc::POLLHUP as u32;
const ERR: u32 = libc::POLLERR as u32;

impl Process {
    /// Updates a connection that is being opened: it is established, or it failed and the reason
    /// can be queried.
    pub(super) fn settle(&mut self, index: u32) -> CallResult<()> {
        let socket = self.sockets.get(index)?;
        let SocketStage::Connecting { number, local, .. } = socket.stage else { return Ok(()) };
        let outcome = self.engine()?.outcome(number);
        let is_stopped = self.engine()?.is_stopped();
        let socket = self.sockets.get(index)?;
        match outcome {
            Ok(None) if !is_stopped => return Ok(()),
            Ok(None) => (socket.error, socket.stage) = (Some(Errno::NETDOWN), SocketStage::Bound(local)),
            Ok(Some(ends)) => {
                socket.stage = SocketStage::Connected { number, ends };
                return self.apply_options(index, number);
            }
            Err(error) => (socket.error, socket.stage) = (Some(errno::of(&error)), SocketStage::Bound(local)),
        }
        self.engine()?.close(number, false);
        self.own(number, None);
        Ok(())
    }

    /// Options that were set before it was a connection.
    pub(super) fn apply_options(&mut self, index: u32, number: u32) -> CallResult<()> {
        let socket = self.sockets.get(index)?;
        let (nodelay, keepalive, cork) = (socket.has_nodelay, socket.has_keepalive, socket.is_corked());
        let engine = self.engine()?;
        // A connection that is over has no use for them.
        if nodelay {
            let _ = engine.set_nodelay(number, true);
        }
        if keepalive {
            let _ = engine.set_keepalive(number, true);
        }
        if cork {
            let _ = engine.set_cork(number, true);
        }
        Ok(())
    }

    /// Changes the conditions that hold back short segments, and notifies the engine if that makes
    /// a difference.
    pub(super) fn cork(&mut self, index: u32, change: impl FnOnce(&mut Socket)) -> CallResult<()> {
        let socket = self.sockets.get(index)?;
        let was_on = socket.is_corked();
        change(socket);
        let is_on = socket.is_corked();
        match socket.stage {
            SocketStage::Connected { number, .. } if is_on != was_on => {
                self.engine()?.set_cork(number, is_on).map_err(|error| errno::of(&error))
            }
            _ => Ok(()),
        }
    }

    /// Returns the readiness of a socket, in the bits of `poll` and `epoll`. Space is checked only
    /// for callers that want to write.
    pub(super) fn events(&mut self, index: u32, wants: u32) -> u32 {
        if self.settle(index).is_err() {
            return ERR | HUP;
        }
        self.use_listener(index);
        let Ok(socket) = self.sockets.get(index) else { return 0 };
        let (has_error, is_shut, is_told) =
            (socket.error.is_some(), socket.is_write_shut, socket.is_error_told);
        let number = match &socket.stage {
            SocketStage::Lost => return IN | OUT | ERR | HUP,
            SocketStage::Bound(_) if has_error => return IN | OUT | ERR | HUP | END,
            SocketStage::Bound(_) => return OUT | HUP,
            SocketStage::Connecting { .. } | SocketStage::Reopening { .. } => return 0,
            // A listener that cannot be opened is silent: a server that polls it does not spin.
            SocketStage::Inherited { .. } => return 0,
            SocketStage::Listening { numbers, .. } => {
                let numbers = numbers.clone();
                let Ok(engine) = self.engine() else { return 0 };
                // Without an engine, no connection arrives any more: no reason to wake a server
                // again and again.
                let has_next = |&number: &u32| {
                    let ready = engine.ready(number);
                    ready.is_readable && ready.fault.is_none()
                };
                return if numbers.iter().any(has_next) { IN } else { 0 };
            }
            SocketStage::Connected { number, .. } => *number,
        };
        let Ok(engine) = self.engine() else { return ERR | HUP };
        let ready = engine.ready(number);
        let mut events = if ready.is_readable { IN } else { 0 };
        if ready.has_ended {
            events |= END | if is_shut { HUP } else { 0 };
        }
        if ready.fault.is_some() {
            events |= IN | OUT | HUP | END | if is_told { 0 } else { ERR };
        } else if wants & OUT != 0 && engine.room(number).map_or(true, |room| room > 0) {
            events |= OUT;
        }
        events
    }
}
