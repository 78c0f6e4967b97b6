//! The page, the API, metrics; and every address of the table.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use millrace_web::WebLimits;

use super::client::{Client, curl};
use super::hls::films;
use super::site::{Film, MadeUp, Manner, serve};

/// An address of each route that leads to something.
pub(crate) fn examples(client: &mut Client) -> Vec<(&'static str, String)> {
    let list = client.get("/titles/film/media.m3u8");
    let segment = list.text().lines().find(|line| line.starts_with("hls/")).unwrap().to_owned();
    let [_, version, number] = segment.split('/').collect::<Vec<_>>()[..] else { panic!("{segment}") };
    let number = number.trim_end_matches(".ts");
    let list = client.get("/titles/film/cmaf/256.m3u8");
    let made = list.text().lines().find(|line| line.ends_with(".m4s")).unwrap().to_owned();
    let made = made.split('/').next().unwrap();
    let mut version_of_text = |list: &str| {
        let list = client.get(list);
        let segment = list.text().lines().find(|line| line.ends_with(".vtt")).unwrap().to_owned();
        segment.split('/').next().unwrap().to_owned()
    };
    let text = version_of_text("/titles/film/subtitles/888.m3u8");
    let made_text = version_of_text("/titles/film/cmaf/subtitles/888.m3u8");
    let fill = |path: &str| {
        let (version, track) = match (path.contains("/subtitles/"), path.contains("/cmaf/")) {
            (true, false) => (&*text, "888"),
            (true, true) => (&*made_text, "888"),
            (false, true) => (made, "256"),
            (false, false) => (version, "256"),
        };
        let name = if path.contains("{file}") { "texted" } else { "film" };
        let path = path
            .replace("/live/{name}/{version}/{number}", "/live/film/v/4")
            .replace("/qr.svg", "/qr.svg?text=film")
            .replace("{name}", name)
            .replace("{file}", "de.vtt")
            .replace("{version}", version)
            .replace("{track}", track)
            .replace("{part}", "3");
        path.replace("{number}", number)
    };
    millrace_web::routes().map(|path| (path, fill(path))).collect()
}

/// Spellings of one address (RFC 3986 section 2.3), `OPTIONS *`, and methods without any route.
#[test]
fn addresses_in_any_spelling_lead_to_the_same_title() {
    let site = MadeUp::with(vec![Film::pattern("base", 10, Manner::Sends)]);
    let (_web, address, _) = serve(&site, WebLimits::default());
    let mut client = Client::to(address);
    for path in ["/titles/base.ts", "/titles/%62ase.ts", "/titles/b%61s%65%2Ets", "/%74itles/base.ts"] {
        assert_eq!(client.get(path).body.len(), 1880, "{path}");
    }
    for path in [
        "/titles%2fbase.ts",
        "/titles/%2562ase.ts",
        "/titles/base%00.ts",
        "/titles/%2e%2e/base.ts",
        "/titles/base%2",
    ] {
        assert_eq!(client.get(path).status, 404, "{path}");
    }
    let all = client.ask("OPTIONS", "*", "");
    assert_eq!(
        (all.status, all.header("Allow")),
        (200, Some("GET, HEAD, OPTIONS, PUT, POST, PATCH, DELETE"))
    );
    for method in ["TRACE", "PATCH", "POST", "PROPFIND"] {
        for path in ["/", "/titles/base.ts", "/metrics", "/api/v1/titles"] {
            let answer = Client::to(address).ask(method, path, "X-Forwarded-For: 192.0.2.1\r\n");
            assert_eq!(answer.status, 405, "{method} {path}");
            assert!(answer.header("Allow").unwrap().starts_with("GET, HEAD, OPTIONS"), "{method} {path}");
        }
    }
}

/// The list is built once per change, compressed for clients that accept gzip, and not sent again
/// to clients that have it.
#[test]
fn list_of_titles_with_gzip_follows_every_change() {
    let names: Vec<String> = (0..100).map(|number| format!("film-{number:03}")).collect();
    let site = MadeUp::with(names.iter().map(|name| Film::pattern(name, 10, Manner::Sends)).collect());
    let (_web, address, _) = serve(&site, WebLimits::default());
    let mut client = Client::to(address);
    let plain = client.get("/api/v1/titles");
    assert!(plain.header("Content-Encoding").is_none() && plain.text().contains("film-099"));
    assert_eq!(plain.header("Vary"), Some("Accept-Encoding"));
    let url = format!("http://{address}/api/v1/titles");
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        let small = curl(&[version, "-H", "Accept-Encoding: gzip", "-D", "/dev/stderr", &url]);
        let head = String::from_utf8_lossy(&small.stderr).to_lowercase();
        assert!(
            head.contains("content-encoding: gzip") && small.stdout.len() * 5 < plain.body.len(),
            "{head}"
        );
        let whole = curl(&[version, "--compressed", &url]);
        assert!(whole.stdout == plain.body, "{version}");
    }
    let tag = plain.header("ETag").unwrap();
    let has = |client: &mut Client, tag: &str| {
        client.ask("GET", "/api/v1/titles", &format!("If-None-Match: {tag}\r\n"))
    };
    assert_eq!(has(&mut client, tag).status, 304);
    site.hide("film-099", true);
    let fewer = has(&mut client, tag);
    assert!(fewer.status == 200 && !fewer.text().contains("film-099"));
    // Pictures can change while the set of titles stays the same.
    *site.pictures.lock().unwrap() = Some(millrace_web::PicturesState::Waiting);
    let waiting = has(&mut client, fewer.header("ETag").unwrap());
    assert!(waiting.status == 200 && waiting.text().contains("\"waiting\""));
}

#[test]
fn routes_answer_each_method_as_documented() {
    let (_web, address, _) = serve(&films().site, WebLimits::default());
    let examples = examples(&mut Client::to(address));
    let document = include_str!("../../../../docs/ref/http.md");
    for (route, path) in examples {
        if route == "/hls.js" && !millrace_web::HAS_HLS_JS {
            continue;
        }
        let in_words =
            route.replace("{name}", "NAME").replace("{version}", "VERSION").replace("{track}", "TRACK");
        let in_words =
            in_words.replace("{number}", "NUMBER").replace("{file}", "FILE").replace("{part}", "PART");
        assert!(document.contains(&format!("`{in_words}`")), "{in_words} is not in docs/ref/http.md");
        if ["/titles/{name}", "/api/v1/user"].contains(&route) {
            continue; // nothing, but while something is uploaded, and for users
        }
        let mut client = Client::to(address);
        let get = client.get(&path);
        assert_eq!(get.status, 200, "{path}");
        assert_eq!(get.header("X-Content-Type-Options"), Some("nosniff"), "{path}");
        assert!(get.header("Cache-Control").is_some() && get.header("Content-Type").is_some(), "{path}");
        let is_endless = ["/api/v1/events", "/live/{name}.ts"].contains(&route);
        if is_endless {
            // Its end is that of the connection; `events.rs` reads events.
            client = Client::to(address);
        }
        let head = client.ask("HEAD", &path, "");
        let told = |response: &super::client::Response| {
            let mut headers: BTreeMap<_, _> = response
                .headers
                .iter()
                .map(|(name, value)| (name.to_ascii_lowercase(), value.clone()))
                .collect();
            for name in ["date", "transfer-encoding", "content-length", "connection"] {
                // An endless response has no known length.
                if name == "date" || is_endless {
                    headers.remove(name);
                }
            }
            headers
        };
        assert_eq!((head.status, told(&head)), (200, told(&get)), "{path}");
        assert_eq!(client.ask("OPTIONS", &path, "").status, 204, "{path}");
        for method in ["POST", "PUT", "DELETE"] {
            // A title that is there is not replaced.
            let expected = match (method, route) {
                ("DELETE", "/api/v1/titles/{name}" | "/api/v1/live/{name}") => 204,
                ("POST", "/api/v1/live" | "/api/v1/reload") => 415,
                ("PUT", "/titles/{name}.ts" | "/live/{name}/recording")
                | ("PUT" | "POST", "/live/{name}") => 409,
                ("DELETE", "/live/{name}/recording") => 200,
                // An empty body has no cue.
                ("PUT", "/titles/{name}/subtitles/{file}") => 400,
                ("DELETE", "/titles/{name}/subtitles/{file}") => 204,
                _ => 405,
            };
            assert_eq!(Client::to(address).ask(method, &path, "").status, expected, "{method} {path}");
        }
        // One letter more is another address.
        let path = path.split('?').next().unwrap_or_default();
        let other = Client::to(address).get(&format!("{path}x"));
        assert_eq!(other.status, 404, "{path}x");
        assert!(other.text().contains("\"error\""), "{}", other.text());
        for path in [format!("{path}/"), format!("/{path}")].iter().filter(|path| *path != "//") {
            assert_eq!(Client::to(address).get(path).status, 404, "{path}");
        }
    }
}

#[test]
fn live_playlist_has_the_newest_segments_and_counts_what_is_gone() {
    let (_web, address, _) = serve(&films().site, WebLimits::default());
    let mut client = Client::to(address);
    let master = client.get("/live/film/index.m3u8");
    let master = String::from_utf8(master.body).unwrap();
    let stream = "#EXT-X-STREAM-INF:BANDWIDTH=2000000,AVERAGE-BANDWIDTH=1000000\nmedia.m3u8\n";
    assert_eq!(master, format!("#EXTM3U\n{stream}"));
    let list = client.get("/live/film/media.m3u8");
    let head = "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:2\n#EXT-X-MEDIA-SEQUENCE:3\n\
                #EXT-X-DISCONTINUITY-SEQUENCE:8\n#EXTINF:2.000,\nv/3.ts\n";
    assert!(list.text().starts_with(head) && list.text().ends_with("v/8.ts\n"), "{}", list.text());
    assert!(!list.text().contains("ENDLIST"));
    assert_eq!(client.get("/live/film/v/3.ts").body.len(), 1316);
    assert_eq!(client.get("/live/film/v/0.ts").status, 200, "it is held");
    for gone in ["/live/film/v/9.ts", "/live/film/w/3.ts", "/live/none/v/3.ts", "/live/none/index.m3u8"] {
        assert_eq!(client.get(gone).status, 404, "{gone}");
    }
}

#[test]
fn live_titles_show_paths_and_causes_to_this_machine_alone() {
    let (_web, address, _) = serve(&films().site, WebLimits::default());
    let here = Client::to(address).get("/api/v1/live");
    let here = here.text();
    let details =
        ["plays /srv/a.ts", "/srv/b: gone", "udp://10.0.0.9:5000", "rtsp://10.0.0.9/: refused", "10.0.0.8"];
    assert!(details.iter().all(|detail| here.contains(detail)), "{here}");
    let elsewhere = Client::to(address).ask("GET", "/api/v1/live", "X-Forwarded-For: 192.0.2.1\r\n");
    let elsewhere = elsewhere.text();
    assert!(!elsewhere.contains("/srv/") && !elsewhere.contains("10.0.0."), "{elsewhere}");
    for shown in ["\"name\":\"film\"", "\"name\":\"camera\"", "the source cannot be reached at the moment"] {
        assert!(elsewhere.contains(shown), "{shown}: {elsewhere}");
    }
}

/// Posts a source, as a browser or a program would.
fn post_source(address: SocketAddr, kind: &str, lines: &str, body: &str) -> super::client::Response {
    let mut client = Client::to(address);
    let length = body.len();
    let head = format!("POST /api/v1/live HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n{lines}");
    client.send(format!("{head}Content-Length: {length}\r\n\r\n{body}"));
    client.response(false)
}

#[test]
fn live_source_is_added_as_json_and_its_address_is_never_quoted() {
    let site = &films().site;
    let (_web, address, _) = serve(site, WebLimits::default());
    let body = r#"{"name":"yard","url":"rtsp://boss:secret@10.0.0.9/1","backup":"udp://127.0.0.1:5000"}"#;
    let added = post_source(address, "application/json; charset=utf-8", "", body);
    assert_eq!((added.status, added.header("Location")), (201, Some("/api/v1/live/yard")));
    let source = (
        "yard".to_owned(),
        "rtsp://boss:secret@10.0.0.9/1".to_owned(),
        Some("udp://127.0.0.1:5000".to_owned()),
    );
    assert_eq!(site.sources.lock().unwrap().split_off(0), [source]);
    let taken = post_source(address, "application/json", "", r#"{"name":"film","url":"udp://127.0.0.1:1"}"#);
    assert_eq!(taken.status, 409);
    for bad in [
        "",
        "[]",
        r#"{"name":"yard"}"#,
        r#"{"name":"a","url":"rtsp://boss:secret@b","secret":"secret"}"#,
        "\"secret",
    ] {
        let refused = post_source(address, "application/json", "", bad);
        assert_eq!(refused.status, 400, "{bad}");
        assert!(!refused.text().contains("secret"), "{}", refused.text());
    }
    // What pages of other sites can send without asking first.
    for kind in ["text/plain", "multipart/form-data", "application/x-www-form-urlencoded"] {
        assert_eq!(post_source(address, kind, "", body).status, 415, "{kind}");
    }
    let long = format!(r#"{{"name":"yard","url":"{}"}}"#, "a".repeat(9 << 10));
    assert_eq!(post_source(address, "application/json", "", &long).status, 413);
    let elsewhere = post_source(address, "application/json", "X-Forwarded-For: 192.0.2.1\r\n", body);
    assert_eq!(elsewhere.status, 403, "{}", elsewhere.text());
    for (name, status) in [("film", 204), ("camera", 409), ("none", 404)] {
        let removed = Client::to(address).ask("DELETE", &format!("/api/v1/live/{name}"), "");
        assert_eq!(removed.status, status, "{name}");
    }
    assert_eq!(site.sources.lock().unwrap().len(), 0);
}

#[test]
fn page_references_exist_and_match_policy() {
    let (_web, address, _) = serve(&films().site, WebLimits::default());
    let mut client = Client::to(address);
    let page = client.get("/");
    let policy = page.header("Content-Security-Policy").unwrap();
    assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    assert_eq!(page.header("Content-Type"), Some("text/html; charset=utf-8"));
    // Its references exist, and are below it.
    for (reference, kind) in [
        ("page.css", "text/css; charset=utf-8"),
        ("page.js", "text/javascript; charset=utf-8"),
        ("icon.svg", "image/svg+xml"),
    ] {
        assert!(page.text().contains(&format!("\"{reference}\"")));
        assert_eq!(client.get(&format!("/{reference}")).header("Content-Type"), Some(kind));
    }
}

#[test]
fn qr_code_is_drawn_of_text_within_bounds() {
    let (_web, address, _) = serve(&films().site, WebLimits::default());
    let mut client = Client::to(address);
    let answer = client.get("/qr.svg?text=rtsp%3A%2F%2F192.0.2.7%3A8554%2Ffilm");
    assert_eq!((answer.status, answer.header("Content-Type")), (200, Some("image/svg+xml")));
    // The upper edge of a finder pattern, behind the light modules around the code.
    assert!(answer.text().contains("\"M4 4h7v1h-7z"), "{}", answer.text());
    // Nothing of the text itself is in the drawing.
    assert!(!answer.text().contains("film"));
    assert_eq!(client.get(&format!("/qr.svg?text={}", "a".repeat(1024))).status, 200);
    let too_long = format!("text={}", "a".repeat(1025));
    for bad in ["", "text=", "text=%ff%zz", &too_long] {
        assert_eq!(client.get(&format!("/qr.svg?{bad}")).status, 400, "{bad}");
    }
}

#[test]
fn hls_js_comes_compressed_or_with_what_to_do() {
    let (_web, address, _) = serve(&films().site, WebLimits::default());
    let mut client = Client::to(address);
    let answer = client.get("/hls.js");
    if !millrace_web::HAS_HLS_JS {
        assert_eq!(answer.status, 404);
        assert!(answer.text().contains("scripts/npm.sh page"), "{}", answer.text());
        return;
    }
    assert_eq!(answer.header("Content-Type"), Some("text/javascript; charset=utf-8"));
    assert_eq!(answer.header("Content-Encoding"), Some("gzip"));
    assert_eq!(answer.body[..3], [0x1f, 0x8b, 8], "the beginning of a gzip file");
    let tag = answer.header("ETag").unwrap();
    let again = client.ask("GET", "/hls.js", &format!("If-None-Match: {tag}\r\n"));
    assert_eq!((again.status, again.body.len(), again.header("ETag")), (304, 0, Some(tag)));
}

#[test]
fn titles_api_describes_titles() {
    let site =
        MadeUp::with(vec![Film::pattern("b", 10, Manner::Sends), Film::pattern("a", 20, Manner::Sends)]);
    let (_web, address, _) = serve(&site, WebLimits::default());
    let mut client = Client::to(address);
    let answer = client.get("/api/v1/titles");
    assert_eq!((answer.status, answer.header("Content-Type")), (200, Some("application/json")));
    assert_eq!(answer.header("Access-Control-Allow-Origin"), Some("*"));
    let list: serde_json::Value = serde_json::from_str(answer.text()).unwrap();
    let names: Vec<_> =
        list["titles"].as_array().unwrap().iter().map(|title| title["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["a", "b"]);
    let one: serde_json::Value = serde_json::from_str(client.get("/api/v1/titles/b").text()).unwrap();
    assert_eq!(one, list["titles"][1]);
    let fields: Vec<_> = one.as_object().unwrap().keys().map(String::as_str).collect();
    let document = include_str!("../../../../docs/ref/http.md");
    for field in fields {
        assert!(document.contains(&format!("`{field}`")), "{field} is not in docs/ref/http.md");
    }
    assert_eq!((&one["file"], &one["hls"]), (&"/titles/b.ts".into(), &"/titles/b/index.m3u8".into()));
    // A title without streams has nothing to separate; one with pictures and audio has.
    assert_eq!(one["cmaf"], serde_json::Value::Null);
    let (_web, address, _) = serve(&films().site, WebLimits::default());
    let film: serde_json::Value =
        serde_json::from_str(Client::to(address).get("/api/v1/titles/film").text()).unwrap();
    assert_eq!(film["cmaf"], "/titles/film/cmaf.m3u8");
    assert_eq!(
        (&one["bytes"], &one["duration_s"], &one["id"]),
        (&1880.into(), &60.0.into(), &"07".repeat(16).into())
    );
    // The location of the source is private.
    assert!(!answer.text().contains("/films/"));
    assert_eq!(
        client.get("/api/v1/titles/c").text(),
        "{\"error\":{\"message\":\"no such title\",\"status\":404}}\n"
    );
}

#[test]
fn titles_are_removed_by_who_may() {
    let site = MadeUp::with(vec![Film::pattern("a", 10, Manner::Sends)]);
    let (_web, address, _) = serve(&site, WebLimits::default());
    let ask = |path: &str, lines: &str| Client::to(address).ask("DELETE", path, lines).status;
    assert_eq!(ask("/api/v1/titles/b", ""), 404);
    // A page of another site, opened in a browser on this machine.
    assert_eq!(ask("/api/v1/titles/a", "Origin: http://example.org\r\n"), 403);
    let preflight = Client::to(address).ask("OPTIONS", "/api/v1/titles/a", "Origin: http://example.org\r\n");
    assert_eq!(preflight.header("Access-Control-Allow-Methods"), Some("GET, HEAD, OPTIONS"));
    assert_eq!(preflight.header("Allow"), Some("GET, HEAD, OPTIONS, DELETE, PATCH"));
    assert!(site.removed.lock().unwrap().is_empty());
    assert_eq!(ask("/api/v1/titles/a", ""), 204);
    assert_eq!(*site.removed.lock().unwrap(), ["a"]);
}

#[test]
fn patch_of_title_changes_its_display_name_for_who_may() {
    let site = MadeUp::with(vec![Film::pattern("a", 10, Manner::Sends)]);
    let (_web, address, _) = serve(&site, WebLimits::default());
    let ask = |path: &str, lines: &str, body: &str| {
        let mut client = Client::to(address);
        let length = body.len();
        client.send(format!(
            "PATCH {path} HTTP/1.1\r\nHost: localhost\r\n{lines}Content-Length: {length}\r\n\r\n{body}"
        ));
        client.response(false)
    };
    let body = "{\"title\": \" Война\\nи мир \"}";
    let renamed = ask("/api/v1/titles/a", "", body);
    let title: serde_json::Value = serde_json::from_str(renamed.text()).unwrap();
    assert_eq!((renamed.status, &title["name"], &title["title"]), (200, &"a".into(), &"Война и мир".into()));
    assert_eq!(ask("/api/v1/titles/b", "", body).status, 404);
    assert_eq!(ask("/titles/a.ts", "", body).status, 405);
    assert_eq!(ask("/api/v1/titles/a", "Origin: http://example.org\r\n", body).status, 403);
    for bad in ["", "{}", "{\"title\": \"\"}", "{\"title\": 1}", "\u{0}"] {
        assert_eq!(ask("/api/v1/titles/a", "", bad).status, 400, "{bad}");
    }
    let long = format!("{{\"title\": \"{}\"}}", "x".repeat(20_000));
    assert_eq!(ask("/api/v1/titles/a", "", &long).status, 413);
}

#[test]
fn status_api_lists_sessions_for_local_client() {
    let site = std::sync::Arc::new(MadeUp { sessions: 203, ..MadeUp::default() });
    let (_web, address, _) = serve(&site, WebLimits::default());
    let answer = Client::to(address).get("/api/v1/status");
    assert_eq!((answer.status, answer.header("Access-Control-Allow-Origin")), (200, None));
    let status: serde_json::Value = serde_json::from_str(answer.text()).unwrap();
    assert_eq!(status["room"][0]["used"], 3);
    assert_eq!(status["members"][0]["trouble"], "it is slow");
    assert_eq!(status["refusals"][0]["more"], 2);
    // The newest are listed, the others counted.
    let sessions = status["sessions"].as_array().unwrap();
    assert_eq!((sessions.len(), &status["sessions_left_out"]), (200, &3.into()));
    assert_eq!(sessions[0]["session"], "session-3");
    let document = include_str!("../../../../docs/ref/http.md");
    let lists = ["room", "sessions", "casts", "refusals", "members"].map(|list| &status[list][0]);
    for field in [&status].into_iter().chain(lists).flat_map(|object| object.as_object().unwrap().keys()) {
        assert!(document.contains(&format!("`{field}`")), "{field} is not in docs/ref/http.md");
    }
}

#[test]
fn metrics_are_one_family_each() {
    let site = MadeUp::with(Vec::new());
    let (_web, address, _) = serve(&site, WebLimits::default());
    let answer = Client::to(address).get("/metrics");
    assert_eq!(answer.header("Content-Type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    assert_eq!(answer.header("Access-Control-Allow-Origin"), None);
    // A request passed on by a proxy on this machine is not from this machine, whatever it claims
    // about its origin.
    for line in ["X-Forwarded-For: 127.0.0.1", "forwarded: for=127.0.0.1", "X-Real-IP: ::1", "Via: 1.1 a"] {
        let refused = Client::to(address).ask("GET", "/metrics", &format!("{line}\r\n"));
        assert_eq!(refused.status, 403, "{line}");
    }
    let (counters, process) = answer.text().split_once("# HELP millrace_build_info ").expect("the version");
    assert_eq!(
        counters,
        "# HELP millrace_engine_sent_bytes_total Bytes sent.\n\
         # TYPE millrace_engine_sent_bytes_total counter\n\
         millrace_engine_sent_bytes_total{engine=\"0\"} 1000\n\
         millrace_engine_sent_bytes_total{engine=\"1\"} 1001\n\
         # HELP millrace_engine_open Now open.\n\
         # TYPE millrace_engine_open gauge\n\
         millrace_engine_open{engine=\"0\"} 0\n\
         millrace_engine_open{engine=\"1\"} 1\n\
         # HELP millrace_engine_longest_turn_seconds Longest turn.\n\
         # TYPE millrace_engine_longest_turn_seconds gauge\n\
         millrace_engine_longest_turn_seconds{engine=\"0\"} 1.500000000\n\
         millrace_engine_longest_turn_seconds{engine=\"1\"} 1.500000001\n\
         # HELP millrace_titles_sent_bytes_total Bytes sent.\n\
         # TYPE millrace_titles_sent_bytes_total counter\n\
         millrace_titles_sent_bytes_total{title=\"a\\\"b\\\\c\\nd\"} 0\n\
         # HELP millrace_titles_open Now open.\n\
         # TYPE millrace_titles_open gauge\n\
         millrace_titles_open{title=\"a\\\"b\\\\c\\nd\"} 0\n\
         # HELP millrace_titles_longest_turn_seconds Longest turn.\n\
         # TYPE millrace_titles_longest_turn_seconds gauge\n\
         millrace_titles_longest_turn_seconds{title=\"a\\\"b\\\\c\\nd\"} 0.000000000\n"
    );
    let version = concat!("\nmillrace_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1\n");
    assert!(process.contains(version), "{process}");
    let value = |name: &str| -> f64 {
        let line = process.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name}: {process}")).parse().unwrap()
    };
    for (name, kind, least) in [
        ("process_cpu_seconds_total", "counter", 0.0),
        ("process_start_time_seconds", "gauge", 1_600_000_000.0),
        ("process_resident_memory_bytes", "gauge", 1_000_000.0),
        ("process_virtual_memory_bytes", "gauge", value("process_resident_memory_bytes")),
        ("process_threads", "gauge", 2.0),
        ("process_open_fds", "gauge", 4.0),
        ("process_max_fds", "gauge", value("process_open_fds")),
    ] {
        assert!(process.contains(&format!("# HELP {name} ")), "{name}");
        assert!(process.contains(&format!("\n# TYPE {name} {kind}\n")), "{name}");
        assert!(value(name) >= least, "{name}: {process}");
    }
}
