//! A title for tests: real files with noise in them, and no need of a store. Included by the tests in `tests/` too.
#![allow(dead_code, unreachable_pub, missing_docs)] // each test uses a part of it

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use millrace_core::ids::TitleId;
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::pool::Lease;
use millrace_core::time::MediaTicks;
use millrace_core::wire::checksum::sum16;
use millrace_core::wire::rtp::{RtpHeader, Timeline, sequence_of};

use super::{DeriveError, MetaError, PlainSource, SourceKind, TitleSource};

const BLOCK: usize = 4096;
const RECORDS: usize = 510;

/// The contents of the files, and their location.
pub struct SampleFiles {
    pub dir: tempfile::TempDir,
    pub id: TitleId,
    pub layout: WireLayout,
    pub timeline: Timeline,
    pub data: Vec<u8>,
    pub metas: Vec<PacketMeta>,
}

/// The title, open.
pub struct SampleSource {
    id: TitleId,
    layout: WireLayout,
    timeline: Timeline,
    bytes: usize,
    ticks_per_packet: u64,
    data: File,
    data_path: PathBuf,
    meta: File,
}

/// Noise, the same for the same seed.
pub fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(bytes + 8);
    while out.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
    }
    out.truncate(bytes);
    out
}

impl SampleFiles {
    /// Media ticks from one packet to the next: with packets of 1316 bytes, 10.5 Mb/s.
    pub const TICKS_PER_PACKET: u64 = 90;

    /// `bytes` of noise in packets of `packet_bytes`, in the temporary directory.
    pub fn new(packet_bytes: usize, bytes: usize) -> Self {
        Self::new_in(&std::env::temp_dir(), packet_bytes, bytes)
    }

    /// Creates `extents` full extents and part of another, in packets of the default size.
    pub fn of_extents(extents: usize) -> Self {
        Self::new(1316, extents * 196 * 1316 - 1316 * 50 - 188)
    }

    pub fn new_in(parent: &Path, packet_bytes: usize, bytes: usize) -> Self {
        let dir = tempfile::tempdir_in(parent).unwrap();
        let layout = WireLayout::new(packet_bytes).unwrap();
        let data = noise(bytes as u64 + packet_bytes as u64, bytes);
        let meta = |(packet, payload): (usize, &[u8])| {
            let flags = if packet % 100 == 0 { PacketMeta::RANDOM_ACCESS } else { 0 };
            PacketMeta::new(sum16(payload), flags, MediaTicks(packet as u64 * Self::TICKS_PER_PACKET))
        };
        let metas: Vec<_> = data.chunks(packet_bytes).enumerate().map(meta).collect();
        std::fs::write(dir.path().join("data.ts"), &data).unwrap();
        std::fs::write(dir.path().join("meta"), encode(&metas)).unwrap();
        let mut id = [7; 16];
        id[..8].copy_from_slice(&(bytes as u64).to_le_bytes());
        let timeline = Timeline { ssrc: 0xfeed_beef, timestamp_base: 0xffff_f000 };
        Self { dir, id: TitleId(id), layout, timeline, data, metas }
    }

    pub fn data_path(&self) -> PathBuf {
        self.dir.path().join("data.ts")
    }

    pub fn meta_path(&self) -> PathBuf {
        self.dir.path().join("meta")
    }

    pub fn packets(&self) -> u32 {
        self.metas.len() as u32
    }

    pub fn extents(&self) -> u32 {
        self.packets().div_ceil(self.layout.packets_per_extent())
    }

    pub fn open(&self) -> SampleSource {
        SampleSource {
            id: self.id,
            layout: self.layout,
            timeline: self.timeline,
            bytes: self.data.len(),
            ticks_per_packet: Self::TICKS_PER_PACKET,
            data: File::open(self.data_path()).unwrap(),
            data_path: self.data_path(),
            meta: File::open(self.meta_path()).unwrap(),
        }
    }

    /// The payload bytes of an extent.
    pub fn extent_data(&self, extent: u32) -> &[u8] {
        let bytes = self.layout.packets_per_extent() as usize * self.layout.packet_bytes();
        self.data.chunks(bytes).nth(extent as usize).unwrap()
    }

    /// Changes one byte of a file.
    pub fn damage(&self, path: &Path, offset: u64) {
        let file = File::options().read(true).write(true).open(path).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset).unwrap();
        file.write_all_at(&[byte[0] ^ 0x40], offset).unwrap();
        file.sync_all().unwrap();
    }

    /// Whether a lease holds, byte for byte, what extent `extent` should: headers, payloads, records.
    pub fn check(&self, lease: &Lease, extent: u32) {
        assert_eq!(self.check_rest(lease, extent), [0; 0], "nothing is missing");
    }

    /// The same but for packets that are marked as missing: which these are.
    pub fn check_rest(&self, lease: &Lease, extent: u32) -> Vec<u32> {
        let mut missing = Vec::new();
        let (content, per_extent) = (lease.content(), self.layout.packets_per_extent());
        let first = extent * per_extent;
        let payloads: Vec<_> = self.extent_data(extent).chunks(self.layout.packet_bytes()).collect();
        assert_eq!((content.number, content.first_packet), (extent, first));
        assert_eq!(content.packets as usize, payloads.len());
        for (place, payload) in payloads.iter().enumerate() {
            let packet = first + place as u32;
            let meta = self.metas[packet as usize];
            let (header, sent) = RtpHeader::parse(lease.wire(place as u32, 1)).unwrap();
            if lease.meta(place as u32).is_missing() {
                assert!(sent.iter().all(|byte| *byte == 0), "packet {packet} is marked as missing");
                missing.push(packet);
            } else {
                assert_eq!(lease.meta(place as u32), meta, "record of packet {packet}");
                assert!(sent == *payload, "payload of packet {packet}");
            }
            let (sequence, timestamp) = (sequence_of(packet), meta.time().0 as u32);
            assert_eq!((header.sequence, header.ssrc), (sequence, self.timeline.ssrc));
            assert_eq!(header.timestamp, self.timeline.timestamp_base.wrapping_add(timestamp));
            assert_eq!((header.payload_type, header.marker), (33, false));
        }
        missing
    }
}

impl SampleSource {
    /// Another identity, for the same files.
    pub fn rename(&mut self, id: TitleId) {
        self.id = id;
    }
}

pub fn encode(metas: &[PacketMeta]) -> Vec<u8> {
    let mut file = vec![0; BLOCK];
    for (number, records) in metas.chunks(RECORDS).enumerate() {
        let mut block: Vec<u8> = records.iter().flat_map(|meta| meta.to_bytes()).collect();
        block.resize(BLOCK - 16, 0);
        block.extend_from_slice(&(number as u32).to_le_bytes());
        block.extend_from_slice(&checksum(&block).to_le_bytes());
        block.extend_from_slice(&[0; 8]);
        file.extend(block);
    }
    file
}

/// Any checksum will do here, as long as it sees every byte.
fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

impl TitleSource for SampleSource {
    fn id(&self) -> TitleId {
        self.id
    }
    fn layout(&self) -> WireLayout {
        self.layout
    }
    fn timeline(&self) -> Timeline {
        self.timeline
    }
    fn packets(&self) -> u32 {
        self.bytes.div_ceil(self.layout.packet_bytes()) as u32
    }
    fn packet_bytes_at(&self, packet: u32) -> usize {
        self.bytes
            .saturating_sub(packet as usize * self.layout.packet_bytes())
            .min(self.layout.packet_bytes())
    }
    fn media_time(&self, packet: u32) -> MediaTicks {
        MediaTicks(u64::from(packet) * self.ticks_per_packet)
    }
    fn kind(self: Box<Self>) -> SourceKind {
        SourceKind::Plain(self)
    }
    fn records(
        &self,
        blocks: &[u8],
        _sums: &[u8],
        first: u32,
        out: &mut [PacketMeta],
    ) -> Result<(), DeriveError> {
        let first_block = first / RECORDS as u32;
        for (block, bytes) in (first_block..).zip(blocks.chunks_exact(BLOCK)) {
            let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            let (number, found) = (word(BLOCK - 16), word(BLOCK - 12));
            let computed = checksum(&bytes[..BLOCK - 12]);
            if computed != found {
                return Err(MetaError::Checksum { block, found, computed }.into());
            }
            if number != block {
                return Err(MetaError::WrongBlock { block, found: number }.into());
            }
        }
        let records = blocks.chunks_exact(BLOCK).flat_map(|block| block[..BLOCK - 16].chunks_exact(8));
        let skip = (first - first_block * RECORDS as u32) as usize;
        if records.clone().count() < skip + out.len() {
            let count = out.len() as u32;
            return Err(MetaError::OutOfRange { first, count, from: 0, to: 0 }.into());
        }
        for (meta, record) in out.iter_mut().zip(records.skip(skip)) {
            *meta = PacketMeta::from_bytes(record.try_into().unwrap());
        }
        Ok(())
    }
}

impl PlainSource for SampleSource {
    fn data(&self) -> &File {
        &self.data
    }
    fn data_path(&self) -> &Path {
        &self.data_path
    }
    fn meta(&self) -> &File {
        &self.meta
    }
}
