//! Recordings: transport streams that come for hours, from a source that cannot be asked again.

use std::io::{ErrorKind, Read};
use std::sync::Arc;

use millrace_core::seam::Clock;
use millrace_core::time::NS_PER_S;
use millrace_store::index::TitleIndex;
use millrace_store::volume::{
    FinishTitle, GrowingMedia, InterruptedRecording, Naming, RecordingNote, SourceIdentity, TitleInfo,
    TitleWriter, Volume, unix_s,
};

use super::error::{IngestError, StreamError};
use super::framing::Framing;
use super::indexed::Indexed;
use super::indexer::Indexer;
use super::pass::{self, IndexOptions, Passed, ReaderSource};
use super::{IngestOptions, UncommittedTitle, check_packet_sizes, stream_error};
use crate::limits::ingest::{RECORDING_FLUSH_NS, RECORDING_NEWS_NS};

/// Makes a title of the transport stream that `reader` returns until its end. The media is on the disks a second after it came, and stays
/// there even if the program dies: [`finish_interrupted`] makes a title of it. A reader that fails with
/// [`ErrorKind::ConnectionAborted`] wants none: nothing is left then.
///
/// `grew` gets the media for viewers of the growing title, and the title as it is then, whenever there is more of it.
///
/// # Errors
/// [`IngestError`]: nothing came, the reader wants no title, or the store fails. The media written until then is kept for
/// [`finish_interrupted`].
pub fn record(
    volume: &Volume,
    note: &RecordingNote,
    options: &IngestOptions,
    clock: &dyn Clock,
    reader: &mut dyn Read,
    grew: &mut dyn FnMut(&Arc<GrowingMedia>, TitleInfo, TitleIndex),
) -> Result<TitleInfo, IngestError> {
    check_packet_sizes(&options.packet_sizes)?;
    let mut writer = TitleWriter::begin_recording(volume, &options.packet_sizes, note)?;
    let viewers = writer.growing().cloned().map(WaitingViewers);
    let (mut flushed, mut shown, mut shown_at) = (clock.now(), 0, clock.now());
    let mut watch = |indexer: &Indexer, writer: &mut TitleWriter| -> Result<(), StreamError> {
        if indexer.bytes() > 0 {
            writer.begins_now();
        }
        let now = clock.now();
        if now.ns_since(flushed) < RECORDING_FLUSH_NS {
            return Ok(());
        }
        flushed = now;
        writer.flush()?;
        let Some(growing) = writer.growing().cloned() else { return Ok(()) };
        // An index of many hours is long: it is made again when a thousandth more has come, or after
        // a part of the time in which players want news of their playlist.
        let is_news = growing.packets() > shown + shown / 1_000
            || growing.packets() > shown && now.ns_since(shown_at) >= RECORDING_NEWS_NS;
        if is_news {
            (shown, shown_at) = (growing.packets(), now);
            // Without tables and a clock it cannot be watched yet.
            if let Ok(indexed) = indexer.clone().finish_until_now()
                && let Ok((info, index)) = writer.as_it_grows(finish(indexed, note))
            {
                grew(&growing, info, index);
            }
        }
        Ok(())
    };
    let passed = pass::watched_pass(&mut ReaderSource(reader), &how(options), &mut writer, &mut watch);
    let title = match passed {
        Ok(passed) => commit(writer, passed, note, Vec::new()),
        Err(StreamError::NoPackets { .. }) => {
            writer.discard();
            Err(IngestError::Empty { path: note.source.clone() })
        }
        Err(StreamError::Read { error, .. }) if error.kind() == ErrorKind::ConnectionAborted => {
            writer.discard();
            Err(IngestError::Cancelled { path: note.source.clone() })
        }
        Err(error) => Err(stream_error(&note.source, error)),
    };
    if let (Ok(title), Some(viewers)) = (&title, &viewers) {
        // They play the rest.
        viewers.0.finish(title.packets);
    }
    title
}

/// The viewers of a growing recording. Whatever ends it, they do not wait for more.
struct WaitingViewers(Arc<GrowingMedia>);

impl Drop for WaitingViewers {
    fn drop(&mut self) {
        self.0.abandon();
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
    let source = SourceIdentity { bytes: passed.source_bytes, ..identity(&passed.indexed, note) };
    Ok(UncommittedTitle::new(writer, passed, notes).commit(note.name.clone(), source, None, naming(note))?)
}

/// The title that the indexed media makes.
fn finish(indexed: Indexed, note: &RecordingNote) -> FinishTitle {
    let source = identity(&indexed, note);
    FinishTitle { naming: naming(note), ..indexed.finish(note.name.clone(), source) }
}

fn identity(indexed: &Indexed, note: &RecordingNote) -> SourceIdentity {
    let (path, bytes) = (note.source.clone(), indexed.bytes);
    SourceIdentity { path, bytes, modified_unix_ns: unix_s() * NS_PER_S }
}

fn naming(note: &RecordingNote) -> Naming {
    Naming { title: Some(note.title.clone()), ..Naming::default() }
}
