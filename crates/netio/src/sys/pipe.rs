//! References to pages of memory, in a pipe.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::pipe::{IoSliceRaw, SpliceFlags, vmsplice};

/// Puts references to the pages of `bytes` into a pipe, without waiting; returns the number of bytes. Later changes of this
/// memory are visible to the reader of the pipe and to every receiver of the pages behind it.
///
/// # Errors
/// The kernel's error.
pub(crate) fn refer(pipe: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
    let part = IoSliceRaw::from_slice(bytes);
    // SAFETY: the kernel only reads the pages of `bytes`, and keeps them itself by counting its references.
    unsafe { vmsplice(pipe, &[part], SpliceFlags::NONBLOCK) }
}
