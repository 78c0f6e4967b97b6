//! A helper program whose output is read here: bounded, can be cancelled at any moment, never outlives its reader.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millrace_core::units::HumanDuration;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::bounds::ProcessBounds;
use super::error::Exceeded;
use super::pass::read_retrying;
use super::sandbox::HelperFiles;
use crate::limits::ingest::{CHILD_LOOK_EVERY, LOOK_FOR_END_EVERY, MAX_SAID_BYTES};

/// The messages of a program that is refused memory: those of the C library and of libx264.
const NO_MEMORY: &[&str] = &["Cannot allocate memory", "malloc of size"];

/// Why reading ended early.
#[derive(Debug)]
pub(crate) enum ChildStop {
    /// The caller asked to stop; the program is killed.
    Cancelled,
    /// It could not be started.
    Start(io::Error),
    /// Its output could not be read.
    Read(io::Error),
    /// It wanted more than it may have.
    Exceeded(Exceeded),
    /// It failed.
    Failed {
        /// Exit status in words.
        status: String,
        /// The end of its messages.
        said: String,
    },
}

/// A running program; killed and waited for when dropped, with all that it has started.
#[derive(Debug)]
pub(crate) struct HelperProgram {
    program: PathBuf,
    child: Child,
    /// It is gone and waited for: its number may be another's by now.
    gone: bool,
    bounds: ProcessBounds,
    /// For how long it has written nothing, as far as we were there to see it: a machine that stood still, or a reader that
    /// was busy itself, counts for nothing.
    silent: Duration,
    out: ChildStdout,
    err: Option<ChildStderr>,
    said: Vec<u8>,
    said_lines: u64,
}

impl HelperProgram {
    /// Starts `command`, with its output and messages coming here. The input of `files` is its standard input; if it is locked
    /// in, it reaches these files alone. It gets a process group of its own, so that a Ctrl-C at the terminal reaches only us and we
    /// decide what becomes of it. The kernel's limits are put on it when it runs already, which needs no code between fork
    /// and exec; it has read next to nothing of its file by then.
    pub(crate) fn start(
        mut command: Command,
        files: HelperFiles<'_>,
        bounds: ProcessBounds,
    ) -> Result<Self, ChildStop> {
        let program = Path::new(command.get_program()).to_path_buf();
        let stdin = files.input.map(File::try_clone).transpose().map_err(ChildStop::Start)?;
        command.stdin(stdin.map_or_else(Stdio::null, Stdio::from));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = bounds.sandbox.spawn(&mut command, files).map_err(ChildStop::Start)?;
        let (out, err) = match (child.stdout.take(), child.stderr.take()) {
            (Some(out), Some(err)) => (out, err),
            _ => unreachable!("both were asked for as pipes"),
        };
        let mut this = Self {
            program,
            child,
            gone: false,
            bounds,
            silent: Duration::ZERO,
            out,
            err: Some(err),
            said: Vec::new(),
            said_lines: 0,
        };
        this.make_messages_nonblocking().map_err(ChildStop::Read)?;
        this.bounds.put_on(this.pid()).map_err(ChildStop::Start)?;
        Ok(this)
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn make_messages_nonblocking(&mut self) -> io::Result<()> {
        if let Some(err) = &self.err {
            fcntl_setfl(err, fcntl_getfl(err)? | OFlags::NONBLOCK)?;
        }
        Ok(())
    }

    /// The program's path.
    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// Reads its output; returns 0 when it has closed its output. While it is silent, `idle` is
    /// called every 50 ms.
    pub(crate) fn read(
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
                self.silent = Duration::ZERO;
                return read_retrying(&mut self.out, room).map_err(ChildStop::Read);
            }
            if !err_ready {
                self.was_silent(CHILD_LOOK_EVERY)?;
            }
            idle();
        }
    }

    /// Adds `longer` to the time that it has been silent.
    fn was_silent(&mut self, longer: Duration) -> Result<(), ChildStop> {
        self.silent += longer;
        let most = self.bounds.silence;
        if self.silent < most {
            return Ok(());
        }
        Err(ChildStop::Exceeded(Exceeded::Silence { most: HumanDuration(most) }))
    }

    /// Waits until there is output or a message, at most [`CHILD_LOOK_EVERY`].
    fn wait(&self) -> io::Result<(bool, bool)> {
        let timeout = Timespec::try_from(CHILD_LOOK_EVERY).map_err(io::Error::other)?;
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
                // Nothing more now, or the pipe is broken: the exit status is decisive.
                Err(_) => return,
            }
        }
    }

    /// Returns the number of message lines read.
    pub(crate) fn said_lines(&self) -> u64 {
        self.said_lines
    }

    /// The last `lines` lines of its messages.
    pub(crate) fn said(&self, lines: usize) -> String {
        let text = String::from_utf8_lossy(&self.said);
        let mut last: Vec<&str> =
            text.lines().map(str::trim).filter(|l| !l.is_empty()).rev().take(lines).collect();
        last.reverse();
        last.join("; ")
    }

    /// Waits for the program to end after it has closed its output. Returns an error if the program
    /// reports failure.
    pub(crate) fn finish(&mut self, cancel: &AtomicBool, idle: &mut dyn FnMut()) -> Result<(), ChildStop> {
        // Look at it before waiting for it: its resource usage is known only until then.
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        loop {
            match waitid(WaitId::Pid(self.pid()), ended) {
                Ok(Some(_)) => break,
                Ok(None) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(ChildStop::Read(error.into())),
            }
            if cancel.load(Ordering::Relaxed) {
                return Err(ChildStop::Cancelled);
            }
            // A program that has closed its output is about to end; one that does not is still watched.
            self.wait_for_end().map_err(ChildStop::Read)?;
            self.was_silent(LOOK_FOR_END_EVERY)?;
            idle();
        }
        let used = processor_time(self.pid());
        let status = self.child.wait().map_err(ChildStop::Read)?;
        self.gone = true;
        self.take_messages();
        if status.success() {
            return Ok(());
        }
        Err(self.why_it_failed(status, used))
    }

    fn why_it_failed(&self, status: ExitStatus, used: Option<Duration>) -> ChildStop {
        let said = self.said(8);
        let ProcessBounds { memory, processor, .. } = self.bounds;
        // The limit counts whole clock ticks, as they happen to hit the program; the actual usage
        // may be much less.
        let all_used = used.is_some_and(|used| used * 2 >= processor);
        if all_used && status.signal() == Some(Signal::KILL.as_raw()) {
            return ChildStop::Exceeded(Exceeded::Processor { most: HumanDuration(processor) });
        }
        if NO_MEMORY.iter().any(|words| said.contains(words)) {
            return ChildStop::Exceeded(Exceeded::Memory { most: memory });
        }
        ChildStop::Failed { status: status.to_string(), said }
    }

    /// Waits until the pipe for messages closes because the program ends, at most
    /// [`LOOK_FOR_END_EVERY`].
    fn wait_for_end(&mut self) -> io::Result<()> {
        let timeout = Timespec::try_from(LOOK_FOR_END_EVERY).map_err(io::Error::other)?;
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
        if self.gone {
            return;
        }
        // It must not keep writing into a closed pipe, nor stay as a zombie; nor may its children,
        // if it is a script around the real program.
        let _ = kill_process_group(self.pid(), Signal::KILL);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Processor time of a process and all its threads, also when it has ended and is not yet waited for.
fn processor_time(pid: Pid) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The name in parentheses may contain anything; user and system time are the 12th and 13th field behind it.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_ascii_whitespace().skip(11).map(str::parse::<u64>);
    let ticks = times.next()?.ok()? + times.next()?.ok()?;
    Some(Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second().max(1)))
}

#[cfg(test)]
#[path = "child_tests.rs"]
mod tests;
