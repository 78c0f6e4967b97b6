//! Bounds of the control side: connections, admission, the library, commands.

use std::time::Duration;

use millrace_core::limits::{REPAIR_ANSWER_NS, RING_RECORDS};
use millrace_core::time::NS_PER_S;

use crate::limits::MAX_CLIENT_LINES_PER_S;

// RTSP connections.

/// Longest interleaved frame that is kept: players send RTCP there, below 1500 bytes.
pub const MAX_CLIENT_FRAME_BYTES: usize = 4096;
/// Memory that a framer keeps between messages: most requests fit, and thousands of connections have no more.
pub const FRAMER_KEPT_BYTES: usize = 1024;
/// Bytes of a request line beside its address: method, two spaces, version, line end.
pub const REQUEST_LINE_EXTRA_BYTES: usize = 64;
/// Bytes read from a connection at once: any request of a known player fits.
pub const CONN_READ_BYTES: usize = 4096;
/// Messages of one connection before other tasks get their turn: players send one and wait for the reply.
pub const MESSAGES_PER_TURN: usize = 16;
/// Datagrams of a socket before other tasks get their turn, some tens of microseconds.
pub const DATAGRAMS_PER_TURN: usize = 64;
/// Longest datagram that is looked at; RTCP fits a packet.
pub const DATAGRAM_BYTES: usize = 2048;
/// Commands that wait for room in an engine's ring before connections are no longer read: its loop takes as many in a few
/// turns.
pub const MAX_BACKLOG: usize = RING_RECORDS / 4;
/// Events taken from one engine before other tasks get their turn, less than a millisecond.
pub const EVENTS_PER_TURN: usize = 256;
/// Of `MAX_CLIENT_LINES_PER_S`, only for failures: the crowd of other lines must not
/// hide them.
pub const FAILURE_LINES: usize = 3;
/// A lack of open files lasts: it is logged this often.
pub const NO_FILES_EVERY_NS: u64 = 60 * NS_PER_S;
/// How long the handle of the control side waits for it when it is dropped: it sends BYE first
/// ([`BYE_LIMIT`]).
pub const DROP_LIMIT: Duration = Duration::from_secs(2);
/// Time-outs are looked for this often: a tenth of the shortest
/// (`MIN_SESSION_TIMEOUT_NS`).
pub const CONTROL_TICK: Duration = Duration::from_millis(500);
/// A full ring is tried again after this time: the engine's loop takes 64 commands in a few microseconds.
pub const RING_RETRY: Duration = Duration::from_millis(1);
/// Connections that wait to be accepted: after a power cut all boxes of a hotel come at once, and one that finds the
/// queue full (128 by default) tries again a whole second later. The kernel takes `net.core.somaxconn` if that is less.
pub const LISTEN_BACKLOG: i32 = 4096;
/// Pause before the offload engine is restarted when its device has gone: an interface that is set
/// up again is away for about this long.
pub const OFFLOAD_RETRY_FIRST: Duration = Duration::from_secs(1);
/// Each pause is twice the one before, up to this: a device that stays away costs a look a minute, and one that is back is used within that.
pub const OFFLOAD_RETRY_MOST: Duration = Duration::from_secs(60);
/// Connections of the offload engine at once: a place in its tables each, and 20 KiB of addresses and counts in all.
pub const OFFLOAD_CONNECTIONS: u32 = 4096;
/// Descriptors for their data under way, two for each frame: 870 viewers of 8 Mb/s at a round trip
/// of 100 ms, or forty that have stopped reading. 80 bytes each.
pub const OFFLOAD_DESCRIPTORS: u32 = 1 << 18;
/// Bytes that come from one of them and are not read yet, in receive buffers of the engine: requests and reports are short, and a viewer that sends
/// more than is taken waits.
pub const OFFLOAD_RECEIVE_SHARE: u32 = 8;
/// Chunks of 8 KiB for replies of each of the two threads that use it, RTSP's and HTTP's: long ones to 32 viewers at once, as the next ones have it, at full speed.
/// Titles' bytes are not among them.
pub const OFFLOAD_SEND_BUFFERS: u32 = 2048;
/// Chunks of these that only a connection without any gets: this many viewers must take nothing of
/// a reply before others are not answered.
pub const OFFLOAD_SEND_RESERVE: u32 = 1024;
/// Bytes of replies that one of them has not acknowledged: 20 Mb/s at a round trip of 100 ms, for segments that are made in memory.
pub const OFFLOAD_SEND_SHARE_BYTES: u32 = 256 << 10;
/// How long the engines may take to say BYE to their viewers when the server ends: a thousand turns of their loops.
pub const BYE_LIMIT: Duration = Duration::from_secs(1);
/// Interval between checks for this end: nothing else is done meanwhile, and such a short time goes
/// unnoticed.
pub const END_POLL: Duration = Duration::from_millis(2);
/// How long another thread waits for the control thread to say how things stand: it does so between two tasks, of milliseconds at most.
pub const SNAPSHOT_WAIT: Duration = Duration::from_secs(1);
/// Refusals that are kept for operators who look: more do not fit a screen, and the log has all.
pub const MAX_REFUSALS_KEPT: usize = 20;

// Admission.

/// Looks that the load of an engine is worked out from: one second.
pub const LOAD_LOOKS: usize = 10;
/// Seconds whose costs of a packet are remembered. The speed of a virtual machine's core changes by
/// 10 to 15 % for some seconds, a few times a minute.
pub const COST_SECONDS: usize = 30;
/// The dearest seconds are left out, so that one in which the machine stood still does not turn
/// viewers away for half a minute.
pub const OUTLIER_SECONDS: usize = 3;
/// With fewer seconds known than this, their costs do not show how much the speed changes.
pub const FEW_COST_SECONDS: usize = 8;
/// Share of the measured cost that is assumed until then, in thousandths: the lower end of the
/// changes seen on virtual machines.
pub const FEW_COSTS_PERMILLE: u64 = 1_100;
/// Only costs from this busy share on are remembered: with short bursts at a lower load a packet
/// costs more than it will at a higher load.
pub const COST_MEMORY_PERMILLE: u64 = 500;
/// Below this busy share a packet costs more than it will among others, because most of it is waking up: the cost is not
/// carried forward from there if it is above the one taken at the start.
pub const LOAD_CALM_PERMILLE: u64 = 250;
/// The margin for rates that vary is at most this share of the mean rate: more would turn viewers
/// away for nothing.
pub const MAX_MARGIN_PERMILLE: u64 = 80;
/// A viewer that has sent RTCP reports counts as gone after this silence, and another viewer may
/// take its UDP ports. Players report every 2.5 to 7.5 s (RFC 3550 section 6.2), so this allows for
/// two lost reports.
pub const REPORTER_SILENT_NS: u64 = 15_000_000_000;
/// The same for a viewer that never reports. Some of these send a request only shortly before their
/// session would expire. A longer silence than this would keep a set-top box from its ports when
/// it has restarted after a power cut.
pub const VIEWER_SILENT_NS: u64 = 30_000_000_000;
/// Longest cookie that names the two connections of RTSP over HTTP: players send 16 to 22
/// characters.
pub const MAX_TUNNEL_COOKIE_BYTES: usize = 128;
/// Late grants are counted over this time, as the load of engines is.
pub const CACHE_LOOK_NS: u64 = 1_000_000_000;
/// Looks that the verdict that an engine is overloaded is made from: 300 ms, so that it comes within a second.
pub const SHED_LOOKS: usize = 3;
/// The core counts as full from this busy share: it has nothing left for late work.
pub const FULL_PERMILLE: u64 = 950;
/// An engine that works for less than this share of the time does not fill its core, however long
/// it waits for the core: each of twelve equal threads on one core gets less than that.
pub const MIN_WORK_PERMILLE: u64 = 100;
/// From this share on, the engine's own work may make packets late although its core is not full.
/// Below it, other threads hold the core, and one more viewer delays no packets.
pub const BUSY_WORK_PERMILLE: u64 = 250;
/// An engine counts as behind from this share of overdue packets: fewer are a momentary hiccup.
pub const BEHIND_PERMILLE: u64 = 50;
/// How long it has to last: a machine may stand still for a moment.
pub const SUSTAINED_NS: u64 = 700_000_000;
/// Streams are ended in steps, each at least this long after the one before, so that the next step
/// sees its effect.
pub const SHED_STEP_NS: u64 = 250_000_000;
/// At most one part in this many of the promised rate goes in one step: the observed overload may
/// be the end of a disturbance.
pub const SHED_STEP_SHARE: u64 = 2;
/// Viewers are ended until those who remain have caught up within this time, because the whole
/// recovery must take less than 5 s.
pub const RECOVERY_NS: u64 = 2_500_000_000;
/// An engine that is late and sends less than this share of its viewers' rate to catch up takes too
/// long: after [`SLOW_NS`] it counts as overloaded too.
pub const SLOW_CATCH_UP_PERMILLE: u64 = 1_100;
/// How long a slow catch-up is watched: at `CATCH_UP_RATIO` half a second is made up in this
/// time.
pub const SLOW_NS: u64 = 2_000_000_000;
/// No new viewer is admitted for this long after the last overdue packet: late viewers are still
/// catching up.
pub const CALM_NS: u64 = 2_000_000_000;

// Counters of titles.

/// Titles that have counters of their own at a time: more than a house watches at once, some 150 bytes each in a file that is written
/// once a second.
pub const MAX_TITLE_SHEETS: usize = 256;

// The library.

/// Titles without viewers that stay open: each costs a few descriptors and its index.
pub const MAX_IDLE_TITLES: usize = 256;
/// A file must not have changed for this long before it is taken: it may still be arriving.
pub const SETTLE: Duration = Duration::from_secs(3);
/// Longest value that an operator may set for [`SETTLE`]: with more, a served folder would look
/// dead.
pub const MAX_SETTLE: Duration = Duration::from_secs(3600);
/// A file that has been seen to change must rest this many times as long, because its writer may
/// have paused.
pub const SETTLE_GROWN: u32 = 5;
/// A title is removed after its file has been missing for this many times as long: the file may
/// have been moved and may be arriving elsewhere.
pub const SETTLE_MISSING: u32 = 20;
/// First wait before retrying a file that could not be added for a cause that may pass (a full
/// disk, a missing program). Each further wait is twice as long.
pub const RETRY_AT_FIRST: Duration = Duration::from_secs(10);
/// Longest of these waits: a title appears at most this long after its cause is gone.
pub const RETRY_AT_MOST: Duration = Duration::from_secs(600);
/// Open files of other programs that are examined to find media files that are still being written.
/// On a machine with more, the server waits for files to rest instead.
pub const MAX_OPEN_FILES_LOOKED_AT: usize = 1 << 20;
/// Depth of folders in a library: users do not sort deeper, and links may go in circles.
pub const MAX_FOLDER_DEPTH: usize = 8;
/// Files looked at in one scan; more is a folder of something else.
pub const MAX_LIBRARY_FILES: usize = 100_000;
/// Time between two looks at a library's folders: a new file is noticed before it counts as complete ([`SETTLE`]).
pub const LIBRARY_LOOK_EVERY: Duration = Duration::from_secs(2);
/// How often it is looked which members are there: one that is back is used again within this time.
pub const MEMBERS_LOOK_EVERY: Duration = Duration::from_secs(1);

// Commands.

/// How often the main thread looks for a signal and for trouble to report: people do not notice.
pub const SIGNAL_LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often the watchdog looks at the counters of all parts: several times in the shortest time that counts as being stuck.
pub const WATCHDOG_LOOK_NS: u64 = 500_000_000;
/// Shortest time without progress that counts as being stuck: the control thread counts twice a second ([`CONTROL_TICK`]), and a virtual machine may
/// stand still for a moment.
pub const WATCHDOG_MIN_STALL_NS: u64 = 2 * NS_PER_S;
/// Callers of the API that wait for a reload at once: operators and their programs. All of them get the outcome of the next one.
pub const MAX_WAITING_RELOADS: usize = 16;
/// Links in a path that are followed, as many as the kernel follows (path_resolution(7)).
pub const MAX_PATH_LINKS: usize = 40;
/// Characters of a host's name: with `millrace-` or `Millrace on ` before it and the server's number behind it, it fits into the 63 of a label (RFC
/// 1035 section 2.3.4).
pub const MAX_HOST_LABEL: usize = 40;
/// Interval at which the thread of multicast DNS looks whether it should end.
pub const MDNS_LOOK: Duration = Duration::from_millis(500);
/// The announcements by multicast DNS are taken back within this time.
pub const MDNS_STOP: Duration = Duration::from_secs(1);
/// Time to notify viewers that the server ends: longer than [`BYE_LIMIT`], shorter than service
/// managers wait.
pub const STOP_FAREWELL: Duration = Duration::from_secs(3);
/// Streams an engine's table has room for beyond those admitted: closed ones whose totals are still under way, for a turn
/// or two.
pub const SPARE_STREAMS: usize = 64;
/// Time between two writes of the counters: observers want to see each second.
pub const STATS_INTERVAL: Duration = Duration::from_secs(1);
/// How long the end waits for the last writing: the disk may hang.
pub const STATS_LAST: Duration = Duration::from_millis(500);
/// Longest file of faults that is read: a line for each member is far less.
pub const MAX_FAULTS_FILE_BYTES: u64 = 64 << 10;
/// Interfaces whose measured costs are kept; the oldest go. A machine has a few, with changing names.
pub const MAX_FIGURES: usize = 64;
/// Longest file of such figures that is read: a kilobyte for each interface is more than is written.
pub const MAX_FIGURES_BYTES: u64 = 1 << 20;
/// How long a server on the same machine may take to accept a connection: it takes a millisecond.
pub const LS_ANSWER: Duration = Duration::from_secs(1);
/// How long a server that a command asks may take to accept a connection: half way round the world and one lost packet.
pub const REMOTE_CONNECT: Duration = Duration::from_secs(5);
/// And how long it may be silent: figures come each second, and a title is removed in less than that.
pub const REMOTE_WAIT: Duration = Duration::from_secs(15);
/// Longest time for its whole answer: the list of 10,000 titles has 8 MB, which takes about this
/// long at 1 Mb/s.
pub const REMOTE_ANSWER: Duration = Duration::from_secs(60);
/// How far ahead a viewer of segments is assumed to have fetched, at most: players keep half a
/// minute in their buffers.
pub const FETCH_AHEAD_NS: u64 = 30_000_000_000;
/// How long it may take to fetch the next one after it has played all fetched media, before its
/// room goes to others: players fetch early, so a pause is detected within this time and a slow
/// network is tolerated.
pub const FETCH_GRACE_NS: u64 = 4_000_000_000;
/// How long a viewer may take from a playlist to its first segment: a television takes seconds. A
/// program that only reads playlists must not hold capacity for long.
pub const SESSION_BEGIN_NS: u64 = 8_000_000_000;
/// Most viewers of one address that have fetched no segment yet: all televisions of a building are
/// switched on at once, but reading playlists costs a client nothing and takes capacity from others.
pub const PENDING_SESSIONS_PER_ADDRESS: usize = 128;
/// How long a session of a viewer of segments lasts after it has played all fetched media, or after
/// its last playlist: a short pause must not cost a viewer its capacity. Long ones free it for
/// others.
pub const SESSION_IDLE_NS: u64 = 15_000_000_000;
/// Most segments that the viewer of one session is sent at once: video, audio, and as many of both
/// from before a seek and fetched ahead. More than that is several viewers with one address.
pub const SESSION_SEGMENTS: u32 = 8;
/// Most segments that one player is sent at once, and most places in titles at which it fetches: it
/// fetches video and audio, and after a seek it may still hold the segments from before. A client
/// with more of either counts as several players.
pub const VIEWERS_OF_PLAYER: usize = 4;
/// How often an upload looks whether the user has had enough: as quickly as people expect of Ctrl-C.
pub const UPLOAD_TURN: Duration = Duration::from_millis(250);
/// How long a server may take to answer whether it wants an upload: it may have a password to check
/// and disks to ask. A server that does not answer is sent the file.
pub const UPLOAD_CONTINUE_WAIT: Duration = Duration::from_secs(10);
/// How long a server may take nothing of an upload, or not end what another connection has begun: it waits 30 s for a client that has gone
/// (`limits::web::UPLOAD_STALL`), and reads nothing while its disks are busy with viewers.
pub const UPLOAD_TIMEOUT: Duration = Duration::from_secs(60);
/// After what time an upload is tried again.
pub const UPLOAD_RETRY: Duration = Duration::from_secs(1);
/// How often an upload starts again from the beginning because the server has lost it: a server
/// that is restarted again and again takes none.
pub const UPLOAD_RESTARTS: u32 = 3;
/// Bytes of an upload that are read and sent at once.
pub const UPLOAD_PIECE_BYTES: usize = 64 << 10;
/// How long `top` waits for a key before it looks for news: a tenth of a second goes unnoticed.
pub const TOP_KEY_WAIT: Duration = Duration::from_millis(100);
/// After what time `top` asks a server again that did not answer.
pub const TOP_RETRY: Duration = Duration::from_secs(2);
/// Engines that `top` shows one by one: on 24 lines half of them are left for sessions.
pub const TOP_ENGINES: usize = 4;
/// Casts that `top` shows one by one, likewise.
pub const TOP_CASTS: usize = 4;
/// Fetches of titles that it shows: as many as run at once, and some that failed.
pub const TOP_FETCHES: usize = 4;
/// Events that `top` remembers: at most half of a large screen.
pub const TOP_EVENTS: usize = 50;
/// After what silence repair and scrub are over. Reads have their own, shorter limit; but a file that is made durable may
/// be all that fits in memory, on a disk that is slow and shared with viewers.
pub const REPAIR_SILENCE: Duration = Duration::from_nanos(10 * REPAIR_ANSWER_NS);
/// Interval between checks for signs of life of a repair: its end is reported up to this much
/// later.
pub const WATCHDOG_LOOK_EVERY: Duration = Duration::from_millis(100);
/// Between two looks of the demo for its first title.
pub const DEMO_LOOK_EVERY: Duration = Duration::from_millis(100);
/// Looks before the demo opens a page without a title: a minute, for a film that a slow machine still takes in.
pub const DEMO_LOOKS: u32 = 600;

/// Longest answer at a terminal that is read: a path has at most 4096 bytes (`PATH_MAX`).
pub const MAX_ANSWER_BYTES: u64 = 8192;
/// Backups of one file that `init --force` keeps; each is a few kilobytes.
pub const MAX_BACKUPS: usize = 100;

const _: () = {
    assert!(SHED_LOOKS <= LOAD_LOOKS);
    assert!(OUTLIER_SECONDS < FEW_COST_SECONDS && FEW_COST_SECONDS < COST_SECONDS);
    assert!(FAILURE_LINES < MAX_CLIENT_LINES_PER_S);
};
