//! Options that mean something to the engine. All others stay with the kernel's socket that holds the number: a program can set and read them.

use super::socket::SocketStage;
use super::with;
use crate::errno::{self, CallResult, Errno};
use crate::{message, real};

/// Option values that the engine knows better than the socket that holds the descriptor number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OptionValue {
    Number(i32),
    /// Of `TCP_INFO` the first byte; the engine does not say the rest.
    State(u8),
}

/// Options that would change the data sent or received.
const REFUSED: [(i32, i32, &str); 6] = [
    (libc::IPPROTO_TCP, libc::TCP_ULP, "TCP_ULP"),
    (libc::IPPROTO_TCP, libc::TCP_REPAIR, "TCP_REPAIR"),
    (libc::IPPROTO_TCP, libc::TCP_MD5SIG, "TCP_MD5SIG"),
    (libc::SOL_SOCKET, libc::SO_ZEROCOPY, "SO_ZEROCOPY"),
    (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, "SO_ATTACH_FILTER"),
    (libc::SOL_SOCKET, libc::SO_ATTACH_BPF, "SO_ATTACH_BPF"),
];

const ESTABLISHED: u8 = 1;
const SYN_SENT: u8 = 2;
const CLOSE: u8 = 7;
const LISTEN: u8 = 10;

/// Before an option is set.
pub(crate) fn allow_option(level: i32, name: i32) -> CallResult<()> {
    let refused = REFUSED.iter().find(|option| (option.0, option.1) == (level, name));
    refused.map_or(Ok(()), |(.., text)| {
        message::once(&format!("setsockopt: {text} is not supported with the engine (ENOPROTOOPT)"));
        Err(Errno::NOPROTOOPT)
    })
}

/// The kernel's socket has taken an option: so does the engine's.
pub(crate) fn set_option(index: u32, fd: i32, level: i32, name: i32) -> CallResult<()> {
    with(|process| {
        process.settle(index)?;
        let socket = process.sockets.get(index)?;
        let number = match socket.stage {
            SocketStage::Connected { number, .. } => Some(number),
            _ => None,
        };
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => socket.read_timeout = real::time_option(fd, name),
            (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => socket.write_timeout = real::time_option(fd, name),
            (libc::SOL_SOCKET, libc::SO_LINGER) => socket.resets = real::lingers_for_nothing(fd),
            (libc::SOL_SOCKET, libc::SO_REUSEPORT) => {
                socket.sharing.is_shared = real::option(fd, level, name)? != 0;
            }
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => {
                socket.is_v6_only = real::option(fd, level, name)? != 0;
            }
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => {
                let is_on = real::option(fd, level, name)? != 0;
                if std::mem::replace(&mut socket.has_nodelay, is_on) != is_on
                    && let Some(number) = number
                {
                    process.engine()?.set_nodelay(number, is_on).map_err(|error| errno::of(&error))?;
                }
            }
            (libc::IPPROTO_TCP, libc::TCP_CORK) => {
                let is_on = real::option(fd, level, name)? != 0;
                process.cork(index, |socket| socket.has_cork = is_on)?;
            }
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => {
                let is_on = real::option(fd, level, name)? != 0;
                if std::mem::replace(&mut socket.has_keepalive, is_on) != is_on
                    && let Some(number) = number
                {
                    process.engine()?.set_keepalive(number, is_on).map_err(|error| errno::of(&error))?;
                }
            }
            _ => {}
        }
        Ok(())
    })?
}

/// `None`: the kernel's socket knows it.
pub(crate) fn get_option(index: u32, level: i32, name: i32) -> CallResult<Option<OptionValue>> {
    with(|process| {
        process.settle(index)?;
        let socket = process.sockets.get(index)?;
        let is_listening = socket.is_listener();
        Ok(match (level, name) {
            (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => Some(OptionValue::Number(is_listening.into())),
            (libc::SOL_SOCKET, libc::SO_ERROR) => {
                let mut error = socket.error.take();
                if let SocketStage::Connected { number, .. } = socket.stage {
                    let fault = process.engine()?.ready(number).fault;
                    let socket = process.sockets.get(index)?;
                    error = fault.filter(|_| !socket.is_error_told).map(|fault| errno::of(&fault.into()));
                    socket.is_error_told |= error.is_some();
                }
                Some(OptionValue::Number(error.map_or(0, Errno::raw_os_error)))
            }
            (libc::IPPROTO_TCP, libc::TCP_INFO) => Some(OptionValue::State(match socket.stage {
                SocketStage::Connected { .. } => ESTABLISHED,
                SocketStage::Connecting { .. } => SYN_SENT,
                _ if is_listening => LISTEN,
                _ => CLOSE,
            })),
            _ => None,
        })
    })?
}

/// Whether calls wait.
pub(crate) fn set_nonblocking(index: u32, is_nonblocking: bool) -> CallResult<()> {
    with(|process| {
        process.sockets.get(index)?.is_nonblocking = is_nonblocking;
        Ok(())
    })?
}

/// `FIONREAD`.
pub(crate) fn unread(index: u32) -> CallResult<usize> {
    with(|process| {
        process.settle(index)?;
        let socket = process.sockets.get(index)?;
        let is_listener = socket.is_listener();
        match socket.stage {
            SocketStage::Connected { number, .. } => Ok(process.engine()?.ready(number).unread),
            _ if is_listener => Err(Errno::INVAL),
            _ => Ok(0),
        }
    })?
}

/// `SIOCOUTQ`: bytes that are not acknowledged.
pub(crate) fn unsent(index: u32) -> CallResult<u64> {
    with(|process| {
        process.settle(index)?;
        let socket = process.sockets.get(index)?;
        let is_listener = socket.is_listener();
        match socket.stage {
            SocketStage::Connected { number, .. } => Ok(process.engine()?.unacknowledged(number)),
            _ if is_listener => Err(Errno::INVAL),
            _ => Ok(0),
        }
    })?
}
