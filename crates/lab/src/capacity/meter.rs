//! Usage of a group of processes and of the cores they are pinned to, from /proc.

use std::collections::BTreeSet;
use std::time::Instant as StdInstant;

/// Sums since the processes began and the machine booted: only differences mean something.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    at: StdInstant,
    sums: Sums,
    /// Memory of their own (no files, no shared programs).
    pub memory_bytes: u64,
    /// Processes.
    pub processes: u64,
    /// Threads of all of them.
    pub threads: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    processes_ns: u64,
    core: CoreTime,
    voluntary: u64,
    involuntary: u64,
}

/// Usage between two looks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spent {
    /// Time between the looks.
    pub wall_s: f64,
    /// Processor time of the processes and of the kernel threads that send for them; soft interrupts that ran inside of
    /// it included.
    pub processes_s: f64,
    /// Time in which the cores were not idle. It is the rest of the time between the looks: the
    /// kernel samples the work of a busy core by its clock, so it misses short work that the clock
    /// wakes, and counts short work in step with it in full, while idle time is measured.
    pub cores_s: f64,
    /// Time in which they were idle.
    pub idle_s: f64,
    /// Of the time in which they were not idle, in soft interrupts: where a veth pair hands packets over.
    pub softirq_s: f64,
    /// Times a thread waited.
    pub voluntary_switches: u64,
    /// Times a thread was made to wait.
    pub involuntary_switches: u64,
    /// Memory of the processes at the second look.
    pub memory_bytes: u64,
    /// Processes then.
    pub processes: u64,
    /// Threads then.
    pub threads: u64,
}

impl Usage {
    /// Looks at all processes whose process group is one of `groups`, and at `cores`.
    pub fn look(groups: &[u32], cores: &[usize]) -> Self {
        let mut usage = Self {
            at: StdInstant::now(),
            sums: Sums { core: CoreTime::read(cores), ..Sums::default() },
            memory_bytes: 0,
            processes: 0,
            threads: 0,
        };
        let senders: BTreeSet<String> = cores.iter().map(|core| format!("ksoftirqd/{core}")).collect();
        let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        for entry in entries {
            let path = entry.path();
            let Ok(stat) = std::fs::read_to_string(path.join("stat")) else { continue };
            let Some(Process { name, group, ticks }) = Process::parse(&stat) else { continue };
            let is_ours = groups.contains(&group);
            if !is_ours && !senders.contains(name) {
                continue;
            }
            usage.sums.processes_ns += ticks * tick_ns;
            if is_ours {
                for task in std::fs::read_dir(path.join("task")).into_iter().flatten().flatten() {
                    let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
                    usage.sums.voluntary += field(&status, "voluntary_ctxt_switches:");
                    usage.sums.involuntary += field(&status, "nonvoluntary_ctxt_switches:");
                    usage.threads += 1;
                }
                let status = std::fs::read_to_string(path.join("status")).unwrap_or_default();
                usage.memory_bytes += (field(&status, "RssAnon:") + field(&status, "RssShmem:")) * 1024;
                usage.processes += 1;
            }
        }
        usage
    }

    /// Returns the usage since `before`.
    pub fn since(&self, before: &Self) -> Spent {
        let seconds = |now: u64, then: u64| now.saturating_sub(then) as f64 / 1e9;
        let (now, then) = (&self.sums, &before.sums);
        let wall_s = (self.at - before.at).as_secs_f64();
        let idle_s = seconds(now.core.idle_ns, then.core.idle_ns);
        Spent {
            wall_s,
            processes_s: seconds(now.processes_ns, then.processes_ns),
            cores_s: (wall_s * f64::from(now.core.cores) - idle_s).max(0.0),
            idle_s,
            softirq_s: seconds(now.core.softirq_ns, then.core.softirq_ns),
            voluntary_switches: now.voluntary.saturating_sub(then.voluntary),
            involuntary_switches: now.involuntary.saturating_sub(then.involuntary),
            memory_bytes: self.memory_bytes,
            processes: self.processes,
            threads: self.threads,
        }
    }
}

/// The content of /proc/PID/stat for a process.
#[derive(Debug, PartialEq, Eq)]
struct Process<'a> {
    name: &'a str,
    group: u32,
    /// Time of all its threads, of those that have ended too: the sum over the threads that are there shrinks when one ends.
    ticks: u64,
}

impl<'a> Process<'a> {
    /// The name stands in parentheses and may hold anything, these too.
    fn parse(stat: &'a str) -> Option<Self> {
        let (head, tail) = stat.rsplit_once(") ")?;
        let (_, name) = head.split_once('(')?;
        // State, parent, process group; user and system time are nine and ten further on.
        let fields: Vec<&str> = tail.split(' ').collect();
        let number = |at: usize| fields.get(at)?.trim().parse::<u64>().ok();
        let group = u32::try_from(number(2)?).ok()?;
        Some(Self { name, group, ticks: number(11)? + number(12)? })
    }
}

fn first_number(text: &str) -> u64 {
    text.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// The number behind `key` at the beginning of a line.
fn field(text: &str, key: &str) -> u64 {
    text.lines().find_map(|line| line.strip_prefix(key)).map_or(0, first_number)
}

/// Time of cores from /proc/stat. Time in soft interrupts is counted by samples of the kernel's
/// clock, so it is good over seconds only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CoreTime {
    cores: u32,
    idle_ns: u64,
    softirq_ns: u64,
}

impl CoreTime {
    fn read(cores: &[usize]) -> Self {
        let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        Self::parse(&text, cores, rustix::param::clock_ticks_per_second())
    }

    fn parse(text: &str, cores: &[usize], ticks_per_s: u64) -> Self {
        let mut sum = Self::default();
        for core in cores {
            let key = format!("cpu{core} ");
            let Some(line) = text.lines().find_map(|line| line.strip_prefix(key.as_str())) else { continue };
            let ticks: Vec<u64> = line.split_whitespace().filter_map(|n| n.parse().ok()).collect();
            // user nice system idle iowait irq softirq steal
            let tick_ns = 1_000_000_000 / ticks_per_s.max(1);
            let at = |n: usize| ticks.get(n).copied().unwrap_or(0) * tick_ns;
            sum.cores += 1;
            sum.idle_ns += at(3) + at(4);
            sum.softirq_ns += at(6);
        }
        sum
    }
}

/// System calls a second on `cores`, counted by the kernel's tracepoint for one second; `None` without perf or the right
/// to use it.
pub fn syscalls_per_s(cores: &[usize]) -> Option<f64> {
    let list = cores.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let output = std::process::Command::new("perf")
        .args(["stat", "-x", ";", "-a", "-C", &list, "-e", "raw_syscalls:sys_enter", "--", "sleep", "1"])
        .env("LC_ALL", "C")
        .output()
        .ok()?;
    parse_perf(&String::from_utf8_lossy(&output.stderr))
}

/// The count from a line `count;unit;event;...`.
fn parse_perf(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.contains("raw_syscalls:sys_enter"))?;
    line.split(';').next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_texts_are_understood() {
        let process = Process::parse("71 (odd) name) (x) S 1 70 70 0 -1 4194560 123 0 9 0 250 50 3 4 20 0\n");
        assert_eq!(process, Some(Process { name: "odd) name) (x", group: 70, ticks: 300 }));
        assert_eq!((Process::parse("71 (cut"), Process::parse("71 (x) S 1 70 70 0")), (None, None));
        assert_eq!(field("Name:\tx\nRssAnon:\t  120 kB\nvoluntary_ctxt_switches:\t7\n", "RssAnon:"), 120);
        let stat = "cpu  9 9 9\ncpu0 100 1 50 700 9 2 40 0 0 0\ncpu1 5 0 5 0 0 0 1 0 0 0\ncpu10 7\n";
        let both = CoreTime::parse(stat, &[0, 1], 100);
        assert_eq!(both, CoreTime { cores: 2, idle_ns: 7_090_000_000, softirq_ns: 410_000_000 });
        assert_eq!(CoreTime::parse("", &[3], 100), CoreTime::default());
        assert_eq!(parse_perf("# started\n\n 2186;;raw_syscalls:sys_enter;1000;100.00;;\n"), Some(2186.0));
        assert_eq!(parse_perf("<not supported>;;raw_syscalls:sys_enter;0;"), None);
    }

    /// Runs the named test in a process and process group of its own, and returns whether this is
    /// that process: otherwise the usage of other tests and their programs, and its disappearance
    /// when they end, would be counted too.
    fn is_alone(test: &str) -> bool {
        use std::os::unix::process::CommandExt;

        const ALONE: &str = "MILLRACE_TEST_ALONE";
        if std::env::var_os(ALONE).is_some() {
            return true;
        }
        let test = format!("{}::{test}", module_path!().split_once("::").unwrap().1);
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &test, "--nocapture"]).env(ALONE, "1").process_group(0);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.contains("1 passed"),
            "{text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        false
    }

    #[test]
    fn usage_includes_exited_threads() {
        if !is_alone("usage_includes_exited_threads") {
            return;
        }
        let group = rustix::process::getpgrp().as_raw_nonzero().get() as u32;
        let before = Usage::look(&[group], &[]);
        let spin = std::thread::spawn(|| {
            let begun = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            let ms = |time: rustix::time::Timespec| time.tv_sec * 1000 + time.tv_nsec / 1_000_000;
            while ms(rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime)) - ms(begun) < 100 {}
        });
        assert!(spin.join().is_ok());
        let spent = Usage::look(&[group], &[]).since(&before);
        assert!(spent.processes_s >= 0.08, "{spent:?}");
    }

    #[test]
    fn this_process_uses_something() {
        if !is_alone("this_process_uses_something") {
            return;
        }
        let group = rustix::process::getpgrp().as_raw_nonzero().get() as u32;
        let before = Usage::look(&[group], &[0]);
        let mut x = 1u64;
        let spent = loop {
            x = std::hint::black_box(x.wrapping_mul(3));
            let spent = Usage::look(&[group], &[0]).since(&before);
            if spent.processes_s > 0.001 {
                break spent;
            }
        };
        assert!(spent.processes >= 1 && spent.threads >= 1 && spent.memory_bytes > 100_000 && x != 0);
        assert_eq!(Usage::look(&[u32::MAX], &[]).processes, 0);
    }
}
