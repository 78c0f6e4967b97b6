//! Send loops of a program that does nothing else: the cost of the best of them is the reference
//! for a device of ours.
//!
//! | loop | work per datagram |
//! | --- | --- |
//! | [`KernelPath::Single`] | a message of its own, 64 of them in a sendmmsg call |
//! | [`KernelPath::Gso`] | the datagrams of one viewer in one message that the kernel cuts |
//! | [`KernelPath::GsoZeroCopy`] | the same with `MSG_ZEROCOPY` |
//! | [`XdpPath::Built`] | a descriptor of a frame that was built long ago: the floor, of no use to a server |
//! | [`XdpPath::Staging`] | header and packet copied into a frame, one descriptor |
//! | [`XdpPath::Chained`] | a header in a frame, the packet where it lies, two descriptors |
//!
//! They compute no UDP checksum: over IPv4 none is needed, and the kernel's sockets leave it to the device.

mod kernel;
mod xdp;

use std::net::SocketAddr;

pub use kernel::{KernelLoop, KernelPath};
pub use xdp::{Headers, XdpLoop, XdpPath};

/// Some datagrams for one viewer, one after the other in memory.
#[derive(Clone, Copy, Debug)]
pub struct ViewerDatagrams<'a> {
    /// Whose: an index below the number of viewers.
    pub viewer: usize,
    /// Where they go.
    pub to: SocketAddr,
    /// The datagrams: RTP header and payload each.
    pub bytes: &'a [u8],
    /// Where they lie in the memory that is registered with the device.
    pub address: u64,
}
