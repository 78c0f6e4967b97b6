//! bind, connect, listen, accept, shutdown, names, options.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;

use libc::{sockaddr, socklen_t};

use super::{refuse, status};
use crate::address::{self, Family};
use crate::errno::{CallResult, Errno};
use crate::process::{self, OptionValue};
use crate::real;
use crate::table::{DescriptorKind, kind};

/// An address of any family: `sockaddr_storage`.
const STORAGE_BYTES: usize = 128;

/// The address that a program has given; `None`: of no family of ours.
///
/// # Safety
/// As for `connect`: null, or `length` bytes.
unsafe fn given(address: *const sockaddr, length: socklen_t) -> Option<SocketAddr> {
    if address.is_null() {
        return None;
    }
    let mut bytes = [0_u8; STORAGE_BYTES];
    let count = (length as usize).min(STORAGE_BYTES);
    // SAFETY: the program has at least `count` bytes there, and the destination has space for them.
    unsafe { std::ptr::copy_nonoverlapping(address.cast::<u8>(), bytes.as_mut_ptr(), count) };
    address::parse(&bytes[..count])
}

/// Writes an address to where a program wants it: as much as there is room, and how much there would be.
///
/// # Safety
/// As for `accept`: null, or as many bytes as `length` indicates.
unsafe fn give(
    of: SocketAddr,
    family: Family,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> CallResult<()> {
    if address.is_null() || length.is_null() {
        return Err(Errno::FAULT);
    }
    let (bytes, count) = address::write(of, family);
    // SAFETY: the program's place for the length.
    let room = unsafe { *length } as usize;
    // SAFETY: the program has `room` bytes there; the length's place is its own.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), address.cast::<u8>(), room.min(count));
        *length = count as socklen_t;
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn bind(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
    if process::is_configured() {
        // SAFETY: as `bind`, which the program has called.
        if let Some(local) = unsafe { given(address, length) }
            && let Some(outcome) = process::bind(fd, local)
        {
            return status(|| outcome.map(|()| 0));
        }
    }
    // SAFETY: the program's own call.
    unsafe { real::bind(fd, address, length) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
    if process::is_configured() {
        // SAFETY: as `connect`, which the program has called.
        let remote = unsafe { given(address, length) };
        if remote.is_none() && matches!(kind(fd), DescriptorKind::Socket(_)) {
            let text = "connect: a socket of the engine connects to IPv4 and IPv6 addresses, and only closes (EAFNOSUPPORT)";
            return refuse(text, Errno::AFNOSUPPORT);
        }
        if let Some(outcome) = remote.and_then(|remote| process::connect(fd, remote)) {
            return status(|| outcome.map(|()| 0));
        }
    }
    // SAFETY: the program's own call.
    unsafe { real::connect(fd, address, length) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn listen(fd: c_int, backlog: c_int) -> c_int {
    match kind(fd) {
        DescriptorKind::Socket(index) => status(|| process::listen(index, backlog).map(|()| 0)),
        // SAFETY: no memory is involved.
        _ => unsafe { real::listen(fd, backlog) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn accept4(
    fd: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
    flags: c_int,
) -> c_int {
    let DescriptorKind::Socket(index) = kind(fd) else {
        // SAFETY: the program's own call.
        return unsafe { real::accept4(fd, address, length, flags) };
    };
    status(|| {
        let (new, peer, family) = process::accept(index, flags)?;
        if !address.is_null() {
            // SAFETY: as `accept4`, which the program has called. Without a place for the length the kernel would fail too; the connection is there.
            let _ = unsafe { give(peer, family, address, length) };
        }
        Ok(new)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
    // SAFETY: the program's own call: without flags they are the same.
    unsafe { accept4(fd, address, length, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn shutdown(fd: c_int, how: c_int) -> c_int {
    match kind(fd) {
        DescriptorKind::Socket(index) => status(|| process::shutdown(index, how).map(|()| 0)),
        // SAFETY: no memory is involved.
        _ => unsafe { real::shutdown(fd, how) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn getsockname(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
    let DescriptorKind::Socket(index) = kind(fd) else {
        // SAFETY: the program's own call.
        return unsafe { real::getsockname(fd, address, length) };
    };
    status(|| {
        let (local, _, family) = process::names(index)?;
        // SAFETY: as `getsockname`, which the program has called.
        unsafe { give(local, family, address, length) }.map(|()| 0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn getpeername(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
    let DescriptorKind::Socket(index) = kind(fd) else {
        // SAFETY: the program's own call.
        return unsafe { real::getpeername(fd, address, length) };
    };
    status(|| {
        let (_, remote, family) = process::names(index)?;
        // SAFETY: as `getpeername`, which the program has called.
        unsafe { give(remote.ok_or(Errno::NOTCONN)?, family, address, length) }.map(|()| 0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    let DescriptorKind::Socket(index) = kind(fd) else {
        // SAFETY: the program's own call.
        return unsafe { real::getsockopt(fd, level, name, value, length) };
    };
    // The socket that holds the number knows how long an answer is, and all that means nothing to the engine.
    // SAFETY: the program's own call.
    let result = unsafe { real::getsockopt(fd, level, name, value, length) };
    if result != 0 {
        return result;
    }
    status(|| {
        match process::get_option(index, level, name)? {
            // SAFETY: the kernel has written as many bytes as `length` now indicates.
            Some(OptionValue::Number(number)) if unsafe { *length } as usize >= size_of::<c_int>() => unsafe {
                value.cast::<c_int>().write_unaligned(number);
            },
            // SAFETY: as above.
            Some(OptionValue::State(state)) if unsafe { *length } > 0 => unsafe {
                value.cast::<u8>().write(state)
            },
            _ => {}
        }
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    let DescriptorKind::Socket(index) = kind(fd) else {
        // SAFETY: the program's own call.
        return unsafe { real::setsockopt(fd, level, name, value, length) };
    };
    status(|| {
        process::allow_option(level, name)?;
        // SAFETY: the program's own call.
        match unsafe { real::setsockopt(fd, level, name, value, length) } {
            0 => process::set_option(index, fd, level, name).map(|()| 0),
            // errno holds the reason.
            _ => Err(real::last()),
        }
    })
}
