//! Our ends of conversations: one connection that sends, reads and compares, and many that are aborted.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Condvar, Mutex};

use millrace_core::time::Instant;
use millrace_lab::runner::Application;
use millrace_lab::tcp_host::{KERNEL_IP, OUR_IP};
use millrace_tcp::conn::{ConnectionState, Happened, Reason, TcpCounters};
use millrace_tcp::stack::{ConnectionId, ListenerId, Stack};

use super::{PORT, TIMEOUT};
use crate::support::pattern;

/// Who opens the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    Us,
    Kernel,
}

/// The data that an end sends before it closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sends {
    /// A number of bytes of the pattern of a seed.
    Pattern(u64, usize),
    /// The data it gets.
    Echo,
}

/// Resources left of connections in a stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) connections: u32,
    pub(crate) requests: u32,
    pub(crate) descriptors: u32,
    pub(crate) host_pages: u32,
    pub(crate) receive_pages: u32,
}

impl Left {
    fn of(stack: &Stack) -> Self {
        Self {
            connections: stack.connections(),
            requests: stack.requests(),
            descriptors: stack.store().used(),
            host_pages: stack.store().host_pages(),
            receive_pages: stack.pages().used(0).0 + stack.pages().used(1).0,
        }
    }
}

/// A test's view of an application while it runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Set by a test: connections may be opened.
    pub(crate) may_begin: bool,
    /// How the conversation ended.
    pub(crate) outcome: Option<Result<(), String>>,
    pub(crate) counters: TcpCounters,
    pub(crate) left: Left,
    /// Connections that are over, of those that are aborted.
    pub(crate) aborted: u32,
    /// Most connections at once.
    pub(crate) peak: u32,
}

#[derive(Clone, Default)]
pub(crate) struct Watch(Arc<(Mutex<Seen>, Condvar)>);

impl Watch {
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut Seen) -> R) -> R {
        let result = change(&mut self.0.0.lock().unwrap());
        self.0.1.notify_all();
        result
    }

    /// Waits until `has_come` returns true; returns the last state seen.
    pub(crate) fn wait(&self, has_come: impl Fn(&Seen) -> bool) -> Result<Seen, String> {
        let seen = self.0.0.lock().unwrap();
        let (seen, waited) = self.0.1.wait_timeout_while(seen, TIMEOUT, |seen| !has_come(seen)).unwrap();
        if waited.timed_out() { Err(format!("nothing came of it: {seen:?}")) } else { Ok(seen.clone()) }
    }

    fn publish(&self, stack: &Stack) {
        let left = Left::of(stack);
        self.change(|seen| {
            (seen.counters, seen.left) = (*stack.counters(), left);
            seen.peak = seen.peak.max(left.connections);
        });
    }
}

/// One connection.
pub(crate) struct Talker {
    pub(crate) caller: Caller,
    pub(crate) sends: Sends,
    /// Data from the other side: a number of bytes of the pattern of a seed. An echo takes all data
    /// that comes.
    pub(crate) expects: (u64, usize),
    /// It reads when this has come about.
    pub(crate) reads_when: fn(&TcpCounters) -> bool,
    pub(crate) watch: Watch,
    line: Line,
}

/// How far it is.
#[derive(Default)]
struct Line {
    id: Option<ConnectionId>,
    is_listening: bool,
    is_established: bool,
    /// Read and not yet sent back.
    kept: Vec<u8>,
    sent: usize,
    got: usize,
    peer_closed: bool,
    closed: bool,
    is_over: bool,
}

impl Talker {
    pub(crate) fn new(caller: Caller, sends: Sends, expects: (u64, usize)) -> Self {
        let watch = Watch::default();
        Self { caller, sends, expects, reads_when: |_| true, watch, line: Line::default() }
    }

    fn begin(&mut self, stack: &mut Stack, now: Instant) {
        if self.caller == Caller::Kernel && !self.line.is_listening {
            stack.listen(SocketAddr::new(IpAddr::V4(OUR_IP), PORT), 256).expect("nobody else listens");
            self.line.is_listening = true;
        }
        if self.caller == Caller::Us && self.line.id.is_none() && self.watch.change(|seen| seen.may_begin) {
            let (here, there) = ((OUR_IP, 0).into(), (KERNEL_IP, PORT).into());
            self.line.id = Some(stack.open(here, there, now).expect("there is room"));
        }
    }

    fn say(&self, outcome: Result<(), String>) {
        self.watch.change(|seen| {
            seen.outcome.get_or_insert(outcome);
        });
    }

    fn send(&mut self, id: ConnectionId, stack: &mut Stack, now: Instant) {
        let line = &mut self.line;
        loop {
            let count = match self.sends {
                Sends::Echo => {
                    let count = stack.write(id, &line.kept, now).unwrap_or(0);
                    line.kept.drain(..count);
                    count
                }
                Sends::Pattern(seed, bytes) => {
                    let next = pattern(seed, line.sent, (bytes - line.sent).min(8192));
                    stack.write(id, &next, now).unwrap_or(0)
                }
            };
            line.sent += count;
            if count == 0 {
                return;
            }
        }
    }

    /// True if there was anything.
    fn read(&mut self, id: ConnectionId, stack: &mut Stack, now: Instant) -> bool {
        let mut buffer = [0; 8192];
        let Ok(count @ 1..) = stack.read(id, &mut buffer, now) else { return false };
        if self.sends == Sends::Echo {
            self.line.kept.extend_from_slice(&buffer[..count]);
        } else if buffer[..count] != pattern(self.expects.0, self.line.got, count)[..] {
            self.say(Err(format!("wrong bytes from {} on", self.line.got)));
        }
        self.line.got += count;
        true
    }

    fn close(&mut self, id: ConnectionId, stack: &mut Stack, now: Instant) {
        let has_sent = match self.sends {
            Sends::Echo => self.line.peer_closed && self.line.kept.is_empty(),
            Sends::Pattern(_, bytes) => self.line.sent == bytes,
        };
        if has_sent && !self.line.closed {
            stack.close(id, now).expect("it is open");
            self.line.closed = true;
        }
        let is_over = matches!(stack.state(id), ConnectionState::Closed | ConnectionState::TimeWait);
        if self.line.closed && self.line.peer_closed && is_over {
            let (got, expected) = (self.line.got, self.expects.1);
            self.say(if got == expected { Ok(()) } else { Err(format!("{got} of {expected} bytes came")) });
            stack.release(id, now);
            self.line.is_over = true;
        }
    }
}

impl Application for Talker {
    fn turn(&mut self, stack: &mut Stack, now: Instant) {
        self.begin(stack, now);
        while let Some(event) = stack.poll_event() {
            if event.happened.has(Happened::ESTABLISHED) {
                (self.line.id, self.line.is_established) = (Some(event.connection), true);
            }
            self.line.peer_closed |= event.happened.has(Happened::PEER_CLOSED);
            if event.happened.has(Happened::CLOSED) && event.reason != Reason::Finished {
                self.say(Err(format!("{} after {} bytes", event.reason, self.line.got)));
            }
        }
        if let Some(id) = self.line.id.filter(|_| self.line.is_established && !self.line.is_over) {
            let may_read = (self.reads_when)(stack.counters());
            loop {
                self.send(id, stack, now);
                // An echo that still holds data reads no more, so that the peer is held back too.
                if !may_read || !self.line.kept.is_empty() || !self.read(id, stack, now) {
                    break;
                }
            }
            if may_read && self.line.kept.is_empty() {
                self.close(id, stack, now);
            }
        }
        self.watch.publish(stack);
    }
}

/// Many connections that end by a reset: those of [`PORT`] are reset by the kernel, those of the port behind it by us.
pub(crate) struct Aborter {
    pub(crate) caller: Caller,
    /// Connections on each of both ports.
    pub(crate) each: u32,
    pub(crate) watch: Watch,
    opened: [u32; 2],
    under_way: u32,
    ours_are: Option<ListenerId>,
    lines: Vec<(ConnectionId, usize)>,
}

/// Connections that are opened side by side.
const ABREAST: u32 = 8;

impl Aborter {
    pub(crate) fn new(caller: Caller, each: u32) -> Self {
        let (watch, lines) = (Watch::default(), Vec::new());
        Self { caller, each, watch, opened: [0; 2], under_way: 0, ours_are: None, lines }
    }

    fn begin(&mut self, stack: &mut Stack, now: Instant) {
        if self.caller == Caller::Kernel {
            if self.ours_are.is_none() {
                let listen = |stack: &mut Stack, port| {
                    stack.listen(SocketAddr::new(IpAddr::V4(OUR_IP), port), 64).expect("nobody else listens")
                };
                listen(stack, PORT);
                self.ours_are = Some(listen(stack, PORT + 1));
            }
            return;
        }
        let may_begin = self.watch.change(|seen| seen.may_begin);
        while may_begin && self.under_way < ABREAST && self.opened.iter().sum::<u32>() < 2 * self.each {
            let which = usize::from(self.opened[1] < self.opened[0]);
            let there = (KERNEL_IP, PORT + which as u16).into();
            let id = stack.open((OUR_IP, 0).into(), there, now).expect("there is room");
            self.lines.push((id, which));
            self.opened[which] += 1;
            self.under_way += 1;
        }
    }

    /// Finishes a connection, whichever side has ended it.
    fn end(&mut self, id: ConnectionId, stack: &mut Stack, now: Instant) {
        self.lines.retain(|line| line.0 != id);
        self.under_way = self.under_way.saturating_sub(1);
        stack.release(id, now);
        self.watch.change(|seen| seen.aborted += 1);
    }
}

impl Application for Aborter {
    fn turn(&mut self, stack: &mut Stack, now: Instant) {
        self.begin(stack, now);
        while let Some(event) = stack.poll_event() {
            let id = event.connection;
            let by_us = match self.caller {
                Caller::Us => self.lines.contains(&(id, 1)),
                Caller::Kernel => event.listener == self.ours_are,
            };
            let is_over = event.happened.has(Happened::CLOSED);
            if event.happened.has(Happened::ESTABLISHED) && !is_over {
                stack.write(id, &[7; 3000], now).expect("it is open");
            }
            // The kernel knows of the connection now: a reset right behind the SYN would withdraw a
            // connection that was never accepted.
            if by_us && event.happened.has(Happened::ACKED) && !is_over {
                stack.write(id, &[8; 3000], now).expect("it is open");
                stack.abort(id, now);
                self.end(id, stack, now);
                continue;
            }
            if is_over {
                if event.reason != Reason::Reset {
                    let error = format!("a connection ended otherwise: {}", event.reason);
                    self.watch.change(|seen| seen.outcome = Some(Err(error)));
                }
                self.end(id, stack, now);
            }
        }
        self.watch.publish(stack);
    }
}
