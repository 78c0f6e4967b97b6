//! Page-aligned memory that the kernel reads into.
#![allow(unsafe_code)]

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Alignment of direct reads, in memory, in the file and in length: the page size, at least every block size.
pub(super) const ALIGN: usize = 4096;

/// Zeroed memory aligned to pages. It is not inherited by child processes: a page that a direct read is writing to
/// must not become copy-on-write by a fork.
pub(super) struct AlignedBuf {
    base: NonNull<u8>,
    len: usize,
}

impl AlignedBuf {
    /// `len` bytes, rounded up to whole pages, at least one.
    ///
    /// # Errors
    /// If the memory cannot be allocated.
    pub(super) fn new(len: usize) -> std::io::Result<Self> {
        let len = len.max(1).next_multiple_of(ALIGN);
        // SAFETY: an anonymous private mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe {
            mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        }?;
        let base = NonNull::new(base.cast()).ok_or(std::io::ErrorKind::OutOfMemory)?;
        let buf = Self { base, len };
        // SAFETY: the range is exactly the mapping just made; the advice changes nothing in this process.
        unsafe { madvise(buf.base.as_ptr().cast(), len, Advice::LinuxDontFork) }?;
        Ok(buf)
    }
}

impl AlignedBuf {
    /// Where it begins, without making a slice of it: the kernel may be writing to a part of it.
    pub(super) fn base(&mut self) -> *mut u8 {
        self.base.as_ptr()
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `base..base + len` is one mapping, zeroed at first, that lives as long as `self`;
        // bytes are changed only through `&mut self` or by the kernel, to which `read/uring.rs`
        // lends parts of it by address: no code makes a slice of it before the kernel is done with
        // all of them.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes this the only slice.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly the mapping made in `new`, once; no slice of it outlives `self`.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "unmapping own memory: {unmapped:?}");
    }
}

// SAFETY: the memory is plain bytes owned by this value alone.
unsafe impl Send for AlignedBuf {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_zeroed_writable_and_movable_to_a_thread() {
        let mut buf = AlignedBuf::new(ALIGN + 1).unwrap();
        assert_eq!((buf.len(), buf.as_ptr() as usize % ALIGN), (2 * ALIGN, 0));
        assert!(buf.iter().all(|&byte| byte == 0));
        assert_eq!(buf.base().cast_const(), buf.as_ptr());
        buf[ALIGN] = 7;
        let buf = std::thread::spawn(move || buf).join().unwrap();
        assert_eq!((buf[ALIGN - 1], buf[ALIGN]), (0, 7));
        assert_eq!(AlignedBuf::new(0).unwrap().len(), ALIGN);
    }

    #[test]
    fn memory_that_cannot_be_had_is_an_error() {
        assert!(AlignedBuf::new(1 << 60).is_err());
    }
}
