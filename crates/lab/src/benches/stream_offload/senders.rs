//! The senders, their viewers, and what both use.

use std::fs::File;
use std::io::Write;
use std::net::{SocketAddr, TcpListener as KernelListener, TcpStream as KernelStream};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use millrace_offload::toe::{Engine, EngineSettings, PairSettings, TcpStream};

use super::library;
use crate::benches::toe::peer::{LOOK_UP, Readers, accept_until, looks_up};
use crate::benches::toe::rig::{HOST, Offload, Places, ToeRig, become_};
use crate::frame::Options;
use crate::proc;
use crate::streams::{Blocks, TitleFolder, now_ns, sleep_until, title_path};

/// Threads that send.
pub(super) const SENDER: &str = "bench-strm";
const PORT: u16 = 7500;
/// From the word that all begin to the first look.
const SETTLE: Duration = Duration::from_millis(300);
pub(super) const LIMIT: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(5);

/// The sender, and the TCP that it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Case {
    EachKernel,
    EachEngine,
    StreamEngine,
    OnSockets,
    Inside,
}

impl Case {
    pub(super) const ALL: [Self; 5] =
        [Self::EachKernel, Self::EachEngine, Self::StreamEngine, Self::OnSockets, Self::Inside];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::EachKernel => "a thread each, kernel",
            Self::EachEngine => "a thread each, engine's sockets",
            Self::StreamEngine => "this program's stream engine, kernel",
            Self::OnSockets => "this program's stream engine, engine's sockets",
            Self::Inside => "this program's stream engine in the offload engine",
        }
    }

    fn is_engine(self) -> bool {
        matches!(self, Self::EachEngine | Self::OnSockets | Self::Inside)
    }

    fn is_each(self) -> bool {
        matches!(self, Self::EachKernel | Self::EachEngine)
    }
}

/// Loads in percents of a processor for each Gb/s.
#[derive(Clone, Copy, Debug)]
pub(super) struct SenderLoads {
    /// Senders; on the kernel's TCP what receives ACKs, too.
    pub(super) host: f64,
    pub(super) engine: f64,
    pub(super) interface: f64,
    pub(super) total: f64,
    pub(super) waits_per_s: f64,
    /// Of the bytes that were due.
    pub(super) delivered: f64,
    rate: u64,
}

impl SenderLoads {
    /// Viewers that one processor would carry with all this.
    pub(super) fn viewers(&self) -> f64 {
        100.0 / self.total * 1e9 / self.rate as f64
    }
}

/// Carries `count` streams for `length`.
pub(super) fn carry(
    rig: &mut ToeRig,
    options: &Options,
    case: Case,
    media: &TitleFolder,
    count: u32,
    length: Duration,
) -> anyhow::Result<SenderLoads> {
    let places = if case.is_engine() { Places::apart() } else { Places::together() };
    rig.offload(Offload::Off, Offload::Off)?;
    let pairs = if case.is_each() { count } else { 1 };
    let change = |settings: &mut EngineSettings| size(settings, pairs, count, places.engine);
    let (mut engine, mut parts) = (None, None);
    match case {
        Case::EachEngine | Case::OnSockets => engine = Some(rig.engine(options.tun, change)?),
        Case::Inside => parts = Some(rig.engine_parts(options.tun, change)?),
        Case::EachKernel | Case::StreamEngine => {}
    }
    let (own, viewers) = rig.ends(case.is_engine())?;
    let rig = &*rig;
    rig.place(&places)?;
    rig.host(|| -> anyhow::Result<SenderLoads> {
        become_(HOST, places.app)?;
        let stop = AtomicBool::new(false);
        if case == Case::StreamEngine {
            let at = SocketAddr::new(own, PORT);
            let child = Started::start(options, media, at, count)?;
            let viewers = Viewers::call(rig, at, &places, count)?;
            let threads = Threads { pid: child.0.id(), host: &[&[""]], engine: &[] };
            return measure(rig, case, media, &viewers, (count, length), threads);
        }
        let at = SocketAddr::new(viewers, PORT);
        let viewers = Viewers::listen(rig, at, &places, count)?;
        let (engine, stop) = (engine.as_ref(), &stop);
        let work = Work { at, media, count, cpu: places.app, stop };
        let pid = std::process::id();
        let (callers, its_loop) = (&library::CALLERS[..], &library::LOOP[..]);
        let offload = match (parts, engine) {
            (Some(parts), _) => Some(library::Offload::Inside(Box::new(parts), places.engine)),
            (None, Some(engine)) if case == Case::OnSockets => Some(library::Offload::Apart(engine)),
            _ => None,
        };
        if let Some(offload) = offload {
            let threads = match case {
                Case::Inside => Threads { pid, host: &[callers], engine: &[its_loop] },
                _ => Threads { pid, host: &[callers, its_loop], engine: &[] },
            };
            let measure = || measure(rig, case, media, &viewers, (count, length), threads);
            return library::send(work, offload, measure);
        }
        std::thread::scope(|scope| {
            let senders: Vec<_> =
                (0..count).map(|index| scope.spawn(move || each(work, engine, index))).collect();
            let threads = Threads { pid, host: &[&[SENDER]], engine: &[] };
            let seen = measure(rig, case, media, &viewers, (count, length), threads);
            stop.store(true, Ordering::Relaxed);
            for sender in senders {
                sender.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            }
            seen
        })
    })?
}

fn size(settings: &mut EngineSettings, pairs: u32, count: u32, cpu: usize) {
    settings.cpu = Some(cpu);
    settings.pairs = pairs as usize;
    let each = count / pairs;
    settings.pair = PairSettings {
        sockets: each + 4,
        requests: 256,
        send_bytes: 8192,
        send_buffers: 64 * each,
        receive_bytes: 2048,
        receive_buffers: 8 * each,
        receive_share: 4,
        ..PairSettings::default()
    };
}

/// What senders need to know.
#[derive(Clone, Copy)]
pub(super) struct Work<'a> {
    pub(super) at: SocketAddr,
    pub(super) media: &'a TitleFolder,
    pub(super) count: u32,
    pub(super) cpu: usize,
    stop: &'a AtomicBool,
}

impl Work<'_> {
    /// When a stream's first block is due: they are evenly spread over an interval.
    pub(super) fn first_due_ns(&self, index: u32) -> u64 {
        let interval = self.media.blocks.interval_ns;
        now_ns() + interval + interval * u64::from(index) / u64::from(self.count)
    }
}

/// The paper's process: sleeps, reads a block, sends it.
fn each(work: Work<'_>, engine: Option<&Engine>, index: u32) -> anyhow::Result<()> {
    become_(SENDER, work.cpu)?;
    match engine {
        Some(engine) => {
            let host = engine.attach()?;
            let stream = TcpStream::connect(&host, work.at).context("connect to a viewer")?;
            stream.set_nodelay(true)?;
            stream.set_write_timeout(Some(LIMIT))?;
            send_each(work, stream, index)
        }
        None => {
            let stream = KernelStream::connect_timeout(&work.at, LIMIT).context("connect to a viewer")?;
            stream.set_nodelay(true)?;
            send_each(work, stream, index)
        }
    }
}

fn send_each(work: Work<'_>, mut stream: impl Write, index: u32) -> anyhow::Result<()> {
    let file = File::open(title_path(work.media)).context("open the title")?;
    let Blocks { interval_ns, .. } = work.media.blocks;
    let mut block = vec![0; work.media.blocks.bytes() as usize];
    let bytes = work.media.blocks.bytes();
    let blocks = file.metadata()?.len() / bytes;
    let mut due_ns = work.first_due_ns(index);
    for n in (0..blocks).cycle() {
        sleep_until(due_ns);
        due_ns += interval_ns;
        if work.stop.load(Ordering::Relaxed) {
            break;
        }
        file.read_exact_at(&mut block, n * bytes).context("read a block")?;
        match stream.write_all(&block) {
            // The viewers may be gone by then: they end with the first sender that does.
            Err(_) if work.stop.load(Ordering::Relaxed) => break,
            sent => sent.context("send a block")?,
        }
    }
    Ok(())
}

/// This program's stream engine, as `bench streams` starts it; it ends when this goes.
struct Started(Child);

impl Started {
    fn start(options: &Options, media: &TitleFolder, at: SocketAddr, count: u32) -> anyhow::Result<Self> {
        let Blocks { datagram_bytes, datagrams, interval_ns } = media.blocks;
        let mut command = Command::new(&options.program);
        // In the bursts of the library call, which the same engine inside the offload engine has too.
        command.args(["bench-stream", "engine", "--usual", "--transport", "tcp", "--titles", "1"]);
        command.arg("--dir").arg(&media.dir);
        for (name, value) in [
            ("--datagram-bytes", datagram_bytes.to_string()),
            ("--datagrams", datagrams.to_string()),
            ("--interval", format!("{interval_ns}ns")),
            ("--streams", count.to_string()),
            ("--listen", at.to_string()),
        ] {
            command.args([name, &value]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // It inherits this thread's processor and network.
        Ok(Self(command.spawn().context("start the stream engine")?))
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Viewers, all read by one thread.
struct Viewers(Readers);

impl Viewers {
    /// They are called.
    fn listen(rig: &ToeRig, at: SocketAddr, places: &Places, count: u32) -> anyhow::Result<Self> {
        let listener = rig.peer(|| KernelListener::bind(at))?.context("viewers listen")?;
        looks_up(&listener, LOOK_UP)?;
        Readers::start(rig, places.peer, move |stop| {
            let is_over = || stop.load(Ordering::Relaxed);
            let accept = |_| match accept_until(|| listener.accept(), is_over)? {
                Some((stream, _)) => Ok(stream),
                None => bail!("a sender has not called before all ended"),
            };
            (0..count).map(accept).collect()
        })
        .map(Self)
    }

    /// They call, and tell the sender to begin.
    fn call(rig: &ToeRig, at: SocketAddr, places: &Places, count: u32) -> anyhow::Result<Self> {
        Readers::start(rig, places.peer, move |_| {
            let begun = Instant::now();
            let mut all = Vec::new();
            while all.len() < count as usize {
                match KernelStream::connect_timeout(&at, LIMIT) {
                    Ok(stream) => all.push(stream),
                    // It does not listen yet.
                    Err(_) if begun.elapsed() < LIMIT => sleep(LOOK),
                    Err(error) => return Err(error).context("connect to the stream engine"),
                }
            }
            for stream in &mut all {
                stream.write_all(&[1]).context("tell the sender")?;
            }
            Ok(all)
        })
        .map(Self)
    }

    fn wait(&self) -> anyhow::Result<()> {
        let begun = Instant::now();
        while !self.0.is_ready() {
            ensure!(!self.0.is_over(), "the viewers have ended");
            ensure!(begun.elapsed() < LIMIT, "not all viewers are connected within {LIMIT:?}");
            sleep(LOOK);
        }
        Ok(())
    }
}

impl Drop for Viewers {
    fn drop(&mut self) {
        // Its result is of no use any more: a sender that failed has already reported it.
        let _ = self.0.end();
    }
}

/// Threads of process `pid`, by what their names begin with: those of the host, and those that do the work of an engine beside its own.
#[derive(Clone, Copy)]
struct Threads<'a> {
    pid: u32,
    host: &'a [&'a [&'a str]],
    engine: &'a [&'a [&'a str]],
}

impl Threads<'_> {
    fn cpu_ns(&self, names: &[&[&str]]) -> anyhow::Result<u64> {
        names.iter().copied().flatten().map(|name| proc::cpu_ns(self.pid, name)).sum()
    }

    fn waits(&self) -> anyhow::Result<u64> {
        self.host
            .iter()
            .copied()
            .flatten()
            .map(|name| proc::switches(self.pid, name).map(|(waits, _)| waits))
            .sum()
    }
}

/// Looks at everything twice.
fn measure(
    rig: &ToeRig,
    case: Case,
    media: &TitleFolder,
    viewers: &Viewers,
    (count, length): (u32, Duration),
    threads: Threads<'_>,
) -> anyhow::Result<SenderLoads> {
    viewers.wait()?;
    sleep(SETTLE);
    let look = || -> anyhow::Result<_> {
        let (host, engine) = (threads.cpu_ns(threads.host)?, threads.cpu_ns(threads.engine)?);
        Ok((Instant::now(), rig.look()?, host, engine, threads.waits()?, viewers.0.bytes()))
    };
    let before = look()?;
    sleep(length);
    // A short slot in which others had the processors lasts longer.
    while viewers.0.bytes() == before.5 && before.0.elapsed() < LIMIT {
        sleep(Duration::from_millis(5));
    }
    let after = look()?;
    let used = after.1.since(&before.1);
    let wall_s = (after.0 - before.0).as_secs_f64();
    let bytes = after.5 - before.5;
    if bytes == 0 {
        bail!("{}: nothing has arrived", case.name());
    }
    let percent = |ns: u64| ns as f64 / bytes as f64 * 12.5;
    let senders = after.2.saturating_sub(before.2);
    let (engine, interface) =
        (percent(used.engine_ns + after.3.saturating_sub(before.3)), percent(used.napi_ns));
    let host = percent(senders) + if case.is_engine() { 0.0 } else { interface };
    let rate = media.blocks.rate().0;
    Ok(SenderLoads {
        host,
        engine,
        interface,
        total: percent(senders) + engine + interface,
        waits_per_s: after.4.saturating_sub(before.4) as f64 / wall_s,
        delivered: bytes as f64 * 8.0 / (rate as f64 * f64::from(count) * wall_s),
        rate,
    })
}
