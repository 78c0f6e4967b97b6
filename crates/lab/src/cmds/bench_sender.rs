//! `millrace bench-sender`: the reference senders, as processes that `millrace bench peers` starts. Not listed in the help.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use crate::reference::{SenderKind, SenderOptions, run as send};
use clap::Args;
use millrace_core::units::{BitRate, HumanDuration};

/// Send a media file to many ports in one of the ways that people write themselves (for comparisons)
#[derive(Args)]
pub(super) struct BenchSenderArgs {
    /// How: process, sendfile, events or ring
    #[arg(value_name = "KIND")]
    kind: SenderKind,
    /// Transport stream of constant rate; several are taken in turn
    #[arg(long = "file", value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Rate of the files
    #[arg(long, value_name = "RATE")]
    rate: BitRate,
    /// Receiver
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    to: IpAddr,
    /// Port of the first stream; the next is two higher
    #[arg(long, value_name = "PORT", default_value_t = 10_000)]
    base_port: u16,
    /// Streams
    #[arg(long, value_name = "N", default_value_t = 1)]
    streams: u32,
    /// Media time between two bursts of a stream; 0ms: one packet a time
    #[arg(long, value_name = "TIME", default_value = "10ms")]
    distance: HumanDuration,
    /// Start the streams evenly spread over this length of media
    #[arg(long, value_name = "TIME", default_value = "0s")]
    spread: HumanDuration,
    /// Where `sendfile` listens
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// The process of this one stream
    #[arg(long, value_name = "N", hide = true)]
    only: Option<u32>,
}

/// Sends until the files are over.
pub(super) fn run(args: BenchSenderArgs) -> anyhow::Result<ExitCode> {
    let options = SenderOptions {
        files: args.files,
        rate_bits_per_s: args.rate.0,
        to: args.to,
        base_port: args.base_port,
        streams: args.streams,
        distance: args.distance.0,
        spread: args.spread.0,
        listen: args.listen,
        only: args.only,
    };
    send(args.kind, &options)?;
    Ok(ExitCode::SUCCESS)
}
