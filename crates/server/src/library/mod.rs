//! The titles that can be asked for, kept in step with folders and store while the server runs.
//!
//! | module | holds |
//! | --- | --- |
//! | [`watch`] | which files of a folder are titles that have come to rest |
//! | [`sidecars`] | subtitles that appear beside a film later |
//! | [`writers`] | which files other programs still write |
//! | [`skipped`] | the reports made about files and folders that were left out |
//! | [`open_titles`] | the titles of the store, as the control plane sees them |
//! | [`growing`] | recordings that are still being made, among them |
//! | [`reader`] | the control thread's access to them: looks them up, requests their opening |
//! | [`remote`] | titles that only a library has, and their fetches |
//! | `retry_timer` | when work that failed for a cause that may pass is tried again |
//! | [`on_use`] | which speeds viewers wish for, which titles were made so, and which of those go |
//! | `access` | index and packet times of one |
//! | `openers` | the threads that open them |

mod access;
pub mod growing;
pub mod on_use;
pub mod open_titles;
mod openers;
pub mod reader;
pub mod remote;
pub(crate) mod retry_timer;
pub mod sidecars;
pub mod skipped;
pub mod watch;
pub mod writers;
