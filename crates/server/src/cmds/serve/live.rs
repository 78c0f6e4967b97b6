//! Live titles of the server: opened at the start, received until the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use millrace_core::counters::Registry;
use millrace_core::pool::ExtentArena;
use millrace_store::cache::Cache;
use millrace_store::volume::Volume;

use super::ServeArgs;
use super::web::Web;
use super::worker::Worker;
use crate::cast::ItemOpener;
use crate::cast::channel_feed::ChannelFeed;
use crate::library::open_titles::OpenTitles;
use crate::library::reader::TitleReader;
use crate::limits::live::LIVE_STOP;
use crate::live::address::LiveReception;
use crate::live::pull::LivePuller;
use crate::live::receive::{self, Receiver};
use crate::live::{LiveLibrary, LiveTitles, Recordings};

/// The live titles, and the threads that receive them.
pub(super) struct Live {
    titles: Arc<LiveTitles>,
    recordings: Arc<Recordings>,
    /// One for all datagrams, one for each source that is fetched, and one for each channel.
    workers: Vec<Worker>,
    /// Ends all that fetch at once: each has a program to end.
    stop: Arc<AtomicBool>,
}

impl Live {
    /// Opens the sources and channels, and begins to receive and to play.
    pub(super) fn start(
        args: &ServeArgs,
        (cache, arena): (&Arc<Cache>, &ExtentArena),
        (volume, open_titles): (&Arc<Volume>, &Arc<OpenTitles>),
        web: &mut Web,
    ) -> anyhow::Result<Self> {
        let count = args.live.len() + args.channels.len();
        let titles = LiveTitles::new(Arc::clone(cache), arena.extents() as usize, count, args.live_memory);
        let titles = Arc::new(titles);
        let store = (Arc::clone(volume), Arc::clone(open_titles));
        let recordings = Arc::new(Recordings::new(Arc::clone(&titles), store, web.ingest()));
        web.show_live(&titles, &recordings);
        let (mut receivers, mut pullers) = (Vec::new(), Vec::new());
        let program = args.ffmpeg.live_pull();
        for source in &args.live {
            match source.reception.clone() {
                LiveReception::Datagrams(transport, address) => {
                    receivers.push(Receiver::open(source.clone(), transport, &address, &titles)?);
                }
                LiveReception::Program(url) => {
                    pullers.push(LivePuller::open(source.clone(), url, program.clone(), &titles)?);
                }
            }
        }
        let of_worker = Arc::clone(&recordings);
        let mut live =
            Self { titles: Arc::clone(&titles), recordings, workers: Vec::new(), stop: Arc::default() };
        live.run("recordings", move |stop| of_worker.finish_interrupted(stop))?;
        for spec in &args.channels {
            let volume = Arc::clone(volume);
            let feed = ChannelFeed::open(spec, &titles, ItemOpener::new(move || Ok(Arc::clone(&volume))))?;
            live.run("channel", move |stop| feed.run(stop))?;
        }
        live.run("live", move |stop| receive::run(receivers, &titles, stop))?;
        for puller in pullers {
            let stop = Arc::clone(&live.stop);
            live.run("live-pull", move |_| puller.run(&stop))?;
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
        self.stop.store(true, Ordering::Relaxed);
        self.recordings.stop_all();
        self.workers.drain(..).for_each(|worker| worker.stop(LIVE_STOP));
    }
}
