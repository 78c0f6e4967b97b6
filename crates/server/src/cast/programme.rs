//! The programme of a channel: a list in a loop, and shows at their times of day.

use jiff::tz::TimeZone;
use serde::Deserialize;

use super::items::{CastItem, ItemList};
use crate::day_time::{DayTime, DayTimeError};
use crate::limits::cast::{MAX_CHANNEL_SHOWS, SHOW_LATE_MS};

/// See the module's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelProgramme {
    /// Plays whenever no show does, again and again.
    pub round: ItemList,
    /// Items that begin at a time of day, and cut off what plays then.
    pub shows: Vec<ChannelShow>,
    /// Of the times of shows.
    zone: TimeZone,
}

impl Default for ChannelProgramme {
    fn default() -> Self {
        ItemList::default().into()
    }
}

impl From<ItemList> for ChannelProgramme {
    fn from(round: ItemList) -> Self {
        Self { round, shows: Vec::new(), zone: TimeZone::UTC }
    }
}

/// A show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelShow {
    /// Its items, which play once.
    pub list: ItemList,
    begins: DayTime,
}

/// A show begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShowStart {
    /// Its place among the shows.
    pub show: usize,
    /// Milliseconds since 1970 (UTC).
    pub unix_ms: u64,
}

/// The table of a show in the configuration file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ShowTable {
    at: String,
    #[serde(default)]
    days: Vec<String>,
    date: Option<String>,
    #[serde(default)]
    items: Vec<String>,
    playlist: Option<std::path::PathBuf>,
}

/// Why a table is no show.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShowError {
    /// Its time.
    #[error(transparent)]
    Time(#[from] DayTimeError),
    /// There is nothing to play.
    #[error("give items = [\"TITLE\", ...] or playlist = \"FILE.m3u\", one of them")]
    Items,
    /// Two shows at once.
    #[error("it begins at the same time as show {0}; give one of them another time or other days")]
    SameTime(usize),
    /// Too many.
    #[error("a channel has at most {MAX_CHANNEL_SHOWS} shows; put items that follow each other into one")]
    TooMany,
}

impl ChannelProgramme {
    /// A programme with shows in a time zone.
    ///
    /// # Errors
    /// The number of the show, from 1, and its fault.
    pub(super) fn new(
        round: ItemList,
        shows: Vec<ShowTable>,
        zone: TimeZone,
    ) -> Result<Self, (usize, ShowError)> {
        if shows.len() > MAX_CHANNEL_SHOWS {
            return Err((MAX_CHANNEL_SHOWS + 1, ShowError::TooMany));
        }
        let mut all: Vec<ChannelShow> = Vec::new();
        for (number, table) in (1..).zip(shows) {
            let show = ChannelShow::new(table).map_err(|error| (number, error))?;
            if let Some(other) = all.iter().position(|other| other.begins.meets(&show.begins)) {
                return Err((number, ShowError::SameTime(other + 1)));
            }
            all.push(show);
        }
        Ok(Self { round, shows: all, zone })
    }

    /// All lists: of the round, then of each show.
    pub fn lists(&self) -> impl Iterator<Item = &ItemList> {
        std::iter::once(&self.round).chain(self.shows.iter().map(|show| &show.list))
    }

    /// The first show that begins after this time.
    pub fn next_after(&self, unix_ms: u64) -> Option<ShowStart> {
        let starts = self.shows.iter().enumerate().filter_map(|(show, it)| {
            Some(ShowStart { show, unix_ms: it.begins.next_after(unix_ms, &self.zone)? })
        });
        starts.min_by_key(|start| start.unix_ms)
    }
}

/// The items of a programme.
#[derive(Clone, Debug, Default)]
pub struct ProgrammeItems {
    /// Of the next round.
    pub round: Vec<CastItem>,
    /// Of each show.
    pub shows: Vec<Vec<CastItem>>,
}

impl ChannelShow {
    fn new(table: ShowTable) -> Result<Self, ShowError> {
        let ShowTable { at, days, date, items, playlist } = table;
        let list = ItemList::of(&items, playlist).ok_or(ShowError::Items)?;
        Ok(Self { list, begins: DayTime::new(at, days, date)? })
    }
}

/// Notices when a show has to begin.
#[derive(Debug)]
pub(super) struct ShowWatch<'a> {
    programme: &'a ChannelProgramme,
    next: Option<ShowStart>,
    /// When it was asked last.
    asked_ms: u64,
}

impl<'a> ShowWatch<'a> {
    /// From this time on.
    pub(super) fn new(programme: &'a ChannelProgramme, now_unix_ms: u64) -> Self {
        Self { programme, next: programme.next_after(now_unix_ms), asked_ms: now_unix_ms }
    }

    /// When the next show begins.
    pub(super) fn next(&self) -> Option<ShowStart> {
        self.next
    }

    /// The next show, if its time has come; none whose time was more than [`SHOW_LATE_MS`] ago: the clock was set forward, or the machine
    /// slept. Once the clock was set back that far, shows begin again.
    pub(super) fn due(&mut self, now_unix_ms: u64) -> Option<ShowStart> {
        if now_unix_ms.saturating_add(SHOW_LATE_MS) < self.asked_ms {
            self.next = self.programme.next_after(now_unix_ms);
        }
        self.asked_ms = now_unix_ms;
        let oldest_ms = now_unix_ms.saturating_sub(SHOW_LATE_MS);
        if self.next.is_some_and(|start| start.unix_ms < oldest_ms) {
            self.next = self.programme.next_after(oldest_ms.saturating_sub(1));
        }
        self.next.filter(|start| start.unix_ms <= now_unix_ms)
    }

    /// The show that has to begin now, each once; of several the last one.
    pub(super) fn take_due(&mut self, now_unix_ms: u64) -> Option<usize> {
        let mut last = None;
        while let Some(start) = self.due(now_unix_ms) {
            last = Some(start.show);
            self.next = self.programme.next_after(start.unix_ms);
        }
        last
    }
}

#[cfg(test)]
#[path = "programme_tests.rs"]
mod tests;
