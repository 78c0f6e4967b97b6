//! No end sends beyond the furthest right edge of a window that it was offered. Most peers trim
//! such segments silently.

use std::collections::HashMap;
use std::net::SocketAddr;

use millrace_tcp::seq::Seq;
use millrace_tcp::wire::{Flags, parse};

use super::Packet;

/// The window that a peer has announced.
#[derive(Default)]
struct Told {
    edge: Option<Seq>,
    scale: u8,
}

/// The announcements of a host's peers, by connection.
#[derive(Default)]
pub(crate) struct Windows(HashMap<(SocketAddr, u16), Told>);

impl Windows {
    /// Takes an incoming packet. A damaged one does not count: checksums find one flipped bit.
    pub(crate) fn hear(&mut self, packet: &Packet, scales: bool) {
        if packet.is_damaged {
            return;
        }
        let segment = parse(&packet.bytes).expect("what a stack sends");
        let peer = SocketAddr::new(packet.source, segment.source);
        let told = self.0.entry((peer, segment.destination)).or_default();
        let is_syn = segment.flags.has(Flags::SYN);
        if is_syn {
            told.scale = segment.options.scale.filter(|_| scales).unwrap_or(0);
        }
        if segment.flags.has(Flags::ACK) {
            let edge = segment.ack + (u32::from(segment.window) << if is_syn { 0 } else { told.scale });
            told.edge = Some(told.edge.map_or(edge, |before| before.max(edge)));
        }
    }

    /// Panics if a packet that goes out has data beyond the window. A probe of one byte may.
    pub(crate) fn check(&self, packet: &Packet) {
        let segment = parse(&packet.bytes).expect("what a stack sends");
        let peer = SocketAddr::new(packet.destination, segment.destination);
        let Some(edge) = self.0.get(&(peer, segment.source)).and_then(|told| told.edge) else { return };
        let bytes = segment.payload.len();
        let beyond = (segment.seq + bytes as u32).since(edge);
        let is_within = bytes == 0 || beyond <= i32::from(bytes == 1);
        assert!(is_within, "of {bytes} bytes from {:?} on {beyond} are beyond the window", segment.seq);
    }
}
