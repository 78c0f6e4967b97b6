//! Caches the information found about titles: cuts, tables, properties of their streams.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use millrace_core::ids::TitleId;
use millrace_core::limits::TS_PACKET_BYTES;
use millrace_store::index::{PidRole, TitleIndex};
use millrace_store::volume::TitleInfo;

use super::codecs::{self, Described};
use super::first_pictures::{can_show_captions, starts_alone};
use super::master::{Rates, rates};
use super::playlist::target_s;
use super::segments::{Segments, segments, settled};
use super::tables::{self, Which};
use super::text::Text;
use crate::elementary::Demux;
use crate::limits::{
    ACCESS_LOOK_BYTES, ACCESS_LOOKS, DESCRIBE_BYTES, MAX_LOOKED_AT, MAX_TABLES_KEPT, TABLES_LOOK_BYTES,
};
use crate::site::{Site, SiteError};

/// The titles that were looked at last.
#[derive(Debug, Default)]
pub(crate) struct LookedAt {
    /// The last one in front.
    titles: Mutex<VecDeque<Arc<TitleAnalysis>>>,
}

/// Information found about a title.
#[derive(Debug)]
pub(crate) struct TitleAnalysis {
    id: TitleId,
    name: String,
    bytes: u64,
    /// How long it was.
    title_bytes: u64,
    /// It is a recording that is being made.
    is_growing: bool,
    /// How many segments stay as they are.
    pub(crate) settled: usize,
    map_pids: Vec<u16>,
    /// The byte at which each layout begins.
    layouts: Vec<u64>,
    /// Packet where sending for the first access point starts.
    first_access: u64,
    pub(crate) segments: Segments,
    pub(crate) target_s: u64,
    /// The media playlist.
    pub(crate) playlist: OnceLock<Text>,
    described: OnceLock<Described>,
    /// PAT and PMT at the title's beginning.
    first_tables: OnceLock<Arc<[u8]>>,
    /// Those for each segment; most are alike.
    tables: Box<[OnceLock<Arc<[u8]>>]>,
    kinds: Mutex<Vec<Arc<[u8]>>>,
}

impl LookedAt {
    /// Returns the information about a title that is available without reading.
    /// Of a recording that has grown meanwhile nothing is known.
    pub(crate) fn known(&self, title: &TitleInfo) -> Option<Arc<TitleAnalysis>> {
        let mut titles = self.titles.lock().unwrap_or_else(PoisonError::into_inner);
        let at = titles.iter().position(|look| look.id == title.id)?;
        if (titles[at].title_bytes, titles[at].is_growing) != (title.bytes, title.is_growing()) {
            titles.remove(at);
            return None;
        }
        let look = titles.remove(at)?;
        titles.push_front(Arc::clone(&look));
        Some(look)
    }

    /// The same; if nothing is known, the title's index is read.
    pub(crate) fn look(&self, site: &dyn Site, title: &TitleInfo) -> Result<Arc<TitleAnalysis>, SiteError> {
        if let Some(look) = self.known(title) {
            return Ok(look);
        }
        let look = Arc::new(TitleAnalysis::new(title, &*site.index(&title.name)?));
        let mut titles = self.titles.lock().unwrap_or_else(PoisonError::into_inner);
        titles.truncate(MAX_LOOKED_AT - 1);
        titles.push_front(Arc::clone(&look));
        Ok(look)
    }
}

impl TitleAnalysis {
    fn new(title: &TitleInfo, index: &TitleIndex) -> Self {
        let segments = segments(index);
        let settled = if title.is_growing() { settled(index, &segments) } else { segments.list.len() };
        let map_pids =
            index.pids().iter().filter(|pid| pid.role == PidRole::Pmt).map(|pid| pid.pid).collect();
        let layouts = index.layouts().map(|layout| layout[0].byte).collect();
        let first_access = index.access_points().first().map_or(0, |point| point.packet);
        Self {
            id: title.id,
            name: title.name.clone(),
            bytes: index.data_bytes(),
            title_bytes: title.bytes,
            is_growing: title.is_growing(),
            settled,
            map_pids,
            layouts,
            first_access: u64::from(first_access) * millrace_core::limits::DEFAULT_PACKET_BYTES as u64,
            target_s: target_s(&segments.list[..settled]),
            playlist: OnceLock::new(),
            described: OnceLock::new(),
            first_tables: OnceLock::new(),
            tables: segments.list.iter().map(|_| OnceLock::new()).collect(),
            segments,
            kinds: Mutex::default(),
        }
    }

    /// The title's streams, if they have been examined.
    pub(crate) fn known_streams(&self) -> Option<&Described> {
        self.described.get()
    }

    /// The title's streams. The first call reads the beginning of the title and a little of some
    /// segments.
    pub(crate) fn streams(&self, site: &dyn Site, title: &TitleInfo) -> Result<&Described, SiteError> {
        if let Some(known) = self.described.get() {
            return Ok(known);
        }
        let bytes = self.read(site, self.first_access, DESCRIBE_BYTES)?;
        let mut described = codecs::describe(&bytes, &title.streams);
        self.look_at_segments(site, title, &mut described)?;
        Ok(self.described.get_or_init(|| described))
    }

    /// The bit rates of the segments.
    pub(crate) fn rates(&self, site: &dyn Site) -> Result<Rates, SiteError> {
        let tables = self.first_tables(site)?.len() as u64;
        Ok(rates(&self.segments.list, self.target_s, tables))
    }

    /// Examines the first pictures of segments spread over the title.
    fn look_at_segments(
        &self,
        site: &dyn Site,
        title: &TitleInfo,
        described: &mut Described,
    ) -> Result<(), SiteError> {
        let videos = || title.streams.iter().filter(|stream| can_show_captions(&stream.codec));
        if videos().next().is_none() {
            return Ok(());
        }
        // The first segment is skipped: it begins with the title, where a decoder may be unable to
        // start.
        let starts: Vec<u64> = self.segments.list.iter().skip(1).map(|segment| segment.bytes.start).collect();
        let looks = starts.len().min(ACCESS_LOOKS);
        for look in 0..looks {
            // Includes the second segment and the last one.
            let at = if looks > 1 { look * (starts.len() - 1) / (looks - 1) } else { 0 };
            let bytes = self.read(site, starts[at], ACCESS_LOOK_BYTES)?;
            let mut demux = Demux::new(videos().map(|stream| stream.pid));
            demux.push(0, &bytes, |_| true);
            let found = videos().map(|stream| (demux.stream(stream.pid), &stream.codec));
            let mut found: Vec<_> = found.filter(|(stream, _)| !stream.marks.is_empty()).collect();
            // Another video stream may begin anywhere in the segment.
            found.sort_by_key(|(stream, _)| stream.marks[0].byte);
            described.are_independent &=
                found.first().is_none_or(|(stream, codec)| starts_alone(stream, codec));
            for (stream, codec) in found {
                described.captions.get_or_insert_default().look(stream, codec);
            }
        }
        Ok(())
    }

    /// PAT and PMT for the front of a segment, if they are known.
    pub(crate) fn known_tables(&self, number: usize) -> Option<Arc<[u8]>> {
        self.tables.get(number)?.get().cloned()
    }

    /// The same; reads a little of the title if they are not. Empty if the title has none.
    pub(crate) fn tables(&self, site: &dyn Site, number: usize) -> Result<Arc<[u8]>, SiteError> {
        let (Some(place), Some(segment)) = (self.tables.get(number), self.segments.list.get(number)) else {
            return Err(SiteError::NoTitle);
        };
        if let Some(known) = place.get() {
            return Ok(Arc::clone(known));
        }
        let start = segment.bytes.start;
        let before = segment.tables.max(start.saturating_sub(TABLES_LOOK_BYTES as u64));
        let mut found = None;
        // Tables from before a jump belong to another recording.
        let has_begun = self.layouts.get(segment.layout).is_none_or(|&layout| layout <= start);
        if before < start && has_begun {
            let bytes = self.read(site, before, (start - before) as usize)?;
            found = tables::find(&bytes, &self.map_pids, Which::Last);
        }
        if found.is_none() {
            let bytes = self.read(site, start, TABLES_LOOK_BYTES)?;
            found = tables::find(&bytes, &self.map_pids, Which::First);
        }
        let found = match found {
            Some(found) => self.kept(found),
            None => self.first_tables(site)?,
        };
        Ok(Arc::clone(place.get_or_init(|| found)))
    }

    fn first_tables(&self, site: &dyn Site) -> Result<Arc<[u8]>, SiteError> {
        if let Some(known) = self.first_tables.get() {
            return Ok(Arc::clone(known));
        }
        let bytes = self.read(site, 0, DESCRIBE_BYTES)?;
        let found = tables::find(&bytes, &self.map_pids, Which::First).unwrap_or_default();
        Ok(Arc::clone(self.first_tables.get_or_init(|| Arc::from(found))))
    }

    /// The same tables are kept once.
    fn kept(&self, tables: Vec<u8>) -> Arc<[u8]> {
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = kinds.iter().find(|known| known[..] == tables[..]) {
            return Arc::clone(known);
        }
        let tables: Arc<[u8]> = tables.into();
        if kinds.len() < MAX_TABLES_KEPT {
            kinds.push(Arc::clone(&tables));
        }
        tables
    }

    /// Reads at most `most` bytes from here on, whole packets.
    fn read(&self, site: &dyn Site, from: u64, most: usize) -> Result<Vec<u8>, SiteError> {
        let left = usize::try_from(self.bytes.saturating_sub(from)).unwrap_or(usize::MAX);
        let mut bytes = vec![0; left.min(most) / TS_PACKET_BYTES * TS_PACKET_BYTES];
        site.read(&self.name, from, &mut bytes)?;
        Ok(bytes)
    }
}
