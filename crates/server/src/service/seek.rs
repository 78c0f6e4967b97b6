//! Which media time a place means that a viewer names.
//!
//! Media time counts from the title's first packet. Most players ask in it. FFmpeg, and all that is built on it, adds the
//! stream's start time to the place that its user asks for: the lowest first presentation time stamp (PTS) of sound and
//! picture, whatever the server has announced. So it asks for 5010 s in a recording whose PTS begin at 5000 s, and for a time
//! below 0 where they wrap within the first minute. ffplay asks by the PTS that it shows at the moment, which after a jump
//! of the source's clock counts from another origin.

use millrace_core::time::{Instant, MediaTicks};

use super::stream::PlaybackStream;

/// Where a viewer wants to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// Where it is.
    Here,
    /// At the beginning of the title.
    Beginning,
    /// At the end of the title. Like a position after it, this plays from the last access point.
    End,
    /// At this many ticks; players that add their stream's start time to the requested time may go
    /// below 0.
    At(i64),
}

/// The part that a viewer wants to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// From here.
    pub from: From,
    /// Until here; `None`: to the end of the title.
    pub to: Option<MediaTicks>,
    /// Both count from 1970 (UTC), not from the beginning of the title.
    pub is_clock: bool,
}

impl Span {
    /// Returns the same span as it is meant in this direction. For playing backwards, some players
    /// name the two ends in their order in the title; live555's server accepts both orders, too.
    pub(super) fn in_direction(self, is_reverse: bool) -> Self {
        match self {
            Self { from: From::At(from), to: Some(to), is_clock }
                if is_reverse && (0..to.0.cast_signed()).contains(&from) =>
            {
                let (from, to) = (From::At(to.0.cast_signed()), Some(MediaTicks(from.cast_unsigned())));
                Self { from, to, is_clock }
            }
            as_asked => as_asked,
        }
    }
}

/// Where a range begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sought {
    /// In the title: from 0 to its end.
    pub(super) time: MediaTicks,
    /// The offset that the player adds to media times.
    offset: i64,
}

impl Sought {
    /// This place in the title.
    pub(super) fn at(time: MediaTicks) -> Self {
        Self { time, offset: 0 }
    }

    /// The end of the range in media time, counted as its start is; `None` if that is not behind the start in this direction.
    pub(super) fn end(self, asked: MediaTicks, is_reverse: bool) -> Option<MediaTicks> {
        let end = asked.0.cast_signed() - self.offset;
        if is_reverse {
            let end = end.max(0).cast_unsigned();
            return (end < self.time.0).then_some(MediaTicks(end));
        }
        let end = u64::try_from(end).ok()?;
        (end > self.time.0).then_some(MediaTicks(end))
    }
}

/// Returns the media time that `asked` means. For players that count in stamps it is always counted
/// in stamps, for others only if it is not within the title otherwise. A time that is outside even
/// then is moved to the title's end or beginning.
pub(super) fn locate(stream: &PlaybackStream, now: Instant, asked: i64, in_stamps: bool) -> Sought {
    let end = stream.entry.end().0.cast_signed();
    // FFmpeg first plays from 0, before it knows any stamp.
    let in_stamps = in_stamps && !(asked == 0 && stream.is_fresh());
    let is_in_title = |time: &i64| (0..end).contains(time);
    let time = if !in_stamps && is_in_title(&asked) {
        asked
    } else {
        let playing = || stream.position(now).unwrap_or_default();
        let counted = stream.entry.presentation.time_of(asked, playing, end);
        counted.filter(|time| in_stamps || is_in_title(time)).unwrap_or(asked)
    };
    Sought { time: MediaTicks(time.clamp(0, end).cast_unsigned()), offset: asked - time }
}
