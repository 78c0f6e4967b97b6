//! Uploads: media whose bytes arrive one after the other.
//!
//! A transport stream is written as it arrives. ffmpeg must seek in other containers, so they go to
//! a file first. The file has no name: when it is closed, or the program ends in any way, its space
//! is free again.

use std::fs::File;
use std::io::{Cursor, Read, Write};
use std::path::{Path, PathBuf};

use millrace_core::time::NS_PER_S;
use millrace_store::StoreError;
use millrace_store::volume::{SourceIdentity, TitleInfo, TitleWriter, UploadNames, Volume, unix_s};

use super::error::{IngestError, StreamError};
use super::pass::{self, IndexOptions, SNIFF_BYTES, read_retrying};
use super::{
    IngestOptions, IngestProgress, SourceFile, UncommittedTitle, as_alone, check_packet_sizes, ingest_file,
    naming, source, stream_error,
};

/// Makes a title in `volume` of the media that `reader` returns from the first byte to the last. An
/// error of the reader ends it. `progress` is called as by [`super::ingest`], and only for
/// containers, which have to be converted after the last byte.
///
/// # Errors
/// [`IngestError`] describes the problem with the media or the store, which is then as before.
pub fn ingest_stream(
    volume: &Volume,
    upload: UploadNames<'_>,
    options: &IngestOptions,
    reader: &mut dyn Read,
    progress: &mut dyn FnMut(&IngestProgress),
) -> Result<TitleInfo, IngestError> {
    check_packet_sizes(&options.packet_sizes)?;
    let label = PathBuf::from(upload.name);
    let head = head(reader).map_err(|error| stream_error(&label, error))?;
    if head.is_empty() {
        return Err(IngestError::Empty { path: label });
    }
    // The address was chosen by the client; the display name follows the rules for files.
    let options = IngestOptions { name: Some(upload.name.to_owned()), ..options.clone() };
    let is_whole = head.len() < SNIFF_BYTES;
    if let Some(framing) = source::framing_of(&head, is_whole) {
        let how = IndexOptions {
            packet_sizes: options.packet_sizes.clone(),
            framing: Some(framing),
            ..IndexOptions::default()
        };
        return take_stream(volume, upload, &options, &how, &mut Cursor::new(head).chain(reader));
    }
    if !millrace_media::kinds::may_be_film(&head) {
        let said = "it begins like text, a picture, an archive or a program".to_owned();
        return Err(IngestError::NotMedia { path: label, said });
    }
    let mut spooled = volume.spool_file()?;
    spool(&mut Cursor::new(head).chain(reader), &mut spooled, &label)?;
    let file = SourceFile::unnamed(spooled, shown_name(upload))
        .map_err(|error| IngestError::Open { path: label, error })?;
    ingest_file(volume, &file, &options, progress)
}

/// Returns the basis of the display name: the last part of the file's name, because clients may
/// send a whole path.
fn shown_name<'a>(upload: UploadNames<'a>) -> &'a str {
    let of_file = upload.file_name.and_then(|name| name.rsplit(['/', '\\']).next());
    of_file.filter(|name| !name.is_empty()).unwrap_or(upload.name)
}

/// A transport stream, written as it arrives: there is no other copy of it.
fn take_stream(
    volume: &Volume,
    upload: UploadNames<'_>,
    options: &IngestOptions,
    how: &IndexOptions,
    reader: &mut dyn Read,
) -> Result<TitleInfo, IngestError> {
    let label = Path::new(upload.name);
    let mut writer = TitleWriter::begin(volume, &options.packet_sizes)?;
    let passed = pass::index_only(reader, how, &mut writer).map_err(|error| stream_error(label, error))?;
    let identity = SourceIdentity {
        path: PathBuf::from(format!("upload:{}", upload.name)),
        bytes: passed.source_bytes,
        modified_unix_ns: unix_s() * NS_PER_S,
    };
    let (name, naming) = naming(&as_alone(shown_name(upload)), options, None);
    Ok(UncommittedTitle::new(writer, passed, Vec::new()).commit(name, identity, None, naming)?)
}

/// Writes all that the reader returns into `file`.
fn spool(reader: &mut dyn Read, file: &mut File, label: &Path) -> Result<(), IngestError> {
    let mut piece = vec![0; SNIFF_BYTES];
    let mut offset = 0;
    loop {
        let count = read_retrying(reader, &mut piece)
            .map_err(|error| stream_error(label, StreamError::Read { offset, error }))?;
        if count == 0 {
            return Ok(());
        }
        file.write_all(&piece[..count]).map_err(StoreError::io("write an upload for", label))?;
        offset += count as u64;
    }
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
