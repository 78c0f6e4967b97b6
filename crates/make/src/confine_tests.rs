use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::{Command, Output};

use super::*;

/// Stands for ffmpeg: it can make any system call.
const PROGRAM: &str = "/usr/bin/python3";

/// Directories of a server.
struct Site {
    dir: tempfile::TempDir,
}

impl Site {
    /// `None` where this kernel has no Landlock.
    fn new() -> Option<Self> {
        let site = Self { dir: tempfile::tempdir().unwrap() };
        for name in ["films", "store", "other"] {
            fs::create_dir(site.at(name)).unwrap();
            fs::write(site.at(name).join("file"), name).unwrap();
        }
        match confined(&site.rules(), |enforcement| enforcement.files) {
            FileRules::Missing => {
                eprintln!("skipped: this kernel has no Landlock, or it is not switched on (lsm=landlock)");
                None
            }
            _ => Some(site),
        }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn rules(&self) -> ProcessRules {
        ProcessRules {
            reads: vec![self.at("films")],
            writes: vec![self.at("store")],
            ffmpeg: Some(PROGRAM.into()),
            ..ProcessRules::default()
        }
    }
}

/// Does something in a thread that is confined. This process stays free.
fn confined<T: Send>(rules: &ProcessRules, work: impl FnOnce(Enforcement) -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(|| work(rules.confine().unwrap())).join().unwrap())
}

fn is_denied<T>(result: io::Result<T>) -> bool {
    result.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

fn python(script: &str, args: &[String]) -> Output {
    Command::new(PROGRAM).args(["-c", script]).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}

#[test]
fn films_are_read_the_store_is_written_and_other_files_are_closed() {
    let Some(site) = Site::new() else { return };
    let [films, store, other] = ["films", "store", "other"].map(|name| site.at(name));
    confined(&site.rules(), |_| {
        assert_eq!(fs::read_to_string(films.join("file")).unwrap(), "films");
        assert!(is_denied(fs::write(films.join("file"), "x")));
        assert!(is_denied(fs::write(films.join("new"), "x")));
        assert!(is_denied(fs::remove_file(films.join("file"))));
        fs::create_dir(store.join("tmp")).unwrap();
        fs::write(store.join("tmp/new"), "new").unwrap();
        fs::rename(store.join("tmp/new"), store.join("file")).unwrap();
        assert_eq!(fs::read_to_string(store.join("file")).unwrap(), "new");
        assert!(is_denied(fs::read(other.join("file"))) && is_denied(fs::read_dir(&other).map(drop)));
        assert!(is_denied(fs::write(other.join("new"), "x")));
        assert!(fs::rename(store.join("file"), other.join("moved")).is_err());
        assert!(fs::hard_link(other.join("file"), store.join("link")).is_err());
        // A link leads nowhere else.
        std::os::unix::fs::symlink(other.join("file"), store.join("symlink")).unwrap();
        assert!(is_denied(fs::read(store.join("symlink"))));
    });
    assert_eq!(fs::read_to_string(other.join("file")).unwrap(), "other", "this process stays free");
    let free = ProcessRules { ffmpeg: None, ..site.rules() };
    confined(&free, |enforcement| {
        assert_eq!(enforcement.files, FileRules::Unwanted);
        assert_eq!(fs::read_to_string(other.join("file")).unwrap(), "other");
    });
}

#[test]
fn no_program_but_ffmpeg_is_run() {
    let Some(site) = Site::new() else { return };
    let copied = site.at("store").join("program");
    fs::copy("/bin/true", &copied).unwrap();
    let run = |program: &Path| Command::new(program).args(["-c", ""]).status().map(|status| status.success());
    for program in [Path::new("/bin/sh"), &copied] {
        assert!(run(program).unwrap(), "{}", program.display());
    }
    confined(&site.rules(), |_| {
        assert!(run(Path::new(PROGRAM)).unwrap());
        assert!(is_denied(run(Path::new("/bin/sh"))) && is_denied(run(&copied)));
        // A program that may be run starts no others.
        let said = python("import subprocess; subprocess.run(['/bin/sh', '-c', ''])", &[]);
        assert!(text(&said.stderr).contains("PermissionError"), "{said:?}");
    });
    // One that is missing may be installed later; then it needs others.
    let missing = ProcessRules { ffmpeg: Some(site.at("bin/ffmpeg")), ..site.rules() };
    confined(&missing, |_| {
        assert!(run(Path::new("/bin/sh")).unwrap() && is_denied(run(&copied)));
    });
}

#[test]
fn script_in_place_of_ffmpeg_starts_programs_of_the_system() {
    use std::os::unix::fs::PermissionsExt;
    let Some(site) = Site::new() else { return };
    let script = site.at("films").join("ffmpeg");
    fs::write(&script, "#!/bin/sh\nexec true\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let rules = ProcessRules { ffmpeg: Some(script.clone()), ..site.rules() };
    confined(&rules, |_| assert!(Command::new(&script).status().unwrap().success()));
}

#[test]
fn replaced_program_is_refused_with_the_remedy() {
    let Some(site) = Site::new() else { return };
    let [program, probe] = ["ffmpeg", "ffprobe"].map(|name| site.at("films").join(name));
    for path in [&program, &probe] {
        fs::copy("/bin/true", path).unwrap();
    }
    let rules = ProcessRules { ffmpeg: Some(program.clone()), ..site.rules() };
    confined(&rules, |_| {
        assert!(Command::new(&program).status().unwrap().success());
        std::thread::scope(|scope| scope.spawn(|| ()).join().unwrap());
    });
    let (program, site) = (&program, &site);
    confined(&rules, |_| {
        let error = Command::new(site.at("store").join("none")).status().unwrap_err();
        assert_eq!(explain_start(error).kind(), io::ErrorKind::NotFound);
        let error = explain_start(Command::new("/bin/true").status().unwrap_err()).to_string();
        assert!(error.contains("Permission denied") && error.contains("restart the server"), "{error}");
        assert!(Command::new(program).status().unwrap().success());
    });
}

#[test]
fn tcp_ports_are_opened_only_where_that_is_wanted() {
    let Some(site) = Site::new() else { return };
    let rules = site.rules();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let is_bound = confined(&rules, |enforcement| {
        TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        UdpSocket::bind("127.0.0.1:0").unwrap();
        let bound = TcpListener::bind("127.0.0.1:0");
        assert!(is_denied(bound) || enforcement.files == FileRules::Partial);
        enforcement.files
    });
    if is_bound == FileRules::Partial {
        eprintln!("skipped: Landlock of this kernel has no rule for TCP (Linux 6.7)");
    }
    let binds = ProcessRules { binds_tcp: true, ..rules };
    confined(&binds, |_| TcpListener::bind("127.0.0.1:0").unwrap());
}

#[test]
fn other_processes_are_neither_signalled_nor_reached_by_abstract_sockets() {
    let Some(site) = Site::new() else { return };
    let name = format!("millrace-confine-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(name).unwrap();
    let _listener = UnixListener::bind_addr(&address).unwrap();
    let script = "import os; os.kill(int(os.environ['OF_TEST']), 0)";
    let signal = || {
        let mut command = Command::new(PROGRAM);
        command.args(["-c", script]).env("OF_TEST", std::os::unix::process::parent_id().to_string());
        text(&command.output().unwrap().stderr)
    };
    let rules = site.rules();
    if confined(&rules, |enforcement| enforcement.files) == FileRules::Partial {
        eprintln!("skipped: Landlock of this kernel has no rule for signals (Linux 6.12)");
        return;
    }
    confined(&rules, |_| {
        assert!(signal().contains("PermissionError"));
        assert!(UnixStream::connect_addr(&address).is_err());
        // Programs that it starts are its own.
        let mut child = Command::new(PROGRAM).args(["-c", "import time; time.sleep(600)"]).spawn().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    });
    let reached = ProcessRules { has_abstract_sockets: true, ..rules };
    confined(&reached, |_| UnixStream::connect_addr(&address).map(drop).unwrap());
}

/// Prints the error number of each system call, or 0.
const CALLS: &str = "import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
for number in map(int, sys.argv[1:]):
    ctypes.set_errno(0)
    result = libc.syscall(number, *[ctypes.c_long(-1)] * 6)
    print(ctypes.get_errno() if result == -1 else 0)";

fn errors(calls: &[libc::c_long]) -> Vec<i32> {
    let done = python(CALLS, &calls.iter().map(ToString::to_string).collect::<Vec<_>>());
    assert!(done.status.success(), "{done:?}");
    text(&done.stdout).lines().map(|line| line.parse().unwrap()).collect()
}

#[test]
fn calls_that_a_server_never_makes_are_refused() {
    let calls = [
        libc::SYS_ptrace,
        libc::SYS_process_vm_readv,
        libc::SYS_mount,
        libc::SYS_umount2,
        libc::SYS_pivot_root,
        libc::SYS_unshare,
        libc::SYS_setns,
        libc::SYS_kexec_load,
        libc::SYS_init_module,
        libc::SYS_delete_module,
        libc::SYS_personality,
        libc::SYS_keyctl,
        libc::SYS_add_key,
        libc::SYS_open_by_handle_at,
        libc::SYS_perf_event_open,
        libc::SYS_setresuid,
        libc::SYS_bpf,
        libc::SYS_io_uring_setup,
    ];
    let free = errors(&calls);
    // Without root, some are refused anyway.
    assert!(free.iter().filter(|&&error| error != libc::EPERM).count() > 6, "{free:?}");
    let rules = ProcessRules::default();
    let refused = confined(&rules, |enforcement| {
        assert!(enforcement.has_call_filter);
        errors(&calls)
    });
    assert_eq!(refused, [libc::EPERM; 18]);
    let [bpf, uring] = [libc::SYS_bpf, libc::SYS_io_uring_setup];
    let fast = ProcessRules { uses_xdp: true, uses_io_uring: true, ..rules };
    assert_eq!(confined(&fast, |_| errors(&[bpf, uring])), errors(&[bpf, uring]));
}

#[test]
fn sockets_and_processes_are_made_as_far_as_they_are_needed() {
    let make = |domain: &str| format!("import socket; socket.socket({domain}, socket.SOCK_RAW, 0)");
    let netlink = make("socket.AF_NETLINK");
    let others = ["socket.AF_ALG", "socket.AF_VSOCK", "socket.AF_PACKET"];
    let space = "import os; os.unshare(os.CLONE_NEWUTS)";
    // clone(2) with a flag of its own: a child that ends at once.
    let flags = libc::CLONE_NEWUTS | libc::SIGCHLD;
    let clone = format!(
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\npid = libc.syscall({}, {flags}, 0, 0, 0, 0)\n\
         if pid == 0: os._exit(0)\nprint(ctypes.get_errno() if pid == -1 else 0)",
        libc::SYS_clone
    );
    let rules = ProcessRules::default();
    confined(&rules, |_| {
        assert!(python(&netlink, &[]).status.success());
        for domain in others {
            let said = text(&python(&make(domain), &[]).stderr);
            assert!(said.contains("PermissionError"), "{domain}: {said}");
        }
        assert!(!python(space, &[]).status.success());
        assert_eq!(text(&python(&clone, &[]).stdout), libc::EPERM.to_string());
        // Threads and processes are made as before.
        let both = "import os, threading; t = threading.Thread(); t.start(); t.join(); os.fork()";
        assert!(python(both, &[]).status.success());
    });
}
