//! The events, and their format.

use std::collections::BTreeMap;

use hyper::body::Bytes;
use millrace_store::volume::TitleInfo;
use schemars::JsonSchema;
use serde::Serialize;

use super::figures::{Before, LiveFigures};
use crate::site::Site;
use crate::status::{Status, VolumeMember};

/// Something that has happened. The name of an event is that of its kind, and `event` in its data is the same.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
#[schemars(rename = "News")]
pub enum SiteEvent {
    /// A viewer watches by RTSP.
    SessionBegun {
        /// What log lines call it.
        session: String,
        /// What.
        title: String,
        /// Who.
        peer: String,
        /// How it is sent.
        transport: String,
        /// The name that the viewer's program gives itself.
        agent: Option<String>,
    },
    /// A viewer has stopped watching.
    SessionEnded {
        /// What log lines call it.
        session: String,
        /// What.
        title: String,
        /// Who.
        peer: String,
        /// Why.
        reason: String,
        /// How long it was.
        lasted_s: f64,
        /// Packets that were sent, if the engine could still say it.
        packets: Option<u64>,
        /// Of these, how many left after their time.
        late_packets: Option<u64>,
    },
    /// A viewer was refused.
    Refusal {
        /// Who, from what, and why.
        what: String,
    },
    /// There is another title.
    TitleAdded {
        /// Its name.
        title: String,
        /// Its id.
        id: String,
        /// What people call it.
        display_name: String,
    },
    /// A title has another display name.
    TitleRenamed {
        /// Its name, which stays.
        title: String,
        /// Its id.
        id: String,
        /// What people call it now.
        display_name: String,
    },
    /// There is one less.
    TitleRemoved {
        /// Its name.
        title: String,
        /// Its id.
        id: String,
    },
    /// How the members of the volume are, where that has changed.
    Members {
        /// All of them.
        members: Vec<VolumeMember>,
    },
    /// How much is sent, each second.
    Figures {
        /// The figures.
        #[serde(flatten)]
        figures: LiveFigures,
    },
}

impl SiteEvent {
    fn name(&self) -> &'static str {
        match self {
            Self::SessionBegun { .. } => "session_begun",
            Self::SessionEnded { .. } => "session_ended",
            Self::Refusal { .. } => "refusal",
            Self::TitleAdded { .. } => "title_added",
            Self::TitleRenamed { .. } => "title_renamed",
            Self::TitleRemoved { .. } => "title_removed",
            Self::Members { .. } => "members",
            Self::Figures { .. } => "figures",
        }
    }

    /// As it is sent. JSON has no line ends within it.
    pub(crate) fn frame(&self) -> Bytes {
        // Text and numbers can always be written.
        let data = serde_json::to_string(self).unwrap_or_default();
        format!("event: {}\ndata: {data}\n\n", self.name()).into()
    }

    /// Adds the number of events left out to figures.
    pub(crate) fn leaving_out(mut self, count: u64) -> Self {
        if let Self::Figures { figures } = &mut self {
            figures.left_out = count;
        }
        self
    }
}

/// State at the last look.
#[derive(Debug, Default)]
pub(crate) struct SiteSnapshot {
    figures: Before,
    members: Option<Vec<VolumeMember>>,
    /// The version of the list of titles, and the last seen state of each title by name.
    titles: Option<(u64, BTreeMap<String, SeenTitle>)>,
}

/// The state of a title at the last look.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SeenTitle {
    id: String,
    display_name: String,
}

impl SiteSnapshot {
    /// Returns the news, with the figures last.
    pub(crate) fn look(&mut self, site: &dyn Site, summary: Status) -> Vec<SiteEvent> {
        let mut news = self.look_at_titles(site);
        let figures = self.figures.figures(site, &summary);
        let members = summary.members;
        if self.members.as_ref().is_some_and(|before| *before != members) {
            news.push(SiteEvent::Members { members: members.clone() });
        }
        self.members = Some(members);
        news.push(SiteEvent::Figures { figures });
        news
    }

    fn look_at_titles(&mut self, site: &dyn Site) -> Vec<SiteEvent> {
        let version = site.titles_version();
        if self.titles.as_ref().is_some_and(|(before, _)| *before == version) {
            return Vec::new();
        }
        let seen = |title: TitleInfo| {
            let of = SeenTitle { id: title.id.to_string(), display_name: title.display_name() };
            (title.name, of)
        };
        let titles: BTreeMap<String, SeenTitle> = site.titles().into_iter().map(seen).collect();
        let Some((_, before)) = self.titles.replace((version, titles.clone())) else { return Vec::new() };
        let is_same = |a: Option<&SeenTitle>, b: &SeenTitle| a.is_some_and(|a| a.id == b.id);
        let gone = before.iter().filter(|(name, seen)| !is_same(titles.get(*name), seen));
        let removed =
            gone.map(|(name, seen)| SiteEvent::TitleRemoved { title: name.clone(), id: seen.id.clone() });
        let now = titles.iter().filter(|(name, seen)| before.get(*name) != Some(*seen));
        let changed = now.map(|(name, seen)| {
            let (title, SeenTitle { id, display_name }) = (name.clone(), seen.clone());
            match is_same(before.get(name), seen) {
                true => SiteEvent::TitleRenamed { title, id, display_name },
                false => SiteEvent::TitleAdded { title, id, display_name },
            }
        });
        removed.chain(changed).collect()
    }
}
