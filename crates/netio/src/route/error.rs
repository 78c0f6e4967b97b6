//! Possible rtnetlink failures, each reported with its remedy.

use std::io;

/// Routes cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    /// A netlink socket refused a call.
    #[error("routes (rtnetlink): cannot {what}: {source}; {remedy}")]
    Socket {
        /// The operation that failed.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
        /// What to do.
        remedy: &'static str,
    },
    /// The thread cannot be started.
    #[error("routes: cannot start the thread: {source}; raise the limit of threads (ulimit -u)")]
    Thread {
        /// The system's error.
        source: io::Error,
    },
}

impl RouteError {
    pub(super) fn socket(what: &'static str, source: impl Into<io::Error>) -> Self {
        let source = source.into();
        let remedy = match source.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE) => "raise the number of open files (ulimit -n)",
            Some(libc::ENOBUFS | libc::ENOMEM) => "free memory, or raise net.core.rmem_max",
            Some(libc::EPROTONOSUPPORT | libc::EAFNOSUPPORT) => "this kernel was built without netlink",
            Some(libc::EPERM | libc::EACCES) => "allow netlink sockets in this process's sandbox",
            _ => "packets go through kernel sockets meanwhile",
        };
        Self::Socket { what, source, remedy }
    }
}
