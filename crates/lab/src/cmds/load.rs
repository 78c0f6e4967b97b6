//! `millrace load`: many viewers at once, against any server.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::link_host::{LinkHost, LinkSpec};
use anyhow::Context;
use clap::Args;
use millrace_cli::exit::{print_json, usage};
use millrace_cli::percent::Percent;
use millrace_cli::signals::cancel_on_signals;
use millrace_client::FecChoice;
use millrace_client::play::TransportChoice;
use millrace_core::time::MediaTicks;
use millrace_core::units::{BitRate, ByteLen, HumanDuration};
use millrace_load::web::playlist::VariantChoice;
use millrace_load::{
    Arrivals, Behaviour, Inspect, LoadError, LoadOptions, LoadProgress, LoadReport, MediaClock, TitleChoice,
    WebOptions, load, write_per_stream, write_series,
};

/// Load any server with many viewers, and measure received packets, lateness and loss
///
/// All randomness derives from --seed. The exit code is 0 when nothing failed, nothing was lost and every limit was
/// met, 1 otherwise, 2 for invalid options. Ctrl-C tears down all sessions and still prints the report.
#[derive(Args)]
#[command(after_help = "Examples:\n  millrace load rtsp://host:8554/film --streams 100 --duration 30s\n  \
                        millrace load @titles.txt --streams 500 --titles zipf:0.8 --arrivals poisson:50/s --seed 7\n  \
                        millrace load @titles.txt --streams 200 --behaviour 'watch:70,zap 8s:20,pause 5s for 3s:5,seek 10s:5'\n  \
                        millrace load rtsp://host/film --streams 50 --behaviour 'pause@5,play@8,seek@10=30'\n  \
                        millrace load rtsp://host/film --streams 5000 --local 10.0.0.2,10.0.0.3 --probe eth1\n  \
                        millrace load rtsp://host/film --streams 100 --json --series load.csv --per-stream streams.csv\n\n\
                        docs/guide/load.md says what every figure means.")]
pub(super) struct LoadArgs {
    /// URLs to play: rtsp://…, http://… (HLS if it ends in .m3u8), udp://… and rtp://… (receive), or @FILE with one URL per line
    #[arg(value_name = "URL", required = true)]
    targets: Vec<String>,
    /// Number of viewers, 1 to 20000
    #[arg(long, short = 'n', value_name = "N", default_value_t = 10, help_heading = "Load")]
    streams: u32,
    /// How long all viewers play together, counted from the last arrival
    #[arg(long, value_name = "TIME", default_value = "10s", help_heading = "Load")]
    duration: HumanDuration,
    /// When viewers arrive: all, ramp:TIME or poisson:N/s [default: a ramp of 10 ms per viewer]
    #[arg(long, value_name = "HOW", help_heading = "Load")]
    arrivals: Option<Arrivals>,
    /// How viewers choose titles: in-turn, uniform or zipf:S
    #[arg(long, value_name = "HOW", default_value = "in-turn", help_heading = "Load")]
    titles: TitleChoice,
    /// Viewer behaviour: weighted habits (watch, zap T, pause T for T, seek T, switch T between NAME NAME, leave T [replaced]) or a script
    #[arg(long, value_name = "TEXT", default_value = "watch", help_heading = "Load")]
    behaviour: Behaviour,
    /// Seed of the random generator
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Load")]
    seed: u64,
    /// Start position of the first viewer
    #[arg(long, value_name = "TIME", default_value = "0s", help_heading = "Load")]
    start: HumanDuration,
    /// Spread the start positions of the others evenly over this much media time
    #[arg(long, value_name = "TIME", default_value = "0s", help_heading = "Load")]
    start_spread: HumanDuration,
    #[command(flatten)]
    receiver: ReceiverArgs,
    #[command(flatten)]
    web: WebArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// How it is received.
#[derive(Args)]
#[command(next_help_heading = "Receiving")]
struct ReceiverArgs {
    /// Transport: udp, or tcp (interleaved in the RTSP connection)
    #[arg(long, value_name = "HOW", default_value = "udp")]
    transport: TransportChoice,
    /// FEC used by RTSP viewers: xor, all or off; only packets that FEC cannot repair count as lost
    #[arg(long, value_name = "WHICH", default_value = "off")]
    fec: FecChoice,
    /// Threads, 1 to 16
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: usize,
    /// Addresses of this machine that viewers use in turn
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    local: Vec<IpAddr>,
    /// Count RTP packets on this interface in the kernel and drop them there, instead of reading them (needs root)
    #[arg(long, value_name = "INTERFACE")]
    probe: Option<String>,
    /// Put an emulated bad link between the viewers and this machine, for example 'loss 1%, delay 20ms' (needs root)
    #[arg(long, value_name = "SPEC")]
    link: Option<LinkSpec>,
    /// Media bit rate, for streams that carry no clock
    #[arg(long, value_name = "RATE")]
    rate: Option<BitRate>,
    /// Clock for the lateness of RTP: the packets' timestamps (rtp), or the program clock of their transport stream (pcr, for servers
    /// that stamp packets when they send them)
    #[arg(long, value_name = "CLOCK", default_value = "rtp")]
    media_clock: MediaClock,
    /// Which viewers' transport streams are analysed: sample, all or none
    #[arg(long, value_name = "WHOSE", default_value = "sample")]
    inspect: Inspect,
    /// Share one RTCP socket per thread: fewer descriptors, but RTCP BYE is not detected
    #[arg(long)]
    shared_rtcp: bool,
    /// Receive buffer of each RTP socket
    #[arg(long, value_name = "SIZE", default_value = "512KiB")]
    receive_buffer: ByteLen,
    /// Time without a packet that counts as a stall
    #[arg(long, value_name = "TIME", default_value = "500ms")]
    stall: HumanDuration,
    /// Timeout for connecting and for each reply
    #[arg(long, value_name = "TIME", default_value = "10s")]
    reply_timeout: HumanDuration,
}

/// What viewers over HTTP are like.
#[derive(Args)]
#[command(next_help_heading = "Viewers over HTTP")]
struct WebArgs {
    /// Media buffered ahead [default: 10 s; for HLS at least three segments]
    #[arg(long, value_name = "TIME")]
    buffer: Option<HumanDuration>,
    /// Media that must be buffered before playback starts or resumes after a stall
    #[arg(long, value_name = "TIME", default_value = "2s")]
    start_buffer: HumanDuration,
    /// Which variant of an HLS presentation to play
    #[arg(long, value_name = "WHICH", default_value = "highest")]
    variant: Variant,
    /// Duration of the media, for files that carry no clock when --rate is not given
    #[arg(long, value_name = "TIME")]
    film_length: Option<HumanDuration>,
}

/// Which variant of an HLS title.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Variant {
    /// The one with the highest rate
    Highest,
    /// The one with the lowest
    Lowest,
    /// The first in the playlist
    First,
}

impl WebArgs {
    fn options(&self) -> WebOptions {
        WebOptions {
            buffer: self.buffer.map(|time| time.0),
            start_buffer: self.start_buffer.0,
            variant: match self.variant {
                Variant::Highest => VariantChoice::Highest,
                Variant::Lowest => VariantChoice::Lowest,
                Variant::First => VariantChoice::First,
            },
            film_length: self.film_length.map(|time| time.0),
        }
    }
}

/// The output.
#[derive(Args)]
#[command(next_help_heading = "Output and limits")]
struct OutputArgs {
    /// Print the report as one JSON document
    #[arg(long)]
    json: bool,
    /// Write one CSV line per interval to this file
    #[arg(long, value_name = "FILE")]
    series: Option<PathBuf>,
    /// Write one CSV line per session to this file
    #[arg(long, value_name = "FILE")]
    per_stream: Option<PathBuf>,
    /// Interval of the series
    #[arg(long, value_name = "TIME", default_value = "1s")]
    interval: HumanDuration,
    /// Highest share of packets that may be missing, e.g. 0.1%
    #[arg(long, value_name = "PERCENT", default_value = "0%")]
    max_loss: Percent,
    /// Highest lateness of the 99th percentile of packets
    #[arg(long, value_name = "TIME")]
    max_lateness: Option<HumanDuration>,
    /// Highest number of sessions that may fail
    #[arg(long, value_name = "N", default_value_t = 0)]
    max_failed: u64,
    /// No progress line
    #[arg(long, short)]
    quiet: bool,
}

impl LoadArgs {
    fn options(&self) -> anyhow::Result<LoadOptions> {
        let (receiver, output) = (&self.receiver, &self.output);
        let mut options = LoadOptions::new(targets(&self.targets)?, self.streams);
        options.transport = receiver.transport;
        options.fec = receiver.fec;
        options.titles = self.titles;
        options.arrivals = self.arrivals.unwrap_or(options.arrivals);
        options.behaviour = self.behaviour.clone();
        options.seed = self.seed;
        options.duration = self.duration.0;
        options.interval = output.interval.0;
        options.nominal_rate = receiver.rate;
        options.probe.clone_from(&receiver.probe);
        options.inspect = receiver.inspect;
        options.media_clock = receiver.media_clock;
        options.start = ticks(self.start);
        options.start_spread = ticks(self.start_spread);
        options.threads = receiver.threads;
        options.local.clone_from(&receiver.local);
        options.receive_buffer_bytes = usize::try_from(receiver.receive_buffer.0).unwrap_or(usize::MAX);
        options.own_rtcp = !receiver.shared_rtcp;
        options.stall = receiver.stall.0;
        options.reply_timeout = receiver.reply_timeout.0;
        options.web = self.web.options();
        Ok(options)
    }
}

fn ticks(time: HumanDuration) -> MediaTicks {
    MediaTicks::from_ns(u64::try_from(time.0.as_nanos()).unwrap_or(u64::MAX))
}

/// URLs, with `@file` replaced by the lines of the file; empty lines and those that begin with `#` do not count.
fn targets(given: &[String]) -> anyhow::Result<Vec<String>> {
    let mut all = Vec::new();
    for text in given {
        let Some(path) = text.strip_prefix('@') else {
            all.push(text.clone());
            continue;
        };
        let lines = std::fs::read_to_string(path)
            .with_context(|| format!("{path}: cannot be read; it must be a list of URLs, one a line"))?;
        let lines = lines.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        all.extend(lines.map(str::to_owned));
    }
    anyhow::ensure!(!all.is_empty(), "there is no URL in {}", given.join(", "));
    Ok(all)
}

/// Loads; the report goes to standard output.
pub(super) fn run(args: &LoadArgs) -> anyhow::Result<ExitCode> {
    let mut options = args.options().map_err(usage)?;
    let files = ReportFiles::open(&args.output).map_err(usage)?;
    let host = args.receiver.link.as_ref().map(LinkHost::new).transpose()?;
    if let Some(host) = &host {
        let targets: Result<_, _> = options.targets.iter().map(|target| host.target_inside(target)).collect();
        options.targets = targets.map_err(usage)?;
        if !args.output.quiet {
            let (namespace, url) = (host.namespace_path(), &options.targets[0]);
            eprintln!(
                "link: to start a player behind it: nsenter --net={} PLAYER {url}",
                namespace.display()
            );
        }
    }
    let cancel = cancel_on_signals()?;
    let bar = indicatif::ProgressBar::new_spinner();
    if args.output.quiet {
        bar.set_draw_target(indicatif::ProgressDrawTarget::hidden());
    }
    let mut line = LoadProgressLine { bar, last: LoadProgress::default() };
    let result = match &host {
        Some(host) => host.run_inside(|| load_with(&options, &cancel, &mut line))?,
        None => load_with(&options, &cancel, &mut line),
    };
    line.bar.finish_and_clear();
    let report = result.map_err(|error| if error.is_usage() { usage(error.into()) } else { error.into() })?;
    files.write(&report)?;
    print_report(&report, host.as_ref(), args.output.json)?;
    let broken = broken_limits(&args.output, &report);
    broken.iter().for_each(|limit| eprintln!("millrace: {limit}"));
    Ok(if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints the viewers' measurements, and the activity of the link in between.
fn print_report(report: &LoadReport, host: Option<&LinkHost>, is_json: bool) -> anyhow::Result<()> {
    if !is_json {
        print!("{report}{}", host.map(LinkHost::report).unwrap_or_default());
        return Ok(());
    }
    let mut value = serde_json::to_value(report)?;
    if let (Some(fields), Some(host)) = (value.as_object_mut(), host) {
        fields.insert("link".to_owned(), host.report_json());
    }
    print_json(&value)
}

fn load_with(
    options: &LoadOptions,
    cancel: &AtomicBool,
    line: &mut LoadProgressLine,
) -> Result<LoadReport, LoadError> {
    load(options, cancel, &mut |progress| line.show(progress))
}

/// The progress line.
struct LoadProgressLine {
    bar: indicatif::ProgressBar,
    last: LoadProgress,
}

impl LoadProgressLine {
    fn show(&mut self, progress: &LoadProgress) {
        let took = progress.elapsed.saturating_sub(self.last.elapsed).max(Duration::from_millis(1));
        let bytes = progress.payload_bytes.saturating_sub(self.last.payload_bytes);
        let rate = BitRate::of(bytes, took.as_nanos() as u64);
        let failed =
            if progress.failed > 0 { format!(", {} failed", progress.failed) } else { String::new() };
        self.bar.set_message(format!(
            "{:.0} s  {} viewers, {} playing{failed}  {rate}, {} packets, {} lost",
            progress.elapsed.as_secs_f64(),
            progress.started,
            progress.playing,
            progress.packets,
            progress.lost
        ));
        self.bar.tick();
        self.last = *progress;
    }
}

/// The files that the report goes to, open before the first viewer comes: a path that leads nowhere must not cost a run.
struct ReportFiles<'a> {
    series: Option<(&'a Path, File)>,
    per_stream: Option<(&'a Path, File)>,
}

impl<'a> ReportFiles<'a> {
    /// Existing content stays until there is a report.
    fn open(output: &'a OutputArgs) -> anyhow::Result<Self> {
        let open = |option: &str, path: &'a Option<PathBuf>| {
            let Some(path) = path.as_deref() else { return Ok(None) };
            let file = File::options().write(true).create(true).truncate(false).open(path);
            let file = file.with_context(|| format!("{option} {}: cannot be written", path.display()))?;
            anyhow::Ok(Some((path, file)))
        };
        let series = open("--series", &output.series)?;
        let per_stream = open("--per-stream", &output.per_stream)?;
        if let (Some((_, one)), Some((path, other))) = (&series, &per_stream) {
            let (one, other) = (one.metadata()?, other.metadata()?);
            let is_same = other.is_file() && (one.dev(), one.ino()) == (other.dev(), other.ino());
            anyhow::ensure!(
                !is_same,
                "--per-stream {}: is the file of --series too; name another",
                path.display()
            );
        }
        Ok(Self { series, per_stream })
    }

    fn write(self, report: &LoadReport) -> anyhow::Result<()> {
        let to_file = |(path, file): (&Path, File),
                       write: &dyn Fn(&mut BufWriter<File>) -> std::io::Result<()>| {
            let emptied = match file.metadata()?.is_file() {
                true => file.set_len(0),
                false => Ok(()), // a pipe or a device
            };
            let mut out = BufWriter::new(file);
            let written = emptied.and_then(|()| write(&mut out)).and_then(|()| out.flush());
            written.with_context(|| format!("{}: cannot be written", path.display()))
        };
        if let Some(series) = self.series {
            to_file(series, &|out| write_series(&report.series, out))?;
        }
        if let Some(per_stream) = self.per_stream {
            to_file(per_stream, &|out| write_per_stream(&report.per_stream, out))?;
        }
        Ok(())
    }
}

/// Returns the limits that were exceeded, in words.
fn broken_limits(output: &OutputArgs, report: &LoadReport) -> Vec<String> {
    let mut broken = Vec::new();
    if report.failed > output.max_failed {
        broken.push(format!("{} sessions failed, allowed {}", report.failed, output.max_failed));
    }
    let silent = report.sessions_silent;
    if silent > output.max_failed {
        broken.push(format!("{silent} sessions got no packet, allowed {}", output.max_failed));
    }
    let lost = report.lost_in_all();
    let percent = 100.0 * lost as f64 / (report.packets + lost).max(1) as f64;
    if lost > 0 && percent > output.max_loss.0 {
        broken.push(format!("{lost} packets lost ({percent:.4} %), allowed {} %", output.max_loss.0));
    }
    if let Some(web) = report.web.as_ref().filter(|web| web.rebuffers > 0) {
        broken.push(format!("playback stalled {} times for want of data", web.rebuffers));
    }
    if let Some(limit) = output.max_lateness {
        let p99 = HumanDuration(Duration::from_micros(report.lateness.p99_us));
        if p99 > limit {
            broken.push(format!("99 % of packets came within {p99} of their time, allowed {limit}"));
        }
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        load: LoadArgs,
    }

    fn options(line: &str) -> LoadOptions {
        let words = std::iter::once("load").chain(line.split_ascii_whitespace());
        Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{error}")).load.options().unwrap()
    }

    #[test]
    fn fec_reaches_the_options() {
        assert_eq!(options("rtsp://h/a").fec, FecChoice::Off);
        assert_eq!(options("rtsp://h/a --fec all").fec, FecChoice::All);
    }

    #[test]
    fn load_command_line_sets_options() {
        let plain = options("rtsp://h/a");
        assert_eq!((plain.streams, plain.titles, plain.own_rtcp), (10, TitleChoice::InTurn, true));
        assert_eq!(plain.arrivals, Arrivals::Ramp(Duration::from_millis(100)));
        let full = options(
            "rtsp://h/a rtsp://h/b -n 7 --duration 3s --titles zipf:0.8 --arrivals poisson:50/s --seed 9 --threads 2 \
             --transport tcp --local 10.0.0.2,10.0.0.3 --inspect none --shared-rtcp --behaviour pause@1",
        );
        assert_eq!((full.targets.len(), full.streams, full.seed, full.threads), (2, 7, 9, 2));
        assert_eq!(
            (full.transport, full.inspect, full.own_rtcp),
            (TransportChoice::Tcp, Inspect::None, false)
        );
        assert_eq!((full.local.len(), full.duration), (2, Duration::from_secs(3)));
    }

    #[test]
    fn targets_from_list_file_are_read_line_by_line() {
        let dir = tempfile::tempdir().unwrap();
        let list = dir.path().join("list.txt");
        std::fs::write(&list, "# films\nrtsp://h/a\n\n  rtsp://h/b  \n").unwrap();
        let list = format!("@{}", list.display());
        assert_eq!(
            targets(&["rtsp://h/c".to_owned(), list]).unwrap(),
            ["rtsp://h/c", "rtsp://h/a", "rtsp://h/b"]
        );
        let error = format!("{:#}", targets(&["@/nowhere/list".to_owned()]).unwrap_err());
        assert!(error.contains("/nowhere/list") && error.contains("one a line"), "{error}");
    }
}
