//! Counters of each title: summed up on the control thread from events, shown to readers of the
//! registry.
//!
//! As many titles as [`MAX_TITLE_SHEETS`] have a line of their own. One more gets the line of the
//! title that has been without viewers for the longest time, whose sums go over to the line of all
//! others. While every title that has a line is being watched, the new one is counted in the line
//! of all others itself.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use millrace_core::counters::Group;

use crate::limits::control::MAX_TITLE_SHEETS;
use crate::service::{Playing, ServiceEvent};

millrace_core::counters! {
    /// The data sent of a title, and the number of its viewers.
    pub struct TitleCounters {
        /// Sessions that have it now, playing or not, and viewers who fetch its segments.
        gauge viewers,
        /// Sessions that were set up for it, and viewers who began to fetch its segments.
        sum sessions,
        /// Media packets sent, in runs that are over: a run ends with a pause, a seek, its range or its session.
        sum packets,
        /// Their bytes, and those of segments of fragmented MP4.
        sum bytes,
        /// Packets of these runs that were left out because they are damaged, or lost and left to FEC.
        sum missing,
        /// Seeks and plays from a given time.
        sum seeks,
    }
}

/// What stands for all titles that have no line of their own. No title has such a name.
const OTHERS: &str = "(others)";

/// All sums.
#[derive(Debug, Default)]
pub(super) struct TitleTotals {
    /// Sessions of each title that has any, with a line or without.
    viewers: HashMap<String, u64>,
    lines: Vec<CountedTitle>,
    by_name: HashMap<String, usize>,
    others: TitleCounters,
    /// Counts the times that a title was left by its last viewer.
    departures: u64,
    /// Something is not shown as it is now.
    has_changed: bool,
}

#[derive(Debug)]
struct CountedTitle {
    name: String,
    counters: TitleCounters,
    /// The departure of its last viewer: the smaller, the longer ago.
    left: u64,
}

impl TitleTotals {
    /// Counts an event.
    pub(super) fn count(&mut self, event: &ServiceEvent) {
        match event {
            ServiceEvent::Started { title, .. } | ServiceEvent::FetchBegan { title, .. } => {
                *self.viewers.entry(title.clone()).or_default() += 1;
                self.give_line(title);
                self.change(title, |counters| counters.sessions += 1);
            }
            ServiceEvent::Closed { title, .. } | ServiceEvent::FetchEnded { title, .. } => {
                if let Some(viewers) = self.viewers.get_mut(title) {
                    *viewers -= 1;
                    if *viewers == 0 {
                        self.viewers.remove(title);
                        self.departures += 1;
                    }
                }
                self.change(title, |_| {});
            }
            ServiceEvent::Playing(Playing { seek: true, title, .. }) => {
                self.change(title, |counters| counters.seeks += 1);
            }
            ServiceEvent::Sent { title, packets, bytes, missing } => self.change(title, |counters| {
                counters.packets += packets;
                counters.bytes += bytes;
                counters.missing += missing;
            }),
            _ => {}
        }
    }

    /// Changes the counters of a title where they stand.
    fn change(&mut self, title: &str, change: impl FnOnce(&mut TitleCounters)) {
        self.has_changed = true;
        let line = self.by_name.get(title).and_then(|&index| self.lines.get_mut(index));
        let Some(line) = line else { return change(&mut self.others) };
        change(&mut line.counters);
        line.counters.viewers = self.viewers.get(title).copied().unwrap_or(0);
        line.left = self.departures;
    }

    /// Gives a line to a title with a viewer, if one is free or can come from a title without
    /// viewers.
    fn give_line(&mut self, title: &str) {
        if self.by_name.contains_key(title) {
            return;
        }
        let (name, counters) = (title.to_owned(), TitleCounters::ZERO);
        let line = CountedTitle { name, counters, left: self.departures };
        let index = if self.lines.len() < MAX_TITLE_SHEETS {
            self.lines.push(line);
            self.lines.len() - 1
        } else {
            let unwatched = self.lines.iter().enumerate().filter(|(_, line)| line.counters.viewers == 0);
            let Some((index, _)) = unwatched.min_by_key(|(_, line)| line.left) else { return };
            let old = std::mem::replace(&mut self.lines[index], line);
            self.by_name.remove(&old.name);
            let TitleCounters { viewers: _, sessions, packets, bytes, missing, seeks } = old.counters;
            self.others.sessions += sessions;
            self.others.packets += packets;
            self.others.bytes += bytes;
            self.others.missing += missing;
            self.others.seeks += seeks;
            index
        };
        self.by_name.insert(title.to_owned(), index);
    }

    /// Shows how things stand.
    pub(super) fn publish(&mut self, sheets: &TitleSheets) {
        if !std::mem::take(&mut self.has_changed) {
            return;
        }
        let all: u64 = self.viewers.values().sum();
        let shown: u64 = self.lines.iter().map(|line| line.counters.viewers).sum();
        self.others.viewers = all.saturating_sub(shown);
        let others = (self.others != TitleCounters::ZERO).then(|| (OTHERS.to_owned(), self.others));
        let lines = self.lines.iter().map(|line| (line.name.clone(), line.counters));
        let lines = lines.chain(others).collect();
        *sheets.lock() = lines;
    }
}

/// Where the control thread shows the counters of titles, twice a second, and others read them.
#[derive(Debug, Default)]
pub struct TitleSheets {
    lines: Mutex<Vec<(String, TitleCounters)>>,
}

impl TitleSheets {
    /// Every line with the title's name, as it was shown last; that of all others only if there are any.
    pub fn read(&self) -> Vec<(String, TitleCounters)> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(String, TitleCounters)>> {
        // They are only ever replaced as a whole: a panic elsewhere cannot leave them half written.
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[path = "titles_tests.rs"]
mod tests;
