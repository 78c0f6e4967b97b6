//! Bounds of this crate, each with its reason. Relations between them are asserted.
//!
//! A bound that an operator may change is the default of a setting. What several crates need is in
//! [`millrace_core::limits`].

use std::time::Duration;

use millrace_core::limits::{DEFAULT_STREAMS_PER_ENGINE, EXTENT_BYTES, MAX_BATCH_BURSTS, RX_BATCH_PACKETS};

// Sockets of the service manager.

/// Sockets that a service manager passes: one for each of four protocols, and for each address of a machine with several.
pub const MAX_INHERITED_SOCKETS: usize = 64;

// UDP sockets.

/// UDP sockets of one engine for viewers: RTP and RTCP of each address family.
pub const UDP_SENDERS: usize = 4;
/// Messages in one sendmmsg call: a full batch of bursts, each cut in up to four.
pub const MESSAGES_PER_CALL: usize = 4 * MAX_BATCH_BURSTS;
/// Most segments the kernel takes in one UDP GSO send (UDP_MAX_SEGMENTS was 64 before Linux 6.9), and a datagram
/// train of at most 65,507 bytes: 44 segments of 1328 bytes.
pub const MAX_GSO_SEGMENTS: usize = 64;
/// Most bytes in one UDP GSO send over IPv4: 65,535 - 20 - 8.
pub const MAX_GSO_BYTES: usize = 65_507;
/// Parts of all messages of a call: eight patched sends of 64 datagrams.
pub const PARTS_PER_CALL: usize = 16 * MAX_GSO_SEGMENTS;
/// Send buffer asked for. Shared by all viewers, it must hold what waits for slow address resolution (up to 208 KiB
/// for each silent neighbour, net.ipv4.neigh.*.unres_qlen_bytes) and still let others send.
pub const SEND_BUFFER_BYTES: usize = 4 << 20;
/// Tries of one message that may fail because of ICMP messages about others, before the socket is made deaf for it.
pub const MAX_SEND_TRIES: u32 = 4;
/// Tries of it on a deaf socket: a message that the kernel was just filing may still get through on each CPU.
pub const DEAF_TRIES: u32 = 3;
/// Rounds of ICMP errors in one batch after which the socket stops listening to ICMP for a while: a
/// host is sending them on purpose.
pub const MAX_ICMP_ROUNDS: u32 = 16;
/// Number of batches in which it then stays deaf: ten seconds at 100 batches a second.
pub const DEAF_BATCHES: u64 = 1024;
/// Every `DRAIN_BATCHES` batches the error queue is read even if no send failed: unread errors take
/// the socket's receive memory.
pub const DRAIN_BATCHES: u64 = 256;
/// Entries that may meet a full device queue before the rest of the batch is held back: other devices may have room.
pub const MAX_FULL_QUEUES: u32 = 4;
/// GSO sends in a row that only worked without GSO, for different viewers, before the socket does without: the device
/// cannot do it then.
pub const GSO_STRIKES: u32 = 8;
/// Number of batches in which a viewer whose path refused GSO gets single datagrams; the kernel
/// forgets a path's MTU after ten minutes (net.ipv4.route.mtu_expires), which are 60,000 batches at
/// 100 a second.
pub const PLAIN_BATCHES: u64 = 60_000;
/// Shortest message that is worth sending without copying: below, pinning pages and reading the completion cost more
/// than the copy ("generally only effective at writes over around 10 KB", Documentation/networking/msg_zerocopy.rst;
/// `millrace bench backends` measures it).
pub const ZERO_COPY_MIN_BYTES: usize = 10_000;
/// Rounds of [`CLOSE_WAIT_MS`] in which an abandoned socket waits for the kernel to finish its
/// sends: 100 ms, many times the time that a device needs.
pub const CLOSE_ROUNDS: u32 = 20;
/// One such round.
pub const CLOSE_WAIT_MS: i64 = 5;
/// Connections that can be written again, taken from the kernel in one call: more come with the next.
pub const REPORTS_PER_CALL: usize = 64;
/// Slots of the table of addresses with errors that are looked at for one address: those of one place in memory.
pub const ADDRESS_WAYS: usize = 4;
/// Groups of slots of the table of addresses with errors; 64 x 4 = 256 addresses, more than answer
/// with errors at a time. The oldest of a group makes room.
pub const ADDRESS_SETS: usize = 64;
/// ICMP errors taken from the kernel in one call: a system call for each would cost as much as the sends that failed.
pub const ICMP_BATCH: usize = 32;
/// Such calls before the drain gives up for this time: 128 errors, so that they cannot hold up a batch.
pub const MAX_ICMP_CALLS: usize = 4;
/// Errors that wait to be taken; the oldest make room. Their cause shows again with the next
/// packet.
pub const MAX_ICMP_NEWS: usize = 64;
/// Batches after which an error that its viewer never met is forgotten: at 100 batches a second 40 s. A new viewer
/// behind the same address shall not pay for an old one.
pub const ICMP_LIFETIME_BATCHES: u64 = 4096;
/// Time for a datagram to cross the loopback device; it takes microseconds.
pub const PROBE_TIMEOUT: Duration = Duration::from_millis(500);

// Sends without a copy.

/// Size of the pipe through which pages go to connections: one call passes a whole extent, even if it begins in mid-page.
pub const PAGES_PIPE_BYTES: usize = 2 * EXTENT_BYTES;
/// Shortest write without a copy: below this, copying is cheaper than a second system call.
pub const PAGES_MIN_BYTES: usize = 16 << 10;

/// Sends of one socket that may be outstanding. A completion takes 576 bytes of the socket's option
/// memory; net.core.optmem_max allows 128 KiB since Linux 6.8: room for 227. Where there is less
/// the kernel reports it, and less is used.
pub const HELD_SENDS: usize = 128;
/// Completions after which we judge whether the kernel copies anyway: half of the sends that may be
/// outstanding.
pub const JUDGED_SENDS: u32 = 64;
/// Sends in a row that only worked with copying before sending without a copy is given up: a few fail for want of option
/// memory alone.
pub const MAX_COPY_REFUSALS: u32 = 8;
/// Batches after which it is tried again where the kernel copied: the viewers on this host may be gone. 40 s at 100
/// batches a second.
pub const ZERO_COPY_RETRY_BATCHES: u64 = 4096;
/// Batches after which completions are looked for even if there is room for more sends: extents are held until then.
pub const COMPLETION_BATCHES: u64 = 16;

// TCP.

/// The same where a connection carries bytes of a title and no frames: it counts as writable when
/// less than half of this waits, and takes four extents then, so that a segment of 6 MB wakes its
/// engine six times, as often as nginx is woken. A viewer who stops reading leaves this much in the
/// kernel beside the data in flight.
pub const BYTES_NOT_SENT: i32 = 2 << 20;
/// Parts of one write to a connection: the packets of an extent of the default size, and any burst of frames with what stands before each.
pub const TCP_PARTS: usize = 196;
/// Interrupted calls in a row before the connection counts as blocked: signals that come so fast never end.
pub const MAX_INTERRUPTS: usize = 4;

// AF_XDP.

/// Send buffer asked for: it bounds the bytes that the device still has to send in copy mode, with the kernel's
/// overhead of about 1 KB a packet.
pub const XDP_SEND_BUFFER_BYTES: usize = 8 << 20;
/// A queue stays taken for a moment after its last socket has gone; binding is tried so often, [`XDP_BIND_PAUSE`] apart: five seconds
/// in all. The kernel gives it back by a worker that wants the lock of all network settings: on a machine whose namespaces were
/// coming and going meanwhile, half a second was too short.
pub const XDP_BIND_TRIES: u32 = 500;
/// How far apart those tries are.
pub const XDP_BIND_PAUSE: Duration = Duration::from_millis(10);
/// Every `XDP_CHECK_TURNS` batches or polls we ask the kernel whether the interface is still there:
/// where the driver looks at the ring by itself, no call would report it.
pub const XDP_CHECK_TURNS: u32 = 256;
/// AF_XDP devices that one `BestTx` has at most: one for each interface that viewers are behind.
pub const MAX_DEVICES: usize = 4;
/// Bursts in a row that must ask for another way before a stream takes it: a burst is cut in two where an extent ends,
/// which is once in several bursts even at high bit rates, and never eight times in a row.
pub const SWITCH_AFTER: u8 = 8;
/// Bursts of a stream that no device can send before the devices are asked again: soon at first, since a next hop that
/// is not known yet will be in a moment, then about once a second of media.
pub const ASK_AGAIN_AFTER: std::ops::RangeInclusive<u8> = 2..=64;
/// How often the supervisor of AF_XDP devices looks. A failed device waits for nothing but to be closed: its viewers go
/// by the kernel already.
pub const DEVICE_LOOK_EVERY: Duration = Duration::from_millis(100);
/// A device that cannot be opened is tried again after this many looks, twice as many each time:
/// opening one takes milliseconds of its thread.
pub const FIRST_WAIT_LOOKS: u32 = 2;
/// And at most this many: an interface that comes back is used within 3 seconds.
pub const LONGEST_WAIT_LOOKS: u32 = 32;
/// Room for the words of the kernel's verifier of BPF programs. They come only after a refusal, and are kilobytes for our
/// programs.
pub const VERIFIER_LOG_BYTES: usize = 1 << 20;
/// How much of their end is shown: the reason is in the last lines.
pub const VERIFIER_SHOWN_BYTES: usize = 2000;

// Measurements of egress paths.

/// Datagrams in a slot of a measurement: some tens of microseconds, long against reading the clock, short against a time
/// slice.
pub const SLOT_DATAGRAMS: usize = 64;
/// Rounds at most. A median of 15 does not move for a few disturbed ones.
pub const MOST_ROUNDS: usize = 15;
/// Rounds without which there is no figure: the median of fewer is one of them.
pub const LEAST_ROUNDS: usize = 3;
/// Extents of packets: 2 MiB, more than the processor's nearest caches hold.
pub const MEASURED_EXTENTS: usize = 8;
/// How long a slot's frames may take to leave: 64 full frames need 1 ms at 1 Gb/s.
pub const SETTLE_NS: u64 = 5_000_000;

// Next hops.

/// An unreachable destination or neighbour is tried again at most so often, as the kernel does.
pub const NEIGHBOUR_RETRY_NS: u64 = 1_000_000_000;
/// A neighbour that has not answered by then is not there: the kernel itself gives up after three questions, one a second.
pub const NEIGHBOUR_TIMEOUT_NS: u64 = 4_000_000_000;
/// Every destination is looked up again after this: the kernel learns of a smaller MTU on the way without telling. A full
/// table makes 1,600 look-ups a second of some 20 us; that of an ordinary server is not to be seen.
pub const HOP_REFRESH_NS: u64 = 10_000_000_000;
/// Look-ups of one turn, some 5 ms, so that questions and changes that come meanwhile do not wait for all of them.
pub const LOOK_UPS_PER_TURN: usize = 256;
/// Places searched for an unused one when all are taken: as many as a turn can afford; the next
/// turn looks on.
pub const EVICTION_STEPS: usize = 64;
/// While a loop's ring is full, the thread that looks up next hops tries again after this: several turns of the loop.
pub const FULL_RING_NS: u64 = 1_000_000;
/// Longest sleep of this thread: if a bell is ever missed, questions wait no longer.
pub const LONGEST_SLEEP_NS: u64 = 1_000_000_000;
/// The kernel fills datagrams of up to 32 KiB; one message about an interface with many virtual functions may be longer.
pub const NETLINK_BUFFER_BYTES: usize = 64 * 1024;
/// Changes that may wait: a few thousand messages. More are reported as an overrun, after which
/// everything is queried again.
pub const NETLINK_EVENT_BUFFER_BYTES: usize = 4 << 20;
/// The answer is there when the question has been sent; should it ever not be, nothing waits for ever.
pub const NETLINK_TIMEOUT: Duration = Duration::from_secs(2);
/// Datagrams of changes taken at once: after that, questions that wait get their turn.
pub const EVENTS_PER_CALL: usize = 64;

/// Destinations whose next hop one packet device knows: every stream of an engine by default may go to another address.
/// Those beyond it are sent to through kernel sockets.
pub const MAX_HOPS: usize = DEFAULT_STREAMS_PER_ENGINE;
/// Sockets for multicast of one sender: each is an interface, a source address, a time to live and
/// a loopback setting, and an operator has a few of these. Groups need no socket of their own.
pub const MAX_MULTICAST_SOCKETS: usize = 8;
/// Questions and answers about next hops under way between a loop and the thread that asks the kernel. Both sides try
/// again when there is no room, so this is only what one turn may bring.
pub const HOP_RING_RECORDS: usize = 1024;
/// Descriptors in the rings of an AF_XDP device: twice the number for a full batch of ordinary
/// bursts (64 viewers, 8 datagrams of 2 descriptors), so that the device has work while the next
/// batch is made.
pub const XDP_RING_DESCRIPTORS: u32 = 2048;
/// How often a receiving device asks the kernel whether it is still there and how many packets were dropped: two system calls.
pub const RX_LOOK_NS: u64 = 100_000_000;
/// Frames of 4 KiB that an AF_XDP device receives into, at most, and so the length of its rings: 8 MiB, which a link of 10 Gb/s with full
/// packets fills in 2.4 ms, longer than a loop sleeps that has something to do.
pub const MAX_XDP_RX_FRAMES: u32 = 2048;
/// Default number of frames in each direction of a device for whole frames: four turns of a TCP
/// engine.
pub const DEFAULT_XDP_RAW_FRAMES: u32 = 1024;
/// Descriptors of one frame that is sent in pieces: its headers, three packets of the longest frame and the bytes before each, one cut at a
/// page's end. In copy mode the kernel takes 17 fragments, and each descriptor may lie on two pages.
pub const XDP_CHAIN_DESCRIPTORS: usize = 8;
/// Queues that all frames are there for; of more, each has a part, as each has a part of the traffic.
pub const XDP_RAW_FULL_QUEUES: u32 = 8;

const _: () = assert!(MAX_XDP_RX_FRAMES.is_power_of_two() && RX_BATCH_PACKETS as u32 <= MAX_XDP_RX_FRAMES);
/// Receive queues of one interface that may have an AF_XDP socket: network cards have up to a few hundred.
pub const MAX_XDP_QUEUES: u32 = 1024;
