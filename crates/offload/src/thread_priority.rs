//! Threads for work that nothing waits for.
#![allow(unsafe_code)]

/// The lowest priority of a thread.
const LEAST_URGENT: i32 = 19;
/// `IOPRIO_WHO_PROCESS` of the kernel: one thread, by its number.
const WHO_THREAD: libc::c_int = 1;
/// `IOPRIO_CLASS_IDLE` of the kernel, where `IOPRIO_PRIO_VALUE` puts the class.
const IDLE_CLASS: libc::c_int = 3 << 13;

/// From here on this thread runs and reads disks only when no other wants to, as far as kernel and scheduler of the disk go along. Where
/// that is refused, it is as any other.
pub fn yield_to_all() {
    // In a thread this sets the nice value of the thread.
    let _ = rustix::process::nice(LEAST_URGENT);
    // SAFETY: takes three numbers, 0 being this thread, and touches no memory (ioprio_set(2)).
    let _ = unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_THREAD, 0, IDLE_CLASS) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yield_to_all_lowers_priority_of_calling_thread_only() {
        // SAFETY: takes two numbers and touches no memory (ioprio_get(2)).
        let class = || unsafe { libc::syscall(libc::SYS_ioprio_get, WHO_THREAD, 0) } >> 13;
        let before = class();
        let yielding = move || {
            yield_to_all();
            (class(), rustix::process::nice(0).expect("what is not changed is told"))
        };
        assert_eq!(std::thread::spawn(yielding).join().expect("it does not panic"), (3, LEAST_URGENT));
        assert_eq!(class(), before);
    }
}
