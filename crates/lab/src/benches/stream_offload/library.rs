//! This program's stream engine by the library call, on connections of an offload engine: one with a thread of its own, whose queue pair the stream
//! engine's loop has, or one that this loop turns. Beside the loop there are threads that sleep in the call.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Instant;

use anyhow::{Context, ensure};
use millrace_offload::toe::{Device, Engine, EngineSettings, Sockets, TcpStream};
use millrace_store::volume::Volume;
use millrace_stream::{
    MediaSource, Reason, SourcePosition, StreamContext, StreamEngine, StreamEngineConfig, Transport,
};
use rustix::event::{EventfdFlags, eventfd};

use super::senders::{LIMIT, SENDER, SenderLoads, Work};
use crate::benches::toe::rig::become_;
use crate::streams::{TitleFolder, sleep_until, title_of};

/// A thread does nothing but wait.
const STACK_BYTES: usize = 64 << 10;
/// Threads of the stream engine: those that sleep in the call and the one that hears of events, the loop, and what reads for it.
pub(super) const CALLERS: [&str; 2] = [SENDER, "mr-events"];
pub(super) const LOOP: [&str; 2] = ["engine-", "mr-cache"];

/// The offload engine.
pub(super) enum Offload<'a> {
    /// It has a thread; the loop is on the sender's processor.
    Apart(&'a Engine),
    /// The loop turns it, on this processor.
    Inside(Box<(EngineSettings, Box<dyn Device>)>, usize),
}

/// Ends all runs when it goes, however that comes about.
struct Stop(OwnedFd);

impl Drop for Stop {
    fn drop(&mut self) {
        // Nothing reads it: all runs have it as their control descriptor.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

/// Sends to all viewers, and measures meanwhile.
pub(super) fn send(
    work: Work<'_>,
    offload: Offload<'_>,
    measure: impl FnOnce() -> anyhow::Result<SenderLoads>,
) -> anyhow::Result<SenderLoads> {
    let cpu = match &offload {
        Offload::Apart(_) => work.cpu,
        Offload::Inside(_, cpu) => *cpu,
    };
    let config = StreamEngineConfig {
        cpus: vec![cpu],
        streams: work.count as usize,
        ipv4: None,
        max_busy_permille: 1000,
        ..StreamEngineConfig::default()
    };
    let engine = StreamEngine::start(&config)?;
    let source = source(&engine, work.media)?;
    match offload {
        Offload::Apart(offload) => {
            let mut sockets = Sockets::new(offload.attach()?)?;
            let open = |_| connect(&mut sockets, work.at);
            let numbers = (0..work.count).map(open).collect::<anyhow::Result<Vec<_>>>()?;
            let transport = |number| Transport::offload_socket(sockets.engine_socket(number));
            let transports = numbers.into_iter().map(transport).collect();
            engine.use_offload(sockets)?;
            run(work, &engine, &source, transports, measure)
        }
        Offload::Inside(parts, _) => {
            let (settings, device) = *parts;
            let offload = engine.start_offload(&settings, device)?;
            let host = offload.attach()?;
            let open = |_| TcpStream::connect(&host, work.at).context("connect to a viewer");
            let sockets = (0..work.count).map(open).collect::<anyhow::Result<Vec<_>>>()?;
            let transports = sockets.iter().map(Transport::offload).collect();
            run(work, &engine, &source, transports, measure)
        }
    }
}

fn connect(sockets: &mut Sockets, to: SocketAddr) -> anyhow::Result<u32> {
    let begun = Instant::now();
    let any = if to.is_ipv4() { ([0; 4], 0).into() } else { ([0; 16], 0).into() };
    let socket = sockets.connect(any, to).context("connect to a viewer")?;
    sockets.flush();
    while sockets.outcome(socket).context("connect to a viewer")?.is_none() {
        ensure!(begun.elapsed() < LIMIT, "a viewer does not answer within {LIMIT:?}");
        sockets.wait(Some(LIMIT))?;
    }
    Ok(socket)
}

/// A thread for each stream sleeps in its call.
fn run(
    work: Work<'_>,
    engine: &StreamEngine,
    source: &MediaSource,
    transports: Vec<Transport>,
    measure: impl FnOnce() -> anyhow::Result<SenderLoads>,
) -> anyhow::Result<SenderLoads> {
    std::thread::scope(|scope| {
        let stop = Stop(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
        let mut senders = Vec::new();
        for (index, transport) in transports.into_iter().enumerate() {
            let mut context = StreamContext::new(transport, source)?;
            context.control(&stop.0)?;
            let due_ns = work.first_due_ns(index as u32);
            let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
            senders.push(thread.spawn_scoped(scope, move || -> anyhow::Result<()> {
                become_(SENDER, work.cpu)?;
                sleep_until(due_ns);
                // The title begins again at its end.
                while engine.run(&mut context)?.reason == Reason::Finished {
                    context.start_at(SourcePosition::START);
                }
                Ok(())
            })?);
        }
        let seen = measure();
        drop(stop);
        for sender in senders {
            sender.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        seen
    })
}

fn source(engine: &StreamEngine, media: &TitleFolder) -> anyhow::Result<MediaSource> {
    let (store, name) = title_of(media);
    let volume = Volume::open(&store)?;
    let info = volume.find(&name)?.with_context(|| format!("{}: no {name} in it", store.display()))?;
    Ok(engine.title(&volume, info.id)?)
}
