//! Files that fit a title become its renditions.

use std::io::{self, BufReader, Read, Seek};
use std::path::{Path, PathBuf};

use millrace_core::limits::volume::CHECK_READ_BYTES;
use millrace_core::rendition::RenditionName;
use millrace_store::StoreError;
use millrace_store::volume::{Derived, MediaReader, TitleInfo, Volume};

use super::error::LadderError;
use super::fit::{self, Misfit, Side};
use crate::ingest::framing::Framing;
use crate::ingest::source::SourceFile;
use crate::ingest::{
    IndexOptions, Indexed, IngestError, IngestOptions, IngestProgress, NullSink, StreamError, index_only,
    ingest_as, stream_error,
};

/// A file that becomes a rendition, and the rendition's name.
pub type Joining = (RenditionName, PathBuf);

/// Adds transport streams as renditions of `title`, which is called `own` among them unless it has a name there. Each is checked first: with its
/// first misfit nothing is added at all.
///
/// # Errors
/// If a file does not fit, with all its misfits; for a problem with a file or the store.
pub fn join(
    volume: &Volume,
    title: &TitleInfo,
    own: Option<RenditionName>,
    files: &[Joining],
    options: &IngestOptions,
    progress: &mut dyn FnMut(&IngestProgress),
) -> Result<Vec<TitleInfo>, LadderError> {
    if title.derived.is_some() {
        return Err(LadderError::Derived { title: title.name.clone() });
    }
    let own = match (title.rendition, own) {
        (Some(is), Some(wanted)) if is != wanted => {
            return Err(LadderError::Named { title: title.name.clone(), is });
        }
        (is, wanted) => is.or(wanted).ok_or_else(|| LadderError::NoName { title: title.name.clone() })?,
    };
    let there = volume.renditions_of(title.id)?;
    for (at, (name, _)) in files.iter().enumerate() {
        let is_taken = *name == own
            || there.iter().any(|rendition| rendition.name == *name)
            || files[..at].iter().any(|(before, _)| before == name);
        if is_taken {
            return Err(LadderError::Taken { title: title.name.clone(), name: *name });
        }
    }
    for (_, path) in files {
        let misfits = check(volume, title, path)?;
        if !misfits.is_empty() {
            return Err(LadderError::Misfits { path: path.clone(), title: title.name.clone(), misfits });
        }
    }
    volume.name_rendition(title.id, own)?;
    let mut added = Vec::new();
    for (name, path) in files {
        let derived = Derived::as_rendition(title.id, *name);
        added.push(ingest_as(volume, &SourceFile::open(path)?, options, Some(derived), progress)?);
    }
    Ok(added)
}

/// What keeps the transport stream `file` from being a rendition of `title`: of each kind of misfit the first, and how often it is there. Two
/// passes over the file and one over the title, with an index of the file in memory.
///
/// # Errors
/// If one of them cannot be read, or the file is not a transport stream of 188-byte packets.
pub fn check(volume: &Volume, title: &TitleInfo, file: &Path) -> Result<Vec<(Misfit, u64)>, LadderError> {
    let opened = SourceFile::open(file)?;
    if opened.framing().map_err(|error| stream_error(file, error))? != Some(Framing::Plain) {
        return Err(LadderError::NoStream { path: file.to_path_buf() });
    }
    let open = || opened.again().map_err(|error| IngestError::Open { path: file.to_path_buf(), error });
    let mut reader = BufReader::with_capacity(CHECK_READ_BYTES, open()?);
    let passed = index_only(&mut reader, &IndexOptions::default(), &mut NullSink);
    let indexed = passed.map_err(|error| stream_error(file, error))?.indexed;
    let media = MediaReader::open(volume, title.id)?;
    let index = media.files().index.clone();
    let of_title = TitleBytes { media, at: 0, end: title.bytes };
    let mut of_title = BufReader::with_capacity(CHECK_READ_BYTES, of_title);
    let mut of_file = BufReader::with_capacity(CHECK_READ_BYTES, open()?);
    let title =
        Side { source: &mut of_title, index: &index, streams: &title.streams, duration: title.duration };
    let misfits = fit::misfits(title, side(&mut of_file, &indexed));
    Ok(misfits.map_err(StoreError::io("compare", file))?)
}

/// The same of two transport streams that are in no store; both are indexed.
///
/// # Errors
/// If one of them cannot be indexed or read.
pub fn compare(
    title: &mut (impl Read + Seek),
    file: &mut (impl Read + Seek),
) -> Result<Vec<(Misfit, u64)>, StreamError> {
    let read = |error| StreamError::Read { offset: 0, error };
    let a = index_only(title, &IndexOptions::default(), &mut NullSink)?.indexed;
    let b = index_only(file, &IndexOptions::default(), &mut NullSink)?.indexed;
    title.rewind().and_then(|()| file.rewind()).map_err(read)?;
    fit::misfits(side(title, &a), side(file, &b)).map_err(read)
}

fn side<'a>(source: &'a mut dyn Read, indexed: &'a Indexed) -> Side<'a> {
    Side { source, index: &indexed.index, streams: &indexed.streams, duration: indexed.duration }
}

/// A title from its beginning to its end.
struct TitleBytes {
    media: MediaReader,
    at: u64,
    end: u64,
}

impl Read for TitleBytes {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let bytes = usize::try_from(self.end - self.at).map_or(room.len(), |left| left.min(room.len()));
        self.media.read_exact(self.at, &mut room[..bytes]).map_err(io::Error::other)?;
        self.at += bytes as u64;
        Ok(bytes)
    }
}
