//! `millrace play`: a receiver that measures.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use millrace_client::play::{PlayOptions, PlayProgress, TransportChoice, play};
use millrace_client::script::Script;
use millrace_client::{FecChoice, Output, PlaybackPace, ReceptionVerdict};
use millrace_core::rendition::RenditionName;
use millrace_core::scale::Scale;
use millrace_core::time::MediaTicks;
use millrace_core::units::{BitRate, HumanDuration};

/// Play a title from any RTSP server, or receive RTP or near video on demand, and report loss, order, lateness and wrong bytes
///
/// The exit code is 0 if the title was played to its end (or to the requested end), nothing was lost and every byte compared is
/// right.
#[derive(Args)]
#[command(after_help = "Examples:\n  millrace play rtsp://host:8554/film\n  \
                        millrace play rtsp://host:8554/film -o - | ffplay -\n  \
                        millrace play rtsp://host:8554/film --fec all\n  \
                        millrace play rtp://239.1.2.3:5004 --fec xor -o copy.ts\n  \
                        millrace play nvod://239.1.1.1:5000 -o - | ffplay -\n  \
                        millrace play rtsp://host:8554/film -o copy.ts --verify original.ts --stats json\n  \
                        millrace play rtsp://host:8554/film --analyse\n  \
                        millrace play rtsp://host:8554/film --start 10m --scale -8\n  \
                        millrace play rtsp://host:8554/film --do 'pause@5,play@8,seek@10=30' --duration 20s\n\n\
                        Exit code: 0 everything requested arrived and is right; 1 packets were lost, bytes are wrong or missing,\n\
                        nothing arrived, or playback could not start; 2 the command line is invalid; 3 the stream ended before\n\
                        its announced end: the connection closed, packets stopped, or BYE came too early; 4 the data received\n\
                        are not the MPEG transport stream that was announced. Lateness and faults of the media themselves are\n\
                        reported but do not change the exit code.")]
pub(super) struct PlayArgs {
    /// rtsp://host[:port]/title, rtp://[address]:port to receive a stream sent to that address, or nvod://group:port for near video
    /// on demand
    url: String,
    /// Transport: udp, tcp, or auto (UDP, then TCP if nothing arrives)
    #[arg(long, value_name = "HOW", default_value = "auto")]
    transport: TransportChoice,
    /// Repair lost packets with FEC: xor (ST 2022-1; the only one for rtp://), all, or off
    #[arg(long, value_name = "WHICH", default_value = "off")]
    fec: FecChoice,
    /// Where to write the transport stream: a file, - for standard output, or null
    #[arg(short, long, value_name = "FILE", default_value = "null")]
    output: String,
    /// The report: text, json or none
    #[arg(long, value_name = "FORM", default_value = "text")]
    stats: Stats,
    /// Compare every byte with this file
    #[arg(long, value_name = "FILE")]
    verify: Option<PathBuf>,
    /// Check the received transport stream against TR 101 290, as inspect --ts does; losses in the
    /// network are no fault of the stream
    #[arg(long)]
    analyse: bool,
    /// Position to start at
    #[arg(long, value_name = "TIME")]
    start: Option<HumanDuration>,
    /// Position to stop at
    #[arg(long, value_name = "TIME")]
    end: Option<HumanDuration>,
    /// Stop after this time
    #[arg(long, value_name = "TIME")]
    duration: Option<HumanDuration>,
    /// Show the title at this speed: 2 to 32 is fast forward, negative is backwards, below 1 slow motion; the server plays the nearest
    /// that it has
    #[arg(long, value_name = "SPEED", allow_negative_numbers = true)]
    scale: Option<Scale>,
    /// Deliver the packets at this speed, 0.25 to 4 times real time
    #[arg(long, value_name = "RATIO", value_parser = parse_speed)]
    speed: Option<u16>,
    /// Play this rendition of the title, for example 720p; auto leaves the choice to the server
    #[arg(long, value_name = "NAME")]
    rendition: Option<RenditionName>,
    /// Script of actions: pause@SECONDS, play@SECONDS, seek@SECONDS=POSITION, scale@SECONDS=SPEED, rendition@SECONDS=NAME, separated by
    /// commas
    #[arg(long = "do", value_name = "SCRIPT", default_value = "", hide_default_value = true)]
    script: Script,
    /// No progress line
    #[arg(long, short)]
    quiet: bool,
}

/// Form of the report.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Stats {
    Text,
    Json,
    None,
}

/// In thousandths.
fn parse_speed(text: &str) -> Result<u16, String> {
    let ratio: Option<f64> = text.parse().ok();
    let ratio = ratio.filter(|ratio| (0.25..=4.0).contains(ratio));
    ratio.map(|ratio| (ratio * 1000.0).round() as u16).ok_or_else(|| "allowed: 0.25 to 4".to_owned())
}

fn ticks(time: HumanDuration) -> MediaTicks {
    MediaTicks::from_ns(u64::try_from(time.0.as_nanos()).unwrap_or(u64::MAX))
}

/// Plays; the report goes to standard output, or to standard error when the media goes there.
pub(super) fn run(args: &PlayArgs) -> anyhow::Result<ExitCode> {
    let mut url = args.url.clone();
    if let Some(name) = args.rendition {
        url.push_str(&format!("{}rendition={name}", if url.contains('?') { '&' } else { '?' }));
    }
    let mut options = PlayOptions::new(&url);
    options.transport = args.transport;
    options.fec = args.fec;
    options.output = match args.output.as_str() {
        "null" => Output::Null,
        "-" => Output::Stdout,
        file => Output::File(file.into()),
    };
    options.reference.clone_from(&args.verify);
    options.analyse = args.analyse;
    options.start = args.start.map(ticks);
    options.end = args.end.map(ticks);
    options.duration = args.duration.map(|time| time.0);
    options.pace = PlaybackPace { scale: args.scale, speed_permille: args.speed };
    options.script = args.script.clone();
    let cancel = super::cancel_on_signals()?;
    let line = indicatif::ProgressBar::new_spinner();
    if args.quiet || args.stats == Stats::Json {
        line.set_draw_target(indicatif::ProgressDrawTarget::hidden());
    }
    let result = play(&options, &cancel, &mut |progress| show(&line, progress));
    line.finish_and_clear();
    let report = result.map_err(super::of_client)?;
    match (args.stats, &options.output) {
        (Stats::None, _) => {}
        (Stats::Json, Output::Stdout) => eprintln!("{}", super::terminal::printable_json(&report.to_json())),
        (Stats::Json, _) => super::print_json(&report)?,
        (Stats::Text, Output::Stdout) => eprint!("{report}"),
        (Stats::Text, _) => print!("{report}"),
    }
    Ok(exit_code(report.verdict()))
}

fn show(line: &indicatif::ProgressBar, progress: &PlayProgress) {
    let state = if progress.paused { "paused" } else { "playing" };
    line.set_message(format!(
        "{state} {}  {} packets, {} lost, {}",
        progress.media,
        progress.packets,
        progress.lost,
        BitRate(progress.rate_bits_per_s)
    ));
    line.tick();
}

/// Returns the exit code documented in --help.
fn exit_code(verdict: ReceptionVerdict) -> ExitCode {
    ExitCode::from(match verdict {
        ReceptionVerdict::Right => 0,
        ReceptionVerdict::Damaged => 1,
        ReceptionVerdict::CutOff => 3,
        ReceptionVerdict::Foreign => 4,
    })
}
