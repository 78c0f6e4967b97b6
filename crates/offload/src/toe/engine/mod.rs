//! The engine without its thread: requests and packets and the time come in, packets and events go out.
//!
//! ```text
//!   requests ─► stack: input ─ protocol ─► lines ─► stack: output ─► lines ─► bells
//!   of all pairs      packets              bytes from and to pairs  counts, events
//! ```
//!
//! A *line* is what stands between a socket of a pair and a connection of the stack. One that may have something to do is in a queue, once; each turn
//! serves those that are there.
//!
//! | file | holds |
//! | --- | --- |
//! | `requests` | what hosts ask for, checked |
//! | `listen` | listeners, and connections that wait to be accepted |
//! | `serve` | the work of a connection; its end |
//! | `send` | from a host's area to the stack |
//! | `lend` | from the loop that turns the engine to the stack |
//! | `receive` | from the stack to anonymous buffers |
//! | `remote` | hosts of other processes come and go |
//! | `survey` | a look at the connections, on request |

mod lend;
mod listen;
mod receive;
mod remote;
mod requests;
mod send;
mod serve;
mod survey;

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};

use millrace_core::time::Instant;
use millrace_tcp::conn::{Happened, Reason};
use millrace_tcp::ip::{Incoming, Interface, Outgoing};
use millrace_tcp::ports::PortSet;
use millrace_tcp::stack::{Arrived, ConnectionId, FrameDisposal, ListenerId, Stack};

use self::lend::LoopWriteState;
pub(super) use self::lend::{Given, LoopConnection, LoopConnectionEvent};
use self::remote::Leaving;
use self::send::Descriptors;
pub(super) use self::survey::Survey;
use super::counters::ToeCounters;
use super::device::{Device, DeviceAccess, Inbound};
use super::pair::{EngineEnd, PairSettings};
use super::record::{HostEvent, Sharing};
use super::settings::EngineSettings;
use crate::limits::{FRAMES_PER_TURN, LOW_DESCRIPTORS};

/// Stands for no buffer, descriptor or connection.
const NONE: u32 = u32::MAX;
/// Room for headers of link, IP and TCP.
const HEADERS_BYTES: usize = 128;
/// Room for a frame with an IP packet.
const PACKET_BYTES: usize = 65_535 + HEADERS_BYTES;

/// A socket of a pair, by the pair's and its own number.
type SocketId = (u16, u32);

/// The connection behind a socket.
struct SocketConnection {
    id: ConnectionId,
    ends: (SocketAddr, SocketAddr),
    is_connecting: bool,
    /// The listener of a connection that its host has not taken yet. Nothing of it is reported, and another listener there may get it.
    offered_by: Option<ListenerId>,
    /// Bytes that the host has given, and those of them that the stack has taken.
    given: u64,
    taken: u64,
    /// Bytes that loops have given: all in the stack.
    foreign: u64,
    /// The count that the host was shown last.
    mirrored: u64,
    /// The loop writes to it.
    lent: Option<LoopWriteState>,
    /// Descriptors of the data that the stack has not taken yet.
    first: u32,
    last: u32,
    /// Count at which the host wants a notification.
    wake_at: Option<u64>,
    /// Buffer that is being filled, how far, and since when.
    filling: u32,
    filled: u32,
    since: Instant,
    /// Buffers that the host holds.
    held: u32,
    /// The stack may have something to be read.
    is_readable: bool,
    peer_closed: bool,
    end_told: bool,
    closed: Option<Reason>,
    close_told: bool,
    is_shut: bool,
    /// The host has closed it; whether by a reset.
    closing: Option<bool>,
}

impl SocketConnection {
    fn new(id: ConnectionId, ends: (SocketAddr, SocketAddr)) -> Self {
        Self {
            id,
            ends,
            is_connecting: false,
            offered_by: None,
            given: 0,
            taken: 0,
            foreign: 0,
            mirrored: 0,
            lent: None,
            first: NONE,
            last: NONE,
            wake_at: None,
            filling: NONE,
            filled: 0,
            since: Instant(0),
            held: 0,
            is_readable: true,
            peer_closed: false,
            end_told: false,
            closed: None,
            close_told: false,
            is_shut: false,
            closing: None,
        }
    }

    fn hear(&mut self, happened: Happened, reason: Reason) {
        self.is_readable |= happened.has(Happened::READABLE);
        self.peer_closed |= happened.has(Happened::PEER_CLOSED);
        if happened.has(Happened::CLOSED) {
            self.closed = Some(reason);
        }
    }
}

/// The use of a socket.
enum SocketUse {
    Free,
    /// It is none, and the host knows; until it closes it.
    Failed,
    /// Index of the listener.
    Listener(u16),
    /// The next connection of a listener.
    Waiting,
    Line(SocketConnection),
}

/// A socket and the queues that it is in, which outlive its use.
struct SocketSlot {
    what: SocketUse,
    /// How many connections it has been, the one that it is among them.
    generation: u16,
    is_dirty: bool,
    is_timed: bool,
    is_starved: bool,
    is_short: bool,
}

/// A host's side of the engine.
struct Pair {
    end: EngineEnd,
    settings: PairSettings,
    places: Box<[SocketSlot]>,
    descriptors: Descriptors,
    /// Receive buffers that are the engine's and empty. The one that came back first is filled next: few of its lines are still in the cache of the
    /// host's processor, where each write to them would have to wait.
    free: VecDeque<u32>,
    /// Per receive buffer, whether the host holds it, and the connection it belongs to.
    lent: Box<[Option<(u32, ConnectionId)>]>,
    /// Sockets that wait for a receive buffer.
    starved: VecDeque<u32>,
    /// Its host has something to read.
    rings: bool,
    /// Its host is gone: no events are reported.
    is_gone: bool,
}

impl Pair {
    fn new(end: EngineEnd, settings: &PairSettings) -> Self {
        let place = || SocketSlot {
            what: SocketUse::Free,
            generation: 0,
            is_dirty: false,
            is_timed: false,
            is_starved: false,
            is_short: false,
        };
        let sockets = settings.sockets as usize;
        Self {
            end,
            places: (0..sockets).map(|_| place()).collect(),
            descriptors: Descriptors::new(settings.send_buffers),
            // All are the engine's at the start.
            free: (0..settings.receive_buffers).collect(),
            lent: (0..settings.receive_buffers).map(|_| None).collect(),
            starved: VecDeque::with_capacity(sockets),
            settings: settings.clone(),
            rings: false,
            is_gone: false,
        }
    }

    fn line(&mut self, socket: u32) -> Option<&mut SocketConnection> {
        match &mut self.places.get_mut(socket as usize)?.what {
            SocketUse::Line(line) => Some(line),
            _ => None,
        }
    }

    fn has_free(&self, socket: u32) -> bool {
        self.places.get(socket as usize).is_some_and(|place| matches!(place.what, SocketUse::Free))
    }

    /// Tells the host. There is always room, unless the host does not read and asks on.
    fn tell(&mut self, event: &HostEvent, counters: &mut ToeCounters) -> bool {
        if self.is_gone {
            return false;
        }
        let is_told = self.end.events.push(&event.encode());
        self.rings |= is_told;
        counters.events += u64::from(is_told);
        counters.events_lost += u64::from(!is_told);
        is_told
    }
}

/// Whose a connection of the stack is.
#[derive(Clone, Copy)]
enum Owner {
    Nobody,
    Line(ConnectionId, SocketId),
    /// It waits to be accepted.
    Queued {
        id: ConnectionId,
        ends: (SocketAddr, SocketAddr),
        next: u32,
        happened: Happened,
        reason: Reason,
    },
}

/// A listener, and the connections that wait there: a list through the owners.
struct Listening {
    /// The stack's; of those that share an address it is one.
    id: ListenerId,
    local: SocketAddr,
    sharing: Sharing,
    /// The user who opened the first one there.
    user: u32,
    socket: SocketId,
    backlog: u32,
    first: u32,
    last: u32,
    count: u32,
    /// The socket that will be the next connection.
    waiting: Option<u32>,
    /// The last connection that its host was offered, and when.
    offered: Option<(u32, Instant)>,
    /// Its host has accepted, or tried to. Of those that share an address others get no connection while these have room.
    has_asked: bool,
}

/// All of it.
pub(super) struct Core {
    /// Which of the program's engines it is.
    number: u32,
    stack: Stack,
    interface: Interface,
    addresses: Vec<IpAddr>,
    pairs: Box<[Pair]>,
    owners: Box<[Owner]>,
    listeners: Box<[Option<Listening>]>,
    /// When it is looked for offers that their hosts have not taken.
    offers_due: Option<Instant>,
    /// Where the search for a listener begins, so that those that share an address have their turns.
    next_listener: usize,
    /// Where the search for a port to listen on begins.
    next_port: u32,
    ports: PortSet,
    /// All else of the addresses is the kernel's.
    has_ports_only: bool,
    /// Lines that may have something to do.
    dirty: VecDeque<SocketId>,
    /// Lines with a buffer that is not full, in the order of the time.
    timed: VecDeque<SocketId>,
    /// Lines for whose bytes the stack has no page.
    short: VecDeque<SocketId>,
    /// Pairs whose host is gone and that are being cleared, and those that are.
    leaving: Vec<Leaving>,
    departed: Vec<(u16, EngineEnd)>,
    /// News that the loop has not received yet of the connections that it writes to.
    news: VecDeque<LoopConnectionEvent>,
    host_pages: u32,
    hand_over_ns: u64,
    keeps_alive: bool,
    packet: Box<[u8]>,
    /// The device still has packets to send, and must be called again.
    is_held: bool,
    pub(super) counters: ToeCounters,
}

impl Core {
    /// All its memory is taken here.
    ///
    /// # Errors
    /// Invalid settings of the interface.
    pub(super) fn new(settings: &EngineSettings, ends: Vec<EngineEnd>, now: Instant) -> io::Result<Self> {
        let interface = Interface::new(&settings.interface, now)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let pairs: Box<[Pair]> = ends.into_iter().map(|end| Pair::new(end, &settings.pair)).collect();
        let pairs_count = pairs.len();
        let sockets = pairs.iter().map(|pair| pair.places.len()).sum();
        let mut stack = Stack::new(&settings.stack);
        stack.share_out(pairs_count as u8 + 1, LOW_DESCRIPTORS);
        pairs.iter().enumerate().for_each(|(number, pair)| stack.set_area(number as u16, pair.end.area()));
        Ok(Self {
            number: 0,
            stack,
            addresses: settings.interface.addresses.iter().map(|address| address.ip).collect(),
            interface,
            pairs,
            owners: (0..settings.stack.connections).map(|_| Owner::Nobody).collect(),
            listeners: (0..pairs_count * usize::from(settings.pair.listeners)).map(|_| None).collect(),
            offers_due: None,
            next_listener: 0,
            next_port: 0,
            ports: settings.stack.ports.clone(),
            has_ports_only: settings.has_ports_only,
            dirty: VecDeque::with_capacity(sockets),
            timed: VecDeque::with_capacity(sockets),
            short: VecDeque::with_capacity(sockets),
            leaving: Vec::with_capacity(pairs_count),
            departed: Vec::with_capacity(pairs_count),
            // Of each line that it is over, and that it can be written again.
            news: VecDeque::with_capacity(2 * sockets),
            host_pages: settings.stack.host_pages,
            hand_over_ns: settings.hand_over_ns,
            keeps_alive: settings.keeps_alive,
            packet: vec![0; HEADERS_BYTES + PACKET_BYTES].into(),
            is_held: false,
            counters: ToeCounters::default(),
        })
    }

    /// The same as this one of the program's engines.
    pub(super) fn numbered(self, number: u32) -> Self {
        Self { number, ..self }
    }

    /// One turn.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn turn(&mut self, device: &mut dyn Device, now: Instant) -> io::Result<()> {
        self.arrive(device, now)?;
        self.depart(device, now)
    }

    /// Runs the first half of a turn: handles all input.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn arrive(&mut self, device: &mut dyn Device, now: Instant) -> io::Result<()> {
        self.take_requests(now);
        self.recall_offers(now);
        self.see_off(now);
        self.take_packets(device, now)?;
        self.stack.protocol(now);
        self.interface.protocol(now);
        self.hear(now);
        self.serve_all(now);
        Ok(())
    }

    /// Runs the second half: sends, and handles the consequences.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn depart(&mut self, device: &mut dyn Device, now: Instant) -> io::Result<()> {
        self.send_packets(device, now)?;
        // The output stage has processed ACKs: the memory they free is reported in this turn.
        self.hear(now);
        self.serve_all(now);
        self.hand_over_due(now);
        self.ring();
        self.gauge(device.access());
        Ok(())
    }

    /// Parts of the stack in use, and how the device gets at them.
    fn gauge(&mut self, access: DeviceAccess) {
        let Self { stack, counters, .. } = self;
        (counters.packets_chained, counters.zero_copy) = (access.chained, access.is_zero_copy.into());
        counters.connections = stack.connections().into();
        counters.handshakes = stack.requests().into();
        counters.time_waits = stack.time_waits().into();
        counters.descriptors = stack.store().used().into();
        counters.host_pages = stack.store().host_pages().into();
        counters.receive_pages = stack.pages().all_used().into();
    }

    /// Whether a host has asked for something.
    pub(super) fn has_requests(&self) -> bool {
        self.pairs.iter().any(|pair| pair.end.requests.is_ready())
    }

    /// When there is something to do even if nothing comes in.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        if self.is_held || !self.dirty.is_empty() {
            return Some(now);
        }
        let timed = self.timed.front().map(|&(pair, socket)| {
            match &self.pairs[usize::from(pair)].places[socket as usize].what {
                SocketUse::Line(line) => line.since.plus_ns(self.hand_over_ns),
                _ => now,
            }
        });
        let (stack, interface) = (self.stack.next_due(now), self.interface.next_due(now));
        [stack, interface, timed, self.offers_due, self.clearing_due(now)].into_iter().flatten().min()
    }

    /// Whether a port of the addresses is the engine's.
    fn has_port(&self, port: u16) -> bool {
        !self.has_ports_only || self.ports.contains(port)
    }

    /// Notifies all hosts that there is no engine any more.
    pub(super) fn stop(&self) {
        self.pairs.iter().for_each(|pair| pair.end.stop());
    }

    /// The stack, for tests and counters.
    pub(super) fn stack(&self) -> &Stack {
        &self.stack
    }

    /// The IP layer, for counters.
    pub(super) fn interface(&self) -> &Interface {
        &self.interface
    }

    fn take_packets(&mut self, device: &mut dyn Device, now: Instant) -> io::Result<()> {
        let Self { stack, interface, counters, .. } = self;
        for _ in 0..FRAMES_PER_TURN {
            let mut take = |packet: Inbound<'_>| match interface.input(packet.bytes, now) {
                Incoming::Segment(arrived) => {
                    counters.packets_in += 1;
                    stack.input(&Arrived { is_checked: packet.is_checked, ..arrived }, now);
                }
                Incoming::Error(error) => stack.icmp(&error, now),
                Incoming::Done | Incoming::Dropped | Incoming::ForKernel => {
                    counters.packets_passed += 1;
                }
            };
            if !device.receive(&mut take)? {
                break;
            }
        }
        Ok(())
    }

    fn send_packets(&mut self, device: &mut dyn Device, now: Instant) -> io::Result<()> {
        let Self { stack, interface, packet, counters, is_held, .. } = self;
        let (head, room) = packet.split_at_mut(HEADERS_BYTES);
        let mut failed = None;
        // Whether the device has taken it: a payload is copied from where it lies to where the device has it.
        let mut send = |head: &[u8], body: &[&[u8]]| {
            device.gather(head, body, room).unwrap_or_else(|error| {
                failed = Some(error);
                false
            })
        };
        stack.output(now, &mut |out| match interface.headers(out, now, head) {
            Outgoing::Written(bytes) if !send(&head[..bytes], out.payload.slices()) => FrameDisposal::Full,
            Outgoing::Written(_) | Outgoing::Waiting => {
                counters.packets_out += 1;
                FrameDisposal::Copied
            }
            Outgoing::Dropped => FrameDisposal::Copied,
        });
        counters.packets_out += interface.output(&mut |packet| send(packet, &[])) as u64;
        *is_held = !device.flush(now)?;
        failed.map_or(Ok(()), Err)
    }

    /// Delivers the stack's events to their connection or listener.
    fn hear(&mut self, now: Instant) {
        while let Some(event) = self.stack.poll_event() {
            let id = event.connection;
            let Some(owner) = self.owners.get_mut(id.number() as usize) else { continue };
            match owner {
                Owner::Line(of, socket) if *of == id => {
                    let socket = *socket;
                    if let Some(line) = self.pairs[usize::from(socket.0)].line(socket.1) {
                        line.hear(event.happened, event.reason);
                    }
                    self.make_dirty(socket);
                }
                Owner::Queued { id: of, happened, reason, .. } if *of == id => {
                    happened.0 |= event.happened.0;
                    *reason = event.reason;
                }
                _ => self.hear_of_new(&event, now),
            }
        }
    }

    /// The socket has its turn when lines are served next.
    fn make_dirty(&mut self, (pair, socket): SocketId) {
        let place = &mut self.pairs[usize::from(pair)].places[socket as usize];
        if !std::mem::replace(&mut place.is_dirty, true) {
            self.dirty.push_back((pair, socket));
        }
    }

    fn ring(&mut self) {
        for pair in &mut self.pairs {
            if std::mem::take(&mut pair.rings) {
                pair.end.bell.ring();
            }
        }
    }
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
