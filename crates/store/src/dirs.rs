//! Names in a store directory, and the few file operations that durability is made of.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use millrace_core::ids::TitleId;

use crate::disk::{Disk, DiskFile};
use crate::error::StoreError;
use crate::format::manifest::MANIFEST_FILE;
use crate::format::superblock::{SUPERBLOCK_BYTES, Superblock};
use crate::limits::volume::COPY_BYTES;
use crate::meta::Finished;

/// The superblock; also the file that the lock of the store is taken on.
pub const VOLUME_FILE: &str = "volume.mrv";
/// The catalogue.
pub const CATALOGUE_FILE: &str = "catalogue.sqlite";
/// Titles being made or removed.
pub const TMP_DIR: &str = "tmp";
/// Titles.
pub const TITLES_DIR: &str = "titles";
/// The directory below the store's.
pub(crate) const PICTURES_DIR: &str = "pictures";
/// In a directory below `tmp`: locked by the process that works there.
pub const LOCK_FILE: &str = "lock";
/// Ends the name of a title below `tmp` that is being removed.
pub(crate) const REMOVED_SUFFIX: &str = ".rm";
/// Extension of the note on a recording below `tmp`.
pub(crate) const RECORDING_EXTENSION: &str = "recording";
/// Extension of the note on a title below `tmp` that is taken over from another store, and goes on after an interruption.
pub(crate) const IMPORT_EXTENSION: &str = "import";
/// Below `tmp`: the data encoded for a ladder, kept for a while if the encoding is interrupted.
pub(crate) const LADDER_SUFFIX: &str = ".ladder";

/// The paths of one store.
#[derive(Clone, Debug)]
pub(crate) struct Dirs {
    pub(crate) root: PathBuf,
    pub(crate) tmp: PathBuf,
    pub(crate) titles: PathBuf,
    /// The handle that every change goes through.
    pub(crate) disk: Disk,
}

impl Dirs {
    pub(crate) fn new(root: &Path) -> Self {
        Self::on(root, Disk::default())
    }

    pub(crate) fn on(root: &Path, disk: Disk) -> Self {
        Self { root: root.to_path_buf(), tmp: root.join(TMP_DIR), titles: root.join(TITLES_DIR), disk }
    }

    pub(crate) fn superblock(&self) -> PathBuf {
        self.root.join(VOLUME_FILE)
    }

    pub(crate) fn catalogue(&self) -> PathBuf {
        self.root.join(CATALOGUE_FILE)
    }

    pub(crate) fn title(&self, id: TitleId) -> PathBuf {
        self.titles.join(id.to_string())
    }

    pub(crate) fn manifest(&self, id: TitleId) -> PathBuf {
        self.title(id).join(MANIFEST_FILE)
    }

    pub(crate) fn removed(&self, id: TitleId) -> PathBuf {
        self.tmp.join(format!("{id}{REMOVED_SUFFIX}"))
    }
}

/// The id that a directory's name stands for: exactly as [`TitleId`] prints.
pub(crate) fn id_of_name(name: &std::ffi::OsStr) -> Option<TitleId> {
    // Ids are printed in lower case.
    let name = name.to_str().filter(|name| !name.bytes().any(|byte| byte.is_ascii_uppercase()))?;
    name.parse().ok()
}

/// Makes the names in a directory durable.
pub(crate) fn sync_dir(disk: &Disk, dir: &Path) -> Result<(), StoreError> {
    disk.sync_dir(dir).map_err(|e| StoreError::write("make durable", dir, 0, 0, e))
}

/// Writes a new file and makes its bytes durable.
pub(crate) fn write_new(disk: &Disk, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let mut file =
        disk.create_new(path).map_err(|e| StoreError::write("create", path, 0, bytes.len() as u64, e))?;
    file.write_all(bytes)
        .and_then(|()| file.sync_all())
        .map_err(|e| StoreError::write("write", path, 0, bytes.len() as u64, e))
}

/// Copies a file to a new one and makes its bytes durable.
pub(crate) fn copy_new(disk: &Disk, from: &Path, to: &Path) -> Result<(), StoreError> {
    let mut source = File::open(from).map_err(StoreError::io("open", from))?;
    let mut copy = disk.create_new(to).map_err(|e| StoreError::write("create", to, 0, 0, e))?;
    let mut buffer = vec![0; COPY_BYTES];
    let mut offset = 0;
    loop {
        let len = source.read(&mut buffer).map_err(StoreError::io("read", from))?;
        if len == 0 {
            break;
        }
        copy.write_all(&buffer[..len]).map_err(|e| StoreError::write("write", to, offset, len as u64, e))?;
        offset += len as u64;
    }
    copy.sync_all().map_err(|e| StoreError::write("make durable", to, offset, 0, e))
}

/// Writes a buffer at the end of a file that has `written` bytes, and empties it.
pub(crate) fn write_out(
    file: &mut DiskFile,
    buffer: &mut Vec<u8>,
    written: &mut u64,
) -> Result<(), StoreError> {
    let bytes = buffer.len() as u64;
    file.write_all(buffer).map_err(|e| StoreError::write("write", file.path(), *written, bytes, e))?;
    *written += bytes;
    buffer.clear();
    Ok(())
}

/// Completes a file of blocks, `written` bytes long, with its header and makes it durable.
pub(crate) fn finish_blocks(file: DiskFile, header: &[u8], written: u64) -> Result<Finished, StoreError> {
    file.write_all_at(header, 0)
        .and_then(|()| file.sync_all())
        .map_err(|e| StoreError::write("write", file.path(), written, 0, e))?;
    // Read back from the page cache: the header was not known when a hash would have had to begin with it.
    let path = file.path();
    let file = File::open(path).map_err(StoreError::io("open", path))?;
    let hasher = hash(&file).map_err(StoreError::io("read", path))?;
    Ok(Finished { bytes: written, blake3: hasher.finalize() })
}

/// Reads a file from where it is to its end; counts and hashes its bytes.
pub(crate) fn hash(file: &File) -> io::Result<blake3::Hasher> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(file)?;
    Ok(hasher)
}

/// Reads a whole file that may be at most `max` bytes long.
pub(crate) fn read_whole(path: &Path, max: u64) -> Result<Vec<u8>, StoreError> {
    let file = File::open(path).map_err(StoreError::io("open", path))?;
    let mut bytes = Vec::new();
    file.take(max + 1).read_to_end(&mut bytes).map_err(StoreError::io("read", path))?;
    if bytes.len() as u64 > max {
        let what = format!("is longer than the {max} bytes such a file can have");
        return Err(StoreError::Damaged { path: path.to_path_buf(), what });
    }
    Ok(bytes)
}

/// Renames within the store; the caller makes it durable.
pub(crate) fn rename(disk: &Disk, from: &Path, to: &Path) -> Result<(), StoreError> {
    disk.rename(from, to).map_err(StoreError::io("rename", from))
}

/// Removes a directory with all it holds; that it is gone already is no error.
pub(crate) fn remove_tree(disk: &Disk, path: &Path) -> Result<(), StoreError> {
    match disk.remove_tree(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(StoreError::io("remove", path)(e)),
        _ => Ok(()),
    }
}

/// Random bytes from the kernel.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], StoreError> {
    let path = Path::new("/dev/urandom");
    let mut bytes = [0; N];
    #[cfg(feature = "sim")]
    if crate::sim::fill(&mut bytes) {
        return Ok(bytes);
    }
    File::open(path).and_then(|mut f| f.read_exact(&mut bytes)).map_err(StoreError::io("read", path))?;
    Ok(bytes)
}

/// Seconds since 1970 (UTC) by the machine's clock: only ever stored for people to read.
pub fn unix_s() -> u64 {
    unix_ms() / 1_000
}

/// Milliseconds since 1970 (UTC).
pub fn unix_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Makes the directories of a member that is there. Where its disk is not mounted there is no superblock, and nothing may be made.
pub(crate) fn make_subdirectories(dirs: &Dirs) -> Result<(), StoreError> {
    read_superblock(dirs)?;
    for sub in [&dirs.tmp, &dirs.titles] {
        match dirs.disk.create_dir(sub) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                return Err(StoreError::io("create", sub)(e));
            }
            _ => {}
        }
    }
    // Also when they were there: whoever made them may have died before this.
    sync_dir(&dirs.disk, &dirs.root)
}

/// Reads the superblock; its geometry may be one this version cannot serve.
pub(crate) fn read_superblock(dirs: &Dirs) -> Result<Superblock, StoreError> {
    let path = dirs.superblock();
    let bytes = match read_whole(&path, SUPERBLOCK_BYTES as u64) {
        Err(StoreError::Io { error, .. }) if error.kind() == io::ErrorKind::NotFound => {
            let reason = "it has no volume.mrv; give the directory of a store, or mount its disk; millrace serve and millrace add create a new store";
            return Err(StoreError::NotAStore { path: dirs.root.clone(), reason });
        }
        result => result?,
    };
    Superblock::decode(&bytes).map_err(StoreError::format(&path))
}
