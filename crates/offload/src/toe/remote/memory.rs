//! The memory of a queue pair that two processes have mapped: a memfd, sealed so that it can neither shrink nor grow. A page of it can be taken
//! away by neither side, so that no access faults.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use millrace_core::shared::{Region, WORD_BYTES, Words};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate,
    memfd_create,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// What keeps the memory as large as it is, for good.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Memory of `count` zeros: the descriptor to hand to the other process, and the words.
///
/// # Errors
/// No memory, no descriptor.
pub(super) fn create(count: usize) -> io::Result<(OwnedFd, Words)> {
    let fd = memfd_create("millrace-pair", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let bytes = count as u64 * WORD_BYTES as u64;
    ftruncate(&fd, bytes)?;
    // A lack of pages shows here, and not in the middle of a turn.
    fallocate(&fd, FallocateFlags::empty(), 0, bytes)?;
    fcntl_add_seals(&fd, SEALS)?;
    let words = Mapping::new(&fd, count, true)?.into_words();
    Ok((fd, words))
}

/// Maps the memory that the other process has handed over.
///
/// # Errors
/// It is not `count` words long, or could become shorter.
pub(super) fn open(fd: &OwnedFd, count: usize) -> io::Result<Words> {
    let seals = fcntl_get_seals(fd)?;
    let bytes = fstat(fd)?.st_size;
    if !seals.contains(SEALS) || usize::try_from(bytes) != Ok(count * WORD_BYTES) {
        let text = format!(
            "the offload engine has sent {bytes} bytes of memory with seals {seals:?}: {} bytes that cannot change their size were announced; start an engine of the same version",
            count * WORD_BYTES
        );
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    Ok(Mapping::new(fd, count, false)?.into_words())
}

/// A shared mapping of a sealed memfd.
struct Mapping {
    first: NonNull<AtomicU64>,
    count: usize,
}

impl Mapping {
    /// The caller has seen to it that the memory has at least `count` words and is sealed.
    fn new(fd: impl AsFd, count: usize, is_present: bool) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let populate = if is_present { MapFlags::POPULATE } else { MapFlags::empty() };
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe {
            mmap(std::ptr::null_mut(), count * WORD_BYTES, access, MapFlags::SHARED | populate, fd, 0)
        }?;
        let first = NonNull::new(base.cast()).expect("mmap never returns a null page");
        Ok(Self { first, count })
    }

    fn into_words(self) -> Words {
        Words::over(Arc::new(self))
    }
}

impl Region for Mapping {
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: `count` words of a mapping that begins on a page and lives as long as `self`. Any
        // bytes are a word, and this process makes only atomic accesses; the writes of the other
        // process are not its concern. The seals keep every page present in the file.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.count) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `new`, unmapped once; all words were borrowed from `self`.
        let result = unsafe { munmap(self.first.as_ptr().cast(), self.count * WORD_BYTES) };
        debug_assert!(result.is_ok());
    }
}

// SAFETY: memory that holds nothing but atomics and belongs to no thread.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_share_memory_after_descriptor_is_closed() {
        let (fd, ours) = create(1000).unwrap();
        let theirs = open(&fd, 1000).unwrap();
        drop(fd);
        assert_eq!((ours.count(), theirs.count()), (1000, 1000));
        ours.store(999, 7);
        assert!(theirs.write(3, b"bytes"));
        assert_eq!(theirs.load(999), 7);
        let mut back = [0; 5];
        assert!(ours.read(3, &mut back) && back == *b"bytes");
        drop(ours);
        assert_eq!(theirs.load(999), 7);
    }

    #[test]
    fn memfd_seals_forbid_resizing_and_further_seals() {
        let (fd, words) = create(1024).unwrap();
        assert!(ftruncate(&fd, 0).is_err() && ftruncate(&fd, 1 << 20).is_err());
        assert!(fcntl_add_seals(&fd, SealFlags::WRITE).is_err(), "nor forbid the other side to write");
        // A page that is taken out comes back as zeros.
        words.store(1, 7);
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&fd, hole, 0, 4096).unwrap();
        assert_eq!(words.load(1), 0);
    }

    #[test]
    fn memory_that_could_shrink_or_is_of_another_size_is_not_mapped() {
        let make = |bytes, seals| {
            let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
            ftruncate(&fd, bytes).unwrap();
            fcntl_add_seals(&fd, seals).unwrap();
            fd
        };
        let refused = |fd: &OwnedFd| open(fd, 512).map(|words| words.count()).unwrap_err().kind();
        for without in [SealFlags::SHRINK, SealFlags::GROW, SealFlags::SEAL] {
            assert_eq!(refused(&make(4096, SEALS - without)), io::ErrorKind::InvalidData, "{without:?}");
        }
        for bytes in [0, 4095, 4097, 8192] {
            assert_eq!(refused(&make(bytes, SEALS)), io::ErrorKind::InvalidData, "{bytes}");
        }
        assert!(open(&make(4096, SEALS), 512).is_ok());
        // A file is none.
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        assert!(open(&file.into(), 512).is_err());
        // Neither writable for us nor lasting.
        assert!(open(&make(4096, SEALS | SealFlags::WRITE), 512).is_err());
    }
}
