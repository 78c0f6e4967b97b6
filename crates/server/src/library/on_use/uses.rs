//! Which titles that were made on use are in use, and when each was last.

use std::collections::HashMap;

use millrace_core::ids::TitleId;
use millrace_core::time::Instant;

#[derive(Clone, Copy, Debug, Default)]
struct Use {
    viewers: usize,
    /// Since 1970.
    last: Instant,
    /// `last` is not written down yet.
    is_news: bool,
    /// It is being removed.
    is_leaving: bool,
}

/// One line for each such title that was used or is being removed. Times are since 1970.
#[derive(Debug, Default)]
pub struct Uses {
    titles: HashMap<TitleId, Use>,
}

impl Uses {
    /// One more viewer; `false`: it is being removed.
    pub fn begin(&mut self, id: TitleId, now: Instant) -> bool {
        let title = self.titles.entry(id).or_default();
        if !title.is_leaving {
            title.viewers += 1;
            (title.last, title.is_news) = (now, true);
        }
        !title.is_leaving
    }

    /// One viewer less. Titles that are not known here are none that were made on use.
    pub fn end(&mut self, id: TitleId, now: Instant) {
        if let Some(title) = self.titles.get_mut(&id) {
            title.viewers = title.viewers.saturating_sub(1);
            (title.last, title.is_news) = (now, true);
        }
    }

    /// Returns whether it has viewers.
    pub fn has_viewers(&self, id: TitleId) -> bool {
        self.titles.get(&id).is_some_and(|title| title.viewers > 0)
    }

    /// When it was used last; `None`: not since the start.
    pub fn last(&self, id: TitleId) -> Option<Instant> {
        self.titles.get(&id).map(|title| title.last).filter(|last| last.0 > 0)
    }

    /// Claims it for removal: no viewer gets it from now on. `false`: it has viewers.
    pub fn claim(&mut self, id: TitleId) -> bool {
        let title = self.titles.entry(id).or_default();
        title.is_leaving = title.viewers == 0;
        title.is_leaving
    }

    /// It stays after all.
    pub fn release(&mut self, id: TitleId) {
        if let Some(title) = self.titles.get_mut(&id) {
            title.is_leaving = false;
        }
    }

    /// Drops the lines of titles that are gone.
    pub fn keep_only(&mut self, is_there: impl Fn(TitleId) -> bool) {
        self.titles.retain(|id, title| title.viewers > 0 || is_there(*id));
    }

    /// Returns the titles that were used since the last call, or are in use, and when.
    pub fn take_news(&mut self, now: Instant) -> Vec<(TitleId, Instant)> {
        let mut news = Vec::new();
        for (id, title) in &mut self.titles {
            if title.viewers > 0 {
                (title.last, title.is_news) = (now, true);
            }
            if std::mem::take(&mut title.is_news) {
                news.push((*id, title.last));
            }
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILM: TitleId = TitleId([1; 16]);
    const OTHER: TitleId = TitleId([2; 16]);

    #[test]
    fn uses_claim_and_begin_exclude_each_other() {
        let mut uses = Uses::default();
        assert!(uses.begin(FILM, Instant(1)) && uses.begin(FILM, Instant(2)));
        uses.end(FILM, Instant(3));
        assert!(!uses.claim(FILM) && uses.has_viewers(FILM));
        assert!(uses.begin(FILM, Instant(4)), "it was not claimed");
        uses.end(FILM, Instant(5));
        uses.end(FILM, Instant(6));
        assert!(uses.claim(FILM) && !uses.begin(FILM, Instant(7)));
        assert_eq!(uses.last(FILM), Some(Instant(6)), "nobody got it");
        uses.release(FILM);
        assert!(uses.begin(FILM, Instant(8)));
        assert!(uses.claim(OTHER) && uses.last(OTHER).is_none());
        uses.end(OTHER, Instant(9));
        uses.keep_only(|_| false);
        assert!(uses.has_viewers(FILM) && uses.begin(OTHER, Instant(9)));
    }

    #[test]
    fn take_news_reports_ended_use_once_and_ongoing_use_repeatedly() {
        let mut uses = Uses::default();
        uses.begin(FILM, Instant(1));
        uses.begin(OTHER, Instant(2));
        uses.end(OTHER, Instant(3));
        let mut news = uses.take_news(Instant(10));
        news.sort_by_key(|(id, _)| id.0);
        assert_eq!(news, [(FILM, Instant(10)), (OTHER, Instant(3))]);
        assert_eq!(uses.take_news(Instant(20)), [(FILM, Instant(20))]);
        uses.end(FILM, Instant(25));
        assert_eq!(uses.take_news(Instant(30)), [(FILM, Instant(25))]);
        assert_eq!(uses.take_news(Instant(40)), []);
    }
}
