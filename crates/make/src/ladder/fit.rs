//! Whether two streams are the same media to a viewer who goes from one to the other at an access point: what does not fit, and where.
//!
//! One pass over each, side by side; one access point of each is held in memory.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read};
use std::mem;

use millrace_core::limits::ladder::FIT_CLOCK_TICKS;
use millrace_core::limits::{DEFAULT_TS_PER_PACKET, TS_PACKET_BYTES};
use millrace_core::time::MediaTicks;
use millrace_media::ts_packet::{PCR_MODULUS, PesStart, SYNC, TsPacket};
use millrace_store::index::TitleIndex;
use millrace_store::volume::ElementaryStream;

use super::encoded::difference;
use crate::limits::ladder::FIT_DURATION_TICKS;

/// Something that does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Misfit {
    /// Other PIDs or stream types, in words.
    Streams {
        /// Of the title.
        title: String,
        /// Of the file.
        file: String,
    },
    /// Another number of access points.
    Points {
        /// Of the title.
        title: usize,
        /// Of the file.
        file: usize,
    },
    /// Another duration.
    Duration {
        /// Of the title.
        title: MediaTicks,
        /// Of the file.
        file: MediaTicks,
    },
    /// An access point that is sent at another time.
    Time {
        /// Of the title.
        title: MediaTicks,
        /// Of the file.
        file: MediaTicks,
    },
    /// The clock there shows something else.
    Clock {
        /// Where.
        at: MediaTicks,
        /// Difference.
        ms: i64,
    },
    /// A PES packet of this PID is begun before the access point and ended behind it.
    Boundary {
        /// Where.
        at: MediaTicks,
        /// Which.
        pid: u16,
        /// Whether this is so in the title, not in the file.
        in_title: bool,
    },
    /// A picture behind the access point is shown before it, or one before it is shown behind it.
    Open {
        /// Where.
        at: MediaTicks,
        /// Whether this is so in the title, not in the file.
        in_title: bool,
    },
    /// A PID has another continuity counter.
    Counter {
        /// Where.
        at: MediaTicks,
        /// Which.
        pid: u16,
        /// The last one of the title and of the file.
        counters: (Option<u8>, Option<u8>),
    },
    /// The first picture or sound behind the access point is another: it has another time stamp.
    Stamp {
        /// Where.
        at: MediaTicks,
        /// Which.
        pid: u16,
    },
    /// It is no row of TS packets of 188 bytes.
    Packets {
        /// Byte.
        at: u64,
        /// Whether this is so in the title, not in the file.
        in_title: bool,
    },
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |in_title: &bool| if *in_title { "the title" } else { "the file" };
        match self {
            Self::Streams { title, file } => write!(f, "the title has {title}, the file {file}"),
            Self::Points { title, file } => write!(f, "the title has {title} access points, the file {file}"),
            Self::Duration { title, file } => write!(f, "the title lasts {title}, the file {file}"),
            Self::Time { title, file } => {
                write!(f, "an access point at {title} of the title is at {file} of the file")
            }
            Self::Clock { at, ms } => write!(f, "at {at} the clocks are {ms} ms apart"),
            Self::Boundary { at, pid, in_title } => {
                write!(
                    f,
                    "at {at} a picture or sound of PID {pid} goes over the access point in {}",
                    of(in_title)
                )
            }
            Self::Open { at, in_title } => {
                write!(
                    f,
                    "at {at} the pictures of {} need others beyond the access point (open group)",
                    of(in_title)
                )
            }
            Self::Counter { at, pid, counters: (title, file) } => {
                let word =
                    |counter: &Option<u8>| counter.map_or("none".to_owned(), |counter| counter.to_string());
                write!(
                    f,
                    "at {at} PID {pid} has continuity counter {} in the title, {} in the file",
                    word(title),
                    word(file)
                )
            }
            Self::Stamp { at, pid } => write!(f, "at {at} PID {pid} goes on with another picture or sound"),
            Self::Packets { at, in_title } => write!(f, "{} has no TS packet at byte {at}", of(in_title)),
        }
    }
}

/// A stream to be compared.
pub(super) struct Side<'a> {
    pub(super) source: &'a mut dyn Read,
    pub(super) index: &'a TitleIndex,
    pub(super) streams: &'a [ElementaryStream],
    pub(super) duration: MediaTicks,
}

/// Compares `file` with `title`. Of each kind of misfit the first, and how often it is there.
///
/// # Errors
/// If one of them cannot be read.
pub(super) fn misfits(title: Side<'_>, file: Side<'_>) -> io::Result<Vec<(Misfit, u64)>> {
    let mut found = MisfitCounts::default();
    let (a, b) = (words(&title), words(&file));
    if a != b {
        found.add(Misfit::Streams { title: a, file: b });
    }
    let (a, b) = (title.index.access_points().len(), file.index.access_points().len());
    if a != b {
        found.add(Misfit::Points { title: a, file: b });
    }
    if title.duration.0.abs_diff(file.duration.0) > FIT_DURATION_TICKS {
        found.add(Misfit::Duration { title: title.duration, file: file.duration });
    }
    let (mut title, mut file) = (Walk::new(title), Walk::new(file));
    loop {
        match (title.next(true, &mut found)?, file.next(false, &mut found)?) {
            (Some(a), Some(b)) => compare(&a, &b, &mut found),
            _ => return Ok(found.0),
        }
    }
}

/// PIDs and stream types, and where the clock is.
fn words(side: &Side<'_>) -> String {
    let clock = side.index.pids().iter().find(|pid| pid.pcr).map(|pid| pid.pid);
    let streams = side.streams.iter().map(|stream| format!("{} on PID {}", stream.codec, stream.pid));
    let streams = streams.collect::<Vec<_>>().join(", ");
    format!("{streams}, the clock on PID {}", clock.map_or("none".to_owned(), |pid| pid.to_string()))
}

#[derive(Default)]
struct MisfitCounts(Vec<(Misfit, u64)>);

impl MisfitCounts {
    fn add(&mut self, misfit: Misfit) {
        let kind = |misfit: &Misfit| mem::discriminant(misfit);
        match self.0.iter_mut().find(|(known, _)| kind(known) == kind(&misfit)) {
            Some((_, times)) => *times += 1,
            None => self.0.push((misfit, 1)),
        }
    }
}

fn compare(a: &Point, b: &Point, found: &mut MisfitCounts) {
    let at = a.time;
    if a.time.0.abs_diff(b.time.0) > FIT_CLOCK_TICKS {
        found.add(Misfit::Time { title: a.time, file: b.time });
    }
    if let (Some(x), Some(y)) = (a.clock, b.clock) {
        let apart = (y + PCR_MODULUS - x) % PCR_MODULUS;
        let apart = if apart < PCR_MODULUS / 2 {
            apart.cast_signed()
        } else {
            apart.cast_signed() - PCR_MODULUS.cast_signed()
        };
        if apart.unsigned_abs() > FIT_CLOCK_TICKS * 300 {
            found.add(Misfit::Clock { at, ms: apart / 27_000 });
        }
    }
    let pids: std::collections::BTreeSet<u16> = a.counters.keys().chain(b.counters.keys()).copied().collect();
    for pid in pids {
        let counters = (a.counters.get(&pid).copied(), b.counters.get(&pid).copied());
        if counters.0 != counters.1 {
            found.add(Misfit::Counter { at, pid, counters });
        }
    }
    for (pid, first) in &a.first {
        if b.first.get(pid).is_some_and(|other| other.stamp != first.stamp) {
            found.add(Misfit::Stamp { at, pid: *pid });
        }
    }
}

/// The first data of a PID behind an access point.
#[derive(Clone, Copy, Debug)]
struct First {
    starts: bool,
    stamp: Option<u64>,
}

/// A stream at an access point.
#[derive(Debug, Default)]
struct Point {
    time: MediaTicks,
    /// The clock value there, in 27 MHz ticks.
    clock: Option<u64>,
    /// Packet and value of the clock before, if there is one.
    before: Option<(u64, u64)>,
    packet: u64,
    /// Last counter of each PID before it.
    counters: BTreeMap<u16, u8>,
    first: BTreeMap<u16, First>,
    /// Presentation stamps of pictures up to the next: the first one's, how far one is before it, and how far behind it.
    shown: Option<(u64, i64, i64)>,
}

/// A pass over a stream.
struct Walk<'a> {
    source: &'a mut dyn Read,
    /// TS packets where media packets with access points begin, and when those are sent.
    starts: std::vec::IntoIter<(u64, MediaTicks)>,
    next_start: Option<(u64, MediaTicks)>,
    media: Vec<u16>,
    pictures: Option<u16>,
    clock_pid: Option<u16>,
    packet: u64,
    counters: BTreeMap<u16, u8>,
    clock: Option<(u64, u64)>,
    point: Option<Point>,
    /// The last picture shown of the group before.
    last_shown: Option<u64>,
}

impl<'a> Walk<'a> {
    fn new(side: Side<'a>) -> Self {
        let points = side.index.access_points().iter();
        let starts: Vec<_> = points
            .map(|point| (u64::from(point.packet) * DEFAULT_TS_PER_PACKET as u64, point.time))
            .collect();
        let mut starts = starts.into_iter();
        let next_start = starts.next();
        Self {
            source: side.source,
            starts,
            next_start,
            media: side.streams.iter().map(|stream| stream.pid).collect(),
            pictures: side.streams.first().map(|stream| stream.pid),
            clock_pid: side.index.pids().iter().find(|pid| pid.pcr).map(|pid| pid.pid),
            packet: 0,
            counters: BTreeMap::new(),
            clock: None,
            point: None,
            last_shown: None,
        }
    }

    /// The next access point, with what follows up to the one behind it.
    fn next(&mut self, in_title: bool, found: &mut MisfitCounts) -> io::Result<Option<Point>> {
        let mut bytes = [0; TS_PACKET_BYTES];
        loop {
            match self.source.read_exact(&mut bytes) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    let last = self.point.take();
                    return Ok(last.map(|point| self.over(point, in_title, found)));
                }
                Err(error) => return Err(error),
            }
            if bytes[0] != SYNC {
                found.add(Misfit::Packets { at: self.packet * TS_PACKET_BYTES as u64, in_title });
                return Ok(None);
            }
            let mut done = None;
            if let Some((_, time)) = self.next_start.filter(|(start, _)| *start <= self.packet) {
                let (before, packet, counters) = (self.clock, self.packet, self.counters.clone());
                done = self.point.replace(Point { time, before, packet, counters, ..Point::default() });
                self.next_start = self.starts.next();
            }
            self.take(TsPacket(&bytes));
            self.packet += 1;
            if let Some(point) = done {
                return Ok(Some(self.over(point, in_title, found)));
            }
        }
    }

    fn take(&mut self, packet: TsPacket<'_>) {
        let pid = packet.pid();
        let value = packet.adaptation().and_then(|adaptation| adaptation.pcr());
        if let Some(value) = value.filter(|_| Some(pid) == self.clock_pid) {
            self.clock = Some((self.packet, value));
            // Before the first value the clock is unknown.
            if let Some(point) = &mut self.point
                && let Some(before) = point.before.take()
            {
                point.clock = Some(at_packet(before, (self.packet, value), point.packet));
            }
        }
        if !packet.has_payload() || pid == millrace_media::ts_packet::PID_NULL {
            return;
        }
        self.counters.insert(pid, packet.continuity());
        if !self.media.contains(&pid) {
            return;
        }
        let Some(point) = &mut self.point else { return };
        let stamp = PesStart::parse(packet.payload()).filter(|_| packet.starts_unit());
        let stamp = stamp.and_then(|start| start.presentation_stamp);
        point.first.entry(pid).or_insert(First { starts: packet.starts_unit(), stamp });
        if let Some(stamp) = stamp.filter(|_| Some(pid) == self.pictures) {
            let (first, least, most) = point.shown.unwrap_or((stamp, 0, 0));
            let behind = difference(stamp, first);
            point.shown = Some((first, least.min(behind), most.max(behind)));
        }
    }

    /// An access point with all that follows up to the next.
    fn over(&mut self, point: Point, in_title: bool, found: &mut MisfitCounts) -> Point {
        let at = point.time;
        for (pid, first) in &point.first {
            if !first.starts {
                found.add(Misfit::Boundary { at, pid: *pid, in_title });
            }
        }
        if let Some((first, least, most)) = point.shown {
            let is_before = self.last_shown.is_none_or(|last| difference(last, first) < 0);
            if least < 0 || !is_before {
                found.add(Misfit::Open { at, in_title });
            }
            self.last_shown = Some(first.wrapping_add_signed(most) % millrace_media::ts_packet::PTS_MODULUS);
        }
        point
    }
}

/// Returns the clock value at a packet between two of its values.
fn at_packet((from, start): (u64, u64), (to, value): (u64, u64), packet: u64) -> u64 {
    let ticks = (value + PCR_MODULUS - start) % PCR_MODULUS;
    let part = u128::from(ticks) * u128::from(packet - from) / u128::from((to - from).max(1));
    (start + u64::try_from(part).unwrap_or(0)) % PCR_MODULUS
}
