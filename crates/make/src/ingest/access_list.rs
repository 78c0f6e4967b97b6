//! From access points found in the data to places where sending can start: the packet with the tables before.
//!
//! In a gap without pictures, audio alone is an access point. Otherwise a viewer could not seek in
//! audio that is longer than the video, or in a film of stills. Such a point is valid only if a
//! decoder can start at the next picture, so it is held until that picture arrives.

use std::collections::VecDeque;

use crate::limits::ingest::{MAX_AUDIO_POINTS, MAX_TABLES, MIN_GAP_AWAY_TICKS};
pub(crate) use crate::limits::ingest::{MIN_GAP_AUDIO_TICKS, MIN_GAP_TICKS};
use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_core::packet::PacketMeta;
use millrace_core::time::MediaTicks;

use millrace_store::index::RandomAccessPoint;

use millrace_media::ts_packet::{SYSTEM_HZ, SYSTEM_TICKS_PER_MEDIA_TICK};

/// Tables further before an access point than this would delay the picture more than they help.
const TABLES_BEFORE_TICKS: u64 = SYSTEM_HZ;

fn packet_of(byte: u64) -> u64 {
    byte / DEFAULT_PACKET_BYTES as u64
}

/// The kind of a candidate, which is resolved when its packet has a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CandidateKind {
    /// A decoder can start with all streams.
    Full,
    /// A decoder can start with audio, if it can also start at the next picture.
    Audio,
    /// A picture that depends on earlier ones.
    Dependent,
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    byte: u64,
    tables: Option<u64>,
    kind: CandidateKind,
    is_needed: bool,
}

/// Collects the title's access points.
#[derive(Clone, Debug)]
pub(crate) struct AccessList {
    /// Packets with tables and their times once known, ascending.
    tables: VecDeque<(u64, Option<u64>)>,
    /// How many of `tables` have their time.
    timed: usize,
    candidates: VecDeque<Candidate>,
    points: Vec<RandomAccessPoint>,
    /// Audio-only points since the last picture, with their times.
    audio: Vec<(RandomAccessPoint, u64)>,
    /// Whether `audio` or the candidates contain an audio-only point.
    has_audio: bool,
    min_gap_ticks: u64,
    last_ticks: Option<u64>,
    /// More will come.
    is_open: bool,
}

impl AccessList {
    /// Nothing found yet.
    pub(crate) fn new() -> Self {
        Self {
            tables: VecDeque::new(),
            timed: 0,
            candidates: VecDeque::new(),
            points: Vec::new(),
            audio: Vec::new(),
            has_audio: false,
            min_gap_ticks: MIN_GAP_TICKS,
            last_ticks: None,
            is_open: false,
        }
    }

    /// Least distance between access points kept from now on.
    pub(crate) fn set_min_gap(&mut self, ticks: u64) {
        self.min_gap_ticks = ticks;
    }

    /// A PAT begins at this byte.
    pub(crate) fn tables_at(&mut self, byte: u64) {
        let packet = packet_of(byte);
        if self.tables.back().is_some_and(|&(last, _)| last == packet) {
            return;
        }
        self.tables.push_back((packet, None));
        if self.tables.len() > MAX_TABLES {
            self.drop_oldest();
        }
    }

    /// A decoder can start at the TS packet at `byte`. `tables` is the start of the last PAT
    /// followed by a PMT. A needed point is kept even if the previous one is near. Calls of all
    /// three kinds come in ascending order.
    pub(crate) fn add(&mut self, byte: u64, tables: Option<u64>, is_needed: bool) {
        self.candidates.push_back(Candidate { byte, tables, kind: CandidateKind::Full, is_needed });
        self.has_audio = false;
    }

    /// A decoder can start with audio at `byte`, while no pictures come.
    pub(crate) fn add_audio(&mut self, byte: u64, tables: Option<u64>) {
        let kind = CandidateKind::Audio;
        self.candidates.push_back(Candidate { byte, tables, kind, is_needed: false });
        self.has_audio = true;
    }

    /// The picture at `byte` depends on earlier ones.
    pub(crate) fn add_dependent(&mut self, byte: u64) {
        if std::mem::take(&mut self.has_audio) {
            let kind = CandidateKind::Dependent;
            self.candidates.push_back(Candidate { byte, tables: None, kind, is_needed: false });
        }
    }

    /// Default-size packet `number` leaves at `ticks`. Called for every packet in order.
    pub(crate) fn packet(&mut self, number: u64, ticks: u64) {
        if let Some((_, time)) = self.tables.get_mut(self.timed).filter(|(packet, _)| *packet == number) {
            *time = Some(ticks);
            self.timed += 1;
        }
        while let Some(candidate) = self.candidates.front().filter(|c| packet_of(c.byte) == number).copied() {
            self.candidates.pop_front();
            self.resolve(candidate, number, ticks);
        }
        while self.tables.front().is_some_and(|&(_, t)| t.is_some_and(|t| t + TABLES_BEFORE_TICKS < ticks)) {
            self.drop_oldest();
        }
    }

    /// More will come: points with audio alone that the next picture may take back do not count.
    pub(crate) fn leave_open(&mut self) {
        self.is_open = true;
    }

    /// The access points found, ascending.
    pub(crate) fn into_points(mut self) -> Vec<RandomAccessPoint> {
        if !self.is_open {
            self.confirm_audio(u64::MAX);
        }
        self.points
    }

    fn resolve(&mut self, candidate: Candidate, own: u64, own_ticks: u64) {
        match candidate.kind {
            CandidateKind::Full => self.confirm_audio(own_ticks.saturating_sub(self.min_gap_ticks)),
            CandidateKind::Audio => {}
            CandidateKind::Dependent => return self.audio.clear(),
        }
        let is_audio = candidate.kind == CandidateKind::Audio;
        let gap = if is_audio { MIN_GAP_AWAY_TICKS } else { self.min_gap_ticks };
        let last = self.audio.last().map(|&(_, ticks)| ticks).or(self.last_ticks);
        let is_near = last.is_some_and(|last| own_ticks - last < gap) || self.audio.len() >= MAX_AUDIO_POINTS;
        if is_near && !candidate.is_needed {
            return;
        }
        let tables = candidate.tables.map(packet_of);
        let tables = tables.and_then(|packet| {
            let at = self.tables.binary_search_by_key(&packet, |&(packet, _)| packet).ok()?;
            let ticks = self.tables[at].1?;
            (own_ticks - ticks <= TABLES_BEFORE_TICKS).then_some((packet, ticks))
        });
        // Points that share their tables cannot be distinguished, so a needed point does not use
        // the tables of the previous one.
        let is_taken = |&(packet, _): &(u64, u64)| {
            candidate.is_needed && self.points.last().is_some_and(|last| u64::from(last.packet) >= packet)
        };
        let (packet, ticks) = tables.filter(|found| !is_taken(found)).unwrap_or((own, own_ticks));
        let packet = u32::try_from(packet).unwrap_or(u32::MAX);
        // If two access points share their tables, a decoder that starts there finds the first one.
        let before = self.audio.last().map(|(point, _)| point).or(self.points.last());
        if before.is_some_and(|last| last.packet >= packet) {
            return;
        }
        // The time in the packet's own record, even where it is clamped.
        let time = PacketMeta::new(0, 0, MediaTicks(ticks / SYSTEM_TICKS_PER_MEDIA_TICK)).time();
        let point = RandomAccessPoint { packet, time, byte: candidate.byte };
        if is_audio {
            self.audio.push((point, own_ticks));
        } else {
            self.last_ticks = Some(own_ticks);
            self.points.push(point);
        }
    }

    /// Accepts audio-only points up to this time; later ones are too near to the next picture.
    fn confirm_audio(&mut self, upto: u64) {
        for (point, ticks) in self.audio.drain(..).filter(|&(_, ticks)| ticks <= upto) {
            self.last_ticks = Some(ticks);
            self.points.push(point);
        }
    }

    fn drop_oldest(&mut self) {
        if self.tables.pop_front().is_some() {
            self.timed = self.timed.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: u64 = DEFAULT_PACKET_BYTES as u64;

    /// Ten packets a second.
    fn feed(list: &mut AccessList, packets: std::ops::Range<u64>) {
        for n in packets {
            list.packet(n, n * SYSTEM_HZ / 10);
        }
    }

    #[test]
    fn sending_starts_at_the_tables_if_they_are_near() {
        let mut list = AccessList::new();
        list.tables_at(0);
        list.add(2 * PACKET + 188, Some(0), false);
        list.add(20 * PACKET, Some(0), false); // 2 s behind its tables
        list.tables_at(25 * PACKET + 376);
        list.add(25 * PACKET + 752, Some(25 * PACKET + 376), false);
        list.add(30 * PACKET, None, false);
        feed(&mut list, 0..40);
        let point = |packet: u32, byte| RandomAccessPoint {
            packet,
            time: MediaTicks(9000 * u64::from(packet)),
            byte,
        };
        assert_eq!(
            list.into_points(),
            [
                point(0, 2 * PACKET + 188),
                point(20, 20 * PACKET),
                point(25, 25 * PACKET + 752),
                point(30, 30 * PACKET)
            ]
        );
    }

    fn times(list: AccessList) -> Vec<u64> {
        list.into_points().iter().map(|point| point.time.0 / 9000).collect()
    }

    #[test]
    fn audio_while_pictures_are_away_is_listed_up_to_a_picture_to_start_with() {
        let mut list = AccessList::new();
        list.add(0, None, false);
        (30..100).for_each(|n| list.add_audio(n * PACKET, None));
        list.add(100 * PACKET, None, false);
        feed(&mut list, 0..110);
        assert_eq!(times(list), [0, 30, 50, 70, 90, 100]);
    }

    #[test]
    fn list_of_a_title_that_goes_on_has_no_point_that_the_next_picture_takes_back() {
        let mut list = AccessList::new();
        list.add(0, None, false);
        (30..60).for_each(|n| list.add_audio(n * PACKET, None));
        feed(&mut list, 0..60);
        let mut until_now = list.clone();
        until_now.leave_open();
        assert_eq!(times(until_now), [0]);
        assert_eq!(times(list), [0, 30, 50]);
    }

    #[test]
    fn audio_before_a_dependent_picture_is_not_listed() {
        let mut list = AccessList::new();
        list.add(0, None, false);
        (30..60).for_each(|n| list.add_audio(n * PACKET, None));
        list.add_dependent(60 * PACKET);
        (90..120).for_each(|n| list.add_audio(n * PACKET, None));
        feed(&mut list, 0..130);
        assert_eq!(times(list), [0, 90, 110]);
    }

    #[test]
    fn points_behind_the_same_tables_are_one() {
        let mut list = AccessList::new();
        list.tables_at(0);
        list.add(PACKET, Some(0), false);
        list.add(4 * PACKET, Some(0), false);
        feed(&mut list, 0..10);
        assert_eq!(list.into_points().len(), 1);
    }

    #[test]
    fn dense_points_are_thinned_and_memory_stays_bounded() {
        let mut list = AccessList::new();
        list.set_min_gap(MIN_GAP_AUDIO_TICKS);
        for n in 0..20_000 {
            list.tables_at(n * PACKET);
            list.add(n * PACKET + 188, None, false);
        }
        assert!(list.tables.len() <= MAX_TABLES);
        feed(&mut list, 0..20_000);
        assert!(list.tables.len() <= 12);
        assert_eq!(list.into_points().len(), 20_000 / 5);
    }
}
