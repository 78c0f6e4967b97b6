//! Bounds that several crates need, each with its reason; relations between them are asserted below.
//!
//! A limit that an operator may change is the default of a setting; the others are part of a format
//! or of a proof. Bounds that one crate needs are in its own `limits`: there, a changed line rebuilds
//! nothing else.

pub mod control;
pub mod egress;
pub mod ip;
pub mod ladder;
pub mod rights;
pub mod subtitles;
pub mod tcp;
pub mod toe;
pub mod transform;
pub mod volume;
pub mod web;

/// Length of a TS packet (ISO/IEC 13818-1 section 2.4.3.2).
pub const TS_PACKET_BYTES: usize = 188;
/// TS packets in a media packet by default: 7 x 188 = 1316 is the largest multiple that fits a 1500-byte MTU.
pub const DEFAULT_TS_PER_PACKET: usize = 7;
/// Payload length of a media packet by default.
pub const DEFAULT_PACKET_BYTES: usize = TS_PACKET_BYTES * DEFAULT_TS_PER_PACKET;
/// Largest payload of a media packet: 48 TS packets, the last multiple below a 9216-byte jumbo frame with its headers.
pub const MAX_PACKET_BYTES: usize = TS_PACKET_BYTES * 48;
/// Smallest block of a file that is sent as blocks of any bytes: an extent has no more of them than
/// of the smallest packets, and tables are made for this number.
pub const MIN_BLOCK_BYTES: usize = RTP_HEADER_BYTES + TS_PACKET_BYTES;
/// Fixed RTP header (RFC 3550 section 5.1), no CSRC, no extension.
pub const RTP_HEADER_BYTES: usize = 12;
/// Size of a cache extent. One disk read each: 256 KiB is large enough to stream from a disk (INSTANCE asks for at
/// least 64 KB) and about one second of a 2 Mb/s media, so that a viewer holds two of them.
pub const EXTENT_BYTES: usize = 256 * 1024;
/// Extents a 2 MiB huge page holds; no extent straddles two huge pages, so no payload does.
pub const EXTENTS_PER_HUGE_PAGE: usize = (2 << 20) / EXTENT_BYTES;
/// Smallest cache: below 64 extents a few dozen viewers at different places would evict each other at once.
pub const MIN_CACHE_BYTES: u64 = 64 * EXTENT_BYTES as u64;
/// Default cache. Small enough for a shared machine, 17 minutes of a 2 Mb/s film.
pub const DEFAULT_CACHE_BYTES: u64 = 256 << 20;
/// Memory that the default budgets assume: the default cache is a quarter of it, and generated
/// segments may take half. With less memory, all default budgets shrink in proportion.
pub const MEMORY_FOR_DEFAULTS: u64 = 4 * DEFAULT_CACHE_BYTES;
/// Most titles open at once; the cache keeps a small table entry for each, and a few file descriptors: of a volume of several
/// members or with parity up to six for each member, and up to three for each parity track that is sent.
pub const MAX_OPEN_TITLES: usize = 4096;
/// Threads that open titles. Each waits for one disk at a time; a disk that hangs holds them once, until it is found out
/// ([`DISK_CALL_NS`]), and with several of them titles on other disks are still opened meanwhile.
pub const OPENER_THREADS: usize = 4;
/// Packets of one title: sequence arithmetic uses `u32` packet numbers. 2^32 x 1316 bytes = 5.6 TB of media.
pub const MAX_TITLE_PACKETS: u64 = u32::MAX as u64;
/// Streams in one engine. 128 bytes of state each, so 2^17 streams stay within 16 MiB.
pub const MAX_STREAMS_PER_ENGINE: usize = 1 << 17;
/// Extents that a loop's egress path may ask for again at once: each is one more stream of the loop
/// to the cache. Few viewers read on after they had stopped, and one extent is a quarter of a
/// second of a fast title.
pub const AGAIN_PLACES: usize = 16;
/// Default ceiling of streams in one engine: above what one core was ever seen to carry with kernel sockets.
pub const DEFAULT_STREAMS_PER_ENGINE: usize = 16_384;
/// Engines of one server: one core each.
pub const MAX_ENGINES: u8 = 64;
/// Most datagrams that may leave back to back for one viewer. A default 212,992-byte receive buffer
/// holds 92 datagrams of 1328 bytes (measured with live555, VLC and openRTSP); more are lost in the
/// player.
pub const MAX_BURST_PACKETS: usize = 92;
/// Bursts handed to the packet I/O in one batch: one sendmmsg call.
pub const MAX_BATCH_BURSTS: usize = 64;
/// Default bound on how much media time leaves as one burst.
pub const DEFAULT_BURST_NS: u64 = 10_000_000;
/// Default bound on it when the processor is busy: the cost of a datagram falls with the length of
/// its burst, and all of a burst, which leads by up to 2 ms then (`SHARED_WAKE_NS`), still arrives
/// within 20 ms of its time (18 ms were too long: p99 21 ms with 1,000 viewers of 8 Mb/s).
pub const BUSY_BURST_NS: u64 = 16_000_000;
/// A burst of a slow stream may cover this much media time to gather a few packets; far below the
/// 100 ms quantum, where no player lost anything.
pub const MAX_BURST_NS: u64 = 20_000_000;
/// A burst in a TCP connection has this many times the media time of one of datagrams: the receiver has a buffer, nothing is lost by
/// being early, and small writes are what interleaved RTP costs. With [`MAX_BURST_NS`] that is 80 ms, so 99 % of the packets come
/// within 100 ms of the earliest.
pub const TCP_BURST_RATIO: u32 = 4;
/// Most bytes in one write of frames to a TCP connection: 92 packets of the default size.
pub const MAX_TCP_WRITE_BYTES: usize = 128 * 1024;
/// `$`, channel, length: what stands before each packet in an RTSP connection (RFC 2326 section 10.12).
pub const FRAME_PREFIX_BYTES: usize = 4;
/// Most media that a run may send ahead of its pace at its beginning, in milliseconds: what players with long buffers hold. At 8 Mb/s that
/// is 10 MB, with `MIN_PACKET_GAP_NS` a tenth of a second of a 1 Gb/s link.
pub const MAX_AHEAD_MS: u16 = 10_000;
/// Catch-up after a hole runs at this ratio of the stream's own rate (numerator, denominator).
pub const CATCH_UP_RATIO: (u64, u64) = (5, 4);
/// First RTP packet after the PLAY reply on an interleaved connection. Players that read RTP from
/// the RTSP connection lose packets right behind the reply (live555: half of the runs at 0 ms, none
/// at 20 ms).
pub const PLAY_DELAY_NS: u64 = 50_000_000;
/// A stream asks for the next extent when this much of its current one is left. The cache has read
/// it by then: the delays are a burst of a busy core ([`BUSY_BURST_NS`]), after which the want
/// leaves, and the turns of two loops; and if the extent has been evicted meanwhile, a read of a
/// busy disk, some 20 ms. At 8 Mb/s this is a fifth of an extent's time, so that a viewer holds 1.2
/// extents in the mean; a stream that asked when the extent before began held two.
pub const LEASE_AHEAD_NS: u64 = 50_000_000;
/// RTCP BYE after the last RTP packet: players hold back up to 2 s and drop the rest when BYE
/// comes.
pub const BYE_DELAY_NS: u64 = 2_500_000_000;
/// Longest compound RTCP packet that is made: a report with one block has 52 bytes, a CNAME the rest.
pub const MAX_REPORT_BYTES: usize = 128;
/// Records in a command or event ring.
pub const RING_RECORDS: usize = 4096;
/// Disk reads in flight. 32 x 256 KiB saturate an NVMe drive and still let an urgent read in soon.
pub const MAX_READS_IN_FLIGHT: usize = 32;
/// A TCP viewer whose media is this far behind its time is dropped: it reads slower than it plays.
pub const MAX_TCP_BEHIND_NS: u64 = 10_000_000_000;
/// Retry interval for data that found no room in a device that does not report free room (a full
/// UDP socket, a ring).
pub const RETRY_NS: u64 = 5_000_000;
/// Control bytes (RTSP replies, RTCP) that may wait behind RTP frames on one connection.
pub const MAX_CONN_PENDING_BYTES: usize = 64 * 1024;
/// TCP connections whose writes one engine loop owns.
pub const MAX_CONNS_PER_ENGINE: usize = 8192;
/// Longest RTSP message: requests of all known players stay below 2 KiB; the parser's cost grows with the length.
pub const MAX_RTSP_MESSAGE_BYTES: usize = 16 * 1024;
/// Media packets in a unit of a row ("U"): SMPTE ST 2022-1 allows a column offset L of at most 20.
pub const MAX_UNIT_PACKETS: u32 = 20;
/// Longest name (slug) of a title: with `/trackID=1` and a host it stays well within a URL that every player takes.
pub const MAX_TITLE_NAME_BYTES: usize = 96;
/// Longest name of a rendition: `1080p-hevc-10bit` just fits, and so does a URL with it.
pub const MAX_RENDITION_NAME_BYTES: usize = 16;
/// A burst gathers at least this many packets if [`MAX_BURST_NS`] allows: software GSO beats single sends from 4 packets
/// on (measured on veth: 900 ns a packet alone, 460 ns at 4).
pub const MIN_BURST_PACKETS: usize = 4;
/// Local addresses that serve UDP viewers, besides those that routes give: as many as one byte can
/// number. The table takes no further ones, and the route determines the source address for their
/// viewers.
pub const MAX_SOURCES: usize = u8::MAX as usize;
/// A packet this long after its time is overdue: half the capacity of the smallest buffer of a
/// common player (100 ms), and more than a shared machine takes from a loop now and then. Admission
/// judges by it.
pub const OVERDUE_NS: u64 = 50_000_000;
/// A hole of ours (the loop stood still, an extent came late) up to this long is made up at
/// [`CATCH_UP_RATIO`]; a longer one moves the stream's timeline instead. 5 s take 20 s of catching
/// up, which a full machine can just bear.
pub const MAX_HOLE_NS: u64 = 5_000_000_000;
/// Fastest delivery in thousandths of real time. Players ask for at most 16 x.
pub const MAX_SCALE_PERMILLE: u16 = 16_000;

const _: () = {
    assert!(DEFAULT_PACKET_BYTES + RTP_HEADER_BYTES + 8 + 20 <= 1500);
    assert!(EXTENTS_PER_HUGE_PAGE * EXTENT_BYTES == 2 << 20);
    assert!(MAX_PACKET_BYTES + RTP_HEADER_BYTES + 8 <= EXTENT_BYTES);
    assert!(DEFAULT_CACHE_BYTES >= MIN_CACHE_BYTES);
    assert!(DEFAULT_BURST_NS <= BUSY_BURST_NS && BUSY_BURST_NS <= MAX_BURST_NS);
    assert!(MAX_BURST_NS < PLAY_DELAY_NS);
    assert!(MAX_BURST_NS * TCP_BURST_RATIO as u64 <= 80_000_000);
    let frame_bytes = FRAME_PREFIX_BYTES + RTP_HEADER_BYTES + DEFAULT_PACKET_BYTES;
    assert!(MAX_BURST_PACKETS * frame_bytes <= MAX_TCP_WRITE_BYTES);
    assert!(LEASE_AHEAD_NS >= 2 * BUSY_BURST_NS);
    assert!(DEFAULT_STREAMS_PER_ENGINE <= MAX_STREAMS_PER_ENGINE);
    assert!(MAX_READS_IN_FLIGHT as u64 * 2 <= MIN_CACHE_BYTES / EXTENT_BYTES as u64);
    assert!(BYE_DELAY_NS >= 2_500_000_000 && PLAY_DELAY_NS >= 20_000_000);
    assert!(MAX_HOLE_NS < MAX_TCP_BEHIND_NS && MIN_BURST_PACKETS <= MAX_BURST_PACKETS);
};
/// Such extents of all streams of an engine: 128 MiB, half of the default cache.
pub const MAX_HELD_PER_ENGINE: usize = 512;
/// Extents that one AF_XDP device takes of those that the arena has set aside: 1024 frames of 2 KiB fill one huge page
/// and are more than 1 ms of a 10 Gb/s link.
pub const XDP_ASIDE_EXTENTS: u32 = EXTENTS_PER_HUGE_PAGE as u32;
/// Ports that are steered past the kernel's sockets: those that a server listens at, on each of its addresses.
pub const MAX_STEERED_PORTS: u32 = 1024;
/// Packets that a receiving device shows in one batch: the number that one system call of the
/// kernel path brings, and few enough that headers are still in the cache when the next phase of
/// the loop reads the results.
pub const RX_BATCH_PACKETS: usize = 64;
/// Queues of an interface that such a device takes at once: as many as large servers have cores, and 52 MiB of locked memory.
pub const MAX_XDP_RAW_QUEUES: u32 = 64;
/// Longest frame of such a device, either way: the part of a receive frame that is left behind the
/// 256 bytes of the kernel.
pub const XDP_RAW_FRAME_BYTES: usize = 4096 - 256;

const _: () = assert!(2 * MAX_HELD_PER_ENGINE as u64 * EXTENT_BYTES as u64 <= DEFAULT_CACHE_BYTES);
/// Data units in a row ("k"): with GF(2^8) the code could have 247; beyond 64 a row is longer than any network buffer and
/// one decoding reads megabytes.
pub const MAX_DATA_UNITS: usize = 64;
/// Parity units in a row ("m"): no operator loses more disks at once, and encoding costs in
/// proportion.
pub const MAX_PARITY_UNITS: usize = 8;
/// Size of one read from a member of a volume, where possible: a disk passes about a megabyte in
/// the time of one seek, and INSTANCE asks for at least 64 KB. With many members, each has less of
/// an extent, so several extents are read together.
pub const MEMBER_READ_BYTES: usize = 64 * 1024;
/// A read of a disk that has not come after this time is given up: the other disks have the data
/// needed. Far above the time of a busy disk (some 20 ms), far below the time that is read ahead.
pub const SLOW_READ_NS: u64 = 250_000_000;
/// Packets of a thousand in that window that may be damaged before a stream is ended: a picture that breaks up for a second
/// or two is better than none, a server that sends a tenth less than a title is broken.
pub const DEFAULT_MAX_DAMAGED_PERMILLE: u32 = 100;
/// Titles that a store lists as damaged for the next scrub. A disk that damages more is scrubbed as a whole, and then replaced.
pub const MAX_DAMAGED_TITLES: usize = 1024;
/// FEC header of SMPTE ST 2022-1, between the RTP header and the parity.
pub const FEC_HEADER_BYTES: usize = 16;
/// Patterns of loss whose decoding is kept ready for one code: all of 8 + 4 with up to three
/// symbols missing, and those that the network adds. At most 5 KiB each.
pub const MAX_DECODE_PLANS: usize = 512;
/// Most packets in a row that the network's FEC can use: ST 2022-1 demands L x D <= 100.
pub const MAX_FEC_MATRIX_PACKETS: u32 = 100;
/// Empty extents that wait for a feeder beside the one that it writes: 20 ms of 200 Mb/s, some turns of the manager that brings them.
pub const FEEDER_EXTENTS: usize = 2;
/// Fewest extents that a live title holds: those that its feeder has in hand, and two for viewers,
/// one of them about to go.
pub const MIN_LIVE_EXTENTS: usize = FEEDER_EXTENTS + 3;
/// Most extents of a live title: 1 GiB, a quarter of an hour of 8 Mb/s. All live titles together have half of the memory at most.
pub const MAX_LIVE_EXTENTS: usize = 4096;
/// How long repair and scrub wait for a disk. A disk tries a bad sector again for up to half a
/// minute before it reports the error, and the kernel then resets it: a disk that has not answered
/// after twice this time does not answer at all.
pub const REPAIR_ANSWER_NS: u64 = 60_000_000_000;
/// Longest wait for a system call on a member's directory (open, stat, readdir) where a viewer
/// waits for an answer; after this the member counts as missing until the call comes back. Far
/// above the time of a busy disk, and RTSP clients wait longer.
pub const DISK_CALL_NS: u64 = 4_000_000_000;
/// Memory that ffmpeg may have for one file by default. A title is copied with less than 100 MiB and transcoded from 4K with about
/// 1 GiB; a picture of 8192 x 8192, which a file of 100 KB can hold, takes 1.5 GiB.
pub const FFMPEG_MEMORY_BYTES: u64 = 2 << 30;
