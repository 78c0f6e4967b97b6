//! The server with AF_XDP as its egress path, between network namespaces: films arrive byte for byte, and when an interface
//! goes down, comes back or disappears, viewers go on. Needs root and AF_XDP; skipped with a message otherwise.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::two_hosts::{Scene, Site, listen};
use crate::support::{Server, fails, film, millrace, ok, run};
use millrace_lab::netns::TwoHosts;

/// What [`Server`] starts, each with an AF_XDP device of its own.
const ENGINES: usize = 2;

/// `None`, with the reason printed, if this process may not make a site. `prepare` may change the hosts.
fn site(listen: &str, args: &[&str], film_secs: u64, prepare: impl FnOnce(&TwoHosts)) -> Option<Site> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: network namespaces need root");
        return None;
    }
    // A queue for each engine.
    let hosts = TwoHosts::with_queues(false, ENGINES as u32).unwrap();
    prepare(&hosts);
    Some(Site::new(hosts, film_secs, listen, args))
}

/// Waits until something is so.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until the devices of this many interfaces are open: they are opened while everything else
/// starts.
fn wait_until_opened(server: &mut Server, interfaces: usize) {
    let devices = interfaces * ENGINES;
    wait_until("the devices are open", || server.said("AF_XDP is open").len() >= devices);
    assert_eq!(server.said("AF_XDP is open").len(), devices, "{:?}", server.log);
}

/// Ends the server; packets of each engine by the kernel, with or without its copy, and by AF_XDP.
fn counts(server: &mut Server) -> [(u64, u64); ENGINES] {
    assert!(server.interrupt());
    [0; ENGINES].map(|_| {
        let line = server.wait_for("by AF_XDP", Duration::from_secs(20));
        let before = |text: &str| {
            let words: Vec<_> = line[..line.find(text).unwrap()].split_whitespace().collect();
            words.last().unwrap().parse::<u64>().unwrap()
        };
        (before(" packets by the kernel") + before(" without its copy"), before(" by AF_XDP"))
    })
}

/// The same of all engines.
fn sums(server: &mut Server) -> (u64, u64) {
    counts(server).into_iter().fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1))
}

/// The file that [`play`] writes the received media to.
fn copy(scene: &Scene) -> PathBuf {
    scene.dir.path().join("copy.ts")
}

/// Waits until the viewer of [`play`] has this many bytes of the film.
fn wait_until_arrived(scene: &Scene, bytes: u64) {
    let arrived = || std::fs::metadata(copy(scene)).map_or(0, |found| found.len());
    wait_until("the film arrives", || arrived() >= bytes);
}

/// Returns the number of packets that a host had no route for.
fn without_route(namespace: &str) -> u64 {
    let output = Command::new("ip").args(["netns", "exec", namespace, "cat", "/proc/net/snmp"]).output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    let mut lines = text.lines().filter(|line| line.starts_with("Ip: ")).map(str::split_whitespace);
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let found = names.zip(values).find(|(name, _)| *name == "OutNoRoutes");
    found.unwrap().1.parse().unwrap()
}

/// Plays by UDP; returns the report, and whether the received media is the film to the byte.
fn play(scene: &Scene) -> (serde_json::Value, bool) {
    let copy = copy(scene);
    let report = scene.play(&["--transport", "udp", "-o", copy.to_str().unwrap()]);
    let same = std::fs::read(&copy).unwrap() == std::fs::read(&scene.data).unwrap();
    (report, same)
}

/// Changes an interface of a host.
fn ip(namespace: &str, args: &str) {
    let output = Command::new("ip").args(["-n", namespace]).args(args.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "ip -n {namespace} {args}: {output:?}");
}

#[test]
fn af_xdp_playback_delivers_identical_bytes() {
    let args = ["--backend", "xdp", "--xdp-interface", "vs"];
    let Some(mut site) = site(&listen(), &args, 4, |_| ()) else { return };
    wait_until_opened(&mut site.server, 1);
    // One viewer for each engine.
    let (other, (report, same)) = std::thread::scope(|scope| {
        let scene = &site.scene;
        let verify = ["--transport", "udp", "-o", "null", "--verify", scene.data.to_str().unwrap()];
        let other = scope.spawn(move || scene.play(&verify));
        let first = play(scene);
        (other.join().unwrap(), first)
    });
    assert!(same, "{report}");
    assert_eq!((&other["sequence"]["lost"], &other["byte_check"]["different_bytes"]), (&0.into(), &0.into()));
    // A new viewer's first bursts go by the kernel, until its next hop is known.
    let (counts, packets) = (counts(&mut site.server), site.scene.packets());
    assert!(counts.iter().all(|(_, xdp)| xdp * 2 > packets), "{counts:?} of {packets} each by AF_XDP");
}

#[test]
fn egress_path_is_measured_once_and_used() {
    let args = ["--xdp-interface", "vs"];
    let Some(mut site) = site(&listen(), &args, 2, |_| ()) else { return };
    assert_eq!(site.server.said("measured now").len(), 1, "{:?}", site.server.log);
    let kept = std::fs::read_to_string(site.scene.dir.path().join("cache/millrace/ways-out.json")).unwrap();
    assert!(kept.contains("\"vs\"") && kept.contains("\"kernel\""), "{kept}");
    let (report, same) = play(&site.scene);
    assert!(same, "{report}");
    let (kernel, xdp) = sums(&mut site.server);
    assert!(kernel + xdp >= site.scene.packets());
}

#[test]
fn link_flap_loses_packets_but_no_viewer() {
    let args = ["--backend", "xdp", "--xdp-interface", "vs"];
    let Some(mut site) = site(&listen(), &args, 12, |_| ()) else { return };
    let report = std::thread::scope(|scope| {
        let scene = &site.scene;
        let player = scope.spawn(move || play(scene).0);
        // In the middle of the film.
        wait_until_arrived(scene, 500_000);
        let before = without_route(&scene.hosts.server);
        ip(&scene.hosts.server, "link set vs down");
        wait_until("packets are lost", || without_route(&scene.hosts.server) >= before + 50);
        ip(&scene.hosts.server, "link set vs up");
        player.join().unwrap()
    });
    assert_eq!(report["end"], "bye", "the film was played to its end: {report}");
    let (received, lost) = (report["packets"].as_u64(), report["sequence"]["lost"].as_u64());
    let (received, lost) = (received.unwrap(), lost.unwrap());
    assert_eq!(received + lost, site.scene.packets(), "{report}");
    assert!(lost > 0 && lost < received / 2, "{report}");
    // A device that was asked to send meanwhile has died and was opened again; one that was not has survived.
    let deaths = site.server.said("its viewers continue over kernel sockets").len();
    assert_eq!(site.server.said("vs: AF_XDP is open").len(), ENGINES + deaths, "{:?}", site.server.log);
    let (_, xdp) = sums(&mut site.server);
    assert!(xdp * 2 > site.scene.packets(), "{xdp} of {} by AF_XDP", site.scene.packets());
}

#[test]
fn interface_removal_leaves_viewers_elsewhere_unaffected() {
    let second = |hosts: &TwoHosts| {
        let queues = format!("numtxqueues {ENGINES} numrxqueues {ENGINES}");
        let link = format!("link add ws {queues} type veth peer name wc {queues} netns {}", hosts.client);
        ip(&hosts.server, &link);
        for (ns, device, address) in [(&hosts.server, "ws", "10.78.0.1"), (&hosts.client, "wc", "10.78.0.2")]
        {
            ip(ns, &format!("addr add {address}/24 dev {device}"));
            ip(ns, &format!("link set {device} up"));
        }
    };
    let args = ["--backend", "xdp", "--xdp-interface", "vs", "--xdp-interface", "ws"];
    let Some(mut site) = site("0.0.0.0:8554", &args, 8, second) else { return };
    wait_until_opened(&mut site.server, 2);
    let mut other = site
        .scene
        .hosts
        .on_client(|| {
            let mut command = millrace();
            command.args(["play", "rtsp://10.78.0.1:8554/film", "--transport", "udp", "-o", "null"]);
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
        })
        .unwrap();
    let (report, same) = std::thread::scope(|scope| {
        let scene = &site.scene;
        let player = scope.spawn(move || play(scene));
        // The other viewer plays as well.
        (0..2).for_each(|_| drop(site.server.wait_for("plays", Duration::from_secs(20))));
        wait_until_arrived(scene, 250_000);
        ip(&scene.hosts.server, "link del ws");
        player.join().unwrap()
    });
    assert!(same, "{report}");
    let _ = other.kill();
    let _ = other.wait();
    // Of each engine that was asked to send there.
    let lost = site.server.said("its viewers continue over kernel sockets");
    assert!((1..=ENGINES).contains(&lost.len()) && lost[0].contains("ws"), "{lost:?}");
    let (_, xdp) = sums(&mut site.server);
    assert!(xdp * 2 > site.scene.packets());
}

#[test]
fn xdp_interface_with_unknown_name_is_rejected_at_start() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().to_str().unwrap();
    let serve = ["serve", "--listen", "127.0.0.1:0", "--cache", "32MiB", "--store", store];
    let error = fails(&[&serve[..], &["--xdp-interface", "eht9"]].concat());
    assert!(error.contains("--xdp-interface: eht9: no such interface") && error.contains("lo"), "{error}");
    let error = fails(&[&serve[..], &["--backend", "xdp"]].concat());
    assert!(error.contains("--xdp-interface eth0"), "{error}");
}

#[test]
fn serve_without_privileges_falls_back_to_kernel_sockets() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let source = film(dir.path(), "film.ts", 2);
    ok(&["add", "--quiet", source.to_str().unwrap(), "--store", store.to_str().unwrap()]);
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root to give up what root may");
        return;
    }
    let hosts = TwoHosts::new(false).unwrap();
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &hosts.server, "setpriv", "--bounding-set=-all", "--inh-caps=-all"]);
    command.arg(env!("CARGO_BIN_EXE_millrace"));
    command.env_remove("MILLRACE_STORE").env("XDG_CACHE_HOME", dir.path().join("cache"));
    command.args(["serve", "--listen", &listen(), "--cache", "32MiB", "--store"]).arg(&store);
    command.args(["--backend", "xdp", "--xdp-interface", "vs"]);
    let mut server = Server::spawn(command);
    let said = server.said("using kernel sockets instead of AF_XDP");
    assert!(said.len() == 1 && said[0].contains("vs"), "{:?}", server.log);
    let url = format!("rtsp://{}/film", listen());
    let args = ["play", &url, "--transport", "udp", "-o", "null"];
    let done = hosts.on_client(|| run(&args)).unwrap();
    assert!(done.status.success(), "{done:?}");
    assert!(server.interrupt());
}
