//! The server's own sandbox: the running server is confined, and its messages name the remedy.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::support::{Server, add, film, millrace, ok, run};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Whether this kernel enforces the rules; where it does not, the reason for skipping a test is printed.
fn is_enforced(server: &mut Server) -> bool {
    let partial = server.said("sandbox: this kernel");
    partial.iter().for_each(|line| eprintln!("skipped: {line}"));
    partial.is_empty()
}

/// The values of a line of the status of each thread.
fn of_threads(server: &Server, name: &str) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", server.child.id())).unwrap();
    // A thread may end meanwhile.
    let status = tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("status")).ok());
    let lines = status.filter_map(|status| {
        status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t").map(str::to_owned))
    });
    lines.collect()
}

fn served(dir: &Path, args: &[&str]) -> Server {
    let store = dir.join("store");
    if !store.exists() {
        add(&film(dir, "film.ts", 2), &store);
    }
    Server::start(&store, args)
}

#[test]
fn every_thread_of_the_server_is_confined() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = served(dir.path(), &["--http", "127.0.0.1:0"]);
    let filters = of_threads(&server, "Seccomp");
    assert!(filters.len() > 5 && filters.iter().all(|mode| mode == "2"), "{filters:?}");
    assert!(of_threads(&server, "NoNewPrivs").iter().all(|value| value == "1"));
    // Of files of others, leases, ports, buffers and memory: capabilities(7).
    let kept: u64 = [0, 1, 2, 3, 10, 12, 14, 28].iter().map(|bit| 1 << bit).sum();
    for set in ["CapPrm", "CapEff", "CapInh"] {
        let values = of_threads(&server, set);
        let more = values.iter().map(|set| u64::from_str_radix(set, 16).unwrap() & !kept);
        assert!(more.clone().all(|more| more == 0), "{set}: {values:?}");
    }
    if is_enforced(&mut server) {
        assert_eq!(server.said("sandbox: the server reaches the store").len(), 1, "{:?}", server.log);
    }
    assert!(server.interrupt());
    let own = fs::read_to_string("/proc/self/status").unwrap();
    let mut free = served(dir.path(), &["--sandbox", "off"]);
    if own.contains("\nSeccomp:\t0\n") {
        assert!(of_threads(&free, "Seccomp").iter().all(|mode| mode == "0"));
    }
    assert!(free.said("sandbox").is_empty() && free.interrupt());
}

/// The running server opens a file that its settings did not name at the start.
#[test]
fn file_outside_of_the_settings_is_closed_to_the_server() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let outside = film(other.path(), "outside.ts", 2);
    let playlist = dir.path().join("lobby.m3u");
    fs::write(&playlist, "film\n").unwrap();
    let channel = format!("lobby={}", playlist.display());
    let mut server = served(dir.path(), &["--channel", &channel]);
    if !is_enforced(&mut server) {
        return;
    }
    server.wait_for("channel lobby: plays film", TIMEOUT);
    fs::write(&playlist, format!("{}\nfilm\n", outside.display())).unwrap();
    let skips = server.wait_for("channel lobby: skips", TIMEOUT);
    assert!(skips.contains("Permission denied") && skips.contains("restart the server"), "{skips}");
    assert!(server.interrupt());
    // Named when the server starts, it is played.
    let mut server = served(dir.path(), &["--channel", &channel]);
    server.wait_for("outside.ts", TIMEOUT);
    assert_eq!(server.said("channel lobby: skips"), Vec::<String>::new());
    assert!(server.interrupt());
}

#[test]
fn reload_that_needs_other_files_names_the_restart() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let config = dir.path().join("millrace.toml");
    fs::write(&config, "max-streams = 3\n").unwrap();
    let page = ["--http", "127.0.0.1:0", "--config", config.to_str().unwrap()];
    let mut server = served(dir.path(), &page);
    if !is_enforced(&mut server) {
        return;
    }
    let url = format!("http://{}/", server.page());
    let reload = ["config", "reload", "--server", &url];
    // The settings are replaced, as editors do it.
    let write = |text: &str| {
        fs::write(config.with_extension("new"), text).unwrap();
        fs::rename(config.with_extension("new"), &config).unwrap();
    };
    write(&format!("max-streams = 3\nfolders = [\"{}\"]\n", other.path().display()));
    assert!(ok(&reload).contains(" needs a restart; until then the default"));
    let module = other.path().join("none.wasm");
    fs::write(&module, "(module)").unwrap();
    write(&format!("max-streams = 2\ntransform = [\"x=wasm:{}\"]\n", module.display()));
    let refused = run(&reload);
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(error.contains("none.wasm") && error.contains("Permission denied"), "{error}");
    assert!(error.contains("restart the server"), "{error}");
    assert!(server.interrupt());
}

fn which(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap();
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|path| path.is_file()).expect(name)
}

#[test]
fn ffmpeg_that_was_replaced_is_refused_with_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["bin", "films"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    let program = |name: &str| dir.path().join("bin").join(name);
    for name in ["ffmpeg", "ffprobe"] {
        fs::copy(which(name), program(name)).unwrap();
    }
    let films = dir.path().join("films");
    let source = film(dir.path(), "film.ts", 2);
    let matroska = |name: &str| {
        let mut ffmpeg = Command::new("ffmpeg");
        ffmpeg.args(["-nostdin", "-v", "error", "-i"]).arg(&source).args(["-c", "copy", "-metadata"]);
        let made = ffmpeg.arg(format!("title={name}")).arg(dir.path().join("made.mkv")).status().unwrap();
        assert!(made.success());
        fs::rename(dir.path().join("made.mkv"), films.join(format!("{name}.mkv"))).unwrap();
    };
    matroska("before");
    let mut command = millrace();
    command.args([
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--http",
        "off",
        "--settle",
        "0s",
        "--picture-space",
        "0B",
    ]);
    command.arg("--ffmpeg").arg(program("ffmpeg")).arg("--store").arg(dir.path().join("store")).arg(&films);
    let mut server = Server::spawn(command);
    if !is_enforced(&mut server) {
        return;
    }
    if server.said("before  0:00:0").is_empty() {
        server.wait_for("before  0:00:0", TIMEOUT);
    }
    // As a package manager does it: another file takes the name.
    let new = program("new");
    fs::copy(which("ffprobe"), &new).unwrap();
    fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).unwrap();
    fs::rename(&new, program("ffprobe")).unwrap();
    matroska("after");
    let refused = server.wait_for("not added", TIMEOUT);
    assert!(refused.contains("Permission denied") && refused.contains("restart the server"), "{refused}");
    assert!(server.interrupt());
}

#[test]
fn server_that_has_to_be_confined_starts_only_where_that_is_complete() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = served(dir.path(), &[]);
    let is_complete = is_enforced(&mut server);
    assert!(server.interrupt());
    let store = dir.path().join("store");
    if is_complete {
        assert!(Server::start(&store, &["--sandbox", "require"]).interrupt());
    }
    // ffmpeg may open any file, and so the server may.
    let store = store.to_str().unwrap();
    let line = ["serve", "--listen", "127.0.0.1:0", "--http", "off", "--store", store];
    let refused = run(&[&line[..], &["--sandbox", "require", "--ffmpeg-sandbox", "off"]].concat());
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && error.contains("--sandbox require: with --ffmpeg-sandbox off"),
        "{error}"
    );
}
