//! read, write, recv, send and their families, sendfile.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::slice::{from_raw_parts, from_raw_parts_mut};

use libc::{iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec};

use super::{answer, refuse};
use crate::errno::{CallResult, Errno};
use crate::process::{self, Flags};
use crate::real;
use crate::table::{DescriptorKind, kind};

/// Parts of a message, as the kernel has it.
const UIO_MAXIOV: usize = 1024;

/// A program's memory to be written to.
///
/// # Safety
/// As for `read`: the program has `bytes` bytes there, and nothing else uses them until the call
/// has ended.
unsafe fn room<'a>(at: *mut c_void, bytes: size_t) -> CallResult<IoSliceMut<'a>> {
    if at.is_null() && bytes > 0 {
        return Err(Errno::FAULT);
    }
    let (at, bytes) = if at.is_null() {
        (std::ptr::dangling_mut(), 0)
    } else {
        (at.cast(), bytes.min(isize::MAX as usize))
    };
    // SAFETY: guaranteed by the caller; an empty slice touches no memory.
    Ok(IoSliceMut::new(unsafe { from_raw_parts_mut(at, bytes) }))
}

/// The same to be read.
///
/// # Safety
/// As `write`.
unsafe fn bytes_at<'a>(at: *const c_void, bytes: size_t) -> CallResult<IoSlice<'a>> {
    if at.is_null() && bytes > 0 {
        return Err(Errno::FAULT);
    }
    let (at, bytes) =
        if at.is_null() { (std::ptr::dangling(), 0) } else { (at.cast(), bytes.min(isize::MAX as usize)) };
    // SAFETY: guaranteed by the caller; an empty slice touches no memory.
    Ok(IoSlice::new(unsafe { from_raw_parts(at, bytes) }))
}

/// Parts of a program's memory to be written to: the standard library's slices are laid out as the C library's parts.
///
/// # Safety
/// As `readv`.
unsafe fn rooms<'a>(at: *const iovec, count: usize) -> CallResult<&'a mut [IoSliceMut<'a>]> {
    match count {
        0 => Ok(&mut []),
        _ if at.is_null() => Err(Errno::FAULT),
        1..=UIO_MAXIOV => {
            // SAFETY: guaranteed by the caller. The parts themselves are not written.
            Ok(unsafe { from_raw_parts_mut(at.cast_mut().cast(), count) })
        }
        _ => Err(Errno::INVAL),
    }
}

/// The same to be read.
///
/// # Safety
/// As `writev`.
unsafe fn parts<'a>(at: *const iovec, count: usize) -> CallResult<&'a [IoSlice<'a>]> {
    match count {
        0 => Ok(&[]),
        _ if at.is_null() => Err(Errno::FAULT),
        // SAFETY: guaranteed by the caller.
        1..=UIO_MAXIOV => Ok(unsafe { from_raw_parts(at.cast(), count) }),
        _ => Err(Errno::INVAL),
    }
}

/// Flags of a call that mean bytes which are not in the stream.
fn is_out_of_band(flags: c_int) -> bool {
    flags & libc::MSG_OOB != 0
}

fn no_urgent_data() -> ssize_t {
    refuse("MSG_OOB: the engine has no urgent data (EOPNOTSUPP)", Errno::OPNOTSUPP) as ssize_t
}

fn received(index: u32, flags: c_int, to: CallResult<&mut [IoSliceMut<'_>]>) -> ssize_t {
    if is_out_of_band(flags) {
        return no_urgent_data();
    }
    if flags & libc::MSG_ERRQUEUE != 0 {
        real::set_errno(Errno::AGAIN);
        return -1;
    }
    answer(|| process::receive(index, to?, Flags::new(flags)))
}

fn sent(index: u32, flags: c_int, from: CallResult<&[IoSlice<'_>]>) -> ssize_t {
    if is_out_of_band(flags) {
        return no_urgent_data();
    }
    if flags & libc::MSG_FASTOPEN != 0 {
        return refuse("MSG_FASTOPEN: connect first (EOPNOTSUPP)", Errno::OPNOTSUPP) as ssize_t;
    }
    answer(|| process::send(index, from?, Flags::new(flags)))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn read(fd: c_int, to: *mut c_void, bytes: size_t) -> ssize_t {
    let DescriptorKind::Socket(index) = kind(fd) else {
        // SAFETY: the program's own call.
        return unsafe { real::read(fd, to, bytes) };
    };
    // SAFETY: as `read`, which the program has called.
    received(index, 0, unsafe { room(to, bytes) }.as_mut().map(std::slice::from_mut).map_err(|errno| *errno))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __read_chk(fd: c_int, to: *mut c_void, bytes: size_t, size: size_t) -> ssize_t {
    // SAFETY: the program's own call; the compiler has known how large its memory is.
    unsafe { read(fd, to, bytes.min(size)) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn write(fd: c_int, from: *const c_void, bytes: size_t) -> ssize_t {
    let DescriptorKind::Socket(index) = kind(fd) else {
        // SAFETY: the program's own call.
        return unsafe { real::write(fd, from, bytes) };
    };
    // SAFETY: as `write`, which the program has called.
    sent(
        index,
        0,
        unsafe { bytes_at(from, bytes) }.as_ref().map(std::slice::from_ref).map_err(|errno| *errno),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    let DescriptorKind::Socket(index) = kind(fd) else {
        // SAFETY: the program's own call.
        return unsafe { real::readv(fd, parts, count) };
    };
    // SAFETY: as `readv`, which the program has called.
    received(index, 0, unsafe { rooms(parts, usize::try_from(count).unwrap_or(usize::MAX)) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn writev(fd: c_int, from: *const iovec, count: c_int) -> ssize_t {
    let DescriptorKind::Socket(index) = kind(fd) else {
        // SAFETY: the program's own call.
        return unsafe { real::writev(fd, from, count) };
    };
    // SAFETY: as `writev`, which the program has called.
    sent(index, 0, unsafe { parts(from, usize::try_from(count).unwrap_or(usize::MAX)) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recv(fd: c_int, to: *mut c_void, bytes: size_t, flags: c_int) -> ssize_t {
    let DescriptorKind::Socket(index) = kind(fd) else {
        // SAFETY: the program's own call.
        return unsafe { real::recv(fd, to, bytes, flags) };
    };
    // SAFETY: as `recv`, which the program has called.
    received(
        index,
        flags,
        unsafe { room(to, bytes) }.as_mut().map(std::slice::from_mut).map_err(|errno| *errno),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __recv_chk(
    fd: c_int,
    to: *mut c_void,
    bytes: size_t,
    size: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the program's own call; the compiler has known how large its memory is.
    unsafe { recv(fd, to, bytes.min(size), flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn send(fd: c_int, from: *const c_void, bytes: size_t, flags: c_int) -> ssize_t {
    let DescriptorKind::Socket(index) = kind(fd) else {
        // SAFETY: the program's own call.
        return unsafe { real::send(fd, from, bytes, flags) };
    };
    // SAFETY: as `send`, which the program has called.
    sent(
        index,
        flags,
        unsafe { bytes_at(from, bytes) }.as_ref().map(std::slice::from_ref).map_err(|errno| *errno),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recvfrom(
    fd: c_int,
    to: *mut c_void,
    bytes: size_t,
    flags: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> ssize_t {
    let DescriptorKind::Socket(_) = kind(fd) else {
        // SAFETY: the program's own call.
        return unsafe { real::recvfrom(fd, to, bytes, flags, address, length) };
    };
    if !address.is_null() && !length.is_null() {
        // SAFETY: the length is the program's. A stream reports no address.
        unsafe { *length = 0 };
    }
    // SAFETY: the program's own call.
    unsafe { recv(fd, to, bytes, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __recvfrom_chk(
    fd: c_int,
    to: *mut c_void,
    bytes: size_t,
    size: size_t,
    flags: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> ssize_t {
    // SAFETY: the program's own call; the compiler has known how large its memory is.
    unsafe { recvfrom(fd, to, bytes.min(size), flags, address, length) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    from: *const c_void,
    bytes: size_t,
    flags: c_int,
    address: *const sockaddr,
    length: socklen_t,
) -> ssize_t {
    if let DescriptorKind::Socket(_) = kind(fd) {
        // SAFETY: the program's own call. A connection goes to its peer, whatever address is given.
        return unsafe { send(fd, from, bytes, flags) };
    }
    // SAFETY: the program's own call.
    unsafe { real::sendto(fd, from, bytes, flags, address, length) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let DescriptorKind::Socket(index) = kind(fd) else {
        // SAFETY: the program's own call.
        return unsafe { real::recvmsg(fd, message, flags) };
    };
    // SAFETY: the program's own message, if there is one.
    let Some(message) = (unsafe { message.as_mut() }) else {
        real::set_errno(Errno::FAULT);
        return -1;
    };
    (message.msg_namelen, message.msg_controllen, message.msg_flags) = (0, 0, 0);
    // SAFETY: as `recvmsg`, which the program has called.
    received(index, flags, unsafe { rooms(message.msg_iov, message.msg_iovlen) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    let DescriptorKind::Socket(index) = kind(fd) else {
        // SAFETY: the program's own call.
        return unsafe { real::sendmsg(fd, message, flags) };
    };
    // SAFETY: the program's own message, if there is one.
    let Some(message) = (unsafe { message.as_ref() }) else {
        real::set_errno(Errno::FAULT);
        return -1;
    };
    // SAFETY: as `sendmsg`, which the program has called.
    sent(index, flags, unsafe { parts(message.msg_iov, message.msg_iovlen) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    limit: *mut timespec,
) -> c_int {
    if let DescriptorKind::Socket(_) = kind(fd) {
        return refuse(
            "recvmmsg: not with a socket of the engine; use recvmsg (EOPNOTSUPP)",
            Errno::OPNOTSUPP,
        );
    }
    // SAFETY: the program's own call.
    unsafe { real::recvmmsg(fd, messages, count, flags, limit) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    if let DescriptorKind::Socket(_) = kind(fd) {
        return refuse(
            "sendmmsg: not with a socket of the engine; use sendmsg (EOPNOTSUPP)",
            Errno::OPNOTSUPP,
        );
    }
    // SAFETY: the program's own call.
    unsafe { real::sendmmsg(fd, messages, count, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendfile(to: c_int, from: c_int, offset: *mut off_t, bytes: size_t) -> ssize_t {
    let DescriptorKind::Socket(index) = kind(to) else {
        if let DescriptorKind::Socket(_) = kind(from) {
            real::set_errno(Errno::INVAL);
            return -1;
        }
        // SAFETY: the program's own call.
        return unsafe { real::sendfile(to, from, offset, bytes) };
    };
    // SAFETY: the program's place for the offset, if there is one.
    let place = unsafe { offset.as_mut() };
    let at = place.as_deref().copied();
    answer(|| {
        let (outcome, end) = process::send_file(index, from, at, bytes);
        if let (Some(place), Ok(_)) = (place, &outcome) {
            *place = end;
        }
        outcome
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendfile64(to: c_int, from: c_int, offset: *mut off_t, bytes: size_t) -> ssize_t {
    // SAFETY: the program's own call; offsets have 64 bits either way.
    unsafe { sendfile(to, from, offset, bytes) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn splice(
    from: c_int,
    from_offset: *mut i64,
    to: c_int,
    to_offset: *mut i64,
    bytes: size_t,
    flags: c_uint,
) -> ssize_t {
    if [from, to].iter().any(|&fd| matches!(kind(fd), DescriptorKind::Socket(_))) {
        let text = "splice: not with a socket of the engine; read and write, or sendfile (EINVAL)";
        return refuse(text, Errno::INVAL) as ssize_t;
    }
    // SAFETY: the program's own call.
    unsafe { real::splice(from, from_offset, to, to_offset, bytes, flags) }
}
