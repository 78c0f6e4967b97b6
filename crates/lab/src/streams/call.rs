//! Our engine behind the library call: a thread for each stream, as the paper had a process, which sleeps in the call until its title is
//! over.

use std::os::fd::OwnedFd;

use anyhow::{Context, ensure};
use millrace_core::limits::{DEFAULT_PACKET_BYTES, PLAY_DELAY_NS};
use millrace_store::volume::Volume;
use millrace_stream::{SourcePosition, StreamContext, StreamEngine, StreamEngineConfig, Transport as To};

use super::events::accept_all;
use super::media::{name, store};
use super::{SendPlan, Transport, now_ns, say_ready, sleep_until};

/// A thread does nothing but wait.
const STACK_BYTES: usize = 64 << 10;

pub(super) fn run(plan: &SendPlan) -> anyhow::Result<()> {
    ensure!(
        usize::from(plan.blocks.datagram_bytes) == DEFAULT_PACKET_BYTES,
        "bench-stream call: titles are opened with packets of {DEFAULT_PACKET_BYTES} bytes only"
    );
    let config = StreamEngineConfig {
        cache_bytes: plan.cache_bytes,
        streams: plan.streams as usize,
        max_busy_permille: 1000,
        ..StreamEngineConfig::default()
    };
    let engine = StreamEngine::start(&config)?;
    let volume = Volume::open(&store(&plan.dir))?;
    let source = |title| -> anyhow::Result<_> {
        let name = name(title);
        let info = volume.find(&name)?.with_context(|| format!("{}: no {name} in it", plan.dir.display()))?;
        let blocks = info.bytes / plan.blocks.bytes();
        Ok((engine.title(&volume, info.id)?, blocks))
    };
    let sources = (0..plan.titles).map(source).collect::<anyhow::Result<Vec<_>>>()?;
    let mut connections = match plan.transport {
        Transport::Udp => Vec::new(),
        Transport::Tcp => accept_all(plan)?,
    }
    .into_iter();
    let start_ns = now_ns() + 2 * PLAY_DELAY_NS;
    std::thread::scope(|scope| {
        for index in 0..plan.streams {
            let (source, blocks) = &sources[(index % plan.titles) as usize];
            let first = plan.first_block(index, *blocks)? as u32 * u32::from(plan.blocks.datagrams);
            let to = match connections.next() {
                Some(connection) => To::tcp(OwnedFd::from(connection)),
                None => To::udp_rtp(plan.destination(index)?, None),
            };
            let mut context = StreamContext::new(to, source)?;
            context.start_at(SourcePosition::Packet(first));
            let (engine, due_ns) = (&engine, plan.first_due_ns(index, start_ns));
            let stream = std::thread::Builder::new().stack_size(STACK_BYTES);
            stream.spawn_scoped(scope, move || {
                sleep_until(due_ns - PLAY_DELAY_NS);
                // A viewer who left is none of our business.
                drop(engine.run(&mut context));
            })?;
        }
        if plan.transport == Transport::Udp {
            say_ready();
        }
        Ok(())
    })
}
