//! A title in stripes for tests: noise on several members in a temporary directory, with its parity, and no need of a volume.
//! Included by the tests in `tests/` too.
#![allow(dead_code, unreachable_pub, missing_docs)] // each test uses a part of it

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use millrace_core::fec::Code;
use millrace_core::ids::TitleId;
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::pool::ExtentContent;
use millrace_core::time::MediaTicks;
use millrace_core::wire::checksum::sum16;
use millrace_core::wire::rtp::{RtpHeader, Timeline, sequence_of};

use super::given::{
    Geometry, MemberFiles, ParitySource, SourceKind, StripeLayout, TitleFile, TitleSource, TrackId, encode,
    noise,
};

const PACKET: usize = 1316;

/// The contents of the files, and their location.
pub struct StripeSample {
    pub dir: tempfile::TempDir,
    pub geometry: Geometry,
    pub stripes: StripeLayout,
    pub timeline: Timeline,
    pub data: Vec<u8>,
    /// Of default-size packets.
    pub metas: Vec<PacketMeta>,
    /// Parity units: stripes, then parities.
    pub parity: Vec<Vec<u8>>,
    /// Positions that are not usable, as bits.
    pub gone: Arc<AtomicU32>,
    /// Counted up by [`RowSample::replace`].
    pub epoch: Arc<AtomicU32>,
}

/// The title or one of its tracks, open.
pub struct StripeSource {
    dir: PathBuf,
    pub stripes: StripeLayout,
    layout: WireLayout,
    timeline: Timeline,
    track: u8,
    gone: Arc<AtomicU32>,
    epoch: Arc<AtomicU32>,
}

pub fn geometry(k: u16, m: u16, members: u16, unit_packets: u32) -> Geometry {
    Geometry { k, m, unit_packets, members }
}

/// Media time of a byte: not in step with the packets, so that every packet's is its own.
fn time_of(byte: u64) -> MediaTicks {
    MediaTicks(byte * 7 / 100)
}

impl StripeSample {
    pub fn new(geometry: Geometry, bytes: usize) -> Self {
        let stripes = StripeLayout::new(&geometry, bytes as u64).unwrap();
        let data = noise(bytes as u64 + u64::from(geometry.k), bytes);
        let dir = tempfile::tempdir().unwrap();
        let metas = metas_of(&data, PACKET);
        let parity = encode_stripes(&stripes, &data);
        let timeline = Timeline { ssrc: 0xfeed_beef, timestamp_base: 0xffff_f000 };
        let (gone, epoch) = (Arc::default(), Arc::default());
        let sample = Self { dir, geometry, stripes, timeline, data, metas, parity, gone, epoch };
        (0..stripes.members()).for_each(|position| sample.write(position));
        sample
    }

    /// Creates `stripes` full stripes and part of another.
    pub fn of_stripes(geometry: Geometry, stripes: usize) -> Self {
        let stripe = usize::from(geometry.k) * geometry.unit_packets as usize * PACKET;
        Self::new(geometry, stripe * stripes + stripe / 2 + 188 * 3)
    }

    fn write(&self, position: usize) {
        let (stripes, dir) = (&self.stripes, self.member(position));
        std::fs::create_dir_all(&dir).unwrap();
        let (mut data, mut parity) = (Vec::new(), Vec::new());
        for stripe in 0..stripes.stripes() {
            for unit in stripes.units_on(position, stripe) {
                match unit.checked_sub(stripes.k()) {
                    None => data.extend_from_slice(self.unit(stripe, unit)),
                    Some(p) => parity.extend_from_slice(&self.parity[stripe as usize * stripes.m() + p]),
                }
            }
        }
        assert_eq!(data.len() as u64, stripes.data_file_bytes(position));
        assert_eq!(parity.len() as u64, stripes.parity_file_bytes(position));
        std::fs::write(self.path(position, TitleFile::Data), data).unwrap();
        std::fs::write(self.path(position, TitleFile::Parity), parity).unwrap();
        std::fs::write(self.path(position, TitleFile::StripeMeta), encode(&self.metas)).unwrap();
        std::fs::write(self.path(position, TitleFile::ParityMeta), encode(&self.parity_metas())).unwrap();
    }

    /// Media in a data unit.
    pub fn unit(&self, stripe: u32, unit: usize) -> &[u8] {
        let start = stripe as usize * self.stripes.stripe_bytes() as usize + unit * self.stripes.unit_bytes();
        let start = start.min(self.data.len());
        &self.data[start..start + self.stripes.media_in_unit(stripe, unit)]
    }

    pub fn parity_metas(&self) -> Vec<PacketMeta> {
        let per_stripe = self.stripes.m() * self.stripes.unit_packets() as usize;
        let packets = self.parity.iter().flat_map(|unit| unit.chunks(PACKET)).enumerate();
        packets
            .map(|(number, bytes)| {
                let first = number / per_stripe.max(1) * self.stripes.stripe_packets() as usize;
                PacketMeta::new(sum16(bytes), 0, self.metas[first].time())
            })
            .collect()
    }

    pub fn member(&self, position: usize) -> PathBuf {
        self.dir.path().join(format!("member-{position}"))
    }

    pub fn path(&self, position: usize, file: TitleFile) -> PathBuf {
        path_in(self.dir.path(), &self.stripes, position, file, PACKET)
    }

    /// The title in packets of this size. Its records are written if they are not there.
    pub fn open(&self, packet_bytes: usize) -> StripeSource {
        for position in 0..self.stripes.members() {
            let path = path_in(self.dir.path(), &self.stripes, position, TitleFile::Meta, packet_bytes);
            if self.member(position).is_dir() && !path.exists() {
                std::fs::write(path, encode(&metas_of(&self.data, packet_bytes))).unwrap();
            }
        }
        self.source(self.stripes.layout(WireLayout::new(packet_bytes).unwrap()), 0)
    }

    /// A parity track.
    pub fn open_track(&self, track: u8) -> StripeSource {
        let each = if track == 1 { 1 } else { self.stripes.m() as u32 - 1 };
        self.source(WireLayout::fec().with_row(self.stripes.unit_packets() * each), track)
    }

    fn source(&self, layout: WireLayout, track: u8) -> StripeSource {
        StripeSource {
            dir: self.dir.path().to_path_buf(),
            stripes: self.stripes,
            layout,
            timeline: self.timeline,
            track,
            gone: Arc::clone(&self.gone),
            epoch: Arc::clone(&self.epoch),
        }
    }

    /// Takes the members at these positions away, and no others.
    pub fn take_away(&self, positions: &[u32]) {
        let gone = positions.iter().fold(0, |gone, position| gone | 1 << position);
        self.gone.store(gone, Ordering::SeqCst);
    }

    /// A new member at a position, with everything on it.
    pub fn replace(&self, position: usize) {
        let _ = std::fs::remove_dir_all(self.member(position));
        self.write(position);
        self.gone.fetch_and(!(1 << position), Ordering::SeqCst);
        self.epoch.fetch_add(1, Ordering::SeqCst);
    }

    /// Checks that an extent holds, byte for byte, the correct headers, payloads and records, and
    /// zeros for packets marked as missing. Returns the missing packets.
    pub fn check(&self, content: &ExtentContent, bytes: &[u8]) -> Vec<u32> {
        let (layout, first) = (content.layout, content.first_packet);
        let size = layout.packet_bytes();
        let all = metas_of(&self.data, size);
        let mut missing = Vec::new();
        assert_eq!(first, content.number * layout.packets_per_extent());
        assert_eq!(content.packets, layout.packets_per_extent().min(all.len() as u32 - first));
        for place in 0..content.packets {
            let packet = first + place;
            let expected = all[packet as usize];
            let payload = self.data.chunks(size).nth(packet as usize).unwrap();
            let at = layout.meta_offset(place, content.packets);
            let meta = PacketMeta::from_bytes(bytes[at..at + 8].try_into().unwrap());
            let slot = &bytes[place as usize * layout.slot_bytes()..][..12 + payload.len()];
            let (header, sent) = RtpHeader::parse(slot).unwrap();
            assert_eq!((header.sequence, header.ssrc), (sequence_of(packet), self.timeline.ssrc));
            assert_eq!(header.timestamp, self.timeline.timestamp(expected.time()));
            if meta.is_missing() {
                assert!(sent.iter().all(|byte| *byte == 0), "packet {packet} is marked as missing");
                missing.push(packet);
            } else {
                assert_eq!(meta, expected, "record of packet {packet}");
                assert!(sent == payload, "payload of packet {packet}");
            }
        }
        let last = content.packets - 1 + first;
        let last_bytes = self.data.chunks(size).nth(last as usize).unwrap().len();
        assert_eq!(usize::from(content.last_packet_bytes), last_bytes);
        missing
    }
}

pub fn metas_of(data: &[u8], packet_bytes: usize) -> Vec<PacketMeta> {
    let meta = |(packet, payload): (usize, &[u8])| {
        let flags = if packet % 100 == 0 { PacketMeta::RANDOM_ACCESS } else { 0 };
        PacketMeta::new(sum16(payload), flags, time_of((packet * packet_bytes) as u64))
    };
    data.chunks(packet_bytes).enumerate().map(meta).collect()
}

fn encode_stripes(stripes: &StripeLayout, data: &[u8]) -> Vec<Vec<u8>> {
    let code = Code::new(stripes.k(), stripes.m()).unwrap();
    let mut parity = Vec::new();
    for stripe in data.chunks(stripes.stripe_bytes() as usize) {
        let units: Vec<&[u8]> = stripe.chunks(stripes.unit_bytes()).collect();
        let mut out = vec![vec![0; stripes.unit_bytes()]; stripes.m()];
        code.encode(&units, &mut out.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
        parity.extend(out);
    }
    parity
}

fn path_in(
    dir: &Path,
    stripes: &StripeLayout,
    position: usize,
    file: TitleFile,
    packet_bytes: usize,
) -> PathBuf {
    let name = match file {
        TitleFile::Data if stripes.members() == 1 => "data.ts".to_owned(),
        TitleFile::Data => "data.mru".to_owned(),
        TitleFile::Parity => "parity.mru".to_owned(),
        TitleFile::Meta => format!("meta-{packet_bytes}.mrp"),
        TitleFile::Sums => "sums.mrr".to_owned(),
        TitleFile::StripeMeta => "meta-1316.mrp".to_owned(),
        TitleFile::ParityMeta => "parity.mrp".to_owned(),
        TitleFile::Crcs => "crcs.mrc".to_owned(),
        TitleFile::ParityCrcs => "parity.mrc".to_owned(),
    };
    dir.join(format!("member-{position}")).join(name)
}

impl TitleSource for StripeSource {
    fn id(&self) -> TitleId {
        TitleId([self.stripes.k() as u8; 16])
    }
    fn layout(&self) -> WireLayout {
        self.layout
    }
    fn timeline(&self) -> Timeline {
        self.timeline
    }
    fn packets(&self) -> u32 {
        match self.track {
            0 => self.stripes.media_bytes().div_ceil(self.layout.packet_bytes() as u64) as u32,
            1 => self.stripes.stripes() * self.stripes.unit_packets(),
            _ => self.stripes.stripes() * self.stripes.unit_packets() * (self.stripes.m() as u32 - 1),
        }
    }
    fn packet_bytes_at(&self, packet: u32) -> usize {
        let size = self.layout.packet_bytes();
        if self.track > 0 {
            return size;
        }
        (self.stripes.media_bytes() - u64::from(packet) * size as u64).min(size as u64) as usize
    }
    fn media_time(&self, packet: u32) -> MediaTicks {
        let packets = self.packets().max(1);
        time_of(self.stripes.media_bytes() * u64::from(packet.min(packets)) / u64::from(packets))
    }
    fn track(&self) -> TrackId {
        if self.track == 0 { TrackId::Media } else { TrackId::Parity(self.track) }
    }
    fn kind(self: Box<Self>) -> SourceKind {
        match self.track {
            0 => SourceKind::Striped(self.stripes, self),
            number => SourceKind::Parity(self.stripes, number, self),
        }
    }
}

impl ParitySource for StripeSource {
    fn time_of_media(&self, packet: u32) -> MediaTicks {
        self.media_time(packet)
    }
    fn duration(&self) -> MediaTicks {
        time_of(self.stripes.media_bytes())
    }
}

impl MemberFiles for StripeSource {
    fn slot(&self, position: usize) -> u16 {
        position as u16
    }
    fn is_usable(&self, position: usize) -> bool {
        self.gone.load(Ordering::SeqCst) >> position & 1 == 0
    }
    fn epoch(&self, _: usize) -> u32 {
        self.epoch.load(Ordering::SeqCst)
    }
    fn path(&self, position: usize, file: TitleFile) -> Option<PathBuf> {
        // It is as titles of older versions are.
        let has = !matches!(file, TitleFile::Crcs | TitleFile::ParityCrcs);
        has.then(|| path_in(&self.dir, &self.stripes, position, file, self.layout.packet_bytes()))
    }
}
