//! Stack and IP layer on one Ethernet with smoltcp, which shares no code with them: ARP, neighbour discovery, ping, and connections in both
//! directions over IPv4 and IPv6, to a neighbour and through a gateway. In virtual time.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use millrace_core::random::SplitMix;
use millrace_core::time::{Instant, NS_PER_S};
use millrace_tcp::conn::{Config, Happened};
use millrace_tcp::ip::{Incoming, Interface, IpCounters, LinkLayer, Outgoing, Settings as IpSettings};
use millrace_tcp::recv::ClusterSize;
use millrace_tcp::stack::{ConnectionId, FrameDisposal, Settings, Stack};
use smoltcp::iface::{Config as SmolConfig, Interface as SmolInterface, SocketHandle, SocketSet};
use smoltcp::phy::{ChecksumCapabilities, Medium};
use smoltcp::socket::{icmp, tcp};
use smoltcp::wire::{
    EthernetAddress, HardwareAddress, Icmpv4Packet, Icmpv4Repr, Icmpv6Packet, Icmpv6Repr, IpCidr,
};

use crate::sim::wire::Wire;

const MS: u64 = 1_000_000;
const DELAY_NS: u64 = MS;
const OUR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const THEIR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const PORT: u16 = 7;
/// Bytes that go to and fro: several windows.
const BYTES: usize = 300_000;
/// Nothing here takes this long, in virtual time.
const END: Instant = Instant(1000 * NS_PER_S);

fn our_ip(is_v4: bool) -> IpAddr {
    if is_v4 { "192.0.2.1" } else { "2001:db8::1" }.parse().unwrap()
}

fn their_ip(is_v4: bool, is_far: bool) -> IpAddr {
    match (is_v4, is_far) {
        (true, false) => "192.0.2.254",
        (true, true) => "198.51.100.7",
        (false, false) => "2001:db8::fe",
        (false, true) => "2001:db8:ff::7",
    }
    .parse()
    .unwrap()
}

fn byte(at: usize) -> u8 {
    SplitMix::numbered(1, at as u64 / 8).next().to_le_bytes()[at % 8]
}

/// An application at one end of a connection: sends the pattern and reads it back, or echoes the
/// data it reads.
#[derive(Default)]
struct App {
    is_echo: bool,
    kept: VecDeque<u8>,
    sent: usize,
    got: usize,
    is_over: bool,
    /// It sends no more than this for now.
    allowed: Option<usize>,
}

impl App {
    fn took(&mut self, bytes: &[u8]) {
        for &taken in bytes {
            assert_eq!(taken, byte(self.got), "byte {}", self.got);
            self.got += 1;
        }
        if self.is_echo {
            self.kept.extend(bytes);
        }
    }

    fn next(&mut self, most: usize) -> Vec<u8> {
        let most = self.allowed.map_or(most, |allowed| most.min(allowed - self.sent));
        if self.is_echo {
            return self.kept.iter().copied().take(most).collect();
        }
        (self.sent..BYTES.min(self.sent + most)).map(byte).collect()
    }

    fn wrote(&mut self, bytes: usize) {
        self.sent += bytes;
        if self.is_echo {
            self.kept.drain(..bytes);
        }
    }

    fn is_done(&self) -> bool {
        self.sent == BYTES && self.got == BYTES
    }
}

struct Us {
    interface: Interface,
    stack: Stack,
    app: App,
    connection: Option<ConnectionId>,
    is_closed: bool,
}

impl Us {
    fn new(is_echo: bool, now: Instant) -> Self {
        let mut ip = IpSettings::new(LinkLayer::Ethernet { mac: OUR_MAC, vlan: None }, [5, 6])
            .with(our_ip(true), 24)
            .with("fe80::1".parse::<IpAddr>().unwrap(), 64)
            .with(our_ip(false), 64);
        ip.gateway_v4 = Some("192.0.2.254".parse().unwrap());
        ip.gateway_v6 = Some("fe80::fe".parse().unwrap());
        let cluster = ClusterSize { bytes: 1 << 18, page_bytes: 2048 };
        let stack = Stack::new(&Settings {
            config: Config { mtu: 1500, ..Config::default() },
            connections: 8,
            requests: 8,
            listeners: 16,
            time_waits: 8,
            records: 512,
            descriptors: 256,
            host_pages: 128,
            clusters: vec![cluster, cluster],
            defers_acks: true,
            cookies: true,
            ports: (40_000..=50_000).into(),
            secret: [1, 2],
        });
        let interface = Interface::new(&ip, now).unwrap();
        Self { interface, stack, app: App { is_echo, ..App::default() }, connection: None, is_closed: false }
    }

    fn take(&mut self, frame: &[u8], now: Instant) {
        match self.interface.input(frame, now) {
            Incoming::Segment(arrived) => self.stack.input(&arrived, now),
            Incoming::Error(error) => self.stack.icmp(&error, now),
            Incoming::Done | Incoming::ForKernel => {}
            Incoming::Dropped => panic!("{:?} {frame:02x?}", self.interface.counters()),
        }
    }

    fn turn(&mut self, now: Instant) -> Vec<Vec<u8>> {
        self.stack.protocol(now);
        self.interface.protocol(now);
        self.act(now);
        let Self { stack, interface, .. } = self;
        let mut frames = Vec::new();
        stack.output(now, &mut |out| {
            let mut frame = vec![0; 1600];
            if let Outgoing::Written(bytes) = interface.frame(out, now, &mut frame) {
                frame.truncate(bytes);
                frames.push(frame);
            }
            FrameDisposal::Copied
        });
        interface.output(&mut |frame| {
            frames.push(frame.to_vec());
            true
        });
        frames
    }

    fn act(&mut self, now: Instant) {
        while let Some(event) = self.stack.poll_event() {
            if event.happened.has(Happened::ESTABLISHED) {
                self.connection = Some(event.connection);
            }
            self.app.is_over |= event.happened.has(Happened::PEER_CLOSED);
        }
        let Some(id) = self.connection.filter(|_| !self.is_closed) else { return };
        let mut buffer = [0; 4096];
        loop {
            let count = self.stack.read(id, &mut buffer, now).unwrap_or(0);
            self.app.took(&buffer[..count]);
            let bytes = self.app.next(4096);
            let written = self.stack.write(id, &bytes, now).unwrap_or(0);
            self.app.wrote(written);
            if count == 0 && written == 0 {
                break;
            }
        }
        if self.app.is_done() && (self.app.is_over || !self.app.is_echo) {
            self.is_closed = true;
            self.stack.close(id, now).unwrap();
        }
    }

    fn due(&self, now: Instant) -> Option<Instant> {
        self.stack.next_due(now).into_iter().chain(self.interface.next_due(now)).min()
    }
}

struct Them {
    wire: Wire,
    interface: SmolInterface,
    sockets: SocketSet<'static>,
    tcp: SocketHandle,
    icmp: SocketHandle,
    app: App,
    was_open: bool,
    is_closed: bool,
    pongs: Vec<Vec<u8>>,
}

fn time(now: Instant) -> smoltcp::time::Instant {
    smoltcp::time::Instant::from_micros(now.0.div_ceil(1000) as i64)
}

impl Them {
    fn new(is_echo: bool, is_v4: bool, is_far: bool, now: Instant) -> Self {
        let mut wire = Wire::new(Medium::Ethernet, 1514);
        let mut config = SmolConfig::new(HardwareAddress::Ethernet(EthernetAddress(THEIR_MAC)));
        config.random_seed = 9;
        let mut interface = SmolInterface::new(config, &mut wire, time(now));
        // Gateway and far host are the same machine.
        let (gateway, prefix) = if is_v4 { ("192.0.2.254", 24) } else { ("fe80::fe", 64) };
        let end_prefix = match (is_v4, is_far) {
            (true, true) => 32,
            (true, false) => 24,
            (false, true) => 128,
            (false, false) => 64,
        };
        interface.update_ip_addrs(|addresses| {
            addresses.push(IpCidr::new(gateway.parse().unwrap(), prefix)).unwrap();
            let end = IpCidr::new(their_ip(is_v4, is_far).into(), end_prefix);
            if !addresses.contains(&end) {
                addresses.push(end).unwrap();
            }
        });
        interface.routes_mut().add_default_ipv6_route("fe80::1".parse().unwrap()).unwrap();
        Self {
            wire,
            interface,
            sockets: SocketSet::new(Vec::new()),
            tcp: SocketHandle::default(),
            icmp: SocketHandle::default(),
            app: App { is_echo, ..App::default() },
            was_open: false,
            is_closed: false,
            pongs: Vec::new(),
        }
        .with_sockets()
    }

    fn with_sockets(mut self) -> Self {
        let buffer = || tcp::SocketBuffer::new(vec![0; 40_000]);
        self.tcp = self.sockets.add(tcp::Socket::new(buffer(), buffer()));
        let buffer = || icmp::PacketBuffer::new(vec![icmp::PacketMetadata::EMPTY; 8], vec![0; 8192]);
        self.icmp = self.sockets.add(icmp::Socket::new(buffer(), buffer()));
        self.sockets.get_mut::<icmp::Socket>(self.icmp).bind(icmp::Endpoint::Ident(77)).unwrap();
        self
    }

    fn turn(&mut self, now: Instant) -> Vec<Vec<u8>> {
        for _ in 0..3 {
            self.interface.poll(time(now), &mut self.wire, &mut self.sockets);
            self.act();
        }
        std::mem::take(&mut self.wire.outward)
    }

    fn act(&mut self) {
        let socket = self.sockets.get_mut::<tcp::Socket>(self.tcp);
        self.was_open |= socket.may_send();
        while socket.can_recv() {
            socket.recv(|bytes| (self.app.took(bytes), (bytes.len(), ())).1).unwrap();
        }
        while self.was_open && !self.is_closed && socket.can_send() {
            let bytes = self.app.next(4096);
            let written = socket.send_slice(&bytes).unwrap();
            self.app.wrote(written);
            if written == 0 {
                break;
            }
        }
        if self.was_open && self.app.is_done() && !self.is_closed && (!self.app.is_echo || !socket.may_recv())
        {
            self.is_closed = true;
            socket.close();
        }
        let icmp = self.sockets.get_mut::<icmp::Socket>(self.icmp);
        while icmp.can_recv() {
            self.pongs.push(icmp.recv().unwrap().0.to_vec());
        }
    }

    fn ping(&mut self, to: IpAddr, seq_no: u16, data: &[u8]) {
        let icmp = self.sockets.get_mut::<icmp::Socket>(self.icmp);
        match to {
            IpAddr::V4(_) => {
                let repr = Icmpv4Repr::EchoRequest { ident: 77, seq_no, data };
                let payload = icmp.send(repr.buffer_len(), to.into()).unwrap();
                repr.emit(&mut Icmpv4Packet::new_unchecked(payload), &ChecksumCapabilities::default());
            }
            IpAddr::V6(ip) => {
                let repr = Icmpv6Repr::EchoRequest { ident: 77, seq_no, data };
                let payload = icmp.send(repr.buffer_len(), to.into()).unwrap();
                let source = "2001:db8::fe".parse().unwrap();
                let mut packet = Icmpv6Packet::new_unchecked(payload);
                repr.emit(&source, &ip, &mut packet, &ChecksumCapabilities::default());
            }
        }
    }
}

/// Both on a link, until `is_done`. Returns when.
fn run(
    us: &mut Us,
    them: &mut Them,
    mut now: Instant,
    mut is_done: impl FnMut(&Us, &Them) -> bool,
) -> Instant {
    let mut links: [VecDeque<(Instant, Vec<u8>)>; 2] = Default::default();
    loop {
        while links[0].front().is_some_and(|(at, _)| *at <= now) {
            us.take(&links[0].pop_front().unwrap().1, now);
        }
        while links[1].front().is_some_and(|(at, _)| *at <= now) {
            them.wire.inward.push_back(links[1].pop_front().unwrap().1);
        }
        let at = now.plus_ns(DELAY_NS);
        links[1].extend(us.turn(now).into_iter().map(|frame| (at, frame)));
        links[0].extend(them.turn(now).into_iter().map(|frame| (at, frame)));
        if is_done(us, them) {
            return now;
        }
        let their_due = them.interface.poll_at(time(now), &them.sockets);
        let their_due = their_due.map(|at| Instant(at.total_micros() as u64 * 1000));
        let dues = links.iter().filter_map(|link| link.front().map(|(at, _)| *at));
        let next = dues.chain(us.due(now)).chain(their_due).min();
        now = next.map_or(END, |next| next.max(now.plus_ns(1000)));
        assert!(now < END, "not done: {:?} sent {} got {}", us.interface.counters(), us.app.sent, us.app.got);
    }
}

fn pair(we_echo: bool, is_v4: bool, is_far: bool) -> (Us, Them, Instant) {
    let now = Instant(NS_PER_S);
    (Us::new(we_echo, now), Them::new(!we_echo, is_v4, is_far, now), now)
}

/// Everything that went through the layer came to something.
fn check(counters: &IpCounters) {
    let c = counters;
    let dropped =
        c.malformed + c.bad_checksums + c.martians + c.misdirected + c.bad_options + c.bad_discovery;
    assert_eq!((dropped, c.conflicts, c.contradicted, c.no_route, c.own_dropped), (0, 0, 0, 0, 0), "{c:?}");
    assert_eq!(c.segments_in + c.handled + c.for_kernel, c.frames_in, "{c:?}");
    assert!(c.resolved > 0 && c.unresolved == 0, "{c:?}");
}

fn is_over(us: &Us, them: &Them) -> bool {
    us.app.is_done() && them.app.is_done() && us.is_closed && them.is_closed
}

#[test]
fn smoltcp_connect_to_stack_transfers_both_ways() {
    for (is_v4, is_far) in [(true, false), (false, false), (true, true), (false, true)] {
        let (mut us, mut them, now) = pair(true, is_v4, is_far);
        us.stack.listen(SocketAddr::new(our_ip(is_v4), PORT), 4).unwrap();
        let socket = them.sockets.get_mut::<tcp::Socket>(them.tcp);
        let local = (smoltcp::wire::IpAddress::from(their_ip(is_v4, is_far)), 50_000);
        socket.connect(them.interface.context(), (our_ip(is_v4), PORT), local).unwrap();
        let end = run(&mut us, &mut them, now, is_over);
        // No segment had to be sent again: ARP and discovery lose none.
        assert!(end.0 < 3 * NS_PER_S, "{is_v4} {is_far}: {end:?}");
        assert_eq!(us.stack.counters().bad_checksums, 0);
        check(us.interface.counters());
    }
}

#[test]
fn we_connect_to_them() {
    for (is_v4, is_far) in [(true, false), (false, false), (true, true), (false, true)] {
        let (mut us, mut them, now) = pair(false, is_v4, is_far);
        them.sockets.get_mut::<tcp::Socket>(them.tcp).listen(PORT).unwrap();
        let local = SocketAddr::new(our_ip(is_v4), 0);
        us.stack.open(local, SocketAddr::new(their_ip(is_v4, is_far), PORT), now).unwrap();
        let end = run(&mut us, &mut them, now, is_over);
        assert!(end.0 < 3 * NS_PER_S, "{is_v4} {is_far}: {end:?}");
        assert_eq!(us.stack.counters().bad_checksums, 0);
        // The SYN waited for its neighbour, and nothing else did.
        assert_eq!(us.interface.counters().segments_waiting, 1);
        check(us.interface.counters());
    }
}

#[test]
fn data_that_moves_now_and_then_keeps_a_neighbour_without_any_probe() {
    const PAUSES: usize = 90;
    for (is_v4, is_far, we_send, they_send) in [
        (true, false, true, true),
        (true, false, true, false),
        (true, true, false, true),
        (false, true, true, true),
    ] {
        let (mut us, mut them, mut now) = pair(!we_send, is_v4, is_far);
        them.sockets.get_mut::<tcp::Socket>(them.tcp).listen(PORT).unwrap();
        let local = SocketAddr::new(our_ip(is_v4), 0);
        us.stack.open(local, SocketAddr::new(their_ip(is_v4, is_far), PORT), now).unwrap();
        for pause in 1..=PAUSES {
            let allowed = |sends| if sends { BYTES / PAUSES * pause } else { 0 };
            let (ours, theirs) = (allowed(we_send), allowed(they_send));
            (us.app.allowed, them.app.allowed) = (Some(ours), Some(theirs));
            now = run(&mut us, &mut them, now, |us, them| us.app.got == theirs && them.app.got == ours);
            now = now.plus_ns(10 * NS_PER_S);
        }
        let counters = us.interface.counters();
        let solicits = counters.solicits_out;
        assert_eq!(solicits, 1, "once at the start, in 15 minutes: {is_v4} {is_far} {we_send} {they_send}");
        check(counters);
    }
}

#[test]
fn smoltcp_ping_is_answered_with_same_data() {
    for is_v4 in [true, false] {
        let (mut us, mut them, mut now) = pair(true, is_v4, false);
        for (number, length) in [0, 1, 56, 1400].into_iter().enumerate() {
            let data: Vec<u8> = (0..length).map(byte).collect();
            them.ping(our_ip(is_v4), number as u16, &data);
            now = run(&mut us, &mut them, now, |_, them| them.pongs.len() > number);
            let pong = them.pongs.last().unwrap();
            assert_eq!((&pong[8..], pong[7]), (&data[..], number as u8));
            assert_eq!(pong[0], if is_v4 { 0 } else { 129 });
        }
        assert_eq!(us.interface.counters().echo_replies, 4);
    }
}

#[test]
fn neighbour_returning_after_outage_is_resolved_again() {
    let (mut us, mut them, now) = pair(false, true, false);
    them.sockets.get_mut::<tcp::Socket>(them.tcp).listen(PORT).unwrap();
    us.stack
        .open(SocketAddr::new(our_ip(true), 0), SocketAddr::new(their_ip(true, false), PORT), now)
        .unwrap();
    // No peer hears us for ten seconds: the SYN is sent, and the neighbour solicited, again and
    // again.
    let mut time = now;
    while time < now.plus_ns(10 * NS_PER_S) {
        us.turn(time);
        time = us.due(time).unwrap_or(time).max(time.plus_ns(MS));
    }
    assert!(us.interface.counters().unresolved >= 1, "{:?}", us.interface.counters());
    run(&mut us, &mut them, time, is_over);
    assert!(us.interface.counters().resolved == 1);
}
