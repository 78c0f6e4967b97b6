//! The subcommands: one file each, with its arguments and its `run`. People start them as `millrace bench` and `millrace load`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use millrace_cli::exit::exit_code;

// First: these stand for those of the standard library in all modules that follow.
#[allow(unused_macros)]
macro_rules! print {
    ($($text:tt)*) => { ::millrace_cli::print!($($text)*) };
}
#[allow(unused_macros)]
macro_rules! println {
    ($($text:tt)*) => { ::millrace_cli::println!($($text)*) };
}
#[allow(unused_macros)]
macro_rules! eprint {
    ($($text:tt)*) => { ::millrace_cli::eprint!($($text)*) };
}
#[allow(unused_macros)]
macro_rules! eprintln {
    ($($text:tt)*) => { ::millrace_cli::eprintln!($($text)*) };
}

mod bench;
mod bench_all;
mod bench_sender;
mod bench_stream;
mod load;

/// Measurements of Millrace and of other servers: benchmarks and a load generator.
#[derive(Parser)]
#[command(
    name = "millrace-lab",
    bin_name = "millrace",
    version,
    propagate_version = true,
    arg_required_else_help = true
)]
struct Cli {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Subcommand)]
enum LabCommand {
    Load(Box<load::LoadArgs>),
    Bench(Box<bench::BenchArgs>),
    #[command(hide = true)]
    BenchSender(bench_sender::BenchSenderArgs),
    #[command(hide = true)]
    BenchStream(bench_stream::BenchStreamArgs),
}

/// The command line as a description, for man pages and completions.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Parses the command line, runs the command; 0 when all went well, 1 when not, 2 for a command line that is wrong.
pub fn main() -> ExitCode {
    exit_code(match Cli::parse().command {
        LabCommand::Load(args) => load::run(&args),
        LabCommand::Bench(args) if args.name == "all" => bench_all::run(&args),
        LabCommand::Bench(args) => bench::run(&args),
        LabCommand::BenchSender(args) => bench_sender::run(args),
        LabCommand::BenchStream(args) => bench_stream::run(args),
    })
}

/// The server that benchmarks measure: it lies beside this program or on the search path.
fn server_program() -> std::io::Result<PathBuf> {
    let beside = std::env::current_exe()?.with_file_name("millrace");
    Ok(if beside.exists() { beside } else { PathBuf::from("millrace") })
}
