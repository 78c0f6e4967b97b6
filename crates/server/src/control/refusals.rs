//! Whom the server has turned away lately and why, for operators who look.

use std::collections::VecDeque;

use crate::limits::control::MAX_REFUSALS_KEPT;
use crate::service::ServiceEvent;

/// One that was turned away, and those of the same second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TurnedAway {
    /// When, seconds since 1970.
    pub at_unix_s: u64,
    /// Who, from what, and why.
    pub what: String,
    /// How many more there were in that second.
    pub more: u64,
}

/// Returns whether a client was turned away.
pub(super) fn is_refusal(event: &ServiceEvent) -> bool {
    matches!(
        event,
        ServiceEvent::NoRoom { .. } | ServiceEvent::ConnectionRefused { .. } | ServiceEvent::Broken { .. }
    )
}

/// Who, from what, and why.
pub(super) fn words(event: &ServiceEvent) -> String {
    match event {
        ServiceEvent::NoRoom { peer, title, refusal } => format!("{title} for {peer}: {refusal}"),
        event => event.to_string(),
    }
}

/// The last ones: one of each second, so that a crowd costs nothing and hides nothing of before.
#[derive(Debug, Default)]
pub(super) struct Refusals(VecDeque<TurnedAway>);

impl Refusals {
    /// Keeps it if it is a refusal.
    pub(super) fn note(&mut self, at_unix_s: impl FnOnce() -> u64, event: &ServiceEvent) {
        if !is_refusal(event) {
            return;
        }
        let at_unix_s = at_unix_s();
        if let Some(last) = self.0.back_mut().filter(|last| last.at_unix_s == at_unix_s) {
            last.more += 1;
            return;
        }
        let what = words(event);
        if self.0.len() >= MAX_REFUSALS_KEPT {
            self.0.pop_front();
        }
        self.0.push_back(TurnedAway { at_unix_s, what, more: 0 });
    }

    /// The newest first.
    pub(super) fn list(&self) -> Vec<TurnedAway> {
        self.0.iter().rev().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::{Exhausted, Refusal};

    fn no_room(number: u16) -> ServiceEvent {
        let refusal = Refusal::Exhausted(Exhausted::Streams { max: 7 });
        ServiceEvent::NoRoom { peer: ([192, 0, 2, 1], number).into(), title: "film".to_owned(), refusal }
    }

    #[test]
    fn refusals_list_keeps_one_recent_entry_per_second() {
        let mut refusals = Refusals::default();
        refusals.note(|| 1, &ServiceEvent::IcmpHearsay);
        assert_eq!(refusals.list(), []);
        for second in 0..MAX_REFUSALS_KEPT as u64 + 5 {
            refusals.note(|| second, &no_room(1));
            refusals.note(|| second, &no_room(2));
        }
        let list = refusals.list();
        assert_eq!(list.len(), MAX_REFUSALS_KEPT);
        let what = "film for 192.0.2.1:1: all 7 streams are in use (--max-streams)".to_owned();
        assert_eq!(list[0], TurnedAway { at_unix_s: MAX_REFUSALS_KEPT as u64 + 4, what, more: 1 });
    }
}
