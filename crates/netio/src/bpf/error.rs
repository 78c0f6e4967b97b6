//! Errors of BPF, with the remedy.

use std::io;

/// A map, program or link could not be made or used.
#[derive(Debug, thiserror::Error)]
pub enum BpfError {
    /// The kernel refused a call.
    #[error("BPF: cannot {what}: {source}; {remedy}")]
    Call {
        /// The attempted operation.
        what: String,
        /// The kernel's error.
        source: io::Error,
        /// What to do.
        remedy: &'static str,
    },
    /// The verifier refused the program.
    #[error("BPF: the kernel does not accept the program {name}: {source}; the verifier's log:\n{log}")]
    Verifier {
        /// Name of the program.
        name: String,
        /// The error of the call.
        source: io::Error,
        /// The end of the verifier's log.
        log: String,
    },
    /// The program could not be assembled.
    #[error("BPF: the program {name} cannot be put together: {source}")]
    Assemble {
        /// Name of the program.
        name: String,
        /// Why.
        source: AsmError,
    },
    /// No interface of this name in the calling thread's network namespace.
    #[error("interface {name}: not in this network namespace ({source}); `ip link` lists those that are")]
    NoInterface {
        /// The name asked for.
        name: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel is too old for tcx.
    #[error(
        "interface {name}: this kernel cannot attach a BPF program at tcx ingress ({source}); Linux 6.6 or newer can"
    )]
    NoTcx {
        /// Name of the interface.
        name: String,
        /// The kernel's error.
        source: io::Error,
    },
}

impl BpfError {
    pub(super) fn call(what: impl Into<String>, source: io::Error) -> Self {
        let remedy = match source.raw_os_error() {
            Some(libc::EPERM) => "be root, or have CAP_BPF and CAP_NET_ADMIN",
            Some(libc::ENOSYS) => "this kernel was built without BPF",
            Some(libc::E2BIG) => "ask for fewer entries",
            Some(libc::ENOMEM) => "free memory, or ask for fewer entries",
            Some(libc::ENOENT) => "there is no such entry",
            Some(libc::EBUSY) => "another program is there; detach it first (ip link set dev ... xdp off)",
            Some(libc::EMFILE) => "raise the number of open files (ulimit -n)",
            _ => "Linux 6.6 or newer with CONFIG_BPF_SYSCALL is needed",
        };
        Self::Call { what: what.into(), source, remedy }
    }
}

/// The program cannot be assembled: a fault of the code that builds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AsmError {
    /// A jump leads nowhere.
    #[error("instruction {at}: jumps to label {label}, which was never placed")]
    Unplaced {
        /// Place of the jump.
        at: usize,
        /// Number of the label.
        label: usize,
    },
    /// A jump leads too far.
    #[error("instruction {at}: jumps {distance} instructions; at most 32767 are possible")]
    TooFar {
        /// Place of the jump.
        at: usize,
        /// How far.
        distance: i64,
    },
    /// A label is in two places.
    #[error("label {label} was placed twice")]
    PlacedTwice {
        /// Number of the label.
        label: usize,
    },
}
