//! The call with real sockets, threads and time.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{film, noise};
use millrace_make::ingest::{IngestOptions, ingest};
use millrace_store::transform::{Derivation, PacketBlock, timeline_of};
use millrace_store::volume::TitleInfo;
use millrace_stream::{
    Assembly, BitRate, BlockPacing, Buffer, Connection, MediaSource, OpenError, Reason, RunError, RunOutcome,
    SourcePosition, StreamContext, StreamEngine, StreamEngineConfig, Transforms, Transport, Volume, WhenFull,
};

/// However busy this machine is.
fn engine() -> StreamEngine {
    let config = StreamEngineConfig { max_busy_permille: 1000, ..StreamEngineConfig::default() };
    StreamEngine::start(&config).unwrap()
}

fn connected() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    far.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    (listener.accept().unwrap().0, far)
}

/// A file of noise, and that as a source of this rate.
fn plain(engine: &StreamEngine, bytes: usize, rate: u64) -> (Vec<u8>, MediaSource, tempfile::NamedTempFile) {
    let (bytes, mut file) = (noise(bytes), tempfile::NamedTempFile::new().unwrap());
    file.write_all(&bytes).unwrap();
    let source = engine.plain_file(file.path(), BlockPacing::at_rate(BitRate(rate), 1316).unwrap()).unwrap();
    (bytes, source, file)
}

#[test]
fn control_message_ends_run_unread_and_next_run_continues() {
    let engine = engine();
    let (bytes, source, _file) = plain(&engine, 3_000_000, 16_000_000);
    let (near, mut far) = connected();
    let (control, mut commander) = UnixStream::pair().unwrap();
    let mut stream = StreamContext::new(Transport::tcp(near), &source).unwrap();
    stream.control(&control).unwrap().send_first("head").unwrap();
    let reader = thread::spawn(move || {
        let mut got = Vec::new();
        far.read_to_end(&mut got).unwrap();
        got
    });
    let (mut sent, mut outcomes) = (0, Vec::new());
    for word in *b"abc" {
        let talker = thread::spawn(move || {
            // The run may begin a little later: then it ends all the same, with little sent.
            thread::sleep(Duration::from_millis(100));
            commander.write_all(&[word]).unwrap();
            commander
        });
        let outcome = engine.run(&mut stream).unwrap();
        commander = talker.join().unwrap();
        sent += outcome.bytes;
        assert_eq!((outcome.reason, outcome.next.byte), (Reason::Control, sent));
        outcomes.push(outcome);
        let mut read = [0];
        (&control).read_exact(&mut read).unwrap();
        assert_eq!(read, [word], "it is the caller's to read");
    }
    assert!(outcomes.iter().any(|outcome| outcome.blocks > 0), "{outcomes:?}");
    let last = engine.run(&mut stream).unwrap();
    assert_eq!((last.reason, sent + last.bytes), (Reason::Finished, 3_000_000));
    // Input that is already there when a run begins ends it at once.
    commander.write_all(b"x").unwrap();
    let outcome = engine.run(stream.start_at(SourcePosition::START)).unwrap();
    assert_eq!(outcome.reason, Reason::Control);
    let back = stream.finish().unwrap().and_then(Connection::into_fd);
    let mut back = TcpStream::from(back.expect("the connection"));
    back.write_all(b"tail").unwrap();
    drop(back);
    let got = reader.join().unwrap();
    assert!(got[..4] == *b"head" && got[4..][..bytes.len()] == bytes);
    assert!(got.ends_with(b"tail") && got.len() as u64 == 4 + 3_000_000 + outcome.bytes + 4);
}

#[test]
fn peer_killed_ends_run_and_stream_context() {
    let engine = engine();
    let (_, source, _file) = plain(&engine, 3_000_000, 8_000_000);
    let (near, far) = connected();
    let mut stream = StreamContext::new(Transport::tcp(near), &source).unwrap();
    let player = Command::new("cat").stdin(OwnedFd::from(far)).stdout(Stdio::piped()).spawn();
    let reader = thread::spawn(move || {
        let mut player = player.unwrap();
        player.stdout.as_mut().unwrap().read_exact(&mut [0; 50_000]).unwrap();
        player.kill().unwrap();
        player.wait().unwrap()
    });
    let outcome = engine.run(&mut stream).unwrap();
    reader.join().unwrap();
    assert!(matches!(outcome.reason, Reason::PeerGone { .. }), "{outcome:?}");
    assert!(outcome.bytes >= 50_000 && outcome.bytes < 3_000_000 && outcome.blocks > 0);
    assert!(matches!(engine.run(&mut stream), Err(RunError::ConnectionGone { .. })));
    assert!(stream.finish().unwrap().is_none());
}

#[test]
fn circular_buffer_delivers_written_bytes_to_peer() {
    let engine = engine();
    let (source, mut writer) =
        engine.buffer(Buffer::circular(BitRate(20_000_000), 2 << 20, WhenFull::Wait)).unwrap();
    let (near, mut far) = connected();
    let mut ffmpeg = Command::new("ffmpeg")
        .args([
            "-v",
            "error",
            "-re",
            "-f",
            "lavfi",
            "-i",
            "testsrc2=s=320x240:r=25:d=3",
            "-c:v",
            "mpeg2video",
        ])
        .args(["-b:v", "2M", "-f", "mpegts", "-"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("ffmpeg");
    let mut pipe = ffmpeg.stdout.take().unwrap();
    let feeder = thread::spawn(move || {
        let (mut chunk, mut written) = ([0; 10_000], Vec::new());
        while let Ok(count @ 1..) = pipe.read(&mut chunk) {
            writer.write_all(&chunk[..count]).unwrap();
            written.extend_from_slice(&chunk[..count]);
        }
        writer.finish().unwrap();
        written
    });
    let reader = thread::spawn(move || {
        let mut got = Vec::new();
        far.read_to_end(&mut got).unwrap();
        got
    });
    let mut stream = StreamContext::new(Transport::tcp(near), &source).unwrap();
    let outcome = engine.run(&mut stream).unwrap();
    stream.finish().unwrap();
    let (written, got) = (feeder.join().unwrap(), reader.join().unwrap());
    assert!(ffmpeg.wait().unwrap().success());
    assert_eq!(outcome.reason, Reason::Finished);
    assert!(written.len() > 100_000 && got[..written.len()] == written, "{} of {}", got.len(), written.len());
    // The last packet was filled up.
    assert_eq!((got.len() as u64, got.len() - written.len() < 1316), (outcome.bytes, true));
}

/// Voluntary context switches of a thread of this process.
fn switches(tid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/self/task/{tid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    line.trim().parse().unwrap()
}

/// Each caller has a control descriptor.
fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
}

#[test]
fn run_callers_sleep_while_two_thousand_streams_play() {
    const CALLERS: usize = 2000;
    raise_open_files();
    let engine = Arc::new(engine());
    // Two packets a second, for some minutes.
    let (_, source, _file) = plain(&engine, 2_000_000, 21_056);
    let sink = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = sink.local_addr().unwrap();
    let (control, mut commander) = UnixStream::pair().unwrap();
    let (control, tids) = (Arc::new(control), Arc::new(Mutex::new(Vec::new())));
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            let (engine, source) = (Arc::clone(&engine), source.clone());
            let (control, tids) = (Arc::clone(&control), Arc::clone(&tids));
            let body = move || {
                let mut stream = StreamContext::new(Transport::udp(to), &source).unwrap();
                stream.control(&control).unwrap();
                tids.lock().unwrap().push(rustix::thread::gettid().as_raw_nonzero().get());
                engine.run(&mut stream).unwrap()
            };
            thread::Builder::new().stack_size(128 << 10).spawn(body).unwrap()
        })
        .collect();
    let gives_up = Instant::now() + Duration::from_secs(60);
    let until = |done: &dyn Fn(u64, u64) -> bool| loop {
        let sent = engine.sheets()[0].engine.read();
        if done(sent.playing, sent.packets) {
            break sent.packets;
        }
        assert!(Instant::now() < gives_up, "{sent:?}");
        thread::sleep(Duration::from_millis(10));
    };
    let all = CALLERS as u64;
    let packets = until(&|playing, packets| playing == all && packets >= 8 * all);
    let tids = tids.lock().unwrap().clone();
    let count = || tids.iter().map(|&tid| switches(tid)).collect::<Vec<_>>();
    let before = count();
    until(&|_, now| now >= packets + 4 * all);
    let woken = before.iter().zip(count()).filter(|(before, after)| *before != after).count();
    commander.write_all(b"stop").unwrap();
    let outcomes: Vec<RunOutcome> = callers.into_iter().map(|caller| caller.join().unwrap()).collect();
    assert_eq!(woken, 0, "of {CALLERS} callers, while their streams sent four packets each");
    assert!(outcomes.iter().all(|outcome| outcome.reason == Reason::Control && outcome.blocks > 0));
}

#[test]
fn futures_run_in_tokio_and_end_their_run_when_they_are_dropped() {
    let engine = engine();
    let (bytes, source, _file) = plain(&engine, 2_000_000, 40_000_000);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (near, mut far) = connected();
    let reader = thread::spawn(move || {
        let mut got = Vec::new();
        far.read_to_end(&mut got).unwrap();
        got
    });
    let sink = UdpSocket::bind("127.0.0.1:0").unwrap();
    let datagrams = || Transport::udp(sink.local_addr().unwrap());
    let mut stream = StreamContext::new(Transport::tcp(near), &source).unwrap();
    runtime.block_on(async {
        for _ in 0..5 {
            let run = tokio::time::timeout(Duration::from_millis(20), engine.run_async(&mut stream)).await;
            assert!(run.is_err(), "it lasts longer");
        }
        let (mut one, mut two) = (
            StreamContext::new(datagrams(), &source).unwrap(),
            StreamContext::new(datagrams(), &source).unwrap(),
        );
        let (a, b, c) = tokio::join!(
            engine.run_async(&mut stream),
            engine.run_async(one.stop_at(Some(SourcePosition::Packet(100)))),
            engine.run_async(two.stop_at(Some(SourcePosition::Packet(200)))),
        );
        let all = [a.unwrap(), b.unwrap(), c.unwrap()];
        assert!(all.iter().all(|outcome| outcome.reason == Reason::Finished), "{all:?}");
        assert_eq!((all[0].next.byte, all[1].packets, all[2].packets), (2_000_000, 100, 200));
        assert!(stream.finish_async().await.is_some());
    });
    assert!(
        reader.join().unwrap() == bytes,
        "no hole and no repeat at any of the places where it was dropped"
    );
}

#[test]
fn rtp_in_a_connection_goes_on_in_its_numbers_over_seeks_and_other_sources() {
    let engine = engine();
    let film = film(4);
    let source = engine.transport_stream(film.path()).unwrap();
    let again = engine.transport_stream(film.path()).unwrap();
    let (near, mut far) = connected();
    let reader = thread::spawn(move || {
        let mut got = Vec::new();
        far.read_to_end(&mut got).unwrap();
        got
    });
    let mut stream = StreamContext::new(Transport::interleaved(near, 4, 5), &source).unwrap();
    let control = UnixStream::pair().unwrap();
    stream.control(&control.0).unwrap();
    let mut packets = 0;
    for (word, from) in
        [None, Some(SourcePosition::Access(Duration::from_secs(2))), Some(SourcePosition::Packet(3))]
            .into_iter()
            .enumerate()
    {
        if word == 2 {
            stream.change_source(&again).unwrap();
        }
        if let Some(from) = from {
            stream.start_at(from);
        }
        let mut commander = control.1.try_clone().unwrap();
        let talker = thread::spawn(move || {
            thread::sleep(Duration::from_millis(300));
            commander.write_all(b"x").unwrap();
        });
        let outcome = engine.run(&mut stream).unwrap();
        talker.join().unwrap();
        (&control.0).read_exact(&mut [0]).unwrap();
        assert_eq!(outcome.reason, Reason::Control);
        packets += outcome.packets;
    }
    stream.finish().unwrap();
    let numbers = rtp_of(&reader.join().unwrap());
    assert_eq!(numbers.len(), packets as usize);
    assert!(numbers.windows(2).all(|pair| pair[1].0 == pair[0].0.wrapping_add(1)), "{numbers:?}");
}

/// Sequence number and SSRC of each RTP packet on channel 4 of a connection.
fn rtp_of(got: &[u8]) -> Vec<(u16, u32)> {
    let (mut at, mut numbers) = (0, Vec::new());
    while at < got.len() {
        let length = usize::from(u16::from_be_bytes([got[at + 2], got[at + 3]]));
        assert!(got[at] == b'$' && [4, 5].contains(&got[at + 1]));
        if got[at + 1] == 4 {
            let ssrc = u32::from_be_bytes(got[at + 12..at + 16].try_into().unwrap());
            numbers.push((u16::from_be_bytes([got[at + 6], got[at + 7]]), ssrc));
        }
        at += 4 + length;
    }
    numbers
}

#[test]
fn stream_engine_refuses_impossible_requests_and_reports_shutdown() {
    let taken = UdpSocket::bind("0.0.0.0:0").unwrap();
    let even = taken.local_addr().unwrap().port() & !1;
    let config = StreamEngineConfig { udp_ports: (even, even + 1), ..StreamEngineConfig::default() };
    assert!(matches!(StreamEngine::start(&config), Err(OpenError::Net(_))), "one of the ports is in use");
    let engine = engine();
    for config in [
        StreamEngineConfig { cache_bytes: 1, ..config.clone() },
        StreamEngineConfig { engines: 0, ..config.clone() },
        StreamEngineConfig { streams: 0, ..config.clone() },
    ] {
        assert!(matches!(StreamEngine::start(&config), Err(OpenError::Config(_))));
    }
    let too_much = Buffer::circular(BitRate(1_000_000), 1 << 30, WhenFull::Wait);
    assert!(matches!(engine.buffer(too_much), Err(OpenError::Cache(_))));
    let (_, plain, _file) = plain(&engine, 100_000, 8_000_000);
    let mut v6 = StreamContext::new(Transport::udp("[::1]:9".parse().unwrap()), &plain).unwrap();
    let refused = engine.run(&mut v6).unwrap_err().to_string();
    assert!(refused.contains("address family"), "{refused}");
    // A control descriptor that cannot be watched is an error of the run, which has sent nothing then.
    let (near, mut far) = connected();
    let mut stream = StreamContext::new(Transport::tcp(near), &plain).unwrap();
    stream.control(&tempfile::tempfile().unwrap()).unwrap().send_first("head").unwrap();
    assert!(matches!(engine.run(&mut stream), Err(RunError::Control(_))));
    drop(stream.finish().unwrap());
    assert_eq!(far.read_to_end(&mut Vec::new()).unwrap(), 0);
    let mut stream = StreamContext::new(Transport::udp(([127, 0, 0, 1], 9).into()), &plain).unwrap();
    let (live, mut writer) = engine.buffer(Buffer::circular(BitRate(1_000_000), 0, WhenFull::Wait)).unwrap();
    let other = self::engine();
    assert!(matches!(other.run(&mut stream), Err(RunError::OtherEngine)));
    // A writer that waits for a reader is notified too.
    let waits = thread::spawn(move || {
        loop {
            if let Err(error) = writer.write(&[0x47; 188]) {
                break error.kind();
            }
        }
    });
    drop(engine);
    assert_eq!(waits.join().unwrap(), ErrorKind::BrokenPipe);
    assert!(matches!(other.run(&mut stream), Err(RunError::OtherEngine)));
    drop((live, stream, plain));
}

#[test]
fn run_ended_by_shutdown_reports_bytes_received_by_peer() {
    let engine = engine();
    let (_, source, _file) = plain(&engine, 3_000_000, 8_000_000);
    let (near, mut far) = connected();
    let mut stream = StreamContext::new(Transport::tcp(near), &source).unwrap();
    let run = engine.run_async(&mut stream);
    let outcome = thread::scope(|scope| {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let runner = scope.spawn(move || runtime.block_on(run).unwrap());
        far.read_exact(&mut [0; 50_000]).unwrap();
        drop(engine);
        runner.join().unwrap()
    });
    let mut rest = Vec::new();
    far.read_to_end(&mut rest).unwrap();
    assert_eq!((outcome.reason, outcome.bytes), (Reason::ShutDown, 50_000 + rest.len() as u64));
    assert!(outcome.blocks > 0);
    assert!(stream.finish().unwrap().is_none());
}

#[test]
fn datagrams_have_the_bytes_of_the_source_and_no_more() {
    let engine = engine();
    let film = film(1);
    let bytes = std::fs::read(film.path()).unwrap();
    let source = engine.transport_stream(film.path()).unwrap();
    assert_eq!(source.bytes(), Some(bytes.len() as u64));
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    receiver.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut stream = StreamContext::new(Transport::udp(receiver.local_addr().unwrap()), &source).unwrap();
    let reader = thread::spawn(move || {
        let (mut got, mut datagram) = (Vec::new(), [0; 2000]);
        while got.len() < bytes.len() {
            let count = receiver.recv(&mut datagram).unwrap();
            got.extend_from_slice(&datagram[..count]);
        }
        (got, bytes)
    });
    let outcome = engine.run(&mut stream).unwrap();
    let (got, bytes) = reader.join().unwrap();
    assert_eq!((outcome.reason, outcome.bytes), (Reason::Finished, bytes.len() as u64));
    assert!(got == bytes);
}

/// A title of a volume in an engine with transformations.
struct Site {
    transforms: Transforms,
    title: MediaSource,
    info: TitleInfo,
    engine: StreamEngine,
    stored: Vec<u8>,
    file: tempfile::NamedTempFile,
    _dir: tempfile::TempDir,
}

impl Site {
    fn new(texts: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (volume, file) = (Volume::open_or_create(dir.path()).unwrap(), film(3));
        let info = ingest(&volume, file.path(), &IngestOptions::default(), &mut |_| ()).unwrap();
        let transforms = Transforms::parse(texts).unwrap();
        let config = StreamEngineConfig {
            max_busy_permille: 1000,
            transforms: transforms.clone(),
            ..StreamEngineConfig::default()
        };
        let engine = StreamEngine::start(&config).unwrap();
        let title = engine.title(&volume, info.id).unwrap();
        let stored = std::fs::read(file.path()).unwrap();
        Self { transforms, title, info, engine, stored, file, _dir: dir }
    }

    /// Returns a context that sends the title as fast as it can, and the data received from it.
    fn stream(&self, transport: fn(TcpStream) -> Transport) -> (StreamContext, thread::JoinHandle<Vec<u8>>) {
        let (near, mut far) = connected();
        let reader = thread::spawn(move || {
            let mut got = Vec::new();
            far.read_to_end(&mut got).unwrap();
            got
        });
        let mut stream = StreamContext::new(transport(near), &self.title).unwrap();
        stream.ahead(Duration::from_secs(10));
        (stream, reader)
    }
}

fn named(name: &str) -> Assembly {
    Assembly::Transformed(name.to_owned())
}

#[test]
fn titles_are_sent_as_a_named_transformation_makes_them_and_it_does_so_once() {
    let site = Site::new(&["fra=select:audio=fra", "mute=select:audio=none"]);
    let Site { engine, info, stored, .. } = &site;
    let (mute, mut made) = (site.transforms.find("mute").unwrap(), stored.clone());
    let derivation = Derivation::bind(mute, info.id, stored).unwrap();
    assert!(
        derivation.apply(&mut PacketBlock::of_bytes(0, 1316, &mut made), &mut Vec::new()) && made != *stored
    );
    let before = mute.report().counters().transformed_blocks;
    let half = 250 * 1316;
    // The data received of the title if its first part is made with `first`, and the rest with
    // `rest`.
    let sent = |first: Assembly, rest: Assembly| {
        let (mut stream, reader) = site.stream(Transport::tcp);
        for (assembly, stop) in [(first, Some(SourcePosition::Byte(half as u64))), (rest, None)] {
            let outcome = engine.run(stream.assembly(assembly).unwrap().stop_at(stop)).unwrap();
            assert_eq!((outcome.reason, outcome.missing), (Reason::Finished, 0));
        }
        drop(stream);
        reader.join().unwrap()
    };
    assert!(sent(named("mute"), named("mute")) == made);
    assert!(sent(Assembly::Plain, named("mute")) == [&stored[..half], &made[half..]].concat());
    assert!(sent(named("mute"), Assembly::Plain) == [&made[..half], &stored[half..]].concat());
    let extents = info.packets.div_ceil(196);
    assert_eq!(mute.report().counters().transformed_blocks - before, u64::from(extents));
}

/// Different packets with the same numbers are those of another source (RFC 3550 section 8); of one stream they are from one.
#[test]
fn transformed_title_has_single_ssrc_of_its_own() {
    let site = Site::new(&["all=select:audio=all", "mute=select:audio=none"]);
    let ssrcs = |assembly: Assembly| {
        let (mut stream, reader) = site.stream(|near| Transport::interleaved(near, 4, 5));
        stream.assembly(assembly).unwrap();
        for (from, to) in [(0, 100), (40, 150), (150, 200)] {
            stream.start_at(SourcePosition::Packet(from)).stop_at(Some(SourcePosition::Packet(to)));
            assert_eq!(site.engine.run(&mut stream).unwrap().packets, to - from);
        }
        drop(stream);
        let numbers = rtp_of(&reader.join().unwrap());
        assert_eq!(numbers.len(), 260);
        let mut ssrcs: Vec<_> = numbers.iter().map(|(_, ssrc)| *ssrc).collect();
        ssrcs.dedup();
        ssrcs
    };
    let timeline = site.info.timeline_of(1316);
    assert_eq!(ssrcs(Assembly::Plain), [timeline.ssrc]);
    assert_eq!(ssrcs(named("mute")), [timeline_of(timeline, 1).ssrc]);
    assert_eq!(ssrcs(named("all")), [timeline_of(timeline, 0).ssrc]);
}

#[test]
fn assembly_with_unsuitable_transform_is_refused_without_effect() {
    let site = Site::new(&["fra=select:audio=fra", "mute=select:audio=none"]);
    let (mut stream, reader) = site.stream(Transport::tcp);
    let mut refused = |name: &str| stream.assembly(named(name)).unwrap_err().to_string();
    assert!(refused("deu").contains("no transformation is called deu"));
    assert!(refused("fra").contains("no audio in fra"));
    assert_eq!(site.engine.run(&mut stream).unwrap().reason, Reason::Finished);
    drop(stream);
    assert!(reader.join().unwrap() == site.stored);
    let (_, noise, _file) = plain(&site.engine, 10_000, 1_000_000);
    let circular = Buffer::circular(BitRate(1_000_000), 2 << 20, WhenFull::Wait);
    let (live, _writer) = site.engine.buffer(circular).unwrap();
    for source in [site.engine.transport_stream(site.file.path()).unwrap(), noise, live] {
        let (near, _far) = connected();
        let mut stream = StreamContext::new(Transport::tcp(near), &source).unwrap();
        let error = stream.assembly(named("mute")).unwrap_err().to_string();
        assert!(error.contains("only titles of a volume can be transformed"), "{error}");
        // Nor is a stream that is transformed changed to it.
        let (mut stream, _reader) = site.stream(Transport::tcp);
        let changed = stream.assembly(named("mute")).unwrap().change_source(&source);
        assert!(matches!(changed, Err(OpenError::NotSo { .. })));
    }
}
