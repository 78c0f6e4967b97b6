//! curl, nginx and iperf3 as Debian has them, with sockets of an engine, against the kernel's TCP and against each other.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use crate::support::{
    FIRST, Running, assert_same, bytes, engine_and_kernel, has_tun, have, nginx, output, preloaded,
    random_file, run, two_engines, until,
};
use millrace_lab::tcp_host::{KERNEL_IP, OUR_IP};

const PORT: u16 = 8080;

/// Requests of the test with many of them: `MILLRACE_REQUESTS=100000 cargo test --release -p millrace-preload --test preloaded programs::nginx`.
fn requests() -> usize {
    std::env::var("MILLRACE_REQUESTS").ok().and_then(|text| text.parse().ok()).unwrap_or(2000)
}

/// Makes curl print only errors, and retry until the server is there.
fn curl(command: &mut Command) -> &mut Command {
    command.args(["-sS", "--fail", "--retry", "50", "--retry-delay", "1", "--retry-connrefused"])
}

#[test]
fn curl_downloads_from_the_kernel_through_loss() {
    if !has_tun() || !have(&["curl", "nginx"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    random_file(&dir.path().join("film"), 1, bytes());
    let (toe, engine) = engine_and_kernel(dir.path(), 10);
    let address = format!("{KERNEL_IP}:{PORT}");
    let _server = toe.in_kernel(|| nginx(&mut Command::new("nginx"), dir.path(), &address)).unwrap();
    let copy = dir.path().join("copy");
    let url = format!("http://{address}/film");
    // The program is in no namespace of the kernel's other end: it has no other way there than the engine.
    output(curl(&mut preloaded("curl", &engine)).arg("-o").arg(&copy).arg(&url));
    assert_same(&dir.path().join("film"), &copy);
    let counters = toe.stop().unwrap();
    assert_eq!((counters.engine.rejected, counters.engine.events_lost), (0, 0), "{counters:?}");
    assert!(counters.stack.opened > 0, "{counters:?}");
}

/// Sends requests on one connection, one behind the other.
fn ask(to: SocketAddr, count: usize) {
    let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(60)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    for _ in 0..count {
        stream.write_all(b"GET /small HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let (mut length, mut line) = (0, String::new());
        reader.read_line(&mut line).unwrap();
        assert!(line.starts_with("HTTP/1.1 200"), "{line}");
        while line != "\r\n" {
            line.clear();
            assert!(reader.read_line(&mut line).unwrap() > 0, "the end within a head");
            if let Some(text) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = text.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        assert_eq!(body, b"a small answer\n");
    }
}

#[test]
fn nginx_serves_many_requests_and_a_large_file_to_the_kernel() {
    const CONNECTIONS: usize = 8;
    if !has_tun() || !have(&["curl", "nginx"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("small"), "a small answer\n").unwrap();
    random_file(&dir.path().join("film"), 2, bytes());
    let (toe, engine) = engine_and_kernel(dir.path(), 10);
    // At the unspecified address, a port is the engine's only if configured.
    let mut server = preloaded("nginx", &engine);
    let mut server =
        nginx(server.env("MILLRACE_LISTEN", PORT.to_string()), dir.path(), &format!("0.0.0.0:{PORT}"));
    let to = SocketAddr::from((OUR_IP, PORT));
    let copy = dir.path().join("copy");
    let url = format!("http://{to}/film");
    toe.in_kernel(|| output(curl(&mut Command::new("curl")).arg("-o").arg(&copy).arg(&url))).unwrap();
    assert_same(&dir.path().join("film"), &copy);
    toe.in_kernel(|| {
        std::thread::scope(|scope| {
            for _ in 0..CONNECTIONS {
                scope.spawn(|| ask(to, requests().div_ceil(CONNECTIONS)));
            }
            // And connections of one request each.
            for _ in 0..requests() / 20 {
                ask(to, 1);
            }
        });
    })
    .unwrap();
    assert!(
        server.has_ended().is_none(),
        "{}",
        std::fs::read_to_string(dir.path().join("error.log")).unwrap()
    );
    drop(server);
    let counters = toe.stop().unwrap();
    assert_eq!((counters.engine.rejected, counters.engine.events_lost), (0, 0), "{counters:?}");
}

#[test]
fn curl_downloads_from_nginx_both_preloaded_through_loss() {
    if !have(&["curl", "nginx"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    random_file(&dir.path().join("film"), 3, bytes());
    let [(first, at_first), (second, at_second)] = two_engines(dir.path(), 10);
    let address = format!("{}:{PORT}", std::net::Ipv4Addr::from(FIRST));
    let _server = nginx(&mut preloaded("nginx", &at_first), dir.path(), &address);
    let copy = dir.path().join("copy");
    let url = format!("http://{address}/film");
    let report = "%{size_download} bytes in %{time_total} s, %{speed_download} bytes/s\n";
    let text =
        output(curl(&mut preloaded("curl", &at_second)).args(["-w", report, "-o"]).arg(&copy).arg(&url));
    eprint!("both preloaded, 1 % loss each way: {text}");
    assert_same(&dir.path().join("film"), &copy);
    // The other way: this nginx takes the bytes of an upload, and refuses it.
    let refused = run(preloaded("curl", &at_second).args(["-sS", "-T"]).arg(&copy).arg(&url));
    assert!(refused.status.success(), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stdout).contains("405"), "{refused:?}");
    for engine in [first, second] {
        let counters = engine.stop().unwrap();
        assert_eq!((counters.engine.rejected, counters.engine.events_lost), (0, 0), "{counters:?}");
    }
}

/// What iperf3 measured: bytes that were sent and that came.
fn iperf_bytes(text: &str) -> (u64, u64) {
    let of = |part: &str| {
        let at = text.find(&format!("\"{part}\":")).unwrap_or_else(|| panic!("{part}: {text}"));
        let rest = text[at..].split("\"bytes\":").nth(1).unwrap();
        rest.trim_start().split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
    };
    (of("sum_sent"), of("sum_received"))
}

/// Of each stream the bytes that were sent and that came.
fn stream_bytes(text: &str) -> Vec<u64> {
    // Those of the whole come behind those of intervals.
    let at = text.rfind("\"streams\":").unwrap();
    let end = text[at..].split("\"sum_sent\"").next().unwrap();
    let numbers = end.split("\"bytes\":").skip(1);
    numbers
        .map(|rest| rest.trim_start().split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap())
        .collect()
}

#[test]
fn iperf3_measures_both_ways_with_several_streams() {
    const BYTES: u64 = 8_000_000;
    const STREAMS: usize = 4;
    if !have(&["iperf3"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let [(_first, at_first), (_second, at_second)] = two_engines(dir.path(), 0);
    let address = std::net::Ipv4Addr::from(FIRST).to_string();
    let four = ["-P", "4"];
    for (way, port) in
        [(&[][..], PORT), (&["-R"], PORT + 1), (&four, PORT + 2), (&["-R", four[0], four[1]], PORT + 3)]
    {
        let port = port.to_string();
        let mut server = preloaded("iperf3", &at_first);
        server.args(["-s", "-1", "-p", &port, "-B", &address]);
        let log = dir.path().join("server.log");
        let mut server = Running::start(server.stdout(std::fs::File::create(&log).unwrap()));
        let text = until("iperf3's server answers", || {
            let mut client = preloaded("iperf3", &at_second);
            client.args(["-c", &address, "-p", &port, "-n", &BYTES.to_string(), "-J"]).args(way);
            let output = run(&mut client);
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            // With -J, the output reports it, and the exit status may still be 0.
            let is_good = output.status.success() && !text.contains("\"error\":");
            if !is_good {
                assert!(text.contains("refused"), "{text}{}", String::from_utf8_lossy(&output.stderr));
            }
            is_good.then_some(text)
        });
        let (sent, received) = iperf_bytes(&text);
        // The server does not count data still in flight when the client has sent everything.
        assert!(sent >= BYTES && received >= BYTES / 2, "{way:?}: {sent} sent, {received} received");
        let streams = stream_bytes(&text);
        let count = if way.contains(&"-P") { STREAMS } else { 1 };
        assert!(streams.len() == 2 * count && streams.iter().all(|&bytes| bytes > 0), "{way:?}: {streams:?}");
        assert!(server.end("iperf3's server").success(), "{}", std::fs::read_to_string(&log).unwrap());
    }
}

#[test]
fn sockets_of_others_are_the_kernels() {
    if !have(&["curl", "nginx"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("small"), "from the kernel\n").unwrap();
    let [(first, at_first), _] = two_engines(dir.path(), 0);
    // A port of the kernel's that is free now. If another process takes it first, the server fails.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let _server = nginx(&mut preloaded("nginx", &at_first), dir.path(), &address);
    let url = format!("http://{address}/small");
    let text = output(curl(&mut Command::new("curl")).arg(&url));
    assert_eq!(text, "from the kernel\n", "by the kernel's TCP to a preloaded server");
    let text = output(curl(&mut preloaded("curl", &at_first)).arg(&url));
    assert_eq!(text, "from the kernel\n");
    let counters = first.stop().unwrap();
    assert_eq!((counters.stack.opened, counters.stack.accepted), (0, 0), "nothing went by the engine");
    // Without an engine there is a sentence, and the kernel.
    let output = run(curl(&mut preloaded("curl", &dir.path().join("none"))).arg(&url));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{told}");
    assert_eq!(told.matches("no offload engine answers there").count(), 1, "{told}");
    // Without the setting, nothing is printed.
    let output = run(curl(preloaded("curl", &at_first).env_remove("MILLRACE_ENGINE")).arg(&url));
    assert_eq!((String::from_utf8_lossy(&output.stderr).as_ref(), output.status.success()), ("", true));
}
