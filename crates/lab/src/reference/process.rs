//! A process a stream: read a block, put a header before it, send it, sleep until the next is due.

use std::io::{ErrorKind, IoSlice};
use std::net::UdpSocket;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant as StdInstant};

use anyhow::Context;

use super::media::{BLOCK_BYTES, DATAGRAM_BYTES, HEADER_BYTES, MediaFile, rtp_header};
use super::{SenderKind, SenderOptions, sleep_until};

/// The command line that starts the process for stream `index`.
pub(super) fn child(kind: SenderKind, options: &SenderOptions, index: u32) -> anyhow::Result<Command> {
    let program = std::env::current_exe().context("find the own program")?;
    let mut command = Command::new(program);
    command.args(["bench-sender", kind.name()]);
    command.arg("--file").arg(options.file_of(index));
    command.args(["--to", &options.to.to_string(), "--base-port", &options.base_port.to_string()]);
    command.args(["--streams", &options.streams.to_string(), "--only", &index.to_string()]);
    command.args(["--rate", &format!("{}b/s", options.rate_bits_per_s)]);
    command.args(["--distance", &format!("{}ns", options.distance.as_nanos())]);
    command.args(["--spread", &format!("{}ns", options.spread.as_nanos())]);
    command.stdout(Stdio::null());
    Ok(command)
}

/// Starts a process for every stream and waits for all of them.
pub(super) fn start_all(options: &SenderOptions) -> anyhow::Result<()> {
    let mut children: Vec<Child> = Vec::new();
    for index in 0..options.streams {
        let mut command = child(SenderKind::Process, options, index)?;
        let started = command.stdin(Stdio::null()).spawn();
        children.push(started.with_context(|| format!("start the process of stream {index}"))?);
    }
    for child in &mut children {
        child.wait()?;
    }
    Ok(())
}

/// Sends stream `index`.
pub(super) fn one(options: &SenderOptions, index: u32) -> anyhow::Result<()> {
    let file = MediaFile::open(options.file_of(index))?;
    let (pace, burst) = (options.pace(), options.burst_blocks());
    let bind = if options.to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(bind).context("make a socket")?;
    socket.connect(options.destination(index)).context("connect a socket")?;
    let mut buffer = vec![0; burst as usize * BLOCK_BYTES];
    let mut datagram = [0; DATAGRAM_BYTES];
    let (start, mut sequence, mut sent) = (StdInstant::now(), index as u16, 0);
    let mut block = options.first_block(index, file.blocks())?;
    while block < file.blocks() {
        sleep_until(start + Duration::from_nanos(pace.at_ns(sent)));
        let count = burst.min(file.blocks() - block);
        if count == 1 {
            // Straight behind the header.
            datagram[..HEADER_BYTES].copy_from_slice(&rtp_header(sequence, pace.ticks(block), index));
            file.read(block, &mut datagram[HEADER_BYTES..])?;
            tolerate(socket.send(&datagram))?;
        } else {
            file.read(block, &mut buffer[..count as usize * BLOCK_BYTES])?;
            for n in 0..count {
                let header = rtp_header(sequence.wrapping_add(n as u16), pace.ticks(block + n), index);
                let payload = &buffer[n as usize * BLOCK_BYTES..][..BLOCK_BYTES];
                let pieces = [IoSlice::new(&header), IoSlice::new(payload)];
                tolerate(rustix::io::writev(&socket, &pieces).map_err(Into::into))?;
            }
        }
        sequence = sequence.wrapping_add(count as u16);
        block += count;
        sent += count;
    }
    Ok(())
}

/// A receiver that is gone is no reason to stop.
fn tolerate(result: std::io::Result<usize>) -> anyhow::Result<()> {
    match result {
        Err(error) if error.kind() != ErrorKind::ConnectionRefused => Err(error).context("send"),
        _ => Ok(()),
    }
}
