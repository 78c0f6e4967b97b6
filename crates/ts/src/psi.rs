//! Contents of the tables: the programmes, and the streams of each.
//!
//! `millrace-media` parses the same tables for the store. These parsers stay separate on purpose: they
//! judge streams that were made with the other ones.

use std::collections::BTreeMap;

use crate::analyser::{Analyser, Role};
use crate::check::FindingKind;
use crate::limits::MAX_PROGRAMS;
use crate::section::{LongSection, PmtEntry, crc32, pat_entries, pmt_entries};
use crate::timed::TimedEvent;

/// Which content a section had, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Issue {
    version: u8,
    crc: [u8; 4],
    epoch: u32,
}

impl Issue {
    fn of(table: &LongSection<'_>, section: &[u8], epoch: u32) -> Self {
        let crc = section.last_chunk().copied().unwrap_or_default();
        Self { version: table.version, crc, epoch }
    }
}

/// A programme of the PAT.
#[derive(Debug)]
pub(crate) struct PatProgram {
    pub(crate) number: u16,
    pub(crate) pmt: u16,
    /// PID of the clock references, once a PMT has named it.
    pub(crate) clock: Option<u16>,
    pub(crate) streams: Vec<PmtEntry>,
    issue: Option<Issue>,
}

/// All tables.
#[derive(Debug, Default)]
pub(crate) struct Psi {
    /// The sections of the PAT, and their entries.
    pat: BTreeMap<u8, (Issue, Vec<(u16, u16)>)>,
    pub(crate) programs: BTreeMap<u16, PatProgram>,
    pub(crate) has_cat: bool,
}

impl Analyser {
    /// Takes a whole section.
    pub(crate) fn section(&mut self, pid: u16, section: &[u8]) {
        let table = section[0];
        let has_crc = section[1] & 0x80 != 0 || table == 0x73;
        if has_crc && crc32(section) != 0 {
            return self.found(Some(pid), FindingKind::WrongCrc { table });
        }
        match (pid, table) {
            (0, 0) | (_, 2) if !has_crc || section.len() < 12 => {
                self.found(Some(pid), FindingKind::BadSection { what: "a table without its header" });
            }
            (0, 0) => self.pat(section),
            (0, _) => self.found(Some(0), FindingKind::PatTable { table }),
            (1, 1) => self.psi.has_cat = true,
            (1, _) => self.found(Some(1), FindingKind::CatTable { table }),
            (0x10..=0x14, _) => {}
            (_, 2) => self.pmt(pid, section),
            _ => {}
        }
    }

    fn event(&mut self, event: TimedEvent) {
        self.timed.push(self.packets, self.at, event);
    }

    /// Returns whether a section is unchanged; reports a change.
    fn is_known(&mut self, pid: u16, table: u8, program: u16, old: Option<Issue>, new: Issue) -> bool {
        let Some(old) = old else { return false };
        let is_known = (old.version, old.crc) == (new.version, new.crc);
        let version = new.version;
        if old.version != new.version {
            self.found(Some(pid), FindingKind::NewVersion { table, program, version });
        } else if !is_known && old.epoch == new.epoch {
            self.found(Some(pid), FindingKind::SameVersion { table, program, version });
        }
        is_known
    }

    fn pat(&mut self, section: &[u8]) {
        let Some(table) = LongSection::parse(section) else { return };
        self.event(TimedEvent::Pat);
        if !table.is_current {
            return;
        }
        let issue = Issue::of(&table, section, self.epoch);
        // A new version begins with any of its sections.
        let before = self.psi.pat.get(&table.number).map(|(issue, _)| *issue);
        let other = self.psi.pat.values().next().map(|(issue, _)| *issue);
        let is_new_version = other.is_some_and(|other| other.version != issue.version);
        if self.is_known(0, 0, table.extension, before, issue) {
            return self.mark_pat(table.number);
        }
        if is_new_version {
            self.psi.pat.clear();
        }
        self.psi.pat.insert(table.number, (issue, pat_entries(&table)));
        let named: BTreeMap<u16, u16> =
            self.psi.pat.values().flat_map(|(_, entries)| entries.iter().copied()).collect();
        if named.len() > MAX_PROGRAMS {
            self.found(Some(0), FindingKind::TooMany { what: "programmes" });
        }
        let named: BTreeMap<_, _> = named.into_iter().take(MAX_PROGRAMS).collect();
        let gone = |(number, program): (&u16, &PatProgram)| {
            (named.get(number) != Some(&program.pmt)).then_some(*number)
        };
        let gone: Vec<u16> = self.psi.programs.iter().filter_map(gone).collect();
        gone.into_iter().for_each(|number| self.remove(number));
        for (number, pmt) in named {
            let mut is_new = false;
            self.psi.programs.entry(number).or_insert_with(|| {
                is_new = true;
                PatProgram { number, pmt, clock: None, streams: Vec::new(), issue: None }
            });
            if is_new {
                self.event(TimedEvent::Program { program: number, pid: pmt, is_there: true });
            }
            self.pids[usize::from(pmt)].get_or_insert_default().is_pmt = true;
        }
    }

    /// It was there in this stretch of the stream.
    fn mark_pat(&mut self, number: u8) {
        let epoch = self.epoch;
        if let Some((issue, _)) = self.psi.pat.get_mut(&number) {
            issue.epoch = epoch;
        }
    }

    fn remove(&mut self, number: u16) {
        let Some(program) = self.psi.programs.remove(&number) else { return };
        self.event(TimedEvent::Program { program: number, pid: program.pmt, is_there: false });
        self.release(number, &program.streams);
        let is_used = self.psi.programs.values().any(|other| other.pmt == program.pmt);
        if let Some(pid) = self.pids[usize::from(program.pmt)].as_mut().filter(|_| !is_used) {
            pid.is_pmt = false;
        }
    }

    fn release(&mut self, number: u16, streams: &[PmtEntry]) {
        for stream in streams {
            if let Some(pid) = &mut self.pids[usize::from(stream.pid)]
                && pid.role.is_some_and(|role| role.program == number)
            {
                pid.role = None;
            }
        }
    }

    fn pmt(&mut self, pid: u16, section: &[u8]) {
        let Some(table) = LongSection::parse(section) else { return };
        let number = table.extension;
        let Some(program) = self.psi.programs.get_mut(&number).filter(|program| program.pmt == pid) else {
            return;
        };
        let issue = Issue::of(&table, section, self.epoch);
        let before = if table.is_current { program.issue.replace(issue) } else { program.issue };
        self.event(TimedEvent::Pmt { program: number });
        if !table.is_current || self.is_known(pid, 2, number, before, issue) {
            return;
        }
        let Some((clock, streams)) = pmt_entries(&table) else {
            return self.found(Some(pid), FindingKind::BadSection { what: "a PMT whose lengths do not fit" });
        };
        let Some(program) = self.psi.programs.get_mut(&number) else { return };
        program.clock = Some(clock);
        let old = std::mem::replace(&mut program.streams, streams.clone());
        self.release(number, &old);
        let now = self.timed.now();
        for stream in streams {
            let state = self.pids[usize::from(stream.pid)].get_or_insert_default();
            // A stream that two programmes share is judged by the clock of the first.
            if state.role.is_none() {
                let was_there = old.iter().any(|old| old.pid == stream.pid);
                state.role = Some(Role { program: number, clock, stream });
                if !was_there {
                    state.seen_at = now;
                }
            }
        }
    }
}
