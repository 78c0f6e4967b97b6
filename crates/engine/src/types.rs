//! The words of the engine's contract: plain values that cross into and out of [`crate::Engine`].

use std::fmt;
use std::num::NonZeroU16;

use millrace_core::ids::{RunSerial, StreamId, TitleRef};
use millrace_core::limits;
use millrace_core::packet::WireLayout;
use millrace_core::seam::Dest;
use millrace_core::time::Instant;
use millrace_core::wire::rtp::Timeline;

/// The configuration of an engine. Everything is allocated from this, once.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Streams at once, at most [`limits::MAX_STREAMS_PER_ENGINE`].
    pub streams: usize,
    /// Media time that leaves as one burst, in nanoseconds; at most [`limits::MAX_BURST_NS`]. In a TCP connection
    /// [`limits::TCP_BURST_RATIO`] times as much.
    pub burst_ns: u64,
    /// Packets leave one by one, each at its own time, instead of in bursts.
    pub smooth: bool,
    /// Streams share wake-ups: whenever a burst is due, those that depart within [`crate::limits::SHARED_WAKE_NS`] (or the length of a burst, if that is less)
    /// leave with it, so that the loop sleeps at least that long, however many streams there are ([`crate::pace`]). Without effect if `smooth`.
    pub shares_wakes: bool,
    /// Unix time minus monotonic time, in nanoseconds: for the wall clock in sender reports.
    pub wall_offset_ns: u64,
    /// Canonical name in RTCP SDES (RFC 3550 section 6.5.1); the first 48 bytes are used.
    pub cname: String,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            streams: limits::DEFAULT_STREAMS_PER_ENGINE,
            burst_ns: limits::DEFAULT_BURST_NS,
            smooth: false,
            shares_wakes: false,
            wall_offset_ns: 0,
            cname: String::from("millrace"),
        }
    }
}

/// A path to a viewer. The data sent on it comes with each run.
#[derive(Clone, Copy, Debug)]
pub struct StreamSpec {
    /// Chosen by the control side: a free index below [`EngineConfig::streams`], a generation never used with it.
    pub id: StreamId,
    /// Where the packets go.
    pub dest: Dest,
    /// It belongs to another stream (FEC): it keeps that stream's schedule, and sends no RTCP and
    /// no BYE. Streams to destinations without RTCP ([`Dest::has_rtcp`]) and streams whose packets
    /// have no RTP headers send none either.
    pub quiet: bool,
    /// The device reads the packets that it has taken until [`crate::Engine::handle_done`] reports
    /// that it is done with them: their extents are lent to it until then, at most
    /// [`crate::limits::MAX_HELD_PER_STREAM`].
    pub lends: bool,
    /// It has one run: whoever drives the engine closes it, and gives its connection back, when that
    /// has been sent to its end ([`crate::Engine::retire`]).
    pub once: bool,
}

/// When a run begins, and with how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// When the first packet leaves, if it has been read by then.
    pub at: Instant,
    /// Media that may be sent ahead of the run's pace, in milliseconds: this much leaves as fast as
    /// the destination takes it and [`crate::limits::MIN_PACKET_GAP_NS`] allows, in bursts of the
    /// usual length, or longer ones for bytes. From then on the run keeps its pace and this lead.
    /// At most [`limits::MAX_AHEAD_MS`].
    pub ahead_ms: u16,
}

impl From<Instant> for Start {
    /// With nothing sent ahead.
    fn from(at: Instant) -> Self {
        Self { at, ahead_ms: 0 }
    }
}

/// The media of a run: a title that is open in the cache, and how its packets are made from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunMedia {
    /// The title.
    pub title: TitleRef,
    /// Packets in it.
    pub packets: u32,
    /// Its RTP timeline, which the headers in its extents follow (but see [`Numbering::Own`]).
    pub timeline: Timeline,
    /// How its packets lie in an extent. Raw ones have no numbers: [`RunSpec::numbering`] does not
    /// apply to them, and no client listens for RTCP where they go ([`Dest::has_rtcp`]).
    pub layout: WireLayout,
    /// How many packets of one codeword the viewer can repair itself ([`millrace_core::seam::Want::spare`]). Extents in which the
    /// run begins or ends, other than with the title, are wanted whole all the same, unless it is 255.
    pub spare: u8,
}

/// How a run's packets are numbered. The engine writes headers where the result differs from the
/// headers in the extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbering {
    /// As the title's shared timeline has it: sequence numbers, timestamps, SSRC.
    Title,
    /// The first packet has this sequence number; timestamps and SSRC are the title's.
    Sequence(u16),
    /// The first packet has this sequence number; timestamps and SSRC follow [`RunMedia::timeline`], which is
    /// then the run's own and not those of the headers in the title's extents: all of them are written.
    /// For a run whose first timestamp has to be known beforehand.
    Own(u16),
    /// All goes on from the run before: the next sequence number, the same SSRC, and timestamps as if the first packet were
    /// the one that would have come next. As [`Numbering::Title`] if nothing has been sent before.
    Viewer,
    /// Not at all: they are bytes ([`millrace_core::dest::Dest::Bytes`]), and the run need not begin or end with a packet. For other
    /// destinations as [`Numbering::Title`].
    Bytes {
        /// Bytes of the first packet before the run's first one.
        head: u16,
        /// Bytes of the last packet up to the run's end; 0: all of them.
        last: u16,
    },
}

/// Which packets of a title are sent: the first of each stride ("simple stepping", Stream Engine 2003, section 4.1). Strides are counted
/// from the title's first packet, so a run that goes on after a pause, or at another place, keeps the pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepPattern {
    block: NonZeroU16,
    stride: NonZeroU16,
}

impl StepPattern {
    /// The first `block` packets of each `stride`; `None` unless there are some, and some that are left out: a run without a step sends all.
    pub fn new(block: u16, stride: u16) -> Option<Self> {
        let (block, stride) = (NonZeroU16::new(block)?, NonZeroU16::new(stride)?);
        (block < stride).then_some(Self { block, stride })
    }

    fn block(self) -> u32 {
        u32::from(self.block.get())
    }

    fn stride(self) -> u32 {
        u32::from(self.stride.get())
    }

    /// The first packet that is sent, from `packet` on.
    pub(crate) fn first_from(self, packet: u32) -> u32 {
        match packet % self.stride() {
            place if place < self.block() => packet,
            place => packet.saturating_add(self.stride() - place),
        }
    }

    /// The packet behind the block that `packet` is in.
    pub(crate) fn block_end(self, packet: u32) -> u32 {
        packet.saturating_add(self.block().saturating_sub(packet % self.stride()))
    }

    /// How many packets before `packet` are sent.
    pub(crate) fn count_before(self, packet: u32) -> u64 {
        let place = packet % self.stride();
        u64::from(packet / self.stride()) * u64::from(self.block()) + u64::from(place.min(self.block()))
    }
}

/// One run of packets: its media, its range, its speed, its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunSpec {
    /// Its name, chosen by the control side.
    pub run: RunSerial,
    /// The media to send.
    pub media: RunMedia,
    /// First packet.
    pub from: u32,
    /// Packet before which sending ends; at most the packets of the title. If it is `from`, nothing is sent but BYE.
    pub until: u32,
    /// Its numbers.
    pub numbering: Numbering,
    /// Speed of delivery in thousandths of real time: 1000, or 2000 for twice as fast.
    pub scale_permille: u16,
    /// The packets left out of it; `None`: none. The packets that are sent are numbered and paced
    /// as if there were no others; not for [`Numbering::Bytes`].
    pub step: Option<StepPattern>,
}

impl RunSpec {
    /// The same from the first packet that it sends.
    pub(crate) fn begin_at_first_sent(self) -> Self {
        let first = self.step.map_or(self.from, |step| step.first_from(self.from));
        Self { from: first.min(self.until.max(self.from)), ..self }
    }

    /// The extent that its first packet is in.
    pub(crate) fn first_extent(&self) -> u32 {
        self.media.layout.locate(self.from).0
    }

    /// Its place there.
    pub(crate) fn first_place(&self) -> u32 {
        self.media.layout.locate(self.from).1
    }
}

/// Where a run ends and the one that is queued behind it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunCut {
    /// Before this packet of the run that lasts. For a common access point: that packet here, its counterpart as the first packet
    /// of the queued run.
    At(u32),
    /// Where the run that lasts ends anyway.
    End,
}

/// Why the cache could not lend an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseFailure {
    /// The disk refused the read: its `errno`.
    Io(i32),
    /// The data read is not the data written.
    Checksum,
    /// More disks are lost than the title's parity makes up for.
    MembersLost {
        /// Members of the title that are lost.
        lost: u8,
        /// How many may be.
        may: u8,
    },
    /// The title is not open in the cache.
    NoTitle,
    /// The title has no such extent, or the extent lent does not hold the packets it should.
    OutOfRange,
    /// The stream fell behind a live title until the data it needs was not held any more.
    Passed,
    /// The live title is over. This ends the run as its last packet does.
    Ended,
    /// The source of a live title has failed.
    SourceLost,
}

impl fmt::Display for LeaseFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(errno) => write!(f, "disk read failed (errno {errno})"),
            Self::Checksum => f.write_str("stored data damaged: checksum mismatch"),
            Self::MembersLost { lost, may } => {
                write!(f, "{lost} disks of the title are lost, its parity makes up for {may}")
            }
            Self::NoTitle => f.write_str("title not open in the cache"),
            Self::OutOfRange => f.write_str("no such packets in the title"),
            Self::Passed => f.write_str("too far behind the live title"),
            Self::Ended => f.write_str("the live title is over"),
            Self::SourceLost => f.write_str("the source of the live title has failed"),
        }
    }
}

impl std::error::Error for LeaseFailure {}

/// Why a command was not carried out. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No stream of this index and generation is open.
    UnknownStream,
    /// The stream's state does not allow it: a second `open`, `pause` before the first `play`, `queue` while nothing is sent,
    /// anything after a failure but `close`.
    WrongState,
    /// The index is beyond the engine's stream table.
    TableFull,
    /// The packets asked for are not in the title, the speed is not between 1 and
    /// [`limits::MAX_SCALE_PERMILLE`], or the media to send ahead exceeds [`limits::MAX_AHEAD_MS`].
    OutOfRange,
    /// Too many ends of runs of this stream have not been polled yet.
    Busy,
    /// The packet before which the queued run should begin has been sent: name a later one.
    CutPassed,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownStream => "stream: no such stream is open here; open it first",
            Self::WrongState => "stream: its state does not allow this command; pause or close it first",
            Self::TableFull => {
                "stream: index beyond the stream table; raise the number of streams of the engine"
            }
            Self::OutOfRange => "play: packets or speed out of range of the title",
            Self::CutPassed => "queue: the packet to cut before has been sent already; name a later one",
            Self::Busy => "play: events of earlier runs have not been taken yet; take them first",
        })
    }
}

impl std::error::Error for Refusal {}

/// Why a stream failed. It sends nothing more; only `close` is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailReason {
    /// The cache could not lend the next extent.
    ReadError(LeaseFailure),
    /// The viewer reads its TCP connection slower than the title plays.
    SlowReader,
    /// The viewer's TCP connection is gone: `errno`, or 0 for an orderly close.
    ConnectionClosed(i32),
    /// Nothing has got through to the viewer's address for a while: the last `errno`.
    Unreachable(i32),
}

impl fmt::Display for FailReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ReadError(failure) => write!(f, "media cannot be read: {failure}"),
            Self::SlowReader => f.write_str("the viewer reads slower than the title plays"),
            Self::ConnectionClosed(0) => f.write_str("viewer closed the connection"),
            Self::ConnectionClosed(errno) => write!(f, "viewer's connection broke (errno {errno})"),
            Self::Unreachable(errno) => write!(f, "viewer cannot be reached (errno {errno})"),
        }
    }
}

/// Why a run has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// Its last packet has been sent, and BYE unless the stream is quiet or a queued run follows.
    Finished,
    /// By `pause`.
    Paused,
    /// By another run.
    Replaced,
    /// By `close`.
    Closed,
    /// By `finish`; BYE has been sent.
    ShutDown,
    /// It cannot go on.
    Failed(FailReason),
}

/// How a run has ended: everything that the next one needs to continue without a hole or a repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunEnd {
    /// The run. Nothing is reported, wanted or lent for it after this.
    pub run: RunSerial,
    /// Why.
    pub reason: StopReason,
    /// First packet not sent.
    pub next_packet: u32,
    /// The sequence number it would have had.
    pub next_sequence: u16,
    /// Bursts taken by the device, the blocks of Stream Engine 2003.
    pub bursts: u32,
    /// Media packets taken by the device.
    pub packets: u32,
    /// Their bytes, RTP headers included if they are sent.
    pub bytes: u64,
    /// Media packets that were missing in their extents, damaged or left to the viewer to repair, and were passed over.
    pub missing: u32,
    /// When the next packet would have been due; the end of time for a queued run that never began. Behind the end of a title, and where its extent had not come yet, the last packet
    /// is taken to be as long as the one before.
    pub next_due: Instant,
}

/// What happened to a stream, for the control side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEvent {
    /// The first extent of the run is there. Not reported for a run that has ended meanwhile.
    RunBegan {
        /// The stream.
        stream: StreamId,
        /// The run.
        run: RunSerial,
        /// When its first packet leaves: later than requested if reading took longer.
        at: Instant,
    },
    /// The last packet has been sent; BYE and the run's end follow unless `play` comes first.
    Drained {
        /// The stream.
        stream: StreamId,
        /// The run.
        run: RunSerial,
    },
    /// A run is over. Sent once for every accepted run.
    RunEnded {
        /// The stream.
        stream: StreamId,
        /// How.
        end: RunEnd,
    },
    /// The stream cannot go on. The end of its run, if it had one, has been reported.
    Failed {
        /// The stream.
        stream: StreamId,
        /// Why.
        reason: FailReason,
    },
    /// The stream's playhead is gone, because it has paused, drained, failed or been closed: the
    /// cache need not read ahead for it any more. Not reported if the stream plays again meanwhile.
    Left {
        /// The stream.
        stream: StreamId,
    },
    /// The stream is forgotten, its index is free for another generation. Totals of its whole life.
    Closed {
        /// The stream.
        stream: StreamId,
        /// Media packets taken by the device.
        packets: u64,
        /// Their bytes, RTP headers included.
        bytes: u64,
        /// Media packets that the destination refused.
        unreachable: u64,
        /// Media packets that left after their time.
        late: u64,
    },
}

impl StreamEvent {
    /// Whose event it is.
    pub fn stream(&self) -> StreamId {
        match *self {
            Self::RunBegan { stream, .. }
            | Self::Drained { stream, .. }
            | Self::RunEnded { stream, .. }
            | Self::Failed { stream, .. }
            | Self::Left { stream }
            | Self::Closed { stream, .. } => stream,
        }
    }
}

millrace_core::counters! {
    /// Counts of an engine since its creation. Plain sums; the caller publishes them.
    pub struct EngineCounters {
        /// Media packets taken by the device.
        sum packets,
        /// Their bytes, RTP headers included.
        sum bytes,
        /// Media packets sent before their time because their connection had room.
        sum ahead,
        /// Bursts of media packets handed out.
        sum bursts,
        /// Media packets with headers of their own: viewers not on the shared timeline.
        sum patched,
        /// Media packets that left after their time.
        sum late,
        /// Of these, by more than 50 ms.
        sum overdue,
        /// Longest delay of a media packet behind its time, in nanoseconds.
        highest late_max_ns,
        /// Times a stream fell behind by more than a burst and went over to catching up.
        sum catch_ups,
        /// Media packets that a destination refused.
        sum unreachable,
        /// Media packets that were missing in their extent and are left to the viewer to repair.
        sum skipped,
        /// Bursts that found their connection full.
        sum blocked,
        /// Times a stream gave its extents back because its connection had taken nothing for a while.
        sum parked,
        /// Times a stream waited for its device to give back what that still reads.
        sum waits_for_device,
        /// RTCP packets sent.
        sum reports,
        /// RTCP packets given up because the way was full or refused.
        sum reports_lost,
        /// Wants handed out.
        sum wants,
        /// Leases taken in.
        sum leases,
        /// Leases that came for a run that no longer wanted them.
        sum leases_unwanted,
        /// Leases refused by the cache.
        sum leases_failed,
        /// Times a packet's time came before its extent had.
        sum starved,
        /// Streams that failed.
        sum failed,
        /// Streams open now.
        gauge open,
        /// Streams sending now.
        gauge playing,
    }
}

const _: () = {
    assert!(size_of::<StreamEvent>() <= 64);
    assert!(size_of::<RunMedia>() == 20);
    assert!(size_of::<RunSpec>() == 44);
};
