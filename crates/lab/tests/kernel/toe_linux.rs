//! Sockets of the offload engine against this kernel's, in both roles: every byte arrives, and
//! every failure is reported to the party that it concerns.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::scope;
use std::time::{Duration, Instant};

use crate::support::{TIMEOUT, can_run, echo_server, kernel_calls, pattern};
use millrace_core::random::SplitMix;
use millrace_lab::tcp_host::{KERNEL_IP, OUR_IP};
use millrace_lab::toe_host::ToeHost;
use millrace_offload::toe::{TcpListener, TcpStream};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const PORT: u16 = 7100;

fn ours(port: u16) -> SocketAddr {
    (OUR_IP, port).into()
}

fn kernels(port: u16) -> SocketAddr {
    (KERNEL_IP, port).into()
}

#[test]
fn engine_echoes_to_kernel_on_several_threads() {
    const THREADS: u16 = 3;
    const EACH: usize = 8;
    if !can_run() {
        return;
    }
    let toe = ToeHost::start(&ToeHost::settings()).unwrap();
    let listening = Barrier::new(usize::from(THREADS) + 1);
    scope(|scope| {
        for thread in 0..THREADS {
            let (toe, listening) = (&toe, &listening);
            scope.spawn(move || {
                let host = toe.engine().attach().unwrap();
                echo_server(&host, ours(PORT + thread), EACH, || {
                    listening.wait();
                });
            });
        }
        listening.wait();
        toe.in_kernel(|| {
            std::thread::scope(|scope| {
                for call in 0..usize::from(THREADS) * EACH {
                    let to = ours(PORT + call as u16 % THREADS);
                    scope.spawn(move || kernel_calls(to, call as u64, 200_000 + call));
                }
            });
        })
        .unwrap();
    });
    let counters = toe.stop().unwrap();
    assert_eq!((counters.engine.rejected, counters.engine.events_lost), (0, 0), "{counters:?}");
    assert_eq!(counters.stack.accepted, u64::from(THREADS) * EACH as u64);
}

#[test]
fn we_call_the_kernel_with_many_connections_on_several_threads() {
    const THREADS: usize = 3;
    const EACH: usize = 6;
    const BYTES: usize = 600_000;
    if !can_run() {
        return;
    }
    let toe = ToeHost::start(&ToeHost::settings()).unwrap();
    let listener =
        toe.in_kernel(|| std::net::TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).unwrap()).unwrap();
    scope(|scope| {
        let server = &listener;
        scope.spawn(move || {
            std::thread::scope(|scope| {
                for _ in 0..THREADS * EACH {
                    let (mut stream, _) = server.accept().unwrap();
                    scope.spawn(move || {
                        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
                        std::io::copy(&mut stream.try_clone().unwrap(), &mut stream).unwrap();
                        stream.shutdown(Shutdown::Write).unwrap();
                    });
                }
            });
        });
        for thread in 0..THREADS {
            let toe = &toe;
            scope.spawn(move || {
                let host = toe.engine().attach().unwrap();
                let mut streams: Vec<_> =
                    (0..EACH).map(|_| TcpStream::connect(&host, kernels(PORT)).unwrap()).collect();
                let seed = |index: usize| (thread * EACH + index) as u64;
                for stream in &streams {
                    assert_eq!(stream.local_addr().unwrap().ip(), OUR_IP);
                    assert_eq!(stream.peer_addr().unwrap(), kernels(PORT));
                    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
                    stream.set_nodelay(true).unwrap();
                }
                for at in (0..BYTES).step_by(60_000) {
                    for (index, stream) in streams.iter_mut().enumerate() {
                        let bytes = pattern(seed(index), at, 60_000);
                        let (begin, rest) = bytes.split_at(10_001);
                        // Both halves by one call, as far as it goes.
                        let taken =
                            stream.write_vectored(&[IoSlice::new(begin), IoSlice::new(rest)]).unwrap();
                        stream.write_all(&bytes[taken..]).unwrap();
                    }
                    for (index, stream) in streams.iter_mut().enumerate() {
                        let mut back = vec![0; 60_000];
                        let mut peeked = [0; 100];
                        let count = stream.peek(&mut peeked).unwrap();
                        let (begin, rest) = back.split_at_mut(7);
                        let got = stream
                            .read_vectored(&mut [IoSliceMut::new(begin), IoSliceMut::new(rest)])
                            .unwrap();
                        stream.read_exact(&mut back[got..]).unwrap();
                        assert!(back == pattern(seed(index), at, 60_000), "{index} from {at} on");
                        assert_eq!(peeked[..count], back[..count]);
                    }
                }
                for stream in &mut streams {
                    stream.shutdown(Shutdown::Write).unwrap();
                    assert_eq!(stream.write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
                    assert_eq!(stream.read(&mut [0; 10]).unwrap(), 0, "the end");
                }
            });
        }
    });
    let counters = toe.stop().unwrap();
    assert_eq!((counters.engine.rejected, counters.engine.events_lost), (0, 0), "{counters:?}");
}

#[test]
fn tcp_stream_failures_map_to_standard_error_kinds() {
    if !can_run() {
        return;
    }
    let toe = ToeHost::start(&ToeHost::settings()).unwrap();
    let host = toe.engine().attach().unwrap();
    // This port has no listener.
    let error = TcpStream::connect(&host, kernels(PORT)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    let refused = toe.in_kernel(|| std::net::TcpStream::connect(ours(PORT)).unwrap_err().kind()).unwrap();
    assert_eq!(refused, ErrorKind::ConnectionRefused);
    // No host answers there: the kernel has no route to it.
    let begun = Instant::now();
    let limit = Duration::from_millis(200);
    let nowhere = ([203, 0, 113, 1], PORT).into();
    let error = TcpStream::connect_timeout(&host, nowhere, limit).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(begun.elapsed() >= limit);
    // A read that nothing comes for.
    let listener = TcpListener::bind(&host, ours(PORT)).unwrap();
    let again = TcpListener::bind(&host, ours(PORT)).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::AddrInUse);
    let kernel = toe.in_kernel(|| std::net::TcpStream::connect(ours(PORT)).unwrap()).unwrap();
    let (mut stream, peer) = listener.accept().unwrap();
    assert_eq!(peer, kernel.local_addr().unwrap());
    assert_eq!(stream.local_addr().unwrap(), ours(PORT));
    stream.set_read_timeout(Some(limit)).unwrap();
    assert_eq!(stream.set_read_timeout(Some(Duration::ZERO)).unwrap_err().kind(), ErrorKind::InvalidInput);
    let begun = Instant::now();
    assert_eq!(stream.read(&mut [0; 10]).unwrap_err().kind(), ErrorKind::TimedOut);
    assert!(begun.elapsed() >= limit);
    stream.set_nonblocking(true).unwrap();
    assert_eq!(stream.read(&mut [0; 10]).unwrap_err().kind(), ErrorKind::WouldBlock);
    stream.set_nonblocking(false).unwrap();
    // A write without a reader: the buffers of both sides fill, and then the time is over.
    stream.set_write_timeout(Some(limit)).unwrap();
    let block = vec![1; 1 << 20];
    let error = (0..100).find_map(|_| stream.write_all(&block).err()).expect("a peer that reads nothing");
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    // The peer breaks off: it has not read the data that came.
    drop(kernel);
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    assert_eq!(stream.read(&mut [0; 10]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(stream.write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe, "it has been told");
    drop(stream);
    // We break off.
    for aborts in [true, false] {
        let mut kernel = toe.in_kernel(|| std::net::TcpStream::connect(ours(PORT)).unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        if aborts {
            stream.abort();
        } else {
            // Data that came and was not read is lost.
            kernel.write_all(b"unread").unwrap();
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            assert_eq!(stream.peek(&mut [0; 6]).unwrap(), 6);
            drop(stream);
        }
        kernel.set_read_timeout(Some(TIMEOUT)).unwrap();
        assert_eq!(kernel.read(&mut [0; 10]).unwrap_err().kind(), ErrorKind::ConnectionReset, "{aborts}");
    }
    assert_eq!(toe.engine().counters().rejected, 0);
}

#[test]
fn dropped_stream_still_delivers_written_data() {
    const BYTES: usize = 400_000;
    if !can_run() {
        return;
    }
    let toe = ToeHost::start(&ToeHost::settings()).unwrap();
    let listener =
        toe.in_kernel(|| std::net::TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).unwrap()).unwrap();
    {
        let host = toe.engine().attach().unwrap();
        let mut stream = TcpStream::connect(&host, kernels(PORT)).unwrap();
        stream.write_all(&pattern(3, 0, BYTES)).unwrap();
    }
    let (mut kernel, _) = listener.accept().unwrap();
    kernel.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut all = Vec::new();
    kernel.read_to_end(&mut all).unwrap();
    assert!(all == pattern(3, 0, BYTES), "{} of {BYTES} bytes", all.len());
    toe.stop().unwrap();
}

#[test]
fn backlog_when_full_drops_syns_until_accept() {
    if !can_run() {
        return;
    }
    let mut settings = ToeHost::settings();
    // With cookies a caller is answered before it is known whether there is room.
    settings.stack.cookies = false;
    let toe = ToeHost::start(&settings).unwrap();
    let host = toe.engine().attach().unwrap();
    let listener = TcpListener::bind_with_backlog(&host, ours(PORT), 2).unwrap();
    let connected = AtomicUsize::new(0);
    scope(|scope| {
        let (toe, connected) = (&toe, &connected);
        let clients = scope.spawn(move || {
            let call = || {
                let stream = std::net::TcpStream::connect_timeout(&ours(PORT), TIMEOUT).unwrap();
                connected.fetch_add(1, Ordering::SeqCst);
                stream
            };
            toe.in_kernel(|| {
                std::thread::scope(|scope| {
                    let calls: Vec<_> = (0..4).map(|_| scope.spawn(call)).collect();
                    calls.into_iter().map(|call| call.join().unwrap()).collect::<Vec<_>>()
                })
            })
            .unwrap()
        });
        let begun = Instant::now();
        // Two handshakes of two packets each to the engine, and two calls that are not answered.
        while connected.load(Ordering::SeqCst) < 2 || toe.engine().counters().packets_in < 2 * 2 + 2 {
            assert!(begun.elapsed() < TIMEOUT);
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(connected.load(Ordering::SeqCst), 2);
        let accepted: Vec<_> = (0..4).map(|_| listener.accept().unwrap()).collect();
        assert_eq!(clients.join().unwrap().len(), 4);
        drop(accepted);
    });
    let counters = toe.stop().unwrap();
    assert!(counters.stack.syns_dropped >= 2, "{counters:?}");
}

#[test]
fn misbehaving_host_does_not_stall_other_hosts() {
    if !can_run() {
        return;
    }
    let mut settings = ToeHost::settings();
    settings.pair.receive_buffers = 16;
    let toe = ToeHost::start(&settings).unwrap();
    let (is_over, is_greedy, listening) = (AtomicBool::new(false), AtomicBool::new(false), Barrier::new(3));
    scope(|scope| {
        // It gives no receive buffer back.
        scope.spawn(|| {
            let host = toe.engine().attach().unwrap();
            host.keep_buffers();
            let listener = TcpListener::bind(&host, ours(PORT)).unwrap();
            listening.wait();
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
            while !is_over.load(Ordering::SeqCst) {
                let _ = stream.read(&mut [0; 65_536]);
                if toe.engine().counters().starved > 0 {
                    is_greedy.store(true, Ordering::SeqCst);
                }
            }
        });
        // It fills its ring with anything.
        scope.spawn(|| {
            let host = toe.engine().attach().unwrap();
            let mut random = SplitMix(11);
            while !is_over.load(Ordering::SeqCst) {
                let mut record = std::array::from_fn(|_| random.next());
                // Kinds and sockets that there are, among others.
                record[0] &= 0x0000_000f_0000_ff0f;
                if !host.inject(&record) {
                    std::thread::yield_now();
                }
            }
        });
        scope.spawn(|| {
            let host = toe.engine().attach().unwrap();
            echo_server(&host, ours(PORT + 1), 4, || {
                listening.wait();
            });
        });
        listening.wait();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            toe.in_kernel(|| {
                let mut flood = std::net::TcpStream::connect(ours(PORT)).unwrap();
                flood.set_nonblocking(true).unwrap();
                let begun = Instant::now();
                while !is_greedy.load(Ordering::SeqCst) {
                    assert!(begun.elapsed() < TIMEOUT, "nobody starves");
                    let _ = flood.write(&[0; 16_384]);
                }
                std::thread::scope(|scope| {
                    for call in 0..4 {
                        scope.spawn(move || kernel_calls(ours(PORT + 1), call, 500_000));
                    }
                });
            })
            .unwrap();
        }));
        is_over.store(true, Ordering::SeqCst);
        outcome.unwrap();
    });
    let counters = toe.stop().unwrap();
    assert!(counters.engine.rejected > 0, "{counters:?}");
}

#[test]
fn blocked_calls_on_engine_stop_return_connection_aborted() {
    if !can_run() {
        return;
    }
    let toe = ToeHost::start(&ToeHost::settings()).unwrap();
    let listener =
        toe.in_kernel(|| std::net::TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).unwrap()).unwrap();
    let engine = std::sync::Mutex::new(Some(toe));
    let waiting = Barrier::new(4);
    let attach = || engine.lock().unwrap().as_ref().unwrap().engine().attach().unwrap();
    let stopped = |error: std::io::Error| {
        assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}");
        assert!(error.to_string().contains("stopped"), "{error}");
    };
    scope(|scope| {
        scope.spawn(|| {
            let host = attach();
            let listener = TcpListener::bind(&host, ours(PORT)).unwrap();
            waiting.wait();
            stopped(listener.accept().unwrap_err());
            stopped(TcpStream::connect(&host, kernels(PORT)).unwrap_err());
            stopped(TcpListener::bind(&host, ours(PORT + 1)).unwrap_err());
            assert!(host.is_stopped() && host.arm(), "nobody would ring any more");
        });
        scope.spawn(|| {
            let host = attach();
            let mut stream = TcpStream::connect(&host, kernels(PORT)).unwrap();
            waiting.wait();
            stopped(stream.read(&mut [0; 10]).unwrap_err());
            stopped(stream.write(b"x").unwrap_err());
        });
        scope.spawn(|| {
            let host = attach();
            let mut stream = TcpStream::connect(&host, kernels(PORT)).unwrap();
            waiting.wait();
            // Without a reader, it waits for room, or gets the error before it comes to wait.
            stopped(stream.write_all(&vec![0; 32 << 20]).unwrap_err());
        });
        waiting.wait();
        // Whether they sleep already or not: both have to end.
        std::thread::sleep(Duration::from_millis(100));
        let toe = engine.lock().unwrap().take().unwrap();
        toe.stop().unwrap();
    });
    drop(listener);
}

/// A call for one socket takes the events of others: a thread that waits for the descriptor still
/// learns of them.
#[test]
fn news_of_a_socket_are_not_lost_by_a_call_for_another() {
    if !can_run() {
        return;
    }
    let toe = ToeHost::start(&ToeHost::settings()).unwrap();
    let host = toe.engine().attach().unwrap();
    let listener = TcpListener::bind(&host, ours(PORT)).unwrap();
    let [(mut kernel, mut with_news), (_quiet, mut without)] = [0; 2].map(|_| {
        let kernel = toe.in_kernel(|| std::net::TcpStream::connect(ours(PORT)).unwrap()).unwrap();
        (kernel, listener.accept().unwrap().0)
    });
    for stream in [&with_news, &without] {
        stream.set_nonblocking(true).unwrap();
    }
    while host.arm() {}
    kernel.write_all(b"news").unwrap();
    let fd = host.readiness();
    let limit = Timespec { tv_sec: TIMEOUT.as_secs() as i64, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&limit)).unwrap(), 1);
    assert_eq!(without.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert!(host.arm(), "the other has bytes, and nobody would ring for them again");
    assert_eq!(with_news.read(&mut [0; 8]).unwrap(), 4);
}

#[test]
fn queue_pair_moves_between_threads_and_is_limited() {
    if !can_run() {
        return;
    }
    let mut settings = ToeHost::settings();
    settings.pairs = 1;
    let toe = ToeHost::start(&settings).unwrap();
    let listener =
        toe.in_kernel(|| std::net::TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).unwrap()).unwrap();
    for round in 0..20 {
        scope(|scope| {
            scope.spawn(|| {
                let host = toe.engine().attach().unwrap();
                assert_eq!(toe.engine().attach().unwrap_err().kind(), ErrorKind::ResourceBusy);
                let mut stream = TcpStream::connect(&host, kernels(PORT)).unwrap();
                stream.write_all(&pattern(round, 0, 1000)).unwrap();
            });
        });
        let (mut kernel, _) = listener.accept().unwrap();
        kernel.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut all = Vec::new();
        kernel.read_to_end(&mut all).unwrap();
        assert!(all == pattern(round, 0, 1000));
    }
    let counters = toe.stop().unwrap();
    assert_eq!(counters.engine.rejected, 0);
}
