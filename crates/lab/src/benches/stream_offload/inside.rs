//! The stream engine in the offload engine: runs of the library call, on connections of an offload engine that the loop of the stream engine turns. All
//! that is left to the host are threads that sleep in the call.

use std::os::fd::OwnedFd;

use anyhow::Context;
use millrace_offload::toe::{Device, EngineSettings, TcpStream};
use millrace_store::volume::Volume;
use millrace_stream::{Place, Reason, Source, StreamContext, StreamEngine, StreamEngineConfig, Transport};
use rustix::event::{EventfdFlags, eventfd};

use super::senders::{SENDER, Seen, Work};
use crate::benches::toe::rig::become_;
use crate::streams::{Media, sleep_until, title_of};

/// A thread does nothing but wait.
const STACK_BYTES: usize = 64 << 10;
/// Threads of the stream engine: its control side, its loop, and what reads for it. The first one is the host's, the others stand for the card.
pub(super) const HOST_THREADS: [&str; 2] = [SENDER, "mr-events"];
pub(super) const ENGINE_THREADS: [&str; 2] = ["engine-", "mr-cache"];

/// Ends all runs when it goes, however that comes about.
struct Stop(OwnedFd);

impl Drop for Stop {
    fn drop(&mut self) {
        // Nobody reads it: all runs have it as their control descriptor.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

/// Sends to all viewers, and measures meanwhile. The loop is on processor `cpu`.
pub(super) fn send(
    work: Work<'_>,
    (settings, device): (EngineSettings, Box<dyn Device>),
    cpu: usize,
    measure: impl FnOnce() -> anyhow::Result<Seen>,
) -> anyhow::Result<Seen> {
    let config = StreamEngineConfig {
        cpus: vec![cpu],
        streams: work.count as usize,
        ipv4: None,
        max_busy_permille: 1000,
        ..StreamEngineConfig::default()
    };
    let engine = StreamEngine::start(&config)?;
    let source = source(&engine, work.media)?;
    let offload = engine.start_offload(&settings, device)?;
    let host = offload.attach()?;
    let connect = |_| TcpStream::connect(&host, work.at).context("connect to a viewer");
    let sockets = (0..work.count).map(connect).collect::<anyhow::Result<Vec<_>>>()?;
    std::thread::scope(|scope| {
        let stop = Stop(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
        let mut senders = Vec::new();
        for (index, socket) in sockets.iter().enumerate() {
            let mut context = StreamContext::new(Transport::offload(socket), &source)?;
            context.control(&stop.0)?;
            let (engine, due_ns) = (&engine, work.first_due_ns(index as u32));
            let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
            senders.push(thread.spawn_scoped(scope, move || -> anyhow::Result<()> {
                become_(SENDER, work.cpu)?;
                sleep_until(due_ns);
                // The title begins again at its end.
                while engine.run(&mut context)?.reason == Reason::Finished {
                    context.start_at(Place::START);
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

fn source(engine: &StreamEngine, media: &Media) -> anyhow::Result<Source> {
    let (store, name) = title_of(media);
    let volume = Volume::open(&store)?;
    let info = volume.find(&name)?.with_context(|| format!("{}: no {name} in it", store.display()))?;
    Ok(engine.title(&volume, info.id)?)
}
