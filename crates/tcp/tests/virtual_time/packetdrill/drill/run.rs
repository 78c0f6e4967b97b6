//! One event after the other.

use std::collections::BTreeSet;

use super::calls::{Done, Process};
use super::machine::{Machine, Sent};
use super::script::{Action, Call, Dialect, Event, Script, Seconds, When};
use super::segment::{ACK, FIN, Opt, PSH, Segment};
use super::setup::{Setup, Start};
use super::text::Fault;

/// Time allowed for the remains of a script to end: the longest timeouts, and TIME-WAIT.
const AFTERWARDS_NS: i64 = 400_000_000_000;

/// Outcome of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    /// It is for the other IP.
    pub(crate) is_skipped: bool,
    /// Assertions in Python.
    pub(crate) assertions: usize,
    /// Commands that mean nothing here.
    pub(crate) passed_over: BTreeSet<String>,
}

/// A call that blocks, since when and until when, in nanoseconds.
struct Blocked {
    line: usize,
    call: Call,
    earliest: i64,
    latest: i64,
}

struct Runner {
    machine: Machine,
    process: Process,
    dialect: Dialect,
    tolerance_ns: i64,
    /// When the event before was.
    before: i64,
    blocked: Option<Blocked>,
    /// Acknowledgment number of the last segment.
    acked: Option<u32>,
}

/// Runs a script.
pub(crate) fn run(script: &Script, start: Start, dialect: Dialect) -> Result<Run, Fault> {
    let setup = Setup::new(script, start, dialect)?;
    if setup.family.is_some_and(|family| family != start.family) {
        return Ok(Run { is_skipped: true, ..Run::default() });
    }
    let mut runner = Runner {
        machine: Machine::new(&setup, start),
        process: Process::default(),
        dialect,
        tolerance_ns: setup.tolerance_ns,
        before: 0,
        blocked: None,
        acked: None,
    };
    let mut run = Run { passed_over: setup.passed_over, ..Run::default() };
    for event in &script.events {
        let fault = |what| Fault { line: event.line, what };
        match &event.action {
            // Counted where there is something to assert.
            Action::Python(code) => run.assertions += usize::from(!code.is_empty()),
            Action::Shell(command) => drop(run.passed_over.insert(command.trim().to_owned())),
            _ => {}
        }
        runner.event(event).map_err(fault)?;
    }
    let line = script.events.last().map_or(1, |event| event.line);
    runner.end().map_err(|what| Fault { line, what })?;
    Ok(run)
}

impl Runner {
    fn event(&mut self, event: &Event) -> Result<(), String> {
        let (earliest, latest) = self.span(event.when);
        match &event.action {
            Action::Leaves(segment) => {
                let at = self.leaves(segment, earliest, latest)?;
                // An event without an exact time counts from when it happened.
                self.before = if earliest == latest { earliest } else { at };
                return Ok(());
            }
            Action::Arrives(segment) => {
                self.pass(earliest)?;
                self.machine.arrives(segment);
                self.pass(earliest)?;
            }
            Action::Call(call) => {
                self.pass(earliest)?;
                self.call(event.line, call, earliest, self.before)?;
                self.pass(earliest)?;
            }
            Action::Shell(_) | Action::Python(_) => self.pass(earliest)?,
        }
        self.before = earliest;
        Ok(())
    }

    /// When it may happen.
    fn span(&self, when: When) -> (i64, i64) {
        match when {
            When::At(at) => (at, at),
            When::After(after) => (self.before + after, self.before + after),
            When::Within(from, to) => (from, to),
            When::AfterWithin(from, to) => (self.before + from, self.before + to),
            When::Any => (self.before, i64::MAX),
        }
    }

    /// Lets time pass up to `until`, and what happens then happen. A call that blocks is tried after each turn.
    fn pass(&mut self, until: i64) -> Result<(), String> {
        self.wait(until, |_| true)
    }

    fn wait(&mut self, until: i64, goes_on: impl Fn(&Machine) -> bool) -> Result<(), String> {
        let Self { machine, process, blocked, tolerance_ns, .. } = self;
        let mut fault = None;
        let mut look = |machine: &mut Machine| {
            if let Some(waiting) = blocked.as_ref() {
                process.hear(machine);
                match process.call(machine, &waiting.call) {
                    Ok(Done::Blocks) => {}
                    done => {
                        let now = machine.script_now();
                        fault = finish(waiting, done, now, *tolerance_ns).err();
                        *blocked = None;
                    }
                }
            }
            fault.is_none() && goes_on(machine)
        };
        machine.advance(until, &mut look)?;
        look(machine);
        if let Some(fault) = fault {
            return Err(fault);
        }
        match &self.blocked {
            Some(waiting) if self.machine.script_now() > waiting.latest + self.tolerance_ns => Err(format!(
                "the {}() of line {} has not returned until {}",
                waiting.call.name,
                waiting.line,
                Seconds(waiting.latest)
            )),
            _ => Ok(()),
        }
    }

    fn call(&mut self, line: usize, call: &Call, at: i64, before: i64) -> Result<(), String> {
        if let Some(waiting) = &self.blocked {
            return Err(format!("the {}() of line {} still blocks", waiting.call.name, waiting.line));
        }
        let done = self.process.call(&mut self.machine, call);
        let end = call.until.map(|until| before + until).map(|end| end.max(at));
        match (done, end) {
            (Ok(Done::Blocks), None) => Err(format!("{}() blocks", call.name)),
            (Ok(Done::Blocks), Some(end)) => {
                self.blocked = Some(Blocked { line, call: call.clone(), earliest: end, latest: end });
                Ok(())
            }
            (done, end) => {
                let end = end.unwrap_or(at);
                let waiting = Blocked { line, call: call.clone(), earliest: end, latest: end };
                finish(&waiting, done, at, self.tolerance_ns)
            }
        }
    }

    /// A segment has to go out; when it did.
    fn leaves(&mut self, expected: &Segment, earliest: i64, latest: i64) -> Result<i64, String> {
        let deadline = match latest {
            i64::MAX => self.before + AFTERWARDS_NS,
            _ => latest + self.tolerance_ns,
        };
        let first = self.next_sent(expected, deadline)?;
        let mut found = self.machine.translate(&first, expected);
        self.compare_payload(&first, found.seq)?;
        self.compare_time(&found, first.at, earliest, latest)?;
        // What hardware would have cut is a run of segments here.
        while found.length < expected.length && found.length > 0 {
            let next =
                self.next_sent(expected, deadline).map_err(|what| format!("{what} behind > {found}"))?;
            let piece = self.machine.translate(&next, expected);
            self.compare_payload(&next, piece.seq)?;
            self.compare_time(&piece, next.at, earliest, latest)?;
            let joins = piece.seq == found.seq.wrapping_add(found.length)
                && piece.length > 0
                && found.flags & FIN == 0
                && found.flags & !PSH == piece.flags & !(PSH | FIN);
            if !joins {
                return Err(format!("expected > {expected}, came > {found} and then > {piece}"));
            }
            let length = found.length + piece.length;
            found = Segment { seq: found.seq, length, ..piece };
        }
        if self.is_same(&found, expected) {
            return Ok(first.at);
        }
        Err(format!("expected > {expected}, came > {found} at {}", Seconds(first.at)))
    }

    fn next_sent(&mut self, expected: &Segment, until: i64) -> Result<Sent, String> {
        let sent = loop {
            if self.machine.first_sent().is_none() {
                self.wait(until, |machine| machine.first_sent().is_none())?;
            }
            let sent = self
                .machine
                .take_sent()
                .ok_or_else(|| format!("expected > {expected}, came nothing until {}", Seconds(until)))?;
            let wire = &sent.segment;
            let tells_window = wire.flags == ACK && wire.length == 0 && self.acked == Some(wire.ack);
            self.acked = wire.has(ACK).then_some(wire.ack);
            // Linux lets the peer wait for its next segment to learn that the window is larger than a SYN can say.
            let is_wanted = expected.length == 0 && Machine::is_acked(expected, wire.ack);
            if self.dialect == Dialect::Ours || !tells_window || is_wanted {
                break sent;
            }
        };
        if self.machine.is_of_flow(&sent, expected) {
            return Ok(sent);
        }
        Err(format!(
            "expected > {expected}, came > {} at {}, between other ports and in numbers of its own",
            sent.segment,
            Seconds(sent.at)
        ))
    }

    fn compare_payload(&self, sent: &Sent, seq: u32) -> Result<(), String> {
        if Machine::is_payload_right(sent, seq) {
            return Ok(());
        }
        Err(format!("the payload of {} bytes from {seq} on is not what was written", sent.segment.length))
    }

    fn compare_time(&self, found: &Segment, at: i64, earliest: i64, latest: i64) -> Result<(), String> {
        let tolerance = self.tolerance_ns;
        if at >= earliest - tolerance && at <= latest.saturating_add(tolerance) {
            return Ok(());
        }
        let (at, earliest, latest) = (Seconds(at), Seconds(earliest), Seconds(latest));
        Err(format!("> {found} went out at {at}, not between {earliest} and {latest}"))
    }

    fn is_same(&self, found: &Segment, expected: &Segment) -> bool {
        let is_ours = self.dialect == Dialect::Ours;
        let ignored = if is_ours { 0 } else { PSH };
        let options = match (&found.options, &expected.options) {
            (Some(found), Some(expected)) if is_ours => found == expected,
            (Some(found), Some(expected)) => plain(found) == plain(expected),
            _ => true,
        };
        found.flags & !ignored == expected.flags & !ignored
            && (found.seq, found.length, found.ack, found.urgent)
                == (expected.seq, expected.length, expected.ack, expected.urgent)
            && expected.window.is_none_or(|window| found.window == Some(window))
            && expected.ecn.is_none_or(|ecn| found.ecn == Some(ecn))
            && options
    }

    /// Nothing may be left.
    fn end(&mut self) -> Result<(), String> {
        if let Some(waiting) = &self.blocked {
            return Err(format!("the {}() of line {} blocks to the end", waiting.call.name, waiting.line));
        }
        if self.dialect == Dialect::Linux {
            return Ok(());
        }
        if let Some(sent) = self.machine.first_sent() {
            let (segment, at) = (&sent.segment, Seconds(sent.at));
            return Err(format!(
                "> {segment} (in numbers of its own) went out at {at}, and nothing expects it"
            ));
        }
        self.process.exit(&mut self.machine);
        // Connections that were not accepted, and requests, also end.
        for _ in 0..2 {
            let until = self.machine.script_now() + AFTERWARDS_NS;
            self.machine.advance(until, |_| true)?;
            self.process.exit(&mut self.machine);
        }
        let stack = &self.machine.stack;
        let used = [0, 1].map(|cluster| stack.pages().used(cluster).0);
        let left =
            (stack.store().used(), stack.store().host_pages(), used, stack.connections(), stack.requests());
        if left == (0, 0, [0, 0], 0, 0) && stack.time_waits() == 0 {
            return Ok(());
        }
        Err(format!(
            "something is left of the connections: (descriptors, pages to send, received pages, connections, requests) are {left:?}, {} in \
             TIME-WAIT",
            stack.time_waits()
        ))
    }
}

/// Options without order, without padding and without the values of time stamps.
fn plain(options: &[Opt]) -> BTreeSet<String> {
    let text = |option: &Opt| match option {
        Opt::Nop | Opt::Eol => None,
        Opt::Stamps(_, echo) => Some(format!("TS ecr {echo}")),
        other => Some(other.to_string()),
    };
    options.iter().filter_map(text).collect()
}

/// Compares the result of a call, and its time, with the script.
fn finish(waiting: &Blocked, done: Result<Done, String>, now: i64, tolerance_ns: i64) -> Result<(), String> {
    let Blocked { line, call, earliest, latest } = waiting;
    let outcome = match done {
        Ok(Done::Returned(outcome)) => outcome,
        Ok(Done::Blocks) => return Err(format!("the {}() of line {line} blocks", call.name)),
        Err(what) => return Err(format!("the {}() of line {line}: {what}", call.name)),
    };
    let expected = match &call.errno {
        Some(errno) => Err(errno.as_str()),
        None => Ok(call.result),
    };
    let text =
        |outcome: Result<i64, &str>| outcome.map_or_else(|errno| format!("-1 {errno}"), |n| n.to_string());
    if outcome != expected {
        return Err(format!(
            "the {}() of line {line} was to return {}, and returned {} at {}",
            call.name,
            text(expected),
            text(outcome),
            Seconds(now)
        ));
    }
    if now < earliest - tolerance_ns || now > latest + tolerance_ns {
        let (now, latest) = (Seconds(now), Seconds(*latest));
        return Err(format!("the {}() of line {line} returned at {now}, not at {latest}", call.name));
    }
    Ok(())
}
