//! An allocator that counts, for test programs of any crate that show that there is nothing to count: the system's allocator, and how often each
//! thread called it.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

/// Calls of this thread until now, of memory that was taken and of memory that was given back.
pub fn calls() -> u64 {
    CALLS.get()
}

/// For `#[global_allocator]`, which the program itself has to name: other programs with this crate keep the system's.
pub struct Counting;

// SAFETY: every call is handed on unchanged to the system's allocator, which keeps the contract; counting touches a
// thread-local that is initialised at compile time and has no destructor, so it never allocates.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.set(CALLS.get() + 1);
        // SAFETY: the caller's promise for `alloc` is the one that System.alloc asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        CALLS.set(CALLS.get() + 1);
        // SAFETY: `at` came from `alloc` above, hence from System, with this layout.
        unsafe { System.dealloc(at, layout) }
    }
}
