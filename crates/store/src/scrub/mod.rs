//! `scrub`: reads every byte of every member, finds what has changed since it was ingested, and repairs it.
//!
//! silent corruption is found by three things that know nothing of each other: the BLAKE3 of every file, the sum of every
//! packet of media and parity, and the code that ties the two together. What is repaired is written again below `tmp` and
//! renamed over the damaged file; a file is never changed where it lies.

mod title;

use crate::repair::run::{begin, each, end, next, titles};
use crate::repair::work::Work;
use crate::repair::{RepairError, Report, Setting};
use crate::volume::Volume;

/// How a scrub is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubOptions {
    /// Bytes a second that may be read and written, all members together; 0: as fast as the disks can.
    pub rate_bytes_per_s: u64,
    /// Whether damage is repaired; else it is only reported.
    pub mend: bool,
}

/// Reads every byte of every active member, and repairs what is wrong if that is wanted. A server may work with the volume
/// meanwhile.
///
/// # Errors
/// If a disk refuses to write, or the user wants to stop. What was repaired until then stays repaired.
pub fn scrub(volume: &Volume, options: &ScrubOptions, setting: Setting<'_>) -> Result<Report, RepairError> {
    let mut work = Work::new(setting, options.rate_bytes_per_s);
    volume.members().refresh();
    let mut titles = titles(volume, &mut work)?;
    for set in &mut titles {
        // A repair looks after the others.
        set.homes.iter_mut().for_each(|home| drop(home.take_if(|home| !home.active)));
    }
    begin(&titles, &mut work);
    for set in &titles {
        work.check()?;
        let start = work.progress.bytes_done;
        each(volume, set, &mut work, |set, work| title::scrub(set, options.mend, work))?;
        work.progress.bytes_done = start + set.stripes.media_bytes();
        next(&mut work);
    }
    Ok(end(volume, work))
}
