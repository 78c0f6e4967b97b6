//! `millrace init`: its files, questions and refusals; and the server that starts with its settings.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::process::geteuid;
use serde_json::Value;

use crate::remote_commands::Terminal;
use crate::support::http::get;
use crate::support::{Server, copy_program, film, millrace, ok};

/// A user without rights, which every Linux has.
const USER: &str = "nobody";
const UID: u32 = 65534;

struct InitSite {
    dir: tempfile::TempDir,
    /// A copy of the program: the build may lie where only root can go.
    programs: tempfile::TempDir,
}

impl InitSite {
    fn new() -> Self {
        let [dir, programs] = [(); 2].map(|()| {
            let dir = tempfile::tempdir().unwrap();
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
            dir
        });
        copy_program(programs.path());
        Self { dir, programs }
    }

    /// A command of the copy.
    fn millrace(&self) -> Command {
        let mut command = Command::new(self.programs.path().join("millrace"));
        command.env_remove("MILLRACE_STORE").env_remove("RUST_LOG").stdin(Stdio::null());
        command
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
        self.millrace().arg("init").args(self.places()).args(args).output().unwrap()
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
        let unknown = site.millrace().args(["init", "--yes", "--user", "no-such-user"]).output().unwrap();
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
    terminal.press("$HOME/films\n");
    terminal.wait_for("variables are not replaced here");
    terminal.press("~other/films\n");
    terminal.wait_for("home directories of other users are not known here");
    // In quotes, as a shell would need it.
    terminal.press(&format!("\"{}\"\n", site.at("films").display()));
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

/// A site with the home directory and the program of a user that is not root.
fn user_site() -> InitSite {
    let site = InitSite::new();
    for name in ["home", "run"] {
        fs::create_dir(site.at(name)).unwrap();
        if geteuid().is_root() {
            chown(site.at(name), Some(UID), Some(UID)).unwrap();
        }
    }
    site
}

/// Runs it as the user of `user_site`. Systemd runs for the user if there is a directory `run/systemd`.
fn command_of_user(site: &InitSite, args: &[&str]) -> Command {
    let mut command = site.millrace();
    command.arg("init").args(args).stdin(Stdio::null()).env_remove("MILLRACE_STORE");
    if geteuid().is_root() {
        command.uid(UID).gid(UID);
    }
    let path = format!("{}:/usr/bin:/bin", site.programs.path().display());
    command.env("PATH", path).env("HOME", site.at("home")).env("XDG_RUNTIME_DIR", site.at("run"));
    command.env_remove("XDG_CONFIG_HOME").env_remove("XDG_DATA_HOME").current_dir(site.dir.path());
    command
}

fn init_of_user(site: &InitSite, args: &[&str]) -> Output {
    command_of_user(site, args).output().unwrap()
}

#[test]
fn service_of_a_user_is_started_where_systemd_runs() {
    let site = user_site();
    fs::create_dir(site.at("run/systemd")).unwrap();
    let systemctl = site.programs.path().join("systemctl");
    fs::write(&systemctl, "#!/bin/sh\necho \"$@\" >>\"$XDG_RUNTIME_DIR/calls\"\n").unwrap();
    fs::set_permissions(&systemctl, fs::Permissions::from_mode(0o755)).unwrap();
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

#[test]
fn failed_second_file_leaves_the_first_as_it_was() {
    let site = InitSite::new();
    let folder = site.at("films").display().to_string();
    let args = ["--folder", &folder, "--yes", "--force", "--boot"];
    fs::create_dir_all(site.at("units/millrace.service")).unwrap();
    for args in [&args[..], &[&args[..], &["--dry-run"]].concat()] {
        let done = site.init(args);
        let error = text(&done.stderr);
        assert!(!done.status.success() && error.contains("millrace.service: cannot be written"), "{error}");
        site.assert_untouched(&["units"]);
    }
    // The unit has all backups that it can have; the settings have none.
    fs::remove_dir(site.at("units/millrace.service")).unwrap();
    fs::write(site.at("units/millrace.service"), "mine").unwrap();
    fs::write(site.at("units/millrace.service.bak"), "mine").unwrap();
    (1..100).for_each(|n| fs::write(site.at(&format!("units/millrace.service.bak.{n}")), "mine").unwrap());
    fs::create_dir(site.at("etc")).unwrap();
    fs::write(site.at("etc/millrace.toml"), "# mine\n").unwrap();
    let done = site.init(&args);
    assert!(!done.status.success() && text(&done.stderr).contains("100 backups"), "{done:?}");
    assert_eq!(site.config(), "# mine\n");
    assert_eq!(fs::read_dir(site.at("etc")).unwrap().count(), 1);
    site.assert_untouched(&["etc", "units"]);
}

#[test]
fn new_directories_are_readable_and_only_folder_and_store_are_the_users() {
    if !geteuid().is_root() {
        return;
    }
    let site = InitSite::new();
    let run = |store: &str, folder: &str, config: &str| {
        let places =
            [("--store", store), ("--folder", folder), ("--config", config), ("--unit-dir", "new/u")];
        let mut command = Command::new("sh");
        command.args(["-c", "umask 077; exec \"$@\"", "sh"]).arg(site.millrace().get_program());
        command.args(["init", "--yes", "--no-boot", "--force", "--user", USER]);
        places.iter().for_each(|(option, name)| {
            command.arg(option).arg(site.at(name));
        });
        let done = command.env_remove("MILLRACE_STORE").stdin(Stdio::null()).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    };
    let owner_and_mode = |name: &str| {
        let meta = site.at(name).metadata().unwrap();
        (meta.uid(), meta.mode() & 0o777)
    };
    run("new/a/store", "new/b/films", "new/etc/c.toml");
    for above in ["new", "new/a", "new/b", "new/etc", "new/u"] {
        assert_eq!(owner_and_mode(above), (0, 0o755), "{above}");
    }
    assert_eq!(owner_and_mode("new/b/films"), (UID, 0o755));
    assert_eq!(owner_and_mode("new/a/store"), (UID, 0o700));
    assert_eq!(owner_and_mode("new/etc/c.toml"), (0, 0o644));
    // The store is made on the way to the folder, and is the user's too.
    run("other/store", "other/store/x/films", "new/etc/c.toml");
    for (name, uid) in
        [("other", 0), ("other/store", UID), ("other/store/x", 0), ("other/store/x/films", UID)]
    {
        assert_eq!(owner_and_mode(name).0, uid, "{name}");
    }
}

#[test]
fn places_that_the_service_cannot_use_are_refused() {
    if !geteuid().is_root() {
        return;
    }
    let site = InitSite::new();
    for (name, mode) in [("closed", 0o700), ("own", 0o755), ("bin", 0o700)] {
        fs::create_dir(site.at(name)).unwrap();
        fs::set_permissions(site.at(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    fs::write(site.at("file"), "").unwrap();
    let program = copy_program(&site.at("bin"));
    let (usual, closed) =
        (PathBuf::from(site.millrace().get_program()), site.at("bin").display().to_string());
    for (program, option, place, cause, remedy) in [
        (&program, "--store", "store", closed.as_str(), "install it to /usr/local/bin"),
        (&usual, "--config", "closed/new/c.toml", "the service's user cannot read it", "chmod o+x "),
        (&usual, "--store", "own", "the service's user cannot write it", "chown -R nobody "),
        (&usual, "--store", "closed/store", "the service's user cannot write it", "chmod o+x "),
        (&usual, "--store", "file", "a file, not a directory", "choose another --store"),
    ] {
        // An option may be given once.
        let mut places = site.places();
        let at = places.iter().position(|word| word == option).unwrap();
        places[at + 1] = site.at(place).display().to_string();
        let mut command = Command::new(program);
        command.arg("init").args(places).args(["--yes", "--folder"]).arg(site.at("films"));
        let done = command.env_remove("MILLRACE_STORE").stdin(Stdio::null()).output().unwrap();
        let error = text(&done.stderr);
        assert!(
            !done.status.success() && error.contains(cause) && error.contains(remedy),
            "{place}: {error}"
        );
        site.assert_untouched(&["bin", "closed", "file", "own"]);
    }
}

#[test]
fn commands_to_run_next_are_quoted_for_the_shell() {
    let site = user_site();
    let (config, store) = (site.at("home/it's $x.toml"), site.at("home/a b"));
    let (config, store) = (config.display().to_string(), store.display().to_string());
    let args =
        ["--yes", "--no-boot", "--watch", "users", "--config", &config, "--store", &store, "--dry-run"];
    let next = ["millrace", "serve", "--config", &config];
    let then = ["millrace", "user", "add", "NAME", "--grant", "*", "--store", &store];
    let done = init_of_user(&site, &args);
    let printed = text(&done.stdout);
    for (label, expected) in [("next: ", &next[..]), ("then: ", &then)] {
        let line =
            printed.lines().find_map(|line| line.strip_prefix(label)).unwrap_or_else(|| panic!("{done:?}"));
        let words = Command::new("sh").args(["-c", &format!("printf '%s\\n' {line}")]).output().unwrap();
        assert_eq!(text(&words.stdout).lines().collect::<Vec<_>>(), expected, "{line}");
    }
    let done = init_of_user(&site, &[&args[..], &["--json"]].concat());
    let report: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!((&report["next"], &report["then"]), (&next.to_vec().into(), &vec![then.to_vec()].into()));
}

#[test]
fn home_is_needed_only_for_defaults_and_relative_xdg_directories_are_ignored() {
    let site = user_site();
    let names = ["home/c.toml", "home/store", "home/films", "home/units"];
    let [config, store, folder, units] = names.map(|name| site.at(name).display().to_string());
    let places = ["--config", &config, "--store", &store, "--folder", &folder, "--unit-dir", &units];
    let args = [&["--yes", "--no-boot"], &places[..]].concat();
    let done = command_of_user(&site, &args).env_remove("HOME").output().unwrap();
    assert!(done.status.success(), "{done:?}");
    let done = command_of_user(&site, &args[..8]).env_remove("HOME").output().unwrap();
    assert!(text(&done.stderr).contains("$HOME is not set") && !done.status.success(), "{done:?}");

    let mut command = command_of_user(&site, &["--yes", "--no-boot"]);
    command.env("XDG_CONFIG_HOME", "relative").env("XDG_DATA_HOME", "relative").current_dir(site.at("home"));
    let done = command.output().unwrap();
    assert!(done.status.success(), "{done:?}");
    assert!(site.at("home/.config/millrace/millrace.toml").is_file(), "{done:?}");
    assert!(site.at("home/.local/share/millrace").is_dir() && !site.at("home/relative").exists());
}

#[test]
fn dry_run_fails_where_a_file_cannot_be_created() {
    let site = user_site();
    fs::create_dir(site.at("closed")).unwrap();
    fs::set_permissions(site.at("closed"), fs::Permissions::from_mode(0o555)).unwrap();
    for (option, name) in [
        ("--config", "closed/c.toml"),
        ("--config", "closed/new/c.toml"),
        ("--store", "closed/store"),
        ("--unit-dir", "closed/units"),
    ] {
        let done = init_of_user(&site, &["--yes", "--dry-run", option, &site.at(name).display().to_string()]);
        let error = text(&done.stderr);
        assert!(
            !done.status.success() && error.contains("cannot be created in "),
            "{option} {name}: {done:?}"
        );
        assert!(error.contains("choose another place"), "{error}");
    }
    site.assert_untouched(&["closed", "home", "run"]);
}

#[test]
fn unit_is_written_where_it_is_asked_for_without_systemd() {
    let site = user_site();
    let units = site.at("home/units").display().to_string();
    let done = init_of_user(&site, &["--yes", "--no-boot", "--unit-dir", &units]);
    assert!(done.status.success(), "{done:?}");
    assert!(site.at("home/units/millrace.service").is_file(), "{done:?}");
    // It cannot be started by this machine.
    assert!(text(&done.stdout).contains("next: millrace serve --config "), "{done:?}");
}

#[test]
fn root_gives_the_commands_of_the_service_to_its_user() {
    if !geteuid().is_root() || Path::new("/run/systemd/system").exists() {
        eprintln!("skipped: this machine has systemd, or this user is not root");
        return;
    }
    let site = InitSite::new();
    for (sudo_user, by) in [(None, &["runuser", "-u", USER, "--"][..]), (Some("anna"), &["sudo", "-u", USER])]
    {
        let mut command = site.millrace();
        command.arg("init").args(site.places()).args(["--yes", "--no-boot", "--watch", "users", "--dry-run"]);
        command.args(["--json", "--folder"]).arg(site.at("films")).env_remove("SUDO_USER");
        command.envs(sudo_user.map(|user| ("SUDO_USER", user)));
        let done = command.output().unwrap();
        let report: Value = serde_json::from_slice(&done.stdout).unwrap_or_else(|_| panic!("{done:?}"));
        for (words, deed) in [(&report["next"], "serve"), (&report["then"][0], "user")] {
            let words: Vec<&str> =
                words.as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
            assert_eq!(words[..by.len()], *by, "{words:?}");
            assert_eq!(words[by.len()..][..2], ["millrace", deed], "{words:?}");
        }
    }
}
