//! Why a title could not be ingested: the problem, its location, and the remedy.

use std::io;
use std::path::{Path, PathBuf};

use millrace_core::units::{ByteLen, HumanDuration};

use millrace_store::StoreError;

/// A file could not become a title. Nothing of it is left in the store.
#[derive(Debug, thiserror::Error)]
pub enum IngestError {
    /// The packet sizes asked for cannot be.
    #[error(
        "ingest options: packet sizes {given:?}: each must be a multiple of 188 from 188 to 9024, and 1316 must be among them"
    )]
    PacketSizes {
        /// As given.
        given: Vec<u16>,
    },
    /// The file cannot be opened.
    #[error("{}: cannot open: {error}; check the path and the permissions", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// A symbolic link in a folder leads out of it.
    #[error("{}: cannot open: a symbolic link leads out of the folder; serve --follow-symlinks follows it", path.display())]
    OutsideFolder {
        /// The file.
        path: PathBuf,
    },
    /// A directory, a device, a socket.
    #[error("{}: not a file but {what}; give the path of one film", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// The kind of object found instead.
        what: &'static str,
    },
    /// Nothing in it.
    #[error("{}: the file is empty; copy or record it again", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// Neither a transport stream nor anything that ffmpeg reads.
    #[error("{}: not a readable media file: {said}; accepted are MPEG-TS and the common containers (MP4, MKV, MOV, AVI ...)", path.display())]
    NotMedia {
        /// The file.
        path: PathBuf,
        /// The message of ffprobe.
        said: String,
    },
    /// A container without pictures or sound.
    #[error("{}: contains neither video nor audio, only {found}", path.display())]
    NothingToPlay {
        /// The file.
        path: PathBuf,
        /// The contents found.
        found: String,
    },
    /// The transport stream cannot be used.
    #[error("{}: {error}", path.display())]
    Stream {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        error: Box<StreamError>,
    },
    /// ffmpeg or ffprobe cannot be started.
    #[error("{}: reading it needs the program {}, which cannot be started: {error}; install ffmpeg (Debian: apt-get install ffmpeg) or set its path, or convert the film to MPEG-TS yourself", path.display(), program.display())]
    NoFfmpeg {
        /// The file.
        path: PathBuf,
        /// The program.
        program: PathBuf,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// ffmpeg or ffprobe failed.
    #[error("{}: {} failed ({status}): {said}", path.display(), program.display())]
    Ffmpeg {
        /// The file.
        path: PathBuf,
        /// The program.
        program: PathBuf,
        /// Its exit status.
        status: String,
        /// The last lines of its messages, with a remedy where one is known.
        said: String,
    },
    /// ffmpeg or ffprobe wanted more than it may have.
    #[error("{}: {} was stopped: {exceeded}", path.display(), program.display())]
    Exceeded {
        /// The file.
        path: PathBuf,
        /// The program.
        program: PathBuf,
        /// Of what.
        exceeded: Exceeded,
    },
    /// The file changed while it was read.
    #[error("{}: changed while it was read (it was {before_bytes} bytes long, now {now_bytes}); add it again when it is complete", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
        /// Length at the start.
        before_bytes: u64,
        /// Length at the end.
        now_bytes: u64,
    },
    /// The caller asked to stop.
    #[error("{}: cancelled; nothing was stored", path.display())]
    Cancelled {
        /// The file.
        path: PathBuf,
    },
    /// The store could not take it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl IngestError {
    /// The message without the path that it begins with.
    pub fn cause(&self) -> String {
        let text = self.to_string();
        let of_path = self.path().and_then(|path| text.strip_prefix(&format!("{}: ", path.display())));
        of_path.map_or_else(|| text.clone(), str::to_owned)
    }

    fn path(&self) -> Option<&Path> {
        match self {
            Self::Open { path, .. }
            | Self::Changed { path, .. }
            | Self::OutsideFolder { path }
            | Self::NotAFile { path, .. }
            | Self::Empty { path }
            | Self::NotMedia { path, .. }
            | Self::NothingToPlay { path, .. }
            | Self::Stream { path, .. }
            | Self::NoFfmpeg { path, .. }
            | Self::Ffmpeg { path, .. }
            | Self::Exceeded { path, .. }
            | Self::Cancelled { path } => Some(path),
            Self::PacketSizes { .. } | Self::Store(_) => None,
        }
    }

    /// Whether another attempt with the same file may succeed: the cause is not its content but the
    /// disk, the store or a program.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Open { .. } | Self::Changed { .. } | Self::NoFfmpeg { .. } | Self::Store(_) => true,
            Self::Exceeded { exceeded, .. } => {
                matches!(exceeded, Exceeded::Space { .. } | Exceeded::Silence { .. })
            }
            Self::Stream { error, .. } => matches!(**error, StreamError::Read { .. } | StreamError::Store(_)),
            Self::Ffmpeg { said, .. } => said.contains("Unknown encoder"),
            Self::PacketSizes { .. }
            | Self::OutsideFolder { .. }
            | Self::NotAFile { .. }
            | Self::Empty { .. }
            | Self::NotMedia { .. }
            | Self::NothingToPlay { .. }
            | Self::Cancelled { .. } => false,
        }
    }
}

/// A bound of [`super::FfmpegBounds`], or of the disk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Exceeded {
    /// Memory.
    #[error(
        "it needs more than {most} of memory; the file is damaged or made to exhaust memory; if you trust it, raise --ffmpeg-memory"
    )]
    Memory {
        /// The limit on its memory.
        most: ByteLen,
    },
    /// Output.
    #[error(
        "it wrote more than {most} from a file of {file}, which looks like a decompression bomb; if you trust the file, raise --ffmpeg-output"
    )]
    Output {
        /// The limit on its output.
        most: ByteLen,
        /// Length of the file.
        file: ByteLen,
    },
    /// Processor time.
    #[error("it used more than {most} of processor time; if you trust the file, raise --ffmpeg-time")]
    Processor {
        /// The limit on its usage.
        most: HumanDuration,
    },
    /// Time without output.
    #[error("it wrote nothing for {most}; check that the file's disk answers, and play the file in a player")]
    Silence {
        /// How long it may be silent.
        most: HumanDuration,
    },
    /// Free space.
    #[error(
        "{}: {free} left on the disk, and a conversion must leave {reserve} free; free some space or remove a title (millrace rm)",
        dir.display()
    )]
    Space {
        /// A directory on that disk.
        dir: PathBuf,
        /// The free space.
        free: ByteLen,
        /// The space that must stay free.
        reserve: ByteLen,
    },
}

/// A transport stream that cannot be indexed.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// Reading failed.
    #[error("reading failed at byte {offset}: {error}")]
    Read {
        /// Offset in the source.
        offset: u64,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// No TS packet in it.
    #[error("no transport stream packet in {bytes} bytes: the file is not MPEG-TS or is damaged throughout")]
    NoPackets {
        /// Bytes looked through.
        bytes: u64,
    },
    /// More damage than media.
    #[error(
        "damaged: {skipped_bytes} bytes in {places} places are not transport stream packets (the first at byte {first_offset}), only {kept_bytes} bytes are; copy or record the film again"
    )]
    Damaged {
        /// Bytes left out.
        skipped_bytes: u64,
        /// Places of damage.
        places: u64,
        /// The first.
        first_offset: u64,
        /// Bytes that are packets.
        kept_bytes: u64,
    },
    /// No tables, so no player could play it.
    #[error(
        "no {missing} in the first {bytes} bytes, so no player can find its streams; pass it through ffmpeg (ffmpeg -i IN -map 0 -c copy OUT.ts) and add that"
    )]
    NoProgram {
        /// "program association table (PAT)" or "program map table (PMT)".
        missing: &'static str,
        /// Bytes looked through.
        bytes: u64,
    },
    /// No clock, so it cannot be paced.
    #[error(
        "no clock in the first {bytes} bytes: {pcrs} PCRs and no usable time stamps on the streams {pids:?}, so its speed is unknown; pass it through ffmpeg (ffmpeg -i IN -map 0 -c copy OUT.ts) and add that"
    )]
    NoClock {
        /// Bytes looked through.
        bytes: u64,
        /// PCRs seen, all useless.
        pcrs: usize,
        /// PIDs of the program's streams.
        pids: Vec<u16>,
    },
    /// More packets than a title can have.
    #[error("too long: more than {} packets of {packet_bytes} bytes; split the film", u32::MAX)]
    TooLong {
        /// The packet size.
        packet_bytes: u16,
    },
    /// The store could not take it.
    #[error(transparent)]
    Store(#[from] StoreError),
}
