//! Damage that sums of 16 bits do not see, and titles as older versions made them.
#![allow(dead_code)] // each test program uses its own part

use std::fs;
use std::path::Path;

use millrace_core::wire::checksum::sum16;
use millrace_store::format::manifest::{CRC_FILE, Manifest, PARITY_CRC_FILE};

/// Two aligned words of a file change places, the first two from byte `at` on that differ: four wrong bytes or fewer, and
/// the sum of the packet around them stays. `at` is even.
pub(crate) fn swap_words(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    let at = (at..).step_by(2).find(|&at| bytes[at..at + 2] != bytes[at + 2..at + 4]).unwrap();
    let before = sum16(&bytes[at..at + 4]);
    bytes[at..at + 4].rotate_left(2);
    assert_eq!(sum16(&bytes[at..at + 4]), before);
    fs::write(path, bytes).unwrap();
}

/// Makes of a title in this directory what versions without CRCs made.
pub(crate) fn strip_crcs(title: &Path) {
    strip(title, &[CRC_FILE, PARITY_CRC_FILE]);
}

/// Makes of a title in this directory what versions without these files made.
pub(crate) fn strip(title: &Path, names: &[&str]) {
    let path = title.join("manifest.mrm");
    let mut manifest = Manifest::decode(&fs::read(&path).unwrap()).unwrap();
    for &name in names {
        if manifest.file(name).is_some() {
            fs::remove_file(title.join(name)).unwrap();
        }
        manifest.files.retain(|file| file.name != name);
    }
    let bytes = manifest.encode();
    assert!(bytes[12] < 4, "written in the version that older programs read");
    fs::write(path, bytes).unwrap();
}
