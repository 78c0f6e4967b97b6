//! Information about a title, as its manifest and the catalogue have it.

use std::path::PathBuf;

use millrace_core::ids::TitleId;
use millrace_core::limits::{DEFAULT_TS_PER_PACKET, TS_PACKET_BYTES};
use millrace_core::rendition::RenditionName;
use millrace_core::time::MediaTicks;
use millrace_core::units::BitRate;
use millrace_core::wire::rtp::Timeline;
use millrace_media::codec::StreamRole;
use millrace_media::subtitles::SubtitleLabel;
use serde::{Deserialize, Serialize};

use super::derived::Derived;
use super::json;
use crate::naming::{stem, title_text};

/// Information about a title.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TitleInfo {
    /// Identity for ever.
    #[serde(with = "json::title_id")]
    pub id: TitleId,
    /// Unique in its store; a URL-safe slug: `a-z`, `0-9`, `-`, `_`, `.`.
    pub name: String,
    /// Display name. Titles of older versions have none: [`TitleInfo::display_name`] makes one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Length of the data file.
    pub bytes: u64,
    /// Packets of the default size.
    pub packets: u32,
    /// Packet sizes it is prepared for, ascending.
    pub packet_sizes: Vec<u16>,
    /// Media time.
    #[serde(with = "json::media_ticks")]
    pub duration: MediaTicks,
    /// Mean bit rate.
    #[serde(with = "json::bit_rate")]
    pub mean_rate: BitRate,
    /// Highest bit rate over windows of 1 s.
    #[serde(with = "json::bit_rate")]
    pub peak_rate: BitRate,
    /// Whether the rate is constant.
    pub constant_rate: bool,
    /// Elementary streams of the program.
    pub streams: Vec<ElementaryStream>,
    /// RTP timeline shared by all viewers; chosen at random at ingest.
    #[serde(with = "json::timeline")]
    pub timeline: Timeline,
    /// The file it was made from; of a derived title its parent's.
    pub source: SourceIdentity,
    /// Content, copies and predecessor of its source.
    #[serde(default, skip_serializing_if = "Origin::is_empty")]
    pub origin: Origin,
    /// When it was added, seconds since 1970 (UTC).
    pub added_unix_s: u64,
    /// BLAKE3 of the data file, 64 hexadecimal digits.
    pub blake3: String,
    /// Notes for the operator: transcoding done, damage found.
    pub notes: Vec<String>,
    /// The title that it was made from, and how; `None`: it was made from its source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub derived: Option<Derived>,
    /// Its name among its renditions, if it has any: it is the best of them.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "json::rendition")]
    pub rendition: Option<RenditionName>,
    /// Subtitles that are kept with it, by label. Those of teletext are in its media and not here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subtitles: Vec<SubtitleTrack>,
    /// Start of the title on the clock of its source file, as players show that file, in ticks.
    /// Subtitles timed on that clock are earlier in the title by this value.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub source_start: i64,
    /// Chapters by start, ascending. A title made from another has none: those of its parent count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chapters: Vec<Chapter>,
    /// Wall-clock time of its first packet in milliseconds since 1970 (UTC), of a recording. Titles of older versions have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began_unix_ms: Option<u64>,
}

/// A part of a film that has a name, from its start to the start of the next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chapter {
    /// Media time.
    #[serde(with = "json::media_ticks")]
    pub start: MediaTicks,
    /// For people; made by [`title_text`]. Empty if the container names none.
    pub title: String,
}

fn is_zero(ticks: &i64) -> bool {
    *ticks == 0
}

impl TitleInfo {
    /// Whether it is a recording that is still being made: the hash of its content is not known before its end. No stored title is.
    pub fn is_growing(&self) -> bool {
        self.blake3.is_empty()
    }

    /// What people call it: its display name, else the name of its source file without extension.
    pub fn display_name(&self) -> String {
        if let Some(title) = &self.title {
            return title.clone();
        }
        // An upload has no file; a derived title is not what its parent's file is called.
        let file = self.source.path.is_absolute() && self.derived.is_none();
        let from_file = file.then(|| title_text(&stem(&self.source.path))).filter(|title| !title.is_empty());
        from_file.unwrap_or_else(|| self.name.clone())
    }

    /// BLAKE3 of the source file, if it is known: a transport stream is stored byte for byte.
    pub fn source_blake3(&self) -> Option<&str> {
        let is_as_it_was = self.source.bytes == self.bytes && self.derived.is_none();
        self.origin.blake3.as_deref().or(is_as_it_was.then_some(self.blake3.as_str()))
    }

    /// Returns its name among the renditions of a title: of its parent, or its own.
    pub fn rendition_name(&self) -> Option<RenditionName> {
        self.derived.map_or(self.rendition, Derived::rendition)
    }

    /// The RTP timeline of its packets of this size. Each size has sequence numbers of its own, so it has a
    /// synchronisation source of its own too: no two sizes of a title share one, and that of the default size is the
    /// stored one.
    pub fn timeline_of(&self, packet_bytes: usize) -> Timeline {
        // A multiple of an odd number: different for all 2^32 distances from the default; only 48
        // occur.
        let distance = (packet_bytes / TS_PACKET_BYTES).wrapping_sub(DEFAULT_TS_PER_PACKET) as u32;
        let ssrc = self.timeline.ssrc.wrapping_add(distance.wrapping_mul(0x9e37_79b1));
        Timeline { ssrc, ..self.timeline }
    }
}

/// One elementary stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ElementaryStream {
    /// Its PID.
    pub pid: u16,
    /// `stream_type` of the PMT (ISO/IEC 13818-1 table 2-34).
    pub stream_type: u8,
    /// For people: "H.264", "AAC".
    pub codec: String,
    /// ISO 639-2 code, if announced.
    pub language: Option<String>,
    /// The special audience that the tables announce, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<StreamRole>,
}

/// Which file a title was made from. The same path, length and modification time mean the same title.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceIdentity {
    /// Absolute path.
    #[serde(with = "json::path")]
    pub path: PathBuf,
    /// Length.
    pub bytes: u64,
    /// Modification time, nanoseconds since 1970 (UTC).
    pub modified_unix_ns: u64,
}

/// The origin of a title, beside its [`SourceIdentity`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// BLAKE3 of the source file, 64 hexadecimal digits; `None` for a transport stream that is stored byte for byte, and in titles of
    /// older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blake3: Option<String>,
    /// Other files with the same content: they are no titles of their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copies: Vec<SourceIdentity>,
    /// The title that this one has replaced. If both are present, the removal of the old one was
    /// interrupted.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "json::optional_title_id")]
    pub replaces: Option<TitleId>,
    /// Of a copy that a server fetched from a library for its viewers, and removes when its space is needed: BLAKE3 of the title's manifest
    /// there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached: Option<String>,
}

impl Origin {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A track of subtitles that is kept with a title.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubtitleTrack {
    /// Language and kind; unique in its title.
    pub label: SubtitleLabel,
    /// For people, if its source has a name for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Name of its file in the title's directory.
    pub file: String,
    /// The file that it was made from, if it was one beside the film.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<SourceIdentity>,
    /// When it was added, seconds since 1970 (UTC).
    pub added_unix_s: u64,
}
