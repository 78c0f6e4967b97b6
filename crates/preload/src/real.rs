//! The C library's own functions: the next ones with these names behind this library.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

use libc::{
    FILE, epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, off_t, pollfd, sigset_t, size_t, sockaddr,
    socklen_t, ssize_t, timespec, timeval,
};

use crate::errno::{CallResult, Errno};

/// Finds a function, and remembers where.
fn find(place: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = place.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    // SAFETY: the name ends with 0, and RTLD_NEXT needs no handle.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    place.store(found, Ordering::Release);
    found
}

/// Says why a call has failed.
pub(crate) fn set_errno(errno: Errno) {
    // SAFETY: the place is this thread's own, and there as long as it runs.
    unsafe { *libc::__errno_location() = errno.raw_os_error() };
}

macro_rules! real {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty = $missing:expr;)*) => { $(
        /// The C library's.
        ///
        /// # Safety
        /// Same as for the function with this name.
        #[inline]
        pub(crate) unsafe fn $name($($argument: $type),*) -> $result {
            static PLACE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
            const NAME: &str = concat!(stringify!($name), "\0");
            let found = find(&PLACE, CStr::from_bytes_with_nul(NAME.as_bytes()).unwrap_or_default());
            if found.is_null() {
                set_errno(Errno::NOSYS);
                return $missing;
            }
            // SAFETY: the C library's function with this name has this type. A variadic one takes
            // its arguments from the same registers on the supported architectures.
            let call: unsafe extern "C-unwind" fn($($type),*) -> $result = unsafe { std::mem::transmute(found) };
            // SAFETY: guaranteed by the caller.
            unsafe { call($($argument),*) }
        }
    )* };
}

real! {
    read(fd: c_int, to: *mut c_void, bytes: size_t) -> ssize_t = -1;
    write(fd: c_int, from: *const c_void, bytes: size_t) -> ssize_t = -1;
    readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t = -1;
    writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t = -1;
    recv(fd: c_int, to: *mut c_void, bytes: size_t, flags: c_int) -> ssize_t = -1;
    send(fd: c_int, from: *const c_void, bytes: size_t, flags: c_int) -> ssize_t = -1;
    recvfrom(fd: c_int, to: *mut c_void, bytes: size_t, flags: c_int, address: *mut sockaddr, length: *mut socklen_t) -> ssize_t = -1;
    sendto(fd: c_int, from: *const c_void, bytes: size_t, flags: c_int, address: *const sockaddr, length: socklen_t) -> ssize_t = -1;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t = -1;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t = -1;
    recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, limit: *mut timespec) -> c_int = -1;
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int = -1;
    sendfile(to: c_int, from: c_int, offset: *mut off_t, bytes: size_t) -> ssize_t = -1;
    splice(from: c_int, from_offset: *mut i64, to: c_int, to_offset: *mut i64, bytes: size_t, flags: c_uint) -> ssize_t = -1;
    fdopen(fd: c_int, mode: *const c_char) -> *mut FILE = null_mut();
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int = -1;
    bind(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int = -1;
    connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int = -1;
    listen(fd: c_int, backlog: c_int) -> c_int = -1;
    accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int = -1;
    shutdown(fd: c_int, how: c_int) -> c_int = -1;
    getsockname(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int = -1;
    getpeername(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int = -1;
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int = -1;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int = -1;
    fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int = -1;
    ioctl(fd: c_int, request: std::ffi::c_ulong, argument: *mut c_void) -> c_int = -1;
    close(fd: c_int) -> c_int = -1;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int = -1;
    dup(fd: c_int) -> c_int = -1;
    dup2(fd: c_int, to: c_int) -> c_int = -1;
    dup3(fd: c_int, to: c_int, flags: c_int) -> c_int = -1;
    poll(fds: *mut pollfd, count: nfds_t, limit: c_int) -> c_int = -1;
    ppoll(fds: *mut pollfd, count: nfds_t, limit: *const timespec, mask: *const sigset_t) -> c_int = -1;
    select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, limit: *mut timeval) -> c_int = -1;
    pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, limit: *const timespec, mask: *const sigset_t) -> c_int = -1;
    epoll_create(size: c_int) -> c_int = -1;
    epoll_create1(flags: c_int) -> c_int = -1;
    epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int = -1;
    epoll_wait(set: c_int, events: *mut epoll_event, count: c_int, limit: c_int) -> c_int = -1;
    epoll_pwait(set: c_int, events: *mut epoll_event, count: c_int, limit: c_int, mask: *const sigset_t) -> c_int = -1;
    epoll_pwait2(set: c_int, events: *mut epoll_event, count: c_int, limit: *const timespec, mask: *const sigset_t) -> c_int = -1;
}

fn outcome(result: c_int) -> CallResult<c_int> {
    if result >= 0 { Ok(result) } else { Err(last()) }
}

/// Why the last call of the C library has failed.
pub(crate) fn last() -> Errno {
    // SAFETY: the place is this thread's own, and there as long as it runs.
    let code = unsafe { *libc::__errno_location() };
    if code > 0 { Errno::from_raw_os_error(code) } else { Errno::IO }
}

/// An option that is a number.
pub(crate) fn option(fd: i32, level: i32, name: i32) -> CallResult<i32> {
    let (mut value, mut length) = (0_i32, size_of::<i32>() as socklen_t);
    // SAFETY: both pointers are valid for the lengths passed.
    let result = unsafe { getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut length) };
    outcome(result).map(|_| value)
}

/// An option that is a time; `None`: without end.
pub(crate) fn time_option(fd: i32, name: i32) -> Option<Duration> {
    let mut value = timeval { tv_sec: 0, tv_usec: 0 };
    let mut length = size_of::<timeval>() as socklen_t;
    // SAFETY: both pointers are valid for the lengths passed.
    let result = unsafe { getsockopt(fd, libc::SOL_SOCKET, name, (&raw mut value).cast(), &raw mut length) };
    outcome(result).ok()?;
    Some(Duration::new(value.tv_sec.max(0) as u64, value.tv_usec.clamp(0, 999_999) as u32 * 1000))
        .filter(|limit| !limit.is_zero())
}

/// `SO_LINGER` with a time of 0: a close is a reset.
pub(crate) fn lingers_for_nothing(fd: i32) -> bool {
    let mut value = libc::linger { l_onoff: 0, l_linger: 1 };
    let mut length = size_of::<libc::linger>() as socklen_t;
    // SAFETY: both pointers are valid for the lengths passed.
    let result = unsafe {
        getsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, (&raw mut value).cast(), &raw mut length)
    };
    result == 0 && value.l_onoff != 0 && value.l_linger == 0
}

/// Returns a new socket of the kernel that is never used: it holds a descriptor number.
pub(crate) fn placeholder(domain: i32, flags: i32) -> CallResult<i32> {
    // SAFETY: no memory is involved.
    outcome(unsafe { socket(domain, libc::SOCK_STREAM | flags, 0) })
}

/// The port that a socket of the kernel's is bound to; 0: to none.
pub(crate) fn local_port(fd: i32) -> CallResult<u16> {
    let mut bytes = [0_u8; 128];
    let mut length = bytes.len() as socklen_t;
    // SAFETY: both pointers are valid for the lengths passed.
    outcome(unsafe { getsockname(fd, bytes.as_mut_ptr().cast(), &raw mut length) })?;
    Ok(crate::address::parse(&bytes).map_or(0, |address| address.port()))
}

/// Whether a descriptor's calls do not wait.
pub(crate) fn is_nonblocking(fd: i32) -> CallResult<bool> {
    // SAFETY: the command takes no argument.
    let flags = unsafe { fcntl(fd, libc::F_GETFL, null_mut()) };
    outcome(flags).map(|flags| flags & libc::O_NONBLOCK != 0)
}

/// Closes a descriptor.
pub(crate) fn close_fd(fd: i32) -> CallResult<()> {
    // SAFETY: no memory is involved; whose it is was looked up before.
    outcome(unsafe { close(fd) }).map(|_| ())
}

/// Signals that are blocked while a call waits, as a program has given them.
#[derive(Clone, Copy)]
pub(crate) struct Mask(*const sigset_t);

impl Mask {
    /// Those that are blocked anyway.
    pub(crate) const NONE: Self = Self(std::ptr::null());

    /// # Safety
    /// Null, or a set that is there until the call has ended.
    pub(crate) unsafe fn new(mask: *const sigset_t) -> Self {
        Self(mask)
    }
}

fn as_timespec(limit: Duration) -> timespec {
    timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) }
}

/// Waits for descriptors of the kernel; how many have something to say.
pub(crate) fn poll_fds(fds: &mut [pollfd], limit: Option<Duration>, mask: Mask) -> CallResult<usize> {
    let limit = limit.map(as_timespec);
    let at = limit.as_ref().map_or(std::ptr::null(), |limit| &raw const *limit);
    // SAFETY: the slice and the time are there until the call has ended, and so is the mask.
    let result = unsafe { ppoll(fds.as_mut_ptr(), fds.len() as nfds_t, at, mask.0) };
    outcome(result).map(|count| count as usize)
}

/// Takes the current events of the kernel's part of an epoll set.
pub(crate) fn take_kernel_events(set: i32, events: &mut [epoll_event]) -> CallResult<usize> {
    if events.is_empty() {
        return Ok(0);
    }
    let count = c_int::try_from(events.len()).unwrap_or(c_int::MAX);
    // SAFETY: the slice is there until the call has ended.
    outcome(unsafe { epoll_wait(set, events.as_mut_ptr(), count, 0) }).map(|count| count as usize)
}

/// Whether every handler of a signal asks for calls that it interrupts to go on. A call cannot know which one has interrupted it.
pub(crate) fn handlers_restart() -> bool {
    let (mut any, mut all) = (false, true);
    for signal in 1..=libc::SIGRTMAX() {
        // SAFETY: a zeroed structure is valid, and the call only writes it.
        let action = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(signal, std::ptr::null(), &raw mut action) != 0 {
                continue;
            }
            action
        };
        if action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN {
            any = true;
            all &= action.sa_flags & libc::SA_RESTART != 0;
        }
    }
    any && all
}

/// The peer is gone and the program has not asked to be spared: as the kernel does it.
pub(crate) fn raise_pipe() {
    // SAFETY: no memory is involved; the program decides how it handles the signal.
    unsafe { libc::raise(libc::SIGPIPE) };
}

/// Has functions called around each fork, and one at the process's end.
pub(crate) fn at_fork_and_exit(
    before: extern "C" fn(),
    parent: extern "C" fn(),
    child: extern "C" fn(),
    end: extern "C" fn(),
) {
    // SAFETY: the functions are there as long as this library, which is never unloaded.
    unsafe {
        libc::pthread_atfork(Some(before), Some(parent), Some(child));
        libc::atexit(end);
    }
}

/// Bytes of a file, from where it stands or from `offset`.
pub(crate) fn read_file(fd: i32, to: &mut [u8], offset: Option<i64>) -> CallResult<usize> {
    // SAFETY: the slice is there until the call has ended.
    let result = unsafe {
        match offset {
            Some(at) => libc::pread(fd, to.as_mut_ptr().cast(), to.len(), at),
            None => read(fd, to.as_mut_ptr().cast(), to.len()),
        }
    };
    if result >= 0 { Ok(result as usize) } else { Err(last()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn libc_socket_options_and_close_return_results() {
        let fd = placeholder(libc::AF_INET, libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC).unwrap();
        assert_eq!(option(fd, libc::SOL_SOCKET, libc::SO_TYPE), Ok(libc::SOCK_STREAM));
        assert_eq!(option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN), Ok(libc::AF_INET));
        assert_eq!(is_nonblocking(fd), Ok(true));
        assert_eq!(time_option(fd, libc::SO_RCVTIMEO), None);
        assert!(!lingers_for_nothing(fd));
        close_fd(fd).unwrap();
        // Not `fd` once more: a test beside this one may have the number by now.
        assert_eq!(close_fd(i32::MAX), Err(Errno::BADF));
        assert_eq!(option(i32::MAX, libc::SOL_SOCKET, libc::SO_TYPE), Err(Errno::BADF));
    }

    #[test]
    fn options_that_a_program_has_set_are_read_as_they_were() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let limit = Duration::from_millis(1500);
        socket.set_read_timeout(Some(limit)).unwrap();
        assert_eq!(time_option(socket.as_raw_fd(), libc::SO_RCVTIMEO), Some(limit));
        assert_eq!(time_option(socket.as_raw_fd(), libc::SO_SNDTIMEO), None);
        assert_eq!(is_nonblocking(socket.as_raw_fd()), Ok(false));
    }

    #[test]
    fn poll_fds_ends_by_timeout_or_readable_descriptor() {
        let (a, b) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut fds = [pollfd { fd: a.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
        assert_eq!(poll_fds(&mut fds, Some(Duration::from_millis(1)), Mask::NONE), Ok(0));
        std::io::Write::write_all(&mut &b, b"x").unwrap();
        assert_eq!(poll_fds(&mut fds, None, Mask::NONE), Ok(1));
        assert_eq!(fds[0].revents, libc::POLLIN);
    }

    #[test]
    fn read_file_reads_from_position_or_offset() {
        let file = std::fs::File::open("Cargo.toml").unwrap();
        let (mut begin, mut again) = ([0; 9], [0; 9]);
        assert_eq!(read_file(file.as_raw_fd(), &mut begin, None), Ok(9));
        assert_eq!(&begin, b"[package]");
        assert_eq!(read_file(file.as_raw_fd(), &mut again, Some(1)), Ok(9));
        assert_eq!(&again, b"package]\n");
        assert_eq!(read_file(-1, &mut again, None), Err(Errno::BADF));
    }
}
