//! How the status of an engine crosses its socket: words in the order in which the types of `status.rs` have their fields. Lists of counters
//! that differ make messages of different lengths, so what another version sends is no message.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use millrace_core::counters::Group;
use millrace_core::limits::ip::MAX_ADDRESSES;
use millrace_core::limits::toe::{MAX_PAIRS, MAX_PORT_RANGES};
use millrace_tcp::conn::ConnectionState;
use millrace_tcp::ports::PortSet;

use crate::limits::SURVEY_CONNECTIONS;
use crate::toe::status::{ConnectionStatus, EngineStatus, HostStatus, Owner};

/// Some of the connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Page {
    /// Where to go on; `None`: these are the last.
    pub(super) next: Option<u32>,
    pub(super) connections: Vec<ConnectionStatus>,
}

/// In the order of their numbers, from 1 on; 0 is a listener.
const STATES: [ConnectionState; 10] = [
    ConnectionState::Closed,
    ConnectionState::SynSent,
    ConnectionState::SynReceived,
    ConnectionState::Established,
    ConnectionState::FinWait1,
    ConnectionState::FinWait2,
    ConnectionState::CloseWait,
    ConnectionState::Closing,
    ConnectionState::LastAck,
    ConnectionState::TimeWait,
];
/// Stands for no next one.
const NO_MORE: u32 = u32::MAX;
const QUEUE: u32 = 1 << 16;
const NOBODY: u32 = 2 << 16;

/// Words that are written.
#[derive(Default)]
pub(super) struct WordWriter(pub(super) Vec<u32>);

impl WordWriter {
    /// How many ranges there are, 0 for no set, and a word for each.
    pub(super) fn ports(&mut self, ports: Option<&PortSet>) {
        let ranges = || ports.into_iter().flat_map(PortSet::ranges);
        self.0.push(ranges().count() as u32);
        self.0.extend(ranges().map(|range| u32::from(*range.start()) | u32::from(*range.end()) << 16));
    }

    fn number(&mut self, value: u64) {
        self.0.extend([value as u32, (value >> 32) as u32]);
    }

    fn group(&mut self, group: &impl Group) {
        group.put(|value| self.number(value));
    }

    /// Five words: the address (IPv4 mapped to IPv6), its family and 16 bits beside it.
    pub(super) fn address(&mut self, address: IpAddr, beside: u16) {
        let (bytes, family) = match address {
            IpAddr::V4(ip) => (ip.to_ipv6_mapped().octets(), 4),
            IpAddr::V6(ip) => (ip.octets(), 6),
        };
        self.0.extend(bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)));
        self.0.push(u32::from(beside) | family << 16);
    }
}

/// Words to read; each call takes the words it needs from the front.
pub(super) struct WordReader<'a>(pub(super) &'a [u32]);

impl WordReader<'_> {
    pub(super) fn word(&mut self) -> Option<u32> {
        let (&word, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(word)
    }

    fn number(&mut self) -> Option<u64> {
        Some(u64::from(self.word()?) | u64::from(self.word()?) << 32)
    }

    fn group<G: Group>(&mut self) -> Option<G> {
        let (mine, rest) = self.0.split_at_checked(2 * G::COUNTERS.len())?;
        self.0 = rest;
        let mut mine = WordReader(mine);
        // There are as many as are taken.
        Some(G::take(|| mine.number().unwrap_or(0)))
    }

    pub(super) fn address(&mut self) -> Option<(IpAddr, u16)> {
        let mut octets = [0; 16];
        for four in octets.as_chunks_mut::<4>().0 {
            *four = self.word()?.to_le_bytes();
        }
        let (ip, last) = (Ipv6Addr::from(octets), self.word()?);
        let ip = match last >> 16 {
            4 => IpAddr::V4(ip.to_ipv4_mapped()?),
            6 => IpAddr::V6(ip),
            _ => return None,
        };
        Some((ip, last as u16))
    }

    /// `None`: there is no such set.
    pub(super) fn ports(&mut self) -> Option<Option<PortSet>> {
        let count = self.word()? as usize;
        let (words, rest) = self.0.split_at_checked(count).filter(|_| count <= MAX_PORT_RANGES)?;
        self.0 = rest;
        if count == 0 {
            return Some(None);
        }
        let ranges = || words.iter().map(|word| *word as u16..=(word >> 16) as u16);
        let set = PortSet::of(ranges())?;
        set.ranges().eq(ranges()).then_some(Some(set))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// An address and the length of its subnet's prefix.
pub(super) fn subnet(words: &mut WordReader<'_>) -> Option<(IpAddr, u8)> {
    let (ip, prefix) = words.address()?;
    let longest = if ip.is_ipv4() { 32 } else { 128 };
    Some((ip, u8::try_from(prefix).ok().filter(|&prefix| prefix <= longest)?))
}

impl EngineStatus {
    pub(super) fn write(&self, words: &mut WordWriter) {
        words.number(self.uptime_ns);
        words.0.push(self.pairs);
        words.group(&self.engine);
        words.group(&self.stack);
        words.group(&self.ip);
        words.group(&self.gate);
        let addresses = &self.addresses[..self.addresses.len().min(MAX_ADDRESSES)];
        words.0.push(addresses.len() as u32);
        addresses.iter().for_each(|&(ip, prefix)| words.address(ip, prefix.into()));
        words.ports(self.ports.as_ref());
        for host in self.hosts.iter().take(MAX_PAIRS) {
            words.0.extend([host.pair.into(), host.pid, host.uid]);
        }
    }

    pub(super) fn read(mut words: WordReader<'_>) -> Option<Self> {
        let mut status = Self {
            uptime_ns: words.number()?,
            pairs: words.word()?,
            engine: words.group()?,
            stack: words.group()?,
            ip: words.group()?,
            gate: words.group()?,
            addresses: Vec::new(),
            ports: None,
            hosts: Vec::new(),
        };
        let count = words.word()? as usize;
        if count > MAX_ADDRESSES {
            return None;
        }
        for _ in 0..count {
            status.addresses.push(subnet(&mut words)?);
        }
        status.ports = words.ports()?;
        let (hosts, []) = words.0.as_chunks::<3>() else { return None };
        if hosts.len() > MAX_PAIRS {
            return None;
        }
        let host =
            |&[pair, pid, uid]: &[u32; 3]| Some(HostStatus { pair: u16::try_from(pair).ok()?, pid, uid });
        status.hosts = hosts.iter().map(host).collect::<Option<_>>()?;
        Some(status)
    }
}

impl Page {
    pub(super) fn write(&self, words: &mut WordWriter) {
        words.0.push(self.next.unwrap_or(NO_MORE));
        for of in self.connections.iter().take(SURVEY_CONNECTIONS) {
            let state = STATES.iter().position(|&state| Some(state) == of.state);
            let owner = match of.owner {
                Owner::Pair(pair) => pair.into(),
                Owner::Queue => QUEUE,
                Owner::Nobody => NOBODY,
            };
            words.0.extend([state.map_or(0, |at| at as u32 + 1), owner]);
            words.address(of.local.ip(), of.local.port());
            words.address(of.remote.ip(), of.remote.port());
            words.group(&of.figures);
        }
    }

    pub(super) fn read(mut words: WordReader<'_>) -> Option<Self> {
        let next = Some(words.word()?).filter(|&next| next != NO_MORE);
        let mut connections = Vec::new();
        while !words.is_empty() {
            if connections.len() == SURVEY_CONNECTIONS {
                return None;
            }
            let state = match words.word()? {
                0 => None,
                number => Some(*STATES.get(number as usize - 1)?),
            };
            let owner = match words.word()? {
                QUEUE => Owner::Queue,
                NOBODY => Owner::Nobody,
                pair => Owner::Pair(u16::try_from(pair).ok()?),
            };
            let (local, remote) = (SocketAddr::from(words.address()?), SocketAddr::from(words.address()?));
            connections.push(ConnectionStatus { state, owner, local, remote, figures: words.group()? });
        }
        Some(Self { next, connections })
    }
}
