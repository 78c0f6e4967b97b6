//! Pinning a thread to a core.

use rustix::thread::{CpuSet, sched_setaffinity};

/// Pins the calling thread to core `cpu`.
///
/// # Errors
/// When the core does not exist or is not allowed for this process.
pub fn pin_to(cpu: usize) -> std::io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(std::io::Error::other(format!(
            "core {cpu}: the highest possible is {}",
            CpuSet::MAX_CPU - 1
        )));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|error| {
        let what =
            format!("core {cpu}: {error}; choose one that this process may run on (see: taskset -cp $$)");
        std::io::Error::new(error.kind(), what)
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn pinning_to_an_allowed_core_works_and_to_a_missing_one_fails() {
        std::thread::spawn(|| {
            let allowed = rustix::thread::sched_getaffinity(None).unwrap();
            let cpu = (0..1024).find(|&cpu| allowed.is_set(cpu)).unwrap();
            super::pin_to(cpu).unwrap();
            assert_eq!(rustix::thread::sched_getaffinity(None).unwrap().count(), 1);
            assert!(super::pin_to(1023).unwrap_err().to_string().contains("1023"));
            assert!(super::pin_to(usize::MAX).is_err());
        })
        .join()
        .unwrap();
    }
}
