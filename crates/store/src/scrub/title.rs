//! One title: every byte of it on every member is read and held against hash, sums and code.

use crate::format::manifest::FileEntry;
use crate::repair::RepairError;
use crate::repair::reading::{Reading, Trouble};
use crate::repair::report::{RepairFinding, RepairOutcome};
use crate::repair::set::{TitleSet, Units};
use crate::repair::title::{MissingFiles, is_current, mend, stripe_sums};
use crate::repair::work::Work;
use crate::repair::{examine, rebuild_sums};

/// Findings of a scrub in one title.
#[derive(Default)]
struct ScrubFindings {
    /// By position.
    needs: Vec<MissingFiles>,
    /// Damaged files: in them even a packet whose sum is right may be wrong.
    suspects: Vec<(usize, Units)>,
    /// Files that cannot be made from the remaining data, by position and name.
    lost: Vec<(usize, String)>,
    /// Stripes whose parity is not that of the title, though every file is as it was ingested.
    contradictions: u64,
    /// Files that no member has any more, but that follow from media and parity.
    follow: Vec<String>,
}

/// Reads the title; repairs it if that is wanted.
pub(crate) fn scrub(set: &TitleSet, repairs: bool, work: &mut Work<'_>) -> Result<(), RepairError> {
    let look = look(set, work)?;
    let wrong = look.needs.iter().any(|need| !need.is_empty());
    if wrong && repairs {
        let done = work.progress.bytes_done;
        mend(set, &look.needs, &look.suspects, work)?;
        // Repairing reads the title once more: that is no progress.
        work.progress.bytes_done = done;
    } else if wrong && is_current(set, &MissingFiles::default(), work)? {
        // One that was removed meanwhile is not lost.
        look.report(set, work);
    }
    if !wrong && look.contradictions > 0 {
        let what = format!(
            "{} stripes have parity that does not match the data, although all files are as they were ingested",
            look.contradictions
        );
        for position in (0..set.homes.len()).filter(|&p| set.homes[p].is_some()).take(1) {
            found(set, position, None, what.clone(), RepairOutcome::Lost, work);
        }
    }
    Ok(())
}

fn look(set: &TitleSet, work: &mut Work<'_>) -> Result<ScrubFindings, RepairError> {
    let mut look = ScrubFindings::default();
    for position in (0..set.homes.len()).filter(|&p| set.homes[p].is_some()) {
        let shared = |file: &FileEntry| set.units_of(&file.name).is_none();
        look.needs.push(examine::read(set, position, shared, work)?);
    }
    for entry in set.manifest.files.iter().filter(|entry| set.units_of(&entry.name).is_none()) {
        let lacks =
            |need: &MissingFiles| need.whole || need.files.iter().any(|(name, _)| *name == entry.name);
        if look.needs.iter().all(lacks) {
            match rebuild_sums::follows(&entry.name) {
                true => look.follow.push(entry.name.clone()),
                false => look.lose_all(&entry.name),
            }
        }
    }
    look_at_stripes(set, &mut look, work)?;
    Ok(look)
}

/// One pass over media and parity.
fn look_at_stripes(set: &TitleSet, look: &mut ScrubFindings, work: &mut Work<'_>) -> Result<(), RepairError> {
    let start = work.progress.bytes_done;
    let files: Vec<(usize, Units)> = (0..set.homes.len())
        .filter(|&position| set.homes[position].is_some())
        .flat_map(|position| [(position, Units::Data), (position, Units::Parity)])
        .filter(|&(position, units)| set.entry(position, units).is_some())
        .collect();
    let Some(sums) = stripe_sums(set, &[], work)? else {
        // Nothing can be restored without the sums; the hashes still show which files are correct.
        look.follow_not();
        for (position, units) in files {
            let Some(entry) = set.entry(position, units) else { continue };
            let need = examine::read(set, position, |file| file.name == entry.name, work)?;
            look.add(need);
        }
        work.progress.bytes_done = start + set.stripes.media_bytes();
        return Ok(());
    };
    let mut reading = Reading::open(set, sums, work)?;
    let mut stripe = 0;
    while stripe < set.stripes.stripes() {
        let stripes = stripe..set.stripes.stripes().min(stripe.saturating_add(Reading::stripes_at_once(set)));
        stripe = stripes.end;
        let grid = reading.load(set, stripes.clone(), work)?;
        for stripe in stripes {
            let right = (0..set.stripes.k() + set.stripes.m()).all(|unit| grid.is_whole(stripe, unit));
            look.contradictions += u64::from(right && !grid.contradictions(stripe).is_empty());
        }
        for unsolved in grid.solve(None) {
            look.follow_not();
            for &(position, units) in &files {
                if unsolved.wrong & set.symbols(position, unsolved.stripe, units) != 0 {
                    look.lose(position, set.name(units));
                }
            }
        }
        work.progress.bytes_done =
            start + (u64::from(stripe) * set.stripes.stripe_bytes()).min(set.stripes.media_bytes());
        work.tell();
    }
    for (position, units) in files {
        let Some(entry) = set.entry(position, units) else { continue };
        let trouble = reading.trouble(position, units, &entry.blake3);
        look.judge(set, position, units, trouble);
    }
    Ok(())
}

impl ScrubFindings {
    /// Records a file that has no correct copy and cannot be made.
    fn lose_all(&mut self, name: &str) {
        self.lost.extend(self.needs.iter().map(|need| (need.position, name.to_owned())));
    }

    /// What should follow does not: something of media or parity is lost.
    fn follow_not(&mut self) {
        for name in std::mem::take(&mut self.follow) {
            self.lose_all(&name);
        }
    }

    fn lose(&mut self, position: usize, name: &str) {
        if !self.lost.iter().any(|(p, n)| *p == position && n == name) {
            self.lost.push((position, name.to_owned()));
        }
    }

    fn judge(&mut self, set: &TitleSet, position: usize, units: Units, trouble: Option<Trouble>) {
        let Some(what) = trouble.as_ref().and_then(Trouble::describe) else { return };
        self.suspects.push((position, units));
        let files = vec![(set.name(units).to_owned(), what)];
        self.add(MissingFiles { position, whole: false, files });
    }

    /// Adds the findings to those known of the same member; each file once.
    fn add(&mut self, found: MissingFiles) {
        let Some(need) = self.needs.iter_mut().find(|need| need.position == found.position) else { return };
        for (name, what) in found.files {
            if !need.whole && !need.files.iter().any(|(known, _)| *known == name) {
                need.files.push((name, what));
            }
        }
    }

    /// For those who only want to look.
    fn report(&self, set: &TitleSet, work: &mut Work<'_>) {
        for need in self.needs.iter().filter(|need| !need.is_empty()) {
            let is_lost = |name: &str| self.lost.iter().any(|(p, n)| *p == need.position && n == name);
            if need.whole {
                let lost = self.lost.iter().any(|(position, _)| *position == need.position);
                let fate = if lost { RepairOutcome::Lost } else { RepairOutcome::Repairable };
                found(set, need.position, None, "is missing".to_owned(), fate, work);
            }
            for (name, what) in &need.files {
                let fate = if is_lost(name) { RepairOutcome::Lost } else { RepairOutcome::Repairable };
                found(set, need.position, Some(name), what.clone(), fate, work);
            }
        }
    }
}

fn found(
    set: &TitleSet,
    position: usize,
    file: Option<&str>,
    what: String,
    fate: RepairOutcome,
    work: &mut Work<'_>,
) {
    let Some(dir) = set.dir(position) else { return };
    let path = file.map_or_else(|| dir.clone(), |name| dir.join(name));
    let (title, name, member) = (set.id(), set.manifest.title.name.clone(), set.slot(position));
    work.report.found.push(RepairFinding { title, name, member, path, what, fate });
}

#[cfg(test)]
#[path = "title_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "rebuild_sums_tests.rs"]
mod rebuild_sums_tests;
