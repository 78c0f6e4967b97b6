//! Uploads in progress: `PUT /titles/NAME` makes a title of a film. A transport stream is written
//! as it arrives; other containers are spooled and converted. `handlers/upload.rs` answers requests.
//!
//! ```text
//!   connection ─► hyper ─► body ─► pace ─► room for a MiB ─► thread "upload": Site::take_in ─► ingest ─► volume
//!                            ▲                                     │
//!                            └────── nothing is read while there is no room, so the client waits
//! ```
//!
//! An upload outlives the connection that began it: its thread waits for another one to go on, for a time. Whatever ends it before its last byte, nothing
//! of it stays in the volume.
//!
//! | file | is about |
//! | --- | --- |
//! | `asked` | properties of the bytes that a request brings |
//! | `table` | uploads in progress, and their holders |
//! | `pace` | how fast they may come, and how slowly |
//! | `incoming` | the same bytes, as ingest reads them |

mod asked;
mod incoming;
mod pace;
mod table;

pub(crate) use self::asked::{UploadRange, check_name};
pub(crate) use self::pace::Stall;
pub(crate) use self::table::{Listed, Owner, Upload, UploadFeed, UploadOutcome, Uploads};
