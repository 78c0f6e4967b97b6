//! The atomics of the standard library or, compiled with `--cfg millrace_loom`, loom's model of them, which tries every order in which
//! threads can run (`cargo xtask loom`).

#[cfg(millrace_loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(millrace_loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

/// Tells the model that the memory of an extent is read or written; without the model it is nothing. The model knows the first packets of
/// an extent by themselves and all others together.
#[derive(Default)]
pub(crate) struct Access(#[cfg(millrace_loom)] [loom::cell::UnsafeCell<()>; 4]);

impl Access {
    /// Marks a read of packets `..end`.
    #[inline(always)]
    pub(crate) fn read(&self, end: usize) {
        #[cfg(millrace_loom)]
        self.0[..end.min(self.0.len())].iter().for_each(|cell| cell.with(|_| ()));
        #[cfg(not(millrace_loom))]
        let _ = end;
    }

    /// Marks a write of packets `start..`.
    #[inline(always)]
    pub(crate) fn write(&self, start: usize) {
        #[cfg(millrace_loom)]
        self.0[start.min(self.0.len() - 1)..].iter().for_each(|cell| cell.with_mut(|_| ()));
        #[cfg(not(millrace_loom))]
        let _ = start;
    }
}
