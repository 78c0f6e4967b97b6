//! poll, select, epoll.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::slice::{from_raw_parts, from_raw_parts_mut};
use std::time::Duration;

use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};

use super::status;
use crate::errno::{CallResult, Errno};
use crate::process;
use crate::real::{self, Mask};
use crate::table::{DescriptorKind, kind};
use crate::wait::{self, Until};

/// A limit in milliseconds: below 0 there is none.
fn milliseconds(limit: c_int) -> Until {
    Until::within(u64::try_from(limit).ok().map(Duration::from_millis))
}

/// # Safety
/// Null, or a time.
unsafe fn nanoseconds(limit: *const timespec) -> CallResult<Until> {
    // SAFETY: guaranteed by the caller.
    let Some(limit) = (unsafe { limit.as_ref() }) else { return Ok(Until::within(None)) };
    let (seconds, nanoseconds) = (u64::try_from(limit.tv_sec), u32::try_from(limit.tv_nsec));
    match (seconds, nanoseconds) {
        (Ok(seconds), Ok(nanoseconds @ 0..=999_999_999)) => {
            Ok(Until::within(Some(Duration::new(seconds, nanoseconds))))
        }
        _ => Err(Errno::INVAL),
    }
}

/// Whether a socket of ours is among them.
///
/// # Safety
/// As `poll`.
unsafe fn has_ours(fds: *const pollfd, count: nfds_t) -> bool {
    // SAFETY: guaranteed by the caller.
    !fds.is_null()
        && unsafe { from_raw_parts(fds, count as usize) }
            .iter()
            .any(|of| matches!(kind(of.fd), DescriptorKind::Socket(_)))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn poll(fds: *mut pollfd, count: nfds_t, limit: c_int) -> c_int {
    // SAFETY: as `poll`, which the program has called.
    if !unsafe { has_ours(fds, count) } {
        // SAFETY: the program's own call.
        return unsafe { real::poll(fds, count, limit) };
    }
    // SAFETY: as `poll`, which the program has called.
    let fds = unsafe { from_raw_parts_mut(fds, count as usize) };
    status(|| wait::poll(fds, milliseconds(limit), Mask::NONE).map(|count| count as c_int))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    limit: c_int,
    _size: size_t,
) -> c_int {
    // SAFETY: the program's own call.
    unsafe { poll(fds, count, limit) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    limit: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: as `ppoll`, which the program has called.
    if !unsafe { has_ours(fds, count) } {
        // SAFETY: the program's own call.
        return unsafe { real::ppoll(fds, count, limit, mask) };
    }
    // SAFETY: as `ppoll`, which the program has called.
    let (fds, limit, mask) =
        unsafe { (from_raw_parts_mut(fds, count as usize), nanoseconds(limit), Mask::new(mask)) };
    status(|| wait::poll(fds, limit?, mask).map(|count| count as c_int))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    limit: *const timespec,
    mask: *const sigset_t,
    _size: size_t,
) -> c_int {
    // SAFETY: the program's own call.
    unsafe { ppoll(fds, count, limit, mask) }
}

/// The sets of a `select` as words of 64 descriptors: read, write and exceptional conditions.
struct Sets<'a>([Option<&'a mut [u64]>; 3]);

/// The `poll` events that each set requests, and the returned events that belong to the set.
const ASKED: [i16; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
const ANSWERED: [i16; 3] = [
    libc::POLLIN | libc::POLLRDNORM | libc::POLLRDBAND | libc::POLLHUP | libc::POLLERR,
    libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND | libc::POLLERR,
    libc::POLLPRI,
];

impl Sets<'_> {
    /// # Safety
    /// As `select`: null, or sets of `count` bits at least.
    unsafe fn new(count: c_int, sets: [*mut fd_set; 3]) -> Self {
        let words = usize::try_from(count).unwrap_or(0).div_ceil(64);
        // SAFETY: guaranteed by the caller; a set is an array of words of 64 bits.
        Self(sets.map(|set| (!set.is_null()).then(|| unsafe { from_raw_parts_mut(set.cast(), words) })))
    }

    /// As `poll` would be asked.
    fn fds(&self, count: c_int) -> Vec<pollfd> {
        let events = |fd: c_int| {
            let has = |set: &Option<&mut [u64]>| {
                set.as_deref().is_some_and(|words| words[fd as usize / 64] >> (fd % 64) & 1 != 0)
            };
            self.0.iter().zip(ASKED).filter(|(set, _)| has(set)).fold(0, |all, (_, asked)| all | asked)
        };
        let all = (0..count).map(|fd| pollfd { fd, events: events(fd), revents: 0 });
        all.filter(|of| of.events != 0).collect()
    }

    /// Writes the results; returns the number of bits set.
    fn answer(&mut self, fds: &[pollfd]) -> CallResult<c_int> {
        if fds.iter().any(|of| of.revents & libc::POLLNVAL != 0) {
            return Err(Errno::BADF);
        }
        let mut count = 0;
        for (set, (asked, answered)) in self.0.iter_mut().zip(ASKED.into_iter().zip(ANSWERED)) {
            let Some(words) = set else { continue };
            words.fill(0);
            for of in fds.iter().filter(|of| of.events & asked != 0 && of.revents & answered != 0) {
                words[of.fd as usize / 64] |= 1 << (of.fd % 64);
                count += 1;
            }
        }
        Ok(count)
    }
}

/// `select` with a socket of ours; `None`: there is none.
fn choose(count: c_int, mut sets: Sets<'_>, until: Until, mask: Mask) -> Option<c_int> {
    let mut fds = sets.fds(count);
    fds.iter().any(|of| matches!(kind(of.fd), DescriptorKind::Socket(_))).then(|| {
        status(|| {
            wait::poll(&mut fds, until, mask)?;
            sets.answer(&fds)
        })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    limit: *mut timeval,
) -> c_int {
    // SAFETY: as `select`, which the program has called.
    let (sets, place) = unsafe { (Sets::new(count, [read, write, except]), limit.as_mut()) };
    let within = place.as_deref().map(|limit| {
        let nanoseconds = limit.tv_usec.clamp(0, 999_999) as u32 * 1000;
        Duration::new(limit.tv_sec.max(0) as u64, nanoseconds)
    });
    let until = Until::within(within);
    let Some(result) = choose(count, sets, until, Mask::NONE) else {
        // SAFETY: the program's own call.
        return unsafe { real::select(count, read, write, except, limit) };
    };
    if let Some(place) = place {
        // Linux reports the time left.
        let rest = until.rest();
        *place = timeval { tv_sec: rest.as_secs() as i64, tv_usec: i64::from(rest.subsec_micros()) };
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    limit: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: as `pselect`, which the program has called.
    let (sets, until, of_mask) =
        unsafe { (Sets::new(count, [read, write, except]), nanoseconds(limit), Mask::new(mask)) };
    let chosen = until.ok().and_then(|until| choose(count, sets, until, of_mask));
    // SAFETY: the program's own call.
    chosen.unwrap_or_else(|| unsafe { real::pselect(count, read, write, except, limit, mask) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_create(size: c_int) -> c_int {
    // SAFETY: no memory is involved.
    let set = unsafe { real::epoll_create(size) };
    note(set)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: no memory is involved.
    let set = unsafe { real::epoll_create1(flags) };
    note(set)
}

fn note(set: c_int) -> c_int {
    if set >= 0 {
        process::note_set(set);
    }
    set
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_ctl(
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    let DescriptorKind::Socket(index) = kind(fd) else {
        // SAFETY: the program's own call.
        return unsafe { real::epoll_ctl(set, operation, fd, event) };
    };
    // SAFETY: the program's own event, if there is one.
    let event = unsafe { event.as_ref() }.copied();
    status(|| {
        let event = match (operation, event) {
            (libc::EPOLL_CTL_DEL, _) => epoll_event { events: 0, u64: 0 },
            (_, event) => event.ok_or(Errno::FAULT)?,
        };
        process::control_set(set, operation, (fd, index), event).map(|()| 0)
    })
}

/// A wait for a set that may have sockets of ours in it.
///
/// # Safety
/// As `epoll_wait`.
unsafe fn wait_for_set(
    (set, index): (c_int, u32),
    events: *mut epoll_event,
    count: c_int,
    until: CallResult<Until>,
    mask: Mask,
) -> c_int {
    if count <= 0 || events.is_null() {
        real::set_errno(if count <= 0 { Errno::INVAL } else { Errno::FAULT });
        return -1;
    }
    // SAFETY: guaranteed by the caller.
    let events = unsafe { from_raw_parts_mut(events, count as usize) };
    status(|| wait::epoll_wait(set, index, events, until?, mask).map(|count| count as c_int))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_wait(
    set: c_int,
    events: *mut epoll_event,
    count: c_int,
    limit: c_int,
) -> c_int {
    match kind(set) {
        // SAFETY: as `epoll_wait`, which the program has called.
        DescriptorKind::Epoll(index) => unsafe {
            wait_for_set((set, index), events, count, Ok(milliseconds(limit)), Mask::NONE)
        },
        // SAFETY: the program's own call.
        _ => unsafe { real::epoll_wait(set, events, count, limit) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_pwait(
    set: c_int,
    events: *mut epoll_event,
    count: c_int,
    limit: c_int,
    mask: *const sigset_t,
) -> c_int {
    match kind(set) {
        // SAFETY: as `epoll_pwait`, which the program has called.
        DescriptorKind::Epoll(index) => unsafe {
            wait_for_set((set, index), events, count, Ok(milliseconds(limit)), Mask::new(mask))
        },
        // SAFETY: the program's own call.
        _ => unsafe { real::epoll_pwait(set, events, count, limit, mask) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_pwait2(
    set: c_int,
    events: *mut epoll_event,
    count: c_int,
    limit: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    match kind(set) {
        // SAFETY: as `epoll_pwait2`, which the program has called.
        DescriptorKind::Epoll(index) => unsafe {
            wait_for_set((set, index), events, count, nanoseconds(limit), Mask::new(mask))
        },
        // SAFETY: the program's own call.
        _ => unsafe { real::epoll_pwait2(set, events, count, limit, mask) },
    }
}
