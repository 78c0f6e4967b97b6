//! Processor time and memory of a process, from /proc.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::DirEntry;
use std::time::{Duration, Instant as StdInstant};

use anyhow::{Context, ensure};

/// Processor time in nanoseconds that this process has used, threads that have ended included.
pub fn own_cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Processor time in nanoseconds that threads of `pid` whose name begins with `thread` have used ("" for all). Those that have
/// ended do not count any more, so it may become less.
///
/// # Errors
/// When the process is gone.
pub fn cpu_ns(pid: u32, thread: &str) -> anyhow::Result<u64> {
    Ok(ThreadTimes::look(pid, thread)?.0.values().sum())
}

/// Processor time in nanoseconds of each thread of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadTimes(BTreeMap<OsString, u64>);

impl ThreadTimes {
    /// Of threads of `pid` whose name begins with `thread` ("" for all).
    ///
    /// # Errors
    /// When the process is gone.
    pub fn look(pid: u32, thread: &str) -> anyhow::Result<Self> {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task"))
            .with_context(|| format!("process {pid} is gone"))?;
        let time = |task: DirEntry| {
            let read = |file: &str| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
            // First field of schedstat: time on the processor in nanoseconds.
            let ns = || read("schedstat").split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0);
            read("comm").starts_with(thread).then(|| (task.file_name(), ns()))
        };
        Ok(Self(tasks.flatten().filter_map(time).collect()))
    }

    /// Returns the processor time used since `before`; a thread that has ended meanwhile adds
    /// nothing.
    pub fn since(&self, before: &Self) -> u64 {
        let used =
            |(thread, now): (&OsString, &u64)| now.saturating_sub(before.0.get(thread).copied().unwrap_or(0));
        self.0.iter().map(used).sum()
    }
}

/// Waits until no thread of `pid` has a name that begins with `thread`.
///
/// # Errors
/// When the process is gone, or a thread still runs after `limit`.
pub fn wait_for_end_of(pid: u32, thread: &str, limit: Duration) -> anyhow::Result<()> {
    let begun = StdInstant::now();
    while !ThreadTimes::look(pid, thread)?.0.is_empty() {
        ensure!(
            begun.elapsed() < limit,
            "process {pid}: its thread {thread} still runs after {limit:?}; try again on an idle machine"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// How often threads of `pid` whose name begins with `thread` have waited, and were made to wait.
///
/// # Errors
/// When the process is gone.
pub fn switches(pid: u32, thread: &str) -> anyhow::Result<(u64, u64)> {
    let tasks =
        std::fs::read_dir(format!("/proc/{pid}/task")).with_context(|| format!("process {pid} is gone"))?;
    let mut total = (0, 0);
    for task in tasks.flatten() {
        let read = |file: &str| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        if read("comm").starts_with(thread) {
            let status = read("status");
            let field = |key: &str| {
                status.lines().find_map(|line| line.strip_prefix(key)?.trim().parse::<u64>().ok())
            };
            total.0 += field("voluntary_ctxt_switches:").unwrap_or(0);
            total.1 += field("nonvoluntary_ctxt_switches:").unwrap_or(0);
        }
    }
    Ok(total)
}

/// Resident memory of `pid` in bytes.
///
/// # Errors
/// When the process is gone.
pub fn resident_bytes(pid: u32) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).context("process is gone")?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().context("VmRSS is not a number")?;
    Ok(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_used_time_and_memory() {
        let pid = std::process::id();
        let before = cpu_ns(pid, "").unwrap();
        let mut x = 1u64;
        while cpu_ns(pid, "").unwrap() == before {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
        assert!(resident_bytes(pid).unwrap() > 100_000);
        let before = own_cpu_ns();
        std::thread::spawn(move || while own_cpu_ns() < before + 1_000_000 {}).join().unwrap();
        assert!(own_cpu_ns() >= before + 1_000_000, "of a thread that has ended");
        assert_eq!(cpu_ns(pid, "no such thread").unwrap(), 0);
        // One that ends takes nothing of the others' with it.
        let times =
            |all: &[(&str, u64)]| ThreadTimes(all.iter().map(|(id, ns)| ((*id).into(), *ns)).collect());
        let (then, now) = (times(&[("1", 100), ("2", 5000)]), times(&[("1", 130), ("3", 7)]));
        assert_eq!((now.since(&then), now.since(&now)), (37, 0));
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let sleeper = std::thread::Builder::new()
            .name("lab-sleeper".into())
            .spawn(move || while wait.recv().is_ok() {});
        let sleeper = sleeper.unwrap();
        let waits = || switches(pid, "lab-sleeper").unwrap().0;
        // It waits once before the first word and once behind each.
        let woken = |times| {
            while waits() < times {
                std::thread::yield_now()
            }
        };
        woken(1);
        let before = waits();
        (1..=3).for_each(|n| {
            go.send(()).unwrap();
            woken(before + n);
        });
        assert!(waits() >= before + 3);
        drop(go);
        sleeper.join().unwrap();
        assert_eq!(switches(pid, "no such thread").unwrap(), (0, 0));
        assert!(cpu_ns(u32::MAX, "").is_err());
    }
}
