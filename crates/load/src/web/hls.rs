//! Decides on the next resource that a viewer of HLS fetches, without I/O.
//!
//! Segments are fetched one after the other, each whole before it counts, as in players that hand
//! whole segments to their decoder. A live playlist is loaded again when all its segments have been
//! fetched, not sooner than its target duration after the last time, or half the target duration if
//! it had nothing new (RFC 8216 section 6.3.4).

use std::sync::Arc;

use millrace_core::time::{Instant, NS_PER_S};

use super::address::HttpUrl;
use super::playlist::{MediaPlaylist, Playlist, PlaylistFault, Resource, VariantChoice};
use crate::limits::{MAX_MASTERS, MIN_RELOAD_NS};

/// A live title begins this many target durations before its end (RFC 8216 section 6.3.3).
const LIVE_BEHIND: u64 = 3;

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Want {
    /// Load a playlist.
    Playlist(HttpUrl),
    /// Fetch a section that must come before the next segment.
    Section(Resource),
    /// Fetch a segment, if the buffer wants one.
    Segment(Resource),
    /// Nothing before this time.
    Wait(Instant),
    /// Nothing: everything has been fetched.
    End,
}

/// The way through one title.
#[derive(Clone, Debug)]
pub struct Hls {
    choice: VariantChoice,
    url: HttpUrl,
    masters: u32,
    list: Option<Arc<MediaPlaylist>>,
    /// Media before the first segment that is fetched.
    start_ns: u64,
    next_sequence: u64,
    /// The section that has been fetched last.
    section: Option<Resource>,
    reload_at: Option<Instant>,
    skipped: u64,
}

impl Hls {
    /// Begins with the playlist at `url`, `start_ns` into the title if it is on demand.
    pub fn new(url: HttpUrl, start_ns: u64, choice: VariantChoice) -> Self {
        Self {
            choice,
            url,
            masters: 0,
            list: None,
            start_ns,
            next_sequence: 0,
            section: None,
            reload_at: None,
            skipped: 0,
        }
    }

    /// What to do now.
    pub fn want(&self, now: Instant) -> Want {
        let Some(list) = &self.list else { return Want::Playlist(self.url.clone()) };
        if let Some(segment) = self.next_segment() {
            let section = segment.map.and_then(|map| list.maps.get(map));
            return match section.filter(|section| self.section.as_ref() != Some(*section)) {
                Some(section) => Want::Section(section.clone()),
                None => Want::Segment(segment.resource.clone()),
            };
        }
        match self.reload_at {
            _ if list.is_whole => Want::End,
            Some(at) if now < at => Want::Wait(at),
            _ => Want::Playlist(self.url.clone()),
        }
    }

    fn next_segment(&self) -> Option<&super::playlist::HlsSegment> {
        let list = self.list.as_ref()?;
        let place = self.next_sequence.checked_sub(list.first_sequence)?;
        list.segments.get(usize::try_from(place).ok()?)
    }

    /// Media of the segment that is wanted.
    pub fn segment_ns(&self) -> u64 {
        self.next_segment().map_or(0, |segment| segment.media_ns)
    }

    /// Whether the segment that is wanted is a transport stream that can be looked into.
    pub fn is_plain_ts(&self) -> bool {
        self.next_segment().is_some_and(|segment| segment.is_plain_ts)
    }

    /// Longest segment, once known.
    pub fn target_ns(&self) -> u64 {
        self.list.as_ref().map_or(0, |list| list.target_ns)
    }

    /// Segments that left a live playlist before they were fetched.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Which variant is played.
    pub fn choice(&self) -> VariantChoice {
        self.choice
    }

    /// The wanted playlist has come.
    ///
    /// # Errors
    /// Why it cannot be played.
    pub fn playlist_came(&mut self, now: Instant, playlist: Playlist) -> Result<(), PlaylistFault> {
        let list = match playlist {
            Playlist::Media(list) => list,
            Playlist::Master(_) if self.masters >= MAX_MASTERS || self.list.is_some() => {
                return Err(PlaylistFault::NoVariant);
            }
            Playlist::Master(variant) => {
                self.masters += 1;
                self.url = variant;
                return Ok(());
            }
        };
        let end = |list: &MediaPlaylist| list.first_sequence.saturating_add(list.segments.len() as u64);
        match &self.list {
            None => {
                if list.segments.is_empty() && list.is_whole {
                    return Err(PlaylistFault::NoSegment);
                }
                self.next_sequence = first_of(&list, self.start_ns);
            }
            // The server has begun again: go on where it is.
            Some(_) if end(&list) < self.next_sequence => self.next_sequence = first_of(&list, 0),
            Some(_) => {
                self.skipped += list.first_sequence.saturating_sub(self.next_sequence);
                self.next_sequence = self.next_sequence.max(list.first_sequence);
            }
        }
        let has_news = end(&list) > self.next_sequence;
        let pause_ns = if has_news { list.target_ns } else { list.target_ns / 2 };
        self.reload_at = Some(now.plus_ns(pause_ns.max(MIN_RELOAD_NS)));
        self.list = Some(list);
        Ok(())
    }

    /// The wanted section has come.
    pub fn section_came(&mut self, section: Resource) {
        self.section = Some(section);
    }

    /// The wanted segment has come.
    pub fn segment_came(&mut self) {
        self.next_sequence = self.next_sequence.saturating_add(1);
    }

    /// Goes on at `to_ns`; `false` if the title is live or not known yet, and then nothing has changed.
    pub fn seek(&mut self, to_ns: u64) -> bool {
        let Some(list) = self.list.as_ref().filter(|list| list.is_whole) else { return false };
        self.next_sequence = first_of(list, to_ns);
        true
    }

    /// Length of the title, if it is on demand and known.
    pub fn media_ns(&self) -> Option<u64> {
        let list = self.list.as_ref().filter(|list| list.is_whole)?;
        Some(list.segments.iter().map(|segment| segment.media_ns).sum())
    }
}

/// The segment to begin with: the one `start_ns` into a title on demand, three target durations before the end of a
/// live one.
fn first_of(list: &MediaPlaylist, start_ns: u64) -> u64 {
    let segments = &list.segments;
    let mut sum_ns = 0u64;
    let place = if list.is_whole {
        let reaches = segments.iter().position(|segment| {
            sum_ns = sum_ns.saturating_add(segment.media_ns);
            sum_ns > start_ns
        });
        reaches.unwrap_or(segments.len().saturating_sub(1))
    } else {
        let behind_ns = list.target_ns.max(NS_PER_S).saturating_mul(LIVE_BEHIND);
        let reaches = segments.iter().rposition(|segment| {
            sum_ns = sum_ns.saturating_add(segment.media_ns);
            sum_ns >= behind_ns
        });
        reaches.unwrap_or(0)
    };
    list.first_sequence.saturating_add(place as u64)
}

#[cfg(test)]
#[path = "hls_tests.rs"]
mod tests;
