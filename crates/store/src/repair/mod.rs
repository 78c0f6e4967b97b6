//! `repair`: rebuilds missing or wrong data of a member from the others, title by title.
//!
//! All rebuilt data is written below the member's `tmp`, compared with the BLAKE3 in the manifest,
//! made durable and then renamed into place: a file of a title is never changed where it lies, and
//! bytes other than those ingested never enter a title. Data that cannot be rebuilt from the rest
//! is reported and nothing is touched.
//!
//! | file | does |
//! | --- | --- |
//! | `run` | a whole volume |
//! | `title` | one title: what its members lack is made and put in place |
//! | `examine` | the data that a member lacks of a title |
//! | `set` | a title as all its members together have it |
//! | `reading` | reads its stripes from all members |
//! | `out`, `shared`, `again` | the files that are made: units of one member, copies of files that all have, sums that have no copy left |
//! | `place` | where a title that is not there at all is made, and how a killed repair goes on |
//! | `work`, `pace` | how fast: the bound on bytes a second, and the wish to stop |
//! | `ask` | disks that do not answer |
//! | `report` | the findings and their outcome |

mod ask;
mod error;
pub(crate) mod examine;
#[cfg(test)]
pub(crate) mod hand_made;
mod out;
mod pace;
mod place;
pub(crate) mod reading;
pub(crate) mod rebuild_sums;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod set;
mod shared;
pub(crate) mod title;
pub(crate) mod work;

pub use error::RepairError;
pub use pace::Timekeeper;
pub use report::{RepairFinding, RepairOutcome, RepairProgress, RepairReport, RepairVerdict};
pub use run::{RepairOptions, repair};
pub use work::Setting;
