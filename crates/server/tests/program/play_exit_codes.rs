//! The exit codes of `millrace play` when it receives something other than a transport stream, when
//! the server dies, and when there is none.

use std::io::Write;
use std::net::{TcpListener, UdpSocket};
use std::process::{Output, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::support::{Server, add, film, millrace, read_head, run};

const TRANSPORTS: [&str; 2] = ["udp", "tcp"];
/// Seven transport packets.
const PAYLOAD_BYTES: usize = 1316;

/// A server of one viewer: answers as any does, sends these packets after PLAY and hangs up.
fn serve_once(packets: Vec<Vec<u8>>) -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("rtsp://{}/film", listener.local_addr().unwrap());
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let [rtp, rtcp] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        let mut udp_port = None;
        loop {
            let request = read_head(&mut stream);
            let field = |name: &str| request.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            let mut more = "Session: 7\r\n".to_owned();
            let mut sdp = "";
            let method = request.split(' ').next().unwrap();
            match method {
                "DESCRIBE" => {
                    sdp = "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=Film\r\nt=0 0\r\nm=video 0 RTP/AVP 33\r\n";
                    more += "Content-Type: application/sdp\r\n";
                }
                "SETUP" => {
                    let transport = field("Transport:").unwrap();
                    let client = transport.split_once("client_port=");
                    udp_port = client.and_then(|(_, ports)| ports.split('-').next()?.parse::<u16>().ok());
                    let port = |socket: &UdpSocket| socket.local_addr().unwrap().port();
                    more += &format!("Transport: {transport}");
                    if udp_port.is_some() {
                        more += &format!(";server_port={}-{}", port(&rtp), port(&rtcp));
                    }
                    more += "\r\n";
                }
                _ => {}
            }
            let cseq = field("CSeq:").unwrap();
            let length = sdp.len();
            write!(stream, "RTSP/1.0 200 OK\r\nCSeq: {cseq}\r\n{more}Content-Length: {length}\r\n\r\n{sdp}")
                .unwrap();
            if method == "PLAY" {
                break;
            }
        }
        for packet in packets {
            match udp_port {
                Some(port) => drop(rtp.send_to(&packet, ("127.0.0.1", port)).unwrap()),
                None => {
                    stream.write_all(&[b'$', 0]).unwrap();
                    stream.write_all(&(packet.len() as u16).to_be_bytes()).unwrap();
                    stream.write_all(&packet).unwrap();
                }
            }
        }
    });
    (url, thread)
}

/// RTP packets of this payload type, each with seven times these bytes as far as they go.
fn rtp(payload_type: u8, ts: [u8; 188]) -> Vec<Vec<u8>> {
    let packet = |number: u8| {
        let mut packet = vec![0x80, payload_type, 0, number, 0, 0, number, 0, 0, 0, 0, 9];
        packet.extend_from_slice(&ts.repeat(PAYLOAD_BYTES / ts.len()));
        packet
    };
    (0..20).map(packet).collect()
}

fn play(url: &str, transport: &str) -> Output {
    run(&["play", url, "--transport", transport, "--quiet"])
}

#[test]
fn play_of_non_transport_stream_exits_with_4() {
    let mut null = [0xff; 188];
    null[..4].copy_from_slice(&[0x47, 0x1f, 0xff, 0x10]);
    let noise: [u8; 188] = std::array::from_fn(|at| (at * 7 % 64) as u8);
    let text = b"HTTP/1.1 200 OK\r\n\r\n<html>this is not RTP</html>".to_vec();
    for (what, packets, code, words) in [
        ("no transport packets", rtp(33, noise), 4, "without sync byte"),
        ("no RTP", vec![text; 20], 4, "not what was agreed"),
        ("another payload type", rtp(96, null), 4, "not what was agreed"),
        // That it hangs up is not why.
        ("a transport stream", rtp(33, null), 3, "closed the connection"),
    ] {
        for transport in TRANSPORTS {
            let (url, server) = serve_once(packets.clone());
            let output = play(&url, transport);
            let said = String::from_utf8_lossy(&output.stdout);
            assert_eq!(output.status.code(), Some(code), "{what} by {transport}: {output:?}");
            assert!(said.contains(words), "{what} by {transport}: {said}");
            server.join().unwrap();
        }
    }
}

#[test]
fn play_when_server_dies_exits_with_3() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    add(&film(dir.path(), "film.ts", 60), &store);
    let mut server = Server::start(&store, &[]);
    let url = server.title("film");
    let copies = TRANSPORTS.map(|transport| dir.path().join(format!("{transport}.ts")));
    let viewers: Vec<_> = TRANSPORTS
        .iter()
        .zip(&copies)
        .map(|(transport, copy)| {
            let mut command = millrace();
            command.args(["play", &url, "--transport", transport, "--quiet", "-o"]).arg(copy);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    let end = Instant::now() + Duration::from_secs(30);
    while !copies.iter().all(|copy| copy.metadata().is_ok_and(|copy| copy.len() > 0)) {
        assert!(Instant::now() < end, "nothing was received; the server said: {:?}", server.log);
        std::thread::sleep(Duration::from_millis(20));
    }
    server.child.kill().unwrap();
    for (viewer, transport) in viewers.into_iter().zip(TRANSPORTS) {
        let output = viewer.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{transport}: {output:?}");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("before the announced end"), "{transport}: {said}");
    }
}

#[test]
fn play_without_server_exits_with_1() {
    // No process listens at this address any more.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for transport in TRANSPORTS {
        let output = play(&format!("rtsp://{address}/film"), transport);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(&address.to_string()) && said.contains("check that the server runs"), "{said}");
        assert!(output.stdout.is_empty(), "{output:?}");
    }
}
