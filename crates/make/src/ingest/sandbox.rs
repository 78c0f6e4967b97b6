//! Confines a helper program to the files that programs consist of, and the one that it works on.
//!
//! ffmpeg reads files of strangers with a million lines of C. A file that takes it over finds no
//! other file to read or write, no network and no process to look into: Landlock
//! (Documentation/userspace-api/landlock.rst of the kernel) for files, signals and TCP, and a filter of
//! system calls for sockets of every kind. Both hold for a thread and all that it starts. So a
//! thread that does nothing else locks itself in and starts the program.

use std::collections::BTreeMap;
use std::env::consts::ARCH;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use landlock::{
    ABI, Access, AccessFs, AccessNet, PathBeneath, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError,
    RulesetStatus, Scope, path_beneath_rules,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter,
};

use crate::confine::explain_start;

/// The newest rules that are requested. An older kernel applies those that it knows.
pub(crate) const NEWEST: ABI = ABI::V6;

/// Where programs, libraries and their data lie.
pub(crate) const PROGRAM_DIRS: &[&str] =
    &["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/nix/store", "/gnu/store"];

/// What C libraries read when a program starts. The rest of `/etc` has secrets.
const START_FILES: &[&str] = &[
    "/etc/ld.so.cache",
    "/etc/ld.so.preload",
    "/etc/fonts",
    "/etc/localtime",
    "/etc/ssl/openssl.cnf",
    "/proc/cpuinfo",
    "/proc/filesystems",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/sys",
    "/sys/devices/system",
];

/// What finds the address of a host and verifies its certificate. A symbolic link counts as the file that it leads to.
const NETWORK_FILES: &[&str] = &[
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/host.conf",
    "/etc/nsswitch.conf",
    "/etc/gai.conf",
    "/etc/services",
    "/etc/ssl/certs",
    "/etc/ssl/cert.pem",
    "/etc/pki/tls/certs",
    "/etc/pki/ca-trust/extracted",
    "/etc/ca-certificates/extracted",
    "/etc/crypto-policies",
    "/etc/gnutls",
];

/// Devices that are read and written.
pub(crate) const DEVICES: &[&str] = &["/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"];

/// System calls that nothing which converts media needs: the memory of other processes, ways around Landlock, and `truncate`, which
/// Landlock covers from Linux 6.2 on.
const FORBIDDEN_CALLS: &[libc::c_long] = &[
    libc::SYS_truncate,
    libc::SYS_io_uring_setup,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_open_by_handle_at,
    libc::SYS_mount,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
];

/// Sockets that a program with a network may make, by domain: those of the network, and netlink, since C libraries ask the
/// kernel for its interfaces. Local sockets lead to other programs of this machine.
pub(crate) const NETWORK_DOMAINS: &[libc::c_int] = &[libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// Set in the number of a system call of the x32 ABI, which a filter sees as an ordinary call of x86-64.
pub(crate) const X32_CALL: libc::c_long = 0x4000_0000;

/// Whether helper programs are locked in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sandbox {
    /// As far as the kernel can.
    #[default]
    Auto,
    /// Completely, or they are not started.
    Require,
    /// Not at all.
    Off,
}

/// The files that a program works on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HelperFiles<'a> {
    /// Read.
    pub(crate) input: Option<&'a File>,
    /// Written, by their names.
    pub(crate) outputs: &'a [File],
    /// Whether it may use the network too.
    pub(crate) has_network: bool,
}

impl Sandbox {
    /// Starts a program that works on `files`.
    pub(super) fn spawn(self, command: &mut Command, files: HelperFiles<'_>) -> io::Result<Child> {
        if self == Self::Off {
            return command.spawn().map_err(explain_start);
        }
        // A program that cannot be found is the more helpful message, and needs no sandbox.
        let program = found(command.get_program());
        in_thread_of_its_own(|| {
            let is_complete = lock_in(program.as_deref(), files)?;
            if self == Self::Require && !is_complete {
                let what = "this kernel cannot lock it in completely; use Linux 6.12 or newer with Landlock, or --ffmpeg-sandbox auto";
                return Err(io::Error::new(io::ErrorKind::Unsupported, what));
            }
            command.spawn().map_err(explain_start)
        })
    }
}

/// Returns whether this kernel locks helper programs in completely.
///
/// # Errors
/// When it refuses the rules or the filter, or no thread can be started.
pub fn is_sandbox_complete() -> io::Result<bool> {
    in_thread_of_its_own(|| lock_in(None, HelperFiles::default()))
}

/// Rules of a thread hold until it ends, so no other work may be given to it.
fn in_thread_of_its_own<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("helper-start".into()).spawn_scoped(scope, work)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that starts it has panicked")))
    })
}

/// Locks this thread in, and whatever it starts from now on. Returns whether the kernel knows all of the rules.
fn lock_in(program: Option<&Path>, files: HelperFiles<'_>) -> io::Result<bool> {
    let is_complete = limit_files(program, files).map_err(io::Error::other)? == RulesetStatus::FullyEnforced;
    let filter = filter(files.has_network).map_err(io::Error::other)?;
    match apply_filter(&filter) {
        Ok(()) => Ok(is_complete),
        // A kernel without filters of system calls.
        Err(seccompiler::Error::Prctl(_) | seccompiler::Error::Seccomp(_)) => Ok(false),
        Err(error) => Err(io::Error::other(error)),
    }
}

fn limit_files(program: Option<&Path>, files: HelperFiles<'_>) -> Result<RulesetStatus, RulesetError> {
    let read = AccessFs::from_read(NEWEST);
    let devices = AccessFs::ReadFile | AccessFs::WriteFile;
    let own = program.into_iter().flat_map(own_files);
    let libraries = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let mut handled = Ruleset::default().handle_access(AccessFs::from_all(NEWEST))?;
    if !files.has_network {
        handled = handled.handle_access(AccessNet::from_all(NEWEST))?;
    }
    let network = if files.has_network { NETWORK_FILES } else { &[] };
    let mut rules = handled
        .scope(Scope::from_all(NEWEST))?
        .create()?
        .add_rules(path_beneath_rules(PROGRAM_DIRS, read))?
        .add_rules(path_beneath_rules(START_FILES, AccessFs::ReadFile | AccessFs::ReadDir))?
        .add_rules(path_beneath_rules(network, AccessFs::ReadFile | AccessFs::ReadDir))?
        .add_rules(path_beneath_rules(DEVICES, devices))?
        .add_rules(path_beneath_rules(own, read))?
        .add_rules(path_beneath_rules(
            std::env::split_paths(&libraries).filter(|dir| dir.is_absolute()),
            read,
        ))?;
    for output in files.outputs {
        rules = rules.add_rule(PathBeneath::new(output, AccessFs::WriteFile | AccessFs::Truncate))?;
    }
    if let Some(input) = files.input {
        // The program opens it again, by its number, to get a position of its own.
        rules = rules.add_rule(PathBeneath::new(input, AccessFs::ReadFile))?;
    }
    Ok(rules.restrict_self()?.ruleset)
}

/// A program that lies elsewhere: itself, and the libraries that were installed with it.
fn own_files(program: &Path) -> [PathBuf; 2] {
    let libraries = program.parent().and_then(Path::parent).map(|prefix| prefix.join("lib"));
    [program.to_path_buf(), libraries.unwrap_or_default()]
}

/// The file that would be run.
pub(crate) fn found(program: &OsStr) -> Option<PathBuf> {
    let path = Path::new(program);
    if path.components().count() > 1 {
        return path.canonicalize().ok();
    }
    let dirs = std::env::var_os("PATH")?;
    std::env::split_paths(&dirs)
        .find_map(|dir| dir.join(path).canonicalize().ok().filter(|file| file.is_file()))
}

fn filter(has_network: bool) -> Result<BpfProgram, seccompiler::BackendError> {
    let is_other = |&domain: &libc::c_int| {
        SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, domain.cast_unsigned().into())
    };
    let sockets = match has_network {
        true => {
            let others = NETWORK_DOMAINS.iter().map(is_other).collect::<Result<_, _>>()?;
            vec![SeccompRule::new(others)?]
        }
        false => Vec::new(),
    };
    let x32 = if ARCH == "x86_64" { X32_CALL } else { 0 };
    let forbidden =
        FORBIDDEN_CALLS.iter().map(|&call| (call, Vec::new())).chain([(libc::SYS_socket, sockets)]);
    let both = |(call, rules): (libc::c_long, Vec<SeccompRule>)| [(call, rules.clone()), (call | x32, rules)];
    let rules: BTreeMap<i64, Vec<_>> = forbidden.flat_map(both).collect();
    let refused = SeccompAction::Errno(libc::EACCES as u32);
    SeccompFilter::new(rules, SeccompAction::Allow, refused, ARCH.try_into()?)?.try_into()
}

#[cfg(test)]
#[path = "sandbox_tests.rs"]
mod tests;
