//! The cases that the paper left for later: short connections, and requests with their responses.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener as KernelListener, TcpStream as KernelStream};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use millrace_offload::toe::TcpListener;

use super::peer::{accept_until, looks_up};
use super::rig::{ClockReadings, HOST, PEER, ToeRig, become_};
use super::tables::{CONTENDERS, COPYING, Contender, StackKind};
use crate::frame::stats::{median, percentile_of_sorted};
use crate::frame::{NoiseMeter, Options, Report, Row};

/// A request and a response.
const CALL_BYTES: usize = 64;
/// First bytes of requests: more follow; it is the only one; the server is to end.
const MORE: u8 = 2;
const ONE: u8 = 1;
const LAST: u8 = 0;
/// Bytes of the buffers between engine and application.
const SMALL: usize = 8 << 10;
/// Connections of a slot: ports of the peer are used again later than that.
const MOST: usize = 8_000;
const PORT: u16 = 7301;
const LIMIT: Duration = Duration::from_secs(10);

/// The request made in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallKind {
    Requests,
    Connections,
}

pub(super) fn run(
    options: &Options,
    tun: bool,
    rig: &mut ToeRig,
    report: &mut Report,
    noise: &mut NoiseMeter,
) -> anyhow::Result<()> {
    let rounds = options.runs.unwrap_or(options.pick(1, 3, 9));
    let length = Duration::from_millis(options.pick(20, 400, 1000));
    for what in [CallKind::Requests, CallKind::Connections] {
        let mut all: [Vec<CallSample>; COPYING] = Default::default();
        for round in 0..rounds {
            noise.look();
            options.go_on()?;
            options.say(&format!("{what:?}, round {}", round + 1));
            for at in 0..COPYING {
                let at = (at + round) % COPYING;
                all[at].push(slot(&CONTENDERS[at], rig, tun, what, length)?);
            }
        }
        for (contender, slots) in CONTENDERS.iter().zip(&all) {
            report.rows.push(row(contender, what, slots));
        }
    }
    Ok(())
}

/// The peer's measurements, and the host's usage.
struct CallSample {
    /// Nanoseconds of each, sorted.
    took: Vec<f64>,
    wall_s: f64,
    used: ClockReadings,
}

fn row(contender: &Contender, what: CallKind, slots: &[CallSample]) -> Row {
    let middle = |value: &dyn Fn(&CallSample) -> f64| median(&slots.iter().map(value).collect::<Vec<f64>>());
    let at = |p: f64| middle(&|slot: &CallSample| percentile_of_sorted(&slot.took, p) / 1e3);
    let each = |ns: u64, slot: &CallSample| ns as f64 / 1e3 / slot.took.len().max(1) as f64;
    let name = if what == CallKind::Requests {
        "requests of 64 bytes, one at a time"
    } else {
        "connections of one request, one at a time"
    };
    Row::new(format!("{name}: {}", contender.name))
        .with("a second", middle(&|slot| slot.took.len() as f64 / slot.wall_s), "")
        .with("p50", at(50.0), "us")
        .with("p90", at(90.0), "us")
        .with("p99", at(99.0), "us")
        .with("p99.9", at(99.9), "us")
        .with("application", middle(&|slot| each(slot.used.host_ns, slot)), "us")
        .with("engine", middle(&|slot| each(slot.used.engine_ns, slot)), "us")
        .with("interface", middle(&|slot| each(slot.used.napi_ns, slot)), "us")
}

fn slot(
    contender: &Contender,
    rig: &mut ToeRig,
    tun: bool,
    what: CallKind,
    length: Duration,
) -> anyhow::Result<CallSample> {
    let places = contender.places();
    let engine = match contender.kind {
        StackKind::Kernel(own) => {
            rig.offload(own, super::rig::Offload::Off)?;
            None
        }
        // No response waits for more bytes.
        StackKind::Engine(_) | StackKind::Lent => {
            Some(contender.start(rig, tun, (SMALL, 0), places.engine)?)
        }
    };
    let to = SocketAddr::new(rig.ends(engine.is_some())?.0, PORT);
    let rig = &*rig;
    rig.place(&places)?;
    rig.host(|| -> anyhow::Result<CallSample> {
        become_(HOST, places.app)?;
        let call = || {
            rig.peer(move || {
                std::thread::spawn(move || -> anyhow::Result<(Vec<f64>, f64)> {
                    become_(PEER, places.peer)?;
                    let seen = ask(to, what, length);
                    // Whatever happened, the server ends.
                    let ended = end(to);
                    seen.and_then(|seen| ended.map(|()| seen))
                })
            })
        };
        let (before, peer, served);
        match &engine {
            None => {
                let listener = KernelListener::bind(to).context("listen")?;
                looks_up(&listener, LIMIT)?;
                (before, peer) = (rig.look()?, call()?);
                let accept = || -> std::io::Result<_> {
                    let (stream, _) = listener.accept()?;
                    stream.set_nodelay(true)?;
                    Ok(stream)
                };
                served = serve(accept, || peer.is_finished());
            }
            Some(engine) => {
                let host = engine.attach()?;
                let listener = TcpListener::bind(&host, to)?;
                (before, peer) = (rig.look()?, call()?);
                let accept = || -> std::io::Result<_> {
                    let (stream, _) = listener.accept_timeout(LIMIT)?;
                    stream.set_read_timeout(Some(LIMIT))?;
                    stream.set_nodelay(true)?;
                    Ok(stream)
                };
                served = serve(accept, || peer.is_finished());
            }
        }
        let used = rig.look()?.since(&before);
        let (mut took, wall_s) =
            peer.join().map_err(|_| anyhow::anyhow!("the peer's thread has panicked"))??;
        served?;
        took.sort_unstable_by(f64::total_cmp);
        Ok(CallSample { took, wall_s, used })
    })?
}

/// Answers until the peer announces its last request, or until the peer has gone and cannot
/// announce it any more.
fn serve<S: Read + Write>(
    mut accept: impl FnMut() -> std::io::Result<S>,
    is_over: impl Fn() -> bool,
) -> anyhow::Result<()> {
    let mut call = [0; CALL_BYTES];
    loop {
        let Some(mut stream) = accept_until(&mut accept, &is_over)? else {
            bail!("the peer has ended and has not said so");
        };
        loop {
            match stream.read_exact(&mut call) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => break,
                Err(error) => return Err(error).context("read a request"),
            }
            if call[0] == LAST {
                return Ok(());
            }
            stream.write_all(&call).context("write a response")?;
            if call[0] == ONE {
                break;
            }
        }
    }
}

fn connect(to: SocketAddr) -> anyhow::Result<KernelStream> {
    let stream = KernelStream::connect_timeout(&to, LIMIT).context("the peer connects")?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn end(to: SocketAddr) -> anyhow::Result<()> {
    connect(to)?.write_all(&[LAST; CALL_BYTES]).context("tell the server")
}

/// The peer: nanoseconds of each call, and the seconds of all.
fn ask(to: SocketAddr, what: CallKind, length: Duration) -> anyhow::Result<(Vec<f64>, f64)> {
    let mut took = Vec::new();
    let mut call = [MORE; CALL_BYTES];
    let begun = Instant::now();
    let mut stream = if what == CallKind::Requests { Some(connect(to)?) } else { None };
    while took.is_empty() || begun.elapsed() < length {
        let from = Instant::now();
        match &mut stream {
            Some(stream) => {
                stream.write_all(&call).context("write a request")?;
                stream.read_exact(&mut call).context("read a response")?;
            }
            None if took.len() < MOST => {
                let mut stream = connect(to)?;
                stream.write_all(&[ONE; CALL_BYTES]).context("write a request")?;
                stream.read_exact(&mut call).context("read a response")?;
                // The server closes first, so that the peer's ports are free again.
                anyhow::ensure!(stream.read(&mut [0]).context("read the end")? == 0, "more than a response");
            }
            None => break,
        }
        took.push(from.elapsed().as_nanos() as f64);
    }
    Ok((took, begun.elapsed().as_secs_f64()))
}
