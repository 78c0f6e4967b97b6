//! The promises of a title's CRCs, of media and parity.

use crate::crcs::PacketCutter;
use crate::format::manifest::{CRC_FILE, PARITY_CRC_FILE};
use crate::meta::{CrcFile, PacketCrc, Record};
use crate::volume::open_crcs;

use super::report::cause;
use super::title_check::{TitleCheck, unused_records};

/// Checks what needs no data. Returns the CRCs of the title if all of them can be used.
pub(super) fn check(title: &mut TitleCheck<'_, '_>) -> Option<CrcFile> {
    if !title.manifest.has_crcs() {
        return None;
    }
    if let Some(stripes) = title.manifest.stripes().filter(|stripes| stripes.m() > 0) {
        let bytes = stripes.parity_packets() * millrace_core::limits::DEFAULT_PACKET_BYTES as u64;
        let parity = crcs_agree_with_manifest(title, PARITY_CRC_FILE, bytes);
        if let Some(crcs) = parity {
            crc_blocks_are_whole(title, &crcs);
        }
    }
    let crcs = crcs_agree_with_manifest(title, CRC_FILE, title.manifest.title.bytes)?;
    crc_blocks_are_whole(title, &crcs).then_some(crcs)
}

fn crcs_agree_with_manifest(title: &mut TitleCheck<'_, '_>, name: &str, bytes: u64) -> Option<CrcFile> {
    if !title.has(name) {
        return None;
    }
    let path = title.dir.join(name);
    let result = open_crcs(&path, &title.manifest.title, bytes);
    result.map_err(|error| title.damaged("crcs_agree_with_manifest", &path, cause(&error))).ok()
}

/// Every block's checksum and number, zeros behind the last CRC. Whether all blocks can be used.
fn crc_blocks_are_whole(title: &mut TitleCheck<'_, '_>, crcs: &CrcFile) -> bool {
    let promise = "crc_blocks_are_whole";
    let mut records = vec![PacketCrc::default(); PacketCrc::PER_BLOCK as usize];
    let (mut bad, mut first_bad) = (0u32, None);
    for first in (0..crcs.packets()).step_by(PacketCrc::PER_BLOCK as usize) {
        let left = (crcs.packets() - first).min(PacketCrc::PER_BLOCK) as usize;
        if let Err(error) = crcs.read(first, &mut records[..left]) {
            bad += 1;
            first_bad.get_or_insert(cause(&error));
        }
    }
    if let Some(first) = first_bad {
        title.damaged(promise, crcs.path(), format!("{bad} damaged blocks, the first: {first}"));
        return false;
    }
    if let Some(what) = unused_records(crcs) {
        title.damaged(promise, crcs.path(), what);
    }
    true
}

/// Compares the packets of the data, as it goes by, with their CRCs.
pub(super) struct CrcCheck<'a> {
    crcs: &'a CrcFile,
    cutter: PacketCutter,
    packets: Packets,
}

/// The packets seen.
#[derive(Default)]
struct Packets {
    next: u32,
    /// CRCs of the block that `next` is in; empty if they could not be read, which is another promise's finding.
    known: Vec<PacketCrc>,
    wrong: u64,
    first_wrong: u32,
}

impl<'a> CrcCheck<'a> {
    pub(super) fn new(crcs: &'a CrcFile) -> Self {
        Self { crcs, cutter: PacketCutter::default(), packets: Packets::default() }
    }

    pub(super) fn path(&self) -> &std::path::Path {
        self.crcs.path()
    }

    pub(super) fn take(&mut self, bytes: &[u8]) {
        let (packets, crcs) = (&mut self.packets, self.crcs);
        let done: Result<(), std::convert::Infallible> = self.cutter.take(bytes, |packet| {
            packets.take(crcs, packet);
            Ok(())
        });
        done.unwrap_or_else(|never| match never {});
    }

    /// Ends the data: how many packets are wrong, and which is the first.
    pub(super) fn end(&mut self) -> Option<(u64, u32)> {
        let (packets, crcs) = (&mut self.packets, self.crcs);
        let done: Result<(), std::convert::Infallible> = self.cutter.end(|packet| {
            packets.take(crcs, packet);
            Ok(())
        });
        done.unwrap_or_else(|never| match never {});
        (packets.wrong > 0).then_some((packets.wrong, packets.first_wrong))
    }
}

impl Packets {
    fn take(&mut self, crcs: &CrcFile, packet: &[u8]) {
        let place = (self.next % PacketCrc::PER_BLOCK) as usize;
        if place == 0 {
            let left = crcs.packets().saturating_sub(self.next).min(PacketCrc::PER_BLOCK);
            self.known = vec![PacketCrc::default(); left as usize];
            if crcs.read(self.next, &mut self.known).is_err() {
                self.known.clear();
            }
        }
        if self.known.get(place).is_some_and(|known| *known != PacketCrc::of(packet)) {
            if self.wrong == 0 {
                self.first_wrong = self.next;
            }
            self.wrong += 1;
        }
        self.next = self.next.saturating_add(1);
    }
}
