//! The stream context: everything that an engine has to know of a stream (Stream Engine 2003, section 4.1).

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use millrace_core::dest::Dest;
use millrace_core::limits::{MAX_AHEAD_MS, MAX_SCALE_PERMILLE};
use millrace_core::time::Instant;
use millrace_core::units::BitRate;
use millrace_engine::{RunMedia, StepPattern};
use millrace_offload::command::ConnSocket;
use millrace_offload::toe::{EngineSocket, TcpStream};

use crate::calls::{EndedRun, RunPlan};
use crate::limits::MAX_FIRST_BYTES;
use crate::outcome::{OpenError, Position, RunOutcome, RunRefusal};
use crate::run::LineHandle;
use crate::source::{MediaSource, Opened, PacketFraming, SourcePosition};

/// How packets are carried, and to where.
pub struct Transport {
    pub(crate) dest: Dest<()>,
    pub(crate) socket: Option<ConnSocket>,
    wire: Option<PacketFraming>,
}

impl Transport {
    /// RTP in UDP (RFC 2250) from the engine's port. With `rtcp_port`, a port of the same address, sender reports go there, and a run that has sent everything
    /// ends with a BYE, two and a half seconds behind its last packet.
    pub fn udp_rtp(to: SocketAddr, rtcp_port: Option<u16>) -> Self {
        Self { dest: Dest::udp(to, rtcp_port), socket: None, wire: Some(PacketFraming::Rtp) }
    }

    /// Datagrams with nothing but the source's bytes in them.
    pub fn udp(to: SocketAddr) -> Self {
        Self { dest: Dest::udp(to, None), socket: None, wire: Some(PacketFraming::Raw) }
    }

    /// The source's bytes in a connected TCP socket. The engine writes to it until the context is [finished](StreamContext::finish), which gives it
    /// back alive, or dropped, which closes it; a duplicate of the descriptor may read meanwhile.
    pub fn tcp(connection: impl Into<OwnedFd>) -> Self {
        Self::bytes(connection.into().into())
    }

    /// RTP and RTCP in the frames of an RTSP connection (RFC 2326 section 10.12), else as [`Transport::tcp`].
    pub fn interleaved(connection: impl Into<OwnedFd>, rtp_channel: u8, rtcp_channel: u8) -> Self {
        Self::frames(connection.into().into(), rtp_channel, rtcp_channel)
    }

    /// Sends the source's bytes in a connection of the stream engine's offload engine
    /// ([`StreamEngine::start_offload`](crate::StreamEngine::start_offload)). They leave from their
    /// place in memory. The socket stays with its owner, which reads from it meanwhile, writes
    /// again when the context is [finished](StreamContext::finish) or dropped, and closes it.
    pub fn offload(connection: &TcpStream) -> Self {
        Self::bytes(connection.engine_socket().into())
    }

    /// Sends the source's bytes in a connection of an offload engine that has a thread of its own,
    /// and whose queue pair the stream engine has
    /// ([`StreamEngine::use_offload`](crate::StreamEngine::use_offload)); the connection is
    /// identified by its [name](millrace_offload::toe::Sockets::engine_socket). When the context is
    /// [finished](StreamContext::finish) or dropped, the connection is closed after the data sent.
    pub fn offload_socket(name: EngineSocket) -> Self {
        Self::bytes(name.into())
    }

    /// RTP and RTCP in the frames of an RTSP connection of the offload engine, else as [`Transport::offload`].
    pub fn offload_interleaved(connection: &TcpStream, rtp_channel: u8, rtcp_channel: u8) -> Self {
        Self::frames(connection.engine_socket().into(), rtp_channel, rtcp_channel)
    }

    fn bytes(socket: ConnSocket) -> Self {
        Self { dest: Dest::Bytes { conn: () }, socket: Some(socket), wire: None }
    }

    fn frames(socket: ConnSocket, rtp_channel: u8, rtcp_channel: u8) -> Self {
        let dest = Dest::Interleaved { conn: (), rtp_channel, rtcp_channel };
        Self { dest, socket: Some(socket), wire: Some(PacketFraming::Rtp) }
    }

    /// Whether only the loop that has the offload engine can send there.
    pub(crate) fn is_offloaded(&self) -> bool {
        matches!(self.socket, Some(ConnSocket::Engine(_)))
    }

    fn is_bytes(&self) -> bool {
        matches!(self.dest, Dest::Bytes { .. })
    }

    /// Returns the layout of a source's packets for this transport: RTP viewers and connections
    /// share the data in memory.
    fn wire_of(&self, source: &MediaSource) -> PacketFraming {
        self.wire.unwrap_or(if source.has(PacketFraming::Rtp) {
            PacketFraming::Rtp
        } else {
            PacketFraming::Raw
        })
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Transport({})", self.dest)
    }
}

/// How blocks are made of a source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Assembly {
    /// All packets, one behind the other.
    #[default]
    Plain,
    /// The first `block` packets of each `stride`, counted from the source's beginning ("simple
    /// stepping"). They are paced as if the omitted packets did not exist. Not for bytes in a
    /// connection.
    Step {
        /// Packets that are sent.
        block: u16,
        /// Packets from one block to the next; more than `block`.
        stride: u16,
    },
    /// All packets, as the transformation of this name makes them ([`StreamEngineConfig::transforms`](crate::StreamEngineConfig::transforms)): made once for all
    /// streams that ask for it. Of titles of a volume.
    Transformed(String),
}

impl Assembly {
    fn transform(&self) -> Option<&str> {
        if let Self::Transformed(name) = self { Some(name) } else { None }
    }
}

/// Where a run begins: a packet, and bytes of it that come before.
type Begin = (u32, u16);

/// A stream: the settings of its runs, and where the last run ended. Settings apply to the next run
/// and those after it.
///
/// ```no_run
/// # use millrace_stream::{SourcePosition, StreamContext, StreamEngine, Transport};
/// # fn f(engine: &StreamEngine, peer: std::net::TcpStream) -> Result<(), Box<dyn std::error::Error>> {
/// let film = engine.transport_stream("film.ts".as_ref())?;
/// let control = peer.try_clone()?;
/// let mut stream = StreamContext::new(Transport::tcp(peer), &film)?;
/// stream.start_at(SourcePosition::Access(std::time::Duration::from_secs(60))).control(&control)?;
/// let outcome = engine.run(&mut stream)?; // until the film ends or the peer says something
/// # Ok(())
/// # }
/// ```
pub struct StreamContext {
    pub(crate) transport: Transport,
    pub(crate) source: MediaSource,
    opened: Opened,
    start: Option<SourcePosition>,
    stop: Option<SourcePosition>,
    scale_permille: u16,
    assembly: Assembly,
    ahead_ms: u16,
    pub(crate) first: Vec<u8>,
    pub(crate) control: Option<OwnedFd>,
    pub(crate) line: Option<LineHandle>,
    /// Where the next run begins, and when it is due, unless set otherwise.
    next: Begin,
    next_due: Instant,
    /// The run that was begun last: its beginning, and its end with how many bytes of its last packet.
    begun: (Begin, (u32, u16)),
}

impl fmt::Debug for StreamContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamContext")
            .field("transport", &self.transport)
            .field("source", &self.source)
            .field("next", &self.position())
            .finish_non_exhaustive()
    }
}

impl StreamContext {
    /// Creates a stream that sends all of a source, from its beginning (of a buffer that is
    /// overwritten: from the data written next), at its own speed.
    ///
    /// # Errors
    /// If the source cannot be sent so.
    pub fn new(transport: Transport, source: &MediaSource) -> Result<Self, OpenError> {
        let opened = source.open(transport.wire_of(source), None)?;
        Ok(Self {
            transport,
            source: source.clone(),
            opened,
            start: Some(source.begins_at()),
            stop: None,
            scale_permille: 1000,
            assembly: Assembly::Plain,
            ahead_ms: 0,
            first: Vec::new(),
            control: None,
            line: None,
            next: (0, 0),
            next_due: Instant(0),
            begun: ((0, 0), (0, 0)),
        })
    }

    /// Makes the next run send this source, from its beginning or from the place set by
    /// [`StreamContext::start_at`]. RTP sequence numbers and time stamps continue.
    ///
    /// # Errors
    /// As [`StreamContext::new`]; nothing has changed then.
    pub fn change_source(&mut self, source: &MediaSource) -> Result<&mut Self, OpenError> {
        self.opened = source.open(self.transport.wire_of(source), self.assembly.transform())?;
        self.source = source.clone();
        (self.start, self.stop) = (Some(source.begins_at()), None);
        Ok(self)
    }

    /// The source.
    pub fn source(&self) -> &MediaSource {
        &self.source
    }

    /// Where the next run begins: the starting offset. Those behind it go on where the one before has ended.
    pub fn start_at(&mut self, place: SourcePosition) -> &mut Self {
        self.start = Some(place);
        self
    }

    /// Where runs end: the stopping offset; `None`: where the source does.
    pub fn stop_at(&mut self, place: Option<SourcePosition>) -> &mut Self {
        self.stop = place;
        self
    }

    /// Speed in thousandths of the source's own, 1 to [`MAX_SCALE_PERMILLE`]: the source's interval is divided by it.
    pub fn speed(&mut self, permille: u16) -> &mut Self {
        self.scale_permille = permille.clamp(1, MAX_SCALE_PERMILLE);
        self
    }

    /// How blocks are made of the source, also of one that it is changed to. The first stream that asks for a transformation of a title reads the title's
    /// beginning here.
    ///
    /// # Errors
    /// If no transformation has this name, or the source cannot be transformed in this way; nothing
    /// has changed then.
    pub fn assembly(&mut self, assembly: Assembly) -> Result<&mut Self, OpenError> {
        self.opened = self.source.open(self.transport.wire_of(&self.source), assembly.transform())?;
        self.assembly = assembly;
        Ok(self)
    }

    /// Sets how much a run may be ahead of its pace, at most ten seconds: this amount leaves as
    /// fast as the destination takes it. For players that show their first picture when their
    /// buffer is full.
    pub fn ahead(&mut self, media: Duration) -> &mut Self {
        self.ahead_ms = u16::try_from(media.as_millis()).unwrap_or(u16::MAX).min(MAX_AHEAD_MS);
        self
    }

    /// Bytes that go out before the next run, once: the head of a response. In connections; elsewhere they are not sent.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if there are more than [`MAX_FIRST_BYTES`].
    pub fn send_first(&mut self, bytes: impl Into<Vec<u8>>) -> io::Result<&mut Self> {
        let bytes = bytes.into();
        if bytes.len() > MAX_FIRST_BYTES {
            let what =
                format!("{} bytes to send before a run; at most {MAX_FIRST_BYTES} are allowed", bytes.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        self.first = bytes;
        Ok(self)
    }

    /// Sets the control descriptor: a socket, a pipe, an eventfd. When it has input, or its other
    /// end is closed, a run ends at once. The input is left there. The context keeps a duplicate.
    ///
    /// # Errors
    /// If it cannot be duplicated.
    pub fn control(&mut self, descriptor: &impl AsFd) -> io::Result<&mut Self> {
        self.control = Some(descriptor.as_fd().try_clone_to_owned()?);
        Ok(self)
    }

    /// Returns the position at which the next run begins.
    pub fn position(&self) -> Position {
        let told = self.start.and_then(|place| self.source.locate(place, &self.opened).ok());
        let (packet, head) = told.unwrap_or(self.next);
        Position { packet, byte: self.source.byte_of(packet, head, &self.opened) }
    }

    /// Returns the next run, in the form that its engine takes.
    pub(crate) fn plan(&self) -> Result<RunPlan, RunRefusal> {
        let whole = u16::try_from(self.opened.layout.packet_bytes()).unwrap_or(u16::MAX);
        let begin = self.start.map_or(Ok(self.next), |place| self.source.locate(place, &self.opened))?;
        let whole_source = (self.opened.packets, 0);
        let (mut until, last) =
            match self.stop.map(|place| self.source.locate(place, &self.opened)).transpose()? {
                None => whole_source,
                // The last packet may be a short one.
                Some((packet, head))
                    if self.source.bytes() == Some(self.source.byte_of(packet, head, &self.opened)) =>
                {
                    whole_source
                }
                Some(stop) => stop,
            };
        let end = u64::from(until) * u64::from(whole) + u64::from(last);
        let start = u64::from(begin.0) * u64::from(whole) + u64::from(begin.1);
        if start > end {
            return Err(RunRefusal::OutOfRange("the run ends before it begins"));
        }
        let is_over = start == end || self.source.bytes().is_some_and(|bytes| start >= bytes);
        let (mut from, mut trim) = (begin.0, (begin.1, last));
        if is_over {
            // A run without packets, to which the bytes before it belong all the same.
            (from, trim) = (until, (0, 0));
        } else if last > 0 {
            until += 1;
        }
        let step = self.step(trim)?;
        let is_bytes = self.transport.is_bytes();
        let Opened { title, layout, timeline, packets } = self.opened;
        let spare = if is_bytes { u8::MAX } else { 0 };
        let rate = u128::from(self.source.rate().0) * u128::from(self.scale_permille) / 1000;
        Ok(RunPlan {
            media: RunMedia { title, packets, timeline, layout, spare },
            begin,
            from,
            until,
            trim,
            scale_permille: self.scale_permille,
            step,
            at: if self.start.is_some() { Instant(0) } else { self.next_due },
            ahead_ms: self.ahead_ms,
            rate: BitRate(u64::try_from(rate).unwrap_or(u64::MAX)),
        })
    }

    fn step(&self, trim: (u16, u16)) -> Result<Option<StepPattern>, RunRefusal> {
        let is_bytes = self.transport.is_bytes();
        if !is_bytes && trim != (0, 0) {
            return Err(RunRefusal::Unsuitable("datagrams are sent whole: name places at their borders"));
        }
        match self.assembly {
            Assembly::Plain | Assembly::Transformed(_) => Ok(None),
            Assembly::Step { .. } if is_bytes => Err(RunRefusal::Unsuitable(
                "bytes in a connection are sent without a step; send datagrams or RTP",
            )),
            Assembly::Step { block, stride } => match StepPattern::new(block, stride) {
                None => Err(RunRefusal::Unsuitable(
                    "a step has a block of at least one packet and a longer stride",
                )),
                step => Ok(step),
            },
        }
    }

    /// The run was begun.
    pub(crate) fn began(&mut self, plan: &RunPlan) {
        self.begun = (plan.begin, (plan.until, plan.trim.1));
        // If no result is reported for the run, it has sent nothing.
        (self.start, self.next) = (None, self.begun.0);
    }

    /// The run has ended: the next one goes on from there.
    pub(crate) fn ended(&mut self, ended: &EndedRun) -> RunOutcome {
        let EndedRun { reason, end } = *ended;
        let (begin, (until, last)) = self.begun;
        self.next = match end.next_packet {
            packet if packet == begin.0 && end.packets == 0 => begin,
            packet if packet == until && last > 0 => (until - 1, last),
            packet => (packet, 0),
        };
        self.next_due = if end.packets > 0 { end.next_due } else { Instant(0) };
        RunOutcome {
            reason,
            blocks: end.bursts,
            packets: end.packets,
            bytes: end.bytes,
            missing: end.missing,
            next: self.position(),
            next_due: self.next_due,
        }
    }
}
