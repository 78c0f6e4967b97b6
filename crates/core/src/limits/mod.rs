//! Every bound of the system in one place, each with its reason; relations between bounds are asserted below.
//!
//! A limit that an operator may change is the default of a setting; the others are part of a format or of a proof. Those that concern
//! one area only stand in its file:
//!
//! | module | bounds of |
//! | --- | --- |
//! | [`cache`] | the cache, and what it reads from members |
//! | [`control`] | connections, admission, the library, commands |
//! | [`egress`] | sockets, devices, next hops, the emulated link |
//! | [`engines`] | the engines and their loops |
//! | [`ip`] | the IP layer below TCP |
//! | [`ladder`] | renditions of a title |
//! | [`pictures`] | posters, and pictures for seeking |
//! | [`preload`] | the library that is preloaded |
//! | [`rights`] | users, passwords, tokens, links |
//! | [`toe`] | the TCP offload engine and its queue pairs |
//! | [`trick`] | titles made of other titles |
//! | [`ts`] | the analyser of transport streams |
//! | [`viewer`] | `play`, `load` and their reports |
//! | [`volume`] | files of a volume, ingest, repair |

pub mod adapt;
pub mod cache;
pub mod control;
pub mod egress;
pub mod engines;
pub mod ip;
pub mod ladder;
pub mod pictures;
pub mod preload;
pub mod rights;
pub mod stream;
pub mod subtitles;
pub mod tcp;
pub mod tls;
pub mod toe;
pub mod transform;
pub mod trick;
pub mod ts;
pub mod viewer;
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
/// Smallest block of a file that is sent as blocks of any bytes: an extent has no more of them than of the smallest packets, for which tables
/// are made.
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
/// Memory that a server uses besides its cache before the first viewer connects: 37 MiB were
/// measured in a control group (docs/ref/config.md).
pub const SERVER_BASE_BYTES: u64 = 40 << 20;
/// Address space that a server reserves besides its cache and the tables of its engines, an
/// estimate: stacks and arenas of its threads.
pub const SERVER_ADDRESS_BYTES: u64 = 512 << 20;
/// Address space that an engine reserves, an estimate: 8192 connections of 74,576 bytes take 611
/// MB.
pub const ENGINE_ADDRESS_BYTES: u64 = 640 << 20;
/// Additional address space for each stream in an engine's table.
pub const STREAM_ADDRESS_BYTES: u64 = 4 << 10;
/// Bytes read at most from a kernel file that lists limits or mounts.
pub const MAX_MEMORY_TEXT_BYTES: u64 = 1 << 20;

/// Most titles open at once; the cache keeps a small table entry for each, and a few file descriptors: of a volume of several
/// members or with parity up to six for each member, and up to three for each parity track that is sent.
pub const MAX_OPEN_TITLES: usize = 4096;
/// Openings of titles under way at once, those that wait for a thread included: further requests are told to come again. On disks that answer
/// an opening takes milliseconds, so a whole hotel that is switched on finds room; on disks that hang this bounds what waits for them.
pub const MAX_OPENINGS: usize = 256;
/// Threads that open titles. Each waits for one disk at a time; a disk that hangs holds them once, until it is found out
/// ([`DISK_CALL_NS`]), and with several of them titles on other disks are still opened meanwhile.
pub const OPENER_THREADS: usize = 4;
/// A request that needs a title waits so long for it to be opened, and is then told to come again: as long as two disks take to be found
/// out that hang one after the other, and 2 s for all that answer. Players wait longer.
pub const OPENING_NS: u64 = 2 * DISK_CALL_NS + 2_000_000_000;
/// Packets of one title: sequence arithmetic uses `u32` packet numbers. 2^32 x 1316 bytes = 5.6 TB of media.
pub const MAX_TITLE_PACKETS: u64 = u32::MAX as u64;

/// Streams in one engine. 128 bytes of state each, so 2^17 streams stay within 16 MiB.
pub const MAX_STREAMS_PER_ENGINE: usize = 1 << 17;
/// Extents that a loop's egress path may ask for again at once: each is one more stream of the loop to the cache. Viewers who read on after they
/// had stopped are few, and one extent is a quarter of a second of a fast title.
pub const AGAIN_PLACES: usize = 16;
/// Default ceiling of streams in one engine: above what one core was ever seen to carry with kernel sockets.
pub const DEFAULT_STREAMS_PER_ENGINE: usize = 16_384;
/// Viewers at once unless the operator says otherwise: at 2 Mb/s the 10 Gb/s of a server's link.
pub const DEFAULT_MAX_STREAMS: usize = 5000;
/// Engines of one server: one core each.
pub const MAX_ENGINES: u8 = 64;

/// Most datagrams that may leave back to back for one viewer. 92 datagrams of 1328 bytes are what a default
/// 212,992-byte receive buffer holds (measured with live555, VLC and openRTSP); more are lost in the player.
pub const MAX_BURST_PACKETS: usize = 92;
/// Most segments the kernel takes in one UDP GSO send (UDP_MAX_SEGMENTS was 64 before Linux 6.9), and a datagram
/// train of at most 65,507 bytes: 44 segments of 1328 bytes.
pub const MAX_GSO_SEGMENTS: usize = 64;
/// Most bytes in one UDP GSO send over IPv4: 65,535 - 20 - 8.
pub const MAX_GSO_BYTES: usize = 65_507;
/// Bursts handed to the packet I/O in one batch: one sendmmsg call.
pub const MAX_BATCH_BURSTS: usize = 64;
/// Default bound on how much media time leaves as one burst.
pub const DEFAULT_BURST_NS: u64 = 10_000_000;
/// Default bound on it when the processor is busy: what a datagram costs falls with the length of its burst, and all of a
/// burst, which leads by up to 2 ms then ([`SHARED_WAKE_NS`]), still arrives within 20 ms of its time (18 ms were too long: p99 21 ms with 1,000 viewers of
/// 8 Mb/s).
pub const BUSY_BURST_NS: u64 = 16_000_000;
/// A burst of a slow stream may cover this much media time to gather a few packets; far below the 100 ms quantum
/// with which no player lost anything.
pub const MAX_BURST_NS: u64 = 20_000_000;
/// When a loop wakes for a burst, those of other streams that depart within this time leave with it: 125 wake-ups a second for any number
/// of streams, as many as a thread that looks after ten viewers may have and still cost under 2 % of a core. Together with the longest burst
/// of a core that is busy, whose bursts lead by little, packets stay within 20 ms.
pub const SHARED_WAKE_NS: u64 = 8_000_000;
/// A burst in a TCP connection has this many times the media time of one of datagrams: the receiver has a buffer, nothing is lost by
/// being early, and small writes are what interleaved RTP costs. With [`MAX_BURST_NS`] that is 80 ms, so 99 % of the packets come
/// within 100 ms of the earliest.
pub const TCP_BURST_RATIO: u32 = 4;
/// Media in a burst of bytes in a connection, at the pace of its title: about an extent of 8 Mb/s. Who fetches bytes holds seconds, so nobody waits for
/// less, and each write costs. A burst has up to twice as much where that ends its extent.
pub const BYTES_BURST_NS: u64 = 250_000_000;
/// Most bytes in one write of frames to a TCP connection: 92 packets of the default size.
pub const MAX_TCP_WRITE_BYTES: usize = 128 * 1024;
/// `$`, channel, length: what stands before each packet in an RTSP connection (RFC 2326 section 10.12).
pub const FRAME_PREFIX_BYTES: usize = 4;
/// Below this a burst is a packet or two even of fast streams: nothing is gathered.
pub const MIN_BURST_NS: u64 = 1_000_000;
/// Most media that a run may send ahead of its pace at its beginning, in milliseconds: what players with long buffers hold. At 8 Mb/s that
/// is 10 MB, with [`MIN_PACKET_GAP_NS`] a tenth of a second of a 1 Gb/s link.
pub const MAX_AHEAD_MS: u16 = 10_000;
/// Media that is sent ahead at first to viewers by a connection, in milliseconds; 0: none. See `docs/design/0026-trick-play.md`, "Fast start".
pub const DEFAULT_FAST_START_MS: u16 = 0;
/// Catch-up after a hole runs at this ratio of the stream's own rate (numerator, denominator).
pub const CATCH_UP_RATIO: (u64, u64) = (5, 4);

/// First RTP packet after the PLAY reply on an interleaved connection. Players that read RTP from the RTSP connection lose what comes right behind
/// the reply (live555: half of the runs at 0 ms, none at 20 ms).
pub const PLAY_DELAY_NS: u64 = 50_000_000;
/// How far ahead of what is being sent a run is queued behind it, with other FEC or of another rendition: far enough that the engine knows of it,
/// and its first extent has been read, before its time comes.
pub const QUEUE_AHEAD_NS: u64 = 250_000_000;
/// Time in which the first extent of a run that begins at once should be read: viewers who are played to come first, and
/// nobody notices so short a wait.
pub const START_READ_NS: u64 = 50_000_000;
/// A stream asks for the extent behind the one that it sends from when so much of that is left. The cache has read it by then: what
/// has to pass is a burst of a busy core ([`BUSY_BURST_NS`]), after which the want leaves, and the turns of two loops; and if it has
/// been evicted meanwhile, a read of a busy disk, some 20 ms. At 8 Mb/s that is a fifth of an extent's time, so that a viewer
/// holds 1.2 extents in the mean; who asked when the extent before began held two.
pub const LEASE_AHEAD_NS: u64 = 50_000_000;
/// RTCP BYE after the last RTP packet: players hold back up to 2 s and drop what is left when BYE comes.
pub const BYE_DELAY_NS: u64 = 2_500_000_000;
/// RTCP sender report interval (RFC 3550 section 6.2 recommends a minimum of 5 s; players sync faster with less).
pub const RTCP_INTERVAL_NS: u64 = 5_000_000_000;

/// Longest compound RTCP packet that is made: a report with one block has 52 bytes, a CNAME the rest.
pub const MAX_REPORT_BYTES: usize = 128;

/// Records in a command or event ring.
pub const RING_RECORDS: usize = 4096;
/// Commands one turn of the loop takes before it looks at the timers again.
pub const COMMANDS_PER_TURN: usize = 64;
/// Leases one turn of the loop takes.
pub const LEASES_PER_TURN: usize = 128;

/// Media time the cache reads ahead of each playhead.
pub const PREFETCH_NS: u64 = 2_000_000_000;
/// Disk reads in flight. 32 x 256 KiB saturate an NVMe drive and still let an urgent read in soon.
pub const MAX_READS_IN_FLIGHT: usize = 32;

/// A TCP viewer whose media is this far behind its time is dropped: it reads slower than it plays.
pub const MAX_TCP_BEHIND_NS: u64 = 10_000_000_000;
/// A TCP viewer that has taken nothing for this long gives its extents back and waits without them: dead clients must not pin the
/// cache. Far above what a path with a second of round trip needs from one acknowledgement to the next while it takes anything.
pub const TCP_PARK_NS: u64 = 200_000_000;
/// What found no room in a device and is not told when there is some (a full UDP socket, a ring) is tried again after this time.
pub const RETRY_NS: u64 = 5_000_000;
/// Control bytes (RTSP replies, RTCP) that may wait behind RTP frames on one connection.
pub const MAX_CONN_PENDING_BYTES: usize = 64 * 1024;
/// TCP connections whose writes one engine loop owns.
pub const MAX_CONNS_PER_ENGINE: usize = 8192;

/// Longest RTSP message: requests of all known players stay below 2 KiB; the parser's cost grows with the length.
pub const MAX_RTSP_MESSAGE_BYTES: usize = 16 * 1024;
/// Most header lines of an RTSP message.
pub const MAX_RTSP_HEADERS: usize = 64;
/// RTSP connections at once, and from one address (5,000 half-open connections of one host must not lock others out).
pub const MAX_RTSP_CONNECTIONS: usize = 8192;
/// RTSP connections from one address by default. A NAT box hides a whole hotel floor.
pub const MAX_CONNECTIONS_PER_ADDRESS: usize = 1024;
/// Sessions on one RTSP connection.
pub const MAX_SESSIONS_PER_CONNECTION: usize = 16;
/// How long a session that has paused keeps its stream and its bit rate: a telephone call. After that the next viewer may have them.
pub const DEFAULT_PAUSE_RESERVATION_NS: u64 = 60_000_000_000;
/// Share of streams and bit rate that one address may have by default, in percent: a NAT box hides a whole hotel, and yet
/// one address must not lock out all others.
pub const DEFAULT_ADDRESS_SHARE_PERCENT: u8 = 50;
/// Log lines a second about clients and what they ask for: at most 100 MB a day, whatever they do.
pub const MAX_CLIENT_LINES_PER_S: usize = 10;
/// Sessions for each stream that may play: those that are set up or paused wait for their place without keeping others out.
pub const SESSIONS_PER_STREAM: usize = 2;
/// Sessions that may be set up however few may play: a kilobyte each.
pub const MIN_SESSION_TABLE: usize = 256;
/// When a table of sessions or streams is this full, in percent, sessions that do not play end, the longest idle first. With
/// [`SESSIONS_PER_STREAM`] there are always some: those that play fill half of it.
pub const SESSION_TABLE_HIGH_PERCENT: usize = 80;
/// Sessions at once where so many streams may play.
pub const fn session_table_size(max_streams: usize) -> usize {
    let size = max_streams.saturating_mul(SESSIONS_PER_STREAM);
    if size > MIN_SESSION_TABLE { size } else { MIN_SESSION_TABLE }
}
/// Time for a client to finish the message it has begun.
pub const RTSP_HEADER_TIMEOUT_NS: u64 = 10_000_000_000;
/// RTSP session time-out announced by default (RFC 2326 section 12.37 default).
pub const DEFAULT_SESSION_TIMEOUT_NS: u64 = 60_000_000_000;
/// Players show that they are there about every third of the time-out, to the second.
pub const MIN_SESSION_TIMEOUT_NS: u64 = 5_000_000_000;
/// A session that nobody misses for a day is one that nobody has.
pub const MAX_SESSION_TIMEOUT_NS: u64 = 86_400_000_000_000;
/// Bytes of a configuration file: a few dozen settings, and as many comments as anybody writes.
pub const MAX_CONFIG_FILE_BYTES: u64 = 1 << 20;

/// Media packets in a unit of a row ("U"): SMPTE ST 2022-1 allows a column offset L of at most 20.
pub const MAX_UNIT_PACKETS: u32 = 20;
/// Longest manifest of a title. A kilobyte is usual; notes and stream lists may grow, a damaged length may not.
pub const MAX_MANIFEST_BYTES: u64 = 16 << 20;
/// Longest index of a title: 2^32 packets have 128 MiB of time index, and 16 bytes for each PCR of 100 hours.
pub const MAX_INDEX_BYTES: u64 = 512 << 20;
/// Longest name (slug) of a title: with `/trackID=1` and a host it stays well within a URL that every player takes.
pub const MAX_TITLE_NAME_BYTES: usize = 96;
/// Longest display name of a title: a file name has at most 255 bytes, and two folder names may
/// precede it.
pub const MAX_DISPLAY_NAME_BYTES: usize = 512;
/// Copies of a title's source file that its manifest lists. The server compares further copies by
/// their content each time it starts.
pub const MAX_SOURCE_COPIES: usize = 16;
/// Longest name of a rendition: `1080p-hevc-10bit` just fits, and so does a URL with it.
pub const MAX_RENDITION_NAME_BYTES: usize = 16;
/// What a derived title's name has behind its parent's: `@` and a rendition's name, which no speed is longer than.
pub const MAX_DERIVED_SUFFIX_BYTES: usize = 1 + MAX_RENDITION_NAME_BYTES;
/// A burst gathers at least this many packets if [`MAX_BURST_NS`] allows: software GSO beats single sends from 4 packets
/// on (measured on veth: 900 ns a packet alone, 460 ns at 4).
pub const MIN_BURST_PACKETS: usize = 4;
/// Delay added to the end of a title that is announced to players that may stop at that time.
/// GStreamer counts from the first packet plus its latency, while its demultiplexer holds
/// everything back for another 700 ms, a decoder for some pictures (16 on a machine with many
/// cores) and a sink for its buffer. If packets are still in its jitter buffer when that time is
/// over, it waits forever.
pub const LATE_END_NS: u64 = 2_000_000_000;
/// Local addresses that serve UDP viewers, besides those that routes give: as many as one byte can
/// number. The table takes no further ones, and the route determines the source address for their
/// viewers.
pub const MAX_SOURCES: usize = u8::MAX as usize;
/// A packet that leaves this long after its time counts as late. Below it is the scheduling noise of an ordinary kernel.
pub const LATE_NS: u64 = 1_000_000;
/// A packet this long after its time is overdue: half of what the smallest buffer of a common player holds (100 ms), and above what a
/// shared machine takes from a loop now and then. Admission judges by it.
pub const OVERDUE_NS: u64 = 50_000_000;
/// How often admission looks at what the engines do: a core that no longer carries its viewers is seen within a second.
pub const ADMISSION_LOOK_NS: u64 = 100_000_000;
/// Processor time of a packet, until it has been measured: that of a slow core (measured here: 0.7 to 2.5 us). It only counts for viewers
/// that come within the first moments.
pub const FIRST_PACKET_COST_NS: u64 = 4_000;
/// Packets of the last second from which their cost is worked out: fewer are waking up more than sending.
pub const MIN_PACKETS_FOR_COST: u64 = 2_000;
/// Share of its core, in thousandths, that an engine may be busy before viewers are turned away. What is left is for seeks and for the
/// moments in which the machine does something else.
pub const DEFAULT_MAX_BUSY_PERMILLE: u64 = 900;
/// Grants of the last second that came late, in thousandths, from which no new viewer is let in: that many viewers see a gap.
pub const DISK_LATE_PERMILLE: u64 = 10;
/// Fewer late grants than this in a second are a hiccup of one disk.
pub const MIN_LATE_GRANTS: u64 = 20;
/// The log says at most this often that viewers are turned away for want of the same resource.
pub const ADMISSION_NEWS_NS: u64 = 60_000_000_000;
/// A hole of ours (the loop stood still, an extent came late) up to this long is made up at [`CATCH_UP_RATIO`]; what is
/// longer moves the stream's timeline instead. 5 s take 20 s of catching up, which a full machine can just bear.
pub const MAX_HOLE_NS: u64 = 5_000_000_000;
/// Longest time, in 90 kHz ticks, from a title's last packet to the announced end of its last picture. Decoders hold a second
/// of pictures (ISO/IEC 13818-1 section 2.4.2.6); time stamps that claim more than 5 s are damaged, and players would wait.
pub const MAX_END_AFTER_LAST_PACKET_TICKS: u64 = 5 * 90_000;
/// A loop that is woken up to this late goes on as if it had been on time: the next burst is not put off for it. Two
/// scheduling slices of a busy machine; without it a stream whose every wake-up is late would fall behind for ever,
/// since catching up counts from the burst before.
pub const WAKE_CREDIT_NS: u64 = 20_000_000;
/// The title that may leave on that credit, in packets: with the burst itself no more than [`MAX_BURST_PACKETS`].
pub const WAKE_CREDIT_PACKETS: u64 = 40;
/// Packets of one stream leave no closer than this on average, whatever their media times say: about 1 Gb/s of media,
/// so that a title with broken times cannot flood its viewer nor starve the others.
pub const MIN_PACKET_GAP_NS: u64 = 10_000;
/// First RTCP sender report after the first media packet: a player can place the stream on the wall clock from then on.
pub const FIRST_REPORT_NS: u64 = 100_000_000;
/// A destination that refuses everything for this long is given up: longer than a Wi-Fi roam or a switch's spanning
/// tree takes (RSTP 2-6 s, STP up to 30 s).
pub const MAX_UNREACHABLE_NS: u64 = 30_000_000_000;
/// Fastest delivery in thousandths of real time. Players ask for at most 16 x.
pub const MAX_SCALE_PERMILLE: u16 = 16_000;
/// Fastest delivery that a viewer can ask for (`Speed`), in thousandths of real time: it costs as many times the bit rate, of one who may
/// have one title.
pub const MAX_SPEED_PERMILLE: u16 = 4_000;
/// The slowest, as slow as the slowest motion.
pub const MIN_SPEED_PERMILLE: u16 = 250;

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

/// Extents one stream may be waiting for at once: the one it needs and the next, doubled by a seek while both are
/// under way.
pub const MAX_WANTS_PER_STREAM: usize = 4;
/// Extents the cache reads ahead of one playhead at most, however high the bit rate: 32 MiB, 2 s of 130 Mb/s.
pub const MAX_PREFETCH_EXTENTS: u32 = 128;
/// What a viewer at a place of its own pins of the cache, in thousandths of an extent: the one that it sends from, and for
/// [`LEASE_AHEAD_NS`] and the time of a read (some 20 ms) the next. With extents of 140 ms, 15 Mb/s, that is half of its time;
/// slower viewers need less, and the rest is what has just been read for them.
pub const PINNED_PERMILLE_PER_POSITION: usize = 1_500;
/// Extents of one stream that its device may still read after it has taken their packets, with the one that is being sent: 2 MiB, what a
/// viewer of 16 Mb/s has unacknowledged on a path with a second of round trip.
pub const MAX_HELD_PER_STREAM: usize = 8;
/// Such extents of all streams of an engine: 128 MiB, half of the default cache.
pub const MAX_HELD_PER_ENGINE: usize = 512;
/// When every extent of the cache is lent out, reads wait and look again after this time: nobody is told when a lease
/// is given back. A tenth of the shortest time in which a viewer of 20 Mb/s plays an extent.
pub const CACHE_SPACE_RETRY_NS: u64 = 10_000_000;
/// Longest URL in a request, beyond which the answer is 414. Titles are short; what is left is room for signed URLs.
pub const MAX_RTSP_URL_BYTES: usize = 2048;
/// An announced session time-out is overrun by this much before the session is dropped: a keep-alive sent at the last
/// moment is still on its way.
pub const SESSION_TIMEOUT_SLACK_NS: u64 = 5_000_000_000;
/// A reply that waits for the engine (a seek needs the sequence number at which the stream stopped) waits this long.
/// The engine answers within a turn of its loop; ten thousand times that means that it hangs.
pub const ENGINE_ANSWER_TIMEOUT_NS: u64 = 2_000_000_000;
/// A connection that does not take its replies for this long is closed.
pub const RTSP_WRITE_TIMEOUT_NS: u64 = 10_000_000_000;

/// Packets that one direction of an emulated link holds at most: 100 ms of 300,000 packets a second, or 48 MiB of full
/// ones.
pub const MAX_LINK_PACKETS: usize = 1 << 15;
/// And so many bytes of them, should they be larger than usual.
pub const MAX_LINK_BYTES: u64 = 64 << 20;
/// Longest delay, jitter or hold of an emulated link. Two satellite hops take 0.6 s; beyond 10 s sessions time out.
pub const MAX_LINK_DELAY_NS: u64 = 10_000_000_000;
/// A packet that an emulated link holds back for reordering is let go after this if too few others come by.
pub const DEFAULT_LINK_HOLD_NS: u64 = 100_000_000;
/// Most packets that may overtake one on an emulated link: receivers tell late packets from lost ones within 4096.
pub const MAX_LINK_REORDER_PACKETS: u32 = 1000;
/// Longest mean burst of losses of an emulated link.
pub const MAX_LINK_BURST_PACKETS: u32 = 10_000;
/// Packets that wait before the bottleneck of an emulated link unless said otherwise: 120 ms at 10 Mb/s.
pub const DEFAULT_LINK_QUEUE_PACKETS: u32 = 100;
/// Longest address that a viewer over HTTP asks for: signed addresses of delivery networks stay below 2 KiB.
pub const MAX_HTTP_URL_BYTES: usize = 4096;
/// Longest head of an HTTP response that a viewer reads: what common servers send stays below 1 KiB, their own limits
/// are 8 to 16 KiB.
pub const MAX_HTTP_HEAD_BYTES: usize = 16 * 1024;
/// Most header lines of an HTTP response.
pub const MAX_HTTP_HEADERS: usize = 64;
/// Redirects that a viewer over HTTP follows in a row; browsers follow 20, and more than a few are a loop.
pub const MAX_HTTP_REDIRECTS: u32 = 8;
/// Longest HLS playlist that a viewer reads: a day of two-second segments with addresses of 40 bytes.
pub const MAX_PLAYLIST_BYTES: usize = 4 << 20;
/// Destinations whose next hop one packet device knows: every stream of an engine by default may go to another address.
/// Those beyond it are sent to through kernel sockets.
pub const MAX_HOPS: usize = DEFAULT_STREAMS_PER_ENGINE;
/// Sockets for multicast of one sender: each is an interface, a source address, a time to live and a loopback setting, of which an
/// operator has a few. Groups need no socket of their own.
pub const MAX_MULTICAST_SOCKETS: usize = 8;
/// Questions and answers about next hops under way between a loop and the thread that asks the kernel. Both sides try
/// again when there is no room, so this is only what one turn may bring.
pub const HOP_RING_RECORDS: usize = 1024;
/// Metadata or range sums of a title that a reader holds at a time: 64 blocks of 4096 bytes. Enough to read at a disk's
/// pace, and 43 MB of media whatever its length: such a file of a title of 1 TB has 6 to 11 GB and is never read whole.
pub const META_WINDOW_BYTES: usize = 256 * 1024;
/// Descriptors in the rings of an AF_XDP device: what a full batch of ordinary bursts needs (64 viewers, 8 datagrams of
/// 2 descriptors) twice, so that the device has work while the next batch is made.
pub const XDP_RING_DESCRIPTORS: u32 = 2048;
/// Extents that one AF_XDP device takes of those that the arena has set aside: 1024 frames of 2 KiB fill one huge page
/// and are more than 1 ms of a 10 Gb/s link.
pub const XDP_ASIDE_EXTENTS: u32 = EXTENTS_PER_HUGE_PAGE as u32;
/// Ports that are steered past the kernel's sockets: those that a server listens at, on each of its addresses.
pub const MAX_STEERED_PORTS: u32 = 1024;
/// Packets that a receiving device shows in one batch: what one system call of the kernel's way brings, and few enough that headers
/// are still in the cache when the next phase of the loop reads what was made of them.
pub const RX_BATCH_PACKETS: usize = 64;
/// Batches that one turn of the loop receives: 256 packets of less than 1 us each, so that no departure waits for more than a quarter
/// of a millisecond.
pub const RX_BATCHES_PER_TURN: usize = 4;
/// How often a receiving device asks the kernel whether it is still there and how many packets were dropped: two system calls.
pub const RX_LOOK_NS: u64 = 100_000_000;
/// Frames of 4 KiB that an AF_XDP device receives into, at most, and so the length of its rings: 8 MiB, which a link of 10 Gb/s with full
/// packets fills in 2.4 ms, longer than a loop sleeps that has something to do.
pub const MAX_XDP_RX_FRAMES: u32 = 2048;
/// Frames each way of a device for whole frames that nobody chose another number for: four turns of a TCP engine.
pub const DEFAULT_XDP_RAW_FRAMES: u32 = 1024;
/// Queues of an interface that such a device takes at once: as many as large servers have cores, and 52 MiB of locked memory.
pub const MAX_XDP_RAW_QUEUES: u32 = 64;
/// Queues that all frames are there for; of more, each has a part, as each has a part of the traffic.
pub const XDP_RAW_FULL_QUEUES: u32 = 8;
/// Longest frame of such a device, either way: what a frame to receive into has left behind the 256 bytes of the kernel.
pub const XDP_RAW_FRAME_BYTES: usize = 4096 - 256;

const _: () = assert!(MAX_HELD_PER_STREAM <= u8::MAX as usize && MAX_HELD_PER_STREAM < MAX_HELD_PER_ENGINE);
const _: () = assert!(2 * MAX_HELD_PER_ENGINE as u64 * EXTENT_BYTES as u64 <= DEFAULT_CACHE_BYTES);
const _: () = assert!(MAX_XDP_RX_FRAMES.is_power_of_two() && RX_BATCH_PACKETS as u32 <= MAX_XDP_RX_FRAMES);

/// Receive queues of one interface that may have an AF_XDP socket: network cards have up to a few hundred.
pub const MAX_XDP_QUEUES: u32 = 1024;
/// Data units in a row ("k"): with GF(2^8) the code could have 247; beyond 64 a row is longer than any network buffer and
/// one decoding reads megabytes.
pub const MAX_DATA_UNITS: usize = 64;
/// Parity units in a row ("m"): nobody loses more disks at once, and encoding costs in proportion.
pub const MAX_PARITY_UNITS: usize = 8;
/// Members of a volume: each read touches all of them, so more only make the reads smaller.
pub const MAX_MEMBERS: usize = 32;
/// What a member of a volume is asked for at a time, as far as that can be: a disk passes about a megabyte in the time of one seek, and
/// INSTANCE asks for at least 64 KB. An extent of many members is less of each, so several are read together.
pub const MEMBER_READ_BYTES: usize = 64 * 1024;
/// Most extents that are read together: with [`MAX_MEMBERS`] members that is [`MEMBER_READ_BYTES`] of each.
pub const MAX_RUN_EXTENTS: usize = 8;
/// Extents in flight for each read that may be: when extents are read together, more of them are on their way. Beyond it no other read
/// is begun: with [`MAX_READS_IN_FLIGHT`] that is 16 MiB of the cache and as much to read into.
pub const EXTENTS_PER_READ: usize = 2;
/// An extent that nobody wants yet is read together with the one before it if a playhead comes to it this long after the time that
/// is read ahead anyway: 8 extents of 2 Mb/s are 8 s. What is read earlier than that keeps memory from others for too long.
pub const RUN_AHEAD_NS: u64 = 8_000_000_000;
/// A read of a disk that has not come after this time is given up: the other disks have what is needed. Far above what a
/// busy disk takes (some 20 ms), far below the time that is read ahead.
pub const SLOW_READ_NS: u64 = 250_000_000;
/// Memory of reads that were given up because a disk did not answer, and that the kernel may still write to: all that
/// [`MAX_READS_IN_FLIGHT`] reads of whole rows with their parity have, twice. Beyond it reads wait for their disk.
pub const MAX_ASIDE_BYTES: usize = MAX_READS_IN_FLIGHT * EXTENT_BYTES * 4;
/// Media over which damage is measured: 64 extents, 16 MiB, a quarter of a minute at 8 Mb/s. A hole of that length is an evening
/// spoilt, however good the rest of the title is.
pub const DAMAGE_WINDOW_EXTENTS: u32 = 64;
/// Packets of a thousand in that window that may be damaged before a stream is ended: a picture that breaks up for a second
/// or two is better than none, a server that sends a tenth less than a title is broken.
pub const DEFAULT_MAX_DAMAGED_PERMILLE: u32 = 100;
/// What is known to be damaged is read again after this time if it is wanted then: it may have been repaired.
pub const DAMAGED_KEPT_NS: u64 = 5_000_000_000;
/// Titles whose damage was said and is remembered; after that it may be said once more.
pub const MAX_DAMAGE_SAID: usize = 4096;
/// Titles that a store lists as damaged for the next scrub. A disk that damages more is scrubbed as a whole, and then replaced.
pub const MAX_DAMAGED_TITLES: usize = 1024;
/// What is read of that list, with the titles' names: whatever else was written there.
pub const MAX_DAMAGED_LIST_BYTES: u64 = 256 * 1024;
/// Damaged titles that were not taken from the cache yet: it is asked twenty times a second, and finds them again.
pub const MAX_DAMAGE_UNTOLD: usize = 64;
/// A title that was damaged is listed again after this time if it still is: a scrub may have taken it from the list.
pub const DAMAGE_RELIST_NS: u64 = 600_000_000_000;
/// FEC header of SMPTE ST 2022-1, between the RTP header and the parity.
pub const FEC_HEADER_BYTES: usize = 16;
/// Patterns of loss whose decoding is kept ready for one code: all of 8 + 4 with up to three symbols missing, and what the
/// network adds. At most 5 KiB each.
pub const MAX_DECODE_PLANS: usize = 512;
/// Most packets in a row that the network's FEC can use: ST 2022-1 demands L x D <= 100.
pub const MAX_FEC_MATRIX_PACKETS: u32 = 100;
/// Packets by which FEC may come later at a receiver than two matrices behind what it repairs: a burst of an engine has up
/// to 92, and streams on different ports overtake each other by one.
pub const FEC_REORDER_PACKETS: usize = 128;
/// Most packets that a receiver holds to repair others. Four matrices of 30 x 30 and what is out of order; ordinary ones need a
/// tenth of it.
pub const MAX_FEC_WINDOW_PACKETS: usize = 4096;

/// Titles that are being written at a time, each by a feeder of its own: the manager of the cache looks at all of them each time it wakes.
pub const MAX_FEEDERS: usize = 64;
/// Empty extents that wait for a feeder beside the one that it writes: 20 ms of 200 Mb/s, some turns of the manager that brings them.
pub const FEEDER_EXTENTS: usize = 2;
/// Fewest extents that a live title holds: those that its feeder has in hand, and two for viewers, of which one is about to go.
pub const MIN_LIVE_EXTENTS: usize = FEEDER_EXTENTS + 3;
/// Most extents of a live title: 1 GiB, a quarter of an hour of 8 Mb/s. All live titles together have half of the memory at most.
pub const MAX_LIVE_EXTENTS: usize = 4096;

const _: () = {
    assert!(SLOW_READ_NS * 4 <= PREFETCH_NS);
    assert!(
        (MAX_DAMAGED_TITLES * (MAX_TITLE_NAME_BYTES + MAX_DERIVED_SUFFIX_BYTES + 40)) as u64
            <= MAX_DAMAGED_LIST_BYTES
    );
    assert!(MAX_DATA_UNITS + MAX_PARITY_UNITS <= 128);
    assert!(MAX_MEMBERS * MEMBER_READ_BYTES <= MAX_RUN_EXTENTS * EXTENT_BYTES);
    assert!(MAX_RUN_EXTENTS * 2 <= MAX_READS_IN_FLIGHT);
};
/// Rows that repair and scrub have in memory at a time, media and parity: some megabytes in one read of each disk, and less than
/// one of its caches. A single row may be up to 1.9 MB.
pub const REPAIR_BATCH_BYTES: usize = 8 << 20;
/// What repair and scrub read of any other file at a time.
pub const REPAIR_READ_BYTES: usize = 1 << 20;
/// How long repair and scrub wait for a disk. A disk tries a bad sector again for up to half a minute before it says so, and the
/// kernel then resets it: one that has not answered after twice that does not answer at all.
pub const REPAIR_ANSWER_NS: u64 = 60_000_000_000;
/// A system call on a member's directory (open, stat, readdir) is waited for so long where a viewer waits for an answer; after that
/// the member counts as missing until the call comes back. Far above what a busy disk takes, and RTSP clients wait longer.
pub const DISK_CALL_NS: u64 = 4_000_000_000;
/// The same when a volume is opened and when its titles are listed: a disk that was asleep needs ten seconds to spin up, and
/// another process may have the catalogue for as long.
pub const DISK_WORK_NS: u64 = 12_000_000_000;
/// System calls under way at once in one member's directory. Each has a thread, which may hang; there are fewer threads in a
/// server that would ask, and once one of them was given up no other is sent.
pub const MAX_DISK_CALLS: usize = OPENER_THREADS + 8;
/// When a server ends, it waits so long for an ingest to be given up, which deletes what it has written; longer only a disk takes
/// that hangs.
pub const LIBRARY_STOP_NS: u64 = 5_000_000_000;

const _: () = assert!(SLOW_READ_NS < DISK_CALL_NS && DISK_CALL_NS < DISK_WORK_NS);

/// Memory that ffmpeg may have for one file by default. A title is copied with less than 100 MiB and transcoded from 4K with about
/// 1 GiB; a picture of 8192 x 8192, which a file of 100 KB can hold, takes 1.5 GiB.
pub const FFMPEG_MEMORY_BYTES: u64 = 2 << 30;
/// Threads in which ffmpeg encodes a picture that must be transcoded: each has pictures of its own, so on a machine of 128 cores
/// [`FFMPEG_MEMORY_BYTES`] would not do for an ordinary film.
pub const FFMPEG_ENCODER_THREADS: usize = 16;
/// What ffmpeg may write for a file of any size by default: hours of a still picture or of a quiet tone are a file of a few MB, and a
/// transport stream of 75 kb/s for its clock alone, 340 MB in ten hours.
pub const FFMPEG_OUTPUT_BYTES: u64 = 256 << 20;
/// And so many times the length of the file beside it: copied, a title grows by a tenth; transcoded from the best codecs to H.264 by ten.
pub const FFMPEG_OUTPUT_RATIO: u64 = 64;
/// Processor time that ffmpeg may use for a file of any size by default, all its threads together.
pub const FFMPEG_PROCESSOR_NS: u64 = 20 * 60 * 1_000_000_000;
/// And so much for each MiB of the file beside it: 4 s of a title of 2 Mb/s, transcoded at a thirtieth of its speed.
pub const FFMPEG_PROCESSOR_NS_PER_MIB: u64 = 2 * 60 * 1_000_000_000;
/// ffmpeg is stopped when it has written nothing for this long: a disk that was asleep wakes in half a minute, and the index of a
/// long title is read in less than one.
pub const FFMPEG_SILENCE_NS: u64 = 5 * 60 * 1_000_000_000;
/// What one file that ffmpeg converts must leave free on each disk: this much, or one part in [`DISK_RESERVE_PARTS`] of a small disk.
/// How much ffmpeg will write nobody knows beforehand, and a disk that is full stops more than this one ingest.
pub const DISK_RESERVE_BYTES: u64 = 1 << 30;
/// See [`DISK_RESERVE_BYTES`].
pub const DISK_RESERVE_PARTS: u64 = 20;
/// Free space is looked at each time that ffmpeg has written so much, more often when there is little.
pub const DISK_LOOK_BYTES: u64 = 16 << 20;

const _: () = assert!(DISK_LOOK_BYTES * 4 <= DISK_RESERVE_BYTES);
