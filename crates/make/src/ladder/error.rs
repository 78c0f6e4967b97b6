//! Why a film does not become a ladder.

use std::path::PathBuf;

use millrace_core::rendition::RenditionName;
use millrace_core::units::BitRate;
use millrace_store::StoreError;

use super::fit::Misfit;
use crate::ingest::{IngestError, StreamError};

/// No title became visible. Encoded data is kept for the next try, unless the error reports that it
/// is of no use.
#[derive(Debug, thiserror::Error)]
pub enum LadderError {
    /// As of a film that is added alone.
    #[error(transparent)]
    Ingest(#[from] IngestError),
    /// Sound alone.
    #[error("{}: no video, which a ladder needs; add it without --ladder", path.display())]
    NoPictures {
        /// The file.
        path: PathBuf,
    },
    /// Its size or its rate of pictures is not known.
    #[error("{}: ffprobe reports no picture size or no frame rate; pass it through ffmpeg (ffmpeg -i IN -c copy OUT.mkv) and add that", path.display())]
    NoShape {
        /// The file.
        path: PathBuf,
    },
    /// A rung larger than the film.
    #[error(
        "ladder: {name} is larger than the film, which has {width} x {height}; omit it, because enlarging does not improve pictures"
    )]
    Larger {
        /// The rung.
        name: RenditionName,
        /// Of the film.
        width: u32,
        /// Of the film.
        height: u32,
    },
    /// Fewer than two of the usual rungs are left.
    #[error(
        "ladder: the film has {width} x {height}, too small for the usual list; name renditions, for example --ladder={height}p:600k,{height}p-low:300k"
    )]
    TooSmall {
        /// Of the film.
        width: u32,
        /// Of the film.
        height: u32,
    },
    /// Nothing is left for pictures.
    #[error(
        "ladder: {name}: audio, PCR and tables leave too little of {rate} for video; give it a higher rate"
    )]
    NoRoom {
        /// The rung.
        name: RenditionName,
        /// Its rate.
        rate: BitRate,
    },
    /// Larger or faster than any level.
    #[error("ladder: {name}: no level of H.264 allows such pictures at such a rate; give it a lower one")]
    NoLevel {
        /// The rung.
        name: RenditionName,
    },
    /// The encoder could not keep its rate.
    #[error(
        "ladder: {name}: its pictures do not fit its rate {seconds} s from the beginning; give it a higher rate or fewer lines"
    )]
    DoesNotFit {
        /// The rung.
        name: RenditionName,
        /// Where.
        seconds: u64,
    },
    /// The output of ffmpeg differs from the request.
    #[error("ladder: {name}: ffmpeg did not encode what was requested: {what}; remove {} and try another version of ffmpeg", path.display())]
    Encoded {
        /// The rung.
        name: String,
        /// The difference.
        what: String,
        /// Where it lies.
        path: PathBuf,
    },
    /// Another process is working on it.
    #[error("{}: another process is making a ladder of it; wait for that", path.display())]
    Busy {
        /// The film.
        path: PathBuf,
    },
    /// The result cannot be ingested: an error of this program.
    #[error("ladder: {name}: the encoded stream cannot be stored: {error}; please report this")]
    Stream {
        /// The rung.
        name: RenditionName,
        /// Why.
        #[source]
        error: Box<StreamError>,
    },
    /// Files that do not fit.
    #[error("{}: does not fit {title}, so a viewer could not go from one to the other without a gap:{}", path.display(), lines(misfits))]
    Misfits {
        /// The file.
        path: PathBuf,
        /// Name of the title.
        title: String,
        /// Of each kind the first, and how often it is there.
        misfits: Vec<(Misfit, u64)>,
    },
    /// Not a transport stream, or not a plain one.
    #[error("{}: not a transport stream of 188-byte packets; only those can be joined to a title", path.display())]
    NoStream {
        /// The file.
        path: PathBuf,
    },
    /// Made of another title.
    #[error("{title}: it is derived from another title; name that title")]
    Derived {
        /// Its name.
        title: String,
    },
    /// The title has no name among its renditions.
    #[error("{title}: it has no label among its renditions yet; give it one: --join {title}=LABEL")]
    NoName {
        /// Its name.
        title: String,
    },
    /// It has another.
    #[error("{title}: its label among its renditions is {is}; leave the label out")]
    Named {
        /// Its name.
        title: String,
        /// The label.
        is: RenditionName,
    },
    /// There is such a rendition.
    #[error(
        "{title}: there is a rendition {name} already; give another label, or remove that with: millrace rm {title}@{name}"
    )]
    Taken {
        /// Its name.
        title: String,
        /// The label.
        name: RenditionName,
    },
    /// The caller wanted it to stop.
    #[error("{}: cancelled; nothing was stored, what is encoded is kept for a week: give the same command again to go on", path.display())]
    Cancelled {
        /// The film.
        path: PathBuf,
    },
    /// The store could not take it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A line for each.
fn lines(misfits: &[(Misfit, u64)]) -> String {
    let line = |(misfit, times): &(Misfit, u64)| match times {
        1 => format!("\n  {misfit}"),
        times => format!("\n  {misfit} (the first of {times})"),
    };
    misfits.iter().map(line).collect()
}
