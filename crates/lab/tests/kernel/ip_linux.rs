//! Our IP layer and TCP on one Ethernet with this kernel: each finds the other by ARP and neighbour discovery, pings are answered, and connections work
//! over both families, to a neighbour and through a gateway, while neighbours are forgotten.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{TIMEOUT, can_run, ping, stack_settings};
use millrace_core::time::Instant;
use millrace_lab::runner::Application;
use millrace_lab::tap_host::{DEVICE, FAR_V4, KERNEL_V4, KERNEL_V6, OUR_V4, OUR_V6, TapHost, has_v6};
use millrace_tcp::conn::Happened;
use millrace_tcp::stack::{ConnectionId, Stack};
use rustix::net::sockopt::set_tcp_quickack;

const PORT: u16 = 7000;
const BYTES: usize = 1 << 20;

/// The addresses of both ends, of the families that this kernel has.
fn ends() -> Vec<(IpAddr, IpAddr)> {
    let v6 = has_v6().then_some((OUR_V6.into(), KERNEL_V6.into()));
    [(OUR_V4.into(), KERNEL_V4.into())].into_iter().chain(v6).collect()
}

fn byte(at: usize) -> u8 {
    (at ^ at >> 8 ^ at >> 16).wrapping_mul(0x9d) as u8
}

/// A connection: the data read that must be written.
struct Line {
    id: ConnectionId,
    kept: Vec<u8>,
    is_over: bool,
}

/// Sends back the data it gets, and closes when the other side has closed.
#[derive(Default)]
struct Echo {
    lines: Vec<Line>,
    listens: bool,
}

impl Application for Echo {
    fn turn(&mut self, stack: &mut Stack, now: Instant) {
        if !std::mem::replace(&mut self.listens, true) {
            for (ours, _) in ends() {
                stack.listen(SocketAddr::new(ours, PORT), 16).expect("nobody else listens");
            }
        }
        while let Some(event) = stack.poll_event() {
            let id = event.connection;
            if event.happened.has(Happened::ESTABLISHED) {
                self.lines.push(Line { id, kept: Vec::new(), is_over: false });
            }
            if let Some(line) = self.lines.iter_mut().find(|line| line.id == id) {
                line.is_over |= event.happened.has(Happened::PEER_CLOSED);
            }
            if event.happened.has(Happened::CLOSED) {
                self.lines.retain(|line| line.id != id);
            }
        }
        self.lines.retain_mut(|line| {
            let mut buffer = [0; 8192];
            let mut count = 1;
            while count > 0 {
                count =
                    if line.kept.is_empty() { stack.read(line.id, &mut buffer, now).unwrap_or(0) } else { 0 };
                line.kept.extend_from_slice(&buffer[..count]);
                let written = stack.write(line.id, &line.kept, now).unwrap_or(0);
                line.kept.drain(..written);
                count = count.max(written);
            }
            let is_done = line.is_over && line.kept.is_empty();
            if is_done {
                stack.close(line.id, now).expect("it is open");
            }
            !is_done
        });
    }
}

/// The kernel's end of an echo: sends, half-closes, and reads until the end. `between` is called in the middle.
fn call(to: SocketAddr, between: impl FnOnce()) -> std::io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&to, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let bytes: Vec<u8> = (0..BYTES).map(byte).collect();
    let mut back = vec![0; BYTES];
    let mut between = Some(between);
    let mut writer = stream.try_clone()?;
    for (number, (piece, back)) in bytes.chunks(65_536).zip(back.chunks_mut(65_536)).enumerate() {
        writer.write_all(piece)?;
        stream.read_exact(back)?;
        if number == 8
            && let Some(between) = between.take()
        {
            between();
        }
    }
    writer.shutdown(Shutdown::Write)?;
    assert_eq!(stream.read(&mut [0])?, 0, "the end");
    assert!(back == bytes, "wrong bytes");
    Ok(())
}

#[test]
fn stack_accepts_kernel_despite_flushed_neighbours() {
    if !can_run() {
        return;
    }
    let host = TapHost::start(&stack_settings(), Echo::default()).unwrap();
    for (ours, _) in ends() {
        let flush = || host.ip_in_kernel(&format!("neigh flush dev {DEVICE}")).expect("ip neigh");
        let outcome = host.in_kernel(|| call((ours, PORT).into(), flush)).unwrap();
        assert!(outcome.is_ok(), "{ours}: {outcome:?}");
    }
    let (tcp, ip) = host.stop().unwrap();
    assert!(ip.solicited >= 2 * ends().len() as u64, "asked for at the beginning and in the middle: {ip:?}");
    let dropped =
        ip.malformed + ip.bad_checksums + ip.martians + ip.misdirected + ip.bad_options + ip.bad_discovery;
    assert_eq!((dropped, ip.conflicts, ip.own_dropped, tcp.bad_checksums), (0, 0, 0, 0), "{ip:?}");
}

/// Opens connections to the kernel, one after the other, and sends a greeting on each.
struct Caller {
    to: Vec<SocketAddr>,
    may_begin: Arc<AtomicBool>,
    open: Option<ConnectionId>,
    done: Arc<Mutex<usize>>,
}

const GREETING: &[u8] = b"who is there?";

impl Application for Caller {
    fn turn(&mut self, stack: &mut Stack, now: Instant) {
        if !self.may_begin.load(Ordering::Relaxed) {
            return;
        }
        if let (None, Some(&to)) = (self.open, self.to.last()) {
            let local = if to.is_ipv4() { OUR_V4.into() } else { OUR_V6.into() };
            self.open = Some(stack.open(SocketAddr::new(local, 0), to, now).expect("there is room"));
        }
        while let Some(event) = stack.poll_event() {
            if event.happened.has(Happened::ESTABLISHED) {
                assert_eq!(stack.write(event.connection, GREETING, now), Ok(GREETING.len()));
                stack.close(event.connection, now).expect("it is open");
            }
            if event.happened.has(Happened::PEER_CLOSED) {
                stack.release(event.connection, now);
                (self.open, _) = (None, self.to.pop());
                *self.done.lock().unwrap() += 1;
            }
        }
    }
}

#[test]
fn we_call_the_kernel_next_to_us_and_behind_a_gateway() {
    if !can_run() {
        return;
    }
    let mut to: Vec<SocketAddr> = ends().into_iter().map(|(_, theirs)| (theirs, PORT).into()).collect();
    to.push((FAR_V4, PORT).into());
    let count = to.len();
    let (may_begin, done) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(0)));
    let app = Caller { to, may_begin: Arc::clone(&may_begin), open: None, done: Arc::clone(&done) };
    let host = TapHost::start(&stack_settings(), app).unwrap();
    let heard = host.in_kernel(|| {
        let any: IpAddr = if has_v6() { Ipv6Addr::UNSPECIFIED.into() } else { [0, 0, 0, 0].into() };
        let listener = TcpListener::bind((any, PORT)).expect("nobody else is there");
        may_begin.store(true, Ordering::Relaxed);
        (0..count).try_for_each(|_| {
            let (mut stream, _) = listener.accept()?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            let mut heard = Vec::new();
            stream.read_to_end(&mut heard)?;
            assert_eq!(heard, GREETING);
            std::io::Result::Ok(())
        })
    });
    let begun = std::time::Instant::now();
    while *done.lock().unwrap() < count && begun.elapsed() < TIMEOUT {
        std::thread::sleep(Duration::from_millis(5));
    }
    let (_, ip) = host.stop().unwrap();
    assert!(matches!(heard, Ok(Ok(()))), "{heard:?} {ip:?}");
    assert_eq!(*done.lock().unwrap(), count, "{ip:?}");
    assert!(ip.resolved >= ends().len() as u64 && ip.unresolved == 0, "{ip:?}");
}

#[test]
fn stack_answers_ping_of_kernel() {
    if !can_run() {
        return;
    }
    let host = TapHost::start(&stack_settings(), Echo::default()).unwrap();
    for (ours, _) in ends() {
        for length in [0, 1, 56, 1400] {
            let data: Vec<u8> = (0..length).map(byte).collect();
            let reply = host.in_kernel(|| ping(ours, &data)).unwrap();
            assert_eq!(reply, Ok(data), "{ours}");
        }
    }
    let (_, ip) = host.stop().unwrap();
    assert_eq!(ip.echo_replies, 4 * ends().len() as u64, "{ip:?}");
}

#[test]
fn data_that_moves_keeps_the_kernel_known_without_any_probe() {
    if !can_run() {
        return;
    }
    let host = TapHost::start(&stack_settings(), Echo::default()).unwrap();
    for (ours, _) in ends() {
        let connect = || TcpStream::connect_timeout(&(ours, PORT).into(), TIMEOUT).unwrap();
        let mut stream = host.in_kernel(connect).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        for number in 0..40 {
            // The second one acknowledges the data that came back for the first.
            for _ in 0..2 {
                stream.write_all(&[number; 100]).unwrap();
                // Unacknowledged data would be repeated after the leap. The duplicate ACK for it is no
                // progress: if it comes last before a segment, that costs a probe.
                set_tcp_quickack(&stream, true).unwrap();
                stream.read_exact(&mut [0; 100]).unwrap();
            }
            host.leap(Duration::from_secs(10));
        }
    }
    let (_, ip) = host.stop().unwrap();
    // The kernel has asked for us, so its Ethernet address is known, but not that it hears us: TCP has shown that, for seven minutes.
    assert_eq!((ip.solicits_out, ip.unresolved), (0, 0), "{ip:?}");
}
