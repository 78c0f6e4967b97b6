//! Bounds of this crate, each with its reason.

/// Packets read from one side of an emulated link before the other gets its turn: less than a tenth of a millisecond.
pub const LINK_READS_PER_TURN: usize = 64;
/// Longest packet that a TUN device may hand over, however its MTU is set: the length field of IPv4.
pub const MAX_DEVICE_PACKET_BYTES: usize = 65_535;
/// Used packet buffers that an emulated link keeps for the next packets: 2 MiB, the data under way
/// at 100 Mb/s and 160 ms.
pub const SPARE_BUFFERS: usize = 1024;
/// Longest buffer kept for reuse: any packet of an ordinary network.
pub const SPARE_BYTES: usize = 2048;
/// Packets that one direction of an emulated link holds at most: 100 ms of 300,000 packets a second, or 48 MiB of full
/// ones.
pub const MAX_LINK_PACKETS: usize = 1 << 15;
/// And at most this many bytes of them, should they be larger than usual.
pub const MAX_LINK_BYTES: u64 = 64 << 20;
/// Longest delay, jitter or hold of an emulated link. Two satellite hops take 0.6 s; beyond 10 s sessions time out.
pub const MAX_LINK_DELAY_NS: u64 = 10_000_000_000;
/// A packet that an emulated link holds back for reordering is let go after this if too few others come by.
pub const DEFAULT_LINK_HOLD_NS: u64 = 100_000_000;
/// Most packets that may overtake one on an emulated link: receivers tell late packets from lost ones within 4096.
pub const MAX_LINK_REORDER_PACKETS: u32 = 1000;
/// Longest mean burst of losses of an emulated link.
pub const MAX_LINK_BURST_PACKETS: u32 = 10_000;
/// Packets that wait before the bottleneck of an emulated link by default: 120 ms at 10 Mb/s.
pub const DEFAULT_LINK_QUEUE_PACKETS: u32 = 100;
