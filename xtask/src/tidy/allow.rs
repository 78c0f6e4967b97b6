//! The exceptions: one entry per file and rule, with the reason. An entry that no longer excuses
//! anything must go, so the list never claims more than is true.

use std::cell::Cell;

use super::{Finding, Tree};

/// Rules that can have exceptions, file by file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "at best no file needs an exception from a rule")]
pub(crate) enum Rule {
    /// May read a clock.
    Clock,
    /// May print.
    Print,
    /// May contain `unsafe`.
    Unsafe,
    /// May have this many lines, tests not counted.
    FileLines(usize),
    /// May have functions of this many lines.
    FunctionLines(usize),
}

/// One exception.
pub(crate) struct AllowEntry {
    pub(crate) rule: Rule,
    pub(crate) path: &'static str,
    pub(crate) reason: &'static str,
}

const fn entry(rule: Rule, path: &'static str, reason: &'static str) -> AllowEntry {
    AllowEntry { rule, path, reason }
}

/// Every exception of this workspace. Entries are sorted by rule, then by path.
pub(super) const LISTED: &[AllowEntry] = &[
    // Clocks. Everything else is passed the time.
    entry(Rule::Clock, "crates/client/src/clock.rs", "the clocks of the receiver, passed down from here"),
    entry(Rule::Clock, "crates/lab/src/frame/ticks.rs", "the clock of benchmarks is calibrated against it"),
    entry(Rule::Clock, "crates/lab/src/runner.rs", "its thread is the clock of state machines and a link"),
    entry(Rule::Clock, "crates/lab/src/proc.rs", "the processor time that a benchmark has used"),
    entry(
        Rule::Clock,
        "crates/netio/src/egress_select/measure/interface.rs",
        "measures what a datagram costs, before anything is served",
    ),
    entry(
        Rule::Clock,
        "crates/netio/src/kernel_rx.rs",
        "brings the kernel's stamps over to the clock of the loop",
    ),
    entry(Rule::Clock, "crates/link/src/run.rs", "lets packets through at their time"),
    entry(Rule::Clock, "crates/netio/src/recv.rs", "waits on a socket until a deadline"),
    entry(Rule::Clock, "crates/netio/src/route/watch.rs", "retries and refreshes, passed down from here"),
    entry(
        Rule::Clock,
        "crates/offload/src/clock.rs",
        "the clock of the loops, read once a turn and passed down",
    ),
    entry(Rule::Clock, "crates/lab/src/cmds/bench.rs", "the date in a report, for people"),
    entry(Rule::Clock, "crates/server/src/day_time.rs", "shows and recordings begin at a time of day"),
    entry(Rule::Clock, "crates/server/src/cmds/serve/librarian.rs", "compares with the time stamps of files"),
    entry(Rule::Clock, "crates/sim/src/main.rs", "the time that a search has taken, for people"),
    entry(Rule::Clock, "crates/testkit/src/hosts.rs", "waits until the kernel has brought a link up"),
    entry(Rule::Clock, "crates/testkit/src/rtsp_server/mod.rs", "a server for tests, in real time"),
    entry(Rule::Clock, "crates/testkit/src/steady.rs", "notes how long the machine stood still"),
    entry(Rule::Clock, "crates/store/src/volume/catalogue/mod.rs", "compares with the time stamps of files"),
    entry(Rule::Clock, "crates/store/src/dirs.rs", "the date when a title was added, for people"),
    entry(Rule::Clock, "crates/web/src/date.rs", "the date in responses"),
    entry(Rule::Clock, "crates/rights/src/clock.rs", "the clock of rights, passed down from here"),
    entry(Rule::Clock, "xtask/src/ci.rs", "says how long each part took"),
    entry(Rule::Clock, "xtask/src/interop/process.rs", "bounds how long a player may run"),
    entry(
        Rule::Clock,
        "xtask/src/suite/mod.rs",
        "bounds how long a test program may run, and says how long it took",
    ),
    entry(Rule::Print, "crates/testkit/src/hosts.rs", "why a test is skipped"),
    entry(Rule::Print, "crates/testkit/src/steady.rs", "why a scenario is run again"),
    // unsafe. A file is here when the thing it wraps has no safe form; each has tests of its own.
    entry(Rule::Unsafe, "crates/core/src/fec/neon.rs", "vector loads and stores take raw pointers"),
    entry(
        Rule::Unsafe,
        "crates/core/src/fec/x86.rs",
        "vector loads take raw pointers; vector code may run only where the processor has it",
    ),
    entry(
        Rule::Unsafe,
        "crates/core/src/pool.rs",
        "one writer or many readers of an extent, held by an atomic state",
    ),
    entry(Rule::Unsafe, "crates/core/src/prefetch.rs", "a prefetch takes a raw pointer, and never faults"),
    entry(
        Rule::Unsafe,
        "crates/core/src/shared/copy.rs",
        "words that another process may access meanwhile, moved by vectors: that is machine code",
    ),
    entry(
        Rule::Unsafe,
        "crates/core/src/wire/checksum/x86.rs",
        "vector loads take raw pointers; vector code may run only where the processor has it",
    ),
    entry(
        Rule::Unsafe,
        "crates/lab/src/frame/ticks.rs",
        "reads the time stamp counter and getrusage; both are unsafe calls",
    ),
    entry(
        Rule::Unsafe,
        "crates/lab/src/isal.rs",
        "calls a C library that is opened while the program runs, to compare with it",
    ),
    entry(
        Rule::Unsafe,
        "crates/lab/src/raw_send.rs",
        "the plain sendmmsg loop that others are measured against",
    ),
    entry(
        Rule::Unsafe,
        "crates/netio/src/bpf/sys.rs",
        "the bpf system call takes pointers, and maps are mapped into memory",
    ),
    entry(Rule::Unsafe, "crates/netio/src/sys/ethtool.rs", "the ioctl that names a driver takes a pointer"),
    entry(
        Rule::Unsafe,
        "crates/netio/src/sys/inherited.rs",
        "descriptors that the service manager passes are known by their numbers alone",
    ),
    entry(Rule::Unsafe, "crates/netio/src/sys/lease.rs", "leases of files are calls that no library offers"),
    entry(Rule::Unsafe, "crates/netio/src/sys/mmsg.rs", "sendmmsg and recvmmsg take arrays of raw pointers"),
    entry(Rule::Unsafe, "crates/netio/src/sys/pipe.rs", "vmsplice: the kernel keeps references to the pages"),
    entry(Rule::Unsafe, "crates/netio/src/sys/socket.rs", "socket options that rustix does not know"),
    entry(Rule::Unsafe, "crates/netio/src/sys/tun.rs", "the ioctl that makes a TUN device"),
    entry(
        Rule::Unsafe,
        "crates/netio/src/xdp/sys.rs",
        "rings and frames are shared with the kernel through mapped memory",
    ),
    entry(
        Rule::Unsafe,
        "crates/netio/tests/no_alloc.rs",
        "an allocator that counts, to show that there is nothing to count",
    ),
    entry(
        Rule::Unsafe,
        "crates/offload/src/thread_priority.rs",
        "the system call that sets the priority of a thread's reads, which rustix does not know",
    ),
    entry(Rule::Unsafe, "crates/offload/src/heap.rs", "a setting of the allocator (mallopt)"),
    entry(Rule::Unsafe, "crates/offload/src/hugepage.rs", "maps and advises the memory of the arena"),
    entry(
        Rule::Unsafe,
        "crates/offload/src/toe/host/received.rs",
        "shows a receive buffer, which is atomic words, as the bytes that it is",
    ),
    entry(
        Rule::Unsafe,
        "crates/offload/src/toe/remote/memory.rs",
        "maps the memory of a queue pair that another process has mapped too",
    ),
    entry(
        Rule::Unsafe,
        "crates/preload/src/exports/bytes.rs",
        "the C library's functions are passed pointers",
    ),
    entry(
        Rule::Unsafe,
        "crates/preload/src/exports/descriptors.rs",
        "the C library's functions are passed pointers",
    ),
    entry(
        Rule::Unsafe,
        "crates/preload/src/exports/sockets.rs",
        "the C library's functions are passed pointers",
    ),
    entry(
        Rule::Unsafe,
        "crates/preload/src/exports/waiting.rs",
        "the C library's functions are passed pointers",
    ),
    entry(
        Rule::Unsafe,
        "crates/preload/src/real.rs",
        "calls the C library's own functions, which are found while the program runs",
    ),
    entry(
        Rule::Unsafe,
        "crates/store/src/cache/aligned.rs",
        "page-aligned memory for reads past the page cache",
    ),
    entry(
        Rule::Unsafe,
        "crates/store/src/cache/read/uring.rs",
        "io_uring writes into memory that it was lent",
    ),
    entry(
        Rule::Unsafe,
        "crates/testkit/src/counting.rs",
        "an allocator that counts, to show that there is nothing to count",
    ),
];

/// The list while it is checked: remembers which entries were needed.
pub(crate) struct Exceptions {
    entries: Vec<(&'static AllowEntry, Cell<bool>)>,
}

impl Exceptions {
    pub(crate) fn new(listed: &'static [AllowEntry]) -> Self {
        Self { entries: listed.iter().map(|e| (e, Cell::new(false))).collect() }
    }

    /// Whether `path` may break `rule`; the entry then counts as needed.
    pub(crate) fn allows(&self, rule: Rule, path: &str) -> bool {
        let found = self.entries.iter().find(|(e, _)| e.rule == rule && e.path == path);
        found.inspect(|(_, used)| used.set(true)).is_some()
    }

    /// Whether any file whose path starts so may break `rule`.
    pub(crate) fn any_below(&self, rule: Rule, folder: &str) -> bool {
        self.entries.iter().any(|(e, _)| e.rule == rule && e.path.starts_with(folder))
    }

    /// The bound for the length of `path`, if it has one of its own; the entry then counts as needed.
    pub(crate) fn bound(&self, path: &str, of: fn(Rule) -> Option<usize>) -> Option<usize> {
        let (entry, used) = self.entries.iter().find(|(e, _)| e.path == path && of(e.rule).is_some())?;
        used.set(true);
        of(entry.rule)
    }

    pub(super) fn check(&self, tree: &Tree, findings: &mut Vec<Finding>) {
        for (entry, used) in &self.entries {
            let what = if !tree.exists(entry.path) {
                "excepts a file that is not there"
            } else if !used.get() {
                "excepts a file that needs no exception"
            } else if entry.reason.is_empty() {
                "excepts a file without a reason"
            } else {
                continue;
            };
            findings.push(Finding {
                path: "xtask/src/tidy/allow.rs".into(),
                line: 0,
                what: format!("{:?} {what}: {}", entry.rule, entry.path),
                remedy: "remove or repair the entry".into(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(listed: &'static [AllowEntry], files: &[(&str, &str)]) -> Vec<String> {
        let exceptions = Exceptions::new(listed);
        exceptions.allows(Rule::Clock, "used.rs");
        let mut findings = Vec::new();
        exceptions.check(&Tree::of(files), &mut findings);
        findings.into_iter().map(|f| f.what).collect()
    }

    #[test]
    fn entries_must_exist_be_needed_and_have_a_reason() {
        static LIST: &[AllowEntry] = &[
            entry(Rule::Clock, "used.rs", "because"),
            entry(Rule::Clock, "idle.rs", "because"),
            entry(Rule::Clock, "gone.rs", "because"),
        ];
        assert_eq!(
            faults(LIST, &[("used.rs", ""), ("idle.rs", "")]),
            [
                "Clock excepts a file that needs no exception: idle.rs",
                "Clock excepts a file that is not there: gone.rs"
            ]
        );
        static BARE: &[AllowEntry] = &[entry(Rule::Clock, "used.rs", "")];
        assert_eq!(faults(BARE, &[("used.rs", "")]), ["Clock excepts a file without a reason: used.rs"]);
    }

    #[test]
    fn exception_for_one_rule_does_not_allow_another() {
        let exceptions = Exceptions::new(LISTED);
        assert!(exceptions.allows(Rule::Unsafe, "crates/core/src/pool.rs"));
        assert!(!exceptions.allows(Rule::Clock, "crates/core/src/pool.rs"));
    }
}
