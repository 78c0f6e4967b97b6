//! The FEC of a stream: its mode, and the streams of parity ("companions") that accompany the
//! media.

use std::ops::Range;

use millrace_core::ids::{StreamId, TitleRef};
use millrace_core::wire::rtp::Timeline;
use millrace_offload::command;

use super::matrix::{FecMatrix, FecMode};
use super::ports::{CachedParity, TitleEntry};

/// A companion accepts any number of holes: missing packets are not sent.
const SPARE_ANY: u8 = u8::MAX;

/// FEC of a stream that was asked for with it.
#[derive(Debug)]
pub(super) struct Fec {
    pub(super) matrix: FecMatrix,
    /// What `on` means.
    pub(super) on: FecMode,
    /// The mode that is, or is about to be, sent.
    pub(super) mode: FecMode,
    /// Bits a second of the stream's rate that are FEC.
    pub(super) rate: u64,
    pub(super) companions: Vec<Companion>,
    /// The viewer has got, or will get, all packets from this one on.
    pub(super) since: u32,
    /// Packets of a run of media that has not begun: the companions have yet to be played. `true`: only those that do not play, because
    /// the run continues another.
    pub(super) next_run: Option<(Range<u32>, bool)>,
    /// The companions must change once the media stream stops; `true`: and it resumes afterwards.
    pub(super) change: Option<bool>,
    /// Why it has to play without; not yet reported to the viewer.
    pub(super) left_out: Option<String>,
    /// Tracks that are kept open for companions to come: they were open when the switch was granted, and it may take a moment.
    pub(super) kept_open: Vec<TitleRef>,
}

/// A stream of parity.
#[derive(Clone, Copy, Debug)]
pub(super) struct Companion {
    pub(super) track: u8,
    pub(super) stream: StreamId,
    pub(super) media: command::RunMedia,
    /// Its play command has been sent.
    pub(super) played: bool,
}

impl Companion {
    /// A track that has been opened, in its place in the engine.
    pub(super) fn new(entry: &TitleEntry, track: u8, stream: StreamId, opened: CachedParity) -> Self {
        let CachedParity { title, packets, layout } = opened;
        let timeline = Timeline { ssrc: 0, ..entry.timeline };
        let media = command::RunMedia { title, packets, timeline, layout, spare: SPARE_ANY };
        Self { track, stream, media, played: false }
    }
}
