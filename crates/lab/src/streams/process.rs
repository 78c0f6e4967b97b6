//! A process a stream: read a block, send it, sleep until the next is due; or sendfile instead of the first two.
//!
//! The paper's server forked one for each viewer. Here a program must not fork, so each is started afresh; all wait until the
//! last is there, and nothing of their start is measured.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, bail};

use super::media::BlockReader;
use super::{SendMethod, SendPlan, Transport, now_ns, say_ready, sleep_until};
use crate::raw_send::cut_at;

/// The command line that starts the process for stream `index`.
fn child(plan: &SendPlan, index: u32) -> anyhow::Result<Command> {
    let program = std::env::current_exe().context("find the own program")?;
    let mut command = Command::new(program);
    command.args(arguments(plan));
    command.args(["--only", &index.to_string()]);
    command.stdout(Stdio::null());
    Ok(command)
}

/// `bench-stream` and its options, as a shell would take them.
pub(super) fn arguments(plan: &SendPlan) -> Vec<String> {
    let mut words = vec!["bench-stream".to_owned(), plan.kind.name().to_owned()];
    let mut add = |name: &str, value: String| words.extend([name.to_owned(), value]);
    add("--dir", plan.dir.display().to_string());
    add("--titles", plan.titles.to_string());
    add("--transport", plan.transport.name().to_owned());
    add("--datagram-bytes", plan.blocks.datagram_bytes.to_string());
    add("--datagrams", plan.blocks.datagrams.to_string());
    add("--interval", format!("{}ns", plan.blocks.interval_ns));
    add("--streams", plan.streams.to_string());
    add("--base-port", plan.base_port.to_string());
    add("--spread", format!("{}ns", plan.spread.as_nanos()));
    add("--read-bytes", plan.read_bytes.to_string());
    add("--cache-bytes", plan.cache_bytes.to_string());
    plan.to.iter().for_each(|ip| add("--to", ip.to_string()));
    plan.listen.iter().for_each(|address| add("--listen", address.to_string()));
    words.extend(plan.is_usual.then(|| "--usual".to_owned()));
    words
}

/// Starts a process for every stream, lets all of them go at once, and waits for them.
pub(super) fn start_all(plan: &SendPlan) -> anyhow::Result<()> {
    let mut children: Vec<Child> = Vec::new();
    let mut start = |mut command: Command, input: Stdio, index: u32| -> anyhow::Result<()> {
        let started = command.stdin(input).spawn();
        children.push(started.with_context(|| format!("start the process of stream {index}"))?);
        Ok(())
    };
    match plan.transport {
        Transport::Udp => {
            // They go when their input ends.
            let (input, gate) = std::io::pipe().context("make a pipe")?;
            for index in 0..plan.streams {
                start(child(plan, index)?, input.try_clone()?.into(), index)?;
            }
            say_ready();
            drop(gate);
        }
        Transport::Tcp => {
            let listener = plan.listener()?;
            say_ready();
            for index in 0..plan.streams {
                let (connection, _) = listener.accept().context("accept a connection")?;
                connection.set_nodelay(true)?;
                start(child(plan, index)?, OwnedFd::from(connection).into(), index)?;
            }
        }
    }
    for child in &mut children {
        child.wait()?;
    }
    Ok(())
}

/// Destination of the blocks of one stream.
enum BlockOutput {
    Udp(UdpSocket),
    Tcp(TcpStream),
}

impl BlockOutput {
    fn open(plan: &SendPlan, index: u32) -> anyhow::Result<Self> {
        let input = std::io::stdin();
        Ok(match plan.transport {
            Transport::Udp => {
                let to = plan.destination(index)?;
                let socket = UdpSocket::bind(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })
                    .context("make a socket")?;
                socket.connect(to).context("connect a socket")?;
                if plan.blocks.datagrams > 1 {
                    // One call for the block; the kernel cuts it.
                    cut_at(&socket, plan.blocks.unit_bytes(plan.transport) as u16).context("UDP_SEGMENT")?;
                }
                // The end of the input is the word.
                input.lock().read_to_end(&mut Vec::new()).context("wait for the others")?;
                Self::Udp(socket)
            }
            Transport::Tcp => {
                let mut connection =
                    TcpStream::from(input.as_fd().try_clone_to_owned().context("take the connection")?);
                connection.read_exact(&mut [0]).context("wait for the viewer")?;
                Self::Tcp(connection)
            }
        })
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Udp(socket) => socket.as_fd(),
            Self::Tcp(connection) => connection.as_fd(),
        }
    }

    fn send(&mut self, block: &[u8]) -> std::io::Result<()> {
        match self {
            Self::Udp(socket) => socket.send(block).map(drop),
            Self::Tcp(connection) => connection.write_all(block),
        }
    }
}

/// Sends stream `index`.
pub(super) fn one(plan: &SendPlan, index: u32) -> anyhow::Result<()> {
    let mut source = BlockReader::open(plan, index)?;
    let first = plan.first_block(index, source.blocks())?;
    let mut out = BlockOutput::open(plan, index)?;
    let unit = plan.blocks.block_bytes(plan.transport);
    let mut due_ns = plan.first_due_ns(index, now_ns());
    for block in first..source.blocks() {
        sleep_until(due_ns);
        due_ns += plan.blocks.interval_ns;
        let sent = match plan.kind {
            SendMethod::Sendfile => send_file(&out, &source, block * unit as u64, unit),
            _ => source.read(block).context("read a block").and_then(|block| Ok(out.send(block)?)),
        };
        match sent {
            Ok(()) => {}
            Err(error) if has_left(&error) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Hands the bytes from `at` on to the kernel, by their place in the file.
fn send_file(out: &BlockOutput, source: &BlockReader, at: u64, bytes: usize) -> anyhow::Result<()> {
    let (mut offset, end) = (at, at + bytes as u64);
    while offset < end {
        let wanted = (end - offset) as usize;
        let sent = rustix::fs::sendfile(out.fd(), source.file(), Some(&mut offset), wanted);
        match sent.map_err(std::io::Error::from).context("sendfile")? {
            0 => bail!("the file became shorter while it was sent"),
            taken if taken < bytes && matches!(out, BlockOutput::Udp(_)) => {
                bail!("sendfile took a part of a datagram")
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether the receiver is gone, which is no reason to complain.
fn has_left(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| {
        matches!(
            error.kind(),
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::ConnectionRefused
        )
    })
}
