//! Asks the server: figures as they come, and with each of them the viewers.

use std::sync::mpsc::Sender;

use anyhow::{Context, bail};
use serde::Deserialize;
use serde_json::Value;

use crate::cmds::remote::Remote;
use crate::limits::control::TOP_RETRY;

/// The current knowledge.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Update {
    /// How the server is.
    Now(Box<(ServerFigures, Status)>),
    /// A line about something that has happened.
    Happened(String),
    /// The server does not answer, and why.
    Lost(String),
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct ServerFigures {
    pub(super) streams: u64,
    pub(super) bits_per_s: Option<u64>,
    pub(super) packets_per_s: Option<u64>,
    pub(super) late_packets: Option<u64>,
    pub(super) late_max_s: f64,
    pub(super) limit: Option<Room>,
    pub(super) engines: Vec<Engine>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Room {
    pub(super) what: String,
    pub(super) used: u64,
    pub(super) of: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Engine {
    pub(super) engine: String,
    pub(super) streams: u64,
    pub(super) bits_per_s: Option<u64>,
    pub(super) busy: Option<f64>,
    pub(super) late_packets: Option<u64>,
    pub(super) late_max_s: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    pub(super) sessions: Vec<Session>,
    pub(super) sessions_left_out: u64,
    pub(super) members: Vec<MemberStatus>,
    pub(super) casts: Vec<Cast>,
    pub(super) library: Option<LibraryState>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Cast {
    pub(super) title: String,
    pub(super) to: String,
    pub(super) listeners: u64,
    pub(super) is_sending: bool,
    pub(super) trouble: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct LibraryState {
    pub(super) url: String,
    pub(super) trouble: Option<String>,
    pub(super) titles: u64,
    pub(super) cached_titles: u64,
    pub(super) cached_bytes: u64,
    pub(super) space_bytes: u64,
    pub(super) fetches: Vec<FetchState>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct FetchState {
    pub(super) title: String,
    pub(super) percent: u8,
    pub(super) trouble: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Session {
    pub(super) session: String,
    pub(super) title: String,
    pub(super) peer: String,
    pub(super) transport: String,
    pub(super) is_playing: bool,
    pub(super) position_s: Option<f64>,
    pub(super) age_s: u64,
    pub(super) bits_per_s: u64,
    pub(super) lost: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct MemberStatus {
    pub(super) trouble: Option<String>,
}

impl Update {
    pub(super) fn of(figures: &Value, status: &Value) -> anyhow::Result<Self> {
        let strange = "this version does not understand the server's reply";
        let figures = ServerFigures::deserialize(figures).context(strange)?;
        Ok(Self::Now(Box::new((figures, Status::deserialize(status).context(strange)?))))
    }

    /// Returns an event as a line, if it is worth one.
    fn happened(data: &Value) -> Option<Self> {
        let text = |field: &str| data[field].as_str().unwrap_or_default();
        let line = match text("event") {
            "session_begun" => format!("{} begins: {} for {}", text("session"), text("title"), text("peer")),
            "session_ended" => format!("{} ended: {}, {}", text("session"), text("title"), text("reason")),
            "refusal" => format!("refused: {}", text("what")),
            "title_added" => format!("new title: {}", text("title")),
            "title_renamed" => format!("title renamed: {}: {}", text("title"), text("display_name")),
            "title_removed" => format!("title removed: {}", text("title")),
            _ => return None,
        };
        Some(Self::Happened(line))
    }
}

/// Reports the state of the server until the receiver is gone; asks again if the server does not
/// answer.
pub(super) fn run(remote: &Remote, to: &Sender<Update>) {
    loop {
        let lost = follow(remote, &mut |update| to.send(update).is_ok());
        let why = lost.map_or_else(
            |error| crate::cmds::words(&error),
            |()| "the server closed the connection".to_owned(),
        );
        if to.send(Update::Lost(why)).is_err() {
            return;
        }
        std::thread::sleep(TOP_RETRY);
    }
}

/// Passes on the server's reports, until they end or `each` returns false.
fn follow(remote: &Remote, each: &mut dyn FnMut(Update) -> bool) -> anyhow::Result<()> {
    for data in data(remote)? {
        let data = data?;
        let update = match data["event"].as_str() {
            Some("figures") => Some(Update::of(&data, &remote.get("api/v1/status")?)?),
            _ => Update::happened(&data),
        };
        if update.is_some_and(|update| !each(update)) {
            return Ok(());
        }
    }
    Ok(())
}

/// The data of events.
fn data(remote: &Remote) -> anyhow::Result<impl Iterator<Item = anyhow::Result<Value>>> {
    Ok(remote.lines("api/v1/events")?.filter_map(|line| match line {
        Ok(line) => Some(
            serde_json::from_str(line.strip_prefix("data: ")?)
                .context("the server sent an event that is not JSON"),
        ),
        Err(error) => Some(Err(error).context("the server is silent")),
    }))
}

/// Returns the figures of one second, and the status, as the server reports them.
pub(super) fn once(remote: &Remote) -> anyhow::Result<(Value, Value)> {
    for data in data(remote)? {
        let data = data?;
        // The first figures have no second before them.
        if data["event"] == "figures" && !data["bits_per_s"].is_null() {
            return Ok((data, remote.get("api/v1/status")?));
        }
    }
    bail!("{}: the server closed the connection", remote.place())
}
