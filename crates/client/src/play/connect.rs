//! Making the RTSP connection, and waiting, with an eye on the cancel flag.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};

use millrace_core::seam::Clock;
use millrace_core::time::NS_PER_S;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::PlayOptions;
use crate::clock::SystemClock;
use crate::error::ClientError;
use crate::limits::CONNECT_LOOK_NS;
use crate::net::{resolve, start_connect};
use crate::url::RtspUrl;

/// Connects to the first address of the host that answers.
pub(super) fn connect(
    url: &RtspUrl,
    options: &PlayOptions,
    cancel: &AtomicBool,
) -> Result<TcpStream, ClientError> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    let mut tried = format!("{}:{}", url.host(), url.port());
    for server in resolve(url.host(), url.port(), options.local)? {
        tried = server.to_string();
        match connect_to(server, options, cancel)? {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(ClientError::Connect { address: tried, source: last })
}

/// The inner result is that of this address, the outer one ends the attempt.
fn connect_to(
    server: SocketAddr,
    options: &PlayOptions,
    cancel: &AtomicBool,
) -> Result<io::Result<TcpStream>, ClientError> {
    let clock = SystemClock;
    let deadline = clock.now() + options.reply_timeout;
    let stream = match start_connect(server, options.local) {
        Ok(stream) => stream,
        Err(error) => return Ok(Err(error)),
    };
    loop {
        if cancel.load(Ordering::Relaxed) {
            return Err(ClientError::Cancelled);
        }
        let mut fds = [PollFd::new(&stream, PollFlags::OUT)];
        wait(&mut fds, CONNECT_LOOK_NS)?;
        if !fds[0].revents().is_empty() {
            return Ok(match stream.take_error() {
                Ok(None) => Ok(stream),
                Ok(Some(error)) | Err(error) => Err(error),
            });
        }
        if clock.now() >= deadline {
            return Ok(Err(io::ErrorKind::TimedOut.into()));
        }
    }
}

/// `poll` for at most `timeout_ns`; a signal ends it early.
pub(super) fn wait(fds: &mut [PollFd<'_>], timeout_ns: u64) -> Result<(), ClientError> {
    let timeout = Timespec {
        tv_sec: (timeout_ns / NS_PER_S).cast_signed(),
        tv_nsec: (timeout_ns % NS_PER_S).cast_signed(),
    };
    match poll(fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(ClientError::Socket { what: "poll", source: error.into() }),
    }
}
