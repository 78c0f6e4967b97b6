//! A helper program whose output is read here: can be cancelled at any moment, never outlives its reader.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::pass::read_retrying;

/// How often a silent program's reader looks whether it should stop.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// What is kept of the program's messages.
const MAX_SAID_BYTES: usize = 4096;

/// Why reading ended early.
#[derive(Debug)]
pub(super) enum ChildStop {
    /// The caller asked to stop; the program is killed.
    Cancelled,
    /// It could not be started.
    Start(io::Error),
    /// Its output could not be read.
    Read(io::Error),
    /// It failed.
    Failed {
        /// Exit status in words.
        status: String,
        /// The end of its messages.
        said: String,
    },
}

/// A running program; killed and waited for when dropped.
#[derive(Debug)]
pub(super) struct HelperProgram {
    program: PathBuf,
    child: Child,
    out: ChildStdout,
    err: Option<ChildStderr>,
    said: Vec<u8>,
    said_lines: u64,
}

impl HelperProgram {
    /// Starts `command`, with nothing to read and its output and messages coming here. It gets a process group of its
    /// own, so that a Ctrl-C at the terminal reaches only us and we decide what becomes of it.
    pub(super) fn start(mut command: Command) -> Result<Self, ChildStop> {
        let program = Path::new(command.get_program()).to_path_buf();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().map_err(ChildStop::Start)?;
        let (out, err) = match (child.stdout.take(), child.stderr.take()) {
            (Some(out), Some(err)) => (out, err),
            _ => unreachable!("both were asked for as pipes"),
        };
        let mut this = Self { program, child, out, err: Some(err), said: Vec::new(), said_lines: 0 };
        this.make_messages_nonblocking().map_err(ChildStop::Read)?;
        Ok(this)
    }

    fn make_messages_nonblocking(&mut self) -> io::Result<()> {
        if let Some(err) = &self.err {
            fcntl_setfl(err, fcntl_getfl(err)? | OFlags::NONBLOCK)?;
        }
        Ok(())
    }

    /// The program's path.
    pub(super) fn program(&self) -> &Path {
        &self.program
    }

    /// Reads what it writes; 0 when it has closed its output. While it is silent, `idle` is called every 50 ms.
    pub(super) fn read(
        &mut self,
        room: &mut [u8],
        cancel: &AtomicBool,
        idle: &mut dyn FnMut(),
    ) -> Result<usize, ChildStop> {
        loop {
            if cancel.load(Ordering::Relaxed) {
                return Err(ChildStop::Cancelled);
            }
            let (out_ready, err_ready) = self.wait().map_err(ChildStop::Read)?;
            if err_ready {
                self.take_messages();
            }
            if out_ready {
                return read_retrying(&mut self.out, room).map_err(ChildStop::Read);
            }
            idle();
        }
    }

    /// Waits until there is output or a message, at most [`LOOK_EVERY`].
    fn wait(&self) -> io::Result<(bool, bool)> {
        let timeout = Timespec::try_from(LOOK_EVERY).map_err(io::Error::other)?;
        let mut fds = vec![PollFd::new(&self.out, PollFlags::IN)];
        if let Some(err) = &self.err {
            fds.push(PollFd::from_borrowed_fd(err.as_fd(), PollFlags::IN));
        }
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready = |at: usize| fds.get(at).is_some_and(|fd| !fd.revents().is_empty());
        Ok((ready(0), ready(1)))
    }

    /// Takes the messages that are there; keeps the last few lines.
    fn take_messages(&mut self) {
        let Some(err) = &mut self.err else { return };
        let mut room = [0; 4096];
        loop {
            match err.read(&mut room) {
                Ok(0) => {
                    self.err = None;
                    return;
                }
                Ok(n) => {
                    self.said.extend_from_slice(&room[..n]);
                    self.said_lines += room[..n].iter().filter(|&&b| b == b'\n').count() as u64;
                    let surplus = self.said.len().saturating_sub(MAX_SAID_BYTES);
                    self.said.drain(..surplus);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Nothing more now, or the pipe is broken: the exit status tells what matters.
                Err(_) => return,
            }
        }
    }

    /// Lines of messages so far.
    pub(super) fn said_lines(&self) -> u64 {
        self.said_lines
    }

    /// The last `lines` lines of its messages.
    pub(super) fn said(&self, lines: usize) -> String {
        let text = String::from_utf8_lossy(&self.said);
        let mut last: Vec<&str> =
            text.lines().map(str::trim).filter(|l| !l.is_empty()).rev().take(lines).collect();
        last.reverse();
        last.join("; ")
    }

    /// Its output is closed: waits until it is gone. An error if it says it failed.
    pub(super) fn finish(&mut self, cancel: &AtomicBool, idle: &mut dyn FnMut()) -> Result<(), ChildStop> {
        let status = loop {
            match self.child.try_wait().map_err(ChildStop::Read)? {
                Some(status) => break status,
                None if cancel.load(Ordering::Relaxed) => return Err(ChildStop::Cancelled),
                None => {
                    // A program that has closed its output is about to end; one that does not is still watched.
                    self.wait_for_end().map_err(ChildStop::Read)?;
                    idle();
                }
            }
        };
        self.take_messages();
        if status.success() {
            return Ok(());
        }
        Err(ChildStop::Failed { status: status.to_string(), said: self.said(8) })
    }

    /// The messages' pipe closes when the program ends; waits for that, at most [`LOOK_EVERY`].
    fn wait_for_end(&mut self) -> io::Result<()> {
        let timeout = Timespec::try_from(LOOK_EVERY / 10).map_err(io::Error::other)?;
        let mut fds: Vec<PollFd<'_>> = self.err.iter().map(|err| PollFd::new(err, PollFlags::IN)).collect();
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        self.take_messages();
        Ok(())
    }
}

impl Drop for HelperProgram {
    fn drop(&mut self) {
        // Already gone is fine; otherwise it must not go on writing into a closed pipe, nor stay as a zombie.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
#[path = "child_tests.rs"]
mod tests;
