//! Our engine: a cache over the store, one engine on a thread of its own, the kernel's sockets. What stands around it here is a control
//! side that opens streams and nothing else.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use millrace_core::ids::{ConnId, RunSerial, StreamId};
use millrace_core::limits::{
    BUSY_BURST_NS, DEFAULT_BURST_NS, MAX_CONNS_PER_ENGINE, MAX_STREAMS_PER_ENGINE, PLAY_DELAY_NS,
};
use millrace_core::pool::ExtentArena;
use millrace_core::seam::Doorbell;
use millrace_core::time::Instant;
use millrace_offload::bell::EventBell;
use millrace_offload::clock::{MonotonicClock, wall_offset_ns};
use millrace_offload::command::{
    Command, Dest, Event, Numbering, RunMedia, RunSpec, StopReason, StreamEvent,
};
use millrace_offload::handle::{EngineConfig, EngineHandle, ThreadConfig};
use millrace_offload::hugepage::PageRegion;
use millrace_offload::{GsoMode, KernelTx, KernelTxConfig, bind_ports};
use millrace_store::cache::{Cache, CacheConfig};
use millrace_store::volume::Volume;

use super::events::accept_all;
use super::media::{name, store};
use super::{SendPlan, Transport, now_ns, say_ready};

/// Shorter than any interval, and packets of one block have one time: a burst is a block. What departs within it shares a wake-up, as within the
/// tick of the event loops.
const BLOCK_BURST_NS: u64 = 1_000_000;
/// Source ports of its packets.
const OWN_PORTS: (u16, u16) = (2_000, 2_999);
/// Between two looks at the events.
const LOOK: Duration = Duration::from_millis(50);

pub(super) fn run(plan: &SendPlan) -> anyhow::Result<()> {
    ensure!(
        plan.streams as usize <= MAX_STREAMS_PER_ENGINE
            && (plan.transport == Transport::Udp || plan.streams as usize <= MAX_CONNS_PER_ENGINE),
        "bench-stream engine: {} streams are more than an engine has places for",
        plan.streams
    );
    let volume = Volume::open(&store(&plan.dir))?;
    let bell = Arc::new(EventBell::new()?);
    let arena = ExtentArena::new(Box::new(PageRegion::present(plan.cache_bytes)?));
    let bells = vec![Arc::clone(&bell) as Arc<dyn Doorbell>];
    let (cache, mut handles) = Cache::start(CacheConfig::default(), arena, Arc::new(MonotonicClock), bells)?;
    let titles = (0..plan.titles)
        .map(|title| open(plan, &volume, &cache, title))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let handle = handles.pop().context("the cache has no handle")?;
    let mut streams =
        EngineStreamControl { engine: engine(plan, handle, bell)?, waiting: VecDeque::new(), playing: 0 };
    streams.begin(plan, &titles)?;
    while streams.playing > 0 {
        std::thread::sleep(LOOK);
        streams.look()?;
    }
    streams.engine.stop();
    drop(cache);
    Ok(())
}

/// A title, in the cache's hands.
fn open(plan: &SendPlan, volume: &Volume, cache: &Cache, title: u32) -> anyhow::Result<RunMedia> {
    let name = name(title);
    let info = volume.find(&name)?.with_context(|| format!("{}: no {name} in it", plan.dir.display()))?;
    let files = volume.open_title(info.id, usize::from(plan.blocks.datagram_bytes))?;
    let (packets, timeline, layout) = (files.packets(), files.timeline(), files.layout);
    // Bytes are replaced where they are missing, not passed over.
    let spare = if plan.transport == Transport::Tcp { 255 } else { 0 };
    Ok(RunMedia { title: cache.open_title(files)?, packets, timeline, layout, spare })
}

fn engine(
    plan: &SendPlan,
    handle: millrace_store::cache::CacheHandle,
    bell: Arc<EventBell>,
) -> anyhow::Result<EngineHandle> {
    let any = IpAddr::from([0, 0, 0, 0]);
    let mut ports = bind_ports(any, OWN_PORTS.0, OWN_PORTS.1, 1)?;
    let conns = if plan.transport == Transport::Tcp { plan.streams as usize } else { 0 };
    let tx = KernelTx::new(KernelTxConfig { v4: ports.senders.pop(), v6: None, gso: GsoMode::Auto, conns })?;
    let (burst_ns, busy_burst_ns) =
        if plan.is_usual { (DEFAULT_BURST_NS, BUSY_BURST_NS) } else { (BLOCK_BURST_NS, BLOCK_BURST_NS) };
    let config = EngineConfig {
        streams: plan.streams as usize,
        burst_ns,
        shares_wakes: true,
        wall_offset_ns: wall_offset_ns(),
        ..EngineConfig::default()
    };
    let thread = ThreadConfig { busy_burst_ns, ..ThreadConfig::default() };
    EngineHandle::start(thread, config, MonotonicClock, handle, tx, bell).context("start an engine")
}

/// The control side of the engine's streams.
struct EngineStreamControl {
    engine: EngineHandle,
    /// Commands that the engine had no room for.
    waiting: VecDeque<Command>,
    playing: u32,
}

impl EngineStreamControl {
    fn begin(&mut self, plan: &SendPlan, titles: &[RunMedia]) -> anyhow::Result<()> {
        let mut connections = match plan.transport {
            Transport::Udp => Vec::new(),
            Transport::Tcp => accept_all(plan)?,
        }
        .into_iter();
        let start_ns = now_ns() + PLAY_DELAY_NS;
        for index in 0..plan.streams {
            let (conn, stream) = (ConnId(index), StreamId { index, generation: 0 });
            let dest = match connections.next() {
                Some(connection) => {
                    self.tell(Command::ConnAdd { conn, socket: OwnedFd::from(connection).into() })?;
                    Dest::Bytes { conn }
                }
                None => Dest::udp(plan.destination(index)?, None),
            };
            self.tell(Command::Open { stream, dest, quiet: false, once: false })?;
            let media = titles[(index % plan.titles) as usize];
            let datagrams = u32::from(plan.blocks.datagrams);
            let first = plan.first_block(index, u64::from(media.packets / datagrams))?;
            let is_bytes = plan.transport == Transport::Tcp;
            let numbering = if is_bytes { Numbering::Bytes { head: 0, last: 0 } } else { Numbering::Title };
            let run = RunSpec {
                run: RunSerial(1),
                media,
                from: first as u32 * datagrams,
                until: media.packets,
                numbering,
                scale_permille: 1000,
                step: None,
            };
            let at = Instant(plan.first_due_ns(index, start_ns));
            self.tell(Command::Play { stream, at, ahead_ms: 0, run })?;
            self.playing += 1;
        }
        while !self.waiting.is_empty() {
            self.look()?;
        }
        if plan.transport == Transport::Udp {
            say_ready();
        }
        Ok(())
    }

    /// Hands a command over, behind those that wait.
    fn tell(&mut self, command: Command) -> anyhow::Result<()> {
        self.waiting.push_back(command);
        self.look()
    }

    /// Hands over the waiting commands, and takes the events.
    fn look(&mut self) -> anyhow::Result<()> {
        while let Some(command) = self.waiting.pop_front() {
            if let Err(back) = self.engine.send(command) {
                self.waiting.push_front(back);
                break;
            }
        }
        while let Some(event) = self.engine.poll_event() {
            match event {
                Event::Refused { stream, refusal, .. } => bail!("stream {}: {refusal}", stream.index),
                Event::Stream(StreamEvent::RunEnded { end, .. }) => {
                    self.playing -= 1;
                    // A viewer who left is none of our business.
                    if let StopReason::Failed(millrace_offload::command::FailReason::ReadError(failure)) =
                        end.reason
                    {
                        bail!("{failure}");
                    }
                }
                _ => {}
            }
        }
        ensure!(!self.engine.is_finished(), "the engine has ended");
        Ok(())
    }
}
