//! The live sources of the server: those of its settings, and those that are added and removed while it runs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver as End, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_make::live::LivePull;
use millrace_store::volume::Volume;
use millrace_web::{LiveRefusal, NewLiveSource};

use super::worker::Worker;
use crate::limits::live::LIVE_STOP;
use crate::live::address::{LiveReception, SourcePair};
use crate::live::kept::{KeptSource, KeptSources};
use crate::live::pull::LivePuller;
use crate::live::receive::{LiveSocket, Receiver, StartLiveError};
use crate::live::titles::OpenLiveError;
use crate::live::{LiveTitles, TitleSources};

/// All of them.
pub(super) struct LiveSources {
    titles: Arc<LiveTitles>,
    volume: Arc<Volume>,
    program: LivePull,
    /// To the thread that receives.
    receivers: Sender<Receiver>,
    state: Mutex<SourcesState>,
}

struct SourcesState {
    open: BTreeMap<String, OpenSource>,
    /// The contents of the file, also sources that could not be opened.
    kept: KeptSources,
}

/// A source that is received, with its backup if it has one.
struct OpenSource {
    title: Arc<TitleSources>,
    /// It stands in the settings, and is not for the API to remove.
    is_set: bool,
    /// Ends the threads that fetch.
    stop: Arc<AtomicBool>,
    pullers: Vec<Worker>,
    /// Disconnected when all its sockets are closed.
    sockets: End<()>,
}

impl LiveSources {
    /// Without any source yet. Receivers go to the thread that receives.
    pub(super) fn new(
        titles: &Arc<LiveTitles>,
        volume: &Arc<Volume>,
        program: LivePull,
        receivers: Sender<Receiver>,
        kept: KeptSources,
    ) -> Self {
        let state = Mutex::new(SourcesState { open: BTreeMap::new(), kept });
        Self { titles: Arc::clone(titles), volume: Arc::clone(volume), program, receivers, state }
    }

    fn lock(&self) -> MutexGuard<'_, SourcesState> {
        // Each change is one insertion or removal: a panic elsewhere cannot leave it half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a source of the settings.
    ///
    /// # Errors
    /// [`StartLiveError`].
    pub(super) fn open_set(&self, pair: SourcePair) -> Result<(), StartLiveError> {
        let name = pair.first.name.clone();
        let source = self.open(pair, true)?;
        self.lock().open.insert(name, source);
        Ok(())
    }

    /// Opens the sources that were added when the server ran before. One that cannot be opened must not keep the server from its start.
    pub(super) fn open_kept(&self) {
        let mut state = self.lock();
        for kept in state.kept.sources().to_vec() {
            let name = &kept.name;
            if self.titles.get(name).is_some() {
                tracing::info!(
                    "live source {name}: the one of the settings is used, and not the one that was added while the server ran"
                );
                continue;
            }
            let opened = kept.pair().map_err(|error| error.to_string());
            match opened.and_then(|pair| self.open(pair, false).map_err(|error| error.to_string())) {
                Ok(source) => drop(state.open.insert(name.clone(), source)),
                Err(error) => tracing::warn!(
                    "live source {name}, which was added while the server ran, is left out: {error}; or remove it: millrace live remove {name}"
                ),
            }
        }
    }

    /// Adds a source, and keeps it.
    ///
    /// # Errors
    /// [`LiveRefusal`]; then nothing has changed.
    pub(super) fn add(&self, new: NewLiveSource) -> Result<(), LiveRefusal> {
        let NewLiveSource { name, url, backup } = new;
        let kept = KeptSource { name: name.clone(), url, backup };
        let pair = kept.pair().map_err(|error| LiveRefusal::Name(error.to_string()))?;
        let mut state = self.lock();
        let source = self.open(pair, false).map_err(refusal)?;
        let mut all = state.kept.with(kept);
        if let Err(error) = all.write(&self.dirs()) {
            source.close();
            return Err(cannot_keep(&error));
        }
        state.kept = all;
        state.open.insert(name.clone(), source);
        tracing::info!("live source {name}: added, and kept for the next start");
        Ok(())
    }

    /// Removes a source that was added; its viewers get the rest, and the end.
    ///
    /// # Errors
    /// [`LiveRefusal`]; then nothing has changed.
    pub(super) fn remove(&self, name: &str) -> Result<(), LiveRefusal> {
        let mut state = self.lock();
        let is_removable = state.open.get(name).map(|source| !source.is_set);
        match is_removable {
            Some(true) => {}
            Some(false) => {
                return Err(LiveRefusal::Conflict(
                    "this source is set by --live or the configuration file; remove it there and restart the server".to_owned(),
                ));
            }
            None if self.titles.get(name).is_some_and(|channel| channel.channel().is_some()) => {
                return Err(LiveRefusal::Conflict(
                    "this is a channel; remove it from --channel or the configuration file and restart the server"
                        .to_owned(),
                ));
            }
            None if self.titles.get(name).is_some() => {
                return Err(LiveRefusal::Conflict(
                    "a client brings the media of this title; end it there".to_owned(),
                ));
            }
            None if !state.kept.has(name) => return Err(LiveRefusal::NoTitle),
            None => {}
        }
        let mut rest = state.kept.without(name);
        rest.write(&self.dirs()).map_err(|error| cannot_keep(&error))?;
        state.kept = rest;
        if let Some(source) = state.open.remove(name) {
            source.close();
        }
        tracing::info!("live source {name}: removed");
        Ok(())
    }

    /// Ends all threads that fetch.
    pub(super) fn stop(&self) {
        let open = std::mem::take(&mut self.lock().open);
        // All at once: each has a program to end.
        open.values().for_each(|source| source.stop.store(true, Ordering::Relaxed));
        open.into_values().flat_map(|source| source.pullers).for_each(|puller| puller.stop(LIVE_STOP));
    }

    /// Where copies of the file are.
    fn dirs(&self) -> Vec<PathBuf> {
        kept_dirs(&self.volume)
    }

    fn open(&self, pair: SourcePair, is_set: bool) -> Result<OpenSource, StartLiveError> {
        let mut sockets = Vec::new();
        for &rank in pair.ranks() {
            if let LiveReception::Datagrams(_, address) = &pair.get(rank).reception {
                sockets.push((rank, LiveSocket::open(&pair.first.name, address)?));
            }
        }
        let named = |cause| StartLiveError::Title { name: pair.first.name.clone(), cause };
        let title = TitleSources::open(pair.clone(), &self.titles).map_err(named)?;
        let (opened, closed) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let mut source = OpenSource { title, is_set, stop, pullers: Vec::new(), sockets: closed };
        for (rank, socket) in sockets {
            let receiver = Receiver::new(pair.get(rank).clone(), rank, socket, &source.title, opened.clone());
            // Without that thread the server is ending.
            let _ = self.receivers.send(receiver);
        }
        for &rank in pair.ranks() {
            let LiveReception::Program(url) = pair.get(rank).reception.clone() else { continue };
            let puller =
                LivePuller::new(pair.get(rank).clone(), rank, url, self.program.clone(), &source.title);
            let stop = Arc::clone(&source.stop);
            match Worker::start("live-pull", move |_| puller.run(&stop)) {
                Ok(puller) => source.pullers.push(puller),
                Err(cause) => {
                    source.close();
                    return Err(StartLiveError::Thread { name: pair.first.name, cause });
                }
            }
        }
        Ok(source)
    }
}

impl OpenSource {
    /// Ends the title. When this returns, its ports are free.
    fn close(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.title.end();
        self.pullers.into_iter().for_each(|puller| puller.stop(LIVE_STOP));
        let _ = self.sockets.recv_timeout(LIVE_STOP);
    }
}

/// The directories with copies of the sources that were added: every member that is there.
pub(super) fn kept_dirs(volume: &Volume) -> Vec<PathBuf> {
    let members = volume.members();
    members.usable().iter().map(|&slot| members.dir(slot)).collect()
}

fn refusal(error: StartLiveError) -> LiveRefusal {
    match error {
        StartLiveError::Title { cause: OpenLiveError::InUse, .. } => LiveRefusal::InUse,
        StartLiveError::Title { .. } | StartLiveError::Thread { .. } => LiveRefusal::Full(error.to_string()),
        StartLiveError::Socket { .. } => LiveRefusal::Conflict(error.to_string()),
    }
}

fn cannot_keep(error: &std::io::Error) -> LiveRefusal {
    LiveRefusal::Failed(format!(
        "the list of live sources cannot be written into the store's directory: {error}; check its space and permissions"
    ))
}
