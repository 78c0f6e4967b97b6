//! Packets that came before their time. The plan bounds their number; many go into a file that has no name any more, so that nothing
//! of it stays behind.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use millrace_core::limits::DEFAULT_PACKET_BYTES;

use crate::clock::random_u64;

enum Places {
    Memory(Vec<u8>),
    File(File),
}

/// A packet that is held.
#[derive(Clone, Copy, Debug)]
struct HeldPacket {
    place: u32,
    length: u16,
    time: u32,
}

/// See the module's text.
pub struct PacketHold {
    places: Places,
    held: BTreeMap<u32, HeldPacket>,
    free: Vec<u32>,
    used: u32,
    capacity: u32,
    most: usize,
}

/// Makes a file in `folder` and removes its name.
fn unnamed_file(folder: &Path) -> io::Result<File> {
    let path = folder.join(format!("millrace-nvod-{:016x}", random_u64()));
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

impl PacketHold {
    /// Holds up to `capacity` packets: in memory if they fit `memory_bytes`, else in a file in `folder`.
    ///
    /// # Errors
    /// If the file cannot be made.
    pub fn new(capacity: u32, memory_bytes: usize, folder: &Path) -> io::Result<Self> {
        let is_small = capacity as usize <= memory_bytes / DEFAULT_PACKET_BYTES;
        let places = if is_small { Places::Memory(Vec::new()) } else { Places::File(unnamed_file(folder)?) };
        Ok(Self { places, held: BTreeMap::new(), free: Vec::new(), used: 0, capacity, most: 0 })
    }

    /// Packets held now.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Most packets held at once.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Whether a packet is held.
    pub fn has(&self, number: u32) -> bool {
        self.held.contains_key(&number)
    }

    /// The lowest number held, with its media time.
    pub fn first(&self) -> Option<(u32, u32)> {
        self.held.first_key_value().map(|(number, packet)| (*number, packet.time))
    }

    /// Takes a packet of at most [`DEFAULT_PACKET_BYTES`]; `false` if there is no place for it.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn put(&mut self, number: u32, time: u32, payload: &[u8]) -> io::Result<bool> {
        let place = match self.free.pop() {
            Some(place) => place,
            None if self.used == self.capacity => return Ok(false),
            None => {
                self.used += 1;
                self.used - 1
            }
        };
        let start = place as usize * DEFAULT_PACKET_BYTES;
        match &mut self.places {
            Places::Memory(bytes) => {
                bytes.resize(bytes.len().max(start + DEFAULT_PACKET_BYTES), 0);
                bytes[start..start + payload.len()].copy_from_slice(payload);
            }
            Places::File(file) => file.write_all_at(payload, start as u64)?,
        }
        let packet = HeldPacket { place, length: payload.len() as u16, time };
        if let Some(before) = self.held.insert(number, packet) {
            self.free.push(before.place);
        }
        self.most = self.most.max(self.held.len());
        Ok(true)
    }

    /// Appends the payload of a packet to `out`, and holds it no longer. Returns its media time.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn take(&mut self, number: u32, out: &mut Vec<u8>) -> io::Result<Option<u32>> {
        let Some(packet) = self.held.remove(&number) else { return Ok(None) };
        self.free.push(packet.place);
        let (start, length) = (packet.place as usize * DEFAULT_PACKET_BYTES, usize::from(packet.length));
        match &self.places {
            Places::Memory(bytes) => out.extend_from_slice(&bytes[start..start + length]),
            Places::File(file) => {
                let at = out.len();
                out.resize(at + length, 0);
                file.read_exact_at(&mut out[at..], start as u64)?;
            }
        }
        Ok(Some(packet.time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever is put and taken: a packet comes back as it was, once, from memory and from a file alike.
    #[test]
    fn hold_of_any_order_gives_back_each_packet_once() {
        let dir = tempfile::tempdir().unwrap();
        bolero::check!().with_type::<Vec<(bool, u8)>>().with_iterations(300).for_each(|steps| {
            let holds = [1 << 20, 0].map(|memory| PacketHold::new(8, memory, dir.path()).unwrap());
            for mut hold in holds {
                let mut expected = BTreeMap::new();
                for (index, (is_put, number)) in steps.iter().enumerate() {
                    let (number, payload) = (u32::from(*number % 16), vec![index as u8; index % 1317]);
                    if *is_put && !expected.contains_key(&number) {
                        let has_room = hold.put(number, index as u32, &payload).unwrap();
                        assert_eq!(has_room, expected.len() < 8);
                        if has_room {
                            expected.insert(number, (index as u32, payload));
                        }
                    } else {
                        let mut out = Vec::new();
                        let time = hold.take(number, &mut out).unwrap();
                        assert_eq!(time.map(|time| (time, out)), expected.remove(&number));
                    }
                    assert_eq!(hold.len(), expected.len());
                    let first = expected.first_key_value().map(|(number, (time, _))| (*number, *time));
                    assert_eq!(hold.first(), first);
                }
            }
        });
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "the files have no names");
    }

    #[test]
    fn hold_in_a_folder_that_is_not_there_fails_only_when_it_needs_a_file() {
        assert!(PacketHold::new(8, 1 << 20, Path::new("/nonexistent")).is_ok());
        assert!(PacketHold::new(8, 0, Path::new("/nonexistent")).is_err());
    }
}
