//! A title of which the bytes come one after the other, with no file that could be looked at before: an upload.

use std::io::{Cursor, Read};
use std::path::PathBuf;

use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_core::time::NS_PER_S;

use super::error::{IngestError, StreamError};
use super::pass::{self, IndexOptions, SNIFF_BYTES, read_retrying};
use super::{Taken, source, stream_error};
use crate::volume::dirs::unix_s;
use crate::volume::{Naming, SourceIdentity, TitleInfo, TitleWriter, Volume};

/// Makes a title called `name` in `volume` of a transport stream that `reader` gives from its first byte to its last. It is written as it comes: there is no
/// other copy of it. An error of the reader ends it.
///
/// # Errors
/// [`IngestError`] says what is wrong with the stream or the store, which is then as before.
pub fn ingest_stream(volume: &Volume, name: &str, reader: &mut dyn Read) -> Result<TitleInfo, IngestError> {
    // What is told of it calls it so.
    let path = PathBuf::from(name);
    let failed = |error| stream_error(&path, error);
    let head = head(reader).map_err(failed)?;
    if head.is_empty() {
        return Err(IngestError::Empty { path });
    }
    let whole = head.len() < SNIFF_BYTES;
    let framing = source::framing_of(&head, whole);
    let Some(framing) = framing else { return Err(IngestError::NotTransportStream { path }) };
    let mut writer = TitleWriter::begin(volume, &[DEFAULT_PACKET_BYTES as u16])?;
    let how = IndexOptions { framing: Some(framing), ..IndexOptions::default() };
    let passed = pass::index_only(&mut Cursor::new(head).chain(reader), &how, &mut writer).map_err(failed)?;
    let identity = SourceIdentity {
        // No file is called so: it was none.
        path: PathBuf::from(format!("upload:{name}")),
        bytes: passed.source_bytes,
        modified_unix_ns: unix_s() * NS_PER_S,
    };
    let taken = Taken::new(writer, passed, Vec::new());
    Ok(taken.commit(name.to_owned(), identity, None, Naming::default())?)
}

/// The beginning of it, or all if it is short.
fn head(reader: &mut dyn Read) -> Result<Vec<u8>, StreamError> {
    let mut head = vec![0; SNIFF_BYTES];
    let mut filled = 0;
    while filled < head.len() {
        match read_retrying(reader, &mut head[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) => return Err(StreamError::Read { offset: filled as u64, error }),
        }
    }
    head.truncate(filled);
    Ok(head)
}
