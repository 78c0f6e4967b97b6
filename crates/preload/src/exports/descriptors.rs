//! close, dup, fcntl, ioctl, fdopen.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uint, c_ulong, c_void};
use std::ptr::null_mut;

use libc::FILE;

use super::{refuse, status};
use crate::errno::{CallResult, Errno};
use crate::process;
use crate::real;
use crate::table::{DescriptorKind, kind};

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    if kind(fd) != DescriptorKind::Kernel {
        let outcome = status(|| process::close(fd).map(|()| 0));
        if outcome != 0 {
            return outcome;
        }
    }
    // SAFETY: no memory is involved.
    unsafe { real::close(fd) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if flags & libc::CLOSE_RANGE_CLOEXEC as c_int != 0 || first > last {
        // SAFETY: no memory is involved; our descriptors go with the program anyway.
        return unsafe { real::close_range(first, last, flags) };
    }
    status(|| {
        process::close_all(first, last, |first, last| {
            // SAFETY: no memory is involved.
            match unsafe { real::close_range(first, last, flags) } {
                0 => Ok(()),
                _ => Err(real::last()),
            }
        })
        .map(|()| 0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn closefrom(first: c_int) {
    // SAFETY: no memory is involved.
    unsafe { close_range(first.max(0) as c_uint, c_uint::MAX, 0) };
}

/// Behind a call that has doubled a descriptor.
fn doubled(old: c_int, new: c_int) -> c_int {
    if new < 0 || (kind(old) == DescriptorKind::Kernel && kind(new) == DescriptorKind::Kernel) {
        return new;
    }
    status(|| process::dup(old, new))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    // SAFETY: no memory is involved.
    doubled(fd, unsafe { real::dup(fd) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn dup2(fd: c_int, to: c_int) -> c_int {
    if kind(to) == DescriptorKind::Internal {
        return refuse("dup2: that descriptor is the library's own; choose another one (EBUSY)", Errno::BUSY);
    }
    // SAFETY: no memory is involved.
    doubled(fd, unsafe { real::dup2(fd, to) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    if kind(to) == DescriptorKind::Internal {
        return refuse("dup3: that descriptor is the library's own; choose another one (EBUSY)", Errno::BUSY);
    }
    // SAFETY: no memory is involved.
    doubled(fd, unsafe { real::dup3(fd, to, flags) })
}

// In C, these two functions are variadic. On the supported architectures, the third argument
// arrives in the same register; if there is none, its value is arbitrary and is passed on to a
// function that ignores it.

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    let kind_of = kind(fd);
    if let DescriptorKind::Socket(_) = kind_of
        && command == libc::F_SETFL
        && argument as usize as c_int & libc::O_ASYNC != 0
    {
        let text = "fcntl: O_ASYNC: sockets of the engine send no signals; use poll or epoll (EINVAL)";
        return refuse(text, Errno::INVAL);
    }
    // SAFETY: the program's own call.
    let result = unsafe { real::fcntl(fd, command, argument) };
    match (kind_of, command) {
        (DescriptorKind::Kernel | DescriptorKind::Internal, _) => result,
        (_, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) => doubled(fd, result),
        (DescriptorKind::Socket(index), libc::F_SETFL) if result == 0 => {
            let is_nonblocking = argument as usize as c_int & libc::O_NONBLOCK != 0;
            status(|| process::set_nonblocking(index, is_nonblocking).map(|()| 0))
        }
        _ => result,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: the program's own call.
    unsafe { fcntl(fd, command, argument) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let DescriptorKind::Socket(index) = kind(fd) else {
        // SAFETY: the program's own call.
        return unsafe { real::ioctl(fd, request, argument) };
    };
    let place: *mut c_int = argument.cast();
    let number = |outcome: CallResult<c_int>| {
        status(|| {
            let number = outcome?;
            if place.is_null() {
                return Err(Errno::FAULT);
            }
            // SAFETY: as `ioctl`, which the program has called: it has an int there.
            unsafe { place.write_unaligned(number) };
            Ok(0)
        })
    };
    let int = |count: u64| c_int::try_from(count).unwrap_or(c_int::MAX);
    match request {
        libc::FIONREAD => number(process::unread(index).map(|bytes| int(bytes as u64))),
        libc::TIOCOUTQ => number(process::unsent(index).map(int)),
        libc::FIONBIO => {
            // SAFETY: the program's own call.
            let result = unsafe { real::ioctl(fd, request, argument) };
            if result != 0 {
                return result;
            }
            // SAFETY: the kernel has just read an int there.
            let is_nonblocking = unsafe { place.read_unaligned() } != 0;
            status(|| process::set_nonblocking(index, is_nonblocking).map(|()| 0))
        }
        // SAFETY: the program's own call.
        _ => unsafe { real::ioctl(fd, request, argument) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    if let DescriptorKind::Socket(_) = kind(fd) {
        refuse(
            "fdopen: the C library's streams do not reach sockets of the engine; use read and write (ENOTSUP)",
            Errno::NOTSUP,
        );
        return null_mut();
    }
    // SAFETY: the program's own call.
    unsafe { real::fdopen(fd, mode) }
}
