//! Titles for the store's tests: transport packets of pseudo-random bytes with a steady clock, from a seed.

use std::path::{Path, PathBuf};

use millrace_core::limits::{DEFAULT_PACKET_BYTES, TS_PACKET_BYTES};
use millrace_core::packet::PacketMeta;
use millrace_core::time::MediaTicks;
use millrace_core::units::BitRate;
use millrace_store::StoreError;
use millrace_store::index::{ClockPiece, PidRole, PidUse, RandomAccessPoint, TitleIndex};
use millrace_store::volume::{
    ElementaryStream, FinishTitle, Naming, SourceIdentity, TitleInfo, TitleWriter, Volume,
};

/// Default packet size as the store's API has it.
pub const SIZE: u16 = DEFAULT_PACKET_BYTES as u16;

/// A title: its bytes, and one access point every `group` default-size packets.
pub struct Film {
    pub bytes: Vec<u8>,
    pub group: u32,
}

impl Film {
    /// `ts_packets` packets from `seed`.
    pub fn new(ts_packets: usize, seed: u64) -> Self {
        let mut state = seed | 1;
        let mut bytes = vec![0; ts_packets * TS_PACKET_BYTES];
        for word in bytes.chunks_mut(8) {
            // xorshift64: any bytes will do, but they must be the same in every run.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
        }
        for packet in bytes.chunks_mut(TS_PACKET_BYTES) {
            packet[0] = 0x47;
        }
        Self { bytes, group: 100 }
    }

    pub fn packets(&self, size: u16) -> u32 {
        self.bytes.len().div_ceil(usize::from(size)) as u32
    }

    /// Media time of a byte: 8 ticks for each TS packet, so 13.6 Mb/s.
    pub fn time(byte: u64) -> MediaTicks {
        MediaTicks(byte * 8 / TS_PACKET_BYTES as u64)
    }

    pub fn duration(&self) -> MediaTicks {
        Self::time(self.bytes.len() as u64)
    }

    /// Metadata of a packet of size `size`, without its sum.
    pub fn meta(&self, size: u16, packet: u32) -> PacketMeta {
        let start = u64::from(packet) * u64::from(size);
        let end = (start + u64::from(size)).min(self.bytes.len() as u64);
        let group = u64::from(self.group) * u64::from(SIZE);
        let access = start.next_multiple_of(group) < end;
        PacketMeta::new(0, if access { PacketMeta::RANDOM_ACCESS } else { 0 }, Self::time(start))
    }

    pub fn index(&self) -> TitleIndex {
        let points = (0..self.packets(SIZE)).step_by(self.group as usize).map(|packet| {
            let byte = u64::from(packet) * u64::from(SIZE);
            RandomAccessPoint { packet, time: Self::time(byte), byte }
        });
        let pieces = vec![ClockPiece { byte: 0, time: MediaTicks(0) }];
        let pid = |pid, role, stream_type| PidUse { pid, role, stream_type, pcr: pid == 256, ts_packets: 9 };
        let pids =
            vec![pid(0, PidRole::Pat, 0), pid(256, PidRole::Stream, 27), pid(0x1fff, PidRole::Null, 0)];
        TitleIndex::new(points.collect(), pieces, pids).unwrap()
    }

    pub fn finish(&self, name: &str) -> FinishTitle {
        FinishTitle {
            name: name.to_owned(),
            source: source(name),
            duration: self.duration(),
            mean_rate: BitRate(13_600_000),
            peak_rate: BitRate(14_000_000),
            constant_rate: true,
            streams: vec![ElementaryStream {
                pid: 256,
                stream_type: 27,
                codec: "H.264".to_owned(),
                language: Some("nor".to_owned()),
                role: None,
            }],
            index: self.index(),
            notes: vec!["made for a test".to_owned()],
            derived: None,
            rendition: None,
            naming: Naming::default(),
        }
    }

    /// Writes data and metadata; the caller commits.
    pub fn write(&self, volume: &Volume, sizes: &[u16]) -> Result<TitleWriter, StoreError> {
        self.write_into(TitleWriter::begin(volume, sizes)?, sizes)
    }

    /// Writes data and metadata into a title that has begun.
    pub fn write_into(&self, mut writer: TitleWriter, sizes: &[u16]) -> Result<TitleWriter, StoreError> {
        // Odd portions, so that no portion ends where a packet or a write ends.
        for portion in self.bytes.chunks(37 * TS_PACKET_BYTES) {
            writer.write_data(portion)?;
        }
        for &size in sizes {
            for packet in 0..self.packets(size) {
                writer.push_meta(size, self.meta(size, packet))?;
            }
        }
        Ok(writer)
    }

    pub fn add(&self, volume: &Volume, name: &str) -> TitleInfo {
        self.add_sizes(volume, name, &[SIZE])
    }

    pub fn add_sizes(&self, volume: &Volume, name: &str, sizes: &[u16]) -> TitleInfo {
        self.write(volume, sizes).unwrap().commit(self.finish(name)).unwrap()
    }
}

/// Returns the stated source of a title called `name`.
pub fn source(name: &str) -> SourceIdentity {
    SourceIdentity {
        path: PathBuf::from(format!("/films/{name}")),
        bytes: 1234,
        modified_unix_ns: u64::MAX - 5,
    }
}

/// Everything below a directory, as relative paths in order.
pub fn tree(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_path_buf()];
    while let Some(next) = dirs.pop() {
        for entry in std::fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            found.push(path.strip_prefix(dir).unwrap().to_str().unwrap().to_owned());
            if path.is_dir() {
                dirs.push(path);
            }
        }
    }
    found.sort();
    found
}
