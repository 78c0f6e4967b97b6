//! `scrub`: reads every byte of every member, finds changes since the ingest, and repairs them.
//!
//! Silent corruption is found by three independent checks: the BLAKE3 of every file, the sum of
//! every packet of media and parity, and the code that ties the two together. Repaired data is
//! written again below `tmp` and renamed over the damaged file; a file is never changed where it
//! lies.

mod title;

use millrace_core::ids::TitleId;

use crate::repair::run::{begin, each, end, next, titles};
use crate::repair::work::Work;
use crate::repair::{RepairError, RepairOutcome, RepairReport, Setting};
use crate::volume::Volume;

/// How a scrub is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubOptions {
    /// Bytes a second that may be read and written, all members together; 0: as fast as the disks can.
    pub rate_bytes_per_s: u64,
    /// Whether damage is repaired; else it is only reported.
    pub mend: bool,
}

/// Reads every byte of every active member, and repairs damage if requested, beginning with the
/// titles in which serving found damage. Those that are whole then are no longer listed as damaged.
/// A server may use the volume meanwhile.
///
/// # Errors
/// If a disk refuses to write, or the user wants to stop. Repairs completed until then are kept.
pub fn scrub(
    volume: &Volume,
    options: &ScrubOptions,
    setting: Setting<'_>,
) -> Result<RepairReport, RepairError> {
    let mut work = Work::new(setting, options.rate_bytes_per_s);
    volume.members().refresh();
    let (damaged, mut titles) = (volume.damaged_titles(), titles(volume, &mut work)?);
    titles.sort_by_key(|set| !damaged.contains(&set.id()));
    let removed = |id: &TitleId| {
        titles.iter().all(|set| set.id() != *id) && work.report.found.iter().all(|found| found.title != *id)
    };
    let removed: Vec<_> = damaged.iter().copied().filter(removed).collect();
    for set in &mut titles {
        // A repair looks after the others.
        set.homes.iter_mut().for_each(|home| drop(home.take_if(|home| !home.active)));
    }
    begin(&titles, &mut work);
    for set in &titles {
        work.check()?;
        let start = work.progress.bytes_done;
        let known = work.report.found.len();
        each(volume, set, &mut work, |set, work| title::scrub(set, options.mend, work))?;
        let is_whole = set.homes.iter().all(Option::is_some)
            && work.given_up().is_empty()
            && work.report.found[known..].iter().all(|found| found.fate == RepairOutcome::Repaired);
        if options.mend && is_whole && damaged.contains(&set.id()) {
            volume.forget_damaged(&[set.id()]);
        }
        work.progress.bytes_done = start + set.stripes.media_bytes();
        next(&mut work);
    }
    let report = end(volume, work);
    if options.mend && report.absent.is_empty() && !removed.is_empty() {
        volume.forget_damaged(&removed);
    }
    Ok(report)
}
