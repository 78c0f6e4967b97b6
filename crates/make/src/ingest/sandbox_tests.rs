use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Output, Stdio};

use super::*;

/// Runs a script of Python or the shell that works on `input`; returns its status and output.
fn run(sandbox: Sandbox, program: &str, script: &str, input: &File) -> Output {
    let mut command = Command::new(program);
    command.args(["-c", script]).stdin(input.try_clone().unwrap());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    sandbox
        .spawn(&mut command, HelperFiles { input: Some(input), ..HelperFiles::default() })
        .unwrap()
        .wait_with_output()
        .unwrap()
}

/// The same script is refused with the sandbox, with `words`, and succeeds without.
fn is_forbidden(program: &str, script: &str, input: &File, words: &str) {
    let free = run(Sandbox::Off, program, script, input);
    assert!(free.status.success(), "{script}: {}", String::from_utf8_lossy(&free.stderr));
    let locked = run(Sandbox::Auto, program, script, input);
    let said = String::from_utf8_lossy(&locked.stderr);
    assert!(!locked.status.success() && said.contains(words), "{script}: {} {said}", locked.status);
}

fn file_with(dir: &Path, name: &str, text: &str) -> File {
    let path = dir.join(name);
    File::create(&path).unwrap().write_all(text.as_bytes()).unwrap();
    File::open(path).unwrap()
}

/// What this kernel enforces of the rules for files, signals and TCP. Where there is nothing, a reason for skipping the
/// test is printed.
fn enforced() -> RulesetStatus {
    let limit = || limit_files(None, HelperFiles::default()).map_err(io::Error::other);
    let status = in_thread_of_its_own(limit).unwrap();
    if status == RulesetStatus::NotEnforced {
        eprintln!("skipped: this kernel has no Landlock, or it is not switched on (lsm=landlock)");
    }
    status
}

/// A directory for a test of Landlock; `None` where this kernel does not enforce it.
fn dir_under_landlock() -> Option<tempfile::TempDir> {
    (enforced() != RulesetStatus::NotEnforced).then(|| tempfile::tempdir().unwrap())
}

#[test]
fn program_is_required_to_be_locked_in_only_where_that_is_complete() {
    let started = Sandbox::Require.spawn(&mut Command::new("true"), HelperFiles::default());
    assert_eq!(started.is_ok(), is_sandbox_complete().unwrap(), "{started:?}");
    if let Ok(mut child) = started {
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn input_is_read_by_number_and_no_other_file() {
    let Some(dir) = dir_under_landlock() else { return };
    let input = file_with(dir.path(), "film", "pictures");
    drop(file_with(dir.path(), "other", "secret"));
    let read = run(Sandbox::Auto, "sh", "cat /proc/self/fd/0", &input);
    assert_eq!(
        String::from_utf8_lossy(&read.stdout),
        "pictures",
        "{}",
        String::from_utf8_lossy(&read.stderr)
    );
    let other = dir.path().join("other");
    is_forbidden("sh", &format!("cat {}", other.display()), &input, "Permission denied");
    is_forbidden("sh", &format!("ls {}", dir.path().display()), &input, "Permission denied");
    is_forbidden("sh", "cat /etc/passwd", &input, "Permission denied");
    is_forbidden("sh", "cat /proc/$PPID/environ", &input, "Permission denied");
}

#[test]
fn nothing_can_be_written_removed_or_run_from_elsewhere() {
    let Some(dir) = dir_under_landlock() else { return };
    let input = file_with(dir.path(), "film", "pictures");
    let there = dir.path().display();
    is_forbidden("sh", &format!("echo x > {there}/new"), &input, "Permission denied");
    is_forbidden("sh", &format!("echo x >> {there}/film"), &input, "Permission denied");
    is_forbidden("sh", &format!("mkdir {there}/made && rmdir {there}/made"), &input, "Permission denied");
    is_forbidden("sh", &format!("cp /bin/true {there}/run && {there}/run"), &input, "Permission denied");
    let cut = format!("import os; os.truncate('{there}/film', 9)");
    is_forbidden("/usr/bin/python3", &cut, &input, "Permission denied");
    // The copy of the run without a sandbox is there.
    is_forbidden("sh", &format!("{there}/run"), &input, "Permission denied");
    is_forbidden("sh", &format!("rm {there}/run && touch {there}/run"), &input, "Permission denied");
    let mut text = String::new();
    File::open(dir.path().join("film")).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "picturesx", "changed twice by runs without a sandbox: written to, then cut");
}

#[test]
fn outputs_are_written_by_name_and_not_read() {
    let Some(dir) = dir_under_landlock() else { return };
    let (input, output) = (file_with(dir.path(), "film", ""), file_with(dir.path(), "text", "longer text"));
    let text = dir.path().join("text");
    let mut command = Command::new("sh");
    command.args(["-c", "echo text > \"$0\" && cat \"$0\""]).arg(&text);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let files = HelperFiles { input: Some(&input), outputs: &[output], ..HelperFiles::default() };
    let ended = Sandbox::Auto.spawn(&mut command, files).unwrap().wait_with_output().unwrap();
    assert!(String::from_utf8_lossy(&ended.stderr).contains("Permission denied"), "{ended:?}");
    assert_eq!(std::fs::read_to_string(text).unwrap(), "text\n");
}

#[test]
fn no_socket_can_be_made() {
    let dir = tempfile::tempdir().unwrap();
    let input = file_with(dir.path(), "film", "");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let connect = format!("import socket; socket.create_connection(('127.0.0.1', {port}))");
    is_forbidden("/usr/bin/python3", &connect, &input, "Permission denied");
    let send =
        format!("import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {port}))");
    is_forbidden("/usr/bin/python3", &send, &input, "Permission denied");
    is_forbidden(
        "/usr/bin/python3",
        "import socket; socket.socket(socket.AF_UNIX)",
        &input,
        "Permission denied",
    );
}

#[test]
fn program_with_network_reaches_hosts_but_no_local_sockets_and_no_files() {
    let dir = tempfile::tempdir().unwrap();
    let input = file_with(dir.path(), "film", "");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let run = |script: &str| {
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let files = HelperFiles { has_network: true, ..HelperFiles::default() };
        let output = Sandbox::Auto.spawn(&mut command, files).unwrap().wait_with_output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let refused = |script: &str| {
        is_forbidden("/usr/bin/python3", script, &input, "Permission denied");
        let (is_done, said) = run(script);
        assert!(!is_done && said.contains("Permission denied"), "{script}: {said}");
    };
    let connect = format!("import socket; socket.create_connection(('localhost', {port}))");
    assert_eq!(run(&connect), (true, String::new()));
    refused("import socket; socket.socket(socket.AF_UNIX)");
    if enforced() != RulesetStatus::NotEnforced {
        refused("open('/etc/passwd')");
    }
}

#[test]
fn other_processes_cannot_be_traced_or_signalled() {
    let dir = tempfile::tempdir().unwrap();
    let input = file_with(dir.path(), "film", "");
    let trace = "import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
# PTRACE_TRACEME
if libc.ptrace(0, 0, 0, 0): raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))";
    is_forbidden("/usr/bin/python3", trace, &input, "Permission denied");
    if enforced() == RulesetStatus::FullyEnforced {
        is_forbidden("sh", "kill -0 $PPID", &input, "Operation not permitted");
    } else {
        eprintln!("skipped: Landlock of this kernel has no rule for signals (Linux 6.12)");
    }
    let own = run(Sandbox::Auto, "sh", "sleep 600 & kill $! && wait $!; test $? -eq 143", &input);
    assert!(own.status.success(), "{}", String::from_utf8_lossy(&own.stderr));
}

#[test]
fn this_process_stays_free() {
    let dir = tempfile::tempdir().unwrap();
    let input = file_with(dir.path(), "film", "");
    assert!(run(Sandbox::Auto, "sh", "true", &input).status.success());
    File::create(dir.path().join("after")).unwrap();
    TcpListener::bind("127.0.0.1:0").unwrap();
    assert!(run(Sandbox::Off, "sh", "cat /etc/passwd", &input).status.success());
}

#[test]
fn program_in_a_directory_of_its_own_is_run_with_its_libraries() {
    let Some(dir) = dir_under_landlock() else { return };
    let input = file_with(dir.path(), "film", "");
    for part in ["bin", "lib"] {
        std::fs::create_dir(dir.path().join(part)).unwrap();
    }
    drop(file_with(&dir.path().join("lib"), "data", "its data"));
    drop(file_with(&dir.path().join("bin"), "beside", "not its data"));
    let program = dir.path().join("bin/tool");
    // By a program of its own: a child forked meanwhile would hold a file that this process writes.
    assert!(Command::new("cp").arg("/bin/cat").arg(&program).status().unwrap().success());
    let mut command = Command::new(&program);
    command.arg(dir.path().join("lib/data")).arg(dir.path().join("bin/beside"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = Sandbox::Auto
        .spawn(&mut command, HelperFiles { input: Some(&input), ..HelperFiles::default() })
        .unwrap()
        .wait_with_output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "its data");
    assert!(String::from_utf8_lossy(&output.stderr).contains("beside: Permission denied"), "{output:?}");
}

#[test]
fn missing_program_is_reported_as_missing() {
    for name in ["/no/such/program", "no-such-program"] {
        let error = Sandbox::Auto.spawn(&mut Command::new(name), HelperFiles::default()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound, "{name}: {error}");
    }
}
