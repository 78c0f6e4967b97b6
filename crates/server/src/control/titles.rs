//! Counters of each title: summed up on the control thread from what happens, shown to whoever reads the registry.
//!
//! So many titles have a line of their own ([`MAX_TITLE_SHEETS`]). One more gets the line of the title that nobody has watched for the longest
//! time, whose sums go over to the line of all others; while every title that has a line is being watched, it is counted there itself.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use millrace_core::counters::{Group, Sheet};
use millrace_core::limits::MAX_TITLE_NAME_BYTES;
use millrace_core::limits::control::{MAX_TITLE_SHEETS, TITLE_READ_TRIES};

use crate::service::{Event, Playing};

millrace_core::counters! {
    /// What was sent of a title, and to how many.
    pub struct TitleCounters {
        /// Sessions that have it now, playing or not.
        gauge viewers,
        /// Sessions that were set up for it.
        sum sessions,
        /// Media packets sent, in runs that are over: a run ends with a pause, a seek, its range or its session.
        sum packets,
        /// Their bytes.
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
pub(super) struct Titles {
    /// Sessions of each title that has any, with a line or without.
    viewers: HashMap<String, u64>,
    lines: Vec<Line>,
    by_name: HashMap<String, usize>,
    others: TitleCounters,
    /// Counts the times that a title was left by its last viewer.
    departures: u64,
}

#[derive(Debug)]
struct Line {
    name: String,
    counters: TitleCounters,
    /// The departure of its last viewer: the smaller, the longer ago.
    left: u64,
    /// It has not been shown as it is now.
    has_changed: bool,
}

impl Titles {
    /// Counts what has happened.
    pub(super) fn count(&mut self, event: &Event) {
        match event {
            Event::Started { title, .. } => {
                *self.viewers.entry(title.clone()).or_default() += 1;
                self.give_line(title);
                self.change(title, |counters| counters.sessions += 1);
            }
            Event::Closed { title, .. } => {
                if let Some(viewers) = self.viewers.get_mut(title) {
                    *viewers -= 1;
                    if *viewers == 0 {
                        self.viewers.remove(title);
                        self.departures += 1;
                    }
                }
                self.change(title, |_| {});
            }
            Event::Playing(Playing { seek: true, title, .. }) => {
                self.change(title, |counters| counters.seeks += 1);
            }
            Event::Sent { title, packets, bytes, missing } => self.change(title, |counters| {
                counters.packets += packets;
                counters.bytes += bytes;
                counters.missing += missing;
            }),
            _ => {}
        }
    }

    /// Changes the counters of a title where they stand.
    fn change(&mut self, title: &str, change: impl FnOnce(&mut TitleCounters)) {
        let line = self.by_name.get(title).and_then(|&index| self.lines.get_mut(index));
        let Some(line) = line else { return change(&mut self.others) };
        change(&mut line.counters);
        line.counters.viewers = self.viewers.get(title).copied().unwrap_or(0);
        line.left = self.departures;
        line.has_changed = true;
    }

    /// A line for a title that has a viewer, if one is free or can be taken from a title that has none.
    fn give_line(&mut self, title: &str) {
        if self.by_name.contains_key(title) {
            return;
        }
        let (name, counters) = (title.to_owned(), TitleCounters::ZERO);
        let line = Line { name, counters, left: self.departures, has_changed: true };
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
        for (line, sheet) in self.lines.iter_mut().zip(sheets.lines.iter()) {
            if std::mem::take(&mut line.has_changed) {
                sheet.show(&line.name, &line.counters);
            }
        }
        let all: u64 = self.viewers.values().sum();
        let shown: u64 = self.lines.iter().map(|line| line.counters.viewers).sum();
        self.others.viewers = all.saturating_sub(shown);
        sheets.others.publish(&self.others);
    }
}

/// Where the control thread shows the counters of titles, and others read them. Nobody waits for anybody.
#[derive(Debug)]
pub struct TitleSheets {
    lines: Box<[TitleSheet]>,
    others: Sheet<TitleCounters>,
}

impl Default for TitleSheets {
    fn default() -> Self {
        let lines = (0..MAX_TITLE_SHEETS).map(|_| TitleSheet::default()).collect();
        Self { lines, others: Sheet::default() }
    }
}

impl TitleSheets {
    /// Every line with the title's name, as it was shown last; that of all others only if there are any.
    pub fn read(&self) -> Vec<(String, TitleCounters)> {
        let others = self.others.read();
        let others = (others != TitleCounters::ZERO).then(|| (OTHERS.to_owned(), others));
        self.lines.iter().filter_map(TitleSheet::read).chain(others).collect()
    }
}

const NAME_WORDS: usize = MAX_TITLE_NAME_BYTES.div_ceil(8);

/// One line. Its name changes with its title, so whoever reads it checks that both are of one writing.
#[derive(Debug, Default)]
struct TitleSheet {
    /// 0: never written; odd: being written.
    version: AtomicU64,
    /// Bytes, with zeros behind them.
    name: [AtomicU64; NAME_WORDS],
    counters: Sheet<TitleCounters>,
}

impl TitleSheet {
    /// Only one thread writes.
    fn show(&self, name: &str, counters: &TitleCounters) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        let mut bytes = [0; NAME_WORDS * 8];
        bytes.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
        for (word, bytes) in self.name.iter().zip(bytes.as_chunks().0) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
        self.counters.publish(counters);
        self.version.store(version + 2, Ordering::Release);
    }

    /// `None` if it is not used, or is written again and again just now.
    fn read(&self) -> Option<(String, TitleCounters)> {
        for _ in 0..TITLE_READ_TRIES {
            let version = self.version.load(Ordering::Acquire);
            let name = self.name.each_ref().map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
            let counters = self.counters.read();
            fence(Ordering::Acquire);
            if version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version {
                let name = name.as_flattened();
                let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
                return (version > 0).then(|| (String::from_utf8_lossy(&name[..end]).into_owned(), counters));
            }
            std::thread::yield_now();
        }
        None
    }
}

#[cfg(test)]
#[path = "titles_tests.rs"]
mod tests;
