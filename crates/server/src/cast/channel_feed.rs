//! The thread of a channel: stored titles become a live title, and the same datagrams go to its outputs.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_core::seam::Clock;
use millrace_core::time::Instant;
use millrace_make::confine::explain;
use millrace_media::ts_packet::SYSTEM_HZ;
use millrace_offload::clock::MonotonicClock;

use super::channel::{ChannelReport, ChannelSpec};
use super::items::ItemOpener;
use super::pace::{PacedSink, Pacer};
use super::playout::{Playout, PlayoutNews};
use super::schedule::ChannelSchedule;
use super::sender::{CastSender, OpenCastError};
use crate::day_time::unix_ms;
use crate::limits::cast::CHANNEL_LOOK_NS;
use crate::live::address::LiveTransport;
use crate::live::input::LiveInput;
use crate::live::titles::{LiveTitles, OpenLiveError};

/// Why a channel cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenChannelError {
    /// Its live title.
    #[error("channel {name}: {cause}")]
    Title {
        /// The channel.
        name: String,
        /// The reason.
        cause: OpenLiveError,
    },
    /// One of its outputs.
    #[error("channel {name}: {cause}")]
    Output {
        /// The channel.
        name: String,
        /// The reason.
        cause: OpenCastError,
    },
    /// Its thread.
    #[error("channel {name}: cannot start its thread: {cause}; raise the limit of threads")]
    Thread {
        /// The channel.
        name: String,
        /// The system's error.
        cause: std::io::Error,
    },
}

/// See the module's text.
pub struct ChannelFeed {
    playout: Playout,
    sink: ChannelSink,
    notes: ChannelNotes,
}

impl ChannelFeed {
    /// Opens its live title and its outputs, and begins to read.
    ///
    /// # Errors
    /// [`OpenChannelError`].
    pub fn open(
        spec: &ChannelSpec,
        titles: &Arc<LiveTitles>,
        opener: ItemOpener,
    ) -> Result<Self, OpenChannelError> {
        let name = || spec.name.clone();
        let report = ChannelReport {
            to: spec.to.iter().map(ToString::to_string).collect(),
            schedule: ChannelSchedule::new(&spec.programme),
            ..ChannelReport::default()
        };
        let report = Arc::new(Mutex::new(report));
        let outputs = spec.to.iter().map(CastSender::open).collect::<Result<Vec<_>, _>>();
        let outputs = outputs.map_err(|cause| OpenChannelError::Output { name: name(), cause })?;
        let input = open_input(&spec.name, titles, &report)
            .map_err(|cause| OpenChannelError::Title { name: name(), cause })?;
        let playout = Playout::start(spec.programme.clone(), opener, true, 0)
            .map_err(|cause| OpenChannelError::Thread { name: name(), cause })?;
        let notes = ChannelNotes { name: name(), report: Arc::clone(&report) };
        let outputs = outputs.into_iter().map(|sender| ChannelOutput { sender, has_failed: false }).collect();
        let sink = ChannelSink {
            name: name(),
            titles: Arc::clone(titles),
            report,
            input,
            outputs,
            looked: Instant(0),
        };
        Ok(Self { playout, sink, notes })
    }

    /// Plays until `stop` is set.
    pub fn run(self, stop: &AtomicBool) {
        let Self { playout, mut sink, notes } = self;
        Pacer::new(MonotonicClock, playout.origin())
            .run(playout.news(), &mut sink, stop, &mut |_, news| notes.take(news));
    }
}

fn open_input(
    name: &str,
    titles: &LiveTitles,
    report: &Arc<Mutex<ChannelReport>>,
) -> Result<LiveInput, OpenLiveError> {
    let (channel, feeder) = titles.open(name)?;
    channel.set_channel(report);
    Ok(LiveInput::new(LiveTransport::Udp, channel, feeder, MonotonicClock.now()))
}

/// One output.
struct ChannelOutput {
    sender: CastSender,
    /// The last datagrams could not be sent.
    has_failed: bool,
}

/// Where the datagrams of a channel go.
struct ChannelSink {
    name: String,
    titles: Arc<LiveTitles>,
    report: Arc<Mutex<ChannelReport>>,
    input: LiveInput,
    outputs: Vec<ChannelOutput>,
    looked: Instant,
}

impl PacedSink for ChannelSink {
    fn datagram(&mut self, due: Instant, time: u64, bytes: &[u8]) {
        self.input.datagram(due, bytes);
        self.outputs.iter_mut().for_each(|output| output.sender.datagram(due, time, bytes));
    }

    fn flush(&mut self, now: Instant) {
        for output in &mut self.outputs {
            output.sender.flush(now);
            output.report(&self.name);
        }
        if now.ns_since(self.looked) < CHANNEL_LOOK_NS {
            return;
        }
        self.looked = now;
        // The states are those of a network source; the items report for a channel.
        let _ = self.input.look(now, 0);
        self.input.publish();
        if self.input.is_full() {
            let open = || open_input(&self.name, &self.titles, &self.report);
            self.input.renew(&self.titles, &format!("channel {}", self.name), open);
        }
    }
}

impl ChannelOutput {
    /// One line for each change.
    fn report(&mut self, name: &str) {
        match self.sender.take_error() {
            Some(error) if !self.has_failed => {
                self.has_failed = true;
                let url = self.sender.url();
                tracing::warn!(
                    "channel {name}: cannot send to {url}: {error}; check the route and the interface"
                );
            }
            None if self.has_failed && self.sender.is_sending() => {
                self.has_failed = false;
                let url = self.sender.url();
                tracing::info!("channel {name}: sends to {url} again");
            }
            _ => {}
        }
    }
}

/// Follows the items, for the log and the API.
struct ChannelNotes {
    name: String,
    report: Arc<Mutex<ChannelReport>>,
}

impl ChannelNotes {
    fn report(&self) -> MutexGuard<'_, ChannelReport> {
        // Each change is one assignment: a panic elsewhere cannot leave it half done.
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, news: PlayoutNews) {
        let name = &self.name;
        match news {
            PlayoutNews::Run(_) => {}
            PlayoutNews::Round(items) => {
                let mut report = self.report();
                let gone = report.schedule.begin_round(&items);
                report.skipped.retain(|(skipped, _)| !gone.contains(skipped));
                if !items.is_empty() {
                    report.no_list = None;
                }
            }
            PlayoutNews::Show(items) => {
                let ChannelReport { schedule, skipped, .. } = &mut *self.report();
                schedule.begin_show(&items);
                skipped.retain(|(skipped, _)| schedule.has(skipped));
            }
            PlayoutNews::ShowIsOver => self.report().schedule.end_show(),
            PlayoutNews::NoList(why) => {
                let mut report = self.report();
                if report.no_list.as_ref() != Some(&why) {
                    tracing::warn!("channel {name}: {why}");
                }
                report.no_list = Some(why);
            }
            PlayoutNews::Began(number) => {
                let mut report = self.report();
                let item = report.schedule.address(number);
                tracing::info!("channel {name}: plays {item}");
                report.skipped.retain(|(skipped, _)| *skipped != item);
                report.item = Some(item);
                report.schedule.begin_item(number, unix_ms());
            }
            PlayoutNews::Ended(number, title) => {
                let length_ms = title.ticks / (SYSTEM_HZ / 1000);
                self.report().schedule.end_item(number, length_ms);
            }
            PlayoutNews::Skipped(number, why) => {
                let mut report = self.report();
                let (item, why) = (report.schedule.address(number), explain(why));
                if report.skip(&item, &why) {
                    tracing::warn!("channel {name}: skips {item}: {why}");
                }
            }
            PlayoutNews::NothingPlayed => {
                let mut report = self.report();
                report.schedule.stop();
                let had_item = report.item.take().is_some();
                drop(report);
                if had_item {
                    tracing::warn!("channel {name}: no item can be played; trying again");
                }
            }
        }
    }
}
