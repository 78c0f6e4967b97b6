//! An endpoint with smoltcp: code that shares nothing with this crate.

use std::net::{IpAddr, SocketAddr};

use millrace_core::time::Instant;
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::Medium;
use smoltcp::socket::tcp;
use smoltcp::wire::{HardwareAddress, IpCidr, IpProtocol, Ipv4Packet};

use super::app::App;
use super::wire::Wire;
use super::{Endpoint, Packet};

const IPV4_HEADER: usize = 20;

pub(crate) struct Smol {
    pub(crate) app: App,
    wire: Wire,
    interface: Interface,
    sockets: SocketSet<'static>,
    socket: SocketHandle,
    /// It was connected once.
    was_open: bool,
}

fn time(now: Instant) -> smoltcp::time::Instant {
    smoltcp::time::Instant::from_micros(now.0.div_ceil(1_000) as i64)
}

impl Smol {
    pub(crate) fn new(local: IpAddr, app: App, buffer_bytes: usize, seed: u64) -> Self {
        let mut wire = Wire::new(Medium::Ip, 1500);
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = seed;
        let mut interface = Interface::new(config, &mut wire, time(Instant(0)));
        interface.update_ip_addrs(|addresses| {
            addresses.push(IpCidr::new(local.into(), 16)).expect("room for an address");
        });
        let buffer = || tcp::SocketBuffer::new(vec![0; buffer_bytes]);
        let mut sockets = SocketSet::new(Vec::new());
        let socket = sockets.add(tcp::Socket::new(buffer(), buffer()));
        Self { app, wire, interface, sockets, socket, was_open: false }
    }

    pub(crate) fn listen(&mut self, port: u16) {
        self.sockets.get_mut::<tcp::Socket>(self.socket).listen(port).expect("a listener");
    }

    pub(crate) fn open(&mut self, remote: SocketAddr, port: u16) {
        let socket = self.sockets.get_mut::<tcp::Socket>(self.socket);
        socket.connect(self.interface.context(), (remote.ip(), remote.port()), port).expect("a connection");
    }

    fn act(&mut self, now: Instant) {
        let socket = self.sockets.get_mut::<tcp::Socket>(self.socket);
        self.was_open |= socket.may_send();
        while socket.can_recv() && self.app.reads(now) {
            let app = &mut self.app;
            let taken = socket.recv(|bytes| {
                let bytes = &bytes[..bytes.len().min(app.side.gulp)];
                app.took(bytes);
                (bytes.len(), bytes.len())
            });
            if !matches!(taken, Ok(1..)) {
                break;
            }
        }
        while self.was_open && !self.app.has_sent() && socket.can_send() {
            let bytes = self.app.next();
            let written = socket.send_slice(&bytes).expect("an open socket");
            self.app.sent += written as u64;
            if written < bytes.len() {
                break;
            }
        }
        if self.was_open && self.app.has_sent() && !self.app.is_closed {
            self.app.is_closed = true;
            socket.close();
        }
        let is_over = !socket.is_active() || socket.state() == tcp::State::TimeWait;
        if self.was_open && !self.app.has_end && self.app.is_closed && is_over && !socket.can_recv() {
            self.app.ended();
        }
    }
}

impl Endpoint for Smol {
    fn take(&mut self, _: Instant, packet: &Packet) {
        let (IpAddr::V4(source), IpAddr::V4(destination)) = (packet.source, packet.destination) else {
            return;
        };
        let mut bytes = vec![0; IPV4_HEADER + packet.bytes.len()];
        let mut header = Ipv4Packet::new_unchecked(&mut bytes);
        header.set_version(4);
        header.set_header_len(IPV4_HEADER as u8);
        header.set_total_len((IPV4_HEADER + packet.bytes.len()) as u16);
        header.set_hop_limit(64);
        header.set_next_header(IpProtocol::Tcp);
        header.set_src_addr(source);
        header.set_dst_addr(destination);
        header.fill_checksum();
        bytes[IPV4_HEADER..].copy_from_slice(&packet.bytes);
        self.wire.inward.push_back(bytes);
    }

    fn turn(&mut self, now: Instant) -> Vec<Packet> {
        for _ in 0..2 {
            self.interface.poll(time(now), &mut self.wire, &mut self.sockets);
            self.act(now);
        }
        self.interface.poll(time(now), &mut self.wire, &mut self.sockets);
        let packet = |bytes: Vec<u8>| {
            let header = Ipv4Packet::new_unchecked(&bytes);
            let (source, destination) = (header.src_addr().into(), header.dst_addr().into());
            Packet {
                source,
                destination,
                is_capable: false,
                is_marked: false,
                is_damaged: false,
                bytes: bytes[IPV4_HEADER..].to_vec(),
            }
        };
        self.wire.outward.drain(..).map(packet).collect()
    }

    fn due(&mut self, now: Instant) -> Option<Instant> {
        if self.app.has_end {
            return None;
        }
        let polls = self.interface.poll_at(time(now), &self.sockets);
        let polls = polls.map(|due| Instant(due.total_micros() as u64 * 1_000).max(now.plus_ns(1_000)));
        let reads = Some(self.app.next_read).filter(|&at| at > now);
        [polls, reads].into_iter().flatten().min()
    }

    fn is_done(&self) -> bool {
        self.app.has_end
    }

    fn progress(&self) -> String {
        let socket = self.sockets.get::<tcp::Socket>(self.socket);
        let App { sent, to_send, received, to_receive, .. } = self.app;
        format!("smoltcp {:?}: {sent} of {to_send} out, {received} of {to_receive} in", socket.state())
    }
}
