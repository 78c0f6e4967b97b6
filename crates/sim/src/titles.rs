//! Generated titles in real volumes: one of a single disk, one of four disks that may lose one.
//!
//! The content of the disks does not depend on the seed of a simulation, so all simulations of a
//! process share it.

use std::path::{Path, PathBuf};

use millrace_core::limits::{DEFAULT_PACKET_BYTES, TS_PACKET_BYTES};
use millrace_core::packet::PacketMeta;
use millrace_core::random::SplitMix;
use millrace_core::time::MediaTicks;
use millrace_core::units::BitRate;
use millrace_store::format::superblock::Geometry;
use millrace_store::index::{ClockPiece, PidRole, PidUse, RandomAccessPoint, TitleIndex};
use millrace_store::volume::{ElementaryStream, FinishTitle, Naming, SourceIdentity, TitleWriter, Volume};

use crate::users::StoredUsers;

/// Ticks that a TS packet lasts: 95 media packets a second, 1 Mb/s, so that seconds of media cost
/// little time to simulate.
const TICKS_PER_TS_PACKET: u64 = 135;
/// Packets from one access point to the next: a second.
const ACCESS_PACKETS: u32 = 100;
const SIZE: u16 = DEFAULT_PACKET_BYTES as u16;
const TS_PER_PACKET: usize = DEFAULT_PACKET_BYTES / TS_PACKET_BYTES;
/// The seed of everything that is written.
const TITLES_SEED: u64 = 20_261_129;
/// The number of the title and the place of the packet are the last bytes of each TS packet, where
/// tables have stuffing.
const NUMBER_AT: usize = TS_PACKET_BYTES - 8;
const PLACE_AT: usize = TS_PACKET_BYTES - 4;
const PMT_PID: u16 = 0x1000;
/// Bits a second of each title, as admission counts them.
pub const MEAN_RATE: u64 = 1_003_000;
/// Program association: one program, its map on `PMT_PID`.
const PAT: [u8; 12] = [0, 0xb0, 13, 0, 1, 0xc1, 0, 0, 0, 1, 0xf0, 0];
/// Program map: H.264 on PID 256, which has the clock too.
const PMT: [u8; 17] = [2, 0xb0, 18, 0, 1, 0xc1, 0, 0, 0xe1, 0, 0xf0, 0, 27, 0xe1, 0, 0xf0, 0];
/// Media packets of each title: extents that are full and not, 4 to 25 s.
const LENGTHS: [u32; 4] = [400, 784, 1_301, 2_350];
/// Place of the longest of them.
pub const LONGEST_TITLE: usize = 3;

/// A TS packet with one table.
fn write_table(packet: &mut [u8], pid: u16, count: u8, section: &[u8]) {
    let [high, low] = pid.to_be_bytes();
    packet.fill(0xff);
    packet[..5].copy_from_slice(&[0x47, 0x40 | high, low, 0x10 | count, 0]);
    let end = 5 + section.len();
    packet[5..end].copy_from_slice(section);
    packet[end..end + 4].copy_from_slice(&mpeg_crc(section).to_be_bytes());
}

/// CRC-32 of ISO/IEC 13818-1 annex A.
fn mpeg_crc(bytes: &[u8]) -> u32 {
    bytes.iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte) << 24, |crc, _| {
            crc << 1 ^ if crc & 1 << 31 != 0 { 0x04c1_1db7 } else { 0 }
        })
    })
}

/// One title as it was written.
pub struct StoredTitle {
    /// Its name in RTSP URLs.
    pub name: String,
    /// Its transport stream.
    pub bytes: Vec<u8>,
}

impl StoredTitle {
    fn new(number: u64, packets: u32) -> Self {
        let mut random = SplitMix::numbered(TITLES_SEED, number);
        // The last packet is shorter than the others.
        let ts_packets = packets as usize * TS_PER_PACKET - number as usize % TS_PER_PACKET;
        let mut bytes = vec![0; ts_packets * TS_PACKET_BYTES];
        for word in bytes.chunks_mut(8) {
            word.copy_from_slice(&random.next().to_le_bytes()[..word.len()]);
        }
        for (place, packet) in bytes.chunks_mut(TS_PACKET_BYTES).enumerate() {
            let count = place as u8 & 0xf;
            match place % (ACCESS_PACKETS as usize * TS_PER_PACKET) {
                0 => write_table(packet, 0, count, &PAT),
                1 => write_table(packet, PMT_PID, count, &PMT),
                _ => packet[..4].copy_from_slice(&[0x47, 1, 0, 0x10 | count]),
            }
            packet[NUMBER_AT..PLACE_AT].copy_from_slice(&(number as u32).to_be_bytes());
            packet[PLACE_AT..].copy_from_slice(&(place as u32).to_be_bytes());
        }
        Self { name: format!("title-{number}"), bytes }
    }

    /// Its media packets.
    pub fn packets(&self) -> u32 {
        self.bytes.len().div_ceil(DEFAULT_PACKET_BYTES) as u32
    }

    /// Media time of a packet.
    pub fn time(packet: u32) -> MediaTicks {
        MediaTicks(u64::from(packet) * TS_PER_PACKET as u64 * TICKS_PER_TS_PACKET)
    }

    /// The first packet sent to a viewer that asks for this time.
    pub fn access_at_or_before(&self, time: MediaTicks) -> u32 {
        let packet = (time.0 / Self::time(1).0).min(u64::from(self.packets()) - 1) as u32;
        packet / ACCESS_PACKETS * ACCESS_PACKETS
    }

    /// How long it is.
    pub fn duration(&self) -> MediaTicks {
        MediaTicks((self.bytes.len() / TS_PACKET_BYTES) as u64 * TICKS_PER_TS_PACKET)
    }

    /// Which packet this is, by its own content; `None` unless every byte is that of the title.
    pub fn packet_of(&self, payload: &[u8]) -> Option<u32> {
        let place = u32::from_be_bytes(payload.get(PLACE_AT..TS_PACKET_BYTES)?.try_into().ok()?);
        let packet = place as usize / TS_PER_PACKET;
        let start = packet.checked_mul(DEFAULT_PACKET_BYTES)?;
        let end = (start + DEFAULT_PACKET_BYTES).min(self.bytes.len());
        (self.bytes.get(start..end)? == payload).then_some(packet as u32)
    }

    /// Whether it has this TS packet, whatever its continuity counter.
    pub fn has_ts_packet(&self, packet: &[u8]) -> bool {
        let place = packet.get(PLACE_AT..TS_PACKET_BYTES).and_then(|place| place.try_into().ok());
        let start = place
            .map_or(usize::MAX, |place| u32::from_be_bytes(place) as usize)
            .saturating_mul(TS_PACKET_BYTES);
        let stored = self.bytes.get(start..start.saturating_add(TS_PACKET_BYTES));
        stored.is_some_and(|stored| {
            stored.len() == packet.len()
                && stored.iter().zip(packet).enumerate().all(|(at, (a, b))| a == b || at == 3 && (a ^ b) < 16)
        })
    }

    /// The access point nearest to this time, or the end, as a byte.
    pub fn cut_near(&self, seconds: f64) -> u64 {
        let ts_packets = (seconds * 90_000.0 / TICKS_PER_TS_PACKET as f64).round() as u64;
        let step = u64::from(ACCESS_PACKETS) * TS_PER_PACKET as u64;
        let cut = (ts_packets + step / 2) / step * step * TS_PACKET_BYTES as u64;
        let (end, at) = (self.bytes.len() as u64, ts_packets * TS_PACKET_BYTES as u64);
        if end.abs_diff(at) < cut.abs_diff(at) { end } else { cut.min(end) }
    }

    fn index(&self) -> TitleIndex {
        let points = (0..self.packets()).step_by(ACCESS_PACKETS as usize).map(|packet| {
            let byte = u64::from(packet) * DEFAULT_PACKET_BYTES as u64;
            RandomAccessPoint { packet, time: Self::time(packet), byte }
        });
        let pieces = vec![ClockPiece { byte: 0, time: MediaTicks(0) }];
        let pid = |pid, role, stream_type| PidUse { pid, role, stream_type, pcr: pid == 256, ts_packets: 9 };
        let pids =
            vec![pid(0, PidRole::Pat, 0), pid(256, PidRole::Stream, 27), pid(PMT_PID, PidRole::Pmt, 0)];
        TitleIndex::new(points.collect(), pieces, pids).expect("points and pieces ascend")
    }

    fn add_to(&self, volume: &Volume) {
        let written = "a volume of its own takes a title";
        let mut writer = TitleWriter::begin(volume, &[SIZE]).expect(written);
        writer.write_data(&self.bytes).expect(written);
        for packet in 0..self.packets() {
            let is_access = packet.is_multiple_of(ACCESS_PACKETS);
            let flags = if is_access { PacketMeta::RANDOM_ACCESS } else { 0 };
            writer.push_meta(SIZE, PacketMeta::new(0, flags, Self::time(packet))).expect(written);
        }
        let stream = ElementaryStream {
            pid: 256,
            stream_type: 27,
            codec: "H.264".to_owned(),
            language: None,
            role: None,
        };
        let finish = FinishTitle {
            name: self.name.clone(),
            source: SourceIdentity {
                path: PathBuf::from(format!("/films/{}", self.name)),
                bytes: self.bytes.len() as u64,
                modified_unix_ns: 1,
            },
            duration: self.duration(),
            mean_rate: BitRate(MEAN_RATE),
            peak_rate: BitRate(MEAN_RATE),
            constant_rate: true,
            streams: vec![stream],
            index: self.index(),
            notes: Vec::new(),
            derived: None,
            rendition: None,
            naming: Naming::default(),
        };
        writer.commit(finish).expect(written);
    }
}

/// A volume as it was written.
pub struct StoredVolume {
    /// Its members' directories.
    pub dirs: Vec<PathBuf>,
    /// Members that may be lost.
    pub tolerance: usize,
    /// Packets of a row of stripes, which FEC protects together.
    pub row_packets: usize,
    /// Its titles.
    pub titles: Vec<StoredTitle>,
}

impl StoredVolume {
    fn new(dir: &Path, members: usize, tolerance: usize) -> Self {
        let dirs: Vec<_> = (0..members).map(|member| dir.join(format!("{members}-{member}"))).collect();
        let geometry = Geometry::choose(members, tolerance, 0).expect("a usual volume");
        let volume = Volume::create(&dirs, geometry).expect("the directory was made for it");
        let titles: Vec<_> =
            (1..).zip(LENGTHS).map(|(number, packets)| StoredTitle::new(number, packets)).collect();
        titles.iter().for_each(|title| title.add_to(&volume));
        let row_packets = usize::from(geometry.k) * geometry.unit_packets as usize;
        Self { dirs, tolerance, row_packets, titles }
    }
}

/// Everything durable.
pub struct Stores {
    _dir: tempfile::TempDir,
    /// Volumes of one member and of several.
    pub volumes: Vec<StoredVolume>,
    /// Users.
    pub users: StoredUsers,
}

impl Stores {
    /// Writes the volumes, in memory where that can be. They go with the value, which is why no
    /// static holds them: memory of `/dev/shm` outlives the process.
    pub fn write() -> Self {
        let memory = Path::new("/dev/shm");
        let dir = tempfile::tempdir_in(memory).or_else(|_| tempfile::tempdir());
        let dir = dir.expect("there is room for a few megabytes of titles");
        millrace_store::sim::enter(TITLES_SEED);
        let volumes = vec![StoredVolume::new(dir.path(), 1, 0), StoredVolume::new(dir.path(), 4, 1)];
        let users = StoredUsers::write(dir.path());
        Self { _dir: dir, volumes, users }
    }
}
