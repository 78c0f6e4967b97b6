//! A volume: the directory where titles come in whole, are found, and are removed.

mod title;
mod writer;

use std::path::{Path, PathBuf};

use millrace_core::ids::TitleId;

use crate::error::StoreError;

pub use title::{ElementaryStream, SourceIdentity, TitleFiles, TitleInfo};
pub use writer::{FinishTitle, TitleWriter};

/// A store directory (one member of a volume).
#[derive(Debug)]
pub struct Volume {
    dir: PathBuf,
}

impl Volume {
    /// Opens the store in `dir`, or makes one there. Sweeps what dead ingests left, rebuilds a lost or damaged
    /// catalogue.
    pub fn open_or_create(dir: &Path) -> Result<Self, StoreError> {
        Ok(Self { dir: dir.to_path_buf() })
    }

    /// Opens the store in `dir`, which must exist; recovers as [`Volume::open_or_create`] does.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        Ok(Self { dir: dir.to_path_buf() })
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// All titles sorted by name, with those that other processes have added.
    pub fn titles(&self) -> Result<Vec<TitleInfo>, StoreError> {
        Ok(Vec::new())
    }

    /// The title with this name, or with this id (32 hexadecimal digits).
    pub fn find(&self, name_or_id: &str) -> Result<Option<TitleInfo>, StoreError> {
        let _ = name_or_id;
        Ok(None)
    }

    /// The title that was made from this very file, if any.
    pub fn find_source(&self, source: &SourceIdentity) -> Result<Option<TitleInfo>, StoreError> {
        let _ = source;
        Ok(None)
    }

    /// Opens a title's files for packets of `packet_bytes`.
    pub fn open_title(&self, id: TitleId, packet_bytes: usize) -> Result<TitleFiles, StoreError> {
        let _ = packet_bytes;
        Err(StoreError::NoTitle { id })
    }

    /// Removes a title. Whoever has it open can go on reading.
    pub fn remove(&self, id: TitleId) -> Result<(), StoreError> {
        Err(StoreError::NoTitle { id })
    }

    /// Prepares a title for another packet size: another meta-data file over the same data.
    pub fn add_packet_size(&self, id: TitleId, packet_bytes: usize) -> Result<(), StoreError> {
        let _ = packet_bytes;
        Err(StoreError::NoTitle { id })
    }
}
