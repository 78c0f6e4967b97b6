//! Which full connections can be written again: an epoll set in which only full ones are armed, each for one report.
//!
//! A connection enters the set when it is full for the first time. Armed again, epoll looks at once whether there is room, so
//! no moment is missed between a write that failed and this. While none is armed nothing is asked. The control side has a duplicate of each
//! descriptor, so closing ours would not take it out of the set: that is done by name.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use crate::error::NetError;
use crate::limits::REPORTS_PER_CALL;

const NOT_AT_ALL: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Whether a connection is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watched {
    /// It has never been.
    Never,
    /// It is in the set, but not armed.
    NotNow,
    /// It is armed.
    Now,
}

/// An epoll set of the connections that are full, until they can be written to again.
pub(super) struct WritabilityWatch {
    set: OwnedFd,
    armed: usize,
    /// Connections that were reported, and whether because they are broken; those from `next` on were not taken yet.
    reports: [(u32, bool); REPORTS_PER_CALL],
    next: usize,
    end: usize,
}

impl WritabilityWatch {
    pub(super) fn new() -> Result<Self, NetError> {
        let set = epoll::create(CreateFlags::CLOEXEC).map_err(|source| NetError::Socket {
            socket: "connections".into(),
            what: "make an epoll set",
            source: source.into(),
            remedy: "too many open files; raise the limit (ulimit -n)",
        })?;
        Ok(Self { set, armed: 0, reports: [(0, false); REPORTS_PER_CALL], next: 0, end: 0 })
    }

    /// Arms a connection; `false` if the kernel refuses.
    pub(super) fn watch(&mut self, socket: BorrowedFd<'_>, watched: &mut Watched, index: u32) -> bool {
        let (data, flags) = (EventData::new_u64(index.into()), EventFlags::OUT | EventFlags::ONESHOT);
        let done = match *watched {
            Watched::Now => return true,
            Watched::Never => epoll::add(&self.set, socket, data, flags),
            Watched::NotNow => epoll::modify(&self.set, socket, data, flags),
        };
        if done.is_ok() {
            *watched = Watched::Now;
            self.armed += 1;
        }
        done.is_ok()
    }

    /// A connection that is about to be given back.
    pub(super) fn forget(&mut self, socket: BorrowedFd<'_>, watched: Watched) {
        if watched != Watched::Never {
            // It is in the set: nothing can go wrong.
            let _ = epoll::delete(&self.set, socket);
        }
        self.armed -= usize::from(watched == Watched::Now);
    }

    /// Asks the kernel for reports, if any connection is armed; what finds no room comes the next time. Those of the last time must have
    /// been taken.
    pub(super) fn ask(&mut self) {
        if self.armed == 0 {
            return;
        }
        let mut events =
            [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; REPORTS_PER_CALL];
        (self.next, self.end) = (0, epoll::wait(&self.set, &mut events, Some(&NOT_AT_ALL)).unwrap_or(0));
        for (report, event) in self.reports.iter_mut().zip(&events[..self.end]) {
            let Event { flags, data } = *event;
            *report = (data.u64() as u32, flags.intersects(EventFlags::ERR | EventFlags::HUP));
        }
    }

    /// The next connection that was reported, no longer armed, and whether that is because it is broken.
    pub(super) fn report(&mut self) -> Option<(u32, bool)> {
        let report = *self.reports[..self.end].get(self.next)?;
        self.next += 1;
        self.armed -= 1;
        Some(report)
    }

    /// Readable when there is a report; `None` while none is armed.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        (self.armed > 0).then(|| self.set.as_fd())
    }
}
