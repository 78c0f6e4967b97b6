//! A library of made-up titles, in memory or as if on disks that answer on command.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use millrace_core::ids::{TitleId, TitleRef};
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::scale::Scale;
use millrace_core::time::MediaTicks;
use millrace_core::units::BitRate;
use millrace_core::wire::rtp::Timeline;
use millrace_server::service::{
    AccessPoint, AccessPoints, CachedParity, FecMatrix, Library, NeededPart, OpenError, Presentation,
    Rendition, TimeBase, TitleEntry, Transformed,
};

/// Packets a second of every made-up title; one packet lasts 225 ticks.
pub const PACKETS_PER_S: u64 = 400;
const PACKET_TICKS: u64 = 90_000 / PACKETS_PER_S;
/// Rows of 4 data units and 2 parity units of 20 packets.
pub const MATRIX: FecMatrix = FecMatrix { data_units: 4, parity_units: 2, unit_packets: 20 };
const TORN: &str = "2 members lost (b, c), 1 may be";
/// An access point every two seconds.
pub const GOP_PACKETS: u32 = 800;

/// The available renditions of `ladder` and `turning`, and how long a packet of each lasts in
/// ticks.
pub const RENDITIONS: [(&str, u64); 3] = [("1080p", PACKET_TICKS), ("720p", 300), ("480p", 750)];

/// By how much the access points of the renditions of `foreign` are later: those of the second fit, those of the third do not.
pub const FOREIGN_TICKS: [u64; 3] = [0, 180, 181];

/// Returns packets a second of the title with `packets` packets: no made-up title has as many as a
/// rendition of another one.
pub fn packets_per_s(packets: u32) -> u64 {
    match packets {
        20_100 | 300_000 => 90_000 / RENDITIONS[1].1,
        8_040 | 120_000 => 90_000 / RENDITIONS[2].1,
        _ => PACKETS_PER_S,
    }
}

/// A title whose packet `n` has media time `ticks * n`.
pub struct Even {
    pub packets: u32,
    pub ticks: u64,
    /// The file of times cannot be read.
    pub times_broken: bool,
    /// It should be opened again.
    pub is_stale: bool,
}

/// The same title with access points `ticks` ticks later.
struct Late {
    of: Even,
    ticks: u64,
}

impl Late {
    fn later(&self, AccessPoint { packet, time }: AccessPoint) -> AccessPoint {
        AccessPoint { packet, time: MediaTicks(time.0 + self.ticks) }
    }
}

impl AccessPoints for Late {
    fn access_at_or_before(&self, time: MediaTicks) -> AccessPoint {
        self.later(self.of.access_at_or_before(MediaTicks(time.0.saturating_sub(self.ticks))))
    }
    fn access_at_or_after(&self, time: MediaTicks) -> Option<AccessPoint> {
        let point = self.of.access_at_or_after(MediaTicks(time.0.saturating_sub(self.ticks)))?;
        Some(self.later(point))
    }
    fn packet_at(&self, time: MediaTicks) -> u32 {
        self.of.packet_at(time)
    }
    fn time_of(&self, packet: u32) -> Option<MediaTicks> {
        self.of.time_of(packet).map(|time| MediaTicks(time.0 + self.ticks))
    }
}

/// The same title in packets `factor` times as large.
struct Larger {
    times: Arc<dyn AccessPoints>,
    packets: u32,
    factor: u32,
}

impl AccessPoints for Larger {
    fn access_at_or_before(&self, time: MediaTicks) -> AccessPoint {
        let packet = self.times.access_at_or_before(time).packet / self.factor;
        AccessPoint { packet, time: MediaTicks(u64::from(packet * self.factor) * 225) }
    }
    fn access_at_or_after(&self, _: MediaTicks) -> Option<AccessPoint> {
        None
    }
    fn packet_at(&self, time: MediaTicks) -> u32 {
        self.times.packet_at(time).div_ceil(self.factor).min(self.packets)
    }
    fn time_of(&self, packet: u32) -> Option<MediaTicks> {
        self.times.time_of(packet * self.factor)
    }
}

impl AccessPoints for Even {
    fn is_stale(&self) -> bool {
        self.is_stale
    }
    fn access_at_or_before(&self, time: MediaTicks) -> AccessPoint {
        let gop = u64::from(GOP_PACKETS) * PACKET_TICKS / self.ticks;
        let packet = (time.0 / self.ticks).min(u64::from(self.packets) - 1) / gop * gop;
        AccessPoint { packet: packet as u32, time: MediaTicks(packet * self.ticks) }
    }
    fn access_at_or_after(&self, time: MediaTicks) -> Option<AccessPoint> {
        let gop = u64::from(GOP_PACKETS) * PACKET_TICKS;
        let packet = (time.0.next_multiple_of(gop) / self.ticks) as u32;
        let point = AccessPoint { packet, time: MediaTicks(time.0.next_multiple_of(gop)) };
        (packet < self.packets).then_some(point)
    }
    fn packet_at(&self, time: MediaTicks) -> u32 {
        (time.0.div_ceil(self.ticks) as u32).min(self.packets)
    }
    fn time_of(&self, packet: u32) -> Option<MediaTicks> {
        (!self.times_broken).then(|| MediaTicks(u64::from(packet) * self.ticks))
    }
}

/// A live title whose window a test sets; its packets and access points are those of [`Even`].
#[derive(Clone, Default)]
pub struct HeldWindow {
    /// The oldest place and the newest one, in seconds.
    pub held_s: Arc<Mutex<std::ops::Range<u64>>>,
}

impl HeldWindow {
    fn ticks(&self) -> std::ops::Range<u64> {
        let held = self.held_s.lock().unwrap().clone();
        held.start * 90_000..held.end * 90_000
    }
}

impl AccessPoints for HeldWindow {
    fn window(&self) -> Option<std::ops::Range<MediaTicks>> {
        let held = self.ticks();
        Some(MediaTicks(held.start)..MediaTicks(held.end))
    }
    fn is_held(&self, packet: u32) -> bool {
        u64::from(packet) * PACKET_TICKS >= self.ticks().start
    }
    fn join(&self) -> AccessPoint {
        self.access_at_or_before(MediaTicks(self.ticks().end))
    }
    fn access_at_or_before(&self, time: MediaTicks) -> AccessPoint {
        let (held, gop) = (self.ticks(), u64::from(GOP_PACKETS) * PACKET_TICKS);
        let time = time.0.min(held.end) / gop * gop;
        let time = time.max(held.start.next_multiple_of(gop));
        AccessPoint { packet: (time / PACKET_TICKS) as u32, time: MediaTicks(time) }
    }
    fn access_at_or_after(&self, time: MediaTicks) -> Option<AccessPoint> {
        let time = time.0.next_multiple_of(u64::from(GOP_PACKETS) * PACKET_TICKS);
        let point = AccessPoint { packet: (time / PACKET_TICKS) as u32, time: MediaTicks(time) };
        (time <= self.ticks().end).then_some(point)
    }
    fn packet_at(&self, _: MediaTicks) -> u32 {
        u32::MAX
    }
    fn time_of(&self, packet: u32) -> Option<MediaTicks> {
        Some(MediaTicks(u64::from(packet) * PACKET_TICKS))
    }
    fn time_of_stamp(&self, stamp: i64) -> Option<i64> {
        Some(stamp - 5000 * 90_000)
    }
}

/// 28 November 2026, 10:00:00 UTC, when `recorded` and `live/held` began.
pub const BEGAN_UNIX_MS: u64 = 1_795_860_000_000;

pub fn entry(name: &str, seconds: u64) -> TitleEntry {
    let packets = (seconds * PACKETS_PER_S) as u32;
    TitleEntry {
        id: TitleId([1; 16]),
        name: name.to_owned(),
        title: name.to_owned(),
        is_made: false,
        scale: Scale::NORMAL,
        duration: MediaTicks(seconds * 90_000),
        presentation: Presentation::default(),
        mean_rate: BitRate(4_000_000),
        peak_rate: BitRate(6_000_000),
        packets,
        timeline: Timeline { ssrc: 0x1234_abcd, timestamp_base: 1_000_000 },
        layout: WireLayout::new(1316).unwrap(),
        fec: None,
        access: Arc::new(Even { packets, times_broken: false, is_stale: false, ticks: PACKET_TICKS }),
        transform: None,
        began_unix_ms: None,
    }
}

/// Makes a title of `seconds` seconds whose time stamps begin at a given second from a given second
/// of film on, and whose last picture is shown 0.7 s after its last packet.
fn with_stamps(seconds: u64, bases: &[(u64, i64)]) -> TitleEntry {
    let base = |&(time, first): &(u64, i64)| TimeBase {
        time: MediaTicks(time * 90_000),
        first_pts: (first * 90_000).rem_euclid(1 << 33).cast_unsigned(),
    };
    let end = MediaTicks(seconds * 90_000 + 63_000);
    TitleEntry {
        presentation: Presentation::new(Some(end), bases.iter().map(base).collect()),
        ..entry("film", seconds)
    }
}

/// Returns the speeds of the titles made from a title, in hundredths. The one for 3200 cannot be
/// opened.
fn speeds_of(name: &str) -> &'static [i16] {
    match name {
        "film" | "long" | "safe" | "turning" | "ladder" | "recorded" => &[-400, -100, 50, 400, 1_600, 3_200],
        "other" => &[400],
        _ => &[],
    }
}

/// What shows `title` at this speed.
fn made_of(title: &TitleEntry, scale: Scale) -> TitleEntry {
    let packets = (u64::from(title.packets) * 100 / u64::from(scale.speed_hundredths())) as u32;
    TitleEntry {
        name: format!("{}@{}", title.name, scale.hundredths()),
        is_made: true,
        scale,
        duration: MediaTicks(u64::from(packets) * 225),
        packets,
        timeline: Timeline { ssrc: 0x0400_0000, timestamp_base: 77 },
        fec: None,
        access: Arc::new(Even { packets, times_broken: false, is_stale: false, ticks: PACKET_TICKS }),
        ..title.clone()
    }
}

/// Returns a rendition of `title`: its place among the renditions determines its rate.
fn rendition_of(title: &TitleEntry, place: usize) -> TitleEntry {
    let (label, ticks) = RENDITIONS[place];
    let packets = (title.duration.0 / ticks) as u32;
    let rate = |rate: BitRate| BitRate(rate.0 * PACKET_TICKS / ticks);
    let even = Even { packets, times_broken: false, is_stale: false, ticks };
    let access: Arc<dyn AccessPoints> = match title.name.as_str() {
        "foreign" => Arc::new(Late { of: even, ticks: FOREIGN_TICKS[place] }),
        _ => Arc::new(even),
    };
    TitleEntry {
        name: format!("{}@{label}", title.name),
        is_made: true,
        mean_rate: rate(title.mean_rate),
        peak_rate: rate(title.peak_rate),
        packets,
        timeline: Timeline { ssrc: 0x0720_0000 + place as u32, timestamp_base: 99 },
        fec: None,
        access,
        ..title.clone()
    }
}

/// Titles with stamps of their own (`recording`, `wrapping`, `feature`, `joined`), `film` (60 s), `other` (20 s), `ladder` (67 s, at three bit rates, as are `turning` and `foreign`, whose access points are not quite equal), `long` (1000 s: sequence numbers wrap), `turning` (timestamps too), `broken` (cannot be opened), `crowded`
/// (the cache is full), `blind` (packet times cannot be read), `safe` (60 s, with parity), `frail` (the same, its second
/// parity track cannot be opened), `torn` (too many members are lost), `silent` (its disks do not answer), `worn` (its times should be
/// opened again), `live/news` and `live/sport` (without an end), `live/held` (with a window), `recorded` (60 s, whose time of day is known).
#[derive(Default)]
pub struct OpenTitles {
    pub open: HashMap<TitleRef, u32>,
    /// Too many members are lost for any title to be played.
    pub members_lost: bool,
    /// What else cannot be opened.
    pub broken: Option<String>,
    /// Live titles that are there no more.
    pub ended: Vec<String>,
    /// Everything has to be opened before it is used.
    pub on_disk: bool,
    /// The openings that have been requested and not answered yet, the oldest first.
    pub begun: VecDeque<NeededPart>,
    /// The results of openings: done, or why it failed.
    opened: HashMap<NeededPart, Result<(), OpenError>>,
    answers: VecDeque<(NeededPart, Result<(), OpenError>)>,
    /// Which titles were wished for at which speeds, in hundredths.
    pub wishes: Vec<(String, i16)>,
    /// The window of `live/held`.
    pub held: HeldWindow,
    next: u32,
}

#[derive(Clone, Default)]
pub struct SharedTitles(pub Arc<Mutex<OpenTitles>>);

impl Library for SharedTitles {
    fn has(&mut self, need: &NeededPart) -> bool {
        let titles = self.0.lock().unwrap();
        !titles.on_disk || titles.opened.get(need) == Some(&Ok(()))
    }
    fn begin(&mut self, need: &NeededPart) {
        let mut titles = self.0.lock().unwrap();
        assert!(titles.on_disk && !titles.begun.contains(need), "begun twice: {need:?}");
        titles.begun.push_back(need.clone());
    }
    fn poll_answer(&mut self) -> Option<(NeededPart, Result<(), OpenError>)> {
        self.0.lock().unwrap().answers.pop_front()
    }
    fn derived(&mut self, entry: &TitleEntry) -> Vec<(Scale, String)> {
        let scales = speeds_of(&entry.name).iter().filter_map(|speed| Scale::from_hundredths(*speed));
        scales.map(|scale| (scale, format!("{}@{}", entry.name, scale.hundredths()))).collect()
    }
    fn renditions(&mut self, entry: &TitleEntry) -> Vec<Rendition> {
        if !["ladder", "turning", "foreign"].contains(&entry.name.as_str()) {
            return Vec::new();
        }
        let all = RENDITIONS.iter().enumerate().map(|(place, (label, _))| {
            let made = rendition_of(entry, place);
            let title = if place == 0 { entry.name.clone() } else { made.name };
            Rendition {
                name: label.parse().unwrap(),
                title,
                mean_rate: made.mean_rate,
                peak_rate: made.peak_rate,
            }
        });
        all.collect()
    }
    fn wish(&mut self, entry: &TitleEntry, scale: Scale) {
        self.0.lock().unwrap().wishes.push((entry.name.clone(), scale.hundredths()));
    }
    fn find(&mut self, name: &str) -> Option<TitleEntry> {
        if let Some((title, label)) = name.split_once('@')
            && let Some(place) = RENDITIONS.iter().position(|(name, _)| *name == label)
        {
            return Some(rendition_of(&self.find(title)?, place));
        }
        if let Some((title, speed)) = name.split_once('@') {
            let scale = Scale::from_hundredths(speed.parse().ok()?)?;
            return Some(made_of(&self.find(title)?, scale));
        }
        match name {
            "film" => Some(entry(name, 60)),
            "other" | "broken" | "crowded" | "torn" | "silent" | "remote" => {
                Some(TitleEntry { timeline: Timeline { ssrc: 7, timestamp_base: 0 }, ..entry(name, 20) })
            }
            "live/news" | "live/sport" => {
                let id = TitleId([name.len() as u8; 16]);
                let is_over = self.0.lock().unwrap().ended.iter().any(|ended| ended == name);
                (!is_over).then(|| TitleEntry { id, packets: u32::MAX, ..entry(name, 60) })
            }
            "live/held" => {
                let access = Arc::new(self.0.lock().unwrap().held.clone());
                let (packets, duration) = (u32::MAX, MediaTicks(PacketMeta::MAX_TICKS));
                let began_unix_ms = Some(BEGAN_UNIX_MS);
                Some(TitleEntry { packets, duration, access, began_unix_ms, ..entry(name, 60) })
            }
            "recorded" => Some(TitleEntry { began_unix_ms: Some(BEGAN_UNIX_MS), ..entry(name, 60) }),
            "ladder" | "foreign" => Some(entry(name, 67)),
            "long" => Some(entry(name, 1000)),
            "turning" => {
                // Its sequence numbers and its timestamps wrap at 164 s.
                let timestamp_base = 0u32.wrapping_sub(164 * 90_000);
                Some(TitleEntry { timeline: Timeline { ssrc: 9, timestamp_base }, ..entry(name, 1000) })
            }
            "recording" => Some(with_stamps(60, &[(0, 5000)])),
            "wrapping" => Some(with_stamps(60, &[(0, -26)])),
            "feature" => Some(with_stamps(7200, &[(0, 1800)])),
            "joined" => Some(with_stamps(60, &[(0, 5000), (30, 100)])),
            "safe" | "frail" => Some(TitleEntry { fec: Some(MATRIX), ..entry(name, 60) }),
            "blind" => {
                let mut entry = entry(name, 60);
                let packets = entry.packets;
                entry.access =
                    Arc::new(Even { packets, times_broken: true, is_stale: false, ticks: PACKET_TICKS });
                Some(entry)
            }
            "worn" => {
                let mut entry = entry(name, 60);
                let packets = entry.packets;
                entry.access =
                    Arc::new(Even { packets, times_broken: false, is_stale: true, ticks: PACKET_TICKS });
                Some(entry)
            }
            _ => None,
        }
    }
    fn sized(&mut self, entry: &TitleEntry, packet_bytes: usize) -> Option<TitleEntry> {
        let factor = u32::try_from(packet_bytes / 1316).ok().filter(|factor| *factor > 0)?;
        let packets = entry.packets.div_ceil(factor);
        let access = Arc::new(Larger { times: Arc::clone(&entry.access), packets, factor });
        let timeline = Timeline { ssrc: entry.timeline.ssrc + factor - 1, ..entry.timeline };
        Some(TitleEntry {
            packets,
            timeline,
            layout: WireLayout::new(packet_bytes)?,
            fec: None,
            access,
            ..entry.clone()
        })
    }
    fn transformed(&mut self, entry: &TitleEntry, name: &str) -> Option<TitleEntry> {
        let number = ["german", "french"].iter().position(|known| *known == name)? as u8;
        let timeline = Timeline { ssrc: 0xdddd_0000 + u32::from(number), ..entry.timeline };
        let transform = Some(Transformed { name: name.into(), number });
        Some(TitleEntry { timeline, fec: None, transform, ..entry.clone() })
    }
    fn open(&mut self, entry: &TitleEntry) -> Result<TitleRef, OpenError> {
        if entry.transform.as_ref().is_some_and(|transform| transform.number == 1) {
            return Err(OpenError::Unfit("transformation french: the title has no audio in fra".into()));
        }
        if entry.name == "film@-100" && entry.transform.is_some() {
            return Err(OpenError::Unfit("time stamps of PID 256 lie across TS packets".into()));
        }
        match entry.name.as_str() {
            name if ["broken", "film@3200"].contains(&name)
                || self.0.lock().unwrap().broken.as_deref() == Some(name) =>
            {
                return Err(OpenError::Broken("meta-1316.mrp: checksum mismatch".into()));
            }
            "crowded" => return Err(OpenError::Full),
            "torn" => return Err(OpenError::MembersLost(TORN.into())),
            "remote" => return Err(OpenError::Coming("it is being fetched, 40 % of it are here".into())),
            "silent" => return Err(OpenError::TimedOut("/disk: disk not responding".into())),
            _ => {}
        }
        self.open_part(&NeededPart::media(entry))
    }
    fn lost(&mut self, entry: &TitleEntry) -> Option<String> {
        (entry.name == "torn" || self.0.lock().unwrap().members_lost).then(|| TORN.to_owned())
    }
    fn open_track(&mut self, entry: &TitleEntry, track: u8) -> Result<CachedParity, OpenError> {
        if entry.name == "frail" && track == 2 {
            return Err(OpenError::Broken("parity.mrp: checksum mismatch".into()));
        }
        let each = MATRIX.column_packets(track);
        let layout = WireLayout::fec().with_row(u32::from(MATRIX.unit_packets) * each);
        let title = self.open_part(&NeededPart::parity(entry, track))?;
        Ok(CachedParity { title, packets: MATRIX.columns(entry.packets) * each, layout })
    }
    fn close(&mut self, title: TitleRef) {
        let mut open_titles = self.0.lock().unwrap();
        let count = open_titles.open.get_mut(&title).expect("closed once for each open");
        *count -= 1;
        if *count == 0 {
            open_titles.open.remove(&title);
        }
    }
}

impl SharedTitles {
    fn open_part(&self, need: &NeededPart) -> Result<TitleRef, OpenError> {
        let mut open_titles = self.0.lock().unwrap();
        if open_titles.on_disk {
            let opened = open_titles.opened.get(need).cloned();
            opened.unwrap_or_else(|| panic!("{need:?} is used and has not been asked for"))?;
        }
        if open_titles.members_lost {
            return Err(OpenError::MembersLost(TORN.into()));
        }
        open_titles.next += 1;
        let title = TitleRef(open_titles.next);
        *open_titles.open.entry(title).or_default() += 1;
        Ok(title)
    }

    /// The oldest opening under way is done; returns what that was.
    pub fn answer(&self, result: Result<(), OpenError>) -> NeededPart {
        let mut titles = self.0.lock().unwrap();
        let need = titles.begun.pop_front().expect("something is being opened");
        titles.opened.insert(need.clone(), result.clone());
        titles.answers.push_back((need.clone(), result));
        need
    }

    /// Whether an answer is due.
    pub fn is_opening(&self) -> bool {
        !self.0.lock().unwrap().begun.is_empty()
    }

    /// This is not open any more.
    pub fn forget(&self, need: &NeededPart) {
        self.0.lock().unwrap().opened.remove(need);
    }

    pub fn open_count(&self) -> usize {
        self.0.lock().unwrap().open.len()
    }
}
