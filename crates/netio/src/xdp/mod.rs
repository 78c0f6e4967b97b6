//! AF_XDP: frames that are built here, headers and all, go straight to the driver of a network interface.
//!
//! The whole arena is registered with the kernel once, so a payload can be sent from the one copy
//! of the title in memory. For each datagram the loop writes 54 to 78 bytes of header from a
//! prebuilt template, with a checksum made of stored sums, and one or two descriptors of 16 bytes
//! into a ring; then one call, or none where the driver polls by itself, sends many datagrams. The
//! kernel's work for sockets (routing, buffers of its own, segmentation, checksums) does not take
//! place; so routes and neighbours are maintained in [`route`](crate::route), and the length is
//! checked against the MTU here, because the kernel silently drops a frame that is too long.
//!
//! ```text
//!   arena = UMEM   | media extents ................................ | extents aside |
//!                        ▲ payload descriptor (chained)                ▲ header or staging frame
//!   TX ring              └───────────────── header, payload, … ────────┘        ► kernel, driver
//!   completion ring      ◄── addresses: the frame is free again, the lease on the extent ends
//! ```
//!
//! Whatever is in a descriptor stays as it is until its completion: a frame is not taken again, and an extent stays
//! under lease. Completions are matched by address, not counted. A completion does not mean that the datagram was
//! delivered, not even that it was sent.
//!
//! | file | holds |
//! | --- | --- |
//! | `ring` | single-producer, single-consumer rings over any memory |
//! | `umem` | the registered memory, frames, leases held for the device |
//! | `socket` | making and binding a socket |
//! | `strategy` | [`Strategy`]: copy or not, one descriptor or two, and which suits which device |
//! | `row` | the state of each stream: its path and its template |
//! | `output` | datagrams into rings |
//! | `tx` | [`XdpTx`]: the egress path |
//! | `chain` | frames of several descriptors, header and payload |
//! | `raw` | [`XdpRaw`]: whole frames both ways, for a network stack of one's own |
//! | `queues` | [`XdpQueues`]: the same by all queues of an interface |
//! | `memory` | [`MemoryNic`]: the other end of rings in memory, for tests |
//! | `steer` | the program that selects the packets for our sockets |
//! | `sys` | shared memory, the only `unsafe` |
//!
//! Its requirements, and which strategy runs where: `docs/guide/xdp.md`.

mod chain;
mod error;
mod memory;
mod output;
mod queues;
mod raw;
pub mod ring;
mod row;
pub mod socket;
pub mod steer;
mod strategy;
mod sys;
mod tx;
pub mod umem;

pub use error::XdpError;
pub use memory::{MemoryNic, MemoryPacket};
pub use output::XdpCounters;
pub use queues::XdpQueues;
pub use raw::{XdpRaw, XdpRawConfig, XdpRawCounters};
pub use strategy::{Abilities, Strategy};
pub use tx::{XdpConfig, XdpTx};

#[doc(hidden)]
pub mod testing {
    //! For the proof that a device sends payloads without reading them.
    pub use super::sys::{Guard, GuardedRegion, PAGE_BYTES};
}
