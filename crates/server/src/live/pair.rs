//! The way into a live title for its source, or its two sources: both are followed all the time, one is fed.
//!
//! ```text
//!   on the air ─► LiveInput: RTP, LivePacker ─────────────► title
//!   standby    ─► RTP, LivePacker, nothing given out ┘ from its next access point, when SourceChoice wants it
//! ```
//!
//! The packers have the same origin, and so the same media time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_core::seam::Clock;
use millrace_core::time::Instant;
use millrace_make::live::{LivePacker, RtpReorder};
use millrace_offload::clock::MonotonicClock;

use super::address::{LiveSource, SourcePair};
use super::channel::PairReport;
use super::choice::{SourceChoice, SourceRank};
use super::input::LiveInput;
use super::standby::Standby;
use super::state::{SourceState, report};
use super::titles::{LiveTitles, OpenLiveError};

/// A title with the sources that feed it.
pub(super) struct FedTitle {
    titles: Arc<LiveTitles>,
    sources: SourcePair,
    input: LiveInput,
    standby: Option<Standby>,
    choice: SourceChoice,
    /// Datagrams that the kernel dropped, of each source.
    dropped: [u64; 2],
}

impl FedTitle {
    /// Takes a datagram of a source. Nothing of it can be seen before [`FedTitle::look`].
    pub(super) fn datagram(&mut self, rank: SourceRank, arrival: Instant, bytes: &[u8]) {
        let Self { input, standby, choice, .. } = self;
        match standby {
            Some(standby) if rank != choice.on_air() => {
                standby.datagram(arrival, bytes, &mut |packet| input.feed(packet));
                self.change_over();
            }
            _ => input.datagram(arrival, bytes),
        }
    }

    /// Looks after both sources; logs each change. Viewers can have all that came. `false`: the title is full, and there is no other.
    pub(super) fn look(&mut self, now: Instant) -> bool {
        let on_air = self.choice.on_air();
        if let Some(state) = self.input.look(now, self.dropped.iter().sum()) {
            self.report(on_air, state);
        }
        if let Some(standby) = &mut self.standby {
            let input = &mut self.input;
            if let Some(state) = standby.look(now, &mut |packet| input.feed(packet)) {
                self.report(on_air.other(), state);
            }
            self.change_over();
            self.choose(now);
        }
        self.input.publish();
        !self.input.is_full() || self.renew(now)
    }

    fn choose(&mut self, now: Instant) {
        let on_air = self.choice.on_air();
        let Some(standby) = &mut self.standby else { return };
        let (air, other) = (self.input.state(), standby.watch.state());
        let (first, backup) = if on_air == SourceRank::First { (air, other) } else { (other, air) };
        if self.choice.wanted(now, first, backup) == on_air {
            standby.packer.withhold();
        } else {
            standby.packer.resume(now);
        }
        let failure = standby.failure.clone();
        self.input.channel().publish_pair(PairReport { on_air, standby: other, failure });
    }

    /// Puts the other source on the air if its media has begun.
    fn change_over(&mut self) {
        let Some(standby) = self.standby.as_mut().filter(|standby| standby.packer.gives()) else { return };
        self.input.change_over(standby);
        standby.packer.withhold();
        self.choice.take_over();
        let rank = self.choice.on_air();
        let LiveSource { name, url, .. } = self.sources.get(rank);
        match rank {
            SourceRank::First => {
                tracing::info!("live source {name}: the first source ({url}) is on the air again")
            }
            SourceRank::Backup => tracing::warn!("live source {name}: the backup ({url}) is on the air"),
        }
    }

    fn report(&self, rank: SourceRank, state: SourceState) {
        let LiveSource { name, url, .. } = self.sources.get(rank);
        report(name, url, state);
    }

    /// Datagrams of a source that the kernel has dropped up to now.
    pub(super) fn note_dropped(&mut self, rank: SourceRank, dropped: u64) {
        self.dropped[rank as usize] = dropped;
    }

    /// A source cannot be fetched; returns whether this reason is another one than before.
    pub(super) fn fail(&mut self, rank: SourceRank, now: Instant, why: String) -> bool {
        match &mut self.standby {
            Some(standby) if rank != self.choice.on_air() => {
                let is_news = standby.watch.state() != SourceState::Failed || standby.failure != why;
                standby.watch.failed();
                // The line about the failure stands for the change of the state.
                standby.watch.look(now);
                standby.failure = why;
                is_news
            }
            _ => self.input.fail(now, why),
        }
    }

    /// How far a source is ahead of time.
    pub(super) fn ahead_ns(&self, rank: SourceRank, now: Instant) -> u64 {
        match &self.standby {
            Some(standby) if rank != self.choice.on_air() => standby.packer.ahead_ns(now),
            _ => self.input.ahead_ns(now),
        }
    }

    /// When [`FedTitle::look`] has to be called at the latest.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let of_standby = self.standby.as_ref().and_then(|standby| {
            let reorder = standby.reorder.as_ref().and_then(RtpReorder::deadline);
            [reorder, standby.packer.deadline()].into_iter().flatten().min()
        });
        [of_standby, self.input.deadline()].into_iter().flatten().min()
    }

    fn renew(&mut self, now: Instant) -> bool {
        let Self { titles, sources, input, standby, choice, .. } = self;
        let LiveSource { name, .. } = sources.get(choice.on_air());
        let open = || open_input(sources.get(choice.on_air()), titles, now);
        if !input.renew(titles, &format!("live source {name}"), open) {
            return false;
        }
        if let Some(standby) = standby {
            standby.packer = LivePacker::new(now);
            standby.packer.withhold();
        }
        true
    }
}

/// Opens the title of a source.
fn open_input(source: &LiveSource, titles: &LiveTitles, origin: Instant) -> Result<LiveInput, OpenLiveError> {
    let (channel, feeder) = titles.open(&source.name)?;
    Ok(LiveInput::new(source.transport(), channel, feeder, origin))
}

/// The same for the threads that receive. The title may be ended at any time.
pub struct TitleSources(Mutex<Option<FedTitle>>);

impl TitleSources {
    /// Opens the title.
    ///
    /// # Errors
    /// [`OpenLiveError`].
    pub fn open(sources: SourcePair, titles: &Arc<LiveTitles>) -> Result<Arc<Self>, OpenLiveError> {
        let origin = MonotonicClock.now();
        let input = open_input(&sources.first, titles, origin)?;
        let standby = sources.backup.as_ref().map(|backup| Standby::new(backup.transport(), origin));
        let choice = SourceChoice::new(origin);
        let titles = Arc::clone(titles);
        let mut fed = FedTitle { titles, sources, input, standby, choice, dropped: [0; 2] };
        fed.choose(origin);
        Ok(Arc::new(Self(Mutex::new(Some(fed)))))
    }

    /// Has something done with the title; `None`: it has ended.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut FedTitle) -> T) -> Option<T> {
        self.lock().as_mut().map(work)
    }

    /// Ends the title: its viewers get the rest, and its end.
    pub fn end(&self) {
        let fed = self.lock().take();
        if let Some(FedTitle { titles, input, .. }) = fed {
            titles.end(input);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<FedTitle>> {
        // A panic while a packet is parsed can leave a part of it out, no more.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
