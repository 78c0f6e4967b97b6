//! A title, and the entry that is sent in its place: times of the one as times of the other.

use millrace_core::ids::TitleRef;
use millrace_core::packet::PacketMeta;
use millrace_core::scale::Scale;
use millrace_core::time::MediaTicks;

use super::ports::{AccessPoint, TitleEntry};
use super::run::Stop;

/// A title that was made of a stream's own, at another speed or bit rate, open for it.
#[derive(Debug)]
pub(super) struct SubstituteTitle {
    pub(super) entry: TitleEntry,
    pub(super) title: TitleRef,
}

/// A stream's title and the entry sent for it at one speed.
#[derive(Clone, Copy)]
pub(super) struct ShownEntry<'a> {
    /// The title that the viewer watches.
    title: &'a TitleEntry,
    /// The entry that is sent: the same, or one made from it.
    pub(super) sent: &'a TitleEntry,
}

impl<'a> ShownEntry<'a> {
    pub(super) fn new(title: &'a TitleEntry, sent: &'a TitleEntry) -> Self {
        Self { title, sent }
    }

    fn scale(self) -> Scale {
        self.sent.scale
    }

    /// The shown time of a media time.
    pub(super) fn shown_time(self, media: MediaTicks) -> MediaTicks {
        if self.scale().is_normal() { media } else { self.scale().shown_time(media, self.title.duration) }
    }

    /// The media time at which a shown time is.
    fn media_time(self, shown: MediaTicks) -> MediaTicks {
        if self.scale().is_normal() { shown } else { self.scale().own_time(shown, self.title.duration) }
    }

    /// Returns the access point for a shown time, in the entry that is sent.
    pub(super) fn access(self, shown: MediaTicks) -> AccessPoint {
        self.sent.access.access_at_or_before(self.media_time(shown))
    }

    /// Where it ends by itself: with the title, or backwards with its beginning.
    pub(super) fn end(self) -> Stop {
        let time = match self.scale().is_reverse() {
            true => MediaTicks(0),
            // No place of a recording that grows is behind its end.
            false if self.title.is_endless() => MediaTicks(PacketMeta::MAX_TICKS),
            false => self.title.end(),
        };
        Stop { packet: self.sent.packets, time }
    }

    /// The packet before which a span that ends at a shown time stops.
    pub(super) fn stop_at(self, time: MediaTicks) -> Stop {
        let end = self.end();
        let is_end = if self.scale().is_reverse() { time <= end.time } else { time >= end.time };
        if is_end {
            return end;
        }
        Stop { packet: self.sent.access.packet_at(self.media_time(time)).min(end.packet), time }
    }

    /// Returns the shown time once `seen` of the sent entry has been seen from `from` on.
    pub(super) fn after(self, from: MediaTicks, seen: MediaTicks, stop: Stop) -> MediaTicks {
        let moved = self.scale().speeded(seen).0;
        if self.scale().is_reverse() {
            MediaTicks(from.0.saturating_sub(moved)).max(stop.time)
        } else {
            MediaTicks(from.0.saturating_add(moved)).min(stop.time)
        }
    }
}
