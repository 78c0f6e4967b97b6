//! Shared parts of the fuzz tests: seeds in the tree, and edits that turn good input into bad.

use std::path::{Path, PathBuf};

/// Files of a target's corpus in the crate whose folder is `manifest_dir`.
pub fn seeds(manifest_dir: &str, target: &str) -> Vec<Vec<u8>> {
    let dir = Path::new(manifest_dir).join("tests/fuzz/__fuzz__").join(target).join("corpus");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| std::fs::read(file).unwrap()).collect()
}

/// `sample` with bytes replaced, cut out or doubled.
pub fn edited(sample: &[u8], edits: &[(u8, u16, u8)]) -> Vec<u8> {
    let mut bytes = sample.to_vec();
    for (how, at, byte) in edits {
        if bytes.is_empty() {
            break;
        }
        let at = usize::from(*at) % bytes.len();
        let end = (at + usize::from(*byte)).min(bytes.len());
        match how % 4 {
            0 => bytes[at] = *byte,
            1 => drop(bytes.drain(at..end)),
            2 => bytes.insert(at, *byte),
            _ => {
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
        }
    }
    bytes
}
