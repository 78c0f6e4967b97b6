//! `serve --tcp engine`: RTSP with media in the connection, carried by the offload engine beside the kernel's TCP (`support/offload.rs`). Viewers are
//! on another host and have this kernel's TCP, or are players of others. Needs root and a TUN device, and for some tests AF_XDP.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};

use crate::support;
use crate::support::http;
use crate::support::offload::{
    AT_TUN, HTTP_UP, KERNEL, LOST, TIMEOUT, UP, add_tun, at_tun, hosts, ip, on, stats, up, wait_until,
};
use crate::support::two_hosts::{Scene, Site};
use crate::support::{Server, header, millrace, ok, read_head, read_message, signal};
use serde_json::Value;

/// Engine at the TUN device.
const ENGINE: &str = "10.78.0.1:8554";
/// Engine at the Ethernet interface.
const ENGINE_XDP: &str = "10.77.0.100:8554";

/// `millrace play` on the client host.
fn play(scene: &Scene, server: &str, args: &[&str]) -> (Value, Output) {
    let url = format!("rtsp://{server}/film");
    let all = [&["play", &url, "--transport", "tcp", "--stats", "json", "--quiet"], args].concat();
    let output = scene.hosts.on_client(|| millrace().args(&all).output().unwrap()).unwrap();
    let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    (report, output)
}

/// Plays to the end and compares every byte.
fn play_whole(scene: &Scene, server: &str, copy: &str) {
    let copy = scene.dir.path().join(copy);
    let (report, output) = play(scene, server, &["-o", copy.to_str().unwrap()]);
    assert!(output.status.success(), "{report} {}", String::from_utf8_lossy(&output.stderr));
    assert!(fs::read(&copy).unwrap() == fs::read(&scene.data).unwrap(), "{server}: {report}");
    assert_eq!((&report["packets"], &report["sequence"]["lost"]), (&scene.packets().into(), &0.into()));
}

/// Waits until a copy that is being written has this many bytes.
fn wait_until_arrived(copy: &Path, bytes: u64) {
    wait_until("the film arrives", || fs::metadata(copy).map_or(0, |found| found.len()) >= bytes);
}

/// A viewer that writes its requests by hand.
struct Viewer {
    stream: TcpStream,
    url: String,
    session: String,
}

impl Viewer {
    fn connect(scene: &Scene, server: &str) -> Self {
        let address: SocketAddr = server.parse().unwrap();
        let connect = || TcpStream::connect_timeout(&address, TIMEOUT).unwrap();
        let stream = scene.hosts.on_client(connect).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        Self { stream, url: format!("rtsp://{server}/film"), session: String::new() }
    }

    fn ask(&mut self, method: &str, more: &str) -> (u16, String, String) {
        let Self { stream, url, session } = self;
        let session = if session.is_empty() { String::new() } else { format!("Session: {session}\r\n") };
        write!(stream, "{method} {url} RTSP/1.0\r\nCSeq: 1\r\n{session}{more}\r\n").unwrap();
        let (head, body) = read_message(stream);
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        (status, head, body)
    }

    fn setup(&mut self, transport: &str) -> (u16, String) {
        let (status, head, _) = self.ask("SETUP", &format!("Transport: {transport}\r\n"));
        if let Some(session) = header(&head, "Session") {
            self.session = session.split(';').next().unwrap().to_owned();
        }
        (status, head)
    }

    /// Sets up and plays; from now on frames come.
    fn play(&mut self) {
        assert_eq!(self.setup("RTP/AVP/TCP;unicast;interleaved=0-1").0, 200);
        let Self { stream, url, session } = self;
        write!(stream, "PLAY {url} RTSP/1.0\r\nCSeq: 2\r\nSession: {session}\r\n\r\n").unwrap();
        assert!(read_head(stream).starts_with("RTSP/1.0 200"));
    }

    /// Reads until nothing more comes; `true`: the end of the stream, `false`: a reset.
    fn drain(&mut self) -> bool {
        let mut bytes = [0; 65_536];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => {
                    let is_over = matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe);
                    assert!(is_over, "{error}");
                    return false;
                }
            }
        }
    }
}

#[test]
fn films_arrive_byte_for_byte_by_the_engine_and_by_the_kernel_beside_it() {
    let dir = tempfile::tempdir().unwrap();
    let (path, socket) = (dir.path().join("stats.json"), dir.path().join("engine.sock"));
    let args = ["--stats", path.to_str().unwrap(), "--tcp-socket", socket.to_str().unwrap()];
    let Some(mut site) = at_tun(4, &args) else { return };
    let scene = &site.scene;
    std::thread::scope(|scope| {
        for (server, copy) in [(ENGINE, "one.ts"), (ENGINE, "two.ts"), (KERNEL, "three.ts")] {
            scope.spawn(move || play_whole(scene, server, copy));
        }
    });
    let (packets, bytes) = (site.scene.packets(), fs::metadata(&site.scene.data).unwrap().len());
    let urls = site.server.said("rtsp://10.78.0.1:8554/");
    assert!(!urls.is_empty(), "URLs name the engine: {:?}", site.server.log);
    let status: Value =
        serde_json::from_str(&ok(&["engine", "status", "--json", "--socket", args[3]])).unwrap();
    let listening = |local: &str| {
        let all = status["connections"].as_array().expect("a list").iter();
        all.filter(|of| of["state"] == "LISTEN" && of["local"] == local).count()
    };
    assert_eq!(listening(ENGINE), 1, "{status}");
    assert_eq!((&status["offload_tcp"]["accepted"], &status["pairs"]), (&2.into(), &0.into()), "{status}");
    assert!(site.server.interrupt());
    let stats = stats(&path);
    let sessions = &stats["sessions"];
    assert_eq!(
        (&sessions["sessions_started"], &sessions["titles_finished"]),
        (&3.into(), &3.into()),
        "{stats}"
    );
    assert_eq!(sessions["offload_lost"], 0, "{stats}");
    let all = |part: &str, counter: &str| {
        let engines = stats[part].as_array().expect("a list").iter();
        engines.map(|engine| engine[counter].as_u64().expect("a count")).sum::<u64>()
    };
    assert_eq!(all("engine", "packets"), 3 * packets, "admission and counters see every viewer: {stats}");
    // Two of them went by the engine.
    let offload = &stats["offload"];
    assert!(offload["packets_out"].as_u64() > Some(2 * bytes / 1500), "{stats}");
    assert!(offload["packets_in"].as_u64() > Some(100), "{stats}");
    assert_eq!(stats["offload_tcp"]["accepted"], 2, "{stats}");
    assert!(stats["offload_ip"]["segments_in"].as_u64() > Some(100), "{stats}");
}

#[test]
fn pause_seek_and_another_speed() {
    let Some(hosts) = hosts() else { return };
    add_tun(&hosts);
    let mut site = Site::new(hosts, 20, KERNEL, &AT_TUN);
    up(&mut site.server, UP);
    let store = site.scene.dir.path().join("store");
    ok(&["trick", "film", "--speeds=4", "--store", store.to_str().unwrap()]);
    let data = site.scene.data.to_str().unwrap();
    let script = ["-o", "null", "--do", "pause@1,play@1.5,seek@2.5=10", "--duration", "5s", "--verify", data];
    let (report, _) = play(&site.scene, ENGINE, &script);
    assert_eq!(
        (&report["sequence"]["lost"], &report["rtp_info_exact"]),
        (&0.into(), &true.into()),
        "{report}"
    );
    assert!(report["byte_check"]["first_difference"].is_null(), "{report}");
    assert!(report["packets"].as_u64() > Some(400), "{report}");
    let (report, output) = play(&site.scene, ENGINE, &["-o", "null", "--scale", "4"]);
    assert!(output.status.success(), "{report}");
    assert!(report["media_seconds"].is_null() || report["packets"].as_u64() > Some(100), "{report}");
    assert!(site.server.interrupt());
}

#[test]
fn offload_engine_with_killed_and_stalled_viewers_serves_others() {
    let Some(mut site) = at_tun(12, &[]) else { return };
    let scene = &site.scene;
    std::thread::scope(|scope| {
        let steady = scope.spawn(move || play_whole(scene, ENGINE, "steady.ts"));
        let mut deaf = Viewer::connect(scene, ENGINE);
        deaf.play();
        let mut killed = Viewer::connect(scene, ENGINE);
        killed.play();
        let mut frame = [0; 4000];
        killed.stream.read_exact(&mut frame).unwrap();
        drop(killed);
        site.server.wait_for("disconnected", TIMEOUT);
        steady.join().unwrap();
        drop(deaf);
    });
    assert!(site.server.interrupt());
}

#[test]
fn requests_are_answered_as_by_the_kernel_and_udp_is_refused() {
    let Some(mut site) = at_tun(4, &["--max-streams", "1"]) else { return };
    let mut viewer = Viewer::connect(&site.scene, ENGINE);
    let mut other = Viewer::connect(&site.scene, KERNEL);
    let unlike = |text: &str| text.replace("10.78.0.1", "HERE").replace("10.77.0.1", "HERE");
    for (method, more) in
        [("OPTIONS", ""), ("DESCRIBE", "Accept: application/sdp\r\n"), ("PLAY", ""), ("NONSENSE", "")]
    {
        let (here, there) = (viewer.ask(method, more), other.ask(method, more));
        assert_eq!((here.0, unlike(&here.2)), (there.0, unlike(&there.2)), "{method}");
    }
    let (status, head) = viewer.setup("RTP/AVP;unicast;client_port=6000-6001");
    assert_eq!(status, 461, "{head}");
    assert!(head.contains("no UDP comes from the address of this connection"), "{head}");
    // There is room for one, wherever it has called.
    other.play();
    let refused = viewer.setup("RTP/AVP/TCP;unicast;interleaved=0-1");
    assert_eq!(refused.0, 453, "{}", refused.1);
    drop(other);
    wait_until("the other one has gone", || viewer.setup("RTP/AVP/TCP;unicast;interleaved=0-1").0 == 200);
    drop(viewer);
    // A client that does not speak RTSP gets an error reply, then the end of the connection.
    let mut wrong = Viewer::connect(&site.scene, ENGINE);
    wrong.stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let told = read_head(&mut wrong.stream);
    assert!(told.starts_with("RTSP/1.0 4") || told.starts_with("RTSP/1.0 5"), "{told}");
    assert!(wrong.drain(), "an end, not a reset");
    assert!(site.server.interrupt());
}

#[test]
fn offload_device_loss_falls_back_to_kernel_until_it_returns() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("stats.json");
    let Some(mut site) = at_tun(20, &["--stats", path.to_str().unwrap()]) else { return };
    let copies: [PathBuf; 2] = ["engine.ts", "kernel.ts"].map(|name| site.scene.dir.path().join(name));
    let scene = &site.scene;
    std::thread::scope(|scope| {
        let by_kernel = scope.spawn(move || play_whole(scene, KERNEL, "kernel.ts"));
        let at = copies[0].to_str().unwrap();
        let by_engine = scope.spawn(move || play(scene, ENGINE, &["-o", at]));
        copies.iter().for_each(|copy| wait_until_arrived(copy, 200_000));
        let mut idle = Viewer::connect(scene, ENGINE);
        assert_eq!(idle.ask("OPTIONS", "").0, 200);
        ip(&scene.hosts.server, "link del mill0");
        let said = site.server.wait_for(LOST, TIMEOUT);
        assert!(said.contains("2 connections ended with it") && said.contains("WARN"), "{said}");
        // New viewers come by the kernel, also while the engine is away; its own viewers hear
        // nothing more.
        play_at_once(scene, KERNEL);
        site.server.wait_for("cannot be started now: mill0: no such interface", TIMEOUT);
        add_tun(&scene.hosts);
        site.server.wait_for(UP, TIMEOUT);
        play_at_once(scene, ENGINE);
        by_kernel.join().unwrap();
        // That its server is gone it finds out by itself: the new engine knows nothing of its connection.
        let (report, output) = by_engine.join().unwrap();
        assert!(!output.status.success(), "{report}");
        let (got, all) = (fs::read(&copies[0]).unwrap(), fs::read(&scene.data).unwrap());
        assert!(all.starts_with(&got) && !got.is_empty(), "what it got is right: {} bytes", got.len());
        idle.stream.write_all(b"OPTIONS * RTSP/1.0\r\nCSeq: 9\r\n\r\n").unwrap();
        assert!(!idle.drain(), "a reset");
    });
    assert!(site.server.interrupt());
    let sessions = &stats(&path)["sessions"];
    assert_eq!((&sessions["offload_lost"], &sessions["offload_connections_lost"]), (&1.into(), &2.into()));
}

/// Plays for a moment.
fn play_at_once(scene: &Scene, server: &str) {
    let (report, output) = play(scene, server, &["-o", "null", "--duration", "1s"]);
    assert!(output.status.success() && report["packets"].as_u64() > Some(50), "{server}: {report}");
}

#[test]
fn offload_engine_on_interrupt_sends_bye_and_closes_connections() {
    let Some(mut site) = at_tun(20, &[]) else { return };
    let (copy, scene) = (site.scene.dir.path().join("copy.ts"), &site.scene);
    let mut idle = Viewer::connect(scene, ENGINE);
    assert_eq!(idle.ask("OPTIONS", "").0, 200);
    std::thread::scope(|scope| {
        let at = copy.to_str().unwrap();
        let viewer = scope.spawn(move || play(scene, ENGINE, &["-o", at]));
        wait_until_arrived(&copy, 200_000);
        signal(site.server.child.id(), "INT");
        let (report, _) = viewer.join().unwrap();
        assert!(!report["bye"].is_null(), "a BYE before the end: {report}");
        assert!(idle.drain(), "an end, not a reset");
    });
    assert!(site.server.ends());
}

#[test]
fn offload_engine_unable_to_start_leaves_kernel_serving() {
    let Some(hosts) = hosts() else { return };
    add_tun(&hosts);
    ip(&hosts.server, "tuntap add dev off0 mode tun");
    // A device of another user.
    ip(&hosts.server, "tuntap add dev own0 mode tun user 65534");
    ip(&hosts.server, "link set own0 up");
    let dir = tempfile::tempdir().unwrap();
    let (store, source) = (dir.path().join("store"), support::film(dir.path(), "film.ts", 2));
    support::add(&source, &store);
    let all = "";
    let but_one = "--bounding-set=-net_admin";
    // CAP_SYS_ADMIN stands for those of AF_XDP.
    let none = "--bounding-set=-net_admin,-net_raw,-bpf,-sys_admin";
    for (rights, interface, address, sentence) in [
        (all, "lo", "10.78.0.1/24", "lo is neither an Ethernet interface nor a TUN device"),
        (all, "nosuch0", "10.78.0.1/24", "nosuch0: no such interface"),
        (all, "off0", "10.78.0.1/24", "interface off0 is down: switch it on (ip link set off0 up)"),
        (all, "vs", "10.78.0.2/24", "10.78.0.2 is the kernel's address at mill0"),
        (but_one, "own0", "10.78.0.1/24", "TUN device own0: cannot make the device"),
        (none, "vs", "10.77.0.100/24", "CAP_"),
    ] {
        let mut command = hosts.on_server(Path::new("setpriv"));
        command.args([rights].iter().filter(|rights| !rights.is_empty())).arg(env!("CARGO_BIN_EXE_millrace"));
        command
            .env_remove("MILLRACE_STORE")
            .args(["serve", "--listen", KERNEL, "--cache", "32MiB", "--store"]);
        command.arg(&store).args(["--tcp", "engine", "--tcp-interface", interface, "--tcp-address", address]);
        let mut server = Server::spawn(command);
        // The log comes by another pipe than the addresses.
        let end = Instant::now() + TIMEOUT;
        let said = loop {
            let said = server.said("the kernel's TCP carries all connections");
            if !said.is_empty() || Instant::now() > end {
                break said;
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        assert!(said.len() == 1 && said[0].contains(sentence), "{interface} {rights}: {:?}", server.log);
        let url = format!("rtsp://{KERNEL}/film");
        let args = ["play", &url, "--transport", "tcp", "-o", "null", "--quiet"];
        let output = hosts.on_client(|| millrace().args(args).output().unwrap()).unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(server.interrupt());
    }
}

#[test]
fn offload_engine_by_af_xdp_plays_before_and_after_link_down() {
    let Some(hosts) = hosts() else { return };
    // An XDP program gets packets as the peer sent them: no layer computes their checksums or
    // segments them.
    on(&hosts.client, "ethtool -K vc tx off tso off gso off");
    let args = ["--tcp", "engine", "--tcp-interface", "vs", "--tcp-address", "10.77.0.100/24"];
    let mut site = Site::new(hosts, 4, KERNEL, &args);
    if let Some(why) = site.server.said("built without AF_XDP").first() {
        eprintln!("skipped: {why}");
        return;
    }
    up(&mut site.server, UP);
    let scene = &site.scene;
    std::thread::scope(|scope| {
        for (server, copy) in [(ENGINE_XDP, "one.ts"), (ENGINE_XDP, "two.ts"), (KERNEL, "three.ts")] {
            scope.spawn(move || play_whole(scene, server, copy));
        }
    });
    // Down is gone, for engine and kernel: when it is up again both serve.
    ip(&scene.hosts.server, "link set vs down");
    site.server.wait_for(LOST, TIMEOUT);
    ip(&scene.hosts.server, "link set vs up");
    site.server.wait_for(UP, TIMEOUT);
    play_whole(scene, ENGINE_XDP, "four.ts");
    assert!(site.server.interrupt());
}

/// One address for both: its RTSP port is the engine's, and the kernel's where the engine is not or does not hear.
#[test]
fn tcp_port_only_engine_owns_rtsp_port_of_kernel_address() {
    let Some(hosts) = hosts() else { return };
    on(&hosts.client, "ethtool -K vc tx off tso off gso off");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("stats.json");
    let place = ["--tcp-interface", "vs", "--tcp-address", "10.77.0.1/24", "--tcp-port-only"];
    let args = [&["--tcp", "engine", "--stats", path.to_str().unwrap()], &place[..]].concat();
    let mut site = Site::new(hosts, 4, KERNEL, &args);
    if let Some(why) = site.server.said("built without AF_XDP").first() {
        eprintln!("skipped: {why}");
        return;
    }
    up(&mut site.server, UP);
    let scene = &site.scene;
    play_whole(scene, KERNEL, "one.ts");
    up(&mut site.server, HTTP_UP);
    let mut browser = scene.hosts.on_client(|| TcpStream::connect("10.77.0.1:8080").unwrap()).unwrap();
    browser.set_read_timeout(Some(TIMEOUT)).unwrap();
    let (head, body) = http::get(&mut browser, "/titles/film.ts", "");
    assert!(head.starts_with("HTTP/1.1 200 ") && body == fs::read(&scene.data).unwrap(), "{head}");
    drop(browser);
    // A player on the machine itself, which sends by no interface, comes to the kernel's listener.
    let near = || TcpStream::connect(KERNEL).unwrap();
    let mut near = scene.hosts.inside_server(near).unwrap();
    near.set_read_timeout(Some(TIMEOUT)).unwrap();
    near.write_all(b"OPTIONS * RTSP/1.0\r\nCSeq: 1\r\n\r\n").unwrap();
    assert!(read_message(&mut near).0.contains(" 200 "));
    drop(near);
    ip(&scene.hosts.server, "link set vs down");
    site.server.wait_for(LOST, TIMEOUT);
    ip(&scene.hosts.server, "link set vs up");
    site.server.wait_for(UP, TIMEOUT);
    play_whole(scene, KERNEL, "two.ts");
    assert!(site.server.interrupt());
    let stats = stats(&path);
    assert_eq!(stats["offload_tcp"]["accepted"], 3, "players and browser came by the engine: {stats:#}");
}
