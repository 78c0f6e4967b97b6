//! A message is read as it was written, and nothing else is a message.

use std::net::SocketAddr;

use millrace_core::counters::Group;
use millrace_core::limits::toe::{MAX_PAIRS, MAX_PORT_RANGES};
use millrace_tcp::conn::ConnectionState;

use super::*;
use crate::limits::{MAX_HANDSHAKE_BYTES, SURVEY_CONNECTIONS};
use crate::toe::status::{ConnectionFigures, ConnectionStatus, HostStatus, Owner};

/// Different numbers in each place.
fn figures<G: Group>() -> G {
    let mut number = u64::from(u32::MAX) - 3;
    G::take(|| {
        number += 1;
        number
    })
}

fn connection(port: u16, state: Option<ConnectionState>, owner: Owner) -> ConnectionStatus {
    let remote = SocketAddr::from(([10, 0, 0, 2], port));
    ConnectionStatus { state, owner, local: "[2001:db8::1]:80".parse().unwrap(), remote, figures: figures() }
}

fn status(hosts: u16, addresses: Vec<(IpAddr, u8)>, ports: Option<PortSet>) -> GateMessage {
    GateMessage::Status(Box::new(EngineStatus {
        uptime_ns: 1 << 40,
        pairs: 64,
        engine: figures(),
        stack: figures(),
        ip: figures(),
        gate: figures(),
        addresses,
        ports,
        hosts: (0..hosts).map(|pair| HostStatus { pair, pid: 7, uid: u32::MAX }).collect(),
    }))
}

fn welcome(number: u16, addresses: Vec<(IpAddr, u8)>, ports: Option<PortSet>) -> GateMessage {
    GateMessage::Welcome(Welcome { number, pair: PairSettings::default(), addresses, ports })
}

fn all() -> Vec<GateMessage> {
    let addresses: Vec<(IpAddr, u8)> =
        vec![("10.0.0.1".parse().unwrap(), 24), ("2001:db8::1".parse().unwrap(), 64)];
    let connections = vec![
        connection(80, None, Owner::Pair(63)),
        connection(81, Some(ConnectionState::TimeWait), Owner::Queue),
        connection(65_535, Some(ConnectionState::Closed), Owner::Nobody),
    ];
    vec![
        GateMessage::Attach,
        welcome(63, addresses.clone(), None),
        welcome(0, Vec::new(), None),
        welcome(1, addresses.clone(), "80,5540-5560".parse().ok()),
        GateMessage::Refused(Refusal::NotAllowed, "for ünknown reasons".to_owned()),
        GateMessage::Refused(Refusal::Full, String::new()),
        GateMessage::AskStatus,
        status(2, addresses.clone(), None),
        status(1, addresses, "80,5540-5560".parse().ok()),
        status(0, Vec::new(), None),
        GateMessage::AskConnections(u32::MAX),
        GateMessage::Connections(Page { next: Some(7), connections }),
        GateMessage::Connections(Page { next: None, connections: Vec::new() }),
    ]
}

#[test]
fn messages_come_back_and_fit() {
    let subnet = ("2001:db8::1".parse().unwrap(), 64);
    let line = connection(1, Some(ConnectionState::Established), Owner::Pair(0));
    let ports = PortSet::of((1..=MAX_PORT_RANGES as u16).map(|n| 2 * n..=2 * n));
    let longest = [
        status(MAX_PAIRS as u16, vec![subnet; MAX_ADDRESSES], ports.clone()),
        welcome(1, vec![subnet; MAX_ADDRESSES], ports),
        GateMessage::Connections(Page { next: None, connections: vec![line; SURVEY_CONNECTIONS] }),
    ];
    for message in all().into_iter().chain(longest) {
        let bytes = message.encode();
        assert!(bytes.len() <= MAX_HANDSHAKE_BYTES, "{}", bytes.len());
        assert_eq!(GateMessage::decode(&bytes), Some(message));
    }
    let long = GateMessage::Refused(Refusal::Unknown, "ü".repeat(MAX_REFUSAL_BYTES));
    let Some(GateMessage::Refused(_, text)) = GateMessage::decode(&long.encode()) else { panic!("none") };
    assert_eq!(text, "ü".repeat(MAX_REFUSAL_BYTES / 2));
}

/// Where the list at the end of a message begins, and how long its entries are.
fn list(message: &GateMessage) -> (usize, usize) {
    match message {
        GateMessage::Refused(..) => (12, 1),
        GateMessage::Welcome(of) => (8 + (12 + of.ports.iter().flat_map(PortSet::ranges).count()) * 4, 20),
        GateMessage::Status(status) => (message.encode().len() - status.hosts.len() * 12, 12),
        GateMessage::Connections(_) => (12, 4 * (2 + 5 + 5 + 2 * ConnectionFigures::COUNTERS.len())),
        other => (other.encode().len(), 1),
    }
}

/// Each byte of each message matters, and so does its length.
#[test]
fn decode_of_wrong_length_or_version_returns_none() {
    for message in all() {
        let bytes = message.encode();
        let (from, entry) = list(&message);
        let is_text = matches!(message, GateMessage::Refused(..));
        for len in 0..bytes.len() {
            // A list may be shorter.
            let is_shorter = len >= from && (len - from).is_multiple_of(entry);
            let is_message = is_shorter && (!is_text || str::from_utf8(&bytes[from..len]).is_ok());
            assert_eq!(
                GateMessage::decode(&bytes[..len]).is_some(),
                is_message,
                "{message:?} of {len} bytes"
            );
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(is_text || GateMessage::decode(&longer).is_none(), "{message:?}");
        for at in 0..8 {
            let mut other = bytes.clone();
            other[at] ^= 0x40;
            assert_eq!(GateMessage::decode(&other), None, "{message:?} with another byte {at}");
        }
    }
}

/// Any possible input is refused or equals the encoding of its message.
#[test]
fn anything_can_come() {
    let seeds: Vec<Vec<u8>> = all().iter().map(GateMessage::encode).collect();
    bolero::check!().with_type::<(u8, Vec<(u16, u8)>, Vec<u8>)>().for_each(|(seed, changes, rest)| {
        let mut bytes = match seeds.get(usize::from(*seed) % (seeds.len() + 1)) {
            Some(bytes) => bytes.clone(),
            None => Vec::new(),
        };
        for &(at, value) in changes {
            let at = usize::from(at) % (bytes.len() + 1);
            bytes.resize(bytes.len().max(at + 1), 0);
            bytes[at] = value;
        }
        bytes.extend_from_slice(rest);
        if let Some(message) = GateMessage::decode(&bytes) {
            assert_eq!(message.encode(), bytes);
        }
    });
}
