//! The one pass from a source of bytes through framer and indexer into a sink.

use std::io::{self, Read};

use millrace_core::limits::DEFAULT_PACKET_BYTES;
pub(crate) use millrace_core::limits::volume::SNIFF_BYTES;
use millrace_core::time::MediaTicks;

use super::error::StreamError;
use super::framing::{self, BUFFER_BYTES, Framer, Framing, Skipped};
use super::indexer::{Indexed, Indexer};
use super::sink::IndexSink;

/// How to index.
#[derive(Clone, Debug)]
pub struct IndexOptions {
    /// Packet sizes to prepare, multiples of 188; 1316 must be among them.
    pub packet_sizes: Vec<u16>,
    /// How packets lie in the source; `None`: find out.
    pub framing: Option<Framing>,
    /// Forward jumps of the clock are real, because ffmpeg has just written it for us.
    pub trusted_clock: bool,
}

impl Default for IndexOptions {
    fn default() -> Self {
        Self { packet_sizes: vec![DEFAULT_PACKET_BYTES as u16], framing: None, trusted_clock: false }
    }
}

/// Progress of the pass.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PassProgress {
    /// Bytes read from the source.
    pub source_bytes: u64,
    /// Media time up to the last clock value.
    pub media: MediaTicks,
}

/// Where the bytes come from. The same handle lets the caller watch and stop.
pub(crate) trait ByteSource {
    /// Why it stops.
    type Error: From<StreamError>;

    /// Reads into `room` (never empty); 0 is the end.
    fn read(&mut self, room: &mut [u8], done: PassProgress) -> Result<usize, Self::Error>;
}

/// The result of a pass.
#[derive(Debug)]
pub struct Passed {
    /// The result of the indexer.
    pub indexed: Indexed,
    /// How packets lay in the source.
    pub framing: Framing,
    /// The bytes left out of the source.
    pub skipped: Skipped,
    /// Bytes read.
    pub source_bytes: u64,
}

/// Reads all of `source`. Each byte is read once: framed, copied to the sink, summed and parsed while it is in cache.
pub(crate) fn pass<R: ByteSource, S: IndexSink>(
    source: &mut R,
    options: &IndexOptions,
    sink: &mut S,
) -> Result<Passed, R::Error> {
    watched_pass(source, options, sink, &mut |_, _| Ok(()))
}

/// The same; `watch` sees the indexer and the sink after each read.
pub(crate) fn watched_pass<R: ByteSource, S: IndexSink>(
    source: &mut R,
    options: &IndexOptions,
    sink: &mut S,
    watch: &mut dyn FnMut(&Indexer, &mut S) -> Result<(), StreamError>,
) -> Result<Passed, R::Error> {
    let mut framer = Framer::new(BUFFER_BYTES);
    let mut indexer = Indexer::new(&options.packet_sizes, S::SUMS, options.trusted_clock);
    let mut framing = options.framing;
    let mut ended = false;
    let mut done = PassProgress::default();
    while !ended {
        match source.read(framer.space(), done)? {
            0 => {
                framer.end();
                ended = true;
            }
            n => framer.filled(n),
        }
        done.source_bytes = framer.offset();
        if framing.is_none() && (ended || framer.held().len() >= SNIFF_BYTES) {
            let found = framing::detect(framer.held(), ended);
            let (found, _) = found.ok_or(StreamError::NoPackets { bytes: done.source_bytes })?;
            framing = Some(found);
        }
        let Some(framing) = framing else { continue };
        framer.set_framing(framing);
        while let Some((run, gap)) = framer.next_run() {
            indexer.run(run, gap, sink)?;
        }
        done.media = indexer.media_done();
        watch(&indexer, sink)?;
    }
    let framing = framing.ok_or(StreamError::NoPackets { bytes: done.source_bytes })?;
    let skipped = framer.skipped();
    let kept_bytes = indexer.bytes();
    if kept_bytes == 0 {
        return Err(StreamError::NoPackets { bytes: done.source_bytes }.into());
    }
    let indexed = indexer.finish(sink)?;
    let skipped_bytes = skipped.before_bytes + skipped.bytes + skipped.tail_bytes;
    if skipped_bytes > kept_bytes {
        let Skipped { places, first_offset, .. } = skipped;
        return Err(StreamError::Damaged { skipped_bytes, places, first_offset, kept_bytes }.into());
    }
    Ok(Passed { indexed, framing, skipped, source_bytes: done.source_bytes })
}

/// Indexes a transport stream from any reader: the work of an ingest, without volume, progress and
/// cancellation. For tools, tests and benchmarks; errors of the reader end it.
pub fn index_only<S: IndexSink>(
    reader: &mut dyn Read,
    options: &IndexOptions,
    sink: &mut S,
) -> Result<Passed, StreamError> {
    pass(&mut ReaderSource(reader), options, sink)
}

pub(crate) struct ReaderSource<'a>(pub(crate) &'a mut dyn Read);

impl ByteSource for ReaderSource<'_> {
    type Error = StreamError;

    fn read(&mut self, room: &mut [u8], done: PassProgress) -> Result<usize, StreamError> {
        read_retrying(self.0, room).map_err(|error| StreamError::Read { offset: done.source_bytes, error })
    }
}

/// One read; a signal does not end it.
pub(crate) fn read_retrying(reader: &mut (impl Read + ?Sized), room: &mut [u8]) -> io::Result<usize> {
    loop {
        match reader.read(room) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
