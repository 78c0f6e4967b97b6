//! Volumes of several members for tests.
#![allow(dead_code)] // each test program uses its own part

use std::fs;
use std::path::{Path, PathBuf};

use millrace_core::ids::TitleId;
use millrace_store::format::superblock::Geometry;
use millrace_store::volume::{MediaReader, Volume};

/// Directories `m0`, `m1` ... of a volume in a directory of their own.
pub(crate) struct Disks {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) count: usize,
}

impl Disks {
    /// Creates a volume of `count` members that tolerates the loss of `tolerance`; `network` parity
    /// units if it has one member.
    pub(crate) fn volume(count: usize, tolerance: usize, network: usize) -> (Self, Volume) {
        let disks = Self { dir: tempfile::tempdir().unwrap(), count };
        let geometry = Geometry::choose(count, tolerance, network).unwrap();
        let volume = Volume::create(&disks.all(), geometry).unwrap();
        (disks, volume)
    }

    pub(crate) fn at(&self, i: usize) -> PathBuf {
        self.dir.path().join(format!("m{i}"))
    }

    pub(crate) fn all(&self) -> Vec<PathBuf> {
        (0..self.count).map(|i| self.at(i)).collect()
    }

    /// A member's disk is pulled out.
    pub(crate) fn pull(&self, i: usize) {
        fs::rename(self.at(i), self.dir.path().join(format!("pulled{i}"))).unwrap();
    }

    /// And comes back.
    pub(crate) fn push(&self, i: usize) {
        fs::rename(self.dir.path().join(format!("pulled{i}")), self.at(i)).unwrap();
    }

    pub(crate) fn title(&self, i: usize, id: TitleId) -> PathBuf {
        self.at(i).join("titles").join(id.to_string())
    }

    pub(crate) fn tmp(&self, i: usize, name: &str) -> PathBuf {
        self.at(i).join("tmp").join(name)
    }

    /// Returns the contents of `tmp` on all members that are present.
    pub(crate) fn left(&self) -> Vec<PathBuf> {
        let there = (0..self.count).map(|i| self.at(i).join("tmp")).filter(|tmp| tmp.is_dir());
        there.flat_map(|tmp| fs::read_dir(tmp).unwrap().map(|entry| entry.unwrap().path())).collect()
    }
}

/// All media of a title.
pub(crate) fn media_of(volume: &Volume, id: TitleId) -> Vec<u8> {
    let mut reader = MediaReader::open(volume, id).unwrap();
    let mut media = vec![0; reader.files().info.bytes as usize];
    // Odd pieces: no border of a piece is one of a stripe.
    let mut start = 0;
    for piece in media.chunks_mut(100_003) {
        reader.read_exact(start, piece).unwrap();
        start += piece.len() as u64;
    }
    media
}

/// Copies a directory with all it holds.
pub(crate) fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let to = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy_tree(&path, &to);
        } else {
            fs::copy(&path, &to).unwrap();
        }
    }
}
