//! Titles that clients bring by HTTP: where they go in the store, and how that gives way to viewers.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use clap::Args;
use millrace_core::counters::Sheet;
use millrace_core::limits::web::{DEFAULT_UPLOAD_BYTES, DEFAULT_UPLOAD_RATE};
use millrace_core::units::{BitRate, ByteLen};
use millrace_make::ingest::{
    Exceeded, IngestError, IngestOptions, IngestProgress, StreamError, ingest_stream,
};
use millrace_media::subtitles::{SubtitleError, SubtitleLabel, Subtitles};
use millrace_offload::load::LoadSnapshot;
use millrace_offload::thread_priority::yield_to_most;
use millrace_store::StoreError;
use millrace_store::cache::Cache;
use millrace_store::volume::{NewSubtitles, TitleInfo, UploadNames, Volume};
use millrace_web::NotTaken;

use super::rests::Rests;
use crate::library::open_titles::OpenTitles;
use crate::limits::web::UPLOAD_LOOK_BYTES;

/// What uploads may bring.
#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Uploads")]
pub(crate) struct UploadArgs {
    /// Longest title that may be uploaded by HTTP; 0B allows no uploads
    #[arg(long, value_name = "SIZE", default_value_t = ByteLen(DEFAULT_UPLOAD_BYTES))]
    pub(crate) max_upload: ByteLen,
    /// Bit rate that all uploads together may have; while viewers need the disks it is less
    #[arg(long, value_name = "RATE", default_value_t = BitRate(DEFAULT_UPLOAD_RATE))]
    pub(crate) upload_rate: BitRate,
}

/// Takes titles in.
pub(super) struct Intake {
    pub(super) volume: Arc<Volume>,
    pub(super) open_titles: Arc<OpenTitles>,
    pub(super) cache: Arc<Cache>,
    /// How busy each engine is.
    pub(super) loops: Vec<Arc<Sheet<LoadSnapshot>>>,
    /// How containers are converted. Its `cancel` ends conversions when the server stops.
    pub(super) ingest: IngestOptions,
}

impl Intake {
    /// Checks whether there is space for `bytes` bytes, or for anything.
    pub(super) fn can_take(&self, bytes: Option<u64>) -> Result<(), NotTaken> {
        self.volume.can_take_titles().map_err(|error| unavailable(&error))?;
        let room = self.volume.room().map_err(|error| unavailable(&error))?;
        let needed = bytes.map_or(1, |bytes| self.volume.bytes_to_store(bytes, 1));
        let each = needed.div_ceil(room.len().max(1) as u64);
        match room.iter().min() {
            Some(least) if *least >= each => Ok(()),
            least => Err(full(ByteLen(least.copied().unwrap_or(0)), ByteLen(each))),
        }
    }

    /// Makes a title of the data read, which takes the place of `replaced`. From now on the thread gives way to most others, and so do
    /// the programs that it starts, but not to all, because a client waits.
    pub(super) fn take_in(
        &self,
        upload: UploadNames<'_>,
        replaced: Option<&TitleInfo>,
        bytes: &mut dyn Read,
    ) -> Result<TitleInfo, NotTaken> {
        yield_to_most();
        let rests = || Rests::new(Arc::clone(&self.cache), self.loops.clone());
        let mut reader = Considerate { bytes, intake: self, rests: rests(), count: 0, looked: 0 };
        let mut rests = rests();
        let mut progress = |_: &IngestProgress| while !self.is_ending() && !rests.may_go_on() {};
        // The title keeps its display name, whatever name the new file has.
        let ingest = IngestOptions {
            replaces: replaced.map(|title| title.id),
            title: replaced.map(TitleInfo::display_name),
            ..self.ingest.clone()
        };
        let taken = ingest_stream(&self.volume, upload, &ingest, &mut reader, &mut progress);
        let title = taken.map_err(|error| not_taken(upload.name, &error))?;
        title.notes.iter().for_each(|note| tracing::info!("{}: {note}", title.name));
        if let Err(error) = self.open_titles.look(&self.volume) {
            tracing::warn!("cannot read the store: {error}; keeping the previous list of titles");
        }
        Ok(title)
    }

    fn is_ending(&self) -> bool {
        self.ingest.cancel.load(Ordering::Relaxed)
    }
}

impl Intake {
    /// Stores subtitles with a title; returns whether they replaced some with the same label.
    pub(super) fn put_subtitles(
        &self,
        title: &TitleInfo,
        label: &SubtitleLabel,
        bytes: &[u8],
    ) -> Result<bool, NotTaken> {
        let broken = |error: SubtitleError| NotTaken::Broken(error.to_string());
        let read = Subtitles::read(bytes, -title.source_start / 90).map_err(broken)?;
        let text = read.to_webvtt().map_err(broken)?;
        let new = NewSubtitles { label: label.clone(), name: None, text, source: None };
        let put = self.volume.put_subtitles(title.id, &new).map_err(|error| match error {
            StoreError::BadTitle { what, .. } => NotTaken::Broken(format!("{}: {what}", title.name)),
            error if error.is_no_space() => no_space(),
            error => unavailable(&error),
        })?;
        read.notes.iter().for_each(|note| tracing::info!("{}: subtitles {label}: {note}", title.name));
        // The subtitles are listed from now on. If this look fails, a later one follows within
        // seconds.
        let _ = self.open_titles.look_again(&self.volume);
        Ok(put)
    }
}

/// Continues reading when viewers do not need the resources that the work on it takes: it rests
/// while an engine is busy or the cache late, and, while a title is being watched, for as long as
/// it has worked. The sender of the bytes waits meanwhile.
struct Considerate<'a> {
    bytes: &'a mut dyn Read,
    intake: &'a Intake,
    rests: Rests,
    count: u64,
    /// Byte count at the last check of the free space.
    looked: u64,
}

impl Read for Considerate<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while !self.rests.may_go_on() {}
        if self.count - self.looked >= UPLOAD_LOOK_BYTES {
            self.looked = self.count;
            let room = self.intake.volume.room().unwrap_or_default();
            if room.contains(&0) {
                return Err(io::ErrorKind::StorageFull.into());
            }
        }
        let count = self.bytes.read(out)?;
        self.count += count as u64;
        self.rests.waited();
        Ok(count)
    }
}

/// Returns the error for the client: no paths of this machine.
fn not_taken(name: &str, error: &IngestError) -> NotTaken {
    match error {
        IngestError::NotMedia { .. } | IngestError::NothingToPlay { .. } => {
            NotTaken::OtherKind(error.cause())
        }
        IngestError::Store(error) if error.is_no_space() => no_space(),
        IngestError::Exceeded { exceeded: Exceeded::Space { .. }, .. } => no_space(),
        IngestError::Store(error) => {
            tracing::warn!("{name}: the upload cannot be stored: {error}");
            unavailable(error)
        }
        IngestError::NoFfmpeg { .. } => {
            tracing::warn!("{name}: the upload cannot be converted: {error}");
            NotTaken::OtherKind(
                "this server takes only MPEG-TS because ffmpeg is not installed on it; convert the file first: ffmpeg -i FILE -map 0 -c copy FILE.ts".to_owned(),
            )
        }
        IngestError::Cancelled { .. } => NotTaken::Unavailable("the server is ending".to_owned()),
        IngestError::Stream { error, .. } => match &**error {
            StreamError::Read { error, .. } if error.kind() == io::ErrorKind::StorageFull => no_space(),
            StreamError::Read { .. } => {
                NotTaken::Unavailable("the rest of the upload has not come".to_owned())
            }
            error => NotTaken::Broken(error.to_string()),
        },
        error => NotTaken::Broken(error.cause()),
    }
}

fn unavailable(error: &StoreError) -> NotTaken {
    let what = match error {
        StoreError::MemberNeeded { .. } | StoreError::MembersLost { .. } => "a disk of the server is missing",
        error if error.is_read_only() => "the server's disks are read-only",
        _ => "the server's disks cannot take it now",
    };
    NotTaken::Unavailable(format!("{what}; its operator finds more in the log and by millrace fsck"))
}

fn full(room: ByteLen, needed: ByteLen) -> NotTaken {
    NotTaken::Full(format!(
        "the server's disks have room for {room} each, the upload needs {needed}; remove a title, or free some space"
    ))
}

fn no_space() -> NotTaken {
    NotTaken::Full(
        "the server's disks are full; remove a title, or free some space, then upload it again".to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn not_taken_classifies_ingest_error_without_leaking_paths() {
        let path = || PathBuf::from("/srv/store/data.ts");
        let stream = |error| IngestError::Stream { path: "film".into(), error: Box::new(error) };
        let read = |kind: io::ErrorKind| stream(StreamError::Read { offset: 5, error: kind.into() });
        let io = |kind: io::ErrorKind| {
            IngestError::Store(StoreError::Io { action: "write", path: path(), error: kind.into() })
        };
        let full = |said: &NotTaken| matches!(said, NotTaken::Full(_));
        let broken = |said: &NotTaken| matches!(said, NotTaken::Broken(_));
        let unavailable = |said: &NotTaken| matches!(said, NotTaken::Unavailable(_));
        let other = |said: &NotTaken| matches!(said, NotTaken::OtherKind(_));
        type Is<'a> = &'a dyn Fn(&NotTaken) -> bool;
        let cases: [(IngestError, Is<'_>); 9] = [
            (io(io::ErrorKind::StorageFull), &full),
            (read(io::ErrorKind::StorageFull), &full),
            (IngestError::Store(StoreError::NoSpace { path: path(), offset: 1, needed_bytes: 2 }), &full),
            (io(io::ErrorKind::Other), &unavailable),
            (io(io::ErrorKind::ReadOnlyFilesystem), &unavailable),
            (read(io::ErrorKind::ConnectionAborted), &unavailable),
            (stream(StreamError::NoPackets { bytes: 7 }), &broken),
            (IngestError::NotMedia { path: "/srv/film".into(), said: "text".into() }, &other),
            (IngestError::Cancelled { path: "/srv/film".into() }, &unavailable),
        ];
        for (error, is_expected) in cases {
            let said = not_taken("film", &error);
            assert!(is_expected(&said), "{error}: {said:?}");
            assert!(!said.to_string().contains("/srv"), "{said}");
        }
    }
}
