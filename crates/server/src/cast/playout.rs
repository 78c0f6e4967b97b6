//! The thread that reads items, splices them and passes runs to the pacing thread.
//!
//! An item that cannot be opened, read or spliced is skipped, and reported. If none of them can be played, the thread waits longer
//! after each round, and tries again if it loops.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use millrace_core::seam::Clock;
use millrace_make::channel::{SpliceRun, SplicedTitle, Splicer};
use millrace_offload::clock::MonotonicClock;

use super::items::{CastItem, ItemList, ItemOpener};
use crate::limits::cast::{PLAYOUT_LONGEST_REST, PLAYOUT_REST, PLAYOUT_RUNS};

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
    thread: JoinHandle<()>,
}

impl Playout {
    /// Starts it. The clock of the splice begins at `start` (27 MHz).
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(list: ItemList, opener: ItemOpener, is_loop: bool, start: u64) -> std::io::Result<Self> {
        let (sender, news) = sync_channel(PLAYOUT_RUNS);
        let stop = Arc::new(AtomicBool::new(false));
        let output = PlayoutOutput { sender, stop: Arc::clone(&stop) };
        let run = move || {
            // The error is the end of the receiver.
            let _ = play(&list, &opener, is_loop, start, &output);
        };
        let thread = std::thread::Builder::new().name("playout".into()).spawn(run)?;
        Ok(Self { news, stop, thread })
    }

    /// The events, in order.
    pub fn news(&self) -> &Receiver<PlayoutNews> {
        &self.news
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

fn play(
    list: &ItemList,
    opener: &ItemOpener,
    is_loop: bool,
    start: u64,
    output: &PlayoutOutput,
) -> Result<(), PlayoutStopped> {
    let mut splicer = Splicer::new(start);
    let (mut rest, mut items) = (PLAYOUT_REST, Vec::new());
    loop {
        match list.items() {
            Ok(now) => items = now,
            Err(error) => output.send(PlayoutNews::NoList(error.to_string()))?,
        }
        output.send(PlayoutNews::Round(items.clone()))?;
        let mut has_played = false;
        for (number, item) in items.iter().enumerate() {
            has_played |= play_item(number, item, opener, &mut splicer, output)?;
        }
        if !has_played {
            output.send(PlayoutNews::NothingPlayed)?;
        }
        if !is_loop {
            return Ok(());
        }
        if has_played {
            rest = PLAYOUT_REST;
        } else {
            output.rest(rest)?;
            rest = (rest * 2).min(PLAYOUT_LONGEST_REST);
        }
    }
}

/// Whether anything of the item was passed on.
fn play_item(
    number: usize,
    item: &CastItem,
    opener: &ItemOpener,
    splicer: &mut Splicer,
    output: &PlayoutOutput,
) -> Result<bool, PlayoutStopped> {
    let mut source = match opener.open(item) {
        Ok(source) => source,
        Err(error) => {
            output.send(PlayoutNews::Skipped(number, error.to_string()))?;
            return Ok(false);
        }
    };
    let mut has_begun = false;
    let mut is_stopped = false;
    let mut packets = Vec::new();
    let mut failure = None;
    let mut pass_on = |run: SpliceRun<'_>| {
        let SpliceRun { bytes, from, to } = run;
        if !is_stopped && !std::mem::replace(&mut has_begun, true) {
            is_stopped = output.send(PlayoutNews::Began(number)).is_err();
        }
        let run = PlayoutRun { bytes: bytes.to_vec(), from, to };
        is_stopped = is_stopped || output.send(PlayoutNews::Run(run)).is_err();
    };
    while failure.is_none() {
        packets.clear();
        match source.read(&mut packets) {
            Ok(true) => failure = splicer.push(&packets, &mut pass_on).err().map(|error| error.to_string()),
            Ok(false) => break,
            Err(error) => {
                // The part that was read is played.
                let _ = splicer.end(&mut pass_on);
                failure = Some(error.to_string());
            }
        }
        if output.stop.load(Ordering::Relaxed) {
            return Err(PlayoutStopped);
        }
    }
    let ended = match failure {
        Some(failure) => Err(failure),
        None => splicer.end(&mut pass_on).map_err(|error| error.to_string()),
    };
    if is_stopped {
        return Err(PlayoutStopped);
    }
    output.send(match ended {
        Ok(title) => PlayoutNews::Ended(number, title),
        Err(why) => PlayoutNews::Skipped(number, why),
    })?;
    Ok(has_begun)
}
