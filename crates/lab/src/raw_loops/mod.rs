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

mod datagrams;
mod kernel;
mod xdp;

pub use datagrams::ViewerDatagrams;
pub use kernel::{KernelLoop, KernelPath};
pub use xdp::{Headers, XdpLoop, XdpPath};
