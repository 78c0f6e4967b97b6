//! Memory for the extent arena: 2 MiB huge pages if the system has them reserved, transparent ones if it allows, else
//! ordinary pages.
//!
//! The system makes a page present when it is first written to; for 5 GiB of them this takes
//! seconds. Nothing waits for it: a thread ([`Touching`]) makes them present while the server
//! already runs. The thread that fills an extent earlier makes its pages present; the engines only
//! see extents that are filled.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use millrace_core::limits::EXTENT_BYTES;
use millrace_core::pool::{ExtentArena, Region};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

const HUGE_PAGE_BYTES: usize = 2 << 20;
const HUGE_PAGES: &str = "2 MiB huge pages";

/// A private anonymous mapping.
pub struct PageRegion {
    base: NonNull<u8>,
    len: usize,
    kind: &'static str,
}

impl PageRegion {
    /// Maps at least `bytes` (rounded up to whole 2 MiB pages), on huge pages when possible. Takes no time: no page is present
    /// yet.
    ///
    /// # Errors
    /// When the system has not that much memory.
    pub fn new(bytes: u64) -> std::io::Result<Self> {
        let len = usize::try_from(bytes)
            .ok()
            .and_then(|b| b.max(EXTENT_BYTES).checked_next_multiple_of(HUGE_PAGE_BYTES))
            .ok_or_else(|| {
                std::io::Error::other(format!("cache of {bytes} bytes does not fit the address space"))
            })?;
        // Huge pages are set aside by this call, or it fails: there are enough when they are touched.
        let huge = MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB;
        if let Ok(region) = Self::map(len, huge, HUGE_PAGES) {
            return Ok(region);
        }
        let mut region =
            Self::map(len, MapFlags::PRIVATE | MapFlags::NORESERVE, "ordinary pages").map_err(|e| {
                std::io::Error::new(
                    e.kind(),
                    format!("map {len} bytes for the cache: {e}; choose a smaller --cache"),
                )
            })?;
        // SAFETY: the whole range is our own fresh mapping; the advice changes page sizes, not contents.
        if unsafe { madvise(region.base.as_ptr().cast(), len, Advice::LinuxHugepage) }.is_ok() {
            region.kind = "ordinary pages, transparent huge pages where the kernel likes";
        }
        Ok(region)
    }

    /// The same with all pages present: for measuring, where a page that comes late would count.
    ///
    /// # Errors
    /// As [`PageRegion::new`].
    pub fn present(bytes: u64) -> std::io::Result<Self> {
        let region = Self::new(bytes)?;
        // SAFETY: the whole range is our own mapping; populating for writing only makes the pages present (Linux 5.14; older
        // kernels refuse).
        let _ = unsafe { madvise(region.base.as_ptr().cast(), region.len, Advice::LinuxPopulateWrite) };
        Ok(region)
    }

    fn map(len: usize, flags: MapFlags, kind: &'static str) -> std::io::Result<Self> {
        // SAFETY: a new private anonymous mapping at an address of the kernel's choice overlaps nothing.
        let base =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
        let base = NonNull::new(base.cast()).expect("mmap never returns a null page");
        Ok(Self { base, len, kind })
    }
}

impl Drop for PageRegion {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `map`, unmapped once; the arena that used it is gone with its leases.
        let result = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(result.is_ok());
    }
}

// SAFETY: plain memory owned by this value; the arena's states govern access.
unsafe impl Send for PageRegion {}
// SAFETY: as above.
unsafe impl Sync for PageRegion {}
// SAFETY: one zero-filled private mapping of `len` bytes, page aligned, alive until drop, shared
// with no other process.
unsafe impl Region for PageRegion {
    fn base(&self) -> NonNull<u8> {
        self.base
    }
    fn len(&self) -> usize {
        self.len
    }
    fn describe(&self) -> &'static str {
        self.kind
    }
    fn renew(&self, at: usize, len: usize) -> bool {
        assert!(at <= self.len && len <= self.len - at, "bytes {at}+{len} of {}", self.len);
        if self.kind == HUGE_PAGES {
            return false; // the kernel does not replace parts of reserved huge pages, and reports no error
        }
        // SAFETY: the range lies in our mapping. The caller holds the only right to access it (it fills this extent), so no reference
        // sees the content change. The next access finds zeroed pages.
        unsafe { madvise(self.base.as_ptr().add(at).cast(), len, Advice::LinuxDontNeed) }.is_ok()
    }
}

/// A thread that makes all memory of an arena present, from its beginning on, when nothing else has to be done.
///
/// Meanwhile the kernel holds the lock of the process's mappings, and each thread that allocates memory waits. A thread
/// of low priority, preempted while it holds the lock, would stop all of them for as long as other programs are busy. So a second thread waits
/// for idle time, and the work itself has the usual priority.
#[derive(Debug)]
pub struct Touching {
    stop: Arc<AtomicBool>,
    turns: SyncSender<()>,
    thread: Option<JoinHandle<()>>,
}

impl Touching {
    /// Name of the thread.
    pub const THREAD: &str = "cache-memory";
    /// Name of the thread that waits for idle time.
    const GATE: &str = "cache-gate";

    /// Starts it.
    ///
    /// # Errors
    /// When no thread can be started; the memory can be used all the same.
    pub fn start(arena: Arc<ExtentArena>) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        // Nothing is stored: a turn begins when both threads are there.
        let (turns, turn) = sync_channel(0);
        let gate = turns.clone();
        let open_when_idle = move || open_when_idle(&gate);
        let touch_all = move || touch_all(&arena, &turn, &stopped);
        // The gate ends with the other thread, or soon after; nothing waits for it.
        std::thread::Builder::new().name(Self::GATE.into()).spawn(open_when_idle)?;
        let thread = std::thread::Builder::new().name(Self::THREAD.into()).spawn(touch_all)?;
        Ok(Self { stop, turns, thread: Some(thread) })
    }

    /// Waits until it is done.
    pub fn finish(mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // it cannot panic, and nothing depends on it
        }
    }
}

impl Drop for Touching {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A last turn, so that it need not wait for idle time. It has ended if it takes none.
            let _ = self.turns.send(());
            let _ = thread.join(); // as above; a page takes milliseconds
        }
    }
}

/// Gives turns in idle time, until they are no longer taken.
fn open_when_idle(turns: &SyncSender<()>) {
    crate::thread_priority::yield_to_all();
    while turns.send(()).is_ok() {}
}

/// Makes an arena present, a page each turn.
fn touch_all(arena: &ExtentArena, turn: &Receiver<()>, stopped: &AtomicBool) {
    let pages = arena.memory().1.div_ceil(HUGE_PAGE_BYTES);
    for page in 0..pages {
        if turn.recv().is_err() || stopped.load(Ordering::Relaxed) || !touch(arena, page) {
            break;
        }
    }
}

/// Makes 2 MiB of an arena present; `false` if the kernel cannot (before Linux 5.14) or has too
/// little memory. One page at a time, because no thread can change the process's mappings
/// meanwhile.
fn touch(arena: &ExtentArena, page: usize) -> bool {
    let (base, len) = arena.memory();
    let at = page * HUGE_PAGE_BYTES;
    let bytes = HUGE_PAGE_BYTES.min(len.saturating_sub(at));
    // SAFETY: `at < len`, or nothing is left and the call does nothing: the range lies in the
    // arena's memory, which lives as long as the arena. Making pages present changes no byte,
    // whichever thread reads or writes them at the same moment.
    unsafe { madvise(base.as_ptr().add(at.min(len)).cast(), bytes, Advice::LinuxPopulateWrite) }.is_ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn page_region_is_zeroed_writable_and_whole_pages() {
        let region = PageRegion::new(1).unwrap();
        assert_eq!((region.len(), region.base().as_ptr() as usize % 4096), (HUGE_PAGE_BYTES, 0));
        let arena = ExtentArena::new(Box::new(region));
        assert_eq!(arena.extents(), 8);
        let mut fill = arena.fill(7).unwrap();
        assert!(fill.bytes_mut().iter().all(|&b| b == 0));
        fill.bytes_mut().fill(1);
    }

    /// Bytes of an arena's memory that are present, as the kernel sees it: bit 63 of each page's entry.
    fn present(arena: &ExtentArena) -> usize {
        const PAGE: usize = 4096;
        let (base, len) = arena.memory();
        let mut entries = vec![0; len / PAGE * 8];
        let map = std::fs::File::open("/proc/self/pagemap").unwrap();
        map.read_exact_at(&mut entries, (base.as_ptr() as usize / PAGE * 8) as u64).unwrap();
        entries.as_chunks::<8>().0.iter().filter(|entry| entry[7] & 0x80 != 0).count() * PAGE
    }

    #[test]
    fn touching_makes_pages_present_and_keeps_data() {
        let len = 16 * HUGE_PAGE_BYTES;
        let arena = ExtentArena::new(Box::new(PageRegion::new(len as u64).unwrap()));
        assert_eq!(present(&arena), 0, "before anybody has used it");
        let mut fill = arena.fill(3).unwrap();
        fill.bytes_mut().fill(7);
        assert!((1..=HUGE_PAGE_BYTES).contains(&present(&arena)), "{}", present(&arena));
        Touching::start(Arc::clone(&arena)).unwrap().finish();
        if touch(&arena, 0) {
            assert_eq!(present(&arena), len);
        } else {
            eprintln!("skipped: this kernel does not make pages present on demand");
        }
        assert!(fill.bytes_mut().iter().all(|&b| b == 7));
    }

    #[test]
    fn memory_is_made_present_at_usual_priority_by_turns_of_the_lowest() {
        let nice = || rustix::process::nice(0).unwrap();
        let usual = nice();
        let arena = ExtentArena::new(Box::new(PageRegion::new(1).unwrap()));
        let (turns, turn) = sync_channel(0);
        let gate = std::thread::spawn(move || {
            open_when_idle(&turns);
            nice()
        });
        let of_touching = std::thread::spawn(move || {
            touch_all(&arena, &turn, &AtomicBool::new(false));
            nice()
        });
        assert_eq!((of_touching.join().unwrap(), gate.join().unwrap()), (usual, 19));
    }

    #[test]
    fn touching_dropped_early_stops_its_thread() {
        let arena = ExtentArena::new(Box::new(PageRegion::new(1 << 30).unwrap()));
        drop(Touching::start(Arc::clone(&arena)).unwrap());
        assert_eq!(Arc::strong_count(&arena), 1, "the thread has gone");
    }

    #[test]
    fn too_much_memory_is_an_error_not_a_crash() {
        assert!(PageRegion::new(u64::MAX).is_err());
        assert!(PageRegion::new(1 << 60).is_err());
    }
}
