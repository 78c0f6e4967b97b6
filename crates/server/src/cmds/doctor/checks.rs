//! Checks beside the sockets that `netio::probe` tries: permissions, limits, memory, processors.

use std::io;

use millrace_core::limits::DEFAULT_CACHE_BYTES;
use millrace_core::units::ByteLen;
use millrace_offload::probe::{Finding, Survey, survey};
use rustix::net::{AddressFamily, SocketType};
use rustix::process::{Resource, getrlimit};

use crate::cmds::memory::{self, MemoryLimit};

/// Each viewer by TCP needs two descriptors; `serve` admits 5000 viewers by default. The rest is
/// for the files of open titles: up to six for each member of the volume, and three for each parity
/// track that is sent.
const OPEN_FILES: u64 = 16_384;
/// Memory that the kernel keeps for completions of zero-copy sends, since Linux 6.8.
const OPTION_MEMORY_BYTES: u64 = 131_072;
const HUGE_PAGE_BYTES: u64 = 2 << 20;
const CAP_NET_ADMIN: u32 = 12;
const CAP_NET_RAW: u32 = 13;
const CAP_IPC_LOCK: u32 = 14;

/// All checks.
pub(super) fn all() -> Survey {
    let mut all = survey();
    all.findings.extend([
        af_xdp(),
        capabilities(),
        locked_memory(),
        option_memory(),
        memory_limit(),
        huge_pages(),
        io_uring(),
        open_files(),
        governor(),
        isolated(),
    ]);
    all.findings.extend(super::serving::all());
    all
}

/// A result with a description of the findings in either case.
pub(super) type CheckResult = Result<String, String>;

pub(super) fn finding(
    name: &'static str,
    found: CheckResult,
    use_for: &'static str,
    remedy: &'static str,
) -> Finding {
    let works = found.is_ok();
    let (Ok(detail) | Err(detail)) = found;
    Finding { name, works, detail, use_for, remedy }
}

/// A file of the kernel, without its last line end.
fn file(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn number(path: &str) -> Option<u64> {
    file(path)?.parse().ok()
}

fn af_xdp() -> Finding {
    let found = match rustix::net::socket(AddressFamily::XDP, SocketType::RAW, None) {
        Ok(_) => Ok("a socket can be made".to_owned()),
        Err(error) => Err(io::Error::from(error).to_string()),
    };
    finding(
        "af-xdp",
        found,
        "packets past the kernel's stack, on the interfaces given with --xdp-interface",
        "a kernel with CONFIG_XDP_SOCKETS, and CAP_NET_RAW: run as root, or setcap cap_net_raw,cap_net_admin,cap_ipc_lock+ep on the program",
    )
}

fn has_capability(status: &str, capability: u32) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    set & 1 << capability != 0
}

fn capabilities() -> Finding {
    let status = file("/proc/self/status").unwrap_or_default();
    let wanted = [(CAP_NET_ADMIN, "CAP_NET_ADMIN"), (CAP_NET_RAW, "CAP_NET_RAW")];
    let missing: Vec<_> =
        wanted.iter().filter(|(bit, _)| !has_capability(&status, *bit)).map(|(_, name)| *name).collect();
    let found = if missing.is_empty() {
        Ok("CAP_NET_ADMIN and CAP_NET_RAW".to_owned())
    } else {
        Err(format!("without {}", missing.join(" and ")))
    };
    finding(
        "capabilities",
        found,
        "AF_XDP, large send buffers, fresh neighbour entries, measuring",
        "run as root, or: setcap cap_net_raw,cap_net_admin,cap_ipc_lock+ep $(command -v millrace); in a systemd unit: \
         AmbientCapabilities=CAP_NET_RAW CAP_NET_ADMIN CAP_IPC_LOCK",
    )
}

/// Memory that this process may lock; `None`: all.
pub(super) fn lockable_bytes() -> Option<u64> {
    let status = file("/proc/self/status").unwrap_or_default();
    getrlimit(Resource::Memlock).current.filter(|_| !has_capability(&status, CAP_IPC_LOCK))
}

fn locked_memory() -> Finding {
    let found = match lockable_bytes() {
        None => Ok("no limit".to_owned()),
        Some(bytes) if bytes >= DEFAULT_CACHE_BYTES => Ok(format!("{} MiB", bytes >> 20)),
        Some(bytes) => Err(format!("{} KiB", bytes >> 10)),
    };
    finding(
        "locked-memory",
        found,
        "AF_XDP devices that send from the cache where it lies",
        "ulimit -l unlimited; in a systemd unit: LimitMEMLOCK=infinity; or grant CAP_IPC_LOCK",
    )
}

fn option_memory() -> Finding {
    let found = match number("/proc/sys/net/core/optmem_max") {
        Some(bytes) if bytes >= OPTION_MEMORY_BYTES => Ok(format!("{bytes} bytes")),
        Some(bytes) => Err(format!("{bytes} bytes")),
        None => Ok("not visible here: a network namespace that is not the first".to_owned()),
    };
    finding(
        "option-memory",
        found,
        "long bursts that the kernel does not copy",
        "sysctl -w net.core.optmem_max=131072",
    )
}

/// Checks the memory limit that determines the default budgets.
fn memory_limit() -> Finding {
    let limits = memory::limits();
    let found = match (memory::lowest(&limits), memory::plan(&limits, None)) {
        (_, Err(error)) => Err(error.to_string()),
        (None, Ok(_)) => Ok("no limit".to_owned()),
        (Some(limit), Ok(plan)) => {
            let text = format!("{limit}; the default cache has {}", ByteLen(plan.cache_bytes));
            if plan.share_permille < 1000 { Err(text) } else { Ok(text) }
        }
    };
    finding(
        "memory-limit",
        found,
        "the whole default cache and other budgets, which need 1 GiB",
        memory::lowest(&limits).map_or("choose a smaller --cache", MemoryLimit::remedy),
    )
}

fn huge_pages() -> Finding {
    let dir = "/sys/kernel/mm/hugepages/hugepages-2048kB";
    let of = |name| number(&format!("{dir}/{name}"));
    let wanted = DEFAULT_CACHE_BYTES / HUGE_PAGE_BYTES;
    let found = match (of("nr_hugepages"), of("free_hugepages")) {
        (Some(reserved), Some(free)) if free >= wanted => {
            Ok(format!("{reserved} of 2 MiB reserved, {free} free"))
        }
        (Some(reserved), Some(free)) => {
            Err(format!("{reserved} of 2 MiB reserved, {free} free; the default cache wants {wanted}"))
        }
        _ => Err("this kernel has none of 2 MiB".to_owned()),
    };
    finding(
        "huge-pages",
        found,
        "fewer misses when packets are read from a large cache",
        "sysctl -w vm.nr_hugepages=144 for the default --cache of 256 MiB (one for each 2 MiB, and a few more); ordinary pages are used meanwhile",
    )
}

fn io_uring() -> Finding {
    let found = match number("/proc/sys/kernel/io_uring_disabled") {
        Some(0) => Ok("allowed".to_owned()),
        Some(level) => Err(format!("restricted (kernel.io_uring_disabled={level})")),
        None => Ok("no restriction is set".to_owned()),
    };
    finding(
        "io-uring",
        found,
        "reading media with one thread; without it, a pool of threads is used",
        "sysctl -w kernel.io_uring_disabled=0",
    )
}

fn open_files() -> Finding {
    let found = match getrlimit(Resource::Nofile).maximum {
        None => Ok("no limit".to_owned()),
        Some(limit) if limit >= OPEN_FILES => Ok(format!("{limit}")),
        Some(limit) => Err(format!("{limit}")),
    };
    finding(
        "open-files",
        found,
        "two for each viewer by TCP",
        "ulimit -Hn 65536 as root; in a systemd unit: LimitNOFILE=65536",
    )
}

fn governor() -> Finding {
    let found = match file("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") {
        Some(governor) if governor == "performance" => Ok(governor),
        Some(governor) => Err(governor),
        None => Ok("not visible: a virtual machine, or a fixed frequency".to_owned()),
    };
    finding(
        "cpu-governor",
        found,
        "an engine that wakes up at full speed",
        "cpupower frequency-set -g performance",
    )
}

fn isolated() -> Finding {
    let found = match file("/sys/devices/system/cpu/isolated") {
        Some(cpus) if !cpus.is_empty() => Ok(format!("processors {cpus}")),
        _ => Err("none".to_owned()),
    };
    finding(
        "isolated-cpus",
        found,
        "an engine that nothing interrupts; worth it on a machine that does other work too",
        "boot with isolcpus=N nohz_full=N rcu_nocbs=N, and: millrace serve --cpu N --idle busy",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_read_from_the_status() {
        let status = "Name:\tx\nCapEff:\t0000000000003000\n";
        assert!(has_capability(status, CAP_NET_ADMIN) && has_capability(status, CAP_NET_RAW));
        assert!(!has_capability(status, CAP_IPC_LOCK));
        assert!(!has_capability("CapEff:\tnonsense", CAP_NET_RAW) && !has_capability("", CAP_NET_RAW));
    }
}
