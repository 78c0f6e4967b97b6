//! The library commands on real files, and their messages when something is wrong.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::support;
use crate::support::real_disks::{Tmpfs, missing};
use crate::support::{fails, film, ok, run};

#[test]
fn add_list_inspect_check_and_remove() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let store = store.to_str().unwrap();
    let source = film(dir.path(), "My Film.ts", 4);
    let said = ok(&["add", source.to_str().unwrap(), "--store", store]);
    assert!(said.contains("added my-film") && said.contains("H.264 + AAC"), "{said}");

    let list: serde_json::Value = serde_json::from_str(&ok(&["ls", "--json", "--store", store])).unwrap();
    assert_eq!(list[0]["name"], "my-film");
    assert_eq!(list[0]["bytes"], fs::metadata(&source).unwrap().len());
    assert!(ok(&["ls", "--store", store]).contains("my-film"));

    let data = format!("{store}/titles/{}/data.ts", list[0]["id"].as_str().unwrap());
    assert_eq!(fs::read(&data).unwrap(), fs::read(&source).unwrap(), "stored bytes are the film's bytes");

    assert!(ok(&["inspect", "my-film", "--store", store]).contains("my-film"));
    assert!(ok(&["fsck", "--full", "--store", store]).contains("no problem"));

    ok(&["rm", "my-film", "--store", store]);
    assert_eq!(ok(&["ls", "--json", "--store", store]).trim(), "[]");
    assert!(!std::path::Path::new(&data).exists());
    assert!(source.exists());
}

#[test]
fn bad_files_are_refused_in_words_and_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let store = store.to_str().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("empty.ts"), b"").unwrap();
    fs::write(path("text.mp4"), "this is a letter, not a film\n".repeat(1000)).unwrap();
    fs::create_dir(path("folder.ts")).unwrap();
    let no_pcr: Vec<u8> = (0..5000u32).flat_map(|i| ts_packet(0x100, i)).collect();
    fs::write(path("nopcr.ts"), no_pcr).unwrap();
    let first = fails(&["add", &path("nopcr.ts"), "--store", store]);
    assert!(
        first.starts_with("millrace: created a new store") && first.trim().lines().count() == 2,
        "{first}"
    );
    for (name, words) in [
        ("empty.ts", "empty"),
        ("text.mp4", "text.mp4"),
        ("folder.ts", "folder.ts"),
        ("nopcr.ts", "nopcr.ts"),
        ("gone.ts", "gone.ts"),
    ] {
        let error = fails(&["add", &path(name), "--store", store]);
        assert!(error.contains(words), "{name}: {error}");
        assert_eq!(error.trim().lines().count(), 1, "one line, not a dump: {error}");
    }
    assert_eq!(ok(&["ls", "--json", "--store", store]).trim(), "[]");
    assert_eq!(fs::read_dir(format!("{store}/tmp")).unwrap().count(), 0, "nothing half-done is left");
}

/// A TS packet without adaptation field and without meaning.
fn ts_packet(pid: u16, counter: u32) -> [u8; 188] {
    let mut packet = [0xff; 188];
    packet[0] = 0x47;
    packet[1..3].copy_from_slice(&pid.to_be_bytes());
    packet[3] = 0x10 | (counter & 0x0f) as u8;
    packet
}

#[test]
fn add_of_file_cut_mid_packet_succeeds_with_note() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let source = film(dir.path(), "cut.ts", 4);
    let bytes = fs::read(&source).unwrap();
    fs::write(&source, &bytes[..bytes.len() / 188 / 2 * 188 + 100]).unwrap();
    let said = ok(&["add", source.to_str().unwrap(), "--store", store.to_str().unwrap(), "--json"]);
    let title: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(title["bytes"].as_u64().unwrap() % 188, 0);
    assert!(!title["notes"].as_array().unwrap().is_empty(), "{said}");
}

#[test]
fn add_of_unreadable_file_names_it() {
    if rustix::process::geteuid().is_root() {
        // Root reads everything; as another user the error must come.
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let source = dir.path().join("secret.ts");
        fs::write(&source, b"x").unwrap();
        fs::set_permissions(&source, fs::Permissions::from_mode(0o600)).unwrap();
        let store = dir.path().join("store");
        fs::create_dir(&store).unwrap();
        fs::set_permissions(&store, fs::Permissions::from_mode(0o777)).unwrap();
        // The program itself may lie where only root can go: run a copy. Another program makes it: a child that a neighbour
        // forks while this process has it open for writing would keep it from being run.
        let program = dir.path().join("millrace");
        let copied =
            std::process::Command::new("cp").arg(env!("CARGO_BIN_EXE_millrace")).arg(&program).status();
        assert!(copied.unwrap().success());
        let output = std::process::Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&program)
            .args(["add", source.to_str().unwrap(), "--store", store.to_str().unwrap()])
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains("secret.ts"), "{output:?}");
        assert!(error.to_lowercase().contains("permission denied"), "{error}");
    } else {
        eprintln!("skipped: needs root to become another user");
    }
}

#[test]
fn add_to_full_disk_fails_and_keeps_store_intact() {
    if let Some(why) = missing(&["mount", "umount"]) {
        eprintln!("skipped: mounting a small tmpfs needs root: {why}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let small = Tmpfs::mount(&dir.path().join("small"), "3m");
    let store = small.at.join("store");
    let store = store.to_str().unwrap();
    let fits = film(dir.path(), "fits.ts", 4);
    let too_large = film(dir.path(), "large.ts", 16);
    ok(&["add", fits.to_str().unwrap(), "--store", store]);
    let error = fails(&["add", too_large.to_str().unwrap(), "--store", store]);
    assert!(error.to_lowercase().contains("space"), "{error}");
    let list: serde_json::Value = serde_json::from_str(&ok(&["ls", "--json", "--store", store])).unwrap();
    assert_eq!(list.as_array().unwrap().len(), 1);
    assert!(ok(&["fsck", "--full", "--store", store]).contains("no problem"));
}

#[test]
fn killed_in_the_middle_of_adding_nothing_is_visible_and_the_next_try_works() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let store = store.to_str().unwrap();
    let source = film(dir.path(), "film.ts", 30);
    // A pipe that never ends keeps ffmpeg's remux, and so the ingest, in its middle until it is killed.
    let program = dir.path().join("slow-ffmpeg");
    let script = format!("#!/bin/sh\nhead -c 3000000 {}\nexec sleep 600\n", source.display());
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    // ffprobe is looked for beside ffmpeg, under the same name.
    let probe = dir.path().join("slow-ffprobe");
    fs::write(&probe, "#!/bin/sh\nexec ffprobe \"$@\"\n").unwrap();
    fs::set_permissions(&probe, fs::Permissions::from_mode(0o755)).unwrap();
    let mp4 = dir.path().join("film.mkv");
    let made = std::process::Command::new("ffmpeg")
        .args([
            "-nostdin",
            "-v",
            "error",
            "-i",
            source.to_str().unwrap(),
            "-c",
            "copy",
            mp4.to_str().unwrap(),
        ])
        .status()
        .unwrap();
    assert!(made.success());
    let mut child = support::millrace()
        .args([
            "add",
            "--quiet",
            mp4.to_str().unwrap(),
            "--store",
            store,
            "--ffmpeg",
            program.to_str().unwrap(),
            "--ffmpeg-sandbox",
            "off",
        ])
        .spawn()
        .unwrap();
    // It is in the middle when its data file has grown.
    let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
    let growing = || {
        let entries = fs::read_dir(format!("{store}/tmp")).ok()?;
        entries.flatten().find(|e| e.path().join("data.ts").metadata().is_ok_and(|m| m.len() > 0))
    };
    while growing().is_none() {
        assert!(std::time::Instant::now() < end, "the ingest never began to write");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(ok(&["ls", "--json", "--store", store]).trim(), "[]");
    ok(&["add", "--quiet", mp4.to_str().unwrap(), "--store", store]);
    assert!(ok(&["fsck", "--full", "--store", store]).contains("no problem"));
    assert_eq!(fs::read_dir(format!("{store}/tmp")).unwrap().count(), 0, "the dead ingest was swept");
}

/// Files that cannot be added are named before a store is made for them; the others are added all
/// the same.
#[test]
fn files_that_are_not_there_make_no_store() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (store, missing, empty) = (path("store"), path("missing.ts"), path("empty.ts"));
    fs::write(&empty, "").unwrap();
    let output = run(&["add", &missing, &empty, dir.path().to_str().unwrap(), "--store", &store]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for words in ["missing.ts: cannot open", "empty.ts: the file is empty", "not a file but a directory"] {
        assert!(said.contains(words), "{said}");
    }
    assert!(!said.contains("created a new store") && !fs::exists(&store).unwrap(), "{said}");
    let source = film(dir.path(), "film.ts", 2);
    let output = run(&["add", &missing, source.to_str().unwrap(), "--store", &store]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_eq!(said.matches("missing.ts").count(), 1, "{said}");
    assert!(ok(&["ls", "--store", &store]).contains("film"));
}

#[test]
fn command_line_errors_suggest_correct_usage() {
    assert!(fails(&["serv"]).contains("serve"));
    assert!(fails(&["serve", "--cashe", "1GiB"]).contains("--cache"));
    assert!(fails(&["serve", "--cache", "512"]).contains("MiB"));
    let no_store = fails(&["ls", "--store", "/nonexistent/store"]);
    assert!(no_store.contains("/nonexistent/store: not a Millrace store"), "{no_store}");
    assert!(no_store.contains("millrace serve and millrace add create a new store"), "{no_store}");
    assert!(fails(&["bench", "nothing"]).contains("ingest"));
    // Settings that only the command itself can judge have the exit code of a line that cannot be read.
    let dir = tempfile::tempdir().unwrap();
    let (store, a, b) = (dir.path().join("store"), dir.path().join("a"), dir.path().join("b"));
    let [store, a, b] = [&store, &a, &b].map(|path| path.to_str().unwrap());
    let file = env!("CARGO_BIN_EXE_millrace");
    for (line, words) in [
        (&["serve", "--listen", "8554", "--store", store][..], "0.0.0.0:8554"),
        (&["serve", "--cpu", "0,1", "--store", store], "got 2 cores for 1 engine; give one core"),
        (&["serve", "--max-connections-per-address", "0", "--store", store], "at least 1"),
        (&["serve", "--max-rate", "0b/s", "--store", store], "omit it for no limit"),
        (&["serve", "/nonexistent/films", "--store", store], "no such folder"),
        (&["serve", file, "--store", store], "a file, not a folder; add it with: millrace add FILE"),
        (&["play", "http://127.0.0.1/film"], "the scheme is not rtsp"),
        (&["play", "rtsp://127.0.0.1:1/film", "--start", "9s", "--end", "5s"], "later than the start"),
        (&["bench", "nothing"], "there are: ingest"),
        (&["bench", "ingest", "--peers", "vlc"], "its own options are: none"),
        (&["volume", "create", a, b, "--parity", "2"], "parity 2 with 2 members"),
        (&["add", "--name", "one", a, b, "--store", store], "give it with one FILE only"),
        (&["fsck", "--member", a, "--member", a], "is named twice"),
        (&["scrub", "--member", a, "--member", a], "is named twice"),
    ] {
        let output = run(line);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line:?}: {said}");
        assert!(said.contains(words), "{line:?}: {said}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing was made");
    for command in ["serve", "add", "ls", "rm", "inspect", "fsck", "play", "bench"] {
        let help = ok(&[command, "--help"]);
        assert!(help.contains("Example"), "{command} --help has no example: {help}");
    }
}
