//! Viewers that fetch segments, of the transport stream and of fragmented MP4, at a running server:
//! they fill it as RTSP viewers do, later ones are asked to come again, and the operator sees them.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::frames;
use crate::support::{Server, add, fails, film, header, ok, read_head};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use serde_json::Value;

const TIMEOUT: Duration = Duration::from_secs(60);
/// As many as may watch.
const MOST: u8 = 3;

/// A viewer with an address of its own.
struct Viewer(TcpStream);

impl Viewer {
    fn at(last: u8, to: SocketAddr) -> Self {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&socket, &SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 2, last)), 0)).unwrap();
        connect(&socket, &to).unwrap();
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        Self(stream)
    }

    /// Begins a request without a name for the program, as televisions do.
    fn ask(&mut self, path: &str) {
        write!(self.0, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    }

    /// Head and body.
    fn get(&mut self, path: &str) -> (String, Vec<u8>) {
        write!(self.0, "GET {path} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: player\r\n\r\n").unwrap();
        self.answer()
    }

    fn answer(&mut self) -> (String, Vec<u8>) {
        let head = read_head(&mut self.0);
        let mut body = vec![0; header(&head, "Content-Length").map_or(0, |bytes| bytes.parse().unwrap())];
        self.0.read_exact(&mut body).unwrap();
        (head, body)
    }

    fn text(&mut self, path: &str) -> String {
        let (head, body) = self.get(path);
        assert!(head.starts_with("HTTP/1.1 200 "), "{path}: {head}");
        String::from_utf8(body).unwrap()
    }
}

impl Viewer {
    /// Polls the server's counters until one shows this: they are updated twice a second.
    fn waits_for(&mut self, shown: &str) {
        let end = Instant::now() + TIMEOUT;
        let line = format!("millrace_{shown}");
        while !self.text("/metrics").lines().any(|other| other == line) {
            assert!(Instant::now() < end, "never: {shown}");
            sleep(Duration::from_millis(5));
        }
    }
}

/// Lines of a playlist that are addresses.
fn addresses(playlist: &str) -> Vec<&str> {
    playlist.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect()
}

/// An address without the session that it carries.
fn bare(address: &str) -> &str {
    address.split('?').next().unwrap()
}

/// `?session=`, as an address carries it.
fn session_in(address: &str) -> &str {
    let at = address.find("?session=").unwrap_or_else(|| panic!("no session in {address}"));
    &address[at..]
}

/// The media playlist of the pictures, and addresses of segments: each viewer fetches the first two groups, and goes on with the third.
type Plan = (String, [Vec<String>; 3]);

/// In a session that exists, or (`""`) in a new one.
fn fragmented(first: &mut Viewer, session: &str) -> Plan {
    let master = first.text(&format!("/titles/film/cmaf.m3u8{session}"));
    let video = format!("/titles/film/{}", addresses(&master)[0]);
    let sound = master.lines().find(|line| line.contains("TYPE=AUDIO")).expect("sound apart");
    let sound = format!("/titles/film/{}", sound.split("URI=\"").nth(1).unwrap().split('"').next().unwrap());
    let [list, sounds] = [first.text(&video), first.text(&sound)];
    let [pictures, sounds] = [&list, &sounds].map(|list| {
        addresses(list).into_iter().map(|at| format!("/titles/film/cmaf/{at}")).collect::<Vec<_>>()
    });
    // Sounds beside pictures are no viewer of their own.
    let groups =
        [vec![pictures[0].clone(), sounds[0].clone()], vec![pictures[1].clone()], vec![pictures[2].clone()]];
    (video, groups)
}

fn transport_stream(first: &mut Viewer, session: &str) -> Plan {
    let list = format!("/titles/film/media.m3u8{session}");
    let text = first.text(&list);
    let segments = addresses(&text).into_iter().map(|at| vec![format!("/titles/film/{at}")]);
    let groups = segments.take(3).collect::<Vec<_>>().try_into().expect("three segments");
    (list, groups)
}

#[test]
fn viewers_of_segments_fill_the_server_and_the_next_is_told_when_to_come_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    add(&film(dir.path(), "film.ts", 20), &store);
    for plan in [fragmented, transport_stream] {
        fill(&store, plan);
    }
}

fn fill(store: &Path, plan: fn(&mut Viewer, &str) -> Plan) {
    let most = MOST.to_string();
    let mut server = Server::start(store, &["--max-streams", &most, "--share-per-address", "100%"]);
    let page = server.page();
    let mut viewers: Vec<_> = (1..=MOST)
        .map(|last| {
            let mut viewer = Viewer::at(last, page);
            let plan = plan(&mut viewer, "");
            (viewer, plan)
        })
        .collect();
    for (viewer, (_, groups)) in &mut viewers {
        for path in groups[..2].iter().flatten() {
            let (head, body) = viewer.get(path);
            assert!(head.starts_with("HTTP/1.1 200 ") && !body.is_empty(), "{path}: {head}");
        }
    }
    // Full, although nothing is being sent: for playlists and bare segments of both forms, for files, for RTSP.
    let mut late = Viewer::at(99, page);
    let (mut first, (list, own)) = viewers.remove(0);
    let session = session_in(&own[0][0]).to_owned();
    let others = [fragmented, transport_stream].map(|of| of(&mut first, &session).1[0][0].clone());
    let playlists = ["index.m3u8", "cmaf.m3u8", "media.m3u8"].map(|list| format!("/titles/film/{list}"));
    let refused = others.iter().map(|path| bare(path)).chain(playlists.iter().map(String::as_str));
    for path in refused.chain(["/titles/film.ts", bare(&list)]) {
        let (head, body) = late.get(path);
        assert!(head.starts_with("HTTP/1.1 503 "), "{path}: {head}");
        assert!(header(&head, "Retry-After").is_some(), "{path}: {head}");
        assert!(
            String::from_utf8_lossy(&body).contains("all 3 streams are in use (--max-streams)"),
            "{path}"
        );
    }
    let refused = fails(&["play", &server.title("film"), "-o", "null", "--duration", "1s"]);
    assert!(refused.contains("453"), "{refused}");
    // The header alone costs no place.
    write!(late.0, "HEAD {} HTTP/1.1\r\nHost: localhost\r\n\r\n", bare(&list)).unwrap();
    assert!(read_head(&mut late.0).starts_with("HTTP/1.1 200 "));
    // Current viewers go on, and may read their playlists again.
    assert!(first.text(&format!("{}{session}", bare(&list))).contains(&session));
    viewers.insert(0, (first, (list, own)));
    for (viewer, (_, groups)) in &mut viewers {
        assert!(viewer.get(&groups[2][0]).0.starts_with("HTTP/1.1 200 "));
    }
    // The operator sees who they are and why others were turned away.
    let page = format!("http://{page}/");
    let top: Value = serde_json::from_str(&ok(&["top", "--once", "--json", "--server", &page])).unwrap();
    let sessions = top["status"]["sessions"].as_array().unwrap();
    assert_eq!(sessions.len(), usize::from(MOST), "{top}");
    for session in sessions {
        assert_eq!((&session["title"], &session["transport"]), (&"film".into(), &"HLS".into()), "{session}");
        let rate = session["bits_per_s"].as_u64().unwrap();
        assert!(
            (1_900_000..2_100_000).contains(&rate) && session["position_s"].as_f64() > Some(1.0),
            "{session}"
        );
    }
    let streams =
        top["status"]["room"].as_array().unwrap().iter().find(|room| room["what"] == "streams").unwrap();
    assert_eq!((&streams["used"], &streams["of"]), (&MOST.into(), &MOST.into()));
    assert!(
        top["status"]["refusals"].to_string().contains("all 3 streams are in use (--max-streams)"),
        "{top}"
    );
    let text = ok(&["top", "--once", "--server", &page]);
    assert!(text.contains("127.0.2.1:"), "{text}");
    let metrics = String::from_utf8(viewers[0].0.get("/metrics").1).unwrap();
    for shown in ["now_segment_viewers 3", "sessions_segment_viewers_started_total 3"] {
        assert!(metrics.lines().any(|line| line == format!("millrace_{shown}")), "{shown}: {metrics}");
    }
    assert!(server.interrupt());
}

/// One that hangs up in the middle of a segment of fragmented MP4 has its place for whatever it asks for next, by any connection, as one of the transport stream has.
#[test]
fn fmp4_segment_reset_by_viewer_lets_it_continue_elsewhere() {
    // RFC 9113 section 6.5.2
    const INITIAL_WINDOW_SIZE: u16 = 4;
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    add(&film(dir.path(), "film.ts", 20), &store);
    // The addresses without a session, from a server of before: this one's only place must be free.
    let mut before = Server::start(&store, &[]);
    let groups = fragmented(&mut Viewer::at(9, before.page()), "").1;
    let [first, _, third] =
        groups.map(|group| group.iter().map(|path| bare(path).to_owned()).collect::<Vec<_>>());
    assert!(before.interrupt());
    let mut server = Server::start(&store, &["--max-streams", "1"]);
    let page = server.page();
    let mut operator = Viewer::at(9, page);
    // The same program by another connection, at another place.
    let elsewhere = || {
        let Viewer(mut stream) = Viewer::at(1, page);
        write!(stream, "GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n", third[0]).unwrap();
        let head = read_head(&mut stream);
        let length = header(&head, "Content-Length").map_or(0, |bytes| bytes.parse().unwrap());
        stream.read_exact(&mut vec![0; length]).unwrap();
        head
    };
    // With HTTP/2 the viewer decides how much it takes.
    let Viewer(mut cut) = Viewer::at(1, page);
    let asked = [frames::hello(&[(INITIAL_WINDOW_SIZE, 1000)]), frames::get(1, &first[0])].concat();
    cut.write_all(&asked).unwrap();
    cut.read_exact(&mut [0; 1000]).unwrap();
    let full = elsewhere();
    assert!(full.starts_with("HTTP/1.1 503 "), "{full}");
    cut.write_all(&frames::reset(1)).unwrap();
    operator.waits_for("sessions_deliveries_broken_total 1");
    let next = elsewhere();
    assert!(next.starts_with("HTTP/1.1 200 "), "{next}");
    operator.waits_for("sessions_deliveries_total 1");
    operator.waits_for("now_segment_viewers 1");
    operator.waits_for("sessions_segment_viewers_started_total 1");
    assert!(server.interrupt());
}

/// The limit per title is counted together with all other limits: a viewer refused for it is also
/// in the list.
#[test]
fn segments_refused_for_the_titles_limit_are_told_to_the_operator() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    add(&film(dir.path(), "film.ts", 20), &store);
    let mut server = Server::start(&store, &["--max-streams-per-title", "1"]);
    let page = server.page();
    let [mut first, mut late] = [1, 2].map(|last| Viewer::at(last, page));
    let mut session = String::new();
    for plan in [fragmented, transport_stream] {
        let (list, groups) = plan(&mut first, &session);
        let path = &groups[0][0];
        session_in(path).clone_into(&mut session);
        assert!(first.get(path).0.starts_with("HTTP/1.1 200 "), "{path}");
        for path in [bare(&list), bare(path)] {
            let (head, body) = late.get(path);
            assert!(head.starts_with("HTTP/1.1 503 "), "{path}: {head}");
            let why = "all 1 streams that this title may have are in use (--max-streams-per-title)";
            assert!(String::from_utf8_lossy(&body).contains(why), "{path}");
        }
    }
    let status: Value = serde_json::from_str(&first.text("/api/v1/status")).unwrap();
    let refusals = &status["refusals"];
    // Those of one second have one line.
    let told: u64 =
        refusals.as_array().unwrap().iter().map(|line| 1 + line["more"].as_u64().unwrap_or(0)).sum();
    assert!(told == 4 && refusals.to_string().contains("film for 127.0.2.2:"), "{status}");
    assert_eq!(status["sessions"].as_array().unwrap().len(), 1, "{status}");
    assert!(server.interrupt());
}

/// Forty televisions behind one address that give their program no name, as fast as they take it.
#[test]
fn viewers_behind_one_address_each_have_a_session_and_get_all_its_segments() {
    const VIEWERS: usize = 40;
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    add(&film(dir.path(), "film.ts", 20), &store);
    let most = VIEWERS.to_string();
    let mut server = Server::start(&store, &["--max-streams", &most, "--share-per-address", "100%"]);
    let page = server.page();
    let mut viewers: Vec<_> = (0..VIEWERS).map(|_| Viewer::at(1, page)).collect();
    let mut plans = Vec::new();
    for viewer in &mut viewers {
        viewer.ask("/titles/film/index.m3u8");
        let (head, master) = viewer.answer();
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        assert_eq!(header(&head, "Cache-Control"), Some("private, no-cache"), "{head}");
        let variant = format!("/titles/film/{}", addresses(&String::from_utf8(master).unwrap())[0]);
        viewer.ask(&variant);
        let list = String::from_utf8(viewer.answer().1).unwrap();
        assert!(addresses(&list).iter().all(|at| session_in(at) == session_in(&variant)), "{list}");
        plans.push(addresses(&list).into_iter().map(str::to_owned).collect::<Vec<_>>());
    }
    let sessions: std::collections::HashSet<_> = plans.iter().map(|plan| session_in(&plan[0])).collect();
    assert_eq!(sessions.len(), VIEWERS);
    // All fetch the same segment at the same time.
    for number in 0..3 {
        for (viewer, plan) in viewers.iter_mut().zip(&plans) {
            viewer.ask(&format!("/titles/film/{}", plan[number]));
        }
        for viewer in &mut viewers {
            let (head, body) = viewer.answer();
            assert!(head.starts_with("HTTP/1.1 200 ") && !body.is_empty(), "segment {number}: {head}");
        }
        // One more is refused before it begins.
        let mut late = Viewer::at(1, page);
        late.ask("/titles/film/index.m3u8");
        let (head, body) = late.answer();
        assert!(head.starts_with("HTTP/1.1 503 ") && header(&head, "Retry-After").is_some(), "{head}");
        assert!(String::from_utf8_lossy(&body).contains("all 40 streams are in use (--max-streams)"));
    }
    let status: Value = serde_json::from_str(&Viewer::at(9, page).text("/api/v1/status")).unwrap();
    assert_eq!(status["sessions"].as_array().unwrap().len(), VIEWERS, "{status}");
    assert!(server.interrupt());
}
