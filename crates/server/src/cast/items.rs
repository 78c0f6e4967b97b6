//! Entries of a playlist: titles of a store, or files.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use millrace_make::channel::{OpenItemError, PlaylistError, PlaylistItem, SpliceSource, parse_playlist};
use millrace_make::limits::channel::MAX_PLAYLIST_BYTES;
use millrace_store::volume::Volume;

/// An entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CastItem {
    /// As it was written: a title's name or id, or a path.
    pub address: String,
    /// The folder that its path is relative to.
    pub folder: PathBuf,
    /// Its name for people, if the playlist has one.
    pub display_name: Option<String>,
    /// Its length in seconds, if the playlist has it.
    pub length_s: Option<u64>,
}

/// Why a playlist cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ReadPlaylistError {
    /// Reading it.
    #[error("playlist {path}: cannot read it: {error}; check the path and its permissions")]
    Read {
        /// The file.
        path: String,
        /// The system's error.
        error: std::io::Error,
    },
    /// Its content.
    #[error("playlist {path}: {error}")]
    Content {
        /// The file.
        path: String,
        /// The fault.
        error: PlaylistError,
    },
}

/// Why an entry cannot be played.
#[derive(Debug, thiserror::Error)]
pub enum ItemError {
    /// There is no such thing.
    #[error("no such title or file; see: millrace ls")]
    Unknown,
    /// It cannot be opened or read.
    #[error(transparent)]
    Open(#[from] OpenItemError),
    /// The store cannot be opened.
    #[error("{0}")]
    Store(String),
}

impl CastItem {
    /// An entry relative to the current folder.
    pub fn new(address: &str) -> Self {
        Self { address: address.to_owned(), folder: PathBuf::new(), display_name: None, length_s: None }
    }

    /// The entries of a playlist; their paths are relative to it.
    ///
    /// # Errors
    /// [`ReadPlaylistError`].
    pub fn of_playlist(path: &Path) -> Result<Vec<Self>, ReadPlaylistError> {
        let name = || path.display().to_string();
        let read = |error| ReadPlaylistError::Read { path: name(), error };
        let content = |error| ReadPlaylistError::Content { path: name(), error };
        // A file that is no playlist may be larger than memory.
        let bytes = fs::metadata(path).map_err(read)?.len();
        let most = MAX_PLAYLIST_BYTES as u64;
        if bytes > most {
            return Err(content(PlaylistError::TooLong(usize::try_from(bytes).unwrap_or(usize::MAX))));
        }
        let items = parse_playlist(&fs::read(path).map_err(read)?).map_err(content)?;
        let folder = path.parent().unwrap_or(Path::new("")).to_path_buf();
        let item = |PlaylistItem { address, display_name, length_s }| Self {
            address,
            folder: folder.clone(),
            display_name,
            length_s,
        };
        Ok(items.into_iter().map(item).collect())
    }

    /// Whether a path is that of a playlist, by its name.
    pub fn is_playlist(path: &Path) -> bool {
        let extension = path.extension().and_then(|extension| extension.to_str());
        extension.is_some_and(|extension| ["m3u", "m3u8"].iter().any(|it| extension.eq_ignore_ascii_case(it)))
    }
}

/// Where entries come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ItemList {
    /// These.
    Fixed(Vec<CastItem>),
    /// A playlist, which is read again before each round.
    Playlist(PathBuf),
}

impl Default for ItemList {
    fn default() -> Self {
        Self::Fixed(Vec::new())
    }
}

impl ItemList {
    /// As it is written: entries, or a playlist; `None` if it is neither or both.
    pub fn of(items: &[String], playlist: Option<PathBuf>) -> Option<Self> {
        match playlist {
            Some(playlist) if items.is_empty() => Some(Self::Playlist(playlist)),
            None if !items.is_empty() => {
                Some(Self::Fixed(items.iter().map(|item| CastItem::new(item)).collect()))
            }
            _ => None,
        }
    }

    /// The entries now.
    ///
    /// # Errors
    /// [`ReadPlaylistError`].
    pub fn items(&self) -> Result<Vec<CastItem>, ReadPlaylistError> {
        match self {
            Self::Fixed(items) => Ok(items.clone()),
            Self::Playlist(path) => CastItem::of_playlist(path),
        }
    }
}

/// Opens entries: as a file if there is one that is a transport stream, else as a title.
#[derive(Clone)]
pub struct ItemOpener {
    store: Arc<dyn Fn() -> Result<Arc<Volume>, String> + Send + Sync>,
}

impl ItemOpener {
    /// `store` is asked only for entries that are no files; an error is a sentence.
    pub fn new(store: impl Fn() -> Result<Arc<Volume>, String> + Send + Sync + 'static) -> Self {
        Self { store: Arc::new(store) }
    }

    /// Opens an entry.
    ///
    /// # Errors
    /// [`ItemError`].
    pub fn open(&self, item: &CastItem) -> Result<SpliceSource, ItemError> {
        let path = item.folder.join(&item.address);
        let no_file = match path.is_file().then(|| SpliceSource::of_file(&path)) {
            Some(Ok(source)) => return Ok(source),
            Some(Err(error)) => Some(error),
            None => None,
        };
        if let Some(title) = self.of_store(item)? {
            return Ok(title);
        }
        Err(no_file.map_or(ItemError::Unknown, ItemError::Open))
    }

    /// A title by its name or id, or by the name that a file of this path got when it was added.
    fn of_store(&self, item: &CastItem) -> Result<Option<SpliceSource>, ItemError> {
        let volume = (self.store)().map_err(ItemError::Store)?;
        let stem = Path::new(&item.address).file_stem().and_then(|stem| stem.to_str());
        for name in [Some(item.address.as_str()), stem].into_iter().flatten() {
            if let Some(info) = volume.find(name).map_err(OpenItemError::from)? {
                return Ok(Some(SpliceSource::of_title(&volume, info.id, info.bytes)?));
            }
        }
        Ok(None)
    }
}
