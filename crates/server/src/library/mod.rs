//! The titles that can be asked for, kept in step with folders and store while the server runs.
//!
//! | module | holds |
//! | --- | --- |
//! | [`watch`] | which files of a folder are titles that have come to rest |
//! | [`skipped`] | what was said of files and folders that were left out |
//! | [`open_titles`] | the titles of the store, as the control plane looks them up and opens them |

pub mod open_titles;
pub mod skipped;
pub mod watch;
