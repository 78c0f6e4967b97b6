//! FEC with a receiver from another project: GStreamer's `rtpst2022-1-fecdec` repairs the packets
//! that a relay in front of it drops, single packets and bursts of a whole unit, and its output is
//! the film bit by bit.
//!
//! GStreamer's RTSP client does not know this FEC, so the tests speak RTSP themselves and GStreamer listens to RTP and FEC.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::support;
use crate::support::{Server, film, header, ok, read_message, signal};
use millrace_core::fec::Code;
use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_core::wire::fec::{FecHeader, PAYLOAD_TYPE_FEC, PROTECTED_FIELDS_BYTES, protected_fields};
use millrace_core::wire::rtp::{PAYLOAD_TYPE_MP2T, RtpHeader, sequence_of};

/// How long the jitter buffer waits: a packet is repaired when the FEC of its row has come, which
/// is spread over the next row.
const LATENCY_MS: u64 = 2500;
/// Longest that a film of a few seconds may take on a machine under load.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Rows of `k` units of `unit` packets, of a film of `packets`.
#[derive(Clone, Copy, Debug)]
struct Matrix {
    k: u32,
    unit: u32,
    packets: u32,
}

impl Matrix {
    fn row_packets(self) -> u32 {
        self.k * self.unit
    }

    /// Whether the relay drops this packet: in every other row a unit's length in one go, wherever in the row; in the others
    /// three single packets in different columns. Nothing in the first row, before receivers have found the stream, and
    /// nothing in a last row that is not full: GStreamer takes no matrix of another size than the first.
    fn drops(self, packet: u32) -> bool {
        let (row, place) = (packet / self.row_packets(), packet % self.row_packets());
        if row == 0 || row >= self.packets / self.row_packets() {
            false
        } else if row % 2 == 1 {
            let start = row * 13 % (self.row_packets() - self.unit);
            (start..start + self.unit).contains(&place)
        } else {
            let single = |n: u32| (row * 7 + n) % self.unit + self.unit * ((row + n) % self.k);
            (0..3).any(|n| place == single(n))
        }
    }
}

/// GStreamer, listening.
struct Receiver {
    child: Child,
    rtp: SocketAddr,
    fec: SocketAddr,
    output: PathBuf,
}

impl Receiver {
    /// `None`, with the reason printed, if GStreamer or its decoder is not installed.
    fn start(output: PathBuf) -> Option<Self> {
        let element = |name| Command::new("gst-inspect-1.0").arg(name).output();
        for name in ["rtpst2022-1-fecdec", "rtpmp2tdepay", "rtpbin"] {
            if !element(name).is_ok_and(|done| done.status.success()) {
                eprintln!("skipped: GStreamer's {name} is not installed");
                return None;
            }
        }
        let [rtp, fec] = free_ports();
        let udp = |port: u16| {
            format!("udpsrc address=127.0.0.1 port={port} buffer-size=2000000 caps=application/x-rtp")
        };
        let pipeline = format!(
            "{},media=video,clock-rate=90000,encoding-name=MP2T,payload=33 ! rtp.recv_rtp_sink_0 \
             {},payload=96 ! rtp.recv_fec_sink_0_0 rtp. ! rtpmp2tdepay ! filesink buffer-mode=2",
            udp(rtp),
            udp(fec)
        );
        let child = Command::new("gst-launch-1.0")
            .args(["-q", "rtpbin", "name=rtp"])
            .arg(format!("latency={LATENCY_MS}"))
            .arg(r#"fec-decoders=fec,0="rtpst2022-1-fecdec\ size-time\=10000000000";"#)
            .args(pipeline.split_whitespace())
            .arg(format!("location={}", output.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("gst-launch-1.0 can be started");
        let at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut receiver = Self { child, rtp: at(rtp), fec: at(fec), output };
        wait_for("GStreamer to listen", || {
            let ended = receiver.child.try_wait().expect("our child");
            assert!(ended.is_none(), "GStreamer ended: {ended:?}");
            is_bound(rtp) && is_bound(fec)
        });
        Some(receiver)
    }

    /// Returns the part of `film` that it has played, once that is all, or nothing more comes.
    fn played(mut self, film: &[u8]) -> Vec<u8> {
        let (mut bytes, mut since) = (0, Instant::now());
        let quiet = Duration::from_millis(LATENCY_MS * 4);
        while bytes < film.len() as u64 && since.elapsed() < quiet {
            std::thread::sleep(Duration::from_millis(50));
            let now = std::fs::metadata(&self.output).map_or(0, |meta| meta.len());
            if now != bytes {
                (bytes, since) = (now, Instant::now());
            }
        }
        signal(self.child.id(), "KILL");
        self.child.wait().expect("our child");
        std::fs::read(&self.output).unwrap_or_default()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns ports that are free now.
fn free_ports<const N: usize>() -> [u16; N] {
    let sockets = [(); N].map(|()| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port"));
    sockets.map(|socket| socket.local_addr().expect("it is bound").port())
}

/// Whether a UDP socket of this network namespace has the port.
fn is_bound(port: u16) -> bool {
    let text = std::fs::read_to_string("/proc/net/udp").expect("the kernel lists its sockets");
    let end = format!(":{port:04X}");
    text.lines().any(|line| line.split_whitespace().nth(1).is_some_and(|local| local.ends_with(&end)))
}

fn wait_for(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < TIMEOUT, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Asserts that the film came out whole; the message reports the packets lost on the way.
fn assert_whole(played: &[u8], film: &[u8], dropped: u32) {
    let packets = |bytes: &[u8]| bytes.len() / DEFAULT_PACKET_BYTES;
    let first = played.iter().zip(film).position(|(a, b)| a != b).map(|at| at / DEFAULT_PACKET_BYTES);
    assert!(
        played == film,
        "{} of {} packets, the first wrong one {first:?}; {dropped} were dropped",
        packets(played),
        packets(film)
    );
}

/// Whether a datagram goes on.
type Decides = Box<dyn Fn(&[u8]) -> bool + Send>;

/// Between the server and a receiver: drops media packets, hands on the rest.
struct Relay {
    port: u16,
    /// Packets dropped, media packets and FEC packets handed on.
    counts: [Arc<AtomicU32>; 3],
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Relay {
    /// Listens on a port for RTP and, two above, for FEC.
    fn start(to: &Receiver, drops: impl Fn(u32) -> bool + Send + 'static) -> Self {
        let bind = |port: u16| UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).ok();
        let (port, rtp, fec) = (0..1000)
            .find_map(|_| {
                let [port] = free_ports();
                let (rtp, fec) = (bind(port)?, bind(port.checked_add(2)?)?);
                Some((port, rtp, fec))
            })
            .expect("two free ports");
        let counts: [Arc<AtomicU32>; 3] = Default::default();
        let stop = Arc::new(AtomicBool::new(false));
        let [dropped, media, parity] = counts.clone();
        let sockets: [(UdpSocket, SocketAddr, Decides); 2] = [
            (
                rtp,
                to.rtp,
                Box::new(move |datagram| {
                    let packet = RtpHeader::parse(datagram).expect("RTP").0.sequence.wrapping_sub(1);
                    let gone = drops(u32::from(packet));
                    (if gone { &dropped } else { &media }).fetch_add(1, Ordering::Relaxed);
                    !gone
                }),
            ),
            (
                fec,
                to.fec,
                Box::new(move |datagram| {
                    let (header, payload) = RtpHeader::parse(datagram).expect("RTP");
                    assert_eq!((header.payload_type, header.ssrc), (PAYLOAD_TYPE_FEC, 0));
                    assert!(FecHeader::parse(payload).is_some(), "an FEC header");
                    parity.fetch_add(1, Ordering::Relaxed);
                    true
                }),
            ),
        ];
        let threads = sockets.into_iter().map(|(socket, to, goes_on)| {
            let stop = Arc::clone(&stop);
            socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a time-out can be set");
            std::thread::spawn(move || {
                let mut datagram = [0; 65_536];
                while !stop.load(Ordering::Relaxed) {
                    let Ok(length) = socket.recv(&mut datagram) else { continue };
                    if goes_on(&datagram[..length]) {
                        socket.send_to(&datagram[..length], to).expect("loopback takes it");
                    }
                }
            })
        });
        let threads = threads.collect();
        Self { port, counts, stop, threads }
    }

    /// Waits until this many FEC packets have been forwarded: the last of them follow the media.
    fn wait_for_parity(&self, packets: u32) {
        let begun = Instant::now();
        while self.counts[2].load(Ordering::Relaxed) < packets && begun.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Dropped, media packets and FEC packets handed on.
    fn finish(self) -> [u32; 3] {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("the relay ran to its end");
        }
        self.counts.map(|count| count.load(Ordering::Relaxed))
    }
}

/// The format alone: packets made here from a film's bytes, according to the contract. The server's
/// packets must be the same.
#[test]
fn packets_made_by_the_book_are_repaired() {
    let dir = tempfile::tempdir().unwrap();
    let rate_kbps = 2000;
    let bytes = std::fs::read(film(dir.path(), "film.ts", 8)).unwrap();
    std::thread::scope(|scope| {
        let packets = bytes.len().div_ceil(DEFAULT_PACKET_BYTES) as u32;
        for (k, unit) in [(4, 20), (8, 12)] {
            let matrix = Matrix { k, unit, packets };
            let (bytes, output) = (&bytes, dir.path().join(format!("{}.ts", matrix.k)));
            scope.spawn(move || {
                let Some(receiver) = Receiver::start(output) else { return };
                let dropped = send_by_the_book(bytes, matrix, rate_kbps, &receiver);
                assert!(dropped > 50, "{dropped}");
                assert_whole(&receiver.played(bytes), bytes, dropped);
            });
        }
    });
}

/// Sends a film and its column FEC at its rate; returns how many packets it kept to itself.
fn send_by_the_book(film: &[u8], matrix: Matrix, rate_kbps: u64, to: &Receiver) -> u32 {
    let packets: Vec<&[u8]> = film.chunks(DEFAULT_PACKET_BYTES).collect();
    let packet_ns = DEFAULT_PACKET_BYTES as u64 * 8 * 1_000_000 / rate_kbps;
    let ticks = |packet: u64| (packet * packet_ns * 9 / 100_000) as u32;
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let start = Instant::now();
    let mut dropped = 0;
    let end = (packets.len() as u32).next_multiple_of(matrix.row_packets()) + matrix.row_packets();
    for number in 0..end {
        let due = start + Duration::from_nanos(u64::from(number) * packet_ns);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        if let Some(payload) = packets.get(number as usize) {
            let header = RtpHeader {
                marker: false,
                payload_type: PAYLOAD_TYPE_MP2T,
                sequence: sequence_of(number),
                timestamp: ticks(number.into()),
                ssrc: 0x1234_abcd,
            };
            if matrix.drops(number) {
                dropped += 1;
            } else {
                socket.send_to(&[&header.emit()[..], payload].concat(), to.rtp).unwrap();
            }
        }
        // The FEC of the row before: a column with each k media packets.
        let (row, place) = (number / matrix.row_packets(), number % matrix.row_packets());
        if row > 0
            && place.is_multiple_of(matrix.k)
            && let Some(datagram) = column_fec(&packets, matrix, row - 1, place / matrix.k, ticks)
        {
            socket.send_to(&datagram, to.fec).unwrap();
        }
    }
    dropped
}

/// The FEC packet of a column; `None` if it has no packets.
fn column_fec(
    packets: &[&[u8]],
    matrix: Matrix,
    row: u32,
    column: u32,
    ticks: impl Fn(u64) -> u32,
) -> Option<Vec<u8>> {
    let first = row * matrix.row_packets() + column;
    let numbers = (0..matrix.k).map(|unit| first + unit * matrix.unit);
    let numbers: Vec<u32> = numbers.filter(|&number| (number as usize) < packets.len()).collect();
    let mut recovery = [0; PROTECTED_FIELDS_BYTES];
    let mut data = Vec::new();
    for &number in &numbers {
        let payload = packets[number as usize];
        let fields = protected_fields(payload.len() as u16, PAYLOAD_TYPE_MP2T, ticks(number.into()));
        recovery.iter_mut().zip(fields).for_each(|(sum, field)| *sum ^= field);
        let mut padded = payload.to_vec();
        padded.resize(DEFAULT_PACKET_BYTES, 0);
        data.push(padded);
    }
    let mut parity = [vec![0; DEFAULT_PACKET_BYTES], vec![0; DEFAULT_PACKET_BYTES]];
    let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    // The first parity is the same XOR however many there are.
    let [xor, other] = &mut parity;
    Code::new(matrix.k as usize, 2)?.encode(&data, &mut [xor.as_mut_slice(), other.as_mut_slice()]);
    let header = FecHeader {
        sn_base: sequence_of(*numbers.first()?),
        offset: matrix.unit as u8,
        count: numbers.len() as u8,
        ..FecHeader::default()
    };
    let number = row * matrix.unit + column;
    let departure = u64::from((row + 1) * matrix.row_packets() + column * matrix.k);
    let rtp = RtpHeader {
        marker: false,
        payload_type: PAYLOAD_TYPE_FEC,
        sequence: sequence_of(number),
        timestamp: ticks(departure),
        ssrc: 0,
    };
    Some([&rtp.emit()[..], &header.with_recovery(recovery).emit(), xor].concat())
}

/// A volume with parity, one film in it, and our server.
struct Stored {
    server: Server,
    film: Vec<u8>,
}

impl Stored {
    fn new(dir: &std::path::Path, members: usize, create: &[&str]) -> Self {
        let dirs: Vec<String> =
            (0..members).map(|i| dir.join(format!("member{i}")).display().to_string()).collect();
        let mut args = vec!["volume", "create"];
        args.extend(dirs.iter().map(String::as_str));
        args.extend(create);
        ok(&args);
        let source = film(dir, "film.ts", 8);
        ok(&["add", "--quiet", source.to_str().unwrap(), "--store", &dirs[0]]);
        let server = Server::start(std::path::Path::new(&dirs[0]), &[]);
        Self { server, film: std::fs::read(source).unwrap() }
    }
}

/// Returns the value of `name=` in the FEC attribute or header.
fn parameter(text: &str, name: &str) -> u32 {
    let found = text.split(';').find_map(|part| part.trim().strip_prefix(name)?.strip_prefix('='));
    found.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
}

/// Our server's packets through the relay: whatever it drops, GStreamer plays the film. Nothing is encoded meanwhile.
fn repairs(members: usize, create: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let Some(receiver) = Receiver::start(dir.path().join("played.ts")) else { return };
    let mut stored = Stored::new(dir.path(), members, create);
    let packets = stored.film.len().div_ceil(DEFAULT_PACKET_BYTES) as u32;
    let mut viewer = Dialogue::new(&stored.server, "film");
    let sdp = viewer.ask("DESCRIBE", "", "Accept: application/sdp\r\n");
    let offer = sdp.lines().find_map(|line| line.strip_prefix("a=x-millrace-fec:")).expect("an offer");
    let matrix = Matrix { k: parameter(offer, "k"), unit: parameter(offer, "U"), packets };
    assert_eq!((parameter(offer, "D"), parameter(offer, "L")), (matrix.k, matrix.unit));

    let relay = Relay::start(&receiver, move |packet| matrix.drops(packet));
    let transport = format!("Transport: RTP/AVP;unicast;client_port={}-{}\r\n", relay.port, relay.port + 1);
    let reply = viewer.ask("SETUP", "/track1", &format!("{transport}X-Millrace-FEC: xor\r\n"));
    let granted = header(&reply, "X-Millrace-FEC").expect("an answer");
    assert!(granted.starts_with("xor;"), "{granted}");
    assert_eq!(parameter(granted, "xor_port"), u32::from(relay.port) + 2);
    viewer.ask("PLAY", "", "");
    let played = receiver.played(&stored.film);
    let rows = packets.div_ceil(matrix.row_packets());
    let last = packets - (rows - 1) * matrix.row_packets();
    let columns = (rows - 1) * matrix.unit + last.min(matrix.unit);
    relay.wait_for_parity(columns);
    viewer.ask("TEARDOWN", "", "");
    let [dropped, media, parity] = relay.finish();
    assert!(dropped > packets / 20, "{dropped} of {packets}");
    assert_whole(&played, &stored.film, dropped);
    assert_eq!((dropped + media, parity), (packets, columns));

    assert!(stored.server.interrupt(), "clean shutdown: {:?}", stored.server.log);
    let said = stored.server.wait_for("parity: ", Duration::from_secs(10));
    assert!(said.contains("parity: 0 bytes encoded, 0 bytes decoded"), "{said}");
}

#[test]
fn gstreamer_repairs_losses_with_fec_of_one_member() {
    repairs(1, &["--fec", "1"]);
}

#[test]
fn gstreamer_repairs_losses_with_parity_of_two_members() {
    repairs(2, &["--parity", "1"]);
}

/// A player that knows nothing of FEC is not disturbed by it, and one that only takes a URL can ask for it.
#[test]
fn ffmpeg_plays_with_the_offer_and_with_the_query() {
    if !Command::new("ffprobe").arg("-version").output().is_ok_and(|done| done.status.success()) {
        return eprintln!("skipped: ffprobe is not installed");
    }
    let dir = tempfile::tempdir().unwrap();
    let mut stored = Stored::new(dir.path(), 1, &["--fec", "2"]);
    for (query, granted) in [("", None), ("?fec=all", Some("has FEC all"))] {
        let url = format!("{}{query}", stored.server.title("film"));
        let kinds = support::ffprobe_kinds(&url);
        assert!(kinds.contains("video") && kinds.contains("audio"), "{query}: {kinds}");
        match granted {
            Some(line) => drop(stored.server.wait_for(line, Duration::from_secs(10))),
            None => assert!(stored.server.said("has FEC").is_empty(), "nobody asked"),
        }
    }
}

/// One RTSP connection, one request after the other.
struct Dialogue {
    stream: TcpStream,
    url: String,
    cseq: u32,
    session: Option<String>,
}

impl Dialogue {
    fn new(server: &Server, title: &str) -> Self {
        let stream = TcpStream::connect(server.addr).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        Self { stream, url: server.title(title), cseq: 0, session: None }
    }

    /// Header lines and body of the reply, which is a 200.
    fn ask(&mut self, method: &str, suffix: &str, headers: &str) -> String {
        self.cseq += 1;
        let session =
            self.session.as_ref().map_or_else(String::new, |session| format!("Session: {session}\r\n"));
        let request = format!(
            "{method} {}{suffix} RTSP/1.0\r\nCSeq: {}\r\n{session}{headers}\r\n",
            self.url, self.cseq
        );
        self.stream.write_all(request.as_bytes()).unwrap();
        let (head, body) = read_message(&mut self.stream);
        assert!(head.starts_with("RTSP/1.0 200 "), "{method}: {head}");
        if let Some(session) = header(&head, "Session") {
            self.session = Some(session.split(';').next().unwrap().to_owned());
        }
        head + &body
    }
}
