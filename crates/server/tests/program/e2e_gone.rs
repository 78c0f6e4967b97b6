//! Titles that miss more members than their parity makes up for: listed, refused with the reason,
//! and available again when the members are. The requests come from a viewer on a real connection.

use std::io::Write;
use std::net::{TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::support::{Server, film, header, ok, play, read_message};

/// For things that must happen on their own within seconds, on a machine that has other things to
/// do.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A volume of three disks that tolerates the loss of one, with a film on it.
struct Disks {
    dir: tempfile::TempDir,
}

impl Disks {
    fn new() -> Self {
        let disks = Self { dir: tempfile::tempdir().unwrap() };
        let members: Vec<_> = (0..3).map(|number| disks.at(number)).collect();
        let mut args = vec!["volume", "create"];
        args.extend(members.iter().map(|member| member.to_str().unwrap()));
        ok(&args);
        disks.add("film", 20);
        disks
    }

    fn add(&self, name: &str, secs: u64) {
        let source = film(self.dir.path(), &format!("{name}.ts"), secs);
        ok(&["add", "--quiet", source.to_str().unwrap(), "--store", self.at(0).to_str().unwrap()]);
    }

    fn at(&self, number: usize) -> PathBuf {
        self.dir.path().join(format!("disk{number}"))
    }

    fn pull(&self, number: usize) {
        std::fs::rename(self.at(number), self.dir.path().join(format!("pulled{number}"))).unwrap();
    }

    fn push(&self, number: usize) {
        std::fs::rename(self.dir.path().join(format!("pulled{number}")), self.at(number)).unwrap();
    }
}

/// A connection for requests made by hand, and ports for the resulting packets.
struct Viewer {
    stream: TcpStream,
    url: String,
    ports: [UdpSocket; 2],
}

/// Status line and headers.
#[derive(Debug)]
struct Answer(String);

impl Answer {
    fn status(&self) -> u16 {
        self.0.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
    }

    fn get(&self, name: &str) -> Option<&str> {
        header(&self.0, name)
    }

    fn assert_refused(&self, reason: &str) {
        let first = self.0.lines().next().unwrap_or_default();
        assert_eq!(first, format!("RTSP/1.0 503 Service Unavailable: {reason}"), "{self:?}");
        assert_eq!(self.get("retry-after"), Some("10"), "{self:?}");
    }
}

impl Viewer {
    fn of(server: &Server, title: &str) -> Self {
        let stream = TcpStream::connect(server.addr).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let ports = [0, 1].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
        Self { stream, url: server.title(title), ports }
    }

    fn ask(&mut self, method: &str, more: &str) -> Answer {
        let Self { stream, url, .. } = self;
        write!(stream, "{method} {url} RTSP/1.0\r\nCSeq: 1\r\n{more}\r\n").unwrap();
        Answer(read_message(stream).0)
    }

    fn setup(&mut self) -> Answer {
        let [rtp, rtcp] = self.ports.each_ref().map(|socket| socket.local_addr().unwrap().port());
        self.ask("SETUP", &format!("Transport: RTP/AVP;unicast;client_port={rtp}-{rtcp}\r\n"))
    }

    /// Asks until the answer has this status.
    fn ask_until(&mut self, status: u16, method: &str, more: &str) -> Answer {
        let end = Instant::now() + TIMEOUT;
        loop {
            let answer = self.ask(method, more);
            if answer.status() == status {
                return answer;
            }
            assert!(Instant::now() < end, "{method} is not answered with {status}: {answer:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn listed(store: &Path) -> serde_json::Value {
    serde_json::from_str(&ok(&["ls", "--json", "--store", store.to_str().unwrap()])).unwrap()
}

#[test]
fn missing_when_the_server_starts() {
    let disks = Disks::new();
    disks.pull(0);
    disks.pull(2);
    let reason = "2 of the title's 3 members are lost (0, 2); it tolerates the loss of 1";
    let list = listed(&disks.at(1));
    assert_eq!((&list[0]["name"], &list[0]["playable"]), (&"film".into(), &false.into()), "{list}");
    assert_eq!(list[0]["reason"], reason);
    assert_eq!(list[0]["missing"][1]["member"], 2, "{list}");
    assert_eq!(list[0]["missing"][1]["dir"], disks.at(2).to_str().unwrap(), "{list}");
    let table = ok(&["ls", "--store", disks.at(1).to_str().unwrap()]);
    assert!(table.contains(&format!("film cannot be played: {reason}")), "{table}");

    let mut server = Server::start(&disks.at(1), &[]);
    let mut viewer = Viewer::of(&server, "film");
    viewer.ask("DESCRIBE", "").assert_refused(reason);
    viewer.setup().assert_refused(reason);
    assert!(!server.said("cannot be played because too many of their members are missing: 1").is_empty());
    // One of them is enough.
    disks.push(0);
    viewer.ask_until(200, "DESCRIBE", "");
    let report = play(&[&server.title("film"), "-o", "null", "--duration", "3s"]);
    assert_eq!(report["sequence"]["lost"], 0, "{report}");
    server.wait_for("all titles can be played again", TIMEOUT);
    assert!(server.interrupt());
    disks.push(2);
    let list = listed(&disks.at(1));
    assert_eq!(list[0]["playable"], true, "{list}");
    assert!(list[0].get("missing").is_none() && list[0].get("reason").is_none(), "{list}");
}

#[test]
fn gone_while_the_server_runs() {
    let disks = Disks::new();
    // This one lies on a disk more, and needs it as little as any other.
    let fourth = disks.at(3);
    ok(&["volume", "add", disks.at(0).to_str().unwrap(), fourth.to_str().unwrap()]);
    disks.add("new", 20);
    let mut server = Server::start(&disks.at(1), &[]);
    let mut viewer = Viewer::of(&server, "new");
    let set_up = viewer.setup();
    assert_eq!(set_up.status(), 200, "{set_up:?}");
    let session = set_up.get("session").unwrap().split(';').next().unwrap().to_owned();
    let session = format!("Session: {session}\r\n");
    let mut other = Viewer::of(&server, "film");
    disks.pull(2);
    disks.pull(3);
    let reason = "2 of the title's 4 members are lost (2, 3); it tolerates the loss of 1";
    Viewer::of(&server, "new").ask_until(503, "DESCRIBE", "").assert_refused(reason);
    Viewer::of(&server, "new").setup().assert_refused(reason);
    let refused = viewer.ask("PLAY", &session);
    refused.assert_refused(reason);
    assert!(session.contains(refused.get("session").unwrap()), "the session is still there: {refused:?}");
    assert_eq!(other.ask("DESCRIBE", "").status(), 200, "the film misses one of its members, which it may");
    disks.push(3);
    viewer.ask_until(200, "PLAY", &session);
    assert_eq!(viewer.ask("TEARDOWN", &session).status(), 200);
    assert!(server.interrupt());
}

#[test]
fn title_with_all_members_lost_is_refused_until_they_return() {
    let dir = tempfile::tempdir().unwrap();
    let [first, second, away] = ["first", "second", "away"].map(|name| dir.path().join(name));
    let store = first.to_str().unwrap();
    let add = |name: &str| {
        let source = film(dir.path(), &format!("{name}.ts"), 4);
        ok(&["add", "--quiet", source.to_str().unwrap(), "--store", store]);
    };
    add("old");
    ok(&["volume", "add", store, second.to_str().unwrap()]);
    add("new");
    std::fs::rename(&first, &away).unwrap();
    let reason = "the only member that holds the title is lost (0)";
    let server = Server::start(&second, &[]);
    Viewer::of(&server, "old").ask("DESCRIBE", "").assert_refused(reason);
    assert_eq!(Viewer::of(&server, "new").ask("DESCRIBE", "").status(), 200);
    assert_eq!(Viewer::of(&server, "none").ask("DESCRIBE", "").status(), 404);
    std::fs::rename(&away, &first).unwrap();
    Viewer::of(&server, "old").ask_until(200, "DESCRIBE", "");
}
