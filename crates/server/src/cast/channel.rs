//! `NAME=PLAYLIST`, or a table with more: a channel as an operator writes it, and its report for the API.

use std::collections::HashSet;
use std::path::PathBuf;
use std::str::FromStr;

use serde::Deserialize;

use super::items::ItemList;
use super::programme::{ChannelProgramme, ShowError, ShowTable};
use super::schedule::ChannelSchedule;
use super::url::{CastUrl, CastUrlError};
use crate::day_time::{DayTimeError, time_zone};
use crate::limits::cast::MAX_CHANNEL_OUTPUTS;
use crate::live::address::{LiveSourceError, check_live_name};

/// A channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelSpec {
    /// Name of its live title.
    pub name: String,
    /// Its titles.
    pub programme: ChannelProgramme,
    /// Addresses that it is sent to without a viewer.
    pub to: Vec<CastUrl>,
}

/// Why a text is no channel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChannelSpecError {
    /// There is no `=`.
    #[error("got \"{0}\"; write NAME=PLAYLIST.m3u, or a [[channel]] table in the configuration file")]
    Form(String),
    /// The table.
    #[error("the table: {0}; its keys are name, items or playlist, to, zone and show")]
    Table(String),
    /// Its name.
    #[error(transparent)]
    Name(#[from] LiveSourceError),
    /// There is nothing to play.
    #[error("channel {0}: give items = [\"TITLE\", ...] or playlist = \"FILE.m3u\", one of them")]
    Items(String),
    /// A show.
    #[error("channel {name}: show {number}: {error}")]
    Show {
        /// The channel.
        name: String,
        /// The place of the show, from 1.
        number: usize,
        /// The fault.
        error: ShowError,
    },
    /// The time zone.
    #[error("channel {name}: {error}")]
    Zone {
        /// The channel.
        name: String,
        /// The fault.
        error: DayTimeError,
    },
    /// An address.
    #[error("channel {name}: to {error}")]
    To {
        /// The channel.
        name: String,
        /// The fault.
        error: CastUrlError,
    },
    /// Too many addresses, or one of them twice.
    #[error("channel {0}: to: write at most {MAX_CHANNEL_OUTPUTS} addresses, each of them once")]
    Outputs(String),
}

/// The table of the configuration file.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChannelTable {
    name: String,
    #[serde(default)]
    items: Vec<String>,
    playlist: Option<PathBuf>,
    #[serde(default)]
    to: Vec<String>,
    zone: Option<String>,
    #[serde(default)]
    show: Vec<ShowTable>,
}

impl FromStr for ChannelSpec {
    type Err = ChannelSpecError;

    fn from_str(text: &str) -> Result<Self, ChannelSpecError> {
        let table = if text.trim_start().starts_with('{') {
            serde_json::from_str(text).map_err(|error| ChannelSpecError::Table(error.to_string()))?
        } else {
            let (name, playlist) =
                text.split_once('=').ok_or_else(|| ChannelSpecError::Form(text.to_owned()))?;
            let playlist = Some(playlist).filter(|playlist| !playlist.is_empty()).map(PathBuf::from);
            ChannelTable { name: name.to_owned(), playlist, ..ChannelTable::default() }
        };
        let ChannelTable { name, items, playlist, to, zone, show } = table;
        check_live_name(&name)?;
        let round = ItemList::of(&items, playlist).ok_or_else(|| ChannelSpecError::Items(name.clone()))?;
        let zone = time_zone(zone).map_err(|error| ChannelSpecError::Zone { name: name.clone(), error })?;
        let programme = ChannelProgramme::new(round, show, zone)
            .map_err(|(number, error)| ChannelSpecError::Show { name: name.clone(), number, error })?;
        let urls = to.iter().map(|url| url.parse::<CastUrl>()).collect::<Result<Vec<_>, _>>();
        let to = urls.map_err(|error| ChannelSpecError::To { name: name.clone(), error })?;
        let places: HashSet<_> = to.iter().map(|url| url.to).collect();
        if to.len() > MAX_CHANNEL_OUTPUTS || places.len() < to.len() {
            return Err(ChannelSpecError::Outputs(name));
        }
        Ok(Self { name, programme, to })
    }
}

/// The item that a channel plays, and the items that it cannot play.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChannelReport {
    /// The item that plays now.
    pub item: Option<String>,
    /// Items of the round and of the last show that could not be played the last time, and why.
    pub skipped: Vec<(String, String)>,
    /// Why there is no list of items.
    pub no_list: Option<String>,
    /// Addresses that it is sent to.
    pub to: Vec<String>,
    /// Its items with their times.
    pub schedule: ChannelSchedule,
}

impl ChannelReport {
    /// The same in a sentence.
    pub fn message(&self) -> String {
        match (&self.item, &self.no_list, self.skipped.first()) {
            (Some(item), ..) => format!("plays {item}"),
            (None, Some(why), _) => why.clone(),
            (None, None, Some((item, why))) => {
                format!("no item can be played, for example {item}: {why}; trying again")
            }
            (None, None, None) => "opens its first item".to_owned(),
        }
    }

    /// The item was skipped. Returns whether that is news.
    pub(super) fn skip(&mut self, item: &str, why: &str) -> bool {
        match self.skipped.iter_mut().find(|(skipped, _)| skipped == item) {
            Some((_, before)) if before == why => false,
            Some((_, before)) => {
                why.clone_into(before);
                true
            }
            None => {
                self.skipped.push((item.to_owned(), why.to_owned()));
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cast::items::CastItem;

    #[test]
    fn channel_spec_of_each_form_is_parsed() {
        let spec: ChannelSpec = "lobby=/films/lobby.m3u".parse().unwrap();
        assert_eq!((spec.name.as_str(), spec.to.len()), ("lobby", 0));
        assert_eq!(spec.programme.round, ItemList::Playlist("/films/lobby.m3u".into()));
        let spec: ChannelSpec =
            r#"{"name":"bar","items":["a","b"],"to":["udp://239.1.1.1:5000?ttl=4"]}"#.parse().unwrap();
        assert_eq!(spec.programme.round, ItemList::Fixed(vec![CastItem::new("a"), CastItem::new("b")]));
        assert_eq!(spec.to[0].ttl, Some(4));
    }

    #[test]
    fn channel_spec_with_fault_is_refused_with_its_part() {
        let twice = r#"{"name":"a","items":["x"],"to":["udp://239.1.1.1:5000","rtp://239.1.1.1:5000"]}"#;
        for (text, part) in [
            ("lobby", "NAME=PLAYLIST"),
            ("lobby=", "items = "),
            ("a/b=x.m3u", "name \"a/b\""),
            ("{", "the table"),
            (r#"{"name":"a"}"#, "items = "),
            (r#"{"name":"a","items":["x"],"playlist":"y"}"#, "one of them"),
            (r#"{"name":"a","items":["x"],"too":[]}"#, "unknown field"),
            (r#"{"name":"a","items":["x"],"to":["http://x"]}"#, "to \"http://x\""),
            (twice, "each of them once"),
            (r#"{"name":"a","items":["x"],"zone":"Mars/Olympus"}"#, "zone \"Mars/Olympus\""),
            (r#"{"name":"a","items":["x"],"show":[{"items":["y"]}]}"#, "missing field `at`"),
            (r#"{"name":"a","items":["x"],"show":[{"at":"25:00","items":["y"]}]}"#, "show 1: at \"25:00\""),
        ] {
            let error = text.parse::<ChannelSpec>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn skipped_item_is_news_once_for_each_reason() {
        let mut report = ChannelReport::default();
        assert!(report.skip("a", "gone") && !report.skip("a", "gone") && report.skip("a", "damaged"));
        assert_eq!(report.skipped, [("a".to_owned(), "damaged".to_owned())]);
        assert!(report.message().contains("a: damaged"));
    }
}
