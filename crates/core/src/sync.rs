//! The atomics of the standard library or, compiled with `--cfg millrace_loom`, loom's model of them, which tries every order in which
//! threads can run (`cargo xtask loom`).

#[cfg(millrace_loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
#[cfg(not(millrace_loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

/// Tells the model that memory behind a raw pointer is read or written; without the model it is nothing.
#[derive(Default)]
pub(crate) struct Access(#[cfg(millrace_loom)] loom::cell::UnsafeCell<()>);

impl Access {
    /// Somebody reads.
    #[inline(always)]
    pub(crate) fn read(&self) {
        #[cfg(millrace_loom)]
        self.0.with(|_| ());
    }

    /// Somebody writes.
    #[inline(always)]
    pub(crate) fn write(&self) {
        #[cfg(millrace_loom)]
        self.0.with_mut(|_| ());
    }
}
