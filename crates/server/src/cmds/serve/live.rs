//! Live titles of the server: opened at the start, received until the end.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use millrace_core::counters::Registry;
use millrace_core::pool::ExtentArena;
use millrace_store::cache::Cache;
use millrace_store::volume::Volume;

use super::web::Web;
use super::worker::Worker;
use crate::cast::channel_feed::ChannelFeed;
use crate::cast::{ChannelSpec, ItemOpener};
use crate::library::reader::TitleReader;
use crate::limits::live::LIVE_STOP;
use crate::live::receive::{self, Receiver};
use crate::live::{LiveLibrary, LiveSource, LiveTitles};

/// The live titles, and the thread that receives them.
pub(super) struct Live {
    titles: Arc<LiveTitles>,
    worker: Option<Worker>,
    channels: Vec<Worker>,
}

impl Live {
    /// Opens the sources and channels, and begins to receive and to play.
    pub(super) fn start(
        (sources, channels): (&[LiveSource], &[ChannelSpec]),
        (cache, arena): (&Arc<Cache>, &ExtentArena),
        volume: &Arc<Volume>,
        web: &mut Web,
    ) -> anyhow::Result<Self> {
        let count = sources.len() + channels.len();
        let titles = LiveTitles::new(Arc::clone(cache), arena.extents() as usize, count);
        let titles = Arc::new(titles);
        web.show_live(&titles);
        let open = |source: &LiveSource| Receiver::open(source.clone(), &titles);
        let receivers = sources.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let fed = Arc::clone(&titles);
        let run = move |stop: &Arc<AtomicBool>| receive::run(receivers, &fed, stop);
        let worker = Worker::start("live", run).context("thread that receives live sources")?;
        let channels = channels.iter().map(|spec| start_channel(spec, &titles, volume));
        let channels = channels.collect::<anyhow::Result<Vec<_>>>()?;
        Ok(Self { titles, worker: Some(worker), channels })
    }

    /// Adds the live titles to the stored ones.
    pub(super) fn beside(&self, stored: TitleReader) -> LiveLibrary<TitleReader> {
        LiveLibrary::new(stored, Arc::clone(&self.titles))
    }

    /// Adds the counters of each title.
    pub(super) fn register(&self, mut registry: Registry) -> Registry {
        let titles = Arc::clone(&self.titles);
        registry.add_all("live", "title", move || {
            let all = titles.all();
            all.iter().map(|channel| (channel.name().to_owned(), channel.counters())).collect()
        });
        registry
    }
}

fn start_channel(
    spec: &ChannelSpec,
    titles: &Arc<LiveTitles>,
    volume: &Arc<Volume>,
) -> anyhow::Result<Worker> {
    let volume = Arc::clone(volume);
    let opener = ItemOpener::new(move || Ok(Arc::clone(&volume)));
    let feed = ChannelFeed::open(spec, titles, opener)?;
    let run = move |stop: &Arc<AtomicBool>| feed.run(stop);
    Worker::start("channel", run).context("thread of a channel")
}

impl Drop for Live {
    fn drop(&mut self) {
        self.channels.drain(..).for_each(|channel| channel.stop(LIVE_STOP));
        if let Some(worker) = self.worker.take() {
            worker.stop(LIVE_STOP);
        }
    }
}
