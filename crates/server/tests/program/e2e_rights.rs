//! Users of a running server: the command that makes them, FFmpeg and curl with and without their rights, and what changes meanwhile.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::support;
use crate::support::{Server, add, fails, film, millrace, ok, run};

/// Longest that a player may take to find out whether it gets something.
const PLAYER_LIMIT: &str = "60";

fn piped(args: &[&str], input: &str) -> Output {
    let mut child = millrace()
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn add_user(store: &Path, name: &str, more: &[&str]) {
    let args = [&["user", "add", name, "--store", store.to_str().unwrap()], more].concat();
    let output = piped(&args, "secret-word\n");
    assert!(output.status.success(), "{output:?}");
}

/// Returns whether FFmpeg decodes the beginning of it, and FFmpeg's messages if not.
fn plays(url: &str, more: &[&str]) -> Result<(), String> {
    let mut command = Command::new("timeout");
    command.args([PLAYER_LIMIT, "ffmpeg", "-nostdin", "-v", "error"]).args(more);
    command.args(["-i", url, "-t", "1", "-f", "null", "-"]);
    let output = command.stdin(Stdio::null()).output().expect("ffmpeg can be started");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(said) }
}

fn curl(args: &[&str]) -> String {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--max-time", "60", "--noproxy", "*", "-o", "/dev/null"]);
    let output = command.args(["-w", "%{http_code}"]).args(args).output().expect("curl can be started");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns the address of a title's first segment, as announced to this user.
fn first_segment(server: &Server, user: &str) -> String {
    let list = format!("{}titles/film/media.m3u8", page(server));
    let mut command = Command::new("curl");
    command.args(["--silent", "--noproxy", "*", "-u", &format!("{user}:secret-word"), &list]);
    let list = String::from_utf8(command.output().expect("curl can be started").stdout).unwrap();
    let segment = list.lines().find(|line| line.starts_with("hls/")).unwrap_or_else(|| panic!("{list}"));
    format!("{}titles/film/{segment}", page(server))
}

fn page(server: &Server) -> String {
    let line = server.log.iter().find_map(|line| line.strip_prefix("page ")).expect("the page is printed");
    line.to_owned()
}

#[test]
fn players_show_who_they_are_and_rights_change_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    for name in ["film.ts", "other.ts"] {
        add(&film(dir.path(), name, 20), &store);
    }
    add_user(&store, "anna", &["--grant", "film"]);
    add_user(&store, "plain", &["--grant", "*", "--no-digest"]);
    let token = ok(&["user", "token", "anna", "--expires", "1h", "--store", store.to_str().unwrap()]);
    let mut server = Server::start(&store, &["--watching", "users"]);
    let line = server.said("ffplay -rtsp_transport tcp ").pop().expect("lines to paste");
    let url = |user: &str, title: &str| server.url.replace("rtsp://", &format!("rtsp://{user}")) + title;
    let by_tcp: &[&str] = &["-rtsp_transport", "tcp"];
    // The printed lines work with a name and a password in their places.
    let pasted = line.rsplit(' ').next().unwrap();
    assert!(pasted.contains("USER:PASSWORD"), "{line}");
    plays(&pasted.replace("USER:PASSWORD", "anna:secret-word"), by_tcp).unwrap();
    // By Digest, which FFmpeg takes where it can, and by Basic, where it cannot.
    for transport in [by_tcp, &["-rtsp_transport", "udp"]] {
        plays(&url("anna:secret-word@", "film"), transport).unwrap();
    }
    plays(&url("plain:secret-word@", "other"), by_tcp).unwrap_err(); // it answers a Digest that it cannot know
    for (user, title, status) in
        [("", "film", "401"), ("anna:wrong-word@", "film", "401"), ("anna:secret-word@", "other", "403")]
    {
        let said = plays(&url(user, title), by_tcp).unwrap_err();
        assert!(said.contains(status), "{user}{title}: {said}");
    }

    let page = page(&server);
    let file = &*format!("{page}titles/film.ts");
    let range = ["-r", "0-1315"];
    assert_eq!(curl(&[&range[..], &[file]].concat()), "401");
    for user in ["anna:secret-word", "plain:secret-word"] {
        assert_eq!(curl(&[&range[..], &["-u", user, file]].concat()), "206", "{user}");
    }
    let header = format!("Authorization: Bearer {}", token.trim());
    let with_token = || curl(&[&range[..], &["-H", &header, file]].concat());
    assert_eq!(with_token(), "206");

    // A link is good for RTSP, and for HLS from the first playlist to the last segment.
    let sign = |base: &str| {
        ok(&["user", "sign", "film", "--for", "1h", "--base", base, "--store", store.to_str().unwrap()])
    };
    plays(sign(&server.url).trim(), by_tcp).unwrap();
    // A mistyped name is not signed.
    let mistyped = run(&["user", "sign", "nosuch", "--for", "1h", "--store", store.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&mistyped.stderr);
    assert!(mistyped.status.code() == Some(1) && mistyped.stdout.is_empty(), "{mistyped:?}");
    assert!(said.contains("nosuch: there is no such title") && said.contains("millrace ls"), "{said}");
    let hls = sign(&page);
    plays(hls.trim(), &[]).unwrap();
    assert!(plays(&hls.trim().replace("titles/film", "titles/other"), &[]).is_err());
    ok(&["user", "sign", "--renew-key", "--store", store.to_str().unwrap()]);
    until(|| curl(&[hls.trim()]) == "403", "the link still holds");

    ok(&["user", "rm", "anna", "--store", store.to_str().unwrap()]);
    until(|| with_token() == "401", "the token is still known");
    assert!(plays(&url("anna:secret-word@", "film"), by_tcp).unwrap_err().contains("401"));
}

/// Waits for something that the server does within a second or two; the limit is for a machine that is busy.
fn until(is_so: impl Fn() -> bool, what: &str) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn users_are_made_listed_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("who.sqlite");
    let at = ["--rights", file.to_str().unwrap()];
    let user = |args: &[&str]| ok(&[&["user"], args, &at].concat());
    let refused = |args: &[&str]| fails(&[&["user"], args, &at].concat());
    assert!(refused(&["ls"]).contains("millrace user add NAME"));
    let added = piped(&[&["user", "add", "anna"], &at[..]].concat(), "secret-word\r\nand more\n");
    assert!(added.status.success(), "{added:?}");
    assert!(String::from_utf8_lossy(&added.stderr).contains("may watch nothing yet"), "{added:?}");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let short = piped(&[&["user", "add", "ben"], &at[..]].concat(), "short\n");
    assert!(String::from_utf8_lossy(&short.stderr).contains("8 to 256"), "{short:?}");

    user(&["group", "kids", "zoo", "cartoon-*"]);
    user(&["grant", "anna", "film*", "@kids", "--manage"]);
    let token = user(&["token", "anna"]);
    assert!(token.starts_with("mr_") && token.trim().len() == 46, "{token}");
    let listed = user(&["ls"]);
    assert!(listed.contains("anna  watches @kids, film*, manages, 1 token"), "{listed}");
    assert!(listed.contains("@kids  cartoon-*, zoo") && !listed.contains(token.trim()), "{listed}");
    let json: serde_json::Value = serde_json::from_str(&user(&["ls", "--json"])).unwrap();
    let id = json["users"][0]["tokens"][0]["token"].as_str().unwrap();
    assert_eq!(
        (json["users"][0]["manages"].as_bool(), json["users"][0]["digest"].as_bool()),
        (Some(true), Some(true))
    );
    user(&["token", "anna", "--remove", id]);
    user(&["revoke", "anna", "@kids", "--manage"]);
    let changed =
        piped(&[&["user", "passwd", "anna", "--digest", "false"], &at[..]].concat(), "other-word\n");
    assert!(changed.status.success(), "{changed:?}");
    assert_eq!(user(&["ls"]).lines().next(), Some("anna  watches film*, without digest"));

    let links = user(&["sign", "zoo", "--for", "2h"]);
    let links: Vec<_> = links.lines().collect();
    assert!(
        links[0].starts_with("/zoo?until=") && links[1].starts_with("/titles/zoo/index.m3u8?until="),
        "{links:?}"
    );
    for (args, part) in [
        (&["sign", "a/b", "--for", "2h"][..], "millrace ls"),
        (&["sign", "zoo", "--for", "0s"], "allowed"),
        (&["sign", "zoo", "--for", "2h", "--base", "tv"], "rtsp://HOST"),
        (&["grant", "ben", "x"], "no such user"),
        (&["grant", "anna", "@none"], "no such group"),
        (&["rm", "ben"], "no such user"),
    ] {
        let said = refused(args);
        assert!(said.contains(part), "{args:?}: {said}");
    }
    // Arguments that no command line can mean get clap's error, not the error for missing things.
    for (args, code, part) in [
        (&["add", "an na"][..], 2, "an na: a name has 1 to"),
        (&["add", ""], 2, "a name has 1 to"),
        (&["grant", "anna", "film/1"], 2, "film/1: a pattern has 1 to"),
        (&["group", "a b", "x"], 2, "a b: a name has 1 to"),
        (&["sign", "a/b", "--for", "2h"], 2, "no title can be called that"),
        (&["sign", "zoo", "--for", "2h", "--base", "tv"], 2, "rtsp://HOST"),
        (&["grant", "ben", "x"], 1, "no such user"),
        (&["rm", "an na"], 1, "no such user"),
    ] {
        let done = run(&[&["user"], args, &at].concat());
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.code() == Some(code) && said.contains(part), "{args:?}: {done:?}");
    }
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(refused(&["ls"]).contains("chmod 600"));
}

#[test]
fn watching_users_with_invalid_rights_file_prevents_start() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    add(&film(dir.path(), "film.ts", 1), &store);
    std::fs::write(store.join("rights.sqlite"), "no database").unwrap();
    let args = ["serve", "--listen", "127.0.0.1:0", "--cache", "32MiB", "--store", store.to_str().unwrap()];
    let said = fails(&[&args[..], &["--watching", "users"]].concat());
    assert!(said.contains("rights.sqlite") && said.contains("chmod 600"), "{said}");
}

/// Returns the server's statuses for DESCRIBE, and for GET of the title as a file, for this user.
fn statuses(server: &Server, user: &str) -> (String, String) {
    let url = server.url.replace("rtsp://", &format!("rtsp://{user}:secret-word@")) + "film";
    let rtsp = match plays(&url, &["-rtsp_transport", "tcp"]) {
        Ok(()) => "200".to_owned(),
        Err(said) => said,
    };
    let login = format!("{user}:secret-word");
    (rtsp, curl(&["-u", &login, "-r", "0-1315", &format!("{}titles/film.ts", page(server))]))
}

#[test]
fn user_stream_limit_spans_both_protocols_and_reports_refusals() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    add(&film(dir.path(), "film.ts", 20), &store);
    for name in ["anna", "ben"] {
        add_user(&store, name, &["--grant", "*"]);
    }
    ok(&["user", "limit", "anna", "--streams", "1", "--store", store.to_str().unwrap()]);
    assert!(ok(&["user", "ls", "--store", store.to_str().unwrap()]).contains("at most 1 stream"));
    let stats = dir.path().join("stats.json");
    let mut server = Server::start(&store, &["--watching", "users", "--stats", stats.to_str().unwrap()]);
    let url = server.url.replace("rtsp://", "rtsp://anna:secret-word@") + "film";
    let mut watching = Command::new("timeout")
        .args([
            PLAYER_LIMIT,
            "ffmpeg",
            "-nostdin",
            "-v",
            "error",
            "-re",
            "-rtsp_transport",
            "tcp",
            "-i",
            &url,
        ])
        .args(["-f", "null", "-"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    server.wait_for("plays", Duration::from_secs(60));
    let (rtsp, http) = statuses(&server, "anna");
    assert!(rtsp.contains("453") && http == "503", "{rtsp} {http}");
    assert_eq!(statuses(&server, "ben"), ("200".to_owned(), "206".to_owned()));
    let list = format!("{}titles/film/media.m3u8", page(&server));
    assert_eq!(curl(&["-u", "anna:secret-word", &list]), "503");
    // A session is its user's alone.
    let segment = first_segment(&server, "ben");
    assert_eq!(curl(&["-u", "anna:secret-word", &segment]), "503");
    assert_eq!(curl(&["-u", "ben:secret-word", &segment]), "200");
    let shown = Command::new("curl")
        .args(["-s", "--noproxy", "*", &format!("{}api/v1/status", page(&server))])
        .output()
        .unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(
        shown.contains("all 1 streams that this user may have are in use (millrace user limit)"),
        "{shown}"
    );
    watching.kill().unwrap();
    watching.wait().unwrap();
    let counted = || {
        let text = std::fs::read_to_string(&stats).unwrap_or_default();
        let stats: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        stats["sessions"]["refused_user"].as_u64().unwrap_or(0)
    };
    until(|| counted() >= 3, "the refusals are not counted");
    until(|| statuses(&server, "anna") == ("200".to_owned(), "206".to_owned()), "it is not given back");
    assert!(server.interrupt());
}

/// Every question is answered with the test's current answer.
#[test]
fn webhook_decides_requests_of_both_protocols() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    add(&film(dir.path(), "film.ts", 4), &store);
    for name in ["anna", "ben"] {
        add_user(&store, name, &["--grant", "*"]);
    }
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let hook = format!("http://{}/may-watch", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut asked = Vec::new();
            while !asked.ends_with(b"}") {
                let mut bytes = [0; 1024];
                let count = std::io::Read::read(&mut stream, &mut bytes).unwrap();
                asked.extend_from_slice(&bytes[..count]);
            }
            let is_anna = String::from_utf8_lossy(&asked).contains("\"user\":\"anna\"");
            let status = if is_anna { "204 Yes" } else { "403 No" };
            stream.write_all(format!("HTTP/1.1 {status}\r\n\r\n").as_bytes()).unwrap();
        }
    });
    let mut server = Server::start(&store, &["--watching", "users", "--webhook", &hook]);
    assert_eq!(statuses(&server, "anna"), ("200".to_owned(), "206".to_owned()));
    let (rtsp, http) = statuses(&server, "ben");
    assert!(rtsp.contains("403") && http == "403", "{rtsp} {http}");
    assert!(server.interrupt());
    let args = ["serve", "--listen", "127.0.0.1:0", "--cache", "32MiB", "--store", store.to_str().unwrap()];
    let said = fails(&[&args[..], &["--webhook", "ftp://x/"]].concat());
    assert!(said.contains("http://HOST:PORT/PATH"), "{said}");
    let said = fails(&[&args[..], &["--webhook", "https://x/", "--webhook-ca", "/none.pem"]].concat());
    assert!(said.contains("/none.pem: No such file"), "{said}");
    // What would do nothing is refused before anything is started, wherever it stands.
    let config = dir.path().join("millrace.toml");
    std::fs::write(&config, "webhook-timeout = \"5s\"\n").unwrap();
    let config = config.to_str().unwrap();
    for (more, part) in [
        (
            &["--webhook", "http://127.0.0.1:1/", "--webhook-ca", "/none.pem"][..],
            "--webhook-ca: has no effect with a webhook at http://",
        ),
        (&["--webhook-ca", "/none.pem"], "--webhook-ca: needs a webhook"),
        (&["--webhook-failure", "allow"], "--webhook-failure: needs a webhook"),
        (&["--config", config], "millrace.toml:1: --webhook-timeout: needs a webhook"),
        (&["--tcp-interface", "lo"], "--tcp-interface: has no effect with --tcp kernel"),
    ] {
        // One that is started all the same would run on.
        let mut serve = Command::new("timeout");
        serve.args([PLAYER_LIMIT, env!("CARGO_BIN_EXE_millrace")]).args(args).args(more);
        let done = serve.stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.code() == Some(2) && said.contains(part), "{more:?}: {said}");
    }
    let said = fails(&["config", "check", config]);
    assert!(said.contains("--webhook-timeout: needs a webhook"), "{said}");
}

#[test]
fn users_of_a_volume_outlive_a_member_and_are_the_same_by_each() {
    let dir = tempfile::tempdir().unwrap();
    let members: Vec<_> = (1..=3).map(|number| dir.path().join(format!("m{number}"))).collect();
    support::volume(&members, 1);
    add(&film(dir.path(), "film.ts", 20), &members[0]);
    add_user(&members[0], "anna", &["--grant", "*"]);
    let listed = |member: &Path| ok(&["user", "ls", "--store", member.to_str().unwrap()]);
    members.iter().for_each(|member| assert!(listed(member).contains("anna")));

    // The disk of the first member is gone, but its mount point still exists.
    let gone = dir.path().join("gone");
    std::fs::rename(&members[0], &gone).unwrap();
    std::fs::create_dir(&members[0]).unwrap();
    let mut command = millrace();
    command.args(["serve", "--listen", "127.0.0.1:0", "--watching", "users", "--cache", "32MiB"]);
    for member in &members {
        command.arg("--member").arg(member);
    }
    let mut server = Server::spawn(command);
    let by_tcp: &[&str] = &["-rtsp_transport", "tcp"];
    plays(&server.title("film").replace("rtsp://", "rtsp://anna:secret-word@"), by_tcp).unwrap();
    add_user(&members[1], "ben", &["--grant", "*"]);
    server.wait_for("rights: 2 users are known", Duration::from_secs(60));
    assert_eq!(std::fs::read_dir(&members[0]).unwrap().count(), 0, "nothing is made below the mount point");

    // The disk is back with an older copy than the others: the running server brings it up to date.
    std::fs::remove_dir(&members[0]).unwrap();
    std::fs::rename(&gone, &members[0]).unwrap();
    let copies = || members.iter().map(|member| std::fs::read(member.join("rights.sqlite")).unwrap());
    let end = Instant::now() + Duration::from_secs(60);
    while copies().any(|copy| Some(copy) != copies().next()) {
        assert!(Instant::now() < end, "the member is not brought up to date");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(server.interrupt());
    members.iter().for_each(|member| assert!(listed(member).contains("ben")));

    // The users are recorded, but no copy is left: the server refuses to start.
    members.iter().for_each(|member| std::fs::remove_file(member.join("rights.sqlite")).unwrap());
    let refused = fails(&["serve", "--listen", "127.0.0.1:0", "--store", members[2].to_str().unwrap()]);
    assert!(refused.contains("rights.recorded: records that the volume has users"), "{refused}");
}
