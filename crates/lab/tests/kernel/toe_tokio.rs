//! Sockets of the offload engine on tokio against this kernel's: a web server of hyper and axum for curl, and that only those tasks are woken that
//! have something to do.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::process::Command;
use std::rc::Rc;
use std::sync::{Arc, Barrier};
use std::thread::scope;

use crate::support::{TIMEOUT, can_run, pattern};
use axum::Router;
use axum::extract::{Path, Request};
use axum::routing::{get, post};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use millrace_core::ids::TitleRef;
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::pool::{ExtentArena, ExtentContent, HeapRegion, Lease};
use millrace_core::time::MediaTicks;
use millrace_core::wire::checksum::sum16;
use millrace_lab::tcp_host::{KERNEL_IP, OUR_IP};
use millrace_lab::toe_host::ToeHost;
use millrace_offload::toe::tokio::{Reactor, TcpListener, TcpStream};
use millrace_offload::toe::{ExtentRange, SlotPart};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Notify, oneshot};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::timeout;

const PORT: u16 = 7200;

fn ours(port: u16) -> SocketAddr {
    (OUR_IP, port).into()
}

/// Runs on a host thread of the engine, as a server does.
fn on_runtime<T>(toe: &ToeHost, work: impl AsyncFnOnce(Reactor) -> T) -> T {
    let host = toe.engine().attach().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let work = async { work(Reactor::new(&host).unwrap()).await };
        timeout(TIMEOUT, work).await.expect("something hangs")
    })
}

const LARGE: usize = 8 << 20;

fn router() -> Router {
    Router::new()
        .route("/hello/{number}", get(|Path(number): Path<u32>| async move { format!("hello {number}\n") }))
        .route("/large", get(|| async { pattern(1, 0, LARGE) }))
        .route("/echo", post(|request: Request| async { request.into_body() }))
}

/// Serves every connection that comes until it is stopped.
async fn serve(reactor: &Reactor, mut stop: oneshot::Receiver<()>, listening: &Barrier) {
    let listener = TcpListener::bind(reactor, ours(PORT)).unwrap();
    assert_eq!(listener.local_addr().unwrap(), ours(PORT));
    listening.wait();
    loop {
        let (stream, peer) = tokio::select! {
            accepted = listener.accept() => accepted.unwrap(),
            _ = &mut stop => return,
        };
        assert_eq!((stream.local_addr().unwrap(), stream.peer_addr().unwrap()), (ours(PORT), peer));
        stream.set_nodelay(true).unwrap();
        let service = TowerToHyperService::new(router());
        spawn_local(
            async move { http1::Builder::new().serve_connection(TokioIo::new(stream), service).await },
        );
    }
}

/// What curl prints; it fails by anything but success.
fn curl(options: &[&str], path: &str) -> Vec<u8> {
    let url = format!("http://{OUR_IP}:{PORT}{path}");
    let mut command = Command::new("curl");
    let output = command
        .args(["-sS", "--fail", "--max-time", "60", "--noproxy", "*"])
        .args(options)
        .arg(url)
        .output()
        .unwrap();
    assert!(output.status.success(), "curl {path}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

#[test]
fn axum_and_hyper_serve_the_kernels_curl() {
    const EACH: u32 = 400;
    if !can_run() {
        return;
    }
    if Command::new("curl").arg("--version").output().is_err() {
        eprintln!("skipped: there is no curl");
        return;
    }
    let toe = ToeHost::start(&ToeHost::settings()).unwrap();
    let (stop, stopped) = oneshot::channel();
    let listening = Barrier::new(2);
    scope(|scope| {
        scope.spawn(|| on_runtime(&toe, async |reactor| serve(&reactor, stopped, &listening).await));
        listening.wait();
        toe.in_kernel(|| {
            let all = format!("/hello/[1-{EACH}]");
            let expected: Vec<String> = (1..=EACH).map(|number| format!("hello {number}")).collect();
            let lines = |output: Vec<u8>| {
                let text = String::from_utf8(output).unwrap();
                text.lines().map(str::to_owned).collect::<Vec<_>>()
            };
            let accepted = || toe.engine().counters().packets_in;
            assert!(accepted() == 0);
            // One connection for all, one for each, and many at once.
            assert_eq!(lines(curl(&[], &all)), expected);
            assert_eq!(lines(curl(&["-H", "Connection: close"], &all)), expected);
            let mut got =
                lines(curl(&["--parallel", "--parallel-max", "25", "-H", "Connection: close"], &all));
            got.sort_by_key(|line| line[6..].parse::<u32>().unwrap());
            assert_eq!(got, expected);
            assert!(curl(&[], "/large") == pattern(1, 0, LARGE), "another body came");
            let mut body = tempfile::NamedTempFile::new().unwrap();
            body.write_all(&pattern(2, 0, LARGE)).unwrap();
            let upload = format!("@{}", body.path().display());
            let back = curl(&["--data-binary", &upload, "-H", "Expect:"], "/echo");
            assert!(back == pattern(2, 0, LARGE), "{} of {LARGE} bytes came back, or others", back.len());
        })
        .unwrap();
        stop.send(()).unwrap();
    });
    let counters = toe.stop().unwrap();
    assert_eq!((counters.engine.rejected, counters.engine.events_lost), (0, 0), "{counters:?}");
    // One with keep-alive, and one for each request without; the two bodies.
    assert_eq!(counters.stack.accepted, u64::from(1 + 2 * EACH + 2), "{counters:?}");
}

#[test]
fn wakeups_reach_only_task_with_ready_socket() {
    const COUNT: usize = 300;
    if !can_run() {
        return;
    }
    let toe = ToeHost::start(&ToeHost::settings()).unwrap();
    let listening = Barrier::new(2);
    scope(|scope| {
        let clients = scope.spawn(|| {
            listening.wait();
            toe.in_kernel(|| {
                let connect = |_| std::net::TcpStream::connect_timeout(&ours(PORT), TIMEOUT).unwrap();
                let mut streams: Vec<_> = (0..COUNT).map(connect).collect();
                listening.wait();
                for stream in streams.iter_mut().step_by(7) {
                    stream.write_all(b"x").unwrap();
                    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
                    assert_eq!(stream.read(&mut [0; 8]).unwrap(), 1);
                }
                streams
            })
            .unwrap()
        });
        on_runtime(&toe, async |reactor| {
            let listener = TcpListener::bind(&reactor, ours(PORT)).unwrap();
            listening.wait();
            let polls: Rc<RefCell<Vec<(u16, u32)>>> = Rc::default();
            let (pending, is_pending) = (Rc::new(Cell::new(0)), Rc::new(Notify::new()));
            let (echoed, is_echoed) = (Rc::new(Cell::new(0)), Rc::new(Notify::new()));
            for index in 0..COUNT {
                let (stream, peer) = listener.accept().await.unwrap();
                polls.borrow_mut().push((peer.port(), 0));
                let (polls, pending, is_pending) =
                    (Rc::clone(&polls), Rc::clone(&pending), Rc::clone(&is_pending));
                let (echoed, is_echoed) = (Rc::clone(&echoed), Rc::clone(&is_echoed));
                spawn_local(async move {
                    poll_fn(|context| {
                        polls.borrow_mut()[index].1 += 1;
                        let ready = stream.poll_read_ready(context);
                        if ready.is_pending() {
                            pending.set(pending.get() + 1);
                            is_pending.notify_one();
                        }
                        ready
                    })
                    .await
                    .unwrap();
                    let mut byte = [0; 8];
                    assert_eq!(stream.try_read(&mut byte).unwrap(), 1);
                    assert_eq!(stream.try_read(&mut byte).unwrap_err().kind(), ErrorKind::WouldBlock);
                    stream.writable().await.unwrap();
                    assert_eq!(stream.try_write(&byte[..1]).unwrap(), 1);
                    echoed.set(echoed.get() + 1);
                    is_echoed.notify_one();
                });
            }
            while pending.get() < COUNT {
                is_pending.notified().await;
            }
            listening.wait();
            while echoed.get() < COUNT.div_ceil(7) {
                is_echoed.notified().await;
            }
            let mut counts: Vec<u32> = polls.borrow().iter().map(|&(_, count)| count).collect();
            counts.sort_unstable();
            let idle = COUNT - COUNT.div_ceil(7);
            assert!(counts[..idle].iter().all(|&count| count == 1), "{counts:?}");
            assert!(counts[idle..].iter().all(|&count| count == 2), "{counts:?}");
        });
        clients.join().unwrap();
    });
}

/// Both directions at once by references to one stream, in both roles; the end, and the reports of
/// failures.
#[test]
fn streams_do_what_tokios_do() {
    const BYTES: usize = 1_000_000;
    if !can_run() {
        return;
    }
    let toe = ToeHost::start(&ToeHost::settings()).unwrap();
    let kernel = toe.in_kernel(|| std::net::TcpListener::bind((KERNEL_IP, PORT)).unwrap()).unwrap();
    scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = kernel.accept().unwrap();
            std::io::copy(&mut stream.try_clone().unwrap(), &mut stream).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            // It breaks off.
            let (mut stream, _) = kernel.accept().unwrap();
            stream.read_exact(&mut [0; 4]).unwrap();
            drop(stream);
        });
        on_runtime(&toe, async |reactor| {
            let refused = TcpStream::connect(&reactor, (KERNEL_IP, PORT + 1).into()).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
            let stream = TcpStream::connect(&reactor, (KERNEL_IP, PORT).into()).await.unwrap();
            assert_eq!(stream.peer_addr().unwrap(), (KERNEL_IP, PORT).into());
            let (mut reader, mut writer) = (&stream, &stream);
            let sent = pattern(3, 0, BYTES);
            let write = async {
                writer.write_all(&sent).await.unwrap();
                writer.shutdown().await.unwrap();
            };
            let mut got = Vec::new();
            let read = async {
                let mut first = [0; 10];
                let count = stream.peek(&mut first).await.unwrap();
                reader.read_to_end(&mut got).await.unwrap();
                assert_eq!(first[..count], got[..count]);
            };
            tokio::join!(write, read);
            assert!(got == sent, "{} of {BYTES} bytes, or others", got.len());
            assert_eq!(writer.write(b"x").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
            let stream = TcpStream::connect(&reactor, (KERNEL_IP, PORT).into()).await.unwrap();
            (&stream).write_all(b"unread").await.unwrap();
            assert_eq!((&stream).read(&mut [0; 8]).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
        });
    });
}

const PACKETS: u32 = 20;
const PACKET_BYTES: usize = 1316;

/// Returns a leased extent of a few packets, and their content.
fn extent() -> (Arc<ExtentArena>, Lease, Vec<u8>) {
    let arena = ExtentArena::new(Box::new(HeapRegion::new(1)));
    let layout = WireLayout::new(PACKET_BYTES).unwrap();
    let (mut fill, payload) = (arena.fill(0).unwrap(), pattern(9, 0, PACKETS as usize * PACKET_BYTES));
    let bytes = fill.bytes_mut();
    for (place, packet) in (0..PACKETS).zip(payload.chunks(PACKET_BYTES)) {
        let at = place as usize * layout.slot_bytes() + layout.header_bytes();
        bytes[at..at + PACKET_BYTES].copy_from_slice(packet);
        let meta = PacketMeta::new(sum16(packet), 0, MediaTicks(0)).to_bytes();
        let at = layout.meta_offset(place, PACKETS);
        bytes[at..at + meta.len()].copy_from_slice(&meta);
    }
    fill.publish();
    let (title, last_packet_bytes) = (TitleRef(0), PACKET_BYTES as u16);
    let content = ExtentContent {
        title,
        number: 0,
        first_packet: 0,
        packets: PACKETS,
        last_packet_bytes,
        layout,
        spare: 0,
    };
    let lease = arena.lend(0, content).unwrap();
    (arena, lease, payload)
}

/// Many times the data that a connection may have unacknowledged, so the sending task sleeps and is
/// woken; the data that comes back is read where it lies.
#[test]
fn tasks_send_extents_and_read_what_is_lent() {
    const RANGES: usize = 100;
    if !can_run() {
        return;
    }
    let toe = ToeHost::start(&ToeHost::settings()).unwrap();
    let kernel = toe.in_kernel(|| std::net::TcpListener::bind((KERNEL_IP, PORT)).unwrap()).unwrap();
    let (arena, lease, payload) = extent();
    scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = kernel.accept().unwrap();
            std::io::copy(&mut stream.try_clone().unwrap(), &mut stream).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
        });
        on_runtime(&toe, async |reactor| {
            let stream = TcpStream::connect(&reactor, (KERNEL_IP, PORT).into()).await.unwrap();
            let all =
                ExtentRange { place: 0, skip: 0, bytes: payload.len() as u32, part: SlotPart::Payloads };
            let beyond = ExtentRange { bytes: all.bytes + 1, ..all };
            assert_eq!(stream.send_extent(&lease, beyond).await.unwrap_err().kind(), ErrorKind::InvalidInput);
            let write = async {
                for _ in 0..RANGES {
                    stream.send_extent(&lease, all).await.unwrap();
                }
                stream.shut(Shutdown::Write).unwrap();
            };
            let mut got = Vec::new();
            let read = async {
                loop {
                    let lent = stream.read_lent().await.unwrap();
                    if lent.is_empty() {
                        break;
                    }
                    got.extend_from_slice(&lent);
                }
            };
            tokio::join!(write, read);
            assert!(got == payload.repeat(RANGES), "{} bytes came back, or others", got.len());
            let shut = stream.send_extent(&lease, all).await.unwrap_err();
            assert_eq!(shut.kind(), ErrorKind::BrokenPipe);
        });
    });
    drop(lease);
    toe.stop().unwrap();
    assert_eq!(arena.leases(0), 0, "all are acknowledged");
}

/// Tasks that wait for an engine get an error when it stops; none of them waits for ever.
#[test]
fn tasks_are_told_that_the_engine_has_stopped() {
    if !can_run() {
        return;
    }
    let toe = ToeHost::start(&ToeHost::settings()).unwrap();
    let kernel = toe.in_kernel(|| std::net::TcpListener::bind((KERNEL_IP, PORT)).unwrap()).unwrap();
    let host = toe.engine().attach().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let reactor = Reactor::new(&host).unwrap();
        let listener = TcpListener::bind(&reactor, ours(PORT)).unwrap();
        let mut stream = TcpStream::connect(&reactor, (KERNEL_IP, PORT).into()).await.unwrap();
        let waits = spawn_local(async move { listener.accept().await.map(drop) });
        let reads = spawn_local(async move { stream.read(&mut [0; 8]).await.map(drop) });
        tokio::task::yield_now().await;
        let stops = spawn_local(async move { toe.stop().unwrap() });
        stops.await.unwrap();
        for task in [waits, reads] {
            let error = timeout(TIMEOUT, task).await.expect("it hangs").unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}");
            assert!(error.to_string().contains("stopped"), "{error}");
        }
    });
    drop(kernel);
}
