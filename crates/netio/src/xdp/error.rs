//! Possible AF_XDP failures, each reported with the interface and the remedy.

use std::io;

use super::strategy::Strategy;

/// An AF_XDP device could not be made, or has died.
#[derive(Debug, thiserror::Error)]
pub enum XdpError {
    /// There is no such interface in this network namespace.
    #[error("AF_XDP on {interface}: no such interface in this network namespace ({source}); see ip link")]
    NoInterface {
        /// Its name.
        interface: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// A call was refused.
    #[error("AF_XDP on {interface}, queue {queue}: cannot {what}: {source}; {remedy}")]
    Call {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
        /// The operation that failed.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
        /// What to do.
        remedy: &'static str,
    },
    /// The memory that frames are sent from may not be locked.
    #[error(
        "AF_XDP on {interface}: the kernel would have to lock {bytes} bytes of memory and may not ({source}); \
         give the program CAP_IPC_LOCK, raise its limit of locked memory (ulimit -l, LimitMEMLOCK=infinity), or choose a smaller cache, or an interface with fewer queues"
    )]
    Locked {
        /// The interface.
        interface: String,
        /// Bytes of the arena.
        bytes: usize,
        /// The kernel's error.
        source: io::Error,
    },
    /// The interface has more queues than one device takes.
    #[error(
        "AF_XDP on {interface}: it has {count} receive queues, and one device takes {} of them at most; give it fewer \
         (ethtool -L {interface} combined {0})",
        millrace_core::limits::MAX_XDP_RAW_QUEUES
    )]
    Queues {
        /// The interface.
        interface: String,
        /// Its queues.
        count: u32,
    },
    /// The arena has too few extents aside.
    #[error(
        "AF_XDP on {interface}: the strategy {strategy} needs {needed} free extents of those that the arena has set aside, and \
         {found} are free; make the arena with {} for each device",
        millrace_core::limits::XDP_ASIDE_EXTENTS
    )]
    NoFrames {
        /// The interface.
        interface: String,
        /// How it was to send.
        strategy: Strategy,
        /// Extents needed at least.
        needed: u32,
        /// Extents that were free.
        found: u32,
    },
    /// The arena has too few extents aside to receive into.
    #[error(
        "AF_XDP on {interface}: receiving needs {needed} free extents of those that the arena has set aside, and {found} are free; \
         set more aside or ask for fewer frames"
    )]
    NoReceiveFrames {
        /// The interface.
        interface: String,
        /// Extents needed.
        needed: u32,
        /// Extents that were free.
        found: u32,
    },
    /// The interface has gone or was taken down: this device sends nothing any more.
    #[error(
        "AF_XDP on {interface}, queue {queue}: the interface is down or gone ({source}); open the device again when it is back"
    )]
    Gone {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
        /// The kernel's error.
        source: io::Error,
    },
}
