//! Bounds of this crate, each with its reason. Relations between them are asserted.

use std::time::Duration;

use millrace_core::limits::DEFAULT_PACKET_BYTES;

/// Bytes of one request for a range: whole default-size packets, and large enough that a round trip of 100 ms costs little at 1 Gb/s.
pub const RANGE_BYTES: u64 = 6_400 * DEFAULT_PACKET_BYTES as u64;
/// Ranges that are requested before they are needed: one connection to S3 carries some 80 MB/s.
pub const RANGES_AHEAD: usize = 4;
/// Smallest part of an upload: S3 takes 5 MiB and more.
pub const PART_BYTES: u64 = 16 << 20;
/// Most parts of an upload (S3). Longer titles have larger parts.
pub const MAX_PARTS: u64 = 10_000;
/// Parts on their way at once; with the one being read, 80 MiB of memory for titles up to 160 GB.
pub const PARTS_AHEAD: usize = 4;
/// Longest object (S3: 5 TiB).
pub const MAX_OBJECT_BYTES: u64 = 5 << 40;
/// Titles of a library that are listed: each costs a request and some kilobytes of memory.
pub const MAX_LISTED_TITLES: usize = 100_000;
/// Objects of a library that are listed: a title has about six.
pub const MAX_LISTED_OBJECTS: usize = 16 * MAX_LISTED_TITLES;
/// Manifests requested at once.
pub const MANIFESTS_AHEAD: usize = 16;
/// Time to resolve a name and to connect.
pub const CONNECT_TIME: Duration = Duration::from_secs(10);
/// Time from a request to the head of its response; S3 takes up to some seconds to complete a large upload.
pub const RESPONSE_TIME: Duration = Duration::from_secs(60);
/// Time within which the next bytes of a body must come: a connection that carries less is given up and opened again.
pub const BODY_TIME: Duration = Duration::from_secs(20);
/// How long a request is repeated when the object store is overloaded or out of reach, in all.
pub const RETRY_TIME: Duration = Duration::from_secs(30);
/// Requests that are made again within that time.
pub const MAX_RETRIES: usize = 8;
/// First pause before a request is made again; each further one is longer.
pub const RETRY_FIRST: Duration = Duration::from_millis(100);
/// Longest such pause.
pub const RETRY_LONGEST: Duration = Duration::from_secs(5);
/// How often a wait looks whether the user has interrupted it: people do not notice a tenth of a second.
pub const CANCEL_LOOK: Duration = Duration::from_millis(100);
/// Longest file of credentials or settings: a profile has some 200 bytes.
pub const MAX_PROFILE_BYTES: u64 = 1 << 20;
/// Longest record of an interrupted upload: `MAX_PARTS` ETags of at most some 100 bytes.
pub const MAX_UPLOAD_RECORD_BYTES: u64 = 2 << 20;
/// Idle connections that are kept for the next request.
pub const IDLE_CONNECTIONS: usize = 8;
/// How long they are kept; servers close them after about a minute.
pub const IDLE_TIME: Duration = Duration::from_secs(30);
/// Longest excerpt of an error of the object store that is shown.
pub const SHOWN_ERROR_BYTES: usize = 200;

const _: () = assert!(RANGE_BYTES.is_multiple_of(DEFAULT_PACKET_BYTES as u64));
const _: () = assert!(PART_BYTES >= 5 << 20);
