//! Disks that really hang and really fail: mounts of our own below a temporary directory.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::signal;

/// Why a test with real mounts cannot run here; `None` if it can.
pub(crate) fn missing(programs: &[&str]) -> Option<String> {
    let id = Command::new("id").arg("-u").output().ok()?;
    if id.stdout != b"0\n" {
        return Some("not root".to_owned());
    }
    if !Path::new("/dev/fuse").exists() && programs.contains(&"bindfs") {
        return Some("no /dev/fuse".to_owned());
    }
    let there = |name: &str| {
        let found =
            Command::new("sh").args(["-c", &format!("command -v {name}")]).stdout(Stdio::null()).status();
        found.is_ok_and(|status| status.success())
    };
    programs.iter().find(|name| !there(name)).map(|name| format!("no {name}"))
}

/// Waits until something is so.
pub(crate) fn until(what: &str, limit: Duration, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    while !is_so() {
        assert!(Instant::now() < end, "{what}: not within {limit:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn is_mounted(at: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(1) == at.to_str())
}

/// State of a process as the kernel names it: "R", "S", "T", "Z"...
pub(crate) fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.trim_start().chars().next()
}

/// A directory mounted once more by a program. Stopped, it holds every system call below the mount; killed, they fail.
pub(crate) struct HangingDisk {
    source: PathBuf,
    pub(crate) at: PathBuf,
    program: Child,
}

impl HangingDisk {
    /// Mounts a directory at `at`; both are made.
    pub(crate) fn mount(source: &Path, at: &Path) -> Self {
        std::fs::create_dir_all(source).unwrap();
        std::fs::create_dir_all(at).unwrap();
        let program = Self::start(source, at);
        Self { source: source.to_path_buf(), at: at.to_path_buf(), program }
    }

    fn start(source: &Path, at: &Path) -> Child {
        // It ends with us however we end, and its mount fails then instead of hanging.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "bindfs", "-f"]).arg(source).arg(at);
        let program =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        until("bindfs mounts", Duration::from_secs(30), || is_mounted(at));
        program
    }

    /// From now on every system call on it hangs.
    pub(crate) fn stop(&self) {
        signal(self.program.id(), "STOP");
        until("bindfs stops", Duration::from_secs(30), || state(self.program.id()) == Some('T'));
    }

    /// What hung goes on.
    pub(crate) fn go_on(&self) {
        signal(self.program.id(), "CONT");
    }

    /// Every system call on it fails, those that hang too.
    pub(crate) fn die(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }

    /// Mounts it again after its death.
    pub(crate) fn mount_again(&mut self) {
        unmount(&self.at);
        self.program = Self::start(&self.source, &self.at);
    }
}

impl Drop for HangingDisk {
    fn drop(&mut self) {
        self.die();
        unmount(&self.at);
    }
}

fn unmount(at: &Path) {
    let _ = Command::new("umount").arg("-l").arg(at).stderr(Stdio::null()).status();
}

/// A small file system in a file. After the file is truncated, reads behind the cut fail with EIO,
/// as on a broken disk.
pub(crate) struct FailingDisk {
    image: PathBuf,
    pub(crate) at: PathBuf,
}

impl FailingDisk {
    /// Makes it and mounts it at `at`.
    pub(crate) fn mount(image: &Path, at: &Path, bytes: u64) -> Result<Self, String> {
        Self::mount_made_by(&["mkfs.ext4", "-q", "-F"], image, at, bytes)
    }

    /// The same with a file system that the command `mkfs` makes.
    pub(crate) fn mount_made_by(mkfs: &[&str], image: &Path, at: &Path, bytes: u64) -> Result<Self, String> {
        std::fs::create_dir_all(at).unwrap();
        File::create(image).unwrap().set_len(bytes).unwrap();
        let run = |command: &mut Command| match command.output() {
            Ok(output) if output.status.success() => Ok(()),
            other => Err(format!("{command:?}: {other:?}")),
        };
        run(Command::new(mkfs[0]).args(&mkfs[1..]).arg(image))?;
        run(Command::new("mount").args(["-o", "loop"]).arg(image).arg(at))?;
        Ok(Self { image: image.to_path_buf(), at: at.to_path_buf() })
    }

    /// The disk has lost everything but its first bytes.
    pub(crate) fn cut(&self, bytes: u64) {
        File::options().write(true).open(&self.image).unwrap().set_len(bytes).unwrap();
    }
}

impl Drop for FailingDisk {
    fn drop(&mut self) {
        // The loop device goes with the last mount.
        unmount(&self.at);
    }
}

/// A small file system in memory.
pub(crate) struct Tmpfs {
    pub(crate) at: PathBuf,
}

impl Tmpfs {
    /// Mounts it at `at`, which is made; `size` as mount takes it.
    pub(crate) fn mount(at: &Path, size: &str) -> Self {
        std::fs::create_dir_all(at).unwrap();
        run_mount(Command::new("mount").args(["-t", "tmpfs", "-o", &format!("size={size}"), "none"]).arg(at));
        Self { at: at.to_path_buf() }
    }
}

impl Tmpfs {
    /// The directory is empty from now on, even for processes that have files open there.
    pub(crate) fn disappear(&self) {
        unmount(&self.at);
        assert!(!is_mounted(&self.at));
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        unmount(&self.at);
    }
}

/// A directory seen at another place, where nothing can be written.
pub(crate) struct ReadOnlyView {
    pub(crate) at: PathBuf,
}

impl ReadOnlyView {
    /// Mounts `source` at `at`, which is made.
    pub(crate) fn mount(source: &Path, at: &Path) -> Self {
        std::fs::create_dir_all(at).unwrap();
        run_mount(Command::new("mount").arg("--bind").arg(source).arg(at));
        let view = Self { at: at.to_path_buf() };
        run_mount(Command::new("mount").args(["-o", "remount,bind,ro"]).arg(at));
        view
    }
}

impl Drop for ReadOnlyView {
    fn drop(&mut self) {
        unmount(&self.at);
    }
}

fn run_mount(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
}
