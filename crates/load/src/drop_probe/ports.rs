//! Which viewer has which port: a table that the program reads without a look-up by hash.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;

use super::error::ProbeError;
use millrace_netio::bpf::{Map, MappedArray};

/// Ports there are.
const PORTS: u32 = 1 << 16;

/// A word of a port in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum PortWord {
    /// [`PORT_FREE`], [`PORT_OF_ONE`] or [`PORT_OF_SEVERAL`].
    Watchers,
    /// The one address, its family and its slot.
    AddressFront,
    AddressBack,
    Family,
    Slot,
}

impl PortWord {
    /// Bytes from the beginning of the port.
    pub(super) const fn offset(self) -> i16 {
        self as i16 * 8
    }
}

/// Words of a port: whole cache lines.
const PORT_WORDS: u32 = 8;
/// The port is not watched.
pub(super) const PORT_FREE: i32 = 0;
/// One address does, which stands in the table.
pub(super) const PORT_OF_ONE: i32 = 1;
/// The hash map knows.
const PORT_OF_SEVERAL: i32 = 2;

/// Address (IPv4 in the first four bytes), port in network order, family.
pub(super) const KEY_BYTES: usize = 20;
/// Last two bytes of a key.
pub(super) const KEY_V4: u16 = 4;
/// Last two bytes of a key.
pub(super) const KEY_V6: u16 = 6;

type PortKey = [u8; KEY_BYTES];

fn key_of(local: SocketAddr) -> PortKey {
    let mut key = [0; KEY_BYTES];
    let family = match local.ip().to_canonical() {
        IpAddr::V4(v4) => {
            key[..4].copy_from_slice(&v4.octets());
            KEY_V4
        }
        IpAddr::V6(v6) => {
            key[..16].copy_from_slice(&v6.octets());
            KEY_V6
        }
    };
    key[16..18].copy_from_slice(&local.port().to_be_bytes());
    key[18..].copy_from_slice(&family.to_ne_bytes());
    key
}

/// Everything that is watched.
#[derive(Debug)]
pub(super) struct Ports {
    table: MappedArray,
    streams: Map,
    /// Addresses and slots of each port, as the packet writes it.
    watched: HashMap<u16, Vec<(PortKey, u32)>>,
}

impl Ports {
    pub(super) fn new(max_streams: u32) -> Result<Self, ProbeError> {
        let table = MappedArray::new("probe_ports", PORT_WORDS, PORTS)?;
        let streams = Map::hash("probe_streams", KEY_BYTES as u32, 4, max_streams)?;
        Ok(Self { table, streams, watched: HashMap::new() })
    }

    pub(super) fn maps(&self) -> (&MappedArray, &Map) {
        (&self.table, &self.streams)
    }

    pub(super) fn insert(&mut self, local: SocketAddr, slot: u32) -> Result<(), ProbeError> {
        let key = key_of(local);
        self.streams.update(&key, &slot.to_ne_bytes())?;
        let port = port_of(&key);
        let watchers = self.watched.entry(port).or_default();
        watchers.retain(|(watched, _)| *watched != key);
        watchers.push((key, slot));
        self.publish(port);
        Ok(())
    }

    pub(super) fn remove(&mut self, local: SocketAddr) -> Result<(), ProbeError> {
        let key = key_of(local);
        let port = port_of(&key);
        if let Some(watchers) = self.watched.get_mut(&port) {
            watchers.retain(|(watched, _)| *watched != key);
            if watchers.is_empty() {
                self.watched.remove(&port);
            }
        }
        self.publish(port);
        self.streams.delete(&key)?;
        Ok(())
    }

    /// Writes a port of the table. While it changes, the hash map answers.
    fn publish(&self, port: u16) {
        let Some(words) = self.table.entry(u32::from(port)) else { return };
        let set = |word: PortWord, value: u64| words[word as usize].store(value, Ordering::Release);
        let state = |value: i32| set(PortWord::Watchers, u64::from(value.unsigned_abs()));
        match self.watched.get(&port).map(Vec::as_slice) {
            None | Some([]) => state(PORT_FREE),
            Some([(key, slot)]) if key[..16] != [0; 16] => {
                let part = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| key[at + i]));
                state(PORT_OF_SEVERAL);
                set(PortWord::AddressFront, part(0));
                set(PortWord::AddressBack, part(8));
                set(PortWord::Family, u64::from(u16::from_ne_bytes([key[18], key[19]])));
                set(PortWord::Slot, u64::from(*slot));
                state(PORT_OF_ONE);
            }
            // Any address, or several.
            Some(_) => state(PORT_OF_SEVERAL),
        }
    }
}

fn port_of(key: &PortKey) -> u16 {
    u16::from_ne_bytes([key[16], key[17]])
}
