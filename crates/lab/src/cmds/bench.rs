//! `millrace bench`: every promise about speed, measured by one command.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use crate::frame::{Bench, Cancelled, Options, ProgressSink, Report, ReportVerdict, TargetState};
use crate::{benches, report};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use millrace_cli::exit::{print_json, usage};
use millrace_cli::signals::cancel_on_signals;
use millrace_cli::terminal;
use millrace_core::units::{BitRate, HumanDuration};

/// Exit code of `--check` when a target could not be measured, or is undecided.
const EXIT_UNKNOWN: u8 = 3;
/// A shell's exit code for an interrupted program.
pub(super) const EXIT_INTERRUPTED: u8 = 130;

/// Measure Millrace's performance targets; prints the machine, the commit and the spread
#[derive(Args)]
#[command(after_help = "Examples:\n  millrace bench list\n  millrace bench ingest\n  \
                        millrace bench sessions --streams 1000 --duration 20s --check\n  \
                        millrace bench tx --report /tmp/tx\n  \
                        millrace bench all --check\n\n\
                        Use a release build, on a quiet machine. Benchmarks that make network namespaces need root; \
                        `list` says which.\n\nExit codes: 0 all went well; 1 an error, or with --check a target that \
                        is missed; 2 the command line is invalid; 3 with --check when a target could not be measured or is undecided; \
                        130 when interrupted.")]
pub(super) struct BenchArgs {
    /// Name of the benchmark, `all`, or `list`
    #[arg(value_name = "NAME")]
    pub(super) name: String,
    /// The result as one JSON document {bench, commit, machine, rows, promises}
    #[arg(long)]
    pub(super) json: bool,
    /// Exit 1 when a target is missed, 3 when one could not be measured or is undecided
    #[arg(long)]
    pub(super) check: bool,
    /// Write an HTML page with tables and plots, and the JSON document, to this directory
    #[arg(long, value_name = "DIR")]
    pub(super) report: Option<PathBuf>,
    /// Replace the tables between `<!-- bench NAME -->` and `<!-- /bench NAME -->` in this document
    #[arg(long, value_name = "FILE")]
    pub(super) markdown: Option<PathBuf>,
    /// Name in those two markers, if not that of the benchmark
    #[arg(long, value_name = "NAME", requires = "markdown")]
    pub(super) section: Option<String>,
    /// How long a comparison goes on while the bound of a target lies in its interval [default: 60s,
    /// 20s with --quick]
    #[arg(long, value_name = "TIME", value_parser = parse_secs)]
    pub(super) limit: Option<u64>,
    /// `all`: measure a tree with changes that are in no commit; the report is marked
    #[arg(long)]
    pub(super) allow_dirty: bool,
    /// Fewer and shorter runs, for a first impression
    #[arg(long)]
    pub(super) quick: bool,
    /// Tiny inputs that only show that the benchmark works; the figures mean nothing
    #[arg(long)]
    pub(super) tiny: bool,
    /// Directory for large temporary files
    #[arg(long, value_name = "DIR", default_value = ".")]
    scratch: PathBuf,
    #[command(flatten)]
    pub(super) what: WhatArgs,
}

/// Options that only some benchmarks look at.
#[derive(Args)]
#[command(next_help_heading = "Options of some benchmarks (`list` says which)")]
pub(super) struct WhatArgs {
    /// Viewers
    #[arg(long, visible_alias = "viewers", value_name = "N", value_parser = parse_count)]
    streams: Option<usize>,
    /// Length of the measured part
    #[arg(long, value_name = "TIME", value_parser = parse_secs)]
    duration: Option<u64>,
    /// How often the measured part is repeated
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(super) runs: Option<u16>,
    /// Cores that the server may use, with an engine on each; the viewers have the others
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    cores: Option<u16>,
    /// Rates of the titles, separated by commas: 2Mb/s,8Mb/s
    #[arg(long = "rate", value_name = "RATE", value_delimiter = ',')]
    rates: Vec<BitRate>,
    /// Transports, separated by commas: udp,tcp
    #[arg(long = "transport", value_name = "NAME", value_delimiter = ',')]
    transports: Vec<String>,
    /// Titles that the viewers are spread over
    #[arg(long, value_name = "N", value_parser = parse_count)]
    titles: Option<usize>,
    /// Servers to measure beside ours, separated by commas
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    peers: Vec<String>,
    /// Parts to measure, separated by commas: senders, intervals, parts of the report; benchmarks of `all`
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(super) only: Vec<String>,
    /// Segmentation offload of the emulated network cards
    #[arg(long, value_name = "SWITCH")]
    offload: Option<Switch>,
    /// How our server sends UDP packets, as in `serve --backend`
    #[arg(long, value_name = "HOW", value_parser = ["kernel", "xdp"])]
    backend: Option<String>,
    /// The offload engine behind a TUN device, not at an Ethernet interface by AF_XDP
    #[arg(long)]
    tun: bool,
    /// Command line of a server to measure instead of ours
    #[arg(long, value_name = "COMMAND", requires = "url")]
    server_cmd: Option<String>,
    /// Address of its titles
    #[arg(long, value_name = "URL")]
    url: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

fn parse_count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 1..=1_000_000) => Ok(count),
        _ => Err("a number from 1 to 1000000".into()),
    }
}

fn parse_secs(text: &str) -> Result<u64, String> {
    let duration: HumanDuration = text.parse().map_err(|e| format!("{e}"))?;
    match duration.0.as_secs() {
        0 => Err(format!("duration: got \"{text}\", at least 1s")),
        secs => Ok(secs),
    }
}

impl WhatArgs {
    /// Names of the options that were given, with their values as a shell would take them.
    pub(super) fn given(&self) -> Vec<(&'static str, String)> {
        let number = |n: Option<usize>| n.map(|n| n.to_string());
        let list = |list: &[String]| (!list.is_empty()).then(|| list.join(","));
        let rates: Vec<String> = self.rates.iter().map(BitRate::to_string).collect();
        let offload = self.offload.map(|s| if s == Switch::On { "on" } else { "off" }.to_owned());
        let all = [
            ("streams", number(self.streams)),
            ("duration", self.duration.map(|secs| format!("{secs}s"))),
            ("runs", number(self.runs.map(usize::from))),
            ("cores", number(self.cores.map(usize::from))),
            ("rate", list(&rates)),
            ("transport", list(&self.transports)),
            ("titles", number(self.titles)),
            ("peers", list(&self.peers)),
            ("only", list(&self.only)),
            ("offload", offload),
            ("backend", self.backend.clone()),
            ("tun", self.tun.then(String::new)),
            ("server-cmd", self.server_cmd.clone()),
            ("url", self.url.clone()),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }
}

impl BenchArgs {
    /// Name in the markers of a document.
    fn section(&self, bench: &Bench) -> &str {
        self.section.as_deref().unwrap_or(bench.name)
    }

    /// The command that measures the same again; where the result goes is no part of it.
    pub(super) fn command(&self) -> String {
        self.command_with(&self.name, &self.what.given())
    }

    /// The same for one of all benchmarks.
    pub(super) fn command_of(&self, name: &str) -> String {
        let runs: Vec<_> = self.what.given().into_iter().filter(|(name, _)| *name == "runs").collect();
        self.command_with(name, &runs)
    }

    fn command_with(&self, name: &str, given: &[(&str, String)]) -> String {
        let mut words = vec!["millrace bench".to_owned(), name.to_owned()];
        words.extend(self.quick.then(|| "--quick".to_owned()));
        words.extend(self.tiny.then(|| "--tiny".to_owned()));
        words.extend(self.limit.map(|secs| format!("--limit {secs}s")));
        words.extend(given.iter().map(|(name, value)| match value.as_str() {
            // A switch has no value.
            "" => format!("--{name}"),
            value => format!("--{name} {}", quoted(value)),
        }));
        words.join(" ")
    }

    pub(super) fn options(&self, progress: ProgressSink) -> anyhow::Result<Options> {
        let what = &self.what;
        Ok(Options {
            tiny: self.tiny,
            limit_s: self.limit,
            quick: self.quick,
            streams: what.streams,
            duration_s: what.duration,
            scratch: self.scratch.clone(),
            server_cmd: what.server_cmd.clone(),
            url: what.url.clone(),
            rates: what.rates.clone(),
            transports: what.transports.clone(),
            titles: what.titles,
            peers: what.peers.clone(),
            only: what.only.clone(),
            offload: what.offload.map(|s| s == Switch::On),
            backend: what.backend.clone(),
            tun: what.tun,
            runs: what.runs.map(usize::from),
            cores: what.cores.map(usize::from),
            cancel: cancel_on_signals()?,
            progress,
            ..Options::new(super::server_program()?)
        })
    }
}

/// A word as a shell takes it for one.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// Runs one benchmark, or lists them.
pub(super) fn run(args: &BenchArgs) -> anyhow::Result<ExitCode> {
    if args.name == "list" {
        let text: String = benches::ALL.iter().map(list).collect();
        print!("{text}");
        return Ok(ExitCode::SUCCESS);
    }
    let bench = find(args).map_err(usage)?;
    let missing = bench.missing();
    anyhow::ensure!(missing.is_empty(), "bench {}: needs {}", bench.name, missing.join(", and "));
    if cfg!(debug_assertions) && !args.tiny {
        eprintln!("millrace: this is a debug build; figures for people come from: cargo build --release");
    }
    if let Some(dir) = &args.report {
        report::make_dir(dir)?;
    }
    if let Some(file) = &args.markdown {
        report::check_markdown(file, args.section(bench))?;
    }
    let line = ProgressLine::new(bench.name);
    let result = bench.measure(&args.options(line.progress())?);
    line.finish();
    let mut report = match result {
        Err(error) if error.is::<Cancelled>() => {
            eprintln!("millrace: bench {}: {Cancelled}", bench.name);
            return Ok(ExitCode::from(EXIT_INTERRUPTED));
        }
        result => result?,
    };
    report.command = args.command();
    publish(args, bench, &report)?;
    if !args.check {
        return Ok(ExitCode::SUCCESS);
    }
    for state in [TargetState::Missed, TargetState::Undecided, TargetState::NotMeasured] {
        let names = report.names_of(state);
        if !names.is_empty() {
            eprintln!("millrace: bench {}: {}: {}", bench.name, state.word(), names.join(", "));
        }
    }
    Ok(ExitCode::from(code_of(report.verdict())))
}

/// The exit code of `--check`.
pub(super) fn code_of(verdict: ReportVerdict) -> u8 {
    match verdict {
        ReportVerdict::Holds => 0,
        ReportVerdict::Missed => 1,
        ReportVerdict::Unknown => EXIT_UNKNOWN,
    }
}

/// Returns the benchmark with this name, if it understands the options.
fn find(args: &BenchArgs) -> anyhow::Result<&'static Bench> {
    let bench = benches::find(&args.name).ok_or_else(|| {
        let names: Vec<&str> = benches::ALL.iter().map(|b| b.name).collect();
        anyhow::anyhow!("bench {}: no such benchmark; there are: {}", args.name, names.join(", "))
    })?;
    anyhow::ensure!(
        !args.allow_dirty,
        "bench {}: --allow-dirty means nothing to it; it is for `bench all`",
        bench.name
    );
    let given = args.what.given();
    let unknown = given.iter().find(|(name, _)| !bench.options.contains(name));
    anyhow::ensure!(
        unknown.is_none(),
        "bench {}: --{} means nothing to it; its own options are: {}",
        bench.name,
        unknown.map_or("", |u| u.0),
        options_of(bench)
    );
    Ok(bench)
}

fn options_of(bench: &Bench) -> String {
    if bench.options.is_empty() {
        return "none".to_owned();
    }
    bench.options.iter().map(|name| format!("--{name}")).collect::<Vec<_>>().join(" ")
}

fn list(bench: &Bench) -> String {
    let not_for = format!("not for: {}", bench.not_for);
    let options = format!("options: {}", options_of(bench));
    let mut text = format!("{:10} {}\n{:10} {not_for}\n{:10} {options}\n", bench.name, bench.shows, "", "");
    let missing = bench.missing();
    if !missing.is_empty() {
        text += &format!("{:10} cannot run here, needs {}\n", "", missing.join(", and "));
    }
    text
}

/// Prints the report and writes it where the user wants it.
fn publish(args: &BenchArgs, bench: &Bench, measured: &Report) -> anyhow::Result<()> {
    // Printed first: a folder that cannot be written must not cost the result.
    if args.json {
        print_json(measured)?;
    } else {
        print!("{measured}");
    }
    let date = now_utc();
    if let Some(dir) = &args.report {
        let page = report::write_dir(dir, bench, measured, &date)?;
        eprintln!("millrace: wrote {}", page.display());
    }
    if let Some(file) = &args.markdown {
        let section = args.section(bench);
        report::write_markdown(file, section, measured, &date)?;
        eprintln!("millrace: wrote section {section} of {}", file.display());
    }
    Ok(())
}

pub(super) fn now_utc() -> String {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    report::utc_date(since_1970.as_secs())
}

/// The current step of the benchmark: one line that is redrawn on a terminal, one line per step
/// elsewhere.
pub(super) struct ProgressLine {
    bar: Option<ProgressBar>,
    name: &'static str,
}

impl ProgressLine {
    pub(super) fn new(name: &'static str) -> Self {
        let bar = terminal::stderr_is_terminal().then(ProgressBar::new_spinner);
        if let Some(bar) = &bar {
            if let Ok(style) = ProgressStyle::with_template("{elapsed} {prefix} {wide_msg}") {
                bar.set_style(style);
            }
            bar.set_prefix(name);
            bar.enable_steady_tick(Duration::from_secs(1));
        }
        Self { bar, name }
    }

    pub(super) fn progress(&self) -> ProgressSink {
        let name = self.name;
        match self.bar.clone() {
            Some(bar) => ProgressSink::to(move |step| bar.set_message(step.to_owned())),
            None => ProgressSink::to(move |step| eprintln!("millrace: bench {name}: {step}")),
        }
    }

    pub(super) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct TestCommandLine {
        #[command(flatten)]
        bench: BenchArgs,
    }

    pub(in crate::cmds) fn parse(line: &[&str]) -> BenchArgs {
        TestCommandLine::try_parse_from([&["bench"], line].concat()).unwrap_or_else(|e| panic!("{e}")).bench
    }

    #[test]
    fn command_reproduces_measurement_options_only() {
        let args = parse(&[
            "capacity",
            "--json",
            "--check",
            "--report",
            "/tmp/x",
            "--markdown",
            "p.md",
            "--section",
            "s",
            "--rate",
            "2Mb/s,8Mb/s",
            "--transport",
            "udp,tcp",
            "--offload",
            "off",
            "--backend",
            "xdp",
            "--server-cmd",
            "serve it's",
            "--url",
            "rtsp://a:1/{n}",
            "--quick",
            "--runs",
            "3",
            "--duration",
            "2m",
        ]);
        assert_eq!(
            args.command(),
            "millrace bench capacity --quick --duration 120s --runs 3 --rate 2Mb/s,8Mb/s --transport udp,tcp \
             --offload off --backend xdp --server-cmd 'serve it'\\''s' --url 'rtsp://a:1/{n}'"
        );
        let again = parse(&["capacity", "--duration", "120s", "--rate", "2Mb/s,8Mb/s"]);
        assert_eq!(again.what.rates, [BitRate(2_000_000), BitRate(8_000_000)]);
        assert_eq!(again.what.duration, Some(120));
    }

    #[test]
    fn code_of_distinguishes_miss_from_undecided() {
        assert_eq!(
            [ReportVerdict::Holds, ReportVerdict::Missed, ReportVerdict::Unknown].map(code_of),
            [0, 1, 3]
        );
    }

    #[test]
    fn options_reach_the_benchmark() {
        let args =
            parse(&["x", "--tiny", "--streams", "7", "--offload", "on", "--peers", "a,b", "--titles", "3"]);
        let options = args.options(ProgressSink::silent()).unwrap();
        assert!(options.tiny && !options.quick);
        assert_eq!((options.streams, options.offload, options.titles), (Some(7), Some(true), Some(3)));
        assert_eq!(options.peers, ["a", "b"]);
    }

    #[test]
    fn find_with_inapplicable_option_returns_error() {
        let message = |line: &[&str]| find(&parse(line)).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(message(&["nonsense"]).contains("no such benchmark; there are: ingest, "));
        assert_eq!(
            message(&["ingest", "--peers", "vlc"]),
            "bench ingest: --peers means nothing to it; its own options are: none"
        );
    }

    #[test]
    fn command_line_with_invalid_values_is_rejected() {
        for line in [
            &["x", "--runs", "0"][..],
            &["x", "--streams", "0"],
            &["x", "--titles", "9999999999"],
            &["x", "--server-cmd", "a"],
            &["x", "--duration", "10ms"],
            &["x", "--section", "y"],
        ] {
            assert!(TestCommandLine::try_parse_from([&["bench"], line].concat()).is_err(), "{line:?}");
        }
    }
}
