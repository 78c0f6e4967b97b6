//! A volume: the directory where titles come in whole, are found, and are removed.
//!
//! One rename each decides visibility: `tmp/<id>` to `titles/<id>` when a title is added, back to
//! `tmp/<id>.rm` when it is removed. Everything under `tmp` that no living process has locked is
//! garbage and is swept at the next open. The catalogue is a cache of the manifests and never the
//! truth.
//!
//! With several members, each of them has such directories, and the renames are done on one after
//! the other. Everything is durable on all members before the first rename; if a crash interrupts
//! the renames, the next open finishes them.
//!
//! | file | does |
//! | --- | --- |
//! | `state` | the state that all clones share |
//! | `access` | keeps other users out |
//! | `create` | makes a volume; adds and replaces members |
//! | `writer` | writes a title |
//! | `publish` | makes written data visible: one title, or a title with its renditions |
//! | `recording` | titles written for hours, and the remains of interrupted ones |
//! | `growing` | reading such titles while they are written |
//! | `data` | the one pass over its bytes |
//! | `stripe_writer` | stripes of units on the members, with their parity |
//! | `open` | opens a title's files, checked against each other |
//! | `media` | the bytes of a title, wherever they lie and whatever is missing |
//! | `export`, `import` | a title on its way to another store, and from there |
//! | `resize` | adds packet sizes and range sums to a title |
//! | `subtitles` | subtitles that are kept with a title |
//! | `catalogue` | finds titles by name, id, source |
//! | `listing` | where titles are stored, and which parts are lost |
//! | `derived` | titles made of other titles: names, times, removal with the parent |
//! | `on_use` | derived titles that are made and removed as viewers want them |
//! | `damaged` | titles in which serving found damage: a list for the next scrub |
//! | `remove` | removes a title, and the titles derived from it |
//! | `recover` | sweeps `tmp`, finishes changes begun on some of the members |
//! | `members_io` | the list of members on the disks |
//! | `edit` | changes the display name and the source in a title's manifest |
//! | `sources` | finds the title made from a file, even if the file was moved |
//! | `lock`, `workspace`, `name`, `manifest_io` | what these share |

mod access;
mod catalogue;
mod create;
mod damaged;
mod data;
mod derived;
mod edit;
mod export;
pub(crate) mod growing;
mod import;
mod ladder_dir;
mod listing;
pub(crate) mod lock;
pub(crate) mod manifest_io;
mod media;
mod members_io;
mod name;
mod on_use;
mod open;
mod parity_crcs;
mod publish;
mod recording;
pub(crate) mod recover;
mod remove;
mod resize;
mod sources;
mod state;
mod stripe_writer;
mod subtitles;
mod title;
pub(crate) mod workspace;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use millrace_core::ids::TitleId;

use self::catalogue::Catalogue;
use self::lock::StoreLock;
use self::members_io::{enough, no_slot};
use self::state::{CatalogueService, VolumeInner, put_in_order};
use crate::blocking::{BlockingCalls, Timeout, send_to};
use crate::dirs::Dirs;
use crate::disk::Disk;
use crate::error::StoreError;
use crate::format::superblock::{Geometry, Superblock};
use crate::members::{MemberState, Members};

pub(crate) use crate::dirs::{make_subdirectories, read_superblock};
pub(crate) use catalogue::look_at_catalogue;
pub(crate) use open::{open_crcs, open_index, open_meta, open_parity_meta, open_sums};

pub use crate::dirs::{CATALOGUE_FILE, LOCK_FILE, TITLES_DIR, TMP_DIR, VOLUME_FILE, unix_ms, unix_s};
pub use crate::format::derived::{Derived, DerivedKind};
pub use crate::format::title_info::{
    Chapter, ElementaryStream, Origin, SourceIdentity, SubtitleTrack, TitleInfo,
};
pub use crate::naming::{FileNames, is_good_tag, names_of_file, title_text};
pub use damaged::DAMAGED_FILE;
pub use derived::Rendition;
pub use edit::TitleEdit;
pub use export::TitleExport;
pub use growing::GrowingMedia;
pub use import::{FileImport, ImportStep, ImportedTitle, TitleImport};
pub use ladder_dir::{LadderDir, PartialFile};
pub use listing::{ListedAt, ListedTitle, Listing, LostMembers, PlacedOn, UnreadableTitle};
pub use media::MediaReader;
pub use name::{UploadNames, is_usable, slug};
pub use on_use::reserve;
pub use open::ParityFiles;
pub use publish::Naming;
pub use recording::{InterruptedRecording, RecordedMedia, RecordingNote};
pub use sources::{KnownSource, SourceMatch, Sources};
pub use state::Volume;
pub use subtitles::NewSubtitles;
pub use title::{DerivedFrom, TitleFiles};
pub use writer::{FinishTitle, TitleWriter};

/// How many members must be there for a volume to be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemberQuorum {
    /// Enough members that the parity makes up for the others.
    Enough,
    /// One. A title on too few members is listed and cannot be opened until they are back; the
    /// volume is put in order when enough of them are.
    Any,
}

impl Volume {
    /// Opens the volume that the store in `dir` is a member of, or makes a store there: a volume of one member without
    /// parity. Sweeps what dead ingests left, rebuilds a lost or damaged catalogue.
    pub fn open_or_create(dir: &Path) -> Result<Self, StoreError> {
        Self::open_or_create_on(dir, Disk::default())
    }

    /// The same, with every change going through `disk`.
    ///
    /// # Errors
    /// As [`Volume::open_or_create`].
    pub fn open_or_create_on(dir: &Path, disk: Disk) -> Result<Self, StoreError> {
        make_sure_of(dir, &disk)?;
        Self::open_on(dir, disk)
    }

    /// The same with however few of its members, if it is there.
    ///
    /// # Errors
    /// As [`Volume::open_or_create`].
    pub fn open_any_or_create(dir: &Path) -> Result<Self, StoreError> {
        let disk = Disk::default();
        make_sure_of(dir, &disk)?;
        Self::open_found(dir, Members::find(dir)?, disk, MemberQuorum::Any)
    }

    /// Makes a volume of these directories, which must not be stores yet, and opens it.
    ///
    /// # Errors
    /// If the number of directories is not that of the geometry's members, one of them holds a store or part of one, or a
    /// disk refuses.
    pub fn create(dirs: &[PathBuf], geometry: Geometry) -> Result<Self, StoreError> {
        Self::create_on(dirs, geometry, Disk::default())
    }

    /// The same, with every change going through `disk`.
    ///
    /// # Errors
    /// As [`Volume::create`].
    pub fn create_on(dirs: &[PathBuf], geometry: Geometry, disk: Disk) -> Result<Self, StoreError> {
        create::volume(dirs, geometry, &disk)?;
        Self::open_members_on(dirs, disk)
    }

    /// Opens the volume that the store in `dir` is a member of; recovers as
    /// [`Volume::open_or_create`] does. Its other members are located through `members.mrm`; it
    /// opens without some of them if the parity makes up for those.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        Self::open_on(dir, Disk::default())
    }

    /// The same, with every change going through `disk`.
    ///
    /// # Errors
    /// As [`Volume::open`].
    pub fn open_on(dir: &Path, disk: Disk) -> Result<Self, StoreError> {
        Self::open_found(dir, Members::find(dir)?, disk, MemberQuorum::Enough)
    }

    /// Opens the volume that the store in `dir` is a member of, with however few of its members.
    ///
    /// # Errors
    /// As [`Volume::open`], but not because others are missing.
    pub fn open_any(dir: &Path) -> Result<Self, StoreError> {
        Self::open_found(dir, Members::find(dir)?, Disk::default(), MemberQuorum::Any)
    }

    /// Opens a volume whose members are in exactly these directories, regardless of the locations
    /// in `members.mrm`.
    ///
    /// # Errors
    /// If they are of different volumes, or too few of the volume's members are among them.
    pub fn open_members(dirs: &[PathBuf]) -> Result<Self, StoreError> {
        Self::open_members_on(dirs, Disk::default())
    }

    /// The same, with every change going through `disk`.
    ///
    /// # Errors
    /// As [`Volume::open_members`].
    pub fn open_members_on(dirs: &[PathBuf], disk: Disk) -> Result<Self, StoreError> {
        Self::open_found(first_of(dirs), Members::among(dirs)?, disk, MemberQuorum::Enough)
    }

    /// The same with however few of its members.
    ///
    /// # Errors
    /// As [`Volume::open_members`], but not because others are missing.
    pub fn open_any_members(dirs: &[PathBuf]) -> Result<Self, StoreError> {
        Self::open_found(first_of(dirs), Members::among(dirs)?, Disk::default(), MemberQuorum::Any)
    }

    fn open_found(dir: &Path, members: Members, disk: Disk, need: MemberQuorum) -> Result<Self, StoreError> {
        let members = Arc::new(members);
        let on = |slot: usize| Dirs::on(&members.dir(slot), disk.clone());
        create::finish(&members, &disk)?;
        if need == MemberQuorum::Enough {
            enough(dir, &members)?;
        }
        let (lock, usable) = StoreLock::take_all(&members, &on)?;
        let there = enough(dir, &members);
        let in_order = AtomicBool::new(there.is_ok());
        // With too few of them nothing is changed: the others may know better.
        match there {
            Ok(()) => match put_in_order(&members, &usable, &disk, &lock) {
                // Most disks that do not fail at once end in this state. Readable titles still
                // play; writers get an error. On a full disk titles can still be removed.
                Err(error) if error.is_read_only() || error.is_no_space() => {
                    in_order.store(false, Ordering::Release);
                }
                done => done?,
            },
            Err(error) if need == MemberQuorum::Enough || usable.is_empty() => return Err(error),
            Err(_) => {}
        }
        let superblock = read_superblock(&usable[0])?;
        let catalogue = Some(Catalogue::open(&members)?);
        usable.iter().for_each(access::close_to_others);
        let catalogue = Mutex::new(CatalogueService { catalogue, blocking: BlockingCalls::default() });
        let inner = VolumeInner { dir: dir.to_path_buf(), disk, members, superblock, catalogue, in_order };
        drop(lock);
        let volume = Self { inner: Arc::new(inner) };
        if volume.inner.in_order.load(Ordering::Acquire) {
            // Remains that cannot be removed now do not prevent the open: fsck reports them, and
            // the next open tries again.
            let _ = volume.remove_orphans();
            let _ = volume.finish_replacements();
        }
        Ok(volume)
    }

    /// The directory that it was opened by: any one of its members.
    pub fn dir(&self) -> &Path {
        &self.inner.dir
    }

    /// The directory of the first member that is there; files beside the titles are kept there. The one that the volume was opened
    /// by may be a missing member's, and then nothing may be made below it.
    pub fn present_dir(&self) -> PathBuf {
        let members = self.members();
        members.usable().first().map_or_else(|| self.inner.dir.clone(), |&slot| members.dir(slot))
    }

    /// Why the catalogue is kept in memory, if it is: the disk is full, or may not be written to. For the user, once; everything
    /// that needs no space can be done all the same.
    pub fn catalogue_in_memory(&self) -> Option<String> {
        let service = self.inner.catalogue.lock().unwrap_or_else(PoisonError::into_inner);
        service.catalogue.as_ref().and_then(Catalogue::in_memory).map(str::to_owned)
    }

    /// The superblock of the first member that is there.
    pub fn superblock(&self) -> &Superblock {
        &self.inner.superblock
    }

    /// Returns the members; call [`Members::refresh`] to update their state.
    pub fn members(&self) -> &Arc<Members> {
        &self.inner.members
    }

    /// The paths of a slot, with the way to the disk that the volume was opened with.
    pub(crate) fn dirs_of(&self, slot: usize) -> Dirs {
        self.inner.dirs(slot)
    }

    /// Adds a member in `dir`, which must not be a store yet: titles that come from now on lie on it too, in stripes of
    /// `geometry`. Older titles stay where they are.
    ///
    /// # Errors
    /// If a member is missing, or the disk refuses.
    pub fn add_member(&self, dir: &Path, geometry: Geometry) -> Result<(), StoreError> {
        create::add(&self.inner, dir, geometry)?;
        self.share_catalogue();
        Ok(())
    }

    /// Gives the catalogue to the members that should have a copy. A copy that cannot be written
    /// now is written when titles are listed next.
    fn share_catalogue(&self) {
        let _ = self.inner.with_catalogue(Catalogue::refresh);
    }

    /// Gives slot `slot` a new, empty member in `dir`, which must not be a store yet. A repair
    /// fills it, and from then on it is trusted; the previous member is no longer trusted.
    ///
    /// # Errors
    /// If too many others are missing, or a disk refuses.
    pub fn replace_member(&self, slot: usize, dir: &Path) -> Result<(), StoreError> {
        create::replace(&self.inner, slot, dir)
    }

    /// Sets the state that the volume records for a slot, in a new generation that is durable on
    /// all present members.
    ///
    /// # Errors
    /// If there is no such slot, or a disk refuses.
    pub fn set_member_state(&self, slot: usize, state: MemberState) -> Result<(), StoreError> {
        let (lock, _) = StoreLock::take_all(&self.inner.members, &|slot| self.inner.dirs(slot))?;
        members_io::change(&self.inner.members, &self.inner.disk, &lock, |record| {
            let count = record.members.len();
            let entry = record.members.get_mut(slot);
            let entry = entry.ok_or_else(|| no_slot(slot, count))?;
            entry.state = state;
            Ok(())
        })
    }

    /// Makes these slots active in a new generation, durable on all present members, if `still`
    /// returns `true` while no other process can change the volume. Returns whether it did.
    ///
    /// # Errors
    /// If there is no such slot, or a disk refuses.
    pub(crate) fn activate(&self, slots: &[usize], still: impl FnOnce() -> bool) -> Result<bool, StoreError> {
        let (lock, _) = StoreLock::take_all(&self.inner.members, &|slot| self.inner.dirs(slot))?;
        if !still() {
            return Ok(false);
        }
        members_io::change(&self.inner.members, &self.inner.disk, &lock, |record| {
            let count = record.members.len();
            for &slot in slots {
                let entry = record.members.get_mut(slot);
                entry.ok_or_else(|| no_slot(slot, count))?.state = MemberState::Active;
            }
            Ok(())
        })?;
        drop(lock);
        self.share_catalogue();
        Ok(true)
    }

    /// All titles sorted by name, with those that other processes have added and without those they have removed.
    pub fn titles(&self) -> Result<Vec<TitleInfo>, StoreError> {
        self.inner.with_catalogue(Catalogue::titles)
    }

    /// Returns all titles, each with its losses, and the titles that cannot be read.
    ///
    /// # Errors
    /// If no member can be looked at, or the catalogue not be used.
    pub fn listing(&self) -> Result<Listing, StoreError> {
        // If it cannot be put in order, a caller that wants to change something gets an error; the
        // existing titles can be listed all the same.
        let _ = self.inner.tidy();
        self.inner.with_catalogue(Catalogue::listing)
    }

    /// The same; `None` if no title has come or gone, and no member, since `before`. Looks at one directory of each member, where a
    /// listing looks at every title. A title that was only changed, as by `prepare`, is listed again after half a minute at the latest.
    ///
    /// # Errors
    /// As [`Volume::listing`].
    pub fn listing_since(&self, before: Option<&ListedAt>) -> Result<Option<Listing>, StoreError> {
        let _ = self.inner.tidy();
        let before = before.cloned();
        self.inner.with_catalogue(move |catalogue| match before {
            Some(before) if catalogue.is_as_of(&before) => Ok(None),
            _ => catalogue.listing().map(Some),
        })
    }

    /// Titles that cannot be read, because of their manifest or because too few of their members are there.
    /// [`Volume::remove`] removes them, if enough of the volume's members are there.
    pub fn unreadable(&self) -> Result<Vec<UnreadableTitle>, StoreError> {
        let Listing { titles, mut unreadable, .. } = self.listing()?;
        let members = &self.inner.members;
        for title in titles {
            let Some(lost) = title.lost(|slot| members.is_usable(slot)) else { continue };
            let names: Vec<_> =
                lost.slots.iter().map(|&slot| members.dir(slot).display().to_string()).collect();
            let error = StoreError::MembersLost {
                what: format!("title {}", title.info.id),
                lost: lost.slots.len(),
                may: lost.may,
                names: names.join(", "),
            };
            unreadable.push(UnreadableTitle { id: title.info.id, error });
        }
        Ok(unreadable)
    }

    /// The title with this name, or with this id (32 hexadecimal digits).
    pub fn find(&self, name_or_id: &str) -> Result<Option<TitleInfo>, StoreError> {
        // No name looks like an id.
        let (id, name) = (name_or_id.parse::<TitleId>(), name_or_id.to_owned());
        self.inner.with_catalogue(move |catalogue| match id {
            Ok(id) => catalogue.by_id(id),
            Err(_) => catalogue.by_name(&name),
        })
    }

    /// The title that was made from this very file, if any.
    pub fn find_source(&self, source: &SourceIdentity) -> Result<Option<TitleInfo>, StoreError> {
        let source = source.clone();
        self.inner.with_catalogue(move |catalogue| catalogue.by_source(&source))
    }

    /// The titles that a file may be the source of, to look it up among.
    ///
    /// # Errors
    /// If the catalogue cannot be used.
    pub fn sources_near(&self, source: &SourceIdentity) -> Result<Sources, StoreError> {
        let source = source.clone();
        let titles = self.inner.with_catalogue(move |catalogue| catalogue.near_source(&source))?;
        Ok(Sources::new(&titles))
    }

    /// Opens a title's files for packets of `packet_bytes`, checked: manifest, checksum of the index, header of the
    /// metadata, and the lengths of all three against the data file's. A size without a metadata file is derived from
    /// the range sums. Of metadata and range sums only the first block is read.
    pub fn open_title(&self, id: TitleId, packet_bytes: usize) -> Result<TitleFiles, StoreError> {
        open::open_title(&self.inner.members, id, packet_bytes, false)
    }

    /// The same, but derived from the range sums although the size has a metadata file: to compare the two.
    pub fn open_title_derived(&self, id: TitleId, packet_bytes: usize) -> Result<TitleFiles, StoreError> {
        open::open_title(&self.inner.members, id, packet_bytes, true)
    }

    /// Opens the files that a title's parity packets are made from: `track` 1 is the first parity
    /// (plain XOR), 2 all others.
    ///
    /// # Errors
    /// If the title has no such parity, or its files cannot be opened.
    pub fn open_parity(&self, id: TitleId, track: u8) -> Result<ParityFiles, StoreError> {
        open::open_parity(&self.inner.members, id, track)
    }

    /// Prepares a title for another packet size: another metadata file over the same data, and range sums and CRCs, if it
    /// has none yet. The data is read once, and compared on the way with the stored sums and the BLAKE3 of the title. Nothing
    /// changes if the title has all that already.
    pub fn add_packet_size(&self, id: TitleId, packet_bytes: usize) -> Result<(), StoreError> {
        self.prepare(id, &[packet_bytes], &mut |_| ()).map(drop)
    }

    /// The same for several sizes in one pass over the data; without sizes only range sums and CRCs are added. `tell` hears
    /// how many bytes of the data have been read. Returns the names of the files that were added.
    ///
    /// # Errors
    /// If a size cannot be, the data does not match its sums or its BLAKE3, or the files cannot be written; nothing has changed then.
    pub fn prepare(
        &self,
        id: TitleId,
        packet_sizes: &[usize],
        tell: &mut dyn FnMut(u64),
    ) -> Result<Vec<String>, StoreError> {
        resize::prepare(&self.inner, id, packet_sizes, tell)
    }
}

/// Makes a store in a directory where there is none.
fn make_sure_of(dir: &Path, disk: &Disk) -> Result<(), StoreError> {
    let disk = disk.clone();
    send_to(dir, Timeout::Work, move |dir| {
        disk.create_dir_all(dir).map_err(StoreError::io("create", dir))?;
        let dirs = Dirs::on(dir, disk);
        if dirs.superblock().exists() { Ok(()) } else { create::single(&dirs) }
    })?
}

fn first_of(dirs: &[PathBuf]) -> &Path {
    dirs.first().map_or(Path::new(""), PathBuf::as_path)
}
