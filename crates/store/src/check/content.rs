//! The promises that need every byte of a title: hashes and sums.

use std::fs::File;
use std::io::{self, Read};

use millrace_core::limits::volume::CHECK_READ_BYTES;
use millrace_core::limits::{DEFAULT_PACKET_BYTES, TS_PACKET_BYTES};
use millrace_core::packet::PacketMeta;
use millrace_core::units::Count;
use millrace_core::wire::checksum;

use super::crcs::CrcCheck;
use super::range_sums::GrainCheck;
use super::title_check::TitleCheck;
use crate::dirs::hash;
use crate::format::manifest::{DATA_FILE, DATA_UNITS_FILE, PARITY_UNITS_FILE, SUBTITLES_PREFIX};
use crate::meta::{CrcFile, MetaFile, RECORDS_PER_BLOCK};
use crate::sums::SumsFile;

pub(super) fn check(
    title: &mut TitleCheck<'_, '_>,
    metas: &[MetaFile],
    range_sums: Option<&SumsFile>,
    crcs: Option<&CrcFile>,
) {
    data_is_as_ingested(title, metas, range_sums, crcs);
    index_and_meta_are_as_ingested(title);
}

/// One pass over the data file: its BLAKE3, every packet's sum in every size, every grain's sum, every packet's CRC, every TS
/// packet's first byte.
fn data_is_as_ingested(
    title: &mut TitleCheck<'_, '_>,
    metas: &[MetaFile],
    range_sums: Option<&SumsFile>,
    crcs: Option<&CrcFile>,
) {
    if title.manifest.file(DATA_FILE).is_none() || !title.has(DATA_FILE) {
        return; // on several members it is looked at by stripes
    }
    let path = title.dir.join(DATA_FILE);
    let mut sums: Vec<SumCheck<'_>> = metas.iter().map(SumCheck::new).collect();
    let mut grains = range_sums.map(GrainCheck::new);
    let mut crcs = crcs.map(CrcCheck::new);
    let mut hasher = blake3::Hasher::new();
    let mut sync = SyncCheck::default();
    let before = title.report.progress.bytes_done;
    let result = File::open(&path).and_then(|file| {
        each_piece(file, |piece| {
            hasher.update(piece);
            sums.iter_mut().for_each(|sum| sum.take(piece));
            grains.iter_mut().for_each(|grains| grains.take(piece));
            crcs.iter_mut().for_each(|crcs| crcs.take(piece));
            sync.take(piece);
            title.report.progress.bytes_done += piece.len() as u64;
            (title.report.tell)(&title.report.progress);
        })
    });
    // A file that ended early, or was cut off while it was read, must not make the whole look unfinished.
    title.report.progress.bytes_done = before + title.manifest.title.bytes;
    if let Err(error) = result {
        return title.damaged("data_is_as_ingested", &path, format!("cannot be read: {error}"));
    }
    let same = hasher.finalize().to_hex().as_str() == title.manifest.title.blake3;
    for sum in &mut sums {
        sum.end();
    }
    let wrong_crcs = crcs.as_mut().and_then(CrcCheck::end);
    if !same {
        let place = place(&sums, wrong_crcs);
        title.damaged(
            "data_is_as_ingested",
            &path,
            format!("is not what was ingested: its BLAKE3 differs{place}"),
        );
    }
    for sum in sums.iter().filter(|sum| same && sum.wrong > 0) {
        let what = format!(
            "{} with a wrong sum, the first is packet {}",
            Count(sum.wrong, "packet"),
            sum.first_wrong
        );
        title.damaged("sums_are_of_the_data", sum.meta.path(), what);
    }
    grains.iter_mut().for_each(GrainCheck::end);
    for grains in grains.iter().filter(|grains| same && grains.wrong > 0) {
        let what =
            format!("{} grains have a wrong sum, the first is grain {}", grains.wrong, grains.first_wrong);
        title.damaged("range_sums_are_of_the_data", grains.path(), what);
    }
    if let (true, Some((wrong, first)), Some(crcs)) = (same, wrong_crcs, &crcs) {
        title.damaged("crcs_are_of_the_data", crcs.path(), wrong_crc(wrong, first));
    }
    if sync.wrong > 0 {
        let what =
            format!("{} TS packets do not begin with 0x47, the first is number {}", sync.wrong, sync.first);
        let remedy = "decoders will show errors there; add a better copy of the film if it matters";
        title.report.warning("data_is_a_transport_stream", &path, what, remedy);
    }
}

/// Returns where the data is wrong, according to sums and CRCs. The CRCs detect all that the sums
/// detect, and more.
fn place(sums: &[SumCheck<'_>], wrong_crcs: Option<(u64, u32)>) -> String {
    let by_sum = sums.iter().find(|sum| sum.wrong > 0).map(|sum| {
        let byte = u64::from(sum.first_wrong) * sum.packet_bytes as u64;
        (sum.wrong, "sum", byte)
    });
    let by_crc =
        wrong_crcs.map(|(wrong, first)| (wrong, "CRC", u64::from(first) * DEFAULT_PACKET_BYTES as u64));
    let more = by_crc.filter(|crc| by_sum.is_none_or(|sum| sum.0 < crc.0)).or(by_sum);
    more.map_or(String::new(), |(wrong, what, byte)| {
        format!("; {} with a wrong {what}, the first at byte {byte}", Count(wrong, "packet"))
    })
}

/// Reports that `wrong` packets have a CRC other than the stored one.
pub(super) fn wrong_crc(wrong: u64, first: u32) -> String {
    format!("{} with a wrong CRC, the first is packet {first}", Count(wrong, "packet"))
}

fn index_and_meta_are_as_ingested(title: &mut TitleCheck<'_, '_>) {
    let files = title.manifest.files_on(title.position);
    // Units are looked at by stripes, all members together.
    let is_unit = |name: &str| matches!(name, DATA_FILE | DATA_UNITS_FILE | PARITY_UNITS_FILE);
    // The quick check has already read the subtitles.
    let other = |name: &str| !is_unit(name) && !name.starts_with(SUBTITLES_PREFIX);
    for file in files.into_iter().filter(|file| other(&file.name)) {
        if !title.has(&file.name) {
            continue;
        }
        let path = title.dir.join(&file.name);
        let what = match File::open(&path).and_then(|file| hash(&file)) {
            Err(error) => format!("cannot be read: {error}"),
            Ok(hasher) if hasher.finalize().to_hex().as_str() != file.blake3 => {
                "its BLAKE3 differs".to_owned()
            }
            Ok(_) => continue,
        };
        title.damaged("index_and_meta_are_as_ingested", &path, what);
    }
}

/// Reads a file from start to end in pieces of [`CHECK_READ_BYTES`], the last one shorter.
fn each_piece(mut file: File, mut with: impl FnMut(&[u8])) -> io::Result<()> {
    let mut buffer = vec![0; CHECK_READ_BYTES];
    loop {
        let mut filled = 0;
        while filled < buffer.len() {
            match file.read(&mut buffer[filled..]) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        if filled == 0 {
            return Ok(());
        }
        with(&buffer[..filled]);
    }
}

/// Sums the packets of one size as the data goes by and holds them against the metadata.
pub(super) struct SumCheck<'a> {
    pub(super) meta: &'a MetaFile,
    packet_bytes: usize,
    filled: usize,
    sum: u16,
    packet: u32,
    /// Records of the block that `packet` is in; empty if they could not be read, which is another promise's finding.
    records: Vec<PacketMeta>,
    pub(super) wrong: u64,
    pub(super) first_wrong: u32,
}

impl<'a> SumCheck<'a> {
    pub(super) fn new(meta: &'a MetaFile) -> Self {
        let packet_bytes = usize::from(meta.packet_bytes());
        Self {
            meta,
            packet_bytes,
            filled: 0,
            sum: 0,
            packet: 0,
            records: Vec::new(),
            wrong: 0,
            first_wrong: 0,
        }
    }

    pub(super) fn take(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(self.packet_bytes - self.filled));
            // Pieces are whole TS packets but for a file of a wrong length, whose hash differs anyway.
            self.sum = checksum::add(self.sum, checksum::sum16(now));
            self.filled += now.len();
            if self.filled == self.packet_bytes {
                self.close_packet();
            }
            bytes = later;
        }
    }

    fn close_packet(&mut self) {
        let place = (self.packet % RECORDS_PER_BLOCK) as usize;
        if place == 0 {
            let left = self.meta.packets().saturating_sub(self.packet).min(RECORDS_PER_BLOCK);
            self.records = vec![PacketMeta::default(); left as usize];
            if self.meta.read(self.packet, &mut self.records).is_err() {
                self.records.clear();
            }
        }
        if self.records.get(place).is_some_and(|meta| meta.sum() != self.sum) {
            if self.wrong == 0 {
                self.first_wrong = self.packet;
            }
            self.wrong += 1;
        }
        self.packet = self.packet.saturating_add(1);
        (self.filled, self.sum) = (0, 0);
    }

    pub(super) fn end(&mut self) {
        if self.filled > 0 {
            self.close_packet();
        }
    }
}

/// Counts TS packets without the sync byte (ISO/IEC 13818-1 section 2.4.3.3).
#[derive(Default)]
pub(super) struct SyncCheck {
    packets: u64,
    pub(super) wrong: u64,
    pub(super) first: u64,
}

impl SyncCheck {
    pub(super) fn take(&mut self, bytes: &[u8]) {
        for packet in bytes.chunks(TS_PACKET_BYTES) {
            if packet[0] != 0x47 {
                if self.wrong == 0 {
                    self.first = self.packets;
                }
                self.wrong += 1;
            }
            self.packets += 1;
        }
    }
}
