//! `millrace cast TITLE nvod://GROUP:PORT`: near video on demand.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget};
use millrace_core::seam::Clock;
use millrace_core::time::NS_PER_S;
use millrace_core::units::{BitRate, Count, HumanDuration};
use millrace_nvod::Plan;
use millrace_offload::clock::MonotonicClock;
use serde::Serialize;

use super::StoreArgs;
use super::nvod::find_title;
use crate::cast::nvod::{NvodEnd, NvodFeed, NvodSender, NvodUrl, SegmentedTitle};
use crate::limits::cast::CAST_PROGRESS_NS;

/// What `millrace cast` asks for.
pub(super) struct NvodCast<'a> {
    pub(super) item: &'a str,
    pub(super) url: &'a NvodUrl,
    pub(super) time: Option<Duration>,
    pub(super) is_json: bool,
    pub(super) is_quiet: bool,
}

/// Summary of the cast.
#[derive(Serialize)]
struct NvodSummary {
    url: String,
    title: String,
    scheme: String,
    channels: u8,
    segments: u32,
    slot_ms: u64,
    delay_ms: u64,
    /// UDP datagrams that were sent, announcements among them.
    packets: u64,
    /// Their payload with headers.
    bytes: u64,
    /// Datagrams that the kernel refused.
    refused: u64,
    /// Packets that were too late to be of use, and were not sent.
    skipped: u64,
    seconds: f64,
    lateness_p50_us: u64,
    lateness_p99_us: u64,
    lateness_max_us: u64,
}

/// Sends.
pub(super) fn run(cast: &NvodCast<'_>, store: &StoreArgs) -> anyhow::Result<ExitCode> {
    let url = cast.url;
    let volume = store.open()?;
    let info = find_title(&volume, cast.item)?;
    let title = Arc::new(SegmentedTitle::new(&volume, info, url.scheme, url.channels)?);
    let opened = NvodSender::open(url, Arc::clone(&title), MonotonicClock);
    let mut sender = opened.map_err(|error| super::usage(error.into()))?;
    let cancel = super::cancel_on_signals()?;
    let feed = NvodFeed::start(&volume, &title)?;
    let line = ProgressBar::new_spinner();
    if cast.is_quiet || cast.is_json {
        line.set_draw_target(ProgressDrawTarget::hidden());
    }
    let start = MonotonicClock.now();
    let mut shown = start;
    let time_ns = cast.time.map_or(u64::MAX, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    let end = sender.run(&feed, time_ns, &cancel, &mut |sender, now| {
        if now.ns_since(shown) >= CAST_PROGRESS_NS {
            shown = now;
            let (counts, rate) = (sender.counts(), BitRate::of(sender.counts().bytes, now.ns_since(start)));
            line.set_message(format!(
                "casting {} on {}, viewers begin within {}  {} packets, {rate}",
                super::terminal::name(&title.info.name),
                Count(url.channels.into(), "channel"),
                delay(&title.plan),
                counts.datagrams,
            ));
            line.tick();
        }
    });
    line.finish_and_clear();
    let (counts, lateness) = (sender.counts(), sender.lateness());
    let ns = MonotonicClock.now().ns_since(start);
    let summary = NvodSummary {
        url: url.to_string(),
        title: title.info.name.clone(),
        scheme: url.scheme.to_string(),
        channels: url.channels,
        segments: title.plan.segments(),
        slot_ms: title.plan.slot_ns() / 1_000_000,
        delay_ms: title.plan.delay_ns() / 1_000_000,
        packets: counts.datagrams,
        bytes: counts.bytes,
        refused: counts.refused,
        skipped: sender.skipped(),
        seconds: (ns as f64 / NS_PER_S as f64 * 1000.0).round() / 1000.0,
        lateness_p50_us: lateness.p50_us,
        lateness_p99_us: lateness.p99_us,
        lateness_max_us: lateness.max_us,
    };
    print_summary(cast, &summary)?;
    if let Some(error) = sender.take_error() {
        let group = url.control().to.ip();
        eprintln!("millrace: cast to {url}: {error}; check the route (ip route get {group})");
    }
    if let NvodEnd::Failed(error) = end {
        return Err(error.into());
    }
    let is_whole = counts.refused == 0 && summary.skipped == 0 && counts.datagrams > 0;
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The longest delay, for people.
fn delay(plan: &Plan) -> HumanDuration {
    HumanDuration(Duration::from_millis(plan.delay_ns().div_ceil(1_000_000)))
}

fn print_summary(cast: &NvodCast<'_>, summary: &NvodSummary) -> anyhow::Result<()> {
    if cast.is_json {
        return super::print_json(summary);
    }
    if cast.is_quiet {
        return Ok(());
    }
    println!(
        "sent {} on {}, {} bytes in {:.1} s; lateness p99 {:.2} ms, at most {:.2} ms",
        Count(summary.packets, "packet"),
        Count(summary.channels.into(), "channel"),
        summary.bytes,
        summary.seconds,
        summary.lateness_p99_us as f64 / 1000.0,
        summary.lateness_max_us as f64 / 1000.0,
    );
    if summary.refused + summary.skipped > 0 {
        println!("{} refused by the system, {} too late to be sent", summary.refused, summary.skipped);
    }
    Ok(())
}
