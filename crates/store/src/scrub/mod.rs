//! `scrub`: reads every byte of every member, finds what has changed since it was ingested, and mends it.
//!
//! Quiet corruption is found by three things that know nothing of each other: the BLAKE3 of every file, the sum of every
//! packet of film and parity, and the code that ties the two together. What is mended is written anew below `tmp` and
//! renamed over the damaged file; a file is never changed where it lies.

mod title;

/// How a scrub is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubOptions {
    /// Bytes a second that may be read and written, all members together; 0: as fast as the disks can.
    pub rate_bytes_per_s: u64,
    /// Whether damage is mended; else it is only reported.
    pub mend: bool,
}
