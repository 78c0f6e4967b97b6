//! The thread that reads items, splices them and passes runs to the pacing thread.
//!
//! An item that cannot be opened, read or spliced is skipped, and reported. If none of them can be played, the thread waits longer
//! after each round, and tries again if it loops.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use millrace_core::limits::TS_PACKET_BYTES;
use millrace_core::seam::Clock;
use millrace_make::channel::{SpliceError, SpliceRun, SplicedTitle, Splicer};
use millrace_offload::clock::MonotonicClock;

use super::items::{CastItem, ItemList, ItemOpener};
use super::origin::SharedOrigin;
use super::programme::{ChannelProgramme, ShowWatch};
use crate::day_time::unix_ms;
use crate::limits::cast::{PLAYOUT_LONGEST_REST, PLAYOUT_REST, PLAYOUT_RUNS, SHOW_CUT_MS, SHOW_LOOK_PACKETS};

/// Packets with their times, as [`SpliceRun`].
#[derive(Debug)]
pub struct PlayoutRun {
    /// Whole TS packets.
    pub bytes: Vec<u8>,
    /// 27 MHz.
    pub from: u64,
    /// 27 MHz.
    pub to: u64,
}

/// An event, in the order of the stream.
#[derive(Debug)]
pub enum PlayoutNews {
    /// Media.
    Run(PlayoutRun),
    /// A round begins, with these items; the numbers below are places among them.
    Round(Vec<CastItem>),
    /// A show begins, with these items; the numbers below are places among them. It has cut off what played before.
    Show(Vec<CastItem>),
    /// The round goes on; the numbers below are places in it again.
    ShowIsOver,
    /// The playlist cannot be read. A list that was read before is used again.
    NoList(String),
    /// The media of this item begins.
    Began(usize),
    /// The item has ended.
    Ended(usize, SplicedTitle),
    /// The item is left out, or ended early.
    Skipped(usize, String),
    /// A round without any item that could be played.
    NothingPlayed,
}

/// The running thread. It ends with the last item, or when this is dropped.
pub struct Playout {
    news: Receiver<PlayoutNews>,
    stop: Arc<AtomicBool>,
    origin: SharedOrigin,
    thread: JoinHandle<()>,
}

impl Playout {
    /// Starts it. The clock of the splice begins at `start` (27 MHz).
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(
        programme: ChannelProgramme,
        opener: ItemOpener,
        is_loop: bool,
        start: u64,
    ) -> std::io::Result<Self> {
        let (sender, news) = sync_channel(PLAYOUT_RUNS);
        let stop = Arc::new(AtomicBool::new(false));
        let output = PlayoutOutput { sender, stop: Arc::clone(&stop) };
        let origin = SharedOrigin::default();
        let shared = origin.clone();
        let run = move || {
            let watch = ShowWatch::new(&programme, unix_ms());
            let splicer = Splicer::new(start);
            // The error is the end of the receiver.
            let _ = Player { programme: &programme, watch, opener, splicer, origin: shared, output }
                .play(is_loop);
        };
        let thread = std::thread::Builder::new().name("playout".into()).spawn(run)?;
        Ok(Self { news, stop, origin, thread })
    }

    /// The events, in order.
    pub fn news(&self) -> &Receiver<PlayoutNews> {
        &self.news
    }

    /// Where the pacing thread writes when it sends.
    pub fn origin(&self) -> SharedOrigin {
        self.origin.clone()
    }
}

impl Drop for Playout {
    fn drop(&mut self) {
        // The thread is not waited for: a disk may hold it.
        self.stop.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
    }
}

/// The receiver is gone.
struct PlayoutStopped;

struct PlayoutOutput {
    sender: SyncSender<PlayoutNews>,
    stop: Arc<AtomicBool>,
}

impl PlayoutOutput {
    /// Waits for room; ends with the receiver.
    fn send(&self, news: PlayoutNews) -> Result<(), PlayoutStopped> {
        self.sender.send(news).map_err(|_| PlayoutStopped)
    }

    fn rest(&self, time: Duration) -> Result<(), PlayoutStopped> {
        let until = MonotonicClock.now() + time;
        loop {
            let left = until - MonotonicClock.now();
            if self.stop.load(Ordering::Relaxed) {
                return Err(PlayoutStopped);
            }
            if left.is_zero() {
                return Ok(());
            }
            std::thread::park_timeout(left);
        }
    }
}

struct Player<'a> {
    programme: &'a ChannelProgramme,
    watch: ShowWatch<'a>,
    opener: ItemOpener,
    splicer: Splicer,
    origin: SharedOrigin,
    output: PlayoutOutput,
}

impl Player<'_> {
    fn play(mut self, is_loop: bool) -> Result<(), PlayoutStopped> {
        let (mut rest, mut items) = (PLAYOUT_REST, Vec::new());
        loop {
            if let Some(now) = self.read(&self.programme.round)? {
                items = now;
            }
            self.output.send(PlayoutNews::Round(items.clone()))?;
            let mut has_played = self.play_shows()?;
            for (number, item) in items.iter().enumerate() {
                has_played |= self.play_item(number, item)?;
                has_played |= self.play_shows()?;
            }
            if !has_played {
                self.output.send(PlayoutNews::NothingPlayed)?;
            }
            if !is_loop {
                return Ok(());
            }
            if has_played {
                rest = PLAYOUT_REST;
            } else {
                let until_show = self.watch.next().map(|show| show.unix_ms.saturating_sub(unix_ms()));
                self.output.rest(until_show.map_or(rest, |ms| rest.min(Duration::from_millis(ms))))?;
                rest = (rest * 2).min(PLAYOUT_LONGEST_REST);
            }
        }
    }

    /// The items of a list; `None`: they cannot be read, which is reported.
    fn read(&self, list: &ItemList) -> Result<Option<Vec<CastItem>>, PlayoutStopped> {
        match list.items() {
            Ok(items) => Ok(Some(items)),
            Err(error) => {
                self.output.send(PlayoutNews::NoList(error.to_string()))?;
                Ok(None)
            }
        }
    }

    /// The wall-clock time at which the next packet of the splice is due.
    fn wall_ms(&self) -> u64 {
        let ahead_ns = self.origin.ns_until(MonotonicClock.now(), self.splicer.now());
        unix_ms() + ahead_ns / 1_000_000
    }

    fn is_show_due_since(&mut self, ms: u64) -> bool {
        let now_ms = self.wall_ms();
        self.watch.due(now_ms).is_some_and(|show| show.unix_ms + ms <= now_ms)
    }

    /// Plays the show that has to begin now, if there is one, and those that cut it off. Whether anything of them was passed on.
    fn play_shows(&mut self) -> Result<bool, PlayoutStopped> {
        let (mut has_played, mut has_begun) = (false, false);
        while let Some(show) = self.watch.take_due(self.wall_ms()) {
            let items = self.read(&self.programme.shows[show].list)?.unwrap_or_default();
            self.output.send(PlayoutNews::Show(items.clone()))?;
            has_begun = true;
            for (number, item) in items.iter().enumerate() {
                if self.is_show_due_since(0) {
                    break;
                }
                has_played |= self.play_item(number, item)?;
            }
        }
        if has_begun {
            self.output.send(PlayoutNews::ShowIsOver)?;
        }
        Ok(has_played)
    }

    /// Plays an item to its end, or until a show begins. Whether anything of it was passed on.
    fn play_item(&mut self, number: usize, item: &CastItem) -> Result<bool, PlayoutStopped> {
        let mut source = match self.opener.open(item) {
            Ok(source) => source,
            Err(error) => {
                self.output.send(PlayoutNews::Skipped(number, error.to_string()))?;
                return Ok(false);
            }
        };
        let mut item = ItemOutput { number, has_begun: false, is_stopped: false };
        let mut packets = Vec::new();
        let ended = loop {
            packets.clear();
            match source.read(&mut packets) {
                Ok(true) => {}
                Ok(false) => break self.end(&mut item).map_err(|error| error.to_string()),
                Err(error) => {
                    // The part that was read is played.
                    let _ = self.end(&mut item);
                    break Err(error.to_string());
                }
            }
            for part in packets.chunks(SHOW_LOOK_PACKETS * TS_PACKET_BYTES) {
                let is_cut = match self.push(part, &mut item) {
                    Ok(is_cut) => is_cut,
                    Err(error) => {
                        self.output.send(PlayoutNews::Skipped(number, error.to_string()))?;
                        return Ok(item.has_begun);
                    }
                };
                if is_cut {
                    let _ = self.end(&mut item);
                    return if item.is_stopped { Err(PlayoutStopped) } else { Ok(true) };
                }
            }
            if item.is_stopped || self.output.stop.load(Ordering::Relaxed) {
                return Err(PlayoutStopped);
            }
        };
        if item.is_stopped {
            return Err(PlayoutStopped);
        }
        self.output.send(match ended {
            Ok(title) => PlayoutNews::Ended(number, title),
            Err(why) => PlayoutNews::Skipped(number, why),
        })?;
        Ok(item.has_begun)
    }

    /// Whether a show has cut the item off, with its last picture and sound whole, or long enough after its time.
    fn push(&mut self, packets: &[u8], item: &mut ItemOutput) -> Result<bool, SpliceError> {
        let is_due = item.has_begun && self.is_show_due_since(0);
        let output = &self.output;
        let mut pass_on = |run: SpliceRun<'_>| item.pass_on(run, output);
        if !is_due {
            self.splicer.push(packets, &mut pass_on)?;
            return Ok(false);
        }
        let is_whole = self.splicer.push_end(packets, &mut pass_on)?;
        Ok(is_whole || self.is_show_due_since(SHOW_CUT_MS))
    }

    fn end(&mut self, item: &mut ItemOutput) -> Result<SplicedTitle, SpliceError> {
        let output = &self.output;
        self.splicer.end(&mut |run| item.pass_on(run, output))
    }
}

/// An item on its way to the pacing thread.
struct ItemOutput {
    number: usize,
    has_begun: bool,
    is_stopped: bool,
}

impl ItemOutput {
    fn pass_on(&mut self, run: SpliceRun<'_>, output: &PlayoutOutput) {
        let SpliceRun { bytes, from, to } = run;
        if !self.is_stopped && !std::mem::replace(&mut self.has_begun, true) {
            self.is_stopped = output.send(PlayoutNews::Began(self.number)).is_err();
        }
        let run = PlayoutRun { bytes: bytes.to_vec(), from, to };
        self.is_stopped = self.is_stopped || output.send(PlayoutNews::Run(run)).is_err();
    }
}
