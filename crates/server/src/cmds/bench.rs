//! `millrace bench`: every promise about speed, measured by one command.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use millrace_lab::benches;
use millrace_lab::frame::Options;

/// Measure what Millrace promises; prints the machine, the commit and the spread
#[derive(Args)]
#[command(after_help = "Examples:\n  millrace bench list\n  millrace bench ingest\n  \
                        millrace bench sessions --streams 1000 --duration 20s --check\n\nUse a release build, on a quiet \
                        machine. `sessions` makes network namespaces and needs root.")]
pub(super) struct BenchArgs {
    /// Name of the benchmark, or `list`
    #[arg(value_name = "NAME")]
    name: String,
    /// The result as one JSON document {bench, commit, machine, rows, promises}
    #[arg(long)]
    json: bool,
    /// Exit 1 when a promise does not hold
    #[arg(long)]
    check: bool,
    /// Tiny inputs: shows that the benchmark works; its figures mean nothing
    #[arg(long)]
    tiny: bool,
    /// Viewers, for benchmarks that have them
    #[arg(long, value_name = "N")]
    streams: Option<usize>,
    /// Length of the measured part
    #[arg(long, value_name = "TIME", value_parser = parse_secs)]
    duration: Option<u64>,
    /// Where large files may be made
    #[arg(long, value_name = "DIR", default_value = ".")]
    scratch: PathBuf,
}

fn parse_secs(text: &str) -> Result<u64, String> {
    let duration: millrace_core::units::HumanDuration = text.parse().map_err(|e| format!("{e}"))?;
    match duration.0.as_secs() {
        0 => Err(format!("duration: got \"{text}\", at least 1s")),
        secs => Ok(secs),
    }
}

/// Runs one benchmark, or lists them.
pub(super) fn run(args: &BenchArgs) -> anyhow::Result<ExitCode> {
    if args.name == "list" {
        for bench in benches::ALL {
            println!("{:10} {}\n{:10} not for: {}", bench.name, bench.shows, "", bench.not_for);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let names: Vec<&str> = benches::ALL.iter().map(|b| b.name).collect();
    let bench = benches::find(&args.name).ok_or_else(|| {
        anyhow::anyhow!("bench {}: no such benchmark; there are: {}", args.name, names.join(", "))
    })?;
    if cfg!(debug_assertions) && !args.tiny {
        eprintln!("millrace: this is a debug build; figures for people come from: cargo build --release");
    }
    let report = (bench.run)(&Options {
        tiny: args.tiny,
        streams: args.streams,
        duration_s: args.duration,
        scratch: args.scratch.clone(),
        ..Options::new(std::env::current_exe()?)
    })?;
    if args.json {
        super::print_json(&report)?;
    } else {
        print!("{report}");
    }
    Ok(if args.check && !report.holds() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
