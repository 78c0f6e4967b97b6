//! `millrace init`: its files, questions and refusals; and the server that starts with its settings.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::process::geteuid;
use serde_json::Value;

use crate::remote_commands::Terminal;
use crate::support::http::get;
use crate::support::{Server, film, millrace, ok};

/// A user without rights, which every Linux has.
const USER: &str = "nobody";
const UID: u32 = 65534;

struct InitSite {
    dir: tempfile::TempDir,
}

impl InitSite {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Self { dir }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// All places are here.
    fn places(&self) -> Vec<String> {
        let shown = |name| self.at(name).display().to_string();
        let named = [("--config", "etc/millrace.toml"), ("--store", "store"), ("--unit-dir", "units")];
        let mut words: Vec<_> =
            named.iter().flat_map(|(option, name)| [(*option).to_owned(), shown(name)]).collect();
        words.extend(["--user", USER].map(str::to_owned));
        words
    }

    fn init(&self, args: &[&str]) -> Output {
        millrace().arg("init").args(self.places()).args(args).output().unwrap()
    }

    fn config(&self) -> String {
        fs::read_to_string(self.at("etc/millrace.toml")).unwrap()
    }

    /// Nothing was written, and nothing is left of an attempt.
    fn assert_untouched(&self, before: &[&str]) {
        let entries = fs::read_dir(self.dir.path()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        assert_eq!(names, before);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The settings that are no comments.
fn set(config: &str) -> Vec<String> {
    config.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect()
}

#[test]
fn server_starts_with_the_settings_that_init_has_written() {
    let site = InitSite::new();
    let folder = site.at("films").display().to_string();
    let done = site.init(&["--folder", &folder, "--watch", "this-machine", "--boot"]);
    assert!(done.status.success(), "{done:?}");
    let (config, store) = (site.config(), site.at("store"));
    let expected = [
        format!("folders = [\"{folder}\"]"),
        format!("store = \"{}\"", store.display()),
        "listen = \"127.0.0.1:8554\"".to_owned(),
        "http = \"127.0.0.1:8080\"".to_owned(),
    ];
    assert_eq!(set(&config), expected);
    assert!(config.contains("\n#cache =") && config.contains("\n#sandbox = \"auto\"\n"), "{config}");
    let printed = text(&done.stdout);
    let file = site.at("etc/millrace.toml").display().to_string();
    let unit = site.at("units/millrace.service").display().to_string();
    for line in [
        format!("{file}: written"),
        format!("{unit}: written"),
        "reachable from this machine only: RTSP on 127.0.0.1:8554, HTTP on 127.0.0.1:8080".to_owned(),
    ] {
        assert!(printed.lines().any(|found| found == line), "no {line} in {printed}");
    }
    assert!(
        printed.contains("\naccess: anyone may watch, ") && printed.contains(" enable --now millrace\n"),
        "{printed}"
    );
    assert!(fs::read_to_string(unit).unwrap().contains(&format!(" serve --config {file}\n")));
    assert!(ok(&["config", "check", &file]).contains("4 settings, nothing wrong"));

    film(site.dir.path(), "made.ts", 2);
    fs::rename(site.at("made.ts"), site.at("films/a.ts")).unwrap();
    let mut command = millrace();
    command.args([
        "serve",
        "--config",
        &file,
        "--listen",
        "127.0.0.1:0",
        "--http",
        "127.0.0.1:0",
        "--settle",
        "0s",
    ]);
    let mut server = Server::spawn(command);
    let (head, page) = get(&mut TcpStream::connect(server.page()).unwrap(), "/", "");
    assert!(head.starts_with("HTTP/1.1 200") && text(&page).contains("<html"), "{head}");
    if server.said("a  0:00:0").is_empty() {
        server.wait_for("a  0:00:0", std::time::Duration::from_secs(60));
    }
    assert!(server.interrupt());
}

#[test]
fn each_choice_of_viewers_is_the_one_that_serve_has() {
    for (watch, settings, access) in [
        ("anyone", 2, "access: anyone may watch"),
        ("users", 3, "access: users with a grant and holders of signed links may watch"),
    ] {
        let site = InitSite::new();
        let folder = site.at("films").display().to_string();
        let done = site.init(&["--folder", &folder, "--watch", watch, "--no-boot", "--json"]);
        assert!(done.status.success(), "{done:?}");
        assert_eq!(set(&site.config()).len(), settings);
        let report: Value = serde_json::from_slice(&done.stdout).unwrap();
        let planned = report["access"].as_str().unwrap().to_owned();
        assert!(
            planned.starts_with(access) && report["reachable"].as_str().unwrap().contains("any host"),
            "{report}"
        );
        assert_eq!(
            (&report["watch"], &report["started"], &report["boot"]),
            (&watch.into(), &false.into(), &false.into())
        );
        assert_eq!(report["then"].as_array().unwrap().len(), usize::from(watch == "users"), "{report}");
        let mut command = millrace();
        command
            .args(["serve", "--listen", "127.0.0.1:0", "--http", "off", "--config"])
            .arg(site.at("etc/millrace.toml"));
        let mut server = Server::spawn(command);
        assert_eq!(server.said("access: "), [planned]);
        assert!(server.interrupt());
    }
}

#[test]
fn existing_file_is_replaced_only_by_force_and_kept_as_backup() {
    let site = InitSite::new();
    fs::create_dir(site.at("etc")).unwrap();
    fs::write(site.at("etc/millrace.toml"), "# mine\n").unwrap();
    let refused = site.init(&["--yes"]);
    let error = text(&refused.stderr);
    assert!(
        !refused.status.success()
            && error.contains("millrace.toml: exists already")
            && error.contains("--force"),
        "{error}"
    );
    assert_eq!(site.config(), "# mine\n");
    let folder = site.at("films").display().to_string();
    for number in ["", ".1"] {
        let before = site.config();
        let done = site.init(&["--folder", &folder, "--yes", "--no-boot", "--force"]);
        assert!(done.status.success(), "{done:?}");
        let backup = site.at(&format!("etc/millrace.toml.bak{number}"));
        assert!(text(&done.stdout).contains(&format!("the old one is {}", backup.display())), "{done:?}");
        assert_eq!(fs::read_to_string(backup).unwrap(), before);
        assert_eq!(set(&site.config()).len(), 2);
    }
}

#[test]
fn init_without_terminal_and_answers_ends_with_the_options() {
    let site = InitSite::new();
    for args in [&[][..], &["--watch", "users"], &["--folder", "/tmp", "--boot"]] {
        let done = site.init(args);
        let error = text(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{error}");
        assert!(error.contains("no terminal to ask at") && error.contains("--yes"), "{error}");
    }
    let wrong = site.init(&["--watch", "nobody", "--yes"]);
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
    site.assert_untouched(&[]);
}

#[test]
fn failed_or_dry_run_leaves_nothing() {
    let site = InitSite::new();
    let folder = site.at("new/films").display().to_string();
    let answers = ["--folder", &folder, "--watch", "anyone", "--boot"];
    let done = site.init(&[&answers[..], &["--dry-run"]].concat());
    assert!(
        done.status.success() && text(&done.stdout).contains("millrace.toml: would be written"),
        "{done:?}"
    );
    site.assert_untouched(&[]);
    // The unit cannot be written: then neither are the settings.
    fs::write(site.at("units"), "a file").unwrap();
    let done = site.init(&answers);
    assert!(!done.status.success() && text(&done.stderr).contains("units"), "{done:?}");
    site.assert_untouched(&["units"]);
}

#[test]
fn folder_that_is_none_or_is_closed_to_the_server_is_refused() {
    let site = InitSite::new();
    fs::write(site.at("file"), "").unwrap();
    let init = |folder: &Path| {
        let done = site.init(&["--folder", folder.to_str().unwrap(), "--yes"]);
        assert!(!done.status.success(), "{done:?}");
        text(&done.stderr)
    };
    assert!(init(&site.at("file")).contains("a file, not a folder"));
    assert!(init(&site.at("file/films")).contains("is a file"));
    if geteuid().is_root() {
        fs::create_dir(site.at("closed")).unwrap();
        fs::set_permissions(site.at("closed"), fs::Permissions::from_mode(0o700)).unwrap();
        let error = init(&site.at("closed"));
        assert!(error.contains("the server's user cannot open") && error.contains("chmod o+rx"), "{error}");
        let unknown = millrace().args(["init", "--yes", "--user", "no-such-user"]).output().unwrap();
        assert!(text(&unknown.stderr).contains("useradd --system no-such-user"), "{unknown:?}");
    }
    site.assert_untouched(if geteuid().is_root() { &["closed", "file"] } else { &["file"] });
}

#[test]
fn terminal_is_asked_until_each_answer_is_one() {
    let site = InitSite::new();
    fs::write(site.at("file"), "").unwrap();
    let mut terminal = Terminal::running(&format!("init {}", site.places().join(" ")));
    terminal.wait_for("Folder of films [");
    terminal.press(&format!("{}\n", site.at("file").display()));
    terminal.wait_for("a file, not a folder");
    terminal.press(&format!("{}\n", site.at("films").display()));
    terminal.wait_for("Who may watch");
    terminal.press("everybody\n");
    terminal.wait_for("answer anyone, this-machine or users");
    terminal.press("\n");
    terminal.wait_for("yes or no [");
    terminal.press("no\n");
    terminal.wait_for("that was it");
    assert!(terminal.text.contains("code 0"), "{:?}", terminal.text);
    let films = site.at("films").display().to_string();
    assert_eq!(set(&site.config())[0], format!("folders = [\"{films}\"]"));
    assert_eq!(set(&site.config()).len(), 2);
}

#[test]
fn ctrl_c_at_a_question_leaves_nothing() {
    for keys in ["\x03", "\x04"] {
        let site = InitSite::new();
        let mut terminal = Terminal::running(&format!("init {}", site.places().join(" ")));
        terminal.wait_for("Folder of films [");
        terminal.press(&format!("{}\n", site.at("films").display()));
        terminal.wait_for("Who may watch");
        terminal.press(keys);
        terminal.wait_for("that was it");
        assert!(!terminal.text.contains("code 0"), "{:?}", terminal.text);
        site.assert_untouched(&[]);
    }
}

/// Runs it as a user that is not root, whose session has systemd.
fn init_of_user(site: &InitSite, args: &[&str]) -> Output {
    let mut command = Command::new(site.at("bin/millrace"));
    command.arg("init").args(args).stdin(Stdio::null()).env_remove("MILLRACE_STORE");
    if geteuid().is_root() {
        command.uid(UID).gid(UID);
    }
    let path = format!("{}:/usr/bin:/bin", site.at("bin").display());
    command.env("PATH", path).env("HOME", site.at("home")).env("XDG_RUNTIME_DIR", site.at("run"));
    command
        .env_remove("XDG_CONFIG_HOME")
        .env_remove("XDG_DATA_HOME")
        .current_dir(site.dir.path())
        .output()
        .unwrap()
}

#[test]
fn service_of_a_user_is_started_where_systemd_runs() {
    let site = InitSite::new();
    for name in ["home", "run", "run/systemd", "bin"] {
        fs::create_dir(site.at(name)).unwrap();
        if geteuid().is_root() {
            chown(site.at(name), Some(UID), Some(UID)).unwrap();
        }
    }
    // The program may lie where only root can go.
    let program = site.at("bin/millrace");
    fs::copy(millrace().get_program(), &program).unwrap();
    let systemctl = site.at("bin/systemctl");
    fs::write(&systemctl, "#!/bin/sh\necho \"$@\" >>\"$XDG_RUNTIME_DIR/calls\"\n").unwrap();
    for path in [&program, &systemctl] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let calls = || fs::read_to_string(site.at("run/calls")).unwrap_or_default();
    let dry = init_of_user(&site, &["--yes", "--dry-run"]);
    assert!(dry.status.success() && calls().is_empty(), "{dry:?}");
    let done = init_of_user(&site, &["--yes"]);
    assert!(done.status.success(), "{done:?}");
    assert_eq!(calls(), "--user daemon-reload\n--user enable --now millrace\n");
    let printed = text(&done.stdout);
    assert!(
        printed.contains("started: systemctl --user enable --now millrace")
            && printed.contains("enable-linger"),
        "{printed}"
    );
    let unit = fs::read_to_string(site.at("home/.config/systemd/user/millrace.service")).unwrap();
    assert!(unit.contains("WantedBy=default.target"), "{unit}");
    let config = fs::read_to_string(site.at("home/.config/millrace/millrace.toml")).unwrap();
    let films = site.at("home/films");
    assert_eq!(set(&config)[0], format!("folders = [\"{}\"]", films.display()));
    assert!(films.is_dir());
    // Settings that exist are the user's.
    let again = init_of_user(&site, &["--yes"]);
    assert!(!again.status.success() && text(&again.stderr).contains("exists already"), "{again:?}");
}
