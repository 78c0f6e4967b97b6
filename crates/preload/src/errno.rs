//! The errno of a failed call, derived from an error of the engine's sockets.

use std::io::{Error, ErrorKind};

pub(crate) use rustix::io::Errno;

/// The result of a call.
pub(crate) type CallResult<T> = Result<T, Errno>;

/// The errno that the kernel has for the same.
pub(crate) fn of(error: &Error) -> Errno {
    if let Some(code) = error.raw_os_error() {
        return Errno::from_raw_os_error(code);
    }
    match error.kind() {
        ErrorKind::ConnectionRefused => Errno::CONNREFUSED,
        ErrorKind::ConnectionReset => Errno::CONNRESET,
        ErrorKind::TimedOut => Errno::TIMEDOUT,
        // Said of connections when the engine ends; for the program it is as if the peer were gone.
        ErrorKind::ConnectionAborted => Errno::CONNRESET,
        ErrorKind::AddrInUse => Errno::ADDRINUSE,
        ErrorKind::AddrNotAvailable => Errno::ADDRNOTAVAIL,
        ErrorKind::OutOfMemory => Errno::NOBUFS,
        ErrorKind::NotConnected => Errno::NOTCONN,
        ErrorKind::BrokenPipe => Errno::PIPE,
        ErrorKind::HostUnreachable => Errno::HOSTUNREACH,
        ErrorKind::QuotaExceeded => Errno::MFILE,
        ErrorKind::WouldBlock => Errno::AGAIN,
        ErrorKind::InvalidInput => Errno::INVAL,
        _ => Errno::IO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_engine_have_the_errno_that_the_kernel_has() {
        use millrace_offload::toe::Fault;
        for (fault, errno) in [
            (Fault::Refused, Errno::CONNREFUSED),
            (Fault::Reset, Errno::CONNRESET),
            (Fault::TimedOut, Errno::TIMEDOUT),
            (Fault::InUse, Errno::ADDRINUSE),
            (Fault::NoRoom, Errno::NOBUFS),
            (Fault::NoAddress, Errno::ADDRNOTAVAIL),
            (Fault::NotConnected, Errno::NOTCONN),
            (Fault::Shut, Errno::PIPE),
            (Fault::Unreachable, Errno::HOSTUNREACH),
        ] {
            assert_eq!(of(&fault.into()), errno, "{fault:?}");
        }
        assert_eq!(of(&Error::from_raw_os_error(libc::ENOENT)), Errno::NOENT);
    }
}
