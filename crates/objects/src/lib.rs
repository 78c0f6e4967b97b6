//! Titles in an object store: a bucket of S3 or of a server that speaks its protocol, or a directory that several machines
//! share. The object store keeps bytes; each machine's store is complete by itself and works without it.
//!
//! ```text
//!   t/<id>/data.ts           the title's transport stream, playable by any tool
//!   t/<id>/index.mri, meta-1316.mrp, crcs.mrc, sums.mrr, subtitles-*.vtt
//!   t/<id>/manifest.mrm      written last: name, lengths and checksums of all of the above
//! ```
//!
//! These are the files of a title on one disk (`docs/ref/store-format.md`), without parity. A title without a manifest does not
//! exist. Nothing that comes from an object store is trusted: every packet is compared with its CRC, every file with the
//! BLAKE3 in the manifest (`docs/design/0051-object-store.md`).
//!
//! | module | is about |
//! | --- | --- |
//! | `library_url` | the addresses: `s3://BUCKET/PREFIX`, `file:///DIR` |
//! | `access` | endpoint, region and credentials |
//! | `profile` | the files of the AWS programs that have them |
//! | `http` | the HTTP client below the S3 client |
//! | `library` | [`ObjectLibrary`]: its titles |
//! | `listing` | its titles, listed again and again |
//! | `publish` | titles on their way there |
//! | `upload` | parts of a large object, and the record of an interrupted upload |
//! | `fetch` | titles on their way to a store |
//! | `ranges` | ranges of an object, several on their way at once |
//! | `error` | causes and remedies |
//!
//! ## Where to read on
//!
//! | topic | read |
//! | --- | --- |
//! | titles in an object store | `docs/design/0051-object-store.md`, `crates/objects/src/lib.rs`; commands: `crates/server/src/cmds/publish.rs`, `crates/server/src/cmds/fetch.rs` |
#![forbid(unsafe_code)]

mod access;
mod error;
mod fetch;
mod http;
mod library;
mod library_url;
pub mod limits;
mod listing;
mod profile;
mod publish;
mod ranges;
mod upload;

pub use access::{AccessOptions, Addressing, Environment};
pub use error::ObjectError;
pub use library::{LibraryListing, ObjectLibrary, TransferProgress};
pub use library_url::LibraryUrl;
pub use listing::{LibraryIndex, PublishedTitle, UnusableManifests};
pub use profile::{ProfileValues, parse_profile};
pub use publish::Published;
pub use upload::UploadRecord;
