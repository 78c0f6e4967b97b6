//! Priorities of threads: background work yields to all others, work for a waiting client to most of them, and engines wake promptly.
#![allow(unsafe_code)]

/// The lowest priority of a thread.
const LEAST_URGENT: i32 = 19;
/// A tenth of the share of a thread with no nice value, so that work goes on beside programs that never rest.
const LESS_URGENT: i32 = 10;
/// `IOPRIO_WHO_PROCESS` of the kernel: one thread, by its number.
const WHO_THREAD: libc::c_int = 1;
/// `IOPRIO_CLASS_IDLE` of the kernel, where `IOPRIO_PRIO_VALUE` puts the class.
const IDLE_CLASS: libc::c_int = 3 << 13;
/// The last level of `IOPRIO_CLASS_BE`, the class of most programs.
const LAST_OF_MOST: libc::c_int = 2 << 13 | 7;

/// How long an engine runs before others on its core have their turn: the shortest time that the
/// kernel accepts. The share of the core stays the same; it comes in smaller pieces.
const PROMPT_SLICE_NS: u64 = 100_000;

/// Of the kernel's calls: the calling thread, and no option.
const THIS_THREAD: libc::c_int = 0;
const NO_FLAGS: libc::c_uint = 0;

/// From here on this thread, when it wakes up, takes its core from a thread with longer slices
/// instead of waiting for the end of such a slice, unless it has had more than its share lately.
/// Needs no privilege. Kernels before 6.12 know no slices of threads and stay as they are.
pub fn wake_promptly() {
    // The runtime of real-time policies has another meaning, or none; an operator chose those.
    let Some(mut attributes) = scheduling().filter(|it| it.sched_policy == libc::SCHED_OTHER as u32) else {
        return;
    };
    attributes.sched_runtime = PROMPT_SLICE_NS;
    // SAFETY: `attributes` is valid for reads of the size that it states (sched_setattr(2)).
    let _ = unsafe { libc::syscall(libc::SYS_sched_setattr, THIS_THREAD, &raw const attributes, NO_FLAGS) };
}

/// The scheduling of the calling thread; `None` if the kernel refuses to show it.
fn scheduling() -> Option<libc::sched_attr> {
    let size_bytes = size_of::<libc::sched_attr>() as libc::c_uint;
    // SAFETY: all fields are numbers, and zero is a value of each.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: `attributes` is valid for writes of `size_bytes` (sched_getattr(2)).
    let read = unsafe {
        libc::syscall(libc::SYS_sched_getattr, THIS_THREAD, &raw mut attributes, size_bytes, NO_FLAGS)
    };
    attributes.size = size_bytes;
    (read == 0).then_some(attributes)
}

/// From here on this thread runs and reads disks only when no other wants to, as far as kernel and scheduler of the disk go along. Where
/// that is refused, it is as any other. For background work: beside a busy program it has a seventieth of a core.
pub fn yield_to_all() {
    yield_by(LEAST_URGENT, IDLE_CLASS);
}

/// From here on this thread has a small share of processor and disks, however busy others are: for work with a waiting client.
pub fn yield_to_most() {
    yield_by(LESS_URGENT, LAST_OF_MOST);
}

/// Priorities of the calling thread, and of the programs that it starts.
fn yield_by(nice: i32, io_priority: libc::c_int) {
    // In a thread this changes the nice value of the thread.
    let _ = rustix::process::nice(nice);
    // SAFETY: takes three numbers, 0 being this thread, and touches no memory (ioprio_set(2)).
    let _ = unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_THREAD, 0, io_priority) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Policy, nice value and slice of the calling thread.
    fn policy_nice_and_slice() -> (u32, i32, u64) {
        let attributes = scheduling().expect("every thread may see its own scheduling");
        (attributes.sched_policy, attributes.sched_nice, attributes.sched_runtime)
    }

    #[test]
    fn wake_promptly_shortens_slice_of_calling_thread_only() {
        let (policy, nice, slice_ns) = policy_nice_and_slice();
        if slice_ns == 0 {
            eprintln!("skipped: the kernel knows no slices of threads (before 6.12)");
            return;
        }
        let prompt = std::thread::spawn(|| {
            wake_promptly();
            policy_nice_and_slice()
        });
        assert_eq!(prompt.join().expect("it does not panic"), (policy, nice, PROMPT_SLICE_NS));
        assert_eq!(policy_nice_and_slice(), (policy, nice, slice_ns));
    }

    #[test]
    fn yielding_lowers_priority_of_calling_thread_only() {
        // SAFETY: takes two numbers and touches no memory (ioprio_get(2)).
        let io_priority = || unsafe { libc::syscall(libc::SYS_ioprio_get, WHO_THREAD, 0) };
        let before = io_priority();
        let after = |yielding: fn()| {
            let thread = std::thread::spawn(move || {
                yielding();
                (io_priority(), rustix::process::nice(0).expect("reading it needs no right"))
            });
            thread.join().expect("it does not panic")
        };
        let (all, most) = (after(yield_to_all), after(yield_to_most));
        assert_eq!((all.0 >> 13, all.1), (3, LEAST_URGENT));
        assert_eq!(most, (libc::c_long::from(LAST_OF_MOST), LESS_URGENT));
        assert_eq!(io_priority(), before);
    }
}
