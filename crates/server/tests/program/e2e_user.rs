//! A server that root starts with `--user`: it has root's ports and nothing else of root.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::support::http::get;
use crate::support::{Server, add, fails, film, millrace, play};
use rustix::process::geteuid;

/// Each Linux has this user and its group.
const USER: &str = "nobody";

/// Every file of a directory, and the directory.
fn all_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = vec![dir.to_owned()];
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let is_dir = path.symlink_metadata().unwrap().is_dir();
        found.extend(if is_dir { all_below(&path) } else { vec![path] });
    }
    found
}

/// Number and group of the user.
fn numbers() -> (u32, u32) {
    let users = fs::read_to_string("/etc/passwd").unwrap();
    let entry = users.lines().find_map(|line| line.strip_prefix("nobody:")).expect("a user nobody");
    let fields: Vec<&str> = entry.split(':').collect();
    (fields[1].parse().unwrap(), fields[2].parse().unwrap())
}

/// A store that is the user's, in a directory that anybody may enter.
fn store_of_user(dir: &Path) -> PathBuf {
    let store = dir.join("store");
    add(&film(dir, "film.ts", 2), &store);
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    let (uid, gid) = numbers();
    all_below(&store).iter().for_each(|path| chown(path, Some(uid), Some(gid)).unwrap());
    store
}

fn start(store: &Path, listen: &str, more: &[&str]) -> Server {
    let mut command = millrace();
    let http = format!("{}:0", listen.split(':').next().expect("an address"));
    command.args(["serve", "--listen", listen, "--http", &http, "--cache", "32MiB"]);
    command.args(["--picture-space", "0B", "--user", USER, "--store"]).arg(store).args(more);
    Server::spawn(command)
}

/// Compares lines of the status of each thread of the server.
fn assert_threads_have(server: &Server, expected: &[(&str, String)]) {
    let tasks = format!("/proc/{}/task", server.child.id());
    let mut count = 0;
    for task in fs::read_dir(tasks).unwrap() {
        // A thread may end meanwhile.
        let Ok(status) = fs::read_to_string(task.unwrap().path().join("status")) else { continue };
        for (name, value) in expected {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let words: Vec<&str> = line.unwrap_or_else(|| panic!("no {name}")).split_whitespace().collect();
            assert_eq!(words.join(" "), *value, "{name}: {status}");
        }
        count += 1;
    }
    assert!(count > 5, "{count} threads");
}

#[test]
fn server_of_root_runs_as_user_without_capabilities() {
    if !geteuid().is_root() {
        eprintln!("skipped: only root can change the user");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = store_of_user(dir.path());
    // A port that needs root, at an address that no other test has.
    let server = start(&store, "127.0.77.1:987", &[]);
    assert_eq!(server.addr.port(), 987);
    let (uid, gid) = numbers();
    let four = |number: u32| {
        [number.to_string(), number.to_string(), number.to_string(), number.to_string()].join(" ")
    };
    let none = "0".repeat(16);
    let mut expected = vec![("Uid", four(uid)), ("Gid", four(gid)), ("Groups", gid.to_string())];
    expected.extend(["CapInh", "CapPrm", "CapEff", "CapAmb"].map(|name| (name, none.clone())));
    expected.push(("NoNewPrivs", "1".to_owned()));
    assert_threads_have(&server, &expected);

    let out = dir.path().join("out");
    play(&[&server.title("film"), "-o", out.to_str().unwrap()]);
    assert_eq!(fs::read(out).unwrap(), fs::read(dir.path().join("film.ts")).unwrap());
    // It reads files below /proc/self that the kernel gives to root at a change of the user.
    let mut http = TcpStream::connect(server.page()).unwrap();
    http.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let (head, metrics) = get(&mut http, "/metrics", "");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(String::from_utf8(metrics).unwrap().contains("\nprocess_open_fds "));
    // The files that it has written are its own.
    drop(server);
    let others: Vec<_> =
        all_below(&store).into_iter().filter(|path| path.metadata().unwrap().uid() != uid).collect();
    assert!(others.is_empty(), "{others:?}");
}

#[test]
fn server_with_xdp_interface_keeps_what_it_needs() {
    if !geteuid().is_root() {
        eprintln!("skipped: only root can change the user");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = store_of_user(dir.path());
    let server = start(&store, "127.0.0.1:0", &["--xdp-interface", "lo"]);
    let own = fs::read_to_string("/proc/self/status").unwrap();
    let own = own.lines().find_map(|line| line.strip_prefix("CapPrm:")).unwrap();
    let own = u64::from_str_radix(own.trim(), 16).unwrap();
    // CAP_NET_ADMIN, CAP_NET_RAW, CAP_IPC_LOCK, CAP_BPF (capabilities(7)), as far as this machine has them.
    let kept = format!("{:016x}", own & (1 << 12 | 1 << 13 | 1 << 14 | 1 << 39));
    let (uid, _) = numbers();
    let uid = [uid.to_string(), uid.to_string(), uid.to_string(), uid.to_string()].join(" ");
    let none = "0".repeat(16);
    let expected = [
        ("Uid", uid),
        ("CapPrm", kept.clone()),
        ("CapEff", kept),
        ("CapInh", none.clone()),
        ("CapAmb", none),
    ];
    // The thread of signals is started after the change too.
    assert_threads_have(&server, &expected);
}

#[test]
fn user_that_cannot_serve_is_refused_with_the_remedy() {
    if !geteuid().is_root() {
        eprintln!("skipped: only root can change the user");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (store, film) = (dir.path().join("store"), film(dir.path(), "film.ts", 2));
    add(&film, &store);
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&store, fs::Permissions::from_mode(0o700)).unwrap();
    let refused = |user: &str| {
        let store = store.to_str().unwrap();
        fails(&["serve", "--listen", "127.0.0.1:0", "--http", "off", "--store", store, "--user", user])
    };
    for (user, remedy) in [
        ("no-such-user", "useradd --system no-such-user"),
        ("root", "this user has the rights of root; choose another"),
        (USER, "the store must be this user's: chown -R nobody DIR"),
    ] {
        let error = refused(user);
        assert!(error.contains(&format!("--user {user}: ")) && error.contains(remedy), "{error}");
    }
}
