//! Facts known about a title's subtitles before any of them is read.

use std::ops::Range;
use std::sync::Arc;

use millrace_core::limits::TS_PACKET_BYTES;
use millrace_media::ts_packet::PTS_MODULUS;
use millrace_store::index::TitleIndex;
use millrace_store::volume::TitleInfo;
use millrace_ts::teletext::{PageNumber, announced};

use super::vtt::StampOrigin;
use crate::elementary::Timeline;
use crate::hls::segments::{MediaSegment, segments};
use crate::limits::{DESCRIBE_BYTES, MAX_MADE_SEGMENT_BYTES};
use crate::site::{Site, SiteError};

/// A page with subtitles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SubtitlePage {
    /// As viewers know it; unique among all.
    pub(crate) number: u16,
    pub(crate) pid: u16,
    pub(crate) page: PageNumber,
    /// ISO 639-2.
    pub(crate) language: Option<String>,
    pub(crate) is_for_hearing_impaired: bool,
}

/// A title with subtitles.
#[derive(Debug)]
pub(crate) struct Subtitled {
    /// Pages of teletext.
    pub(crate) tracks: Vec<SubtitlePage>,
    pub(crate) segments: Vec<MediaSegment>,
    /// When each segment begins, and when the last one ends: ticks from the title's first picture.
    times: Vec<i64>,
    index: Arc<TitleIndex>,
    pub(crate) timeline: Timeline,
}

/// Reads the index of a title and the tables at its beginning. `None` if its times are not known.
pub(crate) fn look(site: &dyn Site, title: &TitleInfo) -> Result<Option<Subtitled>, SiteError> {
    let index = site.index(&title.name)?;
    let segments = segments(&index).list;
    let is_long =
        |segment: &MediaSegment| segment.bytes.end - segment.bytes.start > MAX_MADE_SEGMENT_BYTES as u64;
    // Without an origin of the time stamps, cues cannot be placed.
    if index.bases().is_empty() || segments.is_empty() {
        return Ok(None);
    }
    let length = usize::try_from(index.data_bytes()).unwrap_or(usize::MAX).min(DESCRIBE_BYTES);
    let mut bytes = vec![0; length / TS_PACKET_BYTES * TS_PACKET_BYTES];
    site.read(&title.name, 0, &mut bytes)?;
    // Finding a page requires its whole segment; long segments therefore rule out teletext.
    let tracks = if segments.iter().any(is_long) { Vec::new() } else { tracks(&bytes, title) };
    let starts = segments.iter().map(|segment| index.time_of(segment.bytes.start).0);
    let times = starts.chain([index.duration().0]).map(u64::cast_signed).collect();
    let timeline = Timeline::new(Arc::clone(&index), 0);
    Ok(Some(Subtitled { tracks, segments, times, index, timeline }))
}

/// The pages that the tables name, in the title's own streams, each number once.
fn tracks(bytes: &[u8], title: &TitleInfo) -> Vec<SubtitlePage> {
    let mut tracks: Vec<SubtitlePage> = Vec::new();
    for page in announced(bytes) {
        let Some(number) = page.page.number() else { continue };
        let is_ours = title.streams.iter().any(|stream| stream.pid == page.pid);
        if is_ours && !tracks.iter().any(|track| track.number == number) {
            tracks.push(SubtitlePage {
                number,
                pid: page.pid,
                page: page.page,
                language: page.language.filter(|language| language != "und"),
                is_for_hearing_impaired: page.is_for_hearing_impaired,
            });
        }
    }
    tracks
}

impl Subtitled {
    /// When a segment begins; of the number behind the last one, when that ends.
    pub(crate) fn time(&self, number: usize) -> i64 {
        self.times[number.min(self.segments.len())]
    }

    /// The segments around this one between which time stamps do not jump.
    pub(crate) fn part(&self, number: usize) -> Range<usize> {
        let jumps = |at: &usize| self.segments[*at].is_jump;
        let start = (1..=number).rev().find(jumps).unwrap_or(0);
        let end = (number + 1..self.segments.len()).find(jumps).unwrap_or(self.segments.len());
        start..end
    }

    /// Returns a time of the title in whole milliseconds, and the time stamp of the content shown
    /// then in the segment: its part begins about there.
    pub(crate) fn origin(&self, number: usize) -> StampOrigin {
        let start = self.segments[number].bytes.start;
        let packet = TS_PACKET_BYTES as u64;
        let bases = self.index.bases();
        let at = bases.partition_point(|base| base.byte / packet * packet <= start).saturating_sub(1);
        let (time, first) = (bases[at].time.0, bases[at].first_pts);
        StampOrigin { local_ms: time / 90, stamp: (first + PTS_MODULUS - time % 90) % PTS_MODULUS }
    }
}
