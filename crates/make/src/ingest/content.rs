//! Hashes the content of a file. A title stores the hash, so that a file is recognized after it was
//! moved, renamed or copied.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use millrace_store::limits::volume::COPY_BYTES;

/// BLAKE3 of the file at `path`, 64 hexadecimal digits. The file is read from front to back through
/// one buffer; `cancel` stops the read.
///
/// # Errors
/// If the file cannot be read, or the read was cancelled (`Interrupted`).
pub fn blake3_of_file(path: &Path, cancel: &AtomicBool) -> io::Result<String> {
    blake3_of(&File::open(path)?, cancel)
}

/// Like [`blake3_of_file`] for an open file; its position is neither used nor changed.
pub(crate) fn blake3_of(file: &File, cancel: &AtomicBool) -> io::Result<String> {
    let (mut hasher, mut buffer, mut at) = (blake3::Hasher::new(), vec![0; COPY_BYTES], 0);
    loop {
        if cancel.load(Ordering::Relaxed) {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "cancelled"));
        }
        match file.read_at(&mut buffer, at) {
            Ok(0) => return Ok(hasher.finalize().to_hex().to_string()),
            Ok(count) => {
                hasher.update(&buffer[..count]);
                at += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
