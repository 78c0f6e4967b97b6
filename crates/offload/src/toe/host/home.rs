//! The state that an engine's hosts and its handle share.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use millrace_tcp::ports::PortSet;

use super::state::HostState;
use crate::bell::EventBell;

/// What hosts and the handle share; the engine's thread never looks at the list.
pub(in crate::toe) struct Home {
    pub(in crate::toe) bell: Arc<EventBell>,
    pub(in crate::toe) addresses: Vec<(IpAddr, u8)>,
    /// The ports that the engine has of them; `None`: all, they are its own.
    pub(in crate::toe) ports: Option<PortSet>,
    free: Mutex<Vec<HostState>>,
    stop: AtomicBool,
    /// The socket to the engine, if it is another process. It learns by its end that the host is gone.
    pub(in crate::toe) link: Option<OwnedFd>,
    /// Why an engine without a thread of its own has ended.
    end: OnceLock<String>,
}

impl Home {
    pub(in crate::toe) fn new(
        bell: Arc<EventBell>,
        addresses: Vec<(IpAddr, u8)>,
        free: Vec<HostState>,
    ) -> Self {
        let (free, stop) = (Mutex::new(free), AtomicBool::new(false));
        Self { bell, addresses, ports: None, free, stop, link: None, end: OnceLock::new() }
    }

    /// That of the one host of an engine that is another process.
    pub(in crate::toe) fn elsewhere(
        bell: Arc<EventBell>,
        addresses: Vec<(IpAddr, u8)>,
        link: OwnedFd,
    ) -> Self {
        Self { link: Some(link), ..Self::new(bell, addresses, Vec::new()) }
    }

    /// The same, with ports of addresses that are the kernel's.
    pub(in crate::toe) fn with_ports(self, ports: Option<PortSet>) -> Self {
        Self { ports, ..self }
    }

    /// Whether its handle has stopped it.
    pub(in crate::toe) fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Its handle wants no more of it.
    pub(in crate::toe) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.bell.ring();
    }

    /// Why it has ended that had no thread.
    pub(in crate::toe) fn end(&self) -> Option<&str> {
        self.end.get().map(String::as_str)
    }

    /// Whoever turned it has given it up.
    pub(in crate::toe) fn ended(&self, why: String) {
        let _ = self.end.set(why);
    }

    /// Takes back the pair of a host's thread that has no more use for it. Data of closed
    /// connections may still be in flight.
    pub(in crate::toe) fn take_back(&self, state: HostState) {
        // Another process gives its pair back by hanging up.
        if self.link.is_none() {
            self.free.lock().unwrap_or_else(PoisonError::into_inner).push(state);
        }
    }

    /// A pair that no host has; `None`: all are taken.
    pub(in crate::toe) fn take_free(&self) -> Option<HostState> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }
}
