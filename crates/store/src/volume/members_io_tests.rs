//! Members that miss a change are left behind, but never more than the volume can do without.

use std::fs;
use std::path::PathBuf;

use super::*;
use crate::format::superblock::Geometry;
use crate::volume::Volume;

/// Creates a volume of three members that tolerates the loss of one.
fn volume() -> (tempfile::TempDir, Vec<PathBuf>, Volume) {
    let root = tempfile::tempdir().unwrap();
    let dirs: Vec<PathBuf> = (0..3).map(|i| root.path().join(i.to_string())).collect();
    let volume = Volume::create(&dirs, Geometry::choose(3, 1, 0).unwrap()).unwrap();
    (root, dirs, volume)
}

fn leave_behind(volume: &Volume) -> Result<(), StoreError> {
    let (members, on) = (volume.members(), |slot| volume.dirs_of(slot));
    let (lock, _) = StoreLock::take_all(members, &on)?;
    leave_missing_behind(members, &Disk::default(), &lock, |_| true)
}

#[test]
fn leave_behind_beyond_tolerance_is_refused() {
    let (root, dirs, volume) = volume();
    let away = |i: usize| root.path().join(format!("away{i}"));
    // A controller dies while a caller waits for the lock.
    for i in [1, 2] {
        fs::rename(&dirs[i], away(i)).unwrap();
    }
    volume.members().refresh();
    let error = leave_behind(&volume).unwrap_err();
    assert!(matches!(error, StoreError::MembersLost { lost: 2, may: 1, .. }), "{error}");
    assert_eq!(volume.members().generation(), 1);
    for i in [1, 2] {
        fs::rename(away(i), &dirs[i]).unwrap();
    }
    drop(volume);
    let volume = Volume::open(&dirs[0]).unwrap();
    assert_eq!(volume.members().usable(), [0, 1, 2], "all are believed when they are back");
    fs::rename(&dirs[2], away(2)).unwrap();
    volume.members().refresh();
    leave_behind(&volume).unwrap();
    assert_eq!((volume.members().state(2), volume.members().generation()), (MemberState::Stale, 2));
}
