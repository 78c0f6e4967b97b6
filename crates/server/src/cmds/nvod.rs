//! `millrace nvod`: what schemes of near video on demand give for a title or a length.

use std::fmt::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use millrace_core::units::{BitRate, HumanDuration};
use millrace_nvod::limits::MAX_CHANNELS;
use millrace_nvod::{Plan, PlanRequest, SCHEMES, Scheme, least_delay_ns};
use millrace_store::volume::{TitleInfo, Volume};
use serde::Serialize;

use super::StoreArgs;

/// Slots of the picture, and channels of it, that fit a terminal.
const DRAWN_SLOTS: u64 = 24;

/// Show delay, buffer and bandwidth of near video on demand for a title or a length
///
/// A scheme sends a title on several channels at the playback rate again and again. The delay is the longest from a viewer's
/// arrival to the first picture, without networks; the bound is the shortest that any scheme can have with this bandwidth.
#[derive(Args)]
#[command(after_help = "Examples:\n  millrace nvod 2h\n  millrace nvod my-film --channels 4 --json\n  \
                  millrace nvod 2h --channels 3 --draw pagoda\n\n\
                  See also: millrace cast TITLE nvod://GROUP:PORT, millrace play nvod://GROUP:PORT")]
pub(super) struct NvodArgs {
    /// A length, for example 90m, or a title of the store
    #[arg(value_name = "TIME|TITLE")]
    film: String,
    /// Only this number of channels, 1 to 16
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=i64::from(MAX_CHANNELS)))]
    channels: Option<u8>,
    /// Draw the segments of the first slots of each channel, in brackets those that a viewer hears from the beginning on
    #[arg(long, value_name = "SCHEME", requires = "channels")]
    draw: Option<Scheme>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreArgs,
}

/// One scheme with one number of channels.
#[derive(Serialize)]
struct SchemeFigures {
    scheme: String,
    channels: u8,
    /// Bandwidth of all channels; only for a title.
    #[serde(skip_serializing_if = "Option::is_none")]
    bits_per_s: Option<u64>,
    segments: u32,
    slot_ms: f64,
    delay_ms: f64,
    mean_delay_ms: f64,
    least_delay_ms: f64,
    receive_channels: u8,
    buffer_ms: f64,
    /// Of the title's mean rate; only for a title.
    #[serde(skip_serializing_if = "Option::is_none")]
    buffer_bytes: Option<u64>,
}

/// A title by its name or id.
pub(super) fn find_title(volume: &Volume, name: &str) -> anyhow::Result<TitleInfo> {
    volume.find(name)?.with_context(|| format!("{name}: no such title; see: millrace ls"))
}

/// Prints the figures.
pub(super) fn run(args: &NvodArgs) -> anyhow::Result<ExitCode> {
    let (film_ns, rate) = match args.film.parse::<HumanDuration>() {
        Ok(length) => (u64::try_from(length.0.as_nanos()).unwrap_or(u64::MAX), None),
        Err(_) => {
            let store = args.store.open().with_context(|| {
                format!("{}: neither a length (2h, 95min) nor a title that can be looked for", args.film)
            })?;
            let info = find_title(&store, &args.film)?;
            (info.duration.to_ns(), Some(info.mean_rate))
        }
    };
    if let (Some(scheme), Some(channels)) = (args.draw, args.channels) {
        let plan = Plan::new(PlanRequest { scheme, channels, film_ns })
            .map_err(|error| super::usage(error.into()))?;
        print!("{}", picture(&plan));
        return Ok(ExitCode::SUCCESS);
    }
    let numbers = args.channels.map_or(1..=8, |channels| channels..=channels);
    let mut figures = Vec::new();
    let mut refused = Vec::new();
    for channels in numbers {
        for scheme in SCHEMES {
            match Plan::new(PlanRequest { scheme, channels, film_ns }) {
                Ok(plan) => figures.push(figures_of(&plan, rate)),
                Err(error) => refused.push(error),
            }
        }
    }
    if figures.is_empty() {
        let error = refused.first().context("there is no scheme")?;
        return Err(super::usage((*error).into()));
    }
    if args.json {
        super::print_json(&figures)?;
    } else {
        print_table(&figures);
    }
    for error in refused {
        eprintln!("millrace: {error}");
    }
    Ok(ExitCode::SUCCESS)
}

fn figures_of(plan: &Plan, rate: Option<BitRate>) -> SchemeFigures {
    let PlanRequest { scheme, channels, film_ns } = plan.request();
    let ms = |ns: u64| ns as f64 / 1e6;
    let buffer_ns = u64::from(plan.buffer_slots()) * plan.slot_ns();
    SchemeFigures {
        scheme: scheme.to_string(),
        channels,
        bits_per_s: rate.map(|rate| rate.0 * u64::from(channels)),
        segments: plan.segments(),
        slot_ms: ms(plan.slot_ns()),
        delay_ms: ms(plan.delay_ns()),
        mean_delay_ms: ms(plan.mean_delay_ns()),
        least_delay_ms: ms(least_delay_ns(film_ns, channels)),
        receive_channels: plan.receive_channels(),
        buffer_ms: ms(buffer_ns),
        buffer_bytes: rate.map(|rate| (u128::from(rate.0) * u128::from(buffer_ns) / 8_000_000_000) as u64),
    }
}

fn print_table(figures: &[SchemeFigures]) {
    let time = |ms: f64| HumanDuration(Duration::from_millis(ms.ceil() as u64)).to_string();
    println!(
        "{:>8}  {:<12} {:>9} {:>9} {:>9} {:>9} {:>6} {:>9}  bandwidth",
        "channels", "scheme", "segments", "delay", "mean", "bound", "heard", "buffer"
    );
    for row in figures {
        println!(
            "{:>8}  {:<12} {:>9} {:>9} {:>9} {:>9} {:>6} {:>9}  {}",
            row.channels,
            row.scheme,
            row.segments,
            time(row.delay_ms),
            time(row.mean_delay_ms),
            time(row.least_delay_ms),
            row.receive_channels,
            time(row.buffer_ms),
            row.bits_per_s
                .map_or_else(|| format!("{} x playback", row.channels), |rate| BitRate(rate).to_string()),
        );
    }
}

/// The segments of each channel; in brackets those that a viewer keeps who arrives at the beginning.
fn picture(plan: &Plan) -> String {
    let joins = plan.joins(0);
    let digits = plan.segments().to_string().len();
    let mut text = String::new();
    for channel in 0..plan.channels() {
        let join = joins.iter().find(|join| join.channel == channel);
        // Writing to a string cannot fail.
        let _ = write!(text, "channel {:>2} ", channel + 1);
        for slot in 0..DRAWN_SLOTS {
            let segment = plan.segment_at(channel, slot) + 1;
            let is_heard = join.is_some_and(|join| (join.from_slot..join.until_slot).contains(&slot));
            let (open, close) = if is_heard { ('[', ']') } else { (' ', ' ') };
            let _ = write!(text, "{open}{segment:>digits$}{close}");
        }
        text.push('\n');
    }
    let playback = plan.playback_slot(0);
    let _ = write!(text, "playback   ");
    for slot in 0..DRAWN_SLOTS {
        let shown = slot.checked_sub(playback).filter(|shown| *shown < u64::from(plan.segments()));
        let shown = shown.map(|shown| (shown + 1).to_string()).unwrap_or_default();
        let _ = write!(text, " {shown:>digits$} ");
    }
    text.push('\n');
    text
}
