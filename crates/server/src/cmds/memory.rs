//! How much memory this process may use: limits of its control groups (cgroups(7), versions 1 and
//! 2), its resource limits (ulimit), and the memory of the machine.
//!
//! The kernel kills a process that exceeds the limit of its control group, without an error
//! message. Therefore the limits are read at startup, the default budgets are derived from them,
//! and a configuration that cannot fit is refused with an error.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use millrace_core::limits::{DEFAULT_CACHE_BYTES, EXTENT_BYTES, MIN_CACHE_BYTES};
use millrace_core::memory;
use millrace_core::units::ByteLen;

use crate::limits::{
    ENGINE_ADDRESS_BYTES, MAX_MEMORY_TEXT_BYTES, SERVER_ADDRESS_BYTES, SERVER_BASE_BYTES,
    STREAM_ADDRESS_BYTES,
};

/// A memory limit and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemoryLimit {
    pub(crate) bytes: u64,
    pub(crate) source: String,
    kind: MemoryLimitKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemoryLimitKind {
    ControlGroup,
    /// RLIMIT_AS, which limits address space, whether or not memory backs it.
    AddressSpace,
    /// RLIMIT_DATA, which limits private writable address space likewise.
    DataSize,
    Machine,
}

impl MemoryLimit {
    /// What raises the limit.
    pub(crate) fn remedy(&self) -> &'static str {
        match self.kind {
            MemoryLimitKind::ControlGroup => {
                "raise the limit of the container or unit (docker -m, MemoryMax=)"
            }
            MemoryLimitKind::AddressSpace => {
                "raise the limit (ulimit -v unlimited; in a systemd unit: LimitAS=infinity)"
            }
            MemoryLimitKind::DataSize => {
                "raise the limit (ulimit -d unlimited; in a systemd unit: LimitDATA=infinity)"
            }
            MemoryLimitKind::Machine => "use a machine with more memory",
        }
    }

    fn is_of_addresses(&self) -> bool {
        matches!(self.kind, MemoryLimitKind::AddressSpace | MemoryLimitKind::DataSize)
    }
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", ByteLen(self.bytes), self.source)
    }
}

/// Reads all memory limits of this process.
pub(crate) fn limits() -> Vec<MemoryLimit> {
    limits_below(Path::new("/"))
}

pub(crate) fn lowest(limits: &[MemoryLimit]) -> Option<&MemoryLimit> {
    limits.iter().min_by_key(|limit| limit.bytes)
}

/// The size of the cache, and the share of their usual size that other budgets get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryPlan {
    pub(crate) cache_bytes: u64,
    pub(crate) share_permille: u32,
}

/// Plans the memory use. `cache` is the configured size of the cache, if any.
///
/// # Errors
/// If the cache does not fit into a limit.
pub(crate) fn plan(limits: &[MemoryLimit], cache: Option<u64>) -> anyhow::Result<MemoryPlan> {
    let lowest_of_all = lowest(limits);
    let share_permille = lowest_of_all.map_or(1000, |limit| memory::share_of(limit.bytes));
    let scaled = memory::by_share(DEFAULT_CACHE_BYTES, share_permille);
    let whole_extents = scaled / EXTENT_BYTES as u64 * EXTENT_BYTES as u64;
    let by_default = if share_permille == 1000 { DEFAULT_CACHE_BYTES } else { whole_extents };
    let cache_bytes = cache.unwrap_or_else(|| by_default.max(MIN_CACHE_BYTES));
    let needed = cache_bytes.saturating_add(SERVER_BASE_BYTES);
    if let Some(limit) = limits.iter().find(|limit| limit.bytes < needed) {
        anyhow::bail!(
            "--cache: {} of cache and {} for everything else do not fit into the memory that this process may have: {limit}; {}, or choose a smaller --cache (at least {})",
            ByteLen(cache_bytes),
            ByteLen(SERVER_BASE_BYTES),
            limit.remedy(),
            ByteLen(MIN_CACHE_BYTES)
        );
    }
    Ok(MemoryPlan { cache_bytes, share_permille })
}

/// Bytes of address space that a server reserves beside its cache. Memory never backs most of it.
pub(crate) fn address_bytes(streams_per_engine: usize, engines: u8) -> u64 {
    let per_engine = ENGINE_ADDRESS_BYTES + streams_per_engine as u64 * STREAM_ADDRESS_BYTES;
    SERVER_ADDRESS_BYTES + u64::from(engines) * per_engine
}

/// The lowest limit on address space, if there is one.
pub(crate) fn address_limit(limits: &[MemoryLimit]) -> Option<&MemoryLimit> {
    limits.iter().filter(|limit| limit.is_of_addresses()).min_by_key(|limit| limit.bytes)
}

/// Explains why address space could not be reserved. A limit of a control group cannot be the
/// cause: it counts memory in use, and the kernel kills the process that exceeds it.
pub(crate) fn cannot_reserve(bytes: u64, limits: &[MemoryLimit], error: &io::Error) -> String {
    let bytes = ByteLen(bytes);
    match address_limit(limits) {
        Some(limit) => format!(
            "memory: cannot reserve {bytes} of address space beside {} in use: the limit is {limit}; {}, or choose a smaller --cache or fewer --engines",
            ByteLen(address_bytes_in_use()),
            limit.remedy()
        ),
        None => format!("memory: cannot reserve {bytes} of address space: {error}"),
    }
}

/// Reads the size of this process's address space; 0 if it cannot be read.
fn address_bytes_in_use() -> u64 {
    let statm = read_text(Path::new("/proc/self/statm")).unwrap_or_default();
    let pages = statm.split(' ').next().and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}

fn limits_below(root: &Path) -> Vec<MemoryLimit> {
    let read = |path: &str| read_text(&root.join(path)).unwrap_or_default();
    let mut found = Vec::new();
    let (groups, mounts) = (read("proc/self/cgroup"), read("proc/self/mountinfo"));
    for mount in mounts.lines().filter_map(GroupMount::of) {
        found.extend(mount.limit(root, &groups));
    }
    found.extend(resource_limits(&read("proc/self/limits")));
    found.extend(machine(&read("proc/meminfo")));
    found
}

fn read_text(path: &Path) -> Option<String> {
    use std::io::Read;
    let mut text = String::new();
    std::fs::File::open(path).ok()?.take(MAX_MEMORY_TEXT_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Mount of a control group hierarchy that limits memory.
struct GroupMount<'a> {
    /// The group at the mount point.
    group: &'a str,
    at: &'a str,
    is_v2: bool,
}

impl<'a> GroupMount<'a> {
    /// Parses a line of `/proc/self/mountinfo` (proc_pid_mountinfo(5)).
    fn of(line: &'a str) -> Option<Self> {
        let (place, kind) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let (group, at) = (place.next()?, place.next()?);
        let mut kind = kind.split(' ');
        let (kind, options) = (kind.next()?, kind.nth(1)?);
        let is_v2 = kind == "cgroup2";
        let is_v1 = kind == "cgroup" && options.split(',').any(|option| option == "memory");
        (is_v2 || is_v1).then_some(Self { group, at, is_v2 })
    }

    /// The lowest limit of this process's group and its ancestors.
    fn limit(&self, root: &Path, groups: &str) -> Option<MemoryLimit> {
        let group = groups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            let is_it = match self.is_v2 {
                true => number == "0" && controllers.is_empty(),
                false => controllers.split(',').any(|controller| controller == "memory"),
            };
            is_it.then_some(path)
        })?;
        // In a container the mount point may be the group itself. A group outside the mount appears
        // as `/..`.
        let below = group.strip_prefix(self.group.trim_end_matches('/')).unwrap_or("");
        let below = if below.split('/').any(|part| part == "..") { "" } else { below.trim_matches('/') };
        let top = root.join(self.at.trim_start_matches('/'));
        let files: &[&str] =
            if self.is_v2 { &["memory.max", "memory.high"] } else { &["memory.limit_in_bytes"] };
        let dirs =
            std::iter::successors(Some(PathBuf::from(below)), |dir| dir.parent().map(Path::to_path_buf));
        let limits = dirs.flat_map(|dir| files.iter().map(move |file| dir.join(file))).filter_map(|file| {
            let bytes: u64 = read_text(&top.join(&file))?.trim().parse().ok()?;
            // Without a limit, version 2 reports "max", which is no number, and version 1 the
            // largest number of pages, in bytes.
            let source = format!("control group: {}", Path::new(self.at).join(&file).display());
            (bytes < 1 << 60).then_some(MemoryLimit { bytes, source, kind: MemoryLimitKind::ControlGroup })
        });
        limits.min_by_key(|limit| limit.bytes)
    }
}

/// Parses `/proc/self/limits` (proc_pid_limits(5)).
fn resource_limits(text: &str) -> impl Iterator<Item = MemoryLimit> {
    let limit = |(name, source, kind): (&str, &str, MemoryLimitKind)| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        let bytes = line.split_ascii_whitespace().next()?.parse().ok()?;
        Some(MemoryLimit { bytes, source: source.to_owned(), kind })
    };
    let names = [
        ("Max address space", "ulimit -v", MemoryLimitKind::AddressSpace),
        ("Max data size", "ulimit -d", MemoryLimitKind::DataSize),
    ];
    names.map(limit).into_iter().flatten()
}

/// Parses `/proc/meminfo`.
fn machine(text: &str) -> Option<MemoryLimit> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(MemoryLimit {
        bytes: kib.saturating_mul(1024),
        source: "all memory of this machine".to_owned(),
        kind: MemoryLimitKind::Machine,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates these files in a directory, laid out like the kernel's `/proc` and `/sys`.
    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        dir
    }

    fn found(files: &[(&str, &str)]) -> Vec<(u64, String)> {
        let dir = tree(files);
        limits_below(dir.path()).into_iter().map(|limit| (limit.bytes, limit.source)).collect()
    }

    const V1: &str = "35 30 0:29 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
                      36 30 0:30 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n";
    const V2: &str = "34 30 0:28 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn limits_of_nested_groups_are_the_lowest_of_all_levels() {
        let v1 = [
            ("proc/self/mountinfo", V1),
            ("proc/self/cgroup", "5:devices:/a/b\n4:memory:/a/b\n0::/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "268435456\n"),
            ("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        let source = |path: &str| format!("control group: /sys/fs/cgroup/{path}");
        assert_eq!(found(&v1), [(1 << 28, source("memory/a/memory.limit_in_bytes"))]);
        let v2 = [
            ("proc/self/mountinfo", V2),
            ("proc/self/cgroup", "0::/a/b/c\n"),
            ("sys/fs/cgroup/a/memory.max", "300000000\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/b/memory.high", "200000000\n"),
            ("sys/fs/cgroup/a/b/c/memory.max", "250000000\n"),
        ];
        assert_eq!(found(&v2), [(200_000_000, source("a/b/memory.high"))]);
    }

    #[test]
    fn limit_of_container_is_at_the_mount_point() {
        // Without its own cgroup namespace, a container sees the full path of its group, which is
        // mounted.
        let plain = "35 30 0:29 /docker/f00 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let group = [
            ("proc/self/mountinfo", plain),
            ("proc/self/cgroup", "4:memory:/docker/f00\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "200000000\n"),
        ];
        assert_eq!(found(&group)[0].0, 200_000_000);
        // With its own namespace, the container sees a group outside it.
        let outside = [
            ("proc/self/mountinfo", V2),
            ("proc/self/cgroup", "0::/../other\n"),
            ("sys/fs/cgroup/memory.max", "200000000\n"),
        ];
        assert_eq!(found(&outside)[0].0, 200_000_000);
    }

    #[test]
    fn limits_of_resources_and_machine_are_read() {
        let files = [
            (
                "proc/self/limits",
                "Limit                     Soft Limit           Hard Limit           Units\n\
                 Max data size             unlimited            unlimited            bytes\n\
                 Max address space         1073741824           unlimited            bytes\n",
            ),
            ("proc/meminfo", "MemTotal:       24684544 kB\nMemFree: 1 kB\n"),
        ];
        let expected = [(1 << 30, "ulimit -v"), (24_684_544 << 10, "all memory of this machine")];
        assert_eq!(found(&files), expected.map(|(bytes, source)| (bytes, source.to_owned())));
        assert_eq!(found(&[]), []);
        bolero::check!().with_type::<String>().for_each(|text: &String| {
            drop(found(&[("proc/self/limits", text), ("proc/meminfo", text)]));
            text.lines().filter_map(GroupMount::of).for_each(drop);
        });
    }

    fn limit(mib: u64, source: &str, kind: MemoryLimitKind) -> MemoryLimit {
        MemoryLimit { bytes: mib << 20, source: source.to_owned(), kind }
    }

    #[test]
    fn cannot_reserve_names_address_limit_and_its_remedy() {
        let error = io::Error::from_raw_os_error(libc::ENOMEM);
        let group = limit(100, "control group: a/memory.max", MemoryLimitKind::ControlGroup);
        let data = limit(300, "ulimit -d", MemoryLimitKind::DataSize);
        let addresses = limit(200, "ulimit -v", MemoryLimitKind::AddressSpace);
        let limits = [group, data, addresses];
        let text = cannot_reserve(1 << 30, &limits, &error);
        assert!(text.starts_with("memory: cannot reserve 1GiB of address space beside "), "{text}");
        assert!(address_bytes_in_use() > 1 << 20, "{text}");
        let remedy = " in use: the limit is 200MiB (ulimit -v); \
                      raise the limit (ulimit -v unlimited; in a systemd unit: LimitAS=infinity), \
                      or choose a smaller --cache or fewer --engines";
        assert!(text.ends_with(remedy), "{text}");
        let text = cannot_reserve(1 << 30, &limits[..2], &error);
        assert!(text.contains("300MiB (ulimit -d); raise the limit (ulimit -d unlimited;"), "{text}");
        let text = cannot_reserve(1 << 30, &limits[..1], &error);
        assert!(text.contains("Cannot allocate memory") && !text.contains("limit is"), "{text}");
    }

    #[test]
    fn plan_that_cannot_fit_names_remedy_of_its_limit() {
        for (source, kind, remedy) in [
            ("control group: memory.max", MemoryLimitKind::ControlGroup, "MemoryMax="),
            ("ulimit -v", MemoryLimitKind::AddressSpace, "ulimit -v unlimited"),
            ("ulimit -d", MemoryLimitKind::DataSize, "ulimit -d unlimited"),
        ] {
            let error = plan(&[limit(256, source, kind)], Some(256 << 20)).unwrap_err().to_string();
            assert!(error.contains(&format!("256MiB ({source}); ")), "{error}");
            assert!(error.contains(remedy) && error.contains("a smaller --cache"), "{error}");
            let others = ["MemoryMax=", "ulimit -v unlimited", "ulimit -d unlimited"];
            for other in others.into_iter().filter(|other| *other != remedy) {
                assert!(!error.contains(other), "{error}");
            }
        }
    }

    #[test]
    fn plan_of_small_limit_takes_a_quarter_and_what_cannot_fit_is_an_error() {
        let limit = |mib: u64| [limit(mib, "control group", MemoryLimitKind::ControlGroup)];
        let cache = |mib: u64| plan(&limit(mib), None).map(|plan| plan.cache_bytes >> 20);
        assert_eq!(cache(4096).unwrap(), 256);
        assert_eq!(plan(&[], None).unwrap(), MemoryPlan { cache_bytes: 256 << 20, share_permille: 1000 });
        assert!((62..=64).contains(&cache(256).unwrap()) && (47..=50).contains(&cache(200).unwrap()));
        let error = plan(&limit(256), Some(256 << 20)).unwrap_err().to_string();
        assert!(error.starts_with("--cache: ") && error.contains("(control group)"), "{error}");
        assert!(plan(&limit(320), Some(256 << 20)).is_ok() && cache(32).is_err());
    }
}
