//! Made titles that could not be read or opened: a viewer that asks for their speed gets the
//! nearest other one, and the server sends their bit rate to no viewer, until they may have been
//! repaired.

use std::collections::VecDeque;

use millrace_core::time::Instant;
use millrace_offload::command::FailReason;

use super::event::ServiceEvent;
use super::keys::StreamKey;
use super::ports::OpenError;
use super::rendition::Renditions;
use super::state::Service;
use super::stream::PlaybackStream;
use crate::limits::trick::{MAX_UNREAD, UNREAD_NS};

/// The last ones, the oldest first: their names, and when a viewer reached the unreadable part.
#[derive(Debug, Default)]
pub(super) struct Unread(VecDeque<(String, Instant)>);

impl Unread {
    fn note(&mut self, now: Instant, name: String) {
        self.0.retain(|(other, _)| *other != name);
        if self.0.len() >= MAX_UNREAD {
            self.0.pop_front();
        }
        self.0.push_back((name, now));
    }

    pub(super) fn has(&self, now: Instant, name: &str) -> bool {
        self.0.iter().any(|(other, at)| other == name && now.ns_since(*at) < UNREAD_NS)
    }

    /// Whether the server may choose this one of a title's renditions.
    pub(super) fn allows(&self, now: Instant, all: &Renditions, rendition: usize) -> bool {
        all.made(rendition).is_none_or(|name| !self.has(now, name))
    }
}

impl Service {
    /// Records that a stream has failed. It ends all the same: a speed and a range were announced
    /// to its viewer, and RTSP cannot announce others while it plays.
    pub(super) fn note_unread(&mut self, now: Instant, key: StreamKey, reason: FailReason) {
        let Some(stream) = self.streams.get(&key) else { return };
        if !matches!(reason, FailReason::ReadError(_)) {
            return;
        }
        if stream.scale().is_normal() {
            return self.leave_alone(now, key, stream.renditions.sent);
        }
        let Some(title) = stream.trick(stream.scale()).map(|made| made.entry.name.clone()) else { return };
        self.unread.note(now, title.clone());
        let reason = format!("{reason}; viewers get the nearest other speed for ten minutes");
        self.tell(ServiceEvent::Broken { title, reason });
    }

    /// Records that a rendition of a stream's title could not be read or opened. A viewer that asks
    /// for it by name still gets it, if it is available.
    pub(super) fn leave_alone(&mut self, now: Instant, key: StreamKey, rendition: usize) {
        let made = self.streams.get(&key).and_then(|stream| stream.renditions.made(rendition));
        if let Some(title) = made.map(str::to_owned) {
            self.unread.note(now, title);
        }
    }

    /// Records that a title could not be opened when no request is refused for it: if it is a
    /// rendition, the server wanted it, and would want it again the next second.
    pub(super) fn note_unopened(&mut self, now: Instant, title: String, error: &OpenError) {
        let is_made = |stream: &PlaybackStream| stream.renditions.have_made(&title);
        if *error == OpenError::Full || !self.streams.values().any(is_made) {
            return;
        }
        self.unread.note(now, title.clone());
        let reason = format!("{error}; the server sends nobody this bit rate for ten minutes");
        self.tell(ServiceEvent::Broken { title, reason });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unread_keeps_latest_titles_until_they_expire() {
        let mut unread = Unread::default();
        (0..=MAX_UNREAD as u64).for_each(|n| unread.note(Instant(n), format!("film@{n}")));
        assert!(!unread.has(Instant(100), "film@0") && unread.has(Instant(100), "film@1"));
        // Once more: it counts from then on.
        unread.note(Instant(1_000), "film@1".to_owned());
        assert!(
            unread.has(Instant(UNREAD_NS + 999), "film@1") && !unread.has(Instant(UNREAD_NS + 999), "film@2")
        );
        assert!(!unread.has(Instant(UNREAD_NS + 1_000), "film@1"));
        assert_eq!(unread.0.len(), MAX_UNREAD);
    }
}
