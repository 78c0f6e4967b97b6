//! Live titles of the server: opened at the start, received until the end.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, mpsc};

use anyhow::Context;
use millrace_core::counters::Registry;
use millrace_core::pool::ExtentArena;
use millrace_store::cache::Cache;
use millrace_store::volume::Volume;

use super::ServeArgs;
use super::live_sources::{LiveSources, kept_dirs};
use super::web::Web;
use super::worker::Worker;
use crate::cast::ItemOpener;
use crate::cast::channel_feed::ChannelFeed;
use crate::library::open_titles::OpenTitles;
use crate::library::reader::TitleReader;
use crate::limits::live::LIVE_STOP;
use crate::live::kept::KeptSources;
use crate::live::plan::RecordingPlans;
use crate::live::{LiveLibrary, LiveTitles, Recordings, SourcePair, receive};

/// The live titles, and the threads that receive them.
pub(super) struct Live {
    titles: Arc<LiveTitles>,
    sources: Arc<LiveSources>,
    recordings: Arc<Recordings>,
    /// One for all datagrams, one for each channel, one for recordings that were interrupted, and one for those that are planned.
    workers: Vec<Worker>,
}

impl Live {
    /// Opens the sources and channels, and begins to receive and to play.
    pub(super) fn start(
        args: &ServeArgs,
        (cache, arena): (&Arc<Cache>, &ExtentArena),
        (volume, open_titles): (&Arc<Volume>, &Arc<OpenTitles>),
        web: &mut Web,
    ) -> anyhow::Result<Self> {
        let pairs = SourcePair::all(&args.live)?;
        let kept = KeptSources::read(&kept_dirs(volume));
        let count = pairs.len() + args.channels.len() + kept.sources().len();
        let titles = LiveTitles::new(Arc::clone(cache), arena.extents() as usize, count, args.live_memory);
        let titles = Arc::new(titles);
        let recordings =
            Recordings::new(Arc::clone(&titles), Arc::clone(volume), Arc::clone(open_titles), web.ingest());
        let recordings = Arc::new(recordings);
        let (receivers, new) = mpsc::channel();
        let sources = LiveSources::new(&titles, volume, args.ffmpeg.live_pull(), receivers, kept);
        let sources = Arc::new(sources);
        web.show_live(&titles, &sources, &recordings);
        let of_worker = Arc::clone(&recordings);
        let mut live = Self { titles: Arc::clone(&titles), sources, recordings, workers: Vec::new() };
        live.run("recordings", move |stop| of_worker.finish_interrupted(stop))?;
        for pair in pairs {
            live.sources.open_set(pair)?;
        }
        for spec in &args.channels {
            let volume = Arc::clone(volume);
            let feed = ChannelFeed::open(spec, &titles, ItemOpener::new(move || Ok(Arc::clone(&volume))))?;
            live.run("channel", move |stop| feed.run(stop))?;
        }
        live.sources.open_kept();
        live.run("live", move |stop| receive::run(&new, &titles, stop))?;
        if !args.records.is_empty() {
            let (plans, of_worker) = (RecordingPlans::new(&args.records), Arc::clone(&live.recordings));
            live.run("plans", move |stop| plans.run(&of_worker, stop))?;
        }
        Ok(live)
    }

    fn run(
        &mut self,
        name: &'static str,
        run: impl FnOnce(&Arc<AtomicBool>) + Send + 'static,
    ) -> anyhow::Result<()> {
        let worker = Worker::start(name, run).context("thread of live titles")?;
        self.workers.push(worker);
        Ok(())
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

impl Drop for Live {
    fn drop(&mut self) {
        self.sources.stop();
        self.recordings.stop_all();
        self.workers.drain(..).for_each(|worker| worker.stop(LIVE_STOP));
    }
}
