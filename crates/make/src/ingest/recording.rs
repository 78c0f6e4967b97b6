//! Recordings: transport streams that come for hours, from a source that cannot be asked again.

use std::io::Read;

use millrace_core::packet::PacketMeta;
use millrace_core::seam::Clock;
use millrace_core::time::{Instant, NS_PER_S};
use millrace_store::StoreError;
use millrace_store::volume::{
    InterruptedRecording, Naming, RecordingNote, SourceIdentity, TitleInfo, TitleWriter, Volume, unix_s,
};

use super::error::{IngestError, StreamError};
use super::framing::Framing;
use super::pass::{self, IndexOptions, Passed};
use super::sink::IndexSink;
use super::{IngestOptions, UncommittedTitle, check_packet_sizes, stream_error};
use crate::limits::ingest::RECORDING_FLUSH_NS;

/// Makes a title of the transport stream that `reader` returns until its end. The media is on the disks a second after it came, and stays
/// there even if the program dies: [`finish_interrupted`] makes a title of it.
///
/// # Errors
/// [`IngestError`]: nothing came, or the store fails. The media written until then is kept for [`finish_interrupted`].
pub fn record(
    volume: &Volume,
    note: &RecordingNote,
    options: &IngestOptions,
    clock: &dyn Clock,
    reader: &mut dyn Read,
) -> Result<TitleInfo, IngestError> {
    check_packet_sizes(&options.packet_sizes)?;
    let writer = TitleWriter::begin_recording(volume, &options.packet_sizes, note)?;
    let mut sink = FlushingSink { writer, clock, flushed: clock.now() };
    let passed = pass::index_only(reader, &how(options), &mut sink);
    match passed {
        Ok(passed) => commit(sink.writer, passed, note, Vec::new()),
        Err(StreamError::NoPackets { .. }) => {
            sink.writer.discard();
            Err(IngestError::Empty { path: note.source.clone() })
        }
        Err(error) => Err(stream_error(&note.source, error)),
    }
}

/// Makes a title of a recording whose program has died, and removes its remains. `None`: nothing had come.
///
/// # Errors
/// [`IngestError`]: the store fails, or a member is missing. The recording stays as it is.
pub fn finish_interrupted(
    volume: &Volume,
    recording: InterruptedRecording,
    options: &IngestOptions,
) -> Result<Option<TitleInfo>, IngestError> {
    let note = recording.note().clone();
    let mut writer = TitleWriter::begin(volume, &options.packet_sizes)?;
    let passed = pass::index_only(&mut recording.media()?, &how(options), &mut writer);
    let title = match passed {
        Ok(passed) => {
            let notes = vec!["the server ended while this was recorded".to_owned()];
            Some(commit(writer, passed, &note, notes)?)
        }
        Err(StreamError::NoPackets { .. }) => None,
        Err(error) => return Err(stream_error(&note.source, error)),
    };
    recording.remove()?;
    Ok(title)
}

fn how(options: &IngestOptions) -> IndexOptions {
    IndexOptions {
        packet_sizes: options.packet_sizes.clone(),
        framing: Some(Framing::Plain),
        ..IndexOptions::default()
    }
}

fn commit(
    writer: TitleWriter,
    passed: Passed,
    note: &RecordingNote,
    notes: Vec<String>,
) -> Result<TitleInfo, IngestError> {
    let identity = SourceIdentity {
        path: note.source.clone(),
        bytes: passed.source_bytes,
        modified_unix_ns: unix_s() * NS_PER_S,
    };
    let naming = Naming { title: Some(note.title.clone()), ..Naming::default() };
    Ok(UncommittedTitle::new(writer, passed, notes).commit(note.name.clone(), identity, None, naming)?)
}

/// Makes the media durable every now and then.
struct FlushingSink<'a> {
    writer: TitleWriter,
    clock: &'a dyn Clock,
    flushed: Instant,
}

impl IndexSink for FlushingSink<'_> {
    const SUMS: bool = TitleWriter::SUMS;

    fn data(&mut self, ts: &[u8]) -> Result<(), StoreError> {
        self.writer.data(ts)?;
        let now = self.clock.now();
        if now.ns_since(self.flushed) >= RECORDING_FLUSH_NS {
            self.writer.flush()?;
            self.flushed = now;
        }
        Ok(())
    }

    fn meta(&mut self, packet_bytes: u16, meta: PacketMeta) -> Result<(), StoreError> {
        self.writer.meta(packet_bytes, meta)
    }
}
