//! Whose a descriptor is: looked up by every call, without a lock, also in a signal handler.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::limits::MAX_DESCRIPTORS;

/// Owner and type of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DescriptorKind {
    /// The kernel's: no business of ours.
    Kernel,
    /// This library's own: the program does not know it.
    Internal,
    /// A socket of the engine.
    Socket(u32),
    /// An epoll set, which may have such sockets in it.
    Epoll(u32),
}

static KINDS: [AtomicU32; MAX_DESCRIPTORS] = [const { AtomicU32::new(0) }; MAX_DESCRIPTORS];

const INTERNAL: u32 = 1;
const SOCKET: u32 = 2;
const EPOLL: u32 = 3;

/// Whose it is.
pub(crate) fn kind(fd: i32) -> DescriptorKind {
    let Some(entry) = usize::try_from(fd).ok().and_then(|fd| KINDS.get(fd)) else {
        return DescriptorKind::Kernel;
    };
    let word = entry.load(Ordering::Acquire);
    match word & 3 {
        INTERNAL => DescriptorKind::Internal,
        SOCKET => DescriptorKind::Socket(word >> 2),
        EPOLL => DescriptorKind::Epoll(word >> 2),
        _ => DescriptorKind::Kernel,
    }
}

/// Says whose it is from now on. False: its number is beyond the table.
pub(crate) fn set(fd: i32, kind: DescriptorKind) -> bool {
    let Some(entry) = usize::try_from(fd).ok().and_then(|fd| KINDS.get(fd)) else { return false };
    let word = match kind {
        DescriptorKind::Kernel => 0,
        DescriptorKind::Internal => INTERNAL,
        DescriptorKind::Socket(index) => SOCKET | index << 2,
        DescriptorKind::Epoll(index) => EPOLL | index << 2,
    };
    entry.store(word, Ordering::Release);
    true
}

/// Descriptors from `first` to `last` that are not the kernel's.
pub(crate) fn ours(first: u32, last: u32) -> impl Iterator<Item = (i32, DescriptorKind)> {
    let end = last.min(MAX_DESCRIPTORS as u32 - 1);
    (first..=end).map(|fd| (fd as i32, kind(fd as i32))).filter(|(_, kind)| *kind != DescriptorKind::Kernel)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_come_back_and_numbers_beyond_are_the_kernels() {
        for kind_of in [
            DescriptorKind::Socket(0),
            DescriptorKind::Socket(70_000),
            DescriptorKind::Epoll(3),
            DescriptorKind::Internal,
            DescriptorKind::Kernel,
        ] {
            assert!(set(1000, kind_of));
            assert_eq!(kind(1000), kind_of);
        }
        assert_eq!(kind(-1), DescriptorKind::Kernel);
        assert_eq!(kind(i32::MAX), DescriptorKind::Kernel);
        assert!(!set(MAX_DESCRIPTORS as i32, DescriptorKind::Socket(1)));
        assert!(!set(-1, DescriptorKind::Socket(1)));
        set(1001, DescriptorKind::Epoll(1));
        assert_eq!(ours(1000, u32::MAX).collect::<Vec<_>>(), [(1001, DescriptorKind::Epoll(1))]);
        set(1001, DescriptorKind::Kernel);
    }
}
