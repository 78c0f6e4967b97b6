//! Live titles and their sources, as the server reports and takes them.

use std::ops::Range;

use millrace_core::time::MediaTicks;
use millrace_core::units::BitRate;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::limits::MAX_PARTS_AHEAD;

/// A title that is sent while its source sends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LiveStatus {
    /// Unique among live titles.
    pub name: String,
    /// `waiting`, `running`, `silent`, `not-ts`, `too-fast` or `failed`.
    pub state: &'static str,
    /// The same in a sentence; with the cause, for this machine and users who manage.
    pub message: String,
    /// `first` or `backup`, if it has a backup: the source that viewers get.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_air: Option<&'static str>,
    /// Over the last ten seconds in which anything came; 0: nothing has come yet.
    pub bits_per_s: u64,
    /// Streams of it.
    pub viewers: u64,
    /// Its address by HTTP, from the root of this server.
    pub file: String,
    /// Address of its playlist.
    pub hls: String,
    /// Address of its playlist in parts of segments, for players of low-latency HLS.
    pub low_latency_hls: String,
    /// The path of its RTSP address.
    pub rtsp: String,
    /// Its items, if it is a channel of stored titles; for this machine and users who manage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channel: Option<PlayedChannel>,
    /// The recording of it that is being made; for this machine and users who manage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recording: Option<LiveRecording>,
    /// Multicast groups that viewers have it sent to; absent: none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub multicast: Vec<LiveCast>,
}

/// A multicast group that a live title is sent to because viewers have asked for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LiveCast {
    /// The name of the title, as in addresses.
    pub title: String,
    /// Group and port of RTP; RTCP has the next port.
    pub to: String,
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// Viewers that receive it.
    pub listeners: u64,
    /// Whether packets leave.
    pub is_sending: bool,
    /// Why none leave although a viewer plays it; for this machine and users who manage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

impl LiveStatus {
    /// Leaves out everything that viewers have no use for: the items of a channel, the cause of a failure, also of a backup's or of a
    /// cast, the recording.
    pub(crate) fn leave_details_out(&mut self) {
        self.recording = None;
        self.multicast.iter_mut().for_each(|cast| cast.trouble = None);
        if self.state == "failed" {
            "the source cannot be reached at the moment".clone_into(&mut self.message);
        } else if self.channel.take().is_some() || self.on_air.is_some() {
            self.state.clone_into(&mut self.message);
        }
    }
}

/// A source to be added for a live title. There is no `Debug`: the addresses may have passwords.
#[derive(Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewLiveSource {
    /// The title's name.
    pub name: String,
    /// Where it comes from.
    pub url: String,
    /// The source that stands in for it while it does not come.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup: Option<String>,
}

/// The items of a channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PlayedChannel {
    /// The item that plays now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item: Option<String>,
    /// Items that could not be played the last time.
    pub skipped: Vec<SkippedItem>,
    /// Addresses that it is sent to without a viewer.
    pub to: Vec<String>,
}

/// An item that a channel skips.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SkippedItem {
    /// As it is written in the playlist.
    pub item: String,
    /// Why it could not be played.
    pub reason: String,
}

/// A recording of a live title that is being made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LiveRecording {
    /// Display name of the title that it becomes.
    pub title: String,
    /// When it began, in seconds since 1970 (UTC).
    pub began_unix_s: u64,
    /// When it ends, likewise; absent: when it is stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ends_unix_s: Option<u64>,
    /// Bytes that came.
    pub bytes: u64,
    /// Bytes that are missing because the disks did not take them in time.
    pub lost_bytes: u64,
}

/// Wishes for a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecordingWish {
    /// Display name; absent: the live title's name and the time.
    #[serde(default)]
    pub title: Option<String>,
    /// Seconds after which it ends; absent: when it is stopped, or the live title ends.
    #[serde(default)]
    pub for_s: Option<u64>,
}

/// Why nothing is recorded, or no recording stopped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordingRefusal {
    /// There is no such live title.
    #[error("no such live title")]
    NoSource,
    /// It is recorded already.
    #[error("the live title is recorded already; stop that recording first")]
    Busy,
    /// It is not recorded.
    #[error("the live title is not recorded")]
    NotRecorded,
    /// The store takes no title; holds the reason.
    #[error("{0}")]
    NoRoom(String),
}

/// The part of a live title that can be fetched in segments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveWindow {
    /// Distinguishes the title from an earlier one of the same name.
    pub version: String,
    /// The mean bit rate that admission counts for a viewer.
    pub mean_rate: BitRate,
    /// Its highest second.
    pub peak_rate: BitRate,
    /// Interruptions before the first segment.
    pub breaks_before: u32,
    /// Number of the newest segments that will be there for long enough to be listed.
    pub listed: usize,
    /// The segments, the oldest first.
    pub pieces: Vec<LivePiece>,
    /// The parts of the segment that grows behind them.
    pub growing: Vec<LivePart>,
    /// The source was interrupted before these.
    pub is_growing_discontinuous: bool,
    /// The longest segment that it has had; the target duration follows from it.
    pub longest: MediaTicks,
}

/// A segment of a live title.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LivePiece {
    /// Counted from the title's first one.
    pub number: u32,
    /// Its bytes.
    pub bytes: Range<u64>,
    /// Its media time.
    pub length: MediaTicks,
    /// The source was interrupted before it.
    pub is_discontinuous: bool,
    /// Its parts; none of older segments.
    pub parts: Vec<LivePart>,
}

/// A part of a segment, which can be fetched before the segment is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LivePart {
    /// Its bytes in the title.
    pub bytes: Range<u64>,
    /// Its media time.
    pub length: MediaTicks,
    /// A player can begin with it.
    pub is_independent: bool,
}

/// How far the segments of a live title have grown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveEdge {
    /// The number of the segment that grows.
    pub segment: u32,
    /// Its parts that are complete.
    pub parts: usize,
    /// The parts of the segment before it.
    pub parts_before: usize,
}

impl LiveEdge {
    /// Whether there is this part of a segment, or without one the segment. A part behind the segment's last one stands for the first of the
    /// next segment (draft-pantos-hls-rfc8216bis section 6.2.5.2).
    pub(crate) fn has(self, segment: u32, part: Option<u32>) -> bool {
        match (self.segment.wrapping_sub(segment), part) {
            (0, part) => part.is_some_and(|part| (part as usize) < self.parts),
            (1, Some(part)) => (part as usize) < self.parts_before || self.parts > 0,
            _ => segment < self.segment,
        }
    }

    /// Whether a player may ask for it in advance (draft-pantos-hls-rfc8216bis section 6.2.5.2).
    pub(crate) fn is_near(self, segment: u32, part: Option<u32>) -> bool {
        let there = match segment.wrapping_sub(self.segment) {
            0 => self.parts as u64,
            1 => 0,
            _ => return segment < self.segment,
        };
        u64::from(part.unwrap_or(0)).saturating_sub(there) <= MAX_PARTS_AHEAD
    }
}

/// Why a client cannot feed a live title, or a source cannot be added or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LiveRefusal {
    /// The name is not valid for a live title; holds the reason.
    Name(String),
    /// Another source feeds it.
    InUse,
    /// There is no such source.
    NoTitle,
    /// It is not possible as things are; names the reason and the remedy.
    Conflict(String),
    /// It has failed, for this reason.
    Failed(String),
    /// There is no room; names the resource.
    Full(String),
}
