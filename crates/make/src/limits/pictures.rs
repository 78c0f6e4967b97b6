//! Pictures of titles for people who look for something: posters, and sheets of small ones for seeking.

use std::time::Duration;

use millrace_core::limits::TS_PACKET_BYTES;
use millrace_core::time::MEDIA_HZ;

/// Small pictures of a title: ten rows of ten are a sheet of 1600 x 900, which every browser decodes at once; of a film of two hours one each 72 s.
pub const MAX_STILLS: usize = 100;
/// Least time between two of them: no user points more precisely on a bar of some hundred pixels.
pub const LEAST_BETWEEN_TICKS: u64 = 2 * MEDIA_HZ;
/// Largest picture that is looked at: at 100 Mb/s key pictures have a few MB.
pub const MAX_STILL_BYTES: usize = 4 << 20;
/// Bytes of a title in which one must lie, sound and everything between: twice as many.
pub const MAX_STILL_LOOK_BYTES: u64 = 8 << 20;
/// Bytes read for it at a time: a key picture of 8 Mb/s.
pub const STILL_READ_BYTES: usize = 128 * 1024 / TS_PACKET_BYTES * TS_PACKET_BYTES;
/// Bytes of the pictures of a title that ffmpeg reads, in a file: a hundred of 1.3 MB. Of a title with larger ones the end is not shown.
pub const MAX_WORK_BYTES: usize = 128 << 20;
/// The poster is looked for from here, behind the logos at the beginning...
pub const POSTER_FROM_PERMILLE: u64 = 50;
/// ... to here, before anything is given away.
pub const POSTER_TO_PERMILLE: u64 = 400;
/// Memory that ffmpeg may use for them: decoding one picture of 8K takes 200 MB.
pub const PICTURES_MEMORY: u64 = 1 << 30;
/// Processor time that it may use: a hundred key pictures of 4K take 10 s.
pub const PICTURES_TIME: Duration = Duration::from_secs(60);
/// Time after which it is killed if it has written nothing: it has the lowest priority, and writes when all is done.
pub const PICTURES_SILENCE: Duration = Duration::from_secs(180);
