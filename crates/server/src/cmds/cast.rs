//! `millrace cast`: titles in a row, sent to a UDP address by the clock.

use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget};
use millrace_core::seam::Clock;
use millrace_core::time::{Instant, NS_PER_S};
use millrace_core::units::{BitRate, Count, HumanDuration};
use millrace_offload::clock::MonotonicClock;
use millrace_store::volume::Volume;
use serde::Serialize;

use super::StoreArgs;
use super::nvod_cast::{self, NvodCast};
use crate::cast::nvod::NvodUrl;
use crate::cast::nvod::url::NvodUrlError;
use crate::cast::url::CastUrlError;
use crate::cast::{
    CastItem, CastSender, CastUrl, ItemList, ItemOpener, PaceEnd, PacedSink, Pacer, Playout, PlayoutNews,
};
use crate::limits::cast::CAST_PROGRESS_NS;
use crate::live::address::LiveTransport;

/// Send titles in a row to a UDP or RTP address, unicast or multicast, or one title as near video on demand, without a server
///
/// The titles become one transport stream whose clock, counters and PIDs go on from title to title. It is sent in real time by its
/// clock references. A title that is missing or damaged is skipped.
///
/// To nvod://GROUP:PORT one title of the store is sent on several multicast groups again and again, so that any number of viewers
/// (millrace play nvod://GROUP:PORT) begin within a short time after they join. See also: millrace nvod
#[derive(Args)]
#[command(after_help = "Examples:\n  millrace cast my-film udp://239.1.1.1:5000?ttl=4 --loop\n  \
                  millrace cast evening.m3u rtp://239.1.1.1:5000?iface=eth1 --loop --sdp evening.sdp\n  \
                  millrace cast opening.ts my-film udp://127.0.0.1:5000\n  \
                  millrace cast my-film 'nvod://239.1.1.1:5000?channels=6&scheme=fixed-delay'\n\n\
                  URL options: ttl=1..255 (multicast: 1 by default), iface=NAME or ADDR, dscp=0..63, pkt_size=BYTES;\n\
                  of nvod:// also channels=1..16 and scheme=staggered, skyscraper, pagoda or fixed-delay.\n\
                  Exit code: 0 everything was sent, or --loop or nvod:// was interrupted; 1 a title was skipped, nothing\ncould be sent, or a cast without --loop was interrupted; \
                  2 the command line is invalid")]
pub(super) struct CastArgs {
    /// Titles of the store, files with transport streams, or playlists (.m3u, .m3u8), in order
    #[arg(value_name = "TITLE|FILE|PLAYLIST", required = true)]
    items: Vec<String>,
    /// Where to send: udp://ADDR:PORT, rtp://ADDR:PORT or nvod://GROUP:PORT, with options behind a question mark
    #[arg(value_name = "URL", required = true)]
    url: CastTarget,
    /// Begin again after the last title, until interrupted
    #[arg(long = "loop")]
    is_loop: bool,
    /// Write a session description for receivers of rtp:// into this file
    #[arg(long, value_name = "FILE")]
    sdp: Option<PathBuf>,
    /// End a cast to nvod:// after this time; else it goes on until interrupted
    #[arg(long = "for", value_name = "TIME")]
    time: Option<HumanDuration>,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
    /// No progress line
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    store: StoreArgs,
}

/// Where to send.
#[derive(Clone, Debug)]
enum CastTarget {
    Stream(CastUrl),
    Nvod(NvodUrl),
}

impl FromStr for CastTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if NvodUrl::is_meant(text) {
            return text.parse().map(Self::Nvod).map_err(|error: NvodUrlError| error.to_string());
        }
        text.parse().map(Self::Stream).map_err(|error: CastUrlError| error.to_string())
    }
}

/// Summary of a cast.
#[derive(Serialize)]
struct CastSummary {
    url: String,
    /// UDP datagrams that were sent.
    packets: u64,
    /// Their payload with RTP headers.
    bytes: u64,
    /// Datagrams that the kernel refused.
    refused: u64,
    seconds: f64,
    lateness_p50_us: u64,
    lateness_p99_us: u64,
    lateness_max_us: u64,
    /// Times that the schedule was moved, because media came more than 200 ms late from the disk.
    late_pauses: u64,
    titles: Vec<CastTitle>,
}

/// The fate of one entry.
#[derive(Serialize)]
struct CastTitle {
    item: String,
    /// How often it was sent to its end.
    sent: u64,
    /// How often it was skipped.
    skipped: u64,
    /// Why it was skipped last.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// Sends.
pub(super) fn run(args: &CastArgs) -> anyhow::Result<ExitCode> {
    match &args.url {
        CastTarget::Stream(url) => run_stream(args, url),
        CastTarget::Nvod(url) => {
            let [item] = &args.items[..] else {
                return Err(super::usage(anyhow::anyhow!(
                    "nvod://: got {} titles; near video on demand sends one, name one",
                    args.items.len()
                )));
            };
            if args.is_loop || args.sdp.is_some() {
                return Err(super::usage(anyhow::anyhow!(
                    "nvod://: --loop and --sdp are for other casts; leave them out, or write udp:// or rtp://"
                )));
            }
            let request = NvodCast {
                item,
                url,
                time: args.time.map(|time| time.0),
                is_json: args.json,
                is_quiet: args.quiet,
            };
            nvod_cast::run(&request, &args.store)
        }
    }
}

fn run_stream(args: &CastArgs, url: &CastUrl) -> anyhow::Result<ExitCode> {
    if args.time.is_some() {
        return Err(super::usage(anyhow::anyhow!("--for: only a cast to nvod:// has it; leave it out")));
    }
    let items = read_items(&args.items)?;
    let mut sender = CastSender::open(url).map_err(|error| super::usage(error.into()))?;
    if let Some(path) = &args.sdp {
        write_description(path, url, &items)?;
    }
    let cancel = super::cancel_on_signals()?;
    let playout =
        Playout::start(ItemList::Fixed(items.clone()).into(), opener(args.store.clone()), args.is_loop, 0)?;
    let line = ProgressBar::new_spinner();
    if args.quiet || args.json {
        line.set_draw_target(ProgressDrawTarget::hidden());
    }
    let mut view = CastView {
        line,
        titles: items
            .into_iter()
            .map(|item| CastTitle { item: item.address, sent: 0, skipped: 0, reason: None })
            .collect(),
        has_failed: false,
    };
    let mut pacer = Pacer::new(MonotonicClock, playout.origin());
    let start = MonotonicClock.now();
    let mut sink =
        MeasuredSender { sender: &mut sender, line: view.line.clone(), since: start, shown: start };
    let end = pacer.run(playout.news(), &mut sink, &cancel, &mut |pacer, news| {
        view.take(news);
        // Without --loop the thread ends by itself.
        if view.has_failed && args.is_loop && pacer.datagrams() == 0 {
            cancel.store(true, Ordering::Relaxed);
        }
    });
    view.line.finish_and_clear();
    let error = sender.take_error();
    let summary = view.summary(&sender, &pacer, MonotonicClock.now().ns_since(start));
    print_summary(args, &summary)?;
    if let Some(error) = error {
        eprintln!("millrace: cast to {url}: {error}; check the route (ip route get {})", url.to.ip());
    }
    let is_over = args.is_loop || end == PaceEnd::Finished;
    let is_whole = is_over && summary.packets > 0 && summary.titles.iter().all(|title| title.skipped == 0);
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The entries, those of playlists among them.
fn read_items(texts: &[String]) -> anyhow::Result<Vec<CastItem>> {
    let mut items = Vec::new();
    for text in texts {
        let path = Path::new(text);
        match CastItem::is_playlist(path) {
            true => items.extend(CastItem::of_playlist(path)?),
            false => items.push(CastItem::new(text)),
        }
    }
    Ok(items)
}

/// Opens the store with the first entry that is no file.
fn opener(store: StoreArgs) -> ItemOpener {
    let opened: Mutex<Option<Arc<Volume>>> = Mutex::new(None);
    ItemOpener::new(move || {
        // A panic elsewhere leaves it open or not.
        let mut opened = opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(volume) = &*opened {
            return Ok(Arc::clone(volume));
        }
        let volume = Arc::new(store.open().map_err(|error| super::words(&error))?);
        *opened = Some(Arc::clone(&volume));
        Ok(volume)
    })
}

fn write_description(path: &Path, url: &CastUrl, items: &[CastItem]) -> anyhow::Result<()> {
    if url.transport != LiveTransport::Rtp {
        return Err(super::usage(anyhow::anyhow!(
            "--sdp: only rtp:// has a session description; write rtp:// or leave out --sdp"
        )));
    }
    let name = items.first().map_or("", |item| item.address.as_str());
    let text = url.session_description(name, RandomState::new().hash_one(0) as u32);
    std::fs::write(path, text).with_context(|| format!("--sdp {}", path.display()))
}

/// Follows the titles, and shows them in the progress line.
struct CastView {
    line: ProgressBar,
    titles: Vec<CastTitle>,
    has_failed: bool,
}

impl CastView {
    fn take(&mut self, news: PlayoutNews) {
        match news {
            PlayoutNews::Run(_)
            | PlayoutNews::Round(_)
            | PlayoutNews::Show(_)
            | PlayoutNews::ShowIsOver
            | PlayoutNews::NoList(_) => {}
            PlayoutNews::Began(number) => {
                let of = self.titles.len();
                self.line.set_prefix(format!("{} ({} of {of})", self.titles[number].item, number + 1));
            }
            PlayoutNews::Ended(number, _) => self.titles[number].sent += 1,
            PlayoutNews::Skipped(number, why) => {
                let title = &mut self.titles[number];
                let is_new = title.reason.as_ref() != Some(&why);
                title.skipped += 1;
                if is_new {
                    self.line.suspend(|| eprintln!("millrace: {}: skipped: {why}", title.item));
                }
                title.reason = Some(why);
            }
            PlayoutNews::NothingPlayed => self.has_failed = true,
        }
    }

    fn summary<C: Clock>(self, sender: &CastSender, pacer: &Pacer<C>, ns: u64) -> CastSummary {
        let (counts, lateness) = (sender.counts(), pacer.lateness());
        CastSummary {
            url: sender.url().to_string(),
            packets: counts.datagrams,
            bytes: counts.bytes,
            refused: counts.refused,
            seconds: (ns as f64 / NS_PER_S as f64 * 1000.0).round() / 1000.0,
            lateness_p50_us: lateness.p50_us,
            lateness_p99_us: lateness.p99_us,
            lateness_max_us: lateness.max_us,
            late_pauses: pacer.moved(),
            titles: self.titles,
        }
    }
}

/// The sender, with the progress line.
struct MeasuredSender<'a> {
    sender: &'a mut CastSender,
    line: ProgressBar,
    since: Instant,
    shown: Instant,
}

impl PacedSink for MeasuredSender<'_> {
    fn datagram(&mut self, due: Instant, time: u64, bytes: &[u8]) {
        self.sender.datagram(due, time, bytes);
    }

    fn flush(&mut self, now: Instant) {
        self.sender.flush(now);
        if now.ns_since(self.shown) < CAST_PROGRESS_NS {
            return;
        }
        self.shown = now;
        let (counts, ns) = (self.sender.counts(), now.ns_since(self.since));
        let seconds = ns / NS_PER_S;
        let rate = BitRate::of(counts.bytes, ns);
        let prefix = self.line.prefix();
        self.line.set_message(format!(
            "casting {prefix}  {}:{:02}:{:02}  {} packets, {rate}",
            seconds / 3600,
            seconds / 60 % 60,
            seconds % 60,
            counts.datagrams,
        ));
        self.line.tick();
    }
}

fn print_summary(args: &CastArgs, summary: &CastSummary) -> anyhow::Result<()> {
    if args.json {
        return super::print_json(summary);
    }
    if args.quiet {
        return Ok(());
    }
    let sent: u64 = summary.titles.iter().map(|title| title.sent).sum();
    let skipped: u64 = summary.titles.iter().map(|title| title.skipped).sum();
    println!(
        "sent {} of {}, {} bytes in {:.1} s; lateness p99 {:.2} ms, at most {:.2} ms",
        Count(summary.packets, "packet"),
        Count(sent, "title"),
        summary.bytes,
        summary.seconds,
        summary.lateness_p99_us as f64 / 1000.0,
        summary.lateness_max_us as f64 / 1000.0,
    );
    if skipped > 0 {
        println!("skipped {}; see the messages above", Count(skipped, "title"));
    }
    if summary.refused > 0 {
        println!("{} refused by the system", Count(summary.refused, "packet"));
    }
    Ok(())
}
