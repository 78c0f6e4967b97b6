//! Why a title cannot be shown at another speed.

use millrace_core::scale::Scale;
use millrace_core::units::{BitRate, ByteLen};
use millrace_store::StoreError;

use crate::ingest::StreamError;

/// Nothing was made. The title itself is as it was.
#[derive(Debug, thiserror::Error)]
pub enum TrickError {
    /// Made of another title already.
    #[error("it is derived from another title; name that title")]
    Derived,
    /// As the title was made.
    #[error("speed 1 is the title itself; give another from 0.25 to 32, or its negative")]
    Normal,
    /// Sound alone.
    #[error("it has no video, so no other speeds can be built")]
    NoPictures,
    /// Its pictures cannot be examined.
    #[error("its pictures are scrambled, so they cannot be examined; add a descrambled copy")]
    Scrambled,
    /// Not one of those that are known.
    #[error("its pictures are {codec}; other speeds need H.264, H.265 or MPEG-2")]
    Codec {
        /// As given in the program map.
        codec: String,
    },
    /// No access points, or none with a time.
    #[error(
        "none of its {pictures} pictures can be decoded alone at speed {scale}; encode it with a key picture each second (ffmpeg: -g 25)"
    )]
    NoKeyPictures {
        /// Pictures there are.
        pictures: u64,
        /// The speed.
        scale: Scale,
    },
    /// Pictures without stamps, or stamps that run back.
    #[error(
        "its time stamps are missing or out of order, but slow motion needs them; pass it through ffmpeg (ffmpeg -i IN -map 0 -c copy OUT.ts) and add that"
    )]
    NoStamps,
    /// The parent's peak rate leaves no room.
    #[error("its peak rate of {peak} is too low for pictures at speed {scale}")]
    NoRoom {
        /// That of the parent.
        peak: BitRate,
        /// The speed.
        scale: Scale,
    },
    /// More than are remembered.
    #[error("it has more than {most} pictures; split the film")]
    TooManyPictures {
        /// The bound.
        most: usize,
    },
    /// The result cannot be ingested: an error of this program.
    #[error("the built stream cannot be stored: {0}; please report this")]
    Stream(#[source] Box<StreamError>),
    /// Whoever wanted it has no space for it.
    #[error("it needs up to {0}, but there is not enough space")]
    NoSpace(ByteLen),
    /// The caller wanted it to stop.
    #[error("cancelled; what was complete is kept, nothing incomplete is left")]
    Cancelled,
    /// The parent cannot be read, or the store not take it.
    #[error(transparent)]
    Store(#[from] StoreError),
}
