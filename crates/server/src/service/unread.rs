//! Titles made of others that could not be read: whoever asks for their speed has the nearest other one until they may have been repaired.

use std::collections::VecDeque;

use millrace_core::limits::trick::{MAX_UNREAD, UNREAD_NS};
use millrace_core::time::Instant;
use millrace_offload::command::FailReason;

use super::Service;
use super::event::Event;
use super::stream::StreamKey;

/// The last ones, the oldest first: their names, and when a viewer came to what cannot be read.
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
}

impl Service {
    /// A stream has failed. It ends all the same: its viewer was told a speed and a range, and RTSP has no word for others while it plays.
    pub(super) fn note_unread(&mut self, now: Instant, key: StreamKey, reason: FailReason) {
        let Some(stream) = self.streams.get(&key) else { return };
        let made = stream.trick(stream.scale()).filter(|_| matches!(reason, FailReason::ReadError(_)));
        let Some(title) = made.map(|made| made.entry.name.clone()) else { return };
        self.unread.note(now, title.clone());
        let reason = format!("{reason}; viewers get the nearest other speed for ten minutes");
        self.tell(Event::Broken { title, reason });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_remembered_for_a_while() {
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
