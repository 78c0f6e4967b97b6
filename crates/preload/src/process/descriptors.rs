//! Descriptors of sockets and epoll sets come, are doubled, and go.

use std::sync::atomic::{AtomicU32, Ordering};

use libc::epoll_event;

use super::{Process, is_configured, with};
use crate::errno::{CallResult, Errno};
use crate::ready::Set;
use crate::table::{self, DescriptorKind};
use crate::{message, real};

/// The process whose sockets these are. A child that shares its parent's memory (vfork) is another one.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// This process has the sockets from now on.
pub(super) fn own() {
    OWNER.store(std::process::id(), Ordering::Relaxed);
}

fn is_owner() -> bool {
    OWNER.load(Ordering::Relaxed) == std::process::id()
}

impl Process {
    /// A descriptor less; the last one closes.
    fn release(&mut self, kind: DescriptorKind) -> CallResult<()> {
        match kind {
            DescriptorKind::Socket(index) => {
                let socket = self.sockets.get(index)?;
                socket.refs -= 1;
                if socket.refs > 0 {
                    return Ok(());
                }
                // Wakes threads that still wait for it.
                self.mark(index);
                let Some(mut socket) = self.sockets.remove(index) else { return Ok(()) };
                for (set, fd) in std::mem::take(&mut socket.watchers) {
                    if let Ok(set) = self.sets.get(set) {
                        let _ = set.remove((fd, index));
                    }
                }
                let (resets, numbers) = socket.take_numbers();
                for number in numbers {
                    self.own(number, None);
                    if let Ok(engine) = self.engine() {
                        engine.close(number, resets);
                    }
                }
            }
            DescriptorKind::Epoll(index) => {
                let set = self.sets.get(index)?;
                set.refs -= 1;
                if set.refs == 0 {
                    self.sets.remove(index);
                    self.sockets
                        .iter_mut()
                        .for_each(|(_, socket)| socket.watchers.retain(|of| of.0 != index));
                }
            }
            DescriptorKind::Kernel | DescriptorKind::Internal => {}
        }
        Ok(())
    }

    fn share(&mut self, kind: DescriptorKind) -> CallResult<()> {
        match kind {
            DescriptorKind::Socket(index) => self.sockets.get(index)?.refs += 1,
            DescriptorKind::Epoll(index) => self.sets.get(index)?.refs += 1,
            DescriptorKind::Kernel | DescriptorKind::Internal => {}
        }
        Ok(())
    }

    fn control(&mut self, set: u32, operation: i32, key: (i32, u32), event: epoll_event) -> CallResult<()> {
        let of = self.sets.get(set)?;
        let watcher = (set, key.0);
        match operation {
            libc::EPOLL_CTL_ADD => {
                self.open_inherited(key.1)?;
                let of = self.sets.get(set)?;
                of.add(key, event.events, event.u64)?;
                self.sockets.get(key.1)?.watchers.push(watcher);
            }
            libc::EPOLL_CTL_MOD => of.modify(key, event.events, event.u64)?,
            libc::EPOLL_CTL_DEL => {
                of.remove(key)?;
                self.sockets.get(key.1)?.watchers.retain(|known| *known != watcher);
                return Ok(());
            }
            _ => return Err(Errno::INVAL),
        }
        // A thread may wait for the set already.
        self.mark(key.1);
        Ok(())
    }
}

/// Before the kernel closes a descriptor. `Ok`: it may.
pub(crate) fn close(fd: i32) -> CallResult<()> {
    match table::kind(fd) {
        DescriptorKind::Kernel => Ok(()),
        // The program does not know it: it closes all that there may be.
        DescriptorKind::Internal => Err(Errno::BADF),
        _ if !is_owner() => Ok(()),
        kind => {
            // First of all: its number may be another's as soon as the kernel has closed it.
            table::set(fd, DescriptorKind::Kernel);
            with(|process| process.release(kind))?
        }
    }
}

/// Closes our descriptors in a range; calls `rest` with the ranges in between, which the kernel
/// must close.
pub(crate) fn close_all(
    first: u32,
    last: u32,
    mut rest: impl FnMut(u32, u32) -> CallResult<()>,
) -> CallResult<()> {
    let mut begin = first;
    let ours: Vec<(i32, DescriptorKind)> = table::ours(first, last).collect();
    for (fd, kind) in ours {
        if kind != DescriptorKind::Internal {
            let _ = close(fd);
            continue;
        }
        let fd = fd as u32;
        if begin < fd {
            rest(begin, fd - 1)?;
        }
        begin = fd + 1;
    }
    if begin <= last { rest(begin, last) } else { Ok(()) }
}

/// A descriptor was doubled: `new` is what `old` is. What `new` was before, by `dup2`, is closed.
pub(crate) fn dup(old: i32, new: i32) -> CallResult<i32> {
    let (kind, before) = (table::kind(old), table::kind(new));
    if old == new || !is_owner() {
        return Ok(new);
    }
    if before != DescriptorKind::Kernel {
        table::set(new, DescriptorKind::Kernel);
        with(|process| process.release(before))??;
    }
    if kind == DescriptorKind::Kernel {
        return Ok(new);
    }
    if !table::set(new, kind) {
        message::once("dup: the new descriptor's number is beyond those that can be the engine's (EMFILE)");
        let _ = real::close_fd(new);
        return Err(Errno::MFILE);
    }
    with(|process| process.share(kind))??;
    Ok(new)
}

/// A new epoll set: it may get sockets of the engine.
pub(crate) fn new_set(fd: i32) -> CallResult<u32> {
    let index = with(|process| process.sets.insert(Set::new()))?;
    if table::set(fd, DescriptorKind::Epoll(index)) {
        return Ok(index);
    }
    with(|process| process.sets.remove(index))?;
    Err(Errno::MFILE)
}

/// The same, unless no socket will ever be the engine's.
pub(crate) fn note_set(fd: i32) {
    if is_configured() {
        own();
        // Without it the set is noted when it gets such a socket.
        let _ = new_set(fd);
    }
}

/// `epoll_ctl` for a socket of ours.
pub(crate) fn control_set(
    set: i32,
    operation: i32,
    (fd, index): (i32, u32),
    event: epoll_event,
) -> CallResult<()> {
    let set = match table::kind(set) {
        DescriptorKind::Epoll(set) => set,
        DescriptorKind::Kernel => new_set(set)?,
        _ => return Err(Errno::INVAL),
    };
    with(|process| process.control(set, operation, (fd, index), event))?
}
