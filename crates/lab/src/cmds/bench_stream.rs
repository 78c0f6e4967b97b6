//! `millrace bench-stream`: the senders of `millrace bench streams`, as processes that it starts. Not listed in the help.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use crate::streams::{Blocks, SendMethod, SendPlan, Transport, run as send};
use clap::Args;
use millrace_core::units::HumanDuration;

/// Send blocks to many viewers in one of the ways that are compared (for comparisons)
#[derive(Args)]
pub(super) struct BenchStreamArgs {
    /// How: process, sendfile, events, events-memory, events-sendfile, engine or call
    #[arg(value_name = "KIND")]
    kind: SendMethod,
    /// Folder with the titles
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Titles in it
    #[arg(long, value_name = "N", default_value_t = 1)]
    titles: u32,
    /// udp or tcp
    #[arg(long, value_name = "NAME")]
    transport: Transport,
    /// Media in a datagram
    #[arg(long, value_name = "BYTES")]
    datagram_bytes: u16,
    /// Datagrams of a block
    #[arg(long, value_name = "N")]
    datagrams: u16,
    /// Time from one block to the next
    #[arg(long, value_name = "TIME")]
    interval: HumanDuration,
    /// Streams
    #[arg(long, value_name = "N", default_value_t = 1)]
    streams: u32,
    /// Receivers
    #[arg(long, value_name = "ADDRESS")]
    to: Vec<IpAddr>,
    /// Port of the first stream
    #[arg(long, value_name = "PORT", default_value_t = 10_000)]
    base_port: u16,
    /// Where viewers connect to
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Start the streams evenly spread over this length of media
    #[arg(long, value_name = "TIME", default_value = "0s")]
    spread: HumanDuration,
    /// Size of reads past the kernel's cache; 0: through it
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    read_bytes: usize,
    /// Memory of the engine's cache
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20)]
    cache_bytes: u64,
    /// The engine sends in its usual bursts
    #[arg(long)]
    usual: bool,
    /// The process of this one stream
    #[arg(long, value_name = "N", hide = true)]
    only: Option<u32>,
}

/// Sends until the titles are over.
pub(super) fn run(args: BenchStreamArgs) -> anyhow::Result<ExitCode> {
    let interval_ns = u64::try_from(args.interval.0.as_nanos())?;
    let blocks = Blocks { datagram_bytes: args.datagram_bytes, datagrams: args.datagrams, interval_ns };
    send(&SendPlan {
        kind: args.kind,
        dir: args.dir,
        titles: args.titles,
        transport: args.transport,
        blocks,
        streams: args.streams,
        to: args.to,
        base_port: args.base_port,
        listen: args.listen,
        spread: args.spread.0,
        read_bytes: args.read_bytes,
        cache_bytes: args.cache_bytes,
        is_usual: args.usual,
        only: args.only,
    })?;
    Ok(ExitCode::SUCCESS)
}
