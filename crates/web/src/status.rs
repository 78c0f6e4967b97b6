//! The state of the server, as the server reports it.

use schemars::JsonSchema;
use serde::Serialize;

use crate::live::LiveCast;

/// How the server is.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct Status {
    /// What viewers use up.
    pub room: Vec<Room>,
    /// Viewers that watch by RTSP, or fetch segments by HLS, the oldest first.
    pub sessions: Vec<Session>,
    /// Multicast groups that live titles are sent to because viewers have asked for it.
    pub casts: Vec<LiveCast>,
    /// Viewers refused recently, the newest first.
    pub refusals: Vec<Refusal>,
    /// Members of the volume, if it has several.
    pub members: Vec<VolumeMember>,
    /// The library whose titles are served too, if there is one.
    pub library: Option<LibraryStatus>,
}

/// The library whose titles are served too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "Library")]
pub struct LibraryStatus {
    /// Where it is.
    pub url: String,
    /// Why it could not be listed last time; the server tries again.
    pub trouble: Option<String>,
    /// Titles in it, as it was listed last.
    pub titles: u64,
    /// Copies of them that are here.
    pub cached_titles: u64,
    /// Bytes that these take.
    pub cached_bytes: u64,
    /// Bytes that they may take.
    pub space_bytes: u64,
    /// Titles that are being fetched, wait to be, or could not be fetched.
    pub fetches: Vec<LibraryFetch>,
}

/// A title that is fetched from the library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LibraryFetch {
    /// Its name.
    pub title: String,
    /// Share of it that is here, in percent.
    pub percent: u8,
    /// Why it could not be fetched; the server tries again.
    pub trouble: Option<String>,
}

/// Something that viewers use up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Room {
    /// What, in the plural: it is the unit of both figures.
    pub what: String,
    /// How much is in use.
    pub used: u64,
    /// How much there is.
    pub of: u64,
}

/// A viewer.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Session {
    /// What log lines call it.
    pub session: String,
    /// What.
    pub title: String,
    /// Who.
    pub peer: String,
    /// How it is sent.
    pub transport: &'static str,
    /// Whether anything is sent now.
    pub is_playing: bool,
    /// Where, if that is known.
    pub position_s: Option<f64>,
    /// Since when, in seconds.
    pub age_s: u64,
    /// Bits a second that are kept for it.
    pub bits_per_s: u64,
    /// Share of the packets that it has lost since its report before the last, if it reports.
    pub lost: Option<f64>,
}

/// A viewer that was refused, and others in the same second.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Refusal {
    /// When, seconds since 1970.
    pub at_unix_s: u64,
    /// Who and why.
    pub what: String,
    /// How many more in that second.
    pub more: u64,
}

/// A member of the volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "Member")]
pub struct VolumeMember {
    /// Its number.
    pub member: usize,
    /// Where it is.
    pub place: String,
    /// Its fault and the remedy, if it has a fault.
    pub trouble: Option<String>,
}
