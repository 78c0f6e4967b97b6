//! A volume: the directory where titles come in whole, are found, and are removed.
//!
//! What is visible is decided by one rename each: `tmp/<id>` to `titles/<id>` when a title comes, back to `tmp/<id>.rm`
//! when it goes. Everything under `tmp` that no living process has locked is rubbish and is swept at the next open.
//! The catalogue is a cache of the manifests and never the truth.
//!
//! | file | does |
//! | --- | --- |
//! | `writer` | makes a title and publishes it |
//! | `data` | the one pass over its bytes |
//! | `open` | opens a title's files, checked against each other |
//! | `resize` | adds packet sizes and range sums to a title |
//! | `catalogue` | finds titles by name, id, source |
//! | `recover` | sweeps `tmp` |
//! | `lock`, `workspace`, `dirs`, `name`, `manifest_io` | what these share |

mod catalogue;
mod data;
pub(crate) mod dirs;
pub(crate) mod lock;
pub(crate) mod manifest_io;
mod name;
mod open;
pub(crate) mod recover;
mod resize;
mod title;
pub(crate) mod workspace;
mod writer;

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_core::ids::TitleId;

use self::catalogue::Catalogue;
use self::dirs::{Dirs, random, read_whole, remove_tree, rename, sync_dir, unix_s};
use self::lock::StoreLock;
use crate::disk::Disk;
use crate::error::StoreError;
use crate::format::Uuid;
use crate::format::superblock::{Geometry, SUPERBLOCK_BYTES, Superblock};

pub(crate) use catalogue::look_at_catalogue;
pub(crate) use open::{open_index, open_meta, open_sums};

pub use catalogue::UnreadableTitle;
pub use dirs::{CATALOGUE_FILE, LOCK_FILE, TITLES_DIR, TMP_DIR, VOLUME_FILE};
pub use title::{DerivedFrom, ElementaryStream, SourceIdentity, TitleFiles, TitleInfo};
pub use writer::{FinishTitle, TitleWriter};

/// A store directory (one member of a volume). Cheap to clone; all clones share one connection to the catalogue.
#[derive(Clone, Debug)]
pub struct Volume {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    dirs: Dirs,
    superblock: Superblock,
    catalogue: Mutex<Catalogue>,
}

impl Inner {
    /// The catalogue. A thread that panicked while it held the lock left at worst a stale cache.
    fn catalogue(&self) -> MutexGuard<'_, Catalogue> {
        self.catalogue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Volume {
    /// Opens the store in `dir`, or makes one there. Sweeps what dead ingests left, rebuilds a lost or damaged
    /// catalogue.
    pub fn open_or_create(dir: &Path) -> Result<Self, StoreError> {
        Self::open_or_create_on(dir, Disk::default())
    }

    /// The same, with every change going through `disk`.
    ///
    /// # Errors
    /// As [`Volume::open_or_create`].
    pub fn open_or_create_on(dir: &Path, disk: Disk) -> Result<Self, StoreError> {
        disk.create_dir_all(dir).map_err(StoreError::io("create", dir))?;
        let dirs = Dirs::on(dir, disk.clone());
        if !dirs.superblock().exists() {
            create(&dirs)?;
        }
        Self::open_on(dir, disk)
    }

    /// Opens the store in `dir`, which must exist; recovers as [`Volume::open_or_create`] does.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        Self::open_on(dir, Disk::default())
    }

    /// The same, with every change going through `disk`.
    ///
    /// # Errors
    /// As [`Volume::open`].
    pub fn open_on(dir: &Path, disk: Disk) -> Result<Self, StoreError> {
        let dirs = Dirs::on(dir, disk);
        let superblock = read_superblock(&dirs)?;
        superblock.geometry.check_supported("superblock").map_err(StoreError::format(&dirs.superblock()))?;
        let lock = StoreLock::take(&dirs)?;
        for sub in [&dirs.tmp, &dirs.titles] {
            match dirs.disk.create_dir(sub) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(StoreError::io("create", sub)(e));
                }
                _ => {}
            }
        }
        // Also when they were there: whoever made them may have died before this.
        sync_dir(&dirs.disk, &dirs.root)?;
        recover::sweep(&dirs, &lock)?;
        let catalogue = Mutex::new(Catalogue::open(&dirs)?);
        Ok(Self { inner: Arc::new(Inner { dirs, superblock, catalogue }) })
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.inner.dirs.root
    }

    /// Which volume and which member of it this is.
    pub fn superblock(&self) -> &Superblock {
        &self.inner.superblock
    }

    /// All titles sorted by name, with those that other processes have added and without those they have removed.
    pub fn titles(&self) -> Result<Vec<TitleInfo>, StoreError> {
        self.inner.catalogue().titles()
    }

    /// Titles whose manifest cannot be read: neither [`Volume::titles`] nor [`Volume::find`] has them, but
    /// [`Volume::remove`] removes them.
    pub fn unreadable(&self) -> Result<Vec<UnreadableTitle>, StoreError> {
        self.inner.catalogue().take_unreadable()
    }

    /// The title with this name, or with this id (32 hexadecimal digits).
    pub fn find(&self, name_or_id: &str) -> Result<Option<TitleInfo>, StoreError> {
        let mut catalogue = self.inner.catalogue();
        // No name looks like an id.
        match name_or_id.parse::<TitleId>() {
            Ok(id) => catalogue.by_id(id),
            Err(_) => catalogue.by_name(name_or_id),
        }
    }

    /// The title that was made from this very file, if any.
    pub fn find_source(&self, source: &SourceIdentity) -> Result<Option<TitleInfo>, StoreError> {
        self.inner.catalogue().by_source(source)
    }

    /// Opens a title's files for packets of `packet_bytes`, checked: manifest, checksum of the index, header of the
    /// meta-data, and the lengths of all three against the data file's. A size without a meta-data file is derived from
    /// the range sums. Of meta-data and range sums only the first block is read.
    pub fn open_title(&self, id: TitleId, packet_bytes: usize) -> Result<TitleFiles, StoreError> {
        open::open_title(&self.inner.dirs, id, packet_bytes, false)
    }

    /// The same, but derived from the range sums although the size has a meta-data file: to compare the two.
    pub fn open_title_derived(&self, id: TitleId, packet_bytes: usize) -> Result<TitleFiles, StoreError> {
        open::open_title(&self.inner.dirs, id, packet_bytes, true)
    }

    /// Removes a title, readable or not. Whoever has it open can go on reading.
    ///
    /// The catalogue's row goes first, then one rename makes the title invisible, then its files are deleted. After a
    /// crash in between the title is either still there or gone; the rest is done at the next open.
    pub fn remove(&self, id: TitleId) -> Result<(), StoreError> {
        let dirs = &self.inner.dirs;
        let removed = dirs.removed(id);
        let lock = StoreLock::take(dirs)?;
        let title = dirs.title(id);
        if !title.is_dir() {
            return Err(StoreError::NoTitle { id });
        }
        // Were the row still there when the title is gone, a refresh would drop it: an error here changes nothing.
        let _ = self.inner.catalogue().delete(id);
        remove_tree(&dirs.disk, &removed)?;
        rename(&dirs.disk, &title, &removed)?;
        sync_dir(&dirs.disk, &dirs.titles)?;
        sync_dir(&dirs.disk, &dirs.tmp)?;
        drop(lock);
        remove_tree(&dirs.disk, &removed)
    }

    /// Prepares a title for another packet size: another meta-data file over the same data, and range sums, if it has
    /// none yet. The data is read once and checked against the stored sums on the way. Nothing changes if the title has
    /// all that already.
    pub fn add_packet_size(&self, id: TitleId, packet_bytes: usize) -> Result<(), StoreError> {
        self.prepare(id, &[packet_bytes], &mut |_| ()).map(drop)
    }

    /// The same for several sizes in one pass over the data; without sizes only the range sums are added. `tell` hears
    /// how many bytes of the data have been read. Returns the names of the files that were added.
    ///
    /// # Errors
    /// If a size cannot be, the data does not match its sums, or the files cannot be written; nothing has changed then.
    pub fn prepare(
        &self,
        id: TitleId,
        packet_sizes: &[usize],
        tell: &mut dyn FnMut(u64),
    ) -> Result<Vec<String>, StoreError> {
        resize::prepare(&self.inner, id, packet_sizes, tell)
    }
}

/// Reads the superblock; its geometry may be one this version cannot serve.
pub(crate) fn read_superblock(dirs: &Dirs) -> Result<Superblock, StoreError> {
    let path = dirs.superblock();
    let bytes = match read_whole(&path, SUPERBLOCK_BYTES as u64) {
        Err(StoreError::Io { error, .. }) if error.kind() == io::ErrorKind::NotFound => {
            let reason = "it has no volume.mrv; give the directory of a store, or let one be made in an empty directory";
            return Err(StoreError::NotAStore { path: dirs.root.clone(), reason });
        }
        result => result?,
    };
    Superblock::decode(&bytes).map_err(StoreError::format(&path))
}

/// Makes the superblock of a new store. Two processes may try at once: one of them wins, both go on with its volume.
fn create(dirs: &Dirs) -> Result<(), StoreError> {
    if dirs.tmp.exists() || dirs.titles.exists() {
        let reason = "volume.mrv is missing, but titles or tmp are there; restore volume.mrv from a backup, \
                      or choose another directory (titles and tmp of other programs are never touched)";
        return Err(StoreError::NotAStore { path: dirs.root.clone(), reason });
    }
    let new = dirs.root.join(format!("{VOLUME_FILE}.new"));
    let failed = |action| {
        let new = new.clone();
        move |e| StoreError::write(action, &new, 0, SUPERBLOCK_BYTES as u64, e)
    };
    // Not truncated: until the lock is ours, this may be what another process is about to rename.
    let file = dirs.disk.open_or_create(&new).map_err(failed("create"))?;
    lock::lock(file.file()).map_err(failed("lock"))?;
    let superblock = dirs.superblock();
    if superblock.exists() {
        return Ok(());
    }
    let block = Superblock {
        volume: Uuid::from_random(random()?),
        member: Uuid::from_random(random()?),
        member_index: 0,
        geometry: Geometry::SINGLE,
        created_unix_s: unix_s(),
    };
    file.set_len(0)
        .and_then(|()| file.write_all_at(&block.encode(), 0))
        .and_then(|()| file.sync_all())
        .map_err(failed("write"))?;
    rename(&dirs.disk, &new, &superblock)?;
    sync_dir(&dirs.disk, &dirs.root)
}
