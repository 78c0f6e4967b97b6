//! A title is closed when its last user closes it and no connection may again need an extent that
//! it has returned ([`millrace_core::pool::Recall`]). A title that is fed is closed at once,
//! because its feeder waits for it.

use millrace_core::ids::TitleRef;
use millrace_core::time::Instant;

use super::super::handle::ReadFailure;
use super::super::source::OpenTitle;
use super::{Policy, ns};

impl Policy {
    /// Opens a title; `None`: too many are open.
    pub(in crate::cache) fn open_title(&mut self, title: OpenTitle) -> Option<TitleRef> {
        let title = self.titles.add(title)?;
        self.extent_table.arena().open_title(title);
        Some(title)
    }

    /// Closes a title: notifies its waiters, drops its extents and discards its reads in progress.
    /// If a connection may need its extents again, this happens later ([`Policy::next_closed`]).
    pub(in crate::cache) fn close_title(&mut self, now: Instant, title: TitleRef) {
        let is_last = self.titles.opened(title) == 1 && self.live_at(title).is_none();
        if is_last && !self.extent_table.arena().close_title(title) {
            if !self.closing.contains(&title) {
                self.closing.push(title);
            }
            return;
        }
        self.close_now(now, title);
    }

    /// Closes a title whose closing was deferred, and returns it.
    pub(in crate::cache) fn next_closed(&mut self, now: Instant) -> Option<TitleRef> {
        let (titles, arena) = (&self.titles, self.extent_table.arena());
        // Opened again meanwhile, it is closed once less.
        let may_close = |title: &TitleRef| titles.opened(*title) != 1 || arena.close_title(*title);
        let at = self.closing.iter().position(may_close)?;
        let title = self.closing.swap_remove(at);
        self.close_now(now, title);
        Some(title)
    }

    fn close_now(&mut self, now: Instant, title: TitleRef) {
        let Some(closed) = self.titles.remove(title) else { return };
        self.extent_table.arena().forget_title(title);
        self.positions -= closed.heads.places();
        self.extent_table.drop_title(title);
        self.close_live(now, title);
        // Nothing of it is waited for any more.
        self.serve_edge(now);
        for (key, waiter) in self.plan.forget_title(title) {
            self.answer(ns(now), key, &waiter, Err(ReadFailure::NoTitle));
        }
    }
}
