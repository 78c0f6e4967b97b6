//! Made titles that could not be read or opened: a viewer that asks for their speed gets the
//! nearest other one, and the server sends their bit rate to no viewer, until they may have been
//! repaired.

use std::collections::VecDeque;

use millrace_core::time::Instant;

use super::rendition::Renditions;
use crate::limits::trick::{MAX_UNREAD, UNREAD_NS};

/// The last ones, the oldest first: their names, and when a viewer reached the unreadable part.
#[derive(Debug, Default)]
pub(super) struct Unread(VecDeque<(String, Instant)>);

impl Unread {
    pub(super) fn note(&mut self, now: Instant, name: String) {
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
