//! Which program's clock and pictures count: follows PAT and PMTs and chooses one program.
//!
//! The first program of the PAT is taken. Where its map table never comes (a recording of one program of a multiplex
//! often keeps the whole PAT), the first in PAT order of those whose table has come is taken, as soon as one of the
//! tables comes for the second time: tables repeat in turn, so by then every one that exists has been seen.

use millrace_media::psi::{self, Pmt, SectionAssembler};
use millrace_media::ts_packet::{PID_PAT, TsPacket};

use millrace_media::limits::MAX_PROGRAMS;

/// The news from a packet of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TableNews {
    /// A PAT section is complete.
    pub pat: bool,
    /// The chosen program's map table is complete.
    pub pmt: bool,
    /// Another program was chosen, or its map table has new content.
    pub changed: bool,
    /// PIDs to watch may have changed: ask [`Programs::table_pids`].
    pub pids_changed: bool,
}

#[derive(Clone, Debug)]
struct ProgramEntry {
    number: u16,
    table_pid: u16,
    pmt: Option<Pmt>,
    /// How often its table came.
    seen: u32,
}

/// The tables of a transport stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct Programs {
    pat: SectionAssembler,
    /// Sections of the PAT by number.
    sections: Vec<Option<psi::PatSection>>,
    programs: Vec<ProgramEntry>,
    tables: Vec<(u16, SectionAssembler)>,
    chosen: Option<usize>,
    wrong_crcs: u64,
}

impl Programs {
    /// PIDs on which tables are expected now.
    pub(crate) fn table_pids(&self) -> impl Iterator<Item = u16> {
        std::iter::once(PID_PAT).chain(self.programs.iter().map(|p| p.table_pid))
    }

    /// The chosen program's table.
    pub(crate) fn chosen(&self) -> Option<&Pmt> {
        self.programs.get(self.chosen?)?.pmt.as_ref()
    }

    /// The PID of the chosen program's table.
    pub(crate) fn chosen_table_pid(&self) -> Option<u16> {
        self.programs.get(self.chosen?).map(|program| program.table_pid)
    }

    /// Programs of the PAT.
    pub(crate) fn count(&self) -> usize {
        self.programs.len()
    }

    /// Whether any PAT was read.
    pub(crate) fn has_pat(&self) -> bool {
        !self.sections.is_empty()
    }

    /// Sections that were dropped because their CRC was wrong.
    pub(crate) fn wrong_crcs(&self) -> u64 {
        self.wrong_crcs
    }

    /// Takes a packet of one of [`Programs::table_pids`].
    pub(crate) fn push(&mut self, packet: TsPacket<'_>) -> TableNews {
        if packet.has_error() {
            return TableNews::default();
        }
        if packet.pid() == PID_PAT { self.push_pat(packet) } else { self.push_pmt(packet) }
    }

    /// No more will come, or waiting is over: chooses among what there is. Returns whether something was chosen.
    pub(crate) fn choose_now(&mut self) -> bool {
        if self.chosen().is_some() {
            return false;
        }
        self.chosen = self.programs.iter().position(|p| p.pmt.is_some());
        self.chosen.is_some()
    }

    fn push_pat(&mut self, packet: TsPacket<'_>) -> TableNews {
        let mut news = TableNews::default();
        let mut found = Vec::new();
        self.wrong_crcs += self.pat.push(packet, |bytes| found.extend(psi::parse_pat(bytes)));
        for section in found {
            news.pat = true;
            let at = usize::from(section.number);
            if self.sections.get(at).is_some_and(|s| s.as_ref() == Some(&section)) {
                continue;
            }
            self.sections.resize(usize::from(section.last_number).max(at) + 1, None);
            self.sections[at] = Some(section);
            news.pids_changed = true;
        }
        if news.pids_changed {
            news.changed = self.follow_new_pat();
        }
        news
    }

    /// Returns whether the chosen program is gone.
    fn follow_new_pat(&mut self) -> bool {
        let mut old = std::mem::take(&mut self.programs);
        let chosen = self.chosen.and_then(|at| old.get(at)).map(|p| p.number);
        let announced = self.sections.iter().flatten().flat_map(|s| &s.programs).take(MAX_PROGRAMS);
        for &(number, table_pid) in announced {
            let known = old.iter().position(|p| p.number == number && p.table_pid == table_pid);
            self.programs.push(match known {
                Some(at) => old.swap_remove(at),
                None => ProgramEntry { number, table_pid, pmt: None, seen: 0 },
            });
        }
        let programs = &self.programs;
        self.tables.retain(|(pid, _)| programs.iter().any(|p| p.table_pid == *pid));
        for program in programs {
            if !self.tables.iter().any(|(pid, _)| *pid == program.table_pid) {
                self.tables.push((program.table_pid, SectionAssembler::default()));
            }
        }
        self.chosen = chosen.and_then(|number| self.programs.iter().position(|p| p.number == number));
        chosen.is_some() && self.chosen.is_none()
    }

    fn push_pmt(&mut self, packet: TsPacket<'_>) -> TableNews {
        let mut news = TableNews::default();
        let pid = packet.pid();
        let Some((_, table)) = self.tables.iter_mut().find(|(p, _)| *p == pid) else { return news };
        let mut found = Vec::new();
        self.wrong_crcs += table.push(packet, |bytes| found.extend(psi::parse_pmt(bytes)));
        for pmt in found {
            let owner = self.programs.iter().position(|p| p.table_pid == pid && p.number == pmt.program);
            let Some(at) = owner else { continue };
            let program = &mut self.programs[at];
            let is_new = program.pmt.as_ref() != Some(&pmt);
            program.pmt = Some(pmt);
            program.seen = program.seen.saturating_add(1);
            if self.chosen.is_none() && (at == 0 || self.programs[at].seen > 1) {
                news.changed |= self.choose_now();
            } else {
                news.changed |= is_new && self.chosen == Some(at);
            }
            news.pmt |= self.chosen == Some(at);
        }
        news
    }
}

#[cfg(test)]
#[path = "program_tests.rs"]
mod tests;
