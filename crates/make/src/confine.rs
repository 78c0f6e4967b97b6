//! Confines the server itself, and so the programs that it starts, to what its settings need.
//!
//! The server reads packets of strangers. If one takes it over, it finds the store, the films and the settings, and neither the
//! other files of its user nor a way to start other programs: Landlock for files, programs and TCP ports, and a filter of system
//! calls that a media server never makes. Both belong to a thread and are inherited, so they
//! are put on while the process has a single thread.

use std::collections::BTreeMap;
use std::env::consts::ARCH;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use landlock::{
    Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus,
    Scope, path_beneath_rules,
};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter,
};

use crate::ingest::remux::ffprobe_beside;
use crate::ingest::sandbox::{DEVICES, NETWORK_DOMAINS, NEWEST, PROGRAM_DIRS, X32_CALL, found};

/// This process is confined.
static IS_CONFINED: AtomicBool = AtomicBool::new(false);

/// Files that the server reads on every machine: programs and libraries are in [`PROGRAM_DIRS`]. `/etc` as a whole, because files such as
/// `resolv.conf` and the settings are replaced by others of the same name, which a rule for one file does not know; secrets there
/// are closed to the server's user.
const SYSTEM_READS: &[&str] = &["/etc", "/proc", "/sys"];

/// Directories of the resolver's file, which `/etc/resolv.conf` leads to.
const RESOLVER_DIRS: &[&str] =
    &["/run/systemd/resolve", "/run/NetworkManager", "/run/resolvconf", "/run/connman"];

/// System calls that the server and the programs that it starts never make: other processes, mounts, namespaces, the kernel's
/// modules, keys and clock, another user.
const FORBIDDEN_CALLS: &[libc::c_long] = &[
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_open_by_handle_at,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_quotactl,
    libc::SYS_kexec_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_reboot,
    libc::SYS_acct,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_fanotify_init,
    libc::SYS_personality,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setgroups,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
];

/// The same, for calls that only this kind of processor has.
#[cfg(target_arch = "x86_64")]
const FORBIDDEN_HERE: &[libc::c_long] =
    &[libc::SYS_kexec_file_load, libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_modify_ldt];
#[cfg(not(target_arch = "x86_64"))]
const FORBIDDEN_HERE: &[libc::c_long] = &[];

/// Flags of clone(2) that make namespaces.
const NAMESPACES: libc::c_int = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;

/// The needs of a server.
#[derive(Clone, Debug, Default)]
pub struct ProcessRules {
    /// Files and directories that are read, with everything below them.
    pub reads: Vec<PathBuf>,
    /// Directories that are read and written, with everything below them.
    pub writes: Vec<PathBuf>,
    /// Devices that are opened.
    pub devices: Vec<PathBuf>,
    /// The ffmpeg program, as it is named in the settings; `None`: files and programs are not restricted at all, because
    /// ffmpeg needs those of its own.
    pub ffmpeg: Option<PathBuf>,
    /// Whether TCP ports are opened later than now.
    pub binds_tcp: bool,
    /// Whether local sockets without a file lead to other programs.
    pub has_abstract_sockets: bool,
    /// Whether packets go by AF_XDP.
    pub uses_xdp: bool,
    /// Whether files are read by io_uring.
    pub uses_io_uring: bool,
}

/// The rules that this kernel enforces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Enforcement {
    /// The rules for files, programs, ports and signals.
    pub files: FileRules,
    /// The filter of system calls.
    pub has_call_filter: bool,
}

/// The rules for files, programs, ports and signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileRules {
    /// All of them.
    Complete,
    /// Those that this kernel knows.
    Partial,
    /// None: this kernel has no Landlock, or it is switched off.
    Missing,
    /// None, since ffmpeg is free.
    Unwanted,
}

impl ProcessRules {
    /// Confines this thread, and all threads and programs that it starts from now on.
    ///
    /// # Errors
    /// When the kernel refuses rules that it knows.
    pub fn confine(&self) -> io::Result<Enforcement> {
        let files = match &self.ffmpeg {
            None => FileRules::Unwanted,
            Some(ffmpeg) => match self.limit_files(ffmpeg).map_err(io::Error::other)? {
                RulesetStatus::FullyEnforced => FileRules::Complete,
                RulesetStatus::PartiallyEnforced => FileRules::Partial,
                RulesetStatus::NotEnforced => FileRules::Missing,
            },
        };
        let mut has_call_filter = true;
        for filter in [self.call_filter(), namespace_filter()] {
            match apply_filter(&filter.map_err(io::Error::other)?) {
                Ok(()) => {}
                // A kernel without filters of system calls.
                Err(seccompiler::Error::Prctl(_) | seccompiler::Error::Seccomp(_)) => has_call_filter = false,
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        if matches!(files, FileRules::Complete | FileRules::Partial) {
            IS_CONFINED.store(true, Ordering::Relaxed);
        }
        Ok(Enforcement { files, has_call_filter })
    }

    fn limit_files(&self, ffmpeg: &Path) -> Result<RulesetStatus, RulesetError> {
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        let write =
            AccessFs::from_all(NEWEST) & !(AccessFs::Execute | AccessFs::MakeBlock | AccessFs::MakeChar);
        let device = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
        let programs = Programs::of(ffmpeg);
        let libraries = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let libraries = std::env::split_paths(&libraries).filter(|dir| dir.is_absolute());
        let mut handled = Ruleset::default().handle_access(AccessFs::from_all(NEWEST))?;
        if !self.binds_tcp {
            handled = handled.handle_access(AccessNet::BindTcp)?;
        }
        handled = handled.scope(Scope::Signal)?;
        if !self.has_abstract_sockets {
            handled = handled.scope(Scope::AbstractUnixSocket)?;
        }
        let rules = handled
            .create()?
            .add_rules(path_beneath_rules(SYSTEM_READS, read))?
            .add_rules(path_beneath_rules(RESOLVER_DIRS, read))?
            .add_rules(path_beneath_rules(PROGRAM_DIRS, read))?
            .add_rules(path_beneath_rules(libraries, read))?
            .add_rules(path_beneath_rules(&programs.read, read))?
            .add_rules(path_beneath_rules(&programs.run, read | AccessFs::Execute))?
            .add_rules(path_beneath_rules(DEVICES, AccessFs::ReadFile | AccessFs::WriteFile))?
            .add_rules(path_beneath_rules(&self.devices, device))?
            .add_rules(path_beneath_rules(&self.reads, read))?
            .add_rules(path_beneath_rules(&self.writes, write))?;
        Ok(rules.restrict_self()?.ruleset)
    }

    fn call_filter(&self) -> Result<BpfProgram, BackendError> {
        let mut forbidden: Vec<(libc::c_long, Vec<SeccompRule>)> =
            FORBIDDEN_CALLS.iter().chain(FORBIDDEN_HERE).map(|&call| (call, Vec::new())).collect();
        if !self.uses_xdp {
            forbidden.push((libc::SYS_bpf, Vec::new()));
        }
        if !self.uses_io_uring {
            forbidden.push((libc::SYS_io_uring_setup, Vec::new()));
        }
        let domains = NETWORK_DOMAINS.iter().chain([&libc::AF_UNIX]);
        let domains = domains.chain(self.uses_xdp.then_some(&libc::AF_XDP));
        let others = domains.map(|domain| {
            let domain = domain.cast_unsigned().into();
            SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, domain)
        });
        let others = others.collect::<Result<_, _>>()?;
        forbidden.push((libc::SYS_socket, vec![SeccompRule::new(others)?]));
        for flag in (0..libc::c_int::BITS).map(|bit| 1 << bit).filter(|flag| NAMESPACES & flag != 0) {
            let mask = u64::from(flag.cast_unsigned());
            let has_flag =
                SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(mask), mask)?;
            forbidden.push((libc::SYS_clone, vec![SeccompRule::new(vec![has_flag])?]));
        }
        refusing(forbidden, libc::EPERM)
    }
}

/// The flags of clone3(2) lie in memory, where a filter cannot look. C libraries use clone(2) where there is no clone3.
fn namespace_filter() -> Result<BpfProgram, BackendError> {
    refusing(vec![(libc::SYS_clone3, Vec::new())], libc::ENOSYS)
}

fn refusing(
    forbidden: Vec<(libc::c_long, Vec<SeccompRule>)>,
    errno: libc::c_int,
) -> Result<BpfProgram, BackendError> {
    let x32 = if ARCH == "x86_64" { X32_CALL } else { 0 };
    let mut rules: BTreeMap<i64, Vec<_>> = BTreeMap::new();
    for (call, conditions) in forbidden {
        for call in [call, call | x32] {
            rules.entry(call).or_default().extend(conditions.clone());
        }
    }
    let refused = SeccompAction::Errno(errno.cast_unsigned());
    SeccompFilter::new(rules, SeccompAction::Allow, refused, ARCH.try_into()?)?.try_into()
}

/// The programs that the server starts.
struct Programs {
    /// Files, or directories whose files, may be run.
    run: Vec<PathBuf>,
    /// Libraries that were installed with them.
    read: Vec<PathBuf>,
}

impl Programs {
    fn of(ffmpeg: &Path) -> Self {
        let named = [ffmpeg.to_path_buf(), ffprobe_beside(ffmpeg)];
        let there: Vec<_> = named.iter().filter_map(|program| found(program.as_os_str())).collect();
        let prefixes = there.iter().filter_map(|program| program.parent()?.parent());
        let read = prefixes.map(|prefix| prefix.join("lib")).collect();
        // A script starts others. A program that is missing may be installed later, anywhere.
        let is_fixed = there.len() == named.len() && !there.iter().any(|program| is_script(program));
        let run = match is_fixed {
            true => there.into_iter().chain(loaders()).collect(),
            false => {
                let dirs = named.iter().filter_map(|program| program.parent().map(Path::to_path_buf));
                dirs.filter(|dir| dir.is_absolute())
                    .chain(PROGRAM_DIRS.iter().map(PathBuf::from))
                    .chain(there)
                    .collect()
            }
        };
        Self { run, read }
    }
}

fn is_script(program: &Path) -> bool {
    let mut start = [0; 2];
    let is_read = File::open(program).and_then(|mut file| file.read_exact(&mut start)).is_ok();
    is_read && start == *b"#!"
}

/// The programs that load the libraries of others (ld.so(8)); the kernel starts one before each program. Systems that keep all of their
/// programs in one place have many.
fn loaders() -> Vec<PathBuf> {
    let is_loader = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        (name.starts_with("ld-linux") || name.starts_with("ld-musl") || name.starts_with("ld64"))
            && path.is_file()
    };
    let dirs =
        ["/lib64", "/lib", "/usr/lib64", "/usr/lib"].into_iter().filter_map(|dir| fs::read_dir(dir).ok());
    let files = dirs.flatten().flatten().map(|entry| entry.path());
    files.filter(is_loader).chain(["/nix/store", "/gnu/store"].map(PathBuf::from)).collect()
}

/// An error in words, with a remedy if it may come from the rules: they hold for the files that the settings named at the start.
pub fn explain(text: String) -> String {
    match IS_CONFINED.load(Ordering::Relaxed) && is_denial(&text) {
        true => text + REMEDY,
        false => text,
    }
}

fn is_denial(text: &str) -> bool {
    // SQLite has words of its own.
    ["Permission denied", "unable to open database file"].iter().any(|words| text.contains(words))
}

/// An error of starting a program: one that was installed or replaced after the start is not the one that may be run.
pub(crate) fn explain_start(error: io::Error) -> io::Error {
    match IS_CONFINED.load(Ordering::Relaxed) && error.kind() == io::ErrorKind::PermissionDenied {
        true => io::Error::new(error.kind(), format!("{error}{REMEDY}")),
        false => error,
    }
}

const REMEDY: &str = "; if its permissions are right, the sandbox has closed it, which admits what was there at the start: restart the server, or use --sandbox off";

#[cfg(test)]
#[path = "confine_tests.rs"]
mod tests;
