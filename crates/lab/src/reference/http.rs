//! A process a connection: sendfile(2) into TCP, in bursts, behind a minimal HTTP response.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Child;
use std::time::{Duration, Instant as StdInstant};

use anyhow::{Context, bail};

use super::media::{BLOCK_BYTES, MediaFile};
use super::process::child;
use super::{SenderKind, SenderOptions, sleep_until};

/// Longest request head.
const HEAD_BYTES: usize = 8192;

/// Accepts connections until as many have come as there are streams, then waits for their processes.
pub(super) fn listen(options: &SenderOptions) -> anyhow::Result<()> {
    let address = options.listen.context("bench-sender sendfile: needs --listen ADDRESS:PORT")?;
    let listener = TcpListener::bind(address).with_context(|| format!("listen on {address}"))?;
    let mut children: Vec<Child> = Vec::new();
    for index in 0..options.streams {
        let (connection, _) = listener.accept().context("accept a connection")?;
        let mut command = child(SenderKind::Sendfile, options, index)?;
        command.stdin(OwnedFd::from(connection));
        children.push(command.spawn().with_context(|| format!("start the process of stream {index}"))?);
    }
    for child in &mut children {
        child.wait()?;
    }
    Ok(())
}

/// Serves the connection that is standard input.
pub(super) fn one(options: &SenderOptions, index: u32) -> anyhow::Result<()> {
    let input = std::io::stdin().as_fd().try_clone_to_owned().context("take the connection")?;
    let connection = TcpStream::from(input);
    serve(options, index, connection)
}

pub(super) fn serve(options: &SenderOptions, index: u32, mut connection: TcpStream) -> anyhow::Result<()> {
    skip_request(&mut connection)?;
    let file = MediaFile::open(options.file_of(index))?;
    let first = options.first_block(index, file.blocks())?;
    let end = file.blocks() * BLOCK_BYTES as u64;
    let mut offset = first * BLOCK_BYTES as u64;
    let length = end - offset;
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: video/mp2t\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    connection.write_all(head.as_bytes()).context("answer")?;
    let (pace, start) = (options.pace(), StdInstant::now());
    let burst_bytes = options.burst_blocks() * BLOCK_BYTES as u64;
    let mut due_bytes = 0;
    while offset < end {
        sleep_until(start + Duration::from_nanos(pace.at_ns(due_bytes / BLOCK_BYTES as u64)));
        due_bytes += burst_bytes;
        let target = (first * BLOCK_BYTES as u64 + due_bytes).min(end);
        while offset < target {
            let wanted = (target - offset) as usize;
            match rustix::fs::sendfile(&connection, file.file(), Some(&mut offset), wanted) {
                Ok(0) => bail!("the file became shorter while it was sent"),
                Ok(_) => {}
                // The viewer left.
                Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => return Ok(()),
                Err(error) => return Err(error).context("sendfile"),
            }
        }
    }
    Ok(())
}

/// Reads up to the empty line that ends the head of a request.
fn skip_request(connection: &mut TcpStream) -> anyhow::Result<()> {
    let mut head = Vec::new();
    let mut buffer = [0; 1024];
    while !head.windows(4).any(|w| w == b"\r\n\r\n") {
        let n = connection.read(&mut buffer).context("read a request")?;
        if n == 0 || head.len() > HEAD_BYTES {
            bail!("a request without end ({} bytes)", head.len());
        }
        head.extend_from_slice(&buffer[..n]);
    }
    Ok(())
}
