//! Packets as large as the path carries: real servers, real sockets, our own receiver and FFmpeg.
//! Whatever the size, the received data is the stored data.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support;
use crate::support::{Server, film, ok, play, run};
use millrace_lab::netns::{SERVER_IP, TwoHosts};

const LARGE: u64 = 8084;
const DEFAULT: u64 = 1316;

/// A store with one title, and the path of its data.
fn store(dir: &Path, args: &[&str]) -> (PathBuf, String) {
    let store = dir.join("store");
    let source = film(dir, "film.ts", 6);
    let add = ["add", "--quiet", source.to_str().unwrap(), "--store", store.to_str().unwrap()];
    ok(&[&add[..], args].concat());
    let titles = std::fs::read_dir(store.join("titles")).unwrap();
    let data = titles.map(|title| title.unwrap().path().join("data.ts")).find(|path| path.exists());
    (store, data.unwrap().to_str().unwrap().to_owned())
}

/// Plays all of the title and holds the packets and the bytes against its data.
fn plays_whole(
    title: &str,
    data: &str,
    transport: &str,
    packet_bytes: u64,
    play: impl Fn(&[&str]) -> serde_json::Value,
) {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.ts");
    let report = play(&[title, "--transport", transport, "-o", out.to_str().unwrap(), "--verify", data]);
    let bytes = std::fs::read(data).unwrap();
    assert!(std::fs::read(&out).unwrap() == bytes, "{transport}: {report}");
    assert_eq!(report["packets"], (bytes.len() as u64).div_ceil(packet_bytes), "{transport}: {report}");
    assert_eq!(report["sequence"]["lost"], 0, "{transport}: {report}");
    assert_eq!(report["rtp_info_exact"], true, "{transport}: {report}");
}

/// From the range sums, and from a metadata file of this size: by UDP over the loopback device,
/// whose MTU is 65536, large packets; by TCP the default ones. Both are in memory at once.
#[test]
fn over_loopback_packets_are_large() {
    for args in [&[][..], &["--packet-sizes", "1316,8k"]] {
        let dir = tempfile::tempdir().unwrap();
        let (store, data) = store(dir.path(), args);
        let mut server = Server::start(&store, &["--packet-sizes", "1316,8084"]);
        let title = server.title("film");
        std::thread::scope(|scope| {
            scope.spawn(|| plays_whole(&title, &data, "udp", LARGE, play));
            plays_whole(&title, &data, "tcp", DEFAULT, play);
        });
        // Seeks and pauses count in the large packets too.
        let report =
            play(&[&title, "--transport", "udp", "--do", "seek@1=4,pause@2,play@3", "--verify", &data]);
        assert_eq!(
            (&report["sequence"]["lost"], &report["byte_check"]["different_bytes"]),
            (&0.into(), &0.into())
        );
        assert_eq!(report["rtp_info_exact"], true, "{report}");
        let report = play(&[&title, "--transport", "udp", "--start", "2s", "--end", "4s", "--verify", &data]);
        assert_eq!(report["byte_check"]["different_bytes"], 0, "{report}");
        assert!(
            report["packets"].as_u64().unwrap() < std::fs::metadata(&data).unwrap().len() / LARGE,
            "{report}"
        );
        assert!(server.interrupt(), "clean shutdown: {:?}", server.log);
    }
}

/// Without the option all viewers get the default size only.
#[test]
fn large_packets_are_asked_for_by_the_operator() {
    let dir = tempfile::tempdir().unwrap();
    let (store, data) = store(dir.path(), &["--packet-sizes", "8084"]);
    let server = Server::start(&store, &[]);
    plays_whole(&server.title("film"), &data, "udp", DEFAULT, play);
}

/// Over an Ethernet of 1500 bytes a packet has 1316, over one of 9000 it has 8084: the server asks its routes.
#[test]
fn over_an_ethernet_packets_fit_its_mtu() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: network namespaces need root");
    }
    let dir = tempfile::tempdir().unwrap();
    let (store, data) = store(dir.path(), &[]);
    for (mtu, packet_bytes) in [(1500, DEFAULT), (9000, LARGE)] {
        let hosts = TwoHosts::new(false).unwrap();
        let set_mtu = || {
            let links = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
            let names = links.lines().filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned()));
            for name in names.filter(|name| name != "lo") {
                let ip = Command::new("ip").args(["link", "set", &name, "mtu", &mtu.to_string()]).status();
                assert!(ip.unwrap().success());
            }
        };
        hosts.inside_server(set_mtu).unwrap();
        hosts.on_client(set_mtu).unwrap();
        let mut command = hosts.on_server(Path::new(env!("CARGO_BIN_EXE_millrace")));
        command.env_remove("MILLRACE_STORE").env_remove("RUST_LOG");
        command.args(["serve", "--listen", &format!("{SERVER_IP}:8554"), "--cache", "32MiB", "--store"]);
        command.arg(&store).args(["--packet-sizes", "auto"]);
        let server = Server::spawn(command);
        let there = |args: &[&str]| {
            let done = hosts.on_client(|| run(&[&["play", "--stats", "json"], args].concat())).unwrap();
            serde_json::from_slice(&done.stdout).unwrap_or_else(|e| panic!("MTU {mtu}: {e}: {done:?}"))
        };
        plays_whole(&server.title("film"), &data, "udp", packet_bytes, there);
    }
}

/// FFmpeg decodes the pictures and sounds of the film from large packets: the same as from the file.
#[test]
fn ffmpeg_plays_large_packets() {
    let has =
        |program| Command::new(program).arg("-version").output().is_ok_and(|done| done.status.success());
    if !has("ffmpeg") || !has("ffprobe") {
        return eprintln!("skipped: ffmpeg or ffprobe is not installed");
    }
    let dir = tempfile::tempdir().unwrap();
    let (store, data) = store(dir.path(), &[]);
    let server = Server::start(&store, &["--packet-sizes", "8k"]);
    // The hashes of each stream's frames, in order.
    let frames = |input: &[&str]| {
        let done = Command::new("ffmpeg")
            .args(["-v", "error", "-nostdin"])
            .args(input)
            .args(["-map", "0:v:0", "-map", "0:a:0", "-fps_mode", "passthrough", "-f", "framehash", "-"])
            .output()
            .unwrap();
        let mut streams = [Vec::new(), Vec::new()];
        for line in String::from_utf8_lossy(&done.stdout).lines().filter(|line| !line.starts_with('#')) {
            let (stream, hash) = (line.split(',').next().unwrap(), line.rsplit(',').next().unwrap());
            streams[stream.trim().parse::<usize>().unwrap()].push(hash.trim().to_owned());
        }
        (streams, String::from_utf8_lossy(&done.stderr).into_owned())
    };
    let (expected, _) = frames(&["-i", &data]);
    let title = server.title("film");
    let (found, said) = frames(&["-rtsp_transport", "udp", "-i", &title]);
    for (found, expected) in found.iter().zip(&expected) {
        // FFmpeg's RTSP reader keeps the very last frame of a stream to itself, whatever the server does.
        assert!(
            expected.len() > 50 && found.len() + 1 >= expected.len(),
            "{} of {}",
            found.len(),
            expected.len()
        );
        assert!(*found == expected[..found.len()], "{said}");
    }
    let kinds = support::ffprobe_kinds(&title);
    assert!(kinds.contains("video"), "{kinds}");
}
