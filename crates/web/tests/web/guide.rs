//! Lists for TV players: the playlist and the guide.

use std::collections::HashMap;

use millrace_web::WebLimits;
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};
use serde_json::{Value, json};

use super::client::{Client, Response, curl};
use super::rights::rights_of;
use super::site::{Film, MadeUp, Manner, serve, serve_by_tls, serve_to};

/// An element with its attributes and the text in it, up to the next element.
#[derive(Debug, Default, PartialEq, Eq)]
struct Element {
    name: String,
    attributes: HashMap<String, String>,
    text: String,
}

impl Element {
    fn of(start: &BytesStart<'_>) -> Self {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let attributes = start.attributes().map(|attribute| {
            let attribute = attribute.unwrap();
            let value = quick_xml::escape::unescape(std::str::from_utf8(&attribute.value).unwrap()).unwrap();
            (text(attribute.key.as_ref()), value.into_owned())
        });
        Self { name: text(start.name().as_ref()), attributes: attributes.collect(), text: String::new() }
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.attributes.get(name).map(String::as_str)
    }
}

/// The elements of a document in their order.
fn elements(xml: &str) -> Vec<Element> {
    let mut reader = Reader::from_str(xml);
    let mut elements: Vec<Element> = Vec::new();
    loop {
        match reader.read_event().unwrap_or_else(|error| panic!("{error}: {xml}")) {
            Event::Start(start) | Event::Empty(start) => elements.push(Element::of(&start)),
            Event::Text(text) => {
                let text = text.decode().unwrap();
                // Between elements there are line ends.
                if let Some(last) = elements.last_mut().filter(|_| !text.contains('\n')) {
                    last.text += &text;
                }
            }
            Event::GeneralRef(reference) => {
                let character = match &*reference.decode().unwrap() {
                    "amp" => '&',
                    "lt" => '<',
                    "gt" => '>',
                    other => panic!("&{other};"),
                };
                elements.last_mut().unwrap().text.push(character);
            }
            Event::Eof => return elements,
            _ => {}
        }
    }
}

fn named<'a>(elements: &'a [Element], name: &str) -> Vec<&'a Element> {
    elements.iter().filter(|element| element.name == name).collect()
}

fn ask(client: &mut Client, path: &str, lines: &str) -> Response {
    let response = client.ask("GET", path, lines);
    assert_eq!(response.status, 200, "{path}: {}", response.text());
    response
}

/// The site with one title, `film`, which is a channel too.
fn site() -> std::sync::Arc<MadeUp> {
    MadeUp::with(vec![Film::pattern("film", 10, Manner::Sends)])
}

#[test]
fn guide_has_the_channels_of_the_playlist_and_what_they_play() {
    let (_web, address, _) = serve(&site(), WebLimits::default());
    let mut client = Client::to(address);
    let list = ask(&mut client, "/playlist.m3u", "").text().to_owned();
    assert_eq!(
        list.lines().take(3).collect::<Vec<_>>(),
        [
            "#EXTM3U x-tvg-url=\"http://localhost/guide.xml\" url-tvg=\"http://localhost/guide.xml\"",
            "#EXTINF:-1 tvg-id=\"film.live\" group-title=\"Channels\",film",
            "live/film.ts",
        ]
    );
    assert!(!list.contains("catchup"), "nothing can be caught up: {list}");
    let guide = ask(&mut client, "/guide.xml", "");
    assert_eq!(guide.header("Content-Type"), Some("application/xml; charset=utf-8"));
    assert_eq!(guide.header("Access-Control-Allow-Origin"), Some("*"));
    let elements = elements(guide.text());
    let ids: Vec<_> = named(&elements, "channel").iter().map(|it| it.get("id").unwrap().to_owned()).collect();
    assert_eq!(ids, ["film.live", "camera.live", "spare.live"]);
    for id in &ids {
        assert!(list.contains(&format!("tvg-id=\"{id}\"")), "{id}: {list}");
    }
    let names: Vec<_> = named(&elements, "display-name").iter().map(|it| &*it.text).collect();
    let lineup: Vec<Value> = serde_json::from_str(ask(&mut client, "/lineup.json", "").text()).unwrap();
    let of_lineup = |entry: &Value| {
        [&entry["GuideName"], &entry["GuideNumber"]].map(|it| it.as_str().unwrap().to_owned())
    };
    assert_eq!(names, lineup.iter().flat_map(of_lineup).collect::<Vec<_>>());
    let titles: Vec<_> = named(&elements, "title").iter().map(|it| &*it.text).collect();
    assert_eq!(titles, ["film & <more>", "secret & <more>", "film & <more>"]);
    let programmes = named(&elements, "programme");
    assert!(programmes.iter().all(|it| it.get("channel") == Some("film.live")), "{programmes:?}");
    assert_eq!(programmes[0].get("stop"), programmes[1].get("start"));
    assert_eq!(programmes[2].get("stop"), None, "its length is not known");
    let (time, zone) = programmes[0].get("start").unwrap().split_once(' ').unwrap();
    assert!(time.len() == 14 && zone.len() == 5 && zone.starts_with(['+', '-']), "{time} {zone}");
    let icons: Vec<_> = named(&elements, "icon").iter().map(|it| it.get("src").unwrap()).collect();
    assert_eq!(icons, ["http://localhost/titles/film/poster.jpg"; 2]);
}

#[test]
fn guide_names_only_titles_that_the_viewer_may_watch() {
    let rights = rights_of(&[
        ("anna", &["film"], false),
        ("bert", &["live/film"], false),
        ("carl", &["live/film", "film"], false),
    ]);
    let (_web, address, _) = serve_to(&site(), WebLimits::default(), &rights.gate);
    let mut client = Client::to(address);
    // printf 'bert:secret-word' | base64
    for (credentials, channels, titles) in [
        ("YW5uYTpzZWNyZXQtd29yZA==", 0, &[][..]),
        ("YmVydDpzZWNyZXQtd29yZA==", 1, &["film"; 3]),
        ("Y2FybDpzZWNyZXQtd29yZA==", 1, &["film & <more>", "film", "film & <more>"]),
    ] {
        let lines = format!("Authorization: Basic {credentials}\r\n");
        let guide = ask(&mut client, "/guide.xml", &lines);
        let elements = elements(guide.text());
        assert_eq!(named(&elements, "channel").len(), channels, "{credentials}");
        let shown: Vec<_> = named(&elements, "title").iter().map(|it| &*it.text).collect();
        assert_eq!(shown, titles, "{credentials}");
        assert_eq!(guide.text().contains("poster.jpg"), titles.contains(&"film & <more>"), "{credentials}");
        assert!(!guide.text().contains("secret"), "{}", guide.text());
    }
}

/// The fields are those that Jellyfin, Plex and Emby read.
#[test]
fn tuner_has_the_live_titles_as_channels() {
    let (_web, address, _) = serve(&site(), WebLimits::default());
    let mut client = Client::to(address);
    let mut get = |path: &str| serde_json::from_str::<Value>(ask(&mut client, path, "").text()).unwrap();
    let device = get("/discover.json");
    let text = |name: &str| device[name].as_str().unwrap();
    assert_eq!((text("FriendlyName"), text("BaseURL")), ("Millrace", "http://localhost"));
    assert!(text("ModelNumber").starts_with("HDHR") && !text("FirmwareName").is_empty(), "{device}");
    assert!(!text("FirmwareVersion").is_empty() && device["DeviceAuth"].is_string(), "{device}");
    let id = text("DeviceID");
    assert!(id.len() == 8 && u32::from_str_radix(id, 16).unwrap() >> 24 == 0x1f, "{id}");
    assert!(device["TunerCount"].as_u64().unwrap() > 0);
    let lineup = text("LineupURL").strip_prefix("http://localhost").unwrap().to_owned();
    let lineup = get(&lineup);
    let names: Vec<_> =
        lineup.as_array().unwrap().iter().map(|it| it["GuideName"].as_str().unwrap()).collect();
    assert_eq!(names, ["film", "camera", "spare"]);
    assert_eq!(lineup[0]["URL"], "http://localhost/live/film.ts");
    let status = get("/lineup_status.json");
    assert_eq!(
        status,
        json!({ "ScanInProgress": 0, "ScanPossible": 0, "Source": "Cable", "SourceList": ["Cable"] })
    );
    assert_eq!(client.get("/live/film.ts").status, 200);
}

#[test]
fn tuner_without_host_or_rights_has_no_channels() {
    let rights = rights_of(&[("anna", &["film"], false), ("bert", &["live/film"], false)]);
    let (_web, address, _) = serve_to(&site(), WebLimits::default(), &rights.gate);
    let mut client = Client::to(address);
    assert_eq!(client.get("/lineup.json").status, 401);
    let lineup = |client: &mut Client, credentials: &str| {
        let lines = format!("Authorization: Basic {credentials}\r\n");
        let lineup = ask(client, "/lineup.json", &lines).text().to_owned();
        serde_json::from_str::<Vec<Value>>(&lineup).unwrap()
    };
    assert_eq!(lineup(&mut client, "YW5uYTpzZWNyZXQtd29yZA=="), [] as [Value; 0]);
    let of_bert = lineup(&mut client, "YmVydDpzZWNyZXQtd29yZA==");
    assert!(of_bert.len() == 1 && of_bert[0]["GuideName"] == "film", "{of_bert:?}");
    let (_web, address, _) = serve(&site(), WebLimits::default());
    for path in ["/discover.json", "/lineup.json"] {
        let mut client = Client::to(address);
        client.send(format!("GET {path} HTTP/1.1\r\nHost: \"/<x>\r\n\r\n"));
        let answer = client.response(false);
        assert!(answer.status == 400 && answer.text().contains("no host"), "{}", answer.text());
    }
}

#[test]
fn addresses_of_lists_have_the_host_and_scheme_of_the_client() {
    let (_web, address, _) = serve(&site(), WebLimits::default());
    let mut client = Client::to(address);
    let mut header = |host: &str, lines: &str| {
        client.send(format!("GET /playlist.m3u HTTP/1.1\r\nHost: {host}\r\n{lines}\r\n"));
        client.response(false).text().lines().next().unwrap().to_owned()
    };
    let of =
        |origin: &str| format!("#EXTM3U x-tvg-url=\"{origin}/guide.xml\" url-tvg=\"{origin}/guide.xml\"");
    assert_eq!(header("tv.example:8080", ""), of("http://tv.example:8080"));
    assert_eq!(header("tv.example", "X-Forwarded-Proto: https\r\n"), of("https://tv.example"));
    assert_eq!(header("\"><x", ""), "#EXTM3U");
    // By HTTP/2 and by TLS.
    let url = format!("http://{address}/playlist.m3u");
    let list = curl(&["--http2-prior-knowledge", &url]);
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    assert!(list.starts_with(&of(&format!("http://{address}"))), "{list}");
    let dir = tempfile::tempdir().unwrap();
    let (_web, address, _) = serve_by_tls(&site(), WebLimits::default(), dir.path());
    for version in ["--http1.1", "--http2"] {
        let url = format!("https://localhost:{}/playlist.m3u", address.port());
        let list = curl(&[version, "--insecure", &url]);
        let list = String::from_utf8_lossy(&list.stdout).into_owned();
        assert!(list.starts_with(&of(&format!("https://localhost:{}", address.port()))), "{version}: {list}");
    }
}
