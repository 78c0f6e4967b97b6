//! The TS packets of a title, wherever it lies.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use millrace_core::ids::TitleId;
use millrace_core::limits::TS_PACKET_BYTES;
use millrace_store::StoreError;
use millrace_store::volume::{MediaReader, Volume};

use crate::ingest::framing::Framer;
use crate::ingest::source::SourceFile;
use crate::ingest::{IngestError, StreamError};
use crate::limits::channel::SPLICE_READ_BYTES;

/// Why a title or file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum OpenItemError {
    /// A title of a store.
    #[error(transparent)]
    Stored(#[from] StoreError),
    /// A file.
    #[error(transparent)]
    File(#[from] IngestError),
    /// Reading a file.
    #[error("read: {0}; check the disk")]
    Read(#[from] io::Error),
    /// It is something else.
    #[error("it is no MPEG transport stream; add it to a store with millrace add, and name the title")]
    NoStream,
}

/// See the module's text.
pub struct SpliceSource {
    media: OpenMedia,
}

enum OpenMedia {
    Stored { reader: Box<MediaReader>, at: u64, end: u64 },
    File { file: File, framer: Framer, has_ended: bool },
}

impl SpliceSource {
    /// Opens a title of a store. Its bytes are whole packets (`docs/ref/store-format.md`).
    ///
    /// # Errors
    /// As [`MediaReader::open`].
    pub fn of_title(volume: &Volume, id: TitleId, bytes: u64) -> Result<Self, OpenItemError> {
        let reader = Box::new(MediaReader::open(volume, id)?);
        Ok(Self { media: OpenMedia::Stored { reader, at: 0, end: bytes } })
    }

    /// Opens a file with a transport stream.
    ///
    /// # Errors
    /// If it cannot be opened, or is something else.
    pub fn of_file(path: &Path) -> Result<Self, OpenItemError> {
        let source = SourceFile::open(path)?;
        let framing = source.framing().map_err(|error| match error {
            StreamError::Read { error, .. } => OpenItemError::Read(error),
            _ => OpenItemError::NoStream,
        })?;
        let mut framer = Framer::new(SPLICE_READ_BYTES);
        framer.set_framing(framing.ok_or(OpenItemError::NoStream)?);
        Ok(Self { media: OpenMedia::File { file: source.again()?, framer, has_ended: false } })
    }

    /// Appends the next packets to `out`; `false`: there are none left.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn read(&mut self, out: &mut Vec<u8>) -> Result<bool, OpenItemError> {
        match &mut self.media {
            OpenMedia::Stored { reader, at, end } => {
                let whole = SPLICE_READ_BYTES / TS_PACKET_BYTES * TS_PACKET_BYTES;
                let length = usize::try_from(*end - *at).unwrap_or(whole).min(whole);
                let start = out.len();
                out.resize(start + length, 0);
                reader.read_exact(*at, &mut out[start..])?;
                *at += length as u64;
                Ok(length > 0)
            }
            OpenMedia::File { file, framer, has_ended } => loop {
                if let Some((run, _)) = framer.next_run() {
                    out.extend_from_slice(run);
                    return Ok(true);
                }
                if *has_ended {
                    return Ok(false);
                }
                match file.read(framer.space()) {
                    Ok(0) => {
                        *has_ended = true;
                        framer.end();
                    }
                    Ok(read) => framer.filled(read),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error.into()),
                }
            },
        }
    }
}
