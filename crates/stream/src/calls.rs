//! The calls as a state machine: no thread, no clock, no descriptor is touched here. Its input is
//! runs, ends and the engines' events; its output is commands for the engines and wakers of the
//! waiting tasks. The events' thread drives it, and tests do on a clock of their own.

use std::collections::{HashMap, VecDeque};
use std::task::{Poll, Waker};

use millrace_core::ids::{ConnId, RunSerial, StreamId};
use millrace_core::time::Instant;
use millrace_core::units::BitRate;
use millrace_engine::{
    FailReason, Numbering, Refusal, RunEnd, RunMedia, RunSpec, StepPattern, StopReason, StreamEvent,
};
use millrace_offload::command::{Command, ConnSocket, Dest, Event};
use millrace_offload::handle::EngineHandle;
use millrace_offload::slot_allocator::SlotAllocator;

use crate::outcome::{Reason, RunError, RunRefusal};

/// Number of a context, for as long as it lives.
pub(crate) type ContextKey = u32;

/// An engine, as this sees it.
pub(crate) trait EnginePort: Send {
    /// Hands over a command, or gives it back if there is no room now.
    fn send(&mut self, command: Command) -> Result<(), Box<Command>>;
    /// Returns its next event.
    fn poll_event(&mut self) -> Option<Event>;
    /// Ensures that events from now on are noticed.
    fn rearm(&self) {}
}

impl EnginePort for EngineHandle {
    fn send(&mut self, command: Command) -> Result<(), Box<Command>> {
        EngineHandle::send(self, command).map_err(Box::new)
    }
    fn poll_event(&mut self) -> Option<Event> {
        EngineHandle::poll_event(self)
    }
    fn rearm(&self) {
        EngineHandle::rearm(self);
    }
}

/// A run to begin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunPlan {
    pub(crate) media: RunMedia,
    /// Where the run begins, and bytes of its packet before it: also if there is nothing to send.
    pub(crate) begin: (u32, u16),
    pub(crate) from: u32,
    pub(crate) until: u32,
    /// For bytes: how many of the first packet come before the run, and how many of the last belong to it (0: all).
    pub(crate) trim: (u16, u16),
    pub(crate) scale_permille: u16,
    pub(crate) step: Option<StepPattern>,
    pub(crate) at: Instant,
    pub(crate) ahead_ms: u16,
    pub(crate) rate: BitRate,
}

/// How a run has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndedRun {
    pub(crate) reason: Reason,
    pub(crate) end: RunEnd,
}

/// Result reported for a run.
type Told = Result<EndedRun, Refusal>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ContextState {
    /// Nothing is sent.
    Ready,
    /// A run lasts; if its end has been requested, for this reason.
    Running(Option<Reason>),
    /// The stream has failed: it is closed, and another one opened in its place, before the next run.
    Failed,
}

/// The path to one viewer: its stream in an engine, and the present run.
struct ViewerPath {
    engine: usize,
    place: StreamId,
    dest: Dest,
    state: ContextState,
    run: RunSerial,
    told: Option<Told>,
    /// Sequence number of the next packet, for a stream that takes another's place.
    next_sequence: Option<u16>,
    rate: BitRate,
    /// Its connection broke.
    broken: Option<i32>,
    closing: Option<Closing>,
    waker: Option<Waker>,
}

/// Answers still expected for a line that is given up.
struct Closing {
    stream_open: bool,
    conn_open: bool,
    /// No caller waits for the connection.
    is_forgotten: bool,
    /// The engine was instructed to drop the connection: only its answer to this is the last.
    is_removed: bool,
    returned: Option<ConnSocket>,
}

struct Port<P> {
    link: P,
    /// For which there was no room.
    queue: VecDeque<Command>,
    places: SlotAllocator,
}

/// What all engines may do together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) streams: usize,
    pub(crate) conns: usize,
    pub(crate) max_rate: Option<BitRate>,
}

/// See the module.
pub(crate) struct Calls<P> {
    ports: Vec<Port<P>>,
    lines: HashMap<ContextKey, ViewerPath>,
    by_place: HashMap<(usize, StreamId), ContextKey>,
    by_conn: HashMap<(usize, ConnId), ContextKey>,
    next_key: ContextKey,
    bounds: Bounds,
    used: BitRate,
    /// No run begins any more.
    is_stopping: bool,
    /// Wakers of tasks with news: the caller wakes them when nothing is locked any more.
    awake: Vec<Waker>,
}

impl<P: EnginePort> Calls<P> {
    pub(crate) fn new(links: Vec<P>, bounds: Bounds) -> Self {
        let port = |link| Port {
            link,
            queue: VecDeque::new(),
            places: SlotAllocator::new(bounds.streams, bounds.conns),
        };
        Self {
            ports: links.into_iter().map(port).collect(),
            lines: HashMap::new(),
            by_place: HashMap::new(),
            by_conn: HashMap::new(),
            next_key: 0,
            bounds,
            used: BitRate(0),
            is_stopping: false,
            awake: Vec::new(),
        }
    }

    /// What all runs that last send.
    pub(crate) fn used(&self) -> BitRate {
        self.used
    }

    /// Contexts that are open.
    pub(crate) fn lines(&self) -> usize {
        self.lines.len()
    }

    /// Takes the wakers of the tasks whose events have happened, to wake them outside of any lock:
    /// a waker is foreign code.
    pub(crate) fn take_awake(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.awake)
    }

    /// Whether commands wait for room.
    pub(crate) fn has_queued(&self) -> bool {
        self.ports.iter().any(|port| !port.queue.is_empty())
    }

    /// The engine that the next line goes to: the one with the fewest streams.
    pub(crate) fn next_engine(&self) -> Result<usize, RunError> {
        let engines = self.ports.iter().enumerate();
        engines
            .min_by_key(|(_, port)| port.places.streams_taken())
            .map(|(engine, _)| engine)
            .ok_or(RunError::ShutDown)
    }

    /// The engine that a line is in.
    pub(crate) fn engine_of(&self, key: ContextKey) -> Option<usize> {
        self.lines.get(&key).map(|line| line.engine)
    }

    /// Opens a line in an engine. The connection, if it goes through one, is that engine's from now on.
    ///
    /// # Errors
    /// All places are taken; the connection is given back.
    pub(crate) fn open(
        &mut self,
        engine: usize,
        dest: Dest<()>,
        socket: Option<ConnSocket>,
    ) -> Result<ContextKey, (RunRefusal, Option<ConnSocket>)> {
        let Bounds { streams, conns, .. } = self.bounds;
        let places = &mut self.ports[engine].places;
        let conn = match &socket {
            None => None,
            Some(_) => match places.take_conn() {
                Some(conn) => Some(conn),
                None => return Err((RunRefusal::Connections { most: conns * self.ports.len() }, socket)),
            },
        };
        let (Some(place), Some(dest)) = (places.take_stream(), dest.with_conn(|()| conn)) else {
            conn.into_iter().for_each(|conn| places.give_back_conn(conn));
            return Err((RunRefusal::Streams { most: streams * self.ports.len() }, socket));
        };
        let key = self.new_key();
        if let (Some(conn), Some(socket)) = (conn, socket) {
            self.by_conn.insert((engine, conn), key);
            self.push(engine, Command::ConnAdd { conn, socket });
        }
        self.by_place.insert((engine, place), key);
        let line = ViewerPath {
            engine,
            place,
            dest,
            state: ContextState::Ready,
            run: RunSerial(0),
            told: None,
            next_sequence: None,
            rate: BitRate(0),
            broken: None,
            closing: None,
            waker: None,
        };
        self.lines.insert(key, line);
        self.push(engine, Command::Open { stream: place, dest, quiet: false, once: false });
        Ok(key)
    }

    fn new_key(&mut self) -> ContextKey {
        while self.lines.contains_key(&self.next_key) {
            self.next_key = self.next_key.wrapping_add(1);
        }
        let key = self.next_key;
        self.next_key = key.wrapping_add(1);
        key
    }

    /// Returns the result of the last run, once; `Pending` while it lasts, keeping the waker of the
    /// waiting task.
    pub(crate) fn poll_told(&mut self, key: ContextKey, waker: &Waker) -> Poll<Option<Told>> {
        let Some(line) = self.lines.get_mut(&key) else { return Poll::Ready(None) };
        if let ContextState::Running(_) = line.state {
            match &mut line.waker {
                Some(known) => known.clone_from(waker),
                None => line.waker = Some(waker.clone()),
            }
            return Poll::Pending;
        }
        Poll::Ready(line.told.take())
    }

    /// Begins a run on a line on which none lasts, behind these bytes. Returns its number.
    ///
    /// # Errors
    /// Nothing has been sent then.
    pub(crate) fn start(
        &mut self,
        key: ContextKey,
        plan: &RunPlan,
        first: Vec<u8>,
    ) -> Result<RunSerial, RunError> {
        let line = self.lines.get(&key).filter(|_| !self.is_stopping).ok_or(RunError::ShutDown)?;
        if let Some(errno) = line.broken {
            return Err(RunError::ConnectionGone { errno });
        }
        let used = BitRate(self.used.0.saturating_add(plan.rate.0));
        if let Some(most) = self.bounds.max_rate.filter(|most| used > *most) {
            return Err(RunRefusal::Rate { asked: plan.rate, used: self.used, most }.into());
        }
        let is_new = line.state == ContextState::Failed;
        if is_new {
            self.reopen(key)?;
        }
        let line = self.lines.get_mut(&key).ok_or(RunError::ShutDown)?;
        let numbering = match line.dest {
            Dest::Bytes { .. } => Numbering::Bytes { head: plan.trim.0, last: plan.trim.1 },
            _ if plan.media.layout.is_raw() => Numbering::Title,
            _ => match line.next_sequence.filter(|_| is_new) {
                Some(sequence) => Numbering::Sequence(sequence),
                None => Numbering::Viewer,
            },
        };
        line.run = line.run.next();
        (line.state, line.told, line.rate) = (ContextState::Running(None), None, plan.rate);
        self.used = used;
        let RunPlan { media, from, until, scale_permille, step, at, ahead_ms, .. } = *plan;
        let run = RunSpec { run: line.run, media, from, until, numbering, scale_permille, step };
        let (engine, stream, serial) = (line.engine, line.place, line.run);
        if let (Some(conn), false) = (line.dest.conn(), first.is_empty()) {
            self.push(engine, Command::ConnWrite { conn, bytes: first });
        }
        self.push(engine, Command::Play { stream, at, ahead_ms, run });
        Ok(serial)
    }

    /// Another stream in the place of one that has failed.
    fn reopen(&mut self, key: ContextKey) -> Result<(), RunError> {
        let (streams, engines) = (self.bounds.streams, self.ports.len());
        let line = self.lines.get_mut(&key).ok_or(RunError::ShutDown)?;
        let (engine, dest, before) = (line.engine, line.dest, line.place);
        let place = self.ports[engine].places.take_stream();
        line.place = place.ok_or(RunRefusal::Streams { most: streams * engines })?;
        line.state = ContextState::Ready;
        let stream = line.place;
        self.by_place.remove(&(engine, before));
        self.by_place.insert((engine, stream), key);
        self.push(engine, Command::Close { stream: before });
        self.push(engine, Command::Open { stream, dest, quiet: false, once: false });
        Ok(())
    }

    /// Ends a run now, if it still lasts.
    pub(crate) fn interrupt(&mut self, key: ContextKey, run: RunSerial, why: Reason) {
        let Some(line) = self.lines.get_mut(&key) else { return };
        if line.state == ContextState::Running(None) && line.run == run {
            line.state = ContextState::Running(Some(why));
            let (engine, stream) = (line.engine, line.place);
            self.push(engine, Command::Pause { stream });
        }
    }

    /// ICMP reports that an address cannot be reached. An engine without room now learns of it the
    /// next time: input from the network fills no queue.
    pub(crate) fn unreachable(&mut self, dest: std::net::SocketAddr, errno: i32) {
        for port in self.ports.iter_mut().filter(|port| port.queue.is_empty()) {
            let _ = port.link.send(Command::Unreachable { dest, errno });
        }
    }

    /// Gives a line up. With `gives_back`, its connection comes back when it has taken everything
    /// ([`Calls::poll_closed`]); otherwise it is closed as it is, without a report.
    pub(crate) fn close(&mut self, key: ContextKey, gives_back: bool) {
        if self.ports.is_empty() {
            // Nothing is heard of it any more.
            self.lines.remove(&key);
            return;
        }
        let Some(line) = self.lines.get_mut(&key) else { return };
        let conn = line.dest.conn();
        let (engine, stream, is_broken) = (line.engine, line.place, line.broken.is_some());
        let is_new = line.closing.is_none();
        let closing = line.closing.get_or_insert(Closing {
            stream_open: true,
            conn_open: conn.is_some(),
            is_forgotten: false,
            is_removed: false,
            returned: None,
        });
        closing.is_forgotten |= !gives_back;
        let is_returned = gives_back && !is_broken;
        let conn = conn.filter(|_| closing.conn_open && !closing.is_removed);
        closing.is_removed |= !is_returned;
        if is_new {
            self.push(engine, Command::Close { stream });
        }
        if let Some(conn) = conn {
            self.push(
                engine,
                match is_returned {
                    true => Command::ConnReturn { conn },
                    false => Command::ConnRemove { conn },
                },
            );
        }
        self.look_closed(key);
    }

    /// The connection of a line that was closed, if it has come back alive.
    pub(crate) fn poll_closed(&mut self, key: ContextKey, waker: &Waker) -> Poll<Option<ConnSocket>> {
        let Some(line) = self.lines.get_mut(&key) else { return Poll::Ready(None) };
        match &mut line.closing {
            Some(closing) if !closing.stream_open && !closing.conn_open => {
                let socket = closing.returned.take();
                self.lines.remove(&key);
                Poll::Ready(socket)
            }
            _ => {
                line.waker = Some(waker.clone());
                Poll::Pending
            }
        }
    }

    /// Processes all events of an engine, and sends the commands that had no room. Wakes the tasks
    /// that wait for them.
    pub(crate) fn pump(&mut self, engine: usize) {
        let Some(port) = self.ports.get(engine) else { return };
        port.link.rearm();
        while let Some(event) = self.ports[engine].link.poll_event() {
            self.take(engine, event);
        }
        self.flush(engine);
    }

    /// The run that a line began last.
    pub(crate) fn run_of(&self, key: ContextKey) -> Option<RunSerial> {
        self.lines.get(&key).map(|line| line.run)
    }

    /// Ends all runs; none begins any more. Whether one has not ended yet.
    pub(crate) fn stop(&mut self) -> bool {
        self.is_stopping = true;
        let lasts = |(key, line): (&ContextKey, &ViewerPath)| {
            matches!(line.state, ContextState::Running(_)).then_some((*key, line.run))
        };
        let lasting: Vec<_> = self.lines.iter().filter_map(lasts).collect();
        lasting.iter().for_each(|&(key, run)| self.interrupt(key, run, Reason::ShutDown));
        !lasting.is_empty()
    }

    /// Takes no more events from the engines and hands them over for stopping. Results already
    /// reported for runs can still be fetched.
    pub(crate) fn shut_down(&mut self) -> Vec<P> {
        let keys: Vec<_> = self.lines.keys().copied().collect();
        keys.into_iter().for_each(|key| self.close(key, false));
        self.awake.extend(self.lines.values_mut().filter_map(|line| line.waker.take()));
        self.lines.retain(|_, line| line.told.is_some());
        std::mem::take(&mut self.ports).into_iter().map(|port| port.link).collect()
    }

    fn take(&mut self, engine: usize, event: Event) {
        match event {
            Event::Stream(event) => self.stream_event(engine, event),
            Event::Refused { stream, run: Some(run), refusal } => {
                self.told(engine, stream, run, Err(refusal));
            }
            Event::ConnGone { conn, errno } => self.conn_gone(engine, conn, errno),
            Event::ConnReturned { conn, socket } => {
                // The name is free when no more events can refer to it.
                let key = self.by_conn.get(&(engine, conn));
                let closing = key.and_then(|key| self.lines.get(key)).and_then(|line| line.closing.as_ref());
                if closing.is_none_or(|closing| !closing.is_removed) {
                    self.conn_left(engine, conn, socket);
                }
            }
            Event::ConnRemoved { conn, socket } => self.conn_left(engine, conn, socket),
            Event::Refused { run: None, .. }
            | Event::Backlog { .. }
            | Event::GroupState { .. }
            | Event::Recycle { .. } => {}
        }
    }

    fn stream_event(&mut self, engine: usize, event: StreamEvent) {
        let place = event.stream();
        match event {
            StreamEvent::RunEnded { end, .. } => self.run_ended(engine, place, end),
            StreamEvent::Failed { reason, .. } => {
                let key = self.by_place.get(&(engine, place));
                let Some(line) = key.and_then(|key| self.lines.get_mut(key)) else { return };
                line.state = ContextState::Failed;
                if let FailReason::ConnectionClosed(errno) = reason {
                    line.broken = line.broken.or(Some(errno));
                }
            }
            StreamEvent::Closed { .. } => {
                self.ports[engine].places.give_back_stream(place);
                let Some(key) = self.by_place.remove(&(engine, place)) else { return };
                if let Some(closing) = self.lines.get_mut(&key).and_then(|line| line.closing.as_mut()) {
                    closing.stream_open = false;
                }
                self.look_closed(key);
            }
            StreamEvent::RunBegan { .. } | StreamEvent::Drained { .. } | StreamEvent::Left { .. } => {}
        }
    }

    fn run_ended(&mut self, engine: usize, place: StreamId, end: RunEnd) {
        let key = self.by_place.get(&(engine, place));
        let Some(line) = key.and_then(|key| self.lines.get_mut(key)) else { return };
        if let ContextState::Running(asked) = line.state {
            line.next_sequence = Some(end.next_sequence);
            let reason = Reason::of(end.reason, asked);
            self.told(engine, place, end.run, Ok(EndedRun { reason, end }));
        }
    }

    fn told(&mut self, engine: usize, place: StreamId, run: RunSerial, mut told: Told) {
        let key = self.by_place.get(&(engine, place));
        let Some(line) = key.and_then(|key| self.lines.get_mut(key)).filter(|line| line.run == run) else {
            return;
        };
        let has_failed = matches!(&told, Ok(ended) if matches!(ended.end.reason, StopReason::Failed(_)));
        line.state = if has_failed { ContextState::Failed } else { ContextState::Ready };
        if let Ok(EndedRun { reason: Reason::PeerGone { errno }, .. }) = &mut told {
            // A loop that learned of it from its egress path reports the cause only in the event of
            // the connection, which comes before.
            *errno = *line.broken.get_or_insert(*errno);
        }
        line.told = Some(told);
        self.used = BitRate(self.used.0 - std::mem::take(&mut line.rate.0));
        self.awake.extend(line.waker.take());
    }

    /// An engine knows a connection no more.
    fn conn_left(&mut self, engine: usize, conn: ConnId, socket: Option<ConnSocket>) {
        if let Some(port) = self.ports.get_mut(engine) {
            port.places.give_back_conn(conn);
        }
        let Some(key) = self.by_conn.remove(&(engine, conn)) else { return };
        let line = self.lines.get_mut(&key);
        if let Some(ViewerPath { closing: Some(closing), broken, .. }) = line {
            closing.conn_open = false;
            closing.returned = socket.filter(|_| broken.is_none());
        }
        self.look_closed(key);
    }

    fn conn_gone(&mut self, engine: usize, conn: ConnId, errno: i32) {
        let key = self.by_conn.get(&(engine, conn));
        let Some(line) = key.and_then(|key| self.lines.get_mut(key)) else { return };
        line.broken = line.broken.or(Some(errno));
        // A caller that waits for the connection to come back waits for this.
        if let Some(closing) =
            line.closing.as_mut().filter(|closing| closing.conn_open && !closing.is_removed)
        {
            closing.is_removed = true;
            self.push(engine, Command::ConnRemove { conn });
        }
    }

    /// Finishes a line that expects no more events.
    fn look_closed(&mut self, key: ContextKey) {
        let Some(line) = self.lines.get_mut(&key) else { return };
        let Some(closing) = &line.closing else { return };
        if closing.stream_open || closing.conn_open {
            return;
        }
        if closing.is_forgotten {
            self.lines.remove(&key);
        } else {
            self.awake.extend(line.waker.take());
        }
    }

    fn push(&mut self, engine: usize, command: Command) {
        if let Some(port) = self.ports.get_mut(engine) {
            port.queue.push_back(command);
            self.flush(engine);
        }
    }

    /// Hands over commands that had no room before.
    pub(crate) fn flush(&mut self, engine: usize) {
        let Some(Port { link, queue, .. }) = self.ports.get_mut(engine) else { return };
        while let Some(command) = queue.pop_front() {
            if let Err(command) = link.send(command) {
                return queue.push_front(*command);
            }
        }
    }

    /// Engines.
    pub(crate) fn engines(&self) -> usize {
        self.ports.len()
    }
}

#[cfg(test)]
#[path = "calls_tests.rs"]
mod tests;
